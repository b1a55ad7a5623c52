//! Rows whose logits nobody wants: they are not computed behind the last attention, and the others do not notice.

use crate::common;
use crate::common::clock::ThreadClock;
use crate::common::gguf::{Shape, parsed};
use crate::common::passes::limits;
use segno::arch::{Arch, Hparams};
use segno::backend::cpu::lower::{Step, lower};
use segno::backend::cpu::{Cpu, Options, simd};
use segno::backend::{Backend, Batch, Chooser, Limits, Row, Runner};
use segno::kv::{PAGE_TOKENS, Pages, Tables};
use segno::plan::{Op, Program, build::build};
use segno::quant::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const SEQS: usize = 3;
/// Tokens of each sequence.
const LENGTH: usize = 50;

/// What lies behind the attention of the last layer is nearly all work: the feed-forward part.
fn program(layers: usize, dtype: DType) -> Arc<Program> {
    let shape = Shape { layers, hidden: 256, feed_forward: 4096, head_dim: 64, vocab: 96, ..Shape::small() };
    let bytes = common::random::stored(&shape, |_| dtype).bytes();
    let gguf = parsed(&bytes);
    let arch = Arch::find("llama").unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    Arc::new(build(&gguf, &arch, &hparams).unwrap())
}

struct Run {
    runner: Box<dyn Runner>,
    tables: Tables,
}

impl Run {
    fn new(program: &Arc<Program>, threads: usize, precise: bool) -> Run {
        let each = LENGTH.div_ceil(PAGE_TOKENS);
        let limits = Limits { rows: SEQS * LENGTH, outputs: SEQS * LENGTH, ..limits(program, LENGTH, SEQS) };
        let (mut pages, mut tables) = (Pages::new(limits.pages).unwrap(), Tables::new(SEQS, each).unwrap());
        (0..SEQS).for_each(|slot| assert!(tables.grow(slot, each, &mut pages)));
        let cpu = Cpu::new(&Options { threads, precise, allow_avx512: true, gives_way: false }).unwrap();
        Run { runner: cpu.prepare(Arc::clone(program), &mut |_| Ok(())).unwrap().open(&limits).unwrap(), tables }
    }

    /// Bits of the logits of the wanted ones of all rows.
    fn pass(&mut self, outputs: &[u32]) -> Vec<Vec<u32>> {
        let place = |index: usize| (index / LENGTH, index % LENGTH);
        let row = |(slot, position): (usize, usize)| Row {
            token: ((slot * 31 + position) * 7919 % 96) as u32,
            position: position as u32,
            slot: slot as u32,
        };
        let rows: Vec<Row> = (0..SEQS * LENGTH).map(|index| row(place(index))).collect();
        let batch = Batch {
            rows: &rows,
            outputs,
            chooser: Chooser::Host,
            tables: &self.tables,
            window_tables: None,
            moves: &[],
        };
        self.runner.run(&batch, &AtomicBool::new(false)).unwrap();
        let bits = |index| self.runner.logits(index).iter().map(|logit| logit.to_bits()).collect();
        (0..outputs.len()).map(bits).collect()
    }

    /// What a pass computes, the least of several.
    fn work(&mut self, outputs: &[u32]) -> Duration {
        let clock = ThreadClock::of_this_thread();
        let measure = |run: &mut Run| {
            let before = clock.now();
            run.pass(outputs);
            clock.now() - before
        };
        (0..5).map(|_| measure(self)).min().unwrap()
    }
}

/// Numbers of rows: none left out, one of each sequence, some first ones, one alone, and all but the first.
fn choices() -> [Vec<u32>; 5] {
    let (all, length) = ((SEQS * LENGTH) as u32, LENGTH as u32);
    [
        (0..all).collect(),
        (1..=SEQS as u32).map(|seq| seq * length - 1).collect(),
        vec![0, 1, 7, 49],
        vec![length + 3],
        (1..all).collect(),
    ]
}

#[test]
fn wanted_rows_have_the_same_logits_whatever_else_is_wanted() {
    for (dtype, precise) in [(DType::Q4_K, false), (DType::Q8_0, false), (DType::BF16, false), (DType::Q6_K, true)] {
        let program = program(2, dtype);
        let [all, ..] = choices();
        let expected = Run::new(&program, 1, precise).pass(&all);
        assert!(expected[0] != expected[1], "two rows have the same logits");
        for threads in [1, 3] {
            // What a pass leaves behind in its buffers must not reach the next one.
            let mut run = Run::new(&program, threads, precise);
            for wanted in choices() {
                let expected: Vec<_> = wanted.iter().map(|&row| expected[row as usize].clone()).collect();
                assert!(run.pass(&wanted) == expected, "{dtype}, {threads} threads: rows {wanted:?} differ");
            }
        }
    }
}

#[test]
fn other_rows_are_not_computed_behind_the_last_attention() {
    let mut run = Run::new(&program(1, DType::Q8_0), 1, false);
    let [all, last, ..] = choices();
    let (whole, part) = (run.work(&all), run.work(&last));
    println!("{:?} for {} rows that are wanted, {part:?} for {}", whole, all.len(), last.len());
    assert!(part < whole / 3, "{part:?} for {} of {} rows, {whole:?} for all", last.len(), all.len());
}

#[test]
fn the_choice_follows_the_last_attention_and_keeps_what_is_read() {
    let program = program(3, DType::Q8_0);
    let steps = lower(&program, simd::detect(true), false).unwrap().steps;
    let chosen: Vec<usize> = (0..steps.len()).filter(|&index| matches!(steps[index], Step::Select(_))).collect();
    let attention = steps.iter().rposition(|step| matches!(step, Step::Plain(Op::Attention { .. }))).unwrap();
    assert_eq!(chosen, [attention + 1]);
    let (Step::Select(kept), Step::Plain(Op::Attention { out, .. })) = (&steps[attention + 1], &steps[attention])
    else {
        panic!("found above")
    };
    // What the attention gave, and the stream that its product is added to.
    let Some(Step::Plain(Op::Add { x: stream, .. })) =
        steps[attention..].iter().find(|step| matches!(step, Step::Plain(Op::Add { .. })))
    else {
        panic!("a layer adds its attention")
    };
    assert!(kept.len() == 2 && kept.contains(out) && kept.contains(stream), "{kept:?}");
}
