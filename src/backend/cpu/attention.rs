//! Attention of neighbouring rows over their sequence's pages, for the query heads that share a key-value head: keys and values come from
//! memory once for all of them.
//!
//! The keys are taken in splits at absolute multiples of [`SPLIT_TOKENS`] positions. Each split gives a maximum, a sum of
//! exponentials and a weighted sum of values, which are merged in order of position (the online softmax of Milakov and
//! Gimelshein, 2018). So the result depends on the row's own history alone, however the rows of a batch are shared out.

use super::cache::Cache;
use super::pool::TileMut;
use super::simd::Kernels;
use crate::backend::Row;
use crate::kv::PAGE_TOKENS;

/// Positions of a split; a multiple of the page.
pub const SPLIT_TOKENS: usize = 256;
const SPLIT_PAGES: usize = SPLIT_TOKENS / PAGE_TOKENS;
/// Most query heads of a key-value head, and most queries (rows times such heads) of a call.
pub const MAX_QUERIES: usize = 128;
/// Most elements of a head.
pub const MAX_HEAD_DIM: usize = 512;
/// Queries for which a key or value is loaded once: their sums fill the registers.
const SET: usize = 4;

/// Where a sequence's keys and values are.
pub struct Source<'a> {
    /// The session's cache.
    pub cache: &'a Cache,
    /// Pages of the sequence.
    pub pages: &'a [u32],
    /// Layer to read.
    pub layer: usize,
    /// Key-value head to read.
    pub head: usize,
}

/// Queries of some rows of one sequence.
pub struct Queries<'a> {
    /// The rows, each of which sees its own position and all before.
    pub rows: &'a [Row],
    /// The heads of the first row, one after the other; row `r` begins `r * stride` elements further.
    pub values: &'a [f32],
    /// Elements from row to row.
    pub stride: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// `out = softmax(queries * keys^T / sqrt(head_dim)) * values` for every head of every row; the rows of `queries` are those of `out` from
/// `first` on, and a row of `out` holds as many heads as a row of `queries`.
pub fn attend(kernels: &Kernels, source: &Source, queries: &Queries, out: &mut TileMut<f32>, first: usize) {
    let keys = queries.rows.iter().map(|row| row.position as usize + 1).max().unwrap_or(0);
    let count = queries.rows.len() * (out.cols() / queries.head_dim);
    assert!(count <= MAX_QUERIES && queries.head_dim <= MAX_HEAD_DIM && keys <= source.pages.len() * PAGE_TOKENS);
    let mut states = [State::EMPTY; MAX_QUERIES];
    let states = &mut states[..count];
    let mut block = Block { kernels, source, queries, out, first };
    let mut scratch = Scratch { scores: [[0.0; SPLIT_TOKENS]; SET], mixed: [[0.0; MAX_HEAD_DIM]; SET] };
    for index in 0..count {
        block.out(index).fill(0.0);
    }
    for split in 0..keys.div_ceil(SPLIT_TOKENS) {
        for (set, states) in states.chunks_mut(SET).enumerate() {
            let index = set * SET;
            match states.len() {
                1 => block.add_split::<1>(split, index, states, &mut scratch),
                2 => block.add_split::<2>(split, index, states, &mut scratch),
                3 => block.add_split::<3>(split, index, states, &mut scratch),
                _ => block.add_split::<SET>(split, index, states, &mut scratch),
            }
        }
    }
    for (index, state) in states.iter().enumerate() {
        block.out(index).iter_mut().for_each(|v| *v /= state.sum);
    }
}

/// Softmax of the splits so far: the output holds the weighted sum of values relative to `max`.
#[derive(Clone, Copy)]
struct State {
    max: f32,
    sum: f32,
}

impl State {
    const EMPTY: State = State { max: f32::NEG_INFINITY, sum: 0.0 };

    fn merge(&mut self, kernels: &Kernels, max: f32, sum: f32, mixed: &[f32], out: &mut [f32]) {
        let top = self.max.max(max);
        let (old, new) = ((self.max - top).exp(), (max - top).exp());
        kernels.scale_add(out, old, mixed, new);
        self.sum = self.sum * old + sum * new;
        self.max = top;
    }
}

/// What one split of one set of queries gives on the way.
struct Scratch {
    scores: [[f32; SPLIT_TOKENS]; SET],
    mixed: [[f32; MAX_HEAD_DIM]; SET],
}

/// One call of [`attend`]. Queries are numbered row by row, the heads of a row in order.
struct Block<'a, 'o> {
    kernels: &'a Kernels,
    source: &'a Source<'a>,
    queries: &'a Queries<'a>,
    out: &'a mut TileMut<'o, f32>,
    first: usize,
}

