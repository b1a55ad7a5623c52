//! A session: everything that changes while a model runs. Sequences are opened, grown, forked, cut and closed here; `batch` advances
//! them.
//!
//! All memory is reserved in [`Session::create`] and [`Session::open`]; a step allocates nothing.

use super::context::LogLevel;
use super::eagle;
use super::guide;
use super::limits;
use super::masks::MaskThreads;
use super::model::Model;
use super::sequence::{Pending, Sequence};
use super::speculation::{self, Speculation};
use super::stats::{self, Done, Shown};
use crate::backend::{KvType, Limits, Memory, Runner};
use crate::error::{Error, Result, copied, filled, reserve, room};
use crate::grammar::{Constraint, Grammar};
use crate::kv::layout::{PAGE_TOKENS, pages_for};
use crate::kv::paging::{Copies, Paging};
use crate::kv::state::States;
use crate::sample;
use crate::speculate::{self, Costs};
use std::collections::HashMap;
use std::sync::Arc;

/// What a host can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most sequences open at once.
    pub max_seqs: usize,
    /// Tokens that the cache holds for all sequences together; 0 means the model's context, at most 8192.
    pub kv_tokens: u64,
    /// Most prompt tokens of one pass.
    pub max_prefill: usize,
    /// The same of passes that no running stream waits for, where that is more; 0 means what suits the device.
    pub max_prompt: usize,
    /// Element type of the cache.
    pub kv_type: KvType,
    /// Marks of models with states, for all sequences together; 0 means one for each sequence and a few more.
    pub marks: usize,
    /// Which drafts are made.
    pub drafts: speculate::Options,
    /// Ranks of adapters that there is room for from the start.
    pub ranks: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_seqs: 8,
            kv_tokens: 0,
            max_prefill: 512,
            max_prompt: 0,
            kv_type: KvType::F16,
            marks: 0,
            drafts: speculate::Options::OFF,
            ranks: 0,
        }
    }
}

/// An error, and the item of a list that it concerns.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong.
    pub error: Error,
    /// Index of the item at fault.
    pub item: Option<usize>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, item: None }
    }
}

/// What a step did for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A token was sampled.
    Token(i32),
    /// A token was sampled that ends generation.
    Done(i32),
    /// The prompt is not fully evaluated yet.
    Pending,
    /// Nothing was sampled: the text of the grammar has ended, and no token that ends generation may follow.
    GrammarEnd,
}

/// Sequences of one model, their cache and their buffers.
pub struct Session {
    pub(super) model: Arc<Model>,
    pub(super) runner: Box<dyn Runner>,
    pub(super) paging: Paging,
    /// Where the states of layers without keys are, in models that have such.
    pub(super) states: Option<States>,
    pub(super) slots: Vec<Option<Sequence>>,
    slot_of: HashMap<i32, usize>,
    next_id: i32,
    max_prefill: usize,
    max_prompt: usize,
    pub(super) limits: Limits,
    /// Room that a sequence's history has from the start: all that the cache can hold, and one sampled token.
    pub(super) history: usize,
    /// Logits that outlive their pass, a row for each slot.
    pub(super) logits: Vec<f32>,
    pub(super) scratch: sample::Scratch,
    pub(super) pass: super::pass::Pass,
    /// Who works out masks while a device is at work.
    pub(super) masks: MaskThreads,
    /// What drafts are made with, where some are.
    pub(super) speculation: Option<Box<Speculation>>,
    /// Most drafts of a sequence in a pass.
    pub(super) most_drafts: usize,
    /// What passes have taken.
    pub(super) costs: Costs,
    /// What the passes have done.
    pub(super) done: Done,
    shown: Shown,
}

