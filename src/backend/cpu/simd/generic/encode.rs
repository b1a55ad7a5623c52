//! Encoders of K-quants. A lane has a group, so that 16 searches run side by side and each keeps the order of the plain encoder's sums.

use crate::backend::cpu::simd::vector::{Kernel, Simd};
use crate::quant::encode::kquant::{
    LEAST_MAGNITUDE, ROUNDER, ROUNDER_ZERO, SIGNED_WIDTH, Search, SignedSteps, Steps, signed_widths,
};

/// Blocks of Q4_K or Q5_K, `BYTES` each.
pub(in super::super) struct Groups<'a, const BYTES: usize> {
    pub values: &'a [f32],
    pub out: &'a mut [u8],
    pub search: Search,
    /// Makes a block.
    pub pack: fn(&Steps, &[u8; 256]) -> [u8; BYTES],
}

impl<const BYTES: usize> Kernel for Groups<'_, BYTES> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.out.as_chunks_mut::<BYTES>().0;
        for (values, blocks) in self.values.chunks(512).zip(blocks.chunks_mut(2)) {
            let values = across::<32>(values);
            let grids = search(s, &values, self.search);
            let steps = [Steps::new(&grids.step[0], &grids.min[0]), Steps::new(&grids.step[1], &grids.min[1])];
            let codes = codes(s, &values, &steps, &grids, self.search);
            for (index, block) in blocks.iter_mut().enumerate() {
                *block = (self.pack)(&steps[index], &codes[index]);
            }
        }
    }
}

/// Groups of `N` values as lanes; those that are missing are zero.
#[inline(always)]
fn across<const N: usize>(values: &[f32]) -> [[f32; 16]; N] {
    let mut out = [[0.0; 16]; N];
    for (lane, group) in values.as_chunks::<N>().0.iter().enumerate() {
        for (out, &value) in out.iter_mut().zip(group) {
            out[lane] = value;
        }
    }
    out
}

/// `a - b`
#[inline(always)]
fn sub<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
    s.fma(b, s.splat(-1.0), a)
}

#[inline(always)]
fn abs<S: Simd>(s: S, a: S::F) -> S::F {
    s.as_float(s.and(s.as_int(a), s.splat_int(0x7fff_ffff)))
}

/// The nearest whole numbers from `least` to `most`, as the plain encoder finds them: for numbers of more than 22 bits it is any of these.
#[inline(always)]
fn nearest<S: Simd>(s: S, x: S::F, least: i32, most: f32) -> S::F {
    let low = s.and(s.as_int(s.add(x, s.splat(ROUNDER))), s.splat_int(0x007f_ffff));
    let whole = s.max_int(s.add_int(low, s.splat_int(-ROUNDER_ZERO)), s.splat_int(least));
    s.min(s.to_float(whole), s.splat(most))
}

/// What the searches found, by lane; two blocks have 8 lanes each.
struct Grids<S: Simd> {
    /// Widths of steps.
    step: [[f32; 8]; 2],
    /// What to subtract.
    min: [[f32; 8]; 2],
    /// Steps in a unit.
    factor: S::F,
    /// What the codes of the best grid count from.
    least: S::F,
}

/// What does not change during a search.
struct Group<'a, S: Simd> {
    values: &'a [[f32; 16]; 32],
    weights: [[f32; 16]; 32],
    weight_sum: S::F,
    value_sum: S::F,
    least: S::F,
    most: S::F,
}

