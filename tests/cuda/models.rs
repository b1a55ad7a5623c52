//! Whole models on a GPU: against the processor's precise mode, and against themselves over graphs, buckets, chunks and contexts.
//!
//! `SEGNO_CUDA_MODELS` (paths with `:` between) replaces the models of the repository and of the shared data. On a machine without a GPU the
//! tests say so and prove nothing.

use crate::common;
use crate::common::passes::{Case, Run, assert_near, bits, file, precise, random};
use segno::backend::cuda::Cuda;
use segno::backend::{Backend, KvType};
use segno::plan::Op;
use segno::quant::DType;
use std::path::Path;
use std::sync::{Arc, OnceLock};

const POSITIONS: usize = 64;
const SEQS: usize = 64;

/// One of every type, and two of several types, as mixed files have them.
fn random_models() -> Vec<Case> {
    let of_type = |dtype: DType| random(&format!("random {dtype}"), &common::random::odd(dtype));
    let mut cases: Vec<Case> = DType::ALL.into_iter().map(of_type).collect();
    cases.push(random(
        "random mix",
        &common::random::file(|name| match name {
            name if name.contains("attn_v") || name.contains("output") => DType::Q6_K,
            name if name.contains("attn_k") => DType::Q5_K,
            name if name.contains("ffn_down") => DType::Q8_0,
            name if name.contains("ffn_up") => DType::F16,
            _ => DType::Q4_K,
        }),
    ));
    cases.push(random(
        "random small mix",
        &common::random::file(|name| match name {
            "token_embd.weight" => DType::IQ4_NL,
            "output.weight" => DType::IQ3_S,
            name if name.contains("attn_v") => DType::Q5_1,
            name if name.contains("attn_k") => DType::TQ2_0,
            name if name.contains("ffn_down") => DType::Q3_K,
            name if name.contains("ffn") => DType::IQ4_XS,
            _ => DType::Q2_K,
        }),
    ));
    cases
}

/// The GPU, opened once for all tests, for replayed or for eager steps.
fn device(eager: bool) -> &'static Cuda {
    static DEVICES: [OnceLock<Cuda>; 2] = [const { OnceLock::new() }; 2];
    DEVICES[usize::from(eager)].get_or_init(|| Cuda::new(0, eager).unwrap())
}

fn models() -> Vec<Case> {
    if !common::gpu() {
        return Vec::new();
    }
    if let Ok(list) = std::env::var("SEGNO_CUDA_MODELS") {
        return list.split(':').map(|path| file(Path::new(path), false)).collect();
    }
    let mut cases = vec![file(&common::bundled_model(), true)];
    if let Some(data) = common::shared_data() {
        for name in ["stories260K.gguf", "TinyStories-656K-Q8_0.gguf"] {
            cases.push(file(&data.join("models").join(name), true));
        }
    }
    cases.extend(common::launches::cuda_goldens().map(|path| file(&path, false)));
    cases.extend(random_models());
    cases
}

#[test]
fn logits_are_near_those_of_the_precise_processor() {
    for mut case in models() {
        let bar = case.bar;
        let mut first = Run::new(&precise(), &case.program, KvType::F32, POSITIONS, 1);
        first.own_text();
        // Beside the same cache: what it rounds may choose another expert.
        for kv_type in [KvType::F32, KvType::F16, KvType::Q8] {
            let logits = |device: &dyn Backend| {
                let mut run = Run::new(device, &case.program, kv_type, POSITIONS, 1);
                run.tokens = first.tokens.clone();
                run.steps(0..POSITIONS, 1)
            };
            let (found, expected) = (logits(device(false)), logits(&precise()));
            case.bar = bar.over(kv_type);
            assert_near(&case, &format!("{kv_type:?}"), &found, &expected);
        }
    }
}

