//! Blocks of a folder that predict further tokens: which of those that the configuration announces are there, and what their tensors are called.
//! They stand behind the layers as further ones, or under names of their own (`mtp.`), of which some tensors belong to the first block.

use super::config::{Config, LAYERS};
use super::family::Family;
use super::is_scale;
use super::names::{self, Role};
use crate::arch::names::{in_layer, layer};
use crate::arch::spec::Blocks;
use crate::error::{Excerpt, Result};
use crate::format::Safetensors;

/// The blocks of a folder.
#[derive(Debug, Default)]
pub struct Predicting {
    /// Layers before them.
    layers: u64,
    /// How many the configuration announces.
    announced: u64,
    /// How many of these are there, from the first one on; none where the first one cannot be told whole.
    pub count: u64,
    /// Why there are none, where some are announced.
    pub lacking: Option<String>,
}

/// What such a block has beside the tensors of a layer: its projections and tables, behind the layers and under names of their own.
const PROJECTIONS: [(&str, &str); 4] = [
    ("eh_proj", layer::NEXT_IN),
    ("fc", layer::NEXT_IN),
    ("embed_tokens", layer::NEXT_EMBEDDING),
    ("shared_head.head", layer::NEXT_HEAD),
];
/// The same for its norms.
const NORMS: [(&str, &str); 6] = [
    ("enorm", layer::NEXT_TOKEN_NORM),
    ("pre_fc_norm_embedding", layer::NEXT_TOKEN_NORM),
    ("hnorm", layer::NEXT_HIDDEN_NORM),
    ("pre_fc_norm_hidden", layer::NEXT_HIDDEN_NORM),
    ("shared_head.norm", layer::NEXT_OUTPUT_NORM),
    ("norm", layer::NEXT_OUTPUT_NORM),
];

impl Predicting {
    /// The blocks of the folder with these `weights`. Folders whose weights were tuned or saved without them announce them all the same.
    pub fn find(config: &Config, weights: &Safetensors) -> Result<Predicting> {
        let (layers, announced) = (config.size(LAYERS)?, config.predicting()?);
        let mut found = Predicting { layers, announced, ..Predicting::default() };
        let family = &config.family;
        if family.arch.blocks == Blocks::One && announced > 0 {
            let (kind, key) = (family.model_type, family.predicting.unwrap_or_default());
            let problem = format!("blocks of `{kind}` models that predict further tokens are not supported (`{key}`)");
            return Ok(Predicting { lacking: Some(problem), ..found });
        }
        let (mut count, mut begins, mut unknown) = (0, false, None);
        for stored in weights.tensors() {
            let Some((block, _)) = found.place(&stored.name).filter(|&(block, _)| block < announced) else { continue };
            if is_scale(&stored.name, weights) || names::is_redundant(&stored.name, family) {
                continue;
            }
            count = count.max(block + 1);
            match found.role(&stored.name, family) {
                Some(role) => begins |= role.name == format!("{}.weight", in_layer(layers as usize, layer::NEXT_IN)),
                None => unknown = unknown.or(Some(&stored.name)),
            }
        }
        let key = family.predicting.unwrap_or_default();
        match unknown {
            Some(name) => {
                let name = Excerpt(name.as_bytes());
                found.lacking = Some(format!("tensor `{name}` is not part of blocks that are supported (`{key}`)"));
            }
            None if begins => found.count = count,
            // Of some families a block is expected where the configuration does not tell.
            None if config.get(key).is_some() && announced > 0 => {
                found.lacking = Some(format!(
                    "config.json announces blocks that predict further tokens (`{key}`), and the weights are without the \
                     projection with which the first one begins: load a folder or a file that has it"
                ));
            }
            None => {}
        }
        Ok(found)
    }

    /// Whether a tensor belongs to a block that is left out, as all do that have names of their own and are not announced.
    pub fn leaves_out(&self, name: &str, family: &Family) -> bool {
        let is_told = self.announced > 0 || (family.predicting.is_some() && own_name(name).is_some());
        is_told && self.place(name).is_some_and(|(block, _)| block >= self.count)
    }

    /// What the tensor `name` of a block is; none for one of a layer, and for one that is not known.
    pub fn role(&self, name: &str, family: &Family) -> Option<Role> {
        let (block, part) = self.place(name).filter(|&(block, _)| block < self.announced)?;
        let index = self.layers + block;
        let own = |table: &[(&str, &'static str)]| {
            let (part, kind) = part.rsplit_once('.').filter(|(_, kind)| *kind == "weight")?;
            let (_, name) = table.iter().find(|(other, _)| *other == part)?;
            Some(in_layer(usize::try_from(index).ok()?, &format!("{name}.{kind}")))
        };
        if let Some(name) = own(&PROJECTIONS) {
            return Some(Role { name, ..Role::default() });
        }
        if let Some(name) = own(&NORMS) {
            return Some(Role { name, change: family.change_of_norms(), ..Role::default() });
        }
        names::role(&format!("layers.{index}.{part}"), family)
    }

    /// The number of the block that the tensor `name` belongs to, and what it is called there.
    fn place<'a>(&self, name: &'a str) -> Option<(u64, &'a str)> {
        let Some(own) = own_name(name) else {
            let (index, part) = names::in_layers(name)?;
            return Some((u64::from(index).checked_sub(self.layers)?, part));
        };
        match own.strip_prefix("layers.") {
            Some(_) => names::in_layers(own).map(|(index, part)| (index.into(), part)),
            None => Some((0, own)),
        }
    }
}

/// What a tensor is called within all blocks, where that is not the name of a layer.
fn own_name(name: &str) -> Option<&str> {
    name.strip_prefix("model.").unwrap_or(name).strip_prefix("mtp.")
}
