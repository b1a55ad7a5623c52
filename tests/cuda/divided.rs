//! Models that a GPU shares with the processor: their launches, which are made everywhere, and on a machine with a GPU their logits and tokens.

use super::adapters::{SETS, loaded, set_of, tale};
use crate::common;
use crate::common::adapters::{bits as bits_of, logits};
use crate::common::distance::distance;
use crate::common::divided::shares;
use crate::common::embeddings::{embed_opts, with};
use crate::common::launches::{Sort, goldens, lists_of};
use crate::common::passes::{Case, Run, assert_near, bits, file, precise};
use crate::common::saved::{restore, save};
use crate::common::walk::{MODELS, RECURRENT, walk_in};
use crate::common::{Ctx, Folder, Model, greedy, root, sampler};
use segno::backend::cpu::{Cpu, Options};
use segno::backend::cuda::Cuda;
use segno::backend::cuda::args::Args;
use segno::backend::cuda::catalogue::Kernel;
use segno::backend::cuda::launch::Launch;
use segno::backend::divided::Divided;
use segno::backend::{Backend, KvType};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::session::{
    SEGNO_KV_F16, SEGNO_KV_Q8, SEGNO_SPECULATION_ALWAYS, SEGNO_SPECULATION_NGRAM, segno_session_opts,
};
use segno::ffi::status::{SEGNO_CANCELLED, SEGNO_OK};
use segno::plan::Op;
use segno::plan::halves::{Cut, cuts, divide};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const POSITIONS: usize = 96;
const SEQS: usize = 8;

/// The first cuts, those in the middle, and the last one.
pub fn some(cuts: Vec<Cut>) -> Vec<Cut> {
    let wanted = [0, cuts.len() / 2, cuts.len() - 1];
    let mut found: Vec<Cut> = wanted.into_iter().map(|at| cuts[at]).collect();
    found.dedup();
    found
}

/// The parts that the launches of a kernel are for, in order.
fn parts(list: &[Launch], kernel: Kernel) -> Vec<u32> {
    let of = |launch: &Launch| match launch.args {
        Args::Exchange(args) if launch.function.kernel == kernel => Some(args.part),
        _ => None,
    };
    let mut parts: Vec<u32> = list.iter().filter_map(of).collect();
    parts.dedup();
    parts
}

#[test]
fn every_half_is_lowered_whole_and_waits_for_each_part_once() {
    for (path, program, _) in goldens() {
        for cut in cuts(&program).unwrap() {
            let device = divide(&program, cut).unwrap().unwrap().device;
            let count = device.ops.iter().filter(|op| matches!(op, Op::Receive { by, .. } if by.index == 0)).count();
            for sort in [Sort::Exact, Sort::Fast, Sort::F32Cache, Sort::Q8Cache] {
                let lists = lists_of(&device, sort);
                for list in [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch, &lists.prompt] {
                    let mut covered: Vec<usize> = list.iter().flat_map(|launch| launch.covers.clone()).collect();
                    covered.sort_unstable();
                    assert!(covered == (0..device.ops.len()).collect::<Vec<_>>(), "{}, {cut:?}", path.display());
                    let all: Vec<u32> = (0..count as u32).collect();
                    assert_eq!(parts(list, Kernel::SendRows), all, "{}, {cut:?}", path.display());
                    assert_eq!(parts(list, Kernel::ReceiveRows), all, "{}, {cut:?}", path.display());
                }
            }
        }
    }
}

/// The models of every kind of layer that can be divided.
fn cases() -> Vec<Case> {
    if !common::gpu() {
        return Vec::new();
    }
    let mut paths: Vec<PathBuf> = common::launches::cuda_goldens().collect();
    paths.retain(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        !name.starts_with("llama-") || name == "llama-ratio4"
    });
    paths.iter().map(|path| file(path, false)).collect()
}

fn divided(cut: Cut, eager: bool) -> Divided {
    static DEVICES: [OnceLock<Arc<Cuda>>; 2] = [const { OnceLock::new() }; 2];
    static HOST: OnceLock<Arc<Cpu>> = OnceLock::new();
    let options = Options { threads: 0, precise: false, allow_avx512: true, gives_way: false };
    let device = DEVICES[usize::from(eager)].get_or_init(|| Arc::new(Cuda::new(0, eager).unwrap()));
    let host = HOST.get_or_init(|| Arc::new(Cpu::new(&options).unwrap()));
    Divided { device: device.clone(), host: host.clone(), cut }
}

#[test]
fn logits_are_near_those_of_the_precise_processor() {
    for mut case in cases() {
        let bar = case.bar;
        let mut first = Run::new(&precise(), &case.program, KvType::F32, POSITIONS, 1);
        first.own_text();
        for kv_type in [KvType::F32, KvType::Q8] {
            let logits = |device: &dyn Backend| {
                let mut run = Run::new(device, &case.program, kv_type, POSITIONS, 1);
                run.tokens.clone_from(&first.tokens);
                run.steps(0..64, 1)
            };
            let expected = logits(&precise());
            case.bar = bar.over(kv_type);
            for cut in some(cuts(&case.program).unwrap()) {
                assert_near(&case, &format!("{kv_type:?}, {cut:?}"), &logits(&divided(cut, false)), &expected);
            }
        }
    }
}

