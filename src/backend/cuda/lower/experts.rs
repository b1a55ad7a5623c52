//! Lowering of experts: their choice, products of rows with the matrices of theirs, and the sum over those of a row.
//!
//! A pair is a row of the batch and one of its experts; values with a row for each have them in the order of pairs on the device too. Few
//! rows multiply pair by pair, with the gated unit or the sum that follows; more are sorted by expert, so that pairs of one share its weights.

use super::elementwise::{Sum, sigmoid};
use super::lists::Batches;
use super::{ELEMENTS_A_BLOCK, Extent, Lowering, ONE};
use crate::backend::cuda::args::{
    Args, ExpertArgs, ExpertSumArgs, ExpertTable, ExpertUnitArgs, OrderArgs, RouteArgs, Sigmoid, WeightedSumArgs,
};
use crate::backend::cuda::catalogue::{Function, Kernel};
use crate::backend::cuda::select::experts::{self, ExpertKernel};
use crate::plan::op::{Activation, Experts, Routing, Rows, Score};
use crate::plan::{Op, ValueId, VectorId};

/// Threads of the block that routes a row, of the one that sorts, and of those that multiply.
const ROUTE_THREADS: usize = 128;
const ORDER_THREADS: usize = 1024;
const THREADS: usize = 256;
/// Weight rows of a block of products of any type.
const TILE_ROWS: u32 = 16;
/// Pairs of one expert that share its weights.
pub const TILE_PAIRS: u32 = 8;

/// A product of rows with the matrices of their experts.
#[derive(Clone, Copy)]
struct Product {
    x: ValueId,
    choice: ValueId,
    experts: Experts,
    scale: Option<VectorId>,
    bias: Option<VectorId>,
    out: ValueId,
}

