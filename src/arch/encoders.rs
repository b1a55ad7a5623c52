//! Families whose tokens see all of their text, and which make embeddings alone. `spec` has what the fields mean.

use super::rope::RopeLayout;
use super::spec::{
    Activation, Arch, AttentionMask, AttentionScale, Classifier, FeedForward, GEMMA3, LLAMA, NormKind, NormOrder,
    Presence, RopeRule, WindowRule,
};

/// EmbeddingGemma.
pub const GEMMA_EMBEDDING: Arch = Arch {
    name: "gemma-embedding",
    mask: AttentionMask::Bidirectional,
    head: Presence::Absent,
    text_projections: Presence::Optional,
    attention_scale: AttentionScale::OfHeads,
    factors: &[],
    ..GEMMA3
};

/// BERT, and the many encoders that share its layers (BGE, E5, MiniLM).
pub const BERT: Arch = Arch {
    name: "bert",
    rope_rule: RopeRule::Never,
    qkv_bias: Presence::Required,
    output_bias: Presence::Required,
    norms: NormOrder::AfterSum,
    norm: NormKind::Layer,
    norm_bias: Presence::Required,
    embedding_norm: Presence::Required,
    token_types: Presence::Optional,
    positions: Presence::Required,
    feed_forward: FeedForward::Plain,
    feed_forward_bias: Presence::Required,
    activation: Activation::GeluErf,
    mixture: None,
    mask: AttentionMask::Bidirectional,
    head: Presence::Absent,
    classifier: Classifier::Dense,
    ..LLAMA
};

/// Nomic Embed.
pub const NOMIC_BERT: Arch = Arch {
    name: "nomic-bert",
    rope: RopeLayout::Halves,
    rope_rule: RopeRule::Same,
    qkv_bias: Presence::Optional,
    output_bias: Presence::Optional,
    positions: Presence::Absent,
    feed_forward: FeedForward::Gated,
    feed_forward_bias: Presence::Optional,
    activation: Activation::Silu,
    classifier: Classifier::None,
    ..BERT
};

/// ModernBERT.
pub const MODERN_BERT: Arch = Arch {
    name: "modern-bert",
    rope: RopeLayout::Halves,
    rope_rule: RopeRule::LocalBase,
    qkv_bias: Presence::Absent,
    output_bias: Presence::Absent,
    norms: NormOrder::BeforeButFirst,
    norm_bias: Presence::Optional,
    token_types: Presence::Absent,
    positions: Presence::Absent,
    feed_forward: FeedForward::FusedGate,
    feed_forward_bias: Presence::Absent,
    window: WindowRule::GlobalFirst { period: 3 },
    classifier: Classifier::None,
    ..BERT
};
