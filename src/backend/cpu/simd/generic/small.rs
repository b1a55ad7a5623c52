//! Panels of the types with blocks of 32 values. Layouts are those of GGUF; `quant::reference` is the definition.

use super::kquant::{bits_of_four, or_of_four};
use super::panel::{Format, Sink};
use super::rows::Rows;
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
fn nibbles<S: Simd>(s: S, rows: &Rows, at: usize, sink: &impl Sink<S>) -> [[S::I; 4]; 2] {
    let bytes = sink.weights(s, rows, at, at);
    [bits_of_four(s, bytes, 0, 15), bits_of_four(s, bytes, 4, 15)]
}

/// The weights of a block from 16 bytes of indices into a table.
#[inline(always)]
pub(super) fn set_levels<S: Simd>(s: S, levels: S::I, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
    let mut weights = nibbles(s, rows, at, sink);
    for half in 0..2 {
        for quad in 0..4 {
            weights[half][quad] = s.lookup(levels, weights[half][quad]);
        }
        sink.set_half(s, block, half, weights[half]);
    }
}

/// The fifth bits of 16 values in their places, transposed: bit i of `fifth` is that of value i.
#[inline(always)]
fn fifth_bits<S: Simd>(s: S, fifth: S::I, half: usize) -> [S::I; 4] {
    let mut out = [fifth; 4];
    for quad in 0..4 {
        let four = s.and(s.shr(fifth, (16 * half + 4 * quad) as u32), s.splat_int(15));
        // The product holds the four bits at distances of 7, one of each at bit 4 of its byte.
        out[quad] = s.and(s.mul_int(four, s.splat_int(0x0204_0810)), s.splat_int(0x1010_1010));
    }
    out
}

/// Two half-precision numbers: scale and minimum.
#[inline(always)]
fn set_scale_and_min<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
    let both = rows.dwords(s, at);
    sink.set_scale(s, block, s.half_to_float(both));
    sink.set_min(s, block, s.half_to_float(s.shr(both, 16)));
}

impl Format for Q4_0 {
    const BLOCK_BYTES: usize = 18;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 15;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        sink.set_scale(s, block, rows.halves(s, at));
        sink.set_centre(s, block, 8);
        let [low, high] = nibbles(s, rows, at + 2, sink);
        sink.set_half(s, block, 0, low);
        sink.set_half(s, block, 1, high);
    }
}

impl Format for Q4_1 {
    const BLOCK_BYTES: usize = 20;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 15;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        set_scale_and_min(s, rows, at, sink, block);
        let [low, high] = nibbles(s, rows, at + 4, sink);
        sink.set_half(s, block, 0, low);
        sink.set_half(s, block, 1, high);
    }
}

impl Format for Q5_0 {
    const BLOCK_BYTES: usize = 22;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 31;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        sink.set_scale(s, block, rows.halves(s, at));
        sink.set_centre(s, block, 16);
        let (low, fifth) = (nibbles(s, rows, at + 6, sink), rows.dwords(s, at + 2));
        for half in 0..2 {
            let high = sink.arrange(s, fifth_bits(s, fifth, half));
            sink.set_half(s, block, half, or_of_four(s, low[half], high));
        }
    }
}

impl Format for Q5_1 {
    const BLOCK_BYTES: usize = 24;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 31;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        set_scale_and_min(s, rows, at, sink, block);
        let (low, fifth) = (nibbles(s, rows, at + 8, sink), rows.dwords(s, at + 4));
        for half in 0..2 {
            let high = sink.arrange(s, fifth_bits(s, fifth, half));
            sink.set_half(s, block, half, or_of_four(s, low[half], high));
        }
    }
}

impl Format for Q8_0 {
    const BLOCK_BYTES: usize = 34;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 255;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        sink.set_scale(s, block, rows.halves(s, at));
        sink.set_centre(s, block, S::Q8_BIAS);
        for half in 0..2 {
            let mut weights = sink.weights(s, rows, at + 2 + 16 * half, at + 2 + 16 * half);
            for quad in 0..4 {
                weights[quad] = s.recode_q8(weights[quad]);
            }
            sink.set_half(s, block, half, weights);
        }
    }
}

impl Format for Iq4Nl {
    const BLOCK_BYTES: usize = 18;
    const BLOCK_SPAN: usize = 1;
    const LARGEST: u8 = 255;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        sink.set_scale(s, block, rows.halves(s, at));
        sink.set_centre(s, block, S::Q8_BIAS);
        set_levels(s, iq4_levels(s), rows, at + 2, sink, block);
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
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        let exponent = s.and(rows.dwords(s, at), s.splat_int(0xff));
        // Half of the power of two. Normal from exponent 2 on, below which the subnormal form is the larger one.
        let normal = s.shl(s.add_int(exponent, s.splat_int(-1)), 23);
        let subnormal = s.shl(s.add_int(exponent, s.splat_int(1)), 21);
        sink.set_scale(s, block, s.as_float(s.max_int(normal, subnormal)));
        sink.set_centre(s, block, FP4_CENTRE.into());
        set_levels(s, s.load_bytes(&FP4_TABLE), rows, at + 1, sink, block);
    }
}
