//! Products of batches and prompts on a GPU against those of single rows: the same bits for every storage type, for sizes of real models
//! and odd ones, and for every number of rows. On a machine without a GPU the tests say so and prove nothing.

use crate::common;
use crate::common::gguf::{Shape, parsed};
use crate::common::passes::limits;
use segno::arch::{Arch, Hparams};
use segno::backend::cuda::Cuda;
use segno::backend::{Backend, Batch, Chooser, Limits, Row, Runner};
use segno::kv::{Pages, Tables};
use segno::plan::{Program, build::build};
use segno::quant::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const SEQS: usize = 70;
const PROMPT: usize = 300;
const PAGE: usize = 32;
const VOCAB: usize = 301;

/// One layer: columns of the first products and of the last one, and keys of so many elements.
fn program(dtype: DType, hidden: usize, feed_forward: usize, head_dim: usize) -> Arc<Program> {
    let shape = Shape { layers: 1, hidden, heads: hidden / 64, kv_heads: 1, head_dim, feed_forward, ..Shape::small() };
    let shape = Shape { heads: hidden / head_dim, vocab: VOCAB, context: 512, ..shape };
    program_of("llama", &shape, dtype, dtype)
}

fn program_of(arch: &'static str, shape: &Shape, dtype: DType, value_type: DType) -> Arc<Program> {
    let dtype_of = |name: &str| if name.contains("attn_v") { value_type } else { dtype };
    let bytes = common::random::stored(&Shape { arch, ..*shape }, dtype_of).bytes();
    let gguf = parsed(&bytes);
    let arch = Arch::find(arch).unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    Arc::new(build(&gguf, &arch, &hparams).unwrap())
}

struct Run {
    runner: Box<dyn Runner>,
    tables: Tables,
}

impl Run {
    fn new(device: &Cuda, program: &Arc<Program>) -> Run {
        let each = PROMPT.div_ceil(PAGE);
        let limits = Limits { rows: 512, ..limits(program, PROMPT, SEQS) };
        let (mut pages, mut tables) = (Pages::new(limits.pages).unwrap(), Tables::new(SEQS, each).unwrap());
        (0..SEQS).for_each(|slot| assert!(tables.grow(slot, each, &mut pages)));
        Run { runner: device.prepare(Arc::clone(program), &mut |_| Ok(())).unwrap().open(&limits).unwrap(), tables }
    }

    /// Bits of the logits of the wanted rows.
    fn pass(&mut self, rows: &[Row], outputs: &[u32]) -> Vec<Vec<u32>> {
        let batch =
            Batch { rows, outputs, chooser: Chooser::Host, tables: &self.tables, window_tables: None, moves: &[] };
        self.runner.run(&batch, &AtomicBool::new(false)).unwrap();
        let bits = |index| self.runner.logits(index).iter().map(|logit| logit.to_bits()).collect();
        (0..outputs.len()).map(bits).collect()
    }
}

fn row(slot: usize, position: usize) -> Row {
    Row { token: ((slot + position) * 7919 % VOCAB) as u32, position: position as u32, slot: slot as u32 }
}

fn compare(device: &Cuda, name: &str, program: &Arc<Program>) {
    let mut run = Run::new(device, program);
    let rows: Vec<Row> = (0..SEQS).map(|slot| row(slot, 0)).collect();
    let alone: Vec<Vec<u32>> = rows.iter().map(|row| run.pass(&[*row], &[0]).remove(0)).collect();
    assert!(alone[0] != alone[1], "{name}: two tokens have the same logits");
    for count in 2..=SEQS {
        let outputs: Vec<u32> = (0..count as u32).collect();
        assert!(run.pass(&rows[..count], &outputs) == alone[..count], "{name}: {count} rows differ from one");
    }
    let prompt: Vec<Row> = (0..PROMPT).map(|position| row(0, position)).collect();
    let last = (0..PROMPT).map(|position| run.pass(&prompt[position..=position], &[0]).remove(0)).last();
    for chunk in [65, 130, PROMPT] {
        let passes = prompt.chunks(chunk).map(|rows| run.pass(rows, &[rows.len() as u32 - 1]).remove(0));
        assert!(passes.last() == last, "{name}: chunks of {chunk} differ from single rows");
    }
}

