//! Panels of the K types and IQ4_XS: blocks of 256 values. Layouts are those of GGUF; `quant::reference` is the definition.

use super::panel::{Format, Sink};
use super::rows::Rows;
use super::small::{iq4_levels, set_levels};
use crate::backend::cpu::simd::vector::Simd;

pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;
pub(super) struct Iq4Xs;

/// Byte `index` of each lane as an unsigned number.
#[inline(always)]
fn byte<S: Simd>(s: S, x: S::I, index: usize) -> S::I {
    s.and(s.shr(x, 8 * index as u32), s.splat_int(0xff))
}

/// Byte `index` of each lane as a signed number.
#[inline(always)]
fn signed_byte<S: Simd>(s: S, x: S::I, index: usize) -> S::I {
    s.sar(s.shl(x, 24 - 8 * index as u32), 24)
}

/// [`Simd::byte_bits`] of four vectors.
#[inline(always)]
pub(super) fn bits_of_four<S: Simd>(s: S, x: [S::I; 4], shift: u32, mask: u8) -> [S::I; 4] {
    let mut out = x;
    for quad in 0..4 {
        out[quad] = s.byte_bits(x[quad], shift, mask);
    }
    out
}

/// `a | b` of four vectors.
#[inline(always)]
pub(super) fn or_of_four<S: Simd>(s: S, a: [S::I; 4], b: [S::I; 4]) -> [S::I; 4] {
    [s.or(a[0], b[0]), s.or(a[1], b[1]), s.or(a[2], b[2]), s.or(a[3], b[3])]
}

/// `low`, and from bit `to` on those bits of `high` that `mask` has after a shift to the right.
#[inline(always)]
fn with_high_bits<S: Simd>(s: S, low: [S::I; 4], high: [S::I; 4], shift: usize, mask: u8, to: usize) -> [S::I; 4] {
    let mut out = high;
    if shift < to {
        let wanted = s.splat_int(i32::from_le_bytes([mask << to; 4]));
        for quad in 0..4 {
            out[quad] = s.and(s.shl(high[quad], (to - shift) as u32), wanted);
        }
    } else {
        out = bits_of_four(s, high, (shift - to) as u32, mask << to);
    }
    or_of_four(s, low, out)
}

/// Q4_K and Q5_K: their first 16 bytes are two half-precision factors and 6-bit scales and minimums of 8 blocks.
#[inline(always)]
fn set_scales_and_mins<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
    let [factors, a, b, c] = rows.blocks(s, at);
    let d = s.half_to_float(factors);
    let minus_dmin = s.mul(s.half_to_float(s.shr(factors, 16)), s.splat(-1.0));
    // Blocks 0 to 3 have six bits in a byte; blocks 4 to 7 four bits, and two left over in the former's bytes.
    let scales = [s.byte_bits(a, 0, 63), s.or(s.byte_bits(c, 0, 15), s.byte_bits(a, 2, 0x30))];
    let mins = [s.byte_bits(b, 0, 63), s.or(s.byte_bits(c, 4, 15), s.byte_bits(b, 2, 0x30))];
    for i in 0..8 {
        let scale = s.to_float(byte(s, scales[i / 4], i % 4));
        sink.set_scale(s, block + i, s.mul(d, scale));
        let min = s.to_float(byte(s, mins[i / 4], i % 4));
        sink.set_min(s, block + i, s.mul(minus_dmin, min));
    }
}

impl Format for Q4K {
    const BLOCK_BYTES: usize = 144;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 15;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        set_scales_and_mins(s, rows, at, sink, block);
        for i in 0..8 {
            let (two, half) = (i / 2, i % 2);
            let bytes = sink.weights(s, rows, at + 16 + 16 * i, at + 16 + 16 * i);
            sink.set_half(s, block + 2 * two, half, bits_of_four(s, bytes, 0, 15));
            sink.set_half(s, block + 2 * two + 1, half, bits_of_four(s, bytes, 4, 15));
        }
    }
}

impl Format for Q5K {
    const BLOCK_BYTES: usize = 176;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 31;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        set_scales_and_mins(s, rows, at, sink, block);
        for half in 0..2 {
            let fifth = sink.weights(s, rows, at + 16 + 16 * half, at + 16 + 16 * half);
            for two in 0..4 {
                let at = at + 48 + 32 * two + 16 * half;
                let bytes = sink.weights(s, rows, at, at);
                for i in 0..2 {
                    let low = bits_of_four(s, bytes, 4 * i as u32, 15);
                    sink.set_half(s, block + 2 * two + i, half, with_high_bits(s, low, fifth, 2 * two + i, 1, 4));
                }
            }
        }
    }
}

/// The integer scales of the halves, and the pair that centres weights at `centre`.
#[inline(always)]
pub(super) fn set_signed_scales<S: Simd>(s: S, sink: &mut impl Sink<S>, block: usize, scales: [S::I; 2], centre: i32) {
    sink.set_halves(s, block, scales);
    let minus_centre = s.splat_int(-centre);
    let first = s.and(s.mul_int(scales[0], minus_centre), s.splat_int(0xffff));
    let second = s.shl(s.mul_int(scales[1], minus_centre), 16);
    sink.set_pair(s, block, s.or(first, second));
}

