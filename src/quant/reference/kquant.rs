//! Decoders of the K-quants: 256 values, integer scales for groups of 16 or 32, one or two halves that scale those.

use super::super::blocks::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, six_bit_scales};
use super::Decode;
use super::small::half_nibble;

impl Decode<256> for Q2_K {
    fn decode(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        for (i, value) in out.iter_mut().enumerate() {
            let scales = self.scales[i / 16];
            let (scale, min) = (d * f32::from(scales & 15), dmin * f32::from(scales >> 4));
            *value = scale * f32::from(two_bits(&self.qs, i)) - min;
        }
    }
}

impl Decode<256> for Q3_K {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            let scale = d * (f32::from(q3k_scale(&self.scales, i / 16)) - 32.0);
            let q = two_bits(&self.qs, i) | (self.hmask[i % 32] >> (i / 32) & 1) << 2;
            *value = scale * (f32::from(q) - 4.0);
        }
    }
}

impl Decode<256> for Q4_K {
    fn decode(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        for (i, value) in out.iter_mut().enumerate() {
            let (scale, min) = six_bit_scales(&self.scales, i / 32);
            let q = half_nibble(&self.qs[i / 64 * 32..][..32], i % 64);
            *value = d * f32::from(scale) * f32::from(q) - dmin * f32::from(min);
        }
    }
}

impl Decode<256> for Q5_K {
    fn decode(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        for (i, value) in out.iter_mut().enumerate() {
            let (scale, min) = six_bit_scales(&self.scales, i / 32);
            let q = half_nibble(&self.qs[i / 64 * 32..][..32], i % 64) | (self.qh[i % 32] >> (i / 32) & 1) << 4;
            *value = d * f32::from(scale) * f32::from(q) - dmin * f32::from(min);
        }
    }
}

impl Decode<256> for Q6_K {
    fn decode(&self, out: &mut [f32; 256]) {
        let d = self.d.get();
        for (i, value) in out.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[i / 16]);
            let q = half_nibble(&self.ql[i / 128 * 64..][..64], i % 128) | two_bits(&self.qh, i) << 4;
            *value = scale * (f32::from(q) - 32.0);
        }
    }
}

/// Bits of value `i` where 32 bytes hold two bits each of 128 values, value 32 k + j in bits 2k and 2k + 1 of byte j.
pub(super) fn two_bits(qs: &[u8; 64], i: usize) -> u8 {
    qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

/// Scale of a group of [`Q3_K`], still centred on 32.
fn q3k_scale(scales: &[u8; 12], group: usize) -> u8 {
    half_nibble(&scales[..8], group) | (scales[8 + group % 4] >> (group / 4 * 2) & 3) << 4
}
