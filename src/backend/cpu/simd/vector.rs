//! The vector type over which every kernel is written once, and the bridge to the instruction sets.
//!
//! A vector has 16 lanes of 32 bits, on every instruction set: one AVX-512 register, two AVX registers, or a plain
//! array. So a sum that is kept in lanes has the same order everywhere, and results are equal bit for bit. A value of
//! a type that implements [`Simd`] is proof that the processor has the instruction set; hence the operations are safe.
//!
//! Kernels are inlined into one function per instruction set ([`Simd::run`]), the only place where the compiler is
//! told to use it. Everything between that function and the operations must be `#[inline(always)]` and free of
//! closures, or single operations become calls.

/// A computation over vectors of any instruction set.
pub(super) trait Kernel {
    /// What it returns.
    type Output;
    /// Whether it multiplies bytes ([`Simd::dot4`] and the like), or calls kernels that do.
    const BYTE_PRODUCTS: bool = false;
    /// Whether it multiplies BF16 pairs ([`Simd::dot_pairs`]), or calls kernels that do.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "AVX-512 alone is compiled in two ways for it"))]
    const PAIR_PRODUCTS: bool = false;

    /// Computes it; implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// An instruction set: 16 lanes of f32 or of 32 integer bits, which can also be seen as 64 bytes.
///
/// The operations mean the same bit for bit on each, NaN payloads apart.
pub(super) trait Simd: Copy {
    /// 16 lanes of f32.
    type F: Copy;
    /// 16 lanes of 32 bits.
    type I: Copy;
    /// Sums of byte products on the way: 16 lanes of 32 bits, or of pairs of 16 bits.
    type Dots: Copy;
    /// Whether registers suffice for large tiles (32 vectors) or only for small ones (8 vectors).
    const LARGE_TILES: bool;
    /// What [`Simd::recode_q8`] adds to each signed byte.
    const Q8_BIAS: i16;
    /// Whether [`Simd::dot_pairs`] is an instruction.
    const HAS_PAIRS: bool = false;
    /// Whether a lone activation row meets weights by [`Simd::dot_rows`], which then needs no transposing, or by [`Simd::dot4`].
    const BY_ROW: bool = false;
    /// Whether panels are multiplied with pairs of activation rows by [`Simd::dot_pair`], or with each row by [`Simd::dot4`].
    const BY_PAIR: bool = false;

