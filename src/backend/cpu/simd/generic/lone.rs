//! Products with a lone activation row, the case of one sequence that decodes: weights are multiplied as they are unpacked, in registers,
//! with the sums of `panel`.

use super::panel::{BLOCKS, Factors, Format, QUADS, Sink, XSums, unpack_all, value};
use super::rows::{ROWS, Rows};
use crate::backend::cpu::simd::operand::Q8Block;
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use std::marker::PhantomData;

/// The products of an activation row and 16 weight rows that are `stride` bytes apart.
pub(super) struct MultiplyLone<'a, F> {
    pub bytes: &'a [u8],
    pub stride: usize,
    pub x: &'a [Q8Block],
    pub format: PhantomData<F>,
}

impl<F: Format> Kernel for MultiplyLone<'_, F> {
    type Output = [f32; ROWS];
    const BYTE_PRODUCTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; ROWS] {
        let mut sums = Sums::<S, F>::new(s);
        let mut acc = s.splat(0.0);
        for (i, x) in self.x.chunks(BLOCKS).enumerate() {
            let at = i * BLOCKS / F::BLOCK_SPAN * F::BLOCK_BYTES;
            let rows = Rows::new(&self.bytes[at..], self.stride, x.len() / F::BLOCK_SPAN * F::BLOCK_BYTES);
            let mut part = Part { sums: &mut sums, x };
            unpack_all::<S, F>(s, &rows.prefetching(ROWS * self.stride + (ROWS - 1) * at), &mut part);
            acc = part.add_values(s, acc);
        }
        let mut out = [0.0; ROWS];
        s.store(acc, &mut out);
        out
    }
}

/// Sums of up to eight blocks on the way, and what makes values of them.
struct Sums<S: Simd, F> {
    /// Products of 8 bits, where those of a whole block may wait for their sum.
    dots: [S::Dots; BLOCKS],
    /// Those of rows, where the second half of a block comes next.
    rows: [S::I; 4],
    sums: [S::I; BLOCKS],
    factors: [Factors<S>; BLOCKS],
    halves: [[S::I; 2]; BLOCKS],
    format: PhantomData<F>,
}

impl<S: Simd, F: Format> Sums<S, F> {
    #[inline(always)]
    fn new(s: S) -> Self {
        let zero = s.splat_int(0);
        let factors = [Factors { scale: s.splat(0.0), min: s.splat(0.0), pair: zero }; BLOCKS];
        let (dots, halves) = ([s.no_dots(); BLOCKS], [[zero; 2]; BLOCKS]);
        Sums { dots, rows: [zero; 4], sums: [zero; BLOCKS], factors, halves, format: PhantomData }
    }
}

/// A part of the activation row, at most eight blocks, beside the weights that are unpacked.
struct Part<'a, S: Simd, F> {
    sums: &'a mut Sums<S, F>,
    x: &'a [Q8Block],
}

/// Whether the products of a whole block fit before they are summed.
#[inline(always)]
fn sums_once<S: Simd, F: Format>() -> bool {
    !S::BY_ROW && F::LARGEST <= 127 && !F::HALVES && S::dots_in_a_row(F::LARGEST) >= QUADS
}

impl<S: Simd, F: Format> Part<'_, S, F> {
    #[inline(always)]
    fn add_values(&self, s: S, mut acc: S::F) -> S::F {
        for (block, x) in self.x.iter().enumerate() {
            let sum = if sums_once::<S, F>() { s.drain(self.sums.dots[block]) } else { self.sums.sums[block] };
            let v = value::<S, F>(s, &self.sums.factors[block], sum, &XSums::new(s, x));
            acc = s.fma(s.splat(x.scale), v, acc);
        }
        acc
    }

    /// [`Sink::set_half`] of rows.
    #[inline(always)]
    fn set_half_of_rows(&mut self, s: S, block: usize, half: usize, weights: [S::I; 4]) {
        // Adding up the sums of each half would cost as much as its products.
        let in_turn = F::BLOCK_SPAN == 1 && !F::HALVES;
        let begun = if in_turn && half == 1 { self.sums.rows } else { [s.splat_int(0); 4] };
        let rows = s.dot_rows(begun, weights, &self.x[block].q.as_chunks().0[half]);
        if in_turn && half == 0 {
            self.sums.rows = rows;
            return;
        }
        let mut sum = s.sum_rows(rows);
        if F::HALVES {
            sum = s.mul_int(sum, self.sums.halves[block][half]);
        }
        self.sums.sums[block] = if in_turn || half == 0 { sum } else { s.add_int(self.sums.sums[block], sum) };
    }
}

impl<S: Simd, F: Format> Sink<S> for Part<'_, S, F> {
    #[inline(always)]
    fn weights(&self, s: S, rows: &Rows, at: usize, fetched: usize) -> [S::I; 4] {
        rows.in_rows(s, at, fetched)
    }

    #[inline(always)]
    fn arrange(&self, s: S, transposed: [S::I; 4]) -> [S::I; 4] {
        s.arrange_rows(transposed)
    }

    #[inline(always)]
    fn set_half(&mut self, s: S, block: usize, half: usize, weights: [S::I; 4]) {
        if S::BY_ROW {
            return self.set_half_of_rows(s, block, half, weights);
        }
        let x = &self.x[block].q.as_chunks::<4>().0[4 * half..4 * half + 4];
        let mut dots = if half == 1 && sums_once::<S, F>() { self.sums.dots[block] } else { s.no_dots() };
        let mut sum = if half == 1 && !sums_once::<S, F>() { self.sums.sums[block] } else { s.splat_int(0) };
        for quad in 0..4 {
            let x = s.splat_bytes(&x[quad]);
            if F::LARGEST > 127 {
                sum = s.dot4_q8(sum, weights[quad], x);
                continue;
            }
            dots = s.dot4(dots, weights[quad], x);
            if !sums_once::<S, F>() && (quad == 3 || (quad + 1) % S::dots_in_a_row(F::LARGEST) == 0) {
                sum = match F::HALVES {
                    true => s.drain_scaled(sum, dots, self.sums.halves[block][half]),
                    false => s.add_int(sum, s.drain(dots)),
                };
                dots = s.no_dots();
            }
        }
        if sums_once::<S, F>() {
            self.sums.dots[block] = dots;
        } else {
            self.sums.sums[block] = sum;
        }
    }

    #[inline(always)]
    fn set_scale(&mut self, _: S, block: usize, scale: S::F) {
        self.sums.factors[block].scale = scale;
    }

    #[inline(always)]
    fn set_min(&mut self, _: S, block: usize, min: S::F) {
        self.sums.factors[block].min = min;
    }

    #[inline(always)]
    fn set_pair(&mut self, _: S, block: usize, pair: S::I) {
        self.sums.factors[block].pair = pair;
    }

    #[inline(always)]
    fn set_halves(&mut self, s: S, block: usize, halves: [S::I; 2]) {
        let recoded = [s.recode_scale(halves[0]), s.recode_scale(halves[1])];
        self.sums.halves[block] = if S::BY_ROW { halves } else { recoded };
    }
}
