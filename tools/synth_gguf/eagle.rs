//! A head that drafts for another model by vectors between its layers (EAGLE-3): one layer, and what joins these vectors.

use super::Model;
use super::header::Header;
use super::shape::Shape;
use super::shapes::LLAMA_8B;
use super::tensor::{Content, Tensor};
use segno::quant::DType;

/// Layers whose vectors are read.
const READ: usize = 3;

/// What a head knows of its model.
#[derive(Clone, Copy)]
pub struct Head {
    /// Tokens that it has logits of.
    pub known: usize,
}

impl Model<'_> {
    /// All tensors of a head, whose model has vectors of the same size, and the table of tokens.
    pub fn head(&mut self, head: &Head) {
        let Shape { hidden, heads, kv_heads, head_dim, feed_forward, .. } = *self.shape;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let spread = |cols: usize| 1.0 / (cols as f32).sqrt();
        let base = self.mix.base;
        self.matrix("fc.weight".into(), hidden, READ * hidden, base, spread(READ * hidden));
        for norm in ["attn_norm", "attn_norm_2", "ffn_norm"] {
            self.vector(format!("blk.0.{norm}.weight"), hidden, 1.0, 0.05);
        }
        for (part, rows, cols) in [
            ("attn_q", queries, 2 * hidden),
            ("attn_k", keys, 2 * hidden),
            ("attn_v", keys, 2 * hidden),
            ("attn_output", hidden, queries),
            ("ffn_gate", feed_forward, hidden),
            ("ffn_up", feed_forward, hidden),
            ("ffn_down", hidden, feed_forward),
        ] {
            self.part(0, part, rows, cols, spread(cols));
        }
        self.vector("output_norm.weight".into(), hidden, 1.0, 0.05);
        self.matrix("output.weight".into(), head.known, hidden, self.mix.head(), spread(hidden));
        let (name, dims, of) = ("d2t".into(), vec![head.known], self.shape.vocab);
        self.tensors.push(Tensor { name, dims, dtype: DType::F32, content: Content::Tokens { of } });
    }

    pub fn write_head(&self, header: &mut Header) {
        header.number(&format!("{}.target_hidden_size", self.shape.arch), self.shape.hidden as u32);
    }
}

/// A head of Llama 3.1 8B, as most of those that are published.
pub const LLAMA_8B_HEAD: Shape = Shape {
    name: "llama-3.1-8b-eagle3",
    arch: "eagle3",
    layers: 1,
    context: 2048,
    head_of: Some(Head { known: 32_000 }),
    ..LLAMA_8B
};