impl<S: Simd> Group<'_, S> {
    #[inline(always)]
    fn new(s: S, values: &[[f32; 16]; 32]) -> Group<'_, S> {
        let mut squares = s.splat(0.0);
        for value in values {
            let value = s.load(value);
            squares = s.add(squares, s.mul(value, value));
        }
        let mut mean = [0.0; 16];
        s.store(s.mul(squares, s.splat(1.0 / 32.0)), &mut mean);
        for mean in &mut mean {
            *mean = mean.sqrt();
        }
        let mut weights = [[0.0; 16]; 32];
        for (weight, value) in weights.iter_mut().zip(values) {
            s.store(s.add(s.load(&mean), abs(s, s.load(value))), weight);
        }
        let (value, weight) = (s.load(&values[0]), s.load(&weights[0]));
        let (mut least, mut most, mut weight_sum, mut value_sum) = (value, value, weight, s.mul(weight, value));
        for index in 1..32 {
            let (value, weight) = (s.load(&values[index]), s.load(&weights[index]));
            (least, most) = (s.min(value, least), s.max(value, most));
            weight_sum = s.add(weight_sum, weight);
            value_sum = s.add(value_sum, s.mul(weight, value));
        }
        Group { values, weights, weight_sum, value_sum, least: s.min(s.splat(0.0), least), most }
    }

    /// Codes in the grid with `factor` steps in a unit from `least` on, and the sums of codes, of their squares and of their products with values,
    /// all weighted.
    #[inline(always)]
    fn codes(&self, s: S, factor: S::F, least: S::F, top: f32, codes: &mut [[f32; 16]; 32]) -> [S::F; 3] {
        let mut sums = [s.splat(0.0); 3];
        for index in 0..32 {
            let (value, weight) = (s.load(&self.values[index]), s.load(&self.weights[index]));
            let code = nearest(s, s.mul(factor, sub(s, value, least)), 0, top);
            s.store(code, &mut codes[index]);
            let weighted = s.mul(weight, code);
            sums[0] = s.add(sums[0], weighted);
            sums[1] = s.add(sums[1], s.mul(weighted, code));
            sums[2] = s.add(sums[2], s.mul(weighted, value));
        }
        sums
    }

    /// The weighted square error of codes.
    #[inline(always)]
    fn error(&self, s: S, step: S::F, min: S::F, codes: &[[f32; 16]; 32]) -> S::F {
        let mut error = s.splat(0.0);
        for index in 0..32 {
            let decoded = s.add(s.mul(step, s.load(&codes[index])), min);
            let difference = sub(s, decoded, s.load(&self.values[index]));
            error = s.add(error, s.mul(s.load(&self.weights[index]), s.mul(difference, difference)));
        }
        error
    }
}

/// The best grids of 16 groups.
#[inline(always)]
fn search<S: Simd>(s: S, values: &[[f32; 16]; 32], search: Search) -> Grids<S> {
    let (group, top, zero) = (Group::new(s, values), f32::from(search.most), s.splat(0.0));
    let mut codes = [[0.0; 16]; 32];
    let (mut factor, mut least) = (s.div(s.splat(top), sub(s, group.most, group.least)), group.least);
    let (mut step, mut min) = (s.div(s.splat(1.0), factor), least);
    group.codes(s, factor, least, top, &mut codes);
    let mut error = group.error(s, step, min, &codes);
    for width in search.widths() {
        let (tried, from) = (s.div(s.splat(width), sub(s, group.most, min)), min);
        let [sum, squares, products] = group.codes(s, tried, from, top, &mut codes);
        let determinant = sub(s, s.mul(group.weight_sum, squares), s.mul(sum, sum));
        let by = sub(s, s.mul(group.weight_sum, products), s.mul(group.value_sum, sum));
        let at = s.div(sub(s, s.mul(squares, group.value_sum), s.mul(sum, products)), determinant);
        let new_step = s.pick(at, zero, s.div(products, squares), s.div(by, determinant));
        let new_min = s.min(zero, at);
        let found = group.error(s, new_step, new_min, &codes);
        // Where there is no fit, nothing is better than it.
        let found = s.pick(determinant, zero, found, s.splat(f32::INFINITY));
        (step, min) = (s.pick(error, found, new_step, step), s.pick(error, found, new_min, min));
        (factor, least) = (s.pick(error, found, tried, factor), s.pick(error, found, from, least));
        error = s.min(found, error);
    }
    // Groups whose values are all the same, and not negative, have no steps.
    let choose = |of: S::F, alone: S::F| s.pick(group.most, group.least, of, alone);
    let (step, min) = (choose(step, zero), choose(min, group.least));
    let (factor, least) = (choose(factor, zero), choose(least, group.least));
    Grids { step: halves(s, step), min: halves(s, s.mul(min, s.splat(-1.0))), factor, least }
}

#[inline(always)]
fn halves<S: Simd>(s: S, x: S::F) -> [[f32; 8]; 2] {
    let mut lanes = [[0.0; 8]; 2];
    let mut whole = [0.0; 16];
    s.store(x, &mut whole);
    lanes.as_flattened_mut().copy_from_slice(&whole);
    lanes
}

/// 1 for lanes with a step, others are 0.
#[inline(always)]
fn has_step(steps: &[f32; 16]) -> [f32; 16] {
    let mut out = [0.0; 16];
    for (out, step) in out.iter_mut().zip(steps) {
        *out = if *step == 0.0 { 0.0 } else { 1.0 };
    }
    out
}

