//! Vectors of texts on a GPU: those of the processor and of transformers, the same bits in any company, and the rules of a call. On a machine without
//! a GPU the tests say so and prove nothing.

use crate::common;
use crate::common::adapters::{Form, Lora};
use crate::common::embeddings::{Case, case, cases, embed_opts, of_tokens, with};
use crate::common::passes::{Run, bits, precise, random};
use crate::common::{Ctx, Folder, Model, Session, bundled_model, greedy, root};
use segno::backend::cuda::Cuda;
use segno::backend::{Backend, KvType, Row, Stage};
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::ffi::embed::*;
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8, segno_session_cancel};
use segno::ffi::status::*;
use segno::plan::op::AttentionMask;
use segno::plan::{Op, Program};
use segno::quant::DType;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Largest relative L2 distance of a token's vector, and largest difference of an element of a text's, from those of transformers, with weights and
/// cache of F32.
const FLOATS: f64 = 1e-4;
/// Least cosine beside the processor, and largest difference of an element of a vector of length 1, over caches of 16-bit floats.
const COSINE: f64 = 0.9999;
const DIFFERENCE: f64 = 1e-2;
/// Least cosine over caches of 8 bits.
const EIGHT_BITS: f64 = 0.995;

fn on(device: i32) -> Ctx {
    Ctx::new(|opts| opts.device = device).unwrap()
}

fn load(ctx: &Ctx, path: &Path) -> Model {
    ctx.load(path).unwrap()
}

fn set(model: &Model, kv_type: i32, max_seqs: u32, max_prefill: u32) -> Session {
    let session = model.session(|opts| {
        (opts.kv_type, opts.max_seqs) = (kv_type, max_seqs);
        (opts.max_prefill, opts.max_prompt) = (max_prefill, max_prefill);
    });
    session.unwrap()
}

fn square(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The worst of what `measure` tells of each pair of vectors; what is no number is the worst of all.
fn worst(found: &[Vec<f32>], expected: &[Vec<f32>], measure: impl Fn(&[f32], &[f32]) -> f64) -> f64 {
    assert_eq!(found.len(), expected.len());
    let of_pairs = found.iter().zip(expected).map(|(found, expected)| {
        assert_eq!(found.len(), expected.len());
        measure(found, expected)
    });
    of_pairs.fold(0.0, |worst: f64, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) })
}

fn difference(found: &[f32], expected: &[f32]) -> f64 {
    worst_element(found.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs())))
}

fn worst_element(all: impl Iterator<Item = f64>) -> f64 {
    all.fold(0.0, |worst: f64, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) })
}

