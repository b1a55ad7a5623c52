//! SentencePiece's byte-pair models: the pair whose token scores highest is merged first.
//!
//! `tokenizer.ggml.model` = "llama". The method is that of SentencePiece's `bpe_model.cc`; text is matched with plain
//! spaces, because [`Vocabulary`] holds tokens so. Unigram models are another algorithm and not read here.

use super::TOKENS_OF_TEXT;
use super::alphabet::{self, Alphabet};
use super::bpe::byte_tokens;
use super::index::Index;
use super::merge::{Chain, Merge, NONE};
use super::vocabulary::{Kind, Vocabulary};
use crate::error::{Result, grow, push, reserve};
use crate::format::{Metadata, Value};

const SCORES: &str = "tokenizer.ggml.scores";

/// Scores as merge ranks, and the file's rules for spaces.
pub(super) struct SentencePiece {
    ranks: Vec<u32>,
    by_bytes: Index,
    longest: usize,
    /// Whether no token holds a space behind anything but spaces, so that no merge reaches from word to word.
    words_apart: bool,
    bytes: [u32; 256],
    unknown: Option<u32>,
    prefix_space: bool,
    squeeze_spaces: bool,
}

impl SentencePiece {
    /// Reads the scores and flags of a file. `unknown` is the token for text that no token spells; without
    /// one it is dropped.
    pub(super) fn read(meta: &Metadata, vocabulary: &Vocabulary, unknown: Option<u32>) -> Result<SentencePiece> {
        let bytes = byte_tokens(vocabulary, Alphabet::Escaped);
        let normal = || vocabulary.kinds().filter(|&(_, kind)| kind == Kind::Normal).map(|(token, _)| token);
        Ok(SentencePiece {
            ranks: read_ranks(meta, vocabulary.len())?,
            by_bytes: Index::build(normal(), |token| vocabulary.bytes(token))?,
            longest: normal().map(|token| vocabulary.bytes(token).len()).max().unwrap_or(0),
            words_apart: normal().all(|token| word_end(vocabulary.bytes(token)).is_none()),
            bytes,
            unknown,
            prefix_space: meta.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
            squeeze_spaces: meta.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
        })
    }

    /// Whether a space is put in front of text at the beginning and after special tokens.
    pub(super) fn adds_space(&self) -> bool {
        self.prefix_space
    }

    /// Appends the tokens of `text`; `first` when it begins the input or follows a special token.
    pub(super) fn encode(&self, text: &str, first: bool, words: &Vocabulary, out: &mut Vec<i32>) -> Result<()> {
        let text = self.normalize(text, first)?;
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
            let spelt = piece.iter().all(|&byte| self.bytes[byte as usize] != NONE);
            match symbol.token {
                NONE if spelt => {
                    grow(out, piece.len(), TOKENS_OF_TEXT)?;
                    out.extend(piece.iter().map(|&byte| self.bytes[byte as usize] as i32));
                }
                // A run of unknown characters is one unknown token.
                NONE if *after_unknown => {}
                NONE => self.unknown.map_or(Ok(()), |token| push(out, token as i32, TOKENS_OF_TEXT))?,
                token => push(out, token as i32, TOKENS_OF_TEXT)?,
            }
            *after_unknown = symbol.token == NONE && !spelt;
        }
        Ok(())
    }

    /// Applies the file's rules for spaces; U+2581 is a space to SentencePiece.
    fn normalize(&self, text: &str, first: bool) -> Result<String> {
        let plain = alphabet::unescape(text)?;
        let mut out = reserve(plain.len() + 1, "text")?;
        let mut last = if self.squeeze_spaces { b' ' } else { 0 };
        if first && self.prefix_space {
            out.push(b' ');
        }
        for byte in plain.bytes() {
            if !(self.squeeze_spaces && byte == b' ' && last == b' ') {
                out.push(byte);
            }
            last = byte;
        }
        if self.squeeze_spaces && out.last() == Some(&b' ') {
            out.pop();
        }
        Ok(String::from_utf8(out).expect("adding and removing spaces keeps a string"))
    }
}

/// Where the first word ends: before a space that follows anything else.
fn word_end(text: &[u8]) -> Option<usize> {
    text.windows(2).position(|pair| pair[0] != b' ' && pair[1] == b' ').map(|at| at + 1)
}

/// Scores turned into numbers that sort the other way round, best first.
fn read_ranks(meta: &Metadata, count: usize) -> Result<Vec<u32>> {
    let scores = meta.required(SCORES, meta.scalars(SCORES)?)?;
    if scores.len() != count {
        return Err(meta.bad(SCORES, &format!("has {} entries for {count} tokens", scores.len())));
    }
    let mut ranks = reserve(count, "token scores")?;
    for score in scores {
        let score = match score {
            Value::F32(score) => score,
            Value::F64(score) => score as f32,
            Value::Signed(score) => score as f32,
            other => return Err(meta.bad(SCORES, &format!("has the score {other:?}"))),
        };
        if score.is_nan() {
            return Err(meta.bad(SCORES, "has a score that is not a number"));
        }
        ranks.push(rank_of(score));
    }
    Ok(ranks)
}

/// A number that is lower the higher `score` is: the float's bits, made to sort as integers, then inverted.
fn rank_of(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { bits } else { !(bits | 1 << 31) }
}

#[cfg(test)]
mod tests {
    use super::{rank_of, word_end};

    #[test]
    fn ranks_sort_scores_from_high_to_low() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -2.0, -1000.0, f32::NEG_INFINITY];
        assert!(scores.map(rank_of).is_sorted());
        assert_eq!(rank_of(0.0), rank_of(-0.0));
        assert!(rank_of(-3.0) > rank_of(-2.0));
    }

    #[test]
    fn words_end_before_their_spaces() {
        assert_eq!(word_end(b"  a b"), Some(3));
        assert_eq!(word_end(b"a  "), Some(1));
        assert_eq!((word_end(b"   a"), word_end(b"")), (None, None));
    }
}