impl Session {
    /// Reserves everything. `draft` is the model that drafts, where the options want one.
    pub fn create(model: &Arc<Model>, options: &Options, draft: Option<&Arc<Model>>) -> Result<Session> {
        let context = model.hparams().context;
        let (helper, predictor) = (draft.map(|draft| &**draft), model.predictor().map(|_| ()));
        if model.program().only_drafts() {
            let problem =
                "this model only drafts for another one: name it as `draft` in the options of a session of that";
            return Err(Error::Unsupported(problem.into()));
        }
        let predicts = speculation::predicts(options, draft.is_some(), predictor)?;
        let hidden = speculation::hidden(options, helper, predictor)?;
        let is_limited = model.origin().device_memory > 0;
        let free = if is_limited { 0 } else { model.backend().memory_free()? };
        let options = &limits::with_prompts(options, model.backend(), context, model.program(), free)?;
        let limits = Limits { hidden, ..limits::of(context, model.program(), options)? };
        let vocab = model.vocab();
        let memory = limits::memory(model.backend(), model.program(), &limits)?;
        let guide = if predicts { Some(guide::of_predictor(model)?) } else { None };
        let of = (model.backend(), model.program(), model.hparams());
        let drafting = speculation::memory(options, helper, of, guide.as_ref().ok_or(""))?;
        let own = guide.map_or(0, |guide| if model.mapped() > 0 { guide.own.weights } else { 0 });
        let read = draft.map_or(own, |draft| draft.mapped());
        let needed = memory.on_host(model.mapped()).saturating_add(drafting.on_host(read));
        model.context().require_memory(needed, "a session and its model")?;
        let mut slots = reserve(options.max_seqs, "sequences")?;
        slots.resize_with(options.max_seqs, || None);
        let mut slot_of = HashMap::new();
        room(options.max_seqs, "sequences", || slot_of.try_reserve(options.max_seqs))?;
        let runner = eagle::prepared_for(model, helper)?.open(&limits)?;
        if let Some(warning) = runner.warning() {
            model.context().log(LogLevel::Warn, format_args!("{warning}"));
        }
        let speculation = Speculation::new(model, &*runner, options, &limits, draft)?;
        let session = Session {
            runner,
            paging: Paging::new(options.max_seqs, limits.pages, limits.pages.min(pages_for(context)), limits.windows)?,
            states: if limits.records > 0 {
                Some(States::new(options.max_seqs, limits::marks(options)?, limits.have_drafts())?)
            } else {
                None
            },
            slots,
            slot_of,
            next_id: 0,
            max_prefill: options.max_prefill,
            max_prompt: options.max_prompt,
            limits,
            history: context.min(limits.pages * PAGE_TOKENS + 1),
            logits: filled(limits::logits_len(options.max_seqs, model.program())?, 0.0, "logits")?,
            scratch: sample::Scratch::new(vocab)?,
            pass: super::pass::Pass::new(&limits)?,
            masks: MaskThreads::new(model.context().load_threads(), model.context().gives_way()),
            most_drafts: options.drafts.most_each(options.max_prefill)?,
            speculation,
            costs: Costs::new(limits.rows)?,
            done: Done::default(),
            shown: Shown::new(options.max_seqs)?,
            model: Arc::clone(model),
        };
        session.show();
        Ok(session)
    }

    /// Where the figures of this session are read, beside a running call too.
    pub fn shown(&self) -> &Shown {
        &self.shown
    }

    /// Shows the figures of now. For the end of every call, whatever came of it, and of every pass of a long one.
    pub fn show(&self) {
        let slots = self.slots.iter().enumerate();
        let slots = slots.map(|(slot, sequence)| (sequence.as_ref(), self.paging.count(slot)));
        self.shown.write(self.paging.pages(), &self.done, slots);
    }

    /// The model that it runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Bytes that it takes, the model's weights included.
    pub fn memory(&self) -> Result<Memory> {
        let memory = limits::memory(self.model.backend(), self.model.program(), &self.limits)?;
        let drafting = self.speculation.as_ref().map(|speculation| speculation.memory()).transpose()?;
        Ok(drafting.map_or(memory, |drafting| memory.with(&drafting)))
    }

    /// Most prompt tokens of one pass.
    pub(super) fn max_prefill(&self) -> usize {
        self.max_prefill
    }

    /// Most prompt tokens of a pass that no running stream waits for.
    pub(super) fn max_prompt(&self) -> usize {
        self.max_prompt
    }