    /// Runs a kernel compiled for this instruction set. One that has no use for the products that only some of its processors have is compiled once,
    /// without them.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Lanes from memory.
    fn load(self, x: &[f32; 16]) -> Self::F;
    /// Lanes to memory.
    fn store(self, x: Self::F, out: &mut [f32; 16]);
    /// Half precision to single, exact.
    fn load_half(self, x: &[u8; 32]) -> Self::F;
    /// Single precision to half, nearest even.
    fn store_half(self, x: Self::F, out: &mut [u16; 16]);
    /// `a + b`
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The same of one number each.
    #[inline(always)]
    fn fma_one(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    /// `if a > b { a } else { b }`: `b` if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: `b` if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a > b { x } else { y }`: `y` if `a` or `b` is NaN.
    fn pick(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Sum of the lanes: lane i and i + 8, then i and i + 4, i and i + 2, the two left.
    fn sum(self, x: Self::F) -> f32;
    /// Nearest integers, ties to even. Out of range: any value.
    fn round(self, x: Self::F) -> Self::I;
    /// Integers to the nearest f32.
    fn to_float(self, x: Self::I) -> Self::F;
    /// The low 16 bits of each lane as half precision.
    fn half_to_float(self, x: Self::I) -> Self::F;
    /// The same bits as f32.
    fn as_float(self, x: Self::I) -> Self::F;
    /// The same bits as integers.
    fn as_int(self, x: Self::F) -> Self::I;

    /// All lanes `x`.
    fn splat_int(self, x: i32) -> Self::I;
    /// All lanes the four bytes `x`.
    fn splat_bytes(self, x: &[i8; 4]) -> Self::I;
    /// Lanes from memory.
    fn load_bytes(self, x: &[u8; 64]) -> Self::I;
    /// Lanes to memory.
    fn store_bytes(self, x: Self::I, out: &mut [u8; 64]);
    /// 16-bit elements, extended by zeros.
    fn load_words(self, x: &[u8; 32]) -> Self::I;
    /// The low 16 bits of each lane.
    fn store_words(self, x: Self::I, out: &mut [u16; 16]);
    /// Signed bytes.
    fn load_low_bytes(self, x: &[u8; 16]) -> Self::I;
    /// The low byte of each lane.
    fn store_low_bytes(self, x: Self::I, out: &mut [i8; 16]);
    /// `a & b`
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a | b`
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a + b`, wrapping.
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// Low 32 bits of `a * b`.
    fn mul_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// Signed maximum.
    fn max_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shift to the left by `bits` < 32.
    fn shl(self, a: Self::I, bits: u32) -> Self::I;
    /// Logical shift to the right by `bits` < 32.
    fn shr(self, a: Self::I, bits: u32) -> Self::I;
    /// Arithmetic shift to the right by `bits` < 32.
    fn sar(self, a: Self::I, bits: u32) -> Self::I;
    /// The bits `mask` of each byte shifted to the right by `bits`; none of them comes from another byte.
    #[inline(always)]
    fn byte_bits(self, a: Self::I, bits: u32, mask: u8) -> Self::I {
        self.and(self.shr(a, bits), self.splat_int(i32::from_le_bytes([mask; 4])))
    }
    /// Each byte replaced by the byte of that number, below 16, of a table that stands in every quarter of `table`.
    fn lookup(self, table: Self::I, index: Self::I) -> Self::I;
    /// Per lane: `acc` plus the dot product of two pairs of signed 16-bit integers.
    fn dot2(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Per lane: `acc` plus the dot product of four unsigned bytes and four signed bytes. Exact while the unsigned bytes
    /// are at most 127, and [`Simd::drain`] follows often enough.
    fn dot4(self, acc: Self::Dots, unsigned: Self::I, signed: Self::I) -> Self::Dots;
    /// No products yet.
    fn no_dots(self) -> Self::Dots;
    /// Per lane: the sum of the products, which number at most [`Simd::dots_in_a_row`].
    fn drain(self, dots: Self::Dots) -> Self::I;
    /// Signed 16-bit numbers to the form that [`Simd::drain_scaled`] takes.
    fn recode_scale(self, x: Self::I) -> Self::I;
    /// Per lane: `acc` plus the sum of the products, as [`Simd::drain`] gives it, times the recoded scale.
    fn drain_scaled(self, acc: Self::I, dots: Self::Dots, scale: Self::I) -> Self::I;
    /// How often [`Simd::dot4`] may follow itself when the unsigned bytes are at most `largest`.
    fn dots_in_a_row(largest: u8) -> usize;
    /// Signed bytes to the form that [`Simd::dot4_q8`] takes: each plus [`Simd::Q8_BIAS`], which its caller subtracts.
    fn recode_q8(self, x: Self::I) -> Self::I;
    /// Per lane: `acc` plus the dot product of four recoded bytes and four signed bytes, none of these -128. Exact.
    fn dot4_q8(self, acc: Self::I, recoded: Self::I, signed: Self::I) -> Self::I;

    /// Adds the products of 16 bytes of each of 16 rows, arranged as [`Simd::gather_rows`] has them, and the same 16 signed bytes. The rows' are
    /// recoded, or unsigned and at most 127; none of the others is -128. Exact.
    #[inline(always)]
    fn dot_rows(self, acc: [Self::I; 4], rows: [Self::I; 4], signed: &[i8; 16]) -> [Self::I; 4] {
        let mut out = acc;
        for (quad, x) in signed.as_chunks().0.iter().enumerate() {
            out[quad] = self.dot4_q8(acc[quad], rows[quad], self.splat_bytes(x));
        }
        out
    }
    /// The sums that [`Simd::dot_rows`] has begun, a row in each lane.
    #[inline(always)]
    fn sum_rows(self, dots: [Self::I; 4]) -> Self::I {
        self.add_int(self.add_int(dots[0], dots[1]), self.add_int(dots[2], dots[3]))
    }

    /// Adds the products of 16 bytes of each of 16 rows, arranged as [`Simd::gather_pairs`] has them, and the same 16 signed bytes of two activation
    /// rows. Bytes are as for [`Simd::dot_rows`]. Exact.
    #[inline(always)]
    fn dot_pair(self, acc: [Self::I; 2], rows: [Self::I; 4], signed: [&[i8; 16]; 2]) -> [Self::I; 2] {
        let mut out = acc;
        for t in 0..2 {
            for (quad, x) in signed[t].as_chunks().0.iter().enumerate() {
                out[t] = self.dot4_q8(out[t], rows[quad], self.splat_bytes(x));
            }
        }
        out
    }
    /// The sums that [`Simd::dot_pair`] has begun, of each activation row, a weight row in each lane.
    #[inline(always)]
    fn sum_pair(self, dots: [Self::I; 2]) -> [Self::I; 2] {
        dots
    }

    /// Per lane: `acc` plus the products of two pairs of BF16 numbers: first of the upper halves of a lane, then of the lower ones, each rounded.
    #[inline(always)]
    fn dot_pairs(self, acc: Self::F, a: Self::I, b: Self::I) -> Self::F {
        two_products(self, acc, a, b)
    }

    /// Asks for the cache line of an address, which need not be valid, in the second-level cache. What is wanted that much later would not stay in
    /// the first-level one, whose few outstanding requests would be all that is under way.
    fn prefetch(self, address: *const u8);

    /// 16 bytes from each of 16 rows, transposed: lane r of vector c is the dword c of row r.
    ///
    /// # Safety
    /// `base + r * stride` must be readable for 16 bytes for every r < 16.
    unsafe fn gather_blocks(self, base: *const u8, stride: usize) -> [Self::I; 4];
    /// 16 bytes from each of 16 rows, as [`Simd::dot_rows`] takes them.
    ///
    /// # Safety
    /// `base + r * stride` must be readable for 16 bytes for every r < 16.
    #[inline(always)]
    unsafe fn gather_rows(self, base: *const u8, stride: usize) -> [Self::I; 4] {
        // SAFETY: as this function demands.
        self.arrange_rows(unsafe { self.gather_blocks(base, stride) })
    }
    /// Such bytes from their transposed form, as [`Simd::gather_blocks`] has it.
    #[inline(always)]
    fn arrange_rows(self, transposed: [Self::I; 4]) -> [Self::I; 4] {
        transposed
    }
    /// 16 bytes from each of 16 rows, as [`Simd::dot_pair`] takes them.
    ///
    /// # Safety
    /// `base + r * stride` must be readable for 16 bytes for every r < 16.
    #[inline(always)]
    unsafe fn gather_pairs(self, base: *const u8, stride: usize) -> [Self::I; 4] {
        // SAFETY: as this function demands.
        self.arrange_pairs(unsafe { self.gather_blocks(base, stride) })
    }
    /// Such bytes from their transposed form.
    #[inline(always)]
    fn arrange_pairs(self, transposed: [Self::I; 4]) -> [Self::I; 4] {
        transposed
    }
    /// 4 bytes from each of 16 rows.
    ///
    /// # Safety
    /// `base + r * stride` must be readable for 4 bytes for every r < 16.
    unsafe fn gather_dwords(self, base: *const u8, stride: usize) -> Self::I;
    /// A half-precision number from each of 16 rows, as f32.
    ///
    /// # Safety
    /// `base + r * stride` must be readable for 2 bytes for every r < 16.
    unsafe fn gather_halves(self, base: *const u8, stride: usize) -> Self::F;
}

/// [`Simd::dot_pairs`] where there is no instruction for it.
#[inline(always)]
pub(super) fn two_products<S: Simd>(s: S, acc: S::F, a: S::I, b: S::I) -> S::F {
    let upper = s.splat_int(0xffff_0000_u32 as i32);
    let acc = s.fma(s.as_float(s.and(a, upper)), s.as_float(s.and(b, upper)), acc);
    s.fma(s.as_float(s.shl(a, 16)), s.as_float(s.shl(b, 16)), acc)
}
