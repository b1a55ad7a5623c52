//! Products of quantized weights, as they lie in the file, with int8 activations.

use super::kquant::{Q2K, Q3K, Q4K, Q5K, Q6K};
use super::panel::{BLOCKS, Format, Multiply, Panel, ROWS, Rows, Unpack};
use super::small::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::backend::cpu::pool::TileMut;
use crate::backend::cpu::simd::operand::{Matrix, Q8_LEN, Q8Block};
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use crate::quant::DType;
use std::marker::PhantomData;

/// Bytes of a row that fill a panel: at most eight blocks of Q8_0.
const MAX_CHUNK_BYTES: usize = 272;

/// `out[t][i]` = dot product of row t of `x` and row `out.first_col() + i` of `w`.
pub(in super::super) struct Product<'a, 'w, 'o> {
    pub w: &'a Matrix<'w>,
    pub x: &'a [Q8Block],
    pub out: &'a mut TileMut<'o, f32>,
}

impl Kernel for Product<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.w.dtype() {
            DType::Q4_0 => self.stored::<S, Q4_0>(s),
            DType::Q4_1 => self.stored::<S, Q4_1>(s),
            DType::Q5_0 => self.stored::<S, Q5_0>(s),
            DType::Q5_1 => self.stored::<S, Q5_1>(s),
            DType::Q8_0 => self.stored::<S, Q8_0>(s),
            DType::Q2_K => self.stored::<S, Q2K>(s),
            DType::Q3_K => self.stored::<S, Q3K>(s),
            DType::Q4_K => self.stored::<S, Q4K>(s),
            DType::Q5_K => self.stored::<S, Q5K>(s),
            DType::Q6_K => self.stored::<S, Q6K>(s),
            other => unreachable!("{other} weights do not take int8 activations"),
        }
    }
}

impl Product<'_, '_, '_> {
    #[inline(always)]
    fn stored<S: Simd, F: Format>(&mut self, s: S) {
        let rows = self.out.cols();
        let mut row = 0;
        // Two panels share each activation that is loaded; they need the registers, and rows to spare.
        if S::LARGE_TILES && self.out.rows() > 1 {
            let mut panels = [const { Panel::new() }; 2];
            while row + ROWS < rows {
                self.panels::<S, F, 2>(s, row, &mut panels);
                row += 2 * ROWS;
            }
        }
        let mut panels = [const { Panel::new() }; 1];
        while row < rows {
            self.panels::<S, F, 1>(s, row, &mut panels);
            row += ROWS;
        }
    }

    /// The outputs of up to `G` times 16 weight rows from `row` of the tile on.
    #[inline(always)]
    fn panels<S: Simd, F: Format, const G: usize>(&mut self, s: S, row: usize, panels: &mut [Panel; G]) {
        let blocks = self.w.cols() / Q8_LEN;
        for token in 0..self.out.rows() {
            let end = self.out.cols().min(row + G * ROWS);
            self.out.row_mut(token)[row..end].fill(0.0);
        }
        for first in (0..blocks).step_by(BLOCKS) {
            let chunk = first..blocks.min(first + BLOCKS);
            for (g, panel) in panels.iter_mut().enumerate() {
                self.unpack::<S, F>(s, row + g * ROWS, chunk.clone(), panel);
            }
            let mut token = 0;
            if S::LARGE_TILES {
                token = self.multiply::<S, F, G, 4>(s, row, panels, chunk.clone(), token);
            }
            token = self.multiply::<S, F, G, 2>(s, row, panels, chunk.clone(), token);
            self.multiply::<S, F, G, 1>(s, row, panels, chunk, token);
        }
    }

    /// Fills a panel with up to 16 rows from `row` of the tile on; the rows missing are zeros.
    #[inline(always)]
    fn unpack<S: Simd, F: Format>(&self, s: S, row: usize, chunk: std::ops::Range<usize>, panel: &mut Panel) {
        let count = ROWS.min(self.out.cols() - row);
        let bytes = self.w.bytes_of_rows(self.out.first_col() + row, count);
        let at = chunk.start / F::BLOCK_SPAN * F::BLOCK_BYTES;
        let len = chunk.len() / F::BLOCK_SPAN * F::BLOCK_BYTES;
        if count == ROWS {
            let rows = Rows::new(&bytes[at..], self.w.row_bytes(), len);
            return s.run(Unpack::<F> { rows, panel, format: PhantomData });
        }
        let mut copy = [0; ROWS * MAX_CHUNK_BYTES];
        for (copy, row) in copy.chunks_exact_mut(len).zip(bytes.chunks_exact(self.w.row_bytes())) {
            copy.copy_from_slice(&row[at..][..len]);
        }
        s.run(Unpack::<F> { rows: Rows::new(&copy, len, len), panel, format: PhantomData })
    }

    /// Multiplies with activation rows from `token` on, `T` at a time; returns the first one not done.
    #[inline(always)]
    fn multiply<S: Simd, F: Format, const G: usize, const T: usize>(
        &mut self,
        s: S,
        row: usize,
        panels: &[Panel; G],
        chunk: std::ops::Range<usize>,
        mut token: usize,
    ) -> usize {
        let blocks = self.w.cols() / Q8_LEN;
        let end = self.out.cols().min(row + G * ROWS);
        while token + T <= self.out.rows() {
            let mut acc = [[[0.0; ROWS]; G]; T];
            let mut x: [&[Q8Block]; T] = [&[]; T];
            for t in 0..T {
                x[t] = &self.x[(token + t) * blocks..][chunk.clone()];
                acc[t].as_flattened_mut()[..end - row].copy_from_slice(&self.out.row_mut(token + t)[row..end]);
            }
            s.run(Multiply::<F, G, T> { panels, x, acc: &mut acc, format: PhantomData });
            for t in 0..T {
                self.out.row_mut(token + t)[row..end].copy_from_slice(&acc[t].as_flattened()[..end - row]);
            }
            token += T;
        }
        token
    }
}