/// Checks that the first rows of different sequences together, so many at a time, have the bits of each alone.
fn compare_counts(device: &Cuda, name: &str, program: &Arc<Program>, counts: &[usize]) {
    let mut run = Run::new(device, program);
    let rows: Vec<Row> = (0..counts.iter().copied().max().unwrap_or(0)).map(|slot| row(slot, 0)).collect();
    let alone: Vec<Vec<u32>> = rows.iter().map(|row| run.pass(&[*row], &[0]).remove(0)).collect();
    assert!(alone[0] != alone[1], "{name}: two tokens have the same logits");
    for &count in counts {
        let outputs: Vec<u32> = (0..count as u32).collect();
        assert!(run.pass(&rows[..count], &outputs) == alone[..count], "{name}: {count} rows differ from one");
    }
}

/// Rows of one sequence may all want their logits: keys of the same pass are then among what they attend to.
#[test]
fn rows_of_one_sequence_give_the_bits_of_single_steps() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    let mut run = Run::new(&device, &program(DType::Q8_0, 256, 512, 64));
    let rows: Vec<Row> = (0..SEQS).map(|position| row(0, position)).collect();
    let alone: Vec<Vec<u32>> = rows.iter().map(|row| run.pass(&[*row], &[0]).remove(0)).collect();
    for count in [2, 4, 6, 8, 16, SEQS] {
        let own: Vec<Row> = rows.iter().map(|row| Row { slot: 1, ..*row }).collect();
        let outputs: Vec<u32> = (0..count as u32).collect();
        for (part, alone) in own.chunks_exact(count).zip(alone.chunks_exact(count)) {
            assert!(run.pass(part, &outputs) == alone, "{count} rows of one sequence differ from single steps");
        }
    }
}

/// Blocks of prompts have several rows of heads of 512 elements, those of several sequences too.
#[test]
fn rows_with_wide_heads_give_the_bits_of_one() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for (hidden, name) in [(1024, "two heads"), (2560, "five heads")] {
        let program = program(DType::Q8_0, hidden, 512, 512);
        compare(&device, name, &program);
        let mut run = Run::new(&device, &program);
        let lengths = [5, 70, 1, 290, 33];
        let alone = lengths.iter().enumerate().map(|(slot, &length)| {
            (0..length).map(|position| run.pass(&[row(slot, position)], &[0]).remove(0)).last().unwrap()
        });
        let alone: Vec<Vec<u32>> = alone.collect();
        let rows = lengths.iter().enumerate().flat_map(|(slot, &length)| (0..length).map(move |at| row(slot, at)));
        let rows: Vec<Row> = rows.collect();
        let last = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end as u32 - 1)
        });
        assert!(
            run.pass(&rows, &last.collect::<Vec<u32>>()) == alone,
            "{name}: several prompts differ from single rows"
        );
    }
}

/// Up to four rows go through kernels of their own, for every type; columns fill one slice and part of another.
#[test]
fn a_few_rows_give_the_bits_of_one_for_every_type() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for dtype in DType::ALL {
        let mut run = Run::new(&device, &program(dtype, 1280, 2304, 64));
        let rows: Vec<Row> = (0..4).map(|slot| row(slot, 0)).collect();
        let alone: Vec<Vec<u32>> = rows.iter().map(|row| run.pass(&[*row], &[0]).remove(0)).collect();
        for count in 2..=4 {
            let outputs: Vec<u32> = (0..count as u32).collect();
            assert!(run.pass(&rows[..count], &outputs) == alone[..count], "{dtype}: {count} rows differ from one");
        }
        let turned = [2, 0, 3, 1].map(|at| alone[at as usize].clone());
        assert!(run.pass(&rows, &[2, 0, 3, 1]) == turned, "{dtype}: outputs in another order differ");
    }
}

