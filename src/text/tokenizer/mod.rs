//! Text to tokens and back, as the model's files say.
//!
//! [`Tokenizer::new`] takes the parts of byte-pair, SentencePiece, unigram and WordPiece vocabularies as plain data ([`parts`]);
//! [`Tokenizer::from_metadata`] takes them from a GGUF file (`gpt2`, `gemma4`, `llama`, `t5`, `bert`) and refuses other kinds by name. A tokenizer
//! never changes and is shared between threads. Streaming is [`TextStream`](super::TextStream)'s business.

mod agreement;
mod alphabet;
mod bert;
mod bert_characters;
mod bpe;
mod charsmap;
mod export;
mod fallback;
mod finder;
mod generation_end;
mod gguf;
mod index;
pub mod json;
mod merge;
mod normal;
mod normalizers;
pub mod parts;
mod patterns;
mod pretokenizer;
mod sentencepiece;
mod spaces;
mod special;
mod translation;
mod unigram;
mod vocabulary;
mod wordpiece;

use crate::error::{Error, Progress, Result, copied, extend, grow_text, push, reserve, share};
use crate::format::Metadata;
use crate::text::chat::StandIns;
use bpe::Bpe;
use charsmap::Charsmap;
use merge::Chain;
use parts::{Alphabet, BertRules, Kind, Model, Normalizer, Parts, PrefixScope, PrefixSpace};
pub use patterns::{Rule, Spaces};
use pretokenizer::Pretokenizer;
use sentencepiece::SentencePiece;
use special::{Fragment, Specials};
pub use translation::Translation;
use unigram::Unigram;
use vocabulary::{Vocabulary, checked};
use wordpiece::WordPiece;

/// Longest text in bytes that one call encodes: more than any context holds, and few enough for 32-bit positions.
const MAX_TEXT: usize = 64 << 20;

/// What the memory of an encoded text is for.
const TOKENS_OF_TEXT: &str = "the tokens of a text";

/// A model's vocabulary and the way from text to its tokens.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    normal: Normal,
    specials: Specials,
    marks: Vec<char>,
    bos: Option<u32>,
    eos: Option<u32>,
    separator: Option<u32>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    generation_ends: Vec<i32>,
    names_words: bool,
}

enum Algorithm {
    BytePair { words: Pretokenizer, bpe: Bpe },
    SentencePiece(SentencePiece),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

impl Algorithm {
    fn build(parts: &Parts, vocabulary: &Vocabulary, progress: &mut Progress) -> Result<Algorithm> {
        Ok(match &parts.model {
            Model::BytePair(model) => Algorithm::BytePair {
                bpe: Bpe::build(parts, model, vocabulary, progress)?,
                words: Pretokenizer::new(&model.words)?,
            },
            Model::SentencePiece { scores, spaces } => {
                Algorithm::SentencePiece(SentencePiece::build(parts, scores, *spaces, vocabulary)?)
            }
            Model::Unigram { scores, words } => Algorithm::Unigram(Unigram::build(parts, scores, words, vocabulary)?),
            Model::WordPiece => Algorithm::WordPiece(WordPiece::build(parts, vocabulary)?),
        })
    }

    /// Where text has a space in front that was not in it. Those of WordPiece have one before each word, so that the first tells nothing.
    fn prefix_scope(&self) -> PrefixScope {
        match self {
            Algorithm::BytePair { bpe, .. } => bpe.prefix_space().scope,
            Algorithm::SentencePiece(model) => model.spaces().prefix_scope(),
            Algorithm::Unigram(model) => model.prefix_scope(),
            Algorithm::WordPiece(_) => PrefixScope::Beginning,
        }
    }
}

/// What is done to text first, ready to do it.
enum Normal {
    None,
    Nfc,
    Charsmap(Charsmap),
    Bert(BertRules),
}

impl Normal {
    fn build(parts: &Parts) -> Result<Normal> {
        Ok(match parts.normalizer {
            Normalizer::None => Normal::None,
            Normalizer::Nfc => Normal::Nfc,
            Normalizer::Charsmap(map) => Normal::Charsmap(Charsmap::parse(parts, map)?),
            Normalizer::Bert(rules) => Normal::Bert(rules),
        })
    }

