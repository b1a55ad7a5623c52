//! Encoders of the blocks of 32 values with one scale.

use super::{half, inverse};

/// The value of largest magnitude, the first of several.
fn extreme(values: &[f32; 32]) -> f32 {
    values.iter().fold(0.0, |most: f32, &value| if value.abs() > most.abs() { value } else { most })
}

/// The smallest and the largest value.
fn range(values: &[f32; 32]) -> (f32, f32) {
    values.iter().fold((f32::MAX, f32::MIN), |(least, most), &value| {
        (if value < least { value } else { least }, if value > most { value } else { most })
    })
}

/// 32 values of 8 bits under one scale.
pub(super) fn q8_0(values: &[f32; 32]) -> [u8; 34] {
    let mut block = [0; 34];
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = largest / 127.0;
    let factor = inverse(scale);
    block[..2].copy_from_slice(&half(scale).0);
    block[2..].iter_mut().zip(values).for_each(|(code, value)| *code = (value * factor).round() as i8 as u8);
    block
}

/// Nibbles: the first half of the values low, the second high.
fn nibbles(codes: [u8; 32], out: &mut [u8]) {
    for (index, byte) in out.iter_mut().enumerate() {
        *byte = codes[index] & 15 | codes[index + 16] << 4;
    }
}

/// The fifth bits of 32 codes.
fn fifth_bits(codes: [u8; 32]) -> [u8; 4] {
    let bits = codes.iter().enumerate().fold(0u32, |bits, (index, code)| bits | u32::from(code >> 4 & 1) << index);
    bits.to_le_bytes()
}

/// Codes around the middle of `levels`: the value of largest magnitude is the lowest.
fn centred(values: &[f32; 32], levels: f32) -> ([u8; 2], [u8; 32]) {
    let scale = extreme(values) / -(levels / 2.0);
    let factor = inverse(scale);
    let code = |value: f32| ((value * factor + (levels / 2.0 + 0.5)) as i8).min(levels as i8 - 1) as u8;
    (half(scale).0, values.map(code))
}

/// Codes from the smallest value up.
fn from_least(values: &[f32; 32], levels: f32) -> ([[u8; 2]; 2], [u8; 32]) {
    let (least, most) = range(values);
    let scale = (most - least) / (levels - 1.0);
    let factor = inverse(scale);
    let code = |value: f32| (((value - least) * factor + 0.5) as i8).min(levels as i8 - 1) as u8;
    ([half(scale).0, half(least).0], values.map(code))
}

/// 32 values of 4 bits, centred on 8.
pub(super) fn q4_0(values: &[f32; 32]) -> [u8; 18] {
    let mut block = [0; 18];
    let (scale, codes) = centred(values, 16.0);
    block[..2].copy_from_slice(&scale);
    nibbles(codes, &mut block[2..]);
    block
}

/// 32 values of 4 bits above a minimum.
pub(super) fn q4_1(values: &[f32; 32]) -> [u8; 20] {
    let mut block = [0; 20];
    let (scales, codes) = from_least(values, 16.0);
    block[..4].copy_from_slice(scales.as_flattened());
    nibbles(codes, &mut block[4..]);
    block
}

/// 32 values of 5 bits, centred on 16.
pub(super) fn q5_0(values: &[f32; 32]) -> [u8; 22] {
    let mut block = [0; 22];
    let (scale, codes) = centred(values, 32.0);
    block[..2].copy_from_slice(&scale);
    block[2..6].copy_from_slice(&fifth_bits(codes));
    nibbles(codes, &mut block[6..]);
    block
}

/// 32 values of 5 bits above a minimum.
pub(super) fn q5_1(values: &[f32; 32]) -> [u8; 24] {
    let mut block = [0; 24];
    let (scales, codes) = from_least(values, 32.0);
    block[..4].copy_from_slice(scales.as_flattened());
    block[4..8].copy_from_slice(&fifth_bits(codes));
    nibbles(codes, &mut block[8..]);
    block
}
