//! Folders of models whose layers have a state by the gated delta rule: other ways to write them, and sizes and shapes that fit nothing.

use crate::common::folders::recurrent::joined_experts;
use crate::common::folders::{Entry, write};
use crate::common::{Ctx, Folder};
use crate::folders::{assert_same, case, expected};
use serde_json::{Value, json};

/// The text part of a model for images, whose experts are tables.
fn seeing() -> (Value, Vec<Entry>) {
    let (text, entries) = case("qwen35moe-wide");
    let mut joined = joined_experts(&entries);
    joined.iter_mut().for_each(|entry| entry.name = entry.name.replacen("model.", "model.language_model.", 1));
    joined.push(Entry::f32("model.visual.blocks.0.norm1.weight", &[2], &[1.0, 2.0]));
    assert!(joined.iter().any(|entry| entry.shape.len() == 3 && entry.name.ends_with("experts.gate_up_proj")));
    (json!({"model_type": "qwen3_5_moe", "text_config": text}), joined)
}

/// Why the folder of this configuration and these tensors is refused.
pub fn refusal(folder: &Folder, config: &Value, entries: &[Entry]) -> String {
    write(folder.path(), config, entries);
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    ctx.load(folder.path()).err().expect("the load must fail").message
}

#[test]
fn the_kinds_of_layers_are_listed_or_told_by_an_interval() {
    let folder = Folder::new("folder-states");
    let (mut config, entries) = seeing();
    let file = expected("qwen35moe-wide", &folder);
    write(folder.path(), &config, &entries);
    assert_same(folder.path(), &file);
    config["text_config"].as_object_mut().unwrap().remove("layer_types");
    write(folder.path(), &config, &entries);
    assert_same(folder.path(), &file);
    config["text_config"]["full_attention_interval"] = json!(0);
    assert!(refusal(&folder, &config, &entries).contains("`full_attention_interval` is missing"));
}

#[test]
fn sizes_that_fit_no_tensor_and_what_the_family_does_not_know_are_refused() {
    let folder = Folder::new("folder-states-sizes");
    let (config, entries) = seeing();
    for (name, value, words) in [
        ("layer_types", json!(["linear_attention"]), "`layer_types` does not list"),
        ("layer_types", json!(vec!["linear_attention"; 5]), "`layer_types` does not list"),
        ("linear_num_key_heads", json!(2), "`linear_num_key_heads` is 2, which does not divide 9"),
        ("linear_num_value_heads", json!(18), "expected"),
        ("linear_key_head_dim", json!(7), "expected"),
        ("linear_value_head_dim", json!(1u64 << 31), "`linear_value_head_dim` is 2147483648, at most"),
        ("linear_conv_kernel_dim", json!(4), "ssm_conv1d"),
        ("linear_conv_kernel_dim", json!(-1), "`linear_conv_kernel_dim`"),
        ("attn_output_gate", json!(false), "`attn_output_gate`"),
        ("rope_parameters", json!({"mrope_section": ["x"]}), "`mrope_section`"),
    ] {
        let mut config = config.clone();
        config["text_config"][name] = value;
        let message = refusal(&folder, &config, &entries);
        assert!(message.contains(words), "{name}: {message}");
    }
}

#[test]
fn shapes_that_no_weight_has_are_refused() {
    let folder = Folder::new("folder-states-shapes");
    let (config, entries) = seeing();
    let (config_of_next, of_next) = case("qwen3next-wide");
    let refused = |config: &Value, entries: &[Entry], end: &str, change: fn(&[u64]) -> Vec<u64>| {
        let mut entries = entries.to_vec();
        let entry = entries.iter_mut().find(|entry| entry.name.ends_with(end)).unwrap();
        entry.shape = change(&entry.shape);
        entry.bytes.truncate(4 * entry.shape.iter().product::<u64>() as usize);
        refusal(&folder, config, &entries)
    };
    let halves = refused(&config, &entries, "experts.gate_up_proj", |all| vec![all[0] * 2, all[1] / 16, all[2] * 8]);
    assert!(halves.contains("gate_up_proj") && halves.contains("no halves"), "{halves}");
    let taps = refused(&config, &entries, "conv1d.weight", |all| vec![all[0] / 2, 2, all[2]]);
    assert!(taps.contains("ssm_conv1d"), "{taps}");
    let flat = refused(&config_of_next, &of_next, "in_proj_qkvz.weight", |all| vec![all[0]]);
    assert!(flat.contains("in_proj_qkvz") && flat.contains("expected rows and columns"), "{flat}");
    let cut = refused(&config, &entries, "out_proj.weight", |all| vec![all[0], all[1] - 1]);
    assert!(cut.contains("has 179 columns, expected 180"), "{cut}");
}
