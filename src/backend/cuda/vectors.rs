//! Vectors that rows bring along, and those that passes leave of their rows beside logits: both in memory that host and device share, so that no copy
//! is started for them.

use super::runner::CudaRunner;
use crate::backend::{Hidden, Limits};
use crate::error::{Error, Result};
use crate::plan::Program;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Elements of a vector that each row of a runner within `limits` leaves; 0 where none does.
pub fn hidden_width(program: &Program, limits: &Limits) -> usize {
    let hidden = program.hidden().filter(|_| limits.hidden != Hidden::None);
    hidden.map_or(0, |hidden| program.values[hidden.0].width)
}

/// Floats of vectors for so many rows of a width.
pub fn floats(rows: usize, width: usize) -> Result<usize> {
    rows.checked_mul(width).ok_or_else(|| Error::out_of_memory("vectors of rows", usize::MAX))
}

impl CudaRunner {
    /// Room for the vector of a row of the next pass.
    pub fn given_vector(&mut self, row: usize) -> &mut [f32] {
        if self.at_work {
            self.let_go();
        }
        let width = self.program.given_width();
        self.shared.given.slice_mut(row * width, width)
    }

    /// Waits until a cancelled pass reads no vectors any more.
    fn let_go(&mut self) {
        // A device that fails or does not answer fails the next pass.
        let primary = Arc::clone(&self.primary);
        _ = primary.enter().and_then(|_current| self.settle(&AtomicBool::new(false)));
    }

    /// The vector of a row of the last pass, or of the row of an output.
    pub fn hidden_vector(&self, index: usize) -> &[f32] {
        let row = match self.sizes.hidden {
            Hidden::None => return &[],
            Hidden::Rows => index,
            Hidden::Outputs => self.shared.outputs.read(index) as usize,
        };
        self.shared.hidden.slice(row * self.sizes.hidden_width, self.sizes.hidden_width)
    }
}
