//! Hugging Face folders made by tests: [`Entry`]s become a safetensors file, and a GGUF file becomes the folder that it was made of.

pub mod fused;
pub mod hybrid;
pub mod recurrent;

use recurrent::{is_recurrent, name_of_block, parts_of};
use segno::format::{Gguf, INTEGERS_64, TensorInfo};
use segno::quant::DType;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Names, sizes, types and bytes of all tensors of a GGUF file, by name.
pub fn tensors(path: &Path) -> Vec<(String, Vec<u64>, u32, Vec<u8>)> {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let bytes = |tensor: &TensorInfo| {
        let len = match tensor.type_id {
            INTEGERS_64 => 8 * tensor.elements(),
            dtype => DType::from_ggml(dtype).unwrap().row_bytes(tensor.elements()).unwrap(),
        };
        tensor.bytes(len as usize).unwrap().to_vec()
    };
    let all = gguf.tensors().iter();
    let mut all: Vec<_> = all.map(|t| (t.name.clone(), t.dims.clone(), t.type_id, bytes(t))).collect();
    all.sort();
    all
}

/// One tensor of a safetensors file.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub kind: String,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Entry {
    pub fn f32(name: &str, shape: &[u64], values: &[f32]) -> Entry {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Entry { name: name.to_owned(), kind: "F32".to_owned(), shape: shape.to_vec(), bytes }
    }

    /// The values of an F32 tensor.
    pub fn values(&self) -> Vec<f32> {
        assert_eq!(self.kind, "F32");
        self.bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect()
    }
}

/// A header and data as a file.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A whole safetensors file.
pub fn safetensors(entries: &[Entry]) -> Vec<u8> {
    let mut header = serde_json::Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut data = Vec::new();
    for Entry { name, kind, shape, bytes } in entries {
        let place = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": kind, "shape": shape, "data_offsets": place}));
        data.extend(bytes);
    }
    with_header(&Value::from(header).to_string(), &data)
}

/// Writes a folder of one file of weights.
pub fn write(folder: &Path, config: &Value, entries: &[Entry]) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("model.safetensors"), safetensors(entries)).unwrap();
}

/// Writes a folder whose weights lie in `files` files, and their index.
pub fn write_shards(folder: &Path, config: &Value, entries: &[Entry], files: usize) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut map = serde_json::Map::new();
    for (number, shard) in entries.chunks(entries.len().div_ceil(files)).enumerate() {
        let name = format!("model-{:05}-of-{files:05}.safetensors", number + 1);
        fs::write(folder.join(&name), safetensors(shard)).unwrap();
        map.extend(shard.iter().map(|entry| (entry.name.clone(), json!(name))));
    }
    fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
}

/// The tensors of the folder that an F32 GGUF file was made of.
pub fn entries_of(gguf: &Gguf, config: &Value) -> Vec<Entry> {
    let tensors = gguf.tensors().iter().filter(|tensor| !tensor.name.starts_with("rope_"));
    let is_recurrent = is_recurrent(config["model_type"].as_str().unwrap());
    let entries = |tensor: &TensorInfo| {
        let own = match is_recurrent {
            true => parts_of(gguf, tensor, config),
            false if fused::has_them(config) => fused::fused_of(gguf, tensor, config),
            false => None,
        };
        let own = own.or_else(|| hybrid::parts_of(gguf, tensor, config));
        let parts = own.or_else(|| experts_of(tensor, config)).or_else(|| latent_of(gguf, tensor));
        parts.unwrap_or_else(|| vec![entry_of(tensor, config)])
    };
    let mut entries: Vec<Entry> = tensors.flat_map(entries).collect();
    if is_recurrent {
        entries.iter_mut().for_each(|entry| entry.name = name_of_block(&entry.name, config));
    }
    entries
}

/// Kinds whose rows of queries and keys stand as halves.
const HALVES: [&str; 7] = ["llama", "mistral", "mixtral", "granite", "smollm3", "ministral3", "granitemoehybrid"];

/// The name of a part of a layer that most families have.
fn within_layer(part: &str) -> String {
    let (part, end) = part.rsplit_once('.').unwrap();
    format!("{}.{end}", part_of(part, false))
}

/// The elements of an F32 tensor.
fn singles(tensor: &TensorInfo) -> Vec<f32> {
    assert_eq!(tensor.type_id, DType::F32.ggml_id());
    let bytes = tensor.bytes(tensor.elements() as usize * 4).unwrap();
    bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect()
}

