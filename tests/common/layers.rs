//! A small Llama whose layers differ in their heads and in their feed-forward blocks, made by tests, with its forward pass as the definition has it:
//! in double precision, one position after the other.

use super::gguf::{Content, File, Shape, Tensor};
use segno::quant::synthetic::Random;
use std::collections::HashMap;

/// Sizes of one layer.
#[derive(Clone, Copy)]
pub struct Layer {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
}

/// Layers of every kind of group, with staged and other sizes of heads.
pub const LAYERS: [Layer; 4] = [
    Layer { heads: 4, kv_heads: 2, head_dim: 16, feed_forward: 96 },
    Layer { heads: 2, kv_heads: 1, head_dim: 64, feed_forward: 32 },
    Layer { heads: 6, kv_heads: 6, head_dim: 20, feed_forward: 160 },
    Layer { heads: 3, kv_heads: 1, head_dim: 128, feed_forward: 64 },
];

const HIDDEN: usize = 64;
const VOCAB: usize = 101;
const BASE: f64 = 10_000.0;
const EPS: f64 = 1e-5;

/// Weights of a model.
pub struct Uneven {
    layers: Vec<Layer>,
    /// Matrices, row by row, and norms.
    weights: HashMap<String, Vec<f32>>,
    random: Random,
    file: File,
}

impl Uneven {
    pub fn new(layers: &[Layer]) -> Uneven {
        let mut file = Shape { layers: layers.len(), hidden: HIDDEN, vocab: VOCAB, ..Shape::small() }.file();
        file.tensors.clear();
        let list = |size: fn(&Layer) -> usize| layers.iter().map(|layer| size(layer) as u32).collect::<Vec<u32>>();
        file.set("llama.attention.head_count", list(|layer| layer.heads));
        file.set("llama.attention.head_count_kv", list(|layer| layer.kv_heads));
        file.set("llama.attention.key_length", list(|layer| layer.head_dim));
        file.set("llama.attention.value_length", list(|layer| layer.head_dim));
        file.set("llama.feed_forward_length", list(|layer| layer.feed_forward));
        let random = Random::new(11);
        let mut model = Uneven { layers: layers.to_vec(), weights: HashMap::new(), random, file };
        model.matrix("token_embd", VOCAB, HIDDEN);
        for (index, &Layer { heads, kv_heads, head_dim, feed_forward }) in layers.iter().enumerate() {
            let name = |part: &str| format!("blk.{index}.{part}");
            model.norm(&name("attn_norm"));
            model.matrix(&name("attn_q"), heads * head_dim, HIDDEN);
            model.matrix(&name("attn_k"), kv_heads * head_dim, HIDDEN);
            model.matrix(&name("attn_v"), kv_heads * head_dim, HIDDEN);
            model.matrix(&name("attn_output"), HIDDEN, heads * head_dim);
            model.norm(&name("ffn_norm"));
            model.matrix(&name("ffn_gate"), feed_forward, HIDDEN);
            model.matrix(&name("ffn_up"), feed_forward, HIDDEN);
            model.matrix(&name("ffn_down"), HIDDEN, feed_forward);
        }
        model.norm("output_norm");
        model.matrix("output", VOCAB, HIDDEN);
        model
    }

    /// The model as a file.
    pub fn file(&self) -> File {
        self.file.clone()
    }

    fn add(&mut self, name: &str, dims: Vec<u64>, values: Vec<f32>) {
        let content = Content::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect());
        self.file.tensors.push(Tensor { name: format!("{name}.weight"), dims, type_id: 0, content });
        self.weights.insert(name.to_owned(), values);
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) {
        let spread = 1.5 / (cols as f32).sqrt();
        let values = self.random.uniforms(rows * cols).into_iter().map(|value| spread * value).collect();
        self.add(name, vec![cols as u64, rows as u64], values);
    }

    fn norm(&mut self, name: &str) {
        let values = self.random.uniforms(HIDDEN).into_iter().map(|value| 1.0 + 0.2 * value).collect();
        self.add(name, vec![HIDDEN as u64], values);
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.weights[name].chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
    }

    fn normed(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + EPS).sqrt();
        self.weights[name].iter().zip(x).map(|(w, x)| f64::from(*w) * x * scale).collect()
    }

    /// The logits after every one of `tokens`.
    pub fn logits(&self, tokens: &[i32]) -> Vec<Vec<f64>> {
        let mut cache = vec![Vec::new(); self.layers.len()];
        let embedding = self.weights["token_embd"].chunks_exact(HIDDEN).collect::<Vec<_>>();
        let of_token = |(position, token): (usize, &i32)| {
            let mut hidden: Vec<f64> = embedding[*token as usize].iter().map(|x| f64::from(*x)).collect();
            for (index, cache) in cache.iter_mut().enumerate() {
                let attended = self.attend(index, position, &hidden, cache);
                hidden.iter_mut().zip(&attended).for_each(|(x, y)| *x += y);
                let fed = self.feed(index, &hidden);
                hidden.iter_mut().zip(&fed).for_each(|(x, y)| *x += y);
            }
            self.product("output", &self.normed("output_norm", &hidden))
        };
        tokens.iter().enumerate().map(of_token).collect()
    }

    fn attend(&self, index: usize, position: usize, hidden: &[f64], cache: &mut Vec<[Vec<f64>; 2]>) -> Vec<f64> {
        let Layer { heads, kv_heads, head_dim, .. } = self.layers[index];
        let name = |part: &str| format!("blk.{index}.{part}");
        let x = self.normed(&name("attn_norm"), hidden);
        let [mut queries, mut keys, values] = ["attn_q", "attn_k", "attn_v"].map(|part| self.product(&name(part), &x));
        queries.chunks_exact_mut(head_dim).chain(keys.chunks_exact_mut(head_dim)).for_each(|head| turn(head, position));
        cache.push([keys, values]);
        let mut out = Vec::new();
        for (head, query) in queries.chunks_exact(head_dim).enumerate() {
            let own = head / (heads / kv_heads) * head_dim..(head / (heads / kv_heads) + 1) * head_dim;
            let score = |[keys, _]: &[Vec<f64>; 2]| {
                let product: f64 = keys[own.clone()].iter().zip(query).map(|(key, query)| key * query).sum();
                (product / (head_dim as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = cache.iter().map(score).collect();
            let sum: f64 = weights.iter().sum();
            out.extend(own.clone().map(|at| {
                let all = cache.iter().zip(&weights);
                all.map(|([_, values], weight)| weight * values[at]).sum::<f64>() / sum
            }));
        }
        self.product(&name("attn_output"), &out)
    }

    fn feed(&self, index: usize, hidden: &[f64]) -> Vec<f64> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let x = self.normed(&name("ffn_norm"), hidden);
        let (gate, up) = (self.product(&name("ffn_gate"), &x), self.product(&name("ffn_up"), &x));
        let inner: Vec<f64> = gate.iter().zip(&up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        self.product(&name("ffn_down"), &inner)
    }
}

/// Rotates neighbouring pairs of a head.
fn turn(head: &mut [f64], position: usize) {
    let dims = head.len() as f64;
    for (pair, values) in head.chunks_exact_mut(2).enumerate() {
        let (sin, cos) = (position as f64 * BASE.powf(-2.0 * pair as f64 / dims)).sin_cos();
        (values[0], values[1]) = (values[0] * cos - values[1] * sin, values[0] * sin + values[1] * cos);
    }
}
