//! Memory of a GPU: what is planned, what is refused, what comes back. One test, since it watches the whole device; on a machine without a GPU
//! it says so and proves nothing.

#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;

use common::adapters::{Form, Lora};
use common::embeddings::{case, embed_opts};
use common::{Ctx, Folder, Watch, bundled_model, call, greedy, model_opts, sampler};
use cudarc::driver::sys;
use segno::ffi::ctx::SEGNO_CTX_FAST_BATCHES;
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::plan::{segno_plan, segno_plan_get};
use segno::ffi::session::segno_session_opts;
use segno::ffi::session::{segno_memory, segno_session_memory, segno_session_opts_init};
use segno::ffi::status::{SEGNO_CANCELLED, SEGNO_E_DEVICE_MEMORY, SEGNO_OK};
use std::ffi::CString;
use std::ptr::{null, null_mut};

const MIB: u64 = 1 << 20;

fn check(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

/// Free bytes of the device, whose context is current.
fn free() -> u64 {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the test holds the device's context, which is current.
    check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) });
    free as u64
}

fn options(kv_tokens: u64) -> segno_session_opts {
    // SAFETY: numbers only, so zeros are a value.
    let mut opts = unsafe { std::mem::zeroed() };
    segno_session_opts_init(&mut opts, size_of::<segno_session_opts>());
    opts.kv_tokens = kv_tokens;
    opts
}

fn plan(ctx: &Ctx, kv_tokens: u64) -> segno_plan {
    let path = CString::new(bundled_model().to_str().unwrap()).unwrap();
    // SAFETY: numbers only, so zeros are a value.
    let mut plan = unsafe { std::mem::zeroed() };
    let (opts, size) = (options(kv_tokens), size_of::<segno_plan>());
    call(|err| segno_plan_get(ctx.0, path.as_ptr(), null(), &opts, &mut plan, size, err)).unwrap();
    plan
}

/// Model and session take what the plan said, as far as the driver's pieces of 2 MiB tell.
fn takes_what_was_planned(ctx: &Ctx) {
    for (seqs, kv_tokens) in [(8, 8192), (64, 65_536)] {
        let before = free();
        let model = ctx.load(&bundled_model()).unwrap();
        let weights = before - free();
        let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (seqs, kv_tokens)).unwrap();
        let taken = before - free() - weights;
        // SAFETY: numbers only, so zeros are a value.
        let mut told: segno_memory = unsafe { std::mem::zeroed() };
        let size = size_of::<segno_memory>();
        call(|err| segno_session_memory(session.0, &mut told, size, err)).unwrap();
        let fixed = told.device_kv + told.device_arena;
        println!(
            "{seqs} sequences: weights {weights} of {} planned; session {taken}: cache and arena {fixed}, graphs {} of {} planned",
            told.device_weights,
            taken.saturating_sub(fixed),
            told.device_graphs
        );
        assert!(weights <= told.device_weights + 4 * MIB, "weights take more than planned");
        assert!(taken <= fixed + told.device_graphs + 8 * MIB, "a session takes more than planned");
        assert!(taken + 4 * MIB >= fixed, "a session takes less than its cache");
    }
}

/// Fast batches take room for 16-bit floats, as planned, and nothing else.
fn fast_batches_take_what_was_planned(exact: &Ctx) {
    let fast = Ctx::new(|opts| (opts.device, opts.flags) = (SEGNO_DEVICE_CUDA, SEGNO_CTX_FAST_BATCHES)).unwrap();
    let (exact, planned) = (plan(exact, 8192), plan(&fast, 8192));
    let more = planned.device_arena - exact.device_arena;
    // Two blocks of 512 rows of the model's width, in a place aligned to 1024 bytes; its gated units are not as wide as whole chunks.
    assert_eq!(more, 2 * 512 * 256 * 2 + 1024);
    assert!((planned.device_weights, planned.device_kv) == (exact.device_weights, exact.device_kv));
    takes_what_was_planned(&fast);
}

