//! What a session does for the sequences of conversations, which are closed once nobody has their conversation.

use super::{Failure, Session};
use crate::error::Result;
use crate::grammar::{Constraint, Next};
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
    /// grammar that has begun lets them not through.
    pub(super) fn force(&mut self, id: i32, tokens: &[i32]) -> Result<bool, Failure> {
        let slot = self.slot(id)?;
        // A grammar may have begun behind a token that is not handed out.
        self.sequence_mut(slot).forget_ahead();
        let length = self.sequence(slot).tokens.len();
        if let Some(constraint) = self.sequence_mut(slot).constraint.as_mut().filter(|it| it.has_begun())
            && !is_let_through(constraint, tokens, length)?
        {
            return Ok(false);
        }
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

/// Whether a walk lets all of `tokens` through, the first at index `position` of its sequence; it stays where it is.
fn is_let_through(constraint: &mut Constraint, tokens: &[i32], position: usize) -> Result<bool> {
    let mut is_let = true;
    for (index, &token) in tokens.iter().enumerate() {
        is_let = match constraint.peek()? {
            Next::Forced(forced) => forced == token,
            Next::Choice => {
                constraint.prepare();
                constraint.mask()?.0.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
            }
            Next::Free | Next::End | Next::Nothing => false,
        };
        if !is_let {
            break;
        }
        constraint.advance(token, position + index, false)?;
    }
    constraint.cut(position);
    Ok(is_let)
}