fn relative(found: &[f32], expected: &[f32]) -> f64 {
    let apart = square(found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    (apart / square(expected.iter().map(|v| f64::from(*v)))).sqrt()
}

/// Vectors of floats, and of 16-bit caches, of every model: pooled as it says, and of each token.
#[test]
fn every_model_gives_the_vectors_of_transformers_and_of_the_processor() {
    if !common::gpu() {
        return;
    }
    let (device, processor) = (on(SEGNO_DEVICE_CUDA), on(SEGNO_DEVICE_CPU));
    for case in cases() {
        let [found, expected] = [&device, &processor].map(|ctx| load(ctx, &case.file));
        let floats = set(&found, SEGNO_KV_F32, 8, 512);
        let tokens = worst(&floats.vectors(&case.texts(), &of_tokens()), &case.tokens, relative);
        let texts = worst(&floats.vectors(&case.texts(), &embed_opts()), &case.vectors, difference);
        println!("{}: of floats, tokens differ by {tokens:.1e}, texts by {texts:.1e}", case.name);
        assert!(tokens <= FLOATS && texts <= FLOATS, "{}", case.name);
        let vectors =
            [&found, &expected].map(|model| set(model, SEGNO_KV_F16, 8, 512).vectors(&case.texts(), &embed_opts()));
        let apart = worst(&vectors[0], &vectors[1], difference);
        let angle = worst(&vectors[0], &vectors[1], |a, b| 1.0 - cosine(a, b));
        println!("{}: beside the processor, texts differ by {apart:.1e}, one less the cosine {angle:.1e}", case.name);
        assert!(apart <= DIFFERENCE && angle <= 1.0 - COSINE, "{}", case.name);
    }
}

/// With adapters of a call, and none behind it.
#[test]
fn vectors_with_adapters_are_those_of_merged_weights() {
    if !common::gpu() {
        return;
    }
    let (device, folder) = (on(SEGNO_DEVICE_CUDA), Folder::new("cuda-adapter-vectors"));
    for case in cases() {
        let base = std::fs::read(&case.file).unwrap();
        let lora = Lora::random(&base, Form::new(6, 5), |name| !name.contains("output"));
        lora.file().write(&folder.join("adapter.gguf"));
        let mut merged = base.clone();
        lora.merge_into(&mut merged, 0.7);
        let (model, merged) = (device.load_buffer(&base).unwrap(), device.load_buffer(&merged).unwrap());
        let adapter = model.adapter(&folder.join("adapter.gguf")).unwrap();
        let session = set(&model, SEGNO_KV_F32, 8, 512);
        let plain = session.vectors(&case.texts(), &embed_opts());
        let found = session.vectors(&case.texts(), &with(&[adapter.0.cast_const()], &[0.7]));
        let expected = set(&merged, SEGNO_KV_F32, 8, 512).vectors(&case.texts(), &embed_opts());
        let (off, change) = (worst(&found, &expected, difference), worst(&found, &plain, difference));
        println!("{}: off by {off:.1e}, changed by {change:.1e}", case.name);
        assert!(off <= 1e-3 && change >= 1e-2, "{}", case.name);
        assert_eq!(session.vectors(&case.texts(), &embed_opts()), plain, "{}", case.name);
    }
}

#[test]
fn caches_of_8_bits_are_near_those_of_floats() {
    if !common::gpu() {
        return;
    }
    let device = on(SEGNO_DEVICE_CUDA);
    // Of few scores a cosine tells nothing.
    for case in cases().iter().filter(|case| !case.ranks()) {
        let vectors = set(&load(&device, &case.file), SEGNO_KV_Q8, 8, 512).vectors(&case.texts(), &embed_opts());
        let angle = worst(&vectors, &case.vectors, |a, b| 1.0 - cosine(a, b));
        println!("{}: one less the cosine {angle:.1e}", case.name);
        assert!(angle <= 1.0 - EIGHT_BITS, "{}", case.name);
    }
}

#[test]
fn a_vector_does_not_depend_on_the_company_of_its_text() {
    if !common::gpu() {
        return;
    }
    let device = on(SEGNO_DEVICE_CUDA);
    for case in cases() {
        let model = load(&device, &case.file);
        for kv_type in [SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8] {
            for opts in [embed_opts(), of_tokens()] {
                company_changes_nothing(&case, &model, kv_type, &opts);
            }
        }
    }
}

fn company_changes_nothing(case: &Case, model: &Model, kv_type: i32, opts: &segno_embed_opts) {
    let session = |max_seqs, max_prefill| set(model, kv_type, max_seqs, max_prefill);
    let alone = session(8, 512);
    let expected: Vec<_> = case.texts().iter().flat_map(|text| bits(&alone.vectors(&[text], opts))).collect();
    let check = |what: &str, found: Vec<Vec<f32>>| assert!(bits(&found) == expected, "{}: {what}", case.name);
    check("all in one pass", alone.vectors(&case.texts(), opts));
    check("two places", session(2, 512).vectors(&case.texts(), opts));
    check("one place", session(1, 512).vectors(&case.texts(), opts));
    check("passes of 41", session(8, 41).vectors(&case.texts(), opts));
    if ["qwen3", "llama"].iter().any(|decoder| case.name.starts_with(decoder)) {
        check("passes of 7", session(8, 7).vectors(&case.texts(), opts));
        check("passes of 1", session(3, 1).vectors(&case.texts(), opts));
        let beside = session(4, 512);
        let seq = beside.open(&greedy()).unwrap();
        beside.prefill(seq, &case.texts[2]).unwrap();
        check("beside a sequence", beside.vectors(&case.texts(), opts));
    }
}

/// Layers that see a window, and layers with a state.
#[test]
fn long_texts_are_evaluated_in_several_passes() {
    if !common::gpu() {
        return;
    }
    let device = on(SEGNO_DEVICE_CUDA);
    for name in ["gemma3-plain", "lfm2-plain", "granitehybrid-plain", "qwen35-plain"] {
        let model = load(&device, &root().join(format!("tests/golden/hf/{name}.gguf")));
        let texts: Vec<Vec<i32>> = (1..6).map(|text| (0..text * 17).map(|at| (at * 7 + text) % 97).collect()).collect();
        let texts: Vec<&[i32]> = texts.iter().map(Vec::as_slice).collect();
        for opts in [of_tokens(), segno_embed_opts { pooling: SEGNO_POOLING_LAST, ..embed_opts() }, embed_opts()] {
            let expected = bits(&set(&model, SEGNO_KV_F16, 8, 512).vectors(&texts, &opts));
            for (max_seqs, max_prefill) in [(3, 1), (1, 7), (2, 30), (3, 100)] {
                let session = set(&model, SEGNO_KV_F16, max_seqs, max_prefill);
                for _ in 0..2 {
                    let found = bits(&session.vectors(&texts, &opts));
                    assert!(found == expected, "{name}, passes of {max_prefill}");
                }
            }
        }
    }
}

#[test]
fn pooling_and_leading_elements_are_those_of_the_vectors_of_tokens() {
    if !common::gpu() {
        return;
    }
    let case = case("qwen3-last");
    let session = set(&load(&on(SEGNO_DEVICE_CUDA), &case.file), SEGNO_KV_F16, 8, 512);
    session.assert_pooled(&case.texts());
}

#[test]
fn rerankers_give_the_scores_of_transformers() {
    if !common::gpu() {
        return;
    }
    let device = on(SEGNO_DEVICE_CUDA);
    let rank = segno_embed_opts { pooling: SEGNO_POOLING_RANK, ..embed_opts() };
    for case in cases().iter().filter(|case| case.ranks()) {
        let session = set(&load(&device, &case.file), SEGNO_KV_F16, 8, 512);
        let scores = session.vectors(&case.texts(), &rank);
        assert_eq!(scores, session.vectors(&case.texts(), &embed_opts()));
        let apart = worst(&scores, &case.vectors, difference);
        println!("{}: scores differ by {apart:.1e}", case.name);
        assert!(apart <= DIFFERENCE, "{}", case.name);
    }
    let failed = set(&load(&device, &case("bert-mean").file), SEGNO_KV_F16, 1, 64).embed(&[&[5]], &rank);
    assert_eq!(failed.unwrap_err().status, SEGNO_E_UNSUPPORTED);
}

/// Decoders make vectors beside their sequences, whose tokens do not change.
#[test]
fn any_decoder_makes_embeddings_between_its_steps() {
    if !common::gpu() {
        return;
    }
    let model = load(&on(SEGNO_DEVICE_CUDA), &bundled_model());
    let generated = |between: &dyn Fn(&Session)| {
        let session = set(&model, SEGNO_KV_F16, 3, 16);
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &[5, 6, 7]).unwrap();
        let tokens: Vec<i32> = (0..20).flat_map(|_| (between(&session), session.generate(seq, 1).unwrap()).1).collect();
        tokens
    };
    let texts = [&[5, 6, 7][..], &[9; 20], &[5, 6, 8]];
    let vectors = set(&model, SEGNO_KV_F16, 3, 512).vectors(&texts, &embed_opts());
    assert!(cosine(&vectors[0], &vectors[2]) > cosine(&vectors[0], &vectors[1]));
    let expected = generated(&|_| ());
    let between = |session: &Session| assert!(bits(&session.vectors(&texts, &embed_opts())) == bits(&vectors));
    assert_eq!(generated(&between), expected);
}

