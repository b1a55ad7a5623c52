//! Sizes of a model, read from metadata and checked against each other.

use super::eagle::Features;
use super::experts::Experts;
use super::heads::{Heads, MAX_HEAD_DIM};
use super::latent::Latent;
use super::pooling::Pooling;
use super::recurrent::Recurrent;
use super::rope::original_context;
use super::spec::{Arch, AttentionMask, AttentionScale, Blocks, Factor, RopeRule, WindowRule};
use crate::error::{Error, Result, collected, filled, reserve};
use crate::format::{Metadata, Value, limits};

/// Sizes of one model. Counts are plural, in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Hparams {
    /// Longest sequence that the model was made for, in tokens.
    pub context: usize,
    /// Elements of a token's vector between layers.
    pub hidden: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Blocks behind them that predict further tokens.
    pub predicting_blocks: usize,
    /// Attention heads of every layer.
    pub heads: Vec<Heads>,
    /// Of each layer with attention the one whose keys and values it reads, which is mostly itself.
    pub key_sources: Vec<usize>,
    /// Layers without attention, which have no key-value heads.
    pub recurrent: Option<Recurrent>,
    /// What the heads of latent attention are made of.
    pub latent: Option<Latent>,
    /// Elements between the two halves of every layer's feed-forward block, where that has no experts.
    pub feed_forward: Vec<usize>,
    /// Experts of layers that have them.
    pub experts: Option<Experts>,
    /// Elements of a token's embedding for each layer, in models that have such.
    pub layer_embedding: Option<usize>,
    /// Added to the mean square or the variance in every norm.
    pub norm_eps: f32,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Factor on what each block adds to its input.
    pub residual_scale: f32,
    /// Factor on the dot products of queries and keys, where that is not one by the root of a head's elements.
    pub attention_scale: Option<f32>,
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
    /// Which vector stands for a text, where the file says so.
    pub pooling: Option<Pooling>,
    /// Elements of the vectors of the model that this one drafts for, where it only does that.
    pub backbone: Option<usize>,
    /// What this one reads of the model that it drafts for, where it does that by vectors between its layers.
    pub features: Option<Features>,
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

