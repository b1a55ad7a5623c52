//! One sequence of a session: its history, how far it is evaluated, its sampler.

use crate::backend::Scaled;
use crate::error::{Count, Error, Result, room};
use crate::grammar::{Constraint, Next};
use crate::sample;
use crate::speculate::Drafter;
use std::sync::Weak;

/// A sequence. Its pages are in the session's tables, under its slot.
pub struct Sequence {
    /// What the host calls it.
    pub id: i32,
    /// Every token: evaluated, queued and sampled.
    pub tokens: Vec<i32>,
    /// Leading tokens whose keys and values are in the cache.
    pub evaluated: usize,
    /// Leading tokens that are in the states of its layers, fewer than `evaluated` after wrong drafts; the largest number where layers have none.
    pub state: usize,
    /// Whether the session keeps the logits after the last token.
    pub has_logits: bool,
    /// How tokens are drawn.
    pub sampler: sample::Options,
    /// Whether the seed was taken at random.
    random_seed: bool,
    /// The grammar that its tokens follow, and where they stand in it.
    pub constraint: Option<Box<Constraint>>,
    /// What drafts its tokens, if anything does.
    pub drafter: Option<Box<Drafter>>,
    /// Tokens that have been drawn and not handed out. All but the last are in the cache, and its grammar has followed them.
    pub ahead: Vec<i32>,
    /// Tokens evaluated as parts of its prompts.
    pub prompt_tokens: u64,
    /// Tokens sampled.
    pub decoded_tokens: u64,
    /// The adapters that its tokens are evaluated with.
    pub adapters: Vec<Scaled>,
    /// What it belongs to, if not to the host: it is of no use to anybody once that is gone.
    pub owner: Option<Weak<()>>,
}

/// Tokens that an evaluation takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Index of the first.
    pub start: usize,
    /// How many until the logits after the last token are known.
    pub count: usize,
}

impl Sequence {
    /// An empty sequence with room for `capacity` tokens.
    pub fn new(id: i32, capacity: usize, sampler: sample::Options) -> Result<Sequence> {
        let mut sequence = Sequence {
            id,
            tokens: crate::error::reserve(capacity, "a sequence")?,
            evaluated: 0,
            state: usize::MAX,
            has_logits: false,
            sampler: sample::Options::defaults(),
            random_seed: false,
            constraint: None,
            drafter: None,
            ahead: Vec::new(),
            prompt_tokens: 0,
            decoded_tokens: 0,
            adapters: Vec::new(),
            owner: None,
        };
        sequence.set_sampler(sampler);
        Ok(sequence)
    }

    /// Draws by `sampler` from now on; a seed that is to be random is taken here.
    pub fn set_sampler(&mut self, mut sampler: sample::Options) {
        self.forget_ahead();
        self.random_seed = sampler.seed == sample::SEED_RANDOM;
        sampler.seed = sample::resolve_seed(sampler.seed);
        self.sampler = sampler;
    }

    /// Whether its seed was taken at random, so that a fork takes another.
    pub fn has_random_seed(&self) -> bool {
        self.random_seed
    }

    /// Draws by the sampler of a sequence that was saved, whose seed was taken at random or not.
    pub fn resume_sampler(&mut self, sampler: sample::Options, random_seed: bool) {
        (self.sampler, self.random_seed) = (sampler, random_seed);
    }

    /// The sampler of a fork: the same, but a random seed is taken anew, or all forks would draw the same words.
    pub fn sampler_of_fork(&self) -> Result<sample::Options> {
        let mut sampler = self.sampler.copied()?;
        if self.random_seed {
            sampler.seed = sample::SEED_RANDOM;
        }
        Ok(sampler)
    }

    /// Takes a draft in for the pass that is planned, and goes on as if it had been appended.
    pub fn draft(&mut self, token: i32) {
        self.drafter.iter_mut().for_each(|drafter| drafter.push(token));
        self.tokens.push(token);
    }

    /// Forgets the tokens that were drawn ahead, because something changes that they depend on.
    pub fn forget_ahead(&mut self) {
        if !self.ahead.is_empty() {
            self.ahead.clear();
            let length = self.tokens.len();
            self.constraint.iter_mut().for_each(|constraint| constraint.cut(length));
        }
    }