impl Lowering<'_> {
    /// The choice of experts for every row.
    pub fn route(&mut self, logits: ValueId, routing: Routing, choice: ValueId) {
        let args = RouteArgs {
            logits: self.value(logits),
            bias: self.vector(routing.bias),
            choice: self.value(choice),
            scale: routing.scale,
            experts: self.width(logits) as u32,
            chosen: self.program.chosen(choice) as u32,
            groups: routing.groups.map_or(1, |groups| groups.count as u32),
            kept: routing.groups.map_or(1, |groups| groups.kept as u32),
            score: match routing.score {
                Score::Softmax => 0,
                Score::Sigmoid => 1,
                Score::ChosenSoftmax => 2,
            },
            normalizes: routing.normalizes.into(),
            pad: 0,
        };
        self.push(Kernel::Route.only(), [Extent::Rows, ONE, ONE], ROUTE_THREADS, Args::Route(args), 1);
    }

    /// The next op, a product of rows with the matrices of their experts, with what its launch does of those behind it.
    pub fn expert_product(&mut self) {
        let Some(product) = self.product_at(self.next) else { unreachable!("only products of experts come here") };
        let by_pairs = self.batches != Batches::Prompts;
        if by_pairs && (self.expert_unit(product) || self.expert_sum(product)) {
            return;
        }
        let chosen = self.program.chosen(product.choice) as u32;
        let mut args = ExpertArgs {
            x: self.input(product.x),
            choice: self.value(product.choice),
            table: self.table(product),
            out: self.value(product.out),
            chosen,
            width: self.width(product.out) as u32,
            on_pairs: matches!(self.program.values[product.x.0].rows, Rows::Chosen(_)).into(),
            ..ExpertArgs::default()
        };
        let tiles = args.width.div_ceil(TILE_ROWS);
        let (variant, blocks) = if by_pairs {
            (0, Extent::Pairs { tiles, chosen })
        } else {
            let experts = args.table.matrix.rows / args.table.each;
            self.order(product.choice, experts);
            let place = self.addresses.order;
            (args.order, args.tiles, args.count) = (place.pairs, place.tiles, place.count);
            (1, Extent::ExpertTiles { tiles, chosen, experts, width: TILE_PAIRS })
        };
        let function = Function { kernel: Kernel::ExpertDp4a, variant };
        self.push(function, [blocks, ONE, ONE], THREADS, Args::Expert(args), 1);
    }

    /// The product that op `at` is.
    fn product_at(&self, at: usize) -> Option<Product> {
        match *self.program.ops.get(at)? {
            Op::ExpertMatMul { x, choice, experts, scale, bias, out } => {
                Some(Product { x, choice, experts, scale, bias, out })
            }
            _ => None,
        }
    }

    fn table(&self, product: Product) -> ExpertTable {
        let Product { experts, scale, bias, .. } = product;
        ExpertTable {
            matrix: self.addresses.matrices[experts.matrix.0],
            scale: self.vector(scale),
            bias: self.vector(bias),
            each: experts.each as u32,
            first: experts.first as u32,
        }
    }

    /// The gated unit of this product and the next; false leaves them as they are.
    fn expert_unit(&mut self, gate: Product) -> bool {
        let Some(up) = self.product_at(self.next + 1) else { return false };
        let Some(&Op::Gate { kind, gate: first, up: second }) = self.program.ops.get(self.next + 2) else {
            return false;
        };
        let is_unit = (first, second) == (gate.out, up.out) && (gate.x, gate.choice) == (up.x, up.choice);
        let is_batch = self.program.values[gate.x.0].rows == Rows::Batch;
        let unit = match kind {
            Activation::ClampedSilu { limit, slope } => Some(Sigmoid { linear: slope, cubic: limit }),
            kind => sigmoid(kind),
        };
        let (Some(unit), true) = (unit, is_unit && is_batch && self.uses.of_value(up.out).readers == 1) else {
            return false;
        };
        let (width, chosen) = (self.width(gate.out) as u32, self.program.chosen(gate.choice) as u32);
        let mut args = ExpertUnitArgs {
            x: self.input(gate.x),
            choice: self.value(gate.choice),
            gate: self.table(gate),
            up: self.table(up),
            unit,
            chosen,
            width,
            clamped: matches!(kind, Activation::ClampedSilu { .. }).into(),
            ..ExpertUnitArgs::default()
        };
        let Some(kernel) = experts::unit(&args.gate, &args.up, width, &self.addresses.device) else { return false };
        args.out = self.activation(gate.out);
        let blocks = Extent::Pairs { tiles: kernel.blocks, chosen };
        self.push_experts(&kernel, blocks, Args::ExpertUnit(args), 3);
        true
    }

    /// This product with the sum over a row's experts behind it, and its addition to another value; false leaves them as they are.
    fn expert_sum(&mut self, product: Product) -> bool {
        let is_sum = |op: &Op| matches!(op, Op::WeightedSum { x, .. } if *x == product.out);
        let on_pairs = matches!(self.program.values[product.x.0].rows, Rows::Chosen(_));
        if !on_pairs || self.uses.of_value(product.out).readers != 1 {
            return false;
        }
        let Some(&Op::WeightedSum { out, choice, .. }) = self.program.ops.get(self.next + 1).filter(|op| is_sum(op))
        else {
            return false;
        };
        let (width, chosen) = (self.width(out) as u32, self.program.chosen(choice) as u32);
        let table = self.table(product);
        let Some(kernel) = experts::sum(&table, chosen, width, &self.addresses.device) else { return false };
        let added = self.sum_of_product(product.x, out, self.next + 2);
        let (to, adds, ops) = added.map_or((out, 0.0, 0), |Sum { to, factor, ops }| (to, factor, ops));
        let args = ExpertSumArgs {
            x: self.input(product.x),
            choice: self.value(choice),
            out: self.value(to),
            table,
            chosen,
            width,
            adds,
            pad: 0,
        };
        let blocks = Extent::Pairs { tiles: kernel.blocks, chosen: 1 };
        self.push_experts(&kernel, blocks, Args::ExpertSum(args), 2 + ops);
        true
    }

    fn push_experts(&mut self, kernel: &ExpertKernel, blocks: Extent, args: Args, covered: usize) {
        self.push(kernel.function, [blocks, ONE, ONE], kernel.threads as usize, args, covered);
        self.launches.last_mut().expect("just added").shared_bytes = kernel.shared_bytes;
    }

    /// Puts the pairs of `choice` into the order of their experts, unless they are.
    fn order(&mut self, choice: ValueId, experts: u32) {
        if self.ordered.replace(choice) == Some(choice) {
            return;
        }
        let place = self.addresses.order;
        let args = OrderArgs {
            choice: self.value(choice),
            order: place.pairs,
            tiles: place.tiles,
            count: place.count,
            experts,
            chosen: self.program.chosen(choice) as u32,
            width: TILE_PAIRS,
            pad: 0,
        };
        self.push(Kernel::ExpertOrder.only(), [ONE; 3], ORDER_THREADS, Args::Order(args), 0);
    }

    /// The sum of the rows of a row's experts.
    pub fn weighted_sum(&mut self, x: ValueId, choice: ValueId, out: ValueId) {
        let width = self.width(out);
        let args = WeightedSumArgs {
            x: self.value(x),
            choice: self.value(choice),
            out: self.activation(out),
            width: width as u32,
            chosen: self.program.chosen(choice) as u32,
        };
        let blocks = Extent::Fixed(width.div_ceil(ELEMENTS_A_BLOCK) as u32);
        let grid = [blocks, self.rows(out), ONE];
        self.push(Kernel::WeightedSum.only(), grid, ELEMENTS_A_BLOCK, Args::WeightedSum(args), 1);
    }
}
