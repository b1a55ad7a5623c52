//! Models of two layers with random, well-scaled weights in any storage types.

use super::gguf::{Content, File, Shape, Tensor};
use segno::quant::DType;
use segno::quant::synthetic::{Random, scaled_blocks};

/// Tokens of the models.
pub const VOCAB: usize = 301;

/// A model whose matrices are stored as `dtype_of` says by their names.
pub fn file(dtype_of: impl Fn(&str) -> DType) -> File {
    let small = Shape::small();
    let small = Shape { hidden: 256, heads: 4, kv_heads: 2, head_dim: 64, feed_forward: 512, ..small };
    let shape = Shape { vocab: VOCAB, context: 8192, ..small };
    let mut file = shape.file();
    let mut random = Random::new(11);
    for tensor in file.tensors.iter_mut().filter(|tensor| tensor.dims.len() == 2) {
        store(tensor, dtype_of(&tensor.name), &mut random);
    }
    file
}

fn store(tensor: &mut Tensor, dtype: DType, random: &mut Random) {
    let (cols, rows) = (tensor.dims[0] as usize, tensor.dims[1] as usize);
    let spread = if tensor.name == "token_embd.weight" { 0.05 } else { 1.0 / (cols as f32).sqrt() };
    tensor.type_id = dtype.ggml_id();
    tensor.content = Content::Bytes(scaled_blocks(dtype, rows * cols / dtype.block_len(), spread, random));
}
