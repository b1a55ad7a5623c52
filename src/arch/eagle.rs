//! Heads that draft for another model by vectors between its layers (EAGLE-3; Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large
//! Language Models via Training-Time Test", 2025): their family, and what their files say of that model.

use super::hparams::Keys;
use super::spec::{Arch, LLAMA};
use crate::error::{Error, Result, reserve};
use crate::format::{Metadata, Value, limits};

/// One layer of Llama, which reads the embedding of a token beside a vector of the model.
pub const EAGLE3: Arch = Arch { name: "eagle3", mixture: None, drafts_by_features: true, ..LLAMA };

/// Most layers whose vectors a head joins.
const MOST_LAYERS: usize = 16;

/// How many layers a head reads whose file lists none: an early one, one in the middle and a late one ([`usual_layers`]).
pub const USUAL_LAYERS: usize = 3;

/// Those of a model of so many layers, as heads are trained; none of a model that has too few.
pub fn usual_layers(layers: usize) -> Option<[usize; USUAL_LAYERS]> {
    Some([2, layers / 2, layers.checked_sub(3)?])
}

/// What a head reads of the model for which it drafts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// The layers whose input it reads; the number of layers stands for what the last one gives. Where nothing is said they are [`USUAL_LAYERS`].
    pub layers: Option<Vec<usize>>,
    /// Elements of each of these vectors.
    pub width: usize,
    /// Whether they are normalized together, before they become one vector of the head.
    pub are_normalized: bool,
    /// Whether the head's layer adds to that vector as its norm gives it.
    pub adds_to_normalized: bool,
}

impl Features {
    /// What the file of a head says; none of other families.
    pub(super) fn read(meta: &Metadata, arch: &Arch, layers: usize) -> Result<Option<Features>> {
        if !arch.drafts_by_features {
            return Ok(None);
        }
        if layers != 1 {
            return Err(Error::Unsupported(format!("heads that draft have one layer, and this one has {layers}")));
        }
        let keys = Keys::new(arch);
        let key = keys.of("target_hidden_size");
        let width = meta.required(&key, meta.u32(&key)?)? as usize;
        if !(1..=limits::HIDDEN).contains(&width) {
            return Err(meta.bad(&key, &format!("is {width}, 1 to {} are supported", limits::HIDDEN)));
        }
        let flag = |name: &str| meta.bool(&keys.of(name)).map(|flag| flag.unwrap_or(false));
        let (are_normalized, adds_to_normalized) = (flag("norm_before_fc")?, flag("norm_before_residual")?);
        Ok(Some(Features { layers: listed(meta, &keys)?, width, are_normalized, adds_to_normalized }))
    }
}

fn listed(meta: &Metadata, keys: &Keys) -> Result<Option<Vec<usize>>> {
    let key = keys.of("target_layers");
    let Some(listed) = meta.scalars(&key)? else { return Ok(None) };
    if !(1..=MOST_LAYERS).contains(&listed.len()) {
        return Err(meta.bad(&key, &format!("lists {} layers, 1 to {MOST_LAYERS} are supported", listed.len())));
    }
    let mut layers = reserve(listed.len(), "a list of layers")?;
    for value in listed {
        let layer = match value {
            Value::Unsigned(layer) => usize::try_from(layer).ok(),
            Value::Signed(layer) => usize::try_from(layer).ok(),
            _ => None,
        };
        let layer = layer.filter(|&layer| layer <= limits::LAYERS);
        layers.push(layer.ok_or_else(|| meta.bad(&key, "holds what is no layer"))?);
    }
    Ok(Some(layers))
}
