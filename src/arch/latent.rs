//! Latent attention: keys and values of all heads are projections of one vector a token, which alone is kept, beside a key that rotates and
//! that all heads share (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).
//!
//! Products of queries with projected keys are those of projected queries with the vector itself, and the sum of projected values is the
//! projection of the sum. So attention has one key-value head: its keys are the shared key and the vector, its values the vector.

use super::hparams::Reader;
use super::rope;
use crate::error::{Error, Result};
use crate::format::limits;

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Elements of the vector that is kept.
    pub rank: usize,
    /// Elements of the vector from which queries are projected, where that is not the input.
    pub query_rank: Option<usize>,
    /// Elements of a query head that do not rotate.
    pub plain: usize,
    /// Elements of a query head that rotate, and of the shared key.
    pub rotated: usize,
    /// Elements of a value head.
    pub value: usize,
}

/// What is added to the mean square in the norms of the vectors, whatever that of the layers' norms is.
pub const NORM_EPS: f32 = 1e-6;

/// Sizes of the vectors, and of heads as they would be without them.
pub const RANK: &str = "attention.kv_lora_rank";
const HEADS: &str = "attention.head_count";
const QUERY_RANK: &str = "attention.q_lora_rank";
const KEY: &str = "attention.key_length";
const VALUE: &str = "attention.value_length";
/// The sizes of heads in files whose other two keys tell of the one key-value head.
const KEY_OF_HEADS: &str = "attention.key_length_mla";
const VALUE_OF_HEADS: &str = "attention.value_length_mla";
const ROTATED: &str = "rope.dimension_count";

impl Reader<'_> {
    /// The sizes of latent attention, in families that have it.
    pub(super) fn latent(&self) -> Result<Option<Latent>> {
        if !self.arch.is_latent {
            return Ok(None);
        }
        let heads = self.uniform(HEADS, limits::HEADS)?;
        let heads = self.meta.required(&self.keys.of(HEADS), heads)?;
        let (rank, rotated) = (self.required(RANK, limits::HIDDEN)?, self.required(ROTATED, limits::HIDDEN)?);
        let (key, value) = match self.size(KEY_OF_HEADS, limits::HIDDEN)? {
            Some(key) => {
                // The key-value head follows from the other sizes.
                for (name, expected) in [(KEY, rank + rotated), (VALUE, rank)] {
                    let found = self.size(name, limits::HIDDEN)?.unwrap_or(expected);
                    if found != expected {
                        return Err(self.wrong(name, format!("is {found}, {expected} follows from `{RANK}`")));
                    }
                }
                (key, self.required(VALUE_OF_HEADS, limits::HIDDEN)?)
            }
            None => (self.required(KEY, limits::HIDDEN)?, self.required(VALUE, limits::HIDDEN)?),
        };
        if rotated >= key || !rotated.is_multiple_of(2) {
            return Err(self.wrong(ROTATED, format!("is {rotated}, heads of queries have {key} elements")));
        }
        let kv_heads = self.uniform("attention.head_count_kv", limits::HEADS)?.unwrap_or(1);
        if kv_heads != 1 && kv_heads != heads {
            let problem = format!("is {kv_heads}, latent attention has 1, or as many as its {heads} query heads");
            return Err(self.wrong("attention.head_count_kv", problem));
        }
        let query_rank = self.optional(QUERY_RANK, limits::HIDDEN)?;
        Ok(Some(Latent { rank, query_rank, plain: key - rotated, rotated, value }))
    }

    /// The factor on the dot products of latent attention.
    pub(super) fn latent_scale(&self, latent: &Latent) -> Result<f32> {
        let magnitude = rope::latent_magnitude(self.meta, self.arch)?;
        Ok(magnitude * magnitude / ((latent.plain + latent.rotated) as f32).sqrt())
    }

    fn wrong(&self, name: &str, problem: String) -> Error {
        self.meta.bad(&self.keys.of(name), &problem)
    }
}