#[test]
fn graphs_buckets_and_chunks_change_no_bit() {
    for Case { name, program, .. } in cases() {
        for cut in some(cuts(&program).unwrap()) {
            let mut run = Run::new(&divided(cut, false), &program, KvType::F16, POSITIONS, SEQS);
            let alone = run.steps(0..POSITIONS, 1);
            let listed = Run::new(&divided(cut, true), &program, KvType::F16, POSITIONS, 1).steps(0..POSITIONS, 1);
            assert!(bits(&alone) == bits(&listed), "{name}, {cut:?}: eager differs from replay");
            for seqs in [2, 3, 5, 8] {
                let together = run.steps(0..40, seqs);
                assert!(bits(&alone[..40]) == bits(&together), "{name}, {cut:?}: {seqs} at once differ from one");
            }
            for chunk in [1, 7, 64, 96] {
                let last = run.chunks(1, POSITIONS, chunk);
                assert!(bits(&[last]) == bits(&alone[POSITIONS - 1..]), "{name}, {cut:?}: chunks of {chunk} differ");
            }
        }
    }
}

fn golden(name: &str) -> PathBuf {
    root().join(format!("tests/golden/hf/{name}.gguf"))
}

#[test]
fn a_model_takes_what_it_may_of_the_device_and_walks_as_others_do() {
    if !common::gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for name in MODELS.into_iter().chain(RECURRENT) {
        let models = shares(&ctx, &golden(name));
        println!("{name}: {} cuts", models.len());
        for (model, kv_type) in [(&models[0], SEGNO_KV_Q8), (&models[models.len() - 1], SEGNO_KV_F16)] {
            walk_in(name, model, kv_type, 7);
        }
    }
}

#[test]
fn drafts_change_no_token_and_cancelled_calls_nothing() {
    if !common::gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for name in ["qwen3moe-plain", "gptoss-plain", "gemma3-plain"] {
        let model = shares(&ctx, &golden(name)).swap_remove(0);
        let prompt: Vec<i32> = (0..90).map(|at| at % 7 + 3).collect();
        let text = |speculation, cancels: bool| {
            let session = model.session(|opts| opts.speculation = speculation).unwrap();
            let seq = session.open(&sampler()).unwrap();
            if cancels {
                session.cancel(true);
                assert_eq!(session.prefill(seq, &prompt), Ok(SEGNO_CANCELLED));
                session.cancel(false);
            }
            session.prefill(seq, &prompt).unwrap();
            session.generate(seq, 60).unwrap()
        };
        let expected = text(0, false);
        assert_eq!(text(SEGNO_SPECULATION_NGRAM | SEGNO_SPECULATION_ALWAYS, false), expected, "{name}");
        assert_eq!(text(0, true), expected, "{name}");
    }
}

#[test]
fn vectors_of_texts_are_near_those_of_the_whole_and_the_same_in_company() {
    if !common::gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for name in ["qwen3moe-plain", "gemma3-plain", "lfm2moe-plain"] {
        let texts: Vec<Vec<i32>> = [40, 7, 65].map(|length| (0..length).map(|at| at * 7 % 90 + 3).collect()).into();
        let texts: Vec<&[i32]> = texts.iter().map(Vec::as_slice).collect();
        let vectors = |model: &Model, texts: &[&[i32]]| model.session(|_| ()).unwrap().vectors(texts, &embed_opts());
        let expected = vectors(&ctx.load(&golden(name)).unwrap(), &texts);
        for model in shares(&ctx, &golden(name)) {
            let found = vectors(&model, &texts);
            let alone: Vec<Vec<f32>> = texts.iter().flat_map(|text| vectors(&model, &[text])).collect();
            assert!(bits(&found) == bits(&alone), "{name}: company changes a vector");
            for (found, expected) in found.iter().zip(&expected) {
                let product =
                    |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                let cosine = product(found, expected) / (product(found, found) * product(expected, expected)).sqrt();
                assert!(cosine > 0.999, "{name}: {cosine}");
            }
        }
    }
}

/// Largest relative distance from the precise processor's, and least one that adapters make.
const NEAR: f64 = 2e-3;
const FAR: f64 = 5e-2;

fn far(found: &[f32], expected: &[f32]) -> f64 {
    distance(found, expected).relative_l2
}

