//! Encoders of K-quants: 256 values in groups with integer scales. Scales come from a search: several grids are laid over a group, a fit by
//! least squares gives each its scale, the one with the smallest weighted error is taken.
//!
//! What follows a search, [`Steps`] and [`SignedSteps`], is of use to whoever searches another way.

use super::half;

/// Magnitudes below this are as good as none.
pub const LEAST_MAGNITUDE: f32 = 1e-15;

/// What leaves no room for a fraction when it is added: the low 23 bits of the sum are the nearest whole number plus [`ROUNDER_ZERO`].
pub const ROUNDER: f32 = 12_582_912.0;
/// The low bits for 0.
pub const ROUNDER_ZERO: i32 = 0x0040_0000;

/// The nearest whole number, the even one of two.
fn nearest(value: f32) -> i32 {
    ((value + ROUNDER).to_bits() & 0x007f_ffff) as i32 - ROUNDER_ZERO
}

/// How the grids for a group with a minimum are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Largest code.
    pub most: u8,
    /// What is added to that for the first grid.
    first: f32,
    /// And with every further one.
    step: f32,
    /// How many there are behind the first.
    steps: u8,
}

impl Search {
    /// How many steps wide the grids are that are laid over a group after the first, which is [`Search::most`] wide.
    pub fn widths(self) -> impl Iterator<Item = f32> {
        (0..=self.steps).map(move |step| self.first + self.step * f32::from(step) + f32::from(self.most))
    }
}

/// That of Q4_K.
pub const Q4_K: Search = Search { most: 15, first: -1.0, step: 0.1, steps: 20 };
/// That of Q5_K.
pub const Q5_K: Search = Search { most: 31, first: -0.5, step: 0.1, steps: 15 };

/// How many steps lie between zero and the extreme of a group of Q6_K in the first grid.
pub const SIGNED_WIDTH: f32 = 32.0;

/// The same of the grids that may take its place.
pub fn signed_widths() -> impl Iterator<Item = f32> {
    (-9i8..=9).filter(|&step| step != 0).map(|step| SIGNED_WIDTH + 0.1 * f32::from(step))
}

/// A scale, a minimum to subtract, and the codes of a group.
struct Fit {
    scale: f32,
    min: f32,
    codes: [u8; 32],
}

/// Codes of 32 values above a minimum that is not positive.
fn fit(values: &[f32; 32], weights: &[f32; 32], search: Search) -> Fit {
    let (mut least, mut most) = (values[0], values[0]);
    let (mut weight_sum, mut value_sum) = (weights[0], weights[0] * values[0]);
    for (&value, &weight) in values.iter().zip(weights).skip(1) {
        least = if value < least { value } else { least };
        most = if value > most { value } else { most };
        weight_sum += weight;
        value_sum += weight * value;
    }
    least = if least > 0.0 { 0.0 } else { least };
    if most == least {
        return Fit { scale: 0.0, min: -least, codes: [0; 32] };
    }
    let codes = |factor: f32, least: f32| {
        values.map(|value| nearest(factor * (value - least)).clamp(0, search.most.into()) as u8)
    };
    let error = |scale: f32, min: f32, codes: &[u8; 32]| {
        values.iter().zip(weights).zip(codes).fold(0.0f32, |error, ((value, weight), &code)| {
            let difference = scale * f32::from(code) + min - value;
            error + weight * (difference * difference)
        })
    };
    let factor = f32::from(search.most) / (most - least);
    let mut best = Fit { scale: 1.0 / factor, min: least, codes: codes(factor, least) };
    let mut best_error = error(best.scale, least, &best.codes);
    for width in search.widths() {
        // The grid begins at the minimum found so far.
        let factor = width / (most - best.min);
        let codes = codes(factor, best.min);
        let (mut sum, mut squares, mut products) = (0.0f32, 0.0f32, 0.0f32);
        for ((value, weight), &code) in values.iter().zip(weights).zip(&codes) {
            let code = f32::from(code);
            sum += weight * code;
            squares += weight * code * code;
            products += weight * code * value;
        }
        let determinant = weight_sum * squares - sum * sum;
        if determinant > 0.0 {
            let mut scale = (weight_sum * products - value_sum * sum) / determinant;
            let mut min = (squares * value_sum - sum * products) / determinant;
            if min > 0.0 {
                (scale, min) = (products / squares, 0.0);
            }
            let found = error(scale, min, &codes);
            if found < best_error {
                (best, best_error) = (Fit { scale, min, codes }, found);
            }
        }
    }
    Fit { min: -best.min, ..best }
}

