//! Models with a block behind their layers that predicts a further token, made of the models of `tests/golden/hf`.

use super::drafts::{Drafting, PLAIN, session};
use super::folders::recurrent::round_rates;
use super::folders::{Entry, entries_of};
use super::gguf::{self, Content, File, Tensor, parsed};
use super::{Ctx, call, greedy, root, sampler};
use segno::arch::{Arch, Hparams};
use segno::ffi::plan::{segno_plan, segno_plan_get};
use segno::ffi::session::{
    SEGNO_SPECULATION_ALWAYS, SEGNO_SPECULATION_MTP, segno_session_opts, segno_session_opts_init,
};
use segno::format::{Gguf, INTEGERS_64};
use segno::plan::{Program, predictor};
use segno::quant::DType;
use segno::quant::synthetic::Random;
use serde_json::{Value, json};
use std::ffi::CString;
use std::path::Path;
use std::ptr::null;
use std::sync::Arc;

/// Models, and the layer that their blocks are like: gated attention among layers with a state, experts, fused gates and further norms, latent
/// attention.
pub const MODELS: [(&str, usize); 6] = [
    ("qwen35-plain", 1),
    ("glm4moe-plain", 2),
    ("qwen3next-wide", 3),
    ("glm4-plain", 1),
    ("deepseekv3-plain", 2),
    ("qwen35moe-wide", 3),
];

/// The program of the block of a file.
pub fn predictor_of(gguf: &Gguf) -> Arc<Program> {
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    let hparams = Hparams::of_predictor(gguf.metadata(), &arch).unwrap();
    Arc::new(predictor::build(gguf, &arch, &hparams).unwrap())
}

/// What a session of [`super::drafts::session`] with 512 tokens would take, of a model with states at `path`.
pub fn plan(ctx: &Ctx, path: &Path, speculation: i32) -> segno_plan {
    planned(ctx, path, |opts| (opts.max_prefill, opts.max_prompt, opts.speculation) = (1024, 1024, speculation))
}

/// The same with other options.
pub fn planned(ctx: &Ctx, path: &Path, change: impl FnOnce(&mut segno_session_opts)) -> segno_plan {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
    let (mut opts, mut plan) = unsafe { std::mem::zeroed::<(segno_session_opts, segno_plan)>() };
    segno_session_opts_init(&mut opts, size_of::<segno_session_opts>());
    (opts.max_seqs, opts.kv_tokens) = (4, 512);
    change(&mut opts);
    call(|err| segno_plan_get(ctx.0, path.as_ptr(), null(), &opts, &mut plan, size_of::<segno_plan>(), err)).unwrap();
    plan
}

/// Drafts of a model's own predictor whether they pay or not.
pub const PREDICTED: i32 = SEGNO_SPECULATION_MTP + SEGNO_SPECULATION_ALWAYS;

/// Two sequences of a model whose predictor thinks as it does itself: nearly all drafts are right, and save passes.
pub fn assert_right(ctx: &Ctx, (name, layer): (&str, usize)) {
    let model = ctx.load_buffer(&predicting(name, layer, Guesses::Right).bytes()).unwrap();
    let mut drawn = sampler();
    (drawn.flags, drawn.repeat_penalty) = (greedy().flags, 1.1);
    for opts in [greedy(), drawn] {
        let session = session(&model, Drafting { speculation: PREDICTED, most: 5, ..PLAIN }, 1024);
        let (first, second) = (session.open(&opts).unwrap(), session.open(&opts).unwrap());
        session.append(first, &[3, 5, 7]).unwrap();
        session.append(second, &[11; 30]).unwrap();
        for _ in 0..150 {
            session.batch(&[first, second]).2.unwrap();
        }
        let stats = session.stats().unwrap();
        // Both are rounded, so that a token that is as likely as another may differ.
        assert!(stats.accepted + 5 >= stats.drafted, "{name}: {} of {}", stats.accepted, stats.drafted);
        assert!(stats.passes < 100 && stats.drafted > 200, "{name}: {} passes", stats.passes);
        let own = [first, second].map(|seq| session.seq_stats(seq).unwrap());
        assert_eq!(own.iter().map(|own| own.accepted).sum::<u64>(), stats.accepted);
    }
}

