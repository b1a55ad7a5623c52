//! Any storage type as codes of 8 bits, each 16 under a scale: for backends that have no kernel for a type.
//!
//! What is written comes from the plain decoders. Wherever 16 values are whole numbers to 127 times one single, `scale * code` gives each of them
//! back bit for bit, the sign of a zero apart; other values are rounded. The types that have minimums are the only ones here that often need that.

use super::{DType, reference};

/// Values of a group.
pub const GROUP_LEN: usize = 32;
/// Bytes of a group: its codes, then the scales of its halves as little-endian singles.
pub const GROUP_BYTES: usize = GROUP_LEN + 2 * size_of::<f32>();

/// Values under one scale.
const HALF: usize = GROUP_LEN / 2;
/// Largest magnitude of a code.
const MOST: f32 = 127.0;
/// Values of the longest block.
const LONGEST: usize = 256;

/// Writes whole blocks of whole groups as groups of [`GROUP_BYTES`].
///
/// # Panics
/// If `blocks` is no whole number of blocks, a block no whole number of groups, or `out` has not the size of the groups.
pub fn write(dtype: DType, blocks: &[u8], out: &mut [u8]) {
    let len = dtype.block_len();
    assert!(len.is_multiple_of(GROUP_LEN) && len <= LONGEST, "a block of {dtype} is no whole number of groups");
    let groups_bytes = len / GROUP_LEN * GROUP_BYTES;
    assert_eq!(out.len(), blocks.len() / dtype.block_bytes() * groups_bytes);
    let mut values = [0.0; LONGEST];
    for (block, out) in blocks.chunks(dtype.block_bytes()).zip(out.chunks_mut(groups_bytes)) {
        reference::decode(dtype, block, &mut values[..len]);
        let mut ratio = 1.0;
        let (groups, _) = values[..len].as_chunks::<GROUP_LEN>();
        groups.iter().zip(out.chunks_mut(GROUP_BYTES)).for_each(|(values, out)| write_group(values, &mut ratio, out));
    }
}

fn write_group(values: &[f32; GROUP_LEN], ratio: &mut f32, out: &mut [u8]) {
    let (codes, scales) = out.split_at_mut(GROUP_LEN);
    let halves = values.as_chunks::<HALF>().0.iter().zip(codes.chunks_mut(HALF));
    for ((values, codes), scale) in halves.zip(scales.chunks_mut(size_of::<f32>())) {
        let unit = unit(values, ratio);
        codes.iter_mut().zip(codes_of(values, unit)).for_each(|(to, code)| *to = code as i8 as u8);
        scale.copy_from_slice(&unit.to_le_bytes());
    }
}

/// What all values are multiples of: by Euclid's algorithm, in which every remainder is exact. Where there is none that keeps codes to
/// [`MOST`], the one that rounds the largest to it. `ratio` is how many units the smallest value had the last time: most often it has as many.
fn unit(values: &[f32; HALF], ratio: &mut f32) -> f32 {
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let odd = values.iter().find(|value| value.is_infinite()).or(values.iter().find(|value| value.is_nan()));
    if let Some(odd) = odd.or(values.first().filter(|_| largest == 0.0)) {
        return *odd;
    }
    let least = |smallest: f32, value: &f32| if *value == 0.0 { smallest } else { smallest.min(value.abs()) };
    let smallest = values.iter().fold(largest, least);
    if largest / smallest * *ratio < MOST + 0.5 && are_multiples(values, smallest / *ratio) {
        return smallest / *ratio;
    }
    let mut unit = smallest;
    while largest / unit < MOST + 0.5 {
        let mut pairs = values.iter().zip(codes_of(values, unit));
        let Some((other, _)) = pairs.find(|(value, code)| **value != unit * code) else {
            *ratio = (smallest / unit).round();
            return unit;
        };
        let mut rest = other.abs() % unit;
        while rest > 0.0 {
            (unit, rest) = (rest, unit % rest);
        }
    }
    largest / MOST
}

