//! Products of one, two or four rows of activations: the kernel, how many weight rows a warp takes, and the stages of the rings in shared memory.
//!
//! Tiles, stages and bytes go into the arguments of the launch, for the kernel.

use super::super::args::{Matrix, MatvecArgs, Segment};
use super::super::catalogue::{DeviceType, Function, Kernel};
use super::Device;

/// Warps of a block, as in the kernel.
const WARPS: u32 = 8;
/// Most blocks of an SM for few rows, which leave room for the next kernel's, and for many.
const FEW_BLOCKS: u32 = 2;
const MANY_BLOCKS: u32 = 3;
const MANY_ROWS: u32 = 4096;
/// Tiles of two rows a warp that are enough for 132 SMs, of matrices with short rows and with long ones.
const ENOUGH_SHORT: u32 = 96;
const ENOUGH_LONG: u32 = 120;
/// Units of a stage: of two rows two each, or four of one row, as the kernels of quantized types take them.
const UNITS: u32 = 4;
/// The same of batches.
const UNITS_OF_BATCH: u32 = 8;
/// Stages of rings: as many as short rows leave bytes in flight, or as their streams have parts.
const STAGES: u32 = 2;
const LONG_STAGES: u32 = 3;
const MOST_STAGES: u32 = 4;
/// Shared memory beside a block's own that leaves room for two blocks of an SM, or for one and others' small ones.
const SHARED_OF_TWO: u32 = 102 << 10;
const SHARED_OF_ONE: u32 = 140 << 10;
/// Shared memory of an SM, what a block has beside its rings and its input, and the blocks that registers leave room for.
const SHARED_OF_SM: u32 = 228 << 10;
const OWN: u32 = 10 << 10;
const MOST_BLOCKS: u32 = 4;
/// Shared memory beside a block's own that leaves room for three blocks of an SM, which gated units of four rows have enough to compute for; and
/// what is left to a block of a batch.
const SHARED_OF_THREE: u32 = 65 << 10;
const OWN_OF_BATCH: u32 = 12 << 10;
/// What blocks of the kernels without rings have beside it: of a single stage, of activations in registers for plain products and for gated units.
const OWN_OF_SINGLE_STAGE: u32 = 1 << 10;
const OWN_OF_REGISTERS: u32 = 2 << 10;
const OWN_OF_GLU: u32 = 5 << 10;
/// Weight rows of a block of either, but for gated units and the head.
const TILE_ROWS: u32 = 16;
/// Columns of rows that are long enough for a single stage, and code bytes of the types with less than four bits, of which shorter ones are too.
const LONG_COLUMNS: u32 = 4096;
const SMALL_CODES: u32 = 8;
/// Columns and type of the kernels that keep activations in registers, what rows are a multiple of, and their activations in shared memory.
const REGISTER_COLUMNS: u32 = 2048;
const REGISTER_TYPE: DeviceType = DeviceType::Q2_K;
const OCTET: u32 = 8;
const REGISTER_BYTES: u32 = REGISTER_COLUMNS / 1024 * 1440;
/// Rows that each block of their head has in flight.
const ROWS_OF_HEAD: u32 = 128;
/// Pairs of rows a warp of a gated unit, and rows a warp of the head.
const PAIRS: u32 = 4;
const HEAD_ROWS: u32 = 16;
/// Weight rows that both matrices of a gated unit have a multiple of, in batches of any size.
pub const GATED_ROWS: u32 = WARPS * PAIRS;
/// Most shared memory that a block asks for.
const MOST_SHARED: u32 = 200 << 10;

/// What a launch of products comes to.
pub struct Gemv {
    /// The kernel.
    pub function: Function,
    /// Blocks; of the head for each output.
    pub blocks: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// What a launch of products ends in, as far as its rings go.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Gated,
    Head,
}

