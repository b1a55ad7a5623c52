//! What an assistant has that drafts (`draft`): vectors of the last rows of each sequence, and the keys of the model's runner in place of a cache.

use super::draft::{DraftModel, MOST_WAITING};
use super::guide::{Kind, Made, check_place, most_waiting};
use super::limits;
use super::model::Model;
use super::session::Options;
use super::waiting::Waiting;
use super::words::Words;
use crate::arch::Hparams;
use crate::backend::{Backend, Limits, Memory, Row, Runner};
use crate::error::Result;
use crate::kv::paging::Paging;
use crate::plan::{Program, assistant};
use crate::speculate::Asked;
use std::sync::Arc;

/// What an assistant reads of the model's session.
#[derive(Clone, Copy)]
pub struct Lent<'a> {
    /// Its runner, which has the keys of all tokens but the last of each sequence that asks, as far as the last one sees them.
    pub runner: &'a dyn Runner,
    /// The pages of its cache.
    pub paging: &'a Paging,
}

impl DraftModel {
    /// Lets an assistant of `model` draft, whose keys `runner` has.
    pub(super) fn of_assistant(
        draft: &Arc<Model>,
        model: &Model,
        runner: &dyn Runner,
        options: &Options,
        most: usize,
    ) -> Result<DraftModel> {
        let (backend, backbone, hparams) = (model.backend(), model.program(), model.hparams());
        let program = Arc::new(program_for(draft, backend, backbone, hparams)?);
        let words = Words::of_made_for(model, draft)?;
        let (kind, own) = (kind_for(backbone, hparams, options)?, own_of(draft, &program, backend, backbone)?);
        let prepared = draft.prepared().beside(Arc::clone(&program), Some(&**model.prepared()))?;
        let waiting = Waiting::new(options.max_seqs, most_waiting(most), program.given_width())?;
        let made = Made { kind, program, prepared, own, words, waiting: Some(waiting), lender: Some(runner) };
        DraftModel::open(draft, made, options, most)
    }

    /// Whether it reads the keys of the model's runner, and has no cache.
    pub(super) fn reads_keys(&self) -> bool {
        matches!(self.kind, Kind::Assistant { .. })
    }

    /// As [`DraftModel::settle`]: it needs the vector of the last token that the model has evaluated.
    pub(super) fn settle_over(&mut self, slot: usize, tokens: &[i32]) -> Option<Asked<'_>> {
        let last = tokens.len().checked_sub(2)?;
        let is_known = self.waiting.as_mut()?.settle(slot, tokens).contains(&last);
        let asked = Asked { costs: &self.costs, items: self.asked.len(), rows: self.first_rows, behind: 1 };
        is_known.then_some(asked)
    }

    /// Adds an assistant's row for the last of `tokens`, at the position of the first that the model has not evaluated.
    pub(super) fn add_row_over(&mut self, slot: usize, position: usize, tokens: &[i32]) {
        self.give_vector(slot, tokens.len() - 2);
        let token = tokens[tokens.len() - 1] as u32;
        self.rows.push(Row { token, position: position as u32, slot: slot as u32 });
    }

    /// Keeps the vectors of the last ones of neighbouring rows of a slot, in place of those before them.
    pub(super) fn keep_last<'a>(&mut self, rows: &[Row], vector: impl Fn(usize) -> &'a [f32]) {
        let Some(waiting) = &mut self.waiting else { return };
        let first = rows.len().saturating_sub(MOST_WAITING);
        let Row { position, slot, .. } = rows[first];
        waiting.drop_before(slot as usize, position as usize);
        for (index, &Row { token, position, slot }) in rows.iter().enumerate().skip(first) {
            waiting.push(slot as usize, position as usize, token as i32, vector(index));
        }
    }
}

/// The program by which an assistant drafts for the model `program` on `backend`.
pub(super) fn program_for(
    draft: &Model,
    backend: &dyn Backend,
    program: &Program,
    hparams: &Hparams,
) -> Result<Program> {
    check_place(draft, backend, "the keys of the model")?;
    assistant::over(draft.program(), program, hparams.embedding_scale)
}

/// An assistant in a session of the model `program` with these options.
pub(super) fn kind_for(program: &Program, hparams: &Hparams, options: &Options) -> Result<Kind> {
    let Limits { pages, windows, .. } = limits::of(hparams.context, program, options)?;
    Ok(Kind::Assistant { pages, windows })
}

/// What an assistant that runs `over` has of its own in a session of the model `program`: its weights, and what of both models' is made for it.
pub(super) fn own_of(draft: &Model, over: &Program, backend: &dyn Backend, program: &Program) -> Result<Memory> {
    let alone = draft.program();
    Ok(Memory {
        weights: alone.weight_bytes(),
        device_weights: backend.weights_beside(alone, &[])?,
        device_arena: backend.weights_beside(over, &[alone, program])?,
        ..Memory::default()
    })
}
