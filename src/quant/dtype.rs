//! The storage types of tensors: one table with each type's id in a GGUF file, name, block size and decoder.
//!
//! A tensor is stored as rows; a row is a whole number of blocks; a block is a fixed number of bytes that holds a fixed
//! number of values. Ids and sizes are those of the GGUF format. Anything that differs from type to type and is no
//! kernel belongs into the table; kernels have tables of their own, keyed by [`DType`].

use std::fmt;

use super::blocks;
use super::reference::{Decode, Decoder, decode_blocks};

/// How the values of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // The field's spelling, which users see in file names.
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// 4 bits, a scale for 32 values.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32 values.
    Q4_1,
    /// 5 bits, a scale for 32 values.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32 values.
    Q5_1,
    /// 8 bits, a scale for 32 values.
    Q8_0,
    /// 2 bits, 4-bit scales and minimums for 16 values each.
    Q2_K,
    /// 3 bits, 6-bit scales for 16 values each.
    Q3_K,
    /// 4 bits, 6-bit scales and minimums for 32 values each.
    Q4_K,
    /// 5 bits, 6-bit scales and minimums for 32 values each.
    Q5_K,
    /// 6 bits, 8-bit scales for 16 values each.
    Q6_K,
    /// 8 ternary values from a grid of 2048, 3-bit scales and a shift for 32 values each.
    IQ1_S,
    /// 8 ternary values from a grid of 2048, a shift for 8 and 3-bit scales for 16 values each.
    IQ1_M,
    /// 8 magnitudes from a grid of 256 and shared signs, 4-bit scales for 32 values each.
    IQ2_XXS,
    /// 8 magnitudes from a grid of 512 and shared signs, 4-bit scales for 16 values each.
    IQ2_XS,
    /// 8 magnitudes from a grid of 1024 and free signs, 4-bit scales for 16 values each.
    IQ2_S,
    /// 4 magnitudes from a grid of 256 and shared signs, 4-bit scales for 32 values each.
    IQ3_XXS,
    /// 4 magnitudes from a grid of 512 and free signs, 4-bit scales for 32 values each.
    IQ3_S,
    /// 4-bit index into 16 uneven levels, a scale for 32 values.
    IQ4_NL,
    /// 4-bit index into 16 uneven levels, 6-bit scales for 32 values each.
    IQ4_XS,
    /// Ternary, 5 values a byte in base 3, one scale.
    TQ1_0,
    /// Ternary, 2 bits a value, one scale.
    TQ2_0,
    /// OCP Microscaling: E2M1 values, an E8M0 scale for 32 values.
    MXFP4,
    /// E2M1 values, an unsigned E4M3 scale for 16 values each.
    NVFP4,
    /// The sign alone, a scale for 128 values.
    Q1_0,
}

/// One row of the table.
struct Format {
    dtype: DType,
    ggml: u32,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
    decoder: Decoder,
}

const COUNT: usize = 27;

/// Rows stand in the order of the enum's variants.
static FORMATS: [Format; COUNT] = [
    row::<blocks::F32, 1>(DType::F32, 0, "F32", 4),
    row::<blocks::F16, 1>(DType::F16, 1, "F16", 2),
    row::<blocks::BF16, 1>(DType::BF16, 30, "BF16", 2),
    row::<blocks::Q4_0, 32>(DType::Q4_0, 2, "Q4_0", 18),
    row::<blocks::Q4_1, 32>(DType::Q4_1, 3, "Q4_1", 20),
    row::<blocks::Q5_0, 32>(DType::Q5_0, 6, "Q5_0", 22),
    row::<blocks::Q5_1, 32>(DType::Q5_1, 7, "Q5_1", 24),
    row::<blocks::Q8_0, 32>(DType::Q8_0, 8, "Q8_0", 34),
    row::<blocks::Q2_K, 256>(DType::Q2_K, 10, "Q2_K", 84),
    row::<blocks::Q3_K, 256>(DType::Q3_K, 11, "Q3_K", 110),
    row::<blocks::Q4_K, 256>(DType::Q4_K, 12, "Q4_K", 144),
    row::<blocks::Q5_K, 256>(DType::Q5_K, 13, "Q5_K", 176),
    row::<blocks::Q6_K, 256>(DType::Q6_K, 14, "Q6_K", 210),
    row::<blocks::IQ1_S, 256>(DType::IQ1_S, 19, "IQ1_S", 50),
    row::<blocks::IQ1_M, 256>(DType::IQ1_M, 29, "IQ1_M", 56),
    row::<blocks::IQ2_XXS, 256>(DType::IQ2_XXS, 16, "IQ2_XXS", 66),
    row::<blocks::IQ2_XS, 256>(DType::IQ2_XS, 17, "IQ2_XS", 74),
    row::<blocks::IQ2_S, 256>(DType::IQ2_S, 22, "IQ2_S", 82),
    row::<blocks::IQ3_XXS, 256>(DType::IQ3_XXS, 18, "IQ3_XXS", 98),
    row::<blocks::IQ3_S, 256>(DType::IQ3_S, 21, "IQ3_S", 110),
    row::<blocks::IQ4_NL, 32>(DType::IQ4_NL, 20, "IQ4_NL", 18),
    row::<blocks::IQ4_XS, 256>(DType::IQ4_XS, 23, "IQ4_XS", 136),
    row::<blocks::TQ1_0, 256>(DType::TQ1_0, 34, "TQ1_0", 54),
    row::<blocks::TQ2_0, 256>(DType::TQ2_0, 35, "TQ2_0", 66),
    row::<blocks::MXFP4, 32>(DType::MXFP4, 39, "MXFP4", 17),
    row::<blocks::NVFP4, 64>(DType::NVFP4, 40, "NVFP4", 36),
    row::<blocks::Q1_0, 128>(DType::Q1_0, 41, "Q1_0", 18),
];

