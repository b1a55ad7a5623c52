//! Sessions on a GPU through the C API: what a host relies on. On a machine without a GPU the tests say so and prove nothing.

use crate::common;
use crate::common::{Ctx, Model, Session, bundled_model, call, greedy, shared_data};
use cudarc::driver::sys;
use segno::backend::cuda;
use segno::ffi::ctx::{SEGNO_CTX_HOST_ARGMAX, SEGNO_PRECISION_PRECISE};
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA, segno_device_info_get};
use segno::ffi::plan::segno_plan_get;
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8, segno_session_memory};
use segno::quant::DType;
use std::ffi::CString;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn context() -> Ctx {
    Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap()
}

/// A model with most of the types that the kernels know, two layers of random weights.
fn mixed() -> Vec<u8> {
    let file = common::random::file(|name| match name {
        name if name.contains("attn_v") || name.contains("output") => DType::Q6_K,
        name if name.contains("ffn_down") => DType::Q8_0,
        name if name.contains("attn_q") => DType::BF16,
        _ => DType::Q4_K,
    });
    file.bytes()
}

fn prompt(length: usize) -> Vec<i32> {
    (0..length).map(|i| (i * 31 % 293 + 3) as i32).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

/// Logits of a sequence made anew from its whole history.
fn fresh(model: &Model, kv_type: i32, tokens: &[i32]) -> Vec<u32> {
    let session = model.session(|opts| opts.kv_type = kv_type).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, tokens).unwrap();
    bits(&session.logits(seq).unwrap())
}

#[test]
fn submitted_steps_give_the_tokens_of_batches() {
    if !common::gpu() {
        return;
    }
    common::submitted::tokens_are_those_of_batches(&context().load(&bundled_model()).unwrap());
}

#[test]
fn models_of_floats_continue_as_on_the_processor() {
    if !common::gpu() {
        return;
    }
    let mut files: Vec<PathBuf> = common::launches::cuda_goldens().collect();
    files.extend(shared_data().map(|data| data.join("models/stories260K.gguf")));
    let (device, processor) = (context(), Ctx::new(|opts| opts.device = SEGNO_DEVICE_CPU).unwrap());
    for path in files {
        let generate = |ctx: &Ctx| {
            let model = ctx.load(&path).unwrap();
            let session = model.session_f32();
            let seq = session.open(&greedy()).unwrap();
            session.append(seq, &[1]).unwrap();
            let count = 256.min(model.info().context as usize - 1);
            session.generate(seq, count).unwrap()
        };
        let (found, expected) = (generate(&device), generate(&processor));
        assert_eq!(found, expected, "{}", path.display());
        println!("{}: {} greedy tokens equal", path.display(), found.len());
    }
}

#[test]
fn forked_and_cut_sequences_equal_fresh_ones() {
    if !common::gpu() {
        return;
    }
    let bytes = mixed();
    let model = context().load_buffer(&bytes).unwrap();
    for kv_type in [SEGNO_KV_F16, SEGNO_KV_Q8] {
        forks_and_cuts_equal_fresh_ones(&model, kv_type);
    }
}

fn forks_and_cuts_equal_fresh_ones(model: &Model, kv_type: i32) {
    let session = model.session(|opts| opts.kv_type = kv_type).unwrap();
    let fresh = |tokens: &[i32]| fresh(model, kv_type, tokens);
    for length in [1, 31, 32, 33, 70, 255, 257, 600] {
        let tokens = prompt(length);
        let parent = session.open(&greedy()).unwrap();
        session.prefill(parent, &tokens).unwrap();
        let child = session.fork(parent, None).unwrap();
        session.append(child, &[7, 8, 9]).unwrap();
        session.append(parent, &[5]).unwrap();
        assert_eq!(bits(&session.logits(child).unwrap()), fresh(&[&tokens[..], &[7, 8, 9]].concat()), "{length}");
        assert_eq!(bits(&session.logits(parent).unwrap()), fresh(&[&tokens[..], &[5]].concat()), "{length}");
        for kept in [length, length / 2, 0] {
            session.truncate(child, kept).unwrap();
            session.append(child, &[11]).unwrap();
            let expected = fresh(&[&tokens[..kept], &[11]].concat());
            assert_eq!(bits(&session.logits(child).unwrap()), expected, "{length} cut to {kept}");
        }
        session.close(parent).unwrap();
        session.close(child).unwrap();
    }
}

