//! Attention heads, which may differ from layer to layer: how many there are, and of how many elements.

use super::hparams::{Hparams, Reader};
use super::latent::Latent;
use crate::error::{Error, Result, collected};
use crate::format::{Value, limits};

/// The attention heads of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`. None in layers without attention, whose other sizes say nothing.
    pub kv_heads: usize,
    /// Elements of a head of queries and keys.
    pub head_dim: usize,
    /// Elements of a head of values.
    pub value_dim: usize,
    /// Leading elements of a head that rotate.
    pub rope_dims: usize,
}

/// Most query heads that share a key-value head, and longest head, that the backends keep on their stacks.
const MAX_GROUP: usize = 128;
const MAX_HEAD_DIM: usize = 576;

const COUNT: &str = "attention.head_count";
const KV_COUNT: &str = "attention.head_count_kv";
const KEY: &str = "attention.key_length";
const VALUE: &str = "attention.value_length";
const ROTATED: &str = "rope.dimension_count";
/// What the memory is for.
const SIZES: &str = "sizes of the layers";

impl Heads {
    /// Query heads that share one key-value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl Hparams {
    /// The largest of a size of heads in any layer.
    pub fn most_of_heads(&self, size: impl Fn(&Heads) -> usize) -> usize {
        self.heads.iter().map(size).max().unwrap_or(0)
    }
}

impl Reader<'_> {
    /// The heads of every layer: numbers in the file are those of all layers, lists have one for each block.
    pub(super) fn heads(&self, hidden: usize, latent: Option<Latent>) -> Result<Vec<Heads>> {
        let counts = self.meta.required(&self.keys.of(COUNT), self.by_layer(COUNT, limits::HEADS)?)?;
        let rotated = self.size(ROTATED, limits::HIDDEN)?;
        let (kv_counts, dims) = match latent {
            Some(_) => (None, None),
            None => (self.kv_counts()?, self.by_layer(KEY, limits::HIDDEN)?),
        };
        let values = if latent.is_none() { self.by_layer(VALUE, limits::HIDDEN)? } else { None };
        let shared = if dims.is_some() || latent.is_some() { 0 } else { self.divide(hidden, &counts)? };
        let attends = self.attending(counts.len())?;
        let of_layer = |index: usize| {
            let of = |list: &Option<Vec<usize>>, default: usize| list.as_ref().map_or(default, |list| list[index]);
            let (heads, head_dim) = (counts[index], of(&dims, shared));
            let (kv_heads, head_dim, value_dim) = match latent {
                Some(Latent { rank, rotated, .. }) => (1, rank + rotated, rank),
                None if !attends[index] => (0, head_dim, head_dim),
                None => (of(&kv_counts, heads), head_dim, of(&values, head_dim)),
            };
            Heads { heads, kv_heads, head_dim, value_dim, rope_dims: rotated.unwrap_or(head_dim) }
        };
        let all = collected((0..counts.len()).map(of_layer), SIZES)?;
        let attending = all.iter().filter(|heads| heads.kv_heads > 0);
        attending.into_iter().try_for_each(|heads| self.check_heads(heads, latent.is_some()))?;
        Ok(all)
    }

    /// Key-value heads of each layer; a list may have none for layers without attention.
    fn kv_counts(&self) -> Result<Option<Vec<usize>>> {
        let key = self.keys.of(KV_COUNT);
        match (self.arch.recurrence, self.meta.get(&key)) {
            (Some(kind), Some(Value::Array(_))) if kind.is_counted() => self.list(&key, 0, limits::HEADS).map(Some),
            _ => self.by_layer(KV_COUNT, limits::HEADS),
        }
    }

    /// Elements of a head where the file does not tell: all layers must have as many heads.
    fn divide(&self, hidden: usize, counts: &[usize]) -> Result<usize> {
        let heads = counts[0];
        if counts.iter().any(|&count| count != heads) {
            return Err(self
                .meta
                .bad(&self.keys.of(KEY), &format!("is missing, and `{COUNT}` differs between layers")));
        }
        if hidden.is_multiple_of(heads) {
            return Ok(hidden / heads);
        }
        Err(self.meta.bad(&self.keys.of(COUNT), &format!("is {heads}, which does not divide {hidden}")))
    }

    fn check_heads(&self, heads: &Heads, is_latent: bool) -> Result<()> {
        let &Heads { heads: count, kv_heads, head_dim, value_dim, rope_dims } = heads;
        let bad = |name: &str, problem: String| Err(self.meta.bad(&self.keys.of(name), &problem));
        if value_dim != head_dim && !is_latent {
            let message = format!("value heads of {value_dim} beside key heads of {head_dim} are not supported");
            return Err(Error::Unsupported(message));
        }
        if !count.is_multiple_of(kv_heads) {
            return bad(KV_COUNT, format!("is {kv_heads}, which does not divide {count} heads"));
        }
        if heads.group() > MAX_GROUP || head_dim > MAX_HEAD_DIM {
            let group = heads.group();
            let limits = format!("exceed the limits {MAX_HEAD_DIM} and {MAX_GROUP}");
            return Err(Error::Unsupported(format!(
                "heads of {head_dim} elements, {group} a key-value head, {limits}"
            )));
        }
        if !rope_dims.is_multiple_of(2) || rope_dims > head_dim {
            return bad(ROTATED, format!("is {rope_dims}, heads have {head_dim} elements"));
        }
        Ok(())
    }
}
