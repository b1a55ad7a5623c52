//! From a program to the lists of launches that eager passes and graphs share.
//!
//! A [`Launch`] is data: kernel, grid, arguments, and the ops that it covers. Its grid is told in rows, outputs and splits, so that a few lists
//! serve every batch: those for one, two and four rows, where a launch covers as many ops as it can (`few`), two for other steps, and one for prompts;
//! the products of the last three run on tensor cores (`tensor`). All give the same bits, unless the host lets those of prompts and of more than four rows
//! be of 16-bit floats (`rounded`). Addresses come from outside, so that lowering needs no GPU.

use super::args::*;
use super::attention::{MOST_SPREAD, MOST_SPREAD_OF_BATCHES, SHORT_SPLITS, STAGED_DIMS};
use super::lists::{Batches, FEW_ROWS, Lists};
pub use super::names::{Function, Kernel};
use super::supported;
use super::uses::Uses;
use crate::error::{Error, Result, filled, reserve};
use crate::plan::memory::Placement;
use crate::plan::op::{Norm, Rows};
use crate::plan::{Op, Program, ValueId, VectorId};

/// Weight rows of a block of a multiplication.
const TILE_ROWS: usize = 16;
pub(super) const ELEMENTS_A_BLOCK: usize = 256;
/// Threads of a block that norms a row, or a part of one.
pub(super) const NORM_THREADS: usize = 256;
const PART_THREADS: usize = 128;
/// Elements of an 8-bit block.
const QUANTIZED: usize = 32;
/// Widest row, nearly, that one block norms as fast as several do.
const PARTED_WIDTH: usize = 2048;
/// Most splits that a block of attention takes where the device is full.
const SPLITS_A_BLOCK: u32 = 8;

/// Extent of a grid along one axis.
#[allow(missing_docs)] // Fields of `Shape`, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Fixed(u32),
    Rows,
    Outputs,
    Splits,
    /// Blocks that share the splits of a row, where each split has `each` and `resident` of them run at a time.
    SplitShares {
        each: u32,
        resident: u32,
    },
    /// Stretches of `width` queries, of which each row has `each`.
    Stretches {
        each: u32,
        width: u32,
    },
    /// Blocks that walk over the tiles of products on tensor cores, as their arguments say.
    Tensor,
    /// Tiles times the slices of the batch's rows, or of its outputs.
    Tiles {
        tiles: u32,
        on_outputs: bool,
    },
}

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What to run.
    pub kernel: Kernel,
    /// Blocks along x, y and z.
    pub grid: [Extent; 3],
    /// Threads of a block, where all shapes have the same.
    pub block: u32,
    /// Dynamic shared memory of a block in bytes, where all shapes have the same.
    pub shared_bytes: u32,
    /// The same where blocks are so few that each should get a processor; 0 where that never is so.
    pub spread_bytes: u32,
    /// Its arguments, the shape apart.
    pub args: Args,
    /// Indices of the program's ops that it does.
    pub covers: Vec<usize>,
}

/// Batch rows that one block of a multiplication takes at a time.
pub fn batch_width(batch: u32) -> u32 {
    match batch {
        0 | 1 => 1,
        2 => 2,
        3 | 4 => 4,
        _ => 8,
    }
}

impl Extent {
    fn resolve(self, shape: &Shape) -> u32 {
        match self {
            Extent::Fixed(n) => n,
            Extent::Rows => shape.rows,
            Extent::Outputs => shape.outputs,
            Extent::Splits => shape.splits.max(1),
            Extent::SplitShares { each, resident } => {
                // Where rows alone fill the device, a long row still gets blocks enough to end with the others.
                let share = (resident / (each * shape.rows.max(1))).max(shape.splits.div_ceil(SPLITS_A_BLOCK));
                share.clamp(1, shape.splits.max(1))
            }
            Extent::Tensor => 1,
            Extent::Stretches { each, width } => (shape.rows * each).div_ceil(width),
            Extent::Tiles { tiles, on_outputs } => {
                let batch = if on_outputs { shape.outputs } else { shape.rows };
                tiles * batch.div_ceil(batch_width(batch))
            }
        }
    }
}

