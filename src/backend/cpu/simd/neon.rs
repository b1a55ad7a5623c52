//! 16 lanes in four NEON registers, with or without the byte products of FEAT_DotProd and those of small matrices of bytes, FEAT_I8MM. Only
//! operations; the kernels are in `generic`.

mod arrange;

use super::vector::{Kernel, Simd};
use arrange::{pairs_of_rows, transpose};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

/// Proof that the processor has the instruction set, FEAT_DotProd included if `DOT`, and FEAT_I8MM if `I8MM`, which implies `DOT`.
#[derive(Clone, Copy)]
pub(super) struct Neon<const DOT: bool, const I8MM: bool>(());

impl<const DOT: bool, const I8MM: bool> Neon<DOT, I8MM> {
    /// # Safety
    /// The value may be used only on a processor for which [`Neon::detected`] is true.
    pub(super) const unsafe fn new() -> Self {
        Neon(())
    }

    /// Whether this processor and system have it.
    pub(super) fn detected() -> bool {
        is_aarch64_feature_detected!("neon")
            && (!DOT || is_aarch64_feature_detected!("dotprod"))
            && (!I8MM || is_aarch64_feature_detected!("i8mm"))
    }
}

/// Some instructions; this is the one place that vouches for all of them.
macro_rules! instruction {
    ($call:expr) => {
        // SAFETY: `self` exists only on a processor that has the instructions, and memory is passed by reference.
        unsafe { $call }
    };
}

/// The same of each register of a vector, by its number.
macro_rules! each {
    ($i:pat => $call:expr) => {
        [each!(@ $i, 0, $call), each!(@ $i, 1, $call), each!(@ $i, 2, $call), each!(@ $i, 3, $call)]
    };
    (@ $i:pat, $number:literal, $call:expr) => {{
        let $i = $number;
        instruction!($call)
    }};
}

/// 16 lanes.
type Floats = [float32x4_t; 4];
/// The same of integers.
type Ints = [int32x4_t; 4];

