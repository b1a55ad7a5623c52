//! A draft model: another, smaller model with the same tokens that says what a session's sequences may have next, the model's own predictor, or one
//! that was made for it: an assistant, or a head.
//!
//! It has a cache of its own, in which each sequence is as far as it was drafted for. It draws as the sequence does, with its seed and its place,
//! so that where the two models think alike they draw alike, at any temperature. What it evaluates is found right or wrong when it is asked again,
//! by comparing tokens, so nobody has to tell it what became of its drafts. A sequence that it lags behind too far, or for which its context is too
//! short, begins anew with its last tokens: drafts become worse by that, never wrong. Whether it pays to ask is decided elsewhere (`speculation`).
//!
//! A predictor reads beside each token what the model's last norm gave of the one before it, so its rows begin with the second token, and a row that
//! was evaluated behind a guess counts for nothing. Each pass of the model leaves these vectors ([`DraftModel::note`]); they wait (`waiting`) for the
//! next drafts, or until they are so many that they are evaluated by themselves: so it has seen all of a text. Where drafts lose, so that nobody has
//! asked for some meanwhile, older ones are dropped instead, and it begins anew with the rest when it is asked again.
//!
//! A head reads what was made of vectors between the model's layers in the place of what the last norm gave, and is the same for the rest.
//!
//! An assistant reads such a vector too, of the last token that the model has evaluated, and has no cache: it sees the keys of the model's runner.

use super::assisting::Lent;
use super::guide::{Guide, Kind, Made, limits, memory_within, most_waiting, own_predictor};
use super::model::Model;
use super::sequence::Sequence;
use super::session::Options;
use super::spread::Spread;
use super::waiting::Waiting;
use super::words::Words;
use crate::backend::{Batch, Chooser, Drawn, Limits, Memory, Row, Runner};
use crate::error::{Error, Result, reserve};
use crate::kv::Reach;
use crate::kv::layout::pages_for;
use crate::kv::paging::{Copies, Paging};
use crate::plan::Program;
use crate::sample;
use crate::speculate::{Asked, Costs};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Tokens of a sequence that it evaluates at once at most, beside one of each sequence: what a step has to wait for.
pub(super) const MOST_BEHIND: usize = 256;
/// Passes that could have asked for drafts and did not, from which on vectors that no longer fit are forgotten.
pub(super) const MOST_PASSED_OVER: usize = 8;
/// Vectors of a sequence that wait for a predictor at most, or as many as two passes with drafts leave.
pub(super) const MOST_WAITING: usize = 32;
const WHAT: &str = "a draft model";

/// A draft model at work in a session.
pub struct DraftModel {
    pub(super) kind: Kind,
    model: Arc<Model>,
    /// What its runner runs.
    program: Arc<Program>,
    /// Bytes of weights that the session's model does not have itself.
    own: Memory,
    words: Words,
    /// What a predictor or an assistant reads beside tokens.
    pub(super) waiting: Option<Waiting>,
    pub(super) runner: Box<dyn Runner>,
    pub(super) limits: Limits,
    pub(super) paging: Paging,
    /// Makes its logits those of all tokens, where it has them of some.
    spread: Option<Spread>,
    scratch: sample::Scratch,
    pub(super) costs: Costs,
    pub(super) seen: Vec<Seen>,
    pub(super) asked: Vec<Ask>,
    /// Rows of the first pass for those that ask.
    pub(super) first_rows: usize,
    pub(super) rows: Vec<Row>,
    pub(super) outputs: Vec<u32>,
}

/// What its cache has of a slot's sequence; nothing ever where it has none.
pub(super) struct Seen {
    /// The token at which it begins; with a predictor the one before it, as in all that follows.
    pub(super) base: usize,
    /// Tokens of the sequence up to which it goes; before `base` where it is of no more use.
    pub(super) evaluated: usize,
    /// Guesses that are evaluated behind these.
    guesses: Vec<i32>,
    /// Times that it could have been asked since it was.
    pub(super) passed_over: usize,
}

