//! Panels of the types with blocks of 32 values. Layouts are those of GGUF; `quant::reference` is the definition.

use super::panel::{Format, Panel, Rows};
use crate::backend::cpu::simd::vector::Simd;
use crate::quant::grids::{FP4_LEVELS, IQ4_LEVELS};

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Iq4Nl;
pub(super) struct Mxfp4;

/// `levels`, each plus `centre`, as [`Simd::lookup`] takes them.
const fn table(levels: &[i8; 16], centre: i8) -> [u8; 64] {
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        table[i] = (levels[i % 16] + centre) as u8;
        i += 1;
    }
    table
}

const IQ4_TABLE: [u8; 64] = table(&IQ4_LEVELS, 0);

/// The levels of IQ4_NL and IQ4_XS, recoded.
#[inline(always)]
pub(super) fn iq4_levels<S: Simd>(s: S) -> S::I {
    s.recode_q8(s.load_bytes(&IQ4_TABLE))
}

/// 16 bytes hold values 0 to 15 in their low and 16 to 31 in their high nibbles.
#[inline(always)]
pub(super) fn nibbles<S: Simd>(s: S, rows: &Rows, at: usize) -> [S::I; 8] {
    let bytes = rows.blocks(s, at);
    let low = s.splat_int(0x0f0f_0f0f);
    let mut out = [low; 8];
    for i in 0..4 {
        out[i] = s.and(bytes[i], low);
        out[i + 4] = s.and(s.shr(bytes[i], 4), low);
    }
    out
}

/// Bit i of the dword at `at` is bit 4 of value i.
#[inline(always)]
fn fifth_bits<S: Simd>(s: S, rows: &Rows, at: usize) -> [S::I; 8] {
    let bits = rows.dwords(s, at);
    let mut out = [bits; 8];
    for quad in 0..8 {
        let four = s.and(s.shr(bits, 4 * quad as u32), s.splat_int(15));
        // The product holds the four bits at distances of 7, one of each at bit 4 of its byte.
        out[quad] = s.and(s.mul_int(four, s.splat_int(0x0204_0810)), s.splat_int(0x1010_1010));
    }
    out
}

/// Two half-precision numbers: scale and minimum.
#[inline(always)]
fn set_scale_and_min<S: Simd>(s: S, rows: &Rows, at: usize, panel: &mut Panel, block: usize) {
    let both = rows.dwords(s, at);
    panel.set_scale(s, block, s.half_to_float(both));
    panel.set_min(s, block, s.half_to_float(s.shr(both, 16)));
}

impl Format for Q4_0 {
    const BLOCK_BYTES: usize = 18;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 15;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, panel: &mut Panel, block: usize) {
        panel.set_scale(s, block, rows.halves(s, at));
        panel.set_centre(s, block, 8);
        let weights = nibbles(s, rows, at + 2);
        for quad in 0..8 {
            panel.set_weights(s, block, quad, weights[quad]);
        }
    }
}

impl Format for Q4_1 {
    const BLOCK_BYTES: usize = 20;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 15;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, panel: &mut Panel, block: usize) {
        set_scale_and_min(s, rows, at, panel, block);
        let weights = nibbles(s, rows, at + 4);
        for quad in 0..8 {
            panel.set_weights(s, block, quad, weights[quad]);
        }
    }
}

impl Format for Q5_0 {
    const BLOCK_BYTES: usize = 22;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 31;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, panel: &mut Panel, block: usize) {
        panel.set_scale(s, block, rows.halves(s, at));
        panel.set_centre(s, block, 16);
        let (low, high) = (nibbles(s, rows, at + 6), fifth_bits(s, rows, at + 2));
        for quad in 0..8 {
            panel.set_weights(s, block, quad, s.or(low[quad], high[quad]));
        }
    }
}

impl Format for Q5_1 {
    const BLOCK_BYTES: usize = 24;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 31;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, panel: &mut Panel, block: usize) {
        set_scale_and_min(s, rows, at, panel, block);
        let (low, high) = (nibbles(s, rows, at + 8), fifth_bits(s, rows, at + 4));
        for quad in 0..8 {
            panel.set_weights(s, block, quad, s.or(low[quad], high[quad]));
        }
    }
}

impl Format for Q8_0 {
    const BLOCK_BYTES: usize = 34;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 255;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, panel: &mut Panel, block: usize) {
        panel.set_scale(s, block, rows.halves(s, at));
        panel.set_centre(s, block, S::Q8_BIAS);
        let (first, last) = (rows.blocks(s, at + 2), rows.blocks(s, at + 18));
        for quad in 0..4 {
            panel.set_weights(s, block, quad, s.recode_q8(first[quad]));
            panel.set_weights(s, block, quad + 4, s.recode_q8(last[quad]));
        }
    }
}

impl Format for Iq4Nl {
    const BLOCK_BYTES: usize = 18;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 255;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, panel: &mut Panel, block: usize) {
        panel.set_scale(s, block, rows.halves(s, at));
        panel.set_centre(s, block, S::Q8_BIAS);
        let (levels, indices) = (iq4_levels(s), nibbles(s, rows, at + 2));
        for quad in 0..8 {
            panel.set_weights(s, block, quad, s.lookup(levels, indices[quad]));
        }
    }
}

/// What centres the doubled E2M1 numbers.
const FP4_CENTRE: i8 = 12;
const FP4_TABLE: [u8; 64] = table(&FP4_LEVELS, FP4_CENTRE);

impl Format for Mxfp4 {
    const BLOCK_BYTES: usize = 17;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 24;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, panel: &mut Panel, block: usize) {
        let exponent = s.and(rows.dwords(s, at), s.splat_int(0xff));
        // Half of the power of two. Normal from exponent 2 on, below which the subnormal form is the larger one.
        let normal = s.shl(s.add_int(exponent, s.splat_int(-1)), 23);
        let subnormal = s.shl(s.add_int(exponent, s.splat_int(1)), 21);
        panel.set_scale(s, block, s.as_float(s.max_int(normal, subnormal)));
        panel.set_centre(s, block, FP4_CENTRE.into());
        let (levels, codes) = (s.load_bytes(&FP4_TABLE), nibbles(s, rows, at + 1));
        for quad in 0..8 {
            panel.set_weights(s, block, quad, s.lookup(levels, codes[quad]));
        }
    }
}
