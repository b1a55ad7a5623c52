//! The kernels of `gemm_i8_small_batch.cu`, which multiply two to four rows of activations: when one is the quickest way, and its sizes.

use super::super::args::TensorArgs;
use super::super::catalogue::{DeviceType, Kernel};
use super::{Choice, Device, SLICE_COLUMNS, SLICE_GROUPS, stage_stride};

/// Threads of a block: eight warps that multiply, and four that copy and finish.
const THREADS: u32 = 12 * 32;
/// Sizes from which on these kernels are quicker than those of `gemv_small_batch.cu`.
const LEAST_COLUMNS: u32 = 4096;
const LEAST_ROWS: u32 = 4096;
/// Slices of a long row, more than this.
const LONG_SLICES: u32 = 8;
/// What columns are a multiple of.
const COLUMNS: u32 = 128;
/// Tiles of a gated unit.
const GATED_TILES: u32 = 2;
/// Shared memory of a block, and what of it slices of x may take, of which there are always two or all.
const SHARED: u32 = 110 << 10;
const X_ROOM: u32 = 24 << 10;
const MOST_SLOTS: u32 = 8;
const MOST_STAGES: u32 = 16;
const LEAST_STAGES: u32 = 2;
/// Bytes of a slice of a row of x: codes, which a pad keeps from the banks of the next row's, and block scales.
const X_BYTES: u32 = SLICE_COLUMNS + 16 + SLICE_GROUPS * 8;
/// Floats of the sums of a column, for each of eight warps.
const SUMS: u32 = 8 * 48;

/// The kernel for so many rows, if one takes these products and is the quickest way to them.
pub fn choose(args: &TensorArgs, rows: u32, device: &Device) -> Option<Choice> {
    let (columns, sixteens) = (if rows > 2 { 4 } else { 2 }, tile_sixteens(args, device));
    let tile_rows = 16 * sixteens;
    // Two rows of 8-bit weights are quicker elsewhere.
    let has_type = |dtype: DeviceType| dtype.has_gemm() && (dtype != DeviceType::Q8_0 || rows > 2);
    let segments = args.segments().iter();
    let fits = segments.map(|s| s.matrix).all(|m| m.rows.is_multiple_of(tile_rows) && has_type(m.dtype));
    let is_large = args.cols >= LEAST_COLUMNS && args.weight_rows() >= LEAST_ROWS && args.cols.is_multiple_of(COLUMNS);
    if !(2..=4).contains(&rows) || !device.bulk_copies || !is_large || !fits {
        return None;
    }
    let stage = tile_rows * args.most(stage_stride);
    let beside = beside(args, columns);
    let stages = (device.most_shared.min(SHARED).saturating_sub(beside) / stage).min(MOST_STAGES);
    let function = Kernel::GemmI8SmallBatch.of_numbers(&[columns, sixteens]).filter(|_| stages >= LEAST_STAGES)?;
    let tiles = args.weight_rows() / tile_rows;
    let units = if args.is_gated() { tiles / GATED_TILES } else { tiles };
    Some(Choice::of_products(function, units.min(2 * device.sms), THREADS, beside + stages * stage))
}

/// Bytes of sums and of slices of x.
fn beside(args: &TensorArgs, columns: u32) -> u32 {
    let slice = columns * X_BYTES;
    let slots = args.cols.div_ceil(SLICE_COLUMNS).min((X_ROOM / slice).clamp(2, MOST_SLOTS));
    columns * SUMS * 4 + slots * slice
}

/// Sixteens of weight rows of a tile: one where rows are long, and two would leave half of each SM without a block.
fn tile_sixteens(args: &TensorArgs, device: &Device) -> u32 {
    let is_long = args.cols > LONG_SLICES * SLICE_COLUMNS && args.weight_rows() <= 32 * device.sms;
    if is_long && !args.is_gated() { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::super::tests::product;
    use super::*;

    fn name(cols: u32, rows: u32, dtype: DeviceType, batch: u32) -> Option<&'static str> {
        let (args, device) = product(cols, rows, dtype);
        let choice = choose(&args, batch, &device)?;
        // Two blocks share an SM.
        assert!(choice.shared_bytes <= SHARED);
        Some(choice.function.entry().name.strip_prefix("gemm_i8_small_batch_").unwrap())
    }

    #[test]
    fn large_matrices_take_them_and_small_ones_do_not() {
        use DeviceType::{Q4_K, Q6_K, Q8_0};
        assert_eq!([2, 3, 4].map(|batch| name(4096, 4096, Q4_K, batch)), [Some("2_2"), Some("4_2"), Some("4_2")]);
        assert_eq!([2, 4].map(|batch| name(14336, 4096, Q6_K, batch)), [Some("2_1"), Some("4_1")]);
        assert_eq!([1, 5, 8].map(|batch| name(4096, 4096, Q4_K, batch)), [None; 3]);
        assert_eq!(name(14336, 4096, Q8_0, 2), None);
        for (cols, rows) in [(2048, 8192), (8192, 2048), (4096, 4112), (4128, 4096)] {
            assert_eq!(name(cols, rows, Q4_K, 4), None, "{cols} columns, {rows} rows");
        }
        let (args, device) = product(4096, 4096, Q4_K);
        assert_eq!(choose(&args, 4, &Device { bulk_copies: false, ..device }), None);
    }
}