/// Files mix types in the products of one value: those of most have kernels of their own for a lone row.
#[test]
fn types_that_files_mix_give_the_bits_of_batches() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    let shape =
        Shape { layers: 1, hidden: 1280, heads: 20, kv_heads: 2, head_dim: 64, feed_forward: 2304, ..Shape::small() };
    let shape = Shape { vocab: VOCAB, context: 512, ..shape };
    for (dtype, value_type) in [
        (DType::Q4_K, DType::Q5_K),
        (DType::Q2_K, DType::Q4_K),
        (DType::Q3_K, DType::Q4_K),
        (DType::Q3_K, DType::Q5_K),
        (DType::IQ4_NL, DType::Q5_K),
        (DType::IQ4_XS, DType::Q5_K),
        (DType::Q2_K, DType::Q8_0),
    ] {
        let program = program_of("llama", &shape, dtype, value_type);
        compare_counts(&device, &format!("{dtype} and {value_type}"), &program, &[2, 4, 5]);
    }
}

/// A few rows of large matrices go through kernels of their own: rows of many slices, of which the last is shorter, and three matrices of different
/// types.
#[test]
fn a_few_rows_of_large_matrices_give_the_bits_of_one() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    let shape =
        Shape { layers: 1, hidden: 4096, heads: 32, kv_heads: 2, head_dim: 128, feed_forward: 8448, ..Shape::small() };
    let shape = Shape { vocab: VOCAB, context: 512, ..shape };
    for (arch, dtype) in
        [("qwen2", DType::Q8_0), ("llama", DType::Q4_K), ("qwen2", DType::Q5_K), ("llama", DType::Q6_K)]
    {
        compare_counts(&device, dtype.name(), &program_of(arch, &shape, dtype, DType::Q6_K), &[2, 3, 4]);
    }
}

/// The head of a lone row in Q2_K is a kernel of its own, whose blocks take many rounds of rows: more of them than are on their way at once.
#[test]
fn a_long_head_gives_the_bits_of_batches() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for vocab in [304, 60_000] {
        let shape = Shape {
            layers: 1,
            hidden: 2048,
            heads: 32,
            kv_heads: 1,
            head_dim: 64,
            feed_forward: 1024,
            ..Shape::small()
        };
        let shape = Shape { vocab, context: 512, ..shape };
        let mut run = Run::new(&device, &program_of("llama", &shape, DType::Q2_K, DType::Q2_K));
        let rows: Vec<Row> = (0..3).map(|slot| row(slot, 0)).collect();
        let together = run.pass(&rows, &[0, 1, 2]);
        assert!(together[0] != together[1] && together[0].len() == vocab, "two tokens have the same logits");
        for (row, own) in rows.iter().zip(&together) {
            assert!(run.pass(&[*row], &[0])[0] == *own, "{vocab} tokens: a lone row differs");
        }
    }
}

#[test]
fn every_number_of_rows_gives_the_bits_of_one() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for dtype in [DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K] {
        for (hidden, feed_forward, head_dim) in
            [(256, 14336, 64), (1536, 8960, 128), (2048, 4864, 64), (4096, 1280, 128)]
        {
            compare(
                &device,
                &format!("{dtype} of {hidden} and {feed_forward} columns"),
                &program(dtype, hidden, feed_forward, head_dim),
            );
        }
    }
    // The others, whose batches take no tensor cores: whole slices, two of them at once, and a shorter one.
    let others = DType::ALL.into_iter().filter(|dtype| dtype.block_len() > 1);
    for dtype in others.filter(|dtype| ![DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K].contains(dtype)) {
        let (name, program) = (format!("{dtype} of 2048 and 3840 columns"), program(dtype, 2048, 3840, 64));
        compare_counts(&device, &name, &program, &[2, 5, 8]);
    }
    // Columns of less than a whole slice, and rows that fill no tile.
    for (hidden, feed_forward, head_dim) in [(896, 4864, 14), (96, 160, 6), (32, 1056, 2)] {
        compare(
            &device,
            &format!("Q8_0 of {hidden} and {feed_forward} columns"),
            &program(DType::Q8_0, hidden, feed_forward, head_dim),
        );
    }
}
