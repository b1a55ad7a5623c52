//! Rows of weights as they lie in the file, 16 at a time, read side by side into the lanes of vectors.

use crate::backend::cpu::simd::vector::Simd;
use crate::quant::blocks::{self, Block};

/// Rows that are read together, one for each lane.
pub(super) const ROWS: usize = 16;

/// The same range of bytes in 16 rows at equal distances.
pub(super) struct Rows<'a> {
    bytes: &'a [u8],
    stride: usize,
    len: usize,
    /// Where the bytes lie that are wanted next, 16 times `len` of them.
    ahead: *const u8,
}

impl<'a> Rows<'a> {
    /// `len` bytes in each of 16 rows that are `stride` bytes apart; `bytes` ends with the last row's or later.
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], stride: usize, len: usize) -> Self {
        assert!(bytes.len() >= (ROWS - 1) * stride + len);
        Rows { bytes, stride, len, ahead: bytes.as_ptr() }
    }

    /// Bytes of each row.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// While these rows are read, fetches as many bytes that begin `distance` behind their first.
    ///
    /// 16 rows at a time are more streams than the processor follows by itself. Rows lie one after the other, so what
    /// the next group of rows needs is one stream.
    #[inline(always)]
    pub(super) fn prefetching(self, distance: usize) -> Self {
        Rows { ahead: self.bytes.as_ptr().wrapping_add(distance), ..self }
    }

    /// 16 bytes of each row: lane r of vector c is the dword c of row r.
    #[inline(always)]
    pub(super) fn blocks<S: Simd>(&self, s: S, at: usize) -> [S::I; 4] {
        self.blocks_fetching(s, at, at)
    }

    /// The same, for a type that is not read in ascending order; of what is wanted next, the bytes that stand for those from `fetched` on.
    #[inline(always)]
    pub(super) fn blocks_fetching<S: Simd>(&self, s: S, at: usize, fetched: usize) -> [S::I; 4] {
        self.fetch_blocks(s, at, fetched);
        // SAFETY: every row has `len` readable bytes, and the range lies inside them.
        unsafe { s.gather_blocks(self.bytes.as_ptr().add(at), self.stride) }
    }

    /// The same as [`Simd::dot_rows`] takes them.
    #[inline(always)]
    pub(super) fn in_rows<S: Simd>(&self, s: S, at: usize, fetched: usize) -> [S::I; 4] {
        self.fetch_blocks(s, at, fetched);
        // SAFETY: every row has `len` readable bytes, and the range lies inside them.
        unsafe { s.gather_rows(self.bytes.as_ptr().add(at), self.stride) }
    }

    /// The same as [`Simd::dot_pair`] takes them.
    #[inline(always)]
    pub(super) fn in_pairs<S: Simd>(&self, s: S, at: usize, fetched: usize) -> [S::I; 4] {
        self.fetch_blocks(s, at, fetched);
        // SAFETY: every row has `len` readable bytes, and the range lies inside them.
        unsafe { s.gather_pairs(self.bytes.as_ptr().add(at), self.stride) }
    }

    /// Checks that 16 bytes of each row can be read at `at`, and fetches.
    #[inline(always)]
    fn fetch_blocks<S: Simd>(&self, s: S, at: usize, fetched: usize) {
        assert!(at + 16 <= self.len);
        for line in 0..4 {
            s.prefetch(self.ahead.wrapping_add(ROWS * fetched + 64 * line));
        }
    }

    /// The storage block at byte `at` of row `row`.
    #[inline(always)]
    pub(super) fn stored<S: Simd, B: Block>(&self, s: S, row: usize, at: usize) -> &B {
        let bytes = size_of::<B>();
        for line in (0..bytes).step_by(64) {
            s.prefetch(self.ahead.wrapping_add(ROWS * at + row * bytes + line));
        }
        &blocks::view(&self.bytes[row * self.stride + at..][..bytes])[0]
    }

    /// 4 bytes of each row.
    #[inline(always)]
    pub(super) fn dwords<S: Simd>(&self, s: S, at: usize) -> S::I {
        assert!(at + 4 <= self.len);
        s.prefetch(self.ahead.wrapping_add(ROWS * at));
        // SAFETY: every row has `len` readable bytes, and the range lies inside them.
        unsafe { s.gather_dwords(self.bytes.as_ptr().add(at), self.stride) }
    }

    /// A half-precision number of each row.
    #[inline(always)]
    pub(super) fn halves<S: Simd>(&self, s: S, at: usize) -> S::F {
        assert!(at + 2 <= self.len);
        s.prefetch(self.ahead.wrapping_add(ROWS * at));
        // SAFETY: every row has `len` readable bytes, and the range lies inside them.
        unsafe { s.gather_halves(self.bytes.as_ptr().add(at), self.stride) }
    }
}
