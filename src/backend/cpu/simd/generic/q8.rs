//! Keys and values of 8 bits: [`crate::kv::q8`] has their form.

use super::quantize::largest_magnitude;
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use crate::kv::q8::BLOCK;
use half::f16;

/// Rotates each part of `size` elements, a power of two.
pub(in super::super) struct Rotate<'a> {
    pub x: &'a mut [f32],
    pub size: usize,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let mut half = 1;
        while half < self.size {
            match half {
                1 => pairs::<1>(self.x),
                2 => pairs::<2>(self.x),
                4 => pairs::<4>(self.x),
                8 => pairs::<8>(self.x),
                _ => far_pairs(self.x, half),
            }
            half *= 2;
        }
        let factor = 1.0 / (self.size as f32).sqrt();
        for x in self.x {
            *x *= factor;
        }
    }
}

/// A stage of the fast Walsh-Hadamard transform: sums and differences of elements that are `HALF` apart.
#[inline(always)]
fn pairs<const HALF: usize>(x: &mut [f32]) {
    for part in x.chunks_exact_mut(2 * HALF) {
        let (low, high) = part.split_at_mut(HALF);
        for i in 0..HALF {
            (low[i], high[i]) = (low[i] + high[i], low[i] - high[i]);
        }
    }
}

/// The same of elements that are whole vectors apart.
#[inline(always)]
fn far_pairs(x: &mut [f32], half: usize) {
    for part in x.chunks_exact_mut(2 * half) {
        let (low, high) = part.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            (*low, *high) = (*low + *high, *low - *high);
        }
    }
}

/// A head as its bytes.
pub(in super::super) struct Encode<'a> {
    pub x: &'a [f32],
    pub out: &'a mut [u8],
}

impl Kernel for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (multiples, scales) = self.out.split_at_mut(self.x.len());
        let blocks = self.x.chunks(BLOCK).zip(multiples.chunks_mut(BLOCK));
        for ((x, out), scale) in blocks.zip(scales.as_chunks_mut::<2>().0) {
            *scale = encode_block(s, x, out).to_le_bytes();
        }
    }
}

/// Writes the multiples of a block; its scale.
#[inline(always)]
fn encode_block<S: Simd>(s: S, x: &[f32], out: &mut [u8]) -> f16 {
    let mut padded = [0.0; BLOCK];
    padded[..x.len()].copy_from_slice(x);
    let halves = padded.as_chunks::<16>().0;
    let (low, high) = (s.load(&halves[0]), s.load(&halves[1]));
    let mut scale = [0; 16];
    s.store_half(s.splat(largest_magnitude(s, low, high) / 127.0), &mut scale);
    let scale = f16::from_bits(scale[0]);
    let mut q = [[0; 16]; 2];
    let factor = scale_of(s, scale.to_bits());
    let mut scales = [0.0; 16];
    s.store(factor, &mut scales);
    // Without a scale nothing is left, and where there is no number the scale says so.
    if scales[0] > 0.0 && scales[0].is_finite() {
        for (x, q) in [low, high].into_iter().zip(&mut q) {
            // A small scale has few bits: it may have been rounded down by more than half a multiple of 127.
            let multiple = s.max(s.min(s.div(x, factor), s.splat(127.0)), s.splat(-127.0));
            s.store_low_bytes(s.round(multiple), q);
        }
    }
    for (out, q) in out.iter_mut().zip(q.as_flattened()) {
        *out = *q as u8;
    }
    if scales[0].is_finite() { scale } else { f16::NAN }
}

/// A scale in every lane.
#[inline(always)]
pub(super) fn scale_of<S: Simd>(s: S, bits: u16) -> S::F {
    s.half_to_float(s.splat_int(i32::from(bits)))
}

/// 16 scales, of which the low and the high bytes stand apart.
#[inline(always)]
pub(super) fn scales_of<S: Simd>(s: S, low: &[u8; 16], high: &[u8; 16]) -> S::F {
    let byte = s.splat_int(0xff);
    let (low, high) = (s.and(s.load_low_bytes(low), byte), s.and(s.load_low_bytes(high), byte));
    s.half_to_float(s.or(low, s.shl(high, 8)))
}

/// 16 multiples as floats.
#[inline(always)]
pub(super) fn multiples<S: Simd>(s: S, bytes: &[u8; 16]) -> S::F {
    s.to_float(s.load_low_bytes(bytes))
}
