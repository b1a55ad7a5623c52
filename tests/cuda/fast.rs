//! Fast batches on a GPU: products of prompts and of many rows as 16-bit floats. How near they are to the processor's precise mode, and what they
//! leave as it was. On a machine without a GPU, or without kernels for that, the tests say so and prove nothing.

use crate::common;
use crate::common::gguf::Shape;
use crate::common::launches::fast_lists;
use crate::common::mixture::mixture_with;
use crate::common::passes::{Bar, Case, RANDOM, Run, assert_near, bits, file, limits, precise, random};
use segno::backend::cuda::args::{Activation, Args};
use segno::backend::cuda::catalogue::Kernel;
use segno::backend::cuda::{self, Cuda, testing::inspect::Contents};
use segno::backend::{Batch, Chooser, KvType, Row};
use segno::kv::{Pages, Tables};
use segno::quant::DType;
use std::sync::{Arc, OnceLock};

const SEQS: usize = 64;
const POSITIONS: usize = 512;
const PROMPTS: [usize; 5] = [1, 7, 64, 300, 512];
const BATCHES: [usize; 9] = [2, 3, 5, 8, 13, 16, 17, 33, 64];

/// The GPU with fast batches, opened once for all tests, for replayed or for eager steps.
fn fast(eager: bool) -> &'static Cuda {
    static DEVICES: [OnceLock<Cuda>; 2] = [const { OnceLock::new() }; 2];
    DEVICES[usize::from(eager)].get_or_init(|| Cuda::fast(0, eager).unwrap())
}

fn exact() -> &'static Cuda {
    static DEVICE: OnceLock<Cuda> = OnceLock::new();
    DEVICE.get_or_init(|| Cuda::new(0, false).unwrap())
}

fn is_possible() -> bool {
    let possible = cuda::count() > 0 && fast(false).rounds();
    if !possible {
        common::skip::skip(common::skip::Lack::Gpu, "no cuda device with kernels for fast batches");
    }
    possible
}

fn mixed(name: &str) -> DType {
    match name {
        name if name.contains("attn_v") || name.contains("output") => DType::Q6_K,
        name if name.contains("attn_k") => DType::Q5_K,
        name if name.contains("ffn_down") => DType::Q8_0,
        _ => DType::Q4_K,
    }
}

/// Two layers of random weights of the types with kernels, wide enough for several slices, the last of them short.
fn mix() -> Case {
    let shape = Shape { layers: 2, hidden: 1280, heads: 10, kv_heads: 2, head_dim: 128, ..Shape::small() };
    let shape = Shape { feed_forward: 2816, vocab: 384, context: 8192, ..shape };
    random("random mix", &common::random::stored(&shape, mixed))
}

/// Types without such kernels among the others, and matrices whose rows no tile divides.
fn odd_models() -> Vec<Case> {
    let among = common::random::file(|name| match name {
        name if name.contains("ffn_up") => DType::F16,
        name if name.contains("attn_q") => DType::Q4_0,
        name if name.contains("attn_output") => DType::IQ4_NL,
        name => mixed(name),
    });
    let gated = common::random::file(|name| if name.contains("ffn_down") { DType::Q4_0 } else { mixed(name) });
    let narrow = Shape { hidden: 256, heads: 4, kv_heads: 1, head_dim: 64, feed_forward: 256, ..Shape::small() };
    let uneven = Shape { hidden: 256, heads: 4, kv_heads: 2, head_dim: 64, feed_forward: 160, ..Shape::small() };
    let q8_0 = |shape: &Shape| common::random::stored(&Shape { vocab: 301, context: 8192, ..*shape }, |_| DType::Q8_0);
    vec![
        random("other types among them", &among),
        random("gated units of another type", &gated),
        random("exact keys and values", &q8_0(&narrow)),
        random("exact gated units", &q8_0(&uneven)),
    ]
}

