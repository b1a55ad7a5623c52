//! Speculation in a session: which sequences a pass drafts for, and drawing the tokens that their drafts have settled.
//!
//! Drafts are evaluated as further rows behind the last token of their sequence, each with an output. What is drawn from those, place by place as
//! steps would draw it, is kept in [`Sequence::ahead`] as long as the drafts agree, and handed out by the steps that follow. So drafts decide what
//! a pass costs, and never what it says.

use super::assisting::Lent;
use super::draft::DraftModel;
use super::guide::{self, Guide};
use super::model::Model;
use super::pass::{Choice, Planned};
use super::sequence::Sequence;
use super::session::{Failure, Options, Session, Step};
use crate::arch::Hparams;
use crate::backend::{Backend, Hidden, Limits, Memory, Runner};
use crate::error::{Error, Result};
use crate::grammar::Next;
use crate::kv::layout::{PAGE_TOKENS, pages_for};
use crate::plan::Program;
use crate::speculate::{self, Costs, Experience, Outlook, Pool, Source};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What a session that drafts has for that.
pub struct Speculation {
    options: speculate::Options,
    /// Most drafts of a sequence in a pass.
    most: usize,
    /// What passes without prompts have taken.
    costs: Costs,
    pub(super) draft: Option<DraftModel>,
    /// What all sequences have said, where they share it.
    pool: Option<Pool>,
    /// Of the sequence that learnt last.
    experience: Experience,
}

impl Speculation {
    /// What drafts for sequences whose keys `runner` has; none where the host does not want that.
    pub fn new(
        model: &Arc<Model>,
        runner: &dyn Runner,
        options: &Options,
        limits: &Limits,
        draft: Option<&Arc<Model>>,
    ) -> Result<Option<Box<Speculation>>> {
        let predicts = predicts(options, draft.is_some(), model.predictor().map(|_| ()))?;
        let most = options.drafts.most_each(options.max_prefill)?;
        if most == 0 {
            return Ok(None);
        }
        let draft = match draft {
            Some(draft) => Some(DraftModel::new(draft, model, runner, options, most)?),
            None if predicts => Some(DraftModel::of_predictor(model, options, most)?),
            None => None,
        };
        let costs = Costs::new(limits.outputs)?;
        Ok(Some(Box::new(Speculation {
            options: options.drafts,
            most,
            costs,
            draft,
            pool: if options.drafts.shares { Some(Pool::new()?) } else { None },
            experience: Experience::default(),
        })))
    }

    /// Bytes that it takes, with those of a draft model.
    pub fn memory(&self) -> Result<Memory> {
        let draft = self.draft.as_ref().map(DraftModel::memory).transpose()?.unwrap_or_default();
        Ok(draft.with(&memory_of_pool(&self.options)))
    }

    /// Remembers what a pass without prompts has taken, drafts apart.
    pub fn note(&mut self, rows: usize, time: Duration) {
        self.costs.note(rows, time.as_nanos() as u64);
    }

    /// Lets new sequences begin with what one has learnt.
    pub fn remember(&mut self, experience: &Experience) {
        self.experience = *experience;
    }

    /// What drafts for a sequence of up to `capacity` tokens.
    pub fn drafter(&self, capacity: usize) -> Result<speculate::Drafter> {
        speculate::Drafter::new(&self.options, capacity, self.most, &self.experience)
    }

    /// Most tokens that a pass settles for a sequence.
    pub fn most_ahead(&self) -> usize {
        self.most + 1
    }

    /// Chooses drafts for a sequence, `room` at most.
    fn choose(&mut self, slot: usize, sequence: &mut Sequence, room: usize, outlook: &mut Outlook) {
        let Sequence { tokens, drafter: Some(drafter), .. } = sequence else { return };
        drafter.look(tokens, room, self.pool.as_mut());
        let (mut count, speed) = drafter.worth(outlook, &self.costs);
        if self.options.always {
            count = drafter.found().len().min(outlook.room());
        }
        if !self.asks(slot, sequence, room, outlook, (count, speed)) {
            let Some(drafter) = &mut sequence.drafter else { return };
            drafter.evaluate(count);
            outlook.add(count, drafter.chance(), 0.0);
        }
    }

