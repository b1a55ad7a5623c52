//! What a predictor has that drafts (`draft`): vectors of the model's passes, and a cache that is never behind.

use super::draft::{DraftModel, Seen, batch};
use super::sequence::Sequence;
use crate::backend::{Chooser, Row};
use crate::error::Result;
use crate::kv::layout::pages_for;
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

    /// Keeps what the last norm gave of the rows of a pass of the model, one vector each, for its predictor.
    pub fn note<'a>(
        &mut self,
        rows: &[Row],
        vector: impl Fn(usize) -> &'a [f32],
        sequences: &[Option<Sequence>],
        cancel: &AtomicBool,
    ) -> Result<()> {
        for (index, &Row { token, position, slot }) in rows.iter().enumerate() {
            let (slot, place) = (slot as usize, position as usize);
            let (Some(waiting), Some(sequence)) = (&self.waiting, &sequences[slot]) else { continue };
            let Seen { base, evaluated, .. } = self.seen[slot];
            if (base..evaluated).contains(&place) {
                continue;
            }
            if waiting.is_full(slot, place) {
                self.catch_up(slot, &sequence.tokens, cancel)?;
            }
            self.waiting.iter_mut().for_each(|waiting| waiting.push(slot, place, token as i32, vector(index)));
        }
        Ok(())
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

    /// Evaluates the rows of a slot before the place `end`, whose vectors are kept; without a page for them they are left out.
    fn evaluate_to(&mut self, slot: usize, end: usize, tokens: &[i32], cancel: &AtomicBool) -> Result<()> {
        let Seen { base, evaluated: start, .. } = self.seen[slot];
        if start >= end {
            return Ok(());
        }
        let copies = self.paging.truncate(slot, pages_for(start - base));
        self.copy_pages(copies);
        if self.paging.grow(slot, end - base).is_err() {
            self.begin(slot, end);
            return Ok(());
        }
        self.rows.clear();
        self.outputs.clear();
        self.paging.slide(slot, start - base, end - base);
        self.add_rows(slot, start..end, tokens);
        self.runner.run(&batch(&self.rows, &[], Chooser::Host, &self.paging), cancel)?;
        self.seen[slot].evaluated = end;
        Ok(())
    }
}
