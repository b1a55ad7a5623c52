//! The parts of folders of models with short convolutions or state spaces: names of their own, blocks whose halves stand as one, and weights without
//! the factors of a model.

use super::{Entry, singles};
use segno::format::{Gguf, TensorInfo};
use serde_json::Value;

/// Names within a layer in files and in folders.
type Names = &'static [(&'static str, &'static str)];

const LFM2: Names = &[
    ("attn_norm.weight", "operator_norm.weight"),
    ("ffn_norm.weight", "ffn_norm.weight"),
    ("attn_q_norm.weight", "self_attn.q_layernorm.weight"),
    ("attn_k_norm.weight", "self_attn.k_layernorm.weight"),
    ("attn_output.weight", "self_attn.out_proj.weight"),
    ("shortconv.in_proj.weight", "conv.in_proj.weight"),
    ("shortconv.conv.weight", "conv.conv.weight"),
    ("shortconv.out_proj.weight", "conv.out_proj.weight"),
    ("ffn_gate.weight", "feed_forward.w1.weight"),
    ("ffn_up.weight", "feed_forward.w3.weight"),
    ("ffn_down.weight", "feed_forward.w2.weight"),
    ("ffn_gate_inp.weight", "feed_forward.gate.weight"),
    ("exp_probs_b.bias", "feed_forward.expert_bias"),
];
const GRANITE: Names = &[
    ("ffn_gate.weight", "shared_mlp.input_linear.weight"),
    ("ffn_down.weight", "shared_mlp.output_linear.weight"),
    ("ffn_gate_shexp.weight", "shared_mlp.input_linear.weight"),
    ("ffn_down_shexp.weight", "shared_mlp.output_linear.weight"),
    ("ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"),
    ("ffn_gate_exps.weight", "block_sparse_moe.input_linear.weight"),
    ("ffn_down_exps.weight", "block_sparse_moe.output_linear.weight"),
];
const FALCON: Names = &[
    ("ffn_norm", "pre_ff_layernorm.weight"),
    ("ffn_gate.weight", "feed_forward.gate_proj.weight"),
    ("ffn_up.weight", "feed_forward.up_proj.weight"),
    ("ffn_down.weight", "feed_forward.down_proj.weight"),
];
const NEMOTRON: Names = &[
    ("attn_norm.weight", "norm.weight"),
    ("attn_q.weight", "mixer.q_proj.weight"),
    ("attn_k.weight", "mixer.k_proj.weight"),
    ("attn_v.weight", "mixer.v_proj.weight"),
    ("attn_output.weight", "mixer.o_proj.weight"),
    ("ffn_up.weight", "mixer.up_proj.weight"),
    ("ffn_down.weight", "mixer.down_proj.weight"),
    ("ffn_gate_inp.weight", "mixer.gate.weight"),
    ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    ("ffn_up_shexp.weight", "mixer.shared_experts.up_proj.weight"),
    ("ffn_down_shexp.weight", "mixer.shared_experts.down_proj.weight"),
    ("ffn_latent_down.weight", "mixer.fc1_latent_proj.weight"),
    ("ffn_latent_up.weight", "mixer.fc2_latent_proj.weight"),
];
const SPACE: Names = &[
    ("ssm_in.weight", "in_proj.weight"),
    ("ssm_conv1d.weight", "conv1d.weight"),
    ("ssm_conv1d.bias", "conv1d.bias"),
    ("ssm_dt.bias", "dt_bias"),
    ("ssm_a", "A_log"),
    ("ssm_d", "D"),
    ("ssm_norm.weight", "norm.weight"),
    ("ssm_out.weight", "out_proj.weight"),
];
/// Experts, each with a tensor of its own.
const EXPERTS: [(&str, &str, &str); 5] = [
    ("lfm2_moe", "ffn_gate_exps.weight", "feed_forward.experts.{}.w1.weight"),
    ("lfm2_moe", "ffn_up_exps.weight", "feed_forward.experts.{}.w3.weight"),
    ("lfm2_moe", "ffn_down_exps.weight", "feed_forward.experts.{}.w2.weight"),
    ("nemotron_h", "ffn_up_exps.weight", "mixer.experts.{}.up_proj.weight"),
    ("nemotron_h", "ffn_down_exps.weight", "mixer.experts.{}.down_proj.weight"),
];

