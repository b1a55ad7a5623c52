//! Tokens that are cut out of text whole: user-defined ones always, control ones when the caller asks for it.
//!
//! At every place the longest token that begins first wins, whatever their number. Some swallow the white space beside them.

use super::finder::Finder;
use super::parts::{Kind, Parts};
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result, copied, push};

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
    /// Those that swallow the white space before them, in ascending order.
    strips_before: Vec<u32>,
    /// Those that swallow the white space behind them.
    strips_after: Vec<u32>,
}

impl Specials {
    /// Collects the special tokens of `vocabulary`, which is that of `parts`.
    pub(super) fn build(parts: &Parts, vocabulary: &Vocabulary) -> Result<Specials> {
        let pick = |wanted: &[Kind]| {
            let chosen = vocabulary.kinds().filter(|(_, kind)| wanted.contains(kind)).map(|(token, _)| token);
            Finder::of(vocabulary, chosen, "special tokens")
        };
        let sorted = |tokens: &[u32]| {
            let mut tokens = copied(tokens, "special tokens")?;
            tokens.sort_unstable();
            Ok::<_, Error>(tokens)
        };
        Ok(Specials {
            user_defined: pick(&[Kind::UserDefined])?,
            all: pick(&[Kind::UserDefined, Kind::Control, Kind::Unknown])?,
            strips_before: sorted(&parts.strips_before)?,
            strips_after: sorted(&parts.strips_after)?,
        })
    }

    /// The characters that tell names of special tokens from other text: the first and the last of each that are no letters, digits or white
    /// space, or the first and the last at all. User-defined tokens of one character, or of letters and white space alone, are text.
    pub(super) fn marks(vocabulary: &Vocabulary) -> Result<Vec<char>> {
        let mut marks = Vec::new();
        for (token, kind) in vocabulary.kinds() {
            let is_control = matches!(kind, Kind::Control | Kind::Unknown);
            let name = match std::str::from_utf8(vocabulary.bytes(token)) {
                Ok(name) if is_control || kind == Kind::UserDefined && name.chars().nth(1).is_some() => name,
                _ => continue,
            };
            // JSON needs its quotation marks and escapes.
            let tells = |c: &char| !c.is_alphanumeric() && !c.is_whitespace() && !matches!(c, '"' | '\\' | '▁');
            let mut ends = [name.chars().find(tells), name.chars().rev().find(tells)];
            if is_control && ends[0].is_none() {
                ends = [name.chars().next(), name.chars().next_back()];
            }
            for mark in ends.into_iter().flatten() {
                if !marks.contains(&mark) {
                    push(&mut marks, mark, "special tokens")?;
                }
            }
        }
        Ok(marks)
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
            let before = &text[rest..start.max(rest)];
            let before = if self.strips_before.binary_search(&token).is_ok() { before.trim_end() } else { before };
            if !before.is_empty() {
                visit(Fragment::Text(before))?;
            }
            visit(Fragment::Token(token))?;
            rest = end;
            if self.strips_after.binary_search(&token).is_ok() {
                rest = text.len() - text[end..].trim_start().len();
            }
        }
        if rest < text.len() { visit(Fragment::Text(&text[rest..])) } else { Ok(()) }
    }
}
