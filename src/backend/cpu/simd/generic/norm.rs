//! Normalization of a row: by its root mean square, or by mean and variance.

use super::{load_part, store_part};
use crate::backend::cpu::simd::vector::{Kernel, Simd};

pub(in super::super) struct RmsNorm<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub eps: f32,
    pub out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RmsNorm { x, weight, eps, out } = self;
        let mean = sum_of_squares(s, x) / x.len().max(1) as f32;
        let factor = s.splat(1.0 / (mean + eps).sqrt());
        let (x_chunks, x_tail) = x.as_chunks::<16>();
        let (weight_chunks, weight_tail) = weight.as_chunks::<16>();
        let (out_chunks, out_tail) = out.as_chunks_mut::<16>();
        for ((x, weight), out) in x_chunks.iter().zip(weight_chunks).zip(out_chunks) {
            s.store(s.mul(s.mul(s.load(x), factor), s.load(weight)), out);
        }
        let tail = s.mul(s.mul(load_part(s, x_tail), factor), load_part(s, weight_tail));
        store_part(s, tail, out_tail);
    }
}

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut lanes = s.splat(0.0);
    let (chunks, tail) = x.as_chunks::<16>();
    for x in chunks {
        let x = s.load(x);
        lanes = s.fma(x, x, lanes);
    }
    let tail = load_part(s, tail);
    s.sum(s.fma(tail, tail, lanes))
}

pub(in super::super) struct LayerNorm<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub eps: f32,
    pub out: &'a mut [f32],
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LayerNorm { x, weight, eps, out } = self;
        let count = x.len().max(1) as f32;
        let mean = sum(s, x) / count;
        for (out, x) in out.iter_mut().zip(x) {
            *out = x - mean;
        }
        let factor = 1.0 / (sum_of_squares(s, out) / count + eps).sqrt();
        for (out, weight) in out.iter_mut().zip(weight) {
            *out = *out * factor * weight;
        }
    }
}

#[inline(always)]
fn sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut lanes = s.splat(0.0);
    let (chunks, tail) = x.as_chunks::<16>();
    for x in chunks {
        lanes = s.add(lanes, s.load(x));
    }
    s.sum(s.add(lanes, load_part(s, tail)))
}
