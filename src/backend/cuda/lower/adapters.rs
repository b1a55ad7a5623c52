//! Lowering of what adapters add to products: two launches before a product make it and leave it where the outputs go, so that the product adds
//! itself to that. They stand before it because their time then passes while its weights are on their way; where a norm comes first, it is made by
//! the first of them along with its own sums. With matrices of experts it is left for each pair of a row and an expert, and added to what the
//! pair's product makes.

use super::experts::most_experts;
use super::lists::Batches;
use super::products::Products;
use super::{Extent, Lowering, ONE, QUANTIZED};
use crate::backend::MOST_ADAPTERS;
use crate::backend::cuda::args::{
    Activation, AdaptedMatrix, AdaptedTable, AdapterArgs, Address, Args, EXPERT_TABLES, ExpertAdapterArgs, ExpertTable,
    FEW_SEGMENTS, MOST_SEGMENTS, Segment,
};
use crate::backend::cuda::catalogue::{Function, Kernel};
use crate::error::{Result, filled};
use crate::plan::op::{ExpertProduct, Norm};
use crate::plan::{MatrixId, Op, Program, ValueId};

/// Threads of a block that makes sums, and of one that has a tile of outputs; how many of these that are.
const SHRINK_THREADS: usize = 256;
const EXPAND_THREADS: usize = 256;
const TILE_COLUMNS: u32 = 128;
/// Sums of a block of those of pairs.
const PAIR_SUMS: u32 = 8;
/// Most blocks that make the sums of a row, or of a few.
const MOST_BLOCKS: u32 = 256;
/// Rows of a prompt that a block takes, and which kernels do that; those of a step have adapters of their own.
const PROMPT_ROWS: u32 = 8;

/// Where a session's adapters are, and which matrices they change.
#[derive(Clone, Debug, Default)]
pub struct AdapterPlaces {
    /// Of each matrix of the program whether an adapter changes it; empty where there are no adapters.
    pub changed: Vec<bool>,
    /// [`MOST_ADAPTERS`] entries of each slot.
    pub entries: Address,
    /// Sums of the rows of a launch.
    pub sums: Address,
    /// Sums that a row has for each matrix.
    pub ranks: u32,
}

impl AdapterPlaces {
    /// Bytes of the sums of a program's passes of so many rows.
    pub fn sums_bytes(program: &Program, rows: usize, ranks: usize) -> usize {
        let of_experts = most_experts(program).map_or(0, |(chosen, _)| chosen.saturating_mul(EXPERT_TABLES));
        let matrices = rows.saturating_mul(FEW_SEGMENTS.max(of_experts)).max(MOST_SEGMENTS);
        matrices.saturating_mul(ranks).saturating_mul(size_of::<f32>())
    }

    fn changes(&self, matrix: MatrixId) -> bool {
        self.changed.get(matrix.0).is_some_and(|&is_changed| is_changed)
    }

    /// Of each value whether a product reads it whose matrix is changed.
    pub fn inputs(&self, program: &Program) -> Result<Vec<bool>> {
        let mut inputs = filled(program.values.len(), false, "a list of launches")?;
        for op in &program.ops {
            match *op {
                Op::MatMul { x, matrix, .. } => inputs[x.0] |= self.changes(matrix),
                Op::ExpertMatMul(ExpertProduct { x, experts, .. }) => inputs[x.0] |= self.changes(experts.matrix),
                _ => {}
            }
        }
        Ok(inputs)
    }
}

