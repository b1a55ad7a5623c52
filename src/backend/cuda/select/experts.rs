//! The kernels that multiply rows by the matrices of their experts, for few rows (`expert_gemv.cu`), for more (`expert_grouped_gemv.cu`) and for
//! many (`expert_gemm.cu`): whether they take a product, and their blocks.

use super::super::args::{ExpertGemmArgs, ExpertTable, Matrix};
use super::super::catalogue::{DeviceType, Function, Kernel};
use super::gemm_i8_specialized::{ROWS, Tile, row_stride};
use super::{Choice, Device, SLICE_COLUMNS, gemm_f16};

/// Outputs of a block of gated units, and of a warp that sums over experts.
const UNIT_OUTPUTS: u32 = 32;
const SUM_OUTPUTS: u32 = 2;
const MOST_WARPS: u32 = 8;
/// Bytes that the activations of a slice take: codes and factors.
const UNIT_BYTES: u32 = SLICE_COLUMNS + SLICE_COLUMNS / 4;
/// Static shared memory of a block of either kernel, at most, and what a unit's choice of experts takes before there are weights.
const UNIT_STATIC_BYTES: u32 = 10 << 10;
const SUM_STATIC_BYTES: u32 = 1 << 10;
const ROUTE_BYTES: u32 = 15 << 10;
/// Experts whose products a warp makes together.
const SLOTS: u32 = 4;
/// Shared memory of a block where an SM has two.
const SHARED_OF_TWO: u32 = 112 << 10;
/// Rows whose pairs GEMV multiplies at least as fast by themselves as other kernels do sorted ones.
const PAIRED_ROWS: u32 = 8;

/// A kernel, blocks for each pair or row, threads and dynamic shared memory of a block.
pub struct ExpertKernel {
    /// Which.
    pub function: Function,
    /// Blocks of one pair, or of one row.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Warps that share the experts of an output.
    pub parts: u32,
}

fn of_type(kernel: Kernel, matrix: &Matrix, device: &Device) -> Option<Function> {
    let function = kernel.of_types(std::iter::once(matrix.dtype))?;
    (device.bulk_copies && matrix.cols.is_multiple_of(32)).then_some(function)
}

/// Bytes of the activations of a row.
fn row_bytes(cols: u32) -> u32 {
    cols.div_ceil(SLICE_COLUMNS) * UNIT_BYTES
}

/// The gated unit of `width` outputs of two projections.
pub fn unit(gate: &ExpertTable, up: &ExpertTable, width: u32, device: &Device) -> Option<ExpertKernel> {
    let function = of_type(Kernel::ExpertUnit, &gate.matrix, device)?;
    let shared_bytes = (2 * UNIT_OUTPUTS * gate.matrix.row_bytes + row_bytes(gate.matrix.cols)).max(ROUTE_BYTES);
    let fits = gate.matrix.dtype == up.matrix.dtype
        && width.is_multiple_of(UNIT_OUTPUTS)
        && shared_bytes + UNIT_STATIC_BYTES <= device.most_shared;
    let blocks = width / UNIT_OUTPUTS;
    fits.then_some(ExpertKernel { function, blocks, threads: 32 * MOST_WARPS, shared_bytes, parts: 1 })
}

/// The sum of `width` outputs over `chosen` experts, and of one that every row has, for steps of so many rows at most: by as many warps as leave room
/// for a second block of an SM, or for one.
pub fn sum(
    table: &ExpertTable,
    shared: Option<&Matrix>,
    chosen: u32,
    (rows, width): (u32, u32),
    device: &Device,
) -> Option<ExpertKernel> {
    let function = of_type(Kernel::ExpertSum, &table.matrix, device)?;
    // A single row has too few outputs to keep SMs busy, so two warps share the experts of each.
    let parts = if rows == 1 && chosen >= 2 * SLOTS { 2 } else { 1 };
    let bytes = |warps: u32| {
        let pairs = warps / parts;
        let of_expert = |matrix: &Matrix| pairs * SUM_OUTPUTS * matrix.row_bytes + row_bytes(matrix.cols);
        // Of each slot the expert and what it counts.
        let others = shared.map_or(0, of_expert) + 2 * 4 * chosen;
        chosen.saturating_mul(of_expert(&table.matrix)).saturating_add(others)
    };
    let warps_within = |room: u32| {
        (parts.ilog2()..=MOST_WARPS.ilog2())
            .rev()
            .map(|power| 1 << power)
            .find(|&warps| bytes(warps) + SUM_STATIC_BYTES <= room && 32 * warps >= chosen)
    };
    let warps = warps_within(SHARED_OF_TWO.min(device.most_shared)).or_else(|| warps_within(device.most_shared))?;
    let blocks = width.div_ceil(SUM_OUTPUTS * warps / parts);
    width.is_multiple_of(SUM_OUTPUTS).then_some(ExpertKernel {
        function,
        blocks,
        threads: 32 * warps,
        shared_bytes: bytes(warps),
        parts,
    })
}

