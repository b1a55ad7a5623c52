//! Hugging Face folders: each gives the bits of the GGUF file that was made of the same model, for every family, storage type and way to
//! write a configuration. Two folders are as transformers wrote them (`tests/golden/make_hf_models.py`), `SEGNO_HF_FOLDERS` names more of
//! its making; the others are made of the GGUF files.

use crate::common;
use crate::common::folders::recurrent::round_rates;
use crate::common::folders::{Entry, entries_of, write, write_shards};
use crate::common::gguf::{Content, File, Tensor};
use crate::common::predictors::file_at;
use crate::common::{Ctx, Folder, Model, Watch, call, greedy, model_opts, root, shared_data};
use half::{bf16, f16};
use segno::ffi::ctx::{SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::model::SEGNO_MODEL_NO_MMAP;
use segno::ffi::plan::{segno_plan, segno_plan_get};
use segno::ffi::status::*;
use segno::ffi::text::SEGNO_TOKENIZE_ADD_SPECIAL;
use segno::format::Gguf;
use serde_json::{Value, json};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::ptr::null;

const PROMPT: [i32; 24] = [80, 61, 49, 26, 29, 3, 7, 1, 16, 78, 62, 88, 48, 58, 95, 70, 60, 52, 90, 53, 8, 71, 68, 2];

fn golden() -> PathBuf {
    root().join("tests/golden/hf")
}

pub fn gguf(name: &str) -> PathBuf {
    golden().join(format!("{name}.gguf"))
}

/// The configurations of all cases, as transformers wrote them.
fn configs() -> serde_json::Map<String, Value> {
    let configs = serde_json::from_slice(&std::fs::read(golden().join("configs.json")).unwrap()).unwrap();
    let Value::Object(configs) = configs else { panic!() };
    assert_eq!(configs.len(), 67);
    configs
}

/// The configuration and tensors of one case.
pub fn case(name: &str) -> (Value, Vec<Entry>) {
    let config = configs()[name].clone();
    let entries = entries_of(&Gguf::open(&gguf(name), true, &mut |_| Ok(())).unwrap(), &config);
    (config, entries)
}

fn ctx(precision: i32) -> Ctx {
    Ctx::new(|opts| (opts.precision, opts.n_threads) = (precision, 2)).unwrap()
}

/// The bits of the logits after the prompt, and of those after each of the first tokens.
fn bits(model: &Model) -> Vec<Vec<u32>> {
    let vocab = model.info().vocab as i32;
    let session = model.session_f32();
    let seq = session.open(&greedy()).unwrap();
    let (first, rest) = PROMPT.split_at(4);
    let tokens = |tokens: &[i32]| tokens.iter().map(|token| token % vocab).collect::<Vec<_>>();
    let mut rows = Vec::new();
    for token in tokens(first) {
        session.append(seq, &[token]).unwrap();
        rows.push(session.logits(seq).unwrap());
    }
    session.append(seq, &tokens(rest)).unwrap();
    rows.push(session.logits(seq).unwrap());
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// Loads `folder` mapped and read, and compares both with `file` in both precisions.
pub fn assert_same(folder: &Path, file: &Path) {
    for precision in [SEGNO_PRECISION_PRECISE, SEGNO_PRECISION_DEFAULT] {
        let ctx = ctx(precision);
        let expected = bits(&ctx.load(file).unwrap());
        for flags in [0, SEGNO_MODEL_NO_MMAP] {
            let (_, model) = ctx.load_with(folder, &model_opts(flags, &mut Watch::default())).unwrap();
            assert!(bits(&model) == expected, "{} differs (flags {flags})", folder.display());
        }
    }
}

#[test]
fn every_family_gives_the_bits_of_its_gguf_file() {
    for name in configs().keys() {
        let folder = Folder::new(&format!("folder-{name}"));
        let (config, entries) = case(name);
        write(folder.path(), &config, &entries);
        assert_same(folder.path(), &expected(name, &folder));
    }
}

fn has_rates(file: &File) -> bool {
    file.tensors.iter().any(|tensor| tensor.name.ends_with(".ssm_a"))
}

/// The GGUF file of a case; where it has rates of decay, these as folders can tell them.
pub fn expected(name: &str, folder: &Folder) -> PathBuf {
    let mut file = file_at(&gguf(name));
    if !has_rates(&file) {
        return gguf(name);
    }
    round_rates(&mut file);
    file.write(&folder.join("expected.gguf"));
    folder.join("expected.gguf")
}

#[test]
fn folders_that_transformers_wrote_give_the_same_bits() {
    let more = std::env::var_os("SEGNO_HF_FOLDERS").map(PathBuf::from);
    let mut found = 0;
    for folders in [golden().join("folders")].into_iter().chain(more) {
        for folder in std::fs::read_dir(folders).unwrap().map(|entry| entry.unwrap().path()) {
            let name = folder.file_name().unwrap().to_str().unwrap();
            // Rates of decay are exponentials by NumPy in the files, of which some are not the nearest singles.
            if !has_rates(&file_at(&gguf(name))) {
                assert_same(&folder, &gguf(name));
                found += 1;
            }
        }
    }
    assert!(found >= 3);
}

/// Of experts, the tensors stand in any order; blocks behind the layers are left out; floats of any width give what the file's tables of that width
/// give, and a table that lacks a part is refused by its name.
#[test]
fn tables_are_made_of_the_tensors_of_experts() {
    let folder = Folder::new("folder-tables");
    let (config, mut entries) = case("glm4moe-plain");
    entries.sort_by_key(|entry| entry.name.len() * 7919 % 13);
    entries.push(Entry::f32("model.layers.3.eh_proj.weight", &[2, 2], &[0.0; 4]));
    write(folder.path(), &config, &entries);
    assert_same(folder.path(), &gguf("glm4moe-plain"));

    let refused = |config: &Value, entries: &[Entry]| {
        write(folder.path(), config, entries);
        ctx(SEGNO_PRECISION_DEFAULT).load(folder.path()).err().unwrap().message
    };
    let without: Vec<Entry> =
        entries.iter().filter(|entry| !entry.name.contains("layers.1.mlp.experts.3.up_proj")).cloned().collect();
    assert!(refused(&config, &without).contains("none of expert 3"));
    let mut ragged = entries.clone();
    let entry = ragged.iter_mut().find(|entry| entry.name.contains("layers.2.mlp.experts.5.down_proj")).unwrap();
    entry.shape.reverse();
    assert!(refused(&config, &ragged).contains("layers.2.mlp.experts.5.down_proj.weight` of shape"));
    let mut many = entries.clone();
    many.push(Entry::f32("model.layers.1.mlp.experts.4000000000.up_proj.weight", &[1, 1], &[0.0]));
    assert!(refused(&config, &many).contains("expert 4000000000"));
    for (name, value, words) in [
        ("num_nextn_predict_layers", json!(0), "model.layers.3.eh_proj.weight"),
        ("n_routed_experts", json!(12), "ffn_gate_inp.weight"),
        ("n_routed_experts", json!("x"), "`n_routed_experts`"),
        ("num_experts_per_tok", json!([3, 4]), "`num_experts_per_tok`"),
        ("n_group", json!(3), "expert_group_count"),
    ] {
        let mut config = config.clone();
        config[name] = value;
        let message = refused(&config, &entries);
        assert!(message.contains(words), "{message}");
    }
    let (mut config, entries) = case("qwen3moe-plain");
    config["mlp_only_layers"] = json!([1]);
    assert!(refused(&config, &entries).contains("mlp_only_layers"));
}

#[test]
fn shards_are_joined() {
    let folder = Folder::new("folder-shards");
    let (config, entries) = case("qwen3-tied");
    for files in [1, 2, entries.len()] {
        write_shards(folder.path(), &config, &entries, files);
        assert_same(folder.path(), &gguf("qwen3-tied"));
    }
}

/// Changes a configuration.
type Change = fn(&mut Value);

/// What older writers wrote, or left out, for the same model.
const OLDER: [(&str, Change); 8] = [
    ("llama-llama3", |config| {
        let mut scaling = config["rope_parameters"].take();
        config["rope_theta"] = scaling["rope_theta"].take();
        scaling.as_object_mut().unwrap().remove("rope_theta");
        config["rope_scaling"] = scaling;
    }),
    ("llama-yarn", |config| {
        config["rope_scaling"] = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        config.as_object_mut().unwrap().remove("rope_parameters");
    }),
    ("gemma3-plain", |config| {
        let config = config.as_object_mut().unwrap();
        ["rope_parameters", "layer_types", "tie_word_embeddings"].iter().for_each(|name| _ = config.remove(*name));
        config.extend([("sliding_window_pattern".into(), json!(6)), ("rope_theta".into(), json!(1_000_000))]);
        config.insert("rope_local_base_freq".into(), json!(10_000));
    }),
    ("gemma2-plain", |config| _ = config.as_object_mut().unwrap().remove("layer_types")),
    ("exaone4-window", |config| {
        config.as_object_mut().unwrap().remove("layer_types");
        config["sliding_window_pattern"] = json!("LLLG");
    }),
    ("olmo3-yarn", |config| {
        config["rope_scaling"] = config["rope_parameters"]["full_attention"].take();
        config["rope_theta"] = json!(500_000.0);
        config.as_object_mut().unwrap().remove("rope_parameters");
    }),
    ("granite-plain", |config| _ = config.as_object_mut().unwrap().remove("rope_parameters")),
    ("gemma4-experts", |config| {
        let config = config.as_object_mut().unwrap();
        config.remove("per_layer_config");
        config.extend([("global_head_dim".into(), json!(32)), ("num_global_key_value_heads".into(), json!(1))]);
        config.insert("use_bidirectional_attention".into(), json!("vision"));
        config.remove("rope_parameters");
    }),
];

#[test]
fn configurations_of_older_writers_mean_the_same() {
    let folder = Folder::new("folder-older");
    for (name, change) in OLDER {
        let (mut config, entries) = case(name);
        change(&mut config);
        write(folder.path(), &config, &entries);
        assert_same(folder.path(), &gguf(name));
    }
}

#[test]
fn the_text_part_of_a_model_for_images_is_loaded_alone() {
    let folder = Folder::new("folder-images");
    let (text, entries) = case("gemma3-plain");
    let config = json!({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}});
    for prefix in ["language_model.model.", "model.language_model."] {
        let mut entries = entries.clone();
        entries.iter_mut().for_each(|entry| entry.name = entry.name.replacen("model.", prefix, 1));
        entries.push(Entry::f32("vision_tower.vision_model.post_layernorm.weight", &[2], &[1.0, 2.0]));
        write(folder.path(), &config, &entries);
        assert_same(folder.path(), &gguf("gemma3-plain"));
    }
}

/// A matrix of a folder under another type, by `change` of each value.
fn retyped<const N: usize>(entries: &[Entry], kind: &str, change: impl Fn(f32) -> [u8; N]) -> Vec<Entry> {
    let retype = |entry: &Entry| {
        let bytes = entry.values().into_iter().flat_map(&change).collect();
        Entry { kind: kind.to_owned(), bytes, ..entry.clone() }
    };
    entries.iter().map(retype).collect()
}

/// The golden GGUF file with matrices of another type, by `change` of each value.
fn retyped_gguf<const N: usize>(name: &str, type_id: u32, change: impl Fn(f32) -> [u8; N]) -> File {
    let path = gguf(name);
    let golden = Gguf::open(&path, true, &mut |_| Ok(())).unwrap();
    let mut file = metadata_of(&golden);
    for tensor in golden.tensors() {
        let raw = tensor.bytes(4 * tensor.elements() as usize).unwrap();
        let values = raw.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap()));
        let is_matrix = tensor.dims.len() > 1;
        let bytes = if is_matrix { values.flat_map(&change).collect() } else { raw.to_vec() };
        let type_id = if is_matrix { type_id } else { 0 };
        file.tensors.push(Tensor {
            name: tensor.name.clone(),
            dims: tensor.dims.clone(),
            type_id,
            content: Content::Bytes(bytes),
        });
    }
    file
}