/// The projection of keys and values of all heads that became `tensor`, which is of keys, and another one; nothing for that.
fn latent_of(gguf: &Gguf, tensor: &TensorInfo) -> Option<Vec<Entry>> {
    let (layer, part) = tensor.name.strip_prefix("blk.")?.split_once('.')?;
    let values = match part {
        "attn_k_b.weight" => gguf.tensor(&format!("blk.{layer}.attn_v_b.weight"))?,
        "attn_v_b.weight" => return Some(Vec::new()),
        _ => return None,
    };
    let [plain, rank, heads] = tensor.dims[..] else { panic!("{}", tensor.name) };
    let joined = joined_heads(&singles(tensor), &singles(values), plain as usize, rank as usize, heads as usize);
    let shape = [heads * (plain + values.dims[1]), rank];
    Some(vec![Entry::f32(&format!("model.layers.{layer}.self_attn.kv_b_proj.weight"), &shape, &joined)])
}

/// Of each head the rows for keys, which `keys` has as columns, and then those for values.
pub fn joined_heads(keys: &[f32], values: &[f32], plain: usize, rank: usize, heads: usize) -> Vec<f32> {
    let mut joined = Vec::new();
    for (keys, values) in keys.chunks_exact(plain * rank).zip(values.chunks_exact(values.len() / heads)) {
        (0..plain).for_each(|row| joined.extend(keys.iter().skip(row).step_by(plain)));
        joined.extend(values);
    }
    joined
}

/// The tensors of single experts that became the table `tensor`, the last one first; none where it is none.
fn experts_of(tensor: &TensorInfo, config: &Value) -> Option<Vec<Entry>> {
    let [_, layer, part, "weight"] = tensor.name.split('.').collect::<Vec<_>>()[..] else { return None };
    let names = match part {
        "ffn_gate_exps" => vec![("gate_proj", "w1")],
        "ffn_up_exps" => vec![("up_proj", "w3")],
        "ffn_down_exps" => vec![("down_proj", "w2")],
        "ffn_gate_up_exps" => vec![("gate_proj", "w1"), ("up_proj", "w3")],
        _ => return None,
    };
    if config["model_type"] == "gemma4_text" {
        return None;
    }
    let bytes = tensor.bytes(tensor.elements() as usize * 4).unwrap();
    let count = tensor.dims[2] as usize * names.len();
    let shape = [tensor.dims[1] / names.len() as u64, tensor.dims[0]];
    let kind = config["model_type"].as_str().unwrap();
    let entries = bytes.chunks_exact(bytes.len() / count).enumerate().map(|(index, bytes)| {
        let (expert, (name, short)) = (index / names.len(), names[index % names.len()]);
        let name = match kind {
            "mixtral" | "minimax_m2" => format!("block_sparse_moe.experts.{expert}.{short}"),
            _ => format!("mlp.experts.{expert}.{name}"),
        };
        let name = format!("model.layers.{layer}.{name}.weight");
        Entry { name, kind: "F32".into(), shape: shape.to_vec(), bytes: bytes.to_vec() }
    });
    Some(entries.collect::<Vec<_>>().into_iter().rev().collect())
}

fn entry_of(tensor: &TensorInfo, config: &Value) -> Entry {
    let kind = config["model_type"].as_str().unwrap();
    let (name, values) = (name_of(&tensor.name, kind), singles(tensor));
    let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
    let heads = match name.split('.').nth(4) {
        Some("q_proj") => config["num_attention_heads"].as_u64(),
        Some("k_proj") => config["num_key_value_heads"].as_u64(),
        _ => None,
    };
    let halves = heads.filter(|_| HALVES.contains(&kind));
    let values = match halves {
        Some(heads) => as_halves(&values, shape[0] as usize, heads as usize),
        None if (matches!(kind, "gemma2" | "gemma3_text") || is_recurrent(kind)) && name.ends_with("norm.weight") => {
            values.iter().map(|v| v - 1.0).collect()
        }
        None => values,
    };
    Entry::f32(&name, &shape, &values)
}

/// The rows of every head with the even ones first.
fn as_halves(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (cols, head) = (values.len() / rows, rows / heads);
    let row = |at: usize| &values[at * cols..(at + 1) * cols];
    let order = |at: usize| {
        at / head * head + if at % head < head / 2 { 2 * (at % head) } else { 2 * (at % head - head / 2) + 1 }
    };
    (0..rows).flat_map(|at| row(order(at)).to_vec()).collect()
}

