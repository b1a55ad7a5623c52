//! Made-up weights for tests and benchmarks of kernels; no part of the engine calls it.
//!
//! It is public rather than a test module because unit tests, integration tests and benchmarks need the same blocks.
//! The bits of a block are random, so every code, scale and sign of a format occurs; only what scales a whole block is
//! set, such that the values are finite and the largest is near 1. Equal seeds give equal bytes on every machine.

use std::mem::offset_of;

use half::{bf16, f16};

use super::blocks::{IQ1_M, MXFP4, NVFP4, Q2_K, Q3_K, Q4_1, Q4_K, Q5_1, Q5_K, Q6_K, TQ1_0, TQ2_0};
use super::{DType, reference};

/// A stream of random numbers: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// The stream that belongs to a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// The next number of an even distribution in [-1, 1).
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `count` numbers of [`Random::uniform`].
    pub fn uniforms(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.uniform()).collect()
    }
}

/// `count` blocks whose values are finite and of magnitudes to about 1.
pub fn blocks(dtype: DType, count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; count * dtype.block_bytes()];
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        fill(dtype, block, random);
    }
    bytes
}

/// `count` blocks whose values have a standard deviation of about `spread`; for whole models.
///
/// Formats whose blocks share a power of two (MXFP4) or a byte (NVFP4) come within a factor of three.
pub fn scaled_blocks(dtype: DType, count: usize, spread: f32, random: &mut Random) -> Vec<u8> {
    let mut bytes = blocks(dtype, count, random);
    bytes.chunks_exact_mut(dtype.block_bytes()).for_each(|block| even_out(dtype, block));
    let mut values = vec![0.0; count * dtype.block_len()];
    reference::decode(dtype, &bytes, &mut values);
    let square = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64;
    let factor = spread / square.sqrt() as f32;
    bytes.chunks_exact_mut(dtype.block_bytes()).for_each(|block| multiply(dtype, block, factor));
    bytes
}

/// Brings the scales of a block as near to those of other blocks as normally distributed weights would have them: MXFP4 has two
/// neighbouring powers of two then.
fn even_out(dtype: DType, block: &mut [u8]) {
    if dtype == DType::MXFP4 {
        let exponent = &mut block[offset_of!(MXFP4, e)];
        *exponent = 120 + *exponent % 2;
    }
}

/// Multiplies the values of a block.
fn multiply(dtype: DType, block: &mut [u8], factor: f32) {
    let half = |bytes: &mut [u8]| {
        let value = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32() * factor;
        bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes());
    };
    match dtype {
        DType::F32 => {
            let value = f32::from_le_bytes([block[0], block[1], block[2], block[3]]) * factor;
            block.copy_from_slice(&value.to_le_bytes());
        }
        DType::BF16 => {
            let value = bf16::from_le_bytes([block[0], block[1]]).to_f32() * factor;
            block.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
        }
        DType::MXFP4 => {
            let exponent = &mut block[offset_of!(MXFP4, e)];
            *exponent = exponent.saturating_add_signed(factor.log2().round() as i8);
        }
        DType::NVFP4 => {
            let shift = (8.0 * factor.log2()).round() as i8;
            block[offset_of!(NVFP4, d)..][..4]
                .iter_mut()
                .for_each(|d| *d = d.saturating_add_signed(shift).clamp(1, 126));
        }
        DType::IQ1_M => {
            let scales = &block[offset_of!(IQ1_M, scales)..];
            let bits = (0..4).fold(0u16, |bits, i| bits | u16::from(scales[2 * i + 1] >> 4) << (4 * i));
            set_split_scale(block, f16::from_bits(bits).to_f32() * factor);
        }
        _ => scales(dtype).iter().for_each(|&(offset, _)| half(&mut block[offset..][..2])),
    }
}

fn fill(dtype: DType, block: &mut [u8], random: &mut Random) {
    for byte in &mut *block {
        *byte = random.bits() as u8;
    }
    match dtype {
        DType::F32 => block.copy_from_slice(&random.uniform().to_le_bytes()),
        DType::F16 => block.copy_from_slice(&f16::from_f32(random.uniform()).to_le_bytes()),
        DType::BF16 => block.copy_from_slice(&bf16::from_f32(random.uniform()).to_le_bytes()),
        // Scales from 2^-9 to 2^-3, times E2M1 numbers up to 6.
        DType::MXFP4 => block[offset_of!(MXFP4, e)] = 118 + (random.bits() % 7) as u8,
        // Scales from 2^-5 to 0.14, times E2M1 numbers up to 6.
        DType::NVFP4 => {
            block[offset_of!(NVFP4, d)..][..4].fill_with(|| 0x10 + (random.bits() % 0x12) as u8);
        }
        _ => scale(dtype, block, random),
    }
}

