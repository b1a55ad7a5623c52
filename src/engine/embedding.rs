//! Embeddings: vectors of texts, in as few passes as they fit into.
//!
//! A text takes the place of a sequence while it is evaluated, and gives it back with its pages, whatever comes of the call. What is made of its
//! tokens depends on the text alone: rows of other texts never meet its own, and sums run in order of position, however a text is divided.

use super::adapter::Adapter;
use super::pass::batch;
use super::session::{Failure, Session};
use crate::arch::pooling::Pooling;
use crate::arch::spec::Classifier;
use crate::backend::{Scaled, Stage};
use crate::elementary;
use crate::error::{Error, Result, filled};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What a host can choose.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which vector stands for a text; none for what the model was made for.
    pub pooling: Option<Pooling>,
    /// Whether vectors are divided by their length.
    pub normalizes: bool,
    /// Leading elements of a vector that are kept; 0 for all.
    pub dims: usize,
}

/// Texts as tokens, one behind the other.
#[derive(Clone, Copy)]
pub struct Texts<'a> {
    /// All tokens.
    pub tokens: &'a [i32],
    /// How many each text has; together as many as there are.
    pub lengths: &'a [usize],
}

/// What the vectors of a call are.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pooling: Pooling,
    finish: Finish,
    /// Elements of a vector, and how many of them are kept.
    width: usize,
    /// As above.
    pub dims: usize,
    /// How many vectors there are.
    pub vectors: usize,
}

/// What becomes of a vector at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// Nothing.
    Nothing,
    /// It is divided by its length.
    Length,
    /// Its elements become shares of 1, by the softmax of all.
    Shares,
}

impl Form {
    /// Which of a pass's vectors are read.
    fn stage(&self) -> Stage {
        match self.pooling {
            Pooling::None => Stage::Tokens,
            Pooling::Rank => Stage::Scores,
            _ => Stage::Texts,
        }
    }
}

/// The rows of a text in a pass.
#[derive(Clone, Copy)]
pub struct Part {
    /// Number of the text.
    text: usize,
    slot: usize,
    /// Its tokens that are evaluated afterwards.
    evaluated: usize,
    /// Whether it is whole afterwards.
    is_whole: bool,
    /// One behind the last output of the pass that is read for it.
    end: usize,
}

/// How far a call has come.
struct Progress {
    /// The next text, and the place of its first token.
    text: usize,
    start: usize,
    /// Its tokens that are evaluated, and where.
    done: usize,
    slot: Option<usize>,
}

/// Vectors on their way to the host.
struct Pooled {
    form: Form,
    /// Sum of the vectors of the text that is evaluated.
    sum: Vec<f64>,
    vectors: Vec<f32>,
    /// How many are there.
    count: usize,
}

impl Session {
    /// What [`Session::embed`] would give of so many texts and tokens.
    pub fn embedding_form(&self, texts: &Texts, options: &Options) -> Result<Form> {
        let program = self.model.program();
        let embedding =
            program.embedding.as_ref().ok_or_else(|| Error::Unsupported("this model makes no embeddings".into()))?;
        // Where a model says nothing, sentence-transformers takes the mean.
        let pooling = options.pooling.or(self.model.hparams().pooling).unwrap_or(Pooling::Mean);
        let no_classifier = || Error::Unsupported("this model has no classifier, so it gives no scores".into());
        let (value, vectors) = match pooling {
            Pooling::None => (embedding.tokens, texts.tokens.len()),
            Pooling::Rank => (embedding.scores.ok_or_else(no_classifier)?, texts.lengths.len()),
            _ => (embedding.texts, texts.lengths.len()),
        };
        let width = program.values[value.0].width;
        let dims = if options.dims == 0 { width } else { options.dims };
        if dims > width {
            return Err(Error::InvalidArgument(format!("dims is {dims}, vectors of this model have {width} elements")));
        }
        let finish = match (pooling, self.model.arch().classifier) {
            (Pooling::Rank, Classifier::Shares) => Finish::Shares,
            (Pooling::Rank, _) => Finish::Nothing,
            _ if options.normalizes => Finish::Length,
            _ => Finish::Nothing,
        };
        Ok(Form { pooling, finish, width, dims, vectors })
    }

