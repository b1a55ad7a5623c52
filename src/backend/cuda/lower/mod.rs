//! From a program to the lists of launches that eager passes and graphs share.
//!
//! Every op has a launch of its own that runs in any program; where ops stand together as a kernel can do them together, one launch covers several. A
//! few lists serve every batch: those for one, two and four rows, where a launch covers as many ops as it can (`gemv`), two for other steps, and one
//! for prompts; the products of the last three run on tensor cores (`gemm`). All give the same bits, unless the host lets those of prompts and of
//! more than four rows be of 16-bit floats (`f16`). Where adapters change matrices, more launches stand before their products (`adapters`), and
//! nothing is taken along that reads or hides what these need. Addresses come from outside, so that lowering needs no GPU.

pub mod adapters;
mod attention;
mod copies;
mod elementwise;
mod ends;
pub mod experts;
pub mod f16;
mod gemm;
mod gemv;
pub mod lists;
mod products;
pub mod recurrent;
mod sorting;
pub mod supported;
pub mod told;
pub mod uses;

use super::args::*;
use super::catalogue::{Function, Kernel};
use super::launch::{Extent, Launch};
use super::select::experts::TilePairs;
use super::select::{self, Device};
use crate::backend::KvType;
use crate::error::{Error, Result, filled, reserve};
use crate::plan::memory::Placement;
use crate::plan::op::{ExpertProduct, Norm, Rows};
use crate::plan::{Op, Program, ValueId, VectorId};
use adapters::AdapterPlaces;
use lists::{Batches, FEW_ROWS, Lists, ROUTED_ROWS};
use uses::{PassOps, Uses};

const ELEMENTS_A_BLOCK: usize = 256;
/// Threads of a block that norms a row, or a part of one.
const NORM_THREADS: usize = 256;
const SPLIT_NORM_THREADS: usize = 128;
/// Elements of an 8-bit block.
const QUANTIZED: usize = 32;
/// Widest row, nearly, that one block norms as fast as several do.
const SPLIT_NORM_WIDTH: usize = 2048;

/// Where everything lies on the device.
#[allow(missing_docs)] // Named as the arguments that they go into.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Of the buffers of a placement.
    pub buffers: Vec<Address>,
    pub matrices: Vec<Matrix>,
    pub vectors: Vec<Address>,
    /// The forms of values that products read, by `Uses::places`.
    pub forms: Vec<FormPlace>,
    pub factors: Address,
    pub mixed: Address,
    /// Counts of the blocks that have chosen experts for each row of a step.
    pub routed: Address,
    /// Pairs of rows and experts by experts, tiles of these, and how many.
    pub order: OrderPlace,
    /// The choice that a unit of experts tells the sum behind it.
    pub told: Address,
    pub states: Address,
    pub ended: Address,
    /// Where each layer's keys and values are.
    pub layers: Vec<LayerCache>,
    pub kv_type: KvType,
    /// Where layers' states are, and where in a record each begins, in elements.
    pub records: Records,
    pub state_starts: Vec<u64>,
    /// Of a session's adapters.
    pub adapters: AdapterPlaces,
    /// What the launches run on.
    pub device: Device,
    /// The step's own: host and device lists.
    pub step: StepArgs,
    pub host_tokens: Address,
    /// The host's memory for rows of values that it exchanges with the device.
    pub exchange: ExchangePlaces,
    /// Vectors that rows bring along, and where those go that the last norm leaves of all rows; 0 where it leaves none. Both are the host's memory.
    pub given: Address,
    pub hidden: Address,
    /// What drawing tokens takes beside the step's own.
    pub sample: SampleArgs,
    /// Entries of a slot's page table.
    pub table_stride: u32,
}

/// Where the keys and values of a layer are.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerCache {
    /// Page tables of all slots.
    pub tables: Address,
    /// The first page.
    pub cache: Address,
    /// Elements of each page.
    pub page_elements: u64,
    /// The layer's first key in a page.
    pub keys: u64,
    /// Its first value.
    pub values: u64,
}

/// Where rows of values are that the device exchanges with the host, and their flags: what it sends, and what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExchangePlaces {
    /// Values.
    pub values: [Address; 2],
    /// A flag for each row.
    pub flags: [Address; 2],
    /// Rows of each value.
    pub rows: u64,
}

