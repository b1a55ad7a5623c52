//! The families. A new family is a constant that differs from another one by its fields. Those whose layers have experts are in `mixtures`,
//! those some of whose layers have a state in place of keys and values in `hybrids`, those whose tokens see all of their text in `encoders`.

use super::encoders::{BERT, GEMMA_EMBEDDING, MODERN_BERT, NOMIC_BERT};
pub use super::experts::{Mixture, Score, Shared};
use super::hybrids::{
    FALCON_H1, GRANITEHYBRID, LFM2, LFM2MOE, NEMOTRON_H, NEMOTRON_H_MOE, QWEN3NEXT, QWEN35, QWEN35MOE,
};
use super::mixtures::{
    DEEPSEEK2, ERNIE4_5_MOE, GEMMA4, GLM4MOE, GPT_OSS, GRANITEMOE, HUNYUAN_MOE, MINIMAX_M2, MIXTRAL, OLMOE, QWEN2MOE,
    QWEN3MOE, QWEN3VLMOE,
};
use super::names::{global, layer};
pub use super::pooling::Classifier;
pub use super::recurrent::{Recurrence, ValueHeads};
use super::rope::RopeLayout;
use crate::error::{Error, Excerpt, Result};

/// What the layers of a family hold and compute, beyond sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arch {
    /// `general.architecture` of its files, and the prefix of its metadata keys.
    pub name: &'static str,
    /// Which elements of a head the file's row order pairs for rotation.
    pub rope: RopeLayout,
    /// Which layers rotate, and by which angles.
    pub rope_rule: RopeRule,
    /// Whether attention is latent, as in [`super::latent`].
    pub is_latent: bool,
    /// What layers have that have no attention, in families with such.
    pub recurrence: Option<Recurrence>,
    /// The norm of what a state space gives.
    pub space_norm: Presence,
    /// What layers are made of.
    pub blocks: Blocks,
    /// Whether the projection of queries has a gate behind each head, by whose sigmoid the head's result is multiplied.
    pub gates_attention: bool,
    /// Biases of the Q, K and V projections.
    pub qkv_bias: Presence,
    /// Bias of the attention's output projection.
    pub output_bias: Presence,
    /// RMS norm of Q and K.
    pub qk_norm: Presence,
    /// What that norm is taken over.
    pub qk_norm_span: NormSpan,
    /// Whether that norm comes after rotation.
    pub qk_norm_after_rope: bool,
    /// Norms around the attention and the feed-forward block.
    pub norms: NormOrder,
    /// What the norms of rows subtract and divide by.
    pub norm: NormKind,
    /// Biases of those norms.
    pub norm_bias: Presence,
    /// A norm of the embedding, before the first layer.
    pub embedding_norm: Presence,
    /// Vectors for types of tokens, of which the first is added to all embeddings.
    pub token_types: Presence,
    /// Vectors for positions, which are added to embeddings.
    pub positions: Presence,
    /// Name of the norm before the feed-forward block, within a layer.
    pub feed_forward_norm: &'static str,
    /// Name of the last norm.
    pub output_norm: &'static str,
    /// Projections of the feed-forward block.
    pub feed_forward: FeedForward,
    /// Biases of those projections.
    pub feed_forward_bias: Presence,
    /// Activation of the feed-forward block.
    pub activation: Activation,
    /// Experts, in models that have any.
    pub mixture: Option<Mixture>,
    /// One more score of attention for each query head, which has no key.
    pub sinks: Presence,
    /// Which tokens a token sees.
    pub mask: AttentionMask,
    /// What a sliding window in the metadata means.
    pub window: WindowRule,
    /// An output head beside the embedding; a model without one multiplies by the embedding again.
    pub head: Presence,
    /// Two projections of the vectors of texts.
    pub text_projections: Presence,
    /// A classifier of texts.
    pub classifier: Classifier,
    /// Whether token embeddings are multiplied by the square root of the hidden size.
    pub scales_embedding: bool,
    /// Factor on the dot products of attention, where the file does not tell.
    pub attention_scale: AttentionScale,
    /// Whether each head of values is normalized, without weights. A layer without a projection of values takes what it projects for keys.
    pub normalizes_values: bool,
    /// Whether the last layers may read the keys and values of earlier ones.
    pub shares_keys: bool,
    /// Whether models may have an embedding of each token for every layer.
    pub has_layer_embeddings: bool,
    /// A factor on what each layer gives.
    pub layer_scale: Presence,
    /// Numbers of the metadata that the family uses; any other that would change the result is refused.
    pub factors: &'static [Factor],
}

