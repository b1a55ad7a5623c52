//! Folders of models some of whose layers have a short convolution or a state space: their tensors are those of the GGUF file, whichever way the
//! kinds of layers, sizes and weights are told, and what no such model has is refused by name.

use crate::common::folders::{Entry, write};
use crate::common::predictors::file_at;
use crate::common::{Ctx, Folder, Watch, greedy, model_opts, root};
use crate::folder_states::refusal;
use crate::folders::{assert_same, case, expected, gguf};
use crate::save::save;
use half::{bf16, f16};
use segno::convert::{Workshop, open, run};
use segno::ffi::ctx::SEGNO_PRECISION_PRECISE;
use segno::ffi::model::{SEGNO_TYPE_BF16, SEGNO_TYPE_F16, SEGNO_TYPE_KEEP};
use segno::format::{Gguf, TensorInfo};
use segno::quant::{DType, encode};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CASES: [&str; 10] = [
    "lfm2-plain",
    "lfm2-taps",
    "lfm2moe-plain",
    "granitehybrid-plain",
    "granitehybrid-experts",
    "falconh1-plain",
    "falconh1-bare",
    "nemotronh-plain",
    "nemotronhmoe-plain",
    "nemotronhmoe-latent",
];

/// A change of a configuration and of what stands beside it.
type Change = fn(&mut Value, &mut Vec<Entry>);

fn bytes(tensor: &TensorInfo) -> Vec<u8> {
    let dtype = DType::from_ggml(tensor.type_id).unwrap();
    tensor.bytes(dtype.row_bytes(tensor.elements()).unwrap() as usize).unwrap().to_vec()
}

/// Whether two singles are the same, or neighbours, as exponentials may be.
fn are_near(found: &[u8], expected: &[u8]) -> bool {
    let single = |raw: &[u8]| u32::from_le_bytes(raw.try_into().unwrap());
    found.chunks(4).zip(expected.chunks(4)).all(|(found, expected)| single(found).abs_diff(single(expected)) <= 1)
}

/// Compares every tensor of `folder` with that of `file`: names, sizes, types and bits.
fn assert_same_tensors(folder: &Path, file: &Path) {
    for map in [true, false] {
        let opened = open(folder, map, &mut |_| Ok(())).unwrap();
        run(&opened.makings, &Workshop { threads: 1, encode: &encode::encode }, &mut |_| Ok(())).unwrap();
        let expected = Gguf::open(file, true, &mut |_| Ok(())).unwrap();
        assert_eq!(opened.gguf.tensors().len(), expected.tensors().len());
        for tensor in expected.tensors() {
            let found = opened.gguf.tensor(&tensor.name).unwrap_or_else(|| panic!("{} is missing", tensor.name));
            assert_eq!((&found.dims, found.type_id), (&tensor.dims, tensor.type_id), "{}", tensor.name);
            let (found, expected) = (bytes(found), bytes(tensor));
            let is_same = if tensor.name.ends_with(".ssm_a") { are_near(&found, &expected) } else { found == expected };
            assert!(is_same, "{} of {} differs (mapped: {map})", tensor.name, folder.display());
        }
    }
}

#[test]
fn every_tensor_is_that_of_the_file() {
    let folder = Folder::new("folder-hybrids");
    for name in CASES {
        let (config, entries) = case(name);
        write(folder.path(), &config, &entries);
        assert_same_tensors(folder.path(), &gguf(name));
    }
    // What transformers itself wrote of the same models, where that is there.
    let Some(written) = std::env::var_os("SEGNO_HF_FOLDERS").map(PathBuf::from) else { return };
    for name in CASES {
        assert_same_tensors(&written.join(name), &gguf(name));
    }
}

/// Largest relative L2 distance of a row of logits from what transformers computes, as `tests/cpu/families.rs` has it.
const DISTANCE: f64 = 2e-5;