/// What the memory is for.
const SIZES: &str = "sizes of the layers";
/// Size of the feed-forward block.
const FEED_FORWARD: &str = "feed_forward_length";
/// How many of the blocks predict further tokens.
const PREDICTING: &str = "nextn_predict_layers";
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
        Hparams::read_blocks(meta, arch, 0)
    }

    /// The sizes with the first block that predicts further tokens as the last layer, which alone has keys, those of its own cache.
    pub fn of_predictor(meta: &Metadata, arch: &Arch) -> Result<Hparams> {
        let mut hparams = Hparams::read_blocks(meta, arch, 1)?;
        let before = hparams.layers - 1;
        hparams.heads[..before].iter_mut().for_each(|heads| heads.kv_heads = 0);
        hparams.key_sources = collected(0..hparams.layers, SIZES)?;
        Ok(hparams)
    }

    /// The sizes with so many of the predicting blocks as layers.
    fn read_blocks(meta: &Metadata, arch: &Arch, more: usize) -> Result<Hparams> {
        let keys = Keys::new(arch);
        let (own, predicting) = layers(meta, arch, &keys)?;
        let predicting_blocks = predicting.checked_sub(more).ok_or_else(|| {
            let key = keys.of(PREDICTING);
            Error::Unsupported(format!("the file has no block that predicts further tokens (`{key}`)"))
        })?;
        let layers = own + more;
        let reader = Reader { meta, arch, keys, layers, own, blocks: own + predicting };
        reader.refuse_unknown_features()?;
        let hidden = reader.required("embedding_length", limits::HIDDEN)?;
        let latent = reader.latent()?;
        let window = reader.window()?;
        let local_layers = reader.local_layers(window)?;
        let heads = reader.heads(hidden, latent, &local_layers)?;
        let dense = reader.widths(&heads)?;
        let experts = reader.experts(dense.iter().flatten().copied().find(|&width| width > 0))?;
        let feed_forward = match (dense, experts) {
            (Some(dense), _) => dense,
            (None, experts) => {
                let width = experts.map(|experts| experts.feed_forward);
                filled(layers, meta.required(&reader.keys.of(FEED_FORWARD), width)?, SIZES)?
            }
        };
        Ok(Hparams {
            context: reader.context()?,
            hidden,
            layers,
            predicting_blocks,
            key_sources: reader.key_sources(&heads, &local_layers)?,
            recurrent: reader.recurrent()?,
            latent,
            feed_forward,
            experts,
            layer_embedding: reader.layer_embedding()?,
            norm_eps: reader.norm_eps()?,
            embedding_scale: if arch.scales_embedding {
                (hidden as f32).sqrt()
            } else {
                reader.factor(Factor::Embedding)?.unwrap_or(1.0)
            },
            residual_scale: reader.factor(Factor::Residual)?.unwrap_or(1.0),
            attention_scale: match (reader.factor(Factor::Attention)?, latent) {
                (Some(scale), _) => Some(scale),
                (None, Some(latent)) => Some(reader.latent_scale(&latent)?),
                (None, None) => match arch.attention_scale {
                    AttentionScale::One => Some(1.0),
                    AttentionScale::WideAt(at) if at == layers => Some(inverse_root(hidden / heads[0].heads)),
                    AttentionScale::WideAt(_) | AttentionScale::OfHeads => None,
                },
            },
            heads,
            logit_scale: reader.logit_scale()?,
            temperature: reader.temperature()?,
            attention_softcap: reader.factor(Factor::AttentionSoftcap)?,
            final_softcap: reader.factor(Factor::FinalSoftcap)?,
            local_layers,
            window,
            rotates: reader.rotates()?,
            pooling: Pooling::read(meta, arch)?,
            backbone: match arch.mask {
                AttentionMask::Borrowed => Some(reader.required("embedding_length_out", limits::HIDDEN)?),
                AttentionMask::Causal | AttentionMask::Bidirectional => None,
            },
            features: Features::read(meta, arch, layers)?,
        })
    }

    /// Whether a layer has attention.
    pub fn attends(&self, layer: usize) -> bool {
        self.heads[layer].kv_heads > 0
    }

    /// Whether a layer has attention that reads the keys and values of another layer.
    pub fn borrows_keys(&self, layer: usize) -> bool {
        self.attends(layer) && self.key_sources[layer] != layer
    }

    /// Whether a layer has keys and values of its own.
    pub fn has_keys(&self, layer: usize) -> bool {
        self.attends(layer) && !self.borrows_keys(layer)
    }

    /// The number of the layer that has the keys and values of `layer` among all that have some.
    pub fn kv_layer(&self, layer: usize) -> usize {
        (0..self.key_sources[layer]).filter(|&layer| self.has_keys(layer)).count()
    }

    /// Whether a layer sees no further back than the window.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local_layers.get(layer).copied().unwrap_or(false)
    }

    /// The experts of a layer.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.are_in(layer))
    }

    /// Factor on the dot products of a layer's queries and keys.
    pub fn attention_scale_of(&self, layer: usize) -> f32 {
        self.attention_scale.unwrap_or_else(|| inverse_root(self.heads[layer].head_dim))
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
    /// Layers of the forward pass, and blocks of the file, which has those that are not run too.
    layers: usize,
    pub(super) blocks: usize,
    /// Layers before the blocks that predict further tokens.
    pub(super) own: usize,
}