#[test]
fn tokens_chosen_by_the_host_are_those_of_the_device() {
    if !common::gpu() {
        return;
    }
    let tokens = |flags| {
        let ctx = Ctx::new(|opts| (opts.device, opts.flags) = (SEGNO_DEVICE_CUDA, flags)).unwrap();
        let session = ctx.load(&bundled_model()).unwrap().session(|_| ()).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &[5, 6, 7]).unwrap();
        cuda::testing::calls_of(|| session.generate(seq, 100).unwrap())
    };
    let ((device, calls), (host, host_calls)) = (tokens(0), tokens(SEGNO_CTX_HOST_ARGMAX));
    assert_eq!(device, host);
    let reads = |calls: &[&str]| calls.iter().filter(|call| **call == "cuMemcpyDtoHAsync").count();
    assert_eq!((reads(&calls), reads(&host_calls)), (0, 99));
}

#[test]
fn precise_mode_is_refused_and_not_replaced() {
    let refused = Ctx::new(|opts| (opts.device, opts.precision) = (SEGNO_DEVICE_CUDA, SEGNO_PRECISION_PRECISE));
    assert!(refused.err().unwrap().message.contains("precise mode"));
}

/// Steps of one sequence of `length` prompt tokens; what came out.
fn story(model: &Model, length: usize) -> Vec<i32> {
    let session = model.session(|opts| opts.kv_type = if length.is_multiple_of(2) { SEGNO_KV_F32 } else { 0 }).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &prompt(length)).unwrap();
    session.generate(seq, 200).unwrap()
}

