//! Lowering of experts: their choice, products of rows with the matrices of theirs, and the sum over those of a row.
//!
//! A pair is a row of the batch and one of its experts; values with a row for each have them in the order of pairs on the device too. Few
//! rows multiply pair by pair, with the gated unit or the sum that follows; more are sorted by expert, so that pairs of one share its weights.

use super::elementwise::{Sum, sigmoid};
use super::{ELEMENTS_A_BLOCK, Extent, Lowering, ONE, QUANTIZED};
use crate::backend::cuda::args::{
    Args, ExpertArgs, ExpertGemmArgs, ExpertSumArgs, ExpertTable, ExpertUnitArgs, GatedUnit, Matrix, RouteArgs,
    RouteScore, RouterArgs, Sigmoid, WeightedSumArgs,
};
use crate::backend::cuda::catalogue::{Function, Kernel};
use crate::backend::cuda::select::experts::{self, ExpertKernel};
use crate::plan::op::{Activation, ExpertProduct, Routing, Rows, Score};
use crate::plan::{MatrixId, Op, Program, ValueId};

/// Experts of a block that also norms the row and makes logits, and the widest row that a block norms in its shared memory.
const ROUTER_EXPERTS: usize = 8;
const NORMED_WIDTH: usize = 8192;
/// Threads of the block that routes a row, and of those that multiply.
const ROUTE_THREADS: usize = 256;
const THREADS: usize = 256;
/// Threads of the block that sums over a row's experts and norms that.
const SUM_THREADS: usize = 512;
/// Weight rows of a block of products of any type.
const TILE_ROWS: u32 = 16;
/// The most experts that a row chooses, and the most that it chooses from; none where the program has no experts.
pub fn most_experts(program: &Program) -> Option<(usize, usize)> {
    let choices = program.ops.iter().filter_map(|op| match *op {
        Op::Route { logits, choice, .. } => Some((program.chosen(choice), program.values[logits.0].width)),
        _ => None,
    });
    choices.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
}

/// The matrix of an op that multiplies by those of experts.
pub fn matrix_of(op: &Op) -> Option<MatrixId> {
    if let Op::ExpertMatMul(product) = op { Some(product.experts.matrix) } else { None }
}

/// What kernels of experts make of two products, if they know this activation.
fn unit_of(kind: Activation) -> Option<GatedUnit> {
    Some(match kind {
        Activation::ClampedSilu { limit, slope } => {
            GatedUnit { activation: Sigmoid { linear: slope, cubic: limit }, is_clamped: 1, pad: 0 }
        }
        kind => GatedUnit { activation: sigmoid(kind)?, ..GatedUnit::default() },
    })
}

/// The first half of the expert that every row has.
struct SharedUnit {
    tables: [ExpertTable; 2],
    out: ValueId,
    /// Blocks of a row.
    blocks: u32,
}

/// Its second half.
struct SharedSum {
    x: ValueId,
    matrix: Matrix,
    /// The logit of how much of it counts.
    gate: Option<ValueId>,
    /// Ops that it takes.
    ops: usize,
}