    /// What becomes of `text`; `None` if it stays as it is.
    fn apply(&self, text: &str) -> Result<Option<String>> {
        match self {
            Normal::None => Ok(None),
            Normal::Nfc => normal::composed(text),
            Normal::Charsmap(map) => map.apply(text),
            Normal::Bert(rules) => bert::normalized(text, *rules).map(Some),
        }
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a GGUF file; `None` for a file without one.
    ///
    /// Unknown kinds of vocabularies and pre-tokenizers are [`Error::Unsupported`] with their name. A byte-pair file that names no
    /// pre-tokenizer has the one called `default`, as in llama.cpp.
    pub fn from_metadata(meta: &Metadata) -> Result<Option<Tokenizer>> {
        Tokenizer::read(meta, &mut |_| Ok(()))
    }

    /// The same; `progress` hears how far it has come.
    pub fn read(meta: &Metadata, progress: &mut Progress) -> Result<Option<Tokenizer>> {
        let Some((parts, names_words)) = gguf::read(meta)? else { return Ok(None) };
        let tokenizer = Tokenizer::new(&parts, progress)?;
        Ok(Some(Tokenizer { names_words, ..tokenizer }))
    }

    /// A tokenizer of `parts`, whatever they come from; `progress` hears how far it has come.
    ///
    /// Parts that contradict each other are [`Error::Metadata`] with the name of one, what a tokenizer cannot do [`Error::Unsupported`].
    pub fn new(parts: &Parts, progress: &mut Progress) -> Result<Tokenizer> {
        let alphabet = match &parts.model {
            Model::BytePair(model) => model.alphabet,
            _ => Alphabet::Escaped,
        };
        let mut vocabulary = Vocabulary::build(parts, alphabet, &mut share(progress, 0.0, 0.3))?;
        let algorithm = Algorithm::build(parts, &vocabulary, &mut share(progress, 0.3, 0.8))?;
        progress(0.8)?;
        Ok(Tokenizer {
            generation_ends: generation_end::find(&mut vocabulary, parts.named)?,
            specials: Specials::build(parts, &vocabulary)?,
            marks: Specials::marks(&vocabulary)?,
            vocabulary,
            algorithm,
            normal: Normal::build(parts)?,
            bos: parts.named.bos,
            eos: parts.named.eos,
            separator: parts.named.separator,
            prefix: copied(&parts.prefix, TOKENS_OF_TEXT)?,
            suffix: copied(&parts.suffix, TOKENS_OF_TEXT)?,
            names_words: true,
        })
    }

    /// Whether the file says how text is cut into words, if its kind of vocabulary needs to know.
    pub fn names_words(&self) -> bool {
        self.names_words
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<i32> {
        self.bos.map(|token| token as i32)
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<i32> {
        self.eos.map(|token| token as i32)
    }

    /// Whether `token` ends generation; false for a number that is no token.
    pub fn is_eog(&self, token: i32) -> bool {
        self.generation_ends.binary_search(&token).is_ok()
    }

    /// The tokens that end generation, in ascending order.
    pub fn eog_tokens(&self) -> &[i32] {
        &self.generation_ends
    }

    /// The bytes that `token` adds to a text, perhaps a part of a character. Special tokens add nothing unless `special`.
    pub fn piece(&self, token: i32, special: bool) -> Result<&[u8]> {
        let token = checked(token, self.vocabulary.len())?;
        let hidden = matches!(self.vocabulary.kind(token), Kind::Control | Kind::Unknown | Kind::Unused);
        Ok(if hidden && !special { &[] } else { self.vocabulary.bytes(token) })
    }

    /// Whether a text becomes `token` by its name alone: control tokens and those that files call user-defined.
    pub fn is_special(&self, token: i32) -> bool {
        checked(token, self.vocabulary.len())
            .is_ok_and(|token| matches!(self.vocabulary.kind(token), Kind::Control | Kind::Unknown | Kind::UserDefined))
    }

    /// Calls `visit` with the special tokens that `text` names, and with the text between them.
    pub fn stretches(&self, text: &str, mut visit: impl FnMut(Stretch) -> Result<()>) -> Result<()> {
        self.specials.split(&self.vocabulary, text, true, |fragment| match fragment {
            Fragment::Token(token) => visit(Stretch::Special(token as i32)),
            Fragment::Text(text) => visit(Stretch::Text(text)),
        })
    }

    /// What `token` is to a text.
    pub fn role(&self, token: i32) -> Result<Role<'_>> {
        let token = checked(token, self.vocabulary.len())?;
        let bytes = self.vocabulary.bytes(token);
        Ok(match self.vocabulary.kind(token) {
            Kind::Normal | Kind::Byte => Role::Text(bytes),
            Kind::UserDefined if !is_markup(bytes) => Role::Text(bytes),
            Kind::UserDefined | Kind::Control | Kind::Unknown => Role::Special(bytes),
            Kind::Unused => Role::Unused,
        })
    }

    /// Name of a token, U+FFFD for what is not UTF-8.
    pub fn name(&self, token: i32) -> Result<String> {
        let name = with_replacements(self.piece(token, true)?)?;
        Ok(String::from_utf8(name).expect("replacements make it utf-8"))
    }

    /// The tokens of `text`.
    ///
    /// `add_special` adds the tokens that the model has around a text; `parse_special` makes control tokens of their
    /// names in the text. Text that is not UTF-8 is [`Error::InvalidArgument`] with the offset of the first such byte.
    pub fn encode(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<i32>> {
        if text.len() > MAX_TEXT {
            return Err(Error::InvalidArgument(format!("text of {} bytes, at most {MAX_TEXT} at once", text.len())));
        }
        let text = std::str::from_utf8(text)
            .map_err(|error| Error::InvalidArgument(format!("text is not utf-8 at byte {}", error.valid_up_to())))?;
        let mut out = Vec::new();
        let [prefix, suffix] = [&self.prefix, &self.suffix].map(|added| if add_special { &added[..] } else { &[] });
        prefix.iter().try_for_each(|&token| push(&mut out, token as i32, TOKENS_OF_TEXT))?;
        self.encode_fragments(text, parse_special, &|_| Ok(None), &mut out)?;
        suffix.iter().try_for_each(|&token| push(&mut out, token as i32, TOKENS_OF_TEXT))?;
        Ok(out)
    }

    /// The tokens of a text that a template has rendered with `stand_ins`: names of special tokens are those of the template alone.
    pub fn encode_rendered(&self, text: &str, stand_ins: &StandIns) -> Result<Vec<i32>> {
        let mut out = Vec::new();
        self.encode_fragments(text, true, &|text| stand_ins.restored(text).map(Some), &mut out)?;
        Ok(out)
    }

    /// Characters that need stand-ins, so that texts hold no name of a special token.
    pub fn marks(&self) -> &[char] {
        &self.marks
    }

    fn encode_fragments(
        &self,
        text: &str,
        control: bool,
        restore: &dyn Fn(&str) -> Result<Option<String>>,
        out: &mut Vec<i32>,
    ) -> Result<()> {
        let mut before = Before::Nothing;
        self.specials.split(&self.vocabulary, text, control, |fragment| {
            match fragment {
                Fragment::Token(token) => push(out, token as i32, TOKENS_OF_TEXT)?,
                Fragment::Text(text) => {
                    let restored = restore(text)?;
                    self.encode_text(restored.as_deref().unwrap_or(text), before, out)?;
                }
            }
            before = if matches!(fragment, Fragment::Token(_)) { Before::Special } else { Before::Text };
            Ok(())
        })
    }

    fn encode_text(&self, text: &str, before: Before, out: &mut Vec<i32>) -> Result<()> {
        let first = before != Before::Text;
        let normalized = self.normal.apply(text)?;
        let text = normalized.as_deref().unwrap_or(text);
        let (words, bpe) = match &self.algorithm {
            Algorithm::SentencePiece(model) => return model.encode(text, first, &self.vocabulary, out),
            Algorithm::Unigram(model) => return model.encode(text, before, &self.vocabulary, out),
            Algorithm::WordPiece(model) => return model.encode(text, &self.vocabulary, out),
            Algorithm::BytePair { words, bpe } => (words, bpe),
        };
        let unescaped = match bpe.alphabet() {
            Alphabet::Escaped => {
                Some(alphabet::unescape(text)?).map(|text| bpe.prefix_space().put(text, before)).transpose()?
            }
            Alphabet::ByteLevel => None,
        };
        let text = unescaped.as_deref().unwrap_or(text);
        let mut chain = Chain::default();
        for word in words.split(text)? {
            bpe.encode(&text[word], &self.vocabulary, &mut chain, out)?;
        }
        Ok(())
    }

    /// The text of `tokens`, always UTF-8: bytes that are not become U+FFFD.
    ///
    /// Special tokens are written only if `special`. Every space that [`Tokenizer::encode`] puts in front of text is
    /// removed, at the beginning and after special tokens; of a WordPiece text the one at the beginning is.
    pub fn decode(&self, tokens: &[i32], special: bool) -> Result<Vec<u8>> {
        let scope = self.algorithm.prefix_scope();
        let mut out = Vec::new();
        let mut first = scope != PrefixScope::Never;
        for &token in tokens {
            let piece = self.piece(token, special)?;
            let text = matches!(self.vocabulary.kind(token as u32), Kind::Normal | Kind::Byte);
            extend(&mut out, if first && text { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece }, "text")?;
            first = !text && (first || scope == PrefixScope::EveryText);
        }
        if std::str::from_utf8(&out).is_ok() { Ok(out) } else { with_replacements(&out) }
    }
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch<'a> {
    /// A special token that is named.
    Special(i32),
    /// What stands between such names.
    Text(&'a str),
}

/// What a token is to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role<'a> {
    /// It adds these bytes, perhaps a part of a character.
    Text(&'a [u8]),
    /// It is apart from the text, and has this name. Tokens that files call user-defined are too, where the name is in brackets.
    Special(&'a [u8]),
    /// It stands for nothing.
    Unused,
}

/// Whether a user-defined token is named as special ones are: `<think>`, `[TOOL_CALLS]`.
fn is_markup(name: &[u8]) -> bool {
    matches!(name, [b'<', _, .., b'>'] | [b'[', _, .., b']'])
}

/// What stands before a stretch of text.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    Special,
    Text,
}

impl PrefixSpace {
    /// `text` with a space in front, where it gets one.
    fn put(self, text: String, before: Before) -> Result<String> {
        let is_meant = match self.scope {
            PrefixScope::Never => false,
            PrefixScope::Beginning => before == Before::Nothing,
            PrefixScope::EveryText => before != Before::Text,
        };
        if !is_meant || self.unless_there && text.starts_with(' ') {
            return Ok(text);
        }
        let mut prefixed = String::new();
        grow_text(&mut prefixed, text.len() + 1, TOKENS_OF_TEXT)?;
        prefixed.push(' ');
        prefixed.push_str(&text);
        Ok(prefixed)
    }
}

/// `bytes` with U+FFFD for what is not UTF-8, as `String::from_utf8_lossy` has it.
fn with_replacements(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = reserve(bytes.len(), "text")?;
    for chunk in bytes.utf8_chunks() {
        extend(&mut out, chunk.valid().as_bytes(), "text")?;
        if !chunk.invalid().is_empty() {
            extend(&mut out, "\u{fffd}".as_bytes(), "text")?;
        }
    }
    Ok(out)
}