/// Where the order of pairs of rows and experts is.
#[derive(Clone, Copy, Debug, Default)]
pub struct OrderPlace {
    /// The pairs.
    pub pairs: Address,
    /// Tiles of some of one expert.
    pub tiles: Address,
    /// How many tiles.
    pub count: Address,
}

/// Where the form of a value stands that products read.
#[derive(Clone, Copy, Debug, Default)]
pub struct FormPlace {
    /// 8-bit codes.
    pub q: Address,
    /// Their scales and sums.
    pub meta: Address,
    /// 16-bit floats; 0 where the host does not allow them.
    pub f16: Address,
}

/// Lowers `program`, for steps each of whose rows is of another sequence, and for prompts.
pub fn lower(program: &Program, placement: &Placement, addresses: &Addresses) -> Result<Lists> {
    lower_rows(program, placement, addresses, false)
}

/// Lowers it for steps whose rows may follow each other in a sequence, as drafts do: lists of two rows and more, and none for prompts.
pub fn lower_drafts(program: &Program, placement: &Placement, addresses: &Addresses) -> Result<Lists> {
    lower_rows(program, placement, addresses, true)
}

fn lower_rows(program: &Program, placement: &Placement, addresses: &Addresses, follows: bool) -> Result<Lists> {
    supported::check(program)?;
    let has_adapters = !addresses.adapters.changed.is_empty();
    let sorted_rows = experts::most_experts(program).map(|(chosen, experts)| {
        let mut products = program.ops.iter().filter_map(experts::matrix_of);
        let matrices = &addresses.matrices;
        let is_grouped = products.all(|matrix| select::experts::has_grouped(&matrices[matrix.0], &addresses.device));
        select::experts::sorted_rows(experts as u32, chosen as u32, is_grouped)
    });
    let lowering = |pass: &PassOps, batches: Batches| {
        // An op adds at most three launches, where adapters change its matrix two more, where rows follow each other one; the ends of a list four.
        let each = 3 + 2 * usize::from(has_adapters) + usize::from(follows);
        let mut lowering = Lowering {
            program,
            ops: &pass.ops,
            uses: &pass.uses,
            hidden: pass.hidden,
            adapter_inputs: &addresses.adapters.inputs(program)?,
            placement,
            addresses,
            batches,
            by_pairs: batches.by_pairs(sorted_rows.unwrap_or(0)),
            follows,
            launches: reserve(each * pass.ops.len() + 4, "a list of launches")?,
            formed: filled(program.values.len(), false, "a list of launches")?,
            ordered: None,
            rounded: None,
            normed: None,
            turns: 0,
            next: 0,
        };
        while lowering.next < pass.ops.len() {
            lowering.op()?;
        }
        if let Some(logits) = program.logits.filter(|&logits| pass.ends_with(logits)) {
            lowering.choose_tokens(logits);
        }
        Ok(lowering.launches)
    };
    let (steps, texts) = (PassOps::of_logits(program, addresses.hidden != 0)?, PassOps::of_embeddings(program)?);
    let list = |batches| steps.as_ref().map_or(Ok(Vec::new()), |pass| lowering(pass, batches));
    let apart = |batches| if follows { Ok(Vec::new()) } else { list(batches) };
    let texts = texts.filter(|_| !follows);
    Ok(Lists {
        single: apart(Batches::Few(1))?,
        two: list(Batches::Few(2))?,
        four: list(Batches::Few(FEW_ROWS))?,
        narrow: list(Batches::Narrow)?,
        batch: list(Batches::Steps)?,
        sorted: sorted_rows.map_or(Ok(Vec::new()), |_| list(Batches::Sorted))?,
        sorted_rows: sorted_rows.map_or(u32::MAX, |rows| rows.max(ROUTED_ROWS + 1)),
        prompt: apart(Batches::Prompts)?,
        texts: texts.map_or(Ok(Vec::new()), |pass| lowering(&pass, Batches::Prompts))?,
    })
}

const ONE: Extent = Extent::Fixed(1);