impl<const DOT: bool, const I8MM: bool> Simd for Neon<DOT, I8MM> {
    type F = Floats;
    type I = Ints;
    /// With FEAT_DotProd sums of four products in the first of two registers; without it, products of the first and of the last eight bytes.
    type Dots = [[int16x8_t; 2]; 4];
    const LARGE_TILES: bool = false;
    const Q8_BIAS: i16 = 0;
    const BY_ROW: bool = true;
    const BY_PAIR: bool = I8MM;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "neon")]
        fn compiled<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod")]
        fn compiled_with_dot<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        #[inline(never)]
        #[target_feature(enable = "neon,dotprod,i8mm")]
        fn compiled_with_i8mm<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // SAFETY: `self` exists only on a processor that has these features.
        unsafe {
            match (DOT && K::BYTE_PRODUCTS, I8MM) {
                (true, true) => compiled_with_i8mm(self, kernel),
                (true, false) => compiled_with_dot(self, kernel),
                (false, _) => compiled(Neon::<false, false>(()), kernel),
            }
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Floats {
        instruction!([vdupq_n_f32(x); 4])
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Floats {
        each!(i => vld1q_f32(x[4 * i..].as_ptr()))
    }

    #[inline(always)]
    fn store(self, x: Floats, out: &mut [f32; 16]) {
        each!(i => vst1q_f32(out[4 * i..].as_mut_ptr(), x[i]));
    }

    #[inline(always)]
    fn load_half(self, x: &[u8; 32]) -> Floats {
        each!(i => vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(x[8 * i..].as_ptr()))))
    }

    #[inline(always)]
    fn store_half(self, x: Floats, out: &mut [u16; 16]) {
        each!(i => vst1_u16(out[4 * i..].as_mut_ptr(), vreinterpret_u16_f16(vcvt_f16_f32(x[i]))));
    }

    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        each!(i => vaddq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        each!(i => vmulq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        each!(i => vdivq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats {
        each!(i => vfmaq_f32(c[i], a[i], b[i]))
    }

    // The instruction of this name gives NaN if either is.
    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        each!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]))
    }

    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        each!(i => vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]))
    }

    #[inline(always)]
    fn pick(self, a: Floats, b: Floats, x: Floats, y: Floats) -> Floats {
        each!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), x[i], y[i]))
    }

    #[inline(always)]
    fn sum(self, x: Floats) -> f32 {
        instruction!({
            let x4 = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
            vpadds_f32(vadd_f32(vget_low_f32(x4), vget_high_f32(x4)))
        })
    }

    #[inline(always)]
    fn round(self, x: Floats) -> Ints {
        each!(i => vcvtnq_s32_f32(x[i]))
    }

    #[inline(always)]
    fn to_float(self, x: Ints) -> Floats {
        each!(i => vcvtq_f32_s32(x[i]))
    }

    #[inline(always)]
    fn half_to_float(self, x: Ints) -> Floats {
        each!(i => vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(x[i]))))
    }

    #[inline(always)]
    fn as_float(self, x: Ints) -> Floats {
        each!(i => vreinterpretq_f32_s32(x[i]))
    }

    #[inline(always)]
    fn as_int(self, x: Floats) -> Ints {
        each!(i => vreinterpretq_s32_f32(x[i]))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Ints {
        instruction!([vdupq_n_s32(x); 4])
    }

    #[inline(always)]
    fn splat_bytes(self, x: &[i8; 4]) -> Ints {
        instruction!([vdupq_n_s32(x.as_ptr().cast::<i32>().read_unaligned()); 4])
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> Ints {
        each!(i => vreinterpretq_s32_u8(vld1q_u8(x[16 * i..].as_ptr())))
    }

    #[inline(always)]
    fn store_bytes(self, x: Ints, out: &mut [u8; 64]) {
        each!(i => vst1q_u8(out[16 * i..].as_mut_ptr(), vreinterpretq_u8_s32(x[i])));
    }

    #[inline(always)]
    fn load_words(self, x: &[u8; 32]) -> Ints {
        each!(i => vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(x[8 * i..].as_ptr())))))
    }

    #[inline(always)]
    fn store_words(self, x: Ints, out: &mut [u16; 16]) {
        each!(i => vst1_u16(out[4 * i..].as_mut_ptr(), vreinterpret_u16_s16(vmovn_s32(x[i]))));
    }

    #[inline(always)]
    fn load_low_bytes(self, x: &[u8; 16]) -> Ints {
        instruction!({
            let bytes = vld1q_s8(x.as_ptr().cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        })
    }

    #[inline(always)]
    fn store_low_bytes(self, x: Ints, out: &mut [i8; 16]) {
        instruction!({
            let low = vuzp1q_s16(vreinterpretq_s16_s32(x[0]), vreinterpretq_s16_s32(x[1]));
            let high = vuzp1q_s16(vreinterpretq_s16_s32(x[2]), vreinterpretq_s16_s32(x[3]));
            vst1q_s8(out.as_mut_ptr(), vuzp1q_s8(vreinterpretq_s8_s16(low), vreinterpretq_s8_s16(high)))
        })
    }

    #[inline(always)]
    fn and(self, a: Ints, b: Ints) -> Ints {
        each!(i => vandq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn or(self, a: Ints, b: Ints) -> Ints {
        each!(i => vorrq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn add_int(self, a: Ints, b: Ints) -> Ints {
        each!(i => vaddq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul_int(self, a: Ints, b: Ints) -> Ints {
        each!(i => vmulq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn max_int(self, a: Ints, b: Ints) -> Ints {
        each!(i => vmaxq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn shl(self, a: Ints, bits: u32) -> Ints {
        each!(i => vshlq_s32(a[i], vdupq_n_s32(bits as i32)))
    }

    // Shifts to the right by a variable are shifts to the left by a negative number.
    #[inline(always)]
    fn shr(self, a: Ints, bits: u32) -> Ints {
        each!(i => vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a[i]), vdupq_n_s32(-(bits as i32)))))
    }

    #[inline(always)]
    fn sar(self, a: Ints, bits: u32) -> Ints {
        each!(i => vshlq_s32(a[i], vdupq_n_s32(-(bits as i32))))
    }

    #[inline(always)]
    fn byte_bits(self, a: Ints, bits: u32, mask: u8) -> Ints {
        let mut out = a;
        if bits > 0 {
            out = each!(i => vreinterpretq_s32_u8(vshlq_u8(vreinterpretq_u8_s32(out[i]), vdupq_n_s8(-(bits as i8)))));
        }
        // The shift leaves no other bits.
        if mask == 0xff >> bits { out } else { self.and(out, self.splat_int(i32::from_le_bytes([mask; 4]))) }
    }

    #[inline(always)]
    fn lookup(self, table: Ints, index: Ints) -> Ints {
        each!(i => vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table[i]), vreinterpretq_u8_s32(index[i]))))
    }

    #[inline(always)]
    fn dot4(self, acc: Self::Dots, unsigned: Ints, signed: Ints) -> Self::Dots {
        each!(i => if DOT {
            let sums = sdot(vreinterpretq_s32_s16(acc[i][0]), unsigned[i], signed[i]);
            [vreinterpretq_s16_s32(sums), acc[i][1]]
        } else {
            let (a, b) = (vreinterpretq_s8_s32(unsigned[i]), vreinterpretq_s8_s32(signed[i]));
            [vmlal_s8(acc[i][0], vget_low_s8(a), vget_low_s8(b)), vmlal_high_s8(acc[i][1], a, b)]
        })
    }

    #[inline(always)]
    fn no_dots(self) -> Self::Dots {
        instruction!([[vdupq_n_s16(0); 2]; 4])
    }

    #[inline(always)]
    fn drain(self, dots: Self::Dots) -> Ints {
        each!(i => if DOT {
            vreinterpretq_s32_s16(dots[i][0])
        } else {
            vpaddq_s32(vpaddlq_s16(dots[i][0]), vpaddlq_s16(dots[i][1]))
        })
    }

    #[inline(always)]
    fn recode_scale(self, x: Ints) -> Ints {
        x
    }

    #[inline(always)]
    fn drain_scaled(self, acc: Ints, dots: Self::Dots, scale: Ints) -> Ints {
        let dots = self.drain(dots);
        each!(i => vmlaq_s32(acc[i], dots[i], scale[i]))
    }

    // Without FEAT_DotProd: a product in each 16 bits.
    #[inline(always)]
    fn dots_in_a_row(largest: u8) -> usize {
        if DOT { usize::MAX } else { i16::MAX as usize / (128 * largest as usize) }
    }

    #[inline(always)]
    fn dot2(self, acc: Ints, a: Ints, b: Ints) -> Ints {
        each!(i => {
            let (a, b) = (vreinterpretq_s16_s32(a[i]), vreinterpretq_s16_s32(b[i]));
            vaddq_s32(acc[i], vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)))
        })
    }

    #[inline(always)]
    fn recode_q8(self, x: Ints) -> Ints {
        x
    }

    // Two products of signed bytes, of which one is not -128, fit into 16 bits.
    #[inline(always)]
    fn dot4_q8(self, acc: Ints, recoded: Ints, signed: Ints) -> Ints {
        each!(i => if DOT {
            sdot(acc[i], recoded[i], signed[i])
        } else {
            let (a, b) = (vreinterpretq_s8_s32(recoded[i]), vreinterpretq_s8_s32(signed[i]));
            vpadalq_s16(acc[i], vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)))
        })
    }

    // Vector c has the rows 4 i + c, each in a register.
    #[inline(always)]
    fn dot_rows(self, acc: [Ints; 4], rows: [Ints; 4], signed: &[i8; 16]) -> [Ints; 4] {
        let x = instruction!(vld1q_s8(signed.as_ptr()));
        let mut out = acc;
        for c in 0..4 {
            out[c] = each!(i => if DOT {
                sdot(acc[c][i], rows[c][i], vreinterpretq_s32_s8(x))
            } else {
                // Two products fit into 16 bits.
                let row = vreinterpretq_s8_s32(rows[c][i]);
                vpadalq_s16(acc[c][i], vmlal_high_s8(vmull_s8(vget_low_s8(row), vget_low_s8(x)), row, x))
            });
        }
        out
    }

    #[inline(always)]
    fn sum_rows(self, dots: [Ints; 4]) -> Ints {
        each!(i => vpaddq_s32(vpaddq_s32(dots[0][i], dots[1][i]), vpaddq_s32(dots[2][i], dots[3][i])))
    }

    // Vector 2 h + c has the columns 8 h to 8 h + 7 of the rows 4 i + 2 c and 4 i + 2 c + 1 in register i; such a register times one of two
    // activation rows is a matrix of two by two.
    #[inline(always)]
    fn dot_pair(self, acc: [Ints; 2], rows: [Ints; 4], signed: [&[i8; 16]; 2]) -> [Ints; 2] {
        assert!(I8MM, "the processor may lack the instruction");
        let x = instruction!({
            let first = vreinterpretq_s64_s8(vld1q_s8(signed[0].as_ptr()));
            let second = vreinterpretq_s64_s8(vld1q_s8(signed[1].as_ptr()));
            [vreinterpretq_s32_s64(vtrn1q_s64(first, second)), vreinterpretq_s32_s64(vtrn2q_s64(first, second))]
        });
        let mut out = acc;
        for h in 0..2 {
            for c in 0..2 {
                out[c] = each!(i => smmla(out[c][i], rows[2 * h + c][i], x[h]));
            }
        }
        out
    }

    #[inline(always)]
    fn sum_pair(self, dots: [Ints; 2]) -> [Ints; 2] {
        [each!(i => vuzp1q_s32(dots[0][i], dots[1][i])), each!(i => vuzp2q_s32(dots[0][i], dots[1][i]))]
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a hint, whatever the address.
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) address, options(nomem, nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn gather_blocks(self, base: *const u8, stride: usize) -> [Ints; 4] {
        // SAFETY: as this function demands. Transposing twice changes nothing.
        self.arrange_rows(unsafe { self.gather_rows(base, stride) })
    }

    #[inline(always)]
    unsafe fn gather_rows(self, base: *const u8, stride: usize) -> [Ints; 4] {
        let mut out = [self.splat_int(0); 4];
        for row in 0..16 {
            // SAFETY: the caller vouches for the 16 rows, the token for the instructions.
            out[row % 4][row / 4] = unsafe { vreinterpretq_s32_u8(vld1q_u8(base.add(row * stride))) };
        }
        out
    }

    #[inline(always)]
    fn arrange_rows(self, transposed: [Ints; 4]) -> [Ints; 4] {
        let [t0, t1, t2, t3] = transposed;
        let mut out = transposed;
        for i in 0..4 {
            [out[0][i], out[1][i], out[2][i], out[3][i]] = instruction!(transpose([t0[i], t1[i], t2[i], t3[i]]));
        }
        out
    }

    #[inline(always)]
    unsafe fn gather_pairs(self, base: *const u8, stride: usize) -> [Ints; 4] {
        // SAFETY: as this function demands.
        unsafe { pairs_of_rows(self.gather_rows(base, stride)) }
    }

    #[inline(always)]
    fn arrange_pairs(self, transposed: [Ints; 4]) -> [Ints; 4] {
        instruction!(pairs_of_rows(self.arrange_rows(transposed)))
    }

    #[inline(always)]
    unsafe fn gather_dwords(self, base: *const u8, stride: usize) -> Ints {
        let mut rows = [0; 16];
        for (row, out) in rows.iter_mut().enumerate() {
            // SAFETY: the caller vouches for every row.
            *out = unsafe { base.add(row * stride).cast::<i32>().read_unaligned() };
        }
        each!(i => vld1q_s32(rows[4 * i..].as_ptr()))
    }

    #[inline(always)]
    unsafe fn gather_halves(self, base: *const u8, stride: usize) -> Floats {
        let mut rows = [0; 16];
        for (row, out) in rows.iter_mut().enumerate() {
            // SAFETY: the caller vouches for every row.
            *out = unsafe { base.add(row * stride).cast::<u16>().read_unaligned() };
        }
        each!(i => vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(rows[4 * i..].as_ptr()))))
    }
}

/// An instruction that adds products of signed bytes to `acc`. Inline assembly, because Rust has these intrinsics only in nightly versions.
macro_rules! products {
    ($name:ident, $features:literal, $text:literal) => {
        #[inline]
        #[target_feature(enable = $features)]
        fn $name(mut acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
            // SAFETY: one instruction on registers.
            unsafe { asm!($text, inout(vreg) acc, in(vreg) a, in(vreg) b, options(pure, nomem, nostack, preserves_flags)) };
            acc
        }
    };
}

// Dot products of four bytes.
products!(sdot, "neon,dotprod", "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b");
// Those of two rows of eight bytes with two others: a matrix of two by two, row by row.
products!(smmla, "neon,i8mm", "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b");
