//! Lowering of batches of one, two or four rows: launches that cover a norm, its products and what follows them.
//!
//! What does not fit is left to the launches of `lower`.

use super::args::{Args, Matrix, MatvecArgs, SMS, Segment};
use super::form::is_quantized;
use super::lower::{Extent, Kernel, Lowering, ONE};
use super::plain::sigmoid;
use super::slim::Slim;
use crate::plan::op::Norm;
use crate::plan::{Op, ValueId};

/// Warps of a block, as in the kernel.
const WARPS: u32 = 8;
/// Most blocks of a processor for few rows, which leave room for the next kernel's, and for many.
const FEW_BLOCKS: u32 = 2;
const MANY_BLOCKS: u32 = 3;
const MANY_ROWS: u32 = 4096;
/// Tiles of two rows a warp that are enough for the processors, of matrices with short rows and with long ones.
const ENOUGH_SHORT: u32 = 96;
const ENOUGH_LONG: u32 = 120;
/// Units of a stage: of two rows two each, or four of one row, as the kernels of quantized types take them.
const UNITS: u32 = 4;
/// The same of batches.
const UNITS_OF_FEW: u32 = 8;
/// Stages of rings: as many as short rows leave bytes on their way, or as their streams have parts.
const STAGES: u32 = 2;
const LONG_STAGES: u32 = 3;
const MOST_STAGES: u32 = 4;
/// Shared memory beside a block's own that leaves room for two blocks of a processor, or for one and others' small ones.
const SHARED_OF_TWO: u32 = 102 << 10;
const SHARED_OF_ONE: u32 = 140 << 10;
/// Shared memory of a processor, and what a block has beside its rings and its input.
const SHARED_OF_PROCESSOR: u32 = 228 << 10;
const SHARED_OF_BLOCK: u32 = 10 << 10;
/// Shared memory beside a block's own that leaves room for three blocks of a processor, which gated units of four rows have enough to compute for; and
/// what is left to a block of a batch.
const SHARED_OF_THREE: u32 = 65 << 10;
const OWN_OF_FEW: u32 = 12 << 10;
/// What blocks of the kernels without rings have beside it, of whole rows and of columns, the latter for plain products and for gated units.
const OWN_OF_WHOLE: u32 = 1 << 10;
const OWN_OF_COLUMNS: u32 = 2 << 10;
const OWN_OF_GATED: u32 = 5 << 10;
/// Weight rows of a block of either, but for gated units and the head.
const TILE_ROWS: u32 = 16;
/// Columns of rows that are long enough for a kernel of whole rows, and the types with less than four bits, of which shorter ones are too.
const LONG_COLUMNS: u32 = 4096;
const SMALL_TYPES: [u32; 2] = [11, 12];
/// Columns and type of the kernels that keep columns in registers, what rows are a multiple of, and their activations in shared memory.
const COLUMNS: u32 = 2048;
const TYPE_OF_COLUMNS: u32 = 11;
const OCTET: u32 = 8;
const BYTES_OF_COLUMNS: u32 = COLUMNS / 1024 * 1440;
/// Blocks of their head, and the rows that each has on their way.
const HEAD_BLOCKS: u32 = 2 * SMS;
const ROWS_OF_HEAD: u32 = 128;
/// Pairs of rows a warp of a gated unit, and rows a warp of the head.
const PAIRS: u32 = 4;
const HEAD_ROWS: u32 = 16;
/// Most shared memory that a block asks for.
const MOST_SHARED: u32 = 200 << 10;

/// Weight types of each kernel, in the order of the table of loaded functions; for a lone row the kernel behind them takes all types.
#[rustfmt::skip]
const TYPES: [&[u32]; 17] = [
    &[4, 6], &[5, 6], &[0], &[1], &[2], &[3], &[7], &[8], &[9], &[10], &[11], &[12], &[13], &[14], &[15], &[16], &[17],
];

/// Types that files mix in the products of one value, of which a lone row has kernels too, in the order of these.
const MIXED: [[u32; 2]; 6] = [[4, 5], [11, 4], [12, 4], [12, 5], [13, 5], [14, 5]];

/// The kernel for these products: the first that has all their types.
fn kernel_of(args: &MatvecArgs) -> Option<usize> {
    let segments = args.segments[..args.count as usize].iter();
    let takes = |types: &&[u32]| segments.clone().all(|segment| types.contains(&segment.matrix.dtype));
    TYPES.iter().position(takes)
}

