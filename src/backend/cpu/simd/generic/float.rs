//! Products with float weights, and with weights of any other type decoded to floats a chunk at a time.

use super::load_part;
use crate::backend::cpu::pool::TileMut;
use crate::backend::cpu::simd::operand::Matrix;
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use crate::quant::{DType, reference};
use std::ops::Range;

/// A stored float type.
pub(super) trait Element {
    /// 16 elements as bytes.
    type Chunk;
    /// Whole chunks, and the bytes left.
    fn chunks(bytes: &[u8]) -> (&[Self::Chunk], &[u8]);
    /// 16 elements.
    fn load<S: Simd>(s: S, chunk: &Self::Chunk) -> S::F;
    /// Fewer than 16 elements, filled with zeros.
    fn load_part<S: Simd>(s: S, bytes: &[u8]) -> S::F;
}

pub(super) struct F32;
pub(super) struct F16;
struct BF16;

impl Element for F32 {
    type Chunk = [u8; 64];

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[[u8; 64]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &[u8; 64]) -> S::F {
        s.as_float(s.load_bytes(chunk))
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        Self::load(s, &padded(bytes))
    }
}

impl Element for F16 {
    type Chunk = [u8; 32];

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[[u8; 32]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &[u8; 32]) -> S::F {
        s.load_half(chunk)
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        Self::load(s, &padded(bytes))
    }
}

impl Element for BF16 {
    type Chunk = [u8; 32];

    #[inline(always)]
    fn chunks(bytes: &[u8]) -> (&[[u8; 32]], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, chunk: &[u8; 32]) -> S::F {
        s.as_float(s.shl(s.load_words(chunk), 16))
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        Self::load(s, &padded(bytes))
    }
}

#[inline(always)]
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

/// `out[t][i]` = dot product of row t of `x` and row `out.first_col() + i` of `w`.
pub(in super::super) struct Product<'a, 'w, 'o> {
    pub w: &'a Matrix<'w>,
    pub x: &'a [f32],
    pub out: &'a mut TileMut<'o, f32>,
}

impl Kernel for Product<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.w.dtype() {
            DType::F32 => self.stored::<S, F32>(s),
            DType::F16 => self.stored::<S, F16>(s),
            DType::BF16 => self.stored::<S, BF16>(s),
            _ => self.decoded(s),
        }
    }
}

