//! Lowering of products of quantized matrices with more than one row, for tensor cores, and the sizes of those launches.
//!
//! The widths of batches have kernels of their own, which differ in the tile of a block alone; all give the same bits.

use super::args::{Args, SMS, Segment, Shape, TensorArgs};
use super::loose::{LOOSE, Loose};
use super::lower::{Extent, Kernel, Lowering, ONE};
use super::plain::sigmoid;
use super::skinny::{SKINNY, Skinny};
use super::slim::{self, SLIM, Slim};
use super::wide::{WIDE, Wide};
use crate::plan::{Op, ValueId};
use crate::quant::DType;

/// Outputs of a unit of a gated product.
const UNIT: u32 = 32;
/// Shared memory of a block: where a processor has two blocks, and where it has one.
const SHARED_OF_TWO: u32 = 112 << 10;
const SHARED_OF_ONE: u32 = 222 << 10;
/// Most stages of a ring.
const MOST_STAGES: u32 = 6;
const WARPS: u32 = 8;

/// The tile of a kernel: weight rows, rows of the batch, and groups of a slice that a pass takes.
struct Tile {
    rows: u32,
    columns: u32,
    groups: u32,
    /// Bytes of sums that warps share, and of sums that wait.
    sums: u32,
}

const fn tile(rows: u32, columns: u32, groups: u32) -> Tile {
    let passes = 32 / groups;
    let outputs = rows / 32 * columns / 8;
    let waiting = outputs * ((passes > 1) as u32 + (passes > 2) as u32 + (rows == 32) as u32);
    let together = if columns < UNIT { columns } else { UNIT };
    Tile { rows, columns, groups, sums: 4 * (WARPS * together * 36 + waiting * 256) }
}

/// In the order of the kernels, which the one for narrow batches, the wide ones and those of 16-bit floats follow.
const TILES: [Tile; 5] = [tile(32, 8, 32), tile(32, 16, 32), tile(32, 32, 32), tile(32, 64, 16), tile(64, 64, 8)];

/// The kernel for narrow batches, the first of the wide ones, and the first of those of 16-bit floats, for all rows and for few, and of those for fewest
/// rows, in the order of kernels.
const NARROW: usize = TILES.len();
const FIRST_WIDE: usize = NARROW + 1;
const FIRST_LOOSE: usize = FIRST_WIDE + WIDE.len();
const FIRST_SKINNY: usize = FIRST_LOOSE + LOOSE.len();
const FIRST_SLIM: usize = FIRST_SKINNY + SKINNY.len();
/// Batches of so many rows at most take no wide kernel.
const FEWEST_WIDE: u32 = 17;

/// Threads of a block, where it has tiles of its own, and of the kernel for narrow batches: two teams of eight warps and one that copies.
const THREADS: u32 = 256;
const NARROW_THREADS: u32 = 2 * (THREADS + 32);
/// Most rows of a batch that the kernel for narrow ones takes.
const NARROW_ROWS: u32 = 8;
/// Columns of a matrix from which on its own ring pays.
const NARROW_COLUMNS: u32 = 4096;
/// Its weight rows of a tile, teams, most slices of a stage, stages that are enough, most stages, and the shared memory that it has whatever it is
/// given.
const NARROW_TILE: u32 = 16;
const TEAMS: u32 = 2;
const MOST_SLICES: u32 = 4;
const ENOUGH_STAGES: u32 = 2;
const MOST_NARROW_STAGES: u32 = 8;
const NARROW_BESIDE: u32 = 13 << 10;
/// Bytes beyond a row of activations, which keep banks apart.
const PAD: u32 = 16;

impl TensorArgs {
    /// Rows of the batch that a launch of this shape has.
    fn batch(&self, shape: &Shape) -> u32 {
        if self.on_outputs != 0 { shape.outputs } else { shape.rows }
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments[..self.count as usize]
    }

    /// Number of the kernel for a shape: that for narrow batches where their activations fit into shared memory, or the quickest of the wide ones
    /// and of the first that takes the whole batch, or the widest, if two stages of it fit.
    pub fn kernel(&self, shape: &Shape) -> usize {
        let batch = self.batch(shape);
        if self.loose != 0 {
            return match Skinny::quickest(self, batch) {
                Some(index) => FIRST_SKINNY + index,
                None => FIRST_LOOSE + Loose::quickest(self, batch),
            };
        }
        if let Some(index) = Slim::of(self, batch) {
            return FIRST_SLIM + index;
        }
        if self.narrow_bytes(batch).is_some() {
            return NARROW;
        }
        let wanted = TILES.iter().position(|tile| tile.columns >= batch).unwrap_or(TILES.len() - 1);
        match Wide::quickest(self, batch) {
            Some((index, time)) if batch >= FEWEST_WIDE && time < self.tiled_time(wanted, batch) => FIRST_WIDE + index,
            _ => {
                let fits =
                    |&index: &usize| TILES[index].sums + 2 * self.stage_bytes(&TILES[index], batch) <= self.most_shared;
                (0..=wanted).rev().find(fits).unwrap_or(0)
            }
        }
    }