/// The grids of the 8 groups of a block as they are stored.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// Width of a step of each group.
    pub step: [f32; 8],
    /// What each group's values are less than its grid's.
    pub min: [f32; 8],
    /// The halves that scale all widths and all minimums.
    halves: [u8; 4],
    /// These in 6 bits each.
    packed: [u8; 12],
}

impl Steps {
    /// The grids that the searches gave, made fit to be stored: widths of steps, and what to subtract.
    pub fn new(steps: &[f32; 8], mins: &[f32; 8]) -> Steps {
        let largest = |of: &[f32; 8]| of.iter().fold(0.0f32, |most, &x| if x > most { x } else { most });
        let (step, min) = (largest(steps), largest(mins));
        let factor = |largest: f32| if largest > 0.0 { 63.0 / largest } else { 0.0 };
        let six_bits = |largest: f32, value: f32| (nearest(factor(largest) * value) as u8).min(63);
        let (steps, mins) = (steps.map(|x| six_bits(step, x)), mins.map(|x| six_bits(min, x)));
        let mut packed = [0u8; 12];
        for group in 0..4 {
            (packed[group], packed[group + 4]) = (steps[group], mins[group]);
        }
        for group in 4..8 {
            packed[group + 4] = steps[group] & 15 | mins[group] << 4;
            packed[group - 4] |= steps[group] >> 4 << 6;
            packed[group] |= mins[group] >> 4 << 6;
        }
        let ((step_half, step), (min_half, min)) = (half(step / 63.0), half(min / 63.0));
        let halves = [step_half[0], step_half[1], min_half[0], min_half[1]];
        Steps { step: steps.map(|x| step * f32::from(x)), min: mins.map(|x| min * f32::from(x)), halves, packed }
    }

    /// A block of Q4_K of codes of 4 bits.
    pub fn q4_k(&self, codes: &[u8; 256]) -> [u8; 144] {
        let mut block = [0; 144];
        block[..4].copy_from_slice(&self.halves);
        block[4..16].copy_from_slice(&self.packed);
        pack_nibbles(codes, &mut block[16..]);
        block
    }

    /// A block of Q5_K of codes of 5 bits.
    pub fn q5_k(&self, codes: &[u8; 256]) -> [u8; 176] {
        let mut block = [0; 176];
        block[..4].copy_from_slice(&self.halves);
        block[4..16].copy_from_slice(&self.packed);
        for (index, byte) in block[16..48].iter_mut().enumerate() {
            *byte = (0..8).fold(0, |bits, group| bits | (codes[32 * group + index] >> 4) << group);
        }
        pack_nibbles(codes, &mut block[48..]);
        block
    }
}

/// Nibbles of two groups of 32 in 32 bytes each.
fn pack_nibbles(codes: &[u8; 256], out: &mut [u8]) {
    for (index, byte) in out.iter_mut().enumerate() {
        let low = index / 32 * 64 + index % 32;
        *byte = codes[low] & 15 | codes[low + 32] << 4;
    }
}

/// Grids and codes of 256 values in 8 groups.
fn groups(values: &[f32; 256], search: Search) -> (Steps, [u8; 256]) {
    let fits: [Fit; 8] = std::array::from_fn(|group| {
        let values = &values.as_chunks::<32>().0[group];
        let squares = values.iter().fold(0.0f32, |sum, value| sum + value * value);
        let mean = (squares / 32.0).sqrt();
        let weights: [f32; 32] = std::array::from_fn(|index| mean + values[index].abs());
        fit(values, &weights, search)
    });
    let steps =
        Steps::new(&std::array::from_fn(|group| fits[group].scale), &std::array::from_fn(|group| fits[group].min));
    let mut codes = [0; 256];
    for (index, (code, value)) in codes.iter_mut().zip(values).enumerate() {
        let step = steps.step[index / 32];
        *code = fits[index / 32].codes[index % 32];
        // Without a step codes mean nothing; the reference leaves those of the search.
        if step != 0.0 {
            *code = nearest((value + steps.min[index / 32]) / step).clamp(0, search.most.into()) as u8;
        }
    }
    (steps, codes)
}