/// A file with the sizes of a Llama, and no tensors.
fn metadata_of(golden: &Gguf) -> File {
    let mut file = File::default();
    let meta = golden.metadata();
    file.set("general.architecture", "llama").set("tokenizer.ggml.model", "no_vocab");
    for key in [
        "context_length",
        "embedding_length",
        "block_count",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "feed_forward_length",
    ] {
        let key = format!("llama.{key}");
        file.set(&key, meta.u32(&key).unwrap().unwrap());
    }
    let key = "llama.attention.layer_norm_rms_epsilon";
    file.set(key, meta.f32(key).unwrap().unwrap());
    file
}

#[test]
fn halves_are_used_as_they_are_stored() {
    let folder = Folder::new("folder-halves");
    let (config, entries) = case("llama-ratio1");
    let file = folder.join("model.gguf");
    let vectors_as_f32 = |bytes: [u8; 2], decode: fn([u8; 2]) -> f32| decode(bytes);
    let bf16_bytes = |value: f32| bf16::from_f32(value).to_le_bytes();
    let f16_bytes = |value: f32| f16::from_f32(value).to_le_bytes();
    for (kind, type_id, change, decode) in [
        (
            "BF16",
            30,
            &bf16_bytes as &dyn Fn(f32) -> [u8; 2],
            (|raw| bf16::from_le_bytes(raw).to_f32()) as fn([u8; 2]) -> f32,
        ),
        ("F16", 1, &f16_bytes, |raw| f16::from_le_bytes(raw).to_f32()),
    ] {
        write(&folder.join("folder"), &config, &retyped(&entries, kind, change));
        let mut expected = retyped_gguf("llama-ratio1", type_id, change);
        // Vectors become singles.
        for tensor in expected.tensors.iter_mut().filter(|tensor| tensor.dims.len() == 1) {
            let Content::Bytes(bytes) = &mut tensor.content else { panic!() };
            for raw in bytes.chunks_exact_mut(4) {
                let value = f32::from_le_bytes(raw.try_into().unwrap());
                raw.copy_from_slice(&vectors_as_f32(change(value), decode).to_le_bytes());
            }
        }
        expected.write(&file);
        assert_same(&folder.join("folder"), &file);
    }
}

