//! What a head has that drafts by vectors between the model's layers (EAGLE-3): a runner like that of a predictor, and a program by which the
//! session's own runner makes these vectors.

use super::draft::DraftModel;
use super::guide::{Kind, Made, check_place, most_waiting};
use super::limits;
use super::model::Model;
use super::session::Options;
use super::waiting::Waiting;
use super::words::Words;
use crate::backend::{Backend, Hidden, Limits, Memory, Prepared};
use crate::error::Result;
use crate::plan::{Program, eagle};
use std::sync::Arc;

impl DraftModel {
    /// Lets a head of `model` draft.
    pub(super) fn of_eagle(draft: &Arc<Model>, model: &Model, options: &Options, most: usize) -> Result<DraftModel> {
        let program = Arc::new(head_of(draft, model.backend(), model.program())?);
        let words = Words::of_made_for(model, draft)?;
        let context = model.hparams().context;
        let own = own_of(draft, (model.backend(), model.program()), context, options)?;
        let prepared = draft.prepared().beside(Arc::clone(&program), Some(&**model.prepared()))?;
        let waiting = Waiting::new(options.max_seqs, most_waiting(most), program.given_width())?;
        let made = Made { kind: Kind::Eagle, program, prepared, own, words, waiting: Some(waiting), lender: None };
        DraftModel::open(draft, made, options, most)
    }
}

/// The program by which a head drafts for the model `program` on `backend`.
pub(super) fn head_of(head: &Model, backend: &dyn Backend, program: &Program) -> Result<Program> {
    check_place(head, backend, "vectors between the model's layers")?;
    eagle::over(head.program(), program)
}

/// What a head has of its own in a session of the model `program`, of up to `context` tokens a sequence: its weights, and as room for passes what the
/// session's runner takes more to make its vectors, and what of the weights of both programs is made for them.
pub(super) fn own_of(
    head: &Model,
    (backend, program): (&dyn Backend, &Program),
    context: usize,
    options: &Options,
) -> Result<Memory> {
    let limits = Limits { hidden: Hidden::Rows, ..limits::of(context, program, options)? };
    let (alone, over, telling) =
        (head.program(), head_of(head, backend, program)?, eagle::telling(program, head.program())?);
    let (with, plain) = (limits::memory(backend, &telling, &limits)?, limits::memory(backend, program, &limits)?);
    let beside = [(&over, [alone, program]), (&telling, [program, alone])];
    let made = beside
        .iter()
        .try_fold(0u64, |sum, (own, there)| Ok(sum.saturating_add(backend.weights_beside(own, there)?)))?;
    Ok(Memory {
        weights: alone.weight_bytes(),
        device_weights: backend.weights_beside(alone, &[])?,
        arena: with.arena.saturating_sub(plain.arena),
        device_arena: with.device_arena.saturating_sub(plain.device_arena).saturating_add(made),
        device_graphs: with.device_graphs.saturating_sub(plain.device_graphs),
        ..Memory::default()
    })
}

/// What the runner of a session of `model` runs: the model, and where a head drafts what that reads.
pub(super) fn prepared_for(model: &Model, draft: Option<&Model>) -> Result<Arc<dyn Prepared>> {
    match draft.filter(|draft| draft.program().fusion.is_some()) {
        Some(head) => {
            let telling = eagle::telling(model.program(), head.program())?;
            model.prepared().beside(Arc::new(telling), Some(&**head.prepared()))
        }
        None => Ok(Arc::clone(model.prepared())),
    }
}
