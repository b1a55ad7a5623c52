//! The parts of a tokenizer from `tokenizer.json` and the files beside it, as the crate `tokenizers` reads them.
//!
//! Byte-pair vocabularies, byte-level ones and those with characters and bytes to fall back on. `words` reads how text is normalized and
//! cut, `added` the tokens that are no result of merges. What would change the tokens of a text and is not known is refused by name.

mod added;
mod words;

use super::parts::{Alphabet, BytePair, Kind, Model, Named, Parts, WholeWords};
use super::vocabulary::STEP_TOKENS;
use super::{Tokenizer, export};
use crate::error::{Error, Excerpt, Progress, Result, collected, filled, push, room, share};
use crate::format::limits::VOCAB;
use crate::format::{Document, Item, Metadata};
use hashbrown::HashMap;
use std::borrow::Cow;
use words::Words;

/// The file, in messages.
const FILE: &str = "tokenizer.json";
/// What memory is for.
const TOKENS: &str = "token texts";
const MERGES: &str = "merges";

/// The files of a folder that tell of its tokenizer.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    /// `tokenizer.json`
    pub tokenizer: &'a Document,
    /// `tokenizer_config.json`
    pub config: Option<&'a Document>,
    /// Tokens that end generation, as other files list them; the first one also ends a text.
    pub ends: &'a [u32],
}

impl Tokenizer {
    /// The tokenizer of a folder, and what of it stands in the metadata of a GGUF file ([`Tokenizer::describe_words`] adds the rest) whose
    /// embedding has `rows` rows; `progress` hears how far it has come.
    pub fn from_json(files: &Files, rows: usize, progress: &mut Progress) -> Result<(Tokenizer, Metadata)> {
        let model = files.tokenizer.root().get("model").ok_or_else(|| bad("`model` is missing"))?;
        check_model(model)?;
        let words = Words::read(files.tokenizer.root())?;
        let parts = read(files, model, &words, &mut share(progress, 0.0, 0.3))?;
        let tokenizer = Tokenizer::new(&parts, &mut share(progress, 0.3, 1.0)).map_err(|error| match error {
            Error::Metadata { key, problem } => Error::Format(format!("{key} {problem}")),
            other => other,
        })?;
        Ok((tokenizer, export::describe(&parts, rows)?))
    }
}

fn read<'a>(files: &Files<'a>, model: Item<'a>, words: &'a Words, progress: &mut Progress) -> Result<Parts<'a>> {
    let root = files.tokenizer.root();
    let byte_fallback = model.get("byte_fallback").and_then(Item::flag) == Some(true);
    let mut tokens = Tokens::default();
    tokens.read(model, progress)?;
    let unknown = model.get("unk_token").and_then(Item::text).and_then(|text| tokens.find(text));
    if let (Some(unknown), Alphabet::Escaped) = (unknown, words.alphabet) {
        tokens.kinds[unknown as usize] = Kind::Unknown;
    }
    if byte_fallback {
        tokens.mark_bytes();
    }
    if words.alphabet == Alphabet::Escaped
        && unknown.is_some()
        && !byte_fallback
        && let Some(fuses) = model.get("fuse_unk").filter(|fuses| fuses.flag() == Some(false))
    {
        return Err(unsupported("`fuse_unk`", fuses));
    }
    let strips = added::read(root, &mut tokens)?;
    let (prefix, suffix) = added::around(root, files.config.map(Document::root), &tokens)?;
    let named = named(files, &tokens, unknown.filter(|_| words.alphabet == Alphabet::Escaped))?;
    let always = model.get("ignore_merges").and_then(Item::flag) == Some(true);
    Ok(Parts {
        origin: "tokenizer.json: ",
        model: Model::BytePair(BytePair {
            alphabet: words.alphabet,
            merges: merges(model)?,
            words: Cow::Owned(words.rules()?),
            whole_words: if always { WholeWords::Always } else { WholeWords::Never },
            prefix_space: words.prefix_space,
        }),
        tokens: tokens.texts,
        kinds: Some(tokens.kinds),
        named,
        prefix,
        suffix,
        normalizer: words.normalizer,
        strips_before: strips.before,
        strips_after: strips.after,
    })
}

fn bad(problem: &str) -> Error {
    Error::Format(format!("{FILE}: {problem}"))
}

