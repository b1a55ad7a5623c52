//! Products with float weights, and with weights of any other type decoded to floats a chunk at a time.

use super::panel::Lanes;
use super::terms::{BF16, F16, F32, Floats, Pairs, SplitPairs, Terms};
use crate::backend::cpu::pool::TileMut;
use crate::backend::cpu::simd::operand::Matrix;
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use crate::quant::{DType, reference};
use std::ops::Range;

/// `out[t][i]` = dot product of row t of `x` and row `out.first_col() + i` of `w`, of any type.
pub(in super::super) struct Product<'a, 'w, 'o> {
    pub w: &'a Matrix<'w>,
    pub x: &'a [f32],
    /// The bytes of `x`.
    pub x_bytes: &'a [u8],
    pub out: &'a mut TileMut<'o, f32>,
}

impl Kernel for Product<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let stored = Stored { w: self.w, x: self.x_bytes, out: self.out };
        match self.w.dtype() {
            DType::F32 => stored.multiply::<S, Floats<F32>>(s),
            DType::F16 => stored.multiply::<S, Floats<F16>>(s),
            DType::BF16 => stored.multiply::<S, Floats<BF16>>(s),
            _ => decoded(s, self.w, self.x, stored.out),
        }
    }
}

/// The same of BF16 weights and activations.
pub(in super::super) struct PairProduct<'a, 'w, 'o> {
    pub w: &'a Matrix<'w>,
    /// The bytes of the activations.
    pub x: &'a [u8],
    pub out: &'a mut TileMut<'o, f32>,
}

impl Kernel for PairProduct<'_, '_, '_> {
    type Output = ();
    const PAIR_PRODUCTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let stored = Stored { w: self.w, x: self.x, out: self.out };
        if S::HAS_PAIRS {
            stored.multiply::<S, Pairs>(s);
        } else if S::LARGE_TILES {
            stored.multiply::<S, SplitPairs>(s);
        } else {
            // Registers that hold a step in parts are none for sums of another activation row.
            stored.multiply_in::<S, SplitPairs, SPLIT_PANEL_ROWS, 1, 1, SPLIT_STEPS, 2>(s, TOKENS);
        }
    }
}

/// A product whose weights are floats as they are stored.
struct Stored<'a, 'w, 'o> {
    w: &'a Matrix<'w>,
    x: &'a [u8],
    out: &'a mut TileMut<'o, f32>,
}

/// Activation rows that are taken together; a chunk of a weight row is decoded once for all of them.
const TOKENS: usize = 64;
/// The same for panels, at most.
const PANEL_TOKENS: usize = 128;
/// Values in a chunk: whole blocks of every type.
const CHUNK: usize = 256;
/// Fewest activation rows for which filling panels pays.
const PROMPT_TOKENS: usize = 8;
/// Steps of a panel: with [`PANEL_ROWS`] they take half of the first-level cache.
const STEPS: usize = 32;
/// Weight rows and activation rows of a tile: their sums and operands fit into 32 registers, and a tile reads few activations, which come from
/// the second-level cache, for many weights, which come from the first.
const PANEL_ROWS: usize = 13;
const TILE_TOKENS: usize = 2;
/// What is left of the weight rows.
const LAST_ROWS: usize = 4;
/// The same for 16 registers, of which 16 values take two.
const SMALL_STEPS: usize = 128;
const SMALL_PANEL_ROWS: usize = 3;
const SPLIT_STEPS: usize = 64;
const SPLIT_PANEL_ROWS: usize = 4;

