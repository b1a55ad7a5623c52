//! Models of two layers with random, well-scaled weights in any storage types.

use super::gguf::{Content, File, Shape, Tensor};
use segno::quant::DType;
use segno::quant::synthetic::{Random, scaled_blocks};

/// Tokens of the models.
pub const VOCAB: usize = 301;

/// A model whose matrices are stored as `dtype_of` says by their names.
pub fn file(dtype_of: impl Fn(&str) -> DType) -> File {
    stored(&shape(64, 2, 2), dtype_of)
}

/// A model of one type, of as odd a size as its blocks allow: rows of more than 1024 columns, and of whole blocks alone.
pub fn odd(dtype: DType) -> File {
    let (head_dim, feed_forward) = match dtype.block_len() {
        1 | 32 => (72, 1120),
        64 | 128 => (96, 1152),
        _ => (64, 1280),
    };
    stored(&Shape { feed_forward, ..shape(head_dim, 2, 2) }, |_| dtype)
}

/// A model of one type with heads of `head_dim` elements, `group` of them for each of `kv_heads` heads of keys and values; all heads together
/// are not as wide as the model.
pub fn of_heads(head_dim: usize, kv_heads: usize, group: usize, dtype: DType) -> File {
    stored(&Shape { hidden: 256, ..shape(head_dim, kv_heads, group) }, |_| dtype)
}

fn shape(head_dim: usize, kv_heads: usize, group: usize) -> Shape {
    let (heads, hidden) = (kv_heads * group, kv_heads * group * head_dim);
    Shape { hidden, heads, kv_heads, head_dim, feed_forward: 512, vocab: VOCAB, context: 8192, ..Shape::small() }
}

/// A model of another shape, whose widths are whole blocks of the types.
pub fn stored(shape: &Shape, dtype_of: impl Fn(&str) -> DType) -> File {
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
