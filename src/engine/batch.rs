//! Advancing sequences: which tokens a pass evaluates, the pass, and what it leaves behind.
//!
//! A sequence that lacks one token before it can sample always takes part; the prompts of the others share a budget of
//! `max_prefill` tokens in list order, so that no stream waits longer than one bounded pass. Drafts of tokens to come (`speculation`) are
//! further rows of a pass, and what it has settled beyond a token is handed out by later calls without one.

use super::pass::{Choice, Pass, Planned, batch};
use super::sequence::{Pending, Sequence};
use super::session::{Failure, Session, Step};
use crate::backend::{Chooser, Drawn};
use crate::error::{Error, Result};
use crate::grammar::Next;
use crate::kv::layout::pages_for;
use crate::sample::Mask;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Fewest sequences of a pass of which it may be expected that not all next tokens are forced.
const FEWEST_APART: usize = 4;

/// Where the outcome of each item goes, and the first that failed.
struct Failures<'a, F> {
    first: Option<Failure>,
    report: &'a mut F,
}

impl<F: FnMut(usize, Result<Step, &Error>)> Failures<'_, F> {
    fn add(&mut self, item: usize, error: Error) {
        (self.report)(item, Err(&error));
        self.first.get_or_insert(Failure { error, item: Some(item) });
    }
}

impl Session {
    /// Advances every listed sequence by one step; `report(item, step)` hears the outcome of each. The first failing item makes the
    /// call fail, the others have advanced.
    pub fn decode(
        &mut self,
        ids: &[i32],
        cancel: &AtomicBool,
        report: impl FnMut(usize, Result<Step, &Error>),
    ) -> Result<(), Failure> {
        self.decode_within(ids, None, cancel, report)
    }

    /// The same, with no more of prompts than is expected to end within `budget`.
    pub fn decode_within(
        &mut self,
        ids: &[i32],
        budget: Option<Duration>,
        cancel: &AtomicBool,
        mut report: impl FnMut(usize, Result<Step, &Error>),
    ) -> Result<(), Failure> {
        let start = Instant::now();
        let mut failures = Failures { first: None, report: &mut report };
        self.pass.clear();
        let drafted = self.find_drafts(ids, cancel);
        let drafting = start.elapsed();
        self.plan(ids, self.prompt_rows_within(ids, budget), &mut failures);
        if let Err(error) = drafted.and_then(|()| self.run(cancel)).and_then(|()| self.choose_all(cancel)) {
            self.abandon(ids.len(), &error, &mut report);
            return Err(error.into());
        }
        if self.pass.prompt_rows == 0 {
            let (rows, time) = (self.pass.rows.len(), start.elapsed() - drafting);
            self.speculation.iter_mut().for_each(|speculation| speculation.note(rows, time));
        }
        self.finish_all(&mut failures);
        let first = failures.first;
        self.count_pass(start);
        first.map_or(Ok(()), Err)
    }

    /// Queues `tokens` and evaluates the whole queue; on failure the sequence is as it was.
    pub fn prefill(&mut self, id: i32, tokens: &[i32], cancel: &AtomicBool) -> Result<(), Failure> {
        let slot = self.slot(id)?;
        let (length, had_logits) = (self.sequence(slot).tokens.len(), self.sequence(slot).has_logits);
        self.append(id, tokens)?;
        let result = self.evaluate(slot, cancel);
        if result.is_err() {
            self.cut(slot, length);
            // Kept logits are overwritten only by an evaluation that ends well.
            self.sequence_mut(slot).has_logits = had_logits;
        }
        Ok(result?)
    }

    /// The logits after the last token of a sequence, `vocab` floats; evaluates its queue first.
    pub fn logits(&mut self, id: i32, cancel: &AtomicBool) -> Result<&[f32]> {
        let slot = self.slot(id)?;
        if self.sequence(slot).tokens.is_empty() {
            return Err(Error::InvalidArgument(format!("sequence {id} has no tokens, so it has no logits")));
        }
        self.evaluate(slot, cancel)?;
        Ok(self.kept_logits(slot))
    }

    fn kept_logits(&self, slot: usize) -> &[f32] {
        let vocab = self.model.vocab();
        &self.logits[slot * vocab..(slot + 1) * vocab]
    }

