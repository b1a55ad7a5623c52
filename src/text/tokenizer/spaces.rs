//! What SentencePiece models and tokenizer.json do to spaces, and where words end.

use super::alphabet::ESCAPED_SPACE;
use super::alphabet::unescape;
use super::parts::{PrefixScope, Runs, SpaceRules, SpaceSteps};
use crate::error::{Result, grow_text};

impl SpaceRules {
    /// Where text has a space in front that was not in it.
    pub(super) fn prefix_scope(self) -> PrefixScope {
        if self.prefix { PrefixScope::EveryText } else { PrefixScope::Never }
    }

    /// Applies the rules to `text`; `first` when it begins the input or follows a special token. A U+2581 of the text becomes a space
    /// too, but is never one of a run.
    pub(super) fn apply(self, text: &str, first: bool) -> Result<String> {
        let mut out = String::new();
        grow_text(&mut out, text.len() + 1, "text")?;
        if first && self.prefix {
            out.push(' ');
        }
        let mut after_space = self.squeeze;
        for c in text.chars() {
            if !(self.squeeze && c == ' ' && after_space) {
                out.push(if c == ESCAPED_SPACE { ' ' } else { c });
            }
            after_space = c == ' ';
        }
        if self.squeeze {
            out.truncate(out.trim_end_matches(' ').len());
        }
        Ok(out)
    }
}

impl SpaceSteps {
    /// `text` without the spaces that the steps drop, and with plain ones for U+2581.
    pub(super) fn apply(&self, text: &str) -> Result<String> {
        let text = if self.strip_start { text.trim_start() } else { text };
        let text = if self.strip_end { text.trim_end() } else { text };
        let mut kept = String::new();
        grow_text(&mut kept, text.len(), "text")?;
        match self.runs {
            Runs::Kept => return unescape(text),
            Runs::Joined => {
                let mut after_space = false;
                for c in text.chars() {
                    if c != ' ' || !after_space {
                        kept.push(c);
                    }
                    after_space = c == ' ';
                }
            }
            Runs::BetweenWords => {
                for word in text.split_whitespace() {
                    if !kept.is_empty() && !word.starts_with(ESCAPED_SPACE) {
                        kept.push(' ');
                    }
                    kept.push_str(word);
                }
            }
        }
        unescape(&kept)
    }
}

/// Where the first word ends: before a space that follows anything else.
pub(super) fn word_end(text: &[u8]) -> Option<usize> {
    text.windows(2).position(|pair| pair[0] != b' ' && pair[1] == b' ').map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::word_end;

    #[test]
    fn words_end_before_their_spaces() {
        assert_eq!(word_end(b"  a b"), Some(3));
        assert_eq!(word_end(b"a  "), Some(1));
        assert_eq!((word_end(b"   a"), word_end(b"")), (None, None));
    }
}
