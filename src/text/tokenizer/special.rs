//! Tokens that are cut out of text whole: user-defined ones always, control ones when the caller asks for it.
//!
//! At every place the longest token that begins first wins, whatever their number.

use super::finder::Finder;
use super::vocabulary::{Kind, Vocabulary};
use crate::error::{Error, Result, collected};
use crate::format::Metadata;

/// Longest special token: at every place of a text as many bytes may be read before another, shorter one is found to win.
const MAX_TOKEN_BYTES: usize = 1024;

/// A stretch of text, or a token that was written out in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Text without special tokens, not empty.
    Text(&'a str),
    /// A special token.
    Token(u32),
}

/// The special tokens of a vocabulary.
pub(super) struct Specials {
    user_defined: Finder,
    all: Finder,
    /// Swallow the white space that follows a control token.
    strip_after: bool,
}

impl Specials {
    /// Collects the special tokens of `vocabulary`.
    pub(super) fn build(meta: &Metadata, vocabulary: &Vocabulary) -> Result<Specials> {
        let pick = |wanted: &[Kind]| {
            let chosen = vocabulary.kinds().filter(|(_, kind)| wanted.contains(kind)).map(|(token, _)| token);
            finder(vocabulary, chosen)
        };
        Ok(Specials {
            user_defined: pick(&[Kind::UserDefined])?,
            all: pick(&[Kind::UserDefined, Kind::Control, Kind::Unknown])?,
            strip_after: strips_after(meta)?,
        })
    }

    /// Calls `visit` with the fragments of `text` in order; `control` says whether control tokens are recognised too.
    pub(super) fn split<'a>(
        &self,
        vocabulary: &Vocabulary,
        text: &'a str,
        control: bool,
        mut visit: impl FnMut(Fragment<'a>) -> Result<()>,
    ) -> Result<()> {
        let finder = if control { &self.all } else { &self.user_defined };
        let mut rest = 0;
        for (start, end, token) in finder.matches(text.as_bytes(), vocabulary) {
            if start > rest {
                visit(Fragment::Text(&text[rest..start]))?;
            }
            visit(Fragment::Token(token))?;
            rest = end;
            if self.strip_after {
                rest = text.len() - text[end..].trim_ascii_start().len();
            }
        }
        if rest < text.len() { visit(Fragment::Text(&text[rest..])) } else { Ok(()) }
    }
}

/// The finder of those of `tokens` that a text can hold.
fn finder(vocabulary: &Vocabulary, tokens: impl Iterator<Item = u32>) -> Result<Finder> {
    // Text is UTF-8, so a token that is not could only match inside a character.
    let possible = |&token: &u32| {
        let bytes = vocabulary.bytes(token);
        !bytes.is_empty() && std::str::from_utf8(bytes).is_ok()
    };
    let tokens = collected(tokens.filter(possible), "special tokens")?;
    let longest = tokens.iter().map(|&token| vocabulary.bytes(token).len()).max().unwrap_or(0);
    if longest > MAX_TOKEN_BYTES {
        let message = format!("special tokens of {longest} bytes, at most {MAX_TOKEN_BYTES} are supported");
        return Err(Error::Unsupported(message));
    }
    Finder::build(vocabulary, tokens)
}

/// GGUF has no field for this property of Phi-3's special tokens, so the model's name stands for it, as elsewhere.
fn strips_after(meta: &Metadata) -> Result<bool> {
    let name = meta.text("general.name")?.unwrap_or_default().as_bytes();
    let holds = |part: &[u8]| name.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part));
    Ok(holds(b"phi-3") || holds(b"phi3"))
}
