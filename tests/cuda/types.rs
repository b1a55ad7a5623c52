//! Every storage type on a GPU, value by value: rows of the embedding against the processor's decoder. On a machine without a GPU the tests say
//! so and prove nothing.

use crate::common;
use crate::common::gguf::{Content, File, Shape, parsed};
use crate::common::passes::limits;
use segno::arch::{Arch, Hparams};
use segno::backend::cuda::{Cuda, testing::inspect::Inspection};
use segno::backend::{Batch, Chooser, Limits, Row};
use segno::kv::{Pages, Tables};
use segno::plan::{Program, build::build};
use segno::quant::synthetic::Random;
use segno::quant::{DType, reference};
use std::sync::Arc;

const VOCAB: usize = 101;

/// A model whose embedding has rows of `cols` values of any bits, and those values.
fn model(dtype: DType, cols: usize) -> (Program, Vec<f32>) {
    let mut file: File = Shape { hidden: cols, vocab: VOCAB, ..Shape::small() }.file();
    let mut random = Random::new(17);
    let bytes: Vec<u8> =
        (0..VOCAB * cols / dtype.block_len() * dtype.block_bytes()).map(|_| random.bits() as u8).collect();
    let mut values = vec![0.0; VOCAB * cols];
    reference::decode(dtype, &bytes, &mut values);
    let table = file.tensor("token_embd.weight");
    (table.type_id, table.content) = (dtype.ggml_id(), Content::Bytes(bytes));
    let gguf = parsed(&file.bytes());
    let arch = Arch::find("llama").unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    (build(&gguf, &arch, &hparams).unwrap(), values)
}

/// What the first two launches of a step, its begin and the embedding, leave in the first value.
fn embedded(inspection: &mut Inspection, tokens: &[u32]) -> Vec<Vec<f32>> {
    let (mut tables, mut pages) = (Tables::new(1, 4).unwrap(), Pages::new(4).unwrap());
    assert!(tables.grow(0, 4, &mut pages));
    let row = |(position, &token): (usize, &u32)| Row { token, position: position as u32, slot: 0 };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    let outputs = [rows.len() as u32 - 1];
    let batch = Batch {
        rows: &rows,
        outputs: &outputs,
        chooser: Chooser::Host,
        tables: &tables,
        window_tables: None,
        moves: &[],
    };
    inspection.poison().unwrap();
    inspection.run_first(&batch, 2).unwrap();
    let parts = inspection.read().unwrap();
    let floats = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    parts.iter().filter(|part| part.name == "values").map(|part| floats(&part.bytes)).collect()
}

/// Whether two values are the same number, or both none.
fn same(a: f32, b: f32) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

/// Rows of a slice and a little, where the type's blocks allow it, or of whole slices; and short ones.
fn widths(dtype: DType) -> Vec<usize> {
    match dtype.block_len() {
        1 => vec![33, 1058],
        len @ 32..=128 => vec![3 * len, 1024, 1024 + len],
        len => vec![len, 1024, 1024 + len],
    }
}

#[test]
fn embedded_rows_are_those_of_the_decoder() {
    if !common::gpu() {
        return;
    }
    let device = Cuda::new(0, true).unwrap();
    for dtype in DType::ALL {
        for cols in widths(dtype) {
            let (program, expected) = model(dtype, cols);
            let limits = Limits { rows: 128, ..limits(&program, 128, 1) };
            let mut inspection =
                device.upload(Arc::new(program), &mut |_| Ok(())).unwrap().inspect(&limits, true).unwrap();
            for tokens in [vec![100], (0..VOCAB as u32).rev().collect()] {
                let rows: Vec<f32> =
                    tokens.iter().flat_map(|&token| expected[token as usize * cols..][..cols].to_vec()).collect();
                let values = embedded(&mut inspection, &tokens);
                let matches = |value: &Vec<f32>| value.iter().zip(&rows).filter(|(a, b)| same(**a, **b)).count();
                let best = values.iter().map(matches).max().unwrap();
                assert_eq!(best, rows.len(), "{dtype}, {cols} columns, {} rows: of so many values", tokens.len());
            }
        }
        println!("{dtype}: every value");
    }
}