/// Its place among the kernels of one row, or among those of two rows and then of four.
pub(super) fn variant_of(args: &MatvecArgs) -> u32 {
    let index = kernel_of(args).unwrap_or(TYPES.len());
    (if args.batch > 2 { TYPES.len() + index } else { index }) as u32
}

/// The kernel of a pair of types for these products.
fn mixed_kernel_of(args: &MatvecArgs) -> Option<usize> {
    let segments = &args.segments[..args.count as usize];
    MIXED.iter().position(|types| segments.iter().all(|segment| types.contains(&segment.matrix.dtype)))
}

/// Its place among those.
pub(super) fn mixed_variant_of(args: &MatvecArgs) -> u32 {
    mixed_kernel_of(args).unwrap_or(0) as u32
}

/// The place of a kernel of whole rows, which have no floats, among those.
pub(super) fn whole_variant_of(args: &MatvecArgs) -> u32 {
    let index = kernel_of(args).unwrap_or(0) as u32;
    if index < 2 { index } else { index - 3 }
}

/// The place of a kernel of columns among those: of gated units, of plain products, of the head.
pub(super) fn columns_variant_of(args: &MatvecArgs) -> u32 {
    match args {
        _ if args.gated.x != 0 => 0,
        _ if args.best == 0 => 1,
        _ => 2,
    }
}

/// What a launch of products ends in, as far as its rings go.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Gated,
    Head,
}

/// Rows a warp for matrices of so many rows: even among processors first, then as many as leave two blocks for each of them; or two, where
/// `enough` of such tiles are no more than one for each.
fn rows_a_warp(rows: &[u32], enough: u32) -> u32 {
    let tiles = |each: u32| rows.iter().map(|rows| rows.div_ceil(WARPS * each)).sum::<u32>();
    if (enough..=SMS).contains(&tiles(2)) {
        return 2;
    }
    let blocks = if rows.iter().sum::<u32>() > MANY_ROWS { MANY_BLOCKS } else { FEW_BLOCKS };
    let least = (1..).find(|&each| tiles(each) <= blocks * SMS).unwrap_or(1);
    let candidates = (least..).take_while(|&each| each == least || tiles(each) > SMS);
    // Rows go in pairs, where there is more than one.
    let cost = |each: u32| tiles(each).div_ceil(SMS) * if each == 1 { 1 } else { each.next_multiple_of(2) };
    candidates.min_by_key(|&each| (cost(each), u32::MAX - each)).unwrap_or(least)
}

/// The same for batches, whose rows always go in pairs; four of long rows where that leaves a tile for each processor.
fn rows_of_few(rows: &[u32], is_short: bool) -> u32 {
    let tiles = rows.iter().map(|rows| rows.div_ceil(WARPS * 4)).sum::<u32>();
    if !is_short && (ENOUGH_LONG..=SMS).contains(&tiles) { 4 } else { rows_a_warp(rows, ENOUGH_SHORT).max(2) }
}

/// Stages of the rings of a batch's blocks: as many as leave enough of these for a processor, but one is enough.
fn stages_of_few(args: &MatvecArgs, kind: Kind, tiles: u32, beside: u32, most_shared: u32) -> u32 {
    let is_four = args.batch > 2;
    let (wanted, most) = match kind {
        Kind::Gated if is_four => (STAGES, SHARED_OF_THREE),
        Kind::Gated | Kind::Head => (STAGES, SHARED_OF_TWO),
        Kind::Plain if tiles > SMS => (parts_of_rows(args).min(STAGES), SHARED_OF_TWO),
        Kind::Plain if is_four => (STAGES, most_shared),
        Kind::Plain => (LONG_STAGES, most_shared),
    };
    (1..=wanted).rev().find(|stages| WARPS * stages * args.stage_bytes + beside <= most.min(most_shared)).unwrap_or(1)
}

