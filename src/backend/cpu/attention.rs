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
use crate::elementary;
use crate::kv::{PAGE_TOKENS, q8};
use std::ops::Range;

/// Positions of a split; a multiple of the page.
pub const SPLIT_TOKENS: usize = 256;
const SPLIT_PAGES: usize = SPLIT_TOKENS / PAGE_TOKENS;
/// Most query heads of a key-value head, and most queries (rows times such heads) of a call.
pub const MAX_QUERIES: usize = 128;
/// Most elements of a head.
pub const MAX_HEAD_DIM: usize = 576;
/// Queries for which a key or value is loaded once: their sums fill the registers.
pub const SET: usize = 4;

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
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// The rows, each of which sees its own position, unless the scores leave that out, all before, and those behind that the scores name.
    pub rows: &'a [Row],
    /// The heads of the first row, one after the other, rotated if the cache rotates; row `r` begins `r * stride` elements further.
    pub values: &'a [f32],
    /// Elements from row to row.
    pub stride: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a head of values, and of the result.
    pub value_dim: usize,
    /// How scores follow from products with keys.
    pub scores: Scores<'a>,
}

/// What becomes of the dot products of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// Factor on them.
    pub scale: f32,
    /// Where the positions end that a row sees, though they lie behind its own; 0 where it sees none of them.
    pub ahead: usize,
    /// Whether a row sees its own position.
    pub own: bool,
    /// Keys that a row sees before its own and behind it, its own included; `usize::MAX` for all.
    pub window: usize,
    /// A scaled product `s` becomes `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// One more score for each head of a row, without a value.
    pub sinks: Option<&'a [f32]>,
}

impl Scores<'_> {
    /// Positions that a row sees.
    fn visible(&self, row: &Row) -> Range<usize> {
        let end = row.position as usize + 1;
        let last = self.ahead.min((end - 1).saturating_add(self.window));
        end.saturating_sub(self.window)..(end - usize::from(!self.own)).max(last)
    }
}

