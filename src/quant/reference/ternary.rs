//! Decoders of ternary and binary values with one scale.

use super::super::blocks::{Q1_0, TQ1_0, TQ2_0};
use super::kquant::two_bits;
use super::{Decode, bit};

impl Decode<256> for TQ1_0 {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            let (byte, digit) = match i {
                0..160 => (self.qs[i % 32], i / 32),
                160..240 => (self.qs[32 + i % 16], i / 16 % 5),
                _ => (self.qh[i % 4], i / 4 % 4),
            };
            *value = d * (f32::from(base_three_digit(byte, digit)) - 1.0);
        }
    }
}

impl Decode<256> for TQ2_0 {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            *value = d * (f32::from(two_bits(&self.qs, i)) - 1.0);
        }
    }
}

impl Decode<128> for Q1_0 {
    fn decode(&self, out: &mut [f32; 128]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            *value = if bit(&self.qs, i) { d } else { -d };
        }
    }
}

/// A digit of `byte / 256` written in base 3, the first digit after the point being digit 0.
fn base_three_digit(byte: u8, digit: usize) -> u8 {
    let fraction = byte.wrapping_mul([1, 3, 9, 27, 81][digit]);
    ((u16::from(fraction) * 3) >> 8) as u8
}