#[test]
fn encoders_decode_nothing_and_refuse_what_is_too_long() {
    if !common::gpu() {
        return;
    }
    let model = load(&on(SEGNO_DEVICE_CUDA), &case("bert-mean").file);
    let session = set(&model, SEGNO_KV_F16, 4, 16);
    assert_eq!(session.open(&greedy()).unwrap_err().status, SEGNO_E_UNSUPPORTED);
    let failed = session.embed(&[&[5], &[5; 17]], &embed_opts()).unwrap_err();
    assert_eq!((failed.status, failed.item), (SEGNO_E_INVALID_ARGUMENT, 1));
    assert_eq!(session.vectors(&[&[5; 16]], &of_tokens()).len(), 16);
}

fn cancel(session: &Session, is_raised: i32) {
    segno_session_cancel(session.0, is_raised);
}

#[test]
fn a_cancelled_call_gives_everything_back() {
    if !common::gpu() {
        return;
    }
    for name in ["qwen3-last", "bert-mean"] {
        let model = load(&on(SEGNO_DEVICE_CUDA), &case(name).file);
        let session = set(&model, SEGNO_KV_F16, 3, 30);
        let texts = [&[1, 2][..], &[3; 30], &[7; 9]];
        let (expected, free) = (session.vectors(&texts, &embed_opts()), session.stats().unwrap().pages_free);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let raised = scope.spawn(|| {
                for pause in (0..400).step_by(7).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    cancel(&session, 1);
                    std::thread::sleep(Duration::from_micros(20));
                    cancel(&session, 0);
                    std::thread::sleep(Duration::from_micros(pause));
                }
            });
            let ended = (0..400).map(|_| session.embed(&texts, &embed_opts()).unwrap());
            let mut outcomes = [0; 2];
            for (status, vectors) in ended {
                assert!(status == SEGNO_CANCELLED || bits(&vectors) == bits(&expected), "{name}");
                outcomes[usize::from(status == SEGNO_CANCELLED)] += 1;
                assert_eq!(session.stats().unwrap().pages_free, free);
            }
            stop.store(true, Ordering::Relaxed);
            raised.join().unwrap();
            println!("{name}: {} calls whole, {} cancelled", outcomes[0], outcomes[1]);
        });
        cancel(&session, 0);
        assert!(bits(&session.vectors(&texts, &embed_opts())) == bits(&expected), "{name}");
    }
}

