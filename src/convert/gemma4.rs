//! Gemma 4 in `config.json`: heads that differ between the layers that see a window and those that see everything, blocks of two widths, layers
//! that read the keys of others, and rotations of a part of each head.

use super::config::Config;
use super::family::PARTIAL;
use crate::arch::Arch;
use crate::arch::mixtures::{GEMMA4, GEMMA4_ASSISTANT};
use crate::arch::rope::Divisors;
use crate::arch::spec::AttentionMask;
use crate::error::{Error, Result, collected, filled, reserve};
use crate::format::{Builder, Item, ScalarKind};

/// What divides the frequency of a pair that is not to turn.
const STILL: f32 = 1e30;
/// Share of the pairs of a head that turn where nothing is said.
pub const SHARE: f64 = 0.25;
/// Sizes that a layer may have of its own.
const HEAD_DIM: &str = "head_dim";
const KV_HEADS: &str = "num_key_value_heads";
/// How many of the last layers read the keys of others.
const SHARING: &str = "num_kv_shared_layers";
/// What the memory is for.
const SIZES: &str = "sizes of the layers";

/// Whether a family is Gemma 4, or what drafts for it.
pub fn is_of(arch: &Arch) -> bool {
    [GEMMA4.name, GEMMA4_ASSISTANT.name].contains(&arch.name)
}

/// Heads of keys of a layer, and their elements.
type Sizes = [u64; 2];

/// Writes the sizes of layers; returns the key-value heads of local ones, and how many elements of a head of the others rotate.
pub fn convert(config: &Config, out: &mut Builder) -> Result<(u64, u64)> {
    let (local, own) = (config.local_layers()?, [config.size(KV_HEADS)?, config.size(HEAD_DIM)?]);
    let mut kv_heads = reserve(local.len() * size_of::<u32>(), SIZES)?;
    let mut dims = [None; 2];
    for (is_local, [heads, dim]) in local.iter().zip(of_layers(config, &local, own)?) {
        kv_heads.extend((heads as u32).to_le_bytes());
        if *dims[usize::from(*is_local)].get_or_insert(dim) != dim {
            return Err(Error::Unsupported(format!(
                "`{HEAD_DIM}` of config.json differs within one kind of layers, which is not supported"
            )));
        }
    }
    let [whole_dim, own_dim] = dims.map(|dim| dim.unwrap_or(own[1]));
    out.set_scalars(&config.key("attention.head_count_kv"), ScalarKind::U32, &kv_heads)?;
    for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        out.set_unsigned(&config.key(name), whole_dim)?;
        out.set_unsigned(&config.key(&format!("{name}_swa")), own_dim)?;
    }
    let sharing = optional(config, SHARING)?;
    out.set_unsigned(&config.key("attention.shared_kv_layers"), sharing.unwrap_or(0))?;
    if config.family.arch.mask == AttentionMask::Borrowed {
        out.set_unsigned(&config.key("embedding_length_out"), config.size("backbone_hidden_size")?)?;
        out.set_unsigned(&config.key("nextn_predict_layers"), local.len() as u64)?;
    }
    let embedding = optional(config, "hidden_size_per_layer_input")?;
    out.set_unsigned(&config.key("embedding_length_per_layer_input"), embedding.unwrap_or(0))?;
    if config.get("use_double_wide_mlp").and_then(Item::flag) == Some(true) {
        widths(config, local.len(), sharing.unwrap_or(0), out)?;
    }
    Ok((own[0], whole_dim))
}

/// The sizes of all layers, `own` those of local ones: the others have a number for all of them, or each layer what is said of it alone.
fn of_layers(config: &Config, local: &[u8], own: Sizes) -> Result<Vec<Sizes>> {
    let listed = config.get("per_layer_config").and_then(Item::entries);
    let mut whole = own;
    if listed.is_none() {
        let has_own_heads = config.get("attention_k_eq_v").and_then(Item::flag) == Some(true);
        if let Some(heads) = optional(config, "num_global_key_value_heads")?.filter(|_| has_own_heads) {
            whole[0] = heads;
        }
        whole[1] = optional(config, "global_head_dim")?.unwrap_or(own[1]);
    }
    let mut sizes = collected(local.iter().map(|&is_local| if is_local == 1 { own } else { whole }), SIZES)?;
    for (layer, said) in listed.into_iter().flatten() {
        let Some(sizes) = layer.parse::<usize>().ok().and_then(|layer| sizes.get_mut(layer)) else { continue };
        for (size, name) in sizes.iter_mut().zip([KV_HEADS, HEAD_DIM]) {
            if let Some(value) = said.get(name) {
                *size = whole_number(config, name, value)?;
            }
        }
    }
    Ok(sizes)
}

/// A whole number, if there is one but 0.
fn optional(config: &Config, name: &str) -> Result<Option<u64>> {
    if config.number(name)?.is_some() { config.size(name).map(Some) } else { Ok(None) }
}

fn whole_number(config: &Config, name: &str, value: Item) -> Result<u64> {
    let number = value.unsigned().filter(|&number| number > 0 && u32::try_from(number).is_ok());
    number.ok_or_else(|| config.bad(name, &format!("is {value}, it must be a whole number below 2^32")))
}

/// Writes the widths of blocks, which are twice as wide in the layers that read the keys of others.
fn widths(config: &Config, layers: usize, sharing: u64, out: &mut Builder) -> Result<()> {
    let width = config.size("intermediate_size")?;
    let own = layers.saturating_sub(usize::try_from(sharing).unwrap_or(usize::MAX));
    let mut widths = filled(layers, width, SIZES)?;
    widths[own..].iter_mut().for_each(|width| *width *= 2);
    let mut bytes = reserve(layers * size_of::<u64>(), SIZES)?;
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
