//! SentencePiece's byte-pair models: the pair whose token scores highest is merged first.
//!
//! `tokenizer.ggml.model` = "llama". The method is that of SentencePiece's `bpe_model.cc`; text is matched with plain
//! spaces, because [`Vocabulary`] holds tokens so.

use super::TOKENS_OF_TEXT;
use super::fallback::Fallback;
use super::index::Index;
use super::merge::{Chain, Merge, NONE};
use super::parts::{Kind, Parts, SpaceRules};
use super::spaces::word_end;
use super::vocabulary::{Vocabulary, check_entries};
use crate::error::{Result, collected, push};

/// Scores as merge ranks, and the rules for spaces.
pub(super) struct SentencePiece {
    ranks: Vec<u32>,
    by_bytes: Index,
    longest: usize,
    /// Whether no token holds a space behind anything but spaces, so that no merge reaches from word to word.
    words_apart: bool,
    fallback: Fallback,
    spaces: SpaceRules,
}

impl SentencePiece {
    /// A model with `scores`, one a token of `vocabulary`, which is that of `parts`. The unknown token stands for text that no token spells;
    /// without one it is dropped.
    pub(super) fn build(
        parts: &Parts,
        scores: &[f32],
        spaces: SpaceRules,
        vocabulary: &Vocabulary,
    ) -> Result<SentencePiece> {
        let normal = || vocabulary.kinds().filter(|&(_, kind)| kind == Kind::Normal).map(|(token, _)| token);
        check_scores(parts, scores)?;
        Ok(SentencePiece {
            ranks: collected(scores.iter().map(|&score| rank_of(score)), "token scores")?,
            by_bytes: Index::build(normal(), |token| vocabulary.bytes(token))?,
            longest: normal().map(|token| vocabulary.bytes(token).len()).max().unwrap_or(0),
            words_apart: normal().all(|token| word_end(vocabulary.bytes(token)).is_none()),
            fallback: Fallback::new(vocabulary, parts.named.unknown)?,
            spaces,
        })
    }

    /// The rules for spaces.
    pub(super) fn spaces(&self) -> SpaceRules {
        self.spaces
    }

    /// Appends the tokens of `text`; `first` when it begins the input or follows a special token.
    pub(super) fn encode(&self, text: &str, first: bool, words: &Vocabulary, out: &mut Vec<i32>) -> Result<()> {
        let text = self.spaces.apply(text, first)?;
        let mut chain = Chain::default();
        let mut after_unknown = false;
        let mut rest = &*text;
        while !rest.is_empty() {
            let end = if self.words_apart { word_end(rest.as_bytes()) } else { None };
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            self.encode_word(word, words, &mut chain, &mut after_unknown, out)?;
            rest = after;
        }
        Ok(())
    }

    fn encode_word(
        &self,
        word: &str,
        words: &Vocabulary,
        chain: &mut Chain,
        after_unknown: &mut bool,
        out: &mut Vec<i32>,
    ) -> Result<()> {
        let find = |bytes: &[u8]| self.by_bytes.find(bytes, |token| words.bytes(token));
        chain.clear();
        chain.reserve(word.len())?;
        for c in word.chars() {
            let token = find(c.encode_utf8(&mut [0; 4]).as_bytes()).unwrap_or(NONE);
            chain.push(c.len_utf8() as u32, token);
        }
        let raw = word.as_bytes();
        let symbols = chain.merge(|left, right| {
            let len = (left.len + right.len) as usize;
            if len > self.longest {
                return None;
            }
            let token = find(&raw[left.start as usize..][..len])?;
            Some(Merge { rank: self.ranks[token as usize], token })
        });
        for symbol in symbols {
            let piece = &raw[symbol.start as usize..][..symbol.len as usize];
            match symbol.token {
                NONE => self.fallback.encode(piece, after_unknown, out)?,
                token => {
                    *after_unknown = false;
                    push(out, token as i32, TOKENS_OF_TEXT)?;
                }
            }
        }
        Ok(())
    }
}

/// An error unless there is one score a token, all of them numbers.
pub(super) fn check_scores(parts: &Parts, scores: &[f32]) -> Result<()> {
    check_entries(parts, "scores", scores.len())?;
    let wrong = scores.iter().any(|score| score.is_nan());
    if wrong { Err(parts.bad("scores", "has a score that is not a number")) } else { Ok(()) }
}

/// A number that is lower the higher `score` is: the float's bits, made to sort as integers, then inverted.
fn rank_of(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { bits } else { !(bits | 1 << 31) }
}

#[cfg(test)]
mod tests {
    use super::rank_of;

    #[test]
    fn ranks_sort_scores_from_high_to_low() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -2.0, -1000.0, f32::NEG_INFINITY];
        assert!(scores.map(rank_of).is_sorted());
        assert_eq!(rank_of(0.0), rank_of(-0.0));
        assert!(rank_of(-3.0) > rank_of(-2.0));
    }
}
