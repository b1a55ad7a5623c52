//! What a folder may say: weights that lie about themselves, configurations that ask for what the library lacks, and folders that are no
//! models are refused by file and name.

use crate::common;
use crate::common::folders::{Entry, entries_of, safetensors, with_header, write};
use crate::common::gguf::{Shape, parsed};
use crate::common::{Ctx, Failed, Folder};
use crate::folders::{assert_same, case, coded_and_decoded, gguf};
use segno::error::Error;
use segno::ffi::status::*;
use segno::format::Safetensors;
use serde_json::{Value, json};
use std::path::Path;

fn ctx() -> Ctx {
    Ctx::new(|opts| opts.n_threads = 1).unwrap()
}

fn assert_says(failed: &Failed, status: segno_status, words: &[&str]) {
    assert_eq!(failed.status, status, "{}", failed.message);
    for word in words {
        assert!(failed.message.contains(word), "`{word}` is not in: {}", failed.message);
    }
}

fn refusal(folder: &Path) -> Failed {
    ctx().load(folder).err().expect("the load must fail")
}

/// Opens `bytes` as the weights of a folder.
fn open(bytes: &[u8]) -> Result<Safetensors, Error> {
    let folder = Folder::new("safetensors");
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    let mapped = Safetensors::open(folder.path(), true, &mut |_| Ok(()));
    let read = Safetensors::open(folder.path(), false, &mut |_| Ok(()));
    assert_eq!(mapped.as_ref().err().map(Error::to_string), read.as_ref().err().map(Error::to_string));
    mapped
}

fn message(header: &str, data: &[u8]) -> String {
    open(&with_header(header, data)).expect_err("it must be refused").to_string()
}

fn entry(kind: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"a":{{"dtype":{kind},"shape":{shape},"data_offsets":{offsets}}}}}"#)
}

#[test]
fn tensors_are_found_by_name_with_type_shape_and_place() {
    let entries = [
        Entry::f32("a", &[2, 3], &[1.0; 6]),
        Entry { name: "b".into(), kind: "BF16".into(), shape: vec![], bytes: vec![1, 2] },
        Entry { name: "empty".into(), kind: "I64".into(), shape: vec![0, 7], bytes: vec![] },
    ];
    let file = open(&safetensors(&entries)).unwrap();
    assert_eq!(file.tensors().len(), 3);
    for (found, entry) in file.tensors().iter().zip(&entries) {
        assert_eq!((&found.name, found.type_name, &found.shape), (&entry.name, &*entry.kind, &entry.shape));
        let mut bytes = vec![0; found.len as usize];
        found.shard.parts.read(found.start, &mut bytes).unwrap();
        assert_eq!(bytes, entry.bytes);
        assert!(std::ptr::eq(file.tensor(&entry.name).unwrap(), found));
    }
    assert!(file.tensor("c").is_none());
    // Writers pad the header with spaces.
    assert!(open(&with_header(&format!("{}  ", entry_of_one()), &[0; 4])).is_ok());
}

fn entry_of_one() -> String {
    entry("\"F32\"", "[1]", "[0,4]")
}

