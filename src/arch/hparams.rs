//! Sizes of a model, read from metadata and checked against each other.

use super::spec::Arch;
use crate::error::{Error, Result};
use crate::format::{Array, Metadata, Value};

/// Sizes of one model. Counts are plural, in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Hparams {
    /// Longest sequence that the model was made for, in tokens.
    pub context: usize,
    /// Elements of a token's vector between layers.
    pub hidden: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key-value heads of a layer; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Leading elements of a head that rotate.
    pub rope_dims: usize,
    /// Elements between the two halves of the feed-forward block.
    pub feed_forward: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
}

/// Metadata keys of one family.
#[derive(Clone, Copy, Debug)]
pub struct Keys(&'static str);

impl Keys {
    /// Keys that begin with the family's name.
    pub fn new(arch: &Arch) -> Keys {
        Keys(arch.name)
    }

    /// The full key of `name`.
    pub fn of(&self, name: &str) -> String {
        format!("{}.{name}", self.0)
    }
}

/// Largest accepted value of a single size; keeps products of two in range and stops absurd files early.
const MAX_SIZE: u32 = 1 << 24;
/// Most query heads that share a key-value head, and longest head, that the backends keep on their stacks.
const MAX_GROUP: usize = 128;
const MAX_HEAD_DIM: usize = 512;

/// Numbers that would change the result and that no supported family has, with the value that changes nothing.
const ABSENT_FEATURES: [(&str, f32); 11] = [
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.temperature_scale", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("embedding_scale", 1.0),
    ("residual_scale", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
];

impl Hparams {
    /// Reads the sizes of a model of family `arch`.
    pub fn read(meta: &Metadata, arch: &Arch) -> Result<Hparams> {
        let reader = Reader { meta, keys: Keys::new(arch) };
        reader.refuse_unknown_features()?;
        let hidden = reader.required("embedding_length")?;
        let heads = reader.uniform("attention.head_count", None)?;
        let kv_heads = reader.uniform("attention.head_count_kv", Some(heads))?;
        let head_dim = match reader.size("attention.key_length")? {
            Some(dim) => dim,
            None => reader.divide(hidden, heads)?,
        };
        let hparams = Hparams {
            context: reader.context()?,
            hidden,
            layers: reader.required("block_count")?,
            heads,
            kv_heads,
            head_dim,
            rope_dims: reader.size("rope.dimension_count")?.unwrap_or(head_dim),
            feed_forward: reader.uniform("feed_forward_length", None)?,
            norm_eps: reader.norm_eps()?,
        };
        reader.check(&hparams)?;
        Ok(hparams)
    }

    /// Query heads that share one key-value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

struct Reader<'a> {
    meta: &'a Metadata,
    keys: Keys,
}

impl Reader<'_> {
    fn size(&self, name: &str) -> Result<Option<usize>> {
        let key = self.keys.of(name);
        let value = self.meta.u32(&key)?;
        value.map(|v| self.in_range(&key, v)).transpose()
    }

    fn in_range(&self, key: &str, value: u32) -> Result<usize> {
        if (1..=MAX_SIZE).contains(&value) {
            return Ok(value as usize);
        }
        Err(self.meta.bad(key, &format!("is {value}, 1 to {MAX_SIZE} are supported")))
    }

    fn required(&self, name: &str) -> Result<usize> {
        self.meta.required(&self.keys.of(name), self.size(name)?)
    }

    /// A size that newer files may give a layer at a time; they must agree.
    fn uniform(&self, name: &str, default: Option<usize>) -> Result<usize> {
        let key = self.keys.of(name);
        let Some(Value::Array(Array::Scalars { .. })) = self.meta.get(&key) else {
            return self.size(name)?.or(default).ok_or_else(|| self.meta.bad(&key, "is missing"));
        };
        let mut values = self.meta.scalars(&key)?.into_iter().flatten();
        let first = values.next();
        let all_equal = values.all(|v| {
            matches!((&v, &first), (Value::Unsigned(a), Some(Value::Unsigned(b))) if a == b)
                || matches!((&v, &first), (Value::Signed(a), Some(Value::Signed(b))) if a == b)
        });
        match first {
            Some(Value::Unsigned(v)) if all_equal => self.in_range(&key, u32::try_from(v).unwrap_or(0)),
            Some(Value::Signed(v)) if all_equal => self.in_range(&key, u32::try_from(v).unwrap_or(0)),
            _ => Err(Error::Unsupported(format!("`{key}` differs from layer to layer, which is not supported"))),
        }
    }

    fn divide(&self, hidden: usize, heads: usize) -> Result<usize> {
        if hidden.is_multiple_of(heads) {
            return Ok(hidden / heads);
        }
        Err(self
            .meta
            .bad(&self.keys.of("attention.head_count"), &format!("is {heads}, which does not divide {hidden}")))
    }

    /// A sliding window ends what the model can see, so it ends the context too.
    fn context(&self) -> Result<usize> {
        let context = self.required("context_length")?;
        Ok(self.size("attention.sliding_window")?.map_or(context, |window| context.min(window)))
    }

    fn norm_eps(&self) -> Result<f32> {
        let key = self.keys.of("attention.layer_norm_rms_epsilon");
        let eps = self.meta.required(&key, self.meta.f32(&key)?)?;
        if (0.0..1.0).contains(&eps) { Ok(eps) } else { Err(self.meta.bad(&key, &format!("is {eps}"))) }
    }

    fn refuse_unknown_features(&self) -> Result<()> {
        if let Some(experts) = self.meta.unsigned(&self.keys.of("expert_count"))?.filter(|&n| n > 0) {
            return Err(Error::Unsupported(format!("mixture of experts ({experts} experts) is not supported")));
        }
        for (name, neutral) in ABSENT_FEATURES {
            let key = self.keys.of(name);
            // Converters write 0 for a feature that a model does not have.
            if let Some(value) = self.meta.f32(&key)?.filter(|&value| value != 0.0 && value != neutral) {
                return Err(Error::Unsupported(format!("metadata `{key}` is {value}, which is not supported")));
            }
        }
        match self.meta.bool(&self.keys.of("attention.causal"))? {
            Some(false) => Err(Error::Unsupported("models whose attention is not causal are not supported".into())),
            _ => Ok(()),
        }
    }

    fn check(&self, h: &Hparams) -> Result<()> {
        let bad = |name: &str, problem: String| Err(self.meta.bad(&self.keys.of(name), &problem));
        let value_dim = self.size("attention.value_length")?.unwrap_or(h.head_dim);
        if value_dim != h.head_dim {
            let message = format!("value heads of {value_dim} beside key heads of {} are not supported", h.head_dim);
            return Err(Error::Unsupported(message));
        }
        if !h.heads.is_multiple_of(h.kv_heads) {
            return bad(
                "attention.head_count_kv",
                format!("is {}, which does not divide {} heads", h.kv_heads, h.heads),
            );
        }
        if h.group() > MAX_GROUP || h.head_dim > MAX_HEAD_DIM {
            let message = format!(
                "heads of {} elements, {} a key-value head, exceed the limits {MAX_HEAD_DIM} and {MAX_GROUP}",
                h.head_dim,
                h.group()
            );
            return Err(Error::Unsupported(message));
        }
        if !h.rope_dims.is_multiple_of(2) || h.rope_dims > h.head_dim {
            return bad("rope.dimension_count", format!("is {}, heads have {} elements", h.rope_dims, h.head_dim));
        }
        Ok(())
    }
}
