//! A kernel launch as data: kernel, grid and arguments, and the ops that it covers. Its grid is told in rows, outputs and splits, so that a few lists
//! of launches serve every batch; `select` resolves it for a shape.

use super::args::{Args, Shape};
use super::catalogue::{Function, Kernel};
use super::select::experts::EXACT_TILES;
use super::select::{self, Choice, Device};

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
    /// Sequences of a pass, this many at most: those without rows have blocks that do nothing.
    Sequences(u32),
    /// Rows times the experts that each has.
    Chosen(u32),
    /// Blocks of products with experts: `tiles` of weight rows for each pair of a row and an expert.
    Pairs {
        tiles: u32,
        chosen: u32,
    },
    /// The same for tiles of pairs of one expert, as many as there may be.
    ExpertTiles {
        tiles: u32,
        chosen: u32,
        experts: u32,
    },
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
    /// Tiles times the slices of the batch's rows, or of its outputs.
    Tiles {
        tiles: u32,
        on_outputs: bool,
    },
}

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What to run, where a shape does not choose another kernel.
    pub function: Function,
    /// Blocks along x, y and z; those of GEMM depend on the kernel.
    pub grid: [Extent; 3],
    /// Threads of a block, likewise.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes, likewise.
    pub shared_bytes: u32,
    /// The same where blocks are so few that each should get an SM; 0 where that never is so.
    pub spread_bytes: u32,
    /// Its arguments, the shape apart.
    pub args: Args,
    /// Indices of the program's ops that it does.
    pub covers: Vec<usize>,
    /// What it runs on.
    pub device: Device,
}

/// Batch rows that one block of the GEMM of any type takes at a time; one of products of heads has room for as many.
fn dp4a_width(batch: u32) -> u32 {
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
            Extent::Sequences(most) => shape.rows.min(most),
            Extent::Chosen(each) => shape.rows * each,
            Extent::Pairs { tiles, chosen } => tiles * shape.rows * chosen,
            Extent::ExpertTiles { tiles, chosen, experts } => tiles * EXACT_TILES.most(shape.rows, experts, chosen),
            Extent::SplitShares { each, resident } => {
                // Where rows alone fill the device, a long row still gets blocks enough to end with the others.
                let share = (resident / (each * shape.rows.max(1))).max(shape.splits.div_ceil(SPLITS_A_BLOCK));
                share.clamp(1, shape.splits.max(1))
            }
            Extent::Stretches { each, width } => (shape.rows * each).div_ceil(width),
            Extent::Tiles { tiles, on_outputs } => {
                let batch = if on_outputs { shape.outputs } else { shape.rows };
                tiles * batch.div_ceil(dp4a_width(batch))
            }
        }
    }
}

impl Launch {
    /// What it comes to for a shape.
    pub fn choose(&self, shape: &Shape) -> Choice {
        let is_idle = match self.function.kernel {
            Kernel::Argmax | Kernel::StepEnd => shape.draws != 0,
            Kernel::Sample => shape.draws == 0,
            Kernel::AttentionCombineSplits => shape.splits <= 1,
            _ => false,
        };
        let plain = self.plain_choice(shape);
        let rows = |on_outputs: u32| if on_outputs != 0 { shape.outputs } else { shape.rows };
        match &self.args {
            _ if is_idle => Choice { blocks: [0; 3], ..plain },
            Args::Tensor(args) if rows(args.on_outputs) == 0 => Choice { blocks: [0; 3], ..plain },
            Args::Tensor(args) => select::gemm(args, rows(args.on_outputs), &self.device),
            Args::Matmul(args) => {
                let variant = dp4a_width(rows(args.on_outputs)).ilog2() as usize;
                Choice { function: Function { variant, ..plain.function }, ..plain }
            }
            // One for a row, and one for up to eight.
            Args::HeadMatmul(args) => {
                let variant = usize::from(rows(args.on_outputs) > 1);
                Choice { function: Function { variant, ..plain.function }, ..plain }
            }
            Args::ExpertGemm(args) => select::experts::gemm(self.function.kernel, args, shape.rows, &self.device),
            Args::Attention(args) => select::attention::choose(self, args, shape),
            _ => plain,
        }
    }

    /// The same where the shape chooses no other kernel.
    pub(super) fn plain_choice(&self, shape: &Shape) -> Choice {
        let blocks = self.grid.map(|extent| extent.resolve(shape));
        Choice { function: self.function, blocks, threads: self.threads, shared_bytes: self.shared_bytes }
    }

    /// Whether a shape gives it anything to do.
    pub fn runs(&self, shape: &Shape) -> bool {
        self.choose(shape).runs()
    }
}
