//! Look-up of tokens by their bytes. Holds ids only; the bytes stay with their owner.

use crate::error::{Result, room};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// A set of tokens that is searched by content. Of tokens with equal bytes it keeps the lowest.
#[derive(Default)]
pub(super) struct Index {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Index {
    /// Indexes `tokens`, given in ascending order; `bytes` gives the content of each.
    pub(super) fn build<'a>(tokens: impl Iterator<Item = u32>, bytes: impl Fn(u32) -> &'a [u8]) -> Result<Index> {
        let mut index = Index::default();
        let (low, high) = tokens.size_hint();
        let count = high.unwrap_or(low);
        let hash_of = |hasher: &DefaultHashBuilder, token: &u32| hasher.hash_one(bytes(*token));
        let hash = |token: &u32| hash_of(&index.hasher, token);
        room(count.saturating_mul(size_of::<u32>()), "the token index", || index.table.try_reserve(count, hash))?;
        for token in tokens {
            let hash = hash_of(&index.hasher, &token);
            let same = |&other: &u32| bytes(other) == bytes(token);
            index.table.entry(hash, same, |other| hash_of(&index.hasher, other)).or_insert(token);
        }
        Ok(index)
    }

    /// The token whose content is `wanted`; `bytes` is as it was for [`Index::build`].
    pub(super) fn find<'a>(&self, wanted: &[u8], bytes: impl Fn(u32) -> &'a [u8]) -> Option<u32> {
        self.table.find(self.hasher.hash_one(wanted), |&token| bytes(token) == wanted).copied()
    }
}
