//! The pieces of attention over a run of cached keys and values, which are loaded once for several queries.

use super::exp::exp;
use super::q8::{multiples, scale_of, scales_of};
use super::terms::{Element, F16, F32};
use super::{load_part, store_part};
use crate::backend::cpu::simd::operand::{FloatRun, KvRun};
use crate::backend::cpu::simd::vector::{Kernel, Simd};
use crate::kv::q8::BLOCK;

/// Dot products of `T` queries with keys that lie across: element 0 of every key, then element 1. One key a lane.
pub(in super::super) struct Scores<'a, const T: usize> {
    pub queries: [&'a [f32]; T],
    /// A multiple of 16 keys.
    pub keys: KvRun<'a>,
    pub scale: f32,
    pub out: [&'a mut [f32]; T],
}

impl<const T: usize> Kernel for Scores<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let bytes = self.keys.bytes();
        match self.keys {
            KvRun::F16(_) => self.keys::<S, F16>(s, bytes),
            KvRun::F32(_) => self.keys::<S, F32>(s, bytes),
            KvRun::Q8(_) => self.blocks(s, bytes.as_chunks().0),
        }
    }
}

impl<const T: usize> Scores<'_, T> {
    #[inline(always)]
    fn keys<S: Simd, E: Element>(mut self, s: S, bytes: &[u8]) {
        let keys = E::chunks(bytes).0;
        let across = self.out[0].len() / 16;
        for chunk in 0..across {
            let sums = dots_across::<S, E, T>(s, self.queries, &keys[chunk..], across);
            store_scaled(s, sums, self.scale, &mut self.out, chunk);
        }
    }

    #[inline(always)]
    fn blocks<S: Simd>(mut self, s: S, keys: &[[u8; 16]]) {
        let across = self.out[0].len() / 16;
        for chunk in 0..across {
            let sums = dots_of_blocks(s, self.queries, &keys[chunk..], across);
            store_scaled(s, sums, self.scale, &mut self.out, chunk);
        }
    }
}

#[inline(always)]
fn store_scaled<S: Simd, const T: usize>(s: S, sums: [S::F; T], scale: f32, out: &mut [&mut [f32]; T], chunk: usize) {
    for t in 0..T {
        s.store(s.mul(sums[t], s.splat(scale)), &mut out[t].as_chunks_mut::<16>().0[chunk]);
    }
}

/// Dot products of `T` queries with 16 keys, element `d` of which is `keys[d * stride]`: the canonical sums, whose 16 lanes are here
/// 16 vectors, one after the other.
#[inline(always)]
fn dots_across<S: Simd, E: Element, const T: usize>(
    s: S,
    queries: [&[f32]; T],
    keys: &[E::Chunk],
    stride: usize,
) -> [S::F; T] {
    let mut lanes = [[s.splat(0.0); T]; 16];
    let len = queries[0].len();
    for lane in 0..16 {
        let mut acc = [s.splat(0.0); T];
        let mut d = lane;
        while d < len {
            let key = E::load(s, &keys[d * stride]);
            for t in 0..T {
                acc[t] = s.fma(key, s.splat(queries[t][d]), acc[t]);
            }
            d += 16;
        }
        lanes[lane] = acc;
    }
    sum_lanes(s, lanes)
}

/// Blocks of a key whose scales are held at once.
const SPAN: usize = 4;

/// The same sums of keys of 8 bits: byte `d` of 16 keys is `keys[d * stride]`, the bytes of their scales follow.
#[inline(always)]
fn dots_of_blocks<S: Simd, const T: usize>(s: S, queries: [&[f32]; T], keys: &[[u8; 16]], stride: usize) -> [S::F; T] {
    let mut lanes = [[s.splat(0.0); T]; 16];
    let len = queries[0].len();
    let mut start = 0;
    while start < len {
        let end = len.min(start + SPAN * BLOCK);
        let mut scales = [s.splat(0.0); SPAN];
        for block in 0..(end - start).div_ceil(BLOCK) {
            let at = len + 2 * (start / BLOCK + block);
            scales[block] = scales_of(s, &keys[at * stride], &keys[(at + 1) * stride]);
        }
        for lane in 0..16 {
            let mut acc = lanes[lane];
            let mut d = start + lane;
            while d < end {
                let key = s.mul(multiples(s, &keys[d * stride]), scales[(d - start) / BLOCK]);
                for t in 0..T {
                    acc[t] = s.fma(key, s.splat(queries[t][d]), acc[t]);
                }
                d += 16;
            }
            lanes[lane] = acc;
        }
        start = end;
    }
    sum_lanes(s, lanes)
}

