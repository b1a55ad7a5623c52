//! 16 lanes in a pair of AVX registers (AVX2, FMA, F16C), with or without AVX-VNNI's byte products. Only operations; the
//! kernels are in `generic`.

use super::vector::{Kernel, Simd};
use std::arch::x86_64::*;

/// Proof that the processor has the instruction set, AVX-VNNI included if `VNNI`.
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// # Safety
    /// The value may be used only on a processor for which [`Avx2::detected`] is true.
    pub(super) const unsafe fn new() -> Self {
        Avx2(())
    }

    /// Whether this processor and system have it.
    pub(super) fn detected() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && (!VNNI || is_x86_feature_detected!("avxvnni"))
    }
}

/// The operations below are single instructions; this is the one place that vouches for all of them.
macro_rules! instruction {
    ($call:expr) => {
        // SAFETY: `self` exists only on a processor that has the instruction, and memory is passed by reference.
        unsafe { $call }
    };
}

type Pair<T> = [T; 2];

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F = Pair<__m256>;
    type I = Pair<__m256i>;
    type Dots = Pair<__m256i>;
    const LARGE_TILES: bool = false;
    const Q8_BIAS: i16 = if VNNI { 128 } else { 0 };

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn compiled_with_vnni<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // SAFETY: `self` exists only on a processor that has these features.
        unsafe {
            if VNNI && K::BYTE_PRODUCTS {
                compiled_with_vnni(self, kernel)
            } else {
                compiled(Avx2::<false>(()), kernel)
            }
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Pair<__m256> {
        instruction!([_mm256_set1_ps(x); 2])
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Pair<__m256> {
        instruction!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x[8..].as_ptr())])
    }

    #[inline(always)]
    fn store(self, x: Pair<__m256>, out: &mut [f32; 16]) {
        instruction!({
            _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(out[8..].as_mut_ptr(), x[1]);
        })
    }

    #[inline(always)]
    fn load_half(self, x: &[u8; 32]) -> Pair<__m256> {
        instruction!([
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(x[16..].as_ptr().cast())),
        ])
    }

    #[inline(always)]
    fn store_half(self, x: Pair<__m256>, out: &mut [u16; 16]) {
        instruction!({
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(out[8..].as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
        })
    }

    #[inline(always)]
    fn add(self, a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        instruction!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn mul(self, a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        instruction!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn div(self, a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        instruction!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn fma(self, a: Pair<__m256>, b: Pair<__m256>, c: Pair<__m256>) -> Pair<__m256> {
        instruction!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }

    #[inline(always)]
    fn max(self, a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        instruction!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn min(self, a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        instruction!([_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn pick(self, a: Pair<__m256>, b: Pair<__m256>, x: Pair<__m256>, y: Pair<__m256>) -> Pair<__m256> {
        instruction!([
            _mm256_blendv_ps(y[0], x[0], _mm256_cmp_ps::<_CMP_GT_OQ>(a[0], b[0])),
            _mm256_blendv_ps(y[1], x[1], _mm256_cmp_ps::<_CMP_GT_OQ>(a[1], b[1])),
        ])
    }

    #[inline(always)]
    fn sum(self, x: Pair<__m256>) -> f32 {
        instruction!({
            let x8 = _mm256_add_ps(x[0], x[1]);
            let x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps::<1>(x8));
            let x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
            _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps::<1>(x2, x2)))
        })
    }

    #[inline(always)]
    fn round(self, x: Pair<__m256>) -> Pair<__m256i> {
        instruction!([_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1])])
    }

    #[inline(always)]
    fn to_float(self, x: Pair<__m256i>) -> Pair<__m256> {
        instruction!([_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])])
    }

    #[inline(always)]
    fn half_to_float(self, x: Pair<__m256i>) -> Pair<__m256> {
        instruction!({
            let low = _mm256_set1_epi32(0xffff);
            // Packing works within each half of a register: dwords 0-3 of both, then dwords 4-7 of both.
            let packed = _mm256_packus_epi32(_mm256_and_si256(x[0], low), _mm256_and_si256(x[1], low));
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            [_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(packed))]
        })
    }

    #[inline(always)]
    fn as_float(self, x: Pair<__m256i>) -> Pair<__m256> {
        instruction!([_mm256_castsi256_ps(x[0]), _mm256_castsi256_ps(x[1])])
    }

    #[inline(always)]
    fn as_int(self, x: Pair<__m256>) -> Pair<__m256i> {
        instruction!([_mm256_castps_si256(x[0]), _mm256_castps_si256(x[1])])
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Pair<__m256i> {
        instruction!([_mm256_set1_epi32(x); 2])
    }

    #[inline(always)]
    fn splat_bytes(self, x: &[i8; 4]) -> Pair<__m256i> {
        instruction!([_mm256_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()); 2])
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> Pair<__m256i> {
        instruction!([_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x[32..].as_ptr().cast())])
    }

    #[inline(always)]
    fn store_bytes(self, x: Pair<__m256i>, out: &mut [u8; 64]) {
        instruction!({
            _mm256_storeu_si256(out.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(out[32..].as_mut_ptr().cast(), x[1]);
        })
    }

    #[inline(always)]
    fn load_words(self, x: &[u8; 32]) -> Pair<__m256i> {
        instruction!([
            _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast())),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(x[16..].as_ptr().cast())),
        ])
    }

    #[inline(always)]
    fn store_words(self, x: Pair<__m256i>, out: &mut [u16; 16]) {
        instruction!({
            let low = _mm256_set1_epi32(0xffff);
            let words = _mm256_packus_epi32(_mm256_and_si256(x[0], low), _mm256_and_si256(x[1], low));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(words))
        })
    }

    #[inline(always)]
    fn load_low_bytes(self, x: &[u8; 16]) -> Pair<__m256i> {
        instruction!([
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(x.as_ptr().cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(x[8..].as_ptr().cast())),
        ])
    }

    #[inline(always)]
    fn store_low_bytes(self, x: Pair<__m256i>, out: &mut [i8; 16]) {
        instruction!({
            let low = _mm256_set1_epi32(0xff);
            let words = _mm256_packus_epi32(_mm256_and_si256(x[0], low), _mm256_and_si256(x[1], low));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes)
        })
    }

    #[inline(always)]
    fn and(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        instruction!([_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])])
    }

    #[inline(always)]
    fn or(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        instruction!([_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])])
    }

    #[inline(always)]
    fn add_int(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        instruction!([_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])])
    }

    #[inline(always)]
    fn mul_int(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        instruction!([_mm256_mullo_epi32(a[0], b[0]), _mm256_mullo_epi32(a[1], b[1])])
    }

    #[inline(always)]
    fn max_int(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        instruction!([_mm256_max_epi32(a[0], b[0]), _mm256_max_epi32(a[1], b[1])])
    }

    #[inline(always)]
    fn shl(self, a: Pair<__m256i>, bits: u32) -> Pair<__m256i> {
        instruction!({
            let bits = _mm256_set1_epi32(bits as i32);
            [_mm256_sllv_epi32(a[0], bits), _mm256_sllv_epi32(a[1], bits)]
        })
    }

    #[inline(always)]
    fn shr(self, a: Pair<__m256i>, bits: u32) -> Pair<__m256i> {
        instruction!({
            let bits = _mm256_set1_epi32(bits as i32);
            [_mm256_srlv_epi32(a[0], bits), _mm256_srlv_epi32(a[1], bits)]
        })
    }

    #[inline(always)]
    fn sar(self, a: Pair<__m256i>, bits: u32) -> Pair<__m256i> {
        instruction!({
            let bits = _mm256_set1_epi32(bits as i32);
            [_mm256_srav_epi32(a[0], bits), _mm256_srav_epi32(a[1], bits)]
        })
    }

    #[inline(always)]
    fn lookup(self, table: Pair<__m256i>, index: Pair<__m256i>) -> Pair<__m256i> {
        instruction!([_mm256_shuffle_epi8(table[0], index[0]), _mm256_shuffle_epi8(table[1], index[1])])
    }

    // Without VNNI: sums of two products, in 16 bits.
    #[inline(always)]
    fn dot4(self, acc: Pair<__m256i>, unsigned: Pair<__m256i>, signed: Pair<__m256i>) -> Pair<__m256i> {
        if VNNI {
            return instruction!([
                _mm256_dpbusd_avx_epi32(acc[0], unsigned[0], signed[0]),
                _mm256_dpbusd_avx_epi32(acc[1], unsigned[1], signed[1]),
            ]);
        }
        instruction!([
            in_order(_mm256_add_epi16(acc[0], _mm256_maddubs_epi16(unsigned[0], signed[0]))),
            in_order(_mm256_add_epi16(acc[1], _mm256_maddubs_epi16(unsigned[1], signed[1]))),
        ])
    }

    #[inline(always)]
    fn no_dots(self) -> Pair<__m256i> {
        self.splat_int(0)
    }

    #[inline(always)]
    fn drain(self, dots: Pair<__m256i>) -> Pair<__m256i> {
        if VNNI {
            return dots;
        }
        self.dot2(self.splat_int(0), dots, self.splat_int(0x0001_0001))
    }

    // Without VNNI: a scale for each sum of two products.
    #[inline(always)]
    fn recode_scale(self, x: Pair<__m256i>) -> Pair<__m256i> {
        if VNNI {
            return x;
        }
        instruction!({
            let both = _mm256_set_epi64x(
                0x0d0c_0d0c_0908_0908,
                0x0504_0504_0100_0100,
                0x0d0c_0d0c_0908_0908,
                0x0504_0504_0100_0100,
            );
            [_mm256_shuffle_epi8(x[0], both), _mm256_shuffle_epi8(x[1], both)]
        })
    }

    #[inline(always)]
    fn drain_scaled(self, acc: Pair<__m256i>, dots: Pair<__m256i>, scale: Pair<__m256i>) -> Pair<__m256i> {
        if VNNI { self.add_int(acc, self.mul_int(dots, scale)) } else { self.dot2(acc, dots, scale) }
    }

    #[inline(always)]
    fn dots_in_a_row(largest: u8) -> usize {
        if VNNI { usize::MAX } else { i16::MAX as usize / (2 * 128 * largest as usize) }
    }

    #[inline(always)]
    fn dot2(self, acc: Pair<__m256i>, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        instruction!([
            _mm256_add_epi32(acc[0], _mm256_madd_epi16(a[0], b[0])),
            _mm256_add_epi32(acc[1], _mm256_madd_epi16(a[1], b[1])),
        ])
    }

    #[inline(always)]
    fn recode_q8(self, x: Pair<__m256i>) -> Pair<__m256i> {
        let bias = if VNNI { 0x8080_8080u32 as i32 } else { 0 };
        let bias = self.splat_int(bias);
        instruction!([_mm256_xor_si256(x[0], bias[0]), _mm256_xor_si256(x[1], bias[1])])
    }

    // Without VNNI, magnitudes are at most 128 as unsigned bytes, and the sign moves to the other factor, which is at
    // least -127: 2 * 128 * 127 fits into 16 bits.
    #[inline(always)]
    fn dot4_q8(self, acc: Pair<__m256i>, recoded: Pair<__m256i>, signed: Pair<__m256i>) -> Pair<__m256i> {
        if VNNI {
            return self.dot4(acc, recoded, signed);
        }
        let dots = instruction!([
            _mm256_maddubs_epi16(_mm256_abs_epi8(recoded[0]), _mm256_sign_epi8(signed[0], recoded[0])),
            _mm256_maddubs_epi16(_mm256_abs_epi8(recoded[1]), _mm256_sign_epi8(signed[1], recoded[1])),
        ]);
        let sums = self.dot2(acc, dots, self.splat_int(0x0001_0001));
        instruction!([in_order(sums[0]), in_order(sums[1])])
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        instruction!(_mm_prefetch::<_MM_HINT_T1>(address.cast()))
    }

    #[inline(always)]
    unsafe fn gather_blocks(self, base: *const u8, stride: usize) -> [Pair<__m256i>; 4] {
        // SAFETY: the caller vouches for the 16 rows, the token for the instructions.
        unsafe {
            let low = transpose_8_rows(base, stride);
            let high = transpose_8_rows(base.add(8 * stride), stride);
            [[low[0], high[0]], [low[1], high[1]], [low[2], high[2]], [low[3], high[3]]]
        }
    }

    #[inline(always)]
    unsafe fn gather_dwords(self, base: *const u8, stride: usize) -> Pair<__m256i> {
        // SAFETY: the caller vouches for the 16 rows, the token for the instructions.
        unsafe {
            let at = |row: usize| base.add(row * stride).cast::<i32>().read_unaligned();
            [
                _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)),
                _mm256_setr_epi32(at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn gather_halves(self, base: *const u8, stride: usize) -> Pair<__m256> {
        // SAFETY: the caller vouches for the 16 rows, the token for the instructions.
        unsafe {
            let at = |row: usize| base.add(row * stride).cast::<i16>().read_unaligned();
            [
                _mm256_cvtph_ps(_mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))),
                _mm256_cvtph_ps(_mm_setr_epi16(at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15))),
            ]
        }
    }
}