/// Heads of every kernel of attention, together as wide as whole chunks.
fn heads_models() -> impl Iterator<Item = Case> {
    [(64, 1, 7), (80, 2, 4), (96, 1, 4), (256, 1, 2), (48, 2, 2)].into_iter().map(|(dim, kv_heads, group)| {
        let file = common::random::of_heads(dim, kv_heads, group, DType::Q8_0);
        random(&format!("{kv_heads} x {group} heads of {dim}"), &file)
    })
}

/// Experts of no whole half chunk, and a shared one whose rows may be 16-bit floats.
fn wide_mixture() -> Case {
    let shape = Shape { hidden: 256, heads: 4, kv_heads: 2, head_dim: 64, feed_forward: 384, ..Shape::small() };
    let case = random("shared expert", &mixture_with(Shape { context: 8192, ..shape }, DType::Q8_0, 160));
    // What rounding changes may be a choice of experts.
    Case { bar: Bar { distance: 0.6, ..RANDOM }, ..case }
}

/// Experts whose products may be of 16-bit floats too: of a whole number of chunks, and of one and a half.
fn rounded_mixtures() -> [Case; 2] {
    let shape = Shape { hidden: 384, heads: 6, kv_heads: 2, head_dim: 64, feed_forward: 384, ..Shape::small() };
    [256, 192].map(|width| {
        let file = mixture_with(Shape { context: 8192, ..shape }, DType::Q8_0, width);
        let case = random(&format!("experts of {width} 16-bit floats"), &file);
        Case { bar: Bar { distance: 0.6, ..RANDOM }, ..case }
    })
}

#[test]
fn experts_meet_16_bit_floats_in_prompts_alone() {
    let rounded = rounded_mixtures().map(|case| (case, true));
    for (case, rounds) in [(wide_mixture(), false)].into_iter().chain(rounded) {
        let lists = fast_lists(&case.program);
        let is_f16 = |form: &Activation| form.q != 0 && form.meta == 0;
        let (mut apart, mut joined, mut rounded) = (0, 0, 0);
        for list in [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch, &lists.sorted, &lists.prompt]
        {
            for launch in list {
                let forms = match &launch.args {
                    Args::ExpertUnit(args) => [args.x, args.out, args.shared_out],
                    Args::ExpertSum(args) => [args.x, args.shared_x, Activation::default()],
                    Args::ExpertGemm(args) => [args.x, args.gated, Activation::default()],
                    args => {
                        apart += args.written().filter(|form| is_f16(form)).count();
                        continue;
                    }
                };
                let is_rounded = launch.function.kernel == Kernel::ExpertGemmF16;
                let written = forms.iter().filter(|form| form.x != 0);
                assert!(written.clone().all(|form| is_f16(form) == is_rounded), "{:?}: {forms:?}", launch.function);
                joined += usize::from(matches!(launch.args, Args::ExpertUnit(args) if args.shared_out.x != 0));
                rounded += usize::from(is_rounded);
            }
        }
        assert!(apart > 0 && joined > 0, "{apart} values are of 16-bit floats, {joined} units with the others");
        assert_eq!(rounded > 0, rounds, "{}", case.name);
    }
}

fn models() -> Vec<Case> {
    let mut cases = vec![file(&common::bundled_model(), true), mix(), wide_mixture()];
    cases.extend(rounded_mixtures());
    if let Some(data) = common::shared_data() {
        let name = "TinyStories-656K-Q8_0.gguf";
        cases.push(file(&data.join("models").join(name), true));
    }
    cases.extend(
        common::launches::cuda_goldens().map(|path| file(&path, false)).chain(odd_models()).chain(heads_models()),
    );
    cases
}

fn row(run: &Run, slot: usize, position: usize) -> Row {
    Row { token: run.tokens[position], position: position as u32, slot: slot as u32 }
}

/// Logits of the first `count` positions of a slot, of which those at `wanted`.
fn prompt(run: &mut Run, slot: usize, count: usize, wanted: &[usize]) -> Vec<Vec<f32>> {
    let rows: Vec<Row> = (0..count).map(|position| row(run, slot, position)).collect();
    let outputs: Vec<u32> = wanted.iter().map(|&position| position as u32).collect();
    run.pass(&rows, &outputs, Chooser::Host)
}

