//! What becomes of text that no piece of a SentencePiece model spells.

use super::TOKENS_OF_TEXT;
use super::bpe::byte_tokens;
use super::merge::NONE;
use super::parts::Alphabet;
use super::vocabulary::Vocabulary;
use crate::error::{Result, copied, grow, push};

/// The tokens of single bytes, and the one for everything else.
pub(super) struct Fallback {
    /// One entry a byte.
    bytes: Vec<u32>,
    unknown: Option<u32>,
}

impl Fallback {
    /// The tokens of `vocabulary`. Without an `unknown` one what has no bytes either is dropped.
    pub(super) fn new(vocabulary: &Vocabulary, unknown: Option<u32>) -> Result<Fallback> {
        Ok(Fallback { bytes: copied(&byte_tokens(vocabulary, Alphabet::Escaped), TOKENS_OF_TEXT)?, unknown })
    }

    /// Appends the bytes of `piece`, or the unknown token, of which one stands for a run of pieces: `after_unknown` says whether the
    /// piece before had to do with it, then whether this one has.
    pub(super) fn encode(&self, piece: &[u8], after_unknown: &mut bool, out: &mut Vec<i32>) -> Result<()> {
        if piece.iter().all(|&byte| self.bytes[byte as usize] != NONE) {
            *after_unknown = false;
            grow(out, piece.len(), TOKENS_OF_TEXT)?;
            out.extend(piece.iter().map(|&byte| self.bytes[byte as usize] as i32));
            return Ok(());
        }
        match self.unknown {
            Some(token) if !std::mem::replace(after_unknown, true) => push(out, token as i32, TOKENS_OF_TEXT),
            _ => Ok(()),
        }
    }
}
