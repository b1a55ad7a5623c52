//! Tensor names of Hugging Face folders, by the roles that [`crate::arch::names`] has for GGUF files.

use super::eagle;
use super::experts;
use super::family::Family;
use super::fused::Projection;
use super::hybrid;
use super::recurrent;
use crate::arch::names::{global, in_layer, layer};
use crate::arch::spec::{AttentionMask, NormKind, Presence};
use crate::elementary;

/// What a tensor of a folder is.
#[derive(Debug, Default, PartialEq)]
pub struct Role {
    /// Name in a GGUF file.
    pub name: String,
    /// Which rows it has, and in which order.
    pub rows: Rows,
    /// What becomes of every element of a vector.
    pub change: Change,
    /// How a vector lies in a file.
    pub form: Form,
    /// The expert whose tensor this is, of the table `name`.
    pub expert: Option<u32>,
    /// Another one that the same tensor becomes with others of its rows.
    pub and: Option<Box<Role>>,
}

/// Rows of a tensor of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// All, where they are.
    #[default]
    All,
    /// Those of such heads stand as halves and must become neighbours.
    Halves(Heads),
    /// Those of a projection of all experts.
    OfExperts(Projection),
    /// The first or the second half.
    Half {
        /// Whether it is the second one.
        is_second: bool,
    },
    /// Heads of a layer with a state.
    State(recurrent::Part),
}

/// How a vector lies in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    #[default]
    Vector,
    /// As rows of one element each.
    Column,
    /// As a row for each group of a state space.
    Groups,
}

/// What becomes of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    #[default]
    None,
    /// One is added.
    LessOne,
    /// It is the logarithm of a rate of decay, which is negative.
    Rate,
}

impl Change {
    /// What becomes of `value`.
    pub fn of(self, value: f32) -> f32 {
        match self {
            Change::None => value,
            Change::LessOne => value + 1.0,
            Change::Rate => -exponential(value.into()) as f32,
        }
    }
}

/// Ends of names of what becomes singles.
const SINGLES: [&str; 5] =
    [layer::ROUTER, layer::SHARED_ROUTER, layer::CHOICE_BIAS, layer::SCAN_CONVOLUTION, layer::SHORT_CONVOLUTION];

impl Role {
    /// Whether singles are made of it, as of all that is small and decides much.
    pub fn is_single(&self) -> bool {
        let part = self.name.rsplit_once('.').map_or("", |(part, _)| part);
        SINGLES.iter().any(|name| part.ends_with(name)) || self.name.ends_with(".bias")
    }

    /// The same in layer `index`.
    fn in_layer(self, index: u16) -> Role {
        let and = self.and.map(|other| Box::new(other.in_layer(index)));
        Role { name: in_layer(index.into(), &self.name), and, ..self }
    }
}