/// How the block of a made model predicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Guesses {
    /// By random weights, with its own embedding, norm and head where `own`.
    Random { own: bool },
    /// As the model itself, of which each token depends on the one before it alone.
    Right,
    /// No token: its weights are no numbers.
    Nothing,
}

/// The model `name` of `tests/golden/hf` with such a block, which has the tensors of layer `layer`.
pub fn predicting(name: &str, layer: usize, guesses: Guesses) -> File {
    predicting_file(&root().join(format!("tests/golden/hf/{name}.gguf")), layer, guesses)
}

/// The same of any file; tensors that are not F32 are those of the layer.
pub fn predicting_file(path: &Path, layer: usize, guesses: Guesses) -> File {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let mut file = file_at(path);
    let size = |key: &str| gguf.metadata().u32(key).unwrap().unwrap();
    let arch = gguf.metadata().text("general.architecture").unwrap().unwrap().to_owned();
    let blocks = size(&format!("{arch}.block_count"));
    file.set(&format!("{arch}.block_count"), blocks + 1).set(&format!("{arch}.nextn_predict_layers"), 1u32);
    let listed = format!("{arch}.attention.recurrent_layers");
    if gguf.metadata().get(&listed).is_some() {
        // As in the golden model, and for the block.
        file.set(&listed, [true, false, false, true, false]);
    }
    add_block(&mut file, layer, blocks as usize, guesses);
    file
}

/// The file at `path`, to be changed.
pub fn file_at(path: &Path) -> File {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let mut file = File { entries: entries(&std::fs::read(path).unwrap()), ..File::default() };
    for tensor in gguf.tensors() {
        let len = match tensor.type_id {
            INTEGERS_64 => 8 * tensor.elements(),
            dtype => DType::from_ggml(dtype).unwrap().row_bytes(tensor.elements()).unwrap(),
        };
        let bytes = tensor.bytes(len as usize).unwrap().to_vec();
        let (name, dims) = (tensor.name.clone(), tensor.dims.clone());
        file.tensors.push(Tensor { name, dims, type_id: tensor.type_id, content: Content::Bytes(bytes) });
    }
    file
}

/// A model with such a block as a folder: its file, with rates of decay that folders can tell, its configuration, which announces the block, and its
/// tensors.
pub fn predicting_folder((name, layer): (&str, usize), guesses: Guesses) -> (File, Value, Vec<Entry>) {
    let mut file = predicting(name, layer, guesses);
    round_rates(&mut file);
    let configs = std::fs::read(root().join("tests/golden/hf/configs.json")).unwrap();
    let mut config = serde_json::from_slice::<Value>(&configs).unwrap()[name].take();
    config[announced(name)] = json!(1);
    let entries = entries_of(&parsed(&file.bytes()), &config);
    (file, config, entries)
}

/// By what the configuration of the model `name` announces blocks.
pub fn announced(name: &str) -> &'static str {
    if name.starts_with("qwen35") { "mtp_num_hidden_layers" } else { "num_nextn_predict_layers" }
}

