//! Tokens of one vocabulary in another that cuts text in the same way: all that stand for text are the same tokens, and special ones are found by
//! their names.

use super::{Role, Tokenizer};
use crate::error::{Error, Result, collected, filled};

const WHAT: &str = "two vocabularies";
/// No token of the other vocabulary.
const NONE: i32 = -1;

/// The way from one vocabulary to another, and back.
#[derive(Debug, PartialEq, Eq)]
pub struct Translation {
    there: Vec<i32>,
    back: Vec<i32>,
}

impl Translation {
    /// What the other vocabulary has for `token` of the first.
    pub fn there(&self, token: i32) -> Option<i32> {
        found(&self.there, token)
    }

    /// What the first vocabulary has for `token` of the other.
    pub fn back(&self, token: i32) -> Option<i32> {
        found(&self.back, token)
    }
}

fn found(tokens: &[i32], token: i32) -> Option<i32> {
    tokens.get(usize::try_from(token).ok()?).copied().filter(|&token| token != NONE)
}

impl Tokenizer {
    /// The way from this vocabulary to `other`; none where no token differs. Unsupported, by the name of the first token that does, where the two do
    /// not have the same tokens of text.
    pub fn translation(&self, other: &Tokenizer) -> Result<Option<Translation>> {
        let (mine, theirs) = (self.vocab_size(), other.vocab_size());
        let mut is_same = mine == theirs;
        for token in 0..mine.max(theirs) as i32 {
            let [a, b] = [self, other].map(|tokenizer| tokenizer.role(token).unwrap_or(Role::Unused));
            if a == b {
                continue;
            }
            is_same = false;
            if matches!(a, Role::Text(_)) || matches!(b, Role::Text(_)) {
                return Err(differ(self, other, token));
            }
        }
        if is_same {
            return Ok(None);
        }
        Ok(Some(Translation { there: way(self, other)?, back: way(other, self)? }))
    }

    /// The special tokens with their names, in order of these.
    fn named(&self) -> Result<Vec<(&[u8], i32)>> {
        let special = (0..self.vocab_size() as i32).filter_map(|token| match self.role(token) {
            Ok(Role::Special(name)) => Some((name, token)),
            _ => None,
        });
        let mut named = collected(special, WHAT)?;
        named.sort_unstable();
        Ok(named)
    }
}

/// What `to` has for each token of `from`.
fn way(from: &Tokenizer, to: &Tokenizer) -> Result<Vec<i32>> {
    let mut way = filled(from.vocab_size(), NONE, WHAT)?;
    let named = to.named()?;
    for token in 0..from.vocab_size() as i32 {
        way[token as usize] = match from.role(token)? {
            Role::Text(_) => token,
            Role::Special(name) if to.role(token).is_ok_and(|other| other == Role::Special(name)) => token,
            Role::Special(name) => {
                let first = named.partition_point(|&(other, _)| other < name);
                named.get(first).filter(|(other, _)| *other == name).map_or(NONE, |&(_, token)| token)
            }
            Role::Unused => NONE,
        };
    }
    Ok(way)
}

fn differ(a: &Tokenizer, b: &Tokenizer, token: i32) -> Error {
    let [a, b] = [a, b].map(|tokenizer| tokenizer.name(token).map_or("no token".into(), |name| format!("'{name}'")));
    let problem = format!("the draft model has another vocabulary: its token {token} is {b}, that of the model is {a}");
    Error::Unsupported(problem)
}
