//! Panels of the types that store indices into grids of neighbouring magnitudes, and signs apart from them. Layouts are
//! those of GGUF; `quant::reference` is the definition.
//!
//! An index depends on its row alone, so the grid is read row by row, eight values at a time; the vectors begin where
//! the bytes are handed on.

use super::kquant::set_signed_scales;
use super::panel::{Format, Sink};
use super::rows::{ROWS, Rows};
use crate::backend::cpu::simd::vector::Simd;
use crate::quant::blocks::{Block, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use crate::quant::grids;

pub(super) struct Iq2Xxs;
pub(super) struct Iq2Xs;
pub(super) struct Iq2S;
pub(super) struct Iq3Xxs;
pub(super) struct Iq3S;

/// Values of a storage block.
const VALUES: usize = 256;

/// By eight signs: all ones in the bytes of the negative values.
static NEGATIVE: [u64; 256] = {
    let mut masks = [0; 256];
    let mut signs = 0;
    while signs < 256 {
        masks[signs] = negative(signs as u8);
        signs += 1;
    }
    masks
};

/// The same by seven signs; the eighth makes the number of negative values even.
static SHARED: [u64; 128] = {
    let mut masks = [0; 128];
    let mut signs = 0;
    while signs < 128 {
        let eighth = (signs as u8).count_ones() as u8 % 2;
        masks[signs] = negative(signs as u8 | eighth << 7);
        signs += 1;
    }
    masks
};

const fn negative(signs: u8) -> u64 {
    let (mut mask, mut j) = (0, 0);
    while j < 8 {
        mask |= ((signs >> j & 1) as u64 * 0xff) << (8 * j);
        j += 1;
    }
    mask
}

/// How a storage block names its values.
trait Grid {
    type Block: Block;
    /// At least the largest magnitude; what makes the weights unsigned.
    const CENTRE: u8;
    /// The values from `8 * k` on: magnitudes, and a mask of the negative ones.
    fn eight(block: &Self::Block, k: usize) -> (u64, u64);
}

/// Fills the weights of eight blocks.
#[inline(always)]
fn set_grid_weights<S: Simd, G: Grid>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
    let mut bytes = [[0; VALUES]; ROWS];
    for (r, bytes) in bytes.iter_mut().enumerate() {
        let stored: &G::Block = rows.stored(s, r, at);
        for (k, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (magnitudes, negative) = G::eight(stored, k);
            // No byte carries into the next: a magnitude is at most the centre, and twice the centre fits.
            let raised = magnitudes + u64::from_le_bytes([G::CENTRE; 8]);
            *bytes = (raised - 2 * (magnitudes & negative)).to_le_bytes();
        }
    }
    let bytes = Rows::new(bytes.as_flattened(), VALUES, VALUES);
    for i in 0..VALUES / 16 {
        let weights = sink.weights(s, &bytes, 16 * i, 16 * i);
        sink.set_half(s, block + i / 2, i % 2, weights);
    }
}

/// `2 x + 1` of four bits of each lane.
#[inline(always)]
fn odd_nibble<S: Simd>(s: S, x: S::I, shift: u32) -> S::I {
    let nibble = s.and(s.shr(x, shift), s.splat_int(15));
    s.add_int(s.shl(nibble, 1), s.splat_int(1))
}

/// One scale for each half of a block, from 64 bits of nibbles, in units of `d / 8`.
#[inline(always)]
fn set_half_scales<S: Simd>(s: S, rows: &Rows, at: usize, nibbles: usize, sink: &mut impl Sink<S>, block: usize) {
    let d = s.mul(rows.halves(s, at), s.splat(0.125));
    let words = [rows.dwords(s, at + nibbles), rows.dwords(s, at + nibbles + 4)];
    for i in 0..8 {
        let (word, shift) = (words[i / 4], i as u32 % 4 * 8);
        let pair = [odd_nibble(s, word, shift), odd_nibble(s, word, shift + 4)];
        set_signed_scales(s, sink, block + i, pair, i32::from(IQ2_CENTRE));
        sink.set_scale(s, block + i, d);
    }
}

/// The largest magnitude of the IQ2 grids.
const IQ2_CENTRE: u8 = 43;

impl Grid for Iq2Xxs {
    type Block = IQ2_XXS;
    const CENTRE: u8 = IQ2_CENTRE;

    #[inline(always)]
    fn eight(block: &IQ2_XXS, k: usize) -> (u64, u64) {
        let group = &block.groups[k / 4];
        let signs = group.signs_scale.get() >> (k % 4 * 7) & 127;
        (grids::IQ2_XXS[usize::from(group.qs[k % 4])], SHARED[signs as usize])
    }
}

