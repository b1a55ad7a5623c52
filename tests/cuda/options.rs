//! Options of a context that are for GPUs, on one. On a machine without a GPU the tests say so and prove nothing; `tests/driver` has what needs none.

use crate::common;
use crate::common::log::{listen, texts};
use crate::common::{Ctx, bundled_model, greedy};
use cudarc::driver::sys;
use segno::ffi::ctx::{SEGNO_CTX_FAST_BATCHES, SEGNO_CTX_TIMING, segno_ctx_opts};
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::ffi::status::SEGNO_E_INVALID_ARGUMENT;
use std::ptr::null_mut;

fn check(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

fn context(change: impl FnOnce(&mut segno_ctx_opts)) -> common::Result<Ctx> {
    Ctx::new(|opts| {
        opts.device = SEGNO_DEVICE_CUDA;
        change(opts);
    })
}

/// Tokens of the bundled model, of two sequences that sample beside a greedy one.
fn tokens(ctx: &Ctx) -> Vec<Vec<i32>> {
    let model = ctx.load(&bundled_model()).unwrap();
    let session = model.session(|_| ()).unwrap();
    let mut drawn = common::sampler();
    (drawn.seed, drawn.flags) = (5, greedy().flags);
    let seqs: Vec<i32> = [&greedy(), &drawn, &drawn].map(|opts| session.open(opts).unwrap()).into();
    seqs.iter().for_each(|&seq| _ = session.append(seq, &[seq + 5]).unwrap());
    let alone = session.generate(seqs[0], 40).unwrap();
    let together = (0..40).map(|_| {
        let (tokens, _, result) = session.batch(&seqs);
        result.unwrap();
        tokens
    });
    std::iter::once(alone).chain(together).collect()
}

fn current() -> sys::CUcontext {
    let mut context = null_mut();
    // SAFETY: there is a device, so the driver is open and initialised.
    check(unsafe { sys::cuCtxGetCurrent(&mut context) });
    context
}

#[test]
fn a_context_of_the_hosts_own_gives_the_same_tokens_and_survives() {
    if !common::gpu() {
        return;
    }
    let expected = tokens(&context(|_| ()).unwrap());
    let mut own = null_mut();
    // SAFETY: device 0 exists; the context is destroyed below.
    unsafe { check(sys::cuCtxCreate_v2(&mut own, 0, 0)) };
    for is_current in [true, false] {
        if !is_current {
            // SAFETY: takes off what was made current above.
            check(unsafe { sys::cuCtxPopCurrent_v2(&mut own) });
        }
        let before = current();
        let ctx = context(|opts| opts.cuda_context = own.cast()).unwrap();
        assert_eq!(tokens(&ctx), expected);
        drop(ctx);
        assert_eq!(current(), before);
    }
    // SAFETY: the host's own context, with its own memory in it; everything of the library is freed.
    unsafe {
        check(sys::cuCtxPushCurrent_v2(own));
        let mut memory = 0;
        check(sys::cuMemAlloc_v2(&mut memory, 1 << 20));
        check(sys::cuMemFree_v2(memory));
        check(sys::cuCtxDestroy_v2(own));
    }
}

#[test]
fn a_priority_within_the_range_changes_no_token() {
    if !common::gpu() {
        return;
    }
    let expected = tokens(&context(|_| ()).unwrap());
    let failed = context(|opts| opts.stream_priority = -1000).err().unwrap();
    assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT);
    let first: i32 = failed.message.split(' ').find_map(|word| word.parse().ok().filter(|&n| n > -1000)).unwrap();
    println!("{}", failed.message);
    assert!(first < 0);
    assert_eq!(tokens(&context(|opts| opts.stream_priority = first).unwrap()), expected);
}

#[test]
fn timed_steps_give_the_same_tokens_and_a_table() {
    if !common::gpu() {
        return;
    }
    let expected = tokens(&context(|_| ()).unwrap());
    let mut lines = None;
    let timed = context(|opts| {
        opts.flags = SEGNO_CTX_TIMING;
        lines = Some(listen(opts));
    });
    assert_eq!(tokens(&timed.unwrap()), expected);
    let lines = texts(lines.unwrap());
    lines.iter().for_each(|line| println!("{line}"));
    let tables = lines.iter().filter(|line| line.contains("launches of a step of")).count();
    assert_eq!(tables, 2, "steps of one row, and of three in a bucket of four");
    let figures = lines.iter().filter_map(|line| line.strip_prefix(" all "));
    for sum in figures {
        let numbers: Vec<f64> = sum.split_whitespace().take(3).map(|word| word.parse().unwrap()).collect();
        // No memory moves more than 100 TB/s, and no step of so small a model takes a millisecond.
        assert!(numbers[1] > 1.0 && numbers[1] < 2_000.0 && numbers[2] > 0.1 && numbers[2] < 100_000.0, "{sum}");
    }
}

/// What the log says of fast batches on a device.
fn told(device: i32, flags: u32) -> Vec<String> {
    let mut lines = None;
    let ctx = Ctx::new(|opts| {
        (opts.device, opts.flags) = (device, flags);
        lines = Some(listen(opts));
    });
    drop(ctx.unwrap());
    let mut lines = texts(lines.unwrap());
    lines.retain(|line| line.starts_with("fast batches"));
    lines
}

#[test]
fn the_log_says_whether_fast_batches_are_in_use() {
    assert_eq!(told(SEGNO_DEVICE_CPU, SEGNO_CTX_FAST_BATCHES), ["fast batches are not in use: they need a gpu"]);
    assert!(told(SEGNO_DEVICE_CPU, 0).is_empty());
    let unknown = Ctx::new(|opts| opts.flags = 1 << 31).err().unwrap();
    assert_eq!((unknown.status, &*unknown.message), (SEGNO_E_INVALID_ARGUMENT, "unknown context flags 0x80000000"));
    if common::gpu() {
        let lines = told(SEGNO_DEVICE_CUDA, SEGNO_CTX_FAST_BATCHES);
        assert!(lines.len() == 1 && told(SEGNO_DEVICE_CUDA, 0).is_empty(), "{lines:?}");
        println!("{}", lines[0]);
    }
}