fn name_of(name: &str, kind: &str) -> String {
    let (parts, end) = name.rsplit_once('.').unwrap();
    match parts {
        "token_embd" => return format!("model.embed_tokens.{end}"),
        "output_norm" => return format!("model.norm.{end}"),
        "output" => return format!("lm_head.{end}"),
        "per_layer_token_embd" => return format!("model.embed_tokens_per_layer.{end}"),
        "per_layer_model_proj" => return format!("model.per_layer_model_projection.{end}"),
        "per_layer_proj_norm" => return format!("model.per_layer_projection_norm.{end}"),
        _ => {}
    }
    if let Some((layer, part)) = parts.split_once(".nextn.") {
        let (layer, part) = (layer.strip_prefix("blk.").unwrap(), part.replace("shared_head_", "shared_head."));
        return format!("model.layers.{layer}.{part}.{end}");
    }
    let [_, layer, part] = parts.split('.').collect::<Vec<_>>()[..] else { panic!("{name}") };
    let is_gemma = kind.starts_with("gemma");
    if let Some(part) = part_of_gemma4(part, end).filter(|_| kind == "gemma4_text") {
        return format!("model.layers.{layer}.{part}");
    }
    let part = match (part, kind) {
        ("attn_sinks", _) => return format!("model.layers.{layer}.self_attn.sinks"),
        ("ffn_gate_inp", "gpt_oss") => "mlp.router",
        ("ffn_up", "phi3" | "glm4") => "mlp.gate_up_proj",
        ("ffn_up", "starcoder2") => "mlp.c_fc",
        ("ffn_down", "starcoder2") => "mlp.c_proj",
        ("attn_q_norm", "hunyuan_v1_dense") => "self_attn.query_layernorm",
        ("attn_k_norm", "hunyuan_v1_dense") => "self_attn.key_layernorm",
        ("post_attention_norm", "glm4") => "post_self_attn_layernorm",
        ("post_ffw_norm", "glm4") => "post_mlp_layernorm",
        ("exp_probs_b", "ernie4_5_moe") => {
            return format!("model.layers.{layer}.mlp.moe_statics.e_score_correction_bias");
        }
        ("exp_probs_b", "minimax_m2") => {
            return format!("model.layers.{layer}.block_sparse_moe.e_score_correction_bias");
        }
        ("exp_probs_b", _) => return format!("model.layers.{layer}.mlp.gate.e_score_correction_bias"),
        ("ffn_gate_inp", "mixtral" | "minimax_m2") => "block_sparse_moe.gate",
        ("ffn_gate_inp", "hunyuan_v1_moe") => "mlp.gate.wg",
        ("ffn_gate_inp_shexp", _) => "mlp.shared_expert_gate",
        ("attn_q_norm", "hunyuan_v1_moe") => "self_attn.query_layernorm",
        ("attn_k_norm", "hunyuan_v1_moe") => "self_attn.key_layernorm",
        ("post_attention_norm", "glm4_moe") => "post_attention_layernorm",
        ("post_attention_norm", kind) if is_recurrent(kind) => "post_attention_layernorm",
        (part, _) if part.ends_with("_shexp") => {
            let part = part.strip_prefix("ffn_").unwrap().strip_suffix("_shexp").unwrap();
            let shared = match kind {
                "qwen2_moe" => "shared_expert",
                kind if is_recurrent(kind) => "shared_expert",
                "hunyuan_v1_moe" => "shared_mlp",
                _ => "shared_experts",
            };
            return format!("model.layers.{layer}.mlp.{shared}.{part}_proj.{end}");
        }
        (part, _) => part_of(part, is_gemma),
    };
    format!("model.layers.{layer}.{part}.{end}")
}

/// What only layers of Gemma 4 have.
fn part_of_gemma4(part: &str, end: &str) -> Option<&'static str> {
    Some(match (part, end) {
        ("ffn_gate_inp", "weight") => "router.proj.weight",
        ("ffn_gate_inp", "scale") => "router.scale",
        ("ffn_down_exps", "scale") => "router.per_expert_scale",
        ("ffn_gate_up_exps", _) => "experts.gate_up_proj",
        ("ffn_down_exps", _) => "experts.down_proj",
        ("post_ffw_norm_1", _) => "post_feedforward_layernorm_1.weight",
        ("pre_ffw_norm_2", _) => "pre_feedforward_layernorm_2.weight",
        ("post_ffw_norm_2", _) => "post_feedforward_layernorm_2.weight",
        ("layer_output_scale", _) => "layer_scalar",
        ("inp_gate", _) => "per_layer_input_gate.weight",
        ("proj", _) => "per_layer_projection.weight",
        ("post_norm", _) => "post_per_layer_input_norm.weight",
        _ => return None,
    })
}

fn part_of(part: &str, is_gemma: bool) -> &'static str {
    match part {
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_a" => "self_attn.q_a_proj",
        "attn_q_a_norm" => "self_attn.q_a_layernorm",
        "attn_q_b" => "self_attn.q_b_proj",
        "attn_kv_a_mqa" => "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm" => "self_attn.kv_a_layernorm",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate_inp" => "mlp.gate",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "post_attention_norm" => "post_attention_layernorm",
        "ffn_norm" if is_gemma => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        other => panic!("{other}"),
    }
}
