//! 16 lanes in a plain array, for processors without AVX2: the meaning of every operation, spelled out. Operations of many instructions are
//! functions, as their calls cost nothing beside them and their copies would be a tenth of the library's code.

use super::vector::{Kernel, Simd};
use crate::elementary::fma;
use half::f16;

/// The instruction set that every processor has.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

#[inline(always)]
fn map<T: Copy + Default, A: Copy>(a: [A; 16], f: impl Fn(A) -> T) -> [T; 16] {
    let mut out = [T::default(); 16];
    for (out, a) in out.iter_mut().zip(a) {
        *out = f(a);
    }
    out
}

#[inline(always)]
fn zip<T: Copy + Default, A: Copy>(a: [A; 16], b: [A; 16], f: impl Fn(A, A) -> T) -> [T; 16] {
    let mut out = [T::default(); 16];
    for i in 0..16 {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// `acc` plus the dot products of the lanes' bytes, seen as integers through `unsigned` and `i8`.
#[inline(always)]
fn dot_bytes(acc: [i32; 16], a: [i32; 16], b: [i32; 16], a_value: impl Fn(u8) -> i32) -> [i32; 16] {
    let mut out = acc;
    for i in 0..16 {
        for (a, b) in a[i].to_le_bytes().into_iter().zip(b[i].to_le_bytes()) {
            out[i] += a_value(a) * i32::from(b as i8);
        }
    }
    out
}

impl Simd for Scalar {
    type F = [f32; 16];
    type I = [i32; 16];
    type Dots = [i32; 16];
    const LARGE_TILES: bool = false;
    const Q8_BIAS: i16 = 0;

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 16] {
        [x; 16]
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> [f32; 16] {
        *x
    }

    #[inline(always)]
    fn store(self, x: [f32; 16], out: &mut [f32; 16]) {
        *out = x;
    }

    #[inline(always)]
    fn load_half(self, x: &[u8; 32]) -> [f32; 16] {
        self.half_to_float(self.load_words(x))
    }

    #[inline(never)]
    fn store_half(self, x: [f32; 16], out: &mut [u16; 16]) {
        *out = map(x, |x| f16::from_f32(x).to_bits());
    }

    #[inline(always)]
    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a / b)
    }

    #[inline(never)]
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        let mut out = c;
        for i in 0..16 {
            out[i] = fma(a[i], b[i], c[i]);
        }
        out
    }

    #[inline(always)]
    fn fma_one(self, a: f32, b: f32, c: f32) -> f32 {
        fma(a, b, c)
    }

    #[inline(always)]
    fn max(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn pick(self, a: [f32; 16], b: [f32; 16], x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        let mut out = y;
        for i in 0..16 {
            out[i] = if a[i] > b[i] { x[i] } else { y[i] };
        }
        out
    }

    #[inline(always)]
    fn sum(self, mut x: [f32; 16]) -> f32 {
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                x[i] += x[i + width];
            }
        }
        x[0]
    }

    #[inline(never)]
    fn round(self, x: [f32; 16]) -> [i32; 16] {
        map(x, |x| x.round_ties_even() as i32)
    }

    #[inline(always)]
    fn to_float(self, x: [i32; 16]) -> [f32; 16] {
        map(x, |x| x as f32)
    }

    #[inline(never)]
    fn half_to_float(self, x: [i32; 16]) -> [f32; 16] {
        map(x, |x| f16::from_bits(x as u16).to_f32())
    }

    #[inline(always)]
    fn as_float(self, x: [i32; 16]) -> [f32; 16] {
        map(x, |x| f32::from_bits(x as u32))
    }

    #[inline(always)]
    fn as_int(self, x: [f32; 16]) -> [i32; 16] {
        map(x, |x| x.to_bits() as i32)
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> [i32; 16] {
        [x; 16]
    }

    #[inline(always)]
    fn splat_bytes(self, x: &[i8; 4]) -> [i32; 16] {
        [i32::from_le_bytes(x.map(|byte| byte as u8)); 16]
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> [i32; 16] {
        let mut out = [0; 16];
        for (out, x) in out.iter_mut().zip(x.as_chunks().0) {
            *out = i32::from_le_bytes(*x);
        }
        out
    }

    #[inline(always)]
    fn store_bytes(self, x: [i32; 16], out: &mut [u8; 64]) {
        for (out, x) in out.as_chunks_mut().0.iter_mut().zip(x) {
            *out = x.to_le_bytes();
        }
    }

    #[inline(always)]
    fn load_words(self, x: &[u8; 32]) -> [i32; 16] {
        let mut out = [0; 16];
        for (out, x) in out.iter_mut().zip(x.as_chunks().0) {
            *out = i32::from(u16::from_le_bytes(*x));
        }
        out
    }

    #[inline(always)]
    fn store_words(self, x: [i32; 16], out: &mut [u16; 16]) {
        *out = map(x, |x| x as u16);
    }

    #[inline(always)]
    fn load_low_bytes(self, x: &[u8; 16]) -> [i32; 16] {
        map(*x, |byte| i32::from(byte as i8))
    }

    #[inline(always)]
    fn store_low_bytes(self, x: [i32; 16], out: &mut [i8; 16]) {
        *out = map(x, |x| x as i8);
    }

    #[inline(always)]
    fn and(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn add_int(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, i32::wrapping_add)
    }

    #[inline(always)]
    fn mul_int(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, i32::wrapping_mul)
    }

    #[inline(always)]
    fn max_int(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(a, b, i32::max)
    }

    #[inline(always)]
    fn shl(self, a: [i32; 16], bits: u32) -> [i32; 16] {
        map(a, |a| a << bits)
    }

    #[inline(always)]
    fn shr(self, a: [i32; 16], bits: u32) -> [i32; 16] {
        map(a, |a| (a as u32 >> bits) as i32)
    }

    #[inline(always)]
    fn sar(self, a: [i32; 16], bits: u32) -> [i32; 16] {
        map(a, |a| a >> bits)
    }

    #[inline(never)]
    fn lookup(self, table: [i32; 16], index: [i32; 16]) -> [i32; 16] {
        let byte = |number: u8| table[usize::from(number) / 4].to_le_bytes()[usize::from(number) % 4];
        map(index, |index| i32::from_le_bytes(index.to_le_bytes().map(byte)))
    }

    #[inline(never)]
    fn dot4(self, acc: [i32; 16], unsigned: [i32; 16], signed: [i32; 16]) -> [i32; 16] {
        dot_bytes(acc, unsigned, signed, i32::from)
    }

    #[inline(always)]
    fn no_dots(self) -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn drain(self, dots: [i32; 16]) -> [i32; 16] {
        dots
    }

    #[inline(always)]
    fn recode_scale(self, x: [i32; 16]) -> [i32; 16] {
        x
    }

    #[inline(always)]
    fn drain_scaled(self, acc: [i32; 16], dots: [i32; 16], scale: [i32; 16]) -> [i32; 16] {
        self.add_int(acc, self.mul_int(dots, scale))
    }

    #[inline(always)]
    fn dots_in_a_row(_: u8) -> usize {
        usize::MAX
    }

    #[inline(never)]
    fn dot2(self, acc: [i32; 16], a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        let mut out = acc;
        for i in 0..16 {
            out[i] += i32::from(a[i] as i16) * i32::from(b[i] as i16) + (a[i] >> 16) * (b[i] >> 16);
        }
        out
    }

    #[inline(always)]
    fn recode_q8(self, x: [i32; 16]) -> [i32; 16] {
        x
    }

    #[inline(never)]
    fn dot4_q8(self, acc: [i32; 16], recoded: [i32; 16], signed: [i32; 16]) -> [i32; 16] {
        dot_bytes(acc, recoded, signed, |byte| i32::from(byte as i8))
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}

    #[inline(always)]
    unsafe fn gather_blocks(self, base: *const u8, stride: usize) -> [[i32; 16]; 4] {
        let mut out = [[0; 16]; 4];
        for (i, dwords) in out.iter_mut().enumerate() {
            // SAFETY: the four dwords are the 16 bytes that the caller vouches for.
            *dwords = unsafe { self.gather_dwords(base.add(4 * i), stride) };
        }
        out
    }

    #[inline(always)]
    unsafe fn gather_dwords(self, base: *const u8, stride: usize) -> [i32; 16] {
        let mut out = [0; 16];
        for (row, out) in out.iter_mut().enumerate() {
            // SAFETY: the caller vouches for every row.
            *out = unsafe { base.add(row * stride).cast::<i32>().read_unaligned() };
        }
        out
    }

    #[inline(never)]
    unsafe fn gather_halves(self, base: *const u8, stride: usize) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (row, out) in out.iter_mut().enumerate() {
            // SAFETY: the caller vouches for every row.
            *out = unsafe { base.add(row * stride).cast::<f16>().read_unaligned() }.to_f32();
        }
        out
    }
}
