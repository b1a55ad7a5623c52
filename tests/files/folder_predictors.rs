//! Folders whose models have a block that predicts a further token: it is that of the GGUF file of the same model, bit for bit, where it is whole,
//! and where it is not the model does without and says why.

use crate::common::drafts::{Drafting, PLAIN, session};
use crate::common::folders::{Entry, write};
use crate::common::log::{listen, texts};
use crate::common::predictors::{Guesses, PREDICTED, announced, plan, predicting_folder};
use crate::common::{Ctx, Folder, Model, Watch, greedy, model_opts};
use crate::folders::coded_and_decoded;
use crate::save::save;
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::ffi::model::{SEGNO_MODEL_NO_MMAP, SEGNO_TYPE_BF16, SEGNO_TYPE_F16, SEGNO_TYPE_KEEP};
use segno::ffi::session::*;
use segno::ffi::status::*;
use segno::format::Gguf;
use segno::quant::DType;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Models, and the layer that their blocks are like.
const MODELS: [(&str, usize); 6] = [
    ("glm4moe-plain", 2),
    ("deepseekv3-plain", 2),
    ("glm4lite-plain", 1),
    ("qwen35-plain", 1),
    ("qwen35moe-wide", 3),
    ("qwen3next-wide", 3),
];
const OWN: Guesses = Guesses::Random { own: true };

fn one_thread() -> Ctx {
    Ctx::new(|opts| (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 1)).unwrap()
}

/// The configuration and tensors of a model with a block, whose GGUF file becomes `file`.
fn model(of: (&str, usize), guesses: Guesses, file: &Path) -> (Value, Vec<Entry>) {
    let (made, config, entries) = predicting_folder(of, guesses);
    made.write(file);
    (config, entries)
}

fn load(ctx: &Ctx, path: &Path, flags: u32, quantize: i32) -> Model {
    let mut watch = Watch::default();
    let mut opts = model_opts(flags, &mut watch);
    opts.quantize = quantize;
    ctx.load_with(path, &opts).unwrap().1
}

/// The tokens of two texts, and how many drafts there were and were right.
fn drafts(model: &Model) -> (Vec<i32>, u64, u64) {
    let session = session(model, Drafting { speculation: PREDICTED, most: 4, ..PLAIN }, 512);
    let mut tokens = Vec::new();
    for prompt in [&[3, 5, 7][..], &[11; 20]] {
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, prompt).unwrap();
        tokens.extend(session.generate(seq, 40).unwrap());
    }
    let stats = session.stats().unwrap();
    assert!(stats.drafted > 20, "{} drafts", stats.drafted);
    (tokens, stats.drafted, stats.accepted)
}

/// Name, sizes, type and bytes of every tensor of a file, by name.
fn tensors(path: &Path) -> Vec<(String, Vec<u64>, u32, Vec<u8>)> {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let tensor = |tensor: &segno::format::TensorInfo| {
        let len = DType::from_ggml(tensor.type_id).unwrap().row_bytes(tensor.elements()).unwrap() as usize;
        (tensor.name.clone(), tensor.dims.clone(), tensor.type_id, tensor.bytes(len).unwrap().to_vec())
    };
    let mut all: Vec<_> = gguf.tensors().iter().map(tensor).collect();
    all.sort();
    all
}

/// Loads two folders or files, and compares drafts, and the files as which they are saved.
fn assert_same(folder: &Folder, [found, expected]: [&Path; 2], flags: u32, quantize: i32) -> PathBuf {
    let (ctx, saved) = (one_thread(), ["found.gguf", "expected.gguf"].map(|name| folder.join(name)));
    let [found, expected] = [(found, &saved[0]), (expected, &saved[1])].map(|(path, saved)| {
        let model = load(&ctx, path, flags, quantize);
        save(&model, saved).unwrap();
        drafts(&model)
    });
    assert_eq!(found, expected);
    assert!(tensors(&saved[0]) == tensors(&saved[1]));
    assert_eq!(drafts(&load(&ctx, &saved[0], 0, SEGNO_TYPE_KEEP)), expected);
    let [found, _] = saved;
    found
}