/// The same vector. The compiler cannot look through, so it adds integers in the order written, in which the operands of
/// a tile fit into the registers; left alone it makes trees of the sums, whose operands do not.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(mut x: __m256i) -> __m256i {
    // SAFETY: nothing is executed.
    unsafe { std::arch::asm!("/* {} */", inout(ymm_reg) x, options(pure, nomem, nostack, preserves_flags)) };
    x
}

/// 16 bytes from each of 8 rows: lane r of vector c is the dword c of row r.
///
/// # Safety
/// The rows must be readable for 16 bytes, and the processor must have AVX2.
#[inline(always)]
unsafe fn transpose_8_rows(base: *const u8, stride: usize) -> [__m256i; 4] {
    // SAFETY: as this function demands.
    unsafe {
        let (y0, y1) = (two_rows(base, stride), two_rows(base.add(stride), stride));
        let (y2, y3) = (two_rows(base.add(2 * stride), stride), two_rows(base.add(3 * stride), stride));
        let (low01, high01) = (_mm256_unpacklo_epi32(y0, y1), _mm256_unpackhi_epi32(y0, y1));
        let (low23, high23) = (_mm256_unpacklo_epi32(y2, y3), _mm256_unpackhi_epi32(y2, y3));
        [
            _mm256_unpacklo_epi64(low01, low23),
            _mm256_unpackhi_epi64(low01, low23),
            _mm256_unpacklo_epi64(high01, high23),
            _mm256_unpackhi_epi64(high01, high23),
        ]
    }
}

/// The 16 bytes at rows 0 and 4, in the halves of a register.
///
/// # Safety
/// These rows must be readable for 16 bytes, and the processor must have AVX2.
#[inline(always)]
unsafe fn two_rows(base: *const u8, stride: usize) -> __m256i {
    // SAFETY: as this function demands.
    unsafe {
        let x = _mm256_castsi128_si256(_mm_loadu_si128(base.cast()));
        _mm256_inserti128_si256::<1>(x, _mm_loadu_si128(base.add(4 * stride).cast()))
    }
}