impl Reader<'_> {
    /// A size of 1 to `most`.
    pub(super) fn size(&self, name: &str, most: usize) -> Result<Option<usize>> {
        size(self.meta, &self.keys.of(name), most)
    }

    /// The same, which must be there.
    pub(super) fn required(&self, name: &str, most: usize) -> Result<usize> {
        self.meta.required(&self.keys.of(name), self.size(name, most)?)
    }

    /// A size of every layer: a number is that of all, a list has one for each block of the file.
    pub(super) fn by_layer(&self, name: &str, most: usize) -> Result<Option<Vec<usize>>> {
        let key = self.keys.of(name);
        let Some(Value::Array(_)) = self.meta.get(&key) else {
            return self.size(name, most)?.map(|size| filled(self.layers, size, SIZES)).transpose();
        };
        self.list(&key, 1, most).map(Some)
    }

    /// A list of sizes of `least` to `most`, one for each block of the file: those of the layers.
    pub(super) fn list(&self, key: &str, least: usize, most: usize) -> Result<Vec<usize>> {
        let listed = self.listed(key, self.blocks)?.map(|value| match value {
            Value::Unsigned(value) => Some(value),
            Value::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        });
        let mut sizes = reserve(self.layers, SIZES)?;
        for value in listed.take(self.layers) {
            let value = value.ok_or_else(|| self.meta.bad(key, "holds what is no size"))?;
            let is_least = value == 0 && least == 0;
            sizes.push(if is_least { 0 } else { in_range(self.meta, key, u32::try_from(value).unwrap_or(0), most)? });
        }
        Ok(sizes)
    }

    /// The same where all layers must have as many.
    pub(super) fn uniform(&self, name: &str, most: usize) -> Result<Option<usize>> {
        let Some(sizes) = self.by_layer(name, most)? else { return Ok(None) };
        if sizes.iter().any(|size| *size != sizes[0]) {
            let problem = format!("`{}` differs from layer to layer, which is not supported here", self.keys.of(name));
            return Err(Error::Unsupported(problem));
        }
        Ok(Some(sizes[0]))
    }

    /// The elements of a list that must have so many.
    pub(super) fn listed(&self, key: &str, count: usize) -> Result<impl Iterator<Item = Value>> {
        let listed = self.meta.scalars(key)?;
        let found = listed.as_ref().map_or(0, |listed| listed.len());
        if found != count {
            return Err(self.meta.bad(key, &format!("has {found} elements for {count} layers")));
        }
        Ok(listed.into_iter().flatten())
    }

    /// A window of all layers ends what the model can see, so it ends the context too.
    fn context(&self) -> Result<usize> {
        let context = self.required("context_length", limits::CONTEXT)?;
        match self.arch.window {
            WindowRule::EndsContext => {
                Ok(self.size(WINDOW, limits::CONTEXT)?.map_or(context, |window| context.min(window)))
            }
            WindowRule::LocalLayers { .. } | WindowRule::GlobalFirst { .. } => Ok(context),
        }
    }

    /// Elements between the halves of each layer's feed-forward block; 0 in layers with another block alone.
    fn widths(&self, heads: &[Heads]) -> Result<Option<Vec<usize>>> {
        let key = self.keys.of(FEED_FORWARD);
        let (Blocks::One, Some(Value::Array(_))) = (self.arch.blocks, self.meta.get(&key)) else {
            return self.by_layer(FEED_FORWARD, limits::FEED_FORWARD);
        };
        let widths = self.list(&key, 0, limits::FEED_FORWARD)?;
        let both = heads.iter().zip(&widths).position(|(heads, &width)| heads.kv_heads > 0 && width > 0);
        match both {
            None => Ok(Some(widths)),
            Some(layer) => Err(self.meta.bad(&key, &format!("gives layer {layer} a block beside its attention"))),
        }
    }

    /// Positions that local layers see, where the file has such layers.
    fn window(&self) -> Result<Option<usize>> {
        match self.arch.window {
            WindowRule::EndsContext => Ok(None),
            // Converters write 0 for a model without.
            _ if self.meta.unsigned(&self.keys.of(WINDOW))? == Some(0) => Ok(None),
            _ => Ok(self.size(WINDOW, limits::CONTEXT)?.map(|window| match self.arch.mask {
                AttentionMask::Causal | AttentionMask::Borrowed => window,
                // Half of it on each side, and the position itself.
                AttentionMask::Bidirectional => window / 2 + 1,
            })),
        }
    }

    /// Which layers are local: by the file's period or its list, or else by the family's period.
    fn local_layers(&self, window: Option<usize>) -> Result<Vec<bool>> {
        let mut is_local = filled(self.layers, false, SIZES)?;
        let (period, is_global_first) = match (self.arch.window, window) {
            (WindowRule::LocalLayers { period }, Some(_)) => (period, false),
            (WindowRule::GlobalFirst { period }, Some(_)) => (period, true),
            _ => return Ok(is_local),
        };
        let key = self.keys.of("attention.sliding_window_pattern");
        if let Some(Value::Array(_)) = self.meta.get(&key) {
            for (is, listed) in is_local.iter_mut().zip(self.listed(&key, self.layers)?) {
                *is = !matches!(listed, Value::Bool(false) | Value::Unsigned(0) | Value::Signed(0));
            }
            return Ok(is_local);
        }
        let period = self.meta.u32(&key)?.map_or(period, |period| period as usize);
        // A period of 0 means that all are.
        let local = |index: usize| match is_global_first {
            true => period == 0 || !index.is_multiple_of(period),
            false => period == 0 || index % period < period - 1,
        };
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

    fn layer_embedding(&self) -> Result<Option<usize>> {
        let name = "embedding_length_per_layer_input";
        match self.optional(name, MAX_HEAD_DIM)? {
            Some(_) if !self.arch.has_layer_embeddings => self.not_of_family(name),
            size => Ok(size),
        }
    }

    /// The error for metadata that other families have.
    pub(super) fn not_of_family<T>(&self, name: &str) -> Result<T> {
        let (key, family) = (self.keys.of(name), self.arch.name);
        Err(Error::Unsupported(format!("metadata `{key}` is not supported for the family `{family}`")))
    }

    fn rotates(&self) -> Result<bool> {
        match self.arch.rope_rule {
            RopeRule::Never => Ok(false),
            RopeRule::IfFinetuned => Ok(self.meta.bool(&self.keys.of("rope.scaling.finetuned"))? != Some(false)),
            _ => Ok(true),
        }
    }

    fn norm_eps(&self) -> Result<f32> {
        let key = self.keys.of(self.arch.norm.eps_key());
        let eps = self.meta.required(&key, self.meta.f32(&key)?)?;
        if (0.0..1.0).contains(&eps) { Ok(eps) } else { Err(self.meta.bad(&key, &format!("is {eps}"))) }
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
            Some(false) if self.arch.mask != AttentionMask::Bidirectional => {
                Err(Error::Unsupported("models whose attention is not causal are not supported".into()))
            }
            _ => Ok(()),
        }
    }
}