/// An adapter takes what its matrices have, a session with ranks what is planned, and all of it comes back: that of an adapter once nobody has it.
fn adapters_take_what_they_have_and_give_it_back(ctx: &Ctx) {
    let (folder, base) = (Folder::new("cuda-memory"), std::fs::read(bundled_model()).unwrap());
    let (model, path) = (ctx.load(&bundled_model()).unwrap(), folder.join("adapter.gguf"));
    let lora = Lora::random(&base, Form::new(3, 1024), |_| true);
    lora.file().write(&path);
    let bytes = lora.pairs.iter().map(|pair| 4 * (pair.a.len() + pair.b.len()) as u64).sum::<u64>();
    assert!(bytes > 16 * MIB, "{bytes}");
    let session = model.session(|opts| opts.adapter_ranks = 1024).unwrap();
    let before = free();
    let adapter = model.adapter(&path).unwrap();
    let taken = before - free();
    println!("an adapter of {bytes} bytes takes {taken}");
    assert!(taken.abs_diff(bytes) <= 4 * MIB);
    let seq = session.open(&greedy()).unwrap();
    session.adapt(seq, &[(&adapter, 1.0)]).unwrap();
    session.prefill(seq, &[5, 6, 7]).unwrap();
    session.generate(seq, 3).unwrap();
    drop(adapter);
    let kept = free();
    session.adapt(seq, &[]).unwrap();
    assert!(free() >= kept + bytes - 4 * MIB, "{kept} bytes free with the adapter, {} without", free());
    session.generate(seq, 3).unwrap();
    drop((session, model));
    let before = free();
    let model = ctx.load(&bundled_model()).unwrap();
    let weights = before - free();
    let session = model.session(|opts| opts.adapter_ranks = 4096).unwrap();
    let taken = before - free() - weights;
    // SAFETY: numbers only, so zeros are a value.
    let mut told: segno_memory = unsafe { std::mem::zeroed() };
    call(|err| segno_session_memory(session.0, &mut told, size_of::<segno_memory>(), err)).unwrap();
    let planned = told.device_kv + told.device_arena + told.device_graphs;
    println!("a session with 4096 ranks takes {taken} of {planned} planned");
    assert!(taken <= planned + 8 * MIB && taken + 4 * MIB >= told.device_kv + told.device_arena);
}

/// A session of an encoder takes what was planned and has no graphs; calls take nothing more.
fn encoders_take_what_was_planned(ctx: &Ctx) {
    let model = ctx.load(&case("bert-mean").file).unwrap();
    let before = free();
    let set = |opts: &mut segno_session_opts| (opts.max_seqs, opts.max_prefill, opts.kv_tokens) = (64, 4096, 262_144);
    let session = model.session(set).unwrap();
    let (taken, open) = (before - free(), free());
    // SAFETY: numbers only, so zeros are a value.
    let mut told: segno_memory = unsafe { std::mem::zeroed() };
    call(|err| segno_session_memory(session.0, &mut told, size_of::<segno_memory>(), err)).unwrap();
    let planned = told.device_kv + told.device_arena;
    println!("a session of an encoder takes {taken} of {planned} planned");
    assert_eq!(told.device_graphs, 0);
    assert!(taken <= planned + 8 * MIB && taken + 4 * MIB >= planned);
    for _ in 0..10 {
        session.vectors(&[&[5; 40][..]; 100], &embed_opts());
    }
    assert_eq!(free(), open, "calls take memory of the device");
}

/// One life of a host's objects.
fn live(ctx: &Ctx) {
    let model = ctx.load(&bundled_model()).unwrap();
    let session = model.session(|opts| opts.kv_tokens = 1024).unwrap();
    for opts in [greedy(), sampler()] {
        let seq = session.open(&opts).unwrap();
        session.prefill(seq, &[5, 6, 7, 8]).unwrap();
        session.generate(seq, 4).unwrap();
    }
}

fn all_comes_back(ctx: &Ctx) {
    (0..3).for_each(|_| live(ctx));
    let third = free();
    (3..100).for_each(|_| live(ctx));
    let last = free();
    println!("free after 3 cycles {third}, after 100 {last}");
    assert!(third.abs_diff(last) <= 16 * MIB, "{third} bytes free after 3 cycles, {last} after 100");
}

