//! What a session does for the sequences of conversations, which are closed once nobody has their conversation.

use super::{Failure, Session};
use crate::error::Result;
use std::sync::Arc;

impl Session {
    /// Makes a sequence the property of whoever holds the result: once that is dropped, [`Session::close_abandoned`] closes the sequence.
    pub(super) fn adopt(&mut self, id: i32) -> Result<Arc<()>> {
        let slot = self.slot(id)?;
        let owner = Arc::new(());
        self.sequence_mut(slot).owner = Some(Arc::downgrade(&owner));
        Ok(owner)
    }

    /// Closes the sequences whose owners are gone.
    pub fn close_abandoned(&mut self) -> Result<()> {
        for slot in 0..self.slots.len() {
            if let Some(sequence) = self.slots[slot].as_ref().filter(|sequence| sequence.is_abandoned()) {
                self.close(sequence.id)?;
            }
        }
        Ok(())
    }

    /// Appends tokens as if they had been sampled, so that a grammar which begins behind one of them begins. Does nothing, and answers false, where a
    /// grammar chooses the tokens.
    pub(super) fn force(&mut self, id: i32, tokens: &[i32]) -> Result<bool, Failure> {
        let slot = self.slot(id)?;
        if self.sequence(slot).constraint.as_ref().is_some_and(|constraint| constraint.has_begun()) {
            return Ok(false);
        }
        let length = self.sequence(slot).tokens.len();
        self.append(id, tokens)?;
        self.walk(slot, length)?;
        Ok(true)
    }

    /// Whether `token` ends generation of a sequence.
    pub(super) fn ends(&self, id: i32, token: i32) -> Result<bool> {
        Ok(self.sequence(self.slot(id)?).sampler.is_end(token, self.model.eog_tokens()))
    }

    /// Leads the grammar of a sequence through its tokens from index `from` on, as if they were sampled now.
    pub(super) fn replay(&mut self, id: i32, from: usize) -> Result<()> {
        let slot = self.slot(id)?;
        self.walk(slot, from)
    }

    fn walk(&mut self, slot: usize, from: usize) -> Result<()> {
        let sequence = self.slots[slot].as_mut().expect("only occupied slots have ids");
        let Some(constraint) = &mut sequence.constraint else { return Ok(()) };
        let eog = self.model.eog_tokens();
        for (position, &token) in sequence.tokens.iter().enumerate().skip(from) {
            let ends = sequence.sampler.is_end(token, eog);
            if constraint.has_begun() {
                // Whether a token that ends generation is text is told by the mask.
                constraint.prepare();
            }
            constraint.advance(token, position, ends)?;
        }
        Ok(())
    }
}
