//! Tensor names of GGUF files, by role.

/// Parts of a file's tensors outside the layers.
pub mod global {
    /// Token embedding, `[hidden, vocab]`; also the output head where that is absent.
    pub const EMBEDDING: &str = "token_embd.weight";
    /// Weights of the last norm.
    pub const OUTPUT_NORM: &str = "output_norm.weight";
    /// Output head, `[hidden, vocab]`.
    pub const HEAD: &str = "output.weight";
    /// Bias of the output head.
    pub const HEAD_BIAS: &str = "output.bias";
    /// Divisors of the rope frequencies.
    pub const ROPE_DIVISORS: &str = "rope_freqs.weight";
}

/// Roles within a layer; the text is the part of the name after `blk.N.`.
pub mod layer {
    /// Weights of the norm before attention.
    pub const ATTENTION_NORM: &str = "attn_norm.weight";
    /// Query projection.
    pub const Q: &str = "attn_q";
    /// Key projection.
    pub const K: &str = "attn_k";
    /// Value projection.
    pub const V: &str = "attn_v";
    /// Output projection of the attention.
    pub const ATTENTION_OUTPUT: &str = "attn_output";
    /// Norm over each query head.
    pub const Q_NORM: &str = "attn_q_norm.weight";
    /// Norm over each key head.
    pub const K_NORM: &str = "attn_k_norm.weight";
    /// Weights of the norm before the feed-forward block.
    pub const FEED_FORWARD_NORM: &str = "ffn_norm.weight";
    /// Gate projection.
    pub const GATE: &str = "ffn_gate";
    /// Up projection.
    pub const UP: &str = "ffn_up";
    /// Down projection.
    pub const DOWN: &str = "ffn_down";
}

/// Full name of `part` in layer `index`.
pub fn in_layer(index: usize, part: &str) -> String {
    format!("blk.{index}.{part}")
}

/// Whether a tensor may be left unused: old converters wrote the rope frequencies of every layer, which follow from metadata.
pub fn is_redundant(name: &str) -> bool {
    name.starts_with("blk.") && (name.ends_with(".attn_rot_embd") || name.ends_with(".attn_rot_embd.weight"))
}
