//! Folders whose tensors hold a projection of all experts: with outputs or inputs as rows, gates before or between the others, as floats and in
//! blocks of 4-bit floats. `tests/golden/make_mxfp4.py` made those blocks, and the logits of transformers for them.

use crate::common::conversation::tokenized;
use crate::common::folders::fused::turned;
use crate::common::folders::{Entry, entries_of, write, write_shards};
use crate::common::gguf::{Content, File, parsed};
use crate::common::predictors::file_at;
use crate::common::tokenizers::of_kind;
use crate::common::{Ctx, Folder, Model, Watch, greedy, model_opts, root, sampler};
use crate::folders::{assert_same, case, gguf};
use crate::save::save;
use half::bf16;
use segno::ffi::ctx::SEGNO_PRECISION_PRECISE;
use segno::ffi::model::{SEGNO_MODEL_NO_MMAP, SEGNO_TYPE_BF16, SEGNO_TYPE_F16, SEGNO_TYPE_KEEP, SEGNO_TYPE_Q8_0};
use segno::ffi::seq::{segno_logit_bias, segno_sampler_opts};
use segno::ffi::status::{SEGNO_DONE, SEGNO_OK};
use segno::format::Gguf;
use segno::quant::{DType, encode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    root().join("tests/golden/mxfp4")
}

/// The configuration and tensors of the folder with blocks.
fn blocks() -> (Value, Vec<Entry>) {
    let raw = std::fs::read(golden().join("folder/model.safetensors")).unwrap();
    let (length, rest) = raw.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let entries = header.into_iter().filter(|(name, _)| name != "__metadata__").map(|(name, entry)| {
        let [from, to] = serde_json::from_value::<[usize; 2]>(entry["data_offsets"].clone()).unwrap();
        let shape = serde_json::from_value(entry["shape"].clone()).unwrap();
        Entry { name, kind: entry["dtype"].as_str().unwrap().into(), shape, bytes: data[from..to].to_vec() }
    });
    let config = serde_json::from_slice(&std::fs::read(golden().join("folder/config.json")).unwrap()).unwrap();
    (config, entries.collect())
}

fn load(path: &Path, flags: u32, quantize: i32) -> Result<Model, String> {
    let ctx = Ctx::new(|opts| (opts.precision, opts.n_threads) = (SEGNO_PRECISION_PRECISE, 3)).unwrap();
    let mut watch = Watch::default();
    let mut opts = model_opts(flags, &mut watch);
    opts.quantize = quantize;
    ctx.load_with(path, &opts).map(|(_, model)| model).map_err(|failed| failed.message)
}

/// Type, dimensions and bytes of all tensors of a file, by their names.
fn tensors_of(path: &Path) -> BTreeMap<String, (u32, Vec<u64>, Vec<u8>)> {
    let file = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let tensors = file.tensors().iter().map(|tensor| {
        let rows: u64 = tensor.dims[1..].iter().product();
        let len = DType::from_ggml(tensor.type_id).unwrap().row_bytes(tensor.dims[0]).unwrap() * rows;
        (tensor.name.clone(), (tensor.type_id, tensor.dims.clone(), tensor.bytes(len as usize).unwrap().to_vec()))
    });
    tensors.collect()
}

/// Compares what is saved of `folder`, mapped and read, with the tensors of `file`, bit for bit.
fn assert_tensors(folder: &Path, file: &Path, quantize: i32) {
    let saved = Folder::new("experts-saved");
    let expected = tensors_of(file);
    for flags in [0, SEGNO_MODEL_NO_MMAP] {
        save(&load(folder, flags, quantize).unwrap(), &saved.join("saved.gguf")).unwrap();
        let found = tensors_of(&saved.join("saved.gguf"));
        assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{name} of {} differs (flags {flags})", folder.display());
        }
    }
}