/// Whether a tensor belongs to a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Never; a file that holds it is refused.
    Absent,
    /// When the file holds it.
    Optional,
    /// Always; a file without it is refused.
    Required,
}

/// What a norm of queries or keys is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormSpan {
    /// Each head by itself.
    Head,
    /// All heads of a row together.
    Row,
}

/// What a layer is made of. The first block is attention, or what stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// The first block and a feed-forward block.
    Two,
    /// The same; the first one is attention and a state space, which read the same and whose results are added.
    TwoWithState,
    /// One of the two: attention where the file counts key-value heads, a feed-forward block where it tells its width, else what stands for
    /// attention.
    One,
}

/// The factor on the dot products of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionScale {
    /// One by the root of a head's elements.
    OfHeads,
    /// The same, but in models of so many layers, where `hidden / heads` stands for a head's elements.
    WideAt(usize),
    /// One.
    One,
}

/// Where the two blocks of a layer have norms. A block is the attention or the feed-forward part; its result is added to its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOrder {
    /// Before each block.
    Before,
    /// Before each block, and of its result.
    BeforeAndAfter,
    /// Of each block's result alone.
    After,
    /// Once, before both blocks, which read the same.
    Parallel,
    /// Before each block but the first of all, whose input is normalized already.
    BeforeButFirst,
    /// Of the sum of each block's result and its input; there is no last norm then.
    AfterSum,
}

impl NormOrder {
    /// Whether blocks read a normalized input.
    pub fn has_before(self) -> bool {
        !matches!(self, NormOrder::After | NormOrder::AfterSum)
    }

    /// Whether results of blocks are normalized.
    pub fn has_after(self) -> bool {
        matches!(self, NormOrder::BeforeAndAfter | NormOrder::After)
    }
}

/// The two norms of transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)` (Zhang and Sennrich, "Root Mean Square Layer Normalization").
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps)` (Ba et al., "Layer Normalization").
    Layer,
}

impl NormKind {
    /// Metadata key, without the family's name, of what is added to the mean square or the variance.
    pub fn eps_key(self) -> &'static str {
        match self {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        }
    }
}

/// Projections of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`
    Gated,
    /// The same; the rows of `up` stand behind those of the gate, in one tensor.
    FusedGate,
    /// `down(activation(up(x)))`
    Plain,
}

