//! What can draft in a session (`draft`): what it runs, what it is limited to, and the memory that it takes.

use super::assisting;
use super::draft::{MOST_BEHIND, MOST_WAITING};
use super::eagle::{head_of, own_of};
use super::header::Predictor;
use super::limits;
use super::model::Model;
use super::session::Options;
use super::spread::Spread;
use super::waiting::Waiting;
use super::words::Words;
use crate::arch::Hparams;
use crate::backend::{Backend, Hidden, Limits, Memory, Prepared, Runner};
use crate::error::{Error, Result};
use crate::kv::WindowLimits;
use crate::plan::Program;
use crate::speculate;
use std::sync::Arc;

/// Rows of a pass of a predictor, beside one of each sequence: all drafts of a pass of the model that were right, and some more.
const PREDICTED: usize = 128;

/// Who drafts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Another model.
    Other,
    /// The model's own predictor.
    Predictor,
    /// Another model that reads the keys of this one, from a cache of so many pages and one of layers that see a window.
    Assistant { pages: usize, windows: Option<WindowLimits> },
    /// Another model that reads vectors between the layers of this one.
    Eagle,
}

/// What drafts, and where it runs.
pub struct Guide<'a> {
    pub kind: Kind,
    pub backend: &'a dyn Backend,
    pub program: &'a Program,
    /// Tokens of the longest sequence that it was made for.
    pub context: usize,
    /// Bytes of weights that the model does not have itself, and what the session's own runner takes more for it.
    pub own: Memory,
}

/// What a draft is opened with.
pub(super) struct Made<'a> {
    pub kind: Kind,
    pub program: Arc<Program>,
    pub prepared: Arc<dyn Prepared>,
    pub own: Memory,
    pub words: Words,
    /// Where vectors wait, if it reads some.
    pub waiting: Option<Waiting>,
    /// Whose keys it reads, if it has none.
    pub lender: Option<&'a dyn Runner>,
}

/// Refuses a draft that reads what the session's model on `backend` has in memory, where that is elsewhere; `what` says what it is.
pub(super) fn check_place(draft: &Model, backend: &dyn Backend, what: &str) -> Result<()> {
    if backend.place().is_some() && draft.backend().place() == backend.place() {
        return Ok(());
    }
    Err(Error::Unsupported(format!("the draft model reads {what}, so both have to run on one device")))
}

/// Bytes that a draft takes in a session with these options, with the weights that nobody has loaded for it.
pub fn memory(guide: &Guide, options: &Options) -> Result<Memory> {
    let most = options.drafts.most_each(options.max_prefill)?;
    let memory = memory_within(guide, &limits(guide, options)?, most)?;
    let is_loaded = guide.kind != Kind::Predictor;
    Ok(if is_loaded { Memory { weights: 0, device_weights: 0, ..memory } } else { memory })
}

pub(super) fn memory_within(guide: &Guide, limits: &Limits, most: usize) -> Result<Memory> {
    let memory = limits::memory(guide.backend, guide.program, limits)?;
    if guide.kind == Kind::Other {
        return Ok(memory);
    }
    let waiting = Waiting::bytes(limits.seqs, most_waiting(most), guide.program.given_width());
    let Memory { weights, device_weights, .. } = guide.own;
    let spread = Spread::bytes(guide.program.subset.as_ref());
    let both = Memory { arena: waiting.saturating_add(spread), ..Memory::default() }.with(&guide.own).with(&memory);
    Ok(Memory { weights, device_weights, ..both })
}

pub(super) fn most_waiting(most: usize) -> usize {
    MOST_WAITING.max(2 * (most + 1))
}

pub(super) fn limits(guide: &Guide, options: &Options) -> Result<Limits> {
    // A predictor evaluates anew what it guessed from, another model only a draft that it did not read itself, and the token behind that.
    let (max_prefill, hidden, behind) = match guide.kind {
        Kind::Other => (MOST_BEHIND, Hidden::None, 2),
        Kind::Predictor | Kind::Eagle => {
            (PREDICTED, Hidden::Outputs, options.drafts.most_each(options.max_prefill)? + 1)
        }
        Kind::Assistant { .. } => (1, Hidden::Outputs, 0),
    };
    let options =
        Options { max_prefill, max_prompt: max_prefill, drafts: speculate::Options::OFF, ranks: 0, ..*options };
    let limits = Limits { hidden, behind, ..limits::of(guide.context, guide.program, &options)? };
    Ok(match guide.kind {
        Kind::Assistant { pages, windows } => Limits { pages, windows, ..limits },
        Kind::Other | Kind::Predictor | Kind::Eagle => limits,
    })
}

/// Bytes that a loaded model takes that drafts in such a session of the model `program`, which runs on `backend`; its weights are there already.
pub fn memory_of_model(
    draft: &Model,
    (backend, program, hparams): (&dyn Backend, &Program, &Hparams),
    options: &Options,
) -> Result<Memory> {
    let (alone, none) = (draft.program(), Memory::default());
    let (kind, over, own) = if alone.borrows_keys() {
        let over = assisting::program_for(draft, backend, program, hparams)?;
        let own = assisting::own_of(draft, &over, backend, program)?;
        (assisting::kind_for(program, hparams, options)?, Some(over), own)
    } else if alone.fusion.is_some() {
        let over = head_of(draft, backend, program)?;
        (Kind::Eagle, Some(over), own_of(draft, (backend, program), hparams.context, options)?)
    } else {
        (Kind::Other, None, none)
    };
    let (program, context) = (over.as_ref().unwrap_or(alone), draft.hparams().context);
    memory(&Guide { kind, backend: draft.backend(), program, context, own }, options)
}

/// The predictor of a loaded model as a draft.
pub fn of_predictor(model: &Model) -> Result<Guide<'_>> {
    let Predictor { program, own, .. } = own_predictor(model)?;
    let (kind, context) = (Kind::Predictor, model.hparams().context);
    Ok(Guide { kind, backend: model.backend(), program, context, own: *own })
}

pub(super) fn own_predictor(model: &Model) -> Result<&Predictor> {
    model.predictor().map_err(|reason| Error::Unsupported(reason.into()))
}