/// 256 values of 4 bits in 8 groups.
pub(super) fn q4_k(values: &[f32; 256]) -> [u8; 144] {
    let (steps, codes) = groups(values, Q4_K);
    steps.q4_k(&codes)
}

/// 256 values of 5 bits in 8 groups.
pub(super) fn q5_k(values: &[f32; 256]) -> [u8; 176] {
    let (steps, codes) = groups(values, Q5_K);
    steps.q5_k(&codes)
}

/// The scale of 16 values whose codes reach from -32 to 31, and the codes plus 32.
fn symmetric(values: &[f32; 16]) -> (f32, [u8; 16]) {
    let extreme = values.iter().fold(0.0f32, |most, &value| if value.abs() > most.abs() { value } else { most });
    if extreme.abs() < LEAST_MAGNITUDE {
        return (0.0, [0; 16]);
    }
    let code = |factor: f32, value: f32| nearest(factor * value).clamp(-32, 31);
    let sums = |factor: f32| {
        values.iter().fold((0.0f32, 0.0f32), |(products, squares), &value| {
            let code = code(factor, value) as f32;
            let weight = value * value;
            (products + weight * value * code, squares + weight * code * code)
        })
    };
    let mut factor = -SIGNED_WIDTH / extreme;
    let (products, squares) = sums(factor);
    let mut scale = if squares == 0.0 { 0.0 } else { products / squares };
    let mut best = scale * products;
    for width in signed_widths() {
        let tried = -width / extreme;
        let (products, squares) = sums(tried);
        if squares > 0.0 && products * products > best * squares {
            scale = products / squares;
            best = scale * products;
            factor = tried;
        }
    }
    (scale, values.map(|value| (code(factor, value) + 32) as u8))
}

/// The grids of the 16 groups of a block of Q6_K as they are stored.
#[derive(Clone, Copy, Debug)]
pub struct SignedSteps {
    /// Width of a step of each group, of either sign.
    pub step: [f32; 16],
    /// The half that scales all widths.
    half: [u8; 2],
    /// These in 8 bits each.
    scales: [i8; 16],
}

impl SignedSteps {
    /// The widths that the searches gave, made fit to be stored; none where all are as good as zero, and the block is all zeros.
    pub fn new(steps: &[f32; 16]) -> Option<SignedSteps> {
        let extreme = steps.iter().fold(0.0f32, |most, &step| if step.abs() > most.abs() { step } else { most });
        if extreme.abs() < LEAST_MAGNITUDE {
            return None;
        }
        let factor = -128.0 / extreme;
        let (half, scale) = half(1.0 / factor);
        let scales = steps.map(|step| nearest(factor * step).min(127) as i8);
        Some(SignedSteps { step: scales.map(|step| scale * f32::from(step)), half, scales })
    }

    /// A block of codes of 6 bits, each plus 32.
    pub fn q6_k(&self, codes: &[u8; 256]) -> [u8; 210] {
        let mut block = [0; 210];
        for (index, byte) in block[..128].iter_mut().enumerate() {
            let low = index / 64 * 128 + index % 64;
            *byte = codes[low] & 15 | codes[low + 64] << 4;
        }
        for (index, byte) in block[128..192].iter_mut().enumerate() {
            let first = index / 32 * 128 + index % 32;
            *byte = (0..4).fold(0, |bits, part| bits | codes[first + 32 * part] >> 4 << (2 * part));
        }
        block[192..208].iter_mut().zip(self.scales).for_each(|(byte, scale)| *byte = scale as u8);
        block[208..].copy_from_slice(&self.half);
        block
    }
}

/// 256 values of 6 bits in 16 groups.
pub(super) fn q6_k(values: &[f32; 256]) -> [u8; 210] {
    let fits: [(f32, [u8; 16]); 16] = std::array::from_fn(|group| symmetric(&values.as_chunks::<16>().0[group]));
    let Some(steps) = SignedSteps::new(&fits.map(|(step, _)| step)) else { return [0; 210] };
    let mut codes = [0u8; 256];
    for (index, (code, value)) in codes.iter_mut().zip(values).enumerate() {
        let step = steps.step[index / 16];
        *code = fits[index / 16].1[index % 16];
        if step != 0.0 {
            *code = (nearest(value / step).clamp(-32, 31) + 32) as u8;
        }
    }
    steps.q6_k(&codes)
}