/// Activation of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` (Hendrycks and Gimpel, "Gaussian Error Linear Units").
    GeluTanh,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`
    GeluErf,
    /// `max(x, 0)^2`
    SquaredRelu,
    /// Of gated blocks alone: `g / (1 + exp(-slope * g)) * (u + 1)` with `g = min(x, limit)` and the other factor `u` clamped to `-limit..limit`.
    ClampedSilu {
        /// Largest magnitude.
        limit: f32,
        /// Slope of the sigmoid.
        slope: f32,
    },
}

/// Which tokens a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Itself and those before it.
    Causal,
    /// All of its text, so that a model makes embeddings of texts, and no logits.
    Bidirectional,
}

/// What `attention.sliding_window` means for a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRule {
    /// All layers have it, so nothing further back is ever seen: it ends the context.
    EndsContext,
    /// Local layers have it. Of every `period` layers the last is global, unless the file says which are.
    LocalLayers {
        /// Layers from a global one to the next.
        period: usize,
    },
    /// The same, but of every `period` layers the first is global.
    GlobalFirst {
        /// As above.
        period: usize,
    },
}

/// Which layers rotate queries and keys, and by which angles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeRule {
    /// All, alike.
    Same,
    /// All but each layer whose number, counted from 1, is a multiple.
    SkipEvery(usize),
    /// All; local layers by a base of their own and without scaling.
    LocalBase,
    /// All; local layers by the same base without scaling.
    LocalUnscaled,
    /// All, alike; YaRN blends frequencies between numbers of pairs that need not be whole.
    Unrounded,
    /// Local layers alone, in models that have any.
    LocalOnly,
    /// None.
    Never,
    /// All, or none where the file says that positions were not trained.
    IfFinetuned,
}

/// A number in the metadata that changes what a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// On token embeddings.
    Embedding,
    /// On what each block adds.
    Residual,
    /// On the dot products of attention.
    Attention,
    /// On logits.
    Logits,
    /// On logits, which are divided by it.
    LogitDivisor,
    /// On queries: its product with the logarithm of how often a position has passed the trained context is added to 1.
    Temperature,
    /// Cap of the scores of attention.
    AttentionSoftcap,
    /// Cap of logits.
    FinalSoftcap,
}

impl Factor {
    /// Its key, without the family's name.
    pub fn key(self) -> &'static str {
        match self {
            Factor::Embedding => "embedding_scale",
            Factor::Residual => "residual_scale",
            Factor::Attention => "attention.scale",
            Factor::Logits | Factor::LogitDivisor => "logit_scale",
            Factor::Temperature => "attention.temperature_scale",
            Factor::AttentionSoftcap => "attn_logit_softcapping",
            Factor::FinalSoftcap => "final_logit_softcapping",
        }
    }
}

/// Llama 1 to 3, Mistral, Mixtral, and the many models that share their layers.
pub const LLAMA: Arch = Arch {
    name: "llama",
    rope: RopeLayout::Pairs,
    rope_rule: RopeRule::Same,
    is_latent: false,
    recurrence: None,
    space_norm: Presence::Absent,
    blocks: Blocks::Two,
    gates_attention: false,
    qkv_bias: Presence::Optional,
    output_bias: Presence::Optional,
    qk_norm: Presence::Absent,
    qk_norm_span: NormSpan::Head,
    qk_norm_after_rope: false,
    norms: NormOrder::Before,
    norm: NormKind::Rms,
    norm_bias: Presence::Absent,
    embedding_norm: Presence::Absent,
    token_types: Presence::Absent,
    positions: Presence::Absent,
    feed_forward_norm: layer::FEED_FORWARD_NORM,
    output_norm: global::OUTPUT_NORM,
    feed_forward: FeedForward::Gated,
    feed_forward_bias: Presence::Optional,
    activation: Activation::Silu,
    mixture: Some(MIXTRAL),
    sinks: Presence::Absent,
    mask: AttentionMask::Causal,
    window: WindowRule::EndsContext,
    head: Presence::Optional,
    text_projections: Presence::Absent,
    classifier: Classifier::None,
    scales_embedding: false,
    attention_scale: AttentionScale::OfHeads,
    normalizes_values: false,
    shares_keys: false,
    has_layer_embeddings: false,
    layer_scale: Presence::Absent,
    factors: &[],
};

/// Qwen 2 and 2.5.
pub const QWEN2: Arch = Arch {
    name: "qwen2",
    mixture: None,
    rope: RopeLayout::Halves,
    qkv_bias: Presence::Required,
    output_bias: Presence::Absent,
    ..LLAMA
};

/// Qwen 3, dense.
pub const QWEN3: Arch = Arch {
    name: "qwen3",
    qkv_bias: Presence::Optional,
    qk_norm: Presence::Required,
    classifier: Classifier::Shares,
    ..QWEN2
};

/// Gemma 2.
pub const GEMMA2: Arch = Arch {
    name: "gemma2",
    mixture: None,
    rope: RopeLayout::Halves,
    qkv_bias: Presence::Absent,
    output_bias: Presence::Absent,
    norms: NormOrder::BeforeAndAfter,
    activation: Activation::GeluTanh,
    window: WindowRule::LocalLayers { period: 2 },
    head: Presence::Absent,
    scales_embedding: true,
    attention_scale: AttentionScale::WideAt(46),
    factors: &[Factor::AttentionSoftcap, Factor::FinalSoftcap],
    ..LLAMA
};

/// Gemma 3, text.
pub const GEMMA3: Arch = Arch {
    name: "gemma3",
    rope_rule: RopeRule::LocalBase,
    qk_norm: Presence::Required,
    window: WindowRule::LocalLayers { period: 6 },
    head: Presence::Optional,
    attention_scale: AttentionScale::WideAt(62),
    factors: &[Factor::FinalSoftcap],
    ..GEMMA2
};

/// OLMo 2 and 3.
pub const OLMO2: Arch = Arch {
    name: "olmo2",
    mixture: None,
    rope: RopeLayout::Halves,
    rope_rule: RopeRule::LocalUnscaled,
    qkv_bias: Presence::Absent,
    output_bias: Presence::Absent,
    qk_norm: Presence::Required,
    qk_norm_span: NormSpan::Row,
    norms: NormOrder::After,
    window: WindowRule::LocalLayers { period: 4 },
    ..LLAMA
};

/// EXAONE 4.
pub const EXAONE4: Arch =
    Arch { name: "exaone4", rope_rule: RopeRule::LocalOnly, qk_norm_span: NormSpan::Head, ..OLMO2 };

/// Granite 3 and 4, dense.
pub const GRANITE: Arch = Arch {
    name: "granite",
    mixture: None,
    rope_rule: RopeRule::IfFinetuned,
    factors: &[Factor::Embedding, Factor::Residual, Factor::Attention, Factor::LogitDivisor],
    ..LLAMA
};

/// SmolLM 3.
pub const SMOLLM3: Arch = Arch { name: "smollm3", mixture: None, rope_rule: RopeRule::SkipEvery(4), ..LLAMA };

/// Seed-OSS.
pub const SEED_OSS: Arch = Arch { name: "seed_oss", feed_forward_norm: "post_attention_norm", ..QWEN2 };

/// ERNIE 4.5, dense.
pub const ERNIE4_5: Arch = Arch { name: "ernie4_5", mixture: None, ..LLAMA };

/// Mistral 3 (Ministral, Devstral), dense.
pub const MISTRAL3: Arch = Arch { name: "mistral3", factors: &[Factor::Temperature], ..LLAMA };

/// Phi 3, 3.5 and 4.
pub const PHI3: Arch = Arch {
    name: "phi3",
    mixture: None,
    rope: RopeLayout::Halves,
    norm_bias: Presence::Optional,
    feed_forward: FeedForward::FusedGate,
    ..LLAMA
};

/// GLM 4.
pub const GLM4: Arch = Arch {
    name: "glm4",
    mixture: None,
    norms: NormOrder::BeforeAndAfter,
    feed_forward: FeedForward::FusedGate,
    ..LLAMA
};

/// Command R7B and A.
pub const COHERE2: Arch = Arch {
    name: "cohere2",
    mixture: None,
    rope_rule: RopeRule::LocalOnly,
    norms: NormOrder::Parallel,
    norm: NormKind::Layer,
    window: WindowRule::LocalLayers { period: 4 },
    head: Presence::Absent,
    factors: &[Factor::Logits],
    ..LLAMA
};

/// Hunyuan, dense.
pub const HUNYUAN_DENSE: Arch = Arch { name: "hunyuan-dense", qk_norm_after_rope: true, ..QWEN3 };

/// Qwen 3 VL, text: its three positions of a token are the same.
pub const QWEN3VL: Arch = Arch { name: "qwen3vl", ..QWEN3 };

/// StarCoder 2.
pub const STARCODER2: Arch = Arch {
    name: "starcoder2",
    mixture: None,
    rope: RopeLayout::Halves,
    norm: NormKind::Layer,
    norm_bias: Presence::Required,
    feed_forward: FeedForward::Plain,
    activation: Activation::GeluTanh,
    ..LLAMA
};

/// Every family.
pub const ALL: [Arch; 43] = [
    LLAMA,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    OLMO2,
    EXAONE4,
    GRANITE,
    SMOLLM3,
    SEED_OSS,
    ERNIE4_5,
    MISTRAL3,
    PHI3,
    GLM4,
    COHERE2,
    HUNYUAN_DENSE,
    QWEN3VL,
    STARCODER2,
    QWEN3MOE,
    QWEN2MOE,
    OLMOE,
    GPT_OSS,
    GLM4MOE,
    GRANITEMOE,
    ERNIE4_5_MOE,
    HUNYUAN_MOE,
    MINIMAX_M2,
    QWEN3VLMOE,
    DEEPSEEK2,
    LFM2,
    LFM2MOE,
    QWEN3NEXT,
    QWEN35,
    QWEN35MOE,
    GRANITEHYBRID,
    GEMMA4,
    NEMOTRON_H,
    NEMOTRON_H_MOE,
    FALCON_H1,
    GEMMA_EMBEDDING,
    BERT,
    NOMIC_BERT,
    MODERN_BERT,
];

impl Arch {
    /// The family called `name` in a file.
    pub fn find(name: &str) -> Result<Arch> {
        ALL.into_iter().find(|arch| arch.name == name).ok_or_else(|| {
            let known: Vec<_> = ALL.iter().map(|arch| arch.name).collect();
            let (name, known) = (Excerpt(name.as_bytes()), known.join(", "));
            Error::Unsupported(format!("architecture `{name}` is not supported; supported: {known}"))
        })
    }
}