#[test]
fn blocks_keep_their_bits_and_give_the_logits_of_transformers() {
    let (folder, file) = (golden().join("folder"), golden().join("model.gguf"));
    assert_same(&folder, &file);
    assert_tensors(&folder, &file, SEGNO_TYPE_KEEP);
    assert!(tensors_of(&file).values().filter(|tensor| tensor.0 == DType::MXFP4.ggml_id()).count() == 6);
    let (model, index) = (load(&folder, 0, SEGNO_TYPE_KEEP).unwrap(), root().join("tests/golden/hf/index.json"));
    let index: Value = serde_json::from_slice(&std::fs::read(index).unwrap()).unwrap();
    let raw = std::fs::read(golden().join("logits.f32")).unwrap();
    let expected: Vec<f32> = raw.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
    let session = model.session_f32();
    let seq = session.open(&greedy()).unwrap();
    let vocab = model.info().vocab as usize;
    for (number, expected) in expected.chunks_exact(vocab).enumerate() {
        session.append(seq, &[index["prompt"][number].as_i64().unwrap() as i32]).unwrap();
        let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
        let difference = squares(&mut session.logits(seq).unwrap().iter().zip(expected).map(|(a, b)| a - b));
        let distance = (difference / squares(&mut expected.iter().copied())).sqrt();
        assert!(distance < 2e-5, "row {number}: {distance:.1e}");
    }
}

#[test]
fn blocks_and_scales_are_found_in_any_file() {
    let folder = Folder::new("experts-shards");
    let (config, mut entries) = blocks();
    entries.sort_by_key(|entry| entry.name.len() * 7919 % 13);
    for files in [2, entries.len()] {
        write_shards(folder.path(), &config, &entries, files);
        assert_tensors(folder.path(), &golden().join("model.gguf"), SEGNO_TYPE_KEEP);
    }
}

/// A file whose matrices are encoded by `change`; the values of others stay.
fn encoded(name: &str, dtype: DType) -> File {
    let mut file = file_at(&gguf(name));
    let is_matrix =
        |name: &str| !name.ends_with("norm.weight") && !name.ends_with(".bias") && !name.contains("gate_inp");
    for tensor in file.tensors.iter_mut().filter(|tensor| tensor.dims.len() > 1 && is_matrix(&tensor.name)) {
        let Content::Bytes(raw) = &tensor.content else { panic!() };
        let values: Vec<f32> = raw.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
        let mut bytes = vec![0; dtype.row_bytes(values.len() as u64).unwrap() as usize];
        encode::encode(dtype, &values, &mut bytes);
        (tensor.type_id, tensor.content) = (dtype.ggml_id(), Content::Bytes(bytes));
    }
    file
}

/// Folders of the two families, with inputs as rows and with outputs as rows.
fn either_way() -> Vec<(&'static str, Value, Vec<Entry>)> {
    let (config, entries) = case("qwen3vlmoe-text");
    let (of_turns, turning) = case("gptoss-plain");
    // As Qwen published the same.
    let mut older = config.clone();
    let text = older["text_config"].as_object_mut().unwrap();
    let mut rope = text.remove("rope_parameters").unwrap();
    text.extend([("rope_theta".into(), rope["rope_theta"].take()), ("norm_topk_prob".into(), json!(true))]);
    let experts = text.remove("num_local_experts").unwrap();
    text.extend([
        ("rope_scaling".into(), json!({"rope_type": "default", "mrope_interleaved": true})),
        ("num_experts".into(), experts),
    ]);
    let mut published: Vec<Entry> = entries.iter().map(turned).collect();
    published.iter_mut().for_each(|entry| entry.name = entry.name.replacen("model.", "model.language_model.", 1));
    published.push(Entry::f32("model.visual.blocks.0.norm1.bias", &[2], &[1.0, 2.0]));
    vec![
        ("gptoss-plain", of_turns, turning),
        ("qwen3vlmoe-text", config, entries),
        ("qwen3vlmoe-text", older, published),
    ]
}

#[test]
fn tables_become_those_of_files_whichever_way_they_stand() {
    let folder = Folder::new("experts-turned");
    let shapes = either_way().into_iter().map(|(name, config, entries)| {
        write(folder.path(), &config, &entries);
        assert_same(folder.path(), &gguf(name));
        assert_tensors(folder.path(), &gguf(name), SEGNO_TYPE_KEEP);
        let table = entries.iter().find(|entry| entry.name.ends_with("gate_up_proj")).unwrap();
        table.shape.clone()
    });
    assert_eq!(shapes.collect::<Vec<_>>(), [[5, 32, 40], [6, 48, 32], [6, 32, 48]]);
}

