//! Byte-pair encoding by a list of merges (Sennrich et al., arXiv:1508.07909), over bytes as GPT-2 has it or over
//! characters with bytes to fall back on.
//!
//! Encodes one word; cutting text into words is the pre-tokenizer's part. Merges are resolved to token ids when the
//! file is read, so that encoding touches no strings.

use super::TOKENS_OF_TEXT;
use super::index::Index;
use super::merge::{Chain, Merge, NONE, Symbol};
use super::parts::{Alphabet, BytePair, Kind, Parts, PrefixSpace, WholeWords};
use super::vocabulary::{STEP_TOKENS, Vocabulary};
use crate::error::{Excerpt, Progress, Result, copied, extend, push, room};
use hashbrown::HashMap;

/// Merges and the tokens of single bytes.
pub(super) struct Bpe {
    alphabet: Alphabet,
    whole_words: WholeWords,
    merges: HashMap<(u32, u32), Merge>,
    by_bytes: Index,
    /// The token of each byte.
    bytes: Vec<u32>,
    unknown: Option<u32>,
    prefix_space: PrefixSpace,
}

impl Bpe {
    /// Resolves the merges of `model`, which is that of `parts`. The unknown token stands for bytes that no token spells; without one they
    /// are dropped, as the models' own tokenizers do (Falcon's has no token for the bytes of the private planes).
    pub(super) fn build(
        parts: &Parts,
        model: &BytePair,
        vocabulary: &Vocabulary,
        progress: &mut Progress,
    ) -> Result<Bpe> {
        let BytePair { alphabet, whole_words, prefix_space, .. } = *model;
        let normal = vocabulary.kinds().filter(|&(_, kind)| kind == Kind::Normal).map(|(token, _)| token);
        let by_bytes = match (alphabet, whole_words) {
            (Alphabet::ByteLevel, WholeWords::Never) => Index::default(),
            _ => Index::build(normal, |token| vocabulary.bytes(token))?,
        };
        let bytes = copied(&byte_tokens(vocabulary, alphabet), "token texts")?;
        let merges = resolve(parts, &model.merges, progress)?;
        let unknown = parts.named.unknown;
        Ok(Bpe { alphabet, whole_words, merges, by_bytes, bytes, unknown, prefix_space })
    }

    /// The spelling of the normal tokens.
    pub(super) fn alphabet(&self) -> Alphabet {
        self.alphabet
    }

    /// Which words skip merging.
    pub(super) fn whole_words(&self) -> WholeWords {
        self.whole_words
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
        let mut after_unknown = false;
        for symbol in chain.merge(|left, right| self.merges.get(&(left.token, right.token)).copied()) {
            after_unknown = match symbol.token {
                NONE => self.encode_unspelt(word, symbol, after_unknown, out)?,
                token => push(out, token as i32, TOKENS_OF_TEXT).map(|()| false)?,
            };
        }
        Ok(())
    }

    /// Where a space is put in front of text.
    pub(super) fn prefix_space(&self) -> PrefixSpace {
        self.prefix_space
    }

    fn is_whole(&self, word: &str) -> bool {
        match self.whole_words {
            WholeWords::Never => false,
            WholeWords::LineFeeds => word.bytes().all(|byte| byte == b'\n'),
            WholeWords::Always => true,
        }
    }

    /// Appends the bytes of a symbol that no token spells. Where there are no tokens for all of them, a run of such symbols is one unknown
    /// token, or of no token at all for bytes that have none in a byte-level vocabulary; returns whether it was.
    fn encode_unspelt(&self, word: &str, symbol: &Symbol, after_unknown: bool, out: &mut Vec<i32>) -> Result<bool> {
        let piece = &word.as_bytes()[symbol.start as usize..][..symbol.len as usize];
        let tokens = || piece.iter().map(|&byte| self.bytes[byte as usize]).filter(|&token| token != NONE);
        if self.unknown.is_some() && tokens().count() < piece.len() {
            let unknown = self.unknown.filter(|_| !after_unknown);
            return unknown.map_or(Ok(()), |token| push(out, token as i32, TOKENS_OF_TEXT)).map(|()| true);
        }
        tokens().try_for_each(|token| push(out, token as i32, TOKENS_OF_TEXT)).map(|()| false)
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
fn resolve(parts: &Parts, pairs: &[(&[u8], &[u8])], progress: &mut Progress) -> Result<HashMap<(u32, u32), Merge>> {
    let tokens = &parts.tokens;
    let text = |token: u32| tokens[token as usize];
    let index = Index::build(0..tokens.len() as u32, text)?;
    let mut merges = HashMap::new();
    let bytes = pairs.len().saturating_mul(size_of::<((u32, u32), Merge)>());
    room(bytes, "merges", || merges.try_reserve(pairs.len()))?;
    let (mut joined, mut product) = (Vec::new(), 0);
    for (rank, &(left, right)) in (0u32..).zip(pairs) {
        if (rank as usize).is_multiple_of(STEP_TOKENS) {
            progress(rank as f32 / pairs.len() as f32)?;
        }
        let find = |wanted: &[u8]| {
            let pair = format_args!("`{} {}`", Excerpt(left), Excerpt(right));
            let absent = || format!("entry {rank} ({pair}) needs the absent token `{}`", Excerpt(wanted));
            index.find(wanted, text).ok_or_else(|| parts.bad("merges", &absent()))
        };
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