impl Stored<'_, '_, '_> {
    #[inline(always)]
    fn multiply<S: Simd, T: Terms>(self, s: S) {
        if S::LARGE_TILES {
            self.multiply_in::<S, T, PANEL_ROWS, LAST_ROWS, TILE_TOKENS, STEPS, 4>(s, PANEL_TOKENS);
        } else {
            self.multiply_in::<S, T, SMALL_PANEL_ROWS, 1, TILE_TOKENS, SMALL_STEPS, 2>(s, TOKENS);
        }
    }

    /// In panels of `R` weight rows, and of `LAST` where less is left, for tiles of `C` activation rows, and what they leave in tiles of `N` x `N`.
    /// `together` activation rows stay in the second-level cache while all weights pass by.
    #[inline(always)]
    fn multiply_in<
        S: Simd,
        T: Terms,
        const R: usize,
        const LAST: usize,
        const C: usize,
        const STEPS: usize,
        const N: usize,
    >(
        mut self,
        s: S,
        together: usize,
    ) {
        let (tokens, rows) = (self.out.rows(), self.out.cols());
        for first in (0..tokens).step_by(together) {
            let tokens = first..tokens.min(first + together);
            let mut done = 0;
            if tokens.len() >= PROMPT_TOKENS && (self.w.cols() * T::X_BYTES).is_multiple_of(64) {
                let most = rows / R * R;
                let all = most + (rows - most) / LAST * LAST;
                self.panels::<S, T, R, C, STEPS>(s, 0..most, tokens.clone());
                self.panels::<S, T, LAST, C, STEPS>(s, most..all, tokens.clone());
                done = all;
            }
            self.tiles::<S, T, N, N>(s, done, tokens);
        }
    }

    /// The outputs of the weight rows from `first` on and some activation rows, in tiles of `R` x `C`.
    #[inline(always)]
    fn tiles<S: Simd, T: Terms, const R: usize, const C: usize>(&mut self, s: S, first: usize, tokens: Range<usize>) {
        let rows = self.out.cols();
        let (full_rows, full_tokens) = (first + (rows - first) / R * R, tokens.start + tokens.len() / C * C);
        self.block::<S, T, R, C>(s, first..full_rows, tokens.start..full_tokens);
        self.block::<S, T, 1, C>(s, full_rows..rows, tokens.start..full_tokens);
        // Two rows are enough to hide how long a sum takes, and are near to one stream.
        let even_rows = first + (rows - first) / 2 * 2;
        self.block::<S, T, 2, 1>(s, first..even_rows, full_tokens..tokens.end);
        self.block::<S, T, 1, 1>(s, even_rows..rows, full_tokens..tokens.end);
    }

    /// The outputs of some weight rows (a multiple of `R`) and activation rows (a multiple of `C`).
    #[inline(always)]
    fn block<S: Simd, T: Terms, const R: usize, const C: usize>(
        &mut self,
        s: S,
        rows: Range<usize>,
        tokens: Range<usize>,
    ) {
        let (x_bytes, row_bytes) = (self.w.cols() * T::X_BYTES, self.w.row_bytes());
        for row in rows.step_by(R) {
            let bytes = self.w.bytes_of_rows(self.out.first_col() + row, R);
            let w: [&[u8]; R] = std::array::from_fn(|r| &bytes[r * row_bytes..][..row_bytes]);
            for token in tokens.clone().step_by(C) {
                let x: [&[u8]; C] = std::array::from_fn(|t| &self.x[(token + t) * x_bytes..][..x_bytes]);
                // The first activations to meet these rows fetch the next.
                let ahead = if token == tokens.start { bytes.as_ptr_range().end } else { std::ptr::null() };
                let lanes = dot_lanes::<S, T, R, C>(s, w, x, ahead);
                for t in 0..C {
                    for r in 0..R {
                        self.out.row_mut(token + t)[row + r] = s.sum(lanes[r][t]);
                    }
                }
            }
        }
    }

    /// The outputs of some weight rows (a multiple of `R`) and activation rows, at most [`PANEL_TOKENS`]. A panel of weights is filled once for
    /// all activations, and sums wait in memory between two panels.
    #[inline(always)]
    fn panels<S: Simd, T: Terms, const R: usize, const C: usize, const STEPS: usize>(
        &mut self,
        s: S,
        rows: Range<usize>,
        tokens: Range<usize>,
    ) {
        let (x_bytes, row_bytes) = (self.w.cols() * T::X_BYTES, self.w.row_bytes());
        let (steps, full) = (x_bytes / 64, tokens.len() / C * C);
        let mut panel = [const { [Lanes::ZERO; R] }; STEPS];
        let mut sums = [const { [Lanes::ZERO; R] }; PANEL_TOKENS];
        for row in rows.step_by(R) {
            let bytes = self.w.bytes_of_rows(self.out.first_col() + row, R);
            // Without columns there is still one panel, which gives zeros.
            for first in (0..steps.max(1)).step_by(STEPS / T::HALVES) {
                let count = (STEPS / T::HALVES).min(steps - first);
                let panel = &mut panel[..T::HALVES * count];
                for (r, bytes) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
                    fill::<S, T, R>(s, &T::chunks(bytes).0[first..], r, panel);
                }
                let next = Next::new::<T, R, STEPS>(bytes, first, steps);
                let x = |token: usize| &self.x[(tokens.start + token) * x_bytes + 64 * first..][..64 * count];
                for token in (0..full).step_by(C) {
                    next.prefetch(s, token..token + C, full);
                    let x: [&[u8]; C] = std::array::from_fn(|t| x(token + t));
                    let sums = sums[token..].first_chunk_mut().expect("so many tokens are left");
                    add_panel::<S, T, R, C>(s, panel, x, sums, first == 0);
                }
                for token in full..tokens.len() {
                    let sums = sums[token..].first_chunk_mut().expect("a token is left");
                    add_panel::<S, T, R, 1>(s, panel, [x(token)], sums, first == 0);
                }
            }
            for (token, sums) in sums[..tokens.len()].iter().enumerate() {
                let out = &mut self.out.row_mut(tokens.start + token)[row..row + R];
                for (out, sums) in out.iter_mut().zip(sums) {
                    *out = s.sum(s.as_float(s.load_bytes(&sums.0)));
                }
            }
        }
    }
}