/// How far each of the first `count` slots has come, all of them differently.
fn length(slot: usize) -> usize {
    1 + slot * 5 % 79
}

/// Brings the first slots to their lengths, less one row, and runs that row of all of them as a batch.
fn batch(run: &mut Run, count: usize) -> Vec<Vec<f32>> {
    (0..count).filter(|&slot| length(slot) > 1).for_each(|slot| drop(prompt(run, slot, length(slot) - 1, &[])));
    let rows: Vec<Row> = (0..count).map(|slot| row(run, slot, length(slot) - 1)).collect();
    let outputs: Vec<u32> = (0..count as u32).collect();
    run.pass(&rows, &outputs, Chooser::Host)
}

/// The precise mode's logits of all positions, on which the batches and prompts of `run` are to come.
fn reference(case: &Case) -> Run {
    Run::new(&precise(), &case.program, KvType::F32, POSITIONS, SEQS)
}

#[test]
fn batches_and_prompts_are_near_the_precise_processor() {
    if !is_possible() {
        return;
    }
    for case in models() {
        let positions: Vec<usize> = (0..SEQS).map(|slot| length(slot) - 1).collect();
        let mut wanted: Vec<usize> = PROMPTS.iter().map(|count| count - 1).chain(0..80).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut precise = reference(&case);
        // A session has room for the logits of so many rows.
        let expected: Vec<(usize, Vec<f32>)> = wanted
            .chunks(SEQS)
            .flat_map(|wanted| {
                let rows = prompt(&mut precise, 0, wanted.last().unwrap() + 1, wanted);
                wanted.iter().copied().zip(rows).collect::<Vec<_>>()
            })
            .collect();
        let at = |position: usize| expected.iter().find(|(other, _)| *other == position).unwrap().1.clone();
        for (device, how) in [(exact(), "exact"), (fast(false), "fast")] {
            let mut run = Run::new(device, &case.program, KvType::F16, POSITIONS, SEQS);
            let ends = PROMPTS.map(|count| prompt(&mut run, 0, count, &[count - 1]).remove(0));
            assert_near(&case, &format!("{how}, prompts"), &ends, &PROMPTS.map(|count| at(count - 1)));
            let batches: Vec<Vec<f32>> = BATCHES.iter().flat_map(|&count| batch(&mut run, count)).collect();
            let all: Vec<Vec<f32>> =
                BATCHES.iter().flat_map(|&count| positions[..count].iter().map(|&p| at(p))).collect();
            assert_near(&case, &format!("{how}, batches"), &batches, &all);
        }
    }
}

#[test]
fn steps_of_one_row_keep_their_bits() {
    if !is_possible() {
        return;
    }
    for Case { name, program, .. } in models() {
        let mut run = Run::new(exact(), &program, KvType::F16, 64, 2);
        let mut other = Run::new(fast(false), &program, KvType::F16, 64, 2);
        assert!(bits(&run.steps(0..64, 1)) == bits(&other.steps(0..64, 1)), "{name}");
    }
}

#[test]
fn the_same_batch_gives_the_same_bits() {
    if !is_possible() {
        return;
    }
    for case in models() {
        let name = &case.name;
        let mut runs =
            [fast(false), fast(true)].map(|device| Run::new(device, &case.program, KvType::F16, POSITIONS, SEQS));
        for count in BATCHES {
            let [first, again, eager] = [0, 0, 1].map(|index| bits(&batch(&mut runs[index], count)));
            assert!(first == again, "{name}: a batch of {count} gives other bits the second time");
            assert!(first == eager, "{name}: a batch of {count} gives other bits where it is eager");
        }
        for count in PROMPTS {
            let [first, again, eager] = [0, 0, 1].map(|index| bits(&prompt(&mut runs[index], 3, count, &[count - 1])));
            assert!(first == again && first == eager, "{name}: a prompt of {count} gives several results");
        }
    }
}