    /// Tenths of a microsecond of a kernel with tiles of 32 weight rows, about.
    fn tiled_time(&self, kernel: usize, batch: u32) -> u32 {
        let tile = &TILES[kernel];
        if batch > tile.columns || tile.rows != UNIT {
            return u32::MAX;
        }
        // What a slice of the activations takes to reach all blocks, and what a tile takes beside.
        self.units(tile.rows).div_ceil(SMS) * (self.cols.div_ceil(1024) * tile.columns * 3 / 4 + 40)
    }

    /// Units of work of tiles of so many weight rows.
    fn units(&self, tile_rows: u32) -> u32 {
        match self.gated.x {
            0 => self.segments().iter().map(|segment| segment.matrix.rows.div_ceil(tile_rows)).sum(),
            _ => self.segments[0].matrix.rows / UNIT,
        }
    }

    /// Threads of a block.
    pub fn threads(&self, shape: &Shape) -> u32 {
        match self.kernel(shape) {
            FIRST_SLIM.. => slim::THREADS,
            kernel @ FIRST_SKINNY.. => SKINNY[kernel - FIRST_SKINNY].threads(),
            kernel @ FIRST_LOOSE.. => LOOSE[kernel - FIRST_LOOSE].threads,
            kernel @ FIRST_WIDE.. => WIDE[kernel - FIRST_WIDE].threads,
            NARROW => NARROW_THREADS,
            _ => THREADS,
        }
    }

    /// Blocks of a launch.
    pub fn blocks(&self, shape: &Shape) -> u32 {
        let (kernel, batch) = (self.kernel(shape), self.batch(shape));
        if kernel >= FIRST_SLIM {
            return SLIM[kernel - FIRST_SLIM].grid(self);
        }
        if kernel >= FIRST_SKINNY {
            return SKINNY[kernel - FIRST_SKINNY].grid(self);
        }
        if kernel >= FIRST_LOOSE {
            return LOOSE[kernel - FIRST_LOOSE].grid(self, batch);
        }
        if kernel >= FIRST_WIDE {
            return WIDE[kernel - FIRST_WIDE].grid(self, batch);
        }
        let Some(tile) = TILES.get(kernel) else { return self.units(NARROW_TILE).min(SMS) };
        let units = self.units(tile.rows);
        (units * batch.div_ceil(tile.columns)).min(if kernel == 0 { 2 * SMS } else { SMS })
    }

    /// Shared memory of a block: the sums, and a ring of as many stages as fit.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        let kernel = self.kernel(shape);
        if kernel >= FIRST_SLIM {
            return SLIM[kernel - FIRST_SLIM].shared_bytes(self);
        }
        if kernel >= FIRST_SKINNY {
            return SKINNY[kernel - FIRST_SKINNY].shared_bytes(self);
        }
        if kernel >= FIRST_LOOSE {
            return LOOSE[kernel - FIRST_LOOSE].shared_bytes(self);
        }
        if kernel >= FIRST_WIDE {
            return WIDE[kernel - FIRST_WIDE].shared_bytes(self);
        }
        if kernel == NARROW {
            return self.narrow_bytes(self.batch(shape)).unwrap_or(0);
        }
        let (tile, stage) = (&TILES[kernel], self.stage_bytes(&TILES[kernel], self.batch(shape)));
        let shared_by_two = kernel == 0 && self.blocks(shape) > SMS;
        let most = self.most_shared.min(if shared_by_two { SHARED_OF_TWO } else { SHARED_OF_ONE });
        tile.sums + stage * (most.saturating_sub(tile.sums) / stage).clamp(2, MOST_STAGES)
    }

    /// Shared memory of a block of the kernel for narrow batches, if it takes this one: the activations, and two rings of as many stages as fit.
    fn narrow_bytes(&self, batch: u32) -> Option<u32> {
        let fits = batch <= NARROW_ROWS && self.cols >= NARROW_COLUMNS && self.cols.is_multiple_of(128);
        if !fits || self.in_bulk == 0 {
            return None;
        }
        let activations = batch * (self.cols.next_multiple_of(128) + PAD + (self.cols / 4).next_multiple_of(128) + PAD);
        let activations = activations.next_multiple_of(128);
        let room = self.most_shared.checked_sub(NARROW_BESIDE + activations)?;
        let most = self.segments().iter().map(|segment| segment.matrix.slice_bytes).max()?;
        let rings = |slices: u32| {
            let stage = TEAMS * NARROW_TILE * ((slices * most / 16) | 1) * 16;
            (stage, (room / stage).min(MOST_NARROW_STAGES))
        };
        let (stage, stages) =
            (1..=MOST_SLICES).rev().map(rings).find(|&(_, stages)| stages >= ENOUGH_STAGES).unwrap_or(rings(1));
        (stages >= 2).then_some(activations + stage * stages)
    }

    fn stage_bytes(&self, tile: &Tile, batch: u32) -> u32 {
        let stride = |segment: &Segment| 16 * (row_bytes(segment.matrix.dtype, tile.groups).div_ceil(16) | 1);
        let weights = tile.rows * self.segments().iter().map(stride).max().unwrap_or(0);
        let columns = if tile.columns == 8 { batch.min(8) } else { tile.columns };
        (weights + columns * (40 * tile.groups + 32)).next_multiple_of(16)
    }
}