impl Format for Iq2Xxs {
    const BLOCK_BYTES: usize = 66;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 2 * IQ2_CENTRE;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        let d = s.mul(rows.halves(s, at), s.splat(0.125));
        for two in 0..4 {
            let [_, first, _, second] = rows.blocks(s, at + 2 + 16 * two);
            let words = [first, second];
            for i in 0..2 {
                let scale = s.to_float(odd_nibble(s, words[i], 28));
                sink.set_scale(s, block + 2 * two + i, s.mul(d, scale));
                sink.set_centre(s, block + 2 * two + i, IQ2_CENTRE.into());
            }
        }
        set_grid_weights::<S, Self>(s, rows, at, sink, block);
    }
}

impl Grid for Iq2Xs {
    type Block = IQ2_XS;
    const CENTRE: u8 = IQ2_CENTRE;

    #[inline(always)]
    fn eight(block: &IQ2_XS, k: usize) -> (u64, u64) {
        let word = usize::from(block.qs[k].get());
        (grids::IQ2_XS[word & 511], SHARED[word >> 9])
    }
}

impl Format for Iq2Xs {
    const BLOCK_BYTES: usize = 74;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 2 * IQ2_CENTRE;
    const HALVES: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        set_half_scales(s, rows, at, 66, sink, block);
        set_grid_weights::<S, Self>(s, rows, at, sink, block);
    }
}

impl Grid for Iq2S {
    type Block = IQ2_S;
    const CENTRE: u8 = IQ2_CENTRE;

    #[inline(always)]
    fn eight(block: &IQ2_S, k: usize) -> (u64, u64) {
        let high = usize::from(block.qh[k / 4] >> (k % 4 * 2) & 3) << 8;
        (grids::IQ2_S[usize::from(block.qs[k]) | high], NEGATIVE[usize::from(block.signs[k])])
    }
}

impl Format for Iq2S {
    const BLOCK_BYTES: usize = 82;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 2 * IQ2_CENTRE;
    const HALVES: bool = true;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        set_half_scales(s, rows, at, 74, sink, block);
        set_grid_weights::<S, Self>(s, rows, at, sink, block);
    }
}

impl Grid for Iq3Xxs {
    type Block = IQ3_XXS;
    const CENTRE: u8 = 62;

    #[inline(always)]
    fn eight(block: &IQ3_XXS, k: usize) -> (u64, u64) {
        let low = grids::IQ3_XXS[usize::from(block.qs[2 * k])];
        let next = grids::IQ3_XXS[usize::from(block.qs[2 * k + 1])];
        let signs = block.signs_scales[k / 4].get() >> (k % 4 * 7) & 127;
        (u64::from(low) | u64::from(next) << 32, SHARED[signs as usize])
    }
}

impl Format for Iq3Xxs {
    const BLOCK_BYTES: usize = 98;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 2 * Self::CENTRE;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        let d = s.mul(rows.halves(s, at), s.splat(0.25));
        for four in 0..2 {
            let words = rows.blocks(s, at + 66 + 16 * four);
            for i in 0..4 {
                let scale = s.to_float(odd_nibble(s, words[i], 28));
                sink.set_scale(s, block + 4 * four + i, s.mul(d, scale));
                sink.set_centre(s, block + 4 * four + i, Self::CENTRE.into());
            }
        }
        set_grid_weights::<S, Self>(s, rows, at, sink, block);
    }
}

impl Grid for Iq3S {
    type Block = IQ3_S;
    const CENTRE: u8 = 15;

    #[inline(always)]
    fn eight(block: &IQ3_S, k: usize) -> (u64, u64) {
        let high = usize::from(block.qh[k / 4]) << 8 >> (k % 4 * 2);
        let low = grids::IQ3_S[usize::from(block.qs[2 * k]) | high & 256];
        let next = grids::IQ3_S[usize::from(block.qs[2 * k + 1]) | high >> 1 & 256];
        (u64::from(low) | u64::from(next) << 32, NEGATIVE[usize::from(block.signs[k])])
    }
}

impl Format for Iq3S {
    const BLOCK_BYTES: usize = 110;
    const BLOCK_SPAN: usize = 8;
    const LARGEST: u8 = 2 * Self::CENTRE;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows, at: usize, sink: &mut impl Sink<S>, block: usize) {
        let (d, nibbles) = (rows.halves(s, at), rows.dwords(s, at + 106));
        for i in 0..8 {
            let scale = s.to_float(odd_nibble(s, nibbles, 4 * i as u32));
            sink.set_scale(s, block + i, s.mul(d, scale));
            sink.set_centre(s, block + i, Self::CENTRE.into());
        }
        set_grid_weights::<S, Self>(s, rows, at, sink, block);
    }
}
