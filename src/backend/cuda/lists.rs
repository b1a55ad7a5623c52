//! The lists of launches of a program, and which of them serves a batch.

use super::args::Shape;
use super::lower::Launch;

/// Rows of a batch whose products are as fast without tensor cores.
pub const FEW_ROWS: u32 = 2;
/// Rows of a batch whose products are as fast as those of 16-bit floats.
pub const NARROW_ROWS: u32 = 8;

/// The launches of a program.
#[derive(Clone, Debug)]
pub struct Lists {
    /// For steps of one row.
    pub single: Vec<Launch>,
    /// For steps of up to [`FEW_ROWS`] rows.
    pub few: Vec<Launch>,
    /// For steps of up to [`NARROW_ROWS`] rows.
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
            Shape { rows: 0..=FEW_ROWS, .. } => &self.few,
            Shape { rows: 0..=NARROW_ROWS, .. } => &self.narrow,
            _ => &self.batch,
        }
    }
}

/// What a list is for: steps of one row, of a few, of more or of many, or prompts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Batches {
    Single,
    Few,
    Narrow,
    Steps,
    Prompts,
}

impl Batches {
    /// Whether products run on tensor cores where these take them.
    pub fn on_tensor_cores(self) -> bool {
        !matches!(self, Batches::Single | Batches::Few)
    }

    /// Whether products may be of 16-bit floats.
    pub fn may_round(self) -> bool {
        matches!(self, Batches::Steps | Batches::Prompts)
    }
}
