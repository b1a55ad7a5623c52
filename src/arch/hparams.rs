//! Sizes of a model, read from metadata and checked against each other.

use super::experts::Experts;
use super::latent::Latent;
use super::rope::original_context;
use super::spec::{Arch, Factor, RopeRule, WindowRule};
use crate::error::{Error, Result, filled};
use crate::format::{Array, Metadata, Value, limits};

/// Sizes of one model. Counts are plural, in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Hparams {
    /// Longest sequence that the model was made for, in tokens.
    pub context: usize,
    /// Elements of a token's vector between layers.
    pub hidden: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Blocks behind them that predict further tokens, which are not run.
    pub predicting_blocks: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key-value heads of a layer; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head of queries and keys.
    pub head_dim: usize,
    /// Elements of a head of values.
    pub value_dim: usize,
    /// What the heads of latent attention are made of.
    pub latent: Option<Latent>,
    /// Leading elements of a head that rotate.
    pub rope_dims: usize,
    /// Elements between the two halves of a feed-forward block without experts.
    pub feed_forward: usize,
    /// Experts of layers that have them.
    pub experts: Option<Experts>,
    /// Added to the mean square or the variance in every norm.
    pub norm_eps: f32,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Factor on what each block adds to its input.
    pub residual_scale: f32,
    /// Factor on the dot products of queries and keys.
    pub attention_scale: f32,
    /// Factor on logits.
    pub logit_scale: f32,
    /// Factor on the logarithm by which queries beyond the trained context grow, and the tokens of that context.
    pub temperature: Option<(f32, u32)>,
    /// Cap of the scores of attention.
    pub attention_softcap: Option<f32>,
    /// Cap of logits.
    pub final_softcap: Option<f32>,
    /// Positions that local layers see, the present one included.
    pub window: Option<usize>,
    /// Whether each layer is local; see [`Hparams::is_local`].
    pub local_layers: Vec<bool>,
    /// Whether any layer rotates queries and keys.
    pub rotates: bool,
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

/// Most query heads that share a key-value head, and longest head, that the backends keep on their stacks.
const MAX_GROUP: usize = 128;
const MAX_HEAD_DIM: usize = 576;

/// Size of the feed-forward block.
const FEED_FORWARD: &str = "feed_forward_length";
/// Size of the sliding window of attention.
const WINDOW: &str = "attention.sliding_window";

/// Numbers that would change the result where a family does not use them, with the value that changes nothing.
const ABSENT_FEATURES: [(&str, f32); 10] = [
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.temperature_scale", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("embedding_scale", 1.0),
    ("residual_scale", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
];

impl Hparams {
    /// Reads the sizes of a model of family `arch`.
    pub fn read(meta: &Metadata, arch: &Arch) -> Result<Hparams> {
        let reader = Reader { meta, arch, keys: Keys::new(arch) };
        reader.refuse_unknown_features()?;
        let hidden = reader.required("embedding_length", limits::HIDDEN)?;
        let heads = reader.uniform("attention.head_count", None, limits::HEADS)?;
        let latent = reader.latent(heads)?;
        let (kv_heads, head_dim, value_dim) = match latent {
            Some(Latent { rank, rotated, .. }) => (1, rank + rotated, rank),
            None => reader.heads(hidden, heads)?,
        };
        let (layers, predicting_blocks) = reader.layers()?;
        let window = reader.window()?;
        let dense = match reader.meta.get(&reader.keys.of(FEED_FORWARD)) {
            Some(_) => Some(reader.uniform(FEED_FORWARD, None, limits::FEED_FORWARD)?),
            None => None,
        };
        let experts = reader.experts(dense)?;
        let hparams = Hparams {
            context: reader.context()?,
            hidden,
            layers,
            predicting_blocks,
            heads,
            kv_heads,
            head_dim,
            value_dim,
            latent,
            rope_dims: reader.size("rope.dimension_count", limits::HIDDEN)?.unwrap_or(head_dim),
            feed_forward: reader
                .meta
                .required(&reader.keys.of(FEED_FORWARD), dense.or(experts.map(|experts| experts.feed_forward)))?,
            experts,
            norm_eps: reader.norm_eps()?,
            embedding_scale: if arch.scales_embedding {
                (hidden as f32).sqrt()
            } else {
                reader.factor(Factor::Embedding)?.unwrap_or(1.0)
            },
            residual_scale: reader.factor(Factor::Residual)?.unwrap_or(1.0),
            attention_scale: match (reader.factor(Factor::Attention)?, latent) {
                (Some(scale), _) => scale,
                (None, Some(latent)) => reader.latent_scale(&latent)?,
                (None, None) if arch.wide_scale_layers == Some(layers) => inverse_root(hidden / heads),
                (None, None) => inverse_root(head_dim),
            },
            logit_scale: reader.logit_scale()?,
            temperature: reader.temperature()?,
            attention_softcap: reader.factor(Factor::AttentionSoftcap)?,
            final_softcap: reader.factor(Factor::FinalSoftcap)?,
            local_layers: reader.local_layers(layers, window)?,
            window,
            rotates: reader.rotates()?,
        };
        reader.check(&hparams)?;
        Ok(hparams)
    }

    /// Whether a layer sees no further back than the window.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local_layers.get(layer).copied().unwrap_or(false)
    }

    /// The experts of a layer.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.are_in(layer))
    }

    /// Query heads that share one key-value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

