//! The kernels of the library and the weight types that they know, as `kernels/kernels.def` and `kernels/quant/types.def` list them, from which the
//! build writes [`Kernel`] and [`DeviceType`]; and which weight type a storage type has on the device.

use crate::quant::DType;

include!(concat!(env!("OUT_DIR"), "/catalogue.rs"));

/// One kernel of a family.
#[derive(Debug)]
pub struct Variant {
    /// Its file, without folder and extension.
    pub file: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// The weight types that it is made for; empty where it takes any, or none.
    pub types: &'static [DeviceType],
    /// The numbers that it is made for, such as the extents of a tile, in the order of its line.
    pub numbers: &'static [u32],
}

/// A kernel, by its family and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The family.
    pub kernel: Kernel,
    /// Which of its kernels.
    pub variant: usize,
}

impl Function {
    /// What the catalogue says of it.
    pub fn entry(self) -> &'static Variant {
        &self.kernel.variants()[self.variant]
    }
}

impl Kernel {
    /// The only kernel of a family that has one.
    pub fn only(self) -> Function {
        debug_assert!(self.variants().len() == 1, "{self:?}");
        Function { kernel: self, variant: 0 }
    }

    /// The kernel whose numbers begin with these.
    pub fn of_numbers(self, numbers: &[u32]) -> Option<Function> {
        let variant = self.variants().iter().position(|entry| entry.numbers.starts_with(numbers))?;
        Some(Function { kernel: self, variant })
    }

    /// The first kernel that is made for all these types.
    pub fn of_types(self, types: impl Iterator<Item = DeviceType> + Clone) -> Option<Function> {
        let takes = |entry: &Variant| types.clone().all(|dtype| entry.types.contains(&dtype));
        let variant = self.variants().iter().position(|entry| !entry.types.is_empty() && takes(entry))?;
        Some(Function { kernel: self, variant })
    }
}

/// The files whose kernels are only in machine code for compute capability 9.0.
pub(super) const NATIVE_FILES: [&str; 3] = ["gemm_f16", "gemm_f16_small_batch", "expert_gemm_f16"];

/// Bytes of a group of 32 weights: its codes, their high bits, scales in bytes, scales and minimums in floats; and the floats that 8 groups share.
#[allow(missing_docs)] // Above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupBytes {
    pub codes: u32,
    pub high: u32,
    pub scales: u32,
    pub floats: u32,
    pub shared: u32,
}

/// Columns of a group, of a slice of a quantized row, and of what a warp takes of a float row at a time.
const GROUP: usize = 32;
const SLICE: usize = 1024;
const FLOATS: usize = 256;

impl DeviceType {
    /// The weight type of a storage type. Those that the kernels lack are decoded by the host and become bytes under exact scales
    /// ([`crate::quant::bytes`]), so that a new storage type runs without a kernel of its own.
    pub fn of(dtype: DType) -> DeviceType {
        DeviceType::ALL.into_iter().find(|own| own.name() == dtype.name()).unwrap_or(DeviceType::BYTES)
    }

    /// Whether rows are cut into slices, and meet activations of 8 bits; float rows stand as they are.
    pub const fn is_quantized(self) -> bool {
        !matches!(self, DeviceType::F32 | DeviceType::F16 | DeviceType::BF16)
    }

    /// Whether GEMM kernels multiply by it on tensor cores.
    pub const fn has_gemm(self) -> bool {
        matches!(self, DeviceType::Q8_0 | DeviceType::Q4_K | DeviceType::Q5_K | DeviceType::Q6_K)
    }

    /// Columns of a slice, or of what a warp takes of a float row at a time.
    fn slice_cols(self) -> usize {
        if self.is_quantized() { SLICE } else { FLOATS }
    }

    /// Bytes that the planes of `cols` columns take.
    fn plane_bytes(self, cols: usize) -> usize {
        let GroupBytes { codes, high, scales, floats, shared } = self.group();
        (codes + high + scales + floats) as usize * cols / GROUP + shared as usize * cols / (8 * GROUP)
    }

    /// Bytes of `cols` columns within a slice.
    fn part_bytes(self, cols: usize) -> usize {
        let bytes = self.plane_bytes(cols);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_types_take_about_the_bytes_of_the_file() {
        let has_own = |dtype: &DType| DeviceType::of(*dtype) != DeviceType::BYTES;
        for dtype in DType::ALL.into_iter().filter(has_own) {
            let (on_device, in_file) = (DeviceType::of(dtype).plane_bytes(256), dtype.row_bytes(256).unwrap() as usize);
            assert!(in_file <= on_device && 100 * on_device <= 104 * in_file, "{dtype}: {on_device} for {in_file}");
        }
        assert!(has_own(&DType::Q8_0) && !has_own(&DType::IQ1_S));
    }

    #[test]
    fn rows_end_with_a_shorter_slice() {
        assert_eq!(DeviceType::F16.row_bytes(33), 66);
        assert_eq!(DeviceType::Q4_0.row_bytes(96), 64);
        assert_eq!(DeviceType::Q4_0.row_bytes(1024 + 32), 32 * 18 + 32);
        assert_eq!(DeviceType::Q4_K.row_bytes(2048 + 256), 2 * 592 + 160);
    }
}
