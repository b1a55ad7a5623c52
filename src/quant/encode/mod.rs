//! Plain encoders: the blocks that ggml's reference quantization (`quantize_row_*_ref` of ggml-quants.c) makes of values, bit for bit where
//! the values are numbers.
//!
//! Every operation rounds on its own, in single precision and in the written order; a compiler that fuses some gives other bits.

pub mod kquant;
mod small;

use super::DType;
use half::{bf16, f16};

/// The types that values can be encoded in.
#[cfg(any(doc, feature = "testing"))]
pub const ENCODABLE: [DType; 10] = [
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// Encodes whole blocks as `dtype`, which is one of [`ENCODABLE`].
///
/// # Panics
/// If the type is another one, `values` are no whole blocks, or `out` has not their size.
pub fn encode(dtype: DType, values: &[f32], out: &mut [u8]) {
    check(dtype, values, out);
    match dtype {
        DType::F16 => blocks(values, out, |[value]| f16::from_f32(*value).to_le_bytes()),
        DType::BF16 => blocks(values, out, |[value]| bf16::from_f32(*value).to_le_bytes()),
        DType::Q8_0 => blocks(values, out, small::q8_0),
        DType::Q4_0 => blocks(values, out, small::q4_0),
        DType::Q4_1 => blocks(values, out, small::q4_1),
        DType::Q5_0 => blocks(values, out, small::q5_0),
        DType::Q5_1 => blocks(values, out, small::q5_1),
        DType::Q4_K => blocks(values, out, kquant::q4_k),
        DType::Q5_K => blocks(values, out, kquant::q5_k),
        DType::Q6_K => blocks(values, out, kquant::q6_k),
        other => panic!("{other} has no encoder"),
    }
}

/// Checks the arguments of [`encode`].
///
/// # Panics
/// If `values` are no whole blocks, or `out` has not their size.
pub fn check(dtype: DType, values: &[f32], out: &[u8]) {
    let len = dtype.block_len();
    assert!(values.len().is_multiple_of(len), "{} values are no whole {dtype} blocks", values.len());
    assert_eq!(out.len(), values.len() / len * dtype.block_bytes());
}

/// Encodes block after block.
fn blocks<const LEN: usize, const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; LEN]) -> [u8; BYTES],
) {
    let (values, out) = (values.as_chunks::<LEN>().0, out.as_chunks_mut::<BYTES>().0);
    values.iter().zip(out).for_each(|(values, out)| *out = encode(values));
}

/// A half as a file has it, and the single that it then is.
fn half(value: f32) -> ([u8; 2], f32) {
    let half = f16::from_f32(value);
    (half.to_le_bytes(), half.to_f32())
}

/// 1 / `scale`, or 0 where there is none.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{reference, synthetic::Random};

    #[test]
    fn what_is_encoded_is_near_what_it_was() {
        let values: Vec<f32> = Random::new(1).uniforms(8 * 256);
        // Half of the step between the levels of a block, which reach from -1 to 1, and what halves and scales of few bits cost.
        let bounds = [0.0005, 0.004, 0.005, 0.14, 0.07, 0.07, 0.036, 0.09, 0.05, 0.04];
        for (dtype, bound) in ENCODABLE.into_iter().zip(bounds) {
            let mut blocks = vec![0; dtype.row_bytes(values.len() as u64).unwrap() as usize];
            encode(dtype, &values, &mut blocks);
            let mut decoded = vec![0.0; values.len()];
            reference::decode(dtype, &blocks, &mut decoded);
            let worst = values.iter().zip(&decoded).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
            assert!(worst > 0.0 && worst < bound, "{dtype}: {worst}");
        }
    }

    #[test]
    fn any_values_make_blocks() {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, -1e-45, 0.0, -0.0, 1e30];
        let mut random = Random::new(2);
        for dtype in ENCODABLE {
            for _ in 0..200 {
                let values: Vec<f32> = (0..256)
                    .map(|_| match random.bits() % 3 {
                        0 => odd[(random.bits() % odd.len() as u64) as usize],
                        1 => f32::from_bits(random.bits() as u32),
                        _ => 0.0,
                    })
                    .collect();
                encode(dtype, &values, &mut vec![0; dtype.row_bytes(256).unwrap() as usize]);
            }
        }
    }
}
