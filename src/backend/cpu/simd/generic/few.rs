//! Products with one activation row or a few, the case of sequences that decode: weights are multiplied as they are unpacked, in registers,
//! with the sums of `panel`.

use super::panel::{BLOCKS, Factors, Format, QUADS, Sink, XSums, unpack_all, value};
use super::rows::{ROWS, Rows};
use crate::backend::cpu::simd::operand::Q8Block;
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use std::marker::PhantomData;

/// The products of `T` activation rows and 16 weight rows that are `stride` bytes apart.
pub(super) struct MultiplyFew<'a, F, const T: usize> {
    pub bytes: &'a [u8],
    pub stride: usize,
    /// Rows of the same length.
    pub x: [&'a [Q8Block]; T],
    pub format: PhantomData<F>,
}

impl<F: Format, const T: usize> Kernel for MultiplyFew<'_, F, T> {
    type Output = [[f32; ROWS]; T];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [[f32; ROWS]; T] {
        let mut sums = Sums::<S, F, T>::new(s);
        let mut acc = [s.splat(0.0); T];
        let all = self.x[0].len();
        for first in (0..all).step_by(BLOCKS) {
            let mut x = self.x;
            for t in 0..T {
                x[t] = &self.x[t][first..all.min(first + BLOCKS)];
            }
            let at = first / F::BLOCK_SPAN * F::BLOCK_BYTES;
            let rows = Rows::new(&self.bytes[at..], self.stride, x[0].len() / F::BLOCK_SPAN * F::BLOCK_BYTES);
            let mut part = Part { sums: &mut sums, x };
            unpack_all::<S, F>(s, &rows.prefetching(ROWS * self.stride + (ROWS - 1) * at), &mut part);
            part.add_values(s, &mut acc);
        }
        let mut out = [[0.0; ROWS]; T];
        for t in 0..T {
            s.store(acc[t], &mut out[t]);
        }
        out
    }
}

/// Sums of up to eight blocks on the way, and what makes values of them.
struct Sums<S: Simd, F, const T: usize> {
    /// Products of 8 bits, where those of a whole block may wait for their sum.
    dots: [[S::Dots; T]; BLOCKS],
    sums: [[S::I; T]; BLOCKS],
    factors: [Factors<S>; BLOCKS],
    halves: [[S::I; 2]; BLOCKS],
    format: PhantomData<F>,
}

impl<S: Simd, F: Format, const T: usize> Sums<S, F, T> {
    #[inline(always)]
    fn new(s: S) -> Self {
        let zero = s.splat_int(0);
        let factors = [Factors { scale: s.splat(0.0), min: s.splat(0.0), pair: zero }; BLOCKS];
        let (dots, halves) = ([[s.no_dots(); T]; BLOCKS], [[zero; 2]; BLOCKS]);
        Sums { dots, sums: [[zero; T]; BLOCKS], factors, halves, format: PhantomData }
    }
}

/// A part of the activation rows, at most eight blocks, beside the weights that are unpacked.
struct Part<'a, S: Simd, F, const T: usize> {
    sums: &'a mut Sums<S, F, T>,
    x: [&'a [Q8Block]; T],
}

/// Whether the products of a whole block fit before they are summed.
#[inline(always)]
fn sums_once<S: Simd, F: Format>() -> bool {
    F::LARGEST <= 127 && !F::HALVES && S::dots_in_a_row(F::LARGEST) >= QUADS
}

impl<S: Simd, F: Format, const T: usize> Part<'_, S, F, T> {
    #[inline(always)]
    fn add_values(&self, s: S, acc: &mut [S::F; T]) {
        for block in 0..self.x[0].len() {
            for t in 0..T {
                let x = &self.x[t][block];
                let sum =
                    if sums_once::<S, F>() { s.drain(self.sums.dots[block][t]) } else { self.sums.sums[block][t] };
                let v = value::<S, F>(s, &self.sums.factors[block], sum, &XSums::new(s, x));
                acc[t] = s.fma(s.splat(x.scale), v, acc[t]);
            }
        }
    }
}

impl<S: Simd, F: Format, const T: usize> Sink<S> for Part<'_, S, F, T> {
    #[inline(always)]
    fn set_half(&mut self, s: S, block: usize, half: usize, weights: [S::I; 4]) {
        for t in 0..T {
            let x = &self.x[t][block].q.as_chunks::<4>().0[4 * half..4 * half + 4];
            let mut dots = if half == 1 && sums_once::<S, F>() { self.sums.dots[block][t] } else { s.no_dots() };
            let mut sum = if half == 1 && !sums_once::<S, F>() { self.sums.sums[block][t] } else { s.splat_int(0) };
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
                self.sums.dots[block][t] = dots;
            } else {
                self.sums.sums[block][t] = sum;
            }
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
        self.sums.halves[block] = [s.recode_scale(halves[0]), s.recode_scale(halves[1])];
    }
}
