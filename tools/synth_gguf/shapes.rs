//! Sizes and numbers of well-known models.

use super::eagle::LLAMA_8B_HEAD;
use super::gemma4::{GEMMA4_26B, GEMMA4_E4B, GEMMA4_E4B_ASSISTANT};
use super::shape::{Experts, Latent, Norms, Recurrent, Shape};

pub const LLAMA_1B: Shape = Shape {
    name: "llama-3.2-1b",
    arch: "llama",
    layers: 16,
    hidden: 2048,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    feed_forward: 8192,
    vocab: 128_256,
    tied: true,
    rope_base: 500_000.0,
    norm_eps: 1e-5,
    context: 131_072,
    rope_dims: 64,
    head_norms: false,
    norms: Norms::Before,
    fused: false,
    experts: None,
    dense_layers: 0,
    shared_feed_forward: 0,
    latent: None,
    recurrent: None,
    gemma4: None,
    head_of: None,
    sinks: false,
    plain: false,
    rope_sections: &[],
    floats: &[],
    numbers: &[],
};

pub const LLAMA_8B: Shape = Shape {
    name: "llama-3.1-8b",
    layers: 32,
    hidden: 4096,
    head_dim: 128,
    rope_dims: 128,
    feed_forward: 14_336,
    tied: false,
    ..LLAMA_1B
};

const GEMMA_4B: Shape = Shape {
    name: "gemma-3-4b",
    arch: "gemma3",
    layers: 34,
    hidden: 2560,
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    rope_dims: 256,
    feed_forward: 10_240,
    vocab: 262_144,
    rope_base: 1e6,
    norm_eps: 1e-6,
    head_norms: true,
    norms: Norms::Around,
    floats: &[("rope.freq_base_swa", 10_000.0), ("rope.scaling.factor", 8.0)],
    numbers: &[("attention.sliding_window", 1024)],
    ..LLAMA_1B
};

/// SmolLM3 3B.
const SMOLLM3: Shape = Shape {
    name: "smollm3-3b-short",
    arch: "smollm3",
    layers: 36,
    heads: 16,
    kv_heads: 4,
    head_dim: 128,
    rope_dims: 128,
    feed_forward: 11_008,
    norm_eps: 1e-6,
    rope_base: 5e6,
    ..LLAMA_1B
};

/// Four layers of Ministral 3 8B, with a short vocabulary.
const MINISTRAL: Shape = Shape {
    name: "ministral-3-8b-short",
    arch: "mistral3",
    layers: 4,
    hidden: 4096,
    head_dim: 128,
    rope_dims: 128,
    feed_forward: 14_336,
    vocab: 32_768,
    tied: false,
    rope_base: 1e6,
    ..LLAMA_1B
};

/// EmbeddingGemma, without its dense layers.
const EMBEDDING_GEMMA: Shape = Shape {
    name: "embeddinggemma-300m",
    arch: "gemma-embedding",
    layers: 24,
    hidden: 768,
    heads: 3,
    kv_heads: 1,
    feed_forward: 1152,
    context: 2048,
    floats: &[("rope.freq_base_swa", 10_000.0)],
    numbers: &[("attention.sliding_window", 512), ("pooling_type", 1)],
    ..GEMMA_4B
};