/// More rows than one block of 16-bit floats has.
#[test]
fn a_pass_of_more_rows_than_a_block_is_right() {
    if !is_possible() {
        return;
    }
    let case = mix();
    let mut run = Run::new(fast(false), &case.program, KvType::F16, POSITIONS, SEQS);
    let whole = run.stretches(&[(0, 0..POSITIONS), (1, 0..57), (2, 0..1)]);
    let mut reference = reference(&case);
    assert_near(&case, "fast, 570 rows", &whole, &reference.stretches(&[(0, 0..POSITIONS), (1, 0..57), (2, 0..1)]));
}

/// The option does something, or the other tests would prove nothing.
#[test]
fn batches_round_where_they_may() {
    if !is_possible() {
        return;
    }
    let case = mix();
    let [exact, fast] =
        [exact(), fast(false)].map(|device| Run::new(device, &case.program, KvType::F16, POSITIONS, SEQS));
    let [mut exact, mut fast] = [exact, fast];
    for count in BATCHES {
        // Small batches differ by the prompts that were before.
        assert!(bits(&batch(&mut exact, count)) != bits(&batch(&mut fast, count)), "a batch of {count} rounds nothing");
    }
}

/// The cache after a batch of three rows, which a graph pads to four; with what `poisoned` puts into everything that a step computes.
fn cache_of(case: &Case, slots: [usize; 3], poisoned: bool) -> (Contents, Contents, Tables) {
    let limits = limits(&case.program, 32, SEQS);
    let (mut pages, mut tables) = (Pages::new(limits.pages).unwrap(), Tables::new(SEQS, 1).unwrap());
    (0..SEQS).for_each(|slot| assert!(tables.grow(slot, 1, &mut pages)));
    let loaded = fast(false).upload(Arc::clone(&case.program), &mut |_| Ok(())).unwrap();
    let mut inspection = loaded.inspect(&limits, false).unwrap();
    let rows = |slots: &[usize], position: u32| -> Vec<Row> {
        slots.iter().map(|&slot| Row { token: 7 + slot as u32 + position, position, slot: slot as u32 }).collect()
    };
    let all: Vec<usize> = (0..SEQS).collect();
    let mut run = |rows: &[Row], poisoned: bool| {
        let outputs: Vec<u32> = (0..rows.len() as u32).collect();
        if poisoned {
            inspection.poison().unwrap();
        }
        inspection
            .run(&Batch {
                rows,
                outputs: &outputs,
                chooser: Chooser::Host,
                tables: &tables,
                window_tables: None,
                moves: &[],
            })
            .unwrap();
        inspection.read().unwrap().pop().unwrap()
    };
    let before = run(&rows(&all, 0), false);
    let after = run(&rows(&slots, 1), poisoned);
    (before, after, tables)
}

#[test]
fn padding_and_others_touch_nobody() {
    if !is_possible() {
        return;
    }
    for case in [mix(), file(&common::bundled_model(), true)] {
        let slots = [5, 17, 40];
        let (before, after, tables) = cache_of(&case, slots, false);
        let (_, poisoned, _) = cache_of(&case, slots, true);
        assert_eq!((before.name, after.name), ("cache", "cache"));
        // The last page is that of padded rows.
        let page_bytes = after.bytes.len() / (SEQS + 1);
        let page = |contents: &Contents, slot: usize| {
            let first = tables.of(slot)[0] as usize * page_bytes;
            contents.bytes[first..first + page_bytes].to_vec()
        };
        for slot in 0..SEQS {
            let is_same = page(&before, slot) == page(&after, slot);
            assert!(is_same != slots.contains(&slot), "{}: the page of sequence {slot}", case.name);
            assert!(
                page(&after, slot) == page(&poisoned, slot),
                "{}: sequence {slot} read what no step wrote",
                case.name
            );
        }
    }
}
