//! What a model's last norm gave of tokens that its predictor has not been evaluated with: a run of vectors for each slot.
//!
//! A vector stands for a token and all before it. It is kept with the token that was evaluated, and is of use as long as the sequence has that token
//! there: drafts that turned out wrong, and tokens that were cut, are found by comparing.

use crate::error::{Result, filled, reserve};
use std::ops::Range;

const WHAT: &str = "vectors of tokens";

/// Vectors of neighbouring tokens of every slot.
pub struct Waiting {
    width: usize,
    /// Most of a slot.
    most: usize,
    vectors: Vec<f32>,
    runs: Vec<Run>,
    /// Of each slot the one that stands for its last guess.
    guessed: Vec<f32>,
}

/// Which tokens those of a slot stand for.
struct Run {
    /// Index of the first.
    first: usize,
    tokens: Vec<i32>,
}

impl Waiting {
    /// None yet, with room for `most` of each of `slots`, of `width` elements.
    pub fn new(slots: usize, most: usize, width: usize) -> Result<Waiting> {
        let mut runs = reserve(slots, WHAT)?;
        for _ in 0..slots {
            runs.push(Run { first: 0, tokens: reserve(most, WHAT)? });
        }
        let count = slots.saturating_mul(width);
        let (vectors, guessed) = (filled(count.saturating_mul(most), 0.0, WHAT)?, filled(count, 0.0, WHAT)?);
        Ok(Waiting { width, most, vectors, runs, guessed })
    }

    /// Bytes of these vectors.
    pub fn bytes(slots: usize, most: usize, width: usize) -> u64 {
        (slots as u64).saturating_mul(width as u64).saturating_mul((most as u64 + 1) * size_of::<f32>() as u64)
    }

    /// Whether there is no room for the vector of the token at `place`, which does not take the place of another.
    pub fn is_full(&self, slot: usize, place: usize) -> bool {
        let Run { first, tokens } = &self.runs[slot];
        tokens.len() == self.most && place == first + tokens.len()
    }

    /// Keeps the vector of the token at `place`, in place of those from there on; of those before it where they come right before it.
    pub fn push(&mut self, slot: usize, place: usize, token: i32, vector: &[f32]) {
        let run = &mut self.runs[slot];
        let follows = (run.first..=run.first + run.tokens.len()).contains(&place) && place < run.first + self.most;
        if !follows {
            run.first = place;
        }
        run.tokens.truncate(place - run.first);
        run.tokens.push(token);
        let at = (slot * self.most + place - run.first) * self.width;
        self.vectors[at..at + self.width].copy_from_slice(vector);
    }

    /// Forgets those of tokens behind the first `length`.
    pub fn cut(&mut self, slot: usize, length: usize) {
        let run = &mut self.runs[slot];
        run.tokens.truncate(length.saturating_sub(run.first));
    }

    /// Forgets those that stand for other tokens than `tokens`, and tells for which there are some.
    pub fn settle(&mut self, slot: usize, tokens: &[i32]) -> Range<usize> {
        let run = &mut self.runs[slot];
        let came = tokens.get(run.first..).unwrap_or_default();
        let same = run.tokens.iter().zip(came).take_while(|(waiting, token)| waiting == token).count();
        run.tokens.truncate(same);
        run.first..run.first + same
    }

    /// Whether there is one of the token at `place`.
    pub fn has(&self, slot: usize, place: usize) -> bool {
        let Run { first, tokens } = &self.runs[slot];
        (*first..first + tokens.len()).contains(&place)
    }

    /// That of the token at `place`, which is there.
    pub fn of(&self, slot: usize, place: usize) -> &[f32] {
        let at = (slot * self.most + place - self.runs[slot].first) * self.width;
        &self.vectors[at..at + self.width]
    }

    /// Forgets those of tokens before the one at `place`.
    pub fn drop_before(&mut self, slot: usize, place: usize) {
        let run = &mut self.runs[slot];
        let count = place.saturating_sub(run.first).min(run.tokens.len());
        let (start, end) = (slot * self.most, slot * self.most + run.tokens.len());
        self.vectors.copy_within((start + count) * self.width..end * self.width, start * self.width);
        run.tokens.drain(..count);
        run.first += count;
    }

