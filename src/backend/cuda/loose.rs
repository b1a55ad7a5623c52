//! The kernels of `matmul_loose.cu`, which multiply 16-bit floats: which of them a launch takes, and its sizes.

use super::args::{SMS, Segment, TensorArgs};
use crate::quant::DType;

/// A kernel: the tile of a block, or of the blocks of a cluster.
pub struct Loose {
    columns: u32,
    rows: u32,
    /// Blocks that share a tile.
    split: u32,
    pub threads: u32,
    /// Sums of tiles that warpgroups share, and what numbers of stages are a multiple of.
    teams: u32,
    step: u32,
    /// Hundredths of a microsecond that a stage of a block takes, and that a tile takes beside its stages.
    stage: u32,
    tile: u32,
}

const fn loose(columns: u32, rows: u32, split: u32, stage: u32) -> Loose {
    let (few, halves) = (columns <= 64, rows / 64);
    let (groups, copiers) = (if few { 4 } else { 2 }, if few { 4 } else { 256 / columns });
    let tile = if split > 1 { 450 } else { 250 };
    Loose { columns, rows, split, threads: 128 * (groups + 1), teams: groups / halves, step: copiers, stage, tile }
}

/// In the order of the kernels.
pub const LOOSE: [Loose; 12] = [
    loose(16, 128, 1, 49),
    loose(16, 64, 1, 33),
    loose(16, 64, 2, 36),
    loose(32, 128, 1, 55),
    loose(32, 64, 1, 35),
    loose(32, 64, 2, 38),
    loose(64, 128, 1, 67),
    loose(64, 64, 1, 42),
    loose(64, 64, 2, 43),
    loose(128, 128, 1, 95),
    loose(128, 128, 2, 95),
    loose(256, 128, 1, 185),
];

/// Columns of a stage, and weight rows that matrices have a multiple of.
const STAGE_COLUMNS: u32 = 128;
const MATRIX_ROWS: usize = 128;
const MOST_STAGES: u32 = 16;
const LEAST_STAGES: u32 = 2;
/// Shared memory of a block.
const SHARED: u32 = 222 << 10;

/// Whether the kernels multiply by a matrix of this type and so many rows.
pub fn takes(dtype: DType, rows: usize) -> bool {
    let has_kernel = matches!(dtype, DType::Q8_0 | DType::Q4_K | DType::Q5_K | DType::Q6_K);
    has_kernel && rows.is_multiple_of(MATRIX_ROWS)
}

impl Loose {
    /// The quickest of the kernels.
    pub fn quickest(args: &TensorArgs, batch: u32) -> usize {
        let fits = |&(_, loose): &(usize, &Loose)| loose.stages(args) >= LEAST_STAGES;
        let kernels = LOOSE.iter().enumerate().filter(fits);
        kernels.min_by_key(|(_, loose)| loose.time(args, batch)).map_or(0, |(index, _)| index)
    }

    fn tiles(&self, args: &TensorArgs, batch: u32) -> u32 {
        let units = |segment: &Segment| segment.matrix.rows / self.rows;
        args.segments().iter().map(units).sum::<u32>() * batch.div_ceil(self.columns)
    }

    fn at_once(&self) -> u32 {
        SMS / self.split
    }

    /// Blocks of a launch.
    pub fn grid(&self, args: &TensorArgs, batch: u32) -> u32 {
        self.tiles(args, batch).min(self.at_once()) * self.split
    }

    /// Hundredths of a microsecond, about.
    fn time(&self, args: &TensorArgs, batch: u32) -> u32 {
        let stages = (args.cols / STAGE_COLUMNS).div_ceil(self.split);
        self.tiles(args, batch).div_ceil(self.at_once()) * (stages * self.stage + self.tile)
    }

    /// Bytes of sums that teams and blocks add.
    fn sum_bytes(&self) -> u32 {
        let parts = self.teams * self.split;
        if parts == 1 { 0 } else { (4 * self.teams * self.columns * (self.rows + 4)).next_multiple_of(1024) }
    }

    /// The columns of x, and the weights.
    fn stage_bytes(&self, args: &TensorArgs) -> u32 {
        let weights = args.segments().iter().map(|segment| self.rows * row_bytes(segment.matrix.dtype)).max();
        2 * STAGE_COLUMNS * self.columns + weights.unwrap_or(0).next_multiple_of(1024)
    }

    fn stages(&self, args: &TensorArgs) -> u32 {
        let room = args.most_shared.min(SHARED).saturating_sub(self.sum_bytes());
        (room / self.stage_bytes(args)).min(MOST_STAGES) / self.step * self.step
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared_bytes(&self, args: &TensorArgs) -> u32 {
        self.sum_bytes() + self.stages(args) * self.stage_bytes(args)
    }
}

/// Bytes of a weight row in a stage: codes, high bits, scales, and the word with its block's.
fn row_bytes(dtype: u32) -> u32 {
    match dtype {
        3 => 128 + 8,
        4 => 64 + 8 + 4,
        5 => 64 + 16 + 8 + 4,
        _ => 64 + 32 + 8 + 4,
    }
}
