//! The kernels of `gemm_i8.cu`, which take every batch: they differ in the tile of a block alone.

use super::super::args::TensorArgs;
use super::super::catalogue::{DeviceType, Function, Kernel};
use super::{Choice, Device, SLICE_COLUMNS, SLICE_GROUPS, odd_stride};

/// Outputs of a unit of a gated product.
const UNIT: u32 = 32;
/// Shared memory of a block: where an SM has two blocks, and where it has one.
const SHARED_OF_TWO: u32 = 112 << 10;
const SHARED_OF_ONE: u32 = 222 << 10;
/// Most stages of a ring.
const MOST_STAGES: u32 = 6;
const WARPS: u32 = 8;
const THREADS: u32 = 32 * WARPS;

/// The tile of a kernel: weight rows, rows of the batch, and groups of a slice that a pass takes.
struct Tile {
    function: Function,
    rows: u32,
    columns: u32,
    groups: u32,
}

/// From narrow to wide.
fn tiles() -> impl DoubleEndedIterator<Item = Tile> {
    let kernel = Kernel::GemmI8;
    kernel.variants().iter().enumerate().map(move |(variant, entry)| {
        let &[rows, columns, groups] = entry.numbers else { unreachable!("three numbers a kernel") };
        Tile { function: Function { kernel, variant }, rows, columns, groups }
    })
}

/// The first that takes the whole batch, or the widest, if two stages of it fit.
pub fn choose(args: &TensorArgs, rows: u32, device: &Device) -> Choice {
    let wanted = wanted(rows);
    let fits = |tile: &Tile| tile.sum_bytes() + 2 * tile.stage_bytes(args, rows) <= device.most_shared;
    let tile = tiles().rev().skip_while(|tile| tile.function.variant > wanted).find(fits);
    let tile = tile.or_else(|| tiles().next()).expect("there are kernels");
    // Two blocks of the narrowest share an SM.
    let is_narrowest = tile.function.variant == 0;
    let most_blocks = if is_narrowest { 2 * device.sms } else { device.sms };
    let blocks = (tile.units(args) * rows.div_ceil(tile.columns)).min(most_blocks);
    let room = if is_narrowest && blocks > device.sms { SHARED_OF_TWO } else { SHARED_OF_ONE };
    let stage = tile.stage_bytes(args, rows);
    let stages = (device.most_shared.min(room).saturating_sub(tile.sum_bytes()) / stage).clamp(2, MOST_STAGES);
    Choice::of_products(tile.function, blocks, THREADS, tile.sum_bytes() + stages * stage)
}

/// Whether two stages of the narrowest kernel fit, so that every batch has a kernel.
pub fn takes(args: &TensorArgs, device: &Device) -> bool {
    choose(args, 8, device).shared_bytes <= device.most_shared
}

/// The first kernel that takes the whole batch, or the last.
fn wanted(rows: u32) -> usize {
    let last = Kernel::GemmI8.variants().len() - 1;
    tiles().find(|tile| tile.columns >= rows).map_or(last, |tile| tile.function.variant)
}

/// Tenths of a microsecond of a kernel with tiles of 32 weight rows, about; for others as long as there is.
pub fn time(args: &TensorArgs, rows: u32, device: &Device) -> u32 {
    let tile = tiles().nth(wanted(rows)).expect("one of the kernels");
    if rows > tile.columns || tile.rows != UNIT {
        return u32::MAX;
    }
    // What a slice of the activations takes to reach all blocks, and what a tile takes beside.
    tile.units(args).div_ceil(device.sms) * (args.cols.div_ceil(SLICE_COLUMNS) * tile.columns * 3 / 4 + 40)
}

impl Tile {
    /// Units of work of a launch.
    fn units(&self, args: &TensorArgs) -> u32 {
        match args.is_gated() {
            false => args.segments().iter().map(|segment| segment.matrix.rows.div_ceil(self.rows)).sum(),
            true => args.segments[0].matrix.rows / UNIT,
        }
    }

    /// Bytes of sums that warps share, and of sums that wait.
    fn sum_bytes(&self) -> u32 {
        let passes = SLICE_GROUPS / self.groups;
        let outputs = self.rows / 32 * self.columns / 8;
        let waiting = outputs * (u32::from(passes > 1) + u32::from(passes > 2) + u32::from(self.rows == 32));
        4 * (WARPS * self.columns.min(UNIT) * 36 + waiting * 256)
    }

    fn stage_bytes(&self, args: &TensorArgs, rows: u32) -> u32 {
        let weights = self.rows * args.most(|dtype| odd_stride(row_bytes(dtype, self.groups)));
        let columns = if self.columns == 8 { rows.min(8) } else { self.columns };
        (weights + columns * (40 * self.groups + 32)).next_multiple_of(16)
    }
}

/// Bytes of some groups of a row in a stage; the scales of blocks come in words.
fn row_bytes(dtype: DeviceType, groups: u32) -> u32 {
    let group = dtype.group();
    let blocks = match dtype {
        DeviceType::Q8_0 => 2 * groups,
        DeviceType::Q6_K => (groups + 8) / 16 * 4,
        _ => groups / 2,
    };
    (group.codes + group.high + group.scales) * groups + blocks
}