/// Adapters are divided as the model is: of all products and of some, with experts on the host and the rest of their layer on the GPU too.
#[test]
fn adapters_give_the_logits_of_the_whole_and_the_same_bits_in_company() {
    if !common::gpu() {
        return;
    }
    let (folder, precise) = (Folder::new("cuda-divided-adapters"), Ctx::precise());
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for name in ["qwen3moe-plain", "qwen3moe-fused", "gptoss-plain", "gemma3-plain", "lfm2moe-plain"] {
        let base = std::fs::read(golden(name)).unwrap();
        let of_sets = |model: &Model| {
            let (adapters, session) = (loaded(model, &folder, &base), model.session_f32());
            SETS.map(|set| logits(&session, &set_of(&adapters, set)))
        };
        let (expected, all) = (of_sets(&precise.load(&golden(name)).unwrap()), (0..SETS.len()).collect::<Vec<_>>());
        let expected_plain = expected[0].clone();
        for model in shares(&ctx, &golden(name)) {
            let found = of_sets(&model);
            for ((found, expected), set) in found.iter().zip(&expected).zip(SETS) {
                let (off, change) = (far(found, expected), far(found, &expected_plain));
                assert!(off <= NEAR && (change >= FAR) != set.is_empty(), "{name}, {set:?}: {off:e}, {change:e}");
            }
            let adapters = loaded(&model, &folder, &base);
            let alone = tale(&model, &adapters, &all, false, |_| ());
            assert!(tale(&model, &adapters, &all, true, |_| ()) == alone, "{name}: all together");
            let reserved = |opts: &mut segno_session_opts| (opts.max_prefill, opts.adapter_ranks) = (5, 100);
            assert!(tale(&model, &adapters, &all, true, reserved) == alone, "{name}: passes of 5, and reserved ranks");
        }
    }
}

#[test]
fn vectors_of_texts_have_the_adapters_of_their_call() {
    if !common::gpu() {
        return;
    }
    let (folder, precise) = (Folder::new("cuda-divided-vectors"), Ctx::precise());
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for name in ["qwen3moe-plain", "gemma3-plain"] {
        let (base, text) = (std::fs::read(golden(name)).unwrap(), [3, 17, 5, 29, 11, 8, 2, 40]);
        let of = |model: &Model| {
            let (adapters, session) = (loaded(model, &folder, &base), model.session_f32());
            let adapted = session.vectors(&[&text], &with(&[adapters[0].0.cast_const()], &[1.0]));
            [adapted, session.vectors(&[&text], &embed_opts())].map(|vectors| vectors.concat())
        };
        let [expected, plain] = of(&precise.load(&golden(name)).unwrap());
        assert!(far(&expected, &plain) >= FAR, "{name}");
        for model in shares(&ctx, &golden(name)) {
            let [found, without] = of(&model);
            let off = [far(&found, &expected), far(&without, &plain)];
            assert!(off.iter().all(|&off| off <= NEAR), "{name}: {off:?}");
        }
    }
}

/// A sequence that was saved goes on in another session, with what both devices have of it.
#[test]
fn saved_sequences_have_their_adapters_again() {
    if !common::gpu() {
        return;
    }
    let folder = Folder::new("cuda-divided-saved");
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for name in ["qwen3moe-plain", "lfm2moe-plain"] {
        let base = std::fs::read(golden(name)).unwrap();
        for model in shares(&ctx, &golden(name)) {
            let adapters = loaded(&model, &folder, &base);
            let [first, second] = [0, 100].map(|ranks| model.session(|opts| opts.adapter_ranks = ranks).unwrap());
            let seq = first.open(&greedy()).unwrap();
            first.adapt(seq, &set_of(&adapters, SETS[2])).unwrap();
            first.prefill(seq, &[5; 40]).unwrap();
            let bytes = save(&first, seq);
            let expected = (first.generate(seq, 12).unwrap(), bits_of(&first.logits(seq).unwrap()));
            let again = restore(&second, &bytes).unwrap();
            assert_eq!(
                (second.generate(again, 12).unwrap(), bits_of(&second.logits(again).unwrap())),
                expected,
                "{name}"
            );
        }
    }
}

/// A flag that is raised while a prompt runs ends the call soon, and the text goes on as if nothing had been.
#[test]
fn a_running_prompt_is_cancelled_soon() {
    if !common::gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    let path = common::bundled_model();
    let model = shares(&ctx, &path).pop().unwrap();
    let session = model.session(|opts| opts.max_prefill = 500).unwrap();
    let prompt: Vec<i32> = (0..500).map(|at| at % 500 + 3).collect();
    let (mut longest, mut cancelled) = (Duration::ZERO, 0);
    for delay in 0..30 {
        let seq = session.open(&greedy()).unwrap();
        let raised = std::thread::scope(|scope| {
            let raised = scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(500 * delay));
                session.cancel(true);
                Instant::now()
            });
            let outcome = session.prefill(seq, &prompt).unwrap();
            let ended = Instant::now();
            let raised = raised.join().unwrap();
            (outcome, ended.saturating_duration_since(raised))
        });
        session.cancel(false);
        if raised.0 == SEGNO_CANCELLED {
            (longest, cancelled) = (longest.max(raised.1), cancelled + 1);
        }
        assert_eq!(session.prefill(seq, &[]).unwrap_or(SEGNO_OK), SEGNO_OK);
        session.close(seq).unwrap();
    }
    println!("{cancelled} of 30 cancelled, at most {longest:?} after the flag");
    assert!(cancelled > 0 && longest < Duration::from_millis(50), "{longest:?}");
}
