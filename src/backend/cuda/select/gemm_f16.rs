//! The kernels of `gemm_f16.cu`, which multiply 16-bit floats: which of them is the quickest, and its sizes.

use super::super::args::{Segment, TensorArgs};
use super::super::catalogue::{DeviceType, Function, Kernel};
use super::{Choice, Device};

/// A kernel: the tile of a block, or of the blocks of a cluster.
struct Tile {
    function: Function,
    columns: u32,
    rows: u32,
    /// Blocks that share a tile.
    split: u32,
    /// Blocks that share an SM.
    resident: u32,
    threads: u32,
    /// Sums of tiles that warpgroups share, and what numbers of stages are a multiple of.
    teams: u32,
    step: u32,
    /// Hundredths of a microsecond that a stage of a block takes, and that a tile takes beside its stages.
    stage: u32,
    tile: u32,
}

/// Hundredths of a microsecond of a stage of each kernel, in the order of the catalogue.
const STAGES: [u32; 11] = [33, 36, 55, 35, 38, 67, 42, 43, 95, 95, 185];
const _: () = assert!(STAGES.len() == Kernel::GemmF16.variants().len(), "a time for each kernel");
/// Columns of a stage, and its groups.
const STAGE_COLUMNS: u32 = 128;
const STAGE_GROUPS: u32 = 4;
/// Weight rows that matrices have a multiple of.
const MATRIX_ROWS: usize = 16;
/// Rows of the largest tiles. Blocks read whole ones, also where a matrix ends within: its memory does not ([`rows_in_memory`]).
const TILE_ROWS: usize = 128;
const MOST_STAGES: u32 = 16;
/// Warps that copy, each to a stage of its own, where blocks share an SM.
const COPIERS: u32 = 4;
const LEAST_STAGES: u32 = 2;
/// Shared memory of a block.
const SHARED: u32 = 222 << 10;

/// Whether the kernels multiply by a matrix of this type and so many rows.
pub fn takes(dtype: DeviceType, rows: usize) -> bool {
    dtype.has_gemm() && rows.is_multiple_of(MATRIX_ROWS)
}

/// Rows that the memory of a matrix has room for. What stands in those past its last may be anything: it goes into sums that nobody takes.
pub fn rows_in_memory(dtype: DeviceType, rows: usize) -> usize {
    if takes(dtype, rows) { rows.next_multiple_of(TILE_ROWS) } else { rows }
}

/// The quickest of the kernels.
pub fn choose(args: &TensorArgs, rows: u32, device: &Device) -> Choice {
    let fits = |tile: &Tile| tile.stages(args.f16_row_bytes, device) >= LEAST_STAGES;
    let quickest = tiles().filter(fits).min_by_key(|tile| tile.time(args, rows, device));
    let tile = quickest.or_else(|| tiles().next()).expect("there are kernels");
    tile.choice(tile.count(args, rows), args.f16_row_bytes, device)
}

/// A kernel of `expert_gemm_f16.cu` for so many tiles of matrices of a type.
pub fn of_experts(function: Function, works: u32, dtype: DeviceType, device: &Device) -> Choice {
    let &[columns, rows, resident] = function.entry().numbers else { unreachable!("three numbers a kernel") };
    Tile::new(function, [columns, rows, 1], resident, 0).choice(works, row_bytes(dtype), device)
}

fn tiles() -> impl Iterator<Item = Tile> {
    let kernel = Kernel::GemmF16;
    kernel.variants().iter().zip(STAGES).enumerate().map(move |(variant, (entry, stage))| {
        let &[columns, rows, split] = entry.numbers else { unreachable!("three numbers a kernel") };
        Tile::new(Function { kernel, variant }, [columns, rows, split], 1, stage)
    })
}

impl Tile {
    fn new(function: Function, [columns, rows, split]: [u32; 3], resident: u32, stage: u32) -> Tile {
        let (groups, step) = match columns {
            0..=64 if resident > 1 => (2, 1),
            0..=64 => (4, 4),
            _ => (2, 256 / columns),
        };
        Tile {
            function,
            columns,
            rows,
            split,
            resident,
            threads: 128 * (groups + 1),
            teams: groups / (rows / 64),
            step,
            stage,
            tile: if split > 1 { 450 } else { 250 },
        }
    }

    /// What a launch of so many tiles comes to, whose weight rows take `row_bytes` of a stage.
    fn choice(&self, count: u32, row_bytes: u32, device: &Device) -> Choice {
        let blocks = count.min(device.sms * self.resident / self.split) * self.split;
        let shared = self.sum_bytes() + self.stages(row_bytes, device) * self.stage_bytes(row_bytes);
        Choice::of_products(self.function, blocks, self.threads, shared)
    }

    /// Tiles of a launch.
    fn count(&self, args: &TensorArgs, rows: u32) -> u32 {
        let units = |segment: &Segment| segment.matrix.rows.div_ceil(self.rows);
        args.segments().iter().map(units).sum::<u32>() * rows.div_ceil(self.columns)
    }

    /// Hundredths of a microsecond, about.
    fn time(&self, args: &TensorArgs, rows: u32, device: &Device) -> u32 {
        let stages = (args.cols / STAGE_COLUMNS).div_ceil(self.split);
        self.count(args, rows).div_ceil(device.sms / self.split) * (stages * self.stage + self.tile)
    }

    /// Bytes of sums that teams and blocks add.
    fn sum_bytes(&self) -> u32 {
        let parts = self.teams * self.split;
        if parts == 1 { 0 } else { (4 * self.teams * self.columns * (self.rows + 4)).next_multiple_of(1024) }
    }

    /// The columns of x, and the weights.
    fn stage_bytes(&self, row_bytes: u32) -> u32 {
        2 * STAGE_COLUMNS * self.columns + (self.rows * row_bytes).next_multiple_of(1024)
    }

    fn stages(&self, row_bytes: u32, device: &Device) -> u32 {
        let room = device.most_shared.min(SHARED / self.resident).saturating_sub(self.sum_bytes());
        let most = if self.resident > 1 { COPIERS } else { MOST_STAGES };
        (room / self.stage_bytes(row_bytes)).min(most) / self.step * self.step
    }
}

/// Bytes of a weight row in a stage: codes, high bits, scales, and the word with its block's. The kernels take the most of their products from the
/// arguments.
pub fn row_bytes(dtype: DeviceType) -> u32 {
    let group = dtype.group();
    STAGE_GROUPS * (group.codes + group.high) + 8 + if dtype == DeviceType::Q8_0 { 0 } else { 4 }
}
