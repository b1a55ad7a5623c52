//! The merge loop that byte-pair and SentencePiece models share.
//!
//! A word is a chain of symbols; the best mergeable pair of neighbours becomes one symbol until none is left. A heap of
//! candidates keeps that at O(n log n) for a word of any length (the method of SentencePiece's `bpe_model.cc`).

use crate::error::{Result, room};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No symbol, or no token.
pub(super) const NONE: u32 = u32::MAX;

/// A piece of the word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// First byte in the word.
    pub(super) start: u32,
    /// Bytes; 0 once the symbol has become part of the one before it.
    pub(super) len: u32,
    /// The token of these bytes, or [`NONE`].
    pub(super) token: u32,
    prev: u32,
    next: u32,
}

/// What two neighbours become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    /// Lower goes first; of equals the leftmost.
    pub(super) rank: u32,
    /// The token of both together.
    pub(super) token: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    len: u32,
    token: u32,
}

/// The word being merged. Kept between words, so that its memory is reused.
#[derive(Default)]
pub(super) struct Chain {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Chain {
    /// Forgets the last word.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Makes room for a word of `symbols`: each merge takes one candidate and proposes at most two.
    pub(super) fn reserve(&mut self, symbols: usize) -> Result<()> {
        let bytes = symbols.saturating_mul(size_of::<Symbol>());
        room(bytes, "text", || self.symbols.try_reserve(symbols))?;
        room(bytes, "text", || self.queue.try_reserve(symbols.saturating_mul(2)))
    }

    /// Appends `len` bytes, of token `token` or [`NONE`], to the word.
    pub(super) fn push(&mut self, len: u32, token: u32) {
        let index = self.symbols.len() as u32;
        let (prev, start) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = index;
                (index - 1, last.start + last.len)
            }
            None => (NONE, 0),
        };
        self.symbols.push(Symbol { start, len, token, prev, next: NONE });
    }

    /// Merges as long as `join` allows, then returns the symbols that are left.
    pub(super) fn merge(&mut self, join: impl Fn(&Symbol, &Symbol) -> Option<Merge>) -> impl Iterator<Item = &Symbol> {
        for left in 0..self.symbols.len() as u32 {
            self.propose(left, &join);
        }
        while let Some(Reverse(best)) = self.queue.pop() {
            if self.apply(best) {
                self.propose(best.left, &join);
                let before = self.symbols[best.left as usize].prev;
                if before != NONE {
                    self.propose(before, &join);
                }
            }
        }
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }

    fn propose(&mut self, left: u32, join: &impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let first = &self.symbols[left as usize];
        let Some(second) = self.symbols.get(first.next as usize) else { return };
        if let Some(Merge { rank, token }) = join(first, second) {
            self.queue.push(Reverse(Candidate { rank, left, len: first.len + second.len, token }));
        }
    }

    /// Merges the pair unless one of its symbols has changed since it was proposed. Symbols only grow, so the place and
    /// the length of both together say whether it is still the same pair.
    fn apply(&mut self, pair: Candidate) -> bool {
        let first = self.symbols[pair.left as usize];
        let Some(&second) = self.symbols.get(first.next as usize) else { return false };
        if first.len == 0 || first.len + second.len != pair.len {
            return false;
        }
        self.symbols[first.next as usize].len = 0;
        if let Some(after) = self.symbols.get_mut(second.next as usize) {
            after.prev = pair.left;
        }
        let merged = &mut self.symbols[pair.left as usize];
        (merged.len, merged.token, merged.next) = (pair.len, pair.token, second.next);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges by the rule as it is written: scan for the best pair, join it, repeat.
    fn merge_by_scanning(mut symbols: Vec<u32>, join: impl Fn(u32, u32) -> Option<Merge>) -> Vec<u32> {
        loop {
            let pairs = symbols.windows(2).enumerate();
            let best = pairs.filter_map(|(at, pair)| join(pair[0], pair[1]).map(|m| (m.rank, at, m.token))).min();
            let Some((_, at, token)) = best else { return symbols };
            symbols[at] = token;
            symbols.remove(at + 1);
        }
    }

    #[test]
    fn the_heap_merges_as_scanning_does() {
        // Tokens are numbers below 32, 0 to 3 to begin with; a pair of them has a rank that looks random, and half none.
        let join = |a: u32, b: u32| {
            let mixed = (a * 32 + b).wrapping_mul(2_654_435_761) >> 7;
            (mixed.is_multiple_of(2)).then_some(Merge { rank: mixed >> 10 & 63, token: mixed >> 3 & 31 })
        };
        let mut chain = Chain::default();
        let mut state = 1u32;
        for len in (0..400).chain([2000]) {
            let mut word = Vec::new();
            for _ in 0..len {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                word.push(state >> 30);
            }
            chain.clear();
            word.iter().for_each(|&token| chain.push(1, token));
            let merged: Vec<u32> = chain.merge(|a, b| join(a.token, b.token)).map(|symbol| symbol.token).collect();
            assert_eq!(merged, merge_by_scanning(word, join), "word of {len}");
        }
    }
}
