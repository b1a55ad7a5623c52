//! 16 lanes in one AVX-512 register (F, BW, VL, DQ, VNNI), with or without its products of BF16 pairs. Only operations; the kernels are in `generic`.

use super::vector::{Kernel, Simd, two_products};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Proof that the processor has the instruction set, BF16 included if so named.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const BF16: bool>(());

impl<const BF16: bool> Avx512<BF16> {
    /// # Safety
    /// The value may be used only on a processor for which [`Avx512::detected`] is true.
    pub(super) const unsafe fn new() -> Self {
        Avx512(())
    }

    /// Whether this processor and system have it.
    pub(super) fn detected() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && (!BF16 || is_x86_feature_detected!("avx512bf16"))
            && super::avx2::Avx2::<false>::detected()
    }
}

/// The operations below are single instructions; this is the one place that vouches for all of them.
macro_rules! instruction {
    ($call:expr) => {
        // SAFETY: `self` exists only on a processor that has the instruction, and memory is passed by reference.
        unsafe { $call }
    };
}

impl<const BF16: bool> Simd for Avx512<BF16> {
    type F = __m512;
    type I = __m512i;
    type Dots = __m512i;
    const LARGE_TILES: bool = true;
    const Q8_BIAS: i16 = 128;
    const HAS_PAIRS: bool = BF16;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn compiled<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
        fn compiled_with_bf16<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // SAFETY: `self` exists only on a processor that has these features.
        unsafe {
            if BF16 && K::PAIR_PRODUCTS {
                compiled_with_bf16(self, kernel)
            } else {
                compiled(Avx512::<false>(()), kernel)
            }
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        instruction!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> __m512 {
        instruction!(_mm512_loadu_ps(x.as_ptr()))
    }

    #[inline(always)]
    fn store(self, x: __m512, out: &mut [f32; 16]) {
        instruction!(_mm512_storeu_ps(out.as_mut_ptr(), x))
    }

    #[inline(always)]
    fn load_half(self, x: &[u8; 32]) -> __m512 {
        instruction!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }

    #[inline(always)]
    fn store_half(self, x: __m512, out: &mut [u16; 16]) {
        instruction!(_mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        instruction!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn pick(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        instruction!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), y, x))
    }

    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        instruction!({
            let x8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps::<1>(x8));
            let x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
            _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps::<1>(x2, x2)))
        })
    }

    #[inline(always)]
    fn round(self, x: __m512) -> __m512i {
        instruction!(_mm512_cvtps_epi32(x))
    }

    #[inline(always)]
    fn to_float(self, x: __m512i) -> __m512 {
        instruction!(_mm512_cvtepi32_ps(x))
    }

    #[inline(always)]
    fn half_to_float(self, x: __m512i) -> __m512 {
        instruction!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)))
    }

    #[inline(always)]
    fn as_float(self, x: __m512i) -> __m512 {
        instruction!(_mm512_castsi512_ps(x))
    }

    #[inline(always)]
    fn as_int(self, x: __m512) -> __m512i {
        instruction!(_mm512_castps_si512(x))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        instruction!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn splat_bytes(self, x: &[i8; 4]) -> __m512i {
        instruction!(_mm512_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()))
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> __m512i {
        instruction!(_mm512_loadu_si512(x.as_ptr().cast()))
    }

    #[inline(always)]
    fn store_bytes(self, x: __m512i, out: &mut [u8; 64]) {
        instruction!(_mm512_storeu_si512(out.as_mut_ptr().cast(), x))
    }

    #[inline(always)]
    fn load_words(self, x: &[u8; 32]) -> __m512i {
        instruction!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast())))
    }

    #[inline(always)]
    fn store_words(self, x: __m512i, out: &mut [u16; 16]) {
        instruction!(_mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(x)))
    }

    #[inline(always)]
    fn load_low_bytes(self, x: &[u8; 16]) -> __m512i {
        instruction!(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
    }

    #[inline(always)]
    fn store_low_bytes(self, x: __m512i, out: &mut [i8; 16]) {
        instruction!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x)))
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn add_int(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn mul_int(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(_mm512_mullo_epi32(a, b))
    }

    #[inline(always)]
    fn max_int(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(_mm512_max_epi32(a, b))
    }

    #[inline(always)]
    fn shl(self, a: __m512i, bits: u32) -> __m512i {
        instruction!(_mm512_sllv_epi32(a, _mm512_set1_epi32(bits as i32)))
    }

    #[inline(always)]
    fn shr(self, a: __m512i, bits: u32) -> __m512i {
        instruction!(_mm512_srlv_epi32(a, _mm512_set1_epi32(bits as i32)))
    }

    #[inline(always)]
    fn sar(self, a: __m512i, bits: u32) -> __m512i {
        instruction!(_mm512_srav_epi32(a, _mm512_set1_epi32(bits as i32)))
    }

    #[inline(always)]
    fn lookup(self, table: __m512i, index: __m512i) -> __m512i {
        instruction!(_mm512_shuffle_epi8(table, index))
    }

    #[inline(always)]
    fn dot4(self, acc: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
        instruction!(_mm512_dpbusd_epi32(acc, unsigned, signed))
    }

    #[inline(always)]
    fn no_dots(self) -> __m512i {
        self.splat_int(0)
    }

    #[inline(always)]
    fn drain(self, dots: __m512i) -> __m512i {
        dots
    }

    #[inline(always)]
    fn recode_scale(self, x: __m512i) -> __m512i {
        x
    }

    #[inline(always)]
    fn drain_scaled(self, acc: __m512i, dots: __m512i, scale: __m512i) -> __m512i {
        self.add_int(acc, self.mul_int(dots, scale))
    }

    #[inline(always)]
    fn dots_in_a_row(_: u8) -> usize {
        usize::MAX
    }

    #[inline(always)]
    fn dot2(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        instruction!(_mm512_dpwssd_epi32(acc, a, b))
    }

    #[inline(always)]
    fn recode_q8(self, x: __m512i) -> __m512i {
        instruction!(_mm512_xor_si512(x, _mm512_set1_epi8(-128)))
    }

    #[inline(always)]
    fn dot4_q8(self, acc: __m512i, recoded: __m512i, signed: __m512i) -> __m512i {
        instruction!(_mm512_dpbusd_epi32(acc, recoded, signed))
    }

    // The instruction takes numbers below 2^-126 for zero.
    #[inline(always)]
    fn dot_pairs(self, acc: __m512, a: __m512i, b: __m512i) -> __m512 {
        if !BF16 {
            return two_products(self, acc, a, b);
        }
        // SAFETY: the processor has the instruction, and the types are 64 plain bytes.
        unsafe { _mm512_dpbf16_ps(acc, transmute::<__m512i, __m512bh>(a), transmute::<__m512i, __m512bh>(b)) }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        instruction!(_mm_prefetch::<_MM_HINT_T1>(address.cast()))
    }

    #[inline(always)]
    unsafe fn gather_blocks(self, base: *const u8, stride: usize) -> [__m512i; 4] {
        // SAFETY: the caller vouches for the 16 rows, the token for the instructions.
        unsafe {
            let (z0, z1) = (four_rows(base, stride), four_rows(base.add(stride), stride));
            let (z2, z3) = (four_rows(base.add(2 * stride), stride), four_rows(base.add(3 * stride), stride));
            let (low01, high01) = (_mm512_unpacklo_epi32(z0, z1), _mm512_unpackhi_epi32(z0, z1));
            let (low23, high23) = (_mm512_unpacklo_epi32(z2, z3), _mm512_unpackhi_epi32(z2, z3));
            [
                _mm512_unpacklo_epi64(low01, low23),
                _mm512_unpackhi_epi64(low01, low23),
                _mm512_unpacklo_epi64(high01, high23),
                _mm512_unpackhi_epi64(high01, high23),
            ]
        }
    }

    #[inline(always)]
    unsafe fn gather_dwords(self, base: *const u8, stride: usize) -> __m512i {
        // SAFETY: the caller vouches for the 16 rows, the token for the instructions.
        unsafe {
            let at = |row: usize| base.add(row * stride).cast::<i32>().read_unaligned();
            _mm512_setr_epi32(
                at(0),
                at(1),
                at(2),
                at(3),
                at(4),
                at(5),
                at(6),
                at(7),
                at(8),
                at(9),
                at(10),
                at(11),
                at(12),
                at(13),
                at(14),
                at(15),
            )
        }
    }

    #[inline(always)]
    unsafe fn gather_halves(self, base: *const u8, stride: usize) -> __m512 {
        // SAFETY: the caller vouches for the 16 rows, the token for the instructions.
        unsafe {
            let at = |row: usize| base.add(row * stride).cast::<i16>().read_unaligned();
            _mm512_cvtph_ps(_mm256_setr_epi16(
                at(0),
                at(1),
                at(2),
                at(3),
                at(4),
                at(5),
                at(6),
                at(7),
                at(8),
                at(9),
                at(10),
                at(11),
                at(12),
                at(13),
                at(14),
                at(15),
            ))
        }
    }
}

/// The 16 bytes at rows 0, 4, 8 and 12, in the four quarters of a register.
///
/// # Safety
/// These rows must be readable for 16 bytes, and the processor must have AVX-512 F.
#[inline(always)]
unsafe fn four_rows(base: *const u8, stride: usize) -> __m512i {
    // SAFETY: as this function demands.
    unsafe {
        let x = _mm512_castsi128_si512(_mm_loadu_si128(base.cast()));
        let x = _mm512_inserti32x4::<1>(x, _mm_loadu_si128(base.add(4 * stride).cast()));
        let x = _mm512_inserti32x4::<2>(x, _mm_loadu_si128(base.add(8 * stride).cast()));
        _mm512_inserti32x4::<3>(x, _mm_loadu_si128(base.add(12 * stride).cast()))
    }
}
