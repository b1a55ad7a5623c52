//! Tensor names of Hugging Face folders, by the roles that [`crate::arch::names`] has for GGUF files.

use super::experts;
use super::family::Family;
use crate::arch::names::{global, in_layer, layer};

/// What a tensor of a folder is.
#[derive(Debug, Default, PartialEq)]
pub struct Role {
    /// Name in a GGUF file.
    pub name: String,
    /// Heads whose rows stand as halves and must become neighbours.
    pub halves: Option<Heads>,
    /// Whether one is added to every element.
    pub is_less_one: bool,
    /// The expert whose tensor this is, of the table `name`.
    pub expert: Option<u32>,
}

impl Role {
    /// Whether singles are made of it, as of all that is small and decides much.
    pub fn is_single(&self) -> bool {
        let part = self.name.rsplit_once('.').map_or("", |(part, _)| part);
        [layer::ROUTER, layer::SHARED_ROUTER, layer::CHOICE_BIAS].iter().any(|name| part.ends_with(name))
    }
}

/// Which heads a projection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// Those of queries.
    Query,
    /// Those of keys.
    Key,
}

/// The part of a name, within a layer, of weights that may have a bias.
const PROJECTIONS: [(&str, &str, Option<Heads>); 17] = [
    ("self_attn.q_proj", layer::Q, Some(Heads::Query)),
    ("self_attn.k_proj", layer::K, Some(Heads::Key)),
    ("self_attn.v_proj", layer::V, None),
    ("self_attn.o_proj", layer::ATTENTION_OUTPUT, None),
    ("mlp.gate_proj", layer::GATE, None),
    ("mlp.up_proj", layer::UP, None),
    ("mlp.down_proj", layer::DOWN, None),
    ("self_attn.qkv_proj", layer::QKV, None),
    ("mlp.gate_up_proj", layer::UP, None),
    ("mlp.c_fc", layer::UP, None),
    ("mlp.c_proj", layer::DOWN, None),
    ("self_attn.q_a_proj", layer::Q_LATENT, None),
    ("self_attn.q_b_proj", layer::Q_OF_LATENT, None),
    ("self_attn.kv_a_proj_with_mqa", layer::KV_LATENT, None),
    ("self_attn.kv_b_proj", layer::KV_OF_LATENT, None),
    ("per_layer_input_gate", layer::EMBEDDING_GATE, None),
    ("per_layer_projection", layer::EMBEDDING_OUTPUT, None),
];

/// What names of the text part of a model for images begin with, in place of `model.`.
const TEXT_PARTS: [&str; 2] = ["language_model.model.", "model.language_model."];
/// What names of its other parts begin with.
const OTHER_PARTS: [&str; 9] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.visual.",
    "model.vision_embedder.",
    "model.embed_vision.",
    "model.audio_tower.",
    "model.embed_audio.",
];

/// Whether a tensor belongs to an encoder of images, or leads from it to the text.
pub fn is_media(name: &str) -> bool {
    OTHER_PARTS.iter().any(|part| name.starts_with(part))
}

/// Whether a tensor follows from the configuration: rope frequencies, which old files hold.
pub fn is_redundant(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
}

/// The layer of the tensor `name`, if it has one.
pub fn layer_of(name: &str) -> Option<u16> {
    let name = TEXT_PARTS.iter().find_map(|part| name.strip_prefix(part)).or_else(|| name.strip_prefix("model."))?;
    let (index, _) = name.strip_prefix("layers.")?.split_once('.')?;
    index.parse().ok().filter(|number: &u16| number.to_string() == index)
}

/// What the tensor `name` is; none for one that the family does not have.
pub fn role(name: &str, family: &Family) -> Option<Role> {
    let name = TEXT_PARTS.iter().find_map(|part| name.strip_prefix(part)).or_else(|| name.strip_prefix("model."))?;
    let norm = |name: String| Role { name, is_less_one: family.norms_less_one, ..Role::default() };
    let plain = |name: &str| Some(Role { name: name.into(), ..Role::default() });
    match name {
        "embed_tokens.weight" => return plain(global::EMBEDDING),
        "embed_tokens_per_layer.weight" => return plain(global::LAYER_EMBEDDINGS),
        "per_layer_model_projection.weight" => {
            return plain(&format!("{}.weight", global::LAYER_EMBEDDINGS_PROJECTION));
        }
        "per_layer_projection_norm.weight" => {
            return Some(norm(format!("{}.weight", global::LAYER_EMBEDDINGS_NORM)));
        }
        "norm.weight" | "norm.bias" => return Some(norm(name.replace("norm", global::OUTPUT_NORM))),
        _ => {}
    }
    let (index, part) = name.strip_prefix("layers.")?.split_once('.')?;
    let index = index.parse::<u16>().ok().filter(|number| number.to_string() == index)?;
    let in_layer = |part: &str| in_layer(index.into(), part);
    if let Some((name, expert)) = experts::role(part).filter(|_| family.experts.is_some()) {
        return Some(Role { name: in_layer(name), expert, ..Role::default() });
    }
    if part == "layer_scalar" {
        return plain(&in_layer(layer::LAYER_SCALE));
    }
    let (part, kind) = part.rsplit_once('.')?;
    let is_known = matches!(kind, "weight" | "bias");
    if let Some(name) = norm_of(part, family).filter(|_| is_known) {
        return Some(norm(in_layer(&format!("{name}.{kind}"))));
    }
    let (_, name, heads) = PROJECTIONS.into_iter().find(|(other, ..)| *other == part)?;
    let halves = heads.filter(|_| family.has_halves);
    is_known.then(|| Role { name: in_layer(&format!("{name}.{kind}")), halves, ..Role::default() })
}