/// A sequence that is drafted for.
pub(super) struct Ask {
    slot: usize,
    /// Its tokens without drafts.
    length: usize,
    /// Drafts that it asks for.
    count: usize,
}

impl DraftModel {
    /// Lets `draft` draft for the sequences of a session of `model`, whose keys `runner` has, up to `most` tokens each at once.
    pub fn new(
        draft: &Arc<Model>,
        model: &Model,
        runner: &dyn Runner,
        options: &Options,
        most: usize,
    ) -> Result<DraftModel> {
        if draft.program().borrows_keys() {
            return DraftModel::of_assistant(draft, model, runner, options, most);
        }
        if draft.program().fusion.is_some() {
            return DraftModel::of_eagle(draft, model, options, most);
        }
        if !draft.program().states.is_empty() {
            let problem =
                "layers of the draft model have a state, which does not go back to where its drafts were right";
            return Err(Error::Unsupported(problem.into()));
        }
        if draft.program().logits.is_none() {
            return Err(Error::Unsupported("the draft model makes embeddings alone".into()));
        }
        let words = Words::of(model, draft)?;
        let made = Made {
            kind: Kind::Other,
            program: draft.shared_program(),
            prepared: Arc::clone(draft.prepared()),
            own: Memory::default(),
            words,
            waiting: None,
            lender: None,
        };
        DraftModel::open(draft, made, options, most)
    }

    /// Lets the predictor of `model` draft for the sequences of a session of it.
    pub fn of_predictor(model: &Arc<Model>, options: &Options, most: usize) -> Result<DraftModel> {
        let width = model.hparams().hidden;
        let waiting = Waiting::new(options.max_seqs, most_waiting(most), width)?;
        let predictor = own_predictor(model)?;
        let prepared = predictor.on_device(model.prepared().as_ref())?;
        let made = Made {
            kind: Kind::Predictor,
            program: Arc::clone(&predictor.program),
            prepared,
            own: predictor.own,
            words: Words::Same,
            waiting: Some(waiting),
            lender: None,
        };
        DraftModel::open(model, made, options, most)
    }

    pub(super) fn open(draft: &Arc<Model>, made: Made, options: &Options, most: usize) -> Result<DraftModel> {
        let Made { kind, program, prepared, own, words, waiting, lender } = made;
        let (backend, context) = (draft.backend(), draft.hparams().context);
        let limits = limits(&Guide { kind, backend, program: &program, context, own }, options)?;
        let spread = program.subset.as_ref().map(Spread::new).transpose()?;
        let pages = limits.own_pages(&program, Reach::Whole);
        let (each, windows) = (pages.min(pages_for(limits.context)), limits.windows.filter(|_| lender.is_none()));
        let (mut seen, what) = (reserve(options.max_seqs, WHAT)?, WHAT);
        for _ in 0..options.max_seqs {
            seen.push(Seen { base: 0, evaluated: 0, guesses: reserve(most, what)?, passed_over: 0 });
        }
        Ok(DraftModel {
            kind,
            scratch: sample::Scratch::new(program.vocab())?,
            program,
            own,
            words,
            waiting,
            runner: match lender {
                Some(lender) => prepared.open_over(&limits, lender)?,
                None => prepared.open(&limits)?,
            },
            paging: Paging::new(options.max_seqs, pages, each, windows)?,
            spread,
            costs: Costs::new(limits.rows)?,
            seen,
            asked: reserve(options.max_seqs, what)?,
            first_rows: 0,
            rows: reserve(limits.rows, what)?,
            outputs: reserve(limits.outputs, what)?,
            limits,
            model: Arc::clone(draft),
        })
    }

    /// Bytes that it takes, its weights included.
    pub fn memory(&self) -> Result<Memory> {
        let most = self.seen.first().map_or(0, |seen| seen.guesses.capacity());
        let (kind, program, own) = (self.kind, &*self.program, self.own);
        let (backend, context) = (self.model.backend(), self.model.hparams().context);
        memory_within(&Guide { kind, backend, program, context, own }, &self.limits, most)
    }

