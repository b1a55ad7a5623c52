//! Where the last tokens of a sequence have stood before: chains of the places behind each three tokens, as match finders of the LZ77 family have
//! them (J. Ziv, A. Lempel, "A universal algorithm for sequential data compression", 1977; the chains are those of zlib's deflate).

use crate::error::{Result, filled};

/// Tokens that must be the same at least.
const GRAM: usize = 3;
/// Places that are looked at, the latest first.
const CANDIDATES: usize = 16;
/// Beyond this a match is as good as any.
const LONGEST: usize = 32;
/// No place.
const NONE: u32 = u32::MAX;

/// The places of one sequence.
pub struct Index {
    /// The latest place behind tokens of a hash.
    heads: Vec<u32>,
    /// The place before each that has the same hash.
    previous: Vec<u32>,
    /// Tokens that are entered.
    len: usize,
}

impl Index {
    /// For up to `capacity` tokens; there are no matches in longer sequences.
    pub fn new(capacity: usize) -> Result<Index> {
        let what = "places of tokens";
        let heads = filled(capacity.clamp(64, 1 << 16).next_power_of_two(), NONE, what)?;
        Ok(Index { heads, previous: filled(capacity.saturating_add(1), NONE, what)?, len: 0 })
    }

    /// Forgets all but the first `length` of the tokens that it has followed, in the order opposite to that in which they were entered.
    pub fn cut(&mut self, tokens: &[i32], length: usize) {
        for at in (length + 1..=self.len).rev() {
            if let Some(hash) = self.hash_behind(tokens, at) {
                self.heads[hash] = self.previous[at];
            }
        }
        self.len = self.len.min(length);
    }

    /// Enters what has come since.
    pub fn follow(&mut self, tokens: &[i32]) {
        for at in self.len + 1..=tokens.len().min(self.previous.len() - 1) {
            self.len = at;
            if let Some(hash) = self.hash_behind(tokens, at) {
                self.previous[at] = std::mem::replace(&mut self.heads[hash], at as u32);
            }
        }
    }

    /// The chain of the place behind the first `at` tokens.
    fn hash_behind(&self, tokens: &[i32], at: usize) -> Option<usize> {
        Some((mix(&tokens[at.checked_sub(GRAM)?..at]) >> 40) as usize & (self.heads.len() - 1))
    }

    /// Where the longest end of `tokens` that has been there before was followed by more, and its length; the latest of equals.
    pub fn find(&self, tokens: &[i32]) -> Option<(usize, usize)> {
        if self.len != tokens.len() || self.len < GRAM {
            return None;
        }
        let (mut at, mut best) = (self.len, None::<(usize, usize)>);
        for _ in 0..CANDIDATES {
            let next = self.previous[at];
            if next == NONE {
                break;
            }
            at = next as usize;
            let matched = common_end(&tokens[..at], tokens);
            if matched >= GRAM && best.is_none_or(|(_, longest)| matched > longest) {
                best = Some((at, matched));
            }
        }
        best
    }
}

/// Equal tokens at the ends of both, as far as is looked.
fn common_end(a: &[i32], b: &[i32]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(LONGEST).take_while(|(a, b)| a == b).count()
}

/// A hash of tokens, of which the upper bits are the better ones.
pub fn mix(gram: &[i32]) -> u64 {
    gram.iter().fold(0, |sum: u64, &token| (sum ^ token as u32 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `find` is to give, without an index.
    fn plain(tokens: &[i32]) -> Option<usize> {
        (1..tokens.len()).map(|at| common_end(&tokens[..at], tokens)).max().filter(|&matched| matched >= GRAM)
    }

    #[test]
    fn matches_are_those_of_a_plain_search_whatever_is_cut() {
        let (mut tokens, mut index) = (Vec::new(), Index::new(200).unwrap());
        let (mut found, mut there) = (0, 0);
        let mut state = 1u32;
        let mut random = |bound: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % bound
        };
        for _ in 0..20_000 {
            let cut = match random(12) {
                0 => tokens.len().min(random(9) as usize),
                _ if tokens.len() == 200 => random(200) as usize,
                _ => 0,
            };
            let length = tokens.len() - cut;
            index.cut(&tokens, length);
            tokens.truncate(length);
            tokens.push(random(5) as i32);
            index.follow(&tokens);
            let longest = plain(&tokens);
            there += usize::from(longest.is_some());
            let Some((at, matched)) = index.find(&tokens) else { continue };
            assert_eq!(common_end(&tokens[..at], &tokens), matched);
            found += usize::from(longest == Some(matched));
        }
        assert!(there > 5000 && found * 100 > there * 95, "of {there} longest matches {found} were found");
    }

    #[test]
    fn sequences_beyond_the_capacity_have_no_matches() {
        let (tokens, mut index) = ([7; 20], Index::new(10).unwrap());
        index.follow(&tokens[..10]);
        assert!(index.find(&tokens[..10]).is_some());
        index.follow(&tokens);
        assert!(index.find(&tokens).is_none());
    }
}
