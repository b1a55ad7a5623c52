//! Text to tokens and back, as the model file's metadata says.
//!
//! [`Tokenizer::from_metadata`] reads byte-pair (`gpt2`, `gemma4`) and SentencePiece (`llama`) vocabularies; other kinds are
//! refused by name. A tokenizer never changes and is shared between threads. Streaming is
//! [`TextStream`](super::TextStream)'s business.

mod alphabet;
mod bpe;
mod finder;
mod generation_end;
mod index;
mod merge;
mod patterns;
mod pretokenizer;
mod sentencepiece;
mod special;
mod vocabulary;

use crate::error::{Error, Excerpt, Result, extend, push, reserve};
use crate::format::Metadata;
use alphabet::Alphabet;
use bpe::Bpe;
use merge::Chain;
use patterns::Family;
use pretokenizer::Pretokenizer;
use sentencepiece::SentencePiece;
use special::{Fragment, Specials};
use vocabulary::{Kind, Vocabulary, checked, token_id};

/// Longest text in bytes that one call encodes: more than any context holds, and few enough for 32-bit positions.
const MAX_TEXT: usize = 64 << 20;

/// What the memory of an encoded text is for.
const TOKENS_OF_TEXT: &str = "the tokens of a text";

/// A model's vocabulary and the way from text to its tokens.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    specials: Specials,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    generation_ends: Vec<i32>,
}

enum Algorithm {
    BytePair { alphabet: Alphabet, words: Pretokenizer, bpe: Bpe },
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// Reads the tokenizer of a file; `None` for a file without one.
    ///
    /// Unknown kinds of vocabularies and pre-tokenizers are [`Error::Unsupported`] with their name.
    pub fn from_metadata(meta: &Metadata) -> Result<Option<Tokenizer>> {
        match meta.text("tokenizer.ggml.model")? {
            None | Some("no_vocab" | "none") => Ok(None),
            Some("llama") => Tokenizer::sentencepiece(meta).map(Some),
            Some("gpt2") => Tokenizer::byte_pair(meta, pretokenizer_name(meta)?).map(Some),
            Some("gemma4") => Tokenizer::byte_pair(meta, "gemma4").map(Some),
            Some(other) => {
                let other = Excerpt(other.as_bytes());
                Err(Error::Unsupported(format!("tokenizer model `{other}`; gpt2, llama and gemma4 are supported")))
            }
        }
    }

    fn sentencepiece(meta: &Metadata) -> Result<Tokenizer> {
        let vocabulary = Vocabulary::read(meta, Alphabet::Escaped)?;
        let ids = Ids::read(meta, vocabulary.len(), Some(0), Some(1), Some(2))?;
        let model = SentencePiece::read(meta, &vocabulary, ids.unknown)?;
        Tokenizer::assemble(meta, vocabulary, Algorithm::SentencePiece(model), ids, true)
    }

    fn byte_pair(meta: &Metadata, name: &str) -> Result<Tokenizer> {
        let unknown = || Error::Unsupported(format!("pre-tokenizer `{}` is not known", Excerpt(name.as_bytes())));
        let family = Family::named(name).ok_or_else(unknown)?;
        let alphabet = family.alphabet;
        let vocabulary = Vocabulary::read(meta, alphabet)?;
        let ids = Ids::read(meta, vocabulary.len(), None, None, None)?;
        // Byte-level files often name the end token as the unknown one; their tokenizers never produce it.
        let unknown = ids.unknown.filter(|_| alphabet == Alphabet::Escaped);
        let bpe = Bpe::read(meta, &vocabulary, alphabet, family.whole_words, unknown)?;
        let words = Pretokenizer::new(family.rules)?;
        Tokenizer::assemble(meta, vocabulary, Algorithm::BytePair { alphabet, words, bpe }, ids, family.add_bos)
    }

