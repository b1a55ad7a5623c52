//! Weights of 4-bit floats (OCP Microscaling, MXFP4) as OpenAI's folders hold them: blocks of 32 values in one tensor, their scales in another. They
//! become blocks of GGUF files, which hold the same bits in another order.

use super::elements::Elements;
use crate::error::{Error, Result};
use crate::format::Safetensors;
use crate::format::safetensors::Stored;
use crate::quant::DType;
use crate::quant::blocks::MXFP4;

/// What names of both tensors end with.
pub const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";
/// Bytes of the values of a block, two in each.
const BYTES: usize = 16;

/// Whether a tensor has the scales of another one of `weights`.
pub fn is_scales(name: &str, weights: &Safetensors) -> bool {
    name.strip_suffix(SCALES).is_some_and(|part| weights.tensor(&format!("{part}{BLOCKS}")).is_some())
}

/// The tensor `stored` as values of 4 bits in rows, if it holds blocks, and their scales.
pub fn find(stored: &Stored, weights: &Safetensors) -> Result<Option<(Stored, Elements)>> {
    let Some(part) = stored.name.strip_suffix(BLOCKS) else { return Ok(None) };
    let name = format!("{part}{SCALES}");
    let scales = weights.tensor(&name).ok_or_else(|| {
        let blocks = &stored.name;
        Error::Format(format!("tensor `{blocks}` holds blocks, but the tensor `{name}` of their scales is missing"))
    })?;
    let bad = |tensor: &Stored, expected: &str| {
        let Stored { name, type_name, shape, .. } = tensor;
        Error::Format(format!("tensor `{name}` has shape {shape:?} in {type_name}, expected {expected}"))
    };
    let expected = format!("experts, rows, blocks and {BYTES} bytes in U8");
    let [experts, rows, blocks, bytes] = stored.shape[..] else { return Err(bad(stored, &expected)) };
    if stored.type_name != "U8" || bytes != BYTES as u64 {
        return Err(bad(stored, &expected));
    }
    if scales.type_name != "U8" || scales.shape != stored.shape[..3] {
        return Err(bad(scales, &format!("{:?} in U8", &stored.shape[..3])));
    }
    let cols = blocks.saturating_mul(DType::MXFP4.block_len() as u64);
    let values = Stored { type_name: "F4", shape: vec![experts, rows, cols], ..stored.clone() };
    Ok(Some((values, Elements::Blocks(scales.clone()))))
}

/// Writes blocks of GGUF files to `out`. In `values` two neighbours share a byte; there the first half of a block is in the low bits.
pub fn join(values: &[u8], scales: &[u8], out: &mut [u8]) {
    let blocks = values.as_chunks::<BYTES>().0.iter().zip(scales);
    for (to, (from, scale)) in out.as_chunks_mut::<{ size_of::<MXFP4>() }>().0.iter_mut().zip(blocks) {
        to[0] = *scale;
        for (pair, (first, second)) in
            to[1..].as_chunks_mut::<2>().0.iter_mut().zip(from.iter().zip(&from[BYTES / 2..]))
        {
            *pair = [first & 15 | second << 4, first >> 4 | second & 0xf0];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_keeps_its_bits_and_its_place() {
        let codes: Vec<u8> = (0..64u32).map(|at| ((at * 7 + at / 16) % 16) as u8).collect();
        let values: Vec<u8> = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
        let mut out = [0xaa; 34];
        join(&values, &[3, 250], &mut out);
        for (block, scale) in [3, 250].into_iter().enumerate() {
            let bytes = &out[17 * block..][..17];
            assert_eq!(bytes[0], scale);
            for at in 0..16 {
                let codes = &codes[32 * block..];
                assert_eq!(bytes[1 + at], codes[at] | codes[at + 16] << 4, "{block} {at}");
            }
        }
    }
}
