//! Plain decoders of every storage type: the definition of what stored weights mean, and the oracle of all kernels.
//!
//! [`decode`] turns whole blocks into singles, bit for bit as ggml's scalar decoders do. Each decoder states the
//! position of a value's bits as a formula of its index; none is meant to be fast. Every operation rounds on its own,
//! in the written order: a kernel that fuses or reorders them gives other bits.

mod fp4;
mod grid;
mod kquant;
mod small;
mod ternary;

use super::DType;
use super::blocks::{self, Block};

/// Decodes whole blocks. No bit pattern is an error; scales that are no numbers give values that are none.
///
/// # Panics
/// If `bytes` is no whole number of blocks, or `out` does not hold exactly their values.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert!(bytes.len().is_multiple_of(dtype.block_bytes()), "{} bytes are no whole {dtype} blocks", bytes.len());
    let values = bytes.len() / dtype.block_bytes() * dtype.block_len();
    assert!(out.len() == values, "{values} {dtype} values do not fit {} floats exactly", out.len());
    (dtype.decoder())(bytes, out);
}

/// Decodes as many blocks as there are, given lengths that match.
pub(super) type Decoder = fn(bytes: &[u8], out: &mut [f32]);

/// A block of `LEN` values that can be decoded.
pub(super) trait Decode<const LEN: usize>: Block {
    fn decode(&self, out: &mut [f32; LEN]);
}

/// The [`Decoder`] of one block type.
pub(super) fn decode_blocks<B: Decode<LEN>, const LEN: usize>(bytes: &[u8], out: &mut [f32]) {
    let (values, _) = out.as_chunks_mut::<LEN>();
    for (block, values) in blocks::view::<B>(bytes).iter().zip(values) {
        block.decode(values);
    }
}

/// The `index`-th nibble of `bytes`, low nibbles first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (4 * (index % 2)) & 15
}

/// The `index`-th bit of `bytes`, low bits first.
fn bit(bytes: &[u8], index: usize) -> bool {
    bytes[index / 8] >> (index % 8) & 1 == 1
}