impl Product<'_, '_, '_> {
    #[inline(always)]
    fn stored<S: Simd, E: Element>(mut self, s: S) {
        let tokens = self.out.rows();
        // So many activation rows stay in the second-level cache while all weights pass by.
        for first in (0..tokens).step_by(TOKENS) {
            let tokens = first..tokens.min(first + TOKENS);
            if !S::LARGE_TILES {
                self.tiles::<S, E, 2, 2>(s, 0, tokens);
                continue;
            }
            let is_prompt = tokens.len() >= PROMPT_TOKENS && self.w.cols().is_multiple_of(16);
            let done = if is_prompt { self.decoded_tiles::<S, E>(s, tokens.clone()) } else { 0 };
            self.tiles::<S, E, 4, 4>(s, done, tokens);
        }
    }

    /// The outputs of the weight rows from `first` on and some activation rows, in tiles of `R` x `T`.
    #[inline(always)]
    fn tiles<S: Simd, E: Element, const R: usize, const T: usize>(&mut self, s: S, first: usize, tokens: Range<usize>) {
        let rows = self.out.cols();
        let (full_rows, full_tokens) = (first + (rows - first) / R * R, tokens.start + tokens.len() / T * T);
        self.block::<S, E, R, T>(s, first..full_rows, tokens.start..full_tokens);
        self.block::<S, E, R, 1>(s, first..full_rows, full_tokens..tokens.end);
        self.block::<S, E, 1, T>(s, full_rows..rows, tokens.start..full_tokens);
        self.block::<S, E, 1, 1>(s, full_rows..rows, full_tokens..tokens.end);
    }

    /// The outputs of some weight rows (a multiple of `R`) and activation rows (a multiple of `T`).
    #[inline(always)]
    fn block<S: Simd, E: Element, const R: usize, const T: usize>(
        &mut self,
        s: S,
        rows: Range<usize>,
        tokens: Range<usize>,
    ) {
        let (cols, row_bytes) = (self.w.cols(), self.w.row_bytes());
        for row in rows.step_by(R) {
            let bytes = self.w.bytes_of_rows(self.out.first_col() + row, R);
            let w: [&[u8]; R] = std::array::from_fn(|r| &bytes[r * row_bytes..][..row_bytes]);
            for token in tokens.clone().step_by(T) {
                let x: [&[f32]; T] = std::array::from_fn(|t| &self.x[(token + t) * cols..][..cols]);
                // The first activations to meet these rows fetch the next: R rows are too many streams for the processor.
                let ahead = if token == tokens.start { R * row_bytes } else { 0 };
                let lanes = dot_lanes::<S, E, R, T>(s, w, x, ahead);
                for t in 0..T {
                    for r in 0..R {
                        self.out.row_mut(token + t)[row + r] = s.sum(lanes[r][t]);
                    }
                }
            }
        }
    }

    /// The outputs of the weight rows, as many as are whole tiles, and some activation rows; the number of those weight rows. A stretch of
    /// the weights is made f32 once for all activations, and sums wait in memory between two stretches.
    #[inline(always)]
    fn decoded_tiles<S: Simd, E: Element>(&mut self, s: S, tokens: Range<usize>) -> usize {
        let (cols, row_bytes) = (self.w.cols(), self.w.row_bytes());
        let whole = self.out.cols() / DECODED_ROWS * DECODED_ROWS;
        let mut weights = [[[0.0; 16]; CHUNK / 16]; DECODED_ROWS];
        let full = tokens.len() / DECODED_TOKENS * DECODED_TOKENS;
        for row in (0..whole).step_by(DECODED_ROWS) {
            let mut lanes = [[[0.0; 16]; DECODED_ROWS]; TOKENS];
            let bytes = self.w.bytes_of_rows(self.out.first_col() + row, DECODED_ROWS);
            for first in (0..cols).step_by(CHUNK) {
                let count = CHUNK.min(cols - first) / 16;
                for (r, weights) in weights.iter_mut().enumerate() {
                    let chunks = E::chunks(&bytes[r * row_bytes..][..row_bytes]).0;
                    for (weights, chunk) in weights[..count].iter_mut().zip(&chunks[first / 16..]) {
                        s.store(E::load(s, chunk), weights);
                    }
                }
                let x = |token: usize| &self.x[(tokens.start + token) * cols + first..][..16 * count];
                for token in (0..full).step_by(DECODED_TOKENS) {
                    let x: [&[f32]; DECODED_TOKENS] = std::array::from_fn(|t| x(token + t));
                    add_decoded(s, &weights, x, lanes[token..].first_chunk_mut().expect("so many tokens are left"));
                }
                for token in full..tokens.len() {
                    add_decoded(s, &weights, [x(token)], lanes[token..].first_chunk_mut().expect("a token is left"));
                }
            }
            for (token, lanes) in lanes[..tokens.len()].iter().enumerate() {
                for (r, lanes) in lanes.iter().enumerate() {
                    self.out.row_mut(tokens.start + token)[row + r] = s.sum(s.load(lanes));
                }
            }
        }
        whole
    }

    #[inline(always)]
    fn decoded<S: Simd>(self, s: S) {
        let tokens = self.out.rows();
        for first in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - first);
            let x = &self.x[first * self.w.cols()..][..count * self.w.cols()];
            for row in 0..self.out.cols() {
                let dots = decoded_row(s, self.w, self.out.first_col() + row, x, count);
                for (t, dot) in dots[..count].iter().enumerate() {
                    self.out.row_mut(first + t)[row] = *dot;
                }
            }
        }
    }
}

/// Activation rows that are taken together; a chunk of a weight row is decoded once for all of them.
const TOKENS: usize = 64;
/// Values in a chunk: whole blocks of every type.
const CHUNK: usize = 256;
/// Fewest activation rows for which decoding weights first pays.
const PROMPT_TOKENS: usize = 8;
/// Weight rows and activation rows of a tile then: their sums and operands fit into 32 registers.
const DECODED_ROWS: usize = 8;
const DECODED_TOKENS: usize = 3;

