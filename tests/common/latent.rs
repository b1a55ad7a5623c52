//! A small model with latent attention, made by tests.

use super::gguf::{Content, File, Shape, Tensor};
use super::mixture::random_tensor;
use segno::quant::DType;
use segno::quant::synthetic::Random;

pub const HEADS: u64 = 4;
/// Elements of the vector, of the shared key, and of a head of values.
pub const RANK: u64 = 64;
pub const ROTATED: u64 = 32;
pub const VALUE: u64 = 32;
/// Elements of a head of queries that do not rotate.
pub const PLAIN: u64 = 64;

/// A `deepseek2` model of 101 tokens without experts, whose projections of single heads are of type `dtype`, with `rotated` elements of
/// the key that all heads share.
pub fn latent_of(dtype: DType, rotated: u64) -> File {
    let shape = Shape { heads: HEADS as usize, ..Shape::small() };
    let (mut file, mut random, hidden) = (shape.file(), Random::new(5), shape.hidden as u64);
    file.entries.iter_mut().for_each(|(key, _)| *key = key.replace("llama.", "deepseek2."));
    file.set("general.architecture", "deepseek2");
    for (key, size) in [
        ("attention.head_count_kv", 1),
        ("attention.key_length", RANK + rotated),
        ("attention.value_length", RANK),
        ("attention.key_length_mla", PLAIN + rotated),
        ("attention.value_length_mla", VALUE),
        ("attention.kv_lora_rank", RANK),
        ("attention.q_lora_rank", 32),
        ("rope.dimension_count", rotated),
    ] {
        file.set(&format!("deepseek2.{key}"), size as u32);
    }
    for layer in 0..shape.layers {
        for part in ["q", "k", "v", "output"] {
            file.remove_tensor(&format!("blk.{layer}.attn_{part}.weight"));
        }
        for (part, dims, dtype) in [
            ("q_a", vec![hidden, 32], DType::F32),
            ("q_b", vec![32, HEADS * (PLAIN + rotated)], DType::F32),
            ("kv_a_mqa", vec![hidden, RANK + rotated], DType::F32),
            ("k_b", vec![PLAIN, RANK, HEADS], dtype),
            ("v_b", vec![RANK, VALUE, HEADS], dtype),
            ("output", vec![HEADS * VALUE, hidden], DType::F32),
        ] {
            let name = format!("blk.{layer}.attn_{part}.weight");
            file.tensors.push(random_tensor(name, dims, dtype, &mut random));
        }
        for (part, width) in [("q_a", 32), ("kv_a", RANK)] {
            let ones = (0..width).flat_map(|_| 1f32.to_le_bytes()).collect();
            let name = format!("blk.{layer}.attn_{part}_norm.weight");
            file.tensors.push(Tensor { name, dims: vec![width], type_id: 0, content: Content::Bytes(ones) });
        }
    }
    file
}

/// The same with a size of the shared key that keeps the 8-bit blocks of heads whole.
pub fn latent(dtype: DType) -> File {
    latent_of(dtype, ROTATED)
}
