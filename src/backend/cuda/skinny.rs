//! The kernels of `matmul_skinny.cu`, which multiply 16-bit floats of few rows: which of them a launch takes, and its sizes.

use super::args::{SMS, Segment, TensorArgs};

/// A kernel: the tile of a block, or of the two blocks of a cluster.
pub struct Skinny {
    columns: u32,
    /// Weight rows, in parts of a stage each.
    parts: u32,
    /// Blocks that share a tile.
    split: u32,
    /// Hundredths of a microsecond that a launch takes beside its tiles, a tile beside its stages, and a stage.
    times: [u32; 3],
}

const fn skinny(columns: u32, parts: u32, split: u32, times: [u32; 3]) -> Skinny {
    Skinny { columns, parts, split, times }
}

/// In the order of the kernels.
pub const SKINNY: [Skinny; 8] = [
    skinny(8, 1, 1, [160, 45, 75]),
    skinny(8, 1, 2, [320, 80, 60]),
    skinny(8, 2, 1, [190, 40, 60]),
    skinny(8, 2, 2, [230, 110, 60]),
    skinny(16, 1, 1, [180, 80, 110]),
    skinny(16, 1, 2, [280, 140, 100]),
    skinny(16, 2, 1, [270, 90, 70]),
    skinny(16, 2, 2, [290, 160, 75]),
];

/// Threads of a block: sixteen warps that multiply, and those that copy.
const THREADS: u32 = 19 * 32;
const THREADS_OF_MANY: u32 = 20 * 32;
/// Weight rows and columns of a stage, and columns of a chunk of x.
const STAGE_ROWS: u32 = 32;
const SLICE_COLUMNS: u32 = 1024;
/// What numbers of stages are a multiple of.
const TEAMS: u32 = 2;
const MOST_STAGES: u32 = 16;
/// Shared memory of a block, and what of it slices of x may take, of which there are always two or all.
const SHARED: u32 = 222 << 10;
const X_ROOM: u32 = 64 << 10;

impl Skinny {
    /// The quickest of the kernels, if one takes so many rows.
    pub fn quickest(args: &TensorArgs, batch: u32) -> Option<usize> {
        let wanted = SKINNY.iter().map(|kernel| kernel.columns).filter(|&columns| columns >= batch).min()?;
        let fits = |&(_, kernel): &(usize, &Skinny)| kernel.columns == wanted && kernel.stages(args) >= TEAMS;
        let kernels = SKINNY.iter().enumerate().filter(fits);
        kernels.min_by_key(|(_, kernel)| kernel.time(args)).map(|(index, _)| index)
    }

    fn tiles(&self, args: &TensorArgs) -> u32 {
        args.segments().iter().map(|segment| segment.matrix.rows / (STAGE_ROWS * self.parts)).sum()
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        if self.columns > 8 { THREADS_OF_MANY } else { THREADS }
    }

    /// Blocks of a launch.
    pub fn grid(&self, args: &TensorArgs) -> u32 {
        self.tiles(args).min(SMS / self.split) * self.split
    }

    /// Slices of a block.
    fn slices(&self, args: &TensorArgs) -> u32 {
        args.cols.div_ceil(SLICE_COLUMNS).div_ceil(self.split)
    }

    /// Hundredths of a microsecond, about.
    fn time(&self, args: &TensorArgs) -> u32 {
        let [launch, tile, stage] = self.times;
        let stages = self.slices(args) * self.parts;
        launch + self.tiles(args).div_ceil(SMS / self.split) * (tile + stages * stage)
    }

    /// Bytes of slices of x.
    fn x_bytes(&self, args: &TensorArgs) -> u32 {
        let slice = 2 * SLICE_COLUMNS * self.columns;
        slice * self.slices(args).min((X_ROOM / slice).max(2))
    }

    /// Bytes of the sums of warps, and of those that come from another block.
    fn sum_bytes(&self) -> u32 {
        let outputs = 4 * STAGE_ROWS * self.columns;
        16 * outputs + if self.split == 1 { 0 } else { self.parts * outputs }
    }

    fn stage_bytes(&self, args: &TensorArgs) -> u32 {
        let stride = |segment: &Segment| row_stride(segment.matrix.dtype);
        STAGE_ROWS * args.segments().iter().map(stride).max().unwrap_or(0)
    }

    fn stages(&self, args: &TensorArgs) -> u32 {
        let room = args.most_shared.min(SHARED).saturating_sub(self.sum_bytes() + self.x_bytes(args));
        (room / self.stage_bytes(args)).min(MOST_STAGES) / TEAMS * TEAMS
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared_bytes(&self, args: &TensorArgs) -> u32 {
        self.sum_bytes() + self.x_bytes(args) + self.stages(args) * self.stage_bytes(args)
    }
}

/// Bytes from a row of a stage to the next, which keep banks apart.
pub(super) fn row_stride(dtype: u32) -> u32 {
    match dtype {
        3 => 1104,
        4 => 592,
        5 => 720,
        _ => 848,
    }
}