impl Launch {
    /// Blocks for a shape; a zero means that there is nothing to do.
    pub fn blocks(&self, shape: &Shape) -> [u32; 3] {
        let is_idle = match self.kernel {
            Kernel::Argmax | Kernel::StepEnd => shape.draws != 0,
            Kernel::Sample => shape.draws == 0,
            _ => false,
        };
        if is_idle {
            return [0; 3];
        }
        let blocks = self.grid.map(|extent| extent.resolve(shape));
        self.tensor_args().map_or(blocks, |args| [args.blocks(shape), 1, 1])
    }

    /// Whether a shape gives it anything to do.
    pub fn runs(&self, shape: &Shape) -> bool {
        !self.blocks(shape).contains(&0)
    }

    /// The kernel for a shape.
    pub fn function(&self, shape: &Shape) -> Function {
        let variant = match (self.kernel, &self.args) {
            (Kernel::Matmul, _) => self.width(shape).ilog2(),
            _ if self.has_block_a_split(shape) => {
                let any_form = if self.kernel == Kernel::AttendMany { STAGED_DIMS.len() } else { 0 };
                return Function { kernel: Kernel::AttendSplit, variant: any_form + self.head_variant() as usize };
            }
            (Kernel::AttendMany | Kernel::AttendOne | Kernel::AttendPrompt, _) => self.head_variant(),
            (Kernel::Tensor, _) => self.tensor_args().map_or(0, |args| args.kernel(shape) as u32),
            (Kernel::Matvec | Kernel::MatvecFew, Args::Matvec(args)) => super::few::variant_of(args),
            (Kernel::MatvecMixed, Args::Matvec(args)) => super::few::mixed_variant_of(args),
            (Kernel::MatvecWhole, Args::Matvec(args)) => super::few::whole_variant_of(args),
            (Kernel::MatvecColumns, Args::Matvec(args)) => super::few::columns_variant_of(args),
            _ => 0,
        };
        Function { kernel: self.kernel, variant: variant as usize }
    }

    fn tensor_args(&self) -> Option<&TensorArgs> {
        if let Args::Tensor(args) = &self.args { Some(args) } else { None }
    }

    /// Dynamic shared memory of a block for a shape, in bytes.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        match &self.args {
            Args::Tensor(args) => args.shared_bytes(shape),
            _ if self.is_spread(shape) => self.spread_bytes,
            _ => self.shared_bytes,
        }
    }

    /// Whether each block should get a processor: those of short splits, where they are few.
    fn is_spread(&self, shape: &Shape) -> bool {
        let most = if self.kernel == Kernel::AttendMany { MOST_SPREAD_OF_BATCHES } else { MOST_SPREAD };
        self.spread_bytes != 0 && self.has_block_a_split(shape) && self.blocks(shape).iter().product::<u32>() <= most
    }

    /// Threads of a block for a shape.
    pub fn threads(&self, shape: &Shape) -> u32 {
        self.tensor_args().map_or(self.block, |args| args.threads(shape))
    }

    /// Whether each of the row's splits, all of them short, has a block.
    fn has_block_a_split(&self, shape: &Shape) -> bool {
        let takes_splits = matches!(self.kernel, Kernel::AttendOne | Kernel::AttendMany);
        takes_splits && shape.splits as usize <= SHORT_SPLITS && self.blocks(shape)[0] == shape.splits
    }

    fn head_variant(&self) -> u32 {
        let Args::Attention(args) = &self.args else { return 0 };
        STAGED_DIMS.iter().position(|&dim| dim == args.heads.head_dim as usize).unwrap_or(0) as u32
    }

    /// Batch rows of a multiplication's block for a shape.
    pub fn width(&self, shape: &Shape) -> u32 {
        match &self.args {
            Args::Matmul(args) if args.on_outputs != 0 => batch_width(shape.outputs),
            _ => batch_width(shape.rows),
        }
    }
}

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
    pub states: Address,
    pub ended: Address,
    /// Where each layer's keys and values are.
    pub layers: Vec<LayerCache>,
    pub cache_f32: bool,
    /// Shared memory that a block of the device can have, in bytes.
    pub most_shared: u32,
    /// Whether the kernels that run have the copies of compute capability 9.0.
    pub copies_in_bulk: bool,
    /// The step's own: host and device lists.
    pub step: StepArgs,
    pub host_tokens: Address,
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

