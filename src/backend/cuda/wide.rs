//! The kernels of `matmul_wide.cu`, whose warps divide the outputs of a tile: which of them a launch takes, and its sizes.

use super::args::{SMS, TensorArgs};

/// A kernel: the tile of a block, or of the blocks of a cluster.
pub struct Wide {
    columns: u32,
    /// Blocks that share a tile.
    split: u32,
    /// Tiles that run at once.
    at_once: u32,
    /// Blocks that a processor has room for.
    blocks: u32,
    pub threads: u32,
    /// Tenths of a microsecond that a stage of a block takes where the device is full, and that a tile takes beside its stages.
    stage: u32,
    tile: u32,
}

/// In the order of the kernels.
pub const WIDE: [Wide; 3] = [
    Wide { columns: 64, split: 1, at_once: SMS, blocks: 1, threads: 384, stage: 11, tile: 90 },
    Wide { columns: 64, split: 2, at_once: SMS / 2, blocks: 1, threads: 384, stage: 11, tile: 80 },
    Wide { columns: 32, split: 8, at_once: 30, blocks: 2, threads: 256, stage: 12, tile: 45 },
];

/// Weight rows of a tile.
const ROWS: u32 = 128;
/// Groups of a stage, and stages of a slice.
const QUAD: u32 = 4;
const QUADS: u32 = 8;
const MOST_STAGES: u32 = 6;
const LEAST_STAGES: u32 = 3;
/// Shared memory of a processor's blocks.
const SHARED: u32 = 222 << 10;

impl Wide {
    /// Bytes of sums: those that wait for others, or a whole tile of them, and a barrier.
    fn sum_bytes(&self) -> u32 {
        let waiting = 4 * ROWS * self.columns * (QUADS / self.split).ilog2();
        16 + waiting.max(4 * self.columns * (ROWS + 4))
    }

    /// Barriers, codes of the batch's rows, factors of both, codes of the weights.
    fn stage_bytes(&self, args: &TensorArgs) -> u32 {
        let factors = QUAD * (8 * ROWS + 8 * self.columns + 32);
        let strides = args.segments().iter().map(|segment| 16 * ((code_bytes(segment.matrix.dtype) / 16) | 1));
        16 + self.columns * (32 * QUAD + 16) + factors + ROWS * strides.max().unwrap_or(0)
    }

    fn stages(&self, args: &TensorArgs) -> u32 {
        let room = args.most_shared.min(SHARED / self.blocks);
        room.saturating_sub(self.sum_bytes()) / self.stage_bytes(args)
    }

    pub fn shared_bytes(&self, args: &TensorArgs) -> u32 {
        self.sum_bytes() + self.stages(args).min(MOST_STAGES) * self.stage_bytes(args)
    }

    fn tiles(&self, args: &TensorArgs, batch: u32) -> u32 {
        let units = match args.gated.x {
            0 => args.segments().iter().map(|segment| segment.matrix.rows.div_ceil(ROWS)).sum(),
            _ => args.segments[0].matrix.rows.div_ceil(ROWS / 2),
        };
        units * batch.div_ceil(self.columns)
    }

    pub fn grid(&self, args: &TensorArgs, batch: u32) -> u32 {
        self.tiles(args, batch).min(self.at_once) * self.split
    }

    /// Tenths of a microsecond, about.
    fn time(&self, args: &TensorArgs, batch: u32) -> u32 {
        let stages = args.cols.div_ceil(1024) * QUADS / self.split;
        self.tiles(args, batch).div_ceil(self.at_once) * (stages * self.stage + self.tile)
    }

    /// The quickest of the kernels that take the launch, and its time, which is about that of the kernels of `matmul_tensor.cu` too.
    pub fn quickest(args: &TensorArgs, batch: u32) -> Option<(usize, u32)> {
        let kernels = WIDE.iter().enumerate().filter(|(_, wide)| wide.stages(args) >= LEAST_STAGES);
        kernels.map(|(index, wide)| (index, wide.time(args, batch))).min_by_key(|&(_, time)| time)
    }
}

/// Bytes of the codes of a stage's groups of a row.
fn code_bytes(dtype: u32) -> u32 {
    match dtype {
        3 => 32 * QUAD,
        4 => 16 * QUAD,
        5 => 20 * QUAD,
        _ => 24 * QUAD,
    }
}