/// The norm that `part` names, within a layer. What stands after the attention is the norm of its result in families that have one, and else
/// the norm before the feed-forward block.
fn norm_of(part: &str, family: &Family) -> Option<&'static str> {
    Some(match part {
        "input_layernorm" => layer::ATTENTION_NORM,
        "self_attn.q_norm" | "self_attn.query_layernorm" => layer::Q_NORM,
        "self_attn.k_norm" | "self_attn.key_layernorm" => layer::K_NORM,
        "self_attn.q_a_layernorm" => layer::Q_LATENT_NORM,
        "self_attn.kv_a_layernorm" => layer::KV_LATENT_NORM,
        "post_self_attn_layernorm" => layer::POST_ATTENTION_NORM,
        "post_attention_layernorm" if family.names_result() => layer::POST_ATTENTION_NORM,
        "post_attention_layernorm" | "pre_feedforward_layernorm" => family.arch.feed_forward_norm,
        "post_feedforward_layernorm" | "post_mlp_layernorm" => layer::POST_FEED_FORWARD_NORM,
        "post_feedforward_layernorm_1" => layer::POST_DENSE_NORM,
        "pre_feedforward_layernorm_2" => layer::EXPERTS_NORM,
        "post_feedforward_layernorm_2" => layer::POST_EXPERTS_NORM,
        "post_per_layer_input_norm" => layer::POST_EMBEDDING_NORM,
        _ => return None,
    })
}

/// Names of the output head.
pub fn is_head(name: &str) -> bool {
    matches!(name, "lm_head.weight" | "language_model.lm_head.weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(name: &str, model_type: &str) -> Option<String> {
        role(name, &Family::find(model_type).unwrap()).map(|role| role.name)
    }

    #[test]
    fn roles_follow_the_family() {
        let norm = "model.layers.3.post_attention_layernorm.weight";
        assert_eq!(name_of(norm, "llama").unwrap(), "blk.3.ffn_norm.weight");
        assert_eq!(name_of(norm, "gemma3_text").unwrap(), "blk.3.post_attention_norm.weight");
        assert_eq!(name_of(norm, "seed_oss").unwrap(), "blk.3.post_attention_norm.weight");
        assert_eq!(name_of("model.language_model.norm.weight", "gemma3").unwrap(), "output_norm.weight");
        let q = "model.layers.0.self_attn.q_proj.bias";
        assert_eq!(role(q, &Family::find("llama").unwrap()).unwrap().halves, Some(Heads::Query));
        assert_eq!(role(q, &Family::find("qwen2").unwrap()).unwrap().halves, None);
    }

    #[test]
    fn experts_have_tables() {
        let role = |name: &str, kind: &str| role(name, &Family::find(kind).unwrap()).unwrap();
        let of_expert = role("model.layers.3.mlp.experts.17.down_proj.weight", "qwen3_moe");
        assert_eq!((of_expert.name.as_str(), of_expert.expert), ("blk.3.ffn_down_exps.weight", Some(17)));
        let of_expert = role("model.layers.0.block_sparse_moe.experts.0.w3.weight", "mixtral");
        assert_eq!((of_expert.name.as_str(), of_expert.expert), ("blk.0.ffn_up_exps.weight", Some(0)));
        let router = role("model.layers.0.mlp.gate.weight", "qwen2_moe");
        assert!(router.name == "blk.0.ffn_gate_inp.weight" && router.is_single());
        assert!(!role("model.layers.0.mlp.shared_expert.up_proj.weight", "qwen2_moe").is_single());
        assert_eq!(name_of("model.layers.0.mlp.experts.01.up_proj.weight", "qwen3_moe"), None);
        assert_eq!(name_of("model.layers.0.mlp.experts.1.w4.weight", "mixtral"), None);
    }

    #[test]
    fn other_names_have_no_role() {
        for name in [
            "",
            "model.",
            "norm.weight",
            "model.layers..norm.weight",
            "model.layers.01.self_attn.q_proj.weight",
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.q_proj.scale",
            "model.layers.70000.mlp.up_proj.weight",
            "model.layers.0.mlp.experts.1.up_proj.weight",
        ] {
            assert_eq!(name_of(name, "llama"), None, "{name}");
        }
        assert!(is_redundant("model.layers.0.self_attn.rotary_emb.inv_freq") && !is_redundant("model.norm.weight"));
    }
}
