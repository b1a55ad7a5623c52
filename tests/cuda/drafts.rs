//! Steps whose rows follow each other in a sequence, as drafts do, on a GPU: the bits of single steps, whatever rows stand together and however far
//! contexts reach. On a machine without a GPU the lists of launches alone are made.

use crate::common;
use crate::common::launches::{Sort, cuda_goldens, drafted_lists, goldens};
use crate::common::passes::{Case, Run, bits, file, limits, random};
use segno::backend::cuda::Cuda;
use segno::backend::cuda::args::Args;
use segno::backend::cuda::catalogue::Kernel;
use segno::backend::{Backend, Chooser, KvType, Limits, Row};
use segno::plan::{Op, Program};
use segno::quant::DType;
use std::ops::Range;
use std::sync::Arc;

/// Rows that sequences have in a pass: buckets of every size, full and padded.
const TOGETHER: [&[usize]; 6] = [&[2], &[3], &[5], &[1, 3], &[4, 1, 2], &[8, 1, 7]];
const SEQS: usize = 3;
const OUTPUTS: usize = 16;

/// Elements of a head, heads of keys and values, query heads of each: every size that has kernels of its own, and one that has none.
const HEADS: [(usize, usize, usize); 8] =
    [(64, 2, 1), (64, 1, 7), (80, 2, 3), (96, 1, 4), (128, 2, 4), (128, 1, 12), (256, 1, 2), (48, 2, 2)];

fn of_heads((dim, kv_heads, group): (usize, usize, usize)) -> Case {
    let name = format!("{kv_heads} x {group} heads of {dim}");
    random(&name, &common::random::of_heads(dim, kv_heads, group, DType::Q8_0))
}

/// The same, the first layer of which sees a window.
fn with_window(heads: (usize, usize, usize), window: usize) -> Case {
    let mut case = of_heads(heads);
    case.name += &format!(", window of {window}");
    let program = Arc::get_mut(&mut case.program).unwrap();
    for op in &mut program.ops {
        if let Op::Attention { kind, .. } = op {
            kind.window = Some(window).filter(|_| kind.layer == 0);
        }
    }
    case
}

fn models_of_heads() -> Vec<Case> {
    let windows = [((64, 2, 3), 2), ((128, 2, 2), 20), ((128, 1, 4), 300), ((80, 1, 4), 257)];
    HEADS.map(of_heads).into_iter().chain(windows.map(|(heads, window)| with_window(heads, window))).collect()
}

/// Which rows of a pass have outputs.
#[derive(Clone, Copy, PartialEq)]
enum Outputs {
    /// All, as in passes with drafts.
    All,
    /// The last of each sequence, as in those of a draft model that has missed some tokens.
    Last,
}

/// Sequences in a session for such passes.
fn drafting(device: &Cuda, program: &Arc<Program>, kv_type: KvType, positions: usize, kind: Outputs) -> Run {
    let limits = Limits { kv_type, ..limits(program, positions, SEQS) };
    let limits = match kind {
        Outputs::All => Limits { outputs: OUTPUTS, ..limits },
        Outputs::Last => Limits { behind: 7, ..limits },
    };
    Run::open(&*device.prepare(Arc::clone(program), &mut |_| Ok(())).unwrap(), program, &limits)
}

/// Evaluates some positions of sequences, so many of each in a pass, and compares the logits with those of single steps.
fn compare(
    name: &str,
    (run, kind): (&mut Run, Outputs),
    counts: &[usize],
    positions: Range<usize>,
    alone: &[Vec<f32>],
) {
    let mut places = vec![positions.start; counts.len()];
    while places.iter().any(|&place| place < positions.end) {
        let mut rows = Vec::new();
        for (slot, (place, &count)) in places.iter_mut().zip(counts).enumerate() {
            let end = positions.end.min(*place + count);
            let row = |place: usize| Row { token: run.tokens[place], position: place as u32, slot: slot as u32 };
            rows.extend((*place..end).map(row));
            *place = end;
        }
        let is_last = |row: usize| rows.get(row + 1).is_none_or(|next| next.slot != rows[row].slot);
        let outputs = (0..rows.len()).filter(|&row| kind == Outputs::All || is_last(row));
        let outputs: Vec<u32> = outputs.map(|row| row as u32).collect();
        for (output, logits) in outputs.iter().zip(run.pass(&rows, &outputs, Chooser::Host)) {
            let Row { position, slot, .. } = rows[*output as usize];
            let expected = &alone[position as usize - positions.start..][..1];
            assert!(bits(&[logits]) == bits(expected), "{name}: {counts:?} at once, {position} of {slot}");
        }
    }
}

