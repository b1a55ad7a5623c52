//! The tokens of a model file: what each one stands for, and of which kind it is.
//!
//! All texts lie in one block of memory. The bytes held are those that a token adds to a text: byte-level and escaped
//! spellings are undone when the vocabulary is built. Which tokens a text becomes is the business of the sibling modules.

use super::alphabet::byte_named;
use super::parts::{Alphabet, Kind, Named, Parts};
use crate::error::{Error, Progress, Result, copied, filled, reserve};
use crate::format::limits::{TOKEN_BYTES, VOCAB};

/// Texts and kinds of all tokens.
pub(super) struct Vocabulary {
    text: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    typed: bool,
}

impl Vocabulary {
    /// Takes the tokens of `parts`, whose normal ones are spelt in `alphabet`; `progress` hears how many are read.
    pub(super) fn build(parts: &Parts, alphabet: Alphabet, progress: &mut Progress) -> Result<Vocabulary> {
        let tokens = &parts.tokens;
        check_sizes(parts)?;
        let kinds = match &parts.kinds {
            Some(kinds) => copied(kinds, "token kinds")?,
            None => guess_kinds(parts, alphabet)?,
        };
        let mut text = reserve(tokens.iter().map(|token| token.len()).sum(), "token texts")?;
        let mut ends = reserve(tokens.len(), "token texts")?;
        for (token, (raw, &kind)) in tokens.iter().zip(&kinds).enumerate() {
            if token.is_multiple_of(STEP_TOKENS) {
                progress(token as f32 / tokens.len() as f32)?;
            }
            match (kind, byte_named(raw)) {
                (Kind::Normal, _) => alphabet.decode(raw, &mut text),
                (Kind::Byte, Some(byte)) => text.push(byte),
                _ => text.extend_from_slice(raw),
            }
            ends.push(text.len() as u32);
        }
        Ok(Vocabulary { text, ends, kinds, typed: parts.kinds.is_some() })
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

/// Tokens between two reports of progress.
pub(super) const STEP_TOKENS: usize = 1 << 14;

/// What everything else relies on: how many tokens there are and how long, and that each id is one of them.
fn check_sizes(parts: &Parts) -> Result<()> {
    let count = parts.tokens.len();
    if count == 0 || count > VOCAB {
        return Err(parts.bad("tokens", &format!("has {count} tokens, 1 to {VOCAB} are supported")));
    }
    let longest = parts.tokens.iter().map(|token| token.len()).max().unwrap_or(0);
    if longest > TOKEN_BYTES {
        let problem = format!("has a token of {longest} bytes, at most {TOKEN_BYTES} are supported");
        return Err(parts.bad("tokens", &problem));
    }
    if let Some(kinds) = &parts.kinds {
        check_entries(parts, "token_type", kinds.len())?;
    }
    let named = parts.named.all().into_iter().filter_map(|(name, id)| Some((name, id?)));
    let added = parts.prefix.iter().chain(&parts.suffix).map(|&id| ("added", id));
    match named.chain(added).find(|&(_, id)| id as usize >= count) {
        Some((name, id)) => {
            Err(parts.bad(&format!("{name}_token_id"), &format!("is {id}, the vocabulary has {count} tokens")))
        }
        None => Ok(()),
    }
}

/// An error unless the part called `name` has an entry for each token.
pub(super) fn check_entries(parts: &Parts, name: &str, entries: usize) -> Result<()> {
    match parts.tokens.len() {
        count if count == entries => Ok(()),
        count => Err(parts.bad(name, &format!("has {entries} entries for {count} tokens"))),
    }
}

/// Kinds for a file that has none: bytes by their names, the begin, end and unknown tokens by their ids.
fn guess_kinds(parts: &Parts, alphabet: Alphabet) -> Result<Vec<Kind>> {
    let mut kinds = filled(parts.tokens.len(), Kind::Normal, "token kinds")?;
    if alphabet == Alphabet::Escaped {
        for (kind, token) in kinds.iter_mut().zip(&parts.tokens) {
            if byte_named(token).is_some() {
                *kind = Kind::Byte;
            }
        }
    }
    let Named { unknown, bos, eos, .. } = parts.named;
    for (token, kind) in [(bos, Kind::Control), (eos, Kind::Control), (unknown, Kind::Unknown)] {
        if let Some(token) = token {
            kinds[token as usize] = kind;
        }
    }
    Ok(kinds)
}

/// The id of `token` as an index, or the error that the vocabulary has no such token.
pub(super) fn checked(token: i32, count: usize) -> Result<u32> {
    match u32::try_from(token) {
        Ok(id) if (id as usize) < count => Ok(id),
        _ => Err(Error::InvalidArgument(format!("token {token} is not in the vocabulary of {count}"))),
    }
}