/// Sizes the stages of products, and says whether a kernel takes them: two stages of a lone row and its activations must fit into shared memory, and
/// batches have kernels for some sets of types alone.
pub fn takes(args: &mut MatvecArgs, device: &Device) -> bool {
    args.units = if args.batch == 1 { UNITS } else { UNITS_OF_BATCH };
    let units = args.units;
    args.stage_bytes = segments(args).iter().map(|each| stage_bytes(each, units)).max().unwrap_or(0);
    let stages = if args.batch == 1 { STAGES } else { 1 };
    let least_shared = WARPS * stages * args.stage_bytes + input_bytes(args);
    let has_kernel = args.batch == 1 || of_types(args).is_some();
    args.count > 0 && args.cols.is_multiple_of(32) && least_shared <= most_shared(args, device) && has_kernel
}

/// The kernel for products whose end is known: where they add to, the gated unit, or the choice of tokens.
pub fn choose(args: &mut MatvecArgs, device: &Device) -> Gemv {
    let kind = match args {
        _ if args.gated.x != 0 => Kind::Gated,
        _ if args.best != 0 => Kind::Head,
        _ => Kind::Plain,
    };
    let tiles = cut(args, device);
    let may_lack_rings = args.batch == 1 && !is_float(args) && device.bulk_copies && device.most_shared >= MOST_SHARED;
    if may_lack_rings && fits_registers(args) {
        return in_registers(args, kind, tiles, device);
    }
    let beside = input_bytes(args);
    if may_lack_rings && fits_single_stage(args, tiles, beside, device) {
        let function = Kernel::GemvSingleStage.of_types(types(args)).expect("there is one for each type");
        let ring = TILE_ROWS * args.segments[0].matrix.row_bytes + beside;
        return Gemv { function, blocks: tiles, shared_bytes: shared(args, ring, tiles, OWN_OF_SINGLE_STAGE, device) };
    }
    args.stages = stages(args, kind, tiles, beside, device);
    let function = of_types(args).unwrap_or(Kernel::GemvB1Any.only());
    let ring = WARPS * args.stages * args.stage_bytes + beside;
    Gemv { function, blocks: tiles, shared_bytes: shared(args, ring, tiles, OWN, device) }
}

/// The kernels that keep a lone row of activations in registers.
fn in_registers(args: &mut MatvecArgs, kind: Kind, tiles: u32, device: &Device) -> Gemv {
    let row_bytes = args.segments[0].matrix.row_bytes;
    let (kernel, blocks, shared_bytes) = match kind {
        Kind::Gated => {
            let ring = 2 * WARPS * PAIRS * row_bytes + REGISTER_BYTES;
            (Kernel::GemvRegistersGlu, tiles, shared(args, ring, tiles, OWN_OF_GLU, device))
        }
        Kind::Plain => {
            let tiles = cut_tiles(args, TILE_ROWS);
            let ring = TILE_ROWS * row_bytes + REGISTER_BYTES;
            (Kernel::GemvRegistersPlain, tiles, shared(args, ring, tiles, OWN_OF_REGISTERS, device))
        }
        Kind::Head => (Kernel::GemvRegistersHead, 2 * device.sms, ROWS_OF_HEAD * row_bytes + REGISTER_BYTES),
    };
    Gemv { function: kernel.only(), blocks, shared_bytes }
}

fn segments(args: &MatvecArgs) -> &[Segment] {
    &args.segments[..args.count as usize]
}

fn types(args: &MatvecArgs) -> impl Iterator<Item = DeviceType> + Clone {
    segments(args).iter().map(|segment| segment.matrix.dtype)
}

fn is_float(args: &MatvecArgs) -> bool {
    types(args).any(|dtype| !dtype.is_quantized())
}

/// The kernel that is made for the types of these products.
fn of_types(args: &MatvecArgs) -> Option<Function> {
    let kernel = match args.batch {
        1 => Kernel::GemvB1,
        2 => Kernel::GemvB2,
        _ => Kernel::GemvB4,
    };
    kernel.of_types(types(args))
}