/// The exponential of any number.
fn exponential(x: f64) -> f64 {
    let below = elementary::exp(-x.abs());
    if x > 0.0 { 1.0 / below } else { below }
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

/// Whether a tensor follows from the configuration, as rope frequencies do and the numbers of positions, is a head that an encoder was trained with
/// and that embeddings do without, or groups tokens so that an assistant can leave out logits.
pub fn is_redundant(name: &str, family: &Family) -> bool {
    let name_of_encoder = name.strip_prefix("bert.").unwrap_or(name);
    let is_of_head = HEADS_OF_ENCODERS.iter().any(|part| name_of_encoder.starts_with(part));
    let is_encoder = family.arch.mask == AttentionMask::Bidirectional;
    let groups = family.arch.mask == AttentionMask::Borrowed && name.starts_with("masked_embedding.");
    groups
        || eagle::is_redundant(name, family)
        || name.ends_with(".rotary_emb.inv_freq")
        || (is_encoder && (is_of_head || name.ends_with(".position_ids")))
}

/// What names begin with of weights by which encoders guess words and the order of texts.
const HEADS_OF_ENCODERS: [&str; 4] = ["pooler.", "cls.", "head.", "decoder."];

/// Names of encoders outside their layers.
const OF_ENCODERS: [(&str, &str); 8] = [
    ("embeddings.word_embeddings.weight", global::EMBEDDING),
    ("embeddings.tok_embeddings.weight", global::EMBEDDING),
    ("embeddings.position_embeddings.weight", global::POSITIONS),
    ("embeddings.token_type_embeddings.weight", global::TOKEN_TYPES),
    ("embeddings.LayerNorm", global::EMBEDDING_NORM),
    ("embeddings.norm", global::EMBEDDING_NORM),
    ("emb_ln", global::EMBEDDING_NORM),
    ("final_norm", global::OUTPUT_NORM),
];

/// The same within a layer.
const OF_ENCODER_LAYERS: [(&str, &str); 20] = [
    ("attention.self.query", layer::Q),
    ("attention.self.key", layer::K),
    ("attention.self.value", layer::V),
    ("attention.output.dense", layer::ATTENTION_OUTPUT),
    ("attention.output.LayerNorm", layer::ATTENTION_SUM_NORM),
    ("intermediate.dense", layer::UP),
    ("output.dense", layer::DOWN),
    ("output.LayerNorm", layer::LAYER_SUM_NORM),
    ("attn.out_proj", layer::ATTENTION_OUTPUT),
    ("norm1", layer::ATTENTION_SUM_NORM),
    ("norm2", layer::LAYER_SUM_NORM),
    ("mlp.fc11", layer::UP),
    ("mlp.fc12", layer::GATE),
    ("mlp.fc2", layer::DOWN),
    ("attn_norm", layer::ATTENTION_NORM),
    ("attn.Wqkv", layer::QKV),
    ("attn.Wo", layer::ATTENTION_OUTPUT),
    ("mlp_norm", layer::FEED_FORWARD_NORM),
    ("mlp.Wi", layer::UP),
    ("mlp.Wo", layer::DOWN),
];

/// What the tensor `name` of an encoder is.
fn role_in_encoder(name: &str) -> Option<String> {
    let name = ["bert.", "model."].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let (part, kind) = name.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))?;
    let whole = OF_ENCODERS.iter().find(|(own, _)| *own == name).map(|(_, other)| (*other).into());
    let norm = OF_ENCODERS.iter().find(|(own, _)| *own == part).map(|(_, other)| format!("{other}.{kind}"));
    if let Some(found) = whole.or(norm) {
        return Some(found);
    }
    let within =
        ["encoder.layer.", "encoder.layers.", "layers."].iter().find_map(|prefix| part.strip_prefix(prefix))?;
    let (index, part) = within.split_once('.')?;
    let index = index.parse::<u16>().ok().filter(|number| number.to_string() == index)?;
    let (_, found) = OF_ENCODER_LAYERS.iter().find(|(own, _)| *own == part)?;
    Some(in_layer(index.into(), &format!("{found}.{kind}")))
}

/// The name of a tensor in the model itself, whose names begin with nothing else where it was saved without its head.
fn bare(name: &str) -> &str {
    let mut prefixes = TEXT_PARTS.iter().chain(&["model.", "backbone."]);
    prefixes.find_map(|part| name.strip_prefix(part)).unwrap_or(name)
}

/// Whether names are those of encoders. EmbeddingGemma's are those of Gemma 3.
fn is_of_encoder(family: &Family) -> bool {
    family.arch.mask == AttentionMask::Bidirectional && family.arch.norm == NormKind::Layer
}

/// The layer of the tensor `name`, if it has one, and what it is called there.
pub fn in_layers(name: &str) -> Option<(u16, &str)> {
    let (index, part) = bare(name).strip_prefix("layers.")?.split_once('.')?;
    let index = index.parse().ok().filter(|number: &u16| number.to_string() == index)?;
    Some((index, part))
}

