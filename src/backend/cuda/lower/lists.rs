//! The lists of launches of a program, and which of them serves a batch.

use crate::backend::cuda::args::Shape;
use crate::backend::cuda::launch::Launch;

/// Most rows of a batch that has launches for its own number of rows.
pub const FEW_ROWS: u32 = 4;
/// Most rows of a batch whose products, where they are exact, have a kernel of their own.
pub const NARROW_ROWS: u32 = 8;
/// Most rows of a batch whose norm, router and choice of experts are one launch where their pairs are sorted; of more, three are quicker.
pub const ROUTED_ROWS: u32 = 16;

/// The launches of a program. Each row of a step is of another sequence, unless the lists are of drafts; what else there is counts as a prompt. Those
/// that lead to logits are empty where it makes none.
#[derive(Clone, Debug)]
pub struct Lists {
    /// For steps of one row.
    pub single: Vec<Launch>,
    /// For steps of two rows.
    pub two: Vec<Launch>,
    /// For steps of [`FEW_ROWS`] rows, which three become.
    pub four: Vec<Launch>,
    /// For all other steps of up to [`NARROW_ROWS`] rows.
    pub narrow: Vec<Launch>,
    /// For all other steps.
    pub batch: Vec<Launch>,
    /// For those of [`Self::sorted_rows`] rows and more, whose pairs of a row and an expert are sorted, and whose routers are launches of their own.
    pub sorted: Vec<Launch>,
    /// See [`Self::sorted`]; more than any step has where there are no experts.
    pub sorted_rows: u32,
    /// For prompts.
    pub prompt: Vec<Launch>,
    /// For texts of which vectors are made; empty where the program makes none.
    pub texts: Vec<Launch>,
}

impl Lists {
    /// The list that leads to logits for a shape.
    pub fn of(&self, shape: &Shape) -> &[Launch] {
        match shape {
            Shape { splits: 0, .. } => &self.prompt,
            Shape { rows: 1, .. } => &self.single,
            Shape { rows: 2, outputs: 2, .. } => &self.two,
            Shape { rows: FEW_ROWS, outputs: FEW_ROWS, .. } => &self.four,
            Shape { rows: 0..=NARROW_ROWS, .. } => &self.narrow,
            Shape { rows, .. } if *rows >= self.sorted_rows => &self.sorted,
            _ => &self.batch,
        }
    }
}

/// What a list is for: steps of so many rows, of more or of many, of so many that experts share their weights, or prompts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Batches {
    Few(u32),
    Narrow,
    Steps,
    Sorted,
    Prompts,
}

impl Batches {
    /// Most rows of a step whose products with experts may go pair by pair; none where they never do.
    pub fn rows(self) -> Option<u32> {
        match self {
            Batches::Few(rows) => Some(rows),
            Batches::Narrow => Some(NARROW_ROWS),
            Batches::Steps => Some(ROUTED_ROWS),
            Batches::Sorted | Batches::Prompts => None,
        }
    }

    /// Whether products with experts go pair by pair of a row and an expert, where sorting them pays from so many rows on.
    pub fn by_pairs(self, sorted_rows: u32) -> bool {
        match self {
            Batches::Few(_) => true,
            Batches::Narrow => sorted_rows > NARROW_ROWS,
            Batches::Steps => sorted_rows > ROUTED_ROWS,
            Batches::Sorted | Batches::Prompts => false,
        }
    }

    /// Whether the expert that every row has goes with the others, pair by pair too: its weights are read again for each row then.
    pub fn joins_shared_experts(self) -> bool {
        matches!(self, Batches::Few(_) | Batches::Narrow)
    }

    /// Whether a launch that norms rows and chooses their experts is quicker than three.
    pub fn has_router(self) -> bool {
        matches!(self, Batches::Few(FEW_ROWS) | Batches::Narrow | Batches::Steps)
    }
}

impl Batches {
    /// Whether products run on tensor cores where these take them.
    pub fn on_tensor_cores(self) -> bool {
        !matches!(self, Batches::Few(1 | 2))
    }

    /// Whether products with experts may be of 16-bit floats: where these share their weights among many rows.
    pub fn rounds_experts(self) -> bool {
        self == Batches::Prompts
    }

    /// Whether others may be.
    pub fn may_round(self) -> bool {
        !matches!(self, Batches::Few(_))
    }
}