#[test]
fn blocks_of_folders_are_those_of_their_gguf_files() {
    let folder = Folder::new("folder-predictors");
    let (unpacked, file) = (folder.join("folder"), folder.join("file.gguf"));
    for (of, guesses) in MODELS.into_iter().flat_map(|of| [(of, OWN), (of, Guesses::Right)]) {
        let (config, entries) = model(of, guesses, &file);
        write(&unpacked, &config, &entries);
        for flags in [0, SEGNO_MODEL_NO_MMAP] {
            let saved = assert_same(&folder, [&unpacked, &file], flags, SEGNO_TYPE_KEEP);
            assert_eq!(tensors(&saved).len(), tensors(&file).len());
        }
        for quantize in [SEGNO_TYPE_BF16, SEGNO_TYPE_F16] {
            assert_same(&folder, [&unpacked, &file], 0, quantize);
        }
        let ctx = one_thread();
        for speculation in [SEGNO_SPECULATION_OFF, SEGNO_SPECULATION_MTP] {
            let [planned, expected] = [&unpacked, &file].map(|path| plan(&ctx, path, speculation));
            assert_eq!(planned.fits, 1);
            assert_eq!((planned.host_weights, planned.host_kv), (expected.host_weights, expected.host_kv));
        }
    }
}

#[test]
fn blocks_of_8_bit_floats_are_multiplied_by_their_scales() {
    let folder = Folder::new("folder-predictors-fp8");
    for of in MODELS {
        let (mut config, entries) = model(of, OWN, &folder.join("file.gguf"));
        let [coded, exact, decoded] = coded_and_decoded(&entries);
        assert!(
            coded.iter().any(
                |entry| entry.name.ends_with("eh_proj.weight_scale_inv") || entry.name == "mtp.fc.weight_scale_inv"
            )
        );
        let paths = ["coded", "exact", "decoded"].map(|name| folder.join(name));
        write(&paths[1], &config, &exact);
        write(&paths[2], &config, &decoded);
        config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [16, 24], "fmt": "e4m3"});
        write(&paths[0], &config, &coded);
        assert_same(&folder, [&paths[0], &paths[2]], 0, SEGNO_TYPE_KEEP);
        // What is quantized is not rounded before.
        assert_same(&folder, [&paths[0], &paths[1]], 0, SEGNO_TYPE_F16);
    }
}

/// Of several blocks the first one drafts, as many as there are stand in a saved file, and a number that is no number is refused.
#[test]
fn the_first_of_the_blocks_that_are_there_is_used() {
    let folder = Folder::new("folder-predictors-many");
    let (unpacked, file) = (folder.join("folder"), folder.join("file.gguf"));
    let (mut config, entries) = model(MODELS[0], OWN, &file);
    let key = announced(MODELS[0].0);
    let (ctx, expected) = (one_thread(), drafts(&one_thread().load(&file).unwrap()));
    let mut two = entries.clone();
    two.extend(entries.iter().filter(|entry| entry.name.contains("layers.3.")).cloned().map(|mut entry| {
        entry.name = entry.name.replace("layers.3.", "layers.4.");
        entry.bytes.iter_mut().for_each(|byte| *byte &= 0xf0);
        entry
    }));
    for (entries, number, blocks) in
        [(&two, json!(2), "2"), (&two, json!(1), "1"), (&entries, json!(2), "1"), (&entries, json!(u32::MAX), "1")]
    {
        config[key] = number;
        write(&unpacked, &config, entries);
        let model = ctx.load(&unpacked).unwrap();
        assert_eq!((drafts(&model), model.info().layers), (expected.clone(), 3));
        assert_eq!(model.meta("glm4moe.nextn_predict_layers").unwrap(), blocks.as_bytes());
        save(&model, &folder.join("saved.gguf")).unwrap();
        assert_eq!(drafts(&ctx.load(&folder.join("saved.gguf")).unwrap()), expected);
    }
    // Those of Qwen 3.5, whose names tell what they are, are left out where nothing is announced.
    let (mut qwen, tensors) = model(MODELS[3], OWN, &file);
    qwen[announced(MODELS[3].0)] = json!(0);
    write(&unpacked, &qwen, &tensors);
    let failed = ctx.load(&unpacked).unwrap().session(|opts| opts.speculation = SEGNO_SPECULATION_MTP).err().unwrap();
    assert!(failed.message.contains("no block that predicts further tokens"), "{}", failed.message);
    for number in [json!(-1), json!("x"), json!(1.5), json!([1]), json!(1u64 << 40)] {
        config[key] = number;
        write(&unpacked, &config, &entries);
        let failed = ctx.load(&unpacked).err().unwrap();
        assert!(failed.status == SEGNO_E_FORMAT && failed.message.contains(key), "{}", failed.message);
    }
}