fn unsupported(what: &str, value: Item) -> Error {
    Error::Unsupported(format!("{FILE}: {what} {value} is not supported"))
}

/// Refuses models of other kinds, and settings of this one that are not known.
fn check_model(model: Item) -> Result<()> {
    if let Some(kind) = model.get("type").filter(|kind| kind.text() != Some("BPE")) {
        return Err(unsupported("a model of type", kind));
    }
    for name in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
        let value = model.get(name).filter(|value| value.number() != Some(0.0) && value.text() != Some(""));
        if let Some(value) = value {
            return Err(unsupported(&format!("`{name}`"), value));
        }
    }
    Ok(())
}

/// Token texts and kinds by their ids.
#[derive(Default)]
struct Tokens<'a> {
    texts: Vec<&'a [u8]>,
    kinds: Vec<Kind>,
    ids: HashMap<&'a str, u32>,
}

impl<'a> Tokens<'a> {
    /// Reads the vocabulary of the model. Ids that no text has are holes.
    fn read(&mut self, model: Item<'a>, progress: &mut Progress) -> Result<()> {
        let entries =
            |model: Item<'a>| model.get("vocab").and_then(Item::entries).ok_or_else(|| bad("`vocab` is no map"));
        let count = entries(model)?.count();
        for (number, (text, id)) in entries(model)?.enumerate() {
            if number.is_multiple_of(STEP_TOKENS) {
                progress(number as f32 / count as f32)?;
            }
            let id = id.unsigned().filter(|&id| id < VOCAB as u64).ok_or_else(|| {
                bad(&format!("token `{}` has the id {id}, 0 to {} are supported", Excerpt(text.as_bytes()), VOCAB - 1))
            })?;
            self.set(text, id as u32, Kind::Normal)?;
        }
        Ok(())
    }

    /// The token with this text.
    fn find(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Gives `id` a text and a kind. A token that is there keeps its text.
    fn set(&mut self, text: &'a str, id: u32, kind: Kind) -> Result<()> {
        let more = (id as usize + 1).saturating_sub(self.texts.len());
        if more > 0 {
            room(more * size_of::<&[u8]>(), TOKENS, || self.texts.try_reserve(more))?;
            room(more, TOKENS, || self.kinds.try_reserve(more))?;
            self.texts.resize(id as usize + 1, b"");
            self.kinds.resize(id as usize + 1, Kind::Unused);
        }
        let (slot, old) = (&mut self.texts[id as usize], &mut self.kinds[id as usize]);
        if *old != Kind::Unused && *slot != text.as_bytes() {
            let (text, other) = (Excerpt(text.as_bytes()), Excerpt(slot));
            return Err(bad(&format!("tokens `{other}` and `{text}` have the id {id}")));
        }
        (*slot, *old) = (text.as_bytes(), kind);
        room(size_of::<(&str, u32)>(), TOKENS, || self.ids.try_reserve(1))?;
        self.ids.insert(text, id);
        Ok(())
    }

    /// Makes tokens of single bytes of those that are called so.
    fn mark_bytes(&mut self) {
        for (text, kind) in self.texts.iter().zip(&mut self.kinds) {
            if *kind == Kind::Normal && super::alphabet::byte_named(text).is_some() {
                *kind = Kind::Byte;
            }
        }
    }
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

/// Most tokens that end generation.
const MOST_ENDS: usize = 3;

/// The tokens with a part of their own. Of those that end generation one ends a text, by the tokenizer's configuration or as the first listed.
fn named(files: &Files, tokens: &Tokens, unknown: Option<u32>) -> Result<Named> {
    let named = |name: &str| {
        let token = files.config?.root().get(name)?;
        tokens.find(token.text().or_else(|| token.get("content")?.text())?)
    };
    let eos = named("eos_token").or(files.ends.first().copied());
    let mut ends = collected(files.ends.iter().copied().filter(|&end| Some(end) != eos), TOKENS)?;
    ends.dedup();
    if ends.len() + usize::from(eos.is_some()) > MOST_ENDS {
        let count = ends.len() + 1;
        return Err(Error::Unsupported(format!("{count} tokens end generation, at most {MOST_ENDS} are supported")));
    }
    let (eot, eom) = (ends.first().copied(), ends.get(1).copied());
    Ok(Named { unknown, bos: named("bos_token"), eos, eot, eom, separator: named("sep_token") })
}