    /// Evaluates whatever one sequence lacks, in as many passes as it takes, and keeps the logits.
    fn evaluate(&mut self, slot: usize, cancel: &AtomicBool) -> Result<()> {
        self.settle(slot);
        let pages = self.paging.count(slot);
        self.take_pages(slot, self.sequence(slot).tokens.len())?;
        let result = self.evaluate_in_passes(slot, cancel);
        if result.is_err() {
            let kept = pages.max(pages_for(self.sequence(slot).evaluated));
            self.paging.shrink(slot, kept);
            self.states.iter_mut().for_each(|states| states.abandon(slot));
        }
        result
    }

    fn evaluate_in_passes(&mut self, slot: usize, cancel: &AtomicBool) -> Result<()> {
        loop {
            let begin = Instant::now();
            let Pending { start, count } = self.sequence(slot).pending();
            let taken = count.min(self.max_prompt());
            self.make_way(slot, start, taken);
            self.plan_states(slot, taken, true);
            self.pass.clear();
            self.pass.prompt_rows = taken;
            let sequence = self.slots[slot].as_ref().expect("only occupied slots have ids");
            let wanted = usize::from(taken == count);
            let output = self.pass.add_rows(slot, &sequence.tokens[start..start + taken], start, wanted);
            if output.is_some() {
                self.pass.chooser = Chooser::Host;
            }
            self.run(cancel)?;
            self.commit_states(slot, start + taken);
            let sequence = self.sequence_mut(slot);
            sequence.evaluated = sequence.evaluated_after(start, taken);
            sequence.prompt_tokens += taken as u64;
            if let Some(output) = output {
                let vocab = self.model.vocab();
                self.logits[slot * vocab..(slot + 1) * vocab].copy_from_slice(self.runner.logits(output));
                self.sequence_mut(slot).has_logits = true;
            }
            self.count_pass(begin);
            if taken == count {
                return Ok(());
            }
            self.show();
        }
    }

    /// Counts a pass that began at `start` and has ended well.
    pub(super) fn count_pass(&mut self, start: Instant) {
        let Pass { rows, prompt_rows, decode_rows, .. } = &self.pass;
        let (passes, time) = (u64::from(!rows.is_empty()), start.elapsed());
        self.costs.note(rows.len(), time.as_nanos() as u64);
        self.done.count(passes, *prompt_rows, *decode_rows, time);
    }

    /// Plans a pass of what the listed sequences lack, with so many rows of prompts at most.
    fn plan(
        &mut self,
        ids: &[i32],
        mut budget: usize,
        failures: &mut Failures<impl FnMut(usize, Result<Step, &Error>)>,
    ) {
        self.pass.is_expected = self.are_apart(ids);
        for (item, &id) in ids.iter().enumerate() {
            if let Err(error) = self.schedule(item, id, &mut budget) {
                failures.add(item, error);
            }
        }
        if !self.pass.rows.is_empty() {
            self.catch_up();
        }
    }

    /// Has the pass evaluate the last tokens of sequences whose next one is known, where they lack no others: so passes are of a row each, the
    /// quickest, and none has to evaluate all that came meanwhile at once.
    fn catch_up(&mut self) {
        for index in 0..self.pass.planned.len() {
            let Planned { slot, next, .. } = self.pass.planned[index];
            let sequence = self.sequence(slot);
            let length = sequence.tokens.len();
            let lacks_one = sequence.evaluated + 1 == length && !sequence.has_logits;
            if !matches!(next, Next::Forced(_)) || !lacks_one {
                continue;
            }
            self.settle(slot);
            // Without a page the row waits for a pass that needs it.
            if self.sequence(slot).pending().count != 1 || self.take_pages(slot, length).is_err() {
                continue;
            }
            self.make_way(slot, length - 1, 1);
            let sequence = self.slots[slot].as_ref().expect("only occupied slots have ids");
            self.pass.add_rows(slot, &sequence.tokens[length - 1..], length - 1, 0);
            self.plan_states(slot, 1, false);
            self.pass.decode_rows += 1;
            self.pass.planned[index].evaluated = length;
        }
    }

    /// Appends the chosen tokens, and reports what became of each planned item.
    fn finish_all(&mut self, failures: &mut Failures<impl FnMut(usize, Result<Step, &Error>)>) {
        let mut chosen = std::mem::take(&mut self.pass.chosen);
        for (index, choice) in chosen.drain(..).enumerate() {
            let planned = self.pass.planned[index];
            match self.finish(&planned, choice) {
                Ok(step) => (failures.report)(planned.item, Ok(step)),
                Err(error) => failures.add(planned.item, error),
            }
        }
        self.pass.chosen = chosen;
    }