fn are_multiples(values: &[f32; HALF], unit: f32) -> bool {
    values.iter().zip(codes_of(values, unit)).fold(true, |all, (value, code)| all & (*value == unit * code))
}

/// Nearest whole numbers of units; without a finite unit the signs of infinite values, and 0 where there is no number.
fn codes_of(values: &[f32; HALF], unit: f32) -> [f32; HALF] {
    // Adding and subtracting it rounds to a whole number.
    const ROUNDER: f32 = 1.5 * (1 << 23) as f32;
    if unit.is_finite() && unit != 0.0 {
        return values.map(|value| value / unit + ROUNDER - ROUNDER);
    }
    values.map(|value| if value.is_infinite() { value.signum() * unit.signum() } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Random;
    use super::*;

    /// The values that scales and codes stand for.
    fn read(groups: &[u8]) -> Vec<f32> {
        let value = |(index, code): (usize, &u8), scales: &[u8]| {
            let at = index / HALF * 4;
            f32::from_le_bytes(scales[at..at + 4].try_into().unwrap()) * f32::from(*code as i8)
        };
        let groups = groups.chunks(GROUP_BYTES).map(|group| group.split_at(GROUP_LEN));
        groups.flat_map(|(codes, scales)| codes.iter().enumerate().map(move |code| value(code, scales))).collect()
    }

    fn rewritten(values: &[f32; GROUP_LEN]) -> Vec<f32> {
        let mut out = [0; GROUP_BYTES];
        write_group(values, &mut 1.0, &mut out);
        read(&out)
    }

    fn same(a: f32, b: f32) -> bool {
        a == b || a.is_nan() && b.is_nan()
    }

    #[test]
    fn types_with_scales_alone_keep_every_value() {
        let mut random = Random::new(3);
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.block_len() >= GROUP_LEN) {
            // Any bits: every code and scale, infinite ones and those that are no numbers too.
            let blocks: Vec<u8> = (0..4096 * dtype.block_bytes()).map(|_| random.bits() as u8).collect();
            let mut expected = vec![0.0; 4096 * dtype.block_len()];
            reference::decode(dtype, &blocks, &mut expected);
            let mut out = vec![0; expected.len() / GROUP_LEN * GROUP_BYTES];
            write(dtype, &blocks, &mut out);
            let differing = read(&out).iter().zip(&expected).filter(|(a, b)| !same(**a, **b)).count();
            // Minimums; a code of -128; numbers beside infinite ones under the largest exponents.
            let differs = matches!(dtype, DType::Q4_1 | DType::Q5_1 | DType::Q2_K | DType::Q4_K | DType::Q5_K)
                || matches!(dtype, DType::Q8_0 | DType::MXFP4);
            assert_eq!(differing > 0, differs, "{dtype}: {differing} of {}", expected.len());
        }
    }

    #[test]
    fn multiples_are_found_below_the_smallest_value() {
        let mut values = [0.0; GROUP_LEN];
        for (i, value) in values.iter_mut().enumerate() {
            *value = 1234.0 / (1 << 20) as f32 * if i % 2 == 0 { -25.0 } else { 43.0 };
        }
        assert_eq!(rewritten(&values), values);
    }

    #[test]
    fn other_values_are_rounded_to_a_127th_of_the_largest() {
        let mut random = Random::new(5);
        let values: [f32; GROUP_LEN] = std::array::from_fn(|_| random.uniform());
        for (half, (values, found)) in values.chunks(HALF).zip(rewritten(&values).chunks(HALF)).enumerate() {
            let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let worst = values.iter().zip(found).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
            assert!(worst > 0.0 && worst <= 0.501 * largest / MOST, "half {half}: {worst} of {largest}");
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let mut values = [0.0; GROUP_LEN];
        values[3] = f32::NEG_INFINITY;
        values[20] = f32::NAN;
        let found = rewritten(&values);
        assert_eq!(found[3], f32::NEG_INFINITY);
        assert!(found[20].is_nan() && found[31].is_nan());
    }
}
