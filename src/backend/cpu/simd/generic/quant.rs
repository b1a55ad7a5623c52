//! Products of quantized weights, as they lie in the file, with int8 activations.

use super::grid::{Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
use super::kquant::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::lone::MultiplyLone;
use super::panel::{Activations, BLOCKS, Format, Multiply, Outputs, Panel, Unpack};
use super::rows::{ROWS, Rows};
use super::small::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
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

/// Which part of the weights a group of panels holds: rows of the tile from `row` on, `blocks` blocks from `block` on.
#[derive(Clone, Copy)]
struct Part {
    row: usize,
    block: usize,
    blocks: usize,
}

impl Kernel for Product<'_, '_, '_> {
    type Output = ();
    const BYTE_PRODUCTS: bool = true;

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
            DType::IQ4_NL => self.stored::<S, Iq4Nl>(s),
            DType::IQ4_XS => self.stored::<S, Iq4Xs>(s),
            DType::MXFP4 => self.stored::<S, Mxfp4>(s),
            DType::IQ2_XXS => self.stored::<S, Iq2Xxs>(s),
            DType::IQ2_XS => self.stored::<S, Iq2Xs>(s),
            DType::IQ2_S => self.stored::<S, Iq2S>(s),
            DType::IQ3_XXS => self.stored::<S, Iq3Xxs>(s),
            DType::IQ3_S => self.stored::<S, Iq3S>(s),
            other => unreachable!("{other} weights do not take int8 activations"),
        }
    }
}

impl Product<'_, '_, '_> {
    #[inline(always)]
    fn stored<S: Simd, F: Format>(&mut self, s: S) {
        let rows = self.out.cols();
        let mut row = 0;
        if self.out.rows() == 1 {
            // What is left of fewer than 16 rows goes the other way, which fills up with zeros.
            while row + ROWS <= rows {
                self.lone::<S, F>(s, row);
                row += ROWS;
            }
        }
        // Two panels share each activation that is loaded; they need the registers, and rows to spare.
        if S::LARGE_TILES && self.out.rows() > 1 {
            let mut panels = [const { Panel::new() }; 2];
            while row + ROWS < rows {
                self.panels::<S, F, 2>(s, row, &mut panels);
                row += 2 * ROWS;
            }
        }
        // Not even zeroed where nothing is left, as behind a lone row.
        if row < rows {
            let mut panels = [const { Panel::new() }; 1];
            while row < rows {
                self.panels::<S, F, 1>(s, row, &mut panels);
                row += ROWS;
            }
        }
    }

    /// The outputs of 16 weight rows from `row` of the tile on, for a tile of one row.
    #[inline(always)]
    fn lone<S: Simd, F: Format>(&mut self, s: S, row: usize) {
        let bytes = self.w.bytes_of_rows(self.out.first_col() + row, ROWS);
        let product = MultiplyLone::<F> { bytes, stride: self.w.row_bytes(), x: self.x, format: PhantomData };
        self.out.row_mut(0)[row..row + ROWS].copy_from_slice(&s.run(product));
    }

    /// The outputs of up to `G` times 16 weight rows from `row` of the tile on.
    #[inline(always)]
    fn panels<S: Simd, F: Format, const G: usize>(&mut self, s: S, row: usize, panels: &mut [Panel; G]) {
        let blocks = self.blocks();
        let mut block = 0;
        // Without columns there is still one pass, which writes zeros.
        loop {
            let part = Part { row, block, blocks: BLOCKS.min(blocks - block) };
            for (g, panel) in panels.iter_mut().enumerate() {
                self.unpack::<S, F, G>(s, Part { row: row + g * ROWS, ..part }, panel);
            }
            let mut token = self.multiply::<S, F, G, 4>(s, panels, part, 0);
            token = self.multiply::<S, F, G, 2>(s, panels, part, token);
            self.multiply::<S, F, G, 1>(s, panels, part, token);
            block += BLOCKS;
            if block >= blocks {
                return;
            }
        }
    }

    /// Fills one of `G` panels; rows beyond the tile become zeros.
    #[inline(always)]
    fn unpack<S: Simd, F: Format, const G: usize>(&self, s: S, part: Part, panel: &mut Panel) {
        let count = ROWS.min(self.out.cols() - part.row);
        let stride = self.w.row_bytes();
        let bytes = self.w.bytes_of_rows(self.out.first_col() + part.row, count);
        let at = part.block / F::BLOCK_SPAN * F::BLOCK_BYTES;
        let len = part.blocks / F::BLOCK_SPAN * F::BLOCK_BYTES;
        if count == ROWS {
            let rows = Rows::new(&bytes[at..], stride, len).prefetching(G * ROWS * stride + (ROWS - 1) * at);
            return s.run(Unpack::<F> { rows, panel, format: PhantomData });
        }
        let mut copy = [0; ROWS * MAX_CHUNK_BYTES];
        for (copy, row) in copy.chunks_exact_mut(len.max(1)).zip(bytes.chunks_exact(stride.max(1))) {
            copy.copy_from_slice(&row[at..][..len]);
        }
        s.run(Unpack::<F> { rows: Rows::new(&copy, len, len), panel, format: PhantomData })
    }

    /// Multiplies with activation rows from `token` on, `T` at a time; returns the first one not done.
    #[inline(always)]
    fn multiply<S: Simd, F: Format, const G: usize, const T: usize>(
        &mut self,
        s: S,
        panels: &[Panel; G],
        part: Part,
        token: usize,
    ) -> usize {
        let rows = (self.out.rows() - token) / T * T;
        let cols = self.out.cols() - part.row;
        if cols >= G * ROWS && rows > 0 {
            let stride = self.out.stride();
            // SAFETY: the tile has these rows, and at least 16 columns for each panel from `part.row` on.
            let out = unsafe { Outputs::new(self.out.as_mut_ptr().add(token * stride + part.row), stride, rows) };
            s.run(self.product::<F, G, T>(panels, part, token, out));
            return token + rows;
        }
        for token in (token..token + rows).step_by(T) {
            let mut copy = [[[0.0; ROWS]; G]; T];
            for (t, copy) in copy.iter_mut().enumerate() {
                copy.as_flattened_mut()[..cols].copy_from_slice(&self.out.row_mut(token + t)[part.row..]);
            }
            // SAFETY: the copy has `T` rows of 16 columns for each panel.
            let out = unsafe { Outputs::new(copy.as_mut_ptr().cast(), G * ROWS, T) };
            s.run(self.product::<F, G, T>(panels, part, token, out));
            for (t, copy) in copy.iter().enumerate() {
                self.out.row_mut(token + t)[part.row..].copy_from_slice(&copy.as_flattened()[..cols]);
            }
        }
        token + rows
    }

    #[inline(always)]
    fn product<'p, F, const G: usize, const T: usize>(
        &'p self,
        panels: &'p [Panel; G],
        part: Part,
        token: usize,
        out: Outputs<'p>,
    ) -> Multiply<'p, F, G, T> {
        let x = &self.x[token * self.blocks() + part.block..];
        let x = Activations { blocks: x, stride: self.blocks(), count: part.blocks };
        Multiply { panels, x, out, begin: part.block == 0, format: PhantomData }
    }

    /// Blocks of an activation row.
    #[inline(always)]
    fn blocks(&self) -> usize {
        self.w.cols() / Q8_LEN
    }
}