/// The models that are known.
pub const SHAPES: [Shape; 38] = [
    LLAMA_1B,
    Shape { name: "llama-3.2-1b-short", layers: 4, vocab: 32_768, ..LLAMA_1B },
    LLAMA_8B,
    Shape {
        name: "qwen2.5-0.5b",
        arch: "qwen2",
        layers: 24,
        hidden: 896,
        heads: 14,
        kv_heads: 2,
        feed_forward: 4864,
        vocab: 151_936,
        rope_base: 1e6,
        norm_eps: 1e-6,
        context: 32_768,
        ..LLAMA_1B
    },
    Shape {
        name: "qwen2.5-1.5b",
        arch: "qwen2",
        layers: 28,
        hidden: 1536,
        heads: 12,
        kv_heads: 2,
        head_dim: 128,
        rope_dims: 128,
        feed_forward: 8960,
        vocab: 151_936,
        rope_base: 1e6,
        norm_eps: 1e-6,
        context: 32_768,
        ..LLAMA_1B
    },
    Shape {
        name: "qwen3-0.6b",
        arch: "qwen3",
        head_norms: true,
        layers: 28,
        hidden: 1024,
        heads: 16,
        head_dim: 128,
        rope_dims: 128,
        feed_forward: 3072,
        vocab: 151_936,
        rope_base: 1e6,
        norm_eps: 1e-6,
        context: 40_960,
        ..LLAMA_1B
    },
    GEMMA_4B,
    Shape { name: "gemma-3-12b", layers: 48, hidden: 3840, heads: 16, kv_heads: 8, feed_forward: 15_360, ..GEMMA_4B },
    Shape {
        name: "granite-3.3-8b",
        arch: "granite",
        layers: 40,
        hidden: 4096,
        head_dim: 128,
        rope_dims: 128,
        feed_forward: 12_800,
        vocab: 49_152,
        rope_base: 1e7,
        floats: &[
            ("embedding_scale", 12.0),
            ("residual_scale", 0.22),
            ("attention.scale", 0.0078125),
            ("logit_scale", 16.0),
        ],
        ..LLAMA_1B
    },
    Shape { layers: 4, vocab: 32_768, ..SMOLLM3 },
    Shape {
        name: "ernie-4.5-0.3b",
        arch: "ernie4_5",
        layers: 18,
        hidden: 1024,
        heads: 16,
        kv_heads: 2,
        feed_forward: 3072,
        vocab: 103_424,
        ..SMOLLM3
    },
    Shape {
        name: "hunyuan-1.8b-short",
        arch: "hunyuan-dense",
        layers: 4,
        kv_heads: 4,
        feed_forward: 6144,
        vocab: 32_768,
        head_norms: true,
        ..SMOLLM3
    },
    Shape {
        name: "seed-oss-short",
        arch: "seed_oss",
        layers: 2,
        hidden: 5120,
        heads: 80,
        kv_heads: 8,
        feed_forward: 27_648,
        vocab: 32_768,
        tied: false,
        ..SMOLLM3
    },
    MINISTRAL,
    Shape {
        name: "gemma-2-9b-short",
        arch: "gemma2",
        layers: 4,
        hidden: 3584,
        heads: 16,
        kv_heads: 8,
        feed_forward: 14_336,
        vocab: 32_768,
        rope_base: 10_000.0,
        head_norms: false,
        floats: &[("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)],
        numbers: &[("attention.sliding_window", 4096)],
        ..GEMMA_4B
    },
    Shape {
        name: "olmo-2-7b-short",
        arch: "olmo2",
        kv_heads: 32,
        feed_forward: 11_008,
        head_norms: true,
        norms: Norms::After,
        ..MINISTRAL
    },
    Shape {
        name: "exaone-4-1.2b-short",
        arch: "exaone4",
        layers: 4,
        feed_forward: 4096,
        vocab: 32_768,
        head_norms: true,
        norms: Norms::After,
        ..LLAMA_1B
    },
    Shape {
        name: "glm-4-9b-short",
        arch: "glm4",
        kv_heads: 2,
        rope_dims: 64,
        feed_forward: 13_696,
        norms: Norms::Around,
        fused: true,
        ..MINISTRAL
    },
    Shape {
        name: "command-r7b-short",
        arch: "cohere2",
        tied: true,
        norms: Norms::Parallel,
        floats: &[("attention.layer_norm_epsilon", 1e-5), ("logit_scale", 0.25)],
        numbers: &[("attention.sliding_window", 4096)],
        ..MINISTRAL
    },
    Shape {
        name: "qwen3-vl-8b-short",
        arch: "qwen3vl",
        feed_forward: 12_288,
        head_norms: true,
        rope_sections: &[24, 20, 20, 0],
        ..MINISTRAL
    },
    Shape {
        name: "starcoder2-3b-short",
        arch: "starcoder2",
        hidden: 3072,
        heads: 24,
        kv_heads: 2,
        feed_forward: 12_288,
        tied: true,
        plain: true,
        floats: &[("attention.layer_norm_epsilon", 1e-5)],
        ..MINISTRAL
    },
    Shape {
        name: "phi-4-mini",
        arch: "phi3",
        layers: 32,
        hidden: 3072,
        heads: 24,
        head_dim: 128,
        rope_dims: 96,
        vocab: 200_064,
        rope_base: 10_000.0,
        fused: true,
        ..LLAMA_1B
    },
    Shape {
        name: "tiny",
        layers: 2,
        hidden: 256,
        heads: 4,
        kv_heads: 2,
        feed_forward: 512,
        vocab: 4096,
        rope_base: 10_000.0,
        context: 4096,
        ..LLAMA_1B
    },
    OLMOE,
    Shape { name: "olmoe-1b-7b-short", layers: 4, ..OLMOE },
    QWEN35,
    Shape {
        name: "qwen3.6-27b",
        layers: 64,
        hidden: 5120,
        heads: 24,
        kv_heads: 4,
        feed_forward: 17_408,
        tied: false,
        recurrent: Some(Recurrent::DeltaNet { key_heads: 16, value_heads: 48, dim: 128 }),
        ..QWEN35
    },
    Shape {
        name: "qwen3.6-35b-a3b",
        arch: "qwen35moe",
        layers: 40,
        hidden: 2048,
        heads: 16,
        kv_heads: 2,
        tied: false,
        experts: Some(Experts { count: 256, chosen: 8, feed_forward: 512 }),
        shared_feed_forward: 512,
        recurrent: Some(Recurrent::DeltaNet { key_heads: 16, value_heads: 32, dim: 128 }),
        ..QWEN35
    },
    Shape {
        name: "lfm2.5-1.2b",
        arch: "lfm2",
        vocab: 65_536,
        rope_base: 1e6,
        context: 128_000,
        head_norms: true,
        recurrent: Some(Recurrent::ShortConvolution { attention: &[2, 5, 8, 10, 12, 14] }),
        numbers: &[("shortconv.l_cache", 3)],
        ..LLAMA_1B
    },
    DEEPSEEK_LITE,
    GEMMA4_26B,
    GEMMA4_E4B,
    GEMMA4_E4B_ASSISTANT,
    LLAMA_8B_HEAD,
    Shape { name: "deepseek-v2-lite-short", layers: 4, ..DEEPSEEK_LITE },
    Shape {
        name: "qwen3-30b-a3b",
        arch: "qwen3moe",
        layers: 48,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        feed_forward: 6144,
        vocab: 151_936,
        tied: false,
        rope_base: 1e6,
        norm_eps: 1e-6,
        context: 40_960,
        rope_dims: 128,
        head_norms: true,
        experts: Some(Experts { count: 128, chosen: 8, feed_forward: 768 }),
        ..LLAMA_1B
    },
    Shape {
        name: "gpt-oss-20b",
        arch: "gpt-oss",
        layers: 24,
        hidden: 2880,
        heads: 64,
        kv_heads: 8,
        head_dim: 64,
        feed_forward: 2880,
        vocab: 201_088,
        tied: false,
        rope_base: 150_000.0,
        rope_dims: 64,
        experts: Some(Experts { count: 32, chosen: 4, feed_forward: 2880 }),
        sinks: true,
        numbers: &[("attention.sliding_window", 128)],
        ..LLAMA_1B
    },
    EMBEDDING_GEMMA,
];

/// OLMoE, 7 billion weights of which a token uses one.
const OLMOE: Shape = Shape {
    name: "olmoe-1b-7b",
    arch: "olmoe",
    heads: 16,
    kv_heads: 16,
    head_dim: 128,
    feed_forward: 1024,
    vocab: 50_304,
    tied: false,
    rope_base: 10_000.0,
    context: 4096,
    rope_dims: 128,
    head_norms: true,
    experts: Some(Experts { count: 64, chosen: 8, feed_forward: 1024 }),
    ..LLAMA_1B
};

/// Qwen 3.5 0.8B.
const QWEN35: Shape = Shape {
    name: "qwen3.5-0.8b",
    arch: "qwen35",
    layers: 24,
    hidden: 1024,
    heads: 8,
    kv_heads: 2,
    head_dim: 256,
    feed_forward: 3584,
    vocab: 248_320,
    rope_base: 1e7,
    norm_eps: 1e-6,
    context: 262_144,
    rope_dims: 64,
    head_norms: true,
    recurrent: Some(Recurrent::DeltaNet { key_heads: 16, value_heads: 16, dim: 128 }),
    rope_sections: &[11, 11, 10, 0],
    numbers: &[("full_attention_interval", 4)],
    ..LLAMA_1B
};

/// DeepSeek V2 Lite, 16 billion weights of which a token uses 2.4.
const DEEPSEEK_LITE: Shape = Shape {
    name: "deepseek-v2-lite",
    arch: "deepseek2",
    layers: 27,
    heads: 16,
    kv_heads: 1,
    head_dim: 128,
    feed_forward: 10_944,
    vocab: 102_400,
    tied: false,
    rope_base: 10_000.0,
    norm_eps: 1e-6,
    context: 163_840,
    rope_dims: 64,
    latent: Some(Latent { rank: 512, plain: 128 }),
    experts: Some(Experts { count: 64, chosen: 6, feed_forward: 1408 }),
    dense_layers: 1,
    shared_feed_forward: 2816,
    floats: &[
        ("expert_weights_scale", 1.0),
        ("rope.scaling.factor", 40.0),
        ("rope.scaling.yarn_log_multiplier", 0.0707),
    ],
    numbers: &[
        ("rope.scaling.original_context_length", 4096),
        ("expert_shared_count", 2),
        ("leading_dense_block_count", 1),
    ],
    ..LLAMA_1B
};
