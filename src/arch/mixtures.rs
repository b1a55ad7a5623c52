//! The families whose layers have experts. A few of them share their name with one that has none, as Mixtral does with Llama.

use super::rope::RopeLayout;
use super::spec::{
    Activation, Arch, AttentionMask, AttentionScale, ERNIE4_5, GEMMA3, GRANITE, HUNYUAN_DENSE, LLAMA, Mixture,
    NormOrder, NormSpan, OLMO2, Presence, QWEN2, QWEN3, RopeRule, Score, Shared, WindowRule,
};

/// Experts as in Mixtral: the softmax of all, divided by the sum of the chosen.
pub(super) const MIXTRAL: Mixture = Mixture {
    score: Score::Softmax,
    biased_score: Score::Softmax,
    normalizes: true,
    shared: Shared::Absent,
    is_beside_dense: false,
    bias: Presence::Absent,
    choice_bias: Presence::Absent,
};

/// The same with a bias for the choice, beside which scores are sigmoids.
const BIASED: Mixture = Mixture { biased_score: Score::Sigmoid, choice_bias: Presence::Optional, ..MIXTRAL };

/// Qwen 3, with experts.
pub const QWEN3MOE: Arch = Arch { name: "qwen3moe", mixture: Some(MIXTRAL), ..QWEN3 };

/// Qwen 1.5 and 2, with experts.
pub const QWEN2MOE: Arch =
    Arch { name: "qwen2moe", mixture: Some(Mixture { normalizes: false, shared: Shared::Gated, ..MIXTRAL }), ..QWEN2 };

/// OLMoE.
pub const OLMOE: Arch = Arch {
    name: "olmoe",
    rope_rule: RopeRule::Same,
    norms: NormOrder::Before,
    window: WindowRule::EndsContext,
    mixture: Some(Mixture { normalizes: false, ..MIXTRAL }),
    ..OLMO2
};

/// gpt-oss.
pub const GPT_OSS: Arch = Arch {
    name: "gpt-oss",
    rope: RopeLayout::Halves,
    rope_rule: RopeRule::Unrounded,
    qkv_bias: Presence::Required,
    output_bias: Presence::Required,
    feed_forward_norm: "post_attention_norm",
    activation: Activation::ClampedSilu { limit: 7.0, slope: 1.702 },
    mixture: Some(Mixture { score: Score::ChosenSoftmax, normalizes: false, bias: Presence::Required, ..MIXTRAL }),
    sinks: Presence::Required,
    window: WindowRule::LocalLayers { period: 2 },
    ..LLAMA
};

/// GLM 4.5 to 4.7, with experts.
pub const GLM4MOE: Arch = Arch {
    name: "glm4moe",
    rope: RopeLayout::Halves,
    qk_norm: Presence::Optional,
    feed_forward_norm: "post_attention_norm",
    mixture: Some(Mixture { score: Score::Sigmoid, shared: Shared::Added, ..BIASED }),
    ..LLAMA
};

/// Granite 3 and 4, with experts.
pub const GRANITEMOE: Arch =
    Arch { name: "granitemoe", mixture: Some(Mixture { shared: Shared::Added, ..MIXTRAL }), ..GRANITE };

/// ERNIE 4.5, with experts.
pub const ERNIE4_5_MOE: Arch = Arch {
    name: "ernie4_5-moe",
    mixture: Some(Mixture { shared: Shared::Added, choice_bias: Presence::Optional, ..MIXTRAL }),
    ..ERNIE4_5
};

/// Hunyuan, with experts.
pub const HUNYUAN_MOE: Arch =
    Arch { name: "hunyuan-moe", mixture: Some(Mixture { shared: Shared::Added, ..MIXTRAL }), ..HUNYUAN_DENSE };

/// MiniMax M2.
pub const MINIMAX_M2: Arch = Arch {
    name: "minimax-m2",
    rope: RopeLayout::Halves,
    qk_norm: Presence::Required,
    qk_norm_span: NormSpan::Row,
    mixture: Some(Mixture { score: Score::Sigmoid, choice_bias: Presence::Required, ..BIASED }),
    ..LLAMA
};

/// Qwen 3 VL, with experts, text.
pub const QWEN3VLMOE: Arch = Arch { name: "qwen3vlmoe", ..QWEN3MOE };

/// DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash, and others with latent attention; some of them have no experts.
pub const DEEPSEEK2: Arch = Arch {
    name: "deepseek2",
    is_latent: true,
    qkv_bias: Presence::Absent,
    output_bias: Presence::Absent,
    feed_forward_bias: Presence::Absent,
    mixture: Some(Mixture { normalizes: false, shared: Shared::Added, ..BIASED }),
    ..LLAMA
};

/// Gemma 4, with or without experts.
pub const GEMMA4: Arch = Arch {
    name: "gemma4",
    rope_divisors: Presence::Required,
    mixture: Some(Mixture { is_beside_dense: true, ..MIXTRAL }),
    attention_scale: AttentionScale::One,
    normalizes_values: true,
    shares_keys: true,
    has_layer_embeddings: true,
    layer_scale: Presence::Optional,
    ..GEMMA3
};

/// What drafts for Gemma 4: a few of its layers, without keys and values of their own.
pub const GEMMA4_ASSISTANT: Arch = Arch {
    name: "gemma4-assistant",
    mixture: None,
    mask: AttentionMask::Borrowed,
    has_layer_embeddings: false,
    ..GEMMA4
};
