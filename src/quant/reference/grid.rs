//! Decoders of the formats that store indices into a table: the i-quants of 1 to 3 bits, and IQ4_XS.
//!
//! The grids hold magnitudes of 4 or 8 neighbouring values; signs are stored apart, either as one bit a value or as
//! 7 bits for 8 values, the eighth making the number of negative ones even.

use super::super::blocks::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_XS};
use super::super::grids::{self, IQ4_LEVELS};
use super::small::half_nibble;
use super::{Decode, bit, nibble};

/// What the IQ1 formats add to each ternary value, or subtract.
const SHIFT: f32 = 0.125;

impl Decode<256> for IQ1_S {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (k, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = self.qh[k / 4].get();
            let entry = usize::from(self.qs[k]) | usize::from(word >> (k % 4 * 3) & 7) << 8;
            let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
            shifted(values, entry, scale, word >> 15 == 1);
        }
    }
}

impl Decode<256> for IQ1_M {
    fn decode(&self, out: &mut [f32; 256]) {
        let words = self.scales.map(|word| word.get());
        let d = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
        let d = half::f16::from_bits(d).to_f32();
        for (k, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = nibble(&self.qh, k);
            let entry = usize::from(self.qs[k]) | usize::from(high & 7) << 8;
            let group = k / 2;
            let scale = d * f32::from(2 * (words[group / 4] >> (group % 4 * 3) & 7) + 1);
            shifted(values, entry, scale, high >> 3 == 1);
        }
    }
}

impl Decode<256> for IQ2_XXS {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (k, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let group = &self.groups[k / 4];
            let word = group.signs_scale.get();
            let scale = quarter_scale(d, (word >> 28) as u8);
            let entry = grids::IQ2_XXS[usize::from(group.qs[k % 4])];
            signed(values, entry.to_le_bytes(), scale, shared_signs(word >> (k % 4 * 7)));
        }
    }
}

impl Decode<256> for IQ2_XS {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (k, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = self.qs[k].get();
            let scale = quarter_scale(d, nibble(&self.scales, k / 2));
            let entry = grids::IQ2_XS[usize::from(word & 511)];
            signed(values, entry.to_le_bytes(), scale, shared_signs(u32::from(word >> 9)));
        }
    }
}

impl Decode<256> for IQ2_S {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (k, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = self.qh[k / 4] >> (k % 4 * 2) & 3;
            let scale = quarter_scale(d, nibble(&self.scales, k / 2));
            let entry = grids::IQ2_S[usize::from(self.qs[k]) | usize::from(high) << 8];
            signed(values, entry.to_le_bytes(), scale, self.signs[k]);
        }
    }
}

impl Decode<256> for IQ3_XXS {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (k, values) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let word = self.signs_scales[k / 8].get();
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            let signs = shared_signs(word >> (k % 8 / 2 * 7));
            let entry = grids::IQ3_XXS[usize::from(self.qs[k])];
            signed(values, entry.to_le_bytes(), scale, signs >> (k % 2 * 4));
        }
    }
}

impl Decode<256> for IQ3_S {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (k, values) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let scale = d * f32::from(2 * nibble(&self.scales, k / 8) + 1);
            let entry = grids::IQ3_S[usize::from(self.qs[k]) | usize::from(bit(&self.qh, k)) << 8];
            signed(values, entry.to_le_bytes(), scale, nibble(&self.signs, k));
        }
    }
}

impl Decode<256> for IQ4_XS {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            let group = i / 32;
            let high = (self.scales_h.get() >> (group * 2) & 3) as u8;
            let scale = d * (f32::from(nibble(&self.scales_l, group) | high << 4) - 32.0);
            let level = half_nibble(&self.qs[group * 16..][..16], i % 32);
            *value = scale * f32::from(IQ4_LEVELS[usize::from(level)]);
        }
    }
}

/// Eight ternary values of the IQ1 grid, moved by [`SHIFT`].
fn shifted(values: &mut [f32; 8], entry: usize, scale: f32, down: bool) {
    let shift = if down { -SHIFT } else { SHIFT };
    for (value, q) in values.iter_mut().zip(grids::IQ1[entry].to_le_bytes()) {
        *value = scale * (f32::from(q as i8) + shift);
    }
}

/// Magnitudes of a grid entry; bit j of `signs` makes value j negative.
fn signed<const N: usize>(values: &mut [f32; N], entry: [u8; N], scale: f32, signs: u8) {
    for (j, (value, magnitude)) in values.iter_mut().zip(entry).enumerate() {
        let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
        *value = scale * f32::from(magnitude) * sign;
    }
}

/// The eight signs that the low 7 bits of `pattern` stand for.
fn shared_signs(pattern: u32) -> u8 {
    let seven = (pattern & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The scale of the IQ2 formats from its 4 bits.
fn quarter_scale(d: f32, bits: u8) -> f32 {
    d * (0.5 + f32::from(bits)) * 0.25
}
