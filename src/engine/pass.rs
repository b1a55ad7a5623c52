//! One pass: its rows, the part of each sequence in it, and what comes of that.

use super::embedding::Part;
use crate::backend::{Batch, Chooser, Limits, Row};
use crate::error::{Result, filled, reserve};
use crate::grammar::Next;
use crate::kv::paging::Paging;
use crate::kv::state::States;
use std::ops::Range;
/// Lists of one pass, reserved once.
pub struct Pass {
    pub(super) rows: Vec<Row>,
    pub(super) outputs: Vec<u32>,
    /// Texts whose embeddings are made.
    pub(super) parts: Vec<Part>,
    /// Who chooses the tokens.
    pub(super) chooser: Chooser,
    pub(super) planned: Vec<Planned>,
    /// Whether a pass is expected to be needed before any grammar is asked.
    pub(super) is_expected: bool,
    /// What becomes of each planned item.
    pub(super) chosen: Vec<Result<Choice>>,
    /// Rows of prompts, and those of a single token each.
    pub(super) prompt_rows: usize,
    pub(super) decode_rows: usize,
    /// Number of the call that last listed each slot.
    pub(super) seen: Vec<u64>,
    pub(super) call: u64,
}

/// A sequence's part in a pass.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    /// Index in the caller's list.
    pub(super) item: usize,
    pub(super) slot: usize,
    /// Tokens of the history that are evaluated afterwards.
    pub(super) evaluated: usize,
    /// Rows of a prompt among what the pass evaluates for it.
    pub(super) prompt_rows: usize,
    /// Pages before the pass.
    pub(super) pages: usize,
    /// Whether a token can be sampled afterwards.
    pub(super) ready: bool,
    /// Which output of the pass holds its logits; `None` when they are kept from before.
    pub(super) output: Option<usize>,
    /// Drafts that are evaluated behind its last token, each with an output behind that one.
    pub(super) drafts: usize,
    /// What its grammar says of the token; [`Next::Choice`] where it is asked while the pass runs.
    pub(super) next: Next,
    /// Whether it is asked only then.
    pub(super) is_late: bool,
}

/// What became of an item.
#[derive(Clone, Copy)]
pub(super) enum Choice {
    /// Its prompt is not evaluated.
    Pending,
    /// This token follows.
    Token(i32),
    /// The first of the tokens that were drawn ahead follows.
    Ahead,
    /// Its grammar lets no token follow.
    GrammarEnd,
}

impl Pass {
    /// Lists for passes within `limits`.
    pub fn new(limits: &Limits) -> Result<Pass> {
        Ok(Pass {
            rows: reserve(limits.rows, "a batch")?,
            // Of texts each row may be wanted.
            outputs: reserve(limits.rows, "a batch")?,
            parts: reserve(limits.seqs, "a batch")?,
            chooser: Chooser::Device,
            planned: reserve(limits.seqs, "a batch")?,
            is_expected: false,
            chosen: reserve(limits.seqs, "a batch")?,
            prompt_rows: 0,
            decode_rows: 0,
            seen: filled(limits.seqs, 0, "a batch")?,
            call: 0,
        })
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.outputs.clear();
        self.parts.clear();
        self.chooser = Chooser::Device;
        self.planned.clear();
        self.chosen.clear();
        (self.prompt_rows, self.decode_rows) = (0, 0);
        self.call += 1;
    }

    /// Whether the device chooses the tokens.
    pub(super) fn chooses_on_device(&self) -> bool {
        self.chooser == Chooser::Device
    }

    /// Adds rows for `tokens`, the first at `position`; of the last ones the logits are `wanted`. The output of the first of these.
    pub(super) fn add_rows(&mut self, slot: usize, tokens: &[i32], position: usize, wanted: usize) -> Option<usize> {
        let first = (wanted > 0 && !tokens.is_empty()).then_some(self.outputs.len());
        for (index, &token) in tokens.iter().enumerate() {
            let (token, position) = (token as u32, (position + index) as u32);
            if index + wanted >= tokens.len() {
                self.outputs.push(self.rows.len() as u32);
            }
            self.rows.push(Row { token, position, slot: slot as u32 });
        }
        first
    }

    /// Adds the rows of a text, of which vectors of those in `wanted` are read.
    pub(super) fn add_text(&mut self, slot: usize, tokens: &[i32], position: usize, wanted: Range<usize>) {
        let first = self.rows.len();
        self.add_rows(slot, tokens, position, 0);
        self.outputs.extend(wanted.map(|row| (first + row) as u32));
        self.prompt_rows += tokens.len();
    }
}

/// The batch of a pass.
pub(super) fn batch<'a>(pass: &'a Pass, paging: &'a Paging, states: Option<&'a States>) -> Batch<'a> {
    let Pass { rows, outputs, chooser, .. } = pass;
    let (tables, window_tables) = (paging.tables(), paging.window_tables());
    let moves = states.map_or(&[][..], |states| states.moves());
    Batch { rows, outputs, chooser: *chooser, tables, window_tables, moves }
}