#[test]
fn graphs_buckets_and_chunks_change_no_bit() {
    for Case { name, program, .. } in models() {
        let (graphs, eager) = (device(false), device(true));
        let count = 300;
        let mut run = Run::new(graphs, &program, KvType::F16, count, SEQS);
        let alone = run.steps(0..count, 1);
        let listed = Run::new(eager, &program, KvType::F16, count, 1).steps(0..count, 1);
        assert!(bits(&alone) == bits(&listed), "{name}: eager differs from replay");
        for (seqs, count) in [(2, count), (3, count), (5, count), (8, count), (9, 40), (16, 40), (33, 40), (64, 40)] {
            let together = run.steps(0..count, seqs);
            assert!(bits(&alone[..count]) == bits(&together), "{name}: {seqs} at once differ from one");
        }
        for chunk in [1, 7, 64, 300] {
            let last = run.chunks(1, count, chunk);
            assert!(bits(&[last]) == bits(&alone[count - 1..]), "{name}: chunks of {chunk} differ");
        }
        println!("{name}: graphs, buckets to {SEQS} and chunks agree");
    }
}

#[test]
fn long_contexts_are_right_however_they_came_about() {
    if !common::gpu() {
        return;
    }
    for case in random_models().iter().filter(|case| ["random F16", "random mix"].contains(&&*case.name)) {
        for end in [513, 2048, 4096] {
            let start = end - 8;
            let mut run = Run::new(device(false), &case.program, KvType::F16, end, 8);
            run.chunks(0, start, 512);
            let stepped = run.steps(start..end, 1);
            let mut listed = Run::new(device(true), &case.program, KvType::F16, end, 1);
            listed.chunks(0, start, 333);
            assert!(bits(&stepped) == bits(&listed.steps(start..end, 1)), "{}: eager at {end}", case.name);
            let whole = run.chunks(3, end, 512);
            assert!(bits(&[whole]) == bits(&stepped[7..]), "{}: chunks at {end}", case.name);
            (1..8).for_each(|slot| drop(run.chunks(slot, start, 512)));
            assert!(bits(&stepped) == bits(&run.steps(start..end, 8)), "{}: eight at {end}", case.name);
            let mut reference = Run::new(&precise(), &case.program, KvType::F32, end, 1);
            reference.chunks(0, start, 512);
            assert_near(case, &format!("at {end}"), &stepped, &reference.steps(start..end, 1));
        }
    }
}

/// Elements of a head, heads of keys and values, query heads of each: every size that has kernels of its own, and one that has none.
const HEADS: [(usize, usize, usize); 9] =
    [(64, 2, 1), (64, 1, 7), (80, 2, 3), (96, 1, 4), (128, 2, 4), (128, 1, 8), (128, 1, 12), (256, 1, 2), (48, 2, 2)];

fn heads_models() -> Vec<Case> {
    if !common::gpu() {
        return Vec::new();
    }
    let model = |&(dim, kv_heads, group): &(usize, usize, usize)| {
        random(
            &format!("{kv_heads} x {group} heads of {dim}"),
            &common::random::of_heads(dim, kv_heads, group, DType::Q8_0),
        )
    };
    let windows =
        [(128, 2, 2, 20), (64, 2, 3, 64), (256, 1, 2, 100), (80, 1, 4, 257), (64, 1, 8, 700), (128, 1, 4, 2100)];
    HEADS
        .iter()
        .map(model)
        .chain(windows.map(|(dim, kv_heads, group, window)| with_window(dim, kv_heads, group, window)))
        .collect()
}

/// A model whose first layer sees `window` positions and whose scores have a scale of their own.
fn with_window(dim: usize, kv_heads: usize, group: usize, window: usize) -> Case {
    let file = common::random::of_heads(dim, kv_heads, group, DType::Q8_0);
    let mut case = random(&format!("{kv_heads} x {group} heads of {dim}, window of {window}"), &file);
    let program = Arc::get_mut(&mut case.program).unwrap();
    for op in &mut program.ops {
        if let Op::Attention { kind, .. } = op {
            kind.window = Some(window).filter(|_| kind.layer == 0);
            kind.scale *= 0.8;
        }
    }
    case
}