/// Whether the kernels multiply by this type.
fn takes(dtype: DType) -> bool {
    matches!(dtype, DType::Q8_0 | DType::Q4_K | DType::Q5_K | DType::Q6_K)
}

/// Bytes of some groups of a row in a stage.
fn row_bytes(dtype: u32, groups: u32) -> u32 {
    match dtype {
        3 => 34 * groups,
        4 => 18 * groups + groups / 2,
        5 => 22 * groups + groups / 2,
        _ => 26 * groups + (groups + 8) / 16 * 4,
    }
}

impl Lowering<'_> {
    /// Products of `x` on tensor cores, with the gated unit or the addition that follows them; false leaves them as they are.
    pub fn tensor_products(&mut self, x: ValueId) -> bool {
        let Some((args, covered)) = self.tensor_args(x) else { return false };
        self.push_tensor(args, covered);
        true
    }

    pub fn push_tensor(&mut self, args: TensorArgs, covered: usize) {
        self.push(Kernel::Tensor, [Extent::Tensor, ONE, ONE], THREADS as usize, Args::Tensor(args), covered);
    }

    /// What the kernels take for that, if they can, and how many ops it covers.
    pub fn tensor_args(&self, x: ValueId) -> Option<(TensorArgs, usize)> {
        let program = self.program;
        let (cols, is_loose) = (self.width(x) as u32, self.is_loose(x));
        let mut args = TensorArgs { cols, loose: is_loose.into(), ..TensorArgs::default() };
        let mut outs = Vec::new();
        for op in &program.ops[self.next..] {
            let &Op::MatMul { x: other, matrix, bias, out } = op else { break };
            if other != x || outs.len() == 3 {
                break;
            }
            if !is_loose && !takes(program.matrices[matrix.0].dtype) {
                return None;
            }
            let matrix = self.addresses.matrices[matrix.0];
            args.segments[outs.len()] =
                Segment { matrix, bias: self.vector(bias), out: self.value(out), ..Segment::default() };
            outs.push(out);
        }
        if !args.cols.is_multiple_of(32) {
            return None;
        }
        (args.count, args.most_shared) = (outs.len() as u32, self.addresses.most_shared);
        args.in_bulk = self.addresses.copies_in_bulk.into();
        let narrow = Shape { rows: 8, outputs: 8, ..Shape::default() };
        if !is_loose && args.shared_bytes(&narrow) > args.most_shared {
            return None;
        }
        args.on_outputs = self.is_on_outputs(x).into();
        args.x = self.input(x);
        let follows = self.join_tensor_follower(&mut args, x, &outs);
        Some((args, outs.len() + follows))
    }

    fn join_tensor_follower(&self, args: &mut TensorArgs, x: ValueId, outs: &[ValueId]) -> usize {
        match (self.program.ops.get(self.next + outs.len()), outs) {
            (Some(&Op::Gate { kind, gate, up }), &[first, second])
                if (first, second) == (gate, up) && self.uses.of_value(up).readers == 1 =>
            {
                let Some(unit) = sigmoid(kind) else { return 0 };
                let [a, b, _] = &args.segments;
                let fits = a.matrix.dtype == b.matrix.dtype && a.matrix.rows.is_multiple_of(UNIT);
                // The kernels of 16-bit floats write such alone, and others none.
                let fits = fits && (args.loose != 0) == self.is_loose(gate);
                if !fits || a.bias != 0 || b.bias != 0 {
                    return 0;
                }
                (args.gated, args.unit) = (self.activation(gate), unit);
                1
            }
            (_, &[only]) => {
                let Some(sum) = self.sum_of_product(x, only, self.next + outs.len()) else { return 0 };
                (args.segments[0].out, args.segments[0].adds) = (self.value(sum.to), sum.factor);
                sum.ops
            }
            _ => 0,
        }
    }
}