#[test]
fn logits_are_those_of_transformers() {
    let golden = root().join("tests/golden/hf");
    let index: Value = serde_json::from_slice(&std::fs::read(golden.join("index.json")).unwrap()).unwrap();
    let prompt: Vec<i32> = serde_json::from_value(index["prompt"].clone()).unwrap();
    let folder = Folder::new("folder-hybrids-logits");
    let ctx = Ctx::new(|opts| (opts.precision, opts.n_threads) = (SEGNO_PRECISION_PRECISE, 2)).unwrap();
    for name in CASES {
        let (config, entries) = case(name);
        write(folder.path(), &config, &entries);
        let session = ctx.load(folder.path()).unwrap().session_f32();
        let seq = session.open(&greedy()).unwrap();
        let raw = std::fs::read(golden.join(format!("{name}.f32"))).unwrap();
        let expected: Vec<f32> = raw.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
        let rows = expected.chunks_exact(config["vocab_size"].as_u64().unwrap() as usize);
        assert!(rows.len() >= 40);
        for (row, token) in rows.zip(&prompt) {
            session.append(seq, &[*token]).unwrap();
            let found = session.logits(seq).unwrap();
            let square = |value: f32| f64::from(value) * f64::from(value);
            let difference: f64 = found.iter().zip(row).map(|(found, expected)| square(found - expected)).sum();
            let distance = (difference / row.iter().map(|value| square(*value)).sum::<f64>()).sqrt();
            assert!(distance < DISTANCE, "{name}: {distance}");
        }
    }
}

/// Adds a tensor like the one whose name ends in `like`.
fn add(entries: &mut Vec<Entry>, like: &str, name: &str) {
    let entry = entries.iter().find(|entry| entry.name.ends_with(like)).unwrap();
    entries.push(Entry { name: name.into(), ..entry.clone() });
}

/// Joins the tensors of single experts, `first` and `second` of each, to tables of all.
fn join(entries: &mut Vec<Entry>, before: &str, parts: &[&str], name: &str) {
    let of = |layer: usize, expert: usize, part: &str| {
        format!("{before}.layers.{layer}.{}", part.replace("{}", &format!("{expert}")))
    };
    for layer in 0..8 {
        let one = |entries: &[Entry], expert: usize, part: &str| {
            entries.iter().find(|entry| entry.name == of(layer, expert, part)).cloned()
        };
        let Some(first) = one(entries, 0, parts[0]) else { continue };
        let experts: Vec<Vec<Entry>> = (0..)
            .map_while(|expert| parts.iter().map(|part| one(entries, expert, part)).collect::<Option<_>>())
            .collect();
        let shape = vec![experts.len() as u64, first.shape[0] * parts.len() as u64, first.shape[1]];
        let bytes = experts.iter().flatten().flat_map(|entry| entry.bytes.clone()).collect();
        let names: Vec<String> = experts.iter().flatten().map(|entry| entry.name.clone()).collect();
        entries.retain(|entry| !names.contains(&entry.name));
        entries.push(Entry { name: format!("{before}.layers.{layer}.{name}"), kind: "F32".into(), shape, bytes });
    }
}

