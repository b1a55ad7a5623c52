//! Decoders of 4-bit floats (E2M1) under scales that are floats of 8 bits.
//!
//! The levels are stored doubled, as integers, so both scales are halved. Codes that the standards reserve for "not a
//! number" mean what ggml makes of them: E8M0's 255 is one more exponent; E4M3's 127 is zero. The top bit of an E4M3
//! code is ignored, except that 255 is the number 480 and not zero.

use super::super::blocks::{MXFP4, NVFP4};
use super::super::grids::FP4_LEVELS;
use super::Decode;
use super::small::half_nibble;

impl Decode<32> for MXFP4 {
    fn decode(&self, out: &mut [f32; 32]) {
        let scale = half_e8m0(self.e);
        for (i, value) in out.iter_mut().enumerate() {
            *value = scale * level(half_nibble(&self.qs, i));
        }
    }
}

impl Decode<64> for NVFP4 {
    fn decode(&self, out: &mut [f32; 64]) {
        for (i, value) in out.iter_mut().enumerate() {
            let group = i / 16;
            *value = half_e4m3(self.d[group]) * level(half_nibble(&self.qs[group], i % 16));
        }
    }
}

fn level(code: u8) -> f32 {
    f32::from(FP4_LEVELS[usize::from(code)])
}

/// Half of the power of two with this exponent biased by 127; the two smallest are subnormal.
fn half_e8m0(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// Half of an E4M3 number whose top bit is ignored.
fn half_e4m3(bits: u8) -> f32 {
    if bits == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let number = if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
    number * 0.5
}