    /// Plans one item's part in a pass, within the budget of prompt tokens.
    fn schedule(&mut self, item: usize, id: i32, budget: &mut usize) -> Result<()> {
        let slot = self.slot(id)?;
        if std::mem::replace(&mut self.pass.seen[slot], self.pass.call) == self.pass.call {
            return Err(Error::InvalidArgument(format!("sequence {id} is listed twice")));
        }
        let (length, limit) = (self.sequence(slot).tokens.len(), self.model.hparams().context);
        if length == 0 {
            return Err(Error::InvalidArgument(format!("sequence {id} has no tokens; append a prompt first")));
        }
        if length >= limit {
            return Err(Error::ContextFull { length, more: 1, limit });
        }
        if !self.sequence(slot).ahead.is_empty() {
            return self.plan_without_logits(item, slot, Next::Free);
        }
        let is_late = self.may_ask_late(slot);
        let next = if is_late { Next::Choice } else { self.sequence_mut(slot).next_by_grammar()? };
        if matches!(next, Next::Forced(_) | Next::Nothing) || (next == Next::End && !self.may_end(slot)) {
            return self.plan_without_logits(item, slot, next);
        }
        self.settle(slot);
        let Pending { start, count } = self.sequence(slot).pending();
        let is_prompt = self.sequence(slot).has_prompt();
        let taken = if is_prompt { count.min(*budget) } else { count };
        let pages = self.paging.count(slot);
        self.take_pages(slot, start + taken)?;
        self.make_way(slot, start, taken);
        if is_prompt {
            *budget -= taken;
            self.pass.prompt_rows += taken;
        }
        let ready = taken == count;
        let (output, drafts) = self.add_item(slot, start..start + taken, ready, next);
        self.plan_states(slot, taken + drafts, is_prompt);
        if !is_prompt {
            self.pass.decode_rows += taken + drafts;
        }
        let evaluated = self.sequence(slot).evaluated_after(start, taken);
        let prompt_rows = if is_prompt { taken } else { 0 };
        let planned = Planned { item, slot, evaluated, prompt_rows, pages, ready, output, drafts, next, is_late };
        self.pass.planned.push(planned);
        Ok(())
    }

    /// Whether so many sequences say different things that hardly ever grammars force the next tokens of all, so that no pass would be needed.
    fn are_apart(&self, ids: &[i32]) -> bool {
        if ids.len() < FEWEST_APART || !self.runner.runs_beside() {
            return false;
        }
        let mut lasts = ids.iter().filter_map(|&id| self.sequence(self.slot(id).ok()?).tokens.last());
        let first = lasts.next();
        lasts.any(|last| Some(last) != first)
    }

    /// Whether the grammar of a sequence can be asked while the pass runs, which others need or is expected, on a device beside the processor.
    /// A token that it forces is then all that it lets through.
    fn may_ask_late(&self, slot: usize) -> bool {
        let sequence = self.sequence(slot);
        let lacks_one = sequence.tokens.len() == sequence.evaluated + 1 && !sequence.has_logits;
        let is_simple = sequence.drafter.is_none() && lacks_one;
        let has_begun = sequence.constraint.as_ref().is_some_and(|constraint| constraint.has_begun());
        let is_needed = self.pass.is_expected || !self.pass.outputs.is_empty();
        is_simple && has_begun && is_needed && self.runner.runs_beside()
    }

    /// Adds the rows of an item, those of its drafts behind them, and lets the device draw from what they give, if it is `ready` for that; its
    /// first output, and how many drafts there are.
    fn add_item(&mut self, slot: usize, own: Range<usize>, ready: bool, next: Next) -> (Option<usize>, usize) {
        let host_argmax = self.model.context().host_argmax();
        let Session { slots, pass, runner, .. } = self;
        let sequence = slots[slot].as_mut().expect("only occupied slots have ids");
        let length = sequence.tokens.len();
        let found = sequence.drafter.as_ref().map_or(&[][..], |drafter| drafter.evaluated());
        let drafts = if ready && !own.is_empty() { found.len() } else { 0 };
        // Only as long as rows are added: what is drawn behind a draft depends on it as if it had been appended.
        sequence.tokens.extend_from_slice(&found[..drafts]);
        let wanted = if ready { 1 + drafts } else { 0 };
        let output = pass.add_rows(slot, &sequence.tokens[own.start..own.end + drafts], own.start, wanted);
        for (index, output) in output.into_iter().flat_map(|first| first..first + wanted).enumerate() {
            let (options, history) = (&sequence.sampler, &sequence.tokens[..length + index]);
            let drawn = Drawn { options, history, position: history.len() as u64, is_masked: next != Next::Free };
            // What a grammar says of later places is known only once the tokens before them are.
            let by_host = host_argmax || (drafts > 0 && next != Next::Free);
            if by_host || !runner.draw(output, &drawn) {
                pass.chooser = Chooser::Host;
            }
        }
        sequence.tokens.truncate(length);
        (output, drafts)
    }