fn inverse_root(size: usize) -> f32 {
    1.0 / (size as f32).sqrt()
}

/// Reads the metadata of one model.
pub(super) struct Reader<'a> {
    pub(super) meta: &'a Metadata,
    pub(super) arch: &'a Arch,
    pub(super) keys: Keys,
}

impl Reader<'_> {
    /// A size of 1 to `most`.
    pub(super) fn size(&self, name: &str, most: usize) -> Result<Option<usize>> {
        let key = self.keys.of(name);
        let value = self.meta.u32(&key)?;
        value.map(|v| self.in_range(&key, v, most)).transpose()
    }

    fn in_range(&self, key: &str, value: u32, most: usize) -> Result<usize> {
        if (1..=most).contains(&(value as usize)) {
            return Ok(value as usize);
        }
        Err(self.meta.bad(key, &format!("is {value}, 1 to {most} are supported")))
    }

    /// The same, which must be there.
    pub(super) fn required(&self, name: &str, most: usize) -> Result<usize> {
        self.meta.required(&self.keys.of(name), self.size(name, most)?)
    }

    /// A size that newer files may give a layer at a time; they must agree.
    pub(super) fn uniform(&self, name: &str, default: Option<usize>, most: usize) -> Result<usize> {
        let key = self.keys.of(name);
        let Some(Value::Array(Array::Scalars { .. })) = self.meta.get(&key) else {
            return self.size(name, most)?.or(default).ok_or_else(|| self.meta.bad(&key, "is missing"));
        };
        let mut values = self.meta.scalars(&key)?.into_iter().flatten();
        let first = values.next();
        let all_equal = values.all(|v| {
            matches!((&v, &first), (Value::Unsigned(a), Some(Value::Unsigned(b))) if a == b)
                || matches!((&v, &first), (Value::Signed(a), Some(Value::Signed(b))) if a == b)
        });
        match first {
            Some(Value::Unsigned(v)) if all_equal => self.in_range(&key, u32::try_from(v).unwrap_or(0), most),
            Some(Value::Signed(v)) if all_equal => self.in_range(&key, u32::try_from(v).unwrap_or(0), most),
            _ => Err(Error::Unsupported(format!("`{key}` differs from layer to layer, which is not supported"))),
        }
    }

    /// Key-value heads, and elements of keys and of values.
    fn heads(&self, hidden: usize, heads: usize) -> Result<(usize, usize, usize)> {
        let kv_heads = self.uniform("attention.head_count_kv", Some(heads), limits::HEADS)?;
        let head_dim = match self.size("attention.key_length", limits::HIDDEN)? {
            Some(dim) => dim,
            None => self.divide(hidden, heads)?,
        };
        let value_dim = self.size("attention.value_length", limits::HIDDEN)?.unwrap_or(head_dim);
        if value_dim != head_dim {
            let message = format!("value heads of {value_dim} beside key heads of {head_dim} are not supported");
            return Err(Error::Unsupported(message));
        }
        Ok((kv_heads, head_dim, value_dim))
    }

    fn divide(&self, hidden: usize, heads: usize) -> Result<usize> {
        if hidden.is_multiple_of(heads) {
            return Ok(hidden / heads);
        }
        Err(self
            .meta
            .bad(&self.keys.of("attention.head_count"), &format!("is {heads}, which does not divide {hidden}")))
    }

    /// A window of all layers ends what the model can see, so it ends the context too.
    fn context(&self) -> Result<usize> {
        let context = self.required("context_length", limits::CONTEXT)?;
        match self.arch.window {
            WindowRule::EndsContext => {
                Ok(self.size(WINDOW, limits::CONTEXT)?.map_or(context, |window| context.min(window)))
            }
            WindowRule::LocalLayers { .. } => Ok(context),
        }
    }

    /// Positions that local layers see, where the file has such layers.
    fn window(&self) -> Result<Option<usize>> {
        match self.arch.window {
            WindowRule::EndsContext => Ok(None),
            // Converters write 0 for a model without.
            WindowRule::LocalLayers { .. } if self.meta.unsigned(&self.keys.of(WINDOW))? == Some(0) => Ok(None),
            WindowRule::LocalLayers { .. } => self.size(WINDOW, limits::CONTEXT),
        }
    }

    /// Which layers are local: by the file's period or its list, or else by the family's period.
    fn local_layers(&self, layers: usize, window: Option<usize>) -> Result<Vec<bool>> {
        let mut is_local = filled(layers, false, "sizes of the layers")?;
        let (WindowRule::LocalLayers { period }, Some(_)) = (self.arch.window, window) else { return Ok(is_local) };
        let key = self.keys.of("attention.sliding_window_pattern");
        if let Some(Value::Array(_)) = self.meta.get(&key) {
            let listed = self.meta.scalars(&key)?;
            let count = listed.as_ref().map_or(0, |listed| listed.len());
            if count != layers {
                return Err(self.meta.bad(&key, &format!("has {count} elements for {layers} layers")));
            }
            for (is, listed) in is_local.iter_mut().zip(listed.into_iter().flatten()) {
                *is = !matches!(listed, Value::Bool(false) | Value::Unsigned(0) | Value::Signed(0));
            }
            return Ok(is_local);
        }
        let period = self.meta.u32(&key)?.map_or(period, |period| period as usize);
        // A period of 0 means that all are.
        let local = |index: usize| period == 0 || index % period < period - 1;
        is_local.iter_mut().enumerate().for_each(|(index, is)| *is = local(index));
        Ok(is_local)
    }

    /// A positive number that the family uses; converters write 0 for one that a model does not have.
    fn factor(&self, factor: Factor) -> Result<Option<f32>> {
        if !self.arch.factors.contains(&factor) {
            return Ok(None);
        }
        let key = self.keys.of(factor.key());
        match self.meta.f32(&key)? {
            None | Some(0.0) => Ok(None),
            Some(value) if value > 0.0 && value.is_finite() => Ok(Some(value)),
            Some(value) => Err(self.meta.bad(&key, &format!("is {value}, it must be a positive number"))),
        }
    }

    fn logit_scale(&self) -> Result<f32> {
        let divisor = self.factor(Factor::LogitDivisor)?.unwrap_or(1.0);
        Ok(self.factor(Factor::Logits)?.unwrap_or(1.0) / divisor)
    }

    fn temperature(&self) -> Result<Option<(f32, u32)>> {
        let Some(factor) = self.factor(Factor::Temperature)? else { return Ok(None) };
        original_context(self.meta, &self.keys).map(|period| Some((factor, period)))
    }

    fn rotates(&self) -> Result<bool> {
        let is_switch = self.arch.rope_rule == RopeRule::IfFinetuned;
        Ok(!is_switch || self.meta.bool(&self.keys.of("rope.scaling.finetuned"))? != Some(false))
    }

    fn norm_eps(&self) -> Result<f32> {
        let key = self.keys.of(self.arch.norm.eps_key());
        let eps = self.meta.required(&key, self.meta.f32(&key)?)?;
        if (0.0..1.0).contains(&eps) { Ok(eps) } else { Err(self.meta.bad(&key, &format!("is {eps}"))) }
    }

    /// The layers of the forward pass, and the blocks behind them that predict further tokens: `block_count` counts both.
    fn layers(&self) -> Result<(usize, usize)> {
        let (blocks, key) = (self.required("block_count", limits::LAYERS)?, "nextn_predict_layers");
        // Converters write 0 for models without such blocks.
        let predicting = self.meta.unsigned(&self.keys.of(key))?.unwrap_or(0);
        match usize::try_from(predicting).ok().filter(|&predicting| predicting < blocks) {
            Some(predicting) => Ok((blocks - predicting, predicting)),
            None => Err(self.meta.bad(&self.keys.of(key), &format!("is {predicting} of {blocks} blocks"))),
        }
    }

    fn refuse_unknown_features(&self) -> Result<()> {
        let is_used = |name: &str| self.arch.factors.iter().any(|factor| factor.key() == name);
        for (name, neutral) in ABSENT_FEATURES.into_iter().filter(|(name, _)| !is_used(name)) {
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