    /// What is missing before a token can be sampled. When everything is in the cache but the logits are gone, the last token is
    /// evaluated again: its keys and values come out the same.
    pub fn pending(&self) -> Pending {
        if self.has_logits || self.tokens.is_empty() {
            return Pending { start: self.tokens.len(), count: 0 };
        }
        let start = self.evaluated.min(self.state).min(self.tokens.len() - 1);
        Pending { start, count: self.tokens.len() - start }
    }

    /// Takes note that its states are behind `state` tokens. Beyond `most` tokens its keys count as lost too, which are evaluated with the states: as
    /// a prompt then.
    pub fn go_back(&mut self, state: usize, most: usize) {
        self.state = state;
        if self.evaluated > state.saturating_add(most) {
            self.evaluated = state;
        }
    }

    /// Whether it lacks more than its last token, so that a host may have to wait. What its states lack has been evaluated before.
    pub fn has_prompt(&self) -> bool {
        !self.has_logits && self.tokens.len() > self.evaluated + 1
    }

    /// How far it is evaluated after a pass of `count` tokens from `start` on: no further than before where kept logits spare the pass.
    pub fn evaluated_after(&self, start: usize, count: usize) -> usize {
        if count > 0 { self.evaluated.max(start + count) } else { self.evaluated }
    }

    /// What its grammar says of the next token.
    pub fn next_by_grammar(&mut self) -> Result<Next> {
        self.constraint.as_mut().map_or(Ok(Next::Free), |constraint| constraint.peek())
    }

