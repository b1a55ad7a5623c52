//! The kernel of `gemm_i8_single_stage.cu`, whose blocks have a tile and an SM each: when they do, and its sizes.

use super::super::args::TensorArgs;
use super::super::catalogue::Kernel;
use super::gemm_i8_resident::{COLUMNS, MOST_ROWS, TILE, activation_bytes, tiles};
use super::{Choice, Device, odd_stride};

const THREADS: u32 = 8 * 32;
/// Shared memory that a block has whatever it is given.
const OWN: u32 = 6 << 10;

/// The kernel, if it takes these products.
pub fn choose(args: &TensorArgs, rows: u32, device: &Device) -> Option<Choice> {
    let fits = rows <= MOST_ROWS && args.cols.is_multiple_of(COLUMNS) && !args.is_gated();
    if !fits || !device.bulk_copies {
        return None;
    }
    let row_bytes = args.segments().iter().map(|segment| segment.matrix.row_bytes).max()?;
    let shared = activation_bytes(args, rows).checked_add(TILE.checked_mul(odd_stride(row_bytes))?)?;
    let tiles = tiles(args);
    (shared <= device.most_shared.saturating_sub(OWN) && tiles <= device.sms)
        .then(|| Choice::of_products(Kernel::GemmI8SingleStage.only(), tiles, THREADS, shared))
}

#[cfg(test)]
mod tests {
    use super::super::tests::product;
    use super::*;
    use crate::backend::cuda::catalogue::DeviceType;

    #[test]
    fn matrices_take_it_whose_tiles_have_an_sm_each() {
        let blocks = |cols: u32, rows: u32, batch: u32| {
            let (mut args, device) = product(cols, rows, DeviceType::Q4_K);
            args.segments[0].matrix.row_bytes = DeviceType::Q4_K.row_bytes(cols as usize) as u32;
            choose(&args, batch, &device).map(|choice| choice.blocks[0])
        };
        assert_eq!([blocks(2048, 2048, 5), blocks(4096, 2100, 8)], [Some(128), Some(132)]);
        // More tiles than SMs, more rows than columns of a tile, columns of no whole groups of a warp, and rows that do not fit.
        let others = [(2048, 2128, 5), (2048, 2048, 9), (2080, 2048, 5), (16384, 2048, 8)];
        assert_eq!(others.map(|(cols, rows, batch)| blocks(cols, rows, batch)), [None; 4]);
    }
}
