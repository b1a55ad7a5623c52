//! A small model with experts, made by tests.

use super::gguf::{Content, File, Shape, Storage, Tensor};
use segno::quant::DType;
use segno::quant::synthetic::{Random, scaled_blocks};

pub const EXPERTS: u64 = 6;
pub const CHOSEN: u32 = 2;
/// Elements between the halves of an expert.
pub const WIDTH: u64 = 64;

/// A `qwen2moe` model of 101 tokens whose experts are of type `dtype`, with a shared one behind a sigmoid.
pub fn mixture(dtype: DType) -> File {
    mixture_of(Shape::small(), dtype)
}

/// The same of another shape; the shared expert is as wide as its dense block.
pub fn mixture_of(shape: Shape, dtype: DType) -> File {
    mixture_with(shape, dtype, WIDTH)
}

/// The same with so many elements between the halves of an expert.
pub fn mixture_with(shape: Shape, dtype: DType, width: u64) -> File {
    let shape = Shape { arch: "qwen2", storage: Storage::Q8_0, ..shape };
    let mut file = shape.file();
    file.entries.iter_mut().for_each(|(key, _)| *key = key.replace("qwen2.", "qwen2moe."));
    file.set("general.architecture", "qwen2moe");
    file.set("qwen2moe.expert_count", EXPERTS as u32).set("qwen2moe.expert_used_count", CHOSEN);
    file.set("qwen2moe.expert_feed_forward_length", width as u32);
    file.set("qwen2moe.expert_shared_feed_forward_length", shape.feed_forward as u32);
    let (mut random, hidden) = (Random::new(3), shape.hidden as u64);
    for layer in 0..shape.layers {
        for (part, cols, rows) in [("gate", hidden, width), ("up", hidden, width), ("down", width, hidden)] {
            // The shared expert is what was the dense block.
            file.tensor(&format!("blk.{layer}.ffn_{part}.weight")).name =
                format!("blk.{layer}.ffn_{part}_shexp.weight");
            let name = format!("blk.{layer}.ffn_{part}_exps.weight");
            file.tensors.push(random_tensor(name, vec![cols, rows, EXPERTS], dtype, &mut random));
        }
        for (name, dims) in [("ffn_gate_inp", vec![hidden, EXPERTS]), ("ffn_gate_inp_shexp", vec![hidden])] {
            let name = format!("blk.{layer}.{name}.weight");
            file.tensors.push(random_tensor(name, dims, DType::F32, &mut random));
        }
    }
    file
}

/// A tensor of random values that suit its columns.
pub fn random_tensor(name: String, dims: Vec<u64>, dtype: DType, random: &mut Random) -> Tensor {
    let count = dims.iter().product::<u64>() as usize / dtype.block_len();
    let bytes = scaled_blocks(dtype, count, 2.0 / (dims[0] as f32).sqrt(), random);
    Tensor { name, dims, type_id: dtype.ggml_id(), content: Content::Bytes(bytes) }
}