const fn row<B: Decode<LEN>, const LEN: usize>(
    dtype: DType,
    ggml: u32,
    name: &'static str,
    block_bytes: usize,
) -> Format {
    assert!(size_of::<B>() == block_bytes, "a block has another size than the table says");
    Format { dtype, ggml, name, block_len: LEN, block_bytes, decoder: decode_blocks::<B, LEN> }
}

impl DType {
    /// Every type, in the order of the variants: `ALL[t as usize] == t`.
    pub const ALL: [DType; COUNT] = {
        let mut all = [DType::F32; COUNT];
        let mut i = 0;
        while i < COUNT {
            all[i] = FORMATS[i].dtype;
            assert!(all[i] as usize == i, "a row of the table is out of order");
            i += 1;
        }
        all
    };

    /// The type with this id in a GGUF file, if the library knows it.
    pub fn from_ggml(id: u32) -> Option<DType> {
        FORMATS.iter().find(|format| format.ggml == id).map(|format| format.dtype)
    }

    /// Its id in a GGUF file.
    pub fn ggml_id(self) -> u32 {
        self.format().ggml
    }

    /// The name by which files and users call it, as in `Q4_K`.
    pub fn name(self) -> &'static str {
        self.format().name
    }

    /// Values in a block.
    pub fn block_len(self) -> usize {
        self.format().block_len
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.format().block_bytes
    }

    /// Bytes of a row of `cols` values; `None` if `cols` is no whole number of blocks or the size overflows.
    pub fn row_bytes(self, cols: u64) -> Option<u64> {
        let format = self.format();
        let len = format.block_len as u64;
        if !cols.is_multiple_of(len) {
            return None;
        }
        (cols / len).checked_mul(format.block_bytes as u64)
    }

    /// What turns whole blocks into values; `reference::decode` checks the lengths.
    pub(super) fn decoder(self) -> Decoder {
        self.format().decoder
    }

    fn format(self) -> &'static Format {
        &FORMATS[self as usize]
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_own_id() {
        for format in &FORMATS {
            assert_eq!(DType::from_ggml(format.ggml), Some(format.dtype));
            assert_eq!(format!("{:?}", format.dtype), format.name);
        }
    }

    #[test]
    fn unknown_ids_have_no_type() {
        // 4, 5 and 31 to 33 were withdrawn from the format; 9 and 15 are intermediate types that no file stores.
        for id in [4, 5, 9, 15, 24, 31, 32, 33, 42, u32::MAX] {
            assert_eq!(DType::from_ggml(id), None, "id {id}");
        }
    }

    #[test]
    fn rows_are_whole_blocks_and_never_overflow() {
        assert_eq!(DType::Q4_K.row_bytes(2048), Some(8 * 144));
        assert_eq!(DType::Q4_K.row_bytes(0), Some(0));
        assert_eq!(DType::Q4_K.row_bytes(2047), None);
        assert_eq!(DType::Q8_0.row_bytes(96), Some(3 * 34));
        assert_eq!(DType::F32.row_bytes(u64::MAX / 4), Some(u64::MAX / 4 * 4));
        assert_eq!(DType::F32.row_bytes(u64::MAX / 4 + 1), None);
        assert_eq!(DType::Q8_0.row_bytes(u64::MAX - 31), None);
    }
}