/// Other ways to write the same models.
const SAME: [(&str, Change); 14] = [
    ("lfm2-plain", |config, _| {
        config.as_object_mut().unwrap().remove("layer_types");
        config["full_attn_idxs"] = json!([2]);
    }),
    ("lfm2-plain", |config, _| {
        // A third of twice the width, times the factor, in whole multiples.
        config.as_object_mut().unwrap().remove("intermediate_size");
        config["block_auto_adjust_ff_dim"] = json!(true);
        (config["block_ff_dim"], config["block_ffn_dim_multiplier"]) = (json!(100), json!(0.625));
        config["block_multiple_of"] = json!(4);
    }),
    ("lfm2-plain", |config, _| {
        config["block_auto_adjust_ff_dim"] = json!(true);
        (config["intermediate_size"], config["block_ffn_dim_multiplier"]) = (json!(67), json!(null));
    }),
    ("lfm2-taps", |config, _| {
        config["layer_types"] = json!(["attention", "linear_attention", "linear_attention"]);
    }),
    ("lfm2moe-plain", |_, entries| {
        join(
            entries,
            "model",
            &["feed_forward.experts.{}.w1.weight", "feed_forward.experts.{}.w3.weight"],
            "feed_forward.experts.gate_up_proj",
        );
        join(entries, "model", &["feed_forward.experts.{}.w2.weight"], "feed_forward.experts.down_proj");
    }),
    ("granitehybrid-plain", |config, _| {
        config["layer_types"] = json!(["mamba", "attention", "mamba"]);
        (config["position_embedding_type"], config["mamba_d_head"]) = (json!("nope"), json!("auto"));
        config["num_experts_per_tok"] = json!(0);
    }),
    ("granitehybrid-experts", |config, entries| {
        config["layers_block_type"] = config["layer_types"].take();
        for entry in entries {
            entry.name = entry
                .name
                .replace("input_linear.weight", "experts.gate_up_proj")
                .replace("shared_mlp.experts.gate_up_proj", "shared_mlp.input_linear.weight");
            if entry.name.contains("block_sparse_moe") {
                entry.name = entry
                    .name
                    .replace("output_linear.weight", "experts.down_proj")
                    .replace("router.layer.weight", "router.weight");
            }
        }
    }),
    ("falconh1-plain", |config, _| {
        (config["mamba_d_ssm"], config["mamba_d_head"]) = (json!(null), json!("auto"));
    }),
    ("falconh1-bare", |config, _| {
        let config = config.as_object_mut().unwrap();
        config.retain(|name, _| !name.contains("multiplier") && name != "mamba_n_groups" && name != "time_step_limit");
    }),
    ("nemotronh-plain", |config, _| {
        config.as_object_mut().unwrap().remove("layers_block_type");
        (config["hybrid_override_pattern"], config["num_hidden_layers"]) = (json!("M-*M-"), json!(5));
        config["attention_head_dim"] = config["head_dim"].take();
        config.as_object_mut().unwrap().remove("head_dim");
    }),
    ("nemotronhmoe-plain", |config, _| {
        config.as_object_mut().unwrap().remove("layers_block_type");
        config["hybrid_override_pattern"] = json!("ME*E");
    }),
    ("nemotronhmoe-plain", |_, entries| {
        join(entries, "backbone", &["mixer.experts.{}.up_proj.weight"], "mixer.experts.up_proj");
        join(entries, "backbone", &["mixer.experts.{}.down_proj.weight"], "mixer.experts.down_proj");
        entries.iter_mut().for_each(|entry| entry.name = entry.name.replacen("backbone.", "model.", 1));
    }),
    ("nemotronhmoe-latent", |config, entries| {
        config["num_nextn_predict_layers"] = json!(1);
        add(entries, "layers.1.norm.weight", "mtp.layers.0.norm.weight");
        add(entries, "layers.1.norm.weight", "mtp.layers.1.final_layernorm.weight");
    }),
    ("nemotronh-plain", |config, _| config["layers_block_type"] = json!(["mamba", "mlp", "attention", "mamba", "mlp"])),
];

#[test]
fn other_ways_to_write_a_model_mean_the_same() {
    let folder = Folder::new("folder-hybrids-same");
    for (number, (name, change)) in SAME.iter().enumerate() {
        let (mut config, mut entries) = case(name);
        change(&mut config, &mut entries);
        println!("{number}: {name}");
        write(folder.path(), &config, &entries);
        assert_same_tensors(folder.path(), &gguf(name));
        assert_same(folder.path(), &expected(name, &folder));
    }
}

#[test]
fn a_bound_may_be_pythons_infinity() {
    let folder = Folder::new("folder-hybrids-infinity");
    let (mut config, entries) = case("nemotronh-plain");
    config["time_step_limit"] = json!([0.0, "here"]);
    config["note"] = json!("Infinity \\\" Infinity");
    write(folder.path(), &config, &entries);
    std::fs::write(folder.join("config.json"), config.to_string().replace("\"here\"", "Infinity")).unwrap();
    assert_same(folder.path(), &expected("nemotronh-plain", &folder));
}

/// A model of Granite 4 all of whose layers have attention is one of Granite, whose file says so.
#[test]
fn a_model_without_state_spaces_is_one_of_another_family() {
    let folder = Folder::new("folder-hybrids-none");
    let (mut config, mut entries) = case("granite-plain");
    config["model_type"] = json!("granitemoehybrid");
    config["layer_types"] = json!(["attention", "attention"]);
    config["shared_intermediate_size"] = config["intermediate_size"].take();
    (config["intermediate_size"], config["num_local_experts"]) = (json!(7), json!(0));
    config["position_embedding_type"] = json!("rope");
    let of = |entries: &[Entry], layer: usize, part: &str| {
        let name = format!("model.layers.{layer}.mlp.{part}_proj.weight");
        entries.iter().find(|entry| entry.name == name).unwrap().clone()
    };
    for layer in 0..2 {
        let [gate, up, down] = ["gate", "up", "down"].map(|part| of(&entries, layer, part));
        let name = |part: &str| format!("model.layers.{layer}.shared_mlp.{part}.weight");
        let shape = vec![2 * gate.shape[0], gate.shape[1]];
        entries.push(Entry {
            name: name("input_linear"),
            shape,
            bytes: [gate.bytes, up.bytes].concat(),
            ..down.clone()
        });
        entries.push(Entry { name: name("output_linear"), ..down });
    }
    entries.retain(|entry| !entry.name.contains(".mlp."));
    write(folder.path(), &config, &entries);
    assert_same_tensors(folder.path(), &gguf("granite-plain"));
    assert_same(folder.path(), &gguf("granite-plain"));
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    assert_eq!(ctx.load(folder.path()).unwrap().meta("general.architecture").unwrap(), b"granite");
    // Without positions it is another model.
    config["position_embedding_type"] = json!(null);
    write(folder.path(), &config, &entries);
    let model = ctx.load(folder.path()).unwrap();
    assert_eq!(model.meta("granite.rope.scaling.finetuned").unwrap(), b"false");
}

