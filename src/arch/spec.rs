//! The families. A new family is a constant that differs from another one by its fields. Those whose layers have experts are in `mixtures`,
//! those some of whose layers have a state in place of keys and values in `hybrids`, those whose tokens see all of their text in `encoders`.

pub use super::choices::{
    Activation, AttentionMask, AttentionScale, Blocks, Factor, FeedForward, NormKind, NormOrder, NormSpan, Presence,
    RopeRule, WindowRule,
};
use super::eagle::EAGLE3;
use super::encoders::{BERT, GEMMA_EMBEDDING, MODERN_BERT, NOMIC_BERT};
pub use super::experts::{Mixture, Score, Shared};
use super::hybrids::{
    FALCON_H1, GRANITEHYBRID, LFM2, LFM2MOE, NEMOTRON_H, NEMOTRON_H_MOE, QWEN3NEXT, QWEN35, QWEN35MOE,
};
use super::mixtures::{
    DEEPSEEK2, ERNIE4_5_MOE, GEMMA4, GEMMA4_ASSISTANT, GLM4MOE, GPT_OSS, GRANITEMOE, HUNYUAN_MOE, MINIMAX_M2, MIXTRAL,
    OLMOE, QWEN2MOE, QWEN3MOE, QWEN3VLMOE,
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
    /// Factors by which a file divides the frequencies of layers that see everything.
    pub rope_divisors: Presence,
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
    /// Whether it drafts for another model, by vectors between that one's layers ([`super::eagle`]).
    pub drafts_by_features: bool,
    /// Numbers of the metadata that the family uses; any other that would change the result is refused.
    pub factors: &'static [Factor],
}

/// Llama 1 to 3, Mistral, Mixtral, and the many models that share their layers.
pub const LLAMA: Arch = Arch {
    name: "llama",
    rope: RopeLayout::Pairs,
    rope_rule: RopeRule::Same,
    rope_divisors: Presence::Optional,
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
    drafts_by_features: false,
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
pub const ALL: [Arch; 45] = [
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
    GEMMA4_ASSISTANT,
    EAGLE3,
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