#[test]
fn headers_that_lie_are_refused() {
    for (header, data, words) in [
        (entry("\"F32\"", "[1]", "[0,8]"), 8, "of shape [1] in F32 does not fill its 8 bytes"),
        (entry("\"F32\"", "[2]", "[0,4]"), 4, "does not fill"),
        (entry("\"F32\"", "[1]", "[4,0]"), 4, "`a` lies at 4 to 0"),
        (entry("\"F32\"", "[1]", "[4,8]"), 4, "`a` lies at 4 to 8, the file has 4 bytes"),
        (entry("\"F32\"", "[1]", "[18446744073709551612,18446744073709551615]"), 4, "`a` lies at"),
        (entry("\"F32\"", "[1]", "[0]"), 4, "impossible shape [1] or place [0]"),
        (entry("\"F32\"", "[1]", "[0,4,4]"), 4, "no usable `data_offsets`"),
        (entry("\"F32\"", "[-1]", "[0,4]"), 4, "no usable `shape`"),
        (entry("\"F32\"", "[1.5]", "[0,4]"), 4, "no usable `shape`"),
        (entry("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "no usable `shape`"),
        (entry("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, "impossible shape"),
        (entry("\"F32\"", "[9223372036854775808,1]", "[0,4]"), 4, "does not fill"),
        (entry("\"F4\"", "[3]", "[0,1]"), 1, "does not fill"),
        (entry("\"F33\"", "[1]", "[0,4]"), 4, "elements of type `F33`"),
        (entry("7", "[1]", "[0,4]"), 4, "has no `dtype`"),
        (entry("\"F32\"", "null", "[0,4]"), 4, "no usable `shape`"),
        (r#"{"a":[]}"#.into(), 0, "has no `dtype`"),
        ("[]".into(), 0, "its header is no map"),
        ("{".into(), 0, "not json"),
        (entry_of_one(), 9, "5 bytes behind its last tensor"),
        (format!("{{\"{}\":{{}}}}", "n".repeat(1025)), 0, "a name of 1025 bytes, at most 1024"),
    ] {
        let message = message(&header, &vec![0; data]);
        assert!(message.contains(words), "{header}: {message}");
    }
}

#[test]
fn tensors_that_overlap_leave_gaps_or_have_one_name_are_refused() {
    let two = |a: &str, b: &str, name: &str| {
        let place = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}"#);
        message(&format!(r#"{{"a":{},"{name}":{}}}"#, place(a), place(b)), &[0; 10])
    };
    assert!(two("[0,4]", "[2,6]", "b").contains("they overlap"));
    assert!(two("[0,4]", "[0,4]", "b").contains("they overlap"));
    assert!(two("[0,4]", "[6,10]", "b").contains("belong to no tensor"));
    assert!(two("[2,6]", "[6,10]", "b").contains("belong to no tensor"));
    assert!(two("[0,4]", "[4,8]", "a").contains("`a` appears twice"));
}

#[test]
fn lengths_of_headers_are_checked_before_anything_is_read() {
    for (bytes, words) in [
        (vec![], "0 bytes are too few"),
        (vec![1, 0, 0, 0, 0, 0, 0], "7 bytes are too few"),
        (u64::MAX.to_le_bytes().to_vec(), "truncated: its header needs 18446744073709551615 bytes, 0 are left"),
        ([&10u64.to_le_bytes()[..], b"{}"].concat(), "needs 10 bytes, 2 are left"),
    ] {
        let message = open(&bytes).err().unwrap().to_string();
        assert!(message.contains(words) && message.contains("model.safetensors: "), "{message}");
    }
    let folder = Folder::new("long-header");
    let path = folder.join("model.safetensors");
    std::fs::write(&path, (1u64 << 30).to_le_bytes()).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4 << 30).unwrap();
    let error = Safetensors::open(folder.path(), true, &mut |_| Ok(())).err().unwrap().to_string();
    assert!(error.contains("a header of 1073741824 bytes, at most 16777216 are allowed"), "{error}");
}

/// A model that loads: its configuration and tensors.
fn model() -> (Value, Vec<Entry>) {
    let gguf = parsed(&Shape::small().file().bytes());
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "num_hidden_layers": 2, "intermediate_size": 96, "max_position_embeddings": 256, "rms_norm_eps": 1e-5
    });
    let entries = entries_of(&gguf, &config);
    (config, entries)
}

#[test]
fn settings_that_change_the_result_are_refused_by_name() {
    let folder = Folder::new("settings");
    let (config, entries) = model();
    write(folder.path(), &config, &entries);
    assert!(ctx().load(folder.path()).is_ok());
    for (name, value, status, words) in [
        (
            "model_type",
            json!("mamba"),
            SEGNO_E_UNSUPPORTED,
            "`mamba` of config.json is not supported; supported: llama, mistral",
        ),
        ("model_type", json!(7), SEGNO_E_FORMAT, "`model_type` is missing"),
        ("hidden_act", json!("gelu"), SEGNO_E_UNSUPPORTED, "`hidden_act`"),
        ("hidden_act", json!(7), SEGNO_E_UNSUPPORTED, "`hidden_act`"),
        ("partial_rotary_factor", json!(0.5), SEGNO_E_UNSUPPORTED, "`partial_rotary_factor` of config.json is 0.5"),
        ("num_local_experts", json!(8), SEGNO_E_UNSUPPORTED, "`num_local_experts`"),
        ("attn_logit_softcapping", json!(50.0), SEGNO_E_UNSUPPORTED, "`attn_logit_softcapping`"),
        ("logits_scaling", json!(8), SEGNO_E_UNSUPPORTED, "`logits_scaling`"),
        ("use_bidirectional_attention", json!(true), SEGNO_E_UNSUPPORTED, "`use_bidirectional_attention`"),
        ("no_rope_layers", json!([1, 0]), SEGNO_E_UNSUPPORTED, "`no_rope_layers`"),
        ("rope_scaling", json!({"type": "dynamic", "factor": 2.0}), SEGNO_E_UNSUPPORTED, "rope scaling `dynamic`"),
        ("rope_scaling", json!({"type": "linear"}), SEGNO_E_FORMAT, "`factor` is missing"),
        (
            "rope_scaling",
            json!({"type": "linear", "factor": -1}),
            SEGNO_E_FORMAT,
            "`factor` is -1, it must be a positive number",
        ),
        (
            "rope_parameters",
            json!({"full_attention": {}, "sliding_attention": {}}),
            SEGNO_E_FORMAT,
            "rotates local layers",
        ),
        ("quantization_config", json!({"quant_method": "gptq"}), SEGNO_E_UNSUPPORTED, "quantized by `gptq`"),
        ("quantization_config", json!({"quant_method": "fp8"}), SEGNO_E_UNSUPPORTED, "without blocks"),
        ("hidden_size", json!(null), SEGNO_E_FORMAT, "config.json: `hidden_size` is missing"),
        ("hidden_size", json!("x"), SEGNO_E_FORMAT, "`hidden_size` is `x`, it must be a positive number"),
        ("hidden_size", json!(1.5), SEGNO_E_FORMAT, "`hidden_size` is 1.5, it must be a whole number"),
        ("hidden_size", json!(1u64 << 40), SEGNO_E_FORMAT, "it must be a whole number below 2^32"),
        ("hidden_size", json!(1 << 20), SEGNO_E_FORMAT, "1 to 131072 are supported"),
        ("num_attention_heads", json!(3), SEGNO_E_FORMAT, "which are no pairs of 3 heads"),
        ("max_position_embeddings", json!(0), SEGNO_E_FORMAT, "`max_position_embeddings` is missing"),
    ] {
        let mut config = config.clone();
        config[name] = value;
        write(folder.path(), &config, &entries);
        assert_says(&refusal(folder.path()), status, &[words]);
    }
}

/// Changes the tensors of a folder.
type Change = fn(&mut Vec<Entry>);

#[test]
fn tensors_that_are_missing_strange_or_of_other_types_are_refused_by_name() {
    let folder = Folder::new("tensors");
    let (mut config, entries) = model();
    let changes: [(Change, segno_status, &str); 7] = [
        (|all| all.retain(|e| e.name != "model.norm.weight"), SEGNO_E_FORMAT, "tensor `output_norm.weight` is missing"),
        (
            |all| all.push(Entry::f32("model.layers.0.mlp.experts.0.w", &[1], &[0.0])),
            SEGNO_E_UNSUPPORTED,
            "`model.layers.0.mlp.experts.0.w`",
        ),
        (
            |all| all.push(Entry::f32("model.layers.7.mlp.up_proj.weight", &[1, 1], &[0.0])),
            SEGNO_E_UNSUPPORTED,
            "`blk.7.ffn_up.weight`",
        ),
        (
            |all| all.push(Entry::f32("model.language_model.norm.weight", &[1], &[0.0])),
            SEGNO_E_FORMAT,
            "`output_norm.weight` appears twice",
        ),
        (|all| all[0].kind = "I32".into(), SEGNO_E_UNSUPPORTED, "is stored as I32"),
        (|all| all[0].shape = vec![101, 8, 8], SEGNO_E_FORMAT, "which no weight has"),
        (|all| all[0].shape = vec![64, 101], SEGNO_E_FORMAT, "tensor `token_embd.weight` has shape"),
    ];
    for (change, status, words) in changes {
        let mut entries = entries.clone();
        change(&mut entries);
        write(folder.path(), &config, &entries);
        assert_says(&refusal(folder.path()), status, &[words]);
    }
    let without_head: Vec<Entry> = entries.iter().filter(|entry| entry.name != "lm_head.weight").cloned().collect();
    write(folder.path(), &config, &without_head);
    assert!(ctx().load(folder.path()).is_ok(), "the embedding serves as the head");
    config["tie_word_embeddings"] = json!(false);
    write(folder.path(), &config, &without_head);
    assert_says(&refusal(folder.path()), SEGNO_E_FORMAT, &["`lm_head.weight` is missing"]);
}

#[test]
fn single_experts_of_two_types_are_refused() {
    let folder = Folder::new("experts-mixed");
    let (mut config, entries) = case("qwen3moe-plain");
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [16, 24]});
    let [coded, _, decoded] = coded_and_decoded(&entries);
    for (number, kind) in [(0, "BF16"), (1, "F8_E4M3")] {
        let is_coded = |entry: &&Entry| entry.name.contains(&format!("layers.1.mlp.experts.{number}.up_proj"));
        let (mixed, one) = (decoded.iter().filter(|entry| !is_coded(entry)), coded.iter().filter(is_coded));
        write(folder.path(), &config, &mixed.chain(one).cloned().collect::<Vec<_>>());
        let words = format!("layers.1.mlp.experts.1.up_proj.weight` of shape [24, 32] in {kind} is not like");
        assert_says(&refusal(folder.path()), SEGNO_E_FORMAT, &[&words]);
    }
}

#[test]
fn folders_that_are_no_models_are_told_what_they_lack() {
    let folder = Folder::new("no-model");
    assert_says(&refusal(folder.path()), SEGNO_E_INVALID_ARGUMENT, &["is a folder without config.json", ".gguf"]);
    std::fs::write(folder.join("config.json"), model().0.to_string()).unwrap();
    assert_says(
        &refusal(folder.path()),
        SEGNO_E_UNSUPPORTED,
        &["holds neither model.safetensors nor", "as safetensors"],
    );
    std::fs::write(folder.join("pytorch_model.bin"), "").unwrap();
    assert_says(&refusal(folder.path()), SEGNO_E_UNSUPPORTED, &["pytorch files: convert"]);
    for (index, words) in [
        ("[]", "`weight_map` is missing"),
        ("{\"weight_map\": {}}", "`weight_map` is empty"),
        ("{\"weight_map\": {\"a\": 1}}", "names no file"),
        ("{\"weight_map\": {\"a\": \"../a.safetensors\"}}", "`../a.safetensors` is no name of a .safetensors file"),
        ("{\"weight_map\": {\"a\": \"config.json\"}}", "`config.json` is no name"),
    ] {
        std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
        assert_says(&refusal(folder.path()), SEGNO_E_FORMAT, &["model.safetensors.index.json: ", words]);
    }
    std::fs::write(folder.join("model.safetensors.index.json"), "{\"weight_map\": {\"b\": \"x.safetensors\"}}")
        .unwrap();
    assert_eq!(refusal(folder.path()).status, SEGNO_E_IO);
    std::fs::write(folder.join("x.safetensors"), with_header(&entry_of_one(), &[0; 4])).unwrap();
    assert_says(
        &refusal(folder.path()),
        SEGNO_E_FORMAT,
        &["x.safetensors: tensor `b`, which model.safetensors.index.json places there"],
    );
    std::fs::write(folder.join("config.json"), " ".repeat((4 << 20) + 1)).unwrap();
    assert_says(
        &refusal(folder.path()),
        SEGNO_E_FORMAT,
        &["config.json has 4194305 bytes, at most 4194304 are allowed"],
    );
}

#[test]
fn public_safetensors_are_read_and_a_damaged_one_is_refused() {
    let Some(data) = common::shared_data() else { return };
    let open_file = |name: &str| open(&std::fs::read(data.join("files").join(name)).unwrap());
    for (name, kind, shape) in [
        ("tensor-1d-int32.safetensors", "I32", 1),
        ("tensor-2d-float64.safetensors", "F64", 2),
        ("tensor-3d-float32.safetensors", "F32", 3),
        ("tensor-4d-float32.safetensors", "F32", 4),
    ] {
        let file = open_file(name).unwrap();
        assert!(file.tensors().iter().all(|tensor| tensor.type_name == kind && tensor.shape.len() == shape), "{name}");
        assert!(!file.tensors().is_empty());
    }
    assert!(open_file("tiny.safetensors").err().unwrap().to_string().contains("5 bytes behind its last tensor"));
}

/// Changes a configuration.
type Setting = fn(&mut Value);

/// Encoders of images and sound stay out; what a layer says of itself alone must be the same in all layers of its kind.
#[test]
fn gemma_4_is_loaded_without_what_sees_and_hears() {
    let folder = Folder::new("folder-gemma4");
    let (text, mut entries) = case("gemma4-small");
    let config = json!({"model_type": "gemma4", "text_config": text, "audio_config": {"hidden_size": 8}});
    entries.iter_mut().for_each(|entry| entry.name = entry.name.replacen("model.", "model.language_model.", 1));
    for name in ["model.audio_tower.layers.0.norm.weight", "model.embed_vision.embedding_projection.weight"] {
        entries.push(Entry::f32(name, &[2], &[1.0, 2.0]));
    }
    write(folder.path(), &config, &entries);
    assert_same(folder.path(), &gguf("gemma4-small"));
    let changes: [(Setting, &str); 4] = [
        (|text| text["per_layer_config"]["2"]["head_dim"] = json!(24), "`head_dim` of config.json differs"),
        (|text| text["per_layer_config"]["2"]["head_dim"] = json!("x"), "`head_dim` is"),
        (|text| text["use_bidirectional_attention"] = json!("all"), "`use_bidirectional_attention`"),
        (|text| text["rope_parameters"]["full_attention"]["factor"] = json!(8.0), "rope scaling `proportional`"),
    ];
    for (change, words) in changes {
        let mut config = config.clone();
        change(&mut config["text_config"]);
        write(folder.path(), &config, &entries);
        let message = ctx().load(folder.path()).err().unwrap().message;
        assert!(message.contains(words), "{message}");
    }
}
