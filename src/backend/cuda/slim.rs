//! The kernels of `matmul_slim.cu`, which multiply two to four rows of activations: which of them a launch takes, and its sizes.

use super::args::{SMS, Segment, TensorArgs};
use super::skinny::row_stride;

/// A kernel: rows of activations, and weight rows of a tile.
pub struct Slim {
    columns: u32,
    rows: u32,
}

/// In the order of the kernels.
pub const SLIM: [Slim; 4] = [
    Slim { columns: 2, rows: 16 },
    Slim { columns: 2, rows: 32 },
    Slim { columns: 4, rows: 16 },
    Slim { columns: 4, rows: 32 },
];

/// Threads of a block: eight warps that multiply, and four that copy and finish.
pub const THREADS: u32 = 12 * 32;
/// Sizes from which on these kernels are quicker than those of `matvec_few.cu`.
const LEAST_COLUMNS: u32 = 4096;
const LEAST_ROWS: u32 = 4096;
/// Types of weights, by their numbers in the kernels; two rows of the first are quicker elsewhere.
const Q8_0: u32 = 3;
const Q4_K: u32 = 4;
const Q6_K: u32 = 6;
/// Slices of a long row, more than this.
const LONG_SLICES: u32 = 8;
/// Columns of a slice, and what a matrix has a multiple of.
const SLICE_COLUMNS: u32 = 1024;
const COLUMNS: u32 = 128;
/// Tiles of a gated unit.
const GATED_TILES: u32 = 2;
/// Shared memory of a block, and what of it slices of x may take, of which there are always two or all.
const SHARED: u32 = 110 << 10;
const X_ROOM: u32 = 24 << 10;
const MOST_SLOTS: u32 = 8;
const MOST_STAGES: u32 = 16;
const LEAST_STAGES: u32 = 2;
/// Bytes of a slice of a row of x: codes, which a pad keeps from the banks of the next row's, and factors.
const X_BYTES: u32 = SLICE_COLUMNS + 16 + SLICE_COLUMNS / 32 * 8;
/// Floats of the sums of a column, for each of eight warps.
const SUMS: u32 = 8 * 48;

impl Slim {
    /// The kernel for so many rows, if one takes these products and is the quickest way to them.
    pub fn of(args: &TensorArgs, batch: u32) -> Option<usize> {
        let (columns, rows) = (if batch > 2 { 4 } else { 2 }, tile_rows(args));
        let index = SLIM.iter().position(|kernel| kernel.columns == columns && kernel.rows == rows)?;
        let has_type = |dtype: u32| matches!(dtype, Q4_K..=Q6_K) || (dtype == Q8_0 && batch > 2);
        let fits = |segment: &Segment| segment.matrix.rows.is_multiple_of(rows) && has_type(segment.matrix.dtype);
        let is_large = args.cols >= LEAST_COLUMNS && all_rows(args) >= LEAST_ROWS && args.cols.is_multiple_of(COLUMNS);
        let has_room = SLIM[index].stages(args) >= LEAST_STAGES;
        let takes = (2..=4).contains(&batch) && args.in_bulk != 0 && is_large && has_room;
        (takes && args.segments().iter().all(fits)).then_some(index)
    }

    /// Blocks of a launch.
    pub fn grid(&self, args: &TensorArgs) -> u32 {
        let tiles = all_rows(args) / self.rows;
        let units = if args.gated.x != 0 { tiles / GATED_TILES } else { tiles };
        units.min(2 * SMS)
    }

    /// Bytes of sums and of slices of x.
    fn beside(&self, args: &TensorArgs) -> u32 {
        let slice = self.columns * X_BYTES;
        let slots = args.cols.div_ceil(SLICE_COLUMNS).min((X_ROOM / slice).clamp(2, MOST_SLOTS));
        self.columns * SUMS * 4 + slots * slice
    }

    fn stage_bytes(&self, args: &TensorArgs) -> u32 {
        let stride = |segment: &Segment| row_stride(segment.matrix.dtype);
        self.rows * args.segments().iter().map(stride).max().unwrap_or(0)
    }

    fn stages(&self, args: &TensorArgs) -> u32 {
        let room = args.most_shared.min(SHARED).saturating_sub(self.beside(args));
        (room / self.stage_bytes(args)).min(MOST_STAGES)
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared_bytes(&self, args: &TensorArgs) -> u32 {
        self.beside(args) + self.stages(args) * self.stage_bytes(args)
    }
}

fn all_rows(args: &TensorArgs) -> u32 {
    args.segments().iter().map(|segment| segment.matrix.rows).sum()
}

/// Weight rows of a tile: fewer where those are long, and would otherwise leave half of each multiprocessor without a block.
fn tile_rows(args: &TensorArgs) -> u32 {
    let is_long = args.cols > LONG_SLICES * SLICE_COLUMNS && all_rows(args) <= 32 * SMS;
    if is_long && args.gated.x == 0 { 16 } else { 32 }
}

#[cfg(test)]
mod tests {
    use super::super::args::Matrix;
    use super::*;

    fn products(cols: u32, rows: u32, dtype: u32) -> TensorArgs {
        let matrix = Matrix { rows, dtype, ..Matrix::default() };
        let mut args = TensorArgs { cols, count: 1, most_shared: 227 << 10, in_bulk: 1, ..TensorArgs::default() };
        args.segments[0] = Segment { matrix, ..Segment::default() };
        args
    }

    #[test]
    fn large_matrices_take_them_and_small_ones_do_not() {
        let (wide, long) = (products(4096, 4096, Q4_K), products(14336, 4096, Q6_K));
        assert_eq!([2, 3, 4].map(|batch| Slim::of(&wide, batch)), [Some(1), Some(3), Some(3)]);
        assert_eq!([2, 4].map(|batch| Slim::of(&long, batch)), [Some(0), Some(2)]);
        for args in [&wide, &long] {
            assert_eq!([1, 5, 8].map(|batch| Slim::of(args, batch)), [None; 3]);
            for kernel in SLIM {
                // Two blocks share a multiprocessor.
                assert!(kernel.shared_bytes(args) <= SHARED && kernel.stages(args) >= LEAST_STAGES);
            }
        }
        assert_eq!(Slim::of(&products(14336, 4096, Q8_0), 2), None);
        for (cols, rows) in [(2048, 8192), (8192, 2048), (4096, 4112), (4128, 4096)] {
            assert_eq!(Slim::of(&products(cols, rows, Q4_K), 4), None, "{cols} columns, {rows} rows");
        }
        assert_eq!(Slim::of(&TensorArgs { in_bulk: 0, ..wide }, 4), None);
    }
}
