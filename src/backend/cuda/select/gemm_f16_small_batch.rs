//! The kernels of `gemm_f16_small_batch.cu`, which multiply 16-bit floats of few rows by matrices of whole tiles: which of them is the quickest, and
//! its sizes.

use super::super::args::TensorArgs;
use super::super::catalogue::{Function, Kernel};
use super::{Choice, Device, SLICE_COLUMNS, stage_stride};

/// A kernel: the tile of a block, or of the two blocks of a cluster.
struct Tile {
    function: Function,
    columns: u32,
    /// Weight rows, in parts of a stage each.
    parts: u32,
    /// Blocks that share a tile.
    split: u32,
    /// Hundredths of a microsecond that a launch takes beside its tiles, a tile beside its stages, and a stage.
    times: [u32; 3],
}

/// Times of the kernels, in the order of the catalogue.
const TIMES: [[u32; 3]; 8] = [
    [160, 45, 75],
    [320, 80, 60],
    [190, 40, 60],
    [230, 110, 60],
    [180, 80, 110],
    [280, 140, 100],
    [270, 90, 70],
    [290, 160, 75],
];
const _: () = assert!(TIMES.len() == Kernel::GemmF16SmallBatch.variants().len(), "times for each kernel");

/// Threads of a block: sixteen warps that multiply, and those that copy.
const THREADS: u32 = 19 * 32;
const THREADS_OF_MANY: u32 = 20 * 32;
/// Weight rows of a stage.
const STAGE_ROWS: u32 = 32;
/// What numbers of stages are a multiple of.
const TEAMS: u32 = 2;
const MOST_STAGES: u32 = 16;
/// Shared memory of a block, and what of it slices of x may take, of which there are always two or all.
const SHARED: u32 = 222 << 10;
const X_ROOM: u32 = 64 << 10;

/// The quickest of the kernels, if one takes so many rows.
pub fn choose(args: &TensorArgs, rows: u32, device: &Device) -> Option<Choice> {
    let wanted = tiles().map(|tile| tile.columns).filter(|&columns| columns >= rows).min()?;
    let fits = |tile: &Tile| tile.columns == wanted && tile.divides(args) && tile.stages(args, device) >= TEAMS;
    tiles().filter(fits).min_by_key(|tile| tile.time(args, device)).map(|tile| tile.choice(args, device))
}

fn tiles() -> impl Iterator<Item = Tile> {
    let kernel = Kernel::GemmF16SmallBatch;
    kernel.variants().iter().zip(TIMES).enumerate().map(move |(variant, (entry, times))| {
        let &[columns, parts, split] = entry.numbers else { unreachable!("three numbers a kernel") };
        Tile { function: Function { kernel, variant }, columns, parts, split, times }
    })
}

impl Tile {
    fn choice(&self, args: &TensorArgs, device: &Device) -> Choice {
        let threads = if self.columns > 8 { THREADS_OF_MANY } else { THREADS };
        let blocks = self.count(args).min(device.sms / self.split) * self.split;
        let shared = self.beside(args) + self.stages(args, device) * self.stage_bytes(args);
        Choice::of_products(self.function, blocks, threads, shared)
    }

    /// Whether every matrix has whole tiles. To ask that in the kernel, of each output, takes 2 % of a step.
    fn divides(&self, args: &TensorArgs) -> bool {
        args.segments().iter().all(|segment| segment.matrix.rows.is_multiple_of(STAGE_ROWS * self.parts))
    }

    /// Tiles of a launch.
    fn count(&self, args: &TensorArgs) -> u32 {
        args.segments().iter().map(|segment| segment.matrix.rows / (STAGE_ROWS * self.parts)).sum()
    }

    /// Slices of a block.
    fn slices(&self, args: &TensorArgs) -> u32 {
        args.cols.div_ceil(SLICE_COLUMNS).div_ceil(self.split)
    }

    /// Hundredths of a microsecond, about.
    fn time(&self, args: &TensorArgs, device: &Device) -> u32 {
        let [launch, tile, stage] = self.times;
        let stages = self.slices(args) * self.parts;
        launch + self.count(args).div_ceil(device.sms / self.split) * (tile + stages * stage)
    }

    /// Bytes of slices of x, of the sums of warps, and of those that come from another block.
    fn beside(&self, args: &TensorArgs) -> u32 {
        let slice = 2 * SLICE_COLUMNS * self.columns;
        let outputs = 4 * STAGE_ROWS * self.columns;
        let sums = 16 * outputs + if self.split == 1 { 0 } else { self.parts * outputs };
        sums + slice * self.slices(args).min((X_ROOM / slice).max(2))
    }

    fn stage_bytes(&self, args: &TensorArgs) -> u32 {
        STAGE_ROWS * args.most(stage_stride)
    }

    fn stages(&self, args: &TensorArgs, device: &Device) -> u32 {
        let room = device.most_shared.min(SHARED).saturating_sub(self.beside(args));
        (room / self.stage_bytes(args)).min(MOST_STAGES) / TEAMS * TEAMS
    }
}
