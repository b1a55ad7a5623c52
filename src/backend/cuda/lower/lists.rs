//! The lists of launches of a program, and which of them serves a batch.

use crate::backend::cuda::args::Shape;
use crate::backend::cuda::launch::Launch;

/// Most rows of a batch that has launches for its own number of rows.
pub const FEW_ROWS: u32 = 4;
/// Most rows of a batch whose products, where they are exact, have a kernel of their own.
pub const NARROW_ROWS: u32 = 8;

/// The launches of a program. Each row of a step is of another sequence; what else there is counts as a prompt.
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
    /// For prompts.
    pub prompt: Vec<Launch>,
}

impl Lists {
    /// The list for a shape.
    pub fn of(&self, shape: &Shape) -> &[Launch] {
        match shape {
            Shape { splits: 0, .. } => &self.prompt,
            Shape { rows: 1, .. } => &self.single,
            Shape { rows: 2, outputs: 2, .. } => &self.two,
            Shape { rows: FEW_ROWS, outputs: FEW_ROWS, .. } => &self.four,
            Shape { rows: 0..=NARROW_ROWS, .. } => &self.narrow,
            _ => &self.batch,
        }
    }

    /// All lists, from that of a single row on.
    pub fn all_mut(&mut self) -> [&mut Vec<Launch>; 6] {
        [&mut self.single, &mut self.two, &mut self.four, &mut self.narrow, &mut self.batch, &mut self.prompt]
    }
}

/// What a list is for: steps of so many rows, of more or of many, or prompts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Batches {
    Few(u32),
    Narrow,
    Steps,
    Prompts,
}

impl Batches {
    /// Whether products run on tensor cores where these take them.
    pub fn on_tensor_cores(self) -> bool {
        !matches!(self, Batches::Few(1 | 2))
    }

    /// Whether products may be of 16-bit floats.
    pub fn may_round(self) -> bool {
        !matches!(self, Batches::Few(_))
    }
}