/// `out = softmax(scores) * values` for every head of every row; the rows of `queries` are those of `out` from
/// `first` on, and a row of `out` holds as many heads as a row of `queries`.
pub fn attend(kernels: &Kernels, source: &Source, queries: &Queries, out: &mut TileMut<f32>, first: usize) {
    let keys = queries.rows.iter().map(|row| queries.scores.visible(row).end).max().unwrap_or(0);
    let count = queries.rows.len() * (out.cols() / queries.value_dim);
    let longest = queries.head_dim.max(queries.value_dim);
    assert!(count <= MAX_QUERIES && longest <= MAX_HEAD_DIM && keys <= source.pages.len() * PAGE_TOKENS);
    let mut states = [State::EMPTY; MAX_QUERIES];
    let states = &mut states[..count];
    let mut block = Block { kernels, source, queries, out, first };
    let mut scratch = Scratch { scores: [[0.0; SPLIT_TOKENS]; SET], mixed: [[0.0; MAX_HEAD_DIM]; SET] };
    for index in 0..count {
        block.out(index).fill(0.0);
    }
    let first_key = (0..count).map(|index| block.visible(index).start).min().unwrap_or(0);
    for split in first_key / SPLIT_TOKENS..keys.div_ceil(SPLIT_TOKENS) {
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
    for (index, state) in states.iter_mut().enumerate() {
        block.finish(index, state);
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
        let weight = |max: f32| elementary::exp(f64::from(max - top)) as f32;
        let (old, new) = (weight(self.max), weight(max));
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
    /// Row of a query, and the number of its head in it.
    fn place(&self, index: usize) -> (usize, usize) {
        let heads = self.out.cols() / self.queries.value_dim;
        (index / heads, index % heads)
    }

    fn query(&self, index: usize) -> &'a [f32] {
        let ((row, head), Queries { values, stride, head_dim, .. }) = (self.place(index), *self.queries);
        &values[row * stride + head * head_dim..][..head_dim]
    }

    fn out(&mut self, index: usize) -> &mut [f32] {
        let ((row, head), len) = (self.place(index), self.queries.value_dim);
        &mut self.out.row_mut(self.first + row)[head * len..(head + 1) * len]
    }

    /// Positions that a query sees.
    fn visible(&self, index: usize) -> Range<usize> {
        self.queries.scores.visible(&self.queries.rows[self.place(index).0])
    }

    /// Which keys of a split these are, as numbers within the split.
    fn keys(&self, index: usize, split: usize) -> Range<usize> {
        let within = |position: usize| position.saturating_sub(split * SPLIT_TOKENS).min(SPLIT_TOKENS);
        let visible = self.visible(index);
        within(visible.start)..within(visible.end)
    }

    /// Adds the head's sink, divides by the sum of the softmax, and turns back what was rotated as it was stored.
    fn finish(&mut self, index: usize, state: &mut State) {
        let (kernels, scores, rotates) = (self.kernels, self.queries.scores, self.source.cache.rotates());
        let head = self.place(index).1;
        let out = self.out(index);
        if let Some(sinks) = scores.sinks {
            let nothing = [0.0; MAX_HEAD_DIM];
            state.merge(kernels, sinks[head], 1.0, &nothing[..out.len()], out);
        }
        out.iter_mut().for_each(|v| *v /= state.sum);
        if rotates {
            kernels.rotate(out, q8::rotated(out.len()));
        }
    }

    /// Adds one split to the `T` queries from `index` on, of which `states` are the states.
    fn add_split<const T: usize>(&mut self, split: usize, index: usize, states: &mut [State], scratch: &mut Scratch) {
        let Scratch { scores, mixed } = scratch;
        let (Some(scores), Some(mixed)) = (scores.first_chunk_mut::<T>(), mixed.first_chunk_mut::<T>()) else { return };
        let len = self.queries.value_dim;
        let keys: [Range<usize>; T] = std::array::from_fn(|t| self.keys(index + t, split));
        let first = keys.iter().map(|keys| keys.start).min().unwrap_or(0);
        let end = keys.iter().map(|keys| keys.end).max().unwrap_or(0);
        self.score(split, index, first..end, scores);
        let mut softmax = [(0.0, 0.0); T];
        for t in 0..T {
            let scores = &mut scores[t][keys[t].clone()];
            if let Some(cap) = self.queries.scores.softcap {
                self.kernels.softcap(scores, cap);
            }
            let max = self.kernels.max(scores);
            softmax[t] = (max, self.kernels.exp_sum(scores, max));
            mixed[t][..len].fill(0.0);
        }
        self.mix(split, &keys, scores, mixed);
        for t in (0..T).filter(|&t| !keys[t].is_empty()) {
            let ((max, sum), kernels) = (softmax[t], self.kernels);
            states[t].merge(kernels, max, sum, &mixed[t][..len], self.out(index + t));
        }
    }

    fn pages(&self, split: usize) -> &'a [u32] {
        let pages = &self.source.pages[split * SPLIT_PAGES..];
        &pages[..pages.len().min(SPLIT_PAGES)]
    }

    /// Scores of whole pages, so of some keys that no query sees as well.
    fn score<const T: usize>(
        &self,
        split: usize,
        index: usize,
        keys: Range<usize>,
        scores: &mut [[f32; SPLIT_TOKENS]; T],
    ) {
        let queries: [&[f32]; T] = std::array::from_fn(|t| self.query(index + t));
        let scale = self.queries.scores.scale;
        let Source { cache, layer, head, .. } = *self.source;
        let pages = self.pages(split)[..keys.end.div_ceil(PAGE_TOKENS)].iter().enumerate();
        for (number, &page) in pages.skip(keys.start / PAGE_TOKENS) {
            let run = cache.keys(page, layer, head);
            let out = scores.each_mut().map(|scores| &mut scores[number * PAGE_TOKENS..][..PAGE_TOKENS]);
            self.kernels.score(queries, run, scale, out);
        }
    }

    /// Sums of values with the weights `scores`: for all queries together as far as each sees, then for each the rest.
    fn mix<const T: usize>(
        &self,
        split: usize,
        keys: &[Range<usize>; T],
        scores: &[[f32; SPLIT_TOKENS]; T],
        mixed: &mut [[f32; MAX_HEAD_DIM]; T],
    ) {
        let len = self.queries.value_dim;
        let Source { cache, layer, head, .. } = *self.source;
        let first_common = keys.iter().map(|keys| keys.start).max().unwrap_or(0);
        let end_common = keys.iter().map(|keys| keys.end).min().unwrap_or(0);
        for (number, &page) in self.pages(split).iter().enumerate() {
            let start = number * PAGE_TOKENS;
            let seen = |key: usize| key.clamp(start, start + PAGE_TOKENS);
            let together = seen(first_common)..seen(end_common).max(seen(first_common));
            // In ascending order for each query, however many take part.
            for t in 0..T {
                self.mix_alone(
                    page,
                    start,
                    seen(keys[t].start)..together.start.min(seen(keys[t].end)),
                    &scores[t],
                    &mut mixed[t],
                );
            }
            if !together.is_empty() {
                let run = cache.values(page, layer, head, together.start - start..together.end - start);
                let weights = scores.each_ref().map(|scores| &scores[together.clone()]);
                self.kernels.mix(weights, run, mixed.each_mut().map(|mixed| &mut mixed[..len]));
            }
            for t in 0..T {
                self.mix_alone(
                    page,
                    start,
                    together.end.max(seen(keys[t].start))..seen(keys[t].end),
                    &scores[t],
                    &mut mixed[t],
                );
            }
        }
    }

    /// Adds the values of the keys `keys` of a split, all on a page that begins with the key `start`, to one query's sum.
    fn mix_alone(
        &self,
        page: u32,
        start: usize,
        keys: Range<usize>,
        scores: &[f32; SPLIT_TOKENS],
        mixed: &mut [f32; MAX_HEAD_DIM],
    ) {
        if keys.is_empty() {
            return;
        }
        let Source { cache, layer, head, .. } = *self.source;
        let run = cache.values(page, layer, head, keys.start - start..keys.end - start);
        self.kernels.mix([&scores[keys]], run, [&mut mixed[..self.queries.value_dim]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::simd::available;
    use crate::backend::{KvType, Limits};
    use crate::kv::{HeadSizes, Layout, Side, Stores};
    use crate::quant::synthetic::Random;

    const HEADS: usize = 3;
    const DIM: usize = 24;
    /// Values are of another length, as where they are a part of the keys.
    const VALUE_DIM: usize = 20;
    const KEYS: usize = 600;

    /// One sequence of [`KEYS`] positions with one key-value head, in pages out of order.
    struct Sequence {
        cache: Cache,
        pages: Vec<u32>,
        keys: Vec<f64>,
        values: Vec<f64>,
        queries: Vec<f32>,
    }

    /// What a cache of 8 bits holds of heads of `dim` elements.
    fn blocks_of(heads: &[f32], dim: usize) -> Vec<f64> {
        let of = |head: &[f32]| {
            let (mut rotated, mut bytes) = (head.to_vec(), vec![0; q8::bytes(dim)]);
            available()[0].rotate(&mut rotated, q8::rotated(dim));
            available()[0].encode_head(&rotated, &mut bytes);
            q8::plain::rotate(&q8::plain::decode(&bytes, dim))
        };
        heads.chunks(dim).flat_map(of).collect()
    }

    impl Sequence {
        fn new(kv_type: KvType) -> Sequence {
            let pages: Vec<u32> = (0..KEYS.div_ceil(PAGE_TOKENS) as u32).rev().collect();
            let pages_of_all = pages.len();
            let limits = Limits {
                rows: 1,
                outputs: 1,
                seqs: 1,
                pages: pages_of_all,
                context: 4096,
                kv_type,
                windows: None,
                records: 0,
                ranks: 0,
                hidden: Default::default(),
                behind: 0,
            };
            let sizes = HeadSizes { value_dim: VALUE_DIM, ..HeadSizes::new(HEADS, 1, DIM) };
            let stores = Stores::new(&Layout::new([kv_type.stored(sizes)]).unwrap(), [].into_iter()).unwrap();
            let mut cache = Cache::of_layers(stores, limits.kv_type, |reach| limits.pages_of(reach)).unwrap();
            let (keys, values) = (Random::new(1).uniforms(KEYS * DIM), Random::new(2).uniforms(KEYS * VALUE_DIM));
            for (position, (key, value)) in keys.chunks(DIM).zip(values.chunks(VALUE_DIM)).enumerate() {
                let (page, slot) = (pages[position / PAGE_TOKENS], position % PAGE_TOKENS);
                cache.store(page, 0, Side::Keys, slot, key, available()[0]);
                cache.store(page, 0, Side::Values, slot, value, available()[0]);
            }
            let queries = Random::new(3).uniforms(KEYS * HEADS * DIM).iter().map(|q| 3.0 * q).collect();
            let held = |heads: &[f32], dim| match kv_type {
                KvType::Q8 => blocks_of(heads, dim),
                _ => heads.iter().map(|x| f64::from(*x)).collect(),
            };
            let (keys, values) = (held(&keys, DIM), held(&values, VALUE_DIM));
            Sequence { cache, pages, keys, values, queries }
        }

        /// Attention of the rows at `positions`, neighbours, in one call.
        fn attend(&self, kernels: &Kernels, positions: Range<usize>, scores: Scores) -> Vec<f32> {
            let row = |position| Row { token: 0, position: position as u32, slot: 0 };
            let rows: Vec<Row> = positions.clone().map(row).collect();
            let source = Source { cache: &self.cache, pages: &self.pages, layer: 0, head: 0 };
            let stride = HEADS * DIM;
            let mut values = self.queries[positions.start * stride..positions.end * stride].to_vec();
            if self.cache.rotates() {
                kernels.rotate(&mut values, q8::rotated(DIM));
            }
            let queries = Queries { rows: &rows, values: &values, stride, head_dim: DIM, value_dim: VALUE_DIM, scores };
            let mut out = vec![f32::NAN; rows.len() * HEADS * VALUE_DIM];
            attend(kernels, &source, &queries, &mut TileMut::whole(&mut out, HEADS * VALUE_DIM), 0);
            out
        }

        /// The definition, in double precision.
        fn expected(&self, position: usize, head: usize, scores: Scores) -> Vec<f64> {
            let query = &self.queries[(position * HEADS + head) * DIM..][..DIM];
            let is_near = |key: &usize| position.abs_diff(*key) < scores.window && (scores.own || *key != position);
            let (first, seen) = (0..scores.ahead.max(position + 1))
                .filter(is_near)
                .fold((usize::MAX, 0), |(first, _), key| (first.min(key), key + 1));
            let score = |key: &[f64]| {
                let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum();
                let scaled = f64::from(scores.scale) * dot;
                let capped = scores.softcap.map_or(scaled, |cap| f64::from(cap) * (scaled / f64::from(cap)).tanh());
                capped.exp()
            };
            let weights: Vec<f64> = self.keys.chunks(DIM).take(seen).skip(first).map(score).collect();
            let sink = scores.sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let sum = weights.iter().sum::<f64>() + sink;
            let value = |d: usize| {
                let values = self.values.chunks(VALUE_DIM).skip(first);
                values.zip(&weights).map(|(value, weight)| value[d] * weight).sum::<f64>() / sum
            };
            (0..VALUE_DIM).map(value).collect()
        }
    }

    #[test]
    fn windows_caps_and_sinks_do_what_they_say_however_rows_are_shared_out() {
        [KvType::F32, KvType::Q8].into_iter().for_each(assert_as_defined);
    }

    fn assert_as_defined(kv_type: KvType) {
        let sequence = Sequence::new(kv_type);
        let sinks = [1.5, -3.0, 4.0];
        for window in [usize::MAX, 1, 31, 32, 33, 255, 256, 257, 1000] {
            for (softcap, sinks, ahead, own) in [
                (None, None, 0, true),
                (None, None, 0, false),
                (Some(2.0), None, 0, true),
                (None, Some(&sinks[..]), 0, true),
                (Some(1.0), Some(&sinks[..]), 0, false),
                (None, None, KEYS, true),
                (Some(2.0), Some(&sinks[..]), 521, true),
            ] {
                let scores = Scores { scale: 0.3, ahead, own, window, softcap, sinks };
                // A row sees a key at least.
                if !own && window == 1 {
                    continue;
                }
                for positions in [usize::from(!own)..5, 28..36, 250..262, 287..291, 509..521, 592..600] {
                    let together = sequence.attend(available()[0], positions.clone(), scores);
                    for (row, position) in positions.clone().enumerate() {
                        let found = &together[row * HEADS * VALUE_DIM..][..HEADS * VALUE_DIM];
                        let alone = sequence.attend(available()[0], position..position + 1, scores);
                        assert_eq!(found, alone, "position {position} of {positions:?}, window {window}");
                        let expected = (0..HEADS).flat_map(|head| sequence.expected(position, head, scores));
                        for (found, expected) in found.iter().zip(expected) {
                            let error = (f64::from(*found) - expected).abs();
                            assert!(error < 2e-6, "{found} for {expected}: {kv_type:?}, {position}, {scores:?}");
                        }
                    }
                    for kernels in available() {
                        assert!(sequence.attend(kernels, positions.clone(), scores) == together, "{}", kernels.name);
                    }
                }
            }
        }
    }
}