    /// Forgets the older half of a slot's.
    pub fn drop_older(&mut self, slot: usize) {
        let Run { first, tokens } = &self.runs[slot];
        self.drop_before(slot, first + tokens.len().div_ceil(2));
    }

    /// Gives the slot `to` what `from` has.
    pub fn fork(&mut self, from: usize, to: usize) {
        let count = self.runs[from].tokens.len();
        let [start, target] = [from, to].map(|slot| slot * self.most * self.width);
        self.vectors.copy_within(start..start + count * self.width, target);
        let mut run = Run { first: self.runs[from].first, tokens: std::mem::take(&mut self.runs[to].tokens) };
        run.tokens.clear();
        run.tokens.extend_from_slice(&self.runs[from].tokens);
        self.runs[to] = run;
    }

    /// The vector that stands for the last guess at a slot's tokens.
    pub fn guessed(&self, slot: usize) -> &[f32] {
        &self.guessed[slot * self.width..][..self.width]
    }

    /// Keeps that vector.
    pub fn guess(&mut self, slot: usize, vector: &[f32]) {
        self.guessed[slot * self.width..][..self.width].copy_from_slice(vector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(tokens: &[i32]) -> Waiting {
        let mut waiting = Waiting::new(2, 4, 1).unwrap();
        tokens.iter().enumerate().for_each(|(place, &token)| waiting.push(1, 5 + place, token, &[token as f32]));
        waiting
    }

    #[test]
    fn vectors_of_other_tokens_are_forgotten() {
        let text = [0, 1, 2, 3, 4, 10, 11, 12];
        let mut waiting = waiting(&[10, 11, 99, 13]);
        assert!(waiting.is_full(1, 9) && !waiting.is_full(1, 8) && !waiting.is_full(0, 0));
        assert_eq!(waiting.settle(1, &text), 5..7);
        assert_eq!((waiting.of(1, 5), waiting.of(1, 6)), (&[10.0][..], &[11.0][..]));
        assert_eq!(waiting.settle(1, &text[..6]), 5..6);
        assert_eq!(waiting.settle(1, &text[..3]), 5..5);
        assert_eq!(waiting.settle(0, &text), 0..0);
    }

    #[test]
    fn a_vector_takes_the_place_of_those_from_it_on() {
        let text = [0, 1, 2, 3, 4, 10, 20, 21];
        let mut waiting = waiting(&[10, 11, 12]);
        waiting.push(1, 6, 20, &[20.0]);
        assert_eq!((waiting.settle(1, &text), waiting.of(1, 6)), (5..7, &[20.0][..]));
        waiting.drop_before(1, 6);
        assert_eq!((waiting.settle(1, &text), waiting.of(1, 6)), (6..7, &[20.0][..]));
        // Behind a gap they begin anew, and so do they before the first.
        waiting.push(1, 2, 2, &[2.0]);
        assert_eq!((waiting.settle(1, &text), waiting.of(1, 2)), (2..3, &[2.0][..]));
        waiting.push(1, 7, 21, &[21.0]);
        assert_eq!((waiting.settle(1, &text), waiting.of(1, 7)), (7..8, &[21.0][..]));
        waiting.cut(1, 7);
        assert_eq!(waiting.settle(1, &text), 7..7);
    }

    #[test]
    fn the_newer_half_stays() {
        let text = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14];
        let mut waiting = waiting(&[10, 11, 12, 13]);
        waiting.drop_older(1);
        waiting.push(1, 9, 14, &[14.0]);
        assert_eq!((waiting.settle(1, &text), waiting.of(1, 7)), (7..10, &[12.0][..]));
    }

    #[test]
    fn a_fork_has_vectors_of_its_own() {
        let text = [0, 1, 2, 3, 4, 10, 11, 12];
        let mut waiting = waiting(&[10, 11]);
        waiting.fork(1, 0);
        waiting.push(1, 6, 30, &[30.0]);
        assert_eq!((waiting.settle(0, &text), waiting.of(0, 6)), (5..7, &[11.0][..]));
        waiting.guess(0, &[7.0]);
        assert_eq!((waiting.guessed(0), waiting.guessed(1)), (&[7.0][..], &[0.0][..]));
    }
}
