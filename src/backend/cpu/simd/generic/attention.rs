//! The pieces of attention over a run of cached keys and values.

use super::exp::exp;
use super::float::{Element, F16, F32, dot_lanes};
use super::{load_part, store_part};
use crate::backend::cpu::simd::operand::KvRun;
use crate::backend::cpu::simd::vector::{Kernel, Simd};

pub(in super::super) struct DotRows<'a> {
    pub q: &'a [f32],
    pub k: KvRun<'a>,
    pub scale: f32,
    pub out: &'a mut [f32],
}

impl Kernel for DotRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let bytes = self.k.bytes();
        match self.k {
            KvRun::F16(_) => self.rows::<S, F16>(s, bytes),
            KvRun::F32(_) => self.rows::<S, F32>(s, bytes),
        }
    }
}

impl DotRows<'_> {
    #[inline(always)]
    fn rows<S: Simd, E: Element>(self, s: S, bytes: &[u8]) {
        let row_bytes = bytes.len() / self.out.len().max(1);
        for (i, out) in self.out.chunks_mut(16).enumerate() {
            let bytes = &bytes[16 * i * row_bytes..][..out.len() * row_bytes];
            // Where rows are missing, the last one stands in.
            let row = |r: usize| &bytes[r.min(out.len() - 1) * row_bytes..][..row_bytes];
            let mut lanes = [s.splat(0.0); 16];
            for four in 0..4 {
                let k = [row(4 * four), row(4 * four + 1), row(4 * four + 2), row(4 * four + 3)];
                let dots = dot_lanes::<S, E, 4, 1>(s, k, [self.q], 0);
                for r in 0..4 {
                    lanes[4 * four + r] = dots[r][0];
                }
            }
            let scores = s.mul(s.sums(lanes), s.splat(self.scale));
            match out.as_mut_array::<16>() {
                Some(out) => s.store(scores, out),
                None => store_part(s, scores, out),
            }
        }
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

pub(in super::super) struct AccumulateRows<'a> {
    pub p: &'a [f32],
    pub v: KvRun<'a>,
    pub acc: &'a mut [f32],
}

impl Kernel for AccumulateRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let bytes = self.v.bytes();
        match self.v {
            KvRun::F16(_) => self.rows::<S, F16>(s, bytes),
            KvRun::F32(_) => self.rows::<S, F32>(s, bytes),
        }
    }
}

impl AccumulateRows<'_> {
    #[inline(always)]
    fn rows<S: Simd, E: Element>(self, s: S, bytes: &[u8]) {
        let AccumulateRows { p, acc, .. } = self;
        if p.is_empty() || acc.is_empty() {
            return;
        }
        let rows = bytes.chunks_exact(bytes.len() / p.len());
        let (fours, rest) = acc.as_chunks_mut::<64>();
        for (i, acc) in fours.iter_mut().enumerate() {
            accumulate::<S, E, 4>(s, p, rows.clone(), 4 * i, acc);
        }
        let first = 4 * fours.len();
        let (ones, tail) = rest.as_chunks_mut::<16>();
        for (i, acc) in ones.iter_mut().enumerate() {
            accumulate::<S, E, 1>(s, p, rows.clone(), first + i, acc);
        }
        if !tail.is_empty() {
            let mut lanes = load_part(s, tail);
            for (p, row) in p.iter().zip(rows) {
                lanes = s.fma(s.splat(*p), E::load_part(s, E::chunks(row).1), lanes);
            }
            store_part(s, lanes, tail);
        }
    }
}

/// `N` vectors of `acc`, which begin at the vector `first` of each row.
#[inline(always)]
fn accumulate<S: Simd, E: Element, const N: usize>(
    s: S,
    p: &[f32],
    rows: std::slice::ChunksExact<u8>,
    first: usize,
    acc: &mut [f32],
) {
    let acc = &mut acc.as_chunks_mut::<16>().0[..N];
    let mut lanes = [s.splat(0.0); N];
    for i in 0..N {
        lanes[i] = s.load(&acc[i]);
    }
    for (p, row) in p.iter().zip(rows) {
        let v = &E::chunks(row).0[first..][..N];
        for i in 0..N {
            lanes[i] = s.fma(s.splat(*p), E::load(s, &v[i]), lanes[i]);
        }
    }
    for i in 0..N {
        s.store(lanes[i], &mut acc[i]);
    }
}
