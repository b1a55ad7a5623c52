//! Keys of headers, as changes and models of the hostile tests name them.

use super::models::{ASSISTANT, HEAD};

/// Numbers of a model's header, after the family's name.
pub const SIZES: [&str; 14] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
];
/// Further keys after it.
pub const OTHERS: [&str; 6] = [
    "rope.scaling.type",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",
    "vocab_size",
];

/// Keys that name no family.
pub const KEYS: [&str; 20] = [
    "general.alignment",
    "general.architecture",
    "general.name",
    "general.type",
    "split.count",
    "split.no",
    "split.tensors.count",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.chat_template",
];

/// Families of the models that are changed.
pub const ARCHS: [&str; 12] = [
    "qwen2",
    "qwen3",
    "qwen3moe",
    "glm4moe",
    "lfm2",
    "qwen35",
    "qwen3next",
    "gemma4",
    ASSISTANT,
    HEAD,
    "nemotron_h_moe",
    "falcon-h1",
];

/// Keys of a head that drafts by vectors of another model.
pub const HEAD_KEYS: [&str; 5] =
    ["target_layers", "target_hidden_size", "vocab_size", "norm_before_fc", "norm_before_residual"];

/// Numbers of the header of models some of whose layers have a state, after the family's name.
pub const STATE_SIZES: [&str; 7] = [
    "shortconv.l_cache",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
    "ssm.time_step_rank",
    "ssm.inner_size",
    "full_attention_interval",
];
/// Numbers of the header of models with experts, after the family's name.
pub const EXPERT_SIZES: [&str; 9] = [
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_group_count",
    "expert_group_used_count",
    "expert_gating_func",
    "expert_weights_scale",
    "leading_dense_block_count",
];
/// Numbers of the header of models whose layers differ, after the family's name.
pub const LAYER_SIZES: [&str; 6] = [
    "attention.sliding_window",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "rope.dimension_count_swa",
    "attention.shared_kv_layers",
    "embedding_length_per_layer_input",
];
