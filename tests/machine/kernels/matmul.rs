//! Products of every weight type.

use super::*;
use segno::backend::cpu::pool::Grid;
use segno::quant::{blocks as stored, reference, synthetic};
use std::mem::offset_of;

/// A product: weights at an odd address, activations in every form.
struct Case {
    dtype: DType,
    rows: usize,
    cols: usize,
    tokens: usize,
    bytes: Vec<u8>,
    x: Vec<f32>,
    blocks: Vec<Q8Block>,
    rounded: Vec<bf16>,
}

impl Case {
    fn new(dtype: DType, rows: usize, cols: usize, tokens: usize) -> Case {
        let mut random = Random::new((rows * 1_000_003 + cols * 1009 + tokens) as u64);
        let weights = synthetic::blocks(dtype, rows * cols / dtype.block_len(), &mut random);
        let x = random.uniforms(tokens * cols);
        Case::with(dtype, rows, cols, &weights, x)
    }

    fn with(dtype: DType, rows: usize, cols: usize, weights: &[u8], x: Vec<f32>) -> Case {
        let bytes = [&[0], weights].concat();
        let mut blocks = vec![Q8Block::default(); x.len() / Q8_LEN];
        available()[0].quantize(&x[..blocks.len() * Q8_LEN], &mut blocks);
        let mut rounded = vec![bf16::ZERO; x.len()];
        available()[0].to_bf16(&x, &mut rounded);
        Case { dtype, rows, cols, tokens: x.len() / cols, bytes, x, blocks, rounded }
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.dtype, &self.bytes[1..], self.rows, self.cols).unwrap()
    }

    fn form(&self, as_floats: bool) -> Form {
        if as_floats { Form::F32 } else { available()[0].form(self.dtype) }
    }

    /// Some activation rows, in the form that the type takes or as floats.
    fn input(&self, tokens: std::ops::Range<usize>, as_floats: bool) -> Input<'_> {
        let (start, end) = (tokens.start * self.cols, tokens.end * self.cols);
        match self.form(as_floats) {
            Form::F32 => Input::F32 { values: &self.x[start..end] },
            Form::Q8 => Input::Q8 { blocks: &self.blocks[start / Q8_LEN..end / Q8_LEN] },
            Form::Bf16 => Input::Bf16 { values: &self.rounded[start..end] },
        }
    }

    /// The product, cut into tiles.
    fn run(&self, kernels: &Kernels, as_floats: bool, tile_tokens: usize, tile_rows: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.tokens * self.rows];
        for first in (0..self.tokens).step_by(tile_tokens) {
            let end = self.tokens.min(first + tile_tokens);
            let part = &mut out[first * self.rows..end * self.rows];
            let grid = Grid::new(part, self.rows, usize::MAX, tile_rows);
            for index in 0..grid.len() {
                // SAFETY: tiles are made one after the other, each number once.
                let mut tile = unsafe { grid.tile(index) };
                kernels.matmul(&self.matrix(), &self.input(first..end, as_floats), &mut tile);
            }
        }
        out
    }

    /// The product in f64, and for each output the sum of magnitudes.
    fn expected(&self, as_floats: bool) -> (Vec<f64>, Vec<f64>) {
        let mut weights = vec![0.0; self.rows * self.cols];
        reference::decode(self.dtype, &self.bytes[1..], &mut weights);
        let value = |b: &Q8Block, i: usize| f64::from(b.q[i]) * f64::from(b.scale);
        let x: Vec<f64> = match self.form(as_floats) {
            Form::F32 => self.x.iter().map(|x| f64::from(*x)).collect(),
            Form::Q8 => self.blocks.iter().flat_map(|b| (0..Q8_LEN).map(move |i| value(b, i))).collect(),
            Form::Bf16 => self.rounded.iter().map(|x| x.to_f64()).collect(),
        };
        let mut sums = (Vec::new(), Vec::new());
        for x in x.chunks(self.cols) {
            for w in weights.chunks(self.cols) {
                let products = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * x);
                sums.0.push(products().sum());
                sums.1.push(products().map(f64::abs).sum());
            }
        }
        sums
    }

    fn check(&self, as_floats: bool) {
        let what = format!("{} {}x{}, {} rows", self.dtype, self.rows, self.cols, self.tokens);
        let found = same_everywhere(&what, |kernels| self.run(kernels, as_floats, usize::MAX, self.rows));
        let (expected, magnitudes) = self.expected(as_floats);
        let tolerance: Vec<f64> = magnitudes.iter().map(|sum| sum * 1e-6 + 1e-12).collect();
        assert_close(&what, &found, &expected, &tolerance);
    }
}

