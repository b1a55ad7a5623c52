//! The pinned memory that host and device share: what a step is told, and what it answers.

use super::args::{NONE, Row, Stretch, TableUpdate};
use super::draws::Draws;
use super::driver::Primary;
use super::lower::Addresses;
use super::memory::Mapped;
use super::sizes::Sizes;
use super::vectors;
use crate::backend::Limits;
use crate::error::Result;
use crate::kv::state::Move;
use crate::plan::Program;
use std::ops::Range;
use std::sync::Arc;

/// Memory that host and device share.
pub struct Shared {
    /// The rows of a step.
    pub rows: Mapped<Row>,
    /// Which of them have logits.
    pub outputs: Mapped<u32>,
    /// Entries of page tables that have changed.
    pub updates: Mapped<TableUpdate>,
    /// Serial number of the step, number of updates.
    pub header: Mapped<u32>,
    /// A token of each output, below the serial number of its step.
    pub tokens: Mapped<u64>,
    /// What the host reads of a pass: logits of each output, where it chooses, or vectors.
    pub results: Mapped<f32>,
    /// Vectors that rows bring along, and those that they leave beside logits; a row each of what there is.
    pub given: Mapped<f32>,
    pub hidden: Mapped<f32>,
    /// How each output's token is drawn.
    pub draws: Draws,
    /// The rows of each sequence, where layers have states.
    pub stretches: Mapped<Stretch>,
}

impl Shared {
    /// Memory for sessions of these sizes.
    pub fn new(
        primary: &Arc<Primary>,
        sizes: &Sizes,
        limits: &Limits,
        program: &Program,
        resident: usize,
    ) -> Result<Shared> {
        let vocab = program.logits_width();
        Ok(Shared {
            rows: Mapped::new(primary, sizes.rows)?,
            outputs: Mapped::new(primary, sizes.outputs)?,
            updates: Mapped::new(primary, sizes.table_entries(limits))?,
            header: Mapped::new(primary, 2)?,
            tokens: Mapped::new(primary, sizes.outputs)?,
            results: Mapped::new(primary, sizes.results(program)?)?,
            given: Mapped::new(primary, vectors::floats(sizes.rows, program.given_width())?)?,
            hidden: Mapped::new(primary, vectors::floats(sizes.rows, sizes.hidden_width)?)?,
            draws: Draws::new(primary, sizes.outputs, vocab, resident)?,
            stretches: Mapped::new(primary, sizes.stretches())?,
        })
    }

    /// Tells which records the rows of a sequence read and write, where layers have states.
    pub fn write_stretch(&mut self, index: usize, rows: Range<usize>, moved: Option<&Move>) {
        let Some(&Move { from, to, before }) = moved.filter(|_| self.stretches.len() > 0) else { return };
        let (first, count) = (rows.start as u32, rows.len() as u32);
        let (from, before) = (from.unwrap_or(NONE), before.unwrap_or(NONE));
        self.stretches.write(index, Stretch { first, count, from, to, before, ..Stretch::default() });
    }

    /// Makes stretches have no rows.
    pub fn pad_stretches(&mut self, from: usize, to: usize) {
        for index in from..to.min(self.stretches.len()) {
            self.stretches.write(index, Stretch { from: NONE, to: NONE, before: NONE, ..Stretch::default() });
        }
    }

    /// Tells where the device sees it.
    pub fn tell(&self, addresses: &mut Addresses) {
        addresses.step.host_rows = self.rows.device();
        addresses.step.host_outputs = self.outputs.device();
        addresses.step.host_updates = self.updates.device();
        addresses.step.host_header = self.header.device();
        addresses.step.host_draws = self.draws.device();
        addresses.step.host_stretches = self.stretches.device();
        self.draws.tell(&mut addresses.sample);
        addresses.host_tokens = self.tokens.device();
        addresses.given = self.given.device();
        addresses.hidden = if self.hidden.len() > 0 { self.hidden.device() } else { 0 };
    }
}