impl<'a> Block<'a, '_> {
    /// Row of a query, and where its head begins in it.
    fn place(&self, index: usize) -> (usize, usize) {
        let group = self.out.cols() / self.queries.head_dim;
        (index / group, index % group * self.queries.head_dim)
    }

    fn query(&self, index: usize) -> &'a [f32] {
        let (row, start) = self.place(index);
        &self.queries.values[row * self.queries.stride + start..][..self.queries.head_dim]
    }

    fn out(&mut self, index: usize) -> &mut [f32] {
        let ((row, start), len) = (self.place(index), self.queries.head_dim);
        &mut self.out.row_mut(self.first + row)[start..start + len]
    }

    /// How many keys of a split a query sees.
    fn keys(&self, index: usize, split: usize) -> usize {
        let keys = self.queries.rows[self.place(index).0].position as usize + 1;
        keys.saturating_sub(split * SPLIT_TOKENS).min(SPLIT_TOKENS)
    }

    /// Adds one split to the `T` queries from `index` on, of which `states` are the states.
    fn add_split<const T: usize>(&mut self, split: usize, index: usize, states: &mut [State], scratch: &mut Scratch) {
        let Scratch { scores, mixed } = scratch;
        let (Some(scores), Some(mixed)) = (scores.first_chunk_mut::<T>(), mixed.first_chunk_mut::<T>()) else { return };
        let len = self.queries.head_dim;
        let keys: [usize; T] = std::array::from_fn(|t| self.keys(index + t, split));
        self.score(split, index, keys.into_iter().max().unwrap_or(0), scores);
        let mut softmax = [(0.0, 0.0); T];
        for t in 0..T {
            let scores = &mut scores[t][..keys[t]];
            let max = self.kernels.max(scores);
            softmax[t] = (max, self.kernels.exp_sum(scores, max));
            mixed[t][..len].fill(0.0);
        }
        self.mix(split, &keys, scores, mixed);
        for t in (0..T).filter(|&t| keys[t] > 0) {
            let ((max, sum), kernels) = (softmax[t], self.kernels);
            states[t].merge(kernels, max, sum, &mixed[t][..len], self.out(index + t));
        }
    }

    fn pages(&self, split: usize) -> &'a [u32] {
        let pages = &self.source.pages[split * SPLIT_PAGES..];
        &pages[..pages.len().min(SPLIT_PAGES)]
    }

    /// Scores of whole pages, so of some keys that no query sees as well.
    fn score<const T: usize>(&self, split: usize, index: usize, keys: usize, scores: &mut [[f32; SPLIT_TOKENS]; T]) {
        let queries: [&[f32]; T] = std::array::from_fn(|t| self.query(index + t));
        let scale = 1.0 / (self.queries.head_dim as f32).sqrt();
        let Source { cache, layer, head, .. } = *self.source;
        for (number, &page) in self.pages(split)[..keys.div_ceil(PAGE_TOKENS)].iter().enumerate() {
            let run = cache.keys(page, layer, head);
            let out = scores.each_mut().map(|scores| &mut scores[number * PAGE_TOKENS..][..PAGE_TOKENS]);
            self.kernels.score(queries, run, scale, out);
        }
    }

    /// Sums of values with the weights `scores`: for all queries together as far as each sees, then for each the rest.
    fn mix<const T: usize>(
        &self,
        split: usize,
        keys: &[usize; T],
        scores: &[[f32; SPLIT_TOKENS]; T],
        mixed: &mut [[f32; MAX_HEAD_DIM]; T],
    ) {
        let len = self.queries.head_dim;
        let Source { cache, layer, head, .. } = *self.source;
        let common = keys.iter().copied().min().unwrap_or(0);
        for (number, &page) in self.pages(split).iter().enumerate() {
            let start = number * PAGE_TOKENS;
            let seen = |keys: usize| keys.clamp(start, start + PAGE_TOKENS);
            let together = start..seen(common);
            if !together.is_empty() {
                let run = cache.values(page, layer, head, 0..together.len());
                let weights = scores.each_ref().map(|scores| &scores[together.clone()]);
                self.kernels.mix(weights, run, mixed.each_mut().map(|mixed| &mut mixed[..len]));
            }
            for t in 0..T {
                let alone = together.end..seen(keys[t]);
                if !alone.is_empty() {
                    let run = cache.values(page, layer, head, alone.start - start..alone.end - start);
                    self.kernels.mix([&scores[t][alone]], run, [&mut mixed[t][..len]]);
                }
            }
        }
    }
}
