//! The form that each storage type has on the device: whose kernels multiply by it, and how many bytes it takes.
//!
//! Most types keep the bits of the file, in another order. The others become bytes: codes of 8 bits under exact scales ([`quant::bytes`]), so
//! that a new storage type runs without a kernel of its own.
//!
//! [`quant::bytes`]: crate::quant::bytes

use crate::quant::{DType, bytes};

/// A form of weights, as `kernels/common/types.cuh` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Its number among the kernels' types.
    pub code: u32,
    /// Bytes of 256 values.
    pub bytes: usize,
}

/// What serves the types without a form of their own.
const BYTES: Form = Form { code: 17, bytes: 8 * bytes::GROUP_BYTES };

impl Form {
    /// The form of a type.
    pub fn of(dtype: DType) -> Form {
        let (code, bytes) = match dtype {
            DType::F32 => (0, 1024),
            DType::F16 => (1, 512),
            DType::BF16 => (2, 512),
            DType::Q8_0 => (3, 272),
            DType::Q4_K => (4, 148),
            DType::Q5_K => (5, 180),
            DType::Q6_K => (6, 210),
            DType::Q4_0 => (7, 144),
            DType::Q4_1 => (8, 160),
            DType::Q5_0 => (9, 176),
            DType::Q5_1 => (10, 192),
            DType::Q2_K => (11, 84),
            DType::Q3_K => (12, 114),
            DType::IQ4_NL => (13, 144),
            DType::IQ4_XS => (14, 138),
            DType::MXFP4 => (15, 136),
            DType::NVFP4 => (16, 144),
            _ => return BYTES,
        };
        Form { code, bytes }
    }

    /// Whether the type is decoded by the host and becomes bytes.
    pub fn is_bytes(self) -> bool {
        self == BYTES
    }

    /// Whether rows are cut into slices, and meet activations of 8 bits; float rows stand as they are.
    pub fn is_quantized(self) -> bool {
        self.code > 2
    }

    /// Columns of a slice, or of what a warp takes of a float row at a time.
    fn slice_cols(self) -> usize {
        if self.is_quantized() { 1024 } else { 256 }
    }

    /// Bytes of `cols` columns within a slice.
    fn part_bytes(self, cols: usize) -> usize {
        let bytes = self.bytes * cols / 256;
        if self.is_quantized() { bytes.next_multiple_of(16) } else { bytes }
    }

    /// Bytes of a whole slice.
    pub fn slice_bytes(self) -> usize {
        self.part_bytes(self.slice_cols())
    }

    /// Bytes of a row of `cols` columns.
    pub fn row_bytes(self, cols: usize) -> usize {
        cols / self.slice_cols() * self.slice_bytes() + self.part_bytes(cols % self.slice_cols())
    }
}

/// Whether a type is repacked into slices.
pub fn is_quantized(dtype: DType) -> bool {
    Form::of(dtype).is_quantized()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_forms_take_about_the_bytes_of_the_file() {
        for dtype in DType::ALL.into_iter().filter(|&dtype| !Form::of(dtype).is_bytes()) {
            let (on_device, in_file) = (Form::of(dtype).bytes, dtype.row_bytes(256).unwrap() as usize);
            assert!(in_file <= on_device && 100 * on_device <= 104 * in_file, "{dtype}: {on_device} for {in_file}");
        }
        let bytes: Vec<DType> = DType::ALL.into_iter().filter(|&dtype| Form::of(dtype).is_bytes()).collect();
        assert_eq!(bytes.len(), 10, "{bytes:?}");
    }

    #[test]
    fn rows_end_with_a_shorter_slice() {
        assert_eq!(Form::of(DType::F16).row_bytes(33), 66);
        assert_eq!(Form::of(DType::Q4_0).row_bytes(96), 64);
        assert_eq!(Form::of(DType::Q4_0).row_bytes(1024 + 32), 32 * 18 + 32);
        assert_eq!(Form::of(DType::Q4_K).row_bytes(2048 + 256), 2 * 592 + 160);
    }
}