/// Stages of the rings of `tiles` blocks, with as much shared memory beside the rings.
fn stages(args: &MatvecArgs, kind: Kind, tiles: u32, beside: u32, most_shared: u32) -> u32 {
    if args.batch > 1 {
        return stages_of_few(args, kind, tiles, beside, most_shared);
    }
    let parts = parts_of_rows(args);
    // A block for each processor may have more memory than it fills: the next kernel's blocks then go to others.
    let is_alone = args.rows_a_warp > 1 && tiles <= SMS;
    let wanted = match kind {
        Kind::Gated | Kind::Head if has_short_rows(args) => MOST_STAGES,
        Kind::Gated | Kind::Head => STAGES,
        Kind::Plain if is_alone => parts.clamp(LONG_STAGES, MOST_STAGES),
        Kind::Plain => parts.min(LONG_STAGES),
    };
    let most = if is_alone { SHARED_OF_ONE } else { SHARED_OF_TWO };
    if WARPS * wanted * args.stage_bytes + beside > most { wanted.min(STAGES) } else { wanted }
}

/// Shared memory that keeps more of `tiles` blocks, which have `own` bytes of it beside, off a processor than its share. Launches meet on the processors,
/// and some of these would otherwise get so many blocks that their instructions, not the memory, take the time. Where shares are uneven the next launch
/// needs the room more, unless blocks are few and begin with a norm.
fn fair_shared(tiles: u32, has_norm: bool, own: u32) -> u32 {
    let each = tiles.div_ceil(SMS);
    if !has_even_shares(tiles) && (!has_norm || each > FEW_BLOCKS) {
        return 0;
    }
    (SHARED_OF_PROCESSOR / (each + 1)).saturating_sub(own)
}

/// Whether blocks are about as many as a whole number for each processor.
fn has_even_shares(tiles: u32) -> bool {
    10 * tiles >= 9 * tiles.div_ceil(SMS) * SMS
}

/// Whether a kernel without rings takes the products of a lone row, all of whose weights are on their way at once then: those of sixteen rows for about
/// each processor.
fn has_whole_rows(args: &MatvecArgs, tiles: u32, beside: u32) -> bool {
    let Matrix { rows, row_bytes, dtype, cols, .. } = args.segments[0].matrix;
    let is_plain = args.count == 1 && args.norm == 0 && args.best == 0 && args.rows_a_warp == 2;
    let is_long = cols >= LONG_COLUMNS || SMALL_TYPES.contains(&dtype);
    let fits = TILE_ROWS * row_bytes + beside <= SHARED_OF_ONE && rows.is_multiple_of(TILE_ROWS);
    is_plain && is_long && fits && tiles <= SMS && has_even_shares(tiles) && kernel_of(args).is_some()
}

/// Whether a kernel that keeps columns in registers takes the products of a lone row.
fn has_columns(args: &MatvecArgs) -> bool {
    let segments = &args.segments[..args.count as usize];
    let is_own = |matrix: &Matrix| matrix.dtype == TYPE_OF_COLUMNS && matrix.cols == COLUMNS;
    let of_tile = if args.best == 0 { TILE_ROWS } else { OCTET };
    let fits = |each: &Segment| is_own(&each.matrix) && each.matrix.rows.is_multiple_of(of_tile) && each.adds == 0.0;
    args.norm != 0 && segments.iter().all(fits) && (args.best == 0 || args.count == 1)
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
    if matches!(segment.matrix.dtype, 1 | 2) { 2 * segment.matrix.slice_bytes } else { segment.matrix.slice_bytes }
}

/// Bytes of a stage of so many units of a segment.
fn stage_bytes(segment: &Segment, units: u32) -> u32 {
    (units * unit_bytes(segment)).min(2 * segment.matrix.row_bytes)
}

/// Gives segments their tiles of so many rows; their number.
fn cut_tiles(segments: &mut [Segment], rows: u32) -> u32 {
    let mut tiles = 0;
    for segment in segments {
        segment.first_tile = tiles;
        tiles += segment.matrix.rows.div_ceil(rows);
    }
    tiles
}

