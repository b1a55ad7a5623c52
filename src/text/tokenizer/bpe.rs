//! Byte-pair encoding by a list of merges (Sennrich et al., arXiv:1508.07909), over bytes as GPT-2 has it or over
//! characters with bytes to fall back on.
//!
//! Encodes one word; cutting text into words is the pre-tokenizer's part. Merges are resolved to token ids when the
//! file is read, so that encoding touches no strings.

use super::TOKENS_OF_TEXT;
use super::alphabet::Alphabet;
use super::index::Index;
use super::merge::{Chain, Merge, NONE, Symbol};
use super::vocabulary::{Kind, TOKENS, Vocabulary};
use crate::error::{Error, Excerpt, Result, extend, push};
use crate::format::Metadata;
use hashbrown::HashMap;
use std::ops::Range;

const MERGES: &str = "tokenizer.ggml.merges";

/// Which tokens a whole word may become without merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WholeWords {
    /// None.
    Never,
    /// Only runs of line feeds.
    LineFeeds,
    /// Every word that is a token.
    Always,
}

/// Merges and the tokens of single bytes.
pub(super) struct Bpe {
    alphabet: Alphabet,
    whole_words: WholeWords,
    merges: HashMap<(u32, u32), Merge>,
    by_bytes: Index,
    bytes: [u32; 256],
    unknown: Option<u32>,
}

impl Bpe {
    /// Reads the merges of a file. `unknown` is the token for bytes that no token spells; without one they are dropped, as
    /// the models' own tokenizers do (Falcon's has no token for the bytes of the private planes).
    pub(super) fn read(
        meta: &Metadata,
        vocabulary: &Vocabulary,
        alphabet: Alphabet,
        whole_words: WholeWords,
        unknown: Option<u32>,
    ) -> Result<Bpe> {
        let normal = vocabulary.kinds().filter(|&(_, kind)| kind == Kind::Normal).map(|(token, _)| token);
        let by_bytes = match (alphabet, whole_words) {
            (Alphabet::ByteLevel, WholeWords::Never) => Index::default(),
            _ => Index::build(normal, |token| vocabulary.bytes(token))?,
        };
        let bytes = byte_tokens(vocabulary, alphabet);
        Ok(Bpe { alphabet, whole_words, merges: read_merges(meta)?, by_bytes, bytes, unknown })
    }

    /// Appends the tokens of `word`.
    pub(super) fn encode(&self, word: &str, words: &Vocabulary, chain: &mut Chain, out: &mut Vec<i32>) -> Result<()> {
        let find = |text: &[u8]| self.by_bytes.find(text, |token| words.bytes(token));
        if self.is_whole(word)
            && let Some(token) = find(word.as_bytes())
        {
            return push(out, token as i32, TOKENS_OF_TEXT);
        }
        chain.clear();
        chain.reserve(word.len())?;
        match self.alphabet {
            Alphabet::ByteLevel => word.bytes().for_each(|byte| chain.push(1, self.bytes[byte as usize])),
            Alphabet::Escaped => {
                for c in word.chars() {
                    let token = find(c.encode_utf8(&mut [0; 4]).as_bytes()).unwrap_or(NONE);
                    chain.push(c.len_utf8() as u32, token);
                }
            }
        }
        for symbol in chain.merge(|left, right| self.merges.get(&(left.token, right.token)).copied()) {
            match symbol.token {
                NONE => self.encode_bytes(word, symbol, out)?,
                token => push(out, token as i32, TOKENS_OF_TEXT)?,
            }
        }
        Ok(())
    }

    fn is_whole(&self, word: &str) -> bool {
        match self.whole_words {
            WholeWords::Never => false,
            WholeWords::LineFeeds => word.bytes().all(|byte| byte == b'\n'),
            WholeWords::Always => true,
        }
    }

    fn encode_bytes(&self, word: &str, symbol: &Symbol, out: &mut Vec<i32>) -> Result<()> {
        let (start, end) = (symbol.start as usize, (symbol.start + symbol.len) as usize);
        for &byte in &word.as_bytes()[start..end] {
            let token = Some(self.bytes[byte as usize]).filter(|&token| token != NONE);
            if let Some(token) = token.or(self.unknown) {
                push(out, token as i32, TOKENS_OF_TEXT)?;
            }
        }
        Ok(())
    }
}

/// The token of every single byte, or [`NONE`].
pub(super) fn byte_tokens(vocabulary: &Vocabulary, alphabet: Alphabet) -> [u32; 256] {
    let kind_wanted = match alphabet {
        Alphabet::ByteLevel => Kind::Normal,
        Alphabet::Escaped => Kind::Byte,
    };
    let mut tokens = [NONE; 256];
    for (token, kind) in vocabulary.kinds() {
        if let ([byte], true) = (vocabulary.bytes(token), kind == kind_wanted)
            && tokens[*byte as usize] == NONE
        {
            tokens[*byte as usize] = token;
        }
    }
    tokens
}

/// Resolves the merges by the texts as they stand in the file, which are unique where decoded bytes may not be.
fn read_merges(meta: &Metadata) -> Result<HashMap<(u32, u32), Merge>> {
    let spans = meta.required(MERGES, meta.strings(MERGES)?)?;
    let tokens: &[Range<usize>] = meta.required(TOKENS, meta.strings(TOKENS)?)?;
    let text = |token: u32| meta.bytes(&tokens[token as usize]);
    let index = Index::build(0..tokens.len() as u32, text)?;
    let mut merges = HashMap::new();
    let bytes = spans.len().saturating_mul(size_of::<((u32, u32), Merge)>());
    merges.try_reserve(spans.len()).map_err(|_| Error::out_of_memory("merges", bytes))?;
    let (mut joined, mut product) = (Vec::new(), 0);
    for (rank, span) in (0u32..).zip(spans) {
        let merge = meta.bytes(span);
        let find = |wanted: &[u8]| {
            let absent = || format!("needs the absent token `{}`", Excerpt(wanted));
            index.find(wanted, text).ok_or_else(|| bad_merge(meta, rank, merge, &absent()))
        };
        let (left, right) = split_merge(merge).ok_or_else(|| bad_merge(meta, rank, merge, "is not two tokens"))?;
        joined.clear();
        extend(&mut joined, left, "merges")?;
        extend(&mut joined, right, "merges")?;
        // Files list merges in the order of their products, so a look is cheaper than a search.
        let near = (product..tokens.len() as u32).take(2).find(|&token| text(token) == joined);
        product = near.map_or_else(|| find(&joined), Ok)?;
        merges.entry((find(left)?, find(right)?)).or_insert(Merge { rank, token: product });
    }
    Ok(merges)
}

/// The two sides of a merge: the first space that is not its first byte parts them.
fn split_merge(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = 1 + merge.get(1..)?.iter().position(|&byte| byte == b' ')?;
    Some((&merge[..space], &merge[space + 1..]))
}

fn bad_merge(meta: &Metadata, rank: u32, merge: &[u8], problem: &str) -> Error {
    meta.bad(MERGES, &format!("entry {rank} (`{}`) {problem}", Excerpt(merge)))
}
