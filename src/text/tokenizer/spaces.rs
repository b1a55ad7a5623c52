//! What SentencePiece models do to spaces, and where their words end.

use super::alphabet::ESCAPED_SPACE;
use super::parts::SpaceRules;
use crate::error::{Result, grow_text};

impl SpaceRules {
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