/// Row `r` of a panel.
#[inline(always)]
fn fill<S: Simd, T: Terms, const R: usize>(s: S, chunks: &[T::Chunk], r: usize, panel: &mut [[Lanes; R]]) {
    for (chunk, step) in chunks.iter().zip(panel.chunks_exact_mut(T::HALVES)) {
        for (half, lanes) in step.iter_mut().enumerate() {
            s.store_bytes(T::load(s, chunk, half), &mut lanes[r].0);
        }
    }
}

/// The weights of the next panel, which are fetched a few at a time while one is multiplied.
struct Next {
    first: *const u8,
    stride: usize,
    /// Cache lines of a row, and of all.
    row_lines: usize,
    lines: usize,
}

impl Next {
    /// Behind the panel from step `first` of `steps` on, of `R` rows.
    #[inline(always)]
    fn new<T: Terms, const R: usize, const STEPS: usize>(rows: &[u8], first: usize, steps: usize) -> Next {
        let bytes = STEPS / T::HALVES * size_of::<T::Chunk>();
        let behind = if first + STEPS / T::HALVES < steps { first * size_of::<T::Chunk>() + bytes } else { rows.len() };
        let row_lines = bytes / 64;
        Next { first: rows.as_ptr().wrapping_add(behind), stride: rows.len() / R, row_lines, lines: R * row_lines }
    }

    /// The share of a tile of activation rows, of `tokens`.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, tile: Range<usize>, tokens: usize) {
        for line in tile.start * self.lines / tokens..tile.end * self.lines / tokens {
            s.prefetch(self.first.wrapping_add(line / self.row_lines * self.stride + line % self.row_lines * 64));
        }
    }
}

