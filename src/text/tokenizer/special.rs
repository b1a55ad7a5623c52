//! Tokens that are cut out of text whole: user-defined ones always, control ones when the caller asks for it.
//!
//! At every place the longest token that begins first wins, whatever their number (Aho and Corasick, 1975).

use super::vocabulary::{Kind, Vocabulary};
use crate::error::{Error, Result};
use crate::format::Metadata;
use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// Most bytes of special tokens that a file may hold; the automata take about 20 times as much.
const MAX_BYTES: usize = 4 << 20;
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

struct Finder {
    automaton: Option<AhoCorasick>,
    tokens: Vec<u32>,
}

impl Specials {
    /// Collects the special tokens of `vocabulary`.
    pub(super) fn build(meta: &Metadata, vocabulary: &Vocabulary) -> Result<Specials> {
        let pick = |wanted: &[Kind]| {
            let chosen = vocabulary.kinds().filter(|(_, kind)| wanted.contains(kind)).map(|(token, _)| token);
            Finder::build(vocabulary, chosen.collect())
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
        text: &'a str,
        control: bool,
        mut visit: impl FnMut(Fragment<'a>) -> Result<()>,
    ) -> Result<()> {
        let finder = if control { &self.all } else { &self.user_defined };
        let mut rest = 0;
        for (start, end, token) in finder.matches(text) {
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

impl Finder {
    fn build(vocabulary: &Vocabulary, mut tokens: Vec<u32>) -> Result<Finder> {
        // Text is UTF-8, so a token that is not could only match inside a character.
        tokens.retain(|&token| {
            let bytes = vocabulary.bytes(token);
            !bytes.is_empty() && std::str::from_utf8(bytes).is_ok()
        });
        let patterns = || tokens.iter().map(|&token| vocabulary.bytes(token));
        let bytes: usize = patterns().map(<[u8]>::len).sum();
        if bytes > MAX_BYTES {
            let message = format!("special tokens of {bytes} bytes together, at most {MAX_BYTES} are supported");
            return Err(Error::Unsupported(message));
        }
        let longest = patterns().map(<[u8]>::len).max().unwrap_or(0);
        if longest > MAX_TOKEN_BYTES {
            let message = format!("special tokens of {longest} bytes, at most {MAX_TOKEN_BYTES} are supported");
            return Err(Error::Unsupported(message));
        }
        if tokens.is_empty() {
            return Ok(Finder { automaton: None, tokens });
        }
        // A DFA costs time and memory for every token, byte and shorter beginning of it; this kind is made in one walk.
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns())
            .map_err(|error| Error::Unsupported(format!("{} special tokens: {error}", tokens.len())))?;
        Ok(Finder { automaton: Some(automaton), tokens })
    }

    fn matches<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, usize, u32)> + 'a {
        let found = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text));
        found.map(|found| (found.start(), found.end(), self.tokens[found.pattern().as_usize()]))
    }
}

/// GGUF has no field for this property of Phi-3's special tokens, so the model's name stands for it, as elsewhere.
fn strips_after(meta: &Metadata) -> Result<bool> {
    let name = meta.text("general.name")?.unwrap_or_default().to_ascii_lowercase();
    Ok(name.contains("phi-3") || name.contains("phi3"))
}
