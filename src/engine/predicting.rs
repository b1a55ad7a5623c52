//! What a predictor has that drafts (`draft`): vectors of the model's passes, and a cache that is never behind. An assistant has such vectors alone.

use super::draft::{DraftModel, MOST_PASSED_OVER, MOST_WAITING, Seen, batch};
use super::sequence::Sequence;
use crate::backend::{Chooser, Row};
use crate::error::Result;
use crate::kv::layout::pages_for;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

impl DraftModel {
    /// Lets the empty slot `to` go on from where `from` is, where a predictor has seen all of that.
    pub fn fork(&mut self, from: usize, to: usize) {
        let Some(waiting) = &mut self.waiting else { return };
        waiting.fork(from, to);
        self.begin(to, 0);
        let Seen { base, evaluated, .. } = self.seen[from];
        if evaluated < base {
            return;
        }
        let copies = self.paging.truncate(from, pages_for(evaluated - base));
        self.copy_pages(copies);
        // Without a page for it the fork begins anew.
        if let Ok(copies) = self.paging.fork(from, to) {
            self.copy_pages(copies);
            (self.seen[to].base, self.seen[to].evaluated) = (base, evaluated);
        }
    }

    /// Keeps what the last norm gave of the rows of a pass of the model, one vector each, for its predictor, or of the last rows for its
    /// assistant; of many rows of a sequence a predictor is evaluated at once.
    pub fn note<'a>(
        &mut self,
        rows: &[Row],
        vector: impl Fn(usize) -> &'a [f32],
        sequences: &[Option<Sequence>],
        cancel: &AtomicBool,
    ) -> Result<()> {
        let mut first = 0;
        for run in rows.chunk_by(|row, next| row.slot == next.slot) {
            if let Some(sequence) = &sequences[run[0].slot as usize] {
                let vector = |index: usize| vector(first + index);
                if self.reads_keys() {
                    self.keep_last(run, vector);
                    first += run.len();
                    continue;
                }
                let done = self.evaluate_run(run, &vector, &sequence.tokens, cancel)?;
                self.keep(&run[done..], |index| vector(done + index), &sequence.tokens, cancel)?;
            }
            first += run.len();
        }
        Ok(())
    }

    /// Keeps the vectors of neighbouring rows of a slot.
    fn keep<'a>(
        &mut self,
        rows: &[Row],
        vector: impl Fn(usize) -> &'a [f32],
        tokens: &[i32],
        cancel: &AtomicBool,
    ) -> Result<()> {
        for (index, &Row { token, position, slot }) in rows.iter().enumerate() {
            let (slot, place) = (slot as usize, position as usize);
            let Seen { base, evaluated, .. } = self.seen[slot];
            if (base..evaluated).contains(&place) {
                continue;
            }
            if self.waiting.as_ref().is_some_and(|waiting| waiting.is_full(slot, place)) {
                self.make_place(slot, tokens, cancel)?;
            }
            self.waiting.iter_mut().for_each(|waiting| waiting.push(slot, place, token as i32, vector(index)));
        }
        Ok(())
    }

    /// Makes place for a further vector of a slot: evaluates a predictor for those that wait, or forgets the older ones where it has been passed over
    /// for some time, so that drafts that lose cost next to nothing.
    fn make_place(&mut self, slot: usize, tokens: &[i32], cancel: &AtomicBool) -> Result<()> {
        if self.seen[slot].passed_over < MOST_PASSED_OVER {
            return self.catch_up(slot, tokens, cancel);
        }
        self.waiting.iter_mut().for_each(|waiting| waiting.drop_older(slot));
        Ok(())
    }

    /// Evaluates the leading ones of neighbouring rows of a slot whose next tokens are known, if they are more than may wait; how many.
    fn evaluate_run<'a>(
        &mut self,
        run: &[Row],
        vector: &impl Fn(usize) -> &'a [f32],
        tokens: &[i32],
        cancel: &AtomicBool,
    ) -> Result<usize> {
        let (slot, first) = (run[0].slot as usize, run[0].position as usize);
        let end = (first + run.len()).min(tokens.len().saturating_sub(1));
        if self.waiting.is_none() || end.saturating_sub(first) <= MOST_WAITING {
            return Ok(0);
        }
        self.catch_up(slot, tokens, cancel)?;
        let Seen { base, evaluated, .. } = self.seen[slot];
        if base <= first && evaluated >= end {
            return Ok(end - first);
        }
        let goes_on = evaluated >= base && (first..end).contains(&evaluated) && end - base <= self.limits.context;
        if !goes_on {
            self.begin(slot, first);
        }
        while self.seen[slot].evaluated < end {
            let start = self.seen[slot].evaluated;
            let places = start..end.min(start + self.limits.rows);
            if !self.make_room(slot, places.clone()) {
                self.begin(slot, end);
                break;
            }
            for (row, place) in places.clone().enumerate() {
                self.runner.given(row).copy_from_slice(vector(place - first));
                self.add_row(slot, place, tokens);
            }
            self.run(slot, places.end, cancel)?;
        }
        Ok(end - first)
    }

    /// Evaluates a predictor for the vectors of a slot whose next tokens are known, without drafts.
    fn catch_up(&mut self, slot: usize, tokens: &[i32], cancel: &AtomicBool) -> Result<()> {
        let Some(waiting) = &mut self.waiting else { return Ok(()) };
        let vectors = waiting.settle(slot, tokens);
        let end = vectors.end.min(tokens.len().saturating_sub(1));
        let Seen { base, evaluated, .. } = self.seen[slot];
        let goes_on = (base..=end).contains(&evaluated) && (vectors.start..=vectors.end).contains(&evaluated);
        if !goes_on || end - base > self.limits.context {
            self.begin(slot, vectors.start);
        }
        self.evaluate_to(slot, end, tokens, cancel)?;
        let evaluated = self.seen[slot].evaluated;
        self.waiting.iter_mut().for_each(|waiting| waiting.drop_before(slot, evaluated));
        Ok(())
    }

    /// Evaluates the rows of a slot before the place `end`, whose vectors wait; without a page for them they are left out.
    fn evaluate_to(&mut self, slot: usize, end: usize, tokens: &[i32], cancel: &AtomicBool) -> Result<()> {
        let start = self.seen[slot].evaluated;
        if start >= end {
            return Ok(());
        }
        if !self.make_room(slot, start..end) {
            self.begin(slot, end);
            return Ok(());
        }
        self.add_rows(slot, start..end, tokens);
        self.run(slot, end, cancel)
    }

    /// Prepares a pass over these places of a slot; false where there is no page for them.
    fn make_room(&mut self, slot: usize, places: Range<usize>) -> bool {
        let base = self.seen[slot].base;
        let copies = self.paging.truncate(slot, pages_for(places.start - base));
        self.copy_pages(copies);
        if self.paging.grow(slot, places.end - base).is_err() {
            return false;
        }
        self.rows.clear();
        self.outputs.clear();
        self.paging.slide(slot, places.start - base, places.end - base);
        true
    }

    /// Runs a pass without outputs, up to the place `end` of a slot.
    fn run(&mut self, slot: usize, end: usize, cancel: &AtomicBool) -> Result<()> {
        self.runner.run(&batch(&self.rows, &[], Chooser::Host, &self.paging), cancel)?;
        self.seen[slot].evaluated = end;
        Ok(())
    }
}