/// Where one matrix is the embedding and the head, each has a factor of its own.
#[test]
fn a_tied_head_has_its_own_factor() {
    let folder = Folder::new("folder-hybrids-tied");
    let (mut config, mut entries) = case("falconh1-plain");
    let embedding = entries.iter().find(|entry| entry.name == "model.embed_tokens.weight").unwrap().values();
    config["tie_word_embeddings"] = json!(true);
    entries.retain(|entry| entry.name != "lm_head.weight");
    write(folder.path(), &config, &entries);
    let mut file = file_at(&expected("falconh1-plain", &folder));
    let head = file.tensors.iter_mut().find(|tensor| tensor.name == "output.weight").unwrap();
    let scaled = embedding.iter().flat_map(|value| (1.5f32 * value).to_le_bytes()).collect();
    head.content = crate::common::gguf::Content::Bytes(scaled);
    file.write(&folder.join("tied.gguf"));
    assert_same_tensors(folder.path(), &folder.join("tied.gguf"));
    assert_same(folder.path(), &folder.join("tied.gguf"));
    // With the same factor for both, one matrix is enough.
    config["lm_head_multiplier"] = json!(2.0);
    write(folder.path(), &config, &entries);
    let opened = open(folder.path(), true, &mut |_| Ok(())).unwrap();
    assert!(opened.gguf.tensor("output.weight").is_none());
}

