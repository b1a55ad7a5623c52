//! Hugging Face folders made by tests: [`Entry`]s become a safetensors file, and a GGUF file becomes the folder that it was made of.

use segno::format::{Gguf, TensorInfo};
use segno::quant::DType;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

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
    tensors.map(|tensor| entry_of(tensor, config)).collect()
}

fn entry_of(tensor: &TensorInfo, config: &Value) -> Entry {
    assert_eq!(tensor.type_id, DType::F32.ggml_id());
    let kind = config["model_type"].as_str().unwrap();
    let name = name_of(&tensor.name, kind);
    let bytes = tensor.bytes(tensor.elements() as usize * 4).unwrap();
    let values: Vec<f32> = bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
    let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
    let heads = match name.split('.').nth(4) {
        Some("q_proj") => config["num_attention_heads"].as_u64(),
        Some("k_proj") => config["num_key_value_heads"].as_u64(),
        _ => None,
    };
    let halves = heads.filter(|_| matches!(kind, "llama" | "mistral" | "granite" | "smollm3" | "ministral3"));
    let values = match halves {
        Some(heads) => as_halves(&values, shape[0] as usize, heads as usize),
        None if kind.starts_with("gemma") && name.ends_with("norm.weight") => values.iter().map(|v| v - 1.0).collect(),
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
        _ => {}
    }
    let [_, layer, part] = parts.split('.').collect::<Vec<_>>()[..] else { panic!("{name}") };
    let is_gemma = kind.starts_with("gemma");
    let part = match (part, kind) {
        ("ffn_up", "phi3" | "glm4") => "mlp.gate_up_proj",
        ("ffn_up", "starcoder2") => "mlp.c_fc",
        ("ffn_down", "starcoder2") => "mlp.c_proj",
        ("attn_q_norm", "hunyuan_v1_dense") => "self_attn.query_layernorm",
        ("attn_k_norm", "hunyuan_v1_dense") => "self_attn.key_layernorm",
        ("post_attention_norm", "glm4") => "post_self_attn_layernorm",
        ("post_ffw_norm", "glm4") => "post_mlp_layernorm",
        (part, _) => part_of(part, is_gemma),
    };
    format!("model.layers.{layer}.{part}.{end}")
}

fn part_of(part: &str, is_gemma: bool) -> &'static str {
    match part {
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
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