impl Format for Q6K {
    const BLOCK_BYTES: usize = 210;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 63;
    const HALVES: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        let scales = rows.blocks_fetching(s, at + 192, at);
        let d = rows.halves(s, at + 208);
        for i in 0..8 {
            let (x, first) = (scales[i / 2], i % 2 * 2);
            let pair = [signed_byte(s, x, first), signed_byte(s, x, first + 1)];
            set_signed_scales(s, sink, block + i, pair, 32);
            sink.set_scale(s, block + i, d);
        }
        for four in 0..2 {
            for half in 0..2 {
                let fetched = at + 16 + 96 * four + 48 * half;
                let high = sink.weights(s, rows, at + 128 + 32 * four + 16 * half, fetched);
                for i in 0..2 {
                    let low_at = at + 64 * four + 32 * i + 16 * half;
                    let bytes = sink.weights(s, rows, low_at, fetched + 16 + 16 * i);
                    let low = bits_of_four(s, bytes, 0, 15);
                    sink.set_half(s, block + 4 * four + i, half, with_high_bits(s, low, high, 2 * i, 3, 4));
                    let low = bits_of_four(s, bytes, 4, 15);
                    sink.set_half(s, block + 4 * four + i + 2, half, with_high_bits(s, low, high, 2 * i + 4, 3, 4));
                }
            }
        }
    }
}

/// Byte `index` of each lane less 32.
#[inline(always)]
fn centred_byte<S: Simd>(s: S, x: S::I, index: usize) -> S::I {
    s.add_int(byte(s, x, index), s.splat_int(-32))
}

/// The upper half of each lane of `low`, and above it the lower half of `high`.
#[inline(always)]
fn joined<S: Simd>(s: S, low: S::I, high: S::I) -> S::I {
    s.or(s.shr(low, 16), s.shl(high, 16))
}

impl Format for Q3K {
    const BLOCK_BYTES: usize = 110;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 7;
    const HALVES: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        // The scales end the block; the two bytes before them complete a load of 16.
        let [tail0, tail1, tail2, tail3] = rows.blocks(s, at + 94);
        let (a, b, c) = (joined(s, tail0, tail1), joined(s, tail1, tail2), joined(s, tail2, tail3));
        let d = s.half_to_float(s.shr(tail3, 16));
        // Four low bits from the nibbles of a and b, two high bits from c.
        let mut scales = [a; 4];
        for i in 0..4 {
            let low = s.byte_bits(if i % 2 == 0 { a } else { b }, i as u32 / 2 * 4, 15);
            scales[i] = s.or(low, s.shl(s.byte_bits(c, 2 * i as u32, 3), 4));
        }
        for i in 0..8 {
            let (x, first) = (scales[i / 2], i % 2 * 2);
            let pair = [centred_byte(s, x, first), centred_byte(s, x, first + 1)];
            set_signed_scales(s, sink, block + i, pair, 4);
            sink.set_scale(s, block + i, d);
        }
        for half in 0..2 {
            let third = sink.weights(s, rows, at + 16 * half, at + 16 * half);
            for four in 0..2 {
                let at = at + 32 + 32 * four + 16 * half;
                let bytes = sink.weights(s, rows, at, at);
                for i in 0..4 {
                    let low = bits_of_four(s, bytes, 2 * i as u32, 3);
                    sink.set_half(s, block + 4 * four + i, half, with_high_bits(s, low, third, 4 * four + i, 1, 2));
                }
            }
        }
    }
}

impl Format for Q2K {
    const BLOCK_BYTES: usize = 84;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 3;
    const HALVES: bool = true;
    const MINS: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        let scales = rows.blocks(s, at);
        let factors = rows.dwords(s, at + 80);
        let d = s.half_to_float(factors);
        let minus_dmin = s.mul(s.half_to_float(s.shr(factors, 16)), s.splat(-1.0));
        for i in 0..8 {
            let (x, first) = (scales[i / 2], i % 2 * 2);
            sink.set_scale(s, block + i, d);
            sink.set_min(s, block + i, minus_dmin);
            let low = s.byte_bits(x, 0, 15);
            sink.set_halves(s, block + i, [byte(s, low, first), byte(s, low, first + 1)]);
            let high = s.byte_bits(x, 4, 15);
            let second = s.shl(byte(s, high, first + 1), 16);
            sink.set_pair(s, block + i, s.or(byte(s, high, first), second));
        }
        for four in 0..2 {
            for half in 0..2 {
                let at = at + 16 + 32 * four + 16 * half;
                let bytes = sink.weights(s, rows, at, at);
                for i in 0..4 {
                    sink.set_half(s, block + 4 * four + i, half, bits_of_four(s, bytes, 2 * i as u32, 3));
                }
            }
        }
    }
}

impl Format for Iq4Xs {
    const BLOCK_BYTES: usize = 136;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 255;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        let [first, low, ..] = rows.blocks(s, at);
        let (d, high) = (s.half_to_float(first), s.shr(first, 16));
        let levels = iq4_levels(s);
        for i in 0..8 {
            let low = s.and(s.shr(low, 4 * i as u32), s.splat_int(15));
            let high = s.shl(s.and(s.shr(high, 2 * i as u32), s.splat_int(3)), 4);
            let scale = s.add_int(s.or(low, high), s.splat_int(-32));
            sink.set_scale(s, block + i, s.mul(d, s.to_float(scale)));
            sink.set_centre(s, block + i, S::Q8_BIAS);
            set_levels(s, levels, rows, at + 8 + 16 * i, sink, block + i);
        }
    }
}
