//! A draft model: another, smaller model with the same tokens that says what a session's sequences may have next.
//!
//! It has a cache of its own, in which each sequence is as far as it was drafted for. It draws as the sequence does, with its seed and its place,
//! so that where the two models think alike they draw alike, at any temperature. What it evaluates is found right or wrong when it is asked again,
//! by comparing tokens, so nobody has to tell it what became of its drafts. A sequence that it lags behind too far, or for which its context is too
//! short, begins anew with its last tokens: drafts become worse by that, never wrong. Whether it pays to ask is decided elsewhere (`speculation`).

use super::limits;
use super::model::Model;
use super::sequence::Sequence;
use super::session::Options;
use crate::backend::{Batch, Chooser, Drawn, Limits, Memory, Row, Runner};
use crate::error::{Error, Result, reserve};
use crate::kv::layout::pages_for;
use crate::kv::paging::Paging;
use crate::sample;
use crate::speculate::{self, Asked, Costs};
use crate::text::tokenizer::Translation;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Tokens of a sequence that it evaluates at once at most, beside one of each sequence: what a step has to wait for.
const MOST_BEHIND: usize = 256;
const WHAT: &str = "a draft model";

/// A draft model at work in a session.
pub struct DraftModel {
    model: Arc<Model>,
    words: Words,
    runner: Box<dyn Runner>,
    limits: Limits,
    paging: Paging,
    scratch: sample::Scratch,
    costs: Costs,
    seen: Vec<Seen>,
    asked: Vec<Ask>,
    /// Rows of the first pass for those that ask.
    first_rows: usize,
    rows: Vec<Row>,
    outputs: Vec<u32>,
}

/// How its tokens are those of the model that it drafts for.
enum Words {
    /// They are the same.
    Same,
    /// The first ones are: one of the two has rows behind them that no text needs.
    First(usize),
    /// Special ones are others.
    Translated(Translation),
}

/// What its cache has of a slot's sequence.
struct Seen {
    /// The token at which it begins.
    base: usize,
    /// Tokens of the sequence up to which it goes; before `base` where it is of no more use.
    evaluated: usize,
    /// Guesses that are evaluated behind these.
    guesses: Vec<i32>,
}

/// A sequence that is drafted for.
struct Ask {
    slot: usize,
    /// Its tokens without drafts.
    length: usize,
    /// Drafts that it asks for.
    count: usize,
}