/// Those models, over each type of cache that has kernels for its sizes of heads.
fn heads_runs() -> impl Iterator<Item = (Case, KvType)> {
    let named = |mut case: Case, kv_type| {
        case.name += &format!(", {kv_type:?}");
        (case, kv_type)
    };
    let over = move |kv_type| heads_models().into_iter().map(move |case| named(case, kv_type));
    [KvType::F16, KvType::Q8].into_iter().flat_map(over)
}

#[test]
fn heads_of_every_size_and_grouping_change_no_bit() {
    for (Case { name, program, .. }, kv_type) in heads_runs() {
        let count = 300;
        let mut run = Run::new(device(false), &program, kv_type, count, 8);
        let alone = run.steps(0..count, 1);
        assert!(bits(&alone) == bits(&run.steps(0..count, 5)), "{name}: five at once differ from one");
        for chunk in [1, 7, 64, 300] {
            for end in [1, 255, 256, 257, count] {
                let last = run.chunks(1, end, chunk);
                assert!(bits(&[last]) == bits(&alone[end - 1..end]), "{name}: chunks of {chunk} differ at {end}");
            }
        }
        // Several sequences in a pass, one of them with a single row.
        for (stretches, ends) in [
            ([(2, 0..100), (3, 0..257), (4, 0..1), (5, 0..31)], [99, 256, 0, 30]),
            ([(2, 100..101), (3, 257..count), (4, 1..200), (5, 31..33)], [100, count - 1, 199, 32]),
        ] {
            let found = run.stretches(&stretches);
            let expected: Vec<Vec<f32>> = ends.iter().map(|&end| alone[end].clone()).collect();
            assert!(bits(&found) == bits(&expected), "{name}: {stretches:?} differ");
        }
    }
}

#[test]
fn long_contexts_of_every_size_of_heads_change_no_bit() {
    for (case, kv_type) in heads_runs() {
        let Case { name, program, .. } = &case;
        let mut run = Run::new(device(false), program, kv_type, 4100, 8);
        let exact = if kv_type == KvType::Q8 { KvType::Q8 } else { KvType::F32 };
        let mut reference = Run::new(&precise(), program, exact, 4100, 1);
        for end in [513, 2049, 4097] {
            (0..8).for_each(|slot| drop(run.chunks(slot, end - 1, 512)));
            let alone = run.steps(end - 1..end, 1);
            assert!(bits(&alone) == bits(&run.steps(end - 1..end, 8)), "{name}: eight at once differ at {end}");
            for chunk in [64, 300, 512] {
                assert!(
                    bits(&alone) == bits(&[run.chunks(3, end, chunk)]),
                    "{name}: chunks of {chunk} differ at {end}"
                );
            }
            if end == 513 || name.contains("window") {
                assert_near(&case, &format!("at {end}"), &alone, &[reference.chunks(0, end, 512)]);
            }
        }
    }
}

/// Small enough for tools that watch every access.
#[test]
fn a_little_of_everything_gives_numbers() {
    for Case { name, program, .. } in
        models().iter().filter(|case| ["shakespeare.gguf", "stories260K.gguf", "random mix"].contains(&&*case.name))
    {
        for (kv_type, eager) in [(KvType::F16, false), (KvType::F32, false), (KvType::Q8, false), (KvType::F16, true)] {
            let mut run = Run::new(device(eager), program, kv_type, 300, 8);
            let mut rows = vec![run.chunks(0, 270, 90)];
            for seqs in [1, 2, 3, 8] {
                rows.extend(run.steps(270..273, seqs));
            }
            assert!(rows.iter().flatten().all(|logit| logit.is_finite()), "{name}");
        }
    }
}

#[test]
fn the_device_chooses_the_token_of_the_highest_logit() {
    for Case { program, .. } in models() {
        let mut run = Run::new(device(false), &program, KvType::F16, POSITIONS, 8);
        for position in 0..POSITIONS {
            let logits = run.steps(position..position + 1, 8).pop().unwrap();
            let best = segno::sample::filters::greedy(&logits).map(|token| token as u32);
            assert_eq!(run.runner.best_token(7), best);
        }
    }
}
