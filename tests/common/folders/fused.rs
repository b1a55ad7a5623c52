//! Tensors of folders that hold a projection of all experts, made of the tables of GGUF files.

use super::{Entry, singles};
use segno::format::{Gguf, TensorInfo};
use serde_json::Value;

/// Kinds of folders that have them.
pub fn has_them(config: &Value) -> bool {
    matches!(config["model_type"].as_str(), Some("gpt_oss" | "qwen3_vl_moe"))
}

/// The tensors that became the table `tensor` of experts, or nothing for the one that another brings; none where it is no such table.
pub fn fused_of(gguf: &Gguf, tensor: &TensorInfo, config: &Value) -> Option<Vec<Entry>> {
    let [_, layer, part, kind] = tensor.name.split('.').collect::<Vec<_>>()[..] else { return None };
    let name = |part: &str| {
        let end = if kind == "bias" { "_bias" } else { "" };
        format!("model.layers.{layer}.mlp.experts.{part}{end}")
    };
    let takes_turns = config["model_type"] == "gpt_oss";
    let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
    let entry = match part {
        "ffn_up_exps" => return Some(Vec::new()),
        "ffn_down_exps" => Entry::f32(&name("down_proj"), &shape, &singles(tensor)),
        "ffn_gate_exps" => {
            let up = gguf.tensor(&format!("blk.{layer}.ffn_up_exps.{kind}")).unwrap();
            let cols = if kind == "bias" { 1 } else { shape[2] as usize };
            // What takes turns: rows, or those of an expert.
            let each = if takes_turns { cols } else { cols * shape[1] as usize };
            let (gate, up) = (singles(tensor), singles(up));
            let both: Vec<f32> =
                gate.chunks(each).zip(up.chunks(each)).flat_map(|(gate, up)| [gate, up].concat()).collect();
            let mut shape = shape;
            shape[1] *= 2;
            Entry::f32(&name("gate_up_proj"), &shape, &both)
        }
        _ => return None,
    };
    Some(vec![if takes_turns { turned(&entry) } else { entry }])
}

/// The same tensor with rows as columns, if it is a table of matrices.
pub fn turned(entry: &Entry) -> Entry {
    let [experts, rows, cols] = entry.shape[..] else { return entry.clone() };
    let size = entry.bytes.len() / (experts * rows * cols) as usize;
    let (rows, cols) = (rows as usize, cols as usize);
    let mut bytes = Vec::with_capacity(entry.bytes.len());
    for expert in entry.bytes.chunks(rows * cols * size) {
        for (col, row) in (0..cols).flat_map(|col| (0..rows).map(move |row| (col, row))) {
            bytes.extend(&expert[(row * cols + col) * size..][..size]);
        }
    }
    Entry { shape: vec![experts, cols as u64, rows as u64], bytes, ..entry.clone() }
}