/// Copies a layer with other weights, and adds what the block has beside that.
fn add_block(file: &mut File, layer: usize, block: usize, guesses: Guesses) {
    let mut random = Random::new(17);
    let prefix = format!("blk.{layer}.");
    let copied: Vec<Tensor> = file.tensors.iter().filter(|t| t.name.starts_with(&prefix)).cloned().collect();
    for mut tensor in copied {
        tensor.name = tensor.name.replace(&prefix, &format!("blk.{block}."));
        let is_norm = tensor.name.ends_with("norm.weight");
        if tensor.type_id == DType::F32.ggml_id() {
            tensor.content = floats(&tensor.dims, &mut random, if is_norm { 1.0 } else { 0.0 });
        }
        file.tensors.push(tensor);
    }
    let [hidden, vocab] = file.tensor("token_embd.weight").dims[..] else { panic!("a table has two sides") };
    let mut add = |name: &str, dims: &[u64], mean: f32| {
        let content = floats(dims, &mut random, mean);
        let name = format!("blk.{block}.nextn.{name}.weight");
        file.tensors.push(Tensor { name, dims: dims.to_vec(), type_id: 0, content });
    };
    add("eh_proj", &[2 * hidden, hidden], 0.0);
    add("enorm", &[hidden], 1.0);
    add("hnorm", &[hidden], 1.0);
    if guesses == (Guesses::Random { own: true }) {
        add("embed_tokens", &[hidden, vocab], 0.0);
        add("shared_head_norm", &[hidden], 1.0);
        add("shared_head_head", &[hidden, vocab], 0.0);
    }
    match guesses {
        Guesses::Random { .. } => {}
        Guesses::Nothing => fill(file, &format!("blk.{block}.nextn.eh_proj.weight"), |_| f32::NAN),
        Guesses::Right => {
            // Blocks that add nothing, and a projection that hands on the embedding.
            let ends =
                ["attn_output.weight", "ssm_out.weight", "ffn_down.weight", "_down_exps.weight", "_down_shexp.weight"];
            let names: Vec<String> = file.tensors.iter().map(|tensor| tensor.name.clone()).collect();
            for name in names.iter().filter(|name| ends.iter().any(|end| name.ends_with(end))) {
                fill(file, name, |_| 0.0);
            }
            let cols = 2 * hidden as usize;
            let is_diagonal = move |place: usize| place % cols == place / cols;
            fill(file, &format!("blk.{block}.nextn.eh_proj.weight"), move |place| f32::from(is_diagonal(place)));
            fill(file, &format!("blk.{block}.nextn.enorm.weight"), |_| 1.0);
        }
    }
}

/// Gives the elements of an F32 tensor other values, by their numbers.
pub fn fill(file: &mut File, name: &str, value: impl Fn(usize) -> f32) {
    let tensor = file.tensor(name);
    let count = tensor.dims.iter().product::<u64>() as usize;
    tensor.content = Content::Bytes((0..count).flat_map(|place| value(place).to_le_bytes()).collect());
}

/// Random floats around `mean`, smaller the more columns there are.
fn floats(dims: &[u64], random: &mut Random, mean: f32) -> Content {
    let count = dims.iter().product::<u64>();
    let spread = if dims.len() == 1 { 0.2 } else { 2.0 / (dims[0] as f32).sqrt() };
    Content::Bytes((0..count).flat_map(|_| (mean + spread * random.uniform()).to_le_bytes()).collect())
}

/// The metadata of a file of version 3 as it stands there.
fn entries(bytes: &[u8]) -> Vec<(String, gguf::Value)> {
    let mut at = 24;
    let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let entry = |_| {
        let key = take_text(bytes, &mut at);
        let type_id = take_u32(bytes, &mut at);
        let start = at;
        skip_value(bytes, &mut at, type_id);
        (key, gguf::Value::raw(type_id, &bytes[start..at]))
    };
    (0..count).map(entry).collect()
}

fn take_u32(bytes: &[u8], at: &mut usize) -> u32 {
    *at += 4;
    u32::from_le_bytes(bytes[*at - 4..*at].try_into().unwrap())
}

fn take_u64(bytes: &[u8], at: &mut usize) -> u64 {
    *at += 8;
    u64::from_le_bytes(bytes[*at - 8..*at].try_into().unwrap())
}

fn take_text(bytes: &[u8], at: &mut usize) -> String {
    let len = take_u64(bytes, at) as usize;
    *at += len;
    String::from_utf8(bytes[*at - len..*at].to_vec()).unwrap()
}

fn skip_value(bytes: &[u8], at: &mut usize, type_id: u32) {
    match type_id {
        0 | 1 | 7 => *at += 1,
        2 | 3 => *at += 2,
        4..=6 => *at += 4,
        8 => _ = take_text(bytes, at),
        9 => {
            let (of, count) = (take_u32(bytes, at), take_u64(bytes, at));
            (0..count).for_each(|_| skip_value(bytes, at, of));
        }
        _ => *at += 8,
    }
}
