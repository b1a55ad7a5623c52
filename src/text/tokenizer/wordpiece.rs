//! WordPiece: a word becomes the longest piece that it begins with, then the longest that goes on, or one unknown token
//! (Wu et al., arXiv:1609.08144).
//!
//! `tokenizer.ggml.model` = "bert". A piece that begins a word has a space in front of it in the vocabulary, one that goes on has none.
//! Words end at white space, and every punctuation character is one, as in BERT's own tokenizer.

use super::TOKENS_OF_TEXT;
use super::alphabet::ESCAPED_SPACE;
use super::bert::is_punctuation;
use super::finder::Finder;
use super::parts::{Kind, Parts};
use super::vocabulary::Vocabulary;
use crate::error::{Result, grow_text, push};

/// A longer word is unknown.
const MAX_WORD_CHARS: usize = 100;

/// The pieces of a vocabulary.
pub(super) struct WordPiece {
    beginning: Finder,
    going_on: Finder,
    unknown: Option<u32>,
}

impl WordPiece {
    /// The pieces of `vocabulary`, which is that of `parts`.
    pub(super) fn build(parts: &Parts, vocabulary: &Vocabulary) -> Result<WordPiece> {
        let begins = |token: u32| matches!(vocabulary.bytes(token), [b' ', _, ..]);
        let pick = |wanted: bool| {
            let normal = vocabulary.kinds().filter(|&(_, kind)| kind == Kind::Normal).map(|(token, _)| token);
            Finder::of(vocabulary, normal.filter(move |&token| begins(token) == wanted), "pieces")
        };
        Ok(WordPiece { beginning: pick(true)?, going_on: pick(false)?, unknown: parts.named.unknown })
    }

    /// Appends the tokens of `text`, which is normalized.
    pub(super) fn encode(&self, text: &str, vocabulary: &Vocabulary, out: &mut Vec<i32>) -> Result<()> {
        let mut spelt = String::new();
        words(text).try_for_each(|word| self.encode_word(word, vocabulary, &mut spelt, out))
    }

    fn encode_word(&self, word: &str, vocabulary: &Vocabulary, spelt: &mut String, out: &mut Vec<i32>) -> Result<()> {
        let count = out.len();
        if word.chars().nth(MAX_WORD_CHARS).is_none() && self.spell(word, vocabulary, spelt, out)? {
            return Ok(());
        }
        out.truncate(count);
        self.unknown.map_or(Ok(()), |token| push(out, token as i32, TOKENS_OF_TEXT))
    }

    /// Appends the pieces of `word`; false when something of it has none. `spelt` becomes the word as the vocabulary spells it.
    fn spell(&self, word: &str, vocabulary: &Vocabulary, spelt: &mut String, out: &mut Vec<i32>) -> Result<bool> {
        spelt.clear();
        grow_text(spelt, word.len() + 1, "text")?;
        spelt.push(' ');
        spelt.extend(word.chars().map(|c| if c == ESCAPED_SPACE { ' ' } else { c }));
        let mut at = 0;
        while at < spelt.len() {
            let pieces = if at == 0 { &self.beginning } else { &self.going_on };
            let Some((end, token)) = pieces.prefixes(spelt.as_bytes(), at, vocabulary).last() else { return Ok(false) };
            push(out, token as i32, TOKENS_OF_TEXT)?;
            at = end;
        }
        Ok(true)
    }
}

/// The words of `text`.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |c: char| c.is_whitespace() || is_punctuation(c);
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let end = if is_punctuation(first) { first.len_utf8() } else { rest.find(is_end).unwrap_or(rest.len()) };
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}