    /// The tokens that end its generation: its own, and `eog`, those of the vocabulary.
    pub fn ends<'a>(&'a self, eog: &'a [i32]) -> [&'a [i32]; 2] {
        [&self.sampler.stop_tokens, if self.sampler.ignore_eog { &[] } else { eog }]
    }

    /// Asks its grammar what may come next, and works out the mask where that is a choice. What goes wrong is told by [`Sequence::mask`].
    pub fn prepare_mask(&mut self) {
        if matches!(self.next_by_grammar(), Ok(Next::Choice)) {
            self.constraint.iter_mut().for_each(|constraint| constraint.prepare());
        }
    }

    /// The tokens that may follow where the grammar says `next`, which is [`Next::Choice`] or [`Next::End`]; the mask has been worked out.
    pub fn mask<'a>(&'a self, next: Next, eog: &'a [i32]) -> Result<sample::Mask<'a>> {
        let (bits, may_end) = match &self.constraint {
            Some(constraint) if next == Next::Choice => constraint.mask()?,
            _ => (&[][..], true),
        };
        Ok(sample::Mask { bits: Some(bits), named: if may_end { self.ends(eog) } else { [&[], &[]] } })
    }

    /// The token that follows by `logits` where the grammar says `next`, [`Next::Free`] if there is none; `None` if no token may.
    pub fn choose(
        &mut self,
        next: Next,
        logits: &[f32],
        eog: &[i32],
        scratch: &mut sample::Scratch,
    ) -> Result<Option<i32>> {
        if next == Next::Choice {
            if let Some(token) = self.choose_without_mask(logits, eog, scratch)? {
                return Ok(Some(token));
            }
            self.constraint.iter_mut().for_each(|constraint| constraint.prepare());
        }
        let mask = if next == Next::Free { sample::Mask::default() } else { self.mask(next, eog)? };
        if mask.is_empty() {
            return Ok(None);
        }
        let position = self.tokens.len() as u64;
        sample::sample_masked(&self.sampler, logits, &mask, &self.tokens, position, scratch).map(Some)
    }

    /// The same token where it is known without the work of a mask.
    fn choose_without_mask(
        &mut self,
        logits: &[f32],
        eog: &[i32],
        scratch: &mut sample::Scratch,
    ) -> Result<Option<i32>> {
        let Some(constraint) = self.constraint.as_mut().filter(|constraint| !constraint.is_prepared()) else {
            return Ok(None);
        };
        // The mask tells whether those that end generation may follow.
        let (sampler, position) = (&self.sampler, self.tokens.len() as u64);
        let mut allows = |tokens: &[i32]| {
            let is_text = !tokens.iter().any(|&token| sampler.is_end(token, eog));
            Ok(is_text && constraint.allows(tokens)?)
        };
        sample::sample_unmasked(sampler, logits, &self.tokens, position, scratch, &mut allows)
    }

    /// Tells its grammar of `token`, which is about to be appended and `ends` generation or does not.
    pub fn follow(&mut self, token: i32, ends: bool) -> Result<()> {
        let position = self.tokens.len();
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.note(token, position, ends))
    }

    /// Whether its owner is gone.
    pub fn is_abandoned(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.strong_count() == 0)
    }

    /// Queues tokens behind the history.
    pub fn append(&mut self, tokens: &[i32], context: usize) -> Result<()> {
        let length = self.tokens.len();
        if tokens.len() > context - length.min(context) {
            return Err(Error::ContextFull { length, more: tokens.len(), limit: context });
        }
        let bytes = tokens.len().saturating_mul(size_of::<i32>());
        room(bytes, "a prompt", || self.tokens.try_reserve(tokens.len()))?;
        if !tokens.is_empty() {
            self.forget_ahead();
        }
        self.tokens.extend_from_slice(tokens);
        self.has_logits &= tokens.is_empty();
        Ok(())
    }

    /// Refuses to keep more tokens than there are.
    pub fn check_cut(&self, length: usize) -> Result<()> {
        if length <= self.tokens.len() {
            return Ok(());
        }
        let message = format!("cannot keep {} of a sequence of {}", Count(length, "token"), self.tokens.len());
        Err(Error::InvalidArgument(message))
    }

    /// Refuses to take tokens out that there are not, or that its grammar has followed.
    pub fn check_removal(&self, first: usize, count: usize) -> Result<()> {
        let length = self.tokens.len();
        let end = first.checked_add(count).filter(|&end| end <= length);
        let Some(end) = end else {
            let message =
                format!("cannot take {} out from {first} on, of a sequence of {length}", Count(count, "token"));
            return Err(Error::InvalidArgument(message));
        };
        if self.constraint.as_ref().is_some_and(|constraint| constraint.has_followed(first..end)) {
            let message = format!("the grammar has followed some of the tokens {first} to {end}");
            return Err(Error::InvalidArgument(message));
        }
        Ok(())
    }

    /// Keeps the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.forget_ahead();
        self.drafter.iter_mut().for_each(|drafter| drafter.cut(&self.tokens, length));
        self.has_logits &= length == self.tokens.len();
        self.tokens.truncate(length);
        self.evaluated = self.evaluated.min(length);
        if let Some(constraint) = &mut self.constraint {
            constraint.cut(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(tokens: usize, evaluated: usize) -> Sequence {
        let mut sequence = Sequence::new(1, 8, sample::Options::defaults()).unwrap();
        sequence.append(&vec![7; tokens], 100).unwrap();
        sequence.evaluated = evaluated;
        sequence
    }

    #[test]
    fn pending_is_what_the_cache_lacks() {
        assert_eq!(sequence(5, 2).pending(), Pending { start: 2, count: 3 });
    }

    #[test]
    fn the_last_token_is_evaluated_again_when_its_logits_are_gone() {
        assert_eq!(sequence(5, 5).pending(), Pending { start: 4, count: 1 });
    }

    #[test]
    fn nothing_is_pending_when_the_logits_are_kept() {
        let mut sequence = sequence(5, 5);
        sequence.has_logits = true;
        assert_eq!(sequence.pending().count, 0);
        sequence.append(&[1], 100).unwrap();
        assert_eq!(sequence.pending(), Pending { start: 5, count: 1 });
    }

    #[test]
    fn a_fork_keeps_a_given_seed_and_takes_another_random_one() {
        let mut parent = sequence(1, 0);
        parent.set_sampler(sample::Options { seed: 7, top_k: 3, ..sample::Options::defaults() });
        let fork = parent.sampler_of_fork().unwrap();
        assert_eq!((fork.seed, fork.top_k), (7, 3));
        parent.set_sampler(sample::Options { seed: sample::SEED_RANDOM, ..sample::Options::defaults() });
        assert_ne!(parent.sampler.seed, sample::SEED_RANDOM);
        assert_eq!(parent.sampler_of_fork().unwrap().seed, sample::SEED_RANDOM);
    }

    #[test]
    fn an_append_beyond_the_context_queues_nothing() {
        let mut sequence = sequence(5, 0);
        assert!(matches!(sequence.append(&[1, 2], 6), Err(Error::ContextFull { length: 5, more: 2, limit: 6 })));
        assert_eq!(sequence.tokens.len(), 5);
    }
}