/// How many pairs of one expert a tile has at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TilePairs {
    /// Where experts have few, more and many.
    pub widths: [u32; 3],
    /// Pairs an expert on average that are more, and many.
    from: [u32; 2],
}

/// Tiles of products of 8 bits.
pub const EXACT_TILES: TilePairs = TilePairs { widths: [16, 32, 32], from: [16, 16] };
/// The same where GEMV takes few pairs of an expert at a time.
pub const GROUPED_TILES: TilePairs = TilePairs { widths: [4, 16, 32], from: [4, 16] };
/// Tiles of products of 16-bit floats.
pub const ROUNDED_TILES: TilePairs = TilePairs { widths: [32, 64, 128], from: [20, 72] };

impl TilePairs {
    /// Rows of a batch from which on the second and the third width count.
    pub fn rows(&self, experts: u32, chosen: u32) -> [u32; 2] {
        self.from.map(|pairs| (experts * pairs).div_ceil(chosen))
    }

    /// The width for so many rows.
    fn width(&self, rows: u32, experts: u32, chosen: u32) -> u32 {
        self.widths[self.rows(experts, chosen).iter().filter(|&&from| rows >= from).count()]
    }

    /// Most tiles of so many rows.
    pub fn most(&self, rows: u32, experts: u32, chosen: u32) -> u32 {
        let (pairs, width) = (rows * chosen, self.width(rows, experts, chosen));
        (pairs + pairs.min(experts) * (width - 1)) / width
    }
}

/// The rows of a step from which on sorting its pairs by experts pays: where there is one for every two experts. Where grouped GEMV does not take the
/// matrices there must be two for each, and more than [`PAIRED_ROWS`].
pub fn sorted_rows(experts: u32, chosen: u32, is_grouped: bool) -> u32 {
    if is_grouped { experts.div_ceil(2 * chosen) } else { (2 * experts).div_ceil(chosen).max(PAIRED_ROWS + 1) }
}

/// Whether the device has grouped GEMV for the type of a matrix of experts.
pub fn has_grouped(matrix: &Matrix, device: &Device) -> bool {
    grouped_of(matrix, device).is_some()
}

/// That kernel: it copies scales and sums of activations 16 bytes at a time.
fn grouped_of(matrix: &Matrix, device: &Device) -> Option<Function> {
    of_type(Kernel::ExpertGroupedGemv, matrix, device).filter(|_| matrix.cols.is_multiple_of(64))
}

/// Weight rows of a tile of 16-bit floats, of which a gated unit has as many of either matrix.
const ROUNDED_ROWS: u32 = 128;
/// What the outputs of experts, and the elements that they read, are a multiple of where products may be of 16-bit floats.
pub const ROUNDED_COLUMNS: usize = 64;

/// Whether products with experts of this type, and so many outputs, may be of 16-bit floats.
pub fn rounds(dtype: DeviceType, width: usize) -> bool {
    gemm_f16::takes(dtype, width) && width >= ROUNDED_ROWS as usize && width.is_multiple_of(ROUNDED_COLUMNS)
}

/// Whether tensor cores take the first product.
pub fn has_gemm(args: &ExpertGemmArgs) -> bool {
    let dtype = args.tables[0].matrix.dtype;
    (dtype.has_gemm() || dtype == DeviceType::MXFP4) && args.cols.is_multiple_of(32)
}

/// Whether they also take the second one in the same launch, for the unit of both.
pub fn is_unit(args: &ExpertGemmArgs, up: &ExpertTable) -> bool {
    args.tables[0].matrix.dtype == up.matrix.dtype && args.width.is_multiple_of(UNIT_OUTPUTS)
}