/// Adds the products of a stretch of weights and of as many activations of each row, 16 lanes each.
#[inline(always)]
fn add_decoded<S: Simd, const T: usize>(
    s: S,
    weights: &[[[f32; 16]; CHUNK / 16]; DECODED_ROWS],
    x: [&[f32]; T],
    lanes: &mut [[[f32; 16]; DECODED_ROWS]; T],
) {
    let mut acc = [[s.splat(0.0); DECODED_ROWS]; T];
    let mut chunks: [&[[f32; 16]]; T] = [&[]; T];
    for t in 0..T {
        chunks[t] = x[t].as_chunks().0;
        for r in 0..DECODED_ROWS {
            acc[t][r] = s.load(&lanes[t][r]);
        }
    }
    for i in 0..chunks[0].len().min(CHUNK / 16) {
        let mut x = [s.splat(0.0); T];
        for t in 0..T {
            x[t] = s.load(&chunks[t][i]);
        }
        for r in 0..DECODED_ROWS {
            let w = s.load(&weights[r][i]);
            for t in 0..T {
                acc[t][r] = s.fma(w, x[t], acc[t][r]);
            }
        }
    }
    for t in 0..T {
        for r in 0..DECODED_ROWS {
            s.store(acc[t][r], &mut lanes[t][r]);
        }
    }
}

/// Dot products of one weight row with up to [`TOKENS`] activation rows.
#[inline(always)]
fn decoded_row<S: Simd>(s: S, w: &Matrix, row: usize, x: &[f32], count: usize) -> [f32; TOKENS] {
    let cols = w.cols();
    let chunk_bytes = CHUNK / w.dtype().block_len() * w.dtype().block_bytes();
    let mut lanes = [[0.0; 16]; TOKENS];
    let mut values = [0.0; CHUNK];
    for (i, bytes) in w.bytes_of_rows(row, 1).chunks(chunk_bytes).enumerate() {
        let values = &mut values[..CHUNK.min(cols - i * CHUNK)];
        reference::decode(w.dtype(), bytes, values);
        for (t, lanes) in lanes[..count].iter_mut().enumerate() {
            let x = &x[t * cols + i * CHUNK..][..values.len()];
            let mut acc = s.load(lanes);
            for (w, x) in values.as_chunks::<16>().0.iter().zip(x.as_chunks::<16>().0) {
                acc = s.fma(s.load(w), s.load(x), acc);
            }
            s.store(acc, lanes);
        }
    }
    let mut dots = [0.0; TOKENS];
    for (dot, lanes) in dots[..count].iter_mut().zip(&lanes) {
        *dot = s.sum(s.load(lanes));
    }
    dots
}

/// Dot products of `R` stored rows with `T` float rows of the same length, before the lanes are added. Unless `ahead` is
/// zero, the bytes so far behind the stored rows are fetched meanwhile.
#[inline(always)]
pub(super) fn dot_lanes<S: Simd, E: Element, const R: usize, const T: usize>(
    s: S,
    w: [&[u8]; R],
    x: [&[f32]; T],
    ahead: usize,
) -> [[S::F; T]; R] {
    let chunks = x[0].len() / 16;
    let w_chunks: [&[E::Chunk]; R] = std::array::from_fn(|r| &E::chunks(w[r]).0[..chunks]);
    let x_chunks: [&[[f32; 16]]; T] = std::array::from_fn(|t| &x[t].as_chunks().0[..chunks]);
    let mut lanes = [[s.splat(0.0); T]; R];
    for i in 0..chunks {
        let mut x = [s.splat(0.0); T];
        for t in 0..T {
            x[t] = s.load(&x_chunks[t][i]);
        }
        for r in 0..R {
            let chunk = &w_chunks[r][i];
            if ahead > 0 {
                s.prefetch(std::ptr::from_ref(chunk).cast::<u8>().wrapping_add(ahead));
            }
            let w = E::load(s, chunk);
            for t in 0..T {
                lanes[r][t] = s.fma(w, x[t], lanes[r][t]);
            }
        }
    }
    if x[0].len().is_multiple_of(16) {
        return lanes;
    }
    for r in 0..R {
        let w = E::load_part(s, E::chunks(w[r]).1);
        for t in 0..T {
            let x = load_part(s, x[t].as_chunks::<16>().1);
            lanes[r][t] = s.fma(w, x, lanes[r][t]);
        }
    }
    lanes
}
