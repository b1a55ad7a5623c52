//! Activations to int8 blocks.

use crate::backend::cpu::simd::operand::{Q8_LEN, Q8Block};
use crate::backend::cpu::simd::vector::{Kernel, Simd};

/// Below this the reciprocal of the scale would leave the range of f32.
const SMALLEST: f32 = 1e-36;

pub(in super::super) struct Quantize<'a> {
    pub x: &'a [f32],
    pub out: &'a mut [Q8Block],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.as_chunks::<Q8_LEN>().0.iter().zip(self.out) {
            *out = quantize_block(s, x);
        }
    }
}

#[inline(always)]
fn quantize_block<S: Simd>(s: S, x: &[f32; Q8_LEN]) -> Q8Block {
    let halves = x.as_chunks::<16>().0;
    let (low, high) = (s.load(&halves[0]), s.load(&halves[1]));
    let largest = largest_magnitude(s, low, high);
    if largest < SMALLEST {
        return Q8Block::default();
    }
    let finite = largest.is_finite();
    let inverse = s.splat(if finite { 127.0 / largest } else { 0.0 });
    let mut q = [[0; 16]; 2];
    s.store_low_bytes(s.round(s.mul(low, inverse)), &mut q[0]);
    s.store_low_bytes(s.round(s.mul(high, inverse)), &mut q[1]);
    let mut block = Q8Block { q: [0; Q8_LEN], scale: largest / 127.0, sums: [sum(&q[0]), sum(&q[1])] };
    block.q.copy_from_slice(q.as_flattened());
    if !finite {
        // An infinity or NaN times zero is NaN, and its integer is the instruction set's choice.
        block = Q8Block { scale: f32::NAN, ..Q8Block::default() };
    }
    block
}

/// Of 32 numbers; magnitudes are compared as integers, in which NaN is the largest.
#[inline(always)]
pub(super) fn largest_magnitude<S: Simd>(s: S, low: S::F, high: S::F) -> f32 {
    let magnitude = s.splat_int(0x7fff_ffff);
    let larger = s.max_int(s.and(s.as_int(low), magnitude), s.and(s.as_int(high), magnitude));
    let mut bytes = [0; 64];
    s.store_bytes(larger, &mut bytes);
    let mut largest = 0;
    for lane in bytes.as_chunks::<4>().0 {
        largest = largest.max(u32::from_le_bytes(*lane));
    }
    f32::from_bits(largest)
}

#[inline(always)]
fn sum(q: &[i8; 16]) -> i16 {
    let mut sum = 0;
    for q in q {
        sum += i16::from(*q);
    }
    sum
}
