//! Attention of one row over its sequence's pages, for the query heads that share a key-value head.
//!
//! The keys are taken in splits at absolute multiples of [`SPLIT_TOKENS`] positions. Each split gives a maximum, a sum of
//! exponentials and a weighted sum of values, which are merged in order of position (the online softmax of Milakov and
//! Gimelshein, 2018). So the result depends on the row's own history alone, however the rows of a batch are shared out.

use super::cache::Cache;
use super::simd::Kernels;
use crate::kv::{PAGE_TOKENS, Side};

/// Positions of a split; a multiple of the page.
pub const SPLIT_TOKENS: usize = 256;
const SPLIT_PAGES: usize = SPLIT_TOKENS / PAGE_TOKENS;
/// Most query heads of a key-value head.
pub const MAX_GROUP: usize = 128;
/// Most elements of a head.
pub const MAX_HEAD_DIM: usize = 512;

/// Where a row's keys and values are.
pub struct Source<'a> {
    /// The session's cache.
    pub cache: &'a Cache,
    /// Pages of the row's sequence.
    pub pages: &'a [u32],
    /// Layer to read.
    pub layer: usize,
    /// Key-value head to read.
    pub head: usize,
    /// Keys that the row sees: its own position and all before.
    pub keys: usize,
}

/// `out = softmax(queries * keys^T / sqrt(head_dim)) * values` for every query head; `queries` and `out` hold the heads one after
/// the other, `head_dim` elements each.
pub fn attend(kernels: &Kernels, source: &Source, queries: &[f32], head_dim: usize, out: &mut [f32]) {
    let group = queries.len() / head_dim;
    assert!(group <= MAX_GROUP && head_dim <= MAX_HEAD_DIM && source.keys <= source.pages.len() * PAGE_TOKENS);
    let mut states = [State::EMPTY; MAX_GROUP];
    out.fill(0.0);
    for (split, pages) in source.pages.chunks(SPLIT_PAGES).enumerate() {
        let keys = source.keys.saturating_sub(split * SPLIT_TOKENS).min(SPLIT_TOKENS);
        if keys == 0 {
            break;
        }
        for (head, state) in states[..group].iter_mut().enumerate() {
            let range = head * head_dim..(head + 1) * head_dim;
            state.add_split(kernels, source, pages, keys, &queries[range.clone()], &mut out[range]);
        }
    }
    for (head, state) in states[..group].iter().enumerate() {
        out[head * head_dim..(head + 1) * head_dim].iter_mut().for_each(|v| *v /= state.sum);
    }
}

/// Softmax of the splits so far: `out` holds the weighted sum of values relative to `max`.
#[derive(Clone, Copy)]
struct State {
    max: f32,
    sum: f32,
}

impl State {
    const EMPTY: State = State { max: f32::NEG_INFINITY, sum: 0.0 };

    fn add_split(
        &mut self,
        kernels: &Kernels,
        source: &Source,
        pages: &[u32],
        keys: usize,
        query: &[f32],
        out: &mut [f32],
    ) {
        let mut buffer = [0.0; SPLIT_TOKENS];
        let scores = &mut buffer[..keys];
        let scale = 1.0 / (query.len() as f32).sqrt();
        for (scores, &page) in scores.chunks_mut(PAGE_TOKENS).zip(pages) {
            let run = source.cache.run(page, source.layer, Side::Keys, source.head, scores.len());
            kernels.dot_rows(query, run, scale, scores);
        }
        let max = kernels.max(scores);
        let sum = kernels.exp_sum(scores, max);
        let mut buffer = [0.0; MAX_HEAD_DIM];
        let mixed = &mut buffer[..query.len()];
        for (weights, &page) in scores.chunks(PAGE_TOKENS).zip(pages) {
            let run = source.cache.run(page, source.layer, Side::Values, source.head, weights.len());
            kernels.accumulate_rows(weights, run, mixed);
        }
        self.merge(kernels, max, sum, mixed, out);
    }

    fn merge(&mut self, kernels: &Kernels, max: f32, sum: f32, mixed: &[f32], out: &mut [f32]) {
        let top = self.max.max(max);
        let (old, new) = ((self.max - top).exp(), (max - top).exp());
        kernels.scale_add(out, old, mixed, new);
        self.sum = self.sum * old + sum * new;
        self.max = top;
    }
}