    fn assemble(
        meta: &Metadata,
        mut vocabulary: Vocabulary,
        algorithm: Algorithm,
        ids: Ids,
        add_bos: bool,
    ) -> Result<Tokenizer> {
        let generation_ends = generation_end::find(meta, &mut vocabulary, ids.eos)?;
        Ok(Tokenizer {
            specials: Specials::build(meta, &vocabulary)?,
            add_bos: adds(meta, "bos", add_bos, ids.bos)?,
            add_eos: adds(meta, "eos", false, ids.eos)?,
            bos: ids.bos,
            eos: ids.eos,
            vocabulary,
            algorithm,
            generation_ends,
        })
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

    /// Name of a token, U+FFFD for what is not UTF-8.
    pub fn name(&self, token: i32) -> Result<String> {
        let name = with_replacements(self.piece(token, true)?)?;
        Ok(String::from_utf8(name).expect("replacements make it utf-8"))
    }

    /// The tokens of `text`.
    ///
    /// `add_special` adds the begin and end tokens that the file asks for; `parse_special` makes control tokens of their
    /// names in the text. Text that is not UTF-8 is [`Error::InvalidArgument`] with the offset of the first such byte.
    pub fn encode(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<i32>> {
        if text.len() > MAX_TEXT {
            return Err(Error::InvalidArgument(format!("text of {} bytes, at most {MAX_TEXT} at once", text.len())));
        }
        let text = std::str::from_utf8(text)
            .map_err(|error| Error::InvalidArgument(format!("text is not utf-8 at byte {}", error.valid_up_to())))?;
        let mut out = Vec::new();
        if add_special && self.add_bos {
            out.extend(self.bos());
        }
        let mut first = true;
        self.specials.split(&self.vocabulary, text, parse_special, |fragment| {
            match fragment {
                Fragment::Token(token) => push(&mut out, token as i32, TOKENS_OF_TEXT)?,
                Fragment::Text(text) => self.encode_text(text, first, &mut out)?,
            }
            first = matches!(fragment, Fragment::Token(_));
            Ok(())
        })?;
        if add_special && self.add_eos {
            self.eos().map_or(Ok(()), |token| push(&mut out, token, TOKENS_OF_TEXT))?;
        }
        Ok(out)
    }

    fn encode_text(&self, text: &str, first: bool, out: &mut Vec<i32>) -> Result<()> {
        let (alphabet, words, bpe) = match &self.algorithm {
            Algorithm::SentencePiece(model) => return model.encode(text, first, &self.vocabulary, out),
            Algorithm::BytePair { alphabet, words, bpe } => (*alphabet, words, bpe),
        };
        let unescaped = match alphabet {
            Alphabet::ByteLevel => None,
            Alphabet::Escaped => Some(alphabet::unescape(text)?),
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
    /// removed, at the beginning and after special tokens.
    pub fn decode(&self, tokens: &[i32], special: bool) -> Result<Vec<u8>> {
        let adds_space = matches!(&self.algorithm, Algorithm::SentencePiece(model) if model.adds_space());
        let mut out = Vec::new();
        let mut first = true;
        for &token in tokens {
            let piece = self.piece(token, special)?;
            let text = matches!(self.vocabulary.kind(token as u32), Kind::Normal | Kind::Byte);
            let added = adds_space && first && text;
            extend(&mut out, if added { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece }, "text")?;
            first = !text;
        }
        if std::str::from_utf8(&out).is_ok() { Ok(out) } else { with_replacements(&out) }
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

/// The ids that the file gives to the tokens with a part of their own.
struct Ids {
    unknown: Option<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Ids {
    /// Reads the ids; one that the file does not mention is the default given, if the vocabulary reaches so far.
    fn read(meta: &Metadata, count: usize, unknown: Option<u32>, bos: Option<u32>, eos: Option<u32>) -> Result<Ids> {
        let read = |name: &str, default: Option<u32>| {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let default = default.filter(|&token| (token as usize) < count && meta.get(&key).is_none());
            Ok(token_id(meta, &key, count)?.or(default))
        };
        Ok(Ids { unknown: read("unknown", unknown)?, bos: read("bos", bos)?, eos: read("eos", eos)? })
    }
}

fn pretokenizer_name(meta: &Metadata) -> Result<&str> {
    let key = "tokenizer.ggml.pre";
    meta.required(key, meta.text(key)?)
}

/// Whether a begin or end token is added: as the file says, else `default` if there is such a token.
fn adds(meta: &Metadata, name: &str, default: bool, token: Option<u32>) -> Result<bool> {
    let key = format!("tokenizer.ggml.add_{name}_token");
    match (meta.bool(&key)?, token) {
        (Some(true), None) => Err(meta.bad(&key, &format!("is true, but tokenizer.ggml.{name}_token_id is missing"))),
        (Some(wanted), _) => Ok(wanted),
        (None, token) => Ok(default && token.is_some()),
    }
}