/// Adds the products of a panel and a stretch of `C` activation rows, 16 lanes each.
#[inline(always)]
fn add_panel<S: Simd, T: Terms, const R: usize, const C: usize>(
    s: S,
    panel: &[[Lanes; R]],
    x: [&[u8]; C],
    sums: &mut [[Lanes; R]; C],
    begin: bool,
) {
    let mut acc = [[s.splat(0.0); R]; C];
    let mut steps: [&[[u8; 64]]; C] = [&[]; C];
    for t in 0..C {
        steps[t] = &x[t].as_chunks().0[..panel.len() / T::HALVES];
        for r in 0..R {
            if !begin {
                acc[t][r] = s.as_float(s.load_bytes(&sums[t][r].0));
            }
        }
    }
    for (i, step) in panel.chunks_exact(T::HALVES).enumerate() {
        for (half, weights) in step.iter().enumerate() {
            let mut x = [s.splat_int(0); C];
            for t in 0..C {
                x[t] = T::load_x(s, &steps[t][i], half);
            }
            for r in 0..R {
                let w = s.load_bytes(&weights[r].0);
                for t in 0..C {
                    acc[t][r] = T::add(s, acc[t][r], w, x[t]);
                }
            }
        }
    }
    for t in 0..C {
        for r in 0..R {
            s.store_bytes(s.as_int(acc[t][r]), &mut sums[t][r].0);
        }
    }
}

/// Dot products of `R` stored rows with `C` activation rows of the same length, before the lanes are added. Unless `ahead` is null, as many bytes
/// as the rows have are fetched from there meanwhile, in ascending order: one stream for the processor, where the rows are `R`.
#[inline(always)]
fn dot_lanes<S: Simd, T: Terms, const R: usize, const C: usize>(
    s: S,
    w: [&[u8]; R],
    x: [&[u8]; C],
    ahead: *const u8,
) -> [[S::F; C]; R] {
    let steps = x[0].len() / 64;
    let w_steps: [&[T::Chunk]; R] = std::array::from_fn(|r| &T::chunks(w[r]).0[..steps]);
    let x_steps: [&[[u8; 64]]; C] = std::array::from_fn(|t| &x[t].as_chunks().0[..steps]);
    let mut lanes = [[s.splat(0.0); C]; R];
    for i in 0..steps {
        if !ahead.is_null() {
            let bytes = R * size_of::<T::Chunk>();
            for line in (0..bytes).step_by(64) {
                s.prefetch(ahead.wrapping_add(i * bytes + line));
            }
        }
        for half in 0..T::HALVES {
            let mut x = [s.splat_int(0); C];
            for t in 0..C {
                x[t] = T::load_x(s, &x_steps[t][i], half);
            }
            for r in 0..R {
                let w = T::load(s, &w_steps[r][i], half);
                for t in 0..C {
                    lanes[r][t] = T::add(s, lanes[r][t], w, x[t]);
                }
            }
        }
    }
    if x[0].len().is_multiple_of(64) {
        return lanes;
    }
    for (r, half) in (0..R).flat_map(|r| (0..T::HALVES).map(move |half| (r, half))) {
        let w = T::load_part(s, T::chunks(w[r]).1, half);
        for t in 0..C {
            let x = T::load_x_part(s, x[t].as_chunks::<64>().1, half);
            lanes[r][t] = T::add(s, lanes[r][t], w, x);
        }
    }
    lanes
}

/// A product with weights of any type.
#[inline(always)]
fn decoded<S: Simd>(s: S, w: &Matrix, x: &[f32], out: &mut TileMut<f32>) {
    let tokens = out.rows();
    for first in (0..tokens).step_by(TOKENS) {
        let count = TOKENS.min(tokens - first);
        let x = &x[first * w.cols()..][..count * w.cols()];
        for row in 0..out.cols() {
            let dots = decoded_row(s, w, out.first_col() + row, x, count);
            for (t, dot) in dots[..count].iter().enumerate() {
                out.row_mut(first + t)[row] = *dot;
            }
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