/// Weight rows of a block of grouped GEMV and of half of one of its warps, whose bytes begin in banks of their own; its threads, and its static
/// shared memory at most.
const GROUP_ROWS: u32 = 64;
const GROUP_HALF_ROWS: u32 = 4;
const GROUP_THREADS: u32 = 288;
const GROUP_STATIC_BYTES: u32 = 7 << 10;
/// Tiles whose activations it holds, and the bytes behind a row of them.
const GROUP_BUFFERS: u32 = 3;
const GROUP_PAD: u32 = 16;
/// Its blocks that share an SM at most, works whose weights are on their way at most, and works of a block for which it has room in its list.
const GROUP_BLOCKS: u32 = 2;
const GROUP_STAGES: u32 = 4;
const GROUP_WORKS: u32 = 128;
/// Pairs that blocks sort by themselves, and the most rows that have them.
const GROUP_PAIRS: u32 = 128;
const GROUP_SORTED_ROWS: u32 = 16;
/// What a block takes of an SM's shared memory beside its own.
const BLOCK_EXTRA: u32 = 1 << 10;

/// Grouped GEMV of so many tiles, if it takes the products.
fn grouped(args: &ExpertGemmArgs, tiles: u32, device: &Device) -> Option<Choice> {
    let matrix = &args.tables[0].matrix;
    let function = grouped_of(matrix, device)?;
    let half_bytes = GROUP_HALF_ROWS.saturating_mul(matrix.row_bytes).saturating_add(63) / 128 * 128 + 64;
    let of_x = GROUP_BUFFERS * GROUPED_TILES.widths[0] * (matrix.cols + matrix.cols / 4 + GROUP_PAD);
    let bytes = |stages: u32| half_bytes.saturating_mul(stages * GROUP_ROWS / GROUP_HALF_ROWS).saturating_add(of_x);
    let fits = |stages: u32, blocks: u32| {
        let of_block = bytes(stages).saturating_add(GROUP_STATIC_BYTES + BLOCK_EXTRA);
        of_block <= device.most_shared.saturating_add(BLOCK_EXTRA) / blocks
    };
    let blocks = (1..=GROUP_BLOCKS).rev().find(|&blocks| fits(1, blocks))?;
    let stages = (1..=GROUP_STAGES).rev().find(|&stages| fits(stages, blocks))?;
    let outputs = if args.gated.x != 0 { GROUP_ROWS / 2 } else { GROUP_ROWS };
    let works = tiles * args.width.div_ceil(outputs);
    let blocks = works.min((device.sms * blocks).max(works.div_ceil(GROUP_WORKS)));
    Some(Choice { function, blocks: [blocks, 1, 1], threads: GROUP_THREADS, shared_bytes: bytes(stages) })
}

/// Whether blocks of grouped GEMV sort the pairs of so many rows and fewer by themselves, so that no launch has to: with a word for each expert.
pub fn sorts_pairs(args: &ExpertGemmArgs, rows: u32, device: &Device) -> bool {
    let experts = args.tables[0].matrix.rows / args.tables[0].each;
    let is_grouped = rows < GROUPED_TILES.rows(experts, args.chosen)[0];
    let has_words = grouped(args, 0, device).is_some_and(|choice| 4 * experts <= choice.shared_bytes);
    is_grouped && has_words && rows <= GROUP_SORTED_ROWS && rows * args.chosen <= GROUP_PAIRS
}

/// How pairs of products of 8 bits are put into tiles.
pub fn exact_tiles(args: &ExpertGemmArgs, device: &Device) -> TilePairs {
    if grouped(args, 0, device).is_some() { GROUPED_TILES } else { EXACT_TILES }
}

/// The kernel of a family for products of a batch, whose pairs are sorted.
pub fn gemm(kernel: Kernel, args: &ExpertGemmArgs, rows: u32, device: &Device) -> Choice {
    let matrix = &args.tables[0].matrix;
    let (experts, is_f16) = (matrix.rows / args.tables[0].each, kernel == Kernel::ExpertGemmF16);
    let tiles = if is_f16 { ROUNDED_TILES } else { exact_tiles(args, device) };
    let (pairs, most) = (tiles.width(rows, experts, args.chosen), tiles.most(rows, experts, args.chosen));
    let is_grouped = !is_f16 && pairs == GROUPED_TILES.widths[0];
    if let Some(choice) = grouped(args, most, device).filter(|_| is_grouped) {
        return choice;
    }
    let function = kernel.of_numbers(&[pairs]).expect("a kernel for each width");
    let tile_rows = if is_f16 { ROUNDED_ROWS } else { ROWS };
    let unit_rows = if args.gated.x != 0 { tile_rows / 2 } else { tile_rows };
    let works = most * args.width.div_ceil(unit_rows);
    if is_f16 {
        return gemm_f16::of_experts(function, works, matrix.dtype, device);
    }
    Tile::of_experts(function, pairs).choice(works, row_stride(matrix.dtype), device)
}