/// An E4M3 number, by the format's definition.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
    if bits & 0x80 != 0 { -magnitude } else { magnitude }
}

/// The matrices of `entries` as 8-bit floats with scales by block, as what those are multiplied with them, and as the same rounded to BF16. Routers
/// stay what they are.
pub fn coded_and_decoded(entries: &[Entry]) -> [Vec<Entry>; 3] {
    let (mut coded, mut exact, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
    for (number, entry) in (0u64..).zip(entries) {
        let matrix = entry.shape.first_chunk().filter(|_| entry.shape.len() == 2);
        let Some(&[rows, cols]) = matrix.filter(|_| !entry.name.ends_with("mlp.gate.weight")) else {
            [&mut coded, &mut exact, &mut decoded].into_iter().for_each(|entries| entries.push(entry.clone()));
            continue;
        };
        let codes: Vec<u8> = (0..rows * cols)
            .map(|at| ((at * 37 + number * 11) % 251) as u8)
            .map(|code| if code & 0x7f == 0x7f { 3 } else { code })
            .collect();
        let scales: Vec<f32> = (0..rows.div_ceil(16) * cols.div_ceil(24))
            .map(|at| 0.001 + 0.0001 * at as f32 + 0.00001 * number as f32)
            .collect();
        let value = |at: u64| {
            let (row, col) = (at / cols, at % cols);
            e4m3(codes[at as usize]) * scales[(row / 16 * cols.div_ceil(24) + col / 24) as usize]
        };
        exact.push(Entry::f32(&entry.name, &entry.shape, &(0..rows * cols).map(value).collect::<Vec<f32>>()));
        let bytes = (0..rows * cols).flat_map(|at| bf16::from_f32(value(at)).to_le_bytes()).collect();
        decoded.push(Entry { kind: "BF16".into(), bytes, ..entry.clone() });
        coded.push(Entry { kind: "F8_E4M3".into(), bytes: codes.clone(), ..entry.clone() });
        let shape = [rows.div_ceil(16), cols.div_ceil(24)];
        coded.push(Entry::f32(&format!("{}_scale_inv", entry.name), &shape, &scales));
    }
    [coded, exact, decoded]
}

#[test]
fn floats_of_8_bits_are_multiplied_by_the_scales_of_their_blocks() {
    let folder = Folder::new("folder-fp8");
    for name in ["qwen3moe-plain", "llama-ratio1"] {
        let (mut config, entries) = case(name);
        let [coded, _, decoded] = coded_and_decoded(&entries);
        write(&folder.join("decoded"), &config, &decoded);
        config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [16, 24], "fmt": "e4m3"});
        write(&folder.join("coded"), &config, &coded);
        assert_same(&folder.join("coded"), &folder.join("decoded"));
    }
    let (mut config, entries) = case("llama-ratio1");
    let [coded, ..] = coded_and_decoded(&entries);
    // Without its scales, or with those of other blocks, the same is refused.
    let refused = |config: &Value, entries: &[Entry]| {
        write(&folder.join("refused"), config, entries);
        ctx(SEGNO_PRECISION_DEFAULT).load(&folder.join("refused")).err().unwrap()
    };
    assert!(refused(&config, &coded).message.contains("8-bit floats without `weight_block_size`"));
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [16, 16]});
    let failed = refused(&config, &coded);
    assert!(failed.status == SEGNO_E_FORMAT && failed.message.contains("_scale_inv` has shape"), "{}", failed.message);
}

