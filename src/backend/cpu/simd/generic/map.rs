//! Element-wise kernels. Where no vector operation is named, the compiler finds the vectors; each element is computed
//! on its own, so they cannot change its value.

use super::load_part;
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

pub(in super::super) struct Add<'a> {
    pub x: &'a mut [f32],
    pub y: &'a [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}

pub(in super::super) struct Mul<'a> {
    pub x: &'a mut [f32],
    pub y: &'a [f32],
}

impl Kernel for Mul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x *= y;
        }
    }
}

pub(in super::super) struct MulAdd<'a> {
    pub acc: &'a mut [f32],
    pub x: &'a [f32],
    pub y: &'a [f32],
}

impl Kernel for MulAdd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for ((acc, x), y) in self.acc.iter_mut().zip(self.x).zip(self.y) {
            *acc = s.fma_one(*x, *y, *acc);
        }
    }
}

pub(in super::super) struct Scale<'a> {
    pub x: &'a mut [f32],
    pub factor: f32,
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for x in self.x {
            *x *= self.factor;
        }
    }
}

pub(in super::super) struct ScaleAdd<'a> {
    pub acc: &'a mut [f32],
    pub a: f32,
    pub other: &'a [f32],
    pub b: f32,
}

impl Kernel for ScaleAdd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (acc, other) in self.acc.iter_mut().zip(self.other) {
            *acc = s.fma_one(*acc, self.a, other * self.b);
        }
    }
}

pub(in super::super) struct RopePairs<'a> {
    pub head: &'a mut [f32],
    pub cos: &'a [f32],
    pub sin: &'a [f32],
}

impl Kernel for RopePairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pairs = self.head.as_chunks_mut::<2>().0;
        for ((pair, cos), sin) in pairs.iter_mut().zip(self.cos).zip(self.sin) {
            *pair = rotate(s, *pair, *cos, *sin);
        }
    }
}

pub(in super::super) struct RopeHalves<'a> {
    pub head: &'a mut [f32],
    pub cos: &'a [f32],
    pub sin: &'a [f32],
}

impl Kernel for RopeHalves<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (first, second) = self.head.split_at_mut(self.cos.len());
        for (((x, y), cos), sin) in first.iter_mut().zip(second).zip(self.cos).zip(self.sin) {
            [*x, *y] = rotate(s, [*x, *y], *cos, *sin);
        }
    }
}

#[inline(always)]
fn rotate<S: Simd>(s: S, [x, y]: [f32; 2], cos: f32, sin: f32) -> [f32; 2] {
    [s.fma_one(x, cos, -(y * sin)), s.fma_one(x, sin, y * cos)]
}

pub(in super::super) struct ToF16<'a> {
    pub x: &'a [f32],
    pub out: &'a mut [f16],
}

impl Kernel for ToF16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, x_tail) = self.x.as_chunks::<16>();
        let (out, out_tail) = self.out.reinterpret_cast_mut().as_chunks_mut::<16>();
        for (x, out) in x.iter().zip(out) {
            s.store_half(s.load(x), out);
        }
        let mut tail = [0; 16];
        s.store_half(load_part(s, x_tail), &mut tail);
        out_tail.copy_from_slice(&tail[..out_tail.len()]);
    }
}

/// Numbers below it become zero in [`ToBf16`].
const SMALLEST_BF16: f32 = 1.0 / (1_u64 << 50) as f32;

pub(in super::super) struct ToBf16<'a> {
    pub x: &'a [f32],
    pub out: &'a mut [bf16],
}

impl Kernel for ToBf16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, x_tail) = self.x.as_chunks::<16>();
        let (out, out_tail) = self.out.reinterpret_cast_mut().as_chunks_mut::<16>();
        for (x, out) in x.iter().zip(out) {
            s.store_words(rounded_to_bf16(s, s.load(x)), out);
        }
        let mut tail = [0; 16];
        s.store_words(rounded_to_bf16(s, load_part(s, x_tail)), &mut tail);
        out_tail.copy_from_slice(&tail[..out_tail.len()]);
    }
}

/// BF16 numbers in the lower half of each lane.
#[inline(always)]
fn rounded_to_bf16<S: Simd>(s: S, x: S::F) -> S::I {
    let bits = s.as_int(x);
    // Half of the last place, less the least bit where the result would be even already.
    let half = s.add_int(s.and(s.shr(bits, 16), s.splat_int(1)), s.splat_int(0x7fff));
    // Zero times what is no finite number is NaN; of a finite one it has no bits but the sign's.
    let rounded = s.or(s.add_int(bits, half), s.as_int(s.mul(x, s.splat(0.0))));
    let magnitude = s.and(bits, s.splat_int(0x7fff_ffff));
    let below = s.add_int(magnitude, s.splat_int(-(SMALLEST_BF16.to_bits() as i32)));
    // All ones where the difference is not negative.
    let keep = s.add_int(s.shr(below, 31), s.splat_int(-1));
    s.shr(s.and(rounded, keep), 16)
}