/// What a tensor of a file is in a folder; nothing for what is told with another tensor; none for one that other families have too.
pub fn parts_of(gguf: &Gguf, tensor: &TensorInfo, config: &Value) -> Option<Vec<Entry>> {
    let kind = config["model_type"].as_str().unwrap();
    let (names, space, prefix) = match kind {
        "lfm2" | "lfm2_moe" => (LFM2, "", "model"),
        "granitemoehybrid" => (GRANITE, "mamba.", "model"),
        "falcon_h1" => (FALCON, "mamba.", "model"),
        "nemotron_h" => (NEMOTRON, "mixer.", "backbone"),
        _ => return None,
    };
    let mut shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
    let mut values = without_factors(tensor, config, shape.last().copied().unwrap() as usize);
    let Some((layer, part)) = tensor.name.strip_prefix("blk.").and_then(|name| name.split_once('.')) else {
        return Some(vec![Entry::f32(name_outside(&tensor.name, kind), &shape, &values)]);
    };
    let entry = |name: &str, shape: &[u64], values: &[f32]| {
        vec![Entry::f32(&format!("{prefix}.layers.{layer}.{name}"), shape, values)]
    };
    if let Some((.., name)) = EXPERTS.iter().find(|(owner, file, _)| *owner == kind && *file == part) {
        let each = values.len() / shape[0] as usize;
        let one = |(index, values)| entry(&name.replace("{}", &format!("{index}")), &shape[1..], values);
        return Some(values.chunks_exact(each).enumerate().flat_map(one).collect());
    }
    if kind == "granitemoehybrid" && part.starts_with("ffn_up") {
        return Some(Vec::new());
    }
    if kind == "granitemoehybrid" && part.starts_with("ffn_gate") && part != "ffn_gate_inp.weight" {
        let up = singles(gguf.tensor(&tensor.name.replace("ffn_gate", "ffn_up")).unwrap());
        let rows = shape.len() - 2;
        let each = shape[rows..].iter().product::<u64>() as usize;
        values = values.chunks(each).zip(up.chunks(each)).flat_map(|(gate, up)| [gate, up].concat()).collect();
        shape[rows] *= 2;
    }
    match part {
        "ssm_conv1d.weight" | "shortconv.conv.weight" => shape.insert(1, 1),
        "ssm_a" => {
            values.iter_mut().for_each(|value| *value = f64::from(-*value).ln() as f32);
            shape.truncate(1);
        }
        "ssm_d" => shape.truncate(1),
        "ssm_norm.weight" => shape = vec![values.len() as u64],
        _ => {}
    }
    let named = names.iter().find(|(file, _)| *file == part).map(|(_, own)| entry(own, &shape, &values));
    let of_space = || SPACE.iter().find(|(file, _)| *file == part).map(|(_, own)| format!("{space}{own}"));
    let named = named.or_else(|| Some(entry(&of_space()?, &shape, &values)));
    // Names of Falcon H1 that others have too stand for weights without their factors.
    named.or_else(|| (kind == "falcon_h1").then(|| entry(&super::within_layer(part), &shape, &values)))
}

/// The name of a tensor outside the layers.
fn name_outside(name: &str, kind: &str) -> &'static str {
    match (name, kind) {
        ("token_embd.weight", "nemotron_h") => "backbone.embeddings.weight",
        ("token_embd.weight", _) => "model.embed_tokens.weight",
        ("output.weight", _) => "lm_head.weight",
        ("token_embd_norm.weight", _) => "model.embedding_norm.weight",
        ("output_norm.weight", "nemotron_h") => "backbone.norm_f.weight",
        ("output_norm.weight", "falcon_h1") => "model.final_layernorm.weight",
        ("output_norm.weight", _) => "model.norm.weight",
        _ => panic!("{name}"),
    }
}

/// The factors on the rows of a tensor, one after the other.
fn factors_of(name: &str, config: &Value) -> Vec<(f32, f32, usize)> {
    let part = name.split('.').rev().nth(1).unwrap_or_default();
    let number = |name: &str| config[name].as_f64().unwrap_or(1.0);
    let listed = |name: &str, at: usize| config[name][at].as_f64().unwrap_or(1.0);
    let entering = number("attention_in_multiplier");
    let factor = match part {
        "token_embd" => number("embedding_multiplier"),
        "output" => number("lm_head_multiplier"),
        "attn_q" | "attn_v" => entering,
        "attn_k" => number("key_multiplier") * entering,
        "attn_output" => number("attention_out_multiplier"),
        "ffn_gate" => listed("mlp_multipliers", 0),
        "ffn_down" => listed("mlp_multipliers", 1),
        "ssm_out" => number("ssm_out_multiplier"),
        "ssm_in" => {
            let size = |name: &str| config[name].as_u64().unwrap() as usize;
            let (inner, heads) = (size("mamba_d_ssm"), size("mamba_n_heads"));
            let keys = size("mamba_n_groups") * size("mamba_d_state");
            let whole = number("ssm_in_multiplier") as f32;
            let part = |(at, rows)| (whole, listed("ssm_multipliers", at) as f32, rows);
            return [inner, inner, keys, keys, heads].into_iter().enumerate().map(part).collect();
        }
        _ => 1.0,
    };
    vec![(factor as f32, 1.0, usize::MAX)]
}

/// The elements of a tensor of which those of the file are multiples: the nearest to the quotient that give the same bits.
fn without_factors(tensor: &TensorInfo, config: &Value, cols: usize) -> Vec<f32> {
    let mut values = singles(tensor);
    if config["model_type"] != "falcon_h1" {
        return values;
    }
    let mut rows = values.chunks_mut(cols);
    for (first, second, count) in factors_of(&tensor.name, config) {
        for value in rows.by_ref().take(count).flatten() {
            let quotient = (f64::from(*value) / (f64::from(first) * f64::from(second))) as f32;
            let near = (0..9).map(|step: i32| f32::from_bits(quotient.to_bits().wrapping_add_signed(step - 4)));
            let found = near.into_iter().find(|near| near * first * second == *value);
            *value = found.expect("the file was made of such a number");
        }
    }
    values
}