struct Lowering<'a> {
    pub program: &'a Program,
    /// Those of the pass; launches know them by their indices here.
    pub ops: &'a [Op],
    pub uses: &'a Uses,
    /// The value that lies where the host reads it.
    hidden: Option<ValueId>,
    /// Of each value whether adapters read it.
    adapter_inputs: &'a [bool],
    placement: &'a Placement,
    pub addresses: &'a Addresses,
    pub batches: Batches,
    /// Whether products with experts go pair by pair of a row and an expert.
    by_pairs: bool,
    /// Whether rows of a step may follow others of their sequence, whose keys and states are then those of the step.
    pub follows: bool,
    pub launches: Vec<Launch>,
    /// Whether the form of a value that products read is there, as the launches so far leave it.
    formed: Vec<bool>,
    /// The choice by whose experts the pairs are in order, and of what tiles.
    ordered: Option<(ValueId, TilePairs)>,
    /// A value of floats whose 16-bit floats are there too.
    rounded: Option<ValueId>,
    /// A value that launches make for themselves, each of which norms the row that is told here.
    normed: Option<(ValueId, ValueId, Norm)>,
    /// Launches so far that tell the next one something in flagged words.
    turns: u32,
    pub next: usize,
}

impl Lowering<'_> {
    /// Lowers the next op, with those after it that its launch covers too.
    fn op(&mut self) -> Result<()> {
        let op = &self.ops[self.next];
        if let Op::MatMul { x, .. } | Op::ExpertMatMul(ExpertProduct { x, .. }) = *op {
            self.form(x);
        }
        if self.batches.has_router() && self.router() {
            return Ok(());
        }
        if let Batches::Few(rows) = self.batches
            && self.few_rows(rows)
        {
            return Ok(());
        }
        if self.batches != Batches::Prompts && self.whole_attention() {
            return Ok(());
        }
        match *op {
            Op::Embed { table, out, .. } if self.next == 0 => self.begin(table, out),
            Op::Embed { table, index, out } => self.embed(table, index, out),
            Op::Given { out } => self.given(out),
            Op::Norm { x, norm, out } if self.uses.is_deferred(out) => self.norm(x, norm, out, 0, 1),
            Op::Norm { x, norm, out } => self.normalize(x, norm, out),
            Op::GroupNorm { x, groups, norm, out } => self.normalize_groups(x, groups, norm, out),
            Op::MatMul { x, .. } if self.batches.on_tensor_cores() && self.gemm(x) => {}
            Op::MatMul { x, .. } => self.gemm_of_any_type(x),
            Op::HeadMatMul { x, part, matrix, out } => self.head_product(x, part, matrix, out),
            Op::HeadNorm { .. } | Op::Rope { .. } | Op::StoreKv { .. } if self.heads() => {}
            Op::HeadNorm { x, head_dim, norm } => self.normalize_heads(x, head_dim, norm),
            Op::Rope { x, head_dim, table } => self.rotate(x, head_dim, table),
            Op::StoreKv { layer, keys, values } => self.store(layer, keys, values),
            Op::Attention { kind, queries, out } => self.attention(kind, queries, out),
            Op::Convolve(convolution) => self.convolve(convolution),
            Op::Scan(scan) => self.scan(scan)?,
            Op::JoinHeads { x, part, y, out } => self.join_heads(x, part, y, out),
            Op::TakeHeads { x, part, out } => self.take_heads(x, part, out),
            Op::SelectRows { x, out } => self.select(x, out),
            Op::Send { .. } => self.exchange(Kernel::SendRows),
            Op::Receive { .. } => self.exchange(Kernel::ReceiveRows),
            Op::MulSigmoid { x, gate } if self.add_gated_rows(x, gate) => {}
            Op::Scale { .. }
            | Op::Temperature { .. }
            | Op::Gate { .. }
            | Op::Activate { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::MulSigmoid { .. }
            | Op::Softcap { .. } => self.elementwise(),
            Op::Route { logits, routing, choice } => self.route(logits, routing, choice),
            Op::ExpertMatMul(_) => self.expert_product(),
            Op::WeightedSum { x, choice, out } => self.weighted_sum(x, choice, out),
        }
        Ok(())
    }

    pub fn out_of_place(&self) -> Error {
        let name = self.ops[self.next].name();
        Error::Unsupported(format!("op {} ({name}) stands where the cuda backend cannot run it", self.next))
    }

    /// Adds a launch that covers the next `covered` ops.
    pub fn push(&mut self, function: Function, grid: [Extent; 3], threads: usize, args: Args, covered: usize) {
        let covers: Vec<usize> = (self.next..self.next + covered).collect();
        for id in covers.iter().filter_map(|&op| self.ops[op].writes()) {
            let mut written = args.written().filter(|written| written.x == self.value(id));
            self.formed[id.0] = written.any(|written| written.q != 0);
            self.rounded = self.rounded.filter(|&rounded| rounded != id);
        }
        self.next += covered;
        self.launches.push(Launch {
            function,
            grid,
            threads: threads as u32,
            shared_bytes: 0,
            spread_bytes: 0,
            args,
            covers,
            device: self.addresses.device,
        });
    }

    pub fn value(&self, id: ValueId) -> Address {
        if self.hidden == Some(id) {
            return self.addresses.hidden;
        }
        self.addresses.buffers[self.placement.buffer_of[id.0]]
    }

    pub fn width(&self, id: ValueId) -> usize {
        self.program.values[id.0].width
    }

    pub fn rows(&self, id: ValueId) -> Extent {
        match self.program.values[id.0].rows {
            Rows::Batch => Extent::Rows,
            Rows::Outputs => Extent::Outputs,
            Rows::Chosen(choice) => Extent::Chosen(self.program.chosen(choice) as u32),
        }
    }

    pub fn is_on_outputs(&self, id: ValueId) -> bool {
        self.rows(id) == Extent::Outputs
    }

    /// A value that is read; what a deferred norm wrote has factors.
    pub fn input(&self, id: ValueId) -> Activation {
        let factors = if self.uses.is_deferred(id) { self.addresses.factors } else { 0 };
        let place = self.uses.of_value(id).place.map_or_else(FormPlace::default, |place| self.addresses.forms[place]);
        let (q, meta) = if self.is_f16(id) { (place.f16, 0) } else { (place.q, place.meta) };
        Activation { x: self.value(id), q, meta, factors }
    }

    /// A value that is written, with the form of it that products read if a later multiplication reads that.
    pub fn activation(&self, id: ValueId) -> Activation {
        let input = self.input(id);
        if self.uses.of_value(id).is_quantized_from(self.next) { input } else { Activation { q: 0, meta: 0, ..input } }
    }

    /// The same where parts of rows, of so many elements, are written each by itself: 8-bit blocks must be theirs.
    pub fn activation_of_parts(&self, id: ValueId, each: usize) -> Activation {
        let written = self.activation(id);
        if each.is_multiple_of(QUANTIZED) { written } else { Activation { x: written.x, ..Activation::default() } }
    }

    /// Makes the form of `x` that a product reads, where no kernel has left it.
    fn form(&mut self, x: ValueId) {
        let is_wanted = self.uses.of_value(x).is_quantized_from(self.next);
        let is_made_inside = self.normed.is_some_and(|(normed, ..)| normed == x);
        if is_wanted && !self.formed[x.0] && !is_made_inside {
            let args = ElementwiseArgs { x: self.activation(x), width: self.width(x) as u32, ..Default::default() };
            self.push_elementwise(Kernel::CopyRows, x, args, 0);
            self.formed[x.0] = true;
        }
    }

    pub fn vector(&self, id: Option<VectorId>) -> Address {
        id.map_or(0, |id| self.addresses.vectors[id.0])
    }

    /// A norm, of the rows whose numbers are at `selected` where that is not 0.
    pub fn norm(&mut self, x: ValueId, norm: Norm, out: ValueId, selected: Address, covered: usize) {
        let args = NormArgs {
            x: self.value(x),
            weight: self.vector(Some(norm.weight)),
            out: self.activation(out),
            width: self.width(x) as u32,
            eps: norm.eps,
            selected,
        };
        let (width, rows) = (self.width(x), self.rows(out));
        let is_few = matches!(self.batches, Batches::Few(_) | Batches::Narrow);
        if is_few && width >= SPLIT_NORM_WIDTH && width.is_multiple_of(QUANTIZED) {
            // One block finds the factor.
            let blocks = Extent::Fixed(width.div_ceil(4 * SPLIT_NORM_THREADS) as u32 + 1);
            return self.push(
                Kernel::RmsNormSplit.only(),
                [rows, blocks, ONE],
                SPLIT_NORM_THREADS,
                Args::Norm(args),
                covered,
            );
        }
        self.push(Kernel::RmsNorm.only(), [rows, ONE, ONE], NORM_THREADS, Args::Norm(args), covered);
    }
}
