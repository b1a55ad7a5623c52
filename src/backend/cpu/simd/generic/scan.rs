//! A row of linear attention through a matrix that lies in blocks of 16 columns: columns in lanes, so that no sum leaves its lane.

use super::{load_part, store_part};
use crate::backend::cpu::simd::ScanRow;
use crate::backend::cpu::simd::vector::{Kernel, Simd};

pub(in super::super) struct Scan<'a> {
    pub row: &'a ScanRow<'a>,
    pub state: &'a mut [f32],
    pub out: &'a mut [f32],
}

impl Kernel for Scan<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Scan { row, state, out } = self;
        let (mut state, mut value, mut out) = (state, row.value, out);
        // Four blocks have as many sums under way as the latency of an addition asks for.
        while value.len() >= 64 {
            (state, value, out) = blocks::<S, 4>(s, row, state, value, out);
        }
        while !value.is_empty() {
            (state, value, out) = blocks::<S, 1>(s, row, state, value, out);
        }
    }
}

/// Computes the first `V` blocks, of which the last may have fewer columns; what is left.
#[inline(always)]
fn blocks<'a, S: Simd, const V: usize>(
    s: S,
    row: &ScanRow,
    state: &'a mut [f32],
    value: &'a [f32],
    out: &'a mut [f32],
) -> (&'a mut [f32], &'a [f32], &'a mut [f32]) {
    let rows = row.key.len();
    let (state, state_left) = state.split_at_mut(V * rows * 16);
    let cols = value.len().min(V * 16);
    let ((value, value_left), (out, out_left)) = (value.split_at(cols), out.split_at_mut(cols));
    let lanes = state.as_chunks_mut::<16>().0;
    let (kept, strength) = (s.splat(row.kept), s.splat(row.strength));
    let mut values = [s.splat(0.0); V];
    for (lane, part) in values.iter_mut().zip(value.chunks(16)) {
        *lane = load_part(s, part);
    }
    let mut new = values;
    if row.is_delta {
        let mut known = [s.splat(0.0); V];
        for i in 0..rows {
            let key = s.splat(row.key[i]);
            for v in 0..V {
                known[v] = s.fma(s.mul(s.load(&lanes[v * rows + i]), kept), key, known[v]);
            }
        }
        for v in 0..V {
            new[v] = s.fma(known[v], s.splat(-1.0), values[v]);
        }
    }
    for v in 0..V {
        new[v] = s.mul(new[v], strength);
    }
    let mut sums = [s.splat(0.0); V];
    for i in 0..rows {
        let (key, query) = (s.splat(row.key[i]), s.splat(row.query[i]));
        for v in 0..V {
            let place = &mut lanes[v * rows + i];
            let now = s.fma(key, new[v], s.mul(s.load(place), kept));
            s.store(now, place);
            sums[v] = s.fma(now, query, sums[v]);
        }
    }
    if let Some(skip) = row.skip {
        for v in 0..V {
            sums[v] = s.fma(s.splat(skip), values[v], sums[v]);
        }
    }
    for (sum, part) in sums.iter().zip(out.chunks_mut(16)) {
        store_part(s, *sum, part);
    }
    (state_left, value_left, out_left)
}
