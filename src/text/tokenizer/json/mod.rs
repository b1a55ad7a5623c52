//! The parts of a tokenizer from `tokenizer.json` and the files beside it, as the crate `tokenizers` reads them.
//!
//! Byte-pair vocabularies, byte-level ones and those with characters and bytes to fall back on, unigram models and BERT's WordPiece. `models` reads
//! what each has of its own, `words` how text is normalized and cut, `added` the tokens that no model makes. What would change the tokens of a text
//! and is not known is refused by name.

mod added;
mod models;
mod words;

use super::parts::{Alphabet, Kind, Model, Named, Parts};
use super::vocabulary::STEP_TOKENS;
use super::{Tokenizer, export};
use crate::error::{Error, Excerpt, Progress, Result, collected, extend, filled, push, room, share};
use crate::format::limits::VOCAB;
use crate::format::{Document, Item, Metadata};
use hashbrown::HashMap;
use models::{Respelt, Type};
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
        let words = Words::read(files.tokenizer.root(), Type::of(model)?)?;
        let mut respelt = Respelt::default();
        let parts = read(files, model, &words, &mut respelt, &mut share(progress, 0.0, 0.3))?;
        let tokenizer = Tokenizer::new(&parts, &mut share(progress, 0.3, 1.0)).map_err(|error| match error {
            Error::Metadata { key, problem } => Error::Format(format!("{key} {problem}")),
            other => other,
        })?;
        Ok((tokenizer, export::describe(&parts, rows)?))
    }
}

fn read<'a>(
    files: &Files<'a>,
    model: Item<'a>,
    words: &'a Words,
    respelt: &'a mut Respelt,
    progress: &mut Progress,
) -> Result<Parts<'a>> {
    let root = files.tokenizer.root();
    let kind = Type::of(model)?;
    let mut tokens = Tokens::default();
    let mut scores = match kind {
        Type::Unigram => tokens.read_scored(model, progress)?,
        Type::BytePair | Type::WordPiece => {
            tokens.read(model, progress)?;
            Vec::new()
        }
    };
    let unknown = models::unknown(kind, model, &tokens)?.filter(|_| words.alphabet == Alphabet::Escaped);
    if let Some(unknown) = unknown {
        tokens.kinds[unknown as usize] = Kind::Unknown;
    }
    if models::falls_back(model) {
        tokens.mark_bytes();
    }
    let strips = added::read(root, &mut tokens)?;
    let (prefix, suffix) = added::around(root, files.config.map(Document::root), &tokens)?;
    let named = named(files, &tokens, kind, unknown)?;
    let model = match kind {
        Type::BytePair => models::byte_pair(model, words, unknown)?,
        Type::Unigram => {
            // Tokens that were added have no score, and need none.
            let more = tokens.texts.len().saturating_sub(scores.len());
            extend(&mut scores, &filled(more, 0.0, TOKENS)?, TOKENS)?;
            models::unigram(scores, words)?
        }
        Type::WordPiece => {
            tokens.texts = respelt.fill(&tokens)?;
            Model::WordPiece
        }
    };
    Ok(Parts {
        origin: "tokenizer.json: ",
        model,
        tokens: tokens.texts,
        kinds: Some(tokens.kinds),
        named,
        prefix,
        suffix,
        normalizer: words.normalizer(),
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

    /// Reads the vocabulary of a unigram model, in which texts and scores stand by their ids, and gives the scores.
    fn read_scored(&mut self, model: Item<'a>, progress: &mut Progress) -> Result<Vec<f32>> {
        let entries = || model.get("vocab").and_then(Item::elements).ok_or_else(|| bad("`vocab` is no list"));
        let count = entries()?.count();
        if count > VOCAB {
            return Err(bad(&format!("`vocab` has {count} tokens, at most {VOCAB} are supported")));
        }
        let mut scores = Vec::new();
        for (id, entry) in entries()?.enumerate() {
            if id.is_multiple_of(STEP_TOKENS) {
                progress(id as f32 / count as f32)?;
            }
            let mut sides = entry.elements().into_iter().flatten();
            let (text, score) = (sides.next().and_then(Item::text), sides.next().and_then(Item::number));
            let (Some(text), Some(score), None) = (text, score, sides.next()) else {
                return Err(bad(&format!("token {id} of `vocab` is not a text with its score")));
            };
            self.set(text, id as u32, Kind::Normal)?;
            push(&mut scores, score as f32, TOKENS)?;
        }
        Ok(scores)
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

/// Most tokens that end generation.
const MOST_ENDS: usize = 3;

/// The tokens with a part of their own. What begins a text of BERT's is called `cls_token`. Of those that end generation one ends a text, by the
/// tokenizer's configuration or as the first listed.
fn named(files: &Files, tokens: &Tokens, kind: Type, unknown: Option<u32>) -> Result<Named> {
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
    let bos = named("bos_token").or_else(|| named("cls_token").filter(|_| kind == Type::WordPiece));
    Ok(Named { unknown, bos, eos, eot, eom, separator: named("sep_token") })
}