/// The fixed tree over 16 lanes.
#[inline(always)]
fn sum_lanes<F: Copy, S: Simd<F = F>, const T: usize>(s: S, mut lanes: [[F; T]; 16]) -> [F; T] {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            for t in 0..T {
                lanes[lane][t] = s.add(lanes[lane][t], lanes[lane + width][t]);
            }
        }
    }
    lanes[0]
}

/// How the elements of a value are stored.
trait Stored {
    /// `N` vectors of a value of `len` elements, from the vector `first` on, a multiple of `N`.
    fn load<S: Simd, const N: usize>(s: S, value: &[u8], len: usize, first: usize) -> [S::F; N];
    /// What is left behind the last whole vector, filled with zeros.
    fn load_part<S: Simd>(s: S, value: &[u8], len: usize) -> S::F;
}

impl<E: Element> Stored for E {
    #[inline(always)]
    fn load<S: Simd, const N: usize>(s: S, value: &[u8], _len: usize, first: usize) -> [S::F; N] {
        let chunks = &E::chunks(value).0[first..][..N];
        let mut values = [s.splat(0.0); N];
        for i in 0..N {
            values[i] = E::load(s, &chunks[i]);
        }
        values
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, value: &[u8], _len: usize) -> S::F {
        E::load_part(s, E::chunks(value).1)
    }
}

/// Blocks of 8 bits.
struct Blocks;

impl Stored for Blocks {
    #[inline(always)]
    fn load<S: Simd, const N: usize>(s: S, value: &[u8], len: usize, first: usize) -> [S::F; N] {
        let (elements, scales) = value.split_at(len);
        let chunks = &elements.as_chunks::<16>().0[first..][..N];
        let mut values = [s.splat(0.0); N];
        let mut scale = s.splat(0.0);
        for i in 0..N {
            // Two vectors are a block.
            if i % 2 == 0 {
                scale = scale_of(s, u16::from_le_bytes(scales.as_chunks().0[(first + i) / 2]));
            }
            values[i] = s.mul(multiples(s, &chunks[i]), scale);
        }
        values
    }

    #[inline(always)]
    fn load_part<S: Simd>(s: S, value: &[u8], len: usize) -> S::F {
        let (elements, scales) = value.split_at(len);
        let (whole, part) = elements.as_chunks::<16>();
        let mut padded = [0; 16];
        padded[..part.len()].copy_from_slice(part);
        let scale = scale_of(s, u16::from_le_bytes(scales.as_chunks().0[whole.len() / 2]));
        s.mul(multiples(s, &padded), scale)
    }
}

pub(in super::super) struct Max<'a> {
    pub x: &'a [f32],
}

impl Kernel for Max<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut lanes = s.splat(f32::NEG_INFINITY);
        let (chunks, tail) = self.x.as_chunks::<16>();
        for x in chunks {
            lanes = s.max(s.load(x), lanes);
        }
        let mut last = [f32::NEG_INFINITY; 16];
        last[..tail.len()].copy_from_slice(tail);
        s.store(s.max(s.load(&last), lanes), &mut last);
        let mut max = last[0];
        for x in &last[1..] {
            max = if *x > max { *x } else { max };
        }
        max
    }
}

pub(in super::super) struct ExpSum<'a> {
    pub x: &'a mut [f32],
    pub max: f32,
}

impl Kernel for ExpSum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let minus_max = s.splat(-self.max);
        let mut lanes = s.splat(0.0);
        let (chunks, tail) = self.x.as_chunks_mut::<16>();
        for x in chunks {
            let y = exp(s, s.add(s.load(x), minus_max));
            s.store(y, x);
            lanes = s.add(lanes, y);
        }
        store_part(s, exp(s, s.add(load_part(s, tail), minus_max)), tail);
        s.sum(s.add(lanes, load_part(s, tail)))
    }
}

/// Sums of values, weighted for `T` queries.
pub(in super::super) struct Mix<'a, const T: usize> {
    pub weights: [&'a [f32]; T],
    pub values: KvRun<'a>,
    pub out: [&'a mut [f32]; T],
}

impl<const T: usize> Kernel for Mix<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let bytes = self.values.bytes();
        match self.values {
            KvRun::F16(_) => self.rows::<S, F16>(s, bytes),
            KvRun::F32(_) => self.rows::<S, F32>(s, bytes),
            KvRun::Q8(_) => self.rows::<S, Blocks>(s, bytes),
        }
    }
}