#[test]
fn sessions_and_models_share_a_device() {
    if !common::gpu() {
        return;
    }
    let ctx = context();
    let bytes = mixed();
    let models =
        [ctx.load(&bundled_model()).unwrap(), ctx.load_buffer(&bytes).unwrap(), context().load_buffer(&bytes).unwrap()];
    let alone: Vec<Vec<i32>> = (0..12).map(|i| story(&models[i % 3], 20 + i)).collect();
    let together: Vec<Vec<i32>> = std::thread::scope(|scope| {
        let models = &models;
        let threads: Vec<_> = (0..12).map(|i| scope.spawn(move || story(&models[i % 3], 20 + i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(alone == together);
    assert_ne!(alone[0], alone[1]);
}

/// Allocates, copies and synchronises in the primary context until told to stop; the number of rounds.
fn disturb(stop: &AtomicBool, rounds: &AtomicU64) {
    let mut context = null_mut();
    let check = |result| assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    // SAFETY: device 0 exists; the share and all memory are given back, and copies stay within what was taken.
    unsafe {
        check(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        check(sys::cuCtxSetCurrent(context));
        let mut host = vec![1u8; 1 << 16];
        while !stop.load(Ordering::Relaxed) {
            let mut memory = 0;
            check(sys::cuMemAlloc_v2(&mut memory, 1 << 16));
            check(sys::cuMemcpyHtoD_v2(memory, host.as_ptr().cast(), host.len()));
            check(sys::cuCtxSynchronize());
            check(sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), memory, host.len()));
            check(sys::cuMemFree_v2(memory));
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        check(sys::cuCtxSetCurrent(null_mut()));
        check(sys::cuDevicePrimaryCtxRelease_v2(0));
    }
}

#[test]
fn a_host_that_uses_the_device_all_the_time_disturbs_nothing() {
    if !common::gpu() {
        return;
    }
    let (ctx, bytes) = (context(), mixed());
    let quiet: Vec<Vec<i32>> = (0..6).map(|i| story(&ctx.load_buffer(&bytes).unwrap(), 40 + i)).collect();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let noisy: Vec<Vec<i32>> = std::thread::scope(|scope| {
        scope.spawn(|| disturb(&stop, &rounds));
        while rounds.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let stories = (0..6).map(|i| story(&ctx.load_buffer(&bytes).unwrap(), 40 + i)).collect();
        stop.store(true, Ordering::Relaxed);
        stories
    });
    println!("{} rounds of another thread", rounds.load(Ordering::Relaxed));
    assert!(quiet == noisy && rounds.load(Ordering::Relaxed) > 100);
}

fn current() -> sys::CUcontext {
    let mut context = null_mut();
    // SAFETY: a device was found, so the driver is open and initialised.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut context) }, sys::CUresult::CUDA_SUCCESS);
    context
}

/// Runs `f`, after which this thread must have the current context that it had before.
fn kept<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let before = current();
    let value = f();
    assert_eq!(current(), before, "{what}");
    value
}

/// Every call that may touch the driver, failing ones included.
fn use_everything() {
    let ctx = kept("ctx_create", context);
    kept("ctx_create", || Ctx::new(|opts| (opts.device, opts.device_index) = (SEGNO_DEVICE_CUDA, 99)).err().unwrap());
    let path = CString::new(bundled_model().to_str().unwrap()).unwrap();
    // SAFETY: numbers only, so zeros are a value.
    let (mut plan, mut info, mut memory) = unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
    kept("plan", || {
        let size = size_of_val(&plan);
        call(|err| segno_plan_get(ctx.0, path.as_ptr(), null(), null(), &mut plan, size, err)).unwrap();
        let size = size_of_val(&info);
        call(|err| segno_device_info_get(SEGNO_DEVICE_CUDA, 0, &mut info, size, err)).unwrap()
    });
    let model = kept("model_load", || ctx.load(&bundled_model()).unwrap());
    let whole = common::random::file(|_| DType::Q8_0).bytes();
    kept("model_load", || ctx.load_buffer(&whole[..whole.len() / 2]).err().unwrap());
    let session = kept("session_create", || model.session(|_| ()).unwrap());
    kept("session_create", || model.session(|opts| opts.kv_tokens = 1 << 26).err().unwrap());
    kept("session_memory", || {
        let size = size_of_val(&memory);
        call(|err| segno_session_memory(session.0, &mut memory, size, err)).unwrap()
    });
    use_session(&session);
    kept("session_free", || drop(session));
    kept("model_free", || drop(model));
    kept("ctx_free", || drop(ctx));
}

fn use_session(session: &Session) {
    let seq = kept("open", || session.open(&greedy()).unwrap());
    kept("append", || session.append(seq, &[3; 40]).unwrap());
    kept("prefill", || session.prefill(seq, &[4; 40]).unwrap());
    kept("step", || session.step(seq).unwrap());
    kept("logits", || session.logits(seq).unwrap());
    let child = kept("fork", || session.fork(seq, None).unwrap());
    kept("truncate", || session.truncate(child, 20).unwrap());
    kept("batch", || session.batch(&[seq, child]).2.unwrap());
    session.cancel(true);
    kept("step", || session.step(seq).unwrap());
    session.cancel(false);
    kept("close", || session.close(child).unwrap());
}

#[test]
fn no_call_changes_the_current_context() {
    if !common::gpu() {
        return;
    }
    kept("without a context", use_everything);
    let mut host = null_mut();
    // SAFETY: device 0 exists; the share is given back below, and the context is current on this thread alone.
    unsafe {
        assert_eq!(sys::cuDevicePrimaryCtxRetain(&mut host, 0), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxPushCurrent_v2(host), sys::CUresult::CUDA_SUCCESS);
    }
    kept("with the primary context", use_everything);
    // SAFETY: undoes what was done above, in reverse order.
    unsafe {
        assert_eq!(sys::cuCtxPopCurrent_v2(&mut host), sys::CUresult::CUDA_SUCCESS);
        sys::cuDevicePrimaryCtxRelease_v2(0);
    }
    let mut own = null_mut();
    // SAFETY: device 0 exists; the context becomes current on this thread, and is destroyed below.
    unsafe { assert_eq!(sys::cuCtxCreate_v2(&mut own, 0, 0), sys::CUresult::CUDA_SUCCESS) };
    kept("with a context of the host's own", use_everything);
    assert_eq!(current(), own);
    // SAFETY: made above; destroying takes it off this thread.
    unsafe { sys::cuCtxDestroy_v2(own) };
}