/// The layers of the forward pass, and the blocks behind them that predict further tokens: `block_count` counts both. Of a model that only drafts
/// for another one, files call all layers such blocks.
fn layers(meta: &Metadata, arch: &Arch, keys: &Keys) -> Result<(usize, usize)> {
    let (key, predicting) = (keys.of("block_count"), keys.of(PREDICTING));
    let blocks = meta.required(&key, size(meta, &key, limits::LAYERS)?)?;
    if arch.mask == AttentionMask::Borrowed {
        return Ok((blocks, 0));
    }
    // Converters write 0 for models without such blocks.
    let count = meta.unsigned(&predicting)?.unwrap_or(0);
    match usize::try_from(count).ok().filter(|&count| count < blocks) {
        Some(count) => Ok((blocks - count, count)),
        None => Err(meta.bad(&predicting, &format!("is {count} of {blocks} blocks"))),
    }
}

/// A size of 1 to `most`.
fn size(meta: &Metadata, key: &str, most: usize) -> Result<Option<usize>> {
    let value = meta.u32(key)?;
    value.map(|value| in_range(meta, key, value, most)).transpose()
}

fn in_range(meta: &Metadata, key: &str, value: u32, most: usize) -> Result<usize> {
    if (1..=most).contains(&(value as usize)) {
        return Ok(value as usize);
    }
    Err(meta.bad(key, &format!("is {value}, 1 to {most} are supported")))
}
