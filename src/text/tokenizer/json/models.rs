//! What the models of `tokenizer.json` have of their own: merges, scores, the spelling of what goes on with a word.

use super::words::Words;
use super::{MERGES, TOKENS, Tokens, bad, unsupported};
use crate::error::{Result, collected, extend, push};
use crate::format::Item;
use crate::text::tokenizer::parts::{BytePair, Kind, Model, UnigramWords, WholeWords};
use std::borrow::Cow;

/// What stands in front of a piece that goes on with a word, and what in front of one that begins it where vocabularies tell these.
const GOING_ON: &str = "##";
const BEGINNING: &str = "\u{2581}";
/// Words of more characters are unknown.
const WORD_CHARS: u64 = 100;

/// The kinds of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    BytePair,
    Unigram,
    WordPiece,
}

impl Type {
    /// The type of `model`. Those of other kinds are refused, and settings that are not known.
    pub(super) fn of(model: Item) -> Result<Type> {
        let kind = match model.get("type").map(|kind| (kind, kind.text())) {
            None | Some((_, Some("BPE"))) => Type::BytePair,
            Some((_, Some("Unigram"))) => Type::Unigram,
            Some((_, Some("WordPiece"))) => Type::WordPiece,
            Some((other, _)) => return Err(unsupported("a model of type", other)),
        };
        let names: &[&str] = match kind {
            Type::BytePair => &["dropout", "continuing_subword_prefix", "end_of_word_suffix"],
            Type::Unigram => &["alpha", "nbest_size"],
            Type::WordPiece => &[],
        };
        for name in names {
            let value = model.get(name).filter(|value| value.number() != Some(0.0) && value.text() != Some(""));
            if let Some(value) = value {
                return Err(unsupported(&format!("`{name}`"), value));
            }
        }
        if kind == Type::WordPiece {
            let value = |name: &str| model.get(name);
            if let Some(prefix) = value("continuing_subword_prefix").filter(|prefix| prefix.text() != Some(GOING_ON)) {
                return Err(unsupported("`continuing_subword_prefix`", prefix));
            }
            if let Some(most) = value("max_input_chars_per_word").filter(|most| most.unsigned() != Some(WORD_CHARS)) {
                return Err(unsupported("`max_input_chars_per_word`", most));
            }
        }
        Ok(kind)
    }
}

/// The token for text that the vocabulary cannot spell.
pub(super) fn unknown(kind: Type, model: Item, tokens: &Tokens) -> Result<Option<u32>> {
    if kind != Type::Unigram {
        return Ok(model.get("unk_token").and_then(Item::text).and_then(|text| tokens.find(text)));
    }
    let Some(id) = model.get("unk_id") else { return Ok(None) };
    let known = id.unsigned().filter(|&id| id < tokens.texts.len() as u64);
    known.map(|id| Some(id as u32)).ok_or_else(|| bad(&format!("`unk_id` is {id}, which is no token")))
}

/// Whether bytes stand for text that no other token spells.
pub(super) fn falls_back(model: Item) -> bool {
    model.get("byte_fallback").and_then(Item::flag) == Some(true)
}

/// A model of type `BPE`.
pub(super) fn byte_pair<'a>(model: Item<'a>, words: &'a Words, unknown: Option<u32>) -> Result<Model<'a>> {
    if unknown.is_some()
        && !falls_back(model)
        && let Some(fuses) = model.get("fuse_unk").filter(|fuses| fuses.flag() == Some(false))
    {
        return Err(unsupported("`fuse_unk`", fuses));
    }
    let always = model.get("ignore_merges").and_then(Item::flag) == Some(true);
    Ok(Model::BytePair(BytePair {
        alphabet: words.alphabet,
        merges: merges(model)?,
        words: Cow::Owned(words.rules()?),
        whole_words: if always { WholeWords::Always } else { WholeWords::Never },
        prefix_space: words.spaces.prefix_space,
    }))
}

/// A model of type `Unigram`.
pub(super) fn unigram<'a>(scores: Vec<f32>, words: &'a Words) -> Result<Model<'a>> {
    let words = UnigramWords::Steps { spaces: words.spaces, cuts: Cow::Owned(words.rules()?) };
    Ok(Model::Unigram { scores, words })
}

/// The sides of each merge: lists of two texts, or in older files one text with a space between.
fn merges<'a>(model: Item<'a>) -> Result<Vec<(&'a [u8], &'a [u8])>> {
    let listed = model.get("merges").and_then(Item::elements).ok_or_else(|| bad("`merges` is no list"))?;
    let mut merges = Vec::new();
    for (rank, merge) in listed.enumerate() {
        let sides = match merge.text() {
            Some(text) => text.split_once(' '),
            None => {
                let mut sides = merge.elements().into_iter().flatten().map(Item::text);
                match (sides.next(), sides.next(), sides.next()) {
                    (Some(Some(left)), Some(Some(right)), None) => Some((left, right)),
                    _ => None,
                }
            }
        };
        let (left, right) = sides.ok_or_else(|| bad(&format!("merge {rank} ({merge}) is not two tokens")))?;
        push(&mut merges, (left.as_bytes(), right.as_bytes()), MERGES)?;
    }
    Ok(merges)
}

/// Token texts of BERT's as [`Model::WordPiece`] has them.
#[derive(Default)]
pub(super) struct Respelt {
    texts: Vec<u8>,
}

impl Respelt {
    /// The texts of `tokens`, those that begin a word with U+2581 in front, those that go on with one without their mark.
    pub(super) fn fill(&mut self, tokens: &Tokens) -> Result<Vec<&[u8]>> {
        let mut ends = Vec::new();
        for (&text, &kind) in tokens.texts.iter().zip(&tokens.kinds) {
            let (mark, rest) = match text.strip_prefix(GOING_ON.as_bytes()).filter(|rest| !rest.is_empty()) {
                _ if kind != Kind::Normal => ("", text),
                Some(rest) => ("", rest),
                None => (BEGINNING, text),
            };
            extend(&mut self.texts, mark.as_bytes(), TOKENS)?;
            extend(&mut self.texts, rest, TOKENS)?;
            push(&mut ends, self.texts.len(), TOKENS)?;
        }
        let mut start = 0;
        collected(ends.into_iter().map(|end| &self.texts[std::mem::replace(&mut start, end)..end]), TOKENS)
    }
}