#[test]
fn every_type_agrees_with_the_decoded_weights() {
    for dtype in DType::ALL {
        let unit = dtype.block_len().max(32);
        for (rows, blocks, tokens) in [(1, 1, 1), (5, 3, 2), (16, 2, 3), (17, 1, 4), (35, 3, 5), (67, 2, 7)] {
            Case::new(dtype, rows, blocks * unit, tokens).check(false);
        }
        Case::new(dtype, 3, 5 * unit, 3).check(true);
    }
}

#[test]
fn float_rows_may_have_any_length() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for cols in [1, 7, 15, 16, 17, 31, 80, 172] {
            Case::new(dtype, 6, cols, 5).check(false);
            Case::new(dtype, 6, cols, 3).check(true);
        }
    }
}

#[test]
fn float_panels_may_be_many_and_incomplete() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (rows, cols, tokens) in [(13, 1120, 9), (18, 2080, 130), (31, 1024, 8)] {
            let case = Case::new(dtype, rows, cols, tokens);
            for as_floats in [false, true] {
                case.check(as_floats);
                let whole = case.run(detect(true), as_floats, usize::MAX, rows);
                assert_eq!(bits(&whole), bits(&case.run(detect(true), as_floats, 1, rows)), "{dtype}");
            }
        }
    }
}

#[test]
fn rows_of_no_columns_give_zero() {
    for dtype in [DType::F32, DType::Q8_0, DType::IQ4_XS] {
        let mut out = [1.0; 6];
        let case =
            Case { dtype, rows: 3, cols: 0, tokens: 2, bytes: vec![0], x: vec![], blocks: vec![], rounded: vec![] };
        detect(true).matmul(&case.matrix(), &case.input(0..2, false), &mut TileMut::whole(&mut out, 3));
        assert_eq!(out, [0.0; 6]);
    }
}

#[test]
fn company_and_tiles_do_not_change_a_bit() {
    for dtype in DType::ALL {
        let cols = if dtype.block_len() > 128 { 512 } else { 384 };
        let case = Case::new(dtype, 70, cols, 64);
        let whole = case.run(available()[0], false, usize::MAX, case.rows);
        for kernels in available() {
            for (tile_tokens, tile_rows) in [(1, 70), (2, 7), (3, 16), (4, 35), (7, 32), (8, 33), (9, 48), (64, 64)] {
                let tiled = case.run(kernels, false, tile_tokens, tile_rows);
                let what = format!("{dtype}, {}, {tile_tokens} x {tile_rows}", kernels.name);
                assert_eq!(bits(&whole), bits(&tiled), "{what}");
            }
        }
    }
}

/// Offsets of the half-precision fields of a block.
fn scale_offsets(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[offset_of!(stored::Q2_K, d), offset_of!(stored::Q2_K, dmin)],
        DType::Q3_K => &[offset_of!(stored::Q3_K, d)],
        DType::Q6_K => &[offset_of!(stored::Q6_K, d)],
        _ => &[0],
    }
}

#[test]
fn extreme_bytes_are_exact() {
    for dtype in DType::ALL.into_iter().filter(|dtype| available()[0].form(*dtype) == Form::Q8) {
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            for x in [1.0, -1.0] {
                let mut weights = vec![byte; 18 * 512 / dtype.block_len() * dtype.block_bytes()];
                for block in weights.chunks_mut(dtype.block_bytes()) {
                    for offset in scale_offsets(dtype) {
                        block[*offset..][..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
                    }
                }
                Case::with(dtype, 18, 512, &weights, vec![x; 3 * 512]).check(false);
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    for dtype in DType::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let cols = dtype.block_len().max(64);
            let case = Case::new(dtype, 17, cols, 2);
            let mut x = case.x.clone();
            x[cols + 3] = bad;
            let case = Case::with(dtype, 17, cols, &case.bytes[1..], x);
            let found = same_everywhere("bad input", |kernels| case.run(kernels, false, usize::MAX, 17));
            assert!(found[..17].iter().all(|x| x.is_finite()), "{dtype}");
            assert!(found[17..].iter().all(|x| !x.is_finite() || case.form(false) == Form::F32), "{dtype} {bad}");
            assert!(found[17..].iter().any(|x| !x.is_finite()), "{dtype} {bad}");
        }
    }
}