#[test]
fn rows_that_follow_each_other_give_the_bits_of_single_steps() {
    if !common::gpu() {
        return;
    }
    let [replayed, eager] = [false, true].map(|eager| Cuda::new(0, eager).unwrap());
    let mut cases = models_of_heads();
    cases.push(file(&common::bundled_model(), true));
    cases.extend(cuda_goldens().map(|path| file(&path, false)));
    for Case { name, program, .. } in &cases {
        let count = if name.contains("heads") { 280 } else { 70 };
        for kv_type in [KvType::F16, KvType::F32, KvType::Q8] {
            let name = format!("{name}, {kv_type:?}");
            let alone = Run::new(&replayed, program, kv_type, count, 1).steps(0..count, 1);
            for kind in [Outputs::All, Outputs::Last] {
                let mut run = drafting(&replayed, program, kv_type, count, kind);
                TOGETHER.iter().for_each(|counts| compare(&name, (&mut run, kind), counts, 0..count, &alone));
                let mut listed = drafting(&eager, program, kv_type, count, kind);
                compare(&format!("{name}, eager"), (&mut listed, kind), TOGETHER[4], 0..count, &alone);
            }
        }
    }
    println!("{} models", cases.len());
}

#[test]
fn rows_that_follow_each_other_far_into_a_text_give_the_bits_of_single_steps() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for Case { name, program, .. } in models_of_heads() {
        for kv_type in [KvType::F16, KvType::Q8] {
            // Short splits, each with a block of its own; and blocks that walk over several, long ones too.
            for end in [520, 2056, 4100] {
                let (start, name) = (end - 20, format!("{name}, {kv_type:?}"));
                let mut single = Run::new(&device, &program, kv_type, end, 1);
                single.chunks(0, start, 512);
                let alone = single.steps(start..end, 1);
                let kind = Outputs::All;
                let mut run = drafting(&device, &program, kv_type, end, kind);
                (0..SEQS as u32).for_each(|slot| drop(run.chunks(slot, start, 512)));
                // What is evaluated again takes the place of what was there.
                TOGETHER.iter().for_each(|counts| compare(&name, (&mut run, kind), counts, start..end, &alone));
            }
        }
    }
}

#[test]
fn every_op_of_steps_with_drafts_is_covered_once_and_keys_come_before_attention() {
    let of_heads = models_of_heads().into_iter().map(|case| (case.name, case.program));
    let goldens = goldens().into_iter().filter(|(.., runs)| runs.is_ok());
    let goldens = goldens.map(|(path, program, _)| (path.display().to_string(), Arc::new(program)));
    let (mut stored, mut scans) = (0, 0);
    for (name, program) in of_heads.chain(goldens).filter(|(_, program)| program.logits.is_some()) {
        let all: Vec<usize> = (0..program.ops.len()).collect();
        for sort in [Sort::Exact, Sort::Fast, Sort::F32Cache, Sort::Q8Cache] {
            let lists = drafted_lists(&program, sort);
            assert!([&lists.single, &lists.prompt, &lists.texts].iter().all(|list| list.is_empty()), "{name}");
            let sorted = Some(&lists.sorted).filter(|list| !list.is_empty());
            for list in [&lists.two, &lists.four, &lists.narrow, &lists.batch].into_iter().chain(sorted) {
                let mut covered: Vec<usize> = list.iter().flat_map(|launch| launch.covers.clone()).collect();
                covered.sort_unstable();
                assert_eq!(covered, all, "{name}");
                for (index, launch) in list.iter().enumerate() {
                    let Args::Attention(args) = launch.args else { continue };
                    assert_eq!(args.follows, 1, "{name}");
                    // A launch that has keys of its own does not store them.
                    let Args::Heads(before) = list[index - 1].args else { continue };
                    if args.heads.k != 0 {
                        assert_eq!((before.k, before.v, before.keys), (args.heads.k, args.heads.v, args.heads.keys));
                        assert_eq!((before.heads, before.cos), (0, args.heads.cos), "{name}");
                        stored += 1;
                    }
                }
                let of_kernel = |kernel| list.iter().filter(move |launch| launch.function.kernel == kernel).count();
                assert_eq!(of_kernel(Kernel::RecurrentStep), 0, "{name}: a step of one row");
                scans += of_kernel(Kernel::Scan);
            }
        }
    }
    assert!(stored > 12 * 2 * 2 * 4 && scans > 50, "{stored} stores and {scans} scans");
}