#[test]
fn settings_that_no_such_model_has_are_refused_by_name() {
    let folder = Folder::new("folder-hybrids-settings");
    let kinds = |kind: &str, count: usize| json!(vec![kind; count]);
    let mut wrong = Vec::new();
    for (model, name, value, words) in [
        ("lfm2-plain", "layer_types", kinds("conv", 3), "`layer_types` has 3 layers, expected 4"),
        ("lfm2-plain", "layer_types", kinds("mamba", 4), "`layer_types` has `mamba`, which is no kind"),
        ("lfm2-plain", "layer_types", json!(7), "`layer_types` has 0 layers, expected 4"),
        ("lfm2-plain", "layer_types", json!([]), "`layer_types` has 0 layers, expected 4"),
        ("lfm2-plain", "layer_types", json!(null), "`layer_types` is missing"),
        ("lfm2-plain", "conv_bias", json!(true), "`conv_bias`"),
        ("lfm2-plain", "sliding_window", json!(5), "`sliding_window`"),
        ("lfm2-plain", "conv_L_cache", json!(1), "shortconv.l_cache"),
        ("lfm2-plain", "conv_L_cache", json!(4), "shortconv.conv"),
        ("lfm2-plain", "block_auto_adjust_ff_dim", json!(true), "ffn_gate"),
        ("lfm2moe-plain", "num_dense_layers", json!(2), "blk.1."),
        ("granitehybrid-plain", "layer_types", kinds("mlp", 3), "`layer_types` has `mlp`, which is no kind"),
        ("granitehybrid-plain", "position_embedding_type", json!("alibi"), "`position_embedding_type`"),
        ("granitehybrid-plain", "mamba_proj_bias", json!(true), "`mamba_proj_bias`"),
        ("granitehybrid-plain", "mamba_n_heads", json!(7), "ssm_in"),
        ("falconh1-plain", "mamba_n_heads", json!(7), "`mamba_n_heads` is 7, which does not divide"),
        ("granitehybrid-plain", "mamba_n_heads", json!(1u64 << 31), "`mamba_n_heads` is 2147483648, at most"),
        ("granitehybrid-plain", "mamba_n_groups", json!(0), "`mamba_n_groups` is missing"),
        ("granitehybrid-plain", "mamba_n_groups", json!(3), "which 3 groups do not divide"),
        ("granitehybrid-plain", "mamba_d_state", json!(11), "ssm_in"),
        ("granitehybrid-plain", "mamba_d_conv", json!(5), "ssm_conv1d"),
        ("granitehybrid-plain", "time_step_limit", json!([0.001, 0.1]), "`time_step_limit`"),
        ("granitehybrid-plain", "time_step_limit", json!(0), "`time_step_limit`"),
        ("nemotronh-plain", "layers_block_type", json!([]), "has 0 layers, expected 1"),
        ("granitehybrid-plain", "shared_intermediate_size", json!(43), "ffn_gate"),
        ("granitehybrid-experts", "num_local_experts", json!(5), "ffn_gate_inp"),
        ("falconh1-plain", "mamba_norm_before_gate", json!(null), "`mamba_norm_before_gate`"),
        ("falconh1-plain", "mamba_d_ssm", json!(63), "`mamba_n_heads`"),
        ("falconh1-plain", "attention_bias", json!(true), "`attention_bias`"),
        ("falconh1-plain", "projectors_bias", json!(true), "`projectors_bias`"),
        ("falconh1-plain", "mlp_multipliers", json!([1.0]), "`mlp_multipliers` does not list 2"),
        ("falconh1-plain", "ssm_multipliers", json!(vec![1.0; 6]), "`ssm_multipliers` does not list 5"),
        ("falconh1-plain", "ssm_multipliers", json!("x"), "`ssm_multipliers` does not list 5"),
        ("falconh1-plain", "key_multiplier", json!(-1), "`key_multiplier` is -1"),
        ("falconh1-plain", "hidden_act", json!("gelu"), "`hidden_act`"),
        ("nemotronh-plain", "layers_block_type", json!("M-*MX"), "`layers_block_type` has `X`, which is no kind"),
        ("nemotronh-plain", "layers_block_type", json!("M-*"), "blk.3."),
        ("nemotronh-plain", "layers_block_type", json!("M".repeat(1025)), "has 1025 layers, expected 1024"),
        ("nemotronh-plain", "num_hidden_layers", json!(4), "`layers_block_type` has 5 layers, expected 4"),
        ("nemotronh-plain", "layers_block_type", json!("ME*M-"), "layers with experts beside"),
        ("nemotronh-plain", "mlp_hidden_act", json!("silu"), "`mlp_hidden_act`"),
        ("nemotronh-plain", "use_bias", json!(true), "`use_bias`"),
        ("nemotronhmoe-plain", "moe_latent_size", json!(16), "ffn_latent_down"),
        ("nemotronhmoe-plain", "n_group", json!(4), "expert_group_count"),
    ] {
        let (mut config, entries) = case(model);
        config[name] = value;
        let message = refusal(&folder, &config, &entries);
        if !message.contains(words) {
            wrong.push(format!("{model}, {name}: {message}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn shapes_that_no_such_weight_has_are_refused() {
    let folder = Folder::new("folder-hybrids-shapes");
    let mut wrong = Vec::new();
    for (model, end, shape, words) in [
        (
            "lfm2-plain",
            "conv.conv.weight",
            vec![16, 2, 3],
            "conv.conv.weight` has shape [16, 2, 3], which no weight has",
        ),
        ("lfm2-plain", "conv.in_proj.weight", vec![96], "shortconv.in_proj"),
        ("granitehybrid-plain", "mamba.A_log", vec![8, 1], "mamba.A_log` has shape [8, 1], which no weight has"),
        ("granitehybrid-plain", "mamba.D", vec![7], "ssm_d"),
        ("granitehybrid-plain", "mamba.norm.weight", vec![63], "ssm_norm"),
        ("granitehybrid-plain", "shared_mlp.input_linear.weight", vec![87, 32], "no halves"),
        ("granitehybrid-plain", "shared_mlp.input_linear.weight", vec![64], "no halves"),
        ("falconh1-plain", "mamba.norm.weight", vec![63], "which 2 groups do not divide"),
        ("falconh1-plain", "mamba.in_proj.weight", vec![183, 32], "ssm_in"),
        ("falconh1-plain", "mamba.in_proj.weight", vec![32], "ssm_in"),
        ("nemotronhmoe-plain", "mixer.experts.2.up_proj.weight", vec![23, 32], "is not like"),
    ] {
        let (config, mut entries) = case(model);
        let entry = entries.iter_mut().find(|entry| entry.name.ends_with(end)).unwrap();
        entry.bytes.truncate(4 * shape.iter().product::<u64>() as usize);
        entry.shape = shape;
        let message = refusal(&folder, &config, &entries);
        if !message.contains(words) {
            wrong.push(format!("{model}, {end}: {message}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let (config, mut entries) = case("falconh1-plain");
    add(&mut entries, "layers.0.self_attn.q_proj.weight", "model.layers.0.mamba.in_proj.bias");
    assert!(refusal(&folder, &config, &entries).contains("mamba.in_proj.bias` is not part of"));
}

/// Saves what `source` is when its matrices become `quantize`.
fn saved(ctx: &Ctx, source: &Path, quantize: i32, to: PathBuf) -> Gguf {
    let mut watch = Watch::default();
    let mut opts = model_opts(0, &mut watch);
    opts.quantize = quantize;
    save(&ctx.load_with(source, &opts).unwrap().1, &to).unwrap();
    Gguf::open(&to, true, &mut |_| Ok(())).unwrap()
}

fn assert_equal(name: &str, found: &Gguf, wanted: &Gguf) {
    assert_eq!(found.tensors().len(), wanted.tensors().len());
    for tensor in wanted.tensors() {
        let other = found.tensor(&tensor.name).unwrap();
        assert_eq!((&other.dims, other.type_id), (&tensor.dims, tensor.type_id), "{name}: {}", tensor.name);
        assert!(bytes(other) == bytes(tensor), "{name}: {} differs", tensor.name);
    }
}

/// Matrices with factors are encoded as others are, and small tensors stay singles; a saved file gives the same model.
#[test]
fn such_models_are_quantized_and_saved() {
    let folder = Folder::new("folder-hybrids-saved");
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    for name in CASES {
        let source = folder.join(name);
        let (config, entries) = case(name);
        write(&source, &config, &entries);
        let paths = ["folder.gguf", "file.gguf"].map(|file| folder.join(file));
        let found = saved(&ctx, &source, SEGNO_TYPE_BF16, paths[0].clone());
        let wanted = saved(&ctx, &expected(name, &folder), SEGNO_TYPE_BF16, paths[1].clone());
        assert_equal(name, &found, &wanted);
        assert!(found.tensors().iter().any(|tensor| tensor.type_id == DType::BF16.ggml_id()));
        let small = ["ssm_a", "ssm_d", "ssm_norm.weight", "conv.weight", "conv1d.weight"];
        let stays = |tensor: &&TensorInfo| small.iter().any(|end| tensor.name.ends_with(end));
        assert!(found.tensors().iter().filter(stays).all(|tensor| tensor.type_id == DType::F32.ggml_id()), "{name}");
        assert_same(&paths[0], &paths[1]);
    }
}

/// A half of a single, and the single that it is.
type Halve = fn(f32) -> (Vec<u8>, f32);

/// Of halves, products with factors are rounded once, as those of the same numbers in singles are when they become halves.
#[test]
fn halves_stay_halves_when_they_are_multiplied() {
    let folder = Folder::new("folder-hybrids-halves");
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let (config, entries) = case("falconh1-plain");
    let halves: [(&str, i32, Halve); 2] = [
        ("BF16", SEGNO_TYPE_BF16, |value| (bf16::from_f32(value).to_le_bytes().into(), bf16::from_f32(value).into())),
        ("F16", SEGNO_TYPE_F16, |value| (f16::from_f32(value).to_le_bytes().into(), f16::from_f32(value).into())),
    ];
    for (kind, quantize, halve) in halves {
        let (mut short, mut wide) = (entries.clone(), entries.clone());
        for (short, wide) in short.iter_mut().zip(&mut wide).filter(|(short, _)| short.shape.len() == 2) {
            let (halved, values): (Vec<_>, Vec<f32>) = short.values().into_iter().map(halve).unzip();
            (short.kind, short.bytes) = (kind.into(), halved.concat());
            *wide = Entry::f32(&wide.name, &wide.shape, &values);
        }
        let sources = ["short", "wide"].map(|name| folder.join(name));
        write(&sources[0], &config, &short);
        write(&sources[1], &config, &wide);
        let found = saved(&ctx, &sources[0], SEGNO_TYPE_KEEP, folder.join("short.gguf"));
        let wanted = saved(&ctx, &sources[1], quantize, folder.join("wide.gguf"));
        assert_equal(kind, &found, &wanted);
    }
}
