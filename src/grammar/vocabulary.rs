//! A vocabulary as the engine of grammars sees it: a tree of the bytes that tokens add to a text, of which special tokens are no part.
//!
//! Made once a model. No grammar lets special tokens through but one that names them.

use super::byte_classes::ByteClasses;
use super::kept::is_plain;
use crate::error::{Error, Result, backed, checked, reserve};
use crate::text::Tokenizer;
use crate::text::tokenizer::Role;
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::sync::Arc;

/// What the engine makes of a model's tokens, shared by all grammars of the model.
pub struct Vocabulary {
    pub(super) factory: ParserFactory,
    /// Tokens that are not plain text of a string of JSON ([`is_plain`]).
    pub(super) rest: TokTrie,
    /// Those that are.
    pub(super) classes: ByteClasses,
    tokens: usize,
}

/// Longest token that the tree takes; longer ones are not let through. MPT's longest has 1,024 bytes, all of them spaces.
const LONGEST: usize = 1000;
/// Most tokens that the tree takes.
const MOST_TOKENS: usize = 1 << 20;
/// Bytes that the tables of a token take, at most: each slice of the vocabulary has three trees.
const BYTES_OF_TOKEN: usize = 512;
/// The first byte of special tokens, which no text has.
const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// What the memory is for, in messages.
const WHAT: &str = "the vocabulary of grammars";

impl Vocabulary {
    /// The tree of `tokenizer`'s tokens. Takes about a second for the largest vocabularies, on a thread with a large stack.
    pub(super) fn new(tokenizer: &Arc<Tokenizer>) -> Result<Vocabulary> {
        let tokens = tokenizer.vocab_size();
        if tokens > MOST_TOKENS {
            return Err(Error::Unsupported(format!(
                "grammars take vocabularies of {MOST_TOKENS} tokens, this has {tokens}"
            )));
        }
        let _backing = backed(tokens * BYTES_OF_TOKEN, WHAT)?;
        let mut words = reserve(tokens, WHAT)?;
        for token in 0..tokens as i32 {
            words.push(word(tokenizer.role(token)?)?);
        }
        let info = TokRxInfo::new(tokens as u32, INVALID_TOKEN);
        let trie = TokTrie::from(&info, &words);
        let (rest, classes) = (rest_of(&trie, &words), ByteClasses::new(&words, &trie));
        let env: TokEnv = Arc::new(Tokens(trie));
        let capabilities = InferenceCapabilities::default();
        let factory = ParserFactory::new(&env, capabilities, &SlicedBiasComputer::json_slices());
        let mut factory = factory.map_err(|error| Error::Panic(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = super::limits();
        checked(WHAT)?;
        Ok(Vocabulary { factory, rest, classes, tokens })
    }

    /// Tokens by their bytes.
    pub(super) fn trie(&self) -> &TokTrie {
        self.factory.tok_env().tok_trie()
    }

    /// Number of tokens that masks tell of.
    pub fn len(&self) -> usize {
        self.tokens
    }
}

fn rest_of(trie: &TokTrie, words: &[Vec<u8>]) -> TokTrie {
    let mut rest = trie.alloc_token_set();
    for (token, word) in words.iter().enumerate() {
        if !word.iter().copied().all(is_plain) {
            rest.allow_token(token as u32);
        }
    }
    trie.filter(&rest)
}

/// The bytes by which the engine knows a token; none for a token that nothing lets through.
fn word(role: Role) -> Result<Vec<u8>> {
    let (mark, bytes) = match role {
        Role::Text(bytes) if !bytes.contains(&MARK) => (None, bytes),
        Role::Special(name) if !name.is_empty() => (Some(MARK), name),
        Role::Text(_) | Role::Special(_) | Role::Unused => (None, &[][..]),
    };
    if bytes.len() >= LONGEST {
        return Ok(Vec::new());
    }
    let mut word = reserve(bytes.len() + 1, WHAT)?;
    word.extend(mark);
    word.extend_from_slice(bytes);
    Ok(word)
}

/// Tokens by their bytes. Which tokens forced bytes become is decided elsewhere: the engine forces without a bound.
struct Tokens(TokTrie);

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
