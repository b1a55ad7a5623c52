//! The plan of a load: what `segno_plan_get` tells from a file's header, against what a session reports and what it really takes.

#[path = "../common/mod.rs"]
mod common;

use common::gguf::{Shape, Storage, write_parts};
use common::{Ctx, Folder, Result, Session, call};
use segno::ffi::ctx::SEGNO_CTX_FAST_BATCHES;
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::ffi::plan::{segno_plan, segno_plan_get};
use segno::ffi::session::*;
use segno::ffi::status::*;
use segno::memory::{Source, draw_from};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::CString;
use std::path::Path;
use std::ptr::null;
use std::time::{Duration, Instant};

thread_local! {
    /// Bytes that this thread has taken and not given back.
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every request is passed on unchanged to the system's allocator; counting in a constant-initialised thread-local cell
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get() + layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

static COUNTING: Source = Source(&Counting);

/// What `f` makes, and the bytes that it holds on to.
fn held<T>(f: impl FnOnce() -> T) -> (T, u64) {
    draw_from(&COUNTING);
    let before = LIVE.get();
    let value = f();
    (value, u64::try_from(LIVE.get() - before).unwrap())
}

/// Session options that a host may choose.
#[derive(Clone, Copy, Debug)]
struct Choice {
    max_seqs: u32,
    kv_tokens: u64,
    max_prefill: u32,
    kv_type: i32,
    adapter_ranks: u32,
}

impl Choice {
    fn apply(&self, opts: &mut segno_session_opts) {
        (opts.max_seqs, opts.kv_tokens) = (self.max_seqs, self.kv_tokens);
        (opts.max_prefill, opts.kv_type) = (self.max_prefill, self.kv_type);
        opts.adapter_ranks = self.adapter_ranks;
    }
}

const DEFAULTS: Choice =
    Choice { max_seqs: 8, kv_tokens: 0, max_prefill: 512, kv_type: SEGNO_KV_F16, adapter_ranks: 0 };
const CHOICES: [Choice; 10] = [
    DEFAULTS,
    Choice { max_seqs: 1, ..DEFAULTS },
    Choice { max_seqs: 64, ..DEFAULTS },
    Choice { kv_tokens: 1, max_prefill: 1, ..DEFAULTS },
    Choice { kv_tokens: 20_000, ..DEFAULTS },
    Choice { kv_tokens: 3_000, kv_type: SEGNO_KV_F32, ..DEFAULTS },
    Choice { max_prefill: 2_000, ..DEFAULTS },
    Choice { max_seqs: 3, kv_tokens: 2_000, kv_type: SEGNO_KV_Q8, ..DEFAULTS },
    Choice { max_seqs: 256, kv_tokens: 5_000, max_prefill: 33, kv_type: SEGNO_KV_F32, adapter_ranks: 0 },
    Choice { adapter_ranks: 900, ..DEFAULTS },
];

/// A Llama with a vocabulary that outweighs the rest, 8-bit Qwen with wide layers, many layers, and next to nothing.
fn shapes() -> [Shape; 4] {
    let small = Shape::small();
    [
        Shape { vocab: 30_000, tied: true, storage: Storage::Hole, ..small },
        Shape {
            arch: "qwen2",
            hidden: 512,
            feed_forward: 1536,
            heads: 8,
            head_dim: 64,
            storage: Storage::Q8_0,
            ..small
        },
        Shape { arch: "qwen3", layers: 8, head_dim: 64, context: 4096, ..small },
        small,
    ]
}

fn plan(ctx: &Ctx, path: &Path, choice: &Choice) -> Result<segno_plan> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the structs of the header hold numbers, for which zero is a value.
    let (mut opts, mut plan): (segno_session_opts, segno_plan) = unsafe { std::mem::zeroed() };
    segno_session_opts_init(&mut opts, size_of::<segno_session_opts>());
    choice.apply(&mut opts);
    let size = size_of::<segno_plan>();
    call(|err| segno_plan_get(ctx.0, path.as_ptr(), null(), &opts, &mut plan, size, err)).map(|_| plan)
}

fn memory(session: &Session) -> segno_memory {
    // SAFETY: as above.
    let mut memory = unsafe { std::mem::zeroed() };
    call(|err| segno_session_memory(session.0, &mut memory, size_of::<segno_memory>(), err)).unwrap();
    memory
}

fn assert_close(what: &str, planned: u64, found: u64) {
    let difference = planned.abs_diff(found) as f64 / found as f64;
    assert!(difference <= 0.05, "{what}: {planned} planned, {found} found, {:.1} % apart", 100.0 * difference);
}

/// Too little to tell a share of: fixed costs of a few lists outweigh it.
const LEAST_BYTES: u64 = 4 << 20;