impl<const T: usize> Mix<'_, T> {
    #[inline(always)]
    fn rows<S: Simd, E: Stored>(self, s: S, bytes: &[u8]) {
        let (count, len) = (self.weights[0].len(), self.out[0].len());
        if count == 0 || len == 0 {
            return;
        }
        let sums = Sums { weights: self.weights, out: self.out };
        sums.add_rows::<S, E>(s, bytes.chunks_exact(bytes.len() / count));
    }
}

/// Outputs to which rows are added, weighted.
struct Sums<'a, const T: usize> {
    weights: [&'a [f32]; T],
    out: [&'a mut [f32]; T],
}

impl<const T: usize> Sums<'_, T> {
    /// Adds rows, each as long as an output.
    #[inline(always)]
    fn add_rows<'r, S: Simd, E: Stored>(mut self, s: S, rows: impl Iterator<Item = &'r [u8]> + Clone) {
        let len = self.out[0].len();
        let (vectors, mut done) = (len / 16, 0);
        // As many sums at once as registers hold: fewer would wait for one another.
        if S::LARGE_TILES || T == 1 {
            while done + 4 <= vectors {
                self.add::<S, E, 4>(s, rows.clone(), done);
                done += 4;
            }
        }
        while done < vectors {
            self.add::<S, E, 1>(s, rows.clone(), done);
            done += 1;
        }
        if !len.is_multiple_of(16) {
            self.add_tail::<S, E>(s, rows);
        }
    }

    /// Adds to `N` vectors of every output, which begin at the vector `first` of each row.
    #[inline(always)]
    fn add<'r, S: Simd, E: Stored, const N: usize>(
        &mut self,
        s: S,
        rows: impl Iterator<Item = &'r [u8]>,
        first: usize,
    ) {
        let (len, mut sums) = (self.out[0].len(), [[s.splat(0.0); N]; T]);
        for t in 0..T {
            for i in 0..N {
                sums[t][i] = s.load(&self.out[t].as_chunks::<16>().0[first + i]);
            }
        }
        for (j, row) in rows.enumerate() {
            let values = E::load::<S, N>(s, row, len, first);
            for t in 0..T {
                let weight = s.splat(self.weights[t][j]);
                for i in 0..N {
                    sums[t][i] = s.fma(weight, values[i], sums[t][i]);
                }
            }
        }
        for t in 0..T {
            for i in 0..N {
                s.store(sums[t][i], &mut self.out[t].as_chunks_mut::<16>().0[first + i]);
            }
        }
    }

    /// Adds to what is left of every output behind its last whole vector.
    #[inline(always)]
    fn add_tail<'r, S: Simd, E: Stored>(self, s: S, rows: impl Iterator<Item = &'r [u8]> + Clone) {
        for (weights, out) in self.weights.into_iter().zip(self.out) {
            let len = out.len();
            let tail = out.as_chunks_mut::<16>().1;
            let mut sums = load_part(s, tail);
            for (weight, row) in weights.iter().zip(rows.clone()) {
                sums = s.fma(s.splat(*weight), E::load_part(s, row, len), sums);
            }
            store_part(s, sums, tail);
        }
    }
}

/// The same for one output and a part of each row.
pub(in super::super) struct MixPart<'a> {
    pub weights: &'a [f32],
    /// From the first part on.
    pub values: FloatRun<'a>,
    /// Elements from one row to the next.
    pub stride: usize,
    pub out: &'a mut [f32],
}

impl Kernel for MixPart<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let bytes = self.values.bytes();
        match self.values {
            FloatRun::F16(_) => self.parts::<S, F16>(s, bytes),
            FloatRun::F32(_) => self.parts::<S, F32>(s, bytes),
        }
    }
}

impl MixPart<'_> {
    #[inline(always)]
    fn parts<S: Simd, E: Element>(self, s: S, bytes: &[u8]) {
        let (size, count) = (bytes.len() / self.values.len(), self.weights.len());
        let (part, stride) = (size * self.out.len(), size * self.stride);
        let rows = bytes.chunks(stride).take(count).map(|row| &row[..part]);
        let sums = Sums { weights: [self.weights], out: [self.out] };
        sums.add_rows::<S, E>(s, rows);
    }
}
