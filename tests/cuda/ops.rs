//! Every kernel beside the products of `kernels.rs` in small programs of its own against plain f64: odd sizes, steps and prompts. Each case names the
//! kernels that must run, which is checked without a GPU too.

mod attention;
mod cases;
mod mixtures;
mod recurrent;
mod texts;

use crate::common;
use crate::common::launches::Sort;
use crate::common::passes::Run;
use crate::common::plain::{Plain, Rounding};
use attention::attentions;
use cases::{elementwise, embeddings, head_products, heads, norms};
use mixtures::{mixtures, rounded_mixtures};
use recurrent::recurrent;
use segno::backend::cuda::Cuda;
use segno::backend::cuda::args::Shape;
use segno::backend::cuda::catalogue::Kernel;
use segno::backend::cuda::select::attention::splits;
use segno::backend::{Chooser, KvType, Row, Stage};
use segno::plan::{Op, Program};
use std::collections::BTreeSet;
use std::sync::Arc;
use texts::texts;

/// Rows of the embedding.
const TOKENS: usize = 97;
/// Rows of a pass that only fills the cache.
const CHUNK: usize = 512;

/// A pass that is looked at.
#[derive(Clone, Copy, Debug)]
enum Pass {
    /// So many rows of one sequence.
    Prompt(usize),
    /// A row of each of so many sequences, at this position of each.
    Step(usize, usize),
    /// Whole texts of so many rows, of which vectors are made.
    Texts(&'static [usize]),
}

struct Case {
    /// Those that must be among the kernels of the pass.
    kernels: Vec<String>,
    program: Arc<Program>,
    pass: Pass,
    cache: KvType,
    /// Whether the pass may have 16-bit floats.
    fast: bool,
    /// How far a result may be away, as a part of the largest of its row.
    within: f64,
}

fn names() -> impl Iterator<Item = &'static str> {
    Kernel::ALL.iter().flat_map(|kernel| kernel.variants()).map(|entry| entry.name)
}

fn all_cases() -> Vec<Case> {
    let cases = [
        elementwise(),
        embeddings(),
        norms(),
        heads(),
        head_products(),
        attentions(),
        texts(),
        mixtures(),
        rounded_mixtures(),
        recurrent(),
    ];
    cases.into_iter().flatten().collect()
}

/// The kernels of a pass, on a device of 132 SMs.
fn chosen(case: &Case) -> BTreeSet<&'static str> {
    let lists = common::launches::lists_of(&case.program, if case.fast { Sort::Fast } else { Sort::over(case.cache) });
    if let Pass::Texts(lengths) = case.pass {
        let shape = Shape { rows: lengths.iter().sum::<usize>() as u32, outputs: 0, splits: 0, draws: 0 };
        return lists.texts.iter().map(|launch| launch.choose(&shape).function.entry().name).collect();
    }
    let shape = match case.pass {
        Pass::Prompt(rows) => Shape { rows: rows as u32, outputs: outputs(case).len() as u32, splits: 0, draws: 0 },
        Pass::Step(rows, position) => {
            let rows = rows.next_power_of_two() as u32;
            Shape { rows, outputs: rows, splits: splits(position + 1) as u32, draws: 0 }
        }
        Pass::Texts(_) => unreachable!("above"),
    };
    lists.of(&shape).iter().map(|launch| launch.choose(&shape).function.entry().name).collect()
}

