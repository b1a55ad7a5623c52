//! What only files of Gemma 4 have: two kinds of layers, experts beside a dense block, embeddings of tokens for every layer, and assistants.

use super::header::Header;
use super::shape::{Experts, Norms, Shape};
use super::shapes::LLAMA_1B;
use super::{Model, Tensor};
use segno::quant::DType;

/// Elements of a head of layers that see everything, and pairs of them that rotate.
pub const GLOBAL_HEAD: usize = 512;
const ROTATED: usize = 64;
const STILL: f32 = 1e30;

/// Sizes that other families do not have.
#[derive(Clone, Copy)]
pub struct Gemma4 {
    /// Key-value heads of layers that see everything, and whether their keys are their values.
    pub global_kv_heads: usize,
    pub has_values: bool,
    /// How many of the last layers read the keys of others.
    pub sharing: usize,
    /// Elements of the embedding of a token for each layer; 0 for none.
    pub embedding: usize,
    /// Of so many layers the last sees everything.
    pub period: usize,
    /// Elements of a vector of the model that an assistant drafts for; 0 for one with keys of its own.
    pub backbone: usize,
}

impl Gemma4 {
    fn is_local(&self, layer: usize) -> bool {
        layer % self.period != self.period - 1
    }

    /// Key-value heads of a layer, and elements of a head.
    fn keys(&self, layer: usize, local: [usize; 2]) -> [usize; 2] {
        if self.is_local(layer) { local } else { [self.global_kv_heads, GLOBAL_HEAD] }
    }
}

impl Model<'_> {
    /// The tensors of a layer.
    pub fn gemma4_layer(&mut self, index: usize, sizes: &Gemma4) {
        let shape = self.shape;
        let (hidden, feed_forward) = (shape.hidden, shape.feed_forward);
        let [kv_heads, dim] = sizes.keys(index, [shape.kv_heads, shape.head_dim]);
        let (queries, keys) = (shape.heads * dim, kv_heads * dim);
        let spread = |cols: usize| 1.0 / (cols as f32).sqrt();
        let named = |part: &str| format!("blk.{index}.{part}");
        self.part(index, "attn_q", queries, hidden, spread(hidden));
        self.vector(named("attn_q_norm.weight"), dim, 1.0, 0.05);
        if index < shape.layers - sizes.sharing {
            self.part(index, "attn_k", keys, hidden, spread(hidden));
            // Products of queries and keys are not divided by anything.
            self.vector(named("attn_k_norm.weight"), dim, spread(dim), 0.05 * spread(dim));
            if sizes.has_values || sizes.is_local(index) {
                self.part(index, "attn_v", keys, hidden, spread(hidden));
            }
        }
        self.part(index, "attn_output", hidden, queries, 0.3 * spread(queries));
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            self.vector(named(&format!("{norm}.weight")), hidden, 1.0, 0.05);
        }
        self.part(index, "ffn_gate", feed_forward, hidden, spread(hidden));
        self.part(index, "ffn_up", feed_forward, hidden, spread(hidden));
        self.part(index, "ffn_down", hidden, feed_forward, 0.5 * spread(feed_forward));
        if let Some(experts) = shape.experts {
            for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
                self.vector(named(&format!("{norm}.weight")), hidden, 1.0, 0.05);
            }
            self.vector(named("ffn_gate_inp.scale"), hidden, 1.0, 0.05);
            self.table(named("ffn_gate_inp.weight"), &[hidden, experts.count], DType::F32, 2.0);
            let width = experts.feed_forward;
            for (part, cols, rows) in [("ffn_gate_up_exps", hidden, 2 * width), ("ffn_down_exps", width, hidden)] {
                let dtype = self.mix.part(part, index, shape);
                self.table(named(&format!("{part}.weight")), &[cols, rows, experts.count], dtype, spread(cols));
            }
            self.vector(named("ffn_down_exps.scale"), experts.count, 1.0, 0.05);
        }
        if sizes.embedding > 0 {
            self.part(index, "inp_gate", sizes.embedding, hidden, spread(hidden));
            self.part(index, "proj", hidden, sizes.embedding, spread(sizes.embedding));
            self.vector(named("post_norm.weight"), hidden, 0.3, 0.05);
        }
        self.vector(named("layer_output_scale.weight"), 1, 0.9, 0.0);
    }

    /// The tensors beside the layers.
    pub fn gemma4_embeddings(&mut self, sizes: &Gemma4) {
        let mut divisors = vec![1.0; ROTATED];
        divisors.resize(GLOBAL_HEAD / 2, STILL);
        self.tensors.push(Tensor::of_values("rope_freqs.weight", divisors));
        if sizes.backbone > 0 {
            let (hidden, base, both) = (self.shape.hidden, self.mix.base, 2 * sizes.backbone);
            let spread = |cols: usize| 1.0 / (cols as f32).sqrt();
            self.matrix("nextn.pre_projection.weight".into(), hidden, both, base, spread(both));
            self.matrix("nextn.post_projection.weight".into(), sizes.backbone, hidden, base, spread(hidden));
        }
        if sizes.embedding == 0 {
            return;
        }
        let (width, hidden) = (sizes.embedding * self.shape.layers, self.shape.hidden);
        let head = self.mix.head();
        self.matrix("per_layer_token_embd.weight".into(), self.shape.vocab, width, head, 0.05);
        let base = self.mix.base;
        self.matrix("per_layer_model_proj.weight".into(), width, hidden, base, 1.0 / (hidden as f32).sqrt());
        self.vector("per_layer_proj_norm.weight".into(), sizes.embedding, 1.0, 0.05);
    }

    /// What differs between the kinds of layers.
    pub fn write_gemma4(&self, sizes: &Gemma4, header: &mut Header) {
        let shape = self.shape;
        let key = |name: &str| format!("{}.{name}", shape.arch);
        let local = [shape.kv_heads, shape.head_dim];
        let kv_heads: Vec<u32> = (0..shape.layers).map(|layer| sizes.keys(layer, local)[0] as u32).collect();
        header.numbers(&key("attention.head_count_kv"), &kv_heads);
        let is_local: Vec<bool> = (0..shape.layers).map(|layer| sizes.is_local(layer)).collect();
        header.flags(&key("attention.sliding_window_pattern"), &is_local);
        for name in ["attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"] {
            header.number(&key(name), shape.head_dim as u32);
        }
        header.number(&key("attention.shared_kv_layers"), sizes.sharing as u32);
        header.number(&key("embedding_length_per_layer_input"), sizes.embedding as u32);
        if sizes.backbone > 0 {
            header.number(&key("embedding_length_out"), sizes.backbone as u32);
            header.number(&key("nextn_predict_layers"), shape.layers as u32);
        }
        header.float(&key("rope.freq_base_swa"), 10_000.0).float(&key("final_logit_softcapping"), 30.0);
    }
}

