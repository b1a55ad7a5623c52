//! The tokens of a model file: what each one stands for, and of which kind it is.
//!
//! All texts lie in one block of memory. The bytes held are those that a token adds to a text: byte-level and escaped
//! spellings are undone when the file is read. Which tokens a text becomes is the business of the sibling modules.

use super::alphabet::{Alphabet, byte_named};
use crate::error::{Error, Result, filled, reserve};
use crate::format::{Metadata, Value};
use std::ops::Range;

/// Key of the token texts.
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";

/// What a token is for; the numbers of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A piece of text that the model's algorithm builds.
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// Structure, not text: begin, end, roles.
    Control,
    /// Text that is always cut out whole before the algorithm runs.
    UserDefined,
    /// A hole: never produced from text.
    Unused,
    /// One byte, for text that no other token spells.
    Byte,
}

/// Texts and kinds of all tokens.
pub(super) struct Vocabulary {
    text: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    typed: bool,
}

impl Vocabulary {
    /// Reads the tokens of a file whose normal tokens are spelt in `alphabet`.
    pub(super) fn read(meta: &Metadata, alphabet: Alphabet) -> Result<Vocabulary> {
        let spans = meta.required(TOKENS, meta.strings(TOKENS)?)?;
        let bytes: usize = spans.iter().map(Range::len).sum();
        if spans.is_empty() || i32::try_from(spans.len()).is_err() || u32::try_from(bytes).is_err() {
            return Err(meta.bad(TOKENS, &format!("has {} tokens of {bytes} bytes", spans.len())));
        }
        let declared = read_kinds(meta, spans.len())?;
        let typed = declared.is_some();
        let kinds = match declared {
            Some(kinds) => kinds,
            None => guess_kinds(meta, spans, alphabet)?,
        };
        let mut text = reserve(bytes, "token texts")?;
        let mut ends = reserve(spans.len(), "token texts")?;
        for (span, &kind) in spans.iter().zip(&kinds) {
            let raw = meta.bytes(span);
            match (kind, byte_named(raw)) {
                (Kind::Normal, _) => alphabet.decode(raw, &mut text),
                (Kind::Byte, Some(byte)) => text.push(byte),
                _ => text.extend_from_slice(raw),
            }
            ends.push(text.len() as u32);
        }
        Ok(Vocabulary { text, ends, kinds, typed })
    }

    /// Number of tokens, holes included.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes that the token adds to a text; `token` is below [`Vocabulary::len`].
    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        let start = token.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        &self.text[start as usize..self.ends[token as usize] as usize]
    }

    /// The token's kind; `token` is below [`Vocabulary::len`].
    pub(super) fn kind(&self, token: u32) -> Kind {
        self.kinds[token as usize]
    }

    /// Whether the file says of which kind its tokens are.
    pub(super) fn is_typed(&self) -> bool {
        self.typed
    }

    /// Makes `token` a control token.
    pub(super) fn set_control(&mut self, token: u32) {
        self.kinds[token as usize] = Kind::Control;
    }

    /// All tokens with their kinds, in order.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (u32, Kind)> + '_ {
        (0..).zip(self.kinds.iter().copied())
    }
}

fn read_kinds(meta: &Metadata, count: usize) -> Result<Option<Vec<Kind>>> {
    let Some(numbers) = meta.scalars(KINDS)? else { return Ok(None) };
    if numbers.len() != count {
        return Err(meta.bad(KINDS, &format!("has {} entries for {count} tokens", numbers.len())));
    }
    let mut kinds = reserve(count, "token kinds")?;
    for number in numbers {
        kinds.push(match integer(&number) {
            Some(1) => Kind::Normal,
            Some(2) => Kind::Unknown,
            Some(3) => Kind::Control,
            Some(4) => Kind::UserDefined,
            Some(0 | 5) => Kind::Unused,
            Some(6) => Kind::Byte,
            _ => return Err(meta.bad(KINDS, &format!("has the unknown kind {number:?}"))),
        });
    }
    Ok(Some(kinds))
}

/// Kinds for a file that has none: bytes by their names, the begin, end and unknown tokens by their ids.
fn guess_kinds(meta: &Metadata, spans: &[Range<usize>], alphabet: Alphabet) -> Result<Vec<Kind>> {
    let mut kinds = filled(spans.len(), Kind::Normal, "token kinds")?;
    if alphabet == Alphabet::Escaped {
        for (kind, span) in kinds.iter_mut().zip(spans) {
            if byte_named(meta.bytes(span)).is_some() {
                *kind = Kind::Byte;
            }
        }
    }
    for (name, kind) in [("bos", Kind::Control), ("eos", Kind::Control), ("unknown", Kind::Unknown)] {
        if let Some(token) = token_id(meta, &format!("tokenizer.ggml.{name}_token_id"), spans.len())? {
            kinds[token as usize] = kind;
        }
    }
    Ok(kinds)
}

/// The token that `key` names in a vocabulary of `count`; `None` when absent or written as -1.
pub(super) fn token_id(meta: &Metadata, key: &str, count: usize) -> Result<Option<u32>> {
    let Some(value) = meta.get(key) else { return Ok(None) };
    match integer(value) {
        Some(-1) => Ok(None),
        Some(id) if id == i64::from(u32::MAX) => Ok(None),
        Some(id) if (0..count as i64).contains(&id) => Ok(Some(id as u32)),
        Some(id) => Err(meta.bad(key, &format!("is {id}, the vocabulary has {count} tokens"))),
        None => Err(meta.bad(key, "is not an integer")),
    }
}

fn integer(value: &Value) -> Option<i64> {
    match *value {
        Value::Unsigned(v) => i64::try_from(v).ok(),
        Value::Signed(v) => Some(v),
        _ => None,
    }
}

/// The id of `token` as an index, or the error that the vocabulary has no such token.
pub(super) fn checked(token: i32, count: usize) -> Result<u32> {
    match u32::try_from(token) {
        Ok(id) if (id as usize) < count => Ok(id),
        _ => Err(Error::InvalidArgument(format!("token {token} is not in the vocabulary of {count}"))),
    }
}