#[test]
fn tables_of_halves_stay_halves_and_all_are_quantized_while_they_are_loaded() {
    let folder = Folder::new("experts-halves");
    for (name, config, mut entries) in either_way() {
        write(&folder.join("floats"), &config, &entries);
        for (quantize, dtype) in [(SEGNO_TYPE_BF16, DType::BF16), (SEGNO_TYPE_F16, DType::F16)] {
            encoded(name, dtype).write(&folder.join("expected.gguf"));
            assert_tensors(&folder.join("floats"), &folder.join("expected.gguf"), quantize);
            assert_tensors(&gguf(name), &folder.join("expected.gguf"), quantize);
        }
        encoded(name, DType::BF16).write(&folder.join("expected.gguf"));
        for entry in entries.iter_mut().filter(|entry| entry.shape.len() > 1 && !entry.name.ends_with("_bias")) {
            if !entry.name.ends_with("gate.weight") && !entry.name.ends_with("router.weight") {
                entry.bytes = entry.values().iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect();
                entry.kind = "BF16".into();
            }
        }
        write(&folder.join("halves"), &config, &entries);
        assert_tensors(&folder.join("halves"), &folder.join("expected.gguf"), SEGNO_TYPE_KEEP);
    }
}

/// Columns are read in pieces, which are as long as their number allows.
#[test]
fn wide_tables_become_those_of_files() {
    let (folder, (mut config, _)) = (Folder::new("experts-wide"), case("gptoss-plain"));
    for width in [128u32, 150, 257] {
        let mut file = file_at(&gguf("gptoss-plain"));
        file.set("gpt-oss.feed_forward_length", width);
        for tensor in file.tensors.iter_mut().filter(|tensor| tensor.name.contains("_exps")) {
            tensor.dims.iter_mut().filter(|size| **size == 20).for_each(|size| *size = width.into());
            let elements: u64 = tensor.dims.iter().product();
            let value = |at: u64| ((at * 7919 + tensor.name.len() as u64) % 8191) as f32 / 81910.0 - 0.05;
            tensor.content = Content::Bytes((0..elements).flat_map(|at| value(at).to_le_bytes()).collect());
        }
        file.write(&folder.join("expected.gguf"));
        config["intermediate_size"] = json!(width);
        write(&folder.join("folder"), &config, &entries_of(&parsed(&file.bytes()), &config));
        assert_tensors(&folder.join("folder"), &folder.join("expected.gguf"), SEGNO_TYPE_KEEP);
    }
}

/// Blocks stay what they are where other matrices are quantized.
#[test]
fn blocks_stay_blocks_while_floats_are_quantized() {
    let (folder, saved) = (golden().join("folder"), Folder::new("experts-quantized"));
    save(&load(&golden().join("model.gguf"), 0, SEGNO_TYPE_Q8_0).unwrap(), &saved.join("file.gguf")).unwrap();
    assert_tensors(&folder, &saved.join("file.gguf"), SEGNO_TYPE_Q8_0);
    let kinds: Vec<u32> = tensors_of(&saved.join("file.gguf")).values().map(|tensor| tensor.0).collect();
    for dtype in [DType::MXFP4, DType::Q8_0, DType::F32] {
        assert!(kinds.contains(&dtype.ggml_id()), "{dtype}");
    }
}

fn refusal(folder: &Folder, config: &Value, entries: &[Entry]) -> String {
    write(folder.path(), config, entries);
    load(folder.path(), 0, SEGNO_TYPE_KEEP).err().expect("the load must fail")
}

/// Changes a tensor.
type Change = fn(&mut Entry);

