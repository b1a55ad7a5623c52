//! Sizes and numbers of well-known models.

use super::gemma4::{GLOBAL_HEAD, Gemma4};

/// Sizes of a model.
pub struct Shape {
    pub name: &'static str,
    pub arch: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
    pub vocab: usize,
    pub tied: bool,
    pub rope_base: f32,
    pub norm_eps: f32,
    pub context: u32,
    /// Elements of a head that rotate.
    pub rope_dims: usize,
    /// Norms of heads, and of what blocks give.
    pub head_norms: bool,
    pub post_norms: bool,
    /// Whether queries, keys and values are one matrix, and gate and up too.
    pub fused: bool,
    /// Experts in place of one feed-forward block.
    pub experts: Option<Experts>,
    /// Layers at the beginning that have none, and the elements between the halves of what all tokens have beside them.
    pub dense_layers: usize,
    pub shared_feed_forward: usize,
    /// Latent attention: the elements of the vector of a token, and of a head that do not rotate. Heads of values have `head_dim` elements.
    pub latent: Option<Latent>,
    /// Layers that keep a state in place of keys and values.
    pub recurrent: Option<Recurrent>,
    /// Layers of two kinds.
    pub gemma4: Option<Gemma4>,
    /// Biases of all projections, and one more score for each head: gpt-oss.
    pub sinks: bool,
    /// Numbers of the family, by their keys without its name.
    pub floats: &'static [(&'static str, f32)],
    pub numbers: &'static [(&'static str, u32)],
}

/// Sizes of latent attention whose queries come from the input.
#[derive(Clone, Copy)]
pub struct Latent {
    pub rank: usize,
    pub plain: usize,
}

/// What most layers have in place of attention.
#[derive(Clone, Copy)]
pub enum Recurrent {
    /// The gated delta rule in all layers but every fourth, whose attention has a gate.
    DeltaNet {
        /// Heads of keys, and of values, of `dim` elements each.
        key_heads: usize,
        value_heads: usize,
        dim: usize,
    },
    /// A convolution over three tokens in all layers but these.
    ShortConvolution { attention: &'static [usize] },
}

impl Recurrent {
    /// Whether a layer has attention.
    pub fn attends(&self, layer: usize) -> bool {
        match self {
            Recurrent::DeltaNet { .. } => layer % 4 == 3,
            Recurrent::ShortConvolution { attention } => attention.contains(&layer),
        }
    }
}

/// Experts of every layer.
#[derive(Clone, Copy)]
pub struct Experts {
    pub count: usize,
    /// How many a token has.
    pub chosen: usize,
    /// Elements between the halves of one.
    pub feed_forward: usize,
}

const LLAMA_1B: Shape = Shape {
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
    post_norms: false,
    fused: false,
    experts: None,
    dense_layers: 0,
    shared_feed_forward: 0,
    latent: None,
    recurrent: None,
    gemma4: None,
    sinks: false,
    floats: &[],
    numbers: &[],
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
    post_norms: true,
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
pub const SHAPES: [Shape; 28] = [
    LLAMA_1B,
    Shape { name: "llama-3.2-1b-short", layers: 4, vocab: 32_768, ..LLAMA_1B },
    Shape {
        name: "llama-3.1-8b",
        layers: 32,
        hidden: 4096,
        head_dim: 128,
        rope_dims: 128,
        feed_forward: 14_336,
        tied: false,
        ..LLAMA_1B
    },
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

/// Gemma 4 26B-A4B, 25 billion weights of which a token uses 3.8.
const GEMMA4_26B: Shape = Shape {
    name: "gemma4-26b-a4b",
    arch: "gemma4",
    layers: 30,
    hidden: 2816,
    heads: 16,
    kv_heads: 8,
    head_dim: 256,
    feed_forward: 2112,
    vocab: 262_144,
    rope_base: 1e6,
    norm_eps: 1e-6,
    context: 262_144,
    rope_dims: GLOBAL_HEAD,
    head_norms: true,
    post_norms: true,
    experts: Some(Experts { count: 128, chosen: 8, feed_forward: 704 }),
    gemma4: Some(Gemma4 { global_kv_heads: 2, has_values: false, sharing: 0, embedding: 0 }),
    numbers: &[("attention.sliding_window", 1024)],
    ..LLAMA_1B
};

/// Gemma 4 E4B.
const GEMMA4_E4B: Shape = Shape {
    name: "gemma4-e4b",
    layers: 42,
    hidden: 2560,
    heads: 8,
    kv_heads: 2,
    feed_forward: 10_240,
    context: 131_072,
    experts: None,
    gemma4: Some(Gemma4 { global_kv_heads: 2, has_values: true, sharing: 18, embedding: 256 }),
    numbers: &[("attention.sliding_window", 512)],
    ..GEMMA4_26B
};