    /// Opens an empty sequence.
    pub fn open(&mut self, sampler: sample::Options) -> Result<i32> {
        let slot = self.free_slot()?;
        let id = self.next_id()?;
        sampler.validate(self.model.vocab())?;
        let sequence = self.new_sequence(id, self.history, sampler)?;
        self.occupy(slot, sequence);
        Ok(id)
    }

    /// An empty sequence with room for `capacity` tokens, and with what drafts them.
    pub(super) fn new_sequence(&self, id: i32, capacity: usize, sampler: sample::Options) -> Result<Sequence> {
        if self.model.program().logits.is_none() {
            let arch = self.model.arch().name;
            let problem = format!("`{arch}` models make embeddings (segno_embed) and have no sequences to decode");
            return Err(Error::Unsupported(problem));
        }
        let mut sequence = Sequence::new(id, capacity, sampler)?;
        if self.states.is_some() {
            sequence.state = 0;
        }
        if let Some(speculation) = &self.speculation {
            sequence.drafter = Some(Box::new(speculation.drafter(capacity)?));
            sequence.ahead = reserve(speculation.most_ahead(), "drafts")?;
        }
        Ok(sequence)
    }

    /// Opens a sequence with the history of another; its sampler too unless `sampler` gives a new one, but for a seed taken at random.
    pub fn fork(&mut self, id: i32, sampler: Option<sample::Options>) -> Result<i32> {
        let source = self.slot(id)?;
        let slot = self.free_slot()?;
        let new_id = self.next_id()?;
        let parent = self.sequence(source);
        let sampler = sampler.map_or_else(|| parent.sampler_of_fork(), Ok)?;
        sampler.validate(self.model.vocab())?;
        let capacity = self.history.max(parent.tokens.len() + 1);
        let mut sequence = self.new_sequence(new_id, capacity, sampler)?;
        sequence.constraint = parent.constraint.as_deref().map(|parent| parent.fork().map(Box::new)).transpose()?;
        if !parent.ahead.is_empty() {
            // What the parent has drawn ahead is not handed out yet.
            sequence.constraint.iter_mut().for_each(|constraint| constraint.cut(parent.tokens.len()));
        }
        sequence.tokens.extend_from_slice(&parent.tokens);
        (sequence.evaluated, sequence.state) = (parent.evaluated, parent.state);
        sequence.has_logits = parent.has_logits;
        sequence.adapters = self.copy_adapters(source, slot)?;
        let copies = match self.paging.fork(source, slot) {
            Ok(copies) => copies,
            Err(needed) => {
                self.drop_adapters(slot);
                return Err(self.kv_full(needed));
            }
        };
        self.copy_pages(copies);
        let draft = self.speculation.as_mut().and_then(|speculation| speculation.draft.as_mut());
        draft.into_iter().for_each(|draft| draft.fork(source, slot));
        self.states.iter_mut().for_each(|states| states.fork(source, slot));
        if sequence.has_logits {
            let vocab = self.model.vocab();
            self.logits.copy_within(source * vocab..(source + 1) * vocab, slot * vocab);
        }
        self.occupy(slot, sequence);
        Ok(new_id)
    }

    /// Gives a sequence another sampler, from its next token on.
    pub fn set_sampler(&mut self, id: i32, sampler: sample::Options) -> Result<()> {
        let slot = self.slot(id)?;
        sampler.validate(self.model.vocab())?;
        self.sequence_mut(slot).set_sampler(sampler);
        Ok(())
    }

    /// Lets the tokens that a sequence samples from now on, or behind the next token `trigger`, follow `grammar`; `None` sets it free.
    pub fn set_grammar(&mut self, id: i32, grammar: Option<&Arc<Grammar>>, trigger: Option<i32>) -> Result<()> {
        let slot = self.slot(id)?;
        let vocab = self.model.vocab();
        if let Some(token) = trigger.filter(|&token| token < 0 || token as usize >= vocab) {
            return Err(Error::InvalidArgument(format!("start_token {token} is not in the vocabulary of {vocab}")));
        }
        let constraint = match grammar {
            Some(grammar) if !self.model.made(grammar) => {
                return Err(Error::InvalidArgument("`grammar` was compiled for another model".into()));
            }
            Some(grammar) => Some(Box::new(Constraint::new(grammar, trigger)?)),
            None => None,
        };
        let sequence = self.sequence_mut(slot);
        sequence.forget_ahead();
        sequence.constraint = constraint;
        Ok(())
    }