/// Bytes of the activations in shared memory. Blocks of 8-bit values stand by whole units; beside floats there may be some too.
fn input_bytes(args: &MatvecArgs) -> u32 {
    let blocks = args.cols.next_multiple_of(1024) / 4 * 5;
    args.batch * if is_float(args) { blocks.max(4 * args.cols) } else { blocks }
}

/// Shared memory that rings and activations may have.
fn most_shared(args: &MatvecArgs, device: &Device) -> u32 {
    match args.batch {
        1 => MOST_SHARED,
        _ => MOST_SHARED.min(device.most_shared.saturating_sub(OWN_OF_BATCH)),
    }
}

/// Shared memory of a block that needs `ring` bytes and has `own` beside: more, where that gives each SM its share of the blocks.
fn shared(args: &MatvecArgs, ring: u32, tiles: u32, own: u32, device: &Device) -> u32 {
    let fair = if is_float(args) { 0 } else { fair_shared(tiles, args.norm != 0, own, device) };
    ring.max(fair.min(device.most_shared.saturating_sub(OWN)))
}

/// Shared memory that keeps more of `tiles` blocks, which have `own` bytes of it beside, off an SM than its share. Launches overlap on the SMs,
/// and some of these would otherwise get so many blocks that their instructions, not the memory, take the time. Where shares are uneven the next
/// launch needs the room more, unless blocks are few and begin with a norm.
fn fair_shared(tiles: u32, has_norm: bool, own: u32, device: &Device) -> u32 {
    let each = tiles.div_ceil(device.sms);
    if !has_even_shares(tiles, device) && (!has_norm || each > FEW_BLOCKS) {
        return 0;
    }
    (SHARED_OF_SM / (each + 1)).saturating_sub(own)
}

/// Whether blocks are about as many as a whole number for each SM.
fn has_even_shares(tiles: u32, device: &Device) -> bool {
    10 * tiles >= 9 * tiles.div_ceil(device.sms) * device.sms
}

/// Blocks of an SM that run at a time, with rings of so many stages.
fn resident_blocks(args: &MatvecArgs, stages: u32) -> u32 {
    (SHARED_OF_SM / (WARPS * stages * args.stage_bytes + input_bytes(args) + OWN)).clamp(1, MOST_BLOCKS)
}

/// Gives every segment its tiles; their number.
fn cut(args: &mut MatvecArgs, device: &Device) -> u32 {
    if args.gated.x != 0 {
        args.rows_a_warp = PAIRS;
        return args.segments[0].matrix.rows / GATED_ROWS;
    }
    let is_short = segments(args).iter().all(|each| 2 * each.matrix.row_bytes <= stage_bytes(each, args.units));
    args.rows_a_warp = match args.best {
        0 if args.batch > 1 => rows_of_batch(args, is_short, device),
        0 => rows_a_warp(args, if is_short { ENOUGH_SHORT } else { ENOUGH_LONG }, device),
        _ => HEAD_ROWS,
    };
    cut_tiles(args, WARPS * args.rows_a_warp)
}

/// Gives segments their tiles of so many rows; their number.
fn cut_tiles(args: &mut MatvecArgs, rows: u32) -> u32 {
    let mut tiles = 0;
    for segment in &mut args.segments[..args.count as usize] {
        segment.first_tile = tiles;
        tiles += segment.matrix.rows.div_ceil(rows);
    }
    tiles
}

/// Tiles of so many rows a warp.
fn tiles_of(args: &MatvecArgs, each: u32) -> u32 {
    segments(args).iter().map(|segment| segment.matrix.rows.div_ceil(WARPS * each)).sum()
}

