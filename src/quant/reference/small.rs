//! Decoders of plain floats and of the blocks of 32 values with one scale.

use super::super::blocks::{BF16, F16, F32, IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::super::grids::IQ4_LEVELS;
use super::Decode;

impl Decode<1> for F32 {
    fn decode(&self, out: &mut [f32; 1]) {
        out[0] = f32::from_bits(self.get());
    }
}

impl Decode<1> for F16 {
    fn decode(&self, out: &mut [f32; 1]) {
        out[0] = self.get();
    }
}

impl Decode<1> for BF16 {
    fn decode(&self, out: &mut [f32; 1]) {
        out[0] = f32::from_bits(u32::from(self.get()) << 16);
    }
}

impl Decode<32> for Q4_0 {
    fn decode(&self, out: &mut [f32; 32]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            *value = d * (f32::from(half_nibble(&self.qs, i)) - 8.0);
        }
    }
}

impl Decode<32> for Q4_1 {
    fn decode(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.get(), self.m.get());
        for (i, value) in out.iter_mut().enumerate() {
            *value = d * f32::from(half_nibble(&self.qs, i)) + m;
        }
    }
}

impl Decode<32> for Q5_0 {
    fn decode(&self, out: &mut [f32; 32]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            *value = d * (f32::from(five_bits(&self.qs, self.qh.get(), i)) - 16.0);
        }
    }
}

impl Decode<32> for Q5_1 {
    fn decode(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.get(), self.m.get());
        for (i, value) in out.iter_mut().enumerate() {
            *value = d * f32::from(five_bits(&self.qs, self.qh.get(), i)) + m;
        }
    }
}

impl Decode<32> for Q8_0 {
    fn decode(&self, out: &mut [f32; 32]) {
        let d = self.d.get();
        for (value, q) in out.iter_mut().zip(self.qs) {
            *value = d * f32::from(q);
        }
    }
}

impl Decode<32> for IQ4_NL {
    fn decode(&self, out: &mut [f32; 32]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            *value = d * f32::from(IQ4_LEVELS[usize::from(half_nibble(&self.qs, i))]);
        }
    }
}

/// Value `i` of a run whose first half stands in the low nibbles and whose second half in the high ones.
pub(super) fn half_nibble(qs: &[u8], i: usize) -> u8 {
    qs[i % qs.len()] >> (4 * (i / qs.len())) & 15
}

/// A nibble and its fifth bit.
fn five_bits(qs: &[u8; 16], high: u32, i: usize) -> u8 {
    half_nibble(qs, i) | ((high >> i & 1) as u8) << 4
}