    /// Vectors of `texts`, `form.dims` floats each, made with these adapters: one a text, or without pooling one a token. On failure nothing has
    /// changed, and the failure names the text at fault.
    pub fn embed(
        &mut self,
        texts: &Texts,
        form: &Form,
        adapters: &[(Arc<Adapter>, f32)],
        cancel: &AtomicBool,
    ) -> Result<Vec<f32>, Failure> {
        for (item, length) in texts.lengths.iter().enumerate() {
            self.check_length(*length).map_err(|error| Failure { error, item: Some(item) })?;
        }
        self.check_tokens(texts)?;
        let set = self.set_of(adapters).map_err(|failure| failure.error)?;
        let mut pooled = Pooled::new(form)?;
        let result = self.adapt_free_slots(&set).map_err(Failure::from);
        let result = result.and_then(|()| self.embed_in_passes(texts, &mut pooled, cancel));
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_none() {
                self.leave(slot);
                self.drop_adapters(slot);
            }
        }
        result.map(|()| pooled.vectors)
    }

    /// Lets the slots that texts may take have adapters.
    fn adapt_free_slots(&mut self, set: &[Scaled]) -> Result<()> {
        let mut slots = (0..self.slots.len()).filter(|_| !set.is_empty());
        slots.try_for_each(|slot| if self.slots[slot].is_none() { self.adapt(slot, set) } else { Ok(()) })
    }

    fn check_length(&self, length: usize) -> Result<()> {
        let limit = self.model.hparams().context;
        let (most, at_once) = (self.max_prompt(), self.model.program().sees_ahead());
        match length {
            0 => Err(Error::InvalidArgument("a text has no tokens".into())),
            more if more > limit => Err(Error::ContextFull { length: 0, more, limit }),
            more if at_once && more > most => Err(Error::InvalidArgument(format!(
                "a text has {more} tokens, which this model evaluates in one pass; those of the session have {most} at most (max_prefill, max_prompt)"
            ))),
            _ => Ok(()),
        }
    }

    fn check_tokens(&self, texts: &Texts) -> Result<(), Failure> {
        let (vocab, mut start) = (self.model.vocab(), 0);
        for (item, length) in texts.lengths.iter().enumerate() {
            let tokens = &texts.tokens[start..start + length];
            if let Some(token) = tokens.iter().find(|&&token| token < 0 || token as usize >= vocab) {
                let message = format!("token {token} of text {item} is not in the vocabulary of {vocab}");
                return Err(Failure { error: Error::InvalidArgument(message), item: Some(item) });
            }
            start += length;
        }
        Ok(())
    }

    fn embed_in_passes(&mut self, texts: &Texts, pooled: &mut Pooled, cancel: &AtomicBool) -> Result<(), Failure> {
        let mut at = Progress { text: 0, start: 0, done: 0, slot: None };
        while at.text < texts.lengths.len() {
            let begin = Instant::now();
            self.pass.clear();
            while self.add_part(texts, &mut at, pooled.form.pooling)? {}
            self.run_for_vectors(texts, pooled, cancel)?;
            for index in 0..self.pass.parts.len() {
                let part = self.pass.parts[index];
                if let Some(states) = &mut self.states {
                    states.commit(part.slot, part.evaluated);
                }
                if part.is_whole {
                    self.leave(part.slot);
                }
            }
            self.count_pass(begin);
            self.show();
        }
        Ok(())
    }

    /// Adds what fits of the next text to the pass; false when nothing does. A text that is longer than a pass begins one, and only its last part
    /// leaves room for others.
    fn add_part(&mut self, texts: &Texts, at: &mut Progress, pooling: Pooling) -> Result<bool, Failure> {
        let Some(&length) = texts.lengths.get(at.text) else { return Ok(false) };
        let (room, lacking) = (self.max_prompt() - self.pass.rows.len(), length - at.done);
        let is_first = self.pass.rows.is_empty();
        if lacking > room && !is_first {
            return Ok(false);
        }
        let slot = match at.slot {
            Some(slot) => slot,
            None => match self.take_place(length) {
                Ok(slot) => slot,
                Err(_) if !is_first => return Ok(false),
                Err(error) => return Err(Failure { error, item: Some(at.text) }),
            },
        };
        let taken = lacking.min(room);
        let (start, is_whole) = (at.done, taken == lacking);
        self.make_way(slot, start, taken);
        self.plan_states(slot, taken, true);
        let tokens = &texts.tokens[at.start..][start..start + taken];
        let wanted = match pooling {
            Pooling::None | Pooling::Mean => 0..taken,
            Pooling::First => 0..usize::from(start == 0),
            Pooling::Rank if self.model.program().sees_ahead() => 0..usize::from(start == 0),
            Pooling::Last | Pooling::Rank => taken - usize::from(is_whole)..taken,
        };
        self.pass.add_text(slot, tokens, start, wanted);
        let (evaluated, end) = (start + taken, self.pass.outputs.len());
        self.pass.parts.push(Part { text: at.text, slot, evaluated, is_whole, end });
        (at.done, at.slot) = (evaluated, Some(slot));
        if is_whole {
            *at = Progress { text: at.text + 1, start: at.start + length, done: 0, slot: None };
        }
        Ok(true)
    }

    /// A free slot, with pages for a text of so many tokens.
    fn take_place(&mut self, tokens: usize) -> Result<usize> {
        let is_free = |slot: &usize| self.slots[*slot].is_none() && self.paging.count(*slot) == 0;
        let slot = (0..self.slots.len()).find(is_free).ok_or(Error::SeqFull { limit: self.slots.len() })?;
        self.take_pages(slot, tokens)?;
        Ok(slot)
    }

    /// Gives back what a text has taken.
    fn leave(&mut self, slot: usize) {
        self.paging.shrink(slot, 0);
        self.states.iter_mut().for_each(|states| {
            states.abandon(slot);
            states.clear(slot);
        });
    }

    fn run_for_vectors(&mut self, texts: &Texts, pooled: &mut Pooled, cancel: &AtomicBool) -> Result<()> {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let Session { runner, paging, states, pass, .. } = self;
        let (mut parts, stage) = (pass.parts.iter().peekable(), pooled.form.stage());
        let mut give = |output: usize, vector: &[f32]| {
            while let Some(part) = parts.next_if(|part| part.end <= output) {
                pooled.end_part(part, texts);
            }
            pooled.add(vector);
        };
        runner.embed(&batch(pass, paging, states.as_ref()), stage, cancel, &mut give)?;
        parts.for_each(|part| pooled.end_part(part, texts));
        Ok(())
    }
}

