//! Attention heads, which may differ from layer to layer: how many there are, and of how many elements.

use super::hparams::{Hparams, Reader};
use super::latent::Latent;
use super::spec::{AttentionMask, RopeRule};
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
pub(super) const MAX_HEAD_DIM: usize = 576;

const COUNT: &str = "attention.head_count";
const KV_COUNT: &str = "attention.head_count_kv";
const KEY: &str = "attention.key_length";
const VALUE: &str = "attention.value_length";
const ROTATED: &str = "rope.dimension_count";
/// The same of local layers, where theirs differ.
const LOCAL_KEY: &str = "attention.key_length_swa";
const LOCAL_VALUE: &str = "attention.value_length_swa";
const LOCAL_ROTATED: &str = "rope.dimension_count_swa";
/// How many of the last layers read the keys and values of earlier ones.
const SHARING: &str = "attention.shared_kv_layers";
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
    pub(super) fn heads(&self, hidden: usize, latent: Option<Latent>, is_local: &[bool]) -> Result<Vec<Heads>> {
        let counts = self.meta.required(&self.keys.of(COUNT), self.by_layer(COUNT, limits::HEADS)?)?;
        let rotated = match self.arch.rope_rule {
            RopeRule::Never => [None; 2],
            _ => [self.size(ROTATED, limits::HIDDEN)?, self.size(LOCAL_ROTATED, limits::HIDDEN)?],
        };
        let (kv_counts, dims, values) = match latent {
            Some(_) => (None, None, None),
            None => {
                let (dims, values) = (self.dims(KEY, LOCAL_KEY, is_local)?, self.dims(VALUE, LOCAL_VALUE, is_local)?);
                (self.kv_counts()?, dims, values)
            }
        };
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
            let rotated = if is_local[index] { rotated[1].or(rotated[0]) } else { rotated[0] };
            Heads { heads, kv_heads, head_dim, value_dim, rope_dims: rotated.unwrap_or(head_dim) }
        };
        let all = collected((0..counts.len()).map(of_layer), SIZES)?;
        let attending = all.iter().filter(|heads| heads.kv_heads > 0);
        attending.into_iter().try_for_each(|heads| self.check_heads(heads, latent.is_some()))?;
        Ok(all)
    }

    /// Elements of a head of each layer, where the file tells; local layers may have a number of their own.
    fn dims(&self, name: &str, local_name: &str, is_local: &[bool]) -> Result<Option<Vec<usize>>> {
        let (Some(mut dims), local) = (self.by_layer(name, limits::HIDDEN)?, self.size(local_name, limits::HIDDEN)?)
        else {
            return Ok(None);
        };
        if let Some(local) = local {
            dims.iter_mut().zip(is_local).filter(|(_, is_local)| **is_local).for_each(|(dim, _)| *dim = local);
        }
        Ok(Some(dims))
    }

    /// Of each layer the one whose keys and values it reads. The last ones, so many as the file says, read those of the last layer before them that
    /// sees as far.
    pub(super) fn key_sources(&self, heads: &[Heads], is_local: &[bool]) -> Result<Vec<usize>> {
        let mut sources = collected(0..heads.len(), SIZES)?;
        let Some(sharing) = self.optional(SHARING, limits::LAYERS)? else { return Ok(sources) };
        if self.arch.mask == AttentionMask::Borrowed {
            // All read another model's.
            return Ok(sources);
        }
        if !self.arch.shares_keys {
            return self.not_of_family(SHARING);
        }
        let own = heads.len().saturating_sub(sharing);
        for layer in own..heads.len() {
            let source = (0..own).rfind(|&source| is_local[source] == is_local[layer]);
            let source = source.filter(|&source| heads[source] == heads[layer]);
            sources[layer] = source.ok_or_else(|| {
                let problem = format!("is {sharing}: no layer before them has keys that suit layer {layer}");
                self.meta.bad(&self.keys.of(SHARING), &problem)
            })?;
        }
        Ok(sources)
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