impl Lowering<'_> {
    /// Lowers the next ops for a batch of so many rows; false leaves them as they are.
    pub fn few_rows(&mut self, batch: u32) -> bool {
        match self.program.ops[self.next..] {
            [Op::SelectRows { x, out: selected }, Op::Norm { x: normed, norm, out }, ..]
                if normed == selected && self.uses.is_deferred(out) && self.uses.of_value(selected).readers == 1 =>
            {
                if batch == 1 {
                    return self.products(1, 2, x, Some(norm), out);
                }
                self.norm(x, norm, out, self.addresses.step.outputs, 2);
                true
            }
            // Each block would norm all rows: a launch of its own is quicker for more than one.
            [Op::Norm { x, norm, out }, ..] if batch == 1 && self.uses.is_deferred(out) => {
                self.products(1, 1, x, Some(norm), out)
            }
            [Op::MatMul { x, .. }, ..] if batch > 1 && self.slim_products(batch, x) => true,
            [Op::MatMul { x, .. }, ..] => self.products(batch, 0, x, None, x),
            _ => false,
        }
    }

    /// Lowers products of `x` to launches on tensor cores, where these are quicker; false leaves them. Tokens of the head are chosen by the kernels of few
    /// rows.
    fn slim_products(&mut self, batch: u32, x: ValueId) -> bool {
        if matches!(self.program.ops[self.next], Op::MatMul { out, .. } if out == self.program.logits) {
            return false;
        }
        let Some((args, covered)) = self.tensor_args(x) else { return false };
        if Slim::of(&args, batch).is_none() {
            return false;
        }
        self.push_tensor(args, covered);
        true
    }

    /// Products of `x`, which the ops behind the next `skipped` read as `seen`.
    fn products(&mut self, batch: u32, skipped: usize, x: ValueId, norm: Option<Norm>, seen: ValueId) -> bool {
        let program = self.program;
        let (cols, mut outs) = (self.width(x), Vec::new());
        let mut args = MatvecArgs { batch, cols: cols as u32, ..MatvecArgs::default() };
        let mut is_float = false;
        for op in &program.ops[self.next + skipped..] {
            let &Op::MatMul { x: read, matrix, bias, out } = op else { break };
            if read != seen || outs.len() == 3 {
                break;
            }
            let (matrix, dtype) = (self.addresses.matrices[matrix.0], program.matrices[matrix.0].dtype);
            args.segments[outs.len()] =
                Segment { matrix, bias: self.vector(bias), out: self.value(out), ..Segment::default() };
            is_float |= !is_quantized(dtype);
            outs.push(out);
        }
        (args.count, args.units) = (outs.len() as u32, if batch == 1 { UNITS } else { UNITS_OF_FEW });
        let units = args.units;
        args.stage_bytes = args.segments[..outs.len()].iter().map(|each| stage_bytes(each, units)).max().unwrap_or(0);
        // Blocks of 8-bit values stand by whole units; beside floats there may be some too.
        let row_bytes = cols.next_multiple_of(1024) / 4 * 5;
        let row_bytes = if is_float { row_bytes.max(4 * cols) } else { row_bytes };
        let input_bytes = batch * row_bytes as u32;
        let least_shared = WARPS * if batch == 1 { STAGES } else { 1 } * args.stage_bytes + input_bytes;
        let most_shared = self.most_shared_of(batch);
        let is_whole = norm.is_none() || self.uses.of_value(seen).readers == outs.len();
        let has_kernel = batch == 1 || kernel_of(&args).is_some();
        if outs.is_empty() || !cols.is_multiple_of(32) || least_shared > most_shared || !is_whole || !has_kernel {
            return false;
        }
        args.x = self.input(x);
        (args.norm, args.eps) = (self.vector(norm.map(|norm| norm.weight)), norm.map_or(0.0, |norm| norm.eps));
        let end = self.next + skipped + outs.len();
        let follows = self.join_follower(&mut args, x, &outs, end);
        // Tokens are chosen from logits as they are at the end.
        let is_head = outs[0] == program.logits && end == program.ops.len();
        if is_head {
            args.best = self.addresses.step.best;
        }
        let tiles = self.cut(&mut args);
        let kind = match () {
            () if args.gated.x != 0 => Kind::Gated,
            () if is_head => Kind::Head,
            () => Kind::Plain,
        };
        let (kernel, tiles, shared) = self.kernel_and_shared(&mut args, kind, tiles, input_bytes, is_float);
        let blocks = if is_head { Extent::Tiles { tiles, on_outputs: true } } else { Extent::Fixed(tiles) };
        let covered = skipped + outs.len() + follows;
        self.push(kernel, [blocks, ONE, ONE], 256, Args::Matvec(args), covered);
        self.launches.last_mut().expect("just added").shared_bytes = shared;
        true
    }

    /// The kernel for products of `tiles` tiles, with `beside` bytes of activations: also how many blocks it has, and their shared memory.
    fn kernel_and_shared(
        &self,
        args: &mut MatvecArgs,
        kind: Kind,
        tiles: u32,
        beside: u32,
        is_float: bool,
    ) -> (Kernel, u32, u32) {
        let (most_shared, row_bytes) = (self.addresses.most_shared, args.segments[0].matrix.row_bytes);
        let may_lack_rings =
            args.batch == 1 && !is_float && self.addresses.copies_in_bulk && most_shared >= MOST_SHARED;
        // Shared memory of a block that has `own` bytes of it beside.
        let has_norm = args.norm != 0;
        let shared_of = |shared: u32, tiles: u32, own: u32| {
            let fair = if is_float { 0 } else { fair_shared(tiles, has_norm, own) };
            shared.max(fair.min(most_shared.saturating_sub(SHARED_OF_BLOCK)))
        };
        if may_lack_rings && has_columns(args) {
            let (tiles, shared) = match kind {
                Kind::Gated => {
                    (tiles, shared_of(2 * WARPS * PAIRS * row_bytes + BYTES_OF_COLUMNS, tiles, OWN_OF_GATED))
                }
                Kind::Plain => {
                    let tiles = cut_tiles(&mut args.segments[..args.count as usize], TILE_ROWS);
                    (tiles, shared_of(TILE_ROWS * row_bytes + BYTES_OF_COLUMNS, tiles, OWN_OF_COLUMNS))
                }
                Kind::Head => (HEAD_BLOCKS, ROWS_OF_HEAD * row_bytes + BYTES_OF_COLUMNS),
            };
            return (Kernel::MatvecColumns, tiles, shared);
        }
        if may_lack_rings && has_whole_rows(args, tiles, beside) {
            return (Kernel::MatvecWhole, tiles, shared_of(TILE_ROWS * row_bytes + beside, tiles, OWN_OF_WHOLE));
        }
        args.stages = stages(args, kind, tiles, beside, self.most_shared_of(args.batch));
        let kernel = match args.batch {
            1 if kernel_of(args).is_none() && mixed_kernel_of(args).is_some() => Kernel::MatvecMixed,
            1 => Kernel::Matvec,
            _ => Kernel::MatvecFew,
        };
        (kernel, tiles, shared_of(WARPS * args.stages * args.stage_bytes + beside, tiles, SHARED_OF_BLOCK))
    }

    /// Shared memory that rings and activations may have.
    fn most_shared_of(&self, batch: u32) -> u32 {
        match batch {
            1 => MOST_SHARED,
            _ => MOST_SHARED.min(self.addresses.most_shared.saturating_sub(OWN_OF_FEW)),
        }
    }

    /// Takes in the ops from `end` on that are the gated unit or the addition that belongs to these products of `x`; how many those are.
    fn join_follower(&self, args: &mut MatvecArgs, x: ValueId, outs: &[ValueId], end: usize) -> usize {
        match (self.program.ops.get(end), outs) {
            (Some(&Op::Gate { kind, gate, up }), &[first, second])
                if (first, second) == (gate, up) && self.uses.of_value(up).readers == 1 =>
            {
                let Some(unit) = sigmoid(kind) else { return 0 };
                let [a, b, _] = &args.segments;
                let fits = a.matrix.dtype == b.matrix.dtype && a.matrix.rows.is_multiple_of(WARPS * PAIRS);
                if !fits || a.bias != 0 || b.bias != 0 {
                    return 0;
                }
                (args.gated, args.unit) = (self.activation(gate), unit);
                1
            }
            (_, &[only]) => {
                let Some(sum) = self.sum_of_product(x, only, end) else { return 0 };
                (args.segments[0].out, args.segments[0].adds) = (self.value(sum.to), sum.factor);
                sum.ops
            }
            _ => 0,
        }
    }

    /// Gives every segment its tiles; their number.
    fn cut(&self, args: &mut MatvecArgs) -> u32 {
        if args.gated.x != 0 {
            args.rows_a_warp = PAIRS;
            return args.segments[0].matrix.rows / (WARPS * PAIRS);
        }
        let segments = &mut args.segments[..args.count as usize];
        let rows: Vec<u32> = segments.iter().map(|segment| segment.matrix.rows).collect();
        let is_short = segments.iter().all(|segment| 2 * segment.matrix.row_bytes <= stage_bytes(segment, args.units));
        args.rows_a_warp = match args.best {
            0 if args.batch > 1 => rows_of_few(&rows, is_short),
            0 => rows_a_warp(&rows, if is_short { ENOUGH_SHORT } else { ENOUGH_LONG }),
            _ => HEAD_ROWS,
        };
        cut_tiles(segments, WARPS * args.rows_a_warp)
    }
}