/// Gemma 4 26B-A4B, 25 billion weights of which a token uses 3.8.
pub const GEMMA4_26B: Shape = Shape {
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
    norms: Norms::Around,
    experts: Some(Experts { count: 128, chosen: 8, feed_forward: 704 }),
    gemma4: Some(Gemma4 { global_kv_heads: 2, has_values: false, sharing: 0, embedding: 0, period: 6, backbone: 0 }),
    numbers: &[("attention.sliding_window", 1024)],
    ..LLAMA_1B
};

/// Gemma 4 E4B.
pub const GEMMA4_E4B: Shape = Shape {
    name: "gemma4-e4b",
    layers: 42,
    hidden: 2560,
    heads: 8,
    kv_heads: 2,
    feed_forward: 10_240,
    context: 131_072,
    experts: None,
    gemma4: Some(Gemma4 { global_kv_heads: 2, has_values: true, sharing: 18, embedding: 256, period: 6, backbone: 0 }),
    numbers: &[("attention.sliding_window", 512)],
    ..GEMMA4_26B
};

/// What drafts for Gemma 4 E4B, 79 million weights.
pub const GEMMA4_E4B_ASSISTANT: Shape = Shape {
    name: "gemma4-e4b-assistant",
    arch: "gemma4-assistant",
    layers: 4,
    hidden: 256,
    heads: 4,
    feed_forward: 2048,
    gemma4: Some(Gemma4 { global_kv_heads: 2, has_values: true, sharing: 4, embedding: 0, period: 4, backbone: 2560 }),
    ..GEMMA4_E4B
};