/// Changes the tensors of a folder.
type Change = fn(&mut Vec<Entry>);

/// Folders that lost a block, or a part of one, or have more than is known.
const LACKING: [(Change, &str); 6] = [
    (|all| all.retain(|entry| !entry.name.contains("layers.3.")), "config.json announces blocks"),
    (|all| all.retain(|entry| !entry.name.contains("eh_proj")), "config.json announces blocks"),
    (|all| all.push(Entry::f32("model.layers.3.other.weight", &[1], &[0.0])), "`model.layers.3.other.weight`"),
    (|all| all.retain(|entry| entry.name != "model.layers.3.self_attn.k_proj.weight"), "attn_k.weight` is missing"),
    (|all| shape(all, "enorm", &[16, 2]), "nextn.enorm.weight"),
    (|all| shape(all, "eh_proj", &[64, 32]), "nextn.eh_proj.weight"),
];

fn shape(all: &mut [Entry], part: &str, shape: &[u64]) {
    let entry = all.iter_mut().find(|entry| entry.name.ends_with(&format!("layers.3.{part}.weight")));
    entry.unwrap().shape = shape.to_vec();
}

#[test]
fn a_folder_whose_block_cannot_be_used_does_without() {
    let folder = Folder::new("folder-predictors-lacking");
    let unpacked = folder.join("folder");
    let (config, entries) = model(MODELS[0], OWN, &folder.join("file.gguf"));
    for (change, reason) in LACKING {
        let mut entries = entries.clone();
        change(&mut entries);
        write(&unpacked, &config, &entries);
        let mut lines = None;
        let ctx = Ctx::new(|opts| {
            (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 1);
            lines = Some(listen(opts));
        });
        let model = ctx.unwrap().load(&unpacked).unwrap();
        let told = texts(lines.unwrap());
        let is_told = |line: &String| line.contains("no speculation by the model itself") && line.contains(reason);
        assert!(told.iter().any(is_told), "{told:?}");
        save(&model, &folder.join("saved.gguf")).unwrap();
        let saved = one_thread().load(&folder.join("saved.gguf")).unwrap();
        let text = |model: &Model, speculation| {
            let session = session(model, Drafting { speculation, ..PLAIN }, 512);
            let seq = session.open(&greedy()).unwrap();
            session.append(seq, &[3, 5, 7]).unwrap();
            session.generate(seq, 20).unwrap()
        };
        let expected = text(&model, SEGNO_SPECULATION_OFF);
        for model in [&model, &saved] {
            assert_eq!(text(model, SEGNO_SPECULATION_AUTO), expected);
            let failed = model.session(|opts| opts.speculation = SEGNO_SPECULATION_MTP).err().unwrap();
            assert!(failed.status == SEGNO_E_UNSUPPORTED && failed.message.contains("(MTP)"), "{}", failed.message);
        }
        let failed = model.session(|opts| opts.speculation = SEGNO_SPECULATION_MTP).err().unwrap();
        assert!(failed.message.contains(reason), "{}", failed.message);
    }
    let mut entries = entries;
    entries.iter_mut().find(|entry| entry.name.ends_with("hnorm.weight")).unwrap().kind = "I32".into();
    write(&unpacked, &config, &entries);
    let failed = one_thread().load(&unpacked).err().unwrap();
    assert!(failed.message.contains("hnorm.weight` is stored as I32"), "{}", failed.message);
}