/// Where the form of a value stands that products read.
#[derive(Clone, Copy, Debug, Default)]
pub struct FormPlace {
    /// 8-bit codes.
    pub q: Address,
    /// Their scales and sums.
    pub meta: Address,
    /// 16-bit floats; 0 where the host does not allow them.
    pub loose: Address,
}

/// Lowers `program`.
pub fn lower(program: &Program, placement: &Placement, addresses: &Addresses) -> Result<Lists> {
    supported::check(program)?;
    let uses = Uses::of(program)?;
    let list = |batches| {
        // An op adds at most two launches, and the ends of a list four.
        let launches = reserve(2 * program.ops.len() + 4, "a list of launches")?;
        let formed = filled(program.values.len(), false, "a list of launches")?;
        let mut lowering = Lowering { program, uses: &uses, placement, addresses, batches, launches, formed, next: 0 };
        while lowering.next < program.ops.len() {
            lowering.op()?;
        }
        lowering.choose_tokens();
        Ok(lowering.launches)
    };
    Ok(Lists {
        single: list(Batches::Few(1))?,
        two: list(Batches::Few(2))?,
        four: list(Batches::Few(FEW_ROWS))?,
        narrow: list(Batches::Narrow)?,
        batch: list(Batches::Steps)?,
        prompt: list(Batches::Prompts)?,
    })
}

pub(super) const ONE: Extent = Extent::Fixed(1);

pub(super) struct Lowering<'a> {
    pub program: &'a Program,
    pub uses: &'a Uses,
    placement: &'a Placement,
    pub addresses: &'a Addresses,
    pub batches: Batches,
    pub launches: Vec<Launch>,
    /// Whether the form of a value that products read is there, as the launches so far leave it.
    formed: Vec<bool>,
    pub next: usize,
}

