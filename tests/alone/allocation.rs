//! A step allocates nothing once the session exists: every buffer is reserved before. A step within a grammar does, and this tells how much.

#[path = "../common/mod.rs"]
mod common;

use common::adapters::Adapter;
use common::assistants;
use common::eagle;
use common::latent::latent;
use common::mixture::mixture;
use common::predictors::{Guesses, predicting};
use common::{Ctx, Model, Session, bundled_model, greedy, root, sampler};
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::ffi::grammar::{SEGNO_GRAMMAR_COMPACT, SEGNO_GRAMMAR_JSON_SCHEMA};
use segno::ffi::session::{
    SEGNO_KV_Q8, SEGNO_SPECULATION_ALWAYS, SEGNO_SPECULATION_DRAFT, SEGNO_SPECULATION_MTP, SEGNO_SPECULATION_NGRAM,
    SEGNO_SPECULATION_SHARED,
};
use segno::ffi::status::{SEGNO_OK, SEGNO_PENDING};
use segno::ffi::submit::{segno_session_poll, segno_session_submit, segno_submit_opts};
use segno::memory::{Source, draw_from};
use segno::quant::DType;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts allocations of all threads while it is switched on.
struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Bytes of the allocations, but for large ones: what is only set aside for a step of a grammar.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Steps within a grammar, and the most bytes of one in a text that is not the first.
const STEPS: usize = 60;
const MOST_OF_STEP: usize = 64 << 10;

/// The least that a grammar sets aside.
const SET_ASIDE: usize = 4 << 20;

