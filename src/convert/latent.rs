//! Latent attention: its sizes as metadata, and the projection of keys and values of all heads in the two parts that newer GGUF files hold,
//! of folders and of older files alike.

use super::config::Config;
use super::making::{Making, Source};
use super::order::{HeadRows, Order, Turn};
use super::{DIRECTORY, Folder};
use crate::arch::latent::Latent;
use crate::arch::names::layer;
use crate::arch::{Arch, Hparams};
use crate::error::{Error, Result, copied_text, push, reserve};
use crate::format::{Builder, Item};
use crate::quant::DType;
use std::sync::Arc;

/// Writes the sizes of heads; returns how many elements of one rotate.
pub fn convert(config: &Config, out: &mut Builder) -> Result<u64> {
    if config.get("rope_interleave").and_then(Item::flag) == Some(false) {
        return Err(Error::Unsupported("`rope_interleave` of config.json is false, which is not supported".into()));
    }
    let [rank, rotated, plain, value] =
        ["kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"].map(|name| config.size(name));
    let (rank, rotated, plain, value) = (rank?, rotated?, plain?, value?);
    for (key, size) in [
        ("head_count_kv", 1),
        ("key_length", rank.saturating_add(rotated)),
        ("value_length", rank),
        ("key_length_mla", plain.saturating_add(rotated)),
        ("value_length_mla", value),
        ("kv_lora_rank", rank),
    ] {
        out.set_unsigned(&config.key(&format!("attention.{key}")), size)?;
    }
    if config.number("q_lora_rank")?.is_some() {
        out.set_unsigned(&config.key("attention.q_lora_rank"), config.size("q_lora_rank")?)?;
    }
    Ok(rotated)
}

/// Puts two tensors in the place of each that projects keys and values of all heads. What is wrong with the sizes of a file is told where its
/// header is read.
pub fn split(folder: &mut Folder) -> Result<()> {
    let end = format!("{}.weight", layer::KV_OF_LATENT);
    let meta = folder.gguf.metadata();
    let arch = meta.text("general.architecture").ok().flatten().and_then(|name| Arch::find(name).ok());
    let Some(arch) = arch.filter(|arch| arch.is_latent) else { return Ok(()) };
    let Ok(Hparams { heads, latent: Some(latent), .. }) = Hparams::read(meta, &arch) else { return Ok(()) };
    // As many in every layer.
    let heads = heads[0].heads as u64;
    for index in 0..folder.gguf.tensors().len() {
        let name = copied_text(&folder.gguf.tensors()[index].name, DIRECTORY)?;
        if let Some(before) = name.strip_suffix(&end) {
            split_one(folder, index, before, &latent, heads)?;
        }
    }
    Ok(())
}

/// The same of the tensor `index`, whose name begins with `before`.
fn split_one(folder: &mut Folder, index: usize, before: &str, latent: &Latent, heads: u64) -> Result<()> {
    let [rank, plain, value] = [latent.rank, latent.plain, latent.value].map(|size| size as u64);
    let (tensor, each) = (&folder.gguf.tensors()[index], plain + value);
    let expected = [rank, heads * each];
    if tensor.dims != expected {
        let (name, found) = (copied_text(&tensor.name, DIRECTORY)?, tensor.dims.clone());
        return Err(Error::Tensor { name, expected: expected.to_vec(), found });
    }
    let source = match folder.makings.iter().position(|making| making.name() == tensor.name) {
        Some(at) => folder.makings.remove(at).into_source(),
        None => Source::of(tensor)?,
    };
    let dtype = source.dtype();
    // Blocks of integers run along the other way: their values are kept as singles.
    let of_keys = if dtype.block_len() == 1 { dtype } else { DType::F32 };
    let rows = |first, count| HeadRows { each, first, count };
    let keys = Order::Transposed(Turn::whole(rows(0, plain), rank));
    let [k, v] = [layer::K_OF_LATENT, layer::V_OF_LATENT].map(|part| format!("{before}{part}.weight"));
    let keys = Making::of_heads(&k, source.clone(), keys, [heads * rank, plain], of_keys)?;
    let values = Making::of_heads(&v, source, Order::Part(rows(plain, value)), [heads * value, rank], dtype)?;
    let file = copied_text(folder.gguf.file_of(index), DIRECTORY)?;
    let part = folder.gguf.add_part(Arc::clone(keys.place()), &file)?;
    folder.gguf.add_tensor(&k, of_keys.ggml_id(), dims([plain, rank, heads])?, part, 0)?;
    folder.gguf.rename(index, &v, dims([rank, value, heads])?)?;
    folder.gguf.replace(index, dtype.ggml_id(), Arc::clone(values.place()))?;
    push(&mut folder.makings, keys, DIRECTORY)?;
    push(&mut folder.makings, values, DIRECTORY)
}

fn dims(sizes: [u64; 3]) -> Result<Vec<u64>> {
    let mut dims = reserve(sizes.len(), DIRECTORY)?;
    dims.extend(sizes);
    Ok(dims)
}