impl Lowering<'_> {
    /// Lowers the next op, with those after it that its launch covers too.
    fn op(&mut self) -> Result<()> {
        let op = &self.program.ops[self.next];
        if let Op::MatMul { x, .. } = *op {
            self.form(x);
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
            Op::Embed { table, out } if self.next == 0 => self.embed(table, out),
            Op::Embed { .. } => return Err(self.out_of_place()),
            Op::Norm { x, norm, out } if self.uses.is_deferred(out) => self.norm(x, norm, out, 0, 1),
            Op::Norm { x, norm, out } => self.normalize(x, norm, out),
            Op::MatMul { x, .. } if self.batches.on_tensor_cores() && self.tensor_products(x) => {}
            Op::MatMul { x, .. } => self.multiply(x),
            Op::HeadNorm { .. } | Op::Rope { .. } | Op::StoreKv { .. } if self.heads() => {}
            Op::HeadNorm { x, norm } => self.normalize_heads(x, norm),
            Op::Rope { x, table } => self.rotate(x, table),
            Op::StoreKv { layer, keys, values } => self.store(layer, keys, values),
            Op::Attention { kind, queries, out } => self.attention(kind, queries, out),
            Op::SelectRows { x, out } => self.select(x, out),
            Op::Scale { .. }
            | Op::Temperature { .. }
            | Op::Gate { .. }
            | Op::Activate { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::Softcap { .. } => self.elementwise(),
            Op::Route { .. } | Op::ExpertMatMul { .. } | Op::WeightedSum { .. } | Op::MulSigmoid { .. } => {
                return Err(self.out_of_place());
            }
        }
        Ok(())
    }

    pub fn out_of_place(&self) -> Error {
        let name = self.program.ops[self.next].name();
        Error::Unsupported(format!("op {} ({name}) stands where the cuda backend cannot run it", self.next))
    }

    /// Adds a launch that covers the next `covered` ops.
    pub fn push(&mut self, kernel: Kernel, grid: [Extent; 3], block: usize, args: Args, covered: usize) {
        let covers: Vec<usize> = (self.next..self.next + covered).collect();
        for id in covers.iter().filter_map(|&op| self.program.ops[op].writes()) {
            let written = args.written().filter(|written| written.x == self.value(id));
            self.formed[id.0] = written.is_some_and(|written| written.q != 0);
        }
        self.next += covered;
        self.launches.push(Launch {
            kernel,
            grid,
            block: block as u32,
            shared_bytes: 0,
            spread_bytes: 0,
            args,
            covers,
        });
    }

    pub fn value(&self, id: ValueId) -> Address {
        self.addresses.buffers[self.placement.buffer_of[id.0]]
    }

    pub fn width(&self, id: ValueId) -> usize {
        self.program.values[id.0].width
    }

    pub fn rows(&self, id: ValueId) -> Extent {
        match self.program.values[id.0].rows {
            Rows::Batch => Extent::Rows,
            Rows::Outputs => Extent::Outputs,
            Rows::Chosen(_) => unreachable!("refused before: experts"),
        }
    }

    pub fn is_on_outputs(&self, id: ValueId) -> bool {
        self.rows(id) == Extent::Outputs
    }

    /// A value that is read; what a deferred norm wrote has factors.
    pub fn input(&self, id: ValueId) -> Activation {
        let factors = if self.uses.is_deferred(id) { self.addresses.factors } else { 0 };
        let place = self.uses.of_value(id).place.map_or_else(FormPlace::default, |place| self.addresses.forms[place]);
        let (q, meta) = if self.is_loose(id) { (place.loose, 0) } else { (place.q, place.meta) };
        Activation { x: self.value(id), q, meta, factors }
    }

    /// A value that is written, with the form of it that products read if a later multiplication reads that.
    pub fn activation(&self, id: ValueId) -> Activation {
        let input = self.input(id);
        if self.uses.of_value(id).is_quantized_from(self.next) { input } else { Activation { q: 0, meta: 0, ..input } }
    }

    /// Makes the form of `x` that a product reads, where no kernel has left it.
    fn form(&mut self, x: ValueId) {
        let is_wanted = self.uses.of_value(x).is_quantized_from(self.next);
        if is_wanted && !self.formed[x.0] {
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
        if is_few && width >= PARTED_WIDTH && width.is_multiple_of(QUANTIZED) {
            // One block finds the factor.
            let blocks = Extent::Fixed(width.div_ceil(4 * PART_THREADS) as u32 + 1);
            return self.push(Kernel::NormParts, [rows, blocks, ONE], PART_THREADS, Args::Norm(args), covered);
        }
        self.push(Kernel::Norm, [rows, ONE, ONE], NORM_THREADS, Args::Norm(args), covered);
    }

    /// Up to three products of one value in a launch; a lone product also takes the addition that follows it.
    fn multiply(&mut self, x: ValueId) {
        let mut args = MatmulArgs { cols: self.width(x) as u32, ..MatmulArgs::default() };
        let on_outputs = self.is_on_outputs(x);
        args.x = self.input(x);
        let mut product = ValueId(0);
        for op in &self.program.ops[self.next..] {
            let &Op::MatMul { x: other, matrix, bias, out } = op else { break };
            if other != x || args.count == 3 {
                break;
            }
            let weights = self.addresses.matrices[matrix.0];
            args.segments[args.count as usize] = Segment {
                matrix: weights,
                bias: self.vector(bias),
                out: self.value(out),
                first_tile: args.tiles,
                adds: 0.0,
            };
            args.tiles += weights.rows.div_ceil(TILE_ROWS as u32);
            args.count += 1;
            product = out;
        }
        args.on_outputs = on_outputs.into();
        let mut covered = args.count as usize;
        if args.count == 1
            && let Some(sum) = self.sum_of_product(x, product, self.next + covered)
        {
            (args.segments[0].out, args.segments[0].adds) = (self.value(sum.to), sum.factor);
            covered += sum.ops;
        }
        let grid = [Extent::Tiles { tiles: args.tiles, on_outputs }, ONE, ONE];
        self.push(Kernel::Matmul, grid, 256, Args::Matmul(args), covered);
    }
}