/// Takes device memory until less than `left` bytes are free.
fn fill(left: u64) -> Vec<sys::CUdeviceptr> {
    let mut taken = Vec::new();
    let mut piece = free();
    while free() >= left && piece >= MIB {
        let mut memory = 0;
        // SAFETY: the device's context is current; whatever is taken is given back by the caller.
        match unsafe { sys::cuMemAlloc_v2(&mut memory, piece as usize) } {
            sys::CUresult::CUDA_SUCCESS => taken.push(memory),
            _ => piece /= 2,
        }
        piece = piece.min(free());
    }
    taken
}

fn too_much_is_refused_with_figures(ctx: &Ctx) {
    let huge = plan(ctx, 1 << 27);
    assert_eq!(huge.fits, 0);
    let model = ctx.load(&bundled_model()).unwrap();
    let before = free();
    let refused = model.session(|opts| *opts = options(1 << 27)).err().unwrap();
    let needed = huge.device_kv + huge.device_arena + huge.device_graphs;
    println!("{}", refused.message);
    assert_eq!(refused.status, SEGNO_E_DEVICE_MEMORY);
    assert!(refused.message.contains(&format!("{needed} bytes needed, {before} free")), "{}", refused.message);
    assert_eq!(free(), before);
    drop(model);
    let taken = fill(4 * MIB);
    let (small, before) = (plan(ctx, 64), free());
    assert!(small.fits == 0 && small.device_free == before && small.device_weights > before);
    let refused = ctx.load(&bundled_model()).err().unwrap();
    println!("{}", refused.message);
    assert_eq!(refused.status, SEGNO_E_DEVICE_MEMORY);
    let figures = format!("{} bytes needed, {before} free", small.device_weights);
    assert!(refused.message.contains(&figures) && free() == before, "{}", refused.message);
    // SAFETY: each was taken above and is given back once.
    taken.into_iter().for_each(|memory| check(unsafe { sys::cuMemFree_v2(memory) }));
    assert_eq!(plan(ctx, 64).fits, 1);
    live(ctx);
}

/// A load that is cancelled at any of its reports, most of which come between uploads, leaves nothing on the device, and the next one works.
fn a_cancelled_upload_leaves_nothing(ctx: &Ctx) {
    let load = |watch: &mut Watch| ctx.load_with(&bundled_model(), &model_opts(0, watch)).unwrap();
    let mut whole = Watch::default();
    assert_eq!(load(&mut whole).0, SEGNO_OK);
    assert!(whole.heard.len() > 20, "{:?}", whole.heard);
    let before = free();
    for cancel_at in 0..whole.heard.len() {
        let mut watch = Watch { cancel_at: Some(cancel_at), ..Watch::default() };
        assert_eq!(load(&mut watch).0, SEGNO_CANCELLED, "report {cancel_at}");
        assert_eq!(watch.heard, whole.heard[..=cancel_at], "nothing is heard after a cancel");
        assert!(free() >= before, "report {cancel_at}: {} bytes stay", before - free());
    }
    assert_eq!(load(&mut Watch::default()).0, SEGNO_OK);
}

#[test]
fn memory_is_planned_refused_and_given_back() {
    if !common::gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    let mut host = null_mut();
    // SAFETY: device 0 exists; share and current context are given back below.
    unsafe {
        check(sys::cuDevicePrimaryCtxRetain(&mut host, 0));
        check(sys::cuCtxPushCurrent_v2(host));
    }
    live(&ctx);
    takes_what_was_planned(&ctx);
    fast_batches_take_what_was_planned(&ctx);
    too_much_is_refused_with_figures(&ctx);
    a_cancelled_upload_leaves_nothing(&ctx);
    adapters_take_what_they_have_and_give_it_back(&ctx);
    encoders_take_what_was_planned(&ctx);
    all_comes_back(&ctx);
    // SAFETY: undoes what was done above, in reverse order.
    unsafe {
        check(sys::cuCtxPopCurrent_v2(&mut host));
        check(sys::cuDevicePrimaryCtxRelease_v2(0));
    }
}