/// Rows a warp: even among SMs first, then as many as leave two blocks for each of them; or two, where `enough` of such tiles are no more than
/// one for each.
fn rows_a_warp(args: &MatvecArgs, enough: u32, device: &Device) -> u32 {
    let (sms, tiles) = (device.sms, |each| tiles_of(args, each));
    if (enough * sms / 132..=sms).contains(&tiles(2)) {
        return 2;
    }
    let rows: u32 = segments(args).iter().map(|segment| segment.matrix.rows).sum();
    // No more than run at once.
    let most = if args.batch == 1 { resident_blocks(args, STAGES) } else { MANY_BLOCKS };
    let blocks = if rows > MANY_ROWS { MANY_BLOCKS.min(most) } else { FEW_BLOCKS };
    let least = (1..).find(|&each| tiles(each) <= blocks * sms).unwrap_or(1);
    let candidates = (least..).take_while(|&each| each == least || tiles(each) > sms);
    // Rows go in pairs, where there is more than one.
    let cost = |each: u32| tiles(each).div_ceil(sms) * if each == 1 { 1 } else { each.next_multiple_of(2) };
    candidates.min_by_key(|&each| (cost(each), u32::MAX - each)).unwrap_or(least)
}

/// The same for batches, whose rows always go in pairs; four of long rows where that leaves a tile for each SM.
fn rows_of_batch(args: &MatvecArgs, is_short: bool, device: &Device) -> u32 {
    let enough = ENOUGH_LONG * device.sms / 132;
    let has_a_tile_each = (enough..=device.sms).contains(&tiles_of(args, 4));
    if !is_short && has_a_tile_each { 4 } else { rows_a_warp(args, ENOUGH_SHORT, device).max(2) }
}

/// Stages of the rings of a batch's blocks: as many as leave enough of these for an SM, but one is enough.
fn stages_of_batch(args: &MatvecArgs, kind: Kind, tiles: u32, beside: u32, device: &Device) -> u32 {
    let (is_four, most_shared) = (args.batch > 2, most_shared(args, device));
    let (wanted, most) = match kind {
        Kind::Gated if is_four => (STAGES, SHARED_OF_THREE),
        Kind::Gated | Kind::Head => (STAGES, SHARED_OF_TWO),
        Kind::Plain if tiles > device.sms => (parts_of_rows(args).min(STAGES), SHARED_OF_TWO),
        Kind::Plain if is_four => (STAGES, most_shared),
        Kind::Plain => (LONG_STAGES, most_shared),
    };
    (1..=wanted).rev().find(|stages| WARPS * stages * args.stage_bytes + beside <= most.min(most_shared)).unwrap_or(1)
}

/// Stages of the rings of `tiles` blocks, with as much shared memory beside the rings.
fn stages(args: &MatvecArgs, kind: Kind, tiles: u32, beside: u32, device: &Device) -> u32 {
    if args.batch > 1 {
        return stages_of_batch(args, kind, tiles, beside, device);
    }
    // A block for each SM may have more memory than it fills: the next kernel's blocks then go to others.
    let is_alone = args.rows_a_warp > 1 && tiles <= device.sms;
    let wanted = match kind {
        Kind::Gated | Kind::Head if has_short_rows(args) => MOST_STAGES,
        Kind::Gated | Kind::Head => STAGES,
        Kind::Plain if is_alone => parts_of_rows(args).clamp(LONG_STAGES, MOST_STAGES),
        Kind::Plain => parts_of_rows(args).min(LONG_STAGES),
    };
    let most = if is_alone { SHARED_OF_ONE } else { SHARED_OF_TWO };
    // Blocks that come behind others cost more than a stage.
    let comes_behind = kind == Kind::Plain && tiles > device.sms * resident_blocks(args, wanted);
    let is_large = WARPS * wanted * args.stage_bytes + beside > most;
    if comes_behind || is_large { wanted.min(STAGES) } else { wanted }
}