    /// Plans an item whose token, or that there is none, is known: what it lacks is evaluated by the step that needs logits.
    fn plan_without_logits(&mut self, item: usize, slot: usize, next: Next) -> Result<()> {
        let sequence = self.sequence(slot);
        // All tokens before one that was drawn ahead are in the cache.
        let evaluated = if sequence.ahead.is_empty() { sequence.evaluated } else { sequence.tokens.len() };
        let (pages, output) = (self.paging.count(slot), None);
        let (prompt_rows, drafts, is_late) = (0, 0, false);
        let known = Planned { item, slot, evaluated, prompt_rows, pages, ready: true, output, drafts, next, is_late };
        self.pass.planned.push(known);
        Ok(())
    }

    /// Whether some token ends generation of a sequence.
    pub(super) fn may_end(&self, slot: usize) -> bool {
        self.sequence(slot).ends(self.model.eog_tokens()).iter().any(|tokens| !tokens.is_empty())
    }

    /// Makes room for the rows of a pass where a window is kept.
    pub(super) fn make_way(&mut self, slot: usize, start: usize, rows: usize) {
        self.paging.slide(slot, start, start + rows);
    }

    /// Chooses the records of the states of a pass; its last rows may be drafts, or else they are of a prompt.
    pub(super) fn plan_states(&mut self, slot: usize, rows: usize, is_prompt: bool) {
        self.states.iter_mut().filter(|_| rows > 0).for_each(|states| states.plan(slot, rows, is_prompt));
    }

    /// Brings the states of a sequence to its first `right` tokens, or back to where the pass began.
    fn commit_states(&mut self, slot: usize, right: usize) {
        if let Some(states) = &mut self.states {
            let state = states.commit(slot, right);
            self.sequence_mut(slot).state = state;
        }
    }

    /// Makes room for `tokens` positions of a slot.
    pub(super) fn take_pages(&mut self, slot: usize, tokens: usize) -> Result<()> {
        self.paging.grow(slot, tokens).map_err(|needed| self.kv_full(needed))
    }

    fn run(&mut self, cancel: &AtomicBool) -> Result<()> {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let Session { runner, paging, states, slots, pass, masks, model, .. } = self;
        let Pass { rows, planned, .. } = &*pass;
        if rows.is_empty() {
            return Ok(());
        }
        // No pass has to wait for a grammar: its masks are worked out while a device is at work. Where the caller's processor is the device, only
        // those are that a choice turns out to need.
        let mut work_out_masks = |tell: &mut dyn FnMut(usize, &Mask)| {
            let is_wanted = |slot| {
                let is_choice =
                    |item: &Planned| item.slot == slot && item.output.is_some() && item.next == Next::Choice;
                planned.iter().any(is_choice)
            };
            let prepare = |sequence: &mut Option<Sequence>| {
                sequence.iter_mut().for_each(|sequence| sequence.prepare_mask());
            };
            masks.each(slots, is_wanted, prepare, cancel);
            for &Planned { slot, output, next, is_late, .. } in planned {
                let (Some(output), Some(sequence)) = (output.filter(|_| next != Next::Free), &mut slots[slot]) else {
                    continue;
                };
                // What has gone wrong is told when the token is chosen.
                match if is_late { sequence.next_by_grammar() } else { Ok(next) } {
                    Ok(Next::Forced(token)) => tell(output, &Mask { bits: Some(&[]), named: [&[token], &[]] }),
                    Ok(next) => sequence.mask(next, model.eog_tokens()).iter().for_each(|mask| tell(output, mask)),
                    Err(_) => {}
                }
            }
        };
        runner.run_beside(&batch(pass, paging, states.as_ref()), cancel, &mut work_out_masks)?;
        self.note_hidden(cancel)
    }