#[cfg(test)]
mod tests {
    use super::super::super::args::Activation;
    use super::*;

    #[test]
    fn sorting_pays_from_one_pair_for_two_experts_on() {
        assert_eq!(
            [(128, 8), (256, 8), (64, 6)].map(|(experts, chosen)| sorted_rows(experts, chosen, true)),
            [8, 16, 6]
        );
        // Without grouped GEMV from two for each, but pairs of few rows are never sorted.
        assert_eq!([(32, 4), (8, 2)].map(|(experts, chosen)| sorted_rows(experts, chosen, false)), [16, 9]);
    }

    #[test]
    fn two_warps_share_the_experts_of_a_single_row() {
        let row_bytes = DeviceType::Q4_K.row_bytes(768) as u32;
        let matrix = Matrix { dtype: DeviceType::Q4_K, row_bytes, cols: 768, rows: 2048, ..Matrix::default() };
        let table = ExpertTable { matrix, each: 2048, ..ExpertTable::default() };
        let of = |chosen, rows| {
            let kernel = sum(&table, None, chosen, (rows, 2048), &Device::LARGEST).unwrap();
            // Every output has its warps, and each of them its slots.
            assert_eq!(kernel.blocks * kernel.threads / 32 * SUM_OUTPUTS, 2048 * kernel.parts);
            kernel.parts
        };
        assert_eq!([of(8, 1), of(8, 2), of(7, 1), of(4, 1), of(32, 1)], [2, 1, 1, 1, 2]);
    }

    #[test]
    fn blocks_of_grouped_gemv_share_an_sm_and_have_a_list_of_their_works() {
        let device = Device { most_shared: 227 << 10, ..Device::LARGEST };
        let args = |cols: u32, width: u32, experts: u32, is_gated: bool| {
            let row_bytes = DeviceType::Q4_K.row_bytes(cols as usize) as u32;
            let matrix =
                Matrix { dtype: DeviceType::Q4_K, row_bytes, cols, rows: experts * width, ..Matrix::default() };
            let table = ExpertTable { matrix, each: width, ..ExpertTable::default() };
            let gated = Activation { x: u64::from(is_gated), ..Activation::default() };
            ExpertGemmArgs { tables: [table; 2], gated, cols, chosen: 8, width, ..ExpertGemmArgs::default() }
        };
        // As many works ahead as there is room for: one of wide rows, several of narrow ones.
        for (args, outputs, stages) in [
            (args(2048, 768, 128, true), 32, 1),
            (args(768, 2048, 128, false), 64, 3),
            (args(256, 64, 512, false), 64, 4),
        ] {
            for tiles in [1, 50, 900] {
                let choice = grouped(&args, tiles, &device).unwrap();
                let (works, [blocks, ..]) = (tiles * args.width.div_ceil(outputs), choice.blocks);
                assert!(blocks == works || blocks >= 2 * device.sms && works <= blocks * GROUP_WORKS);
                let of_block = choice.shared_bytes + GROUP_STATIC_BYTES + BLOCK_EXTRA;
                assert!(2 * of_block <= device.most_shared + BLOCK_EXTRA);
                let of_pair = args.cols + args.cols / 4 + GROUP_PAD;
                let of_x = GROUP_BUFFERS * GROUPED_TILES.widths[0] * of_pair;
                assert_eq!((choice.shared_bytes - of_x) / (args.tables[0].matrix.row_bytes * GROUP_ROWS), stages);
            }
        }
        let of = |experts| args(2048, 768, experts, true);
        // Eight experts of sixteen rows are four pairs for each of 32: too many.
        assert_eq!(
            [(128, 16), (128, 17), (32, 15), (32, 16)].map(|(experts, rows)| sorts_pairs(&of(experts), rows, &device)),
            [true, false, true, false]
        );
    }

    #[test]
    fn tiles_are_those_of_the_kernels() {
        for (kernel, TilePairs { widths, .. }) in
            [(Kernel::ExpertGemm, EXACT_TILES), (Kernel::ExpertGemmF16, ROUNDED_TILES)]
        {
            let made: Vec<u32> = kernel.variants().iter().map(|entry| entry.numbers[0]).collect();
            assert!(widths.iter().all(|width| made.contains(width)), "{widths:?} of {made:?}");
        }
        let rows = |numbers: &[u32]| numbers[1] == ROUNDED_ROWS;
        assert!(Kernel::ExpertGemmF16.variants().iter().all(|entry| rows(entry.numbers)));
    }
}