impl Lowering<'_> {
    /// Whether adapters change a matrix.
    pub fn is_adapted(&self, matrix: MatrixId) -> bool {
        self.addresses.adapters.changes(matrix)
    }

    /// Whether adapters read a value, whose floats must be there then.
    pub fn is_read_by_adapters(&self, id: ValueId) -> bool {
        self.adapter_inputs[id.0]
    }

    /// Launches of what adapters add to these products of `x`, or of its `norm`, where the launch of the products makes that for the only row; the
    /// products have their `segments` add themselves to it.
    pub fn adapt(&mut self, x: ValueId, norm: Option<Norm>, products: &Products, segments: &mut [Segment]) {
        let mut args = self.adapter_args(x, norm);
        let mut tiles = 0;
        for (&matrix, segment) in products.matrices().iter().zip(segments) {
            if !self.is_adapted(matrix) {
                continue;
            }
            let (out, adds, width) = (segment.out, segment.adds, segment.matrix.rows);
            args.matrices[args.count as usize] =
                AdaptedMatrix { out, matrix: matrix.0 as u32, width, first_tile: tiles, adds };
            args.count += 1;
            tiles += width.div_ceil(TILE_COLUMNS);
            if segment.adds == 0.0 {
                segment.adds = 1.0;
            }
        }
        if args.count == 0 {
            return;
        }
        let is_prompt = self.batches == Batches::Prompts && !self.is_on_outputs(x);
        let (variant, rows) = match is_prompt {
            true => (1, Extent::Stretches { each: 1, width: PROMPT_ROWS }),
            false => (0, self.rows(x)),
        };
        let covers = if is_prompt { None } else { self.take_norm(&mut args) };
        let norm_blocks = if covers.is_some() { (args.cols / 4).div_ceil(SHRINK_THREADS as u32) + 1 } else { 0 };
        let blocks = (args.count * args.ranks).clamp(1, MOST_BLOCKS) + norm_blocks;
        let shrink = Function { kernel: Kernel::AdapterShrink, variant };
        self.push(shrink, [Extent::Fixed(blocks), rows, ONE], SHRINK_THREADS, Args::Adapter(args), 0);
        if let (Some(covers), Some(launch)) = (covers, self.launches.last_mut()) {
            launch.covers = covers;
        }
        let expand = Function { kernel: Kernel::AdapterExpand, variant };
        self.push(expand, [Extent::Fixed(tiles), rows, ONE], EXPAND_THREADS, Args::Adapter(args), 0);
    }

    /// Takes the last launch away if it makes the norm that the adapters read, which theirs makes instead; the ops that it covered.
    fn take_norm(&mut self, args: &mut AdapterArgs) -> Option<Vec<usize>> {
        let Args::Norm(norm) = self.launches.last()?.args else { return None };
        let is_theirs = (norm.out.x, norm.out.factors) == (args.x.x, args.x.factors) && norm.x != norm.out.x;
        if !is_theirs || norm.selected != 0 || !(norm.width as usize).is_multiple_of(QUANTIZED) {
            return None;
        }
        args.x = Activation { x: norm.x, ..Activation::default() };
        (args.norm, args.eps, args.normed) = (norm.weight, norm.eps, norm.out);
        self.launches.pop().map(|launch| launch.covers)
    }

    /// Launches of what adapters add to these products with the matrices of experts, which read the same value; `tables` are told where that is.
    pub fn adapt_experts(&mut self, products: &[ExpertProduct], tables: &mut [ExpertTable]) {
        let [ExpertProduct { x, choice, .. }, ..] = products[..] else { return };
        let mut args = ExpertAdapterArgs {
            own: self.adapter_args(x, None),
            choice: self.value(choice),
            chosen: self.program.chosen(choice) as u32,
            on_pairs: self.is_on_pairs(x).into(),
            ..ExpertAdapterArgs::default()
        };
        let mut tiles = 0;
        for (product, table) in products.iter().zip(tables) {
            let (matrix, out) = (product.experts.matrix, self.value(product.out));
            if !self.is_adapted(matrix) {
                continue;
            }
            let (own, width) = (args.own.count as usize, self.width(product.out) as u32);
            args.own.matrices[own] =
                AdaptedMatrix { out, matrix: matrix.0 as u32, width, first_tile: tiles, adds: 0.0 };
            args.tables[own] = AdaptedTable { scale: table.scale, each: table.each, first: table.first };
            args.own.count += 1;
            tiles += width.div_ceil(TILE_COLUMNS);
            table.added = out;
        }
        if args.own.count == 0 {
            return;
        }
        let (pairs, args, sums) =
            (Extent::Chosen(args.chosen), Args::ExpertAdapter(args), args.own.count * args.own.ranks);
        let blocks = Extent::Fixed(sums.div_ceil(PAIR_SUMS).max(1));
        self.push(Kernel::AdapterShrinkExperts.only(), [blocks, pairs, ONE], SHRINK_THREADS, args, 0);
        self.push(Kernel::AdapterExpandExperts.only(), [Extent::Fixed(tiles), pairs, ONE], EXPAND_THREADS, args, 0);
    }

    fn adapter_args(&self, x: ValueId, norm: Option<Norm>) -> AdapterArgs {
        let (places, step) = (&self.addresses.adapters, &self.addresses.step);
        AdapterArgs {
            x: Activation { q: 0, meta: 0, ..self.input(x) },
            rows: step.rows,
            outputs: if self.is_on_outputs(x) { step.outputs } else { 0 },
            entries: places.entries,
            sums: places.sums,
            cols: self.width(x) as u32,
            norm: self.vector(norm.map(|norm| norm.weight)),
            eps: norm.map_or(0.0, |norm| norm.eps),
            ranks: places.ranks,
            most: MOST_ADAPTERS as u32,
            ..AdapterArgs::default()
        }
    }
}
