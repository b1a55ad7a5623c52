//! What two lists of tokens have in common, as texts: the same text may be cut into tokens in more than one way.

use super::{Role, Tokenizer};
use crate::error::Result;

impl Tokenizer {
    /// How many leading tokens of `held`, and of `wanted`, are the longest that say the same: the same special tokens, and between them the same
    /// bytes, however these are cut.
    pub fn agreement(&self, held: &[i32], wanted: &[i32]) -> Result<(usize, usize)> {
        let same = held.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let mut agreed = (same, same);
        let (mut ours, mut theirs) =
            (Cut { tokens: held, next: same, rest: &[] }, Cut { tokens: wanted, next: same, rest: &[] });
        loop {
            if ours.rest.is_empty() && theirs.rest.is_empty() {
                agreed = (ours.next, theirs.next);
                if let (Some(a), Some(b)) = (held.get(ours.next), wanted.get(theirs.next))
                    && a == b
                {
                    (ours.next, theirs.next) = (ours.next + 1, theirs.next + 1);
                    continue;
                }
            }
            if !(ours.fill(self)? && theirs.fill(self)?) {
                return Ok(agreed);
            }
            let len = ours.rest.len().min(theirs.rest.len());
            if ours.rest[..len] != theirs.rest[..len] {
                return Ok(agreed);
            }
            (ours.rest, theirs.rest) = (&ours.rest[len..], &theirs.rest[len..]);
        }
    }
}

/// A place in tokens, perhaps inside of one.
struct Cut<'a> {
    tokens: &'a [i32],
    next: usize,
    /// Bytes of the token before `next` that are left.
    rest: &'a [u8],
}

impl<'a> Cut<'a> {
    /// Makes sure that there are bytes here; false at the end, and before a token that is no text.
    fn fill(&mut self, tokenizer: &'a Tokenizer) -> Result<bool> {
        if !self.rest.is_empty() {
            return Ok(true);
        }
        let Some(&token) = self.tokens.get(self.next) else { return Ok(false) };
        let Role::Text(bytes) = tokenizer.role(token)? else { return Ok(false) };
        (self.rest, self.next) = (bytes, self.next + 1);
        Ok(!bytes.is_empty())
    }
}