impl Pooled {
    fn new(form: &Form) -> Result<Pooled> {
        let what = "embeddings";
        let len = form.vectors.checked_mul(form.dims).ok_or_else(|| Error::out_of_memory(what, usize::MAX))?;
        Ok(Pooled { form: *form, sum: filled(form.width, 0.0, what)?, vectors: filled(len, 0.0, what)?, count: 0 })
    }

    /// Adds the vector of the next token.
    fn add(&mut self, vector: &[f32]) {
        self.sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += f64::from(*value));
        if self.form.pooling == Pooling::None {
            self.end(1.0);
        }
    }

    /// Ends a text, if this is its last part.
    fn end_part(&mut self, part: &Part, texts: &Texts) {
        match self.form.pooling {
            _ if !part.is_whole => {}
            Pooling::None => {}
            Pooling::Mean => self.end(texts.lengths[part.text] as f64),
            Pooling::First | Pooling::Last | Pooling::Rank => self.end(1.0),
        }
    }

    /// Makes a vector of the sum, which is divided by `divisor`, and begins another.
    fn end(&mut self, divisor: f64) {
        let Form { dims, finish, .. } = self.form;
        if finish == Finish::Shares {
            let most = self.sum.iter().fold(f64::NEG_INFINITY, |most, value| most.max(*value));
            self.sum.iter_mut().for_each(|value| *value = elementary::exp(*value - most));
        }
        let kept = &self.sum[..dims];
        let square: f64 = kept.iter().map(|value| value * value).sum();
        let divisor = match finish {
            // A vector of zeros has no direction, and stays.
            Finish::Length if square > 0.0 => square.sqrt(),
            Finish::Shares => self.sum.iter().sum(),
            _ => divisor,
        };
        let out = &mut self.vectors[self.count * dims..][..dims];
        out.iter_mut().zip(kept).for_each(|(out, value)| *out = (value / divisor) as f32);
        self.count += 1;
        self.sum.fill(0.0);
    }
}