/// A random model of two layers whose tokens see what follows, the first of them within a window.
fn seeing_ahead(head_dim: usize, kv_heads: usize, group: usize, window: usize, dtype: DType) -> Arc<Program> {
    let mut case = random("ahead", &common::random::of_heads(head_dim, kv_heads, group, dtype));
    let program = Arc::get_mut(&mut case.program).unwrap();
    program.ops.truncate(program.embedding.as_ref().unwrap().after);
    program.logits = None;
    for op in &mut program.ops {
        if let Op::Attention { kind, .. } = op {
            (kind.mask, kind.window) = (AttentionMask::Bidirectional, Some(window).filter(|_| kind.layer == 0));
        }
    }
    case.program
}

fn text(slot: usize, length: usize) -> impl Iterator<Item = Row> {
    let token = move |position: usize| ((position * 7919 + 31 * slot + 13) % common::random::VOCAB) as u32;
    (0..length).map(move |position| Row { token: token(position), position: position as u32, slot: slot as u32 })
}

/// All sizes of heads with kernels of their own, and one without, over every cache.
#[test]
fn texts_of_every_size_of_heads_are_near_the_processor_and_change_no_bit_in_company() {
    if !common::gpu() {
        return;
    }
    let cuda = Cuda::new(0, false).unwrap();
    let lengths = [1, 64, 77, 300, 33];
    for (head_dim, kv_heads, group, window, dtype) in [
        (32, 4, 1, 9, DType::Q8_0),
        (64, 4, 1, 65, DType::Q8_0),
        (64, 1, 9, 20, DType::Q4_0),
        (80, 2, 2, 130, DType::F16),
        (96, 1, 3, 64, DType::Q8_0),
        (128, 2, 4, 100, DType::Q6_K),
        (256, 1, 2, 33, DType::Q8_0),
        (48, 2, 2, 20, DType::BF16),
    ] {
        let program = seeing_ahead(head_dim, kv_heads, group, window, dtype);
        for kv_type in [KvType::F16, KvType::F32, KvType::Q8] {
            let name = format!("heads of {head_dim}, {kv_heads} x {group}, window of {window}, {dtype}, {kv_type:?}");
            let vectors = |backend: &dyn Backend, together: bool| {
                let mut run = Run::new(backend, &program, kv_type, 300, lengths.len());
                let texts = lengths.iter().enumerate().map(|(slot, &length)| text(slot, length).collect::<Vec<Row>>());
                let all = |rows: &[Row]| (0..rows.len() as u32).collect::<Vec<u32>>();
                match together {
                    true => {
                        let rows = texts.collect::<Vec<_>>().concat();
                        run.embed(&rows, &all(&rows), Stage::Texts)
                    }
                    false => texts.flat_map(|rows| run.embed(&rows, &all(&rows), Stage::Texts)).collect(),
                }
            };
            let (alone, together) = (vectors(&cuda, false), vectors(&cuda, true));
            assert!(bits(&alone) == bits(&together), "{name}: company changes bits");
            let apart = worst(&together, &vectors(&precise(), true), relative);
            println!("{name}: distance {apart:.1e}");
            // Random weights amplify what 8-bit activations round.
            assert!(apart <= if kv_type == KvType::Q8 { 9e-2 } else { 6e-2 }, "{name}");
        }
    }
}

/// Fast batches round products, so that company may change bits there, but not much.
#[test]
fn fast_batches_are_near_exact_ones() {
    if !common::gpu() {
        return;
    }
    let (exact, fast) = (Cuda::new(0, false).unwrap(), Cuda::fast(0, false).unwrap());
    let program = seeing_ahead(64, 4, 1, 30, DType::Q8_0);
    let rows: Vec<Row> = [200, 33, 1].iter().enumerate().flat_map(|(slot, &length)| text(slot, length)).collect();
    let outputs: Vec<u32> = (0..rows.len() as u32).collect();
    let vectors = |cuda: &Cuda| Run::new(cuda, &program, KvType::F16, 300, 3).embed(&rows, &outputs, Stage::Tokens);
    let apart = worst(&vectors(&fast), &vectors(&exact), relative);
    println!("fast batches: distance {apart:.1e}");
    assert!(apart <= 4e-2);
}