#[test]
fn every_case_runs_the_kernels_that_it_names() {
    let (mut wrong, mut tried) = (Vec::new(), BTreeSet::new());
    for case in all_cases() {
        let run = chosen(&case);
        let missing: Vec<&String> = case.kernels.iter().filter(|name| !run.contains(name.as_str())).collect();
        if !missing.is_empty() {
            wrong.push(format!("{missing:?} do not run in {:?}: {run:?}", case.pass));
        }
        tried.extend(case.kernels);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Products are those of kernels.rs; `cuda::adapters` has what adapters add to them, `cuda::divided` what the host exchanges, `cuda::sample` the
    // choice of tokens, `cuda::types` repacking, and every case what begins a step and writes forms and outputs.
    let elsewhere = ["argmax", "copy_rows", "repack", "sample", "select_rows", "step_begin", "step_end"];
    let starts = ["gem", "adapter_", "send_", "receive_"];
    let is_elsewhere = |name: &&str| starts.iter().any(|start| name.starts_with(start)) || elsewhere.contains(name);
    let missing: Vec<&str> = names().filter(|name| !is_elsewhere(name) && !tried.contains(*name)).collect();
    assert!(missing.is_empty(), "kernels without a case: {missing:?}");
}

/// Rows of the batch whose results are looked at.
fn outputs(case: &Case) -> Vec<u32> {
    match case.pass {
        Pass::Prompt(rows) => BTreeSet::from([0, rows as u32 / 3, rows as u32 - 1]).into_iter().collect(),
        Pass::Step(rows, _) => (0..rows as u32).collect(),
        // The first and the last rows of each text, and some between.
        Pass::Texts(lengths) => {
            let mut start = 0;
            let of_text = lengths.iter().flat_map(|&length| {
                let first = start;
                start += length;
                [first, first + length / 3, first + length / 2, start - 1]
            });
            of_text.map(|row| row as u32).collect::<BTreeSet<u32>>().into_iter().collect()
        }
    }
}

fn row(slot: usize, position: usize) -> Row {
    let token = (position * 7919 + 31 * slot + 13) % TOKENS;
    Row { token: token as u32, position: position as u32, slot: slot as u32 }
}

/// The results of the last pass of a case, and what they must be.
fn run(case: &Case, cuda: &Cuda) -> (Vec<Vec<f32>>, Vec<Vec<f64>>) {
    let (seqs, filled) = match case.pass {
        Pass::Prompt(_) => (4, 0),
        Pass::Texts(lengths) => (lengths.len(), 0),
        Pass::Step(rows, position) => (rows, position),
    };
    let is_staged = |name: &String| {
        ["attention_prefill", "attention_decode", "attention_wide"].iter().any(|staged| name.starts_with(staged))
    };
    let queries = case.kernels.iter().any(is_staged);
    let rounding = Rounding { cache: Some(case.cache), activations: !case.fast, queries };
    let mut run = Run::new(cuda, &case.program, case.cache, filled + CHUNK, seqs);
    let mut plain = Plain::new(&case.program, rounding, seqs);
    let keeps = |op: &Op| matches!(op, Op::StoreKv { .. } | Op::Convolve(_) | Op::Scan(_));
    let has_cache = case.program.ops.iter().any(keeps);
    for slot in 0..if has_cache { seqs } else { 0 } {
        for start in (0..filled).step_by(CHUNK) {
            let rows: Vec<Row> = (start..filled.min(start + CHUNK)).map(|position| row(slot, position)).collect();
            run.pass(&rows, &[0], Chooser::Host);
            plain.pass(&rows, &[]);
        }
    }
    let rows: Vec<Row> = match case.pass {
        Pass::Prompt(rows) => (0..rows).map(|position| row(0, position)).collect(),
        Pass::Step(rows, position) => (0..rows).map(|slot| row(slot, position)).collect(),
        Pass::Texts(lengths) => {
            let text = |(slot, &length): (usize, &usize)| (0..length).map(move |position| row(slot, position));
            lengths.iter().enumerate().flat_map(text).collect()
        }
    };
    if matches!(case.pass, Pass::Texts(_)) {
        return (run.embed(&rows, &outputs(case), Stage::Tokens), plain.vectors(&rows, &outputs(case)));
    }
    (run.pass(&rows, &outputs(case), Chooser::Host), plain.pass(&rows, &outputs(case)))
}

fn check(cases: &[Case]) {
    if !common::gpu() {
        return;
    }
    let (exact, fast) = (Cuda::new(0, false).unwrap(), Cuda::fast(0, false).unwrap());
    for case in cases {
        if case.fast && !fast.rounds() {
            common::skip::skip(common::skip::Lack::Gpu, "no kernels for fast batches");
            continue;
        }
        let (found, expected) = run(case, if case.fast { &fast } else { &exact });
        let mut worst: f64 = 0.0;
        for ((output, found), expected) in outputs(case).iter().zip(&found).zip(&expected) {
            let most = expected.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
            for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                let off = (f64::from(found) - expected).abs() / most;
                assert!(
                    off <= case.within,
                    "{:?}, {:?}: row {output}, element {index}: {found} for {expected}, the largest {most}",
                    case.kernels,
                    case.pass
                );
                worst = worst.max(off);
            }
        }
        println!("{:?}, {:?}: {worst:.1e} of the largest, {:.1e} allowed", case.kernels, case.pass, case.within);
    }
}

#[test]
fn single_elements_are_those_of_plain_f64() {
    check(&elementwise());
}

#[test]
fn embeddings_are_those_of_plain_f64() {
    check(&embeddings());
}

#[test]
fn attention_to_later_tokens_is_that_of_plain_f64() {
    check(&texts());
}

#[test]
fn norms_and_rotations_are_those_of_plain_f64() {
    check(&norms());
    check(&heads());
}

#[test]
fn products_of_heads_are_those_of_plain_f64() {
    check(&head_products());
}

#[test]
fn attention_is_that_of_plain_f64() {
    check(&attentions());
}

#[test]
fn layers_with_states_are_those_of_plain_f64() {
    check(&recurrent());
}

#[test]
fn experts_are_those_of_plain_f64() {
    check(&mixtures());
    check(&rounded_mixtures());
}
