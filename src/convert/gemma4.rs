//! Gemma 4 in `config.json`: heads that differ between the layers that see a window and those that see everything, blocks of two widths, layers
//! that read the keys of others, and rotations of a part of each head.

use super::config::Config;
use super::family::PARTIAL;
use crate::arch::rope::Divisors;
use crate::error::{Error, Result, filled, reserve};
use crate::format::{Builder, Item, ScalarKind};

/// What divides the frequency of a pair that is not to turn.
const STILL: f32 = 1e30;
/// Sizes that a layer may have of its own.
const HEAD_DIM: &str = "head_dim";
const KV_HEADS: &str = "num_key_value_heads";
/// How many of the last layers read the keys of others.
const SHARING: &str = "num_kv_shared_layers";

/// Heads of keys of a layer, and their elements.
type Sizes = [u64; 2];

/// Writes the sizes of layers; returns the key-value heads of local ones, and how many elements of a head of the others rotate.
pub fn convert(config: &Config, out: &mut Builder) -> Result<(u64, u64)> {
    let local = config.local_layers()?;
    let sizes = |index: usize| of_layer(config, index, local[index] == 1);
    let mut kv_heads = reserve(local.len() * size_of::<u32>(), "sizes of the layers")?;
    let mut dims = [None; 2];
    for (index, is_local) in local.iter().enumerate() {
        let [heads, dim] = sizes(index)?;
        kv_heads.extend((heads as u32).to_le_bytes());
        if *dims[usize::from(*is_local)].get_or_insert(dim) != dim {
            return Err(Error::Unsupported(format!(
                "`{HEAD_DIM}` of config.json differs within one kind of layers, which is not supported"
            )));
        }
    }
    let local_sizes = [config.size(KV_HEADS)?, config.size(HEAD_DIM)?];
    let (whole, own) = (dims[0].unwrap_or(local_sizes[1]), dims[1].unwrap_or(local_sizes[1]));
    out.set_scalars(&config.key("attention.head_count_kv"), ScalarKind::U32, &kv_heads)?;
    for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        out.set_unsigned(&config.key(name), whole)?;
        out.set_unsigned(&config.key(&format!("{name}_swa")), own)?;
    }
    let sharing = if config.number(SHARING)?.is_some() { config.size(SHARING)? } else { 0 };
    out.set_unsigned(&config.key("attention.shared_kv_layers"), sharing)?;
    let embedding = "hidden_size_per_layer_input";
    let each = if config.number(embedding)?.is_some() { config.size(embedding)? } else { 0 };
    out.set_unsigned(&config.key("embedding_length_per_layer_input"), each)?;
    if config.get("use_double_wide_mlp").and_then(Item::flag) == Some(true) {
        widths(config, local.len(), sharing, out)?;
    }
    Ok((local_sizes[0], whole))
}

/// The sizes of a layer: those of local ones, those of the others, or what is said of it alone.
fn of_layer(config: &Config, index: usize, is_local: bool) -> Result<Sizes> {
    let own = config.get("per_layer_config").and_then(|layers| layers.get(&index.to_string()));
    let size = |name: &str, whole: Option<&str>| match own.and_then(|own| own.get(name)) {
        Some(value) => whole_number(config, name, value),
        None => match whole.filter(|_| !is_local) {
            Some(whole) if config.number(whole)?.is_some() => config.size(whole),
            _ => config.size(name),
        },
    };
    let has_own_heads = config.get("attention_k_eq_v").and_then(Item::flag) == Some(true);
    Ok([
        size(KV_HEADS, has_own_heads.then_some("num_global_key_value_heads"))?,
        size(HEAD_DIM, Some("global_head_dim"))?,
    ])
}

fn whole_number(config: &Config, name: &str, value: Item) -> Result<u64> {
    let number = value.unsigned().filter(|&number| number > 0 && u32::try_from(number).is_ok());
    number.ok_or_else(|| config.bad(name, &format!("is {value}, it must be a whole number below 2^32")))
}

/// Writes the widths of blocks, which are twice as wide in the layers that read the keys of others.
fn widths(config: &Config, layers: usize, sharing: u64, out: &mut Builder) -> Result<()> {
    let width = config.size("intermediate_size")?;
    let own = layers.saturating_sub(usize::try_from(sharing).unwrap_or(usize::MAX));
    let mut widths = filled(layers, width, "sizes of the layers")?;
    widths[own..].iter_mut().for_each(|width| *width *= 2);
    let mut bytes = reserve(layers * size_of::<u64>(), "sizes of the layers")?;
    widths.iter().for_each(|width| bytes.extend(width.to_le_bytes()));
    out.set_scalars(&config.key("feed_forward_length"), ScalarKind::U64, &bytes)
}

/// Rotations of `share` of the pairs of a head of `dims` elements, which are the first of its halves.
pub fn divisors(config: &Config, share: f64, dims: usize) -> Result<Divisors> {
    if share > 1.0 {
        return Err(config.bad(PARTIAL, &format!("is {share}, it must be 1 at most")));
    }
    let turning = (dims as f64 * share / 2.0) as usize;
    let mut divisors = filled(dims / 2, STILL, "rope frequencies")?;
    divisors[..turning].fill(1.0);
    Ok(Divisors { all: Some(divisors), long: None })
}