/// What the tensor `name` is; none for one that the family does not have.
pub fn role(name: &str, family: &Family) -> Option<Role> {
    if is_of_encoder(family) {
        return role_in_encoder(name).map(|name| Role { name, ..Role::default() });
    }
    let name = eagle::usual(bare(name), family);
    let name = &*name;
    if let Some(role) = eagle::role(name, family) {
        return Some(role);
    }
    let norm = |name: String| Role { name, change: family.change_of_norms(), ..Role::default() };
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
    if let Some(name) = hybrid::global_role(name, family) {
        return plain(name);
    }
    if family.arch.mask == AttentionMask::Borrowed {
        match name {
            "pre_projection.weight" => return plain(&format!("{}.weight", global::BACKBONE_IN)),
            "post_projection.weight" => return plain(&format!("{}.weight", global::BACKBONE_OUT)),
            _ => {}
        }
    }
    let (index, part) = in_layers(name)?;
    if let Some(part) = part.strip_prefix("linear_attn.") {
        return recurrent::role(part, &family.arch).map(|role| role.in_layer(index));
    }
    if let Some(role) = hybrid::role(part, family) {
        return Some(role.in_layer(index));
    }
    if let Some(role) = family.experts.and_then(|settings| experts::role(part, settings.layout)) {
        return Some(role.in_layer(index));
    }
    let in_layer = |part: &str| in_layer(index.into(), part);
    match part {
        "layer_scalar" => return plain(&in_layer(layer::LAYER_SCALE)),
        "self_attn.sinks" if family.arch.sinks != Presence::Absent => {
            return plain(&in_layer(&format!("{}.weight", layer::SINKS)));
        }
        _ => {}
    }
    let (part, kind) = part.rsplit_once('.')?;
    let is_known = matches!(kind, "weight" | "bias");
    if let Some(name) = norm_of(part, family).filter(|_| is_known) {
        return Some(norm(in_layer(&format!("{name}.{kind}"))));
    }
    let (_, name, heads) = PROJECTIONS.into_iter().find(|(other, ..)| *other == part)?;
    let rows = heads.filter(|_| family.has_halves).map_or(Rows::All, Rows::Halves);
    is_known.then(|| Role { name: in_layer(&format!("{name}.{kind}")), rows, ..Role::default() })
}

/// The norm that `part` names, within a layer. What stands after the attention is the norm of its result in families that have one, and else
/// the norm before the feed-forward block.
fn norm_of(part: &str, family: &Family) -> Option<&'static str> {
    Some(match part {
        "input_layernorm" => layer::ATTENTION_NORM,
        "hidden_norm" if family.arch.drafts_by_features => layer::FEATURES_NORM,
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
        assert_eq!(role(q, &Family::find("llama").unwrap()).unwrap().rows, Rows::Halves(Heads::Query));
        assert_eq!(role(q, &Family::find("qwen2").unwrap()).unwrap().rows, Rows::All);
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
            "model.layers..norm.weight",
            "model.layers.01.self_attn.q_proj.weight",
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.q_proj.scale",
            "model.layers.70000.mlp.up_proj.weight",
            "model.layers.0.mlp.experts.1.up_proj.weight",
        ] {
            assert_eq!(name_of(name, "llama"), None, "{name}");
        }
        let is_redundant = |name: &str, kind| is_redundant(name, &Family::find(kind).unwrap());
        assert!(is_redundant("model.layers.0.self_attn.rotary_emb.inv_freq", "llama"));
        assert!(!is_redundant("model.norm.weight", "llama") && !is_redundant("classifier.weight", "llama"));
        assert!(is_redundant("bert.pooler.dense.bias", "bert") && !is_redundant("embeddings.LayerNorm.bias", "bert"));
    }

    #[test]
    fn encoders_have_names_of_their_own() {
        assert_eq!(name_of("encoder.layer.3.output.dense.bias", "bert").unwrap(), "blk.3.ffn_down.bias");
        assert_eq!(name_of("bert.embeddings.LayerNorm.weight", "bert").unwrap(), "token_embd_norm.weight");
        assert_eq!(name_of("layers.1.attn.Wqkv.weight", "modernbert").unwrap(), "blk.1.attn_qkv.weight");
        assert_eq!(name_of("encoder.layers.0.mlp.fc12.weight", "nomic_bert").unwrap(), "blk.0.ffn_gate.weight");
        for name in ["encoder.layer.03.output.dense.bias", "encoder.layer.3.output.dense.scale", "layers.0.mlp.W", ""] {
            assert_eq!(name_of(name, "bert"), None, "{name}");
        }
    }
}
