//! Which kernel runs products for a shape, on how many blocks and with how much shared memory: what is decided by sizes, types and the device, and by
//! nothing else. A graph asks once for each launch and keeps the answer; a list asks each time.
//!
//! `gemv` has the rules for one to four rows, [`gemm`] compares the kernels for more by the time that each is estimated to take, `attention` knows
//! the splits of positions. `kernels/README.md` has a table of all.

pub mod attention;
pub mod experts;
pub mod gemm_f16;
mod gemm_f16_small_batch;
pub mod gemm_i8;
mod gemm_i8_resident;
mod gemm_i8_single_stage;
mod gemm_i8_small_batch;
mod gemm_i8_specialized;
pub mod gemv;

use super::args::{Segment, TensorArgs};
use super::catalogue::{DeviceType, Function};

/// What selection knows of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Shared memory that a block can have, in bytes.
    pub most_shared: u32,
    /// Whether the kernels that run have the instructions of compute capability 9.0: copies in bulk, barriers that count their bytes.
    pub bulk_copies: bool,
}

impl Device {
    /// A device that no launch is too large for: where launches are only counted.
    pub const LARGEST: Device = Device { sms: 132, most_shared: u32::MAX, bulk_copies: true };
}

/// What a launch comes to for a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The kernel.
    pub function: Function,
    /// Blocks along x, y and z; a zero means that there is nothing to do.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl Choice {
    /// Whether there is anything to do.
    pub fn runs(&self) -> bool {
        !self.blocks.contains(&0)
    }

    fn of_products(function: Function, blocks: u32, threads: u32, shared_bytes: u32) -> Choice {
        Choice { function, blocks: [blocks, 1, 1], threads, shared_bytes }
    }
}

/// The kernel for products of `rows` rows of activations on tensor cores. Of 16-bit floats: the kernels for few rows where they take them. Of 8-bit
/// blocks: those for two to four rows of large matrices, those that keep the activations resident, and else the quicker of the plain tiles and the
/// warp-specialized ones.
pub fn gemm(args: &TensorArgs, rows: u32, device: &Device) -> Choice {
    if args.is_f16() {
        return gemm_f16_small_batch::choose(args, rows, device)
            .unwrap_or_else(|| gemm_f16::choose(args, rows, device));
    }
    gemm_i8_small_batch::choose(args, rows, device)
        .or_else(|| gemm_i8_single_stage::choose(args, rows, device))
        .or_else(|| gemm_i8_resident::choose(args, rows, device))
        .or_else(|| gemm_i8_specialized::choose(args, rows, device))
        .unwrap_or_else(|| gemm_i8::choose(args, rows, device))
}

impl TensorArgs {
    /// The products of the launch.
    pub fn segments(&self) -> &[Segment] {
        &self.segments[..self.count as usize]
    }

    /// Whether its activations are 16-bit floats.
    pub fn is_f16(&self) -> bool {
        self.x.q != 0 && self.x.meta == 0
    }

    /// Whether its two products end in a gated unit.
    fn is_gated(&self) -> bool {
        self.gated.x != 0
    }

    /// Weight rows of all products.
    fn weight_rows(&self) -> u32 {
        self.segments().iter().map(|segment| segment.matrix.rows).sum()
    }

    /// The most that any product's weight type asks for.
    pub fn most(&self, of_type: impl Fn(DeviceType) -> u32) -> u32 {
        self.segments().iter().map(|segment| of_type(segment.matrix.dtype)).max().unwrap_or(0)
    }
}

/// Columns of a slice of a quantized row, and its groups.
const SLICE_COLUMNS: u32 = 1024;
const SLICE_GROUPS: u32 = 32;

/// Bytes from a row to the next in a stage that holds whole slices: five times 16 bytes more than a multiple of 128, so that rows r and r + 4 have
/// other banks of shared memory.
fn stage_stride(dtype: DeviceType) -> u32 {
    (dtype.slice_bytes() as u32 / 16 + 2) / 8 * 128 + 80
}

/// An odd number of 16 bytes that holds `bytes`, so that the rows of a stage begin in other banks.
fn odd_stride(bytes: u32) -> u32 {
    16 * (bytes.div_ceil(16) | 1)
}

#[cfg(test)]
mod tests {
    use super::super::args::Matrix;
    use super::*;

    /// A product of so many columns and rows on a device of compute capability 9.0.
    pub fn product(cols: u32, rows: u32, dtype: DeviceType) -> (TensorArgs, Device) {
        let matrix = Matrix { rows, dtype, slice_bytes: dtype.slice_bytes() as u32, ..Matrix::default() };
        let mut args = TensorArgs { cols, count: 1, ..TensorArgs::default() };
        args.segments[0] = Segment { matrix, ..Segment::default() };
        args.f16_row_bytes = args.most(gemm_f16::row_bytes);
        (args, Device { sms: 132, most_shared: 227 << 10, bulk_copies: true })
    }

    #[test]
    fn rows_of_stages_keep_banks_apart() {
        use DeviceType::{Q4_K, Q5_K, Q6_K, Q8_0};
        assert_eq!([Q8_0, Q4_K, Q5_K, Q6_K].map(stage_stride), [1104, 592, 720, 848]);
    }

    #[test]
    fn every_batch_has_a_kernel_that_fits() {
        for dtype in DeviceType::ALL.into_iter().filter(|dtype| dtype.has_gemm()) {
            for (cols, rows) in [(256, 256), (2048, 8192), (4096, 4096), (14336, 4096), (896, 151_936)] {
                let (args, device) = product(cols, rows, dtype);
                for sms in [16, 58, 108, 132, 144] {
                    for batch in [1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 512] {
                        let choice = gemm(&args, batch, &Device { sms, ..device });
                        assert!(choice.runs() && choice.shared_bytes <= device.most_shared, "{choice:?}");
                    }
                }
            }
        }
    }
}
