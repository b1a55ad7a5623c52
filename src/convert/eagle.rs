//! Folders of heads that draft for another model by vectors between its layers (EAGLE-3): what tells them from other folders of Llama's layers, what
//! their configuration says of that model, and the names of their tensors. Folders of Speculators keep the sizes of the layer in a map of its own.

use super::config::Config;
use super::elements::WEIGHTS;
use super::family::{Family, HEAD_OF_MODEL};
use super::names::Role;
use crate::arch::names::global;
use crate::error::{Error, Excerpt, Result, filled, reserve};
use crate::format::safetensors::Stored;
use crate::format::{Builder, Item, ScalarKind, limits};
use std::borrow::Cow;

/// The setting that only heads have: how many tokens they have logits of.
const DRAFT_VOCAB: &str = "draft_vocab_size";
/// Where Speculators keeps the sizes of the layer.
const LAYER: &str = "transformer_layer_config";
/// The layers of the model whose vectors are read.
const READ_LAYERS: &str = "eagle_aux_hidden_state_layer_ids";
/// Kinds of layers that such configurations name.
const KINDS: [&str; 3] = ["llama", "eagle3", "speculator_model"];

/// The family of a configuration that is that of a head, and the map with its sizes.
pub fn find(whole: Item) -> Result<Option<(Family, Item)>> {
    if whole.get(DRAFT_VOCAB).is_none_or(|size| size.is_null()) {
        return Ok(None);
    }
    let text = whole.get(LAYER).unwrap_or(whole);
    let kind = whole.get("model_type").or_else(|| text.get("model_type")).and_then(Item::text);
    match kind.filter(|kind| !KINDS.contains(kind)) {
        None => Ok(Some((HEAD_OF_MODEL, text))),
        Some(other) => {
            let other = Excerpt(other.as_bytes());
            Err(Error::Unsupported(format!(
                "heads that draft (`{DRAFT_VOCAB}`) with layers of `{other}` are not supported"
            )))
        }
    }
}

/// Writes what the configuration says of the model; nothing of other families.
pub fn convert(config: &Config, out: &mut Builder) -> Result<()> {
    if !config.family.arch.drafts_by_features {
        return Ok(());
    }
    config.set(out, "vocab_size", config.size("vocab_size")?)?;
    let own = if config.get("target_hidden_size").is_some() { "target_hidden_size" } else { "hidden_size" };
    config.set(out, "target_hidden_size", config.size(own)?)?;
    for name in ["norm_before_residual", "norm_before_fc"] {
        out.set_bool(&config.key(name), config.get(name).and_then(Item::flag) == Some(true))?;
    }
    let nested = || config.get("eagle_config").and_then(|nested| nested.get(READ_LAYERS));
    let Some(listed) = config.get(READ_LAYERS).or_else(nested).filter(|listed| !listed.is_null()) else {
        return Ok(());
    };
    let mut layers = reserve(4 * limits::LAYERS, "a list of layers")?;
    for layer in listed.elements().into_iter().flatten() {
        let number = layer.unsigned().and_then(|layer| u32::try_from(layer).ok());
        let number = number.filter(|_| layers.len() < 4 * limits::LAYERS);
        layers.extend(number.ok_or_else(|| config.bad(READ_LAYERS, &format!("is {listed}")))?.to_le_bytes());
    }
    out.set_scalars(&config.key("target_layers"), ScalarKind::U32, &layers)
}

/// The name of a tensor, with that of the layer as other models have it.
pub fn usual<'a>(name: &'a str, family: &Family) -> Cow<'a, str> {
    match name.strip_prefix("midlayer.").filter(|_| family.arch.drafts_by_features) {
        Some(part) => Cow::Owned(format!("layers.0.{part}")),
        None => Cow::Borrowed(name),
    }
}

/// What a tensor outside of the layer is that only heads have.
pub fn role(name: &str, family: &Family) -> Option<Role> {
    let role = |name: &str| Some(Role { name: format!("{name}.weight"), ..Role::default() });
    match name {
        _ if !family.arch.drafts_by_features => None,
        "fc.weight" => role(global::FEATURES_IN),
        "input_norm.weight" => role(global::FEATURES_IN_NORM),
        _ => None,
    }
}

/// Whether a tensor tells which of the model's tokens the head knows, which [`tokens`] tells too.
pub fn is_redundant(name: &str, family: &Family) -> bool {
    family.arch.drafts_by_features && name == "t2d"
}

/// The token of each logit, as little-endian 64-bit integers, of the tensor that has how much further it stands than the logit.
pub fn tokens(stored: &Stored) -> Result<Vec<u8>> {
    let Stored { name, type_name, shape, .. } = stored;
    let most = limits::VOCAB as u64;
    if *type_name != "I64" || shape.len() != 1 || shape[0] > most {
        let problem =
            format!("tensor `{name}` of {type_name} has shape {shape:?}, at most {most} numbers of I64 are supported");
        return Err(Error::Unsupported(problem));
    }
    let mut bytes = filled(stored.len as usize, 0, WEIGHTS)?;
    stored.shard.parts.read(stored.start, &mut bytes)?;
    for (index, raw) in (0i64..).zip(bytes.as_chunks_mut().0) {
        // What does not fit is no token either.
        *raw = i64::from_le_bytes(*raw).saturating_add(index).to_le_bytes();
    }
    Ok(bytes)
}
