//! The families some of whose layers have a state, mostly in place of keys and values.

use super::mixtures::{GRANITEMOE, MIXTRAL};
use super::rope::RopeLayout;
use super::spec::{
    Activation, Arch, Blocks, FeedForward, LLAMA, Mixture, Presence, Recurrence, RopeRule, Score, Shared, ValueHeads,
    WindowRule,
};

/// LFM 2 and 2.5. Where the file tells a window, all layers with attention have it.
pub const LFM2: Arch = Arch {
    name: "lfm2",
    mixture: None,
    rope: RopeLayout::Halves,
    recurrence: Some(Recurrence::ShortConvolution),
    qkv_bias: Presence::Absent,
    output_bias: Presence::Absent,
    qk_norm: Presence::Required,
    output_norm: "token_embd_norm",
    feed_forward_bias: Presence::Absent,
    window: WindowRule::LocalLayers { period: 0 },
    ..LLAMA
};

/// The same with experts.
pub const LFM2MOE: Arch = Arch {
    name: "lfm2moe",
    mixture: Some(Mixture {
        score: Score::Sigmoid,
        biased_score: Score::Sigmoid,
        choice_bias: Presence::Optional,
        ..MIXTRAL
    }),
    ..LFM2
};

/// Qwen 3.5, 3.6 and 3.8, dense. The three positions of a token of text are the same.
pub const QWEN35: Arch = Arch {
    name: "qwen35",
    mixture: None,
    rope: RopeLayout::Halves,
    recurrence: Some(Recurrence::DeltaNet(ValueHeads::Tiled)),
    gates_attention: true,
    qkv_bias: Presence::Absent,
    output_bias: Presence::Absent,
    qk_norm: Presence::Required,
    feed_forward_norm: "post_attention_norm",
    feed_forward_bias: Presence::Absent,
    ..LLAMA
};

/// The same with experts.
pub const QWEN35MOE: Arch =
    Arch { name: "qwen35moe", mixture: Some(Mixture { shared: Shared::Gated, ..MIXTRAL }), ..QWEN35 };

/// Qwen 3 Next.
pub const QWEN3NEXT: Arch =
    Arch { name: "qwen3next", recurrence: Some(Recurrence::DeltaNet(ValueHeads::Grouped)), ..QWEN35MOE };

/// Granite 4, with or without experts.
pub const GRANITEHYBRID: Arch = Arch {
    name: "granitehybrid",
    recurrence: Some(Recurrence::StateSpace),
    space_norm: Presence::Required,
    ..GRANITEMOE
};

/// Nemotron H, whose layers have one block each.
pub const NEMOTRON_H: Arch = Arch {
    name: "nemotron_h",
    mixture: None,
    rope_rule: RopeRule::Never,
    recurrence: Some(Recurrence::StateSpace),
    space_norm: Presence::Required,
    blocks: Blocks::One,
    feed_forward: FeedForward::Plain,
    activation: Activation::SquaredRelu,
    ..LLAMA
};

/// Nemotron 3, with experts.
pub const NEMOTRON_H_MOE: Arch = Arch {
    name: "nemotron_h_moe",
    mixture: Some(Mixture {
        score: Score::Sigmoid,
        biased_score: Score::Sigmoid,
        shared: Shared::Added,
        choice_bias: Presence::Optional,
        ..MIXTRAL
    }),
    ..NEMOTRON_H
};

/// Falcon H1.
pub const FALCON_H1: Arch = Arch {
    name: "falcon-h1",
    mixture: None,
    rope: RopeLayout::Halves,
    recurrence: Some(Recurrence::StateSpace),
    space_norm: Presence::Optional,
    blocks: Blocks::TwoWithState,
    ..LLAMA
};