/// Sets the half-precision scales of a block such that its largest magnitude lies between about 0.5 and 1.
fn scale(dtype: DType, block: &mut [u8], random: &mut Random) {
    let sign = if random.bits() & 1 == 1 { -1.0 } else { 1.0 };
    let peak = sign * (0.75 + 0.25 * random.uniform());
    set_scales(dtype, block, 1.0);
    let mut values = vec![0.0; dtype.block_len()];
    reference::decode(dtype, block, &mut values);
    let largest = values.iter().fold(1.0, |largest: f32, value| largest.max(value.abs()));
    set_scales(dtype, block, peak / largest);
}

/// Writes the scales for `d` into a block; a minimum is set so that values lie around zero.
fn set_scales(dtype: DType, block: &mut [u8], d: f32) {
    if dtype == DType::IQ1_M {
        return set_split_scale(block, d);
    }
    for &(offset, factor) in scales(dtype) {
        block[offset..][..2].copy_from_slice(&f16::from_f32(d * factor).to_le_bytes());
    }
}

/// Offsets of the half-precision scales, and what each is for a scale of 1.
fn scales(dtype: DType) -> &'static [(usize, f32)] {
    match dtype {
        DType::Q4_1 => &[(offset_of!(Q4_1, d), 1.0), (offset_of!(Q4_1, m), -7.5)],
        DType::Q5_1 => &[(offset_of!(Q5_1, d), 1.0), (offset_of!(Q5_1, m), -15.5)],
        DType::Q2_K => &[(offset_of!(Q2_K, d), 1.0), (offset_of!(Q2_K, dmin), 1.5)],
        DType::Q4_K => &[(offset_of!(Q4_K, d), 1.0), (offset_of!(Q4_K, dmin), 7.5)],
        DType::Q5_K => &[(offset_of!(Q5_K, d), 1.0), (offset_of!(Q5_K, dmin), 15.5)],
        DType::Q3_K => &[(offset_of!(Q3_K, d), 1.0)],
        DType::Q6_K => &[(offset_of!(Q6_K, d), 1.0)],
        DType::TQ1_0 => &[(offset_of!(TQ1_0, d), 1.0)],
        DType::TQ2_0 => &[(offset_of!(TQ2_0, d), 1.0)],
        _ => &[(0, 1.0)],
    }
}

/// The scale of IQ1_M stands in the top nibbles of four words.
fn set_split_scale(block: &mut [u8], d: f32) {
    let bits = f16::from_f32(d).to_bits();
    for (i, word) in block[offset_of!(IQ1_M, scales)..].chunks_exact_mut(2).enumerate() {
        word[1] = word[1] & 15 | ((bits >> (4 * i)) as u8) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
        reference::decode(dtype, bytes, &mut values);
        values
    }

    #[test]
    fn values_are_finite_of_both_signs_and_near_one() {
        for dtype in DType::ALL {
            let values = decoded(dtype, &blocks(dtype, 64, &mut Random::new(7)));
            let (low, high) = values.iter().fold((0.0f32, 0.0f32), |(low, high), v| (low.min(*v), high.max(*v)));
            assert!(values.iter().all(|value| value.is_finite()), "{dtype}");
            assert!((-1.001..=-0.4).contains(&low) && (0.4..=1.001).contains(&high), "{dtype}: {low} to {high}");
        }
    }

    #[test]
    fn scaled_blocks_have_the_spread_asked_for() {
        for dtype in DType::ALL {
            let values = decoded(dtype, &scaled_blocks(dtype, 512, 0.02, &mut Random::new(9)));
            let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
            let tolerance = if matches!(dtype, DType::MXFP4 | DType::NVFP4) { 3.0 } else { 1.05 };
            let ratio = square.sqrt() / 0.02;
            assert!(ratio < tolerance && ratio > 1.0 / tolerance, "{dtype}: {ratio}");
        }
    }

    #[test]
    fn no_scaled_block_vanishes() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.block_len() > 1) {
            for values in decoded(dtype, &blocks(dtype, 64, &mut Random::new(8))).chunks(dtype.block_len()) {
                let largest = values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
                assert!(largest > 1e-3, "{dtype}: {largest}");
            }
        }
    }

    #[test]
    fn a_seed_names_its_bytes() {
        let make = |seed| blocks(DType::Q4_K, 4, &mut Random::new(seed));
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        // The published first output of SplitMix64 for seed 0.
        assert_eq!(Random::new(0).bits(), 0xe220_a839_7b1d_cdaf);
    }
}
