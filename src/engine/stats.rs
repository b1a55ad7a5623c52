//! The figures of a session and of its sequences: how they are counted, and how a session shows them to other threads.

use super::board::Board;
use super::sequence::Sequence;
use crate::error::{Error, Result};
use crate::kv::Pages;
use std::sync::Arc;
use std::time::Duration;

/// What a session has done since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Passes over the model.
    pub passes: u64,
    /// Tokens evaluated as parts of prompts.
    pub prompt_tokens: u64,
    /// Tokens sampled.
    pub decoded_tokens: u64,
    /// Drafts that were evaluated, and those of them that were right.
    pub drafted: u64,
    /// As above.
    pub accepted: u64,
    /// Nanoseconds of the passes, divided between prompts and sampled tokens by rows; sampling belongs to the latter.
    pub prompt_ns: u64,
    /// As above.
    pub decode_ns: u64,
}

impl Done {
    /// Counts a call that took `time` for passes over `prompt_rows` and `decode_rows`.
    pub fn count(&mut self, passes: u64, prompt_rows: usize, decode_rows: usize, time: Duration) {
        let ns = time.as_nanos() as u64;
        let (prompt, rows) = (prompt_rows as u64, (prompt_rows + decode_rows) as u64);
        let of_prompts = (u128::from(ns) * u128::from(prompt)).checked_div(rows.into()).unwrap_or(0) as u64;
        self.passes += passes;
        self.prompt_tokens += prompt;
        self.prompt_ns += of_prompts;
        self.decode_ns += ns - of_prompts;
    }
}

/// Figures of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Sequences that are open.
    pub seqs: u64,
    /// Tokens of all open sequences: evaluated, queued and sampled.
    pub tokens: u64,
    /// Pages of the cache.
    pub pages: u64,
    /// Those that no sequence holds.
    pub pages_free: u64,
    /// What has been done.
    pub done: Done,
}

/// Figures of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqStats {
    /// Its tokens: evaluated, queued and sampled.
    pub tokens: u64,
    /// Those whose keys and values are in the cache.
    pub evaluated: u64,
    /// Pages that it holds, those that it shares included.
    pub pages: u64,
    /// Tokens evaluated as parts of its prompts.
    pub prompt_tokens: u64,
    /// Tokens that it has sampled.
    pub decoded_tokens: u64,
    /// The seed in use.
    pub seed: u64,
    /// Drafts that were evaluated for it, and those of them that were right.
    pub drafted: u64,
    /// As above.
    pub accepted: u64,
}

/// Numbers of a session on the board, and of a slot behind them; a free slot has the id 0.
const SESSION: usize = 11;
const SLOT: usize = 9;

/// What a session shows of itself. Reading waits for nobody, and delays nobody.
#[derive(Clone)]
pub struct Shown(Arc<Board>);

impl Shown {
    /// A board for `slots` sequences.
    pub(super) fn new(slots: usize) -> Result<Shown> {
        Board::new(SESSION + slots * SLOT).map(|board| Shown(Arc::new(board)))
    }

    /// Shows the present state; `slots` gives a slot's sequence, if it has one, and how many pages it holds.
    pub(super) fn write<'a>(
        &self,
        pages: &Pages,
        done: &Done,
        slots: impl Iterator<Item = (Option<&'a Sequence>, usize)> + Clone,
    ) {
        let open = slots.clone().filter_map(|(sequence, _)| sequence);
        let (seqs, tokens) =
            open.fold((0, 0), |(seqs, tokens), sequence| (seqs + 1, tokens + sequence.tokens.len() as u64));
        let Done { passes, prompt_tokens, decoded_tokens, drafted, accepted, prompt_ns, decode_ns } = *done;
        let (total, free) = (pages.total() as u64, pages.free() as u64);
        let works = [passes, prompt_tokens, decoded_tokens, drafted, accepted, prompt_ns, decode_ns];
        let session = [seqs, tokens, total, free].into_iter().chain(works);
        let slots = slots.flat_map(|(sequence, pages)| sequence.map_or([0; SLOT], |sequence| numbers(sequence, pages)));
        self.0.write(session.chain(slots));
    }

    /// Most sequences open at once.
    pub fn max_seqs(&self) -> usize {
        (self.0.count() - SESSION) / SLOT
    }

    /// Figures of the session.
    pub fn session(&self) -> SessionStats {
        let numbers = self.0.read(|number| std::array::from_fn::<u64, SESSION, _>(number));
        let [seqs, tokens, pages, pages_free, works @ ..] = numbers;
        let [passes, prompt_tokens, decoded_tokens, drafted, accepted, prompt_ns, decode_ns] = works;
        let done = Done { passes, prompt_tokens, decoded_tokens, drafted, accepted, prompt_ns, decode_ns };
        SessionStats { seqs, tokens, pages, pages_free, done }
    }

    /// Figures of the open sequence `id`.
    pub fn sequence(&self, id: i32) -> Result<SeqStats> {
        let places = (SESSION..self.0.count()).step_by(SLOT);
        let found = self.0.read(|number| {
            let place = places.clone().find(|&place| number(place) == id as u64 && id > 0)?;
            Some(std::array::from_fn::<u64, SLOT, _>(|index| number(place + index)))
        });
        let [_, tokens, evaluated, pages, prompt_tokens, decoded_tokens, seed, drafted, accepted] =
            found.ok_or_else(|| not_open(id))?;
        Ok(SeqStats { tokens, evaluated, pages, prompt_tokens, decoded_tokens, seed, drafted, accepted })
    }
}

fn numbers(sequence: &Sequence, pages: usize) -> [u64; SLOT] {
    let Sequence { id, evaluated, prompt_tokens, decoded_tokens, .. } = *sequence;
    let (tokens, seed) = (sequence.tokens.len() as u64, sequence.sampler.seed);
    let [drafted, accepted] = sequence.drafter.as_ref().map_or([0; 2], |drafter| [drafter.drafted, drafter.accepted]);
    [id as u64, tokens, evaluated as u64, pages as u64, prompt_tokens, decoded_tokens, seed, drafted, accepted]
}

/// There is no such sequence.
pub(super) fn not_open(id: i32) -> Error {
    Error::NotFound(format!("this session has no open sequence {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_pass_is_divided_by_rows() {
        let mut done = Done::default();
        done.count(1, 30, 10, Duration::from_nanos(4000));
        assert_eq!((done.prompt_ns, done.decode_ns, done.prompt_tokens, done.passes), (3000, 1000, 30, 1));
        // Sampling from kept logits has no rows.
        done.count(0, 0, 0, Duration::from_nanos(7));
        assert_eq!((done.prompt_ns, done.decode_ns, done.passes), (3000, 1007, 1));
    }

    #[test]
    fn readers_see_numbers_that_belong_together() {
        let board = Board::new(64).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..200_000).for_each(|round| board.write((0..64).map(|index| round * index))));
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 199_999 {
                        let [one, two, high] = board.read(|number| [number(1), number(2), number(63)]);
                        assert!((two, high) == (2 * one, 63 * one) && one >= last, "{one} {two} {high}");
                        last = one;
                    }
                });
            }
        });
    }
}