#[test]
fn blocks_that_lack_scales_or_have_other_shapes_are_refused_by_name() {
    let folder = Folder::new("experts-blocks");
    let (config, entries) = blocks();
    let refused = |end: &str, change: Change| {
        let mut entries = entries.clone();
        let entry = entries.iter_mut().find(|entry| entry.name.ends_with(end)).unwrap();
        change(entry);
        refusal(&folder, &config, &entries)
    };
    for (end, change, words) in [
        ("down_proj_scales", (|all| all.name.push('x')) as Change, "down_proj_scales` of their scales is missing"),
        ("gate_up_proj_blocks", |all| all.kind = "I8".into(), "_blocks` has shape [4, 192, 2, 16] in I8, expected"),
        ("gate_up_proj_scales", |all| all.kind = "F8_E8M0".into(), "_scales` has shape [4, 192, 2] in F8_E8M0"),
        ("gate_up_proj_scales", |all| all.shape = vec![4, 2, 192], "expected [4, 192, 2] in U8"),
        ("gate_up_proj_blocks", |all| all.shape = vec![4, 192, 32], "expected experts, rows, blocks and 16 bytes"),
        ("gate_up_proj_blocks", |all| all.shape = vec![4, 192, 4, 8], "expected experts, rows, blocks and 16 bytes"),
        ("gate_up_proj_blocks", |all| (all.shape, all.bytes) = (vec![4, 0, 2, 16], vec![]), "which no weight has"),
        ("gate_up_proj_bias", |all| all.shape = vec![768], "which no projection of all experts has"),
        ("gate_up_proj_bias", |all| all.shape = vec![256, 3], "which no halves of experts have"),
        ("gate_up_proj_bias", |all| all.shape = vec![192, 4], "ffn_gate_exps.bias"),
        ("router.bias", |all| all.shape = vec![2, 2], "ffn_gate_inp.bias"),
        ("sinks", |all| all.shape = vec![2, 2], "attn_sinks.weight"),
    ] {
        let message = refused(end, change);
        assert!(message.contains(words), "{end}: {message}");
    }
    for (part, left) in
        [("down_proj_blocks", "down_proj_scales` is not part"), ("down_proj_scales", "of their scales is missing")]
    {
        let without: Vec<Entry> = entries.iter().filter(|entry| !entry.name.ends_with(part)).cloned().collect();
        let message = refusal(&folder, &config, &without);
        assert!(message.contains(left), "{message}");
    }
    let mut reshaped = entries;
    for entry in reshaped.iter_mut().filter(|entry| entry.name.contains("0.mlp.experts.gate_up_proj_")) {
        match entry.shape[..] {
            [_, _, _, bytes] => entry.shape = vec![8, 64, 3, bytes],
            [_, _, _] => entry.shape = vec![8, 64, 3],
            _ => {}
        }
    }
    let message = refusal(&folder, &config, &reshaped);
    assert!(message.contains("blk.0.ffn_gate_exps.weight"), "{message}");
}

#[test]
fn sizes_that_do_not_tell_rows_from_columns_are_refused() {
    let folder = Folder::new("experts-sizes");
    let (config, entries) = case("qwen3vlmoe-text");
    for (name, size, words) in [
        ("moe_intermediate_size", json!(32), "_proj` has shape [6, "),
        (
            "moe_intermediate_size",
            json!(16),
            "gate_up_proj` has shape [6, 48, 32], which does not tell rows from columns",
        ),
        ("moe_intermediate_size", json!(23), "has shape [6, 48, 32], expected 46 by 32 of each expert, or 32 by 46"),
        ("moe_intermediate_size", json!(4_294_967_295u64), "expected 8589934590 by 32"),
        ("moe_intermediate_size", json!(1u64 << 32), "`moe_intermediate_size` is 4294967296"),
        ("moe_intermediate_size", json!(null), "`moe_intermediate_size` is missing"),
        ("hidden_size", json!(24), "has shape"),
    ] {
        let mut config = config.clone();
        config["text_config"][name] = size;
        let message = refusal(&folder, &config, &entries);
        assert!(message.contains(words), "{name}: {message}");
    }
    let mut flat = entries;
    let entry = flat.iter_mut().find(|entry| entry.name.ends_with("down_proj")).unwrap();
    entry.shape = vec![192, 24];
    assert!(refusal(&folder, &config, &flat).contains("which no projection of all experts has"));
}