/// Whether all weights of a block may be in flight at once: tiles of sixteen rows, about one for each SM.
fn fits_single_stage(args: &MatvecArgs, tiles: u32, beside: u32, device: &Device) -> bool {
    let Matrix { rows, row_bytes, dtype, cols, .. } = args.segments[0].matrix;
    let is_plain = args.count == 1 && args.norm == 0 && args.best == 0 && args.rows_a_warp == 2;
    let is_long = cols >= LONG_COLUMNS || dtype.group().codes == SMALL_CODES;
    let fits = TILE_ROWS * row_bytes + beside <= SHARED_OF_ONE && rows.is_multiple_of(TILE_ROWS);
    is_plain && is_long && fits && tiles <= device.sms && has_even_shares(tiles, device)
}

/// Whether a kernel that keeps activations in registers takes the products.
fn fits_registers(args: &MatvecArgs) -> bool {
    let is_own = |matrix: &Matrix| matrix.dtype == REGISTER_TYPE && matrix.cols == REGISTER_COLUMNS;
    let of_tile = if args.best == 0 { TILE_ROWS } else { OCTET };
    let fits = |each: &Segment| is_own(&each.matrix) && each.matrix.rows.is_multiple_of(of_tile) && each.adds == 0.0;
    args.norm != 0 && segments(args).iter().all(fits) && (args.best == 0 || args.count == 1)
}

/// Parts that a warp takes of its rows, two of which stand side by side in a stage, or one alone.
fn parts_of_rows(args: &MatvecArgs) -> u32 {
    let row_bytes = args.segments.iter().map(|segment| segment.matrix.row_bytes).max().unwrap_or(0);
    let streams = if args.gated.x != 0 { 1 } else { 2 };
    let at_once = if args.rows_a_warp < streams { 1 } else { 2 };
    args.rows_a_warp.div_ceil(streams) * (at_once * row_bytes).div_ceil(args.stage_bytes.max(1))
}

/// Whether rows have no more than a unit.
fn has_short_rows(args: &MatvecArgs) -> bool {
    args.segments.iter().all(|segment| segment.matrix.row_bytes <= unit_bytes(segment))
}

/// Bytes of a unit of a segment: a slice, or two times 256 floats of two bytes, or 256 of four bytes.
fn unit_bytes(segment: &Segment) -> u32 {
    let is_half = matches!(segment.matrix.dtype, DeviceType::F16 | DeviceType::BF16);
    if is_half { 2 * segment.matrix.slice_bytes } else { segment.matrix.slice_bytes }
}

/// Bytes of a stage of so many units of a segment.
fn stage_bytes(segment: &Segment, units: u32) -> u32 {
    (units * unit_bytes(segment)).min(2 * segment.matrix.row_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tests::product;
    use super::*;

    /// Blocks of a product of one row, and those that an SM has at a time.
    fn blocks(cols: u32, rows: u32, dtype: DeviceType) -> (u32, u32) {
        let (tensor, device) = product(cols, rows, dtype);
        let mut segment = tensor.segments[0];
        segment.matrix.row_bytes = dtype.row_bytes(cols as usize) as u32;
        let mut args = MatvecArgs { cols, count: 1, batch: 1, ..MatvecArgs::default() };
        args.segments[0] = segment;
        assert!(takes(&mut args, &device));
        let gemv = choose(&mut args, &device);
        (gemv.blocks, SHARED_OF_SM / (gemv.shared_bytes + OWN))
    }

    #[test]
    fn plain_products_have_no_more_blocks_than_run_at_once() {
        use DeviceType::{Q4_K, Q6_K, Q8_0};
        for (cols, rows, dtype) in [
            (2880, 5120, Q8_0),
            (17_408, 5120, Q4_K),
            (17_408, 5120, Q6_K),
            (5120, 14_336, Q4_K),
            (14_336, 4096, Q6_K),
            (4096, 2880, Q8_0),
        ] {
            let (blocks, resident) = blocks(cols, rows, dtype);
            assert!(blocks <= 132 * resident, "{cols} x {rows}, {dtype:?}: {blocks} blocks, {resident} an SM");
        }
    }
}