/// Plans every choice for every shape in a context with this precision, then makes the session; how many were weighed.
fn assert_plans(precise: bool) -> usize {
    let folder = Folder::new(if precise { "plan-precise" } else { "plan" });
    let ctx = Ctx::new(|opts| (opts.n_threads, opts.precision) = (2, precise.into())).unwrap();
    let mut weighed = 0;
    for (index, shape) in shapes().iter().enumerate() {
        let path = folder.join(&format!("{index}.gguf"));
        let file = shape.file();
        file.write(&path);
        let weights: u64 = file.tensors.iter().map(|tensor| tensor.content.len()).sum();
        let model = ctx.load(&path).unwrap();
        for choice in CHOICES {
            let what = format!("shape {index}, {choice:?}");
            let planned = plan(&ctx, &path, &choice).unwrap();
            let (session, held) = held(|| model.session(|opts| choice.apply(opts)).unwrap());
            let found = memory(&session);
            assert_close(&format!("{what}, weights"), planned.host_weights, found.host_weights);
            assert_close(&format!("{what}, kv"), planned.host_kv, found.host_kv);
            assert_close(&format!("{what}, arena"), planned.host_arena, found.host_arena);
            assert_eq!(planned.host_weights, weights, "{what}");
            let total = planned.host_kv + planned.host_arena;
            println!("{what}: kv {}, arena {}, held {held}", planned.host_kv, planned.host_arena);
            if total >= LEAST_BYTES {
                assert_close(&format!("{what}, allocated"), total, held);
                weighed += 1;
            }
        }
    }
    weighed
}

#[test]
fn a_session_takes_what_its_plan_told() {
    let weighed = assert_plans(false);
    assert!(weighed >= 20, "{weighed} sessions were large enough");
}

#[test]
fn a_precise_session_takes_what_its_plan_told() {
    let weighed = assert_plans(true);
    assert!(weighed >= 20, "{weighed} sessions were large enough");
}

#[test]
fn fast_batches_take_nothing_on_the_processor() {
    let folder = Folder::new("plan-fast");
    let path = folder.join("model.gguf");
    Shape::small().file().write(&path);
    let plan = |flags| {
        let ctx = Ctx::new(|opts| (opts.device, opts.flags) = (SEGNO_DEVICE_CPU, flags)).unwrap();
        let plan = plan(&ctx, &path, &DEFAULTS).unwrap();
        [plan.host_weights, plan.host_kv, plan.host_arena, plan.device_arena]
    };
    assert_eq!(plan(0), plan(SEGNO_CTX_FAST_BATCHES));
}

#[test]
fn the_cache_grows_with_its_tokens_and_elements() {
    let folder = Folder::new("plan-kv");
    let path = folder.join("model.gguf");
    Shape::small().file().write(&path);
    let ctx = Ctx::new(|_| ()).unwrap();
    let kv = |choice: Choice| plan(&ctx, &path, &choice).unwrap().host_kv;
    // Two layers, keys and values, two heads of 16 elements of two bytes; a page of 32 tokens more for each sequence.
    let token = 2 * 2 * 2 * 16 * 2;
    assert_eq!(kv(Choice { kv_tokens: 3200, max_seqs: 1, ..DEFAULTS }), (3200 + 32) * token);
    assert_eq!(kv(Choice { kv_tokens: 3201, max_seqs: 64, ..DEFAULTS }), (3232 + 64 * 32) * token);
    assert_eq!(kv(Choice { kv_tokens: 3200, max_seqs: 1, kv_type: SEGNO_KV_F32, ..DEFAULTS }), 2 * (3200 + 32) * token);
    // In 8 bits 16 elements are as many bytes, and two of a scale.
    let token_q8 = 2 * 2 * 2 * (16 + 2);
    assert_eq!(kv(Choice { kv_tokens: 3200, max_seqs: 1, kv_type: SEGNO_KV_Q8, ..DEFAULTS }), (3200 + 32) * token_q8);
    assert_eq!(kv(Choice { max_seqs: 1, ..DEFAULTS }), (256 + 32) * token, "the model's context by default");
}

#[test]
fn layers_with_a_window_take_the_pages_of_their_window_and_a_pass() {
    // Six of its seven layers see 7 positions.
    let path = common::root().join("tests/golden/hf/gemma3-plain.gguf");
    let ctx = Ctx::new(|_| ()).unwrap();
    let (model, choice) = (ctx.load(&path).unwrap(), Choice { max_seqs: 1, max_prefill: 16, ..DEFAULTS });
    // Keys and values, two heads of 16 elements of two bytes.
    let page = 32 * 2 * 2 * 16 * 2;
    let all_layers = |pages: u64| (pages, pages);
    for (choice, (pages, window_pages)) in [
        (Choice { kv_tokens: 32_768, ..choice }, (1025, 2)),
        (Choice { kv_tokens: 32_768, max_prefill: 512, ..choice }, (1025, 18)),
        (Choice { kv_tokens: 200, max_seqs: 4, ..choice }, (7 + 4, 4 * 2)),
        // No less than what all layers take together.
        (Choice { kv_tokens: 200, max_prefill: 512, ..choice }, all_layers(7 + 1)),
        (Choice { kv_tokens: 30, max_seqs: 256, ..choice }, all_layers(1 + 256)),
    ] {
        let planned = plan(&ctx, &path, &choice).unwrap().host_kv;
        assert_eq!(planned, page * (pages + 6 * window_pages), "{choice:?}");
        assert_eq!(memory(&model.session(|opts| choice.apply(opts)).unwrap()).host_kv, planned, "{choice:?}");
    }
}