    /// Whether it reads what the model's last norm gives.
    pub fn reads_vectors(&self) -> bool {
        self.waiting.is_some()
    }

    /// Tokens at the beginning of a sequence that have no row.
    fn skipped(&self) -> usize {
        usize::from(self.waiting.is_some())
    }

    /// Forgets who asked.
    pub fn clear(&mut self) {
        self.asked.clear();
        self.first_rows = 0;
    }

    /// Keeps of a slot what belongs to the first `length` tokens of its sequence.
    pub fn cut(&mut self, slot: usize, length: usize) {
        self.waiting.iter_mut().for_each(|waiting| waiting.cut(slot, length));
        let rows = length.saturating_sub(self.skipped());
        let seen = &mut self.seen[slot];
        if rows < seen.evaluated {
            seen.evaluated = rows;
            seen.guesses.clear();
        }
        if length == 0 {
            self.begin(slot, 0);
            self.seen[slot].passed_over = 0;
        }
    }

    /// Finds out what became of the drafts for a slot, whose sequence has these `tokens`, and what it takes to draft for it now; nothing where it
    /// cannot.
    pub fn settle(&mut self, slot: usize, tokens: &[i32]) -> Option<Asked<'_>> {
        if self.reads_keys() {
            return self.settle_over(slot, tokens);
        }
        let skipped = self.skipped();
        let seen = &mut self.seen[slot];
        let came = tokens.get(seen.evaluated..).unwrap_or_default();
        if skipped == 0 {
            seen.evaluated += came.iter().zip(&seen.guesses).take_while(|(token, guess)| token == guess).count();
        }
        seen.guesses.clear();
        let rows = tokens.len() - skipped;
        seen.evaluated = seen.evaluated.min(rows.checked_sub(1)?);
        let most = seen.guesses.capacity();
        let vectors = self.waiting.as_mut().map(|waiting| waiting.settle(slot, tokens));
        if vectors.as_ref().is_some_and(|vectors| vectors.end < rows || vectors.start >= rows) {
            return None;
        }
        let (base, evaluated) = (self.seen[slot].base, self.seen[slot].evaluated);
        let is_of_use = evaluated >= base
            && rows - evaluated <= MOST_BEHIND
            && vectors.as_ref().is_none_or(|vectors| vectors.start <= evaluated)
            && rows - base + most <= self.limits.context
            && self.paging.reaches(slot, evaluated - base);
        if is_of_use {
            let copies = self.paging.truncate(slot, pages_for(evaluated - base));
            self.copy_pages(copies);
        } else {
            let kept = MOST_BEHIND.min(self.limits.context.saturating_sub(most) / 2).max(1);
            let first = rows.saturating_sub(kept);
            self.begin(slot, vectors.map_or(first, |vectors| first.max(vectors.start)));
        }
        self.seen[slot].passed_over += 1;
        let behind = rows - self.seen[slot].evaluated;
        Some(Asked { costs: &self.costs, items: self.asked.len(), rows: self.first_rows, behind })
    }

    pub(super) fn copy_pages(&mut self, copies: Copies) {
        copies.into_iter().flatten().for_each(|(reach, copy)| self.runner.copy_page(reach, copy.from, copy.to));
    }

    pub(super) fn begin(&mut self, slot: usize, base: usize) {
        let seen = &mut self.seen[slot];
        (seen.base, seen.evaluated) = (base, base);
        seen.guesses.clear();
        self.paging.shrink(slot, 0);
    }

    /// Takes a sequence of `length` tokens, which is settled, among those that [`DraftModel::draft`] makes `count` drafts for, one at least;
    /// whether there is room for that.
    pub fn ask(&mut self, slot: usize, length: usize, count: usize) -> bool {
        if self.asked.iter().any(|ask| ask.slot == slot) {
            return false;
        }
        if self.reads_keys() {
            self.first_rows += 1;
            self.asked.push(Ask { slot, length, count });
            return true;
        }
        let Seen { base, evaluated, .. } = self.seen[slot];
        let rows = length - self.skipped();
        let end = rows - base + count - 1;
        // Each that asks later has a row at least.
        let others = self.seen.len() - self.asked.len() - 1;
        let has_rows = self.first_rows + (rows - evaluated) + others <= self.limits.rows;
        if !has_rows || end > self.limits.context || self.paging.grow(slot, end).is_err() {
            return false;
        }
        self.seen[slot].passed_over = 0;
        self.first_rows += rows - evaluated;
        self.asked.push(Ask { slot, length, count });
        true
    }

    /// Makes the drafts, which the drafters of the sequences take in: a pass for the first of all that asked, and for each further one.
    pub fn draft(&mut self, sequences: &mut [Option<Sequence>], lent: Lent, cancel: &AtomicBool) -> Result<()> {
        let most = self.asked.iter().map(|ask| ask.count).max().unwrap_or(0);
        let result = (0..most).try_for_each(|round| self.round(round, sequences, lent, cancel));
        for &Ask { slot, length, .. } in &self.asked {
            sequence(sequences, slot).tokens.truncate(length);
            if result.is_err() {
                self.seen[slot].guesses.clear();
            }
        }
        result
    }

    /// Makes the draft of that number, from 0 on, for all that ask for so many.
    fn round(
        &mut self,
        round: usize,
        sequences: &mut [Option<Sequence>],
        lent: Lent,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let start = Instant::now();
        let chooser = self.plan(round, sequences);
        if self.rows.is_empty() {
            return Ok(());
        }
        self.run_round(chooser, lent, cancel)?;
        let (mut output, skipped) = (0, self.skipped());
        for index in 0..self.asked.len() {
            let Ask { slot, length, count } = self.asked[index];
            if round >= count {
                continue;
            }
            if round == 0 && !self.reads_keys() {
                self.seen[slot].evaluated = length - skipped;
            }
            if let Some(waiting) = &mut self.waiting {
                waiting.guess(slot, self.runner.hidden(output));
            }
            match self.choose(output, chooser, sequence(sequences, slot)) {
                Some(draft) => sequence(sequences, slot).draft(draft),
                // What it says has no place in the text.
                None => self.asked[index].count = round,
            }
            output += 1;
        }
        self.costs.note(self.rows.len(), start.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn run_round(&mut self, chooser: Chooser, lent: Lent, cancel: &AtomicBool) -> Result<()> {
        let DraftModel { kind, rows, outputs, paging, runner, .. } = self;
        match (kind, lent.runner.lend()) {
            (Kind::Assistant { .. }, Some(keys)) => {
                runner.run_over(keys, &batch(rows, outputs, chooser, lent.paging), cancel)
            }
            _ => runner.run(&batch(rows, outputs, chooser, paging), cancel),
        }
    }

    /// Lists the rows of a round; who chooses its tokens.
    fn plan(&mut self, round: usize, sequences: &[Option<Sequence>]) -> Chooser {
        self.rows.clear();
        self.outputs.clear();
        let mut chooser = if self.model.context().host_argmax() { Chooser::Host } else { Chooser::Device };
        for index in 0..self.asked.len() {
            let Ask { slot, length, count } = self.asked[index];
            let Some(sequence) = sequences[slot].as_ref().filter(|_| round < count) else { continue };
            let tokens = &sequence.tokens;
            match self.kind {
                Kind::Assistant { .. } => self.add_row_over(slot, length - 1, tokens),
                Kind::Other | Kind::Predictor | Kind::Eagle => self.add_rows_of_round(round, slot, tokens),
            }
            let output = self.outputs.len();
            self.outputs.push(self.rows.len() as u32 - 1);
            let is_same = matches!(self.words, Words::Same);
            // The device knows a head's tokens by numbers of their own, and would draw in their order.
            let is_told = self.spread.is_none() || sample::is_plain_greedy(&sequence.sampler);
            let (history, position) = (&tokens[..], tokens.len() as u64);
            let drawn = Drawn { options: &sequence.sampler, history, position, is_masked: false };
            if !is_same || !is_told || !self.runner.draw(output, &drawn) {
                chooser = Chooser::Host;
            }
        }
        chooser
    }

    /// Adds the rows that a sequence of these `tokens` lacks for its next draft.
    fn add_rows_of_round(&mut self, round: usize, slot: usize, tokens: &[i32]) {
        let (end, seen) = (tokens.len() - self.skipped(), &mut self.seen[slot]);
        let start = if round == 0 { seen.evaluated } else { end - 1 };
        if round > 0 {
            seen.guesses.push(tokens[start]);
        }
        self.paging.slide(slot, start - seen.base, end - seen.base);
        self.add_rows(slot, start..end, tokens);
    }

    /// Lets the next row bring along the vector of the token at `place`, or that of its last guess.
    pub(super) fn give_vector(&mut self, slot: usize, place: usize) {
        let Some(waiting) = &self.waiting else { return };
        let vector = if waiting.has(slot, place) { waiting.of(slot, place) } else { waiting.guessed(slot) };
        self.runner.given(self.rows.len()).copy_from_slice(vector);
    }

    /// Adds the rows `places` of a sequence of these `tokens` to the next pass; a predictor's are those of the tokens behind, with the vectors of
    /// their own places.
    pub(super) fn add_rows(&mut self, slot: usize, places: Range<usize>, tokens: &[i32]) {
        for place in places {
            self.give_vector(slot, place);
            self.add_row(slot, place, tokens);
        }
    }

    /// Adds the row of one such place, whose vector is there.
    pub(super) fn add_row(&mut self, slot: usize, place: usize, tokens: &[i32]) {
        let (token, position) = (self.words.there(tokens[place + self.skipped()]), place - self.seen[slot].base);
        self.rows.push(Row { token: token as u32, position: position as u32, slot: slot as u32 });
    }

    /// The draft that an output of the pass gives for a sequence.
    fn choose(&mut self, output: usize, chooser: Chooser, sequence: &Sequence) -> Option<i32> {
        let best = (chooser == Chooser::Device).then(|| self.runner.best_token(output)).flatten();
        if let Some(best) = best {
            return self.spread.as_ref().map_or(Some(best), |spread| spread.token(best)).map(|token| token as i32);
        }
        let logits = self.runner.logits(output);
        let logits = self.spread.as_mut().map_or(logits, |spread| spread.over(logits));
        let history = &sequence.tokens;
        let (mask, position) = (sample::Mask::default(), history.len() as u64);
        let drawn = match &self.words {
            Words::Same => {
                sample::sample_masked(&sequence.sampler, logits, &mask, history, position, &mut self.scratch)
            }
            // Tokens that bias and penalties name may be others here.
            _ => sample::sample_masked(&plain(&sequence.sampler), logits, &mask, &[], position, &mut self.scratch),
        };
        self.words.back(drawn.ok()?)
    }
}

/// The batch of a pass.
pub(super) fn batch<'a>(rows: &'a [Row], outputs: &'a [u32], chooser: Chooser, paging: &'a Paging) -> Batch<'a> {
    let (tables, window_tables) = (paging.tables(), paging.window_tables());
    Batch { rows, outputs, chooser, tables, window_tables, moves: &[] }
}

fn sequence(sequences: &mut [Option<Sequence>], slot: usize) -> &mut Sequence {
    sequences[slot].as_mut().expect("only open sequences ask for drafts")
}

/// A sampler without what names tokens.
fn plain(sampler: &sample::Options) -> sample::Options {
    let (bias, stop_tokens) = (Vec::new(), Vec::new());
    let (repeat_penalty, frequency_penalty, presence_penalty) = (1.0, 0.0, 0.0);
    sample::Options { bias, stop_tokens, repeat_penalty, frequency_penalty, presence_penalty, ..*sampler }
}