impl Lowering<'_> {
    /// The choice of experts for every row.
    pub fn route(&mut self, logits: ValueId, routing: Routing, choice: ValueId) {
        let args = self.route_args(logits, routing, choice);
        self.push(Kernel::Route.only(), [Extent::Rows, ONE, ONE], ROUTE_THREADS, Args::Route(args), 1);
    }

    fn route_args(&self, logits: ValueId, routing: Routing, choice: ValueId) -> RouteArgs {
        RouteArgs {
            logits: self.value(logits),
            bias: self.vector(routing.bias),
            choice: self.value(choice),
            scale: routing.scale,
            experts: self.width(logits) as u32,
            chosen: self.program.chosen(choice) as u32,
            groups: routing.groups.map_or(1, |groups| groups.count as u32),
            kept: routing.groups.map_or(1, |groups| groups.kept as u32),
            score: match routing.score {
                Score::Softmax => RouteScore::Softmax,
                Score::Sigmoid => RouteScore::Sigmoid,
                Score::ChosenSoftmax => RouteScore::ChosenSoftmax,
            },
            normalizes: routing.normalizes.into(),
            best: routing.groups.map_or(1, |groups| groups.best as u32),
        }
    }

    /// The next ops in one launch, if they are a norm, a router's product with its result, that of the shared expert's gate or none, and the choice;
    /// false leaves them as they are.
    pub fn router(&mut self) -> bool {
        let [Op::Norm { x, norm, out }, Op::MatMul { x: read, matrix, bias, out: product }, ref rest @ ..] =
            self.ops[self.next..]
        else {
            return false;
        };
        if self.is_adapted(matrix) {
            return false;
        }
        let (gate, rest) = match *rest {
            [Op::MatMul { x: read, matrix, bias: None, out: gate }, ref rest @ ..] if read == out => {
                if self.is_adapted(matrix) {
                    return false;
                }
                (Some((self.addresses.matrices[matrix.0], self.value(gate))), rest)
            }
            ref rest => (None, rest),
        };
        let [Op::Route { logits, routing, choice }, ..] = *rest else { return false };
        let own = self.addresses.matrices[matrix.0];
        let Some(function) = Kernel::Router.of_types(std::iter::once(own.dtype)) else { return false };
        let width = self.width(x);
        let is_row = self.program.values[out.0].rows == Rows::Batch && self.uses.is_deferred(out);
        let is_router = (read, logits) == (out, product) && self.uses.of_value(product).readers == 1;
        let is_gate = gate.is_none_or(|(matrix, _)| matrix.rows == 1 && matrix.dtype == own.dtype);
        if !is_row || !is_router || !is_gate || !width.is_multiple_of(32) || width > NORMED_WIDTH {
            return false;
        }
        let products = own.rows + u32::from(gate.is_some());
        let covered = if gate.is_some() { 4 } else { 3 };
        let (gate, gate_out) = gate.unwrap_or_default();
        let args = RouterArgs {
            x: self.value(x),
            weight: self.vector(Some(norm.weight)),
            out: self.activation(out),
            matrix: own,
            bias: self.vector(bias),
            logits: self.value(logits),
            arrived: self.addresses.routed,
            eps: norm.eps,
            width: width as u32,
            gate,
            gate_out,
            route: self.route_args(logits, routing, choice),
        };
        let blocks = Extent::Fixed(products.div_ceil(ROUTER_EXPERTS as u32));
        self.push(function, [blocks, Extent::Rows, ONE], ROUTE_THREADS, Args::Router(args), covered);
        self.launches.last_mut().expect("just added").shared_bytes = 4 * own.rows.max(width as u32);
        true
    }

    /// The next op, a product of rows with the matrices of their experts, with what its launch does of those behind it.
    pub fn expert_product(&mut self) {
        let Some(product) = self.product_at(self.next) else { unreachable!("only products of experts come here") };
        let is_done = match self.by_pairs {
            true => self.expert_unit(product, None) || self.expert_sum(product),
            false => self.expert_gemm(product),
        };
        if is_done {
            return;
        }
        let chosen = self.program.chosen(product.choice) as u32;
        let mut table = self.table(product);
        self.adapt_experts(&[product], std::slice::from_mut(&mut table));
        let mut args = ExpertArgs {
            x: self.input(product.x),
            choice: self.value(product.choice),
            table,
            out: self.value(product.out),
            chosen,
            width: self.width(product.out) as u32,
            on_pairs: self.is_on_pairs(product.x).into(),
            ..ExpertArgs::default()
        };
        let tiles = args.width.div_ceil(TILE_ROWS);
        let (variant, blocks) = if self.by_pairs {
            (0, Extent::Pairs { tiles, chosen })
        } else {
            let experts = args.table.matrix.rows / args.table.each;
            let place = self.order(product, experts::EXACT_TILES);
            (args.order, args.tiles, args.count) = (place.pairs, place.tiles, place.count);
            (1, Extent::ExpertTiles { tiles, chosen, experts })
        };
        let function = Function { kernel: Kernel::ExpertDp4a, variant };
        self.push(function, [blocks, ONE, ONE], THREADS, Args::Expert(args), 1);
    }

    /// The product that op `at` is.
    fn product_at(&self, at: usize) -> Option<ExpertProduct> {
        if let Op::ExpertMatMul(product) = *self.ops.get(at)? { Some(product) } else { None }
    }

    fn table(&self, product: ExpertProduct) -> ExpertTable {
        let ExpertProduct { experts, scale, bias, .. } = product;
        ExpertTable {
            matrix: self.addresses.matrices[experts.matrix.0],
            scale: self.vector(scale),
            bias: self.vector(bias),
            each: experts.each as u32,
            first: experts.first as u32,
            added: 0,
        }
    }

    /// Whether a value has a row for each pair.
    pub fn is_on_pairs(&self, id: ValueId) -> bool {
        matches!(self.program.values[id.0].rows, Rows::Chosen(_))
    }

    /// The second product, if the next op and the one behind it make a gated unit with this one; and the unit.
    fn gated_with(&self, gate: ExpertProduct) -> Option<(ExpertProduct, GatedUnit)> {
        self.gated_with_at(gate, self.next)
    }

    /// The same of the product that op `at` is.
    fn gated_with_at(&self, gate: ExpertProduct, at: usize) -> Option<(ExpertProduct, GatedUnit)> {
        let up = self.product_at(at + 1)?;
        let &Op::Gate { kind, gate: first, up: second } = self.ops.get(at + 2)? else { return None };
        let is_unit = (first, second) == (gate.out, up.out) && (gate.x, gate.choice) == (up.x, up.choice);
        let unit = unit_of(kind)?;
        (is_unit && self.uses.of_value(up.out).readers == 1).then_some((up, unit))
    }

    /// A choice of experts with the gated unit of them behind it, for a single row: every block of the unit chooses for itself, unless adapters read
    /// the choice before that. False leaves them as they are.
    pub fn choice_with_unit(&mut self, logits: ValueId, routing: Routing, choice: ValueId) -> bool {
        let at = self.next;
        let Some(gate) = self.product_at(at + 1).filter(|gate| gate.choice == choice) else { return false };
        let Some((up, _)) = self.gated_with_at(gate, at + 1) else { return false };
        if self.is_adapted(gate.experts.matrix) || self.is_adapted(up.experts.matrix) {
            return false;
        }
        self.next += 1;
        if !self.expert_unit(gate, Some(self.route_args(logits, routing, choice))) {
            self.next = at;
            return false;
        }
        self.launches.last_mut().expect("just added").covers.insert(0, at);
        true
    }

    /// Whether the gated unit of experts behind the products of `normed` up to op `at`, and behind the choice there, can norm the row by itself:
    /// nothing else reads `normed` then.
    pub fn unit_norms(&self, normed: ValueId, products: usize, at: usize) -> bool {
        let (Some(&Op::Route { choice, .. }), Some(gate)) = (self.ops.get(at), self.product_at(at + 1)) else {
            return false;
        };
        let is_next = (gate.x, gate.choice) == (normed, choice);
        let Some((up, unit)) = self.gated_with_at(gate, at + 1).filter(|_| is_next) else { return false };
        let (own, other) = (self.table(gate), self.table(up));
        let width = self.width(gate.out) as u32;
        let shared = self.shared_unit(normed, &unit, &own, at + 4);
        let readers = products + 2 + if shared.is_some() { 2 } else { 0 };
        let is_adapted = self.is_adapted(gate.experts.matrix) || self.is_adapted(up.experts.matrix);
        let has_kernel = experts::unit(&own, &other, width, &self.addresses.device).is_some();
        has_kernel && !is_adapted && self.uses.of_value(normed).readers == readers
    }

    /// The gated unit of this product and the next, pair by pair, with the choice of experts before it where that is to be made; false leaves them as
    /// they are.
    fn expert_unit(&mut self, gate: ExpertProduct, route: Option<RouteArgs>) -> bool {
        let Some((up, unit)) = self.gated_with(gate).filter(|_| !self.is_on_pairs(gate.x)) else { return false };
        let (width, chosen) = (self.width(gate.out) as u32, self.program.chosen(gate.choice) as u32);
        let mut args = ExpertUnitArgs {
            x: self.input(gate.x),
            choice: self.value(gate.choice),
            gate: self.table(gate),
            up: self.table(up),
            unit,
            chosen,
            width,
            ..ExpertUnitArgs::default()
        };
        let Some(kernel) = experts::unit(&args.gate, &args.up, width, &self.addresses.device) else { return false };
        args.route = route.unwrap_or_default();
        if let Some((x, norm)) = self.normed.filter(|(normed, ..)| *normed == gate.x).map(|(_, x, norm)| (x, norm)) {
            (args.x, args.norm, args.eps) = (self.input(x), self.vector(Some(norm.weight)), norm.eps);
        }
        let mut tables = [args.gate, args.up];
        self.adapt_experts(&[gate, up], &mut tables);
        [args.gate, args.up] = tables;
        args.out = self.activation(gate.out);
        let (mut blocks, mut covered) = (chosen * kernel.blocks, 3);
        // What the shared expert makes may go where that lies which adapters add to the second product.
        let joins = tables.iter().all(|table| table.added == 0);
        if let Some(shared) = self.shared_unit(gate.x, &unit, &args.gate, self.next + 3).filter(|_| joins) {
            blocks += shared.blocks;
            covered += 3;
            [args.shared_gate, args.shared_up] = shared.tables;
            (args.shared_out, args.shared_width) = (self.activation(shared.out), shared.tables[0].each);
        }
        // One block more writes the choice.
        blocks += u32::from(args.route.logits != 0);
        self.push_experts(&kernel, Extent::Pairs { tiles: blocks, chosen: 1 }, Args::ExpertUnit(args), covered);
        true
    }

    /// The gated unit of the expert that every row has, if it stands from op `at` on, behind that of the others, and their launch can do it too.
    fn shared_unit(&self, x: ValueId, unit: &GatedUnit, own: &ExpertTable, at: usize) -> Option<SharedUnit> {
        let [
            Op::MatMul { x: first, matrix: gate, bias: None, out },
            Op::MatMul { x: second, matrix: up, bias: None, out: up_out },
            Op::Gate { kind, gate: left, up: right },
            ..,
        ] = self.ops[at..]
        else {
            return None;
        };
        let is_unit = (first, second, left, right) == (x, x, out, up_out) && self.uses.of_value(right).readers == 1;
        let is_adapted = self.is_adapted(gate) || self.is_adapted(up);
        // These kernels neither write nor read 16-bit floats.
        let joins = self.batches.joins_shared_experts() && !self.is_f16(out);
        if !joins || !is_unit || is_adapted || unit_of(kind) != Some(*unit) {
            return None;
        }
        let table = |matrix: MatrixId| {
            let matrix = self.addresses.matrices[matrix.0];
            ExpertTable { matrix, each: matrix.rows, ..ExpertTable::default() }
        };
        let tables = [table(gate), table(up)];
        let width = tables[0].each;
        let kernel = experts::unit(&tables[0], &tables[1], width, &self.addresses.device)?;
        (tables[0].matrix.dtype == own.matrix.dtype).then_some(SharedUnit { tables, out, blocks: kernel.blocks })
    }

    /// This product on tensor cores, or its gated unit with the next; false leaves them as they are.
    fn expert_gemm(&mut self, product: ExpertProduct) -> bool {
        let unit = self.gated_with(product);
        // A unit in one launch has the form of its input, which may be there in no other.
        let is_apart = unit.is_none() || self.is_f16(product.x);
        let rounds = self.is_f16_for_experts(product.x) && (is_apart || self.is_f16(product.out));
        let x = if rounds { self.f16_input(product.x) } else { self.input(product.x) };
        let mut args = ExpertGemmArgs {
            x,
            tables: [self.table(product), ExpertTable::default()],
            cols: self.width(product.x) as u32,
            chosen: self.program.chosen(product.choice) as u32,
            width: self.width(product.out) as u32,
            on_pairs: self.is_on_pairs(product.x).into(),
            ..ExpertGemmArgs::default()
        };
        if !experts::has_gemm(&args) {
            return false;
        }
        let mut covered = 1;
        match unit.filter(|_| rounds == self.is_f16(product.out)) {
            Some((up, unit)) if experts::is_unit(&args, &self.table(up)) => {
                args.tables[1] = self.table(up);
                self.adapt_experts(&[product, up], &mut args.tables);
                (args.unit, args.gated, covered) = (unit, self.activation(product.out), 3);
            }
            _ => {
                self.adapt_experts(&[product], &mut args.tables);
                args.out = self.value(product.out);
            }
        }
        let (kernel, tiles) = match rounds {
            true => (Kernel::ExpertGemmF16, experts::ROUNDED_TILES),
            false => (Kernel::ExpertGemm, experts::exact_tiles(&args, &self.addresses.device)),
        };
        self.sort_pairs(&mut args, product, tiles);
        args.is_early = self.is_behind_unit(&args).into();
        self.push(Function { kernel, variant: 0 }, [ONE; 3], THREADS, Args::ExpertGemm(args), covered);
        true
    }

    /// This product with the sum over a row's experts behind it, and its addition to another value; false leaves them as they are.
    fn expert_sum(&mut self, product: ExpertProduct) -> bool {
        let is_sum = |op: &Op| matches!(op, Op::WeightedSum { x, .. } if *x == product.out);
        if !self.is_on_pairs(product.x) || self.uses.of_value(product.out).readers != 1 {
            return false;
        }
        let Some(&Op::WeightedSum { out, choice, .. }) = self.ops.get(self.next + 1).filter(|op| is_sum(op)) else {
            return false;
        };
        let (width, chosen) = (self.width(out) as u32, self.program.chosen(choice) as u32);
        let table = self.table(product);
        let rows = self.batches.rows().unwrap_or(u32::MAX);
        // Only the products of ops that come by themselves have the form of their input made.
        let shared = self.shared_sum(out, &table).filter(|shared| self.formed[shared.x.0]);
        let kernel = |shared: Option<&SharedSum>| {
            let matrix = shared.map(|shared| &shared.matrix);
            experts::sum(&table, matrix, chosen, (rows, width), &self.addresses.device)
        };
        let (shared, kernel) = match shared.as_ref().and_then(|shared| kernel(Some(shared))) {
            Some(kernel) => (shared, Some(kernel)),
            None => (None, kernel(None)),
        };
        let Some(kernel) = kernel else { return false };
        let mut table = table;
        self.adapt_experts(&[product], std::slice::from_mut(&mut table));
        let covered = 2 + shared.as_ref().map_or(0, |shared| shared.ops);
        let added = self.sum_of_product(product.x, out, self.next + covered);
        let (to, adds, ops) = added.map_or((out, 0.0, 0), |Sum { to, factor, ops }| (to, factor, ops));
        let mut args = ExpertSumArgs {
            x: self.input(product.x),
            choice: self.value(choice),
            out: self.value(to),
            table,
            chosen,
            width,
            adds,
            parts: kernel.parts,
            ..ExpertSumArgs::default()
        };
        if let Some(SharedSum { x, matrix, gate, .. }) = shared {
            (args.shared_x, args.shared) = (self.input(x), matrix);
            args.shared_gate = gate.map_or(0, |gate| self.value(gate));
        }
        self.begin_beside_unit(&mut args);
        let blocks = Extent::Pairs { tiles: kernel.blocks, chosen: 1 };
        self.push_experts(&kernel, blocks, Args::ExpertSum(args), covered + ops);
        true
    }

    /// The second half of the expert that every row has, if it is added to the sum `out` of the others and their launch can do that.
    fn shared_sum(&self, out: ValueId, own: &ExpertTable) -> Option<SharedSum> {
        let at = self.next + 2;
        let &Op::MatMul { x, matrix, bias: None, out: product } = self.ops.get(at)? else { return None };
        let (gate, ops) = match *self.ops.get(at + 1)? {
            Op::MulSigmoid { x, gate } if x == product && self.width(gate) == 1 => (Some(gate), 3),
            _ => (None, 2),
        };
        let is_added = matches!(*self.ops.get(at + ops - 1)?, Op::Add { x, y } if (x, y) == (out, product));
        let (readers, is_adapted) = (self.uses.of_value(product).readers, self.is_adapted(matrix));
        let matrix = self.addresses.matrices[matrix.0];
        let fits = matrix.dtype == own.matrix.dtype && matrix.cols.is_multiple_of(QUANTIZED as u32);
        let joins = self.batches.joins_shared_experts() && !self.is_f16(x);
        let is_alone = is_added && !is_adapted && readers + 1 == ops && joins;
        (fits && is_alone).then_some(SharedSum { x, matrix, gate, ops })
    }

    fn push_experts(&mut self, kernel: &ExpertKernel, blocks: Extent, args: Args, covered: usize) {
        self.push(kernel.function, [blocks, ONE, ONE], kernel.threads as usize, args, covered);
        self.launches.last_mut().expect("just added").shared_bytes = kernel.shared_bytes;
    }

    /// The sum of the rows of a row's experts, with its addition to another value, and a norm of that for products, where these are next.
    pub fn weighted_sum(&mut self, x: ValueId, choice: ValueId, out: ValueId) {
        let width = self.width(out);
        let added = self.sum_of(out, self.next + 1);
        let (to, adds, ops) = added.map_or((out, 0.0, 0), |Sum { to, factor, ops }| (to, factor, ops));
        let mut args = WeightedSumArgs {
            x: self.value(x),
            choice: self.value(choice),
            out: self.activation(to),
            width: width as u32,
            chosen: self.program.chosen(choice) as u32,
            adds,
            ..WeightedSumArgs::default()
        };
        if let Some(&Op::Norm { x, norm, out: normed }) = self.ops.get(self.next + 1 + ops)
            && (x, args.out.q) == (to, 0)
            && self.uses.is_deferred(normed)
            && width.is_multiple_of(QUANTIZED)
            && width <= NORMED_WIDTH
        {
            (args.norm, args.eps, args.normed) = (self.vector(Some(norm.weight)), norm.eps, self.activation(normed));
            let grid = [self.rows(out), ONE, ONE];
            self.push(Kernel::WeightedSumNorm.only(), grid, SUM_THREADS, Args::WeightedSum(args), 2 + ops);
            self.launches.last_mut().expect("just added").shared_bytes = 4 * width as u32;
            return;
        }
        let blocks = Extent::Fixed(width.div_ceil(ELEMENTS_A_BLOCK) as u32);
        let grid = [blocks, self.rows(out), ONE];
        self.push(Kernel::WeightedSum.only(), grid, ELEMENTS_A_BLOCK, Args::WeightedSum(args), 1 + ops);
    }
}