impl DraftModel {
    /// Lets `draft` draft for the sequences of a session of `model`, up to `most` tokens each at once.
    pub fn new(draft: &Arc<Model>, model: &Model, options: &Options, most: usize) -> Result<DraftModel> {
        if !draft.program().states.is_empty() {
            let problem =
                "layers of the draft model have a state, which does not go back to where its drafts were right";
            return Err(Error::Unsupported(problem.into()));
        }
        if draft.program().logits.is_none() {
            return Err(Error::Unsupported("the draft model makes embeddings alone".into()));
        }
        let words = Words::of(model, draft)?;
        let limits = limits(draft, options)?;
        let each = limits.pages.min(pages_for(limits.context));
        let (mut seen, what) = (reserve(options.max_seqs, WHAT)?, WHAT);
        for _ in 0..options.max_seqs {
            seen.push(Seen { base: 0, evaluated: 0, guesses: reserve(most, what)? });
        }
        Ok(DraftModel {
            words,
            runner: draft.prepared().open(&limits)?,
            paging: Paging::new(options.max_seqs, limits.pages, each, limits.windows)?,
            scratch: sample::Scratch::new(draft.vocab())?,
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
        limits::memory(self.model.backend(), self.model.program(), &self.limits)
    }

    /// Forgets who asked.
    pub fn clear(&mut self) {
        self.asked.clear();
        self.first_rows = 0;
    }

    /// Keeps of a slot what belongs to the first `length` tokens of its sequence.
    pub fn cut(&mut self, slot: usize, length: usize) {
        let seen = &mut self.seen[slot];
        if length < seen.evaluated {
            seen.evaluated = length;
            seen.guesses.clear();
        }
        if length == 0 {
            self.begin(slot, 0);
        }
    }

    /// Finds out what became of the drafts for a slot, whose sequence has these `tokens`, and what it takes to draft for it now.
    pub fn settle(&mut self, slot: usize, tokens: &[i32]) -> Asked<'_> {
        let seen = &mut self.seen[slot];
        let came = tokens.get(seen.evaluated..).unwrap_or_default();
        seen.evaluated += came.iter().zip(&seen.guesses).take_while(|(token, guess)| token == guess).count();
        seen.guesses.clear();
        seen.evaluated = seen.evaluated.min(tokens.len() - 1);
        let (base, evaluated) = (seen.base, seen.evaluated);
        let most = seen.guesses.capacity();
        let is_of_use = evaluated >= base
            && tokens.len() - evaluated <= MOST_BEHIND
            && tokens.len() - base + most <= self.limits.context
            && self.paging.reaches(slot, evaluated - base);
        if is_of_use {
            self.paging.shrink(slot, pages_for(evaluated - base));
        } else {
            let kept = MOST_BEHIND.min(self.limits.context.saturating_sub(most) / 2).max(1);
            self.begin(slot, tokens.len().saturating_sub(kept));
        }
        let behind = tokens.len() - self.seen[slot].evaluated;
        Asked { costs: &self.costs, items: self.asked.len(), rows: self.first_rows, behind }
    }

    fn begin(&mut self, slot: usize, base: usize) {
        let seen = &mut self.seen[slot];
        (seen.base, seen.evaluated) = (base, base);
        seen.guesses.clear();
        self.paging.shrink(slot, 0);
    }

    /// Takes a sequence of `length` tokens, which is settled, among those that [`DraftModel::draft`] makes `count` drafts for, one at least;
    /// whether there is room for that.
    pub fn ask(&mut self, slot: usize, length: usize, count: usize) -> bool {
        let Seen { base, evaluated, .. } = self.seen[slot];
        let end = length - base + count - 1;
        let is_asking = self.asked.iter().any(|ask| ask.slot == slot);
        // Each that asks later has a row at least.
        let others = self.seen.len() - self.asked.len() - 1;
        let has_rows = self.first_rows + (length - evaluated) + others <= self.limits.rows;
        if is_asking || !has_rows || end > self.limits.context || self.paging.grow(slot, end).is_err() {
            return false;
        }
        self.first_rows += length - evaluated;
        self.asked.push(Ask { slot, length, count });
        true
    }

    /// Makes the drafts, which the drafters of the sequences take in: a pass for the first of all that asked, and for each further one.
    pub fn draft(&mut self, sequences: &mut [Option<Sequence>], cancel: &AtomicBool) -> Result<()> {
        let most = self.asked.iter().map(|ask| ask.count).max().unwrap_or(0);
        let result = (0..most).try_for_each(|round| self.round(round, sequences, cancel));
        for &Ask { slot, length, .. } in &self.asked {
            sequence(sequences, slot).tokens.truncate(length);
            if result.is_err() {
                self.seen[slot].guesses.clear();
            }
        }
        result
    }

    /// Makes the draft of that number, from 0 on, for all that ask for so many.
    fn round(&mut self, round: usize, sequences: &mut [Option<Sequence>], cancel: &AtomicBool) -> Result<()> {
        let start = Instant::now();
        let chooser = self.plan(round, sequences);
        if self.rows.is_empty() {
            return Ok(());
        }
        let batch = Batch {
            rows: &self.rows,
            outputs: &self.outputs,
            chooser,
            tables: self.paging.tables(),
            window_tables: self.paging.window_tables(),
            moves: &[],
        };
        self.runner.run(&batch, cancel)?;
        let mut output = 0;
        for index in 0..self.asked.len() {
            let Ask { slot, length, count } = self.asked[index];
            if round >= count {
                continue;
            }
            if round == 0 {
                self.seen[slot].evaluated = length;
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

    /// Lists the rows of a round; who chooses its tokens.
    fn plan(&mut self, round: usize, sequences: &[Option<Sequence>]) -> Chooser {
        self.rows.clear();
        self.outputs.clear();
        let mut chooser = if self.model.context().host_argmax() { Chooser::Host } else { Chooser::Device };
        for &Ask { slot, count, .. } in self.asked.iter().filter(|ask| round < ask.count) {
            debug_assert!(count > 0);
            let Some(sequence) = &sequences[slot] else { continue };
            let (seen, tokens) = (&mut self.seen[slot], &sequence.tokens);
            let start = if round == 0 { seen.evaluated } else { tokens.len() - 1 };
            if round > 0 {
                seen.guesses.push(tokens[start]);
            }
            self.paging.slide(slot, start - seen.base, tokens.len() - seen.base);
            for (index, &token) in tokens.iter().enumerate().skip(start) {
                let position = (index - seen.base) as u32;
                self.rows.push(Row { token: self.words.there(token) as u32, position, slot: slot as u32 });
            }
            let output = self.outputs.len();
            self.outputs.push(self.rows.len() as u32 - 1);
            let is_same = matches!(self.words, Words::Same);
            let (history, position) = (&tokens[..], tokens.len() as u64);
            let drawn = Drawn { options: &sequence.sampler, history, position, is_masked: false };
            if !is_same || !self.runner.draw(output, &drawn) {
                chooser = Chooser::Host;
            }
        }
        chooser
    }

    /// The draft that an output of the pass gives for a sequence.
    fn choose(&mut self, output: usize, chooser: Chooser, sequence: &Sequence) -> Option<i32> {
        let best = (chooser == Chooser::Device).then(|| self.runner.best_token(output)).flatten();
        if let Some(best) = best {
            return Some(best as i32);
        }
        let (logits, history) = (self.runner.logits(output), &sequence.tokens);
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

/// Bytes that a draft model takes in a session with these options, its weights apart.
pub fn memory(draft: &Model, options: &Options) -> Result<Memory> {
    let memory = limits::memory(draft.backend(), draft.program(), &limits(draft, options)?)?;
    Ok(Memory { weights: 0, device_weights: 0, ..memory })
}

fn limits(draft: &Model, options: &Options) -> Result<Limits> {
    let options = Options { max_prefill: MOST_BEHIND, drafts: speculate::Options::OFF, ranks: 0, ..*options };
    limits::of(draft.hparams().context, draft.program(), &options)
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

impl Words {
    /// Refuses a draft model whose tokens of text are others.
    fn of(model: &Model, draft: &Model) -> Result<Words> {
        let (rows, others) = (model.vocab(), draft.vocab());
        let translation = match (model.tokenizer(), draft.tokenizer()) {
            (Ok(a), Ok(b)) => a.translation(b)?,
            (Err(_), Err(_)) if rows == others => None,
            _ => {
                let problem = format!("the draft model has another vocabulary: {others} tokens, {rows} of the model");
                return Err(Error::Unsupported(problem));
            }
        };
        Ok(match translation {
            Some(translation) => Words::Translated(translation),
            None if rows == others => Words::Same,
            None => Words::First(rows.min(others)),
        })
    }

    /// The draft model's token for one of the model: its first one where it has none.
    fn there(&self, token: i32) -> i32 {
        match self {
            Words::Same => token,
            Words::First(count) => {
                if (token as usize) < *count {
                    token
                } else {
                    0
                }
            }
            Words::Translated(translation) => translation.there(token).unwrap_or(0),
        }
    }

    /// The model's token for one of the draft model, if it has it.
    fn back(&self, token: i32) -> Option<i32> {
        match self {
            Words::Same => Some(token),
            Words::First(count) => Some(token).filter(|&token| (token as usize) < *count),
            Words::Translated(translation) => translation.back(token),
        }
    }
}
