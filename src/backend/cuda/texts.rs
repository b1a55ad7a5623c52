//! Passes that make vectors of texts: the list of launches that ends with these, and their way to the host.
//!
//! They run as single launches, as passes of prompts do. All rows get vectors; those that are wanted come to the host, some at a time.

use super::args::Shape;
use super::exchange::What;
use super::runner::CudaRunner;
use crate::backend::{Batch, Give, Host, Stage};
use crate::error::{Error, Result};
use crate::plan::ValueId;
use std::sync::atomic::AtomicBool;

impl CudaRunner {
    /// Evaluates the texts of a batch, and gives the vectors of its outputs.
    pub fn embed_texts(
        &mut self,
        batch: &Batch,
        stage: Stage,
        cancel: &AtomicBool,
        host: Option<Host>,
        give: Give,
    ) -> Result<()> {
        let value = stage.value(&self.program);
        let value = value.ok_or_else(|| Error::Unsupported("this model makes no such vectors".into()))?;
        let updates = self.write_batch(&Batch { outputs: &[], ..*batch });
        self.note_adapters(batch);
        let started = self.start_texts(batch.rows.len(), updates, host, cancel);
        self.check_start(started, updates)?;
        self.fetch_vectors(value, batch, cancel, give)
    }

    /// Starts such a pass.
    pub fn start_texts(&mut self, rows: usize, updates: usize, host: Option<Host>, cancel: &AtomicBool) -> Result<()> {
        self.announce(updates);
        let shape = Shape { rows: rows as u32, outputs: 0, splits: 0, draws: 0 };
        self.start_pass(What::Texts, &shape, rows, host, cancel)
    }

    /// Brings the rows of `value` that are outputs to the host, as many at a time as there is room for, and waits for the end of the pass.
    fn fetch_vectors(&self, value: ValueId, batch: &Batch, cancel: &AtomicBool, give: Give) -> Result<()> {
        let (width, from) = (self.program.values[value.0].width, self.address_of(value));
        let (rows, room) = (batch.rows.len(), self.shared.results.len() / width);
        for (part, outputs) in batch.outputs.chunks(room).enumerate() {
            let mut copied = 0;
            // Neighbouring rows are copied together.
            for run in outputs.chunk_by(|row, next| row + 1 == *next) {
                let to = self.shared.results.host().wrapping_add(copied * width);
                let start = from + (run[0] as usize * width * size_of::<f32>()) as u64;
                self.stream.download(to.cast(), start, run.len() * width * size_of::<f32>())?;
                copied += run.len();
            }
            self.wait_for_pass(rows, cancel)?;
            let vectors = self.shared.results.slice(0, copied * width).chunks_exact(width);
            vectors.enumerate().for_each(|(index, vector)| give(part * room + index, vector));
        }
        if batch.outputs.is_empty() { self.wait_for_pass(rows, cancel) } else { Ok(()) }
    }
}