    /// Asks the draft model, if there is one and it promises more than the drafts that were found: so many, with which the pass has such a speed.
    fn asks(
        &mut self,
        slot: usize,
        sequence: &mut Sequence,
        room: usize,
        outlook: &mut Outlook,
        (found, speed): (usize, f64),
    ) -> bool {
        let (Some(draft), Some(drafter)) = (&mut self.draft, &mut sequence.drafter) else { return false };
        let (length, room) = (sequence.tokens.len(), room.min(outlook.room()));
        if room == 0 {
            return false;
        }
        let Some(asked) = draft.settle(slot, &sequence.tokens) else { return false };
        let (mut count, with) = drafter.worth_asking(&asked, outlook, &self.costs, room);
        if self.options.always {
            count = if found > 0 { 0 } else { room.min(self.most) };
        } else if found > 0 && with <= speed {
            count = 0;
        } else if count == 0 && found == 0 {
            let cost = asked.ns(1) + outlook.rows_ns(&self.costs, 1);
            count = usize::from(drafter.is_time_to_probe(cost, outlook.share_ns(&self.costs)));
        }
        let drafting = asked.ns(count);
        if count == 0 || !draft.ask(slot, length, count) {
            return false;
        }
        drafter.ask();
        outlook.add(count, drafter.chance(), drafting);
        true
    }
}

/// Whether the model's own predictor drafts, beside a draft model or not. Refuses options that contradict each other, and what is not there.
pub(super) fn predicts(options: &Options, has_model: bool, predictor: std::result::Result<(), &str>) -> Result<bool> {
    let problem = match (options.drafts.source, has_model, predictor) {
        (Source::Model, false, _) => "speculation wants a draft model, and `draft` is NULL",
        (Source::Off | Source::Repetitions | Source::Predictor, true, _) => {
            "`draft` is set, and this speculation asks no draft model"
        }
        (Source::Predictor, false, Err(reason)) => {
            return Err(Error::Unsupported(format!("this model cannot draft for itself (MTP): {reason}")));
        }
        (source, false, Ok(())) => return Ok(matches!(source, Source::Predictor | Source::Auto)),
        _ => return Ok(false),
    };
    Err(Error::InvalidArgument(problem.into()))
}

/// Which rows of passes leave vectors: all where the model's own predictor drafts, as [`predicts`] says, or a model that was made for it.
pub(super) fn hidden(
    options: &Options,
    draft: Option<&Model>,
    predictor: std::result::Result<(), &str>,
) -> Result<Hidden> {
    let predicts = predicts(options, draft.is_some(), predictor)?;
    let reads_vectors = draft.is_some_and(|draft| draft.program().only_drafts());
    Ok(if predicts || reads_vectors { Hidden::Rows } else { Hidden::None })
}

/// Bytes that drafting takes in a session of `model` beside the session itself, where `predictor` is the model's own, or says why there is none.
pub(super) fn memory(
    options: &Options,
    draft: Option<&Model>,
    model: (&dyn Backend, &Program, &Hparams),
    predictor: std::result::Result<&Guide, &str>,
) -> Result<Memory> {
    let predicts = predicts(options, draft.is_some(), predictor.map(|_| ()))?;
    let model = match (draft, predictor) {
        (Some(draft), _) => guide::memory_of_model(draft, model, options)?,
        (None, Ok(own)) if predicts => guide::memory(own, options)?,
        _ => Memory::default(),
    };
    Ok(model.with(&memory_of_pool(&options.drafts)))
}

fn memory_of_pool(options: &speculate::Options) -> Memory {
    Memory { arena: if options.shares { Pool::BYTES } else { 0 }, ..Memory::default() }
}

impl Session {
    /// Advances one sequence by a step, and by those whose tokens the pass has settled too, at most `most` of them together. `give` gets the tokens;
    /// what the last step did.
    pub fn decode_many(
        &mut self,
        id: i32,
        most: usize,
        cancel: &AtomicBool,
        mut give: impl FnMut(i32),
    ) -> Result<Step, Failure> {
        let mut last = self.decode_one(id, cancel)?;
        for count in 1.. {
            if let Step::Token(token) | Step::Done(token) = last {
                give(token);
            }
            let is_ahead = !self.sequence(self.slot(id)?).ahead.is_empty();
            if count >= most || !is_ahead || !matches!(last, Step::Token(_)) {
                break;
            }
            // What was given is settled: a call that was cancelled by now gives no more, and the next one says so.
            let Ok(next) = self.decode_one(id, cancel) else { break };
            last = next;
        }
        Ok(last)
    }

    fn decode_one(&mut self, id: i32, cancel: &AtomicBool) -> Result<Step, Failure> {
        let mut done = Step::Pending;
        self.decode(&[id], cancel, |_, step| done = step.unwrap_or(Step::Pending))?;
        Ok(done)
    }

