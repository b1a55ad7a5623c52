//! The parts of folders of models whose layers have a state by the gated delta rule: rows in the order of key heads, logarithms of rates, and a block
//! that predicts a further token under names of its own.

use super::{Entry, singles};
use crate::common::gguf::{Content, File};
use segno::format::{Gguf, TensorInfo};
use serde_json::Value;

/// Whether models of this kind have such layers.
pub fn is_recurrent(kind: &str) -> bool {
    kind.starts_with("qwen3_5") || kind == "qwen3_next"
}

/// Lets every rate of a file be the exponential of a single, which folders hold.
pub fn round_rates(file: &mut File) {
    for tensor in file.tensors.iter_mut().filter(|tensor| tensor.name.ends_with(".ssm_a")) {
        let Content::Bytes(bytes) = &mut tensor.content else { panic!("rates are given") };
        for raw in bytes.chunks_exact_mut(4) {
            let log = logarithm(f32::from_le_bytes(raw.try_into().unwrap()));
            raw.copy_from_slice(&(-f64::from(log).exp() as f32).to_le_bytes());
        }
    }
}

fn logarithm(rate: f32) -> f32 {
    f64::from(-rate).ln() as f32
}

/// What the parts of a layer with a state are in a folder; nothing for what is told with another part; none for others.
pub fn parts_of(gguf: &Gguf, tensor: &TensorInfo, config: &Value) -> Option<Vec<Entry>> {
    let (layer, part) = tensor.name.strip_prefix("blk.")?.split_once('.')?;
    let own = |name: &str| gguf.tensor(&format!("blk.{layer}.{name}"));
    own("ssm_a")?;
    let size = |name: &str| config[name].as_u64().unwrap() as usize;
    let (groups, width) = (size("linear_num_key_heads"), size("linear_key_head_dim"));
    let (each, value) = (size("linear_num_value_heads") / groups, size("linear_value_head_dim"));
    let is_tiled = config["model_type"] != "qwen3_next";
    let mut values = singles(tensor);
    let mut shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
    let cols = values.len() / shape[0] as usize;
    // Rows of heads of values from `first` on, of `size` rows each, by their key heads.
    let grouped = |values: &[f32], first: usize, size: usize, cols: usize| -> Vec<f32> {
        let (before, heads) = values.split_at(first * cols);
        let block = |at: usize| &heads[(at % each * groups + at / each) * size * cols..][..size * cols];
        let blocks = (0..if is_tiled { groups * each } else { 0 }).flat_map(|at| block(at).to_vec());
        if is_tiled { before.iter().copied().chain(blocks).collect() } else { values.to_vec() }
    };
    let keys = 2 * groups * width;
    let name = match part {
        "attn_qkv.weight" if !is_tiled => {
            let gates = singles(own("attn_gate.weight")?);
            let rows = |all: &[f32], first: usize, count: usize| all[first * cols..][..count * cols].to_vec();
            let head = |head: usize| {
                let (query, key) = (rows(&values, head * width, width), rows(&values, (groups + head) * width, width));
                let both = each * value;
                let (held, gate) = (rows(&values, keys + head * both, both), rows(&gates, head * both, both));
                [query, key, held, gate].concat()
            };
            values = (0..groups).flat_map(head).collect();
            shape[0] = (values.len() / cols) as u64;
            "in_proj_qkvz.weight"
        }
        "attn_gate.weight" if !is_tiled => return Some(Vec::new()),
        "attn_qkv.weight" => {
            values = grouped(&values, keys, value, cols);
            "in_proj_qkv.weight"
        }
        "attn_gate.weight" => {
            values = grouped(&values, 0, value, cols);
            "in_proj_z.weight"
        }
        "ssm_conv1d.weight" => {
            values = grouped(&values, keys, value, cols);
            shape.insert(1, 1);
            "conv1d.weight"
        }
        "ssm_out.weight" => {
            values = values.chunks(cols).flat_map(|row| grouped(row, 0, value, 1)).collect();
            "out_proj.weight"
        }
        "ssm_ba.weight" => "in_proj_ba.weight",
        "ssm_norm.weight" => "norm.weight",
        other => {
            let name = match other {
                "ssm_beta.weight" => "in_proj_b.weight",
                "ssm_alpha.weight" => "in_proj_a.weight",
                "ssm_dt.bias" => "dt_bias",
                "ssm_a" => "A_log",
                _ => return None,
            };
            let change = if name == "A_log" { logarithm } else { |value| value };
            values = grouped(&values, 0, 1, cols).into_iter().map(change).collect();
            name
        }
    };
    Some(vec![Entry::f32(&format!("model.layers.{layer}.linear_attn.{name}"), &shape, &values)])
}

/// The tables of two halves of each expert in the place of the tensors of single ones.
pub fn joined_experts(entries: &[Entry]) -> Vec<Entry> {
    let mut joined: Vec<Entry> = Vec::new();
    for entry in entries {
        let Some((layer, part)) = entry.name.split_once(".mlp.experts.") else {
            joined.push(entry.clone());
            continue;
        };
        let (name, count) = if part.ends_with("down_proj.weight") { ("down_proj", 1) } else { ("gate_up_proj", 2) };
        let name = format!("{layer}.mlp.experts.{name}");
        if joined.iter().any(|other| other.name == name) {
            continue;
        }
        let of = |expert: usize, part: &str| {
            let name = format!("{layer}.mlp.experts.{expert}.{part}.weight");
            entries.iter().find(|entry| entry.name == name).map(|entry| entry.bytes.clone())
        };
        let parts = if count == 1 { &["down_proj"][..] } else { &["gate_proj", "up_proj"] };
        let experts = (0..).map_while(|expert| parts.iter().map(|part| of(expert, part)).collect::<Option<Vec<_>>>());
        let experts: Vec<Vec<u8>> = experts.map(|parts| parts.concat()).collect();
        let shape = vec![experts.len() as u64, count * entry.shape[0], entry.shape[1]];
        joined.push(Entry { name, kind: "F32".into(), shape, bytes: experts.concat() });
    }
    joined
}

/// What a tensor of the block behind the layers is called.
pub fn name_of_block(name: &str, config: &Value) -> String {
    let prefix = format!("model.layers.{}.", config["num_hidden_layers"]);
    let Some(part) = name.strip_prefix(&prefix) else { return name.to_owned() };
    match part {
        "eh_proj.weight" => "mtp.fc.weight".into(),
        "enorm.weight" => "mtp.pre_fc_norm_embedding.weight".into(),
        "hnorm.weight" => "mtp.pre_fc_norm_hidden.weight".into(),
        "shared_head.norm.weight" => "mtp.norm.weight".into(),
        "embed_tokens.weight" | "shared_head.head.weight" => format!("mtp.{part}"),
        _ => format!("mtp.layers.0.{part}"),
    }
}