    /// Takes back the pages of a pass that did not end well, and reports what became of its items.
    fn abandon(&mut self, items: usize, error: &Error, report: &mut impl FnMut(usize, Result<Step, &Error>)) {
        if matches!(error, Error::Cancelled) {
            (0..items).for_each(|item| report(item, Err(error)));
        }
        for index in 0..self.pass.planned.len() {
            let Planned { item, slot, pages, drafts, .. } = self.pass.planned[index];
            self.paging.shrink(slot, pages);
            if drafts > 0 {
                self.sequence_mut(slot).forget_ahead();
            }
            self.states.iter_mut().for_each(|states| states.abandon(slot));
            report(item, Err(error));
        }
    }

    /// Chooses the tokens of all items before any is appended, so that a call cancelled meanwhile has advanced nobody: without a
    /// limit on candidates a token takes milliseconds.
    fn choose_all(&mut self, cancel: &AtomicBool) -> Result<()> {
        for index in 0..self.pass.planned.len() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let planned = self.pass.planned[index];
            let choice = match planned {
                Planned { ready: false, .. } => Ok(Choice::Pending),
                Planned { drafts: 0, .. } => self.choose(&planned),
                _ => self.draw_ahead(&planned),
            };
            self.pass.chosen.push(choice);
        }
        Ok(())
    }

    /// The token that follows an item's history.
    pub(super) fn choose(&mut self, planned: &Planned) -> Result<Choice> {
        let Planned { slot, output, next, is_late, .. } = *planned;
        let next = if is_late { self.sequence_mut(slot).next_by_grammar()? } else { next };
        let (vocab, eog) = (self.model.vocab(), self.model.eog_tokens());
        if planned.drafts == 0 && !self.sequence(slot).ahead.is_empty() {
            return Ok(Choice::Ahead);
        }
        let by_device = self.pass.chooser == Chooser::Device;
        match next {
            Next::Forced(token) => return Ok(Choice::Token(token)),
            Next::Nothing => return Ok(Choice::GrammarEnd),
            Next::Free | Next::Choice | Next::End => {}
        }
        if let Some(best) = output.filter(|_| by_device).and_then(|index| self.runner.best_token(index)) {
            return Ok(Choice::Token(best as i32));
        }
        let logits = match output {
            Some(index) => self.runner.logits(index),
            None => &self.logits[slot * vocab..(slot + 1) * vocab],
        };
        let sequence = self.slots[slot].as_mut().expect("only occupied slots have ids");
        let token = sequence.choose(next, logits, eog, &mut self.scratch)?;
        Ok(token.map_or(Choice::GrammarEnd, Choice::Token))
    }

    /// Notes what a pass evaluated for one item, and appends its token.
    fn finish(&mut self, planned: &Planned, choice: Result<Choice>) -> Result<Step> {
        let Planned { slot, evaluated, prompt_rows, output, drafts, .. } = *planned;
        let agreed = if drafts > 0 { self.sequence(slot).ahead.len().saturating_sub(1) } else { 0 };
        self.commit_states(slot, evaluated + agreed);
        let eog = self.model.eog_tokens();
        let sequence = self.slots[slot].as_mut().expect("only occupied slots have ids");
        sequence.evaluated = evaluated;
        sequence.prompt_tokens += prompt_rows as u64;
        let token = match choice? {
            Choice::Pending => return Ok(Step::Pending),
            Choice::GrammarEnd => return Ok(Step::GrammarEnd),
            Choice::Token(token) => {
                sequence.follow(token, sequence.sampler.is_end(token, eog))?;
                token
            }
            Choice::Ahead => sequence.ahead[0],
        };
        let ends = sequence.sampler.is_end(token, eog);
        if let Some(drafter) = sequence.drafter.as_mut().filter(|_| output.is_some()) {
            let came = if drafts > 0 { &sequence.ahead[..] } else { &[token] };
            self.done.drafted += drafts as u64;
            self.done.accepted += drafter.learn(came);
            self.speculation.iter_mut().for_each(|speculation| speculation.remember(drafter.experience()));
        }
        if !sequence.ahead.is_empty() {
            sequence.ahead.remove(0);
        }
        sequence.tokens.push(token);
        sequence.has_logits = false;
        sequence.decoded_tokens += 1;
        self.done.decoded_tokens += 1;
        Ok(if ends { Step::Done(token) } else { Step::Token(token) })
    }
}
