//! SentencePiece's unigram models: of all ways to cut a text into pieces, the one whose scores add up to most.
//!
//! `tokenizer.ggml.model` = "t5", or `Unigram` in tokenizer.json. The method is that of SentencePiece's `unigram_model.cc` (Viterbi over the places
//! of a text; Kudo, arXiv:1804.10959), with sums of 64 bits as in the `tokenizers` library. Text is matched with plain spaces, because
//! [`Vocabulary`] holds tokens so.

use super::Before;
use super::TOKENS_OF_TEXT;
use super::fallback::Fallback;
use super::finder::Finder;
use super::merge::NONE;
use super::parts::{Kind, Parts, PrefixScope, SpaceRules, SpaceSteps, UnigramWords};
use super::pretokenizer::Pretokenizer;
use super::sentencepiece::check_scores;
use super::spaces::word_end;
use super::vocabulary::Vocabulary;
use crate::error::{Result, copied, filled, push};
use std::ops::Range;

/// How much lower than the lowest score that of an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Pieces with their scores, and the rules for spaces.
pub(super) struct Unigram {
    pieces: Finder,
    scores: Vec<f32>,
    unknown_score: f64,
    /// Whether no token holds a space behind anything but spaces, so that no piece reaches from word to word.
    words_apart: bool,
    fallback: Fallback,
    words: Words,
}

/// [`UnigramWords`], ready to cut.
enum Words {
    Text(SpaceRules),
    Steps(SpaceSteps, Pretokenizer),
}

impl Words {
    fn new(words: &UnigramWords) -> Result<Words> {
        Ok(match words {
            UnigramWords::Text(rules) => Words::Text(*rules),
            UnigramWords::Steps { spaces, cuts } => Words::Steps(*spaces, Pretokenizer::new(cuts)?),
        })
    }
}

/// The best way to a place in a word.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Where its last piece begins.
    start: u32,
    /// The token of that piece, or [`NONE`].
    token: u32,
}

const UNREACHED: Best = Best { score: f64::NEG_INFINITY, start: 0, token: NONE };

impl Best {
    fn offer(&mut self, other: Best) {
        if other.score > self.score || self.score == f64::NEG_INFINITY {
            *self = other;
        }
    }
}

impl Unigram {
    /// A model with `scores`, one a token of `vocabulary`, which is that of `parts`.
    pub(super) fn build(
        parts: &Parts,
        scores: &[f32],
        words: &UnigramWords,
        vocabulary: &Vocabulary,
    ) -> Result<Unigram> {
        check_scores(parts, scores)?;
        let normal = || vocabulary.kinds().filter(|&(_, kind)| kind == Kind::Normal).map(|(token, _)| token);
        let lowest = normal().map(|token| scores[token as usize]).fold(f32::INFINITY, f32::min);
        Ok(Unigram {
            pieces: Finder::of(vocabulary, normal(), "pieces")?,
            scores: copied(scores, "token scores")?,
            unknown_score: f64::from(lowest) - UNKNOWN_PENALTY,
            words_apart: normal().all(|token| word_end(vocabulary.bytes(token)).is_none()),
            fallback: Fallback::new(vocabulary, parts.named.unknown)?,
            words: Words::new(words)?,
        })
    }

    /// Where text has a space in front that was not in it.
    pub(super) fn prefix_scope(&self) -> PrefixScope {
        match &self.words {
            Words::Text(rules) => rules.prefix_scope(),
            Words::Steps(spaces, _) => spaces.prefix_space.scope,
        }
    }

    /// Appends the tokens of `text`, which stands behind `before`.
    pub(super) fn encode(&self, text: &str, before: Before, words: &Vocabulary, out: &mut Vec<i32>) -> Result<()> {
        let mut path = Vec::new();
        match &self.words {
            Words::Text(rules) => {
                let text = rules.apply(text, before != Before::Text)?;
                self.encode_stretch(&text, words, &mut path, out)
            }
            Words::Steps(spaces, cuts) => {
                let text = spaces.apply(text)?;
                if text.is_empty() {
                    return Ok(());
                }
                let text = spaces.prefix_space.put(text, before)?;
                let stretches = cuts.split(&text)?;
                stretches.into_iter().try_for_each(|place| self.encode_stretch(&text[place], words, &mut path, out))
            }
        }
    }

    /// Appends the tokens of `text`, which no piece leaves. One unknown token stands for all neighbouring characters that need it.
    fn encode_stretch(&self, text: &str, words: &Vocabulary, path: &mut Vec<Piece>, out: &mut Vec<i32>) -> Result<()> {
        let mut after_unknown = false;
        let mut rest = text;
        while !rest.is_empty() {
            let end = if self.words_apart { word_end(rest.as_bytes()) } else { None };
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            self.find_best(word, words, path)?;
            for piece in path.iter().rev() {
                match piece.token {
                    NONE => self.fallback.encode(&word.as_bytes()[piece.bytes()], &mut after_unknown, out)?,
                    token => {
                        after_unknown = false;
                        push(out, token as i32, TOKENS_OF_TEXT)?;
                    }
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// Sets `path` to the pieces of `word`, last first.
    fn find_best(&self, word: &str, words: &Vocabulary, path: &mut Vec<Piece>) -> Result<()> {
        let mut best = filled(word.len() + 1, UNREACHED, "text")?;
        best[0].score = 0.0;
        for (at, c) in word.char_indices() {
            let (score, start) = (best[at].score, at as u32);
            let next = at + c.len_utf8();
            let mut whole = false;
            for (end, token) in self.pieces.prefixes(word.as_bytes(), at, words) {
                whole |= end == next;
                best[end].offer(Best { score: score + f64::from(self.scores[token as usize]), start, token });
            }
            if !whole {
                best[next].offer(Best { score: score + self.unknown_score, start, token: NONE });
            }
        }
        path.clear();
        let mut end = word.len();
        while end > 0 {
            let Best { start, token, .. } = best[end];
            push(path, Piece { start, end: end as u32, token }, "text")?;
            end = start as usize;
        }
        Ok(())
    }
}

/// A stretch of a word, and its token or [`NONE`].
struct Piece {
    start: u32,
    end: u32,
    token: u32,
}

impl Piece {
    fn bytes(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}