fn plan(ctx: &Ctx, path: &Path) -> common::Result<segno_plan> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the struct holds numbers, for which zero is a value.
    let mut plan = unsafe { std::mem::zeroed() };
    call(|err| segno_plan_get(ctx.0, path.as_ptr(), null(), null(), &mut plan, size_of::<segno_plan>(), err))
        .map(|_| plan)
}

#[test]
fn a_plan_of_a_folder_is_that_of_its_gguf_file() {
    let ctx = ctx(SEGNO_PRECISION_DEFAULT);
    for name in ["llama-llama3", "gemma2-plain"] {
        let (folder, file) = (plan(&ctx, &golden().join("folders").join(name)), plan(&ctx, &gguf(name)));
        let (folder, file) = (folder.unwrap(), file.unwrap());
        assert_eq!((folder.fits, folder.host_weights), (1, file.host_weights));
        assert_eq!((folder.host_kv, folder.host_arena), (file.host_kv, file.host_arena));
    }
}

#[test]
fn templates_and_ends_come_from_the_files_beside() {
    let folder = Folder::new("folder-text");
    let (config, mut entries) = case("llama-ratio1");
    // Rows for all tokens.
    for entry in entries.iter_mut().filter(|entry| entry.shape.first() == Some(&131) && entry.shape.len() == 2) {
        entry.shape[0] = 524;
        entry.bytes = entry.bytes.repeat(4);
    }
    write(folder.path(), &config, &entries);
    let file = |name: &str, content: &str| std::fs::write(folder.join(name), content).unwrap();
    let load = || ctx(SEGNO_PRECISION_DEFAULT).load(folder.path()).unwrap();
    assert!(load().tokenize(b"x", 0).is_err(), "there is no tokenizer");
    std::fs::copy(root().join("tests/golden/text/json/llama2.json"), folder.join("tokenizer.json")).unwrap();
    let template = |model: &Model, key: &str| model.meta(key).map(|text| String::from_utf8(text).unwrap());
    let (key, tools) = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use");
    assert_eq!((load().info().eos, template(&load(), key).is_err()), (2, true));
    file("generation_config.json", r#"{"eos_token_id": [7, 9]}"#);
    file("tokenizer_config.json", r#"{"bos_token": "<s>", "chat_template": "one"}"#);
    assert_eq!((load().info().bos, load().info().eos, template(&load(), key).unwrap().as_str()), (1, 7, "one"));
    let both = r#"[{"name": "default", "template": "two"}, {"name": "tool_use", "template": "three"}]"#;
    file("tokenizer_config.json", &format!(r#"{{"eos_token": {{"content": "</s>"}}, "chat_template": {both}}}"#));
    assert_eq!((load().info().eos, template(&load(), key).unwrap().as_str()), (2, "two"));
    assert_eq!(template(&load(), tools).unwrap(), "three");
    file("chat_template.jinja", "four");
    assert_eq!(
        (template(&load(), key).unwrap().as_str(), template(&load(), tools).unwrap().as_str()),
        ("four", "three")
    );
    for (name, content, words) in [
        ("chat_template.jinja", &b"\xff"[..], "chat_template.jinja: it is not utf-8"),
        ("generation_config.json", b"{\"eos_token_id\": \"x\"}", "generation_config.json: `eos_token_id` is `x`"),
        ("tokenizer_config.json", b"{\"chat_template\": [{}]}", "tokenizer_config.json: a chat template has no name"),
        ("tokenizer.json", b"{}", "tokenizer.json: "),
        ("tokenizer_config.json", b"[", "tokenizer_config.json: it is not json"),
    ] {
        std::fs::write(folder.join(name), content).unwrap();
        let failed = ctx(SEGNO_PRECISION_DEFAULT).load(folder.path()).err().expect(name);
        assert!(failed.status == SEGNO_E_FORMAT && failed.message.contains(words), "{}", failed.message);
        file(name, "{}");
        std::fs::copy(root().join("tests/golden/text/json/llama2.json"), folder.join("tokenizer.json")).unwrap();
    }
}

#[test]
fn progress_is_told_and_a_load_can_be_cancelled_anywhere() {
    let ctx = ctx(SEGNO_PRECISION_DEFAULT);
    let path = golden().join("folders/llama-llama3");
    for flags in [0, SEGNO_MODEL_NO_MMAP] {
        let mut watch = Watch::default();
        ctx.load_with(&path, &model_opts(flags, &mut watch)).unwrap();
        let heard = watch.heard;
        assert!(heard.len() > 5 && heard.is_sorted() && heard.last() == Some(&1.0), "{heard:?}");
        for cancel_at in 0..heard.len() {
            let mut watch = Watch { cancel_at: Some(cancel_at), ..Watch::default() };
            let (status, _) = ctx.load_with(&path, &model_opts(flags, &mut watch)).unwrap();
            assert_eq!((status, watch.heard.len()), (SEGNO_CANCELLED, cancel_at + 1));
        }
    }
}

#[test]
fn a_trained_folder_gives_its_reference_logits() {
    let Some(data) = shared_data() else { return };
    let models = data.join("models");
    let raw = std::fs::read(models.join("TinyStories-656K.ref_logits_33x2048.f32")).unwrap();
    let expected: Vec<f32> = raw.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
    let reference: Value = serde_json::from_slice(&std::fs::read(models.join("reference.json")).unwrap()).unwrap();
    let prompts = reference["TinyStories-656K"]["prompts"].as_object().unwrap();
    let model = ctx(SEGNO_PRECISION_PRECISE).load(&models.join("TinyStories-656K")).unwrap();
    assert_eq!(model.info().vocab, 2048);
    let session = model.session_f32();
    for (text, case) in prompts {
        let list = |name: &str| serde_json::from_value::<Vec<i32>>(case[name].clone()).unwrap();
        let (ids, greedy_ids) = (list("ids"), list("greedy_ids_f32"));
        let seq = session.open(&greedy()).unwrap();
        assert_eq!(model.tokenize(text.as_bytes(), SEGNO_TOKENIZE_ADD_SPECIAL).unwrap(), ids, "{text}");
        session.append(seq, &ids).unwrap();
        let found = session.generate(seq, greedy_ids.len() - ids.len()).unwrap();
        assert_eq!([&ids[..], &found[..]].concat(), greedy_ids, "{text}");
        let written = String::from_utf8(model.detokenize(&found, 0).unwrap()).unwrap();
        assert_eq!(written.trim(), case["greedy_text_f32"].as_str().unwrap().trim());
        session.close(seq).unwrap();
    }
    let rows = reference["TinyStories-656K"]["logits_ids"].as_array();
    let ids: Vec<i32> = rows.unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect();
    let seq = session.open(&greedy()).unwrap();
    for (row, &token) in ids.iter().enumerate() {
        session.append(seq, &[token]).unwrap();
        let found = session.logits(seq).unwrap();
        let worst = found.iter().zip(&expected[row * 2048..]).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
        assert!(worst < 1e-3, "row {row}: {worst}");
    }
}
