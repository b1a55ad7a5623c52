//! The kernels of `gemm_i8_specialized.cu`, whose warps divide the outputs of a tile while others bring the operands: which of them is the quickest,
//! and its sizes.

use super::super::args::TensorArgs;
use super::super::catalogue::{DeviceType, Function, Kernel};
use super::{Choice, Device, SLICE_COLUMNS, gemm_i8, odd_stride};

/// A kernel: the tile of a block, or of the blocks of a cluster.
pub struct Tile {
    function: Function,
    columns: u32,
    /// Blocks that share a tile.
    split: u32,
    /// Tiles that run at once, for each 132 SMs.
    at_once: u32,
    /// Blocks that an SM has room for.
    blocks: u32,
    threads: u32,
    /// Tenths of a microsecond that a stage of a block takes where the device is full, and that a tile takes beside its stages.
    stage: u32,
    tile: u32,
}

/// Rows of activations from which on these kernels are asked.
const LEAST_ROWS: u32 = 17;
/// Weight rows of a tile.
pub const ROWS: u32 = 128;
/// Groups of a stage, and stages of a slice.
const QUAD: u32 = 4;
const QUADS: u32 = 8;
const MOST_STAGES: u32 = 6;
const LEAST_STAGES: u32 = 3;
/// Shared memory of an SM's blocks.
const SHARED: u32 = 222 << 10;

/// The quickest of the kernels, where it is quicker than those of `gemm_i8.cu`, whose time is estimated alike.
pub fn choose(args: &TensorArgs, rows: u32, device: &Device) -> Option<Choice> {
    if rows < LEAST_ROWS {
        return None;
    }
    let fits = |tile: &Tile| tile.stages(stride_of(args), device) >= LEAST_STAGES;
    let tile = tiles().filter(fits).min_by_key(|tile| tile.time(args, rows, device))?;
    if tile.time(args, rows, device) >= gemm_i8::time(args, rows, device) {
        return None;
    }
    Some(tile.choice(tile.count(args, rows), stride_of(args), device))
}

/// The most bytes from a row to the next in a stage.
fn stride_of(args: &TensorArgs) -> u32 {
    args.most(row_stride)
}

fn tiles() -> impl Iterator<Item = Tile> {
    let kernel = Kernel::GemmI8Specialized;
    kernel.variants().iter().enumerate().map(move |(variant, entry)| {
        let &[columns, split] = entry.numbers else { unreachable!("two numbers a kernel") };
        let function = Function { kernel, variant };
        match split {
            1 => Tile { function, columns, split, at_once: 132, blocks: 1, threads: 384, stage: 11, tile: 90 },
            2 => Tile { function, columns, split, at_once: 66, blocks: 1, threads: 384, stage: 11, tile: 80 },
            // Clusters of eight leave parts of some groups of SMs empty.
            _ => Tile { function, columns, split, at_once: 30, blocks: 2, threads: 256, stage: 12, tile: 45 },
        }
    })
}

impl Tile {
    /// The tile of a kernel of `expert_gemm.cu`, which is not compared with others.
    pub fn of_experts(function: Function, columns: u32) -> Tile {
        Tile { function, columns, split: 1, at_once: 264, blocks: 2, threads: 256, stage: 0, tile: 0 }
    }

    /// Tiles that the device runs at once.
    fn at_once(&self, device: &Device) -> u32 {
        (device.sms * self.at_once / 132).max(1)
    }

    /// Bytes of sums: those that wait for others, or a whole tile of them, and a barrier.
    fn sum_bytes(&self) -> u32 {
        let waiting = 4 * ROWS * self.columns * (QUADS / self.split).ilog2();
        16 + waiting.max(4 * self.columns * (ROWS + 4))
    }

    /// Barriers, codes of the batch's rows, factors of both, codes of the weights, whose rows are `stride` bytes apart.
    fn stage_bytes(&self, stride: u32) -> u32 {
        let factors = QUAD * (8 * ROWS + 8 * self.columns + 32);
        16 + self.columns * (32 * QUAD + 16) + factors + ROWS * stride
    }

    fn stages(&self, stride: u32, device: &Device) -> u32 {
        let room = device.most_shared.min(SHARED / self.blocks);
        room.saturating_sub(self.sum_bytes()) / self.stage_bytes(stride)
    }

    /// The launch of so many tiles.
    pub fn choice(&self, tiles: u32, stride: u32, device: &Device) -> Choice {
        let shared = self.sum_bytes() + self.stages(stride, device).min(MOST_STAGES) * self.stage_bytes(stride);
        Choice::of_products(self.function, tiles.min(self.at_once(device)) * self.split, self.threads, shared)
    }

    /// Tiles of a launch.
    fn count(&self, args: &TensorArgs, rows: u32) -> u32 {
        let units = match args.is_gated() {
            false => args.segments().iter().map(|segment| segment.matrix.rows.div_ceil(ROWS)).sum(),
            true => args.segments[0].matrix.rows.div_ceil(ROWS / 2),
        };
        units * rows.div_ceil(self.columns)
    }

    /// Tenths of a microsecond, about.
    fn time(&self, args: &TensorArgs, rows: u32, device: &Device) -> u32 {
        let stages = args.cols.div_ceil(SLICE_COLUMNS) * QUADS / self.split;
        self.count(args, rows).div_ceil(self.at_once(device)) * (stages * self.stage + self.tile)
    }
}

/// Bytes from a row to the next in a stage.
pub fn row_stride(dtype: DeviceType) -> u32 {
    odd_stride(QUAD * (dtype.group().codes + dtype.group().high))
}