    /// Keeps the first `length` tokens.
    pub fn truncate(&mut self, id: i32, length: usize) -> Result<()> {
        let slot = self.slot(id)?;
        self.sequence(slot).check_cut(length)?;
        self.cut(slot, length);
        Ok(())
    }

    /// Takes `count` tokens out of a sequence, from `first` on; those behind them are queued.
    pub fn remove(&mut self, id: i32, first: usize, count: usize) -> Result<()> {
        let slot = self.slot(id)?;
        self.sequence(slot).check_removal(first, count)?;
        if count == 0 {
            return Ok(());
        }
        let sequence = self.sequence_mut(slot);
        let rest = copied(&sequence.tokens[first + count..], "a sequence")?;
        sequence.forget_ahead();
        let constraint = sequence.constraint.take();
        self.cut(slot, first);
        let sequence = self.sequence_mut(slot);
        sequence.tokens.extend_from_slice(&rest);
        sequence.constraint = constraint;
        sequence.constraint.iter_mut().for_each(|constraint| constraint.close_gap(first..first + count));
        Ok(())
    }

    /// Gives up a sequence and its pages.
    pub fn close(&mut self, id: i32) -> Result<()> {
        let slot = self.slot(id)?;
        self.paging.shrink(slot, 0);
        self.states.iter_mut().for_each(|states| states.clear(slot));
        self.cut_draft(slot, 0);
        self.drop_adapters(slot);
        self.slots[slot] = None;
        self.slot_of.remove(&id);
        Ok(())
    }

    /// Queues prompt tokens.
    pub fn append(&mut self, id: i32, tokens: &[i32]) -> Result<(), Failure> {
        let slot = self.slot(id)?;
        let vocab = self.model.vocab();
        if let Some(item) = tokens.iter().position(|&token| token < 0 || token as usize >= vocab) {
            let message = format!("token {} is not in the vocabulary of {vocab}", tokens[item]);
            return Err(Failure { error: Error::InvalidArgument(message), item: Some(item) });
        }
        let context = self.model.hparams().context;
        Ok(self.sequence_mut(slot).append(tokens, context)?)
    }

    /// Tokens of a sequence: evaluated, queued and sampled.
    pub fn length(&self, id: i32) -> Result<usize> {
        Ok(self.sequence(self.slot(id)?).tokens.len())
    }

    /// The tokens of a sequence.
    pub(super) fn tokens(&self, id: i32) -> Result<&[i32]> {
        Ok(&self.sequence(self.slot(id)?).tokens)
    }

    /// Tokens of a sequence that are evaluated before its next one can be sampled.
    pub(super) fn lacking(&self, id: i32) -> Result<usize> {
        Ok(self.sequence(self.slot(id)?).pending().count)
    }

    /// Most tokens that a sequence can have here: the model's context, or what the cache holds.
    pub(super) fn capacity(&self) -> usize {
        self.limits.context
    }

    /// Slot of the sequence `id`.
    pub(super) fn slot(&self, id: i32) -> Result<usize> {
        self.slot_of.get(&id).copied().ok_or_else(|| stats::not_open(id))
    }

    pub(super) fn sequence(&self, slot: usize) -> &Sequence {
        self.slots[slot].as_ref().expect("only occupied slots have ids")
    }

    pub(super) fn sequence_mut(&mut self, slot: usize) -> &mut Sequence {
        self.slots[slot].as_mut().expect("only occupied slots have ids")
    }