    /// Hands what the pass has left of its rows to the model's predictor or assistant, where that drafts.
    pub(super) fn note_hidden(&mut self, cancel: &AtomicBool) -> Result<()> {
        let Session { runner, slots, speculation, pass, .. } = self;
        let draft = speculation.as_mut().and_then(|speculation| speculation.draft.as_mut());
        match draft.filter(|draft| draft.reads_vectors()) {
            Some(draft) => draft.note(&pass.rows, |index| runner.hidden(index), slots, cancel),
            None => Ok(()),
        }
    }

    /// Finds drafts for those of the listed sequences that can use some in the next pass.
    pub(super) fn find_drafts(&mut self, ids: &[i32], cancel: &AtomicBool) -> Result<()> {
        let Some(mut speculation) = self.speculation.take() else { return Ok(()) };
        speculation.draft.iter_mut().for_each(DraftModel::clear);
        let mut outlook = Outlook::new(ids.len(), self.limits.outputs - self.limits.seqs, self.states.is_some());
        for &id in ids {
            let Ok(slot) = self.slot(id) else { continue };
            let room = self.room_for_drafts(slot);
            let sequence = self.sequence_mut(slot);
            sequence.drafter.iter_mut().for_each(|drafter| drafter.clear());
            if room > 0 {
                speculation.choose(slot, sequence, room, &mut outlook);
            }
        }
        let draft = speculation.draft.as_mut();
        let lent = Lent { runner: &*self.runner, paging: &self.paging };
        let result = draft.map_or(Ok(()), |draft| draft.draft(&mut self.slots, lent, cancel));
        self.speculation = Some(speculation);
        result
    }

    /// How many drafts a sequence can use: none but where its last token alone has never been evaluated and a choice follows. They stay in the page
    /// of that token, so that no other sequence misses a page for them. With what its states lack they are no more rows than usual.
    fn room_for_drafts(&mut self, slot: usize) -> usize {
        let context = self.model.hparams().context;
        if self.sequence(slot).ahead.is_empty() {
            self.settle(slot);
        }
        let most = self.most_drafts;
        let sequence = self.sequence_mut(slot);
        let length = sequence.tokens.len();
        let own = sequence.pending().count;
        if !sequence.ahead.is_empty() || length >= context || own == 0 || sequence.has_prompt() {
            return 0;
        }
        if !matches!(sequence.next_by_grammar(), Ok(Next::Free | Next::Choice)) {
            return 0;
        }
        let in_page = pages_for(length) * PAGE_TOKENS - length;
        in_page.min(context - length - 1).min(sequence.tokens.capacity() - length).min((1 + most).saturating_sub(own))
    }

    /// Draws the tokens that a pass with drafts has settled for an item: as long as a draft is the token that was drawn, the next one is drawn behind
    /// it, with everything as if that had been appended.
    pub(super) fn draw_ahead(&mut self, planned: &Planned) -> Result<Choice> {
        let length = self.sequence(planned.slot).tokens.len();
        let drawn = self.draw_while_right(planned);
        self.sequence_mut(planned.slot).tokens.truncate(length);
        drawn
    }

    fn draw_while_right(&mut self, planned: &Planned) -> Result<Choice> {
        let mut place = *planned;
        for index in 0..=planned.drafts {
            let token = match self.choose(&place) {
                Ok(Choice::Token(token)) => token,
                other if index == 0 => return other,
                // The step that would draw it says so.
                _ => break,
            };
            let ends = self.sequence(place.slot).sampler.is_end(token, self.model.eog_tokens());
            let sequence = self.sequence_mut(place.slot);
            match sequence.follow(token, ends) {
                Err(error) if index == 0 => return Err(error),
                Err(_) => break,
                Ok(()) => sequence.ahead.push(token),
            }
            let draft = sequence.drafter.as_ref().and_then(|drafter| drafter.evaluated().get(index).copied());
            if ends || draft != Some(token) {
                break;
            }
            sequence.tokens.push(token);
            place.output = planned.output.map(|output| output + index + 1);
            match self.next_ahead(place.slot) {
                Some(next) => place.next = next,
                None => break,
            }
        }
        Ok(Choice::Ahead)
    }

    /// What the grammar says of the token behind one that was drawn ahead; none where a step has to find out.
    fn next_ahead(&mut self, slot: usize) -> Option<Next> {
        let next = self.sequence_mut(slot).next_by_grammar().ok()?;
        let is_for_device = self.pass.chooses_on_device();
        match next {
            Next::Free => {}
            // A forced token is handed out without a pass as it is, and evaluated with those behind it.
            Next::Nothing | Next::Forced(_) => return None,
            // The device has drawn from all tokens.
            _ if is_for_device => return None,
            Next::End if !self.may_end(slot) => return None,
            Next::End | Next::Choice => {}
        }
        Some(next)
    }
}