fn note(bytes: usize) {
    if COUNTING.load(Ordering::SeqCst) {
        COUNT.fetch_add(1, Ordering::SeqCst);
        BYTES.fetch_add(if bytes < SET_ASIDE { bytes } else { 0 }, Ordering::SeqCst);
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

static ALLOCATOR: Source = Source(&Counting);

/// Allocations and frees during `f`.
fn count(f: impl FnOnce()) -> usize {
    COUNT.store(0, Ordering::SeqCst);
    BYTES.store(0, Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    f();
    COUNTING.store(false, Ordering::SeqCst);
    COUNT.load(Ordering::SeqCst)
}

/// One test, so that nothing else allocates beside it.
#[test]
fn a_step_allocates_nothing() {
    draw_from(&ALLOCATOR);
    assert!(count(|| drop(std::hint::black_box(vec![0u8; 100]))) >= 2, "the allocator counts");
    let ctx = Ctx::new(|opts| opts.n_threads = 3).unwrap();
    steps_allocate_nothing(&ctx.load(&bundled_model()).unwrap());
    for dtype in [DType::F32, DType::BF16, DType::Q8_0] {
        steps_allocate_nothing(&ctx.load_buffer(&mixture(dtype).bytes()).unwrap());
        steps_allocate_nothing(&ctx.load_buffer(&latent(dtype).bytes()).unwrap());
    }
    for name in ["lfm2moe-plain", "qwen35-plain", "gemma4-small", "gemma4-experts", "nemotronhmoe-latent"] {
        steps_allocate_nothing(&ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap());
    }
    #[cfg(feature = "cuda")]
    steps_that_the_host_shares_allocate_nothing();
    for name in ["llama-llama3", "gemma3-listed", "deepseekv3-plain"] {
        let model = ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap();
        let session = model.session(|opts| (opts.max_prefill, opts.kv_type) = (8, SEGNO_KV_Q8));
        steps_of_a_session_allocate_nothing(&session.unwrap());
    }
    for name in ["hf/lfm2moe-plain", "hf/gemma3-plain", "embeddings/qwen3-last", "embeddings/bert-mean"] {
        let model = ctx.load(&root().join(format!("tests/golden/{name}.gguf"))).unwrap();
        passes_for_embeddings_allocate_nothing(&model);
    }
    let model = ctx.load(&bundled_model()).unwrap();
    let adapter = model.adapter(&bundled_model().with_file_name("shakespeare-lora.gguf")).unwrap();
    let adapted = model.session(|opts| opts.max_prefill = 8).unwrap();
    steps_of_sequences_allocate_nothing(&adapted, &[&[(&adapter, 1.0)], &[(&adapter, 0.5), (&adapter, -1.0)]]);
    let draft = ctx.load(&bundled_model()).unwrap();
    let shared = SEGNO_SPECULATION_NGRAM + SEGNO_SPECULATION_SHARED;
    for speculation in [SEGNO_SPECULATION_NGRAM, shared, SEGNO_SPECULATION_DRAFT] {
        let session = model.session(|opts| {
            (opts.max_prefill, opts.speculation) = (8, speculation + SEGNO_SPECULATION_ALWAYS);
            if speculation == SEGNO_SPECULATION_DRAFT {
                opts.draft = draft.0;
            }
        });
        let session = session.unwrap();
        steps_of_a_session_allocate_nothing(&session);
        assert!(session.stats().unwrap().accepted > 0);
    }
    steps_within_a_grammar_take_little(&model);
    // Assistants read keys on the processor alone.
    let processor = Ctx::new(|opts| (opts.n_threads, opts.device) = (3, SEGNO_DEVICE_CPU)).unwrap();
    let made_for_each_other = [(&processor, assistants::alike()), (&ctx, eagle::alike())]
        .map(|(ctx, files)| files.map(|file| ctx.load_buffer(&file.bytes()).unwrap()));
    let both = |pair| [8, 100].map(|max_prefill| (pair, max_prefill));
    for ([model, draft], max_prefill) in made_for_each_other.iter().flat_map(both) {
        let session = model.session(|opts| {
            (opts.max_prefill, opts.speculation) = (max_prefill, SEGNO_SPECULATION_DRAFT + SEGNO_SPECULATION_ALWAYS);
            opts.draft = draft.0;
        });
        let session = session.unwrap();
        steps_of_a_session_allocate_nothing(&session);
        assert!(session.stats().unwrap().accepted > 0);
    }
    for (name, layer) in [("qwen35-plain", 1), ("glm4moe-plain", 2)] {
        let model = ctx.load_buffer(&predicting(name, layer, Guesses::Right).bytes()).unwrap();
        let speculation = SEGNO_SPECULATION_MTP + SEGNO_SPECULATION_ALWAYS;
        // Vectors of prompts wait for the predictor, or are evaluated at once.
        for max_prefill in [8, 100] {
            let session =
                model.session(|opts| (opts.max_prefill, opts.speculation) = (max_prefill, speculation)).unwrap();
            steps_of_a_session_allocate_nothing(&session);
            assert!(session.stats().unwrap().accepted > 0);
        }
    }
}

/// On a GPU, of models of which the host does more and more.
#[cfg(feature = "cuda")]
fn steps_that_the_host_shares_allocate_nothing() {
    use common::adapters::{Form, Lora};
    if !common::gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| (opts.n_threads, opts.device) = (3, segno::ffi::device::SEGNO_DEVICE_CUDA)).unwrap();
    let folder = common::Folder::new("allocation-divided");
    for name in ["qwen3moe-plain", "gemma3-plain", "lfm2moe-plain"] {
        let path = root().join(format!("tests/golden/hf/{name}.gguf"));
        let lora = Lora::of_products(&std::fs::read(&path).unwrap(), Form::new(5, 6), |_| true);
        lora.file().write(&folder.join("adapter.gguf"));
        for model in common::divided::shares(&ctx, &path) {
            steps_allocate_nothing(&model);
            let adapter = model.adapter(&folder.join("adapter.gguf")).unwrap();
            let session = model.session(|opts| opts.max_prefill = 8).unwrap();
            steps_of_sequences_allocate_nothing(&session, &[&[(&adapter, 1.0)], &[]]);
        }
    }
}

/// What the engine of grammars takes for a step, most of which it gives back.
fn steps_within_a_grammar_take_little(model: &Model) {
    let schema = r#"{"type": "array", "minItems": 9, "items": {"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "integer"}}}}"#;
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_COMPACT, schema).unwrap();
    let session = model.session(|_| ()).unwrap();
    let run = || {
        let seq = session.open(&sampler()).unwrap();
        session.prefill(seq, &[5; 4]).unwrap();
        session.constrain(seq, Some(&grammar), -1).unwrap();
        let counted = count(|| {
            (0..STEPS).for_each(|_| _ = session.step(seq).unwrap());
        });
        session.close(seq).unwrap();
        (counted / STEPS, BYTES.load(Ordering::SeqCst) / STEPS)
    };
    let (first, second) = (run(), run());
    println!(
        "a step within a grammar: {} calls of the allocator, {} bytes; in a second text {} and {}",
        first.0, first.1, second.0, second.1
    );
    assert!(first.0 > 0 && second.1 < MOST_OF_STEP, "{} bytes a step", second.1);
}

/// A call takes room for its result and for a sum, and gives the latter back with what it has copied, however many passes there are.
fn passes_for_embeddings_allocate_nothing(model: &Model) {
    let session = model.session(|opts| (opts.max_prefill, opts.max_prompt, opts.max_seqs) = (8, 8, 3)).unwrap();
    let (tokens, mut out, mut dims) = ([5; 64], vec![0.0; 32 * 64], 0);
    for lengths in [&[3][..], &[8; 7], &[1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]] {
        let (given, room) = (tokens.as_ptr(), out.as_mut_ptr());
        let (sizes, texts, none) = (lengths.as_ptr(), lengths.len(), std::ptr::null());
        let err = std::ptr::null_mut();
        let counted = count(|| {
            let status =
                segno::ffi::embed::segno_embed(session.0, given, sizes, texts, none, room, 2048, &mut dims, err);
            assert_eq!(status, SEGNO_OK);
        });
        assert_eq!(counted, 4, "{texts} texts");
    }
    assert!(session.stats().unwrap().passes > 10);
}

fn steps_allocate_nothing(model: &Model) {
    steps_of_a_session_allocate_nothing(&model.session(|opts| opts.max_prefill = 8).unwrap());
}

fn steps_of_a_session_allocate_nothing(session: &Session) {
    steps_of_sequences_allocate_nothing(session, &[&[], &[]]);
}

/// Steps of two sequences with these adapters.
fn steps_of_sequences_allocate_nothing(session: &Session, adapters: &[&[(&Adapter, f32)]; 2]) {
    let mut penalized = sampler();
    (penalized.repeat_penalty, penalized.seed) = (1.1, 3);
    let (first, second) = (session.open(&greedy()).unwrap(), session.open(&penalized).unwrap());
    session.adapt(first, adapters[0]).unwrap();
    session.adapt(second, adapters[1]).unwrap();
    session.append(first, &[5; 40]).unwrap();
    session.append(second, &[6; 3]).unwrap();
    let mut token = 0;
    let single = count(|| {
        for _ in 0..40 {
            let status = segno::ffi::decode::segno_decode_step(session.0, first, &mut token, std::ptr::null_mut());
            assert!(status == SEGNO_OK || status == SEGNO_PENDING);
            assert!(session.stats().is_ok() && session.seq_stats(first).is_ok());
        }
    });
    let (mut tokens, mut statuses) = ([0; 2], [0; 2]);
    let (room, answers) = (tokens.as_mut_ptr(), statuses.as_mut_ptr());
    let seqs = [first, second];
    let batch = count(|| {
        for _ in 0..70 {
            segno::ffi::decode::segno_decode_batch(session.0, seqs.as_ptr(), 2, room, answers, std::ptr::null_mut());
        }
    });
    assert!(statuses.iter().all(|&status| status >= 0));
    assert_eq!((single, batch), (0, 0));
    submitted_steps_allocate_nothing(session, &seqs);
}

/// The first one starts a thread.
fn submitted_steps_allocate_nothing(session: &Session, seqs: &[i32; 2]) {
    let (mut tokens, mut statuses) = ([0; 2], [0; 2]);
    let (room, answers, none) = (tokens.as_mut_ptr(), statuses.as_mut_ptr(), std::ptr::null_mut());
    for _ in 0..2 {
        session.truncate(seqs[0], 0).unwrap();
        session.append(seqs[0], &[5; 40]).unwrap();
        session.submit(&[], 0).unwrap();
        assert_eq!(session.poll(0, u64::MAX).2, Ok(SEGNO_OK));
        let counted = count(|| {
            for _ in 0..20 {
                let opts = segno_submit_opts { struct_size: 16, reserved: 0, budget_us: 200 };
                assert_eq!(segno_session_submit(session.0, seqs.as_ptr(), 2, &opts, none), SEGNO_OK);
                while segno_session_poll(session.0, 1000, room, answers, none) == SEGNO_PENDING {}
            }
        });
        assert!(statuses.iter().all(|&status| status >= 0) && counted == 0, "{counted} allocations, {statuses:?}");
    }
}