    /// Cuts a sequence, and gives up the pages behind what stays evaluated: nothing where layers with a window lack what the next token sees,
    /// and where layers have states, what the last snapshot before the cut holds.
    pub(super) fn cut(&mut self, slot: usize, length: usize) {
        let sequence = self.slots[slot].as_mut().expect("only occupied slots have ids");
        sequence.truncate(length);
        self.cut_draft(slot, length);
        let sequence = self.slots[slot].as_mut().expect("only occupied slots have ids");
        if let Some(states) = &mut self.states {
            sequence.state = states.cut(slot, length);
            sequence.evaluated = sequence.state;
        }
        self.give_up_behind(slot);
    }

    fn cut_draft(&mut self, slot: usize, length: usize) {
        let draft = self.speculation.as_mut().and_then(|speculation| speculation.draft.as_mut());
        draft.into_iter().for_each(|draft| draft.cut(slot, length));
    }

    /// Gives up the pages behind what a sequence has evaluated, and everything where layers with a window lack what its next token sees.
    fn give_up_behind(&mut self, slot: usize) {
        if !self.paging.reaches(slot, self.sequence(slot).pending().start) {
            self.evaluate_anew(slot);
        }
        let copies = self.paging.truncate(slot, pages_for(self.sequence(slot).evaluated));
        self.copy_pages(copies);
    }

    /// Lets a sequence count as evaluated nowhere.
    pub(super) fn evaluate_anew(&mut self, slot: usize) {
        let sequence = self.slots[slot].as_mut().expect("only occupied slots have ids");
        sequence.evaluated = 0;
        if let Some(states) = &mut self.states {
            states.clear(slot);
            sequence.state = 0;
        }
    }

    /// Brings the states of a sequence to where its next evaluation begins: before the last token, where that is evaluated again.
    pub(super) fn settle(&mut self, slot: usize) {
        let Pending { start, count } = self.sequence(slot).pending();
        let Some(states) = self.states.as_mut().filter(|states| count > 0 && states.length(slot) > start) else {
            return;
        };
        let state = states.rewind(slot, start);
        let most = self.most_drafts;
        self.sequence_mut(slot).go_back(state, most);
        self.give_up_behind(slot);
    }

    /// Keeps a snapshot of a sequence's states, to which a cut to the present length can go back.
    pub fn mark(&mut self, id: i32) -> Result<()> {
        let slot = self.slot(id)?;
        let length = self.sequence(slot).tokens.len();
        self.states.iter_mut().for_each(|states| states.mark(slot, length));
        Ok(())
    }

    /// How many of the first `length` tokens of a sequence stay evaluated when it is cut to these.
    pub fn mark_nearest(&self, id: i32, length: usize) -> Result<usize> {
        let slot = self.slot(id)?;
        let sequence = self.sequence(slot);
        sequence.check_cut(length)?;
        let most = length.min(sequence.evaluated);
        let kept = self.states.as_ref().map_or(most, |states| states.nearest(slot, most));
        let first = kept.min(length.saturating_sub(1));
        Ok(if self.paging.reaches(slot, first) { kept } else { 0 })
    }

    fn copy_pages(&mut self, copies: Copies) {
        copies.into_iter().flatten().for_each(|(reach, copy)| self.runner.copy_page(reach, copy.from, copy.to));
    }

    pub(super) fn kv_full(&self, needed: usize) -> Error {
        Error::KvFull { needed, free: self.paging.pages().free(), total: self.paging.pages().total() }
    }

    pub(super) fn free_slot(&self) -> Result<usize> {
        let slot = self.slots.iter().position(Option::is_none);
        slot.ok_or(Error::SeqFull { limit: self.slots.len() })
    }

    /// Ids are never used twice in a session.
    pub(super) fn next_id(&self) -> Result<i32> {
        let exhausted = || Error::Unsupported("this session has used up its sequence ids; create a new one".into());
        self.next_id.checked_add(1).ok_or_else(exhausted)
    }

    pub(super) fn occupy(&mut self, slot: usize, sequence: Sequence) {
        self.next_id = sequence.id;
        self.slot_of.insert(sequence.id, slot);
        self.slots[slot] = Some(sequence);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(report) = self.runner.report() {
            let context = self.model.context();
            report.lines().for_each(|line| context.log(LogLevel::Info, format_args!("{line}")));
        }
    }
}