/// The codes of two blocks in the grids that are stored; where one has no step, those of the search.
#[inline(always)]
fn codes<S: Simd>(
    s: S,
    values: &[[f32; 16]; 32],
    steps: &[Steps; 2],
    grids: &Grids<S>,
    search: Search,
) -> [[u8; 256]; 2] {
    let (mut step, mut min) = ([0.0; 16], [0.0; 16]);
    for (index, steps) in steps.iter().enumerate() {
        step[8 * index..][..8].copy_from_slice(&steps.step);
        min[8 * index..][..8].copy_from_slice(&steps.min);
    }
    let (has_step, step, min, top) = (s.load(&has_step(&step)), s.load(&step), s.load(&min), f32::from(search.most));
    let mut out = [[0; 256]; 2];
    for (index, value) in values.iter().enumerate() {
        let value = s.load(value);
        let stored = nearest(s, s.div(s.add(value, min), step), 0, top);
        let found = nearest(s, s.mul(grids.factor, sub(s, value, grids.least)), 0, top);
        let mut lanes = [0; 16];
        s.store_low_bytes(s.round(s.pick(has_step, s.splat(0.0), stored, found)), &mut lanes);
        for (lane, code) in lanes.into_iter().enumerate() {
            out[lane / 8][lane % 8 * 32 + index] = code as u8;
        }
    }
    out
}

/// Blocks of Q6_K.
pub(in super::super) struct SignedGroups<'a> {
    pub values: &'a [f32],
    pub out: &'a mut [u8],
}

impl Kernel for SignedGroups<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (values, block) in self.values.chunks(256).zip(self.out.as_chunks_mut::<210>().0) {
            let group = Signed::new(s, &across::<16>(values));
            let (factor, step) = group.search(s);
            *block = match SignedSteps::new(&step) {
                Some(steps) => steps.q6_k(&group.codes(s, factor, &steps.step)),
                None => [0; 210],
            };
        }
    }
}

/// What does not change during a search.
struct Signed<S: Simd> {
    values: [[f32; 16]; 16],
    /// The values of largest magnitude, the first of several.
    extreme: S::F,
}

impl<S: Simd> Signed<S> {
    #[inline(always)]
    fn new(s: S, values: &[[f32; 16]; 16]) -> Signed<S> {
        let mut extreme = s.splat(0.0);
        for value in values {
            let value = s.load(value);
            extreme = s.pick(abs(s, value), abs(s, extreme), value, extreme);
        }
        Signed { values: *values, extreme }
    }

    /// The sums of products of values with codes, and of squares of codes, with squares of values for weights.
    #[inline(always)]
    fn sums(&self, s: S, factor: S::F) -> [S::F; 2] {
        let mut sums = [s.splat(0.0); 2];
        for value in &self.values {
            let value = s.load(value);
            let code = nearest(s, s.mul(factor, value), -32, 31.0);
            let weight = s.mul(value, value);
            sums[0] = s.add(sums[0], s.mul(s.mul(weight, value), code));
            sums[1] = s.add(sums[1], s.mul(s.mul(weight, code), code));
        }
        sums
    }

    /// Steps in a unit of the best grids, and the widths of their steps.
    #[inline(always)]
    fn search(&self, s: S) -> (S::F, [f32; 16]) {
        let zero = s.splat(0.0);
        let mut factor = s.div(s.splat(-SIGNED_WIDTH), self.extreme);
        let [products, squares] = self.sums(s, factor);
        // Only zero is below the least number.
        let mut step = s.pick(s.splat(f32::from_bits(1)), squares, zero, s.div(products, squares));
        let mut best = s.mul(step, products);
        for width in signed_widths() {
            let tried = s.div(s.splat(-width), self.extreme);
            let [products, squares] = self.sums(s, tried);
            let gain = s.pick(squares, zero, s.mul(products, products), s.splat(f32::NEG_INFINITY));
            let bar = s.mul(best, squares);
            step = s.pick(gain, bar, s.div(products, squares), step);
            best = s.pick(gain, bar, s.mul(step, products), best);
            factor = s.pick(gain, bar, tried, factor);
        }
        let mut steps = [0.0; 16];
        s.store(s.pick(s.splat(LEAST_MAGNITUDE), abs(s, self.extreme), zero, step), &mut steps);
        (factor, steps)
    }

    /// The codes in the grids that are stored, plus 32; where one has no step, those of the search.
    #[inline(always)]
    fn codes(&self, s: S, factor: S::F, step: &[f32; 16]) -> [u8; 256] {
        let (has_step, step) = (s.load(&has_step(step)), s.load(step));
        let (zero, bias) = (s.splat(0.0), s.splat(32.0));
        let mut out = [0; 256];
        for (index, value) in self.values.iter().enumerate() {
            let value = s.load(value);
            let found = s.add(nearest(s, s.mul(factor, value), -32, 31.0), bias);
            let found = s.pick(s.splat(LEAST_MAGNITUDE), abs(s, self.extreme), zero, found);
            let stored = s.add(nearest(s, s.div(value, step), -32, 31.0), bias);
            let mut lanes = [0; 16];
            s.store_low_bytes(s.round(s.pick(has_step, zero, stored, found)), &mut lanes);
            for (lane, code) in lanes.into_iter().enumerate() {
                out[16 * lane + index] = code as u8;
            }
        }
        out
    }
}