#[test]
fn settings_that_gpt_oss_does_not_know_are_refused_by_name() {
    let folder = Folder::new("experts-settings");
    let (config, entries) = blocks();
    for (name, value, words) in [
        ("swiglu_limit", json!(6.0), "`swiglu_limit` of config.json is 6"),
        ("hidden_act", json!("gelu"), "`hidden_act`"),
        ("quantization_config", json!({"quant_method": "gptq"}), "quantized by `gptq`"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}), "yarn whose `truncate` is true"),
        ("rope_scaling", json!(null), "`rope_parameters` is missing"),
        ("num_experts_per_tok", json!(5), "is 5 of 4 experts"),
        ("intermediate_size", json!(64), "blk.0.ffn_gate_exps.weight"),
    ] {
        let mut config = config.clone();
        config[name] = value;
        let message = refusal(&folder, &config, &entries);
        assert!(message.contains(words), "{name}: {message}");
    }
    let (mut config, entries) = case("qwen3vlmoe-text");
    config["quantization_config"] = json!({"quant_method": "mxfp4"});
    assert!(refusal(&folder, &config, &entries).contains("quantized by `mxfp4`"));
    let mut config = blocks().0;
    config.as_object_mut().unwrap().retain(|name, _| name != "num_experts_per_tok" && name != "quantization_config");
    write(folder.path(), &config, &blocks().1);
    assert_same(folder.path(), &golden().join("model.gguf"));
}

const HARMONY: &str = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|start|>assistant{% endif %}";

/// Words are cut as GPT-4o's are, and a turn ends in several ways.
#[test]
fn conversations_of_gpt_oss_come_from_the_files_beside_the_weights() {
    let folder = Folder::new("experts-harmony");
    let (config, mut entries) = blocks();
    // Rows for all tokens.
    for entry in entries.iter_mut().filter(|entry| entry.shape.first() == Some(&131)) {
        (entry.shape[0], entry.bytes) = (524, entry.bytes.repeat(4));
    }
    write(folder.path(), &config, &entries);
    let tokenizer = of_kind("harmony", None);
    let id = |name: &str| {
        let mut added = tokenizer["added_tokens"].as_array().unwrap().iter();
        added.find(|token| token["content"] == format!("<|{name}|>")).unwrap()["id"].as_i64().unwrap() as i32
    };
    let ends = ["return", "endoftext", "constrain"].map(id);
    for (name, content) in [
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", json!({"bos_token": "<|startoftext|>", "eos_token": "<|return|>"}).to_string()),
        ("generation_config.json", json!({"eos_token_id": ends}).to_string()),
        ("chat_template.jinja", HARMONY.to_owned()),
    ] {
        std::fs::write(folder.join(name), content).unwrap();
    }
    let model = load(folder.path(), 0, SEGNO_TYPE_KEEP).unwrap();
    let messages = json!([{"role": "user", "content": "THE ferryBoats' 12345//\n"}]);
    let tokens = tokenized(&model, &messages, |_| {}).unwrap();
    let of = |text: &[u8]| model.tokenize(text, 0).unwrap();
    let [start, message, end] = ["start", "message", "end"].map(id);
    let user = [vec![start], of(b"user"), vec![message], of(b"THE ferryBoats' 12345//\n"), vec![end, start]].concat();
    assert_eq!(tokens, [user, of(b"assistant")].concat());
    let session = model.session_f32();
    let done = ends.into_iter().chain([id("call")]).map(|token| (token, SEGNO_DONE));
    for (token, status) in done.chain([end, message].map(|token| (token, SEGNO_OK))) {
        let bias = segno_logit_bias { token, bias: 1e6 };
        let opts = segno_sampler_opts { bias: &bias, bias_count: 1, ..sampler() };
        let seq = session.open(&opts).unwrap();
        session.append(seq, &tokens).unwrap();
        assert_eq!(session.step(seq).unwrap(), (token, status));
        session.close(seq).unwrap();
    }
    save(&model, &folder.join("saved.gguf")).unwrap();
    let saved = load(&folder.join("saved.gguf"), 0, SEGNO_TYPE_KEEP).unwrap();
    assert_eq!((saved.info().bos, saved.info().eos), (id("startoftext"), ends[0]));
    assert_eq!(saved.meta("tokenizer.ggml.pre").unwrap(), b"gpt-4o");
    assert_eq!(tokenized(&saved, &messages, |_| {}).unwrap(), tokens);
}