#[test]
fn a_large_file_is_planned_at_once_and_loads_nothing() {
    let folder = Folder::new("plan-large");
    let path = folder.join("large.gguf");
    let shape = Shape {
        layers: 6,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 14_336,
        vocab: 128_256,
        context: 131_072,
        storage: Storage::Hole,
        ..Shape::small()
    };
    shape.file().write(&path);
    let file = std::fs::metadata(&path).unwrap().len();
    assert!(file > 4 << 30, "{file} bytes");
    let ctx = Ctx::new(|_| ()).unwrap();
    let huge = Choice { kv_tokens: 1 << 36, ..DEFAULTS };
    let timed = || {
        let start = Instant::now();
        let planned = plan(&ctx, &path, &huge).unwrap();
        (start.elapsed(), planned)
    };
    // The best of several, since other programs may share the machine.
    let ((best, planned), held) = held(|| (0..5).map(|_| timed()).min_by_key(|(time, _)| *time).unwrap());
    println!("{file} bytes planned in {best:?}; {held} bytes held");
    assert!(best < Duration::from_millis(100), "{best:?}");
    assert_eq!(held, 0, "a plan leaves nothing behind");
    assert!(planned.host_weights > 4 << 30 && planned.host_weights <= file);
    assert_eq!((planned.fits, planned.host_kv), (0, ((1 << 36) + 8 * 32) * 6 * 2 * 8 * 128 * 2));
    let modest = plan(&ctx, &path, &Choice { kv_tokens: 512, ..DEFAULTS }).unwrap();
    let total = modest.host_weights + modest.host_kv + modest.host_arena;
    assert_eq!(modest.fits == 1, total <= modest.host_free, "{total} of {} bytes", modest.host_free);
}

#[test]
fn a_small_model_fits_and_a_split_one_is_planned_like_the_whole() {
    let folder = Folder::new("plan-split");
    let model = Shape::small().file();
    let path = folder.join("whole.gguf");
    model.write(&path);
    let parts = write_parts(folder.path(), "model", &model.split(&[5, model.tensors.len() - 5]));
    let ctx = Ctx::new(|_| ()).unwrap();
    let whole = plan(&ctx, &path, &DEFAULTS).unwrap();
    let split = plan(&ctx, &parts[0], &DEFAULTS).unwrap();
    assert_eq!((whole.fits, split.fits), (1, 1));
    assert!(whole.host_free > 0);
    let sizes = |plan: &segno_plan| (plan.host_weights, plan.host_kv, plan.host_arena);
    assert_eq!(sizes(&whole), sizes(&split));
}

#[test]
fn what_cannot_be_loaded_or_created_cannot_be_planned() {
    let folder = Folder::new("plan-refused");
    let path = folder.join("model.gguf");
    Shape::small().file().write(&path);
    let ctx = Ctx::new(|_| ()).unwrap();
    let status = |path: &Path, choice: Choice| plan(&ctx, path, &choice).err().unwrap().status;
    for choice in [
        Choice { max_seqs: 0, ..DEFAULTS },
        Choice { max_seqs: 257, ..DEFAULTS },
        Choice { max_prefill: 0, ..DEFAULTS },
        Choice { kv_type: 9, ..DEFAULTS },
    ] {
        assert_eq!(status(&path, choice), SEGNO_E_INVALID_ARGUMENT, "{choice:?}");
    }
    assert_eq!(status(&path, Choice { kv_tokens: u64::MAX, ..DEFAULTS }), SEGNO_E_OUT_OF_MEMORY);
    assert_eq!(status(&folder.join("absent.gguf"), DEFAULTS), SEGNO_E_IO);
    Shape::small().file().set("general.architecture", "mamba").write(&path);
    assert_eq!(status(&path, DEFAULTS), SEGNO_E_UNSUPPORTED);
    Shape::small().file().remove_tensor("output_norm.weight").write(&path);
    assert_eq!(status(&path, DEFAULTS), SEGNO_E_FORMAT);
    std::fs::write(&path, "no model").unwrap();
    assert_eq!(status(&path, DEFAULTS), SEGNO_E_FORMAT);
}
