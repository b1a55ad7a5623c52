//! A model and its assistant, of `tests/golden/hf` and `tests/golden/assistant`.

use super::gguf::{Content, File};
use super::predictors::{file_at, fill};
use super::root;
use segno::arch::{Arch, Hparams};
use segno::format::Gguf;
use segno::plan::{Program, assistant, build::build};
use serde_json::Value;
use std::path::PathBuf;

/// Elements of the vectors of the golden model, and of its assistant.
const BACKBONE: u64 = 32;
const HIDDEN: u64 = 24;
/// Its tokens.
pub const VOCAB: usize = 131;

/// The model's file.
pub fn model_path() -> PathBuf {
    root().join("tests/golden/hf/gemma4-small.gguf")
}

/// The assistant's file.
pub fn path() -> PathBuf {
    root().join("tests/golden/assistant/gemma4.gguf")
}

/// Drafts: a text of `tokens`, and of its beginnings of some lengths the tokens of each round with the logits and the vector that
/// it gave.
pub struct Golden {
    pub tokens: Vec<u32>,
    pub texts: Vec<(usize, Vec<Round>)>,
}

/// A token, and the logits and the vector behind it.
pub type Round = (u32, Vec<f32>, Vec<f32>);

pub fn golden() -> Golden {
    golden_at("assistant", "drafts", "/texts", VOCAB)
}

/// The drafts in a folder of `tests/golden`: of the file `name`, whose texts are at `place` of the list, with so many logits each.
pub fn golden_at(folder: &str, name: &str, place: &str, logits: usize) -> Golden {
    let folder = root().join("tests/golden").join(folder);
    let listed: Value = serde_json::from_slice(&std::fs::read(folder.join("drafts.json")).unwrap()).unwrap();
    let numbers = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let bytes = std::fs::read(folder.join(format!("{name}.f32"))).unwrap();
    let floats: Vec<f32> = bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect();
    let texts = listed.pointer(place).unwrap().as_array().unwrap();
    let rounds: usize = texts.iter().map(|text| text["given"].as_array().unwrap().len()).sum();
    let mut rows = floats.chunks(floats.len() / rounds);
    let mut round = |token| {
        let (logits, vector) = rows.next().unwrap().split_at(logits);
        (token, logits.to_vec(), vector.to_vec())
    };
    let texts = texts.iter().map(|text| {
        let rounds = numbers(&text["given"]).into_iter().map(&mut round).collect();
        (text["length"].as_u64().unwrap() as usize, rounds)
    });
    let texts = texts.collect();
    assert!(rows.next().is_none());
    Golden { tokens: numbers(&listed["tokens"]), texts }
}

/// The program of a file, and its sizes.
pub fn program_of(gguf: &Gguf) -> (Program, Hparams) {
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    (build(gguf, &arch, &hparams).unwrap(), hparams)
}

/// The program of an assistant for a model.
pub fn program_over(assistant: &Gguf, model: &Gguf) -> Program {
    let ((own, _), (backbone, hparams)) = (program_of(assistant), program_of(model));
    assistant::over(&own, &backbone, hparams.embedding_scale).unwrap()
}

/// A model of which each token depends on the one before it alone, and an assistant that thinks as it does.
pub fn alike() -> [File; 2] {
    let (mut model, mut assistant) = (file_at(&model_path()), file_at(&path()));
    still(&mut model);
    for tensor in &mut assistant.tensors {
        let widened = |size: &u64| if *size == HIDDEN { BACKBONE } else { *size };
        tensor.dims = tensor.dims.iter().map(widened).collect();
        if tensor.name == "token_embd.weight" || tensor.name == "output_norm.weight" {
            tensor.content = model.tensor(&tensor.name).content.clone();
        } else if tensor.name != "rope_freqs.weight" {
            let count = tensor.dims.iter().product::<u64>();
            tensor.content = Content::Bytes((0..count).flat_map(|_| 1f32.to_le_bytes()).collect());
        }
    }
    assistant.set("gemma4-assistant.embedding_length", BACKBONE as u32);
    still(&mut assistant);
    let cols = 2 * BACKBONE as usize;
    fill(&mut assistant, "nextn.pre_projection.weight", |place| f32::from(place % cols == place / cols));
    [model, assistant]
}

/// Lets no layer add anything.
fn still(file: &mut File) {
    let ends = ["attn_output.weight", "ffn_down.weight", ".proj.weight"];
    let names: Vec<String> = file.tensors.iter().map(|tensor| tensor.name.clone()).collect();
    for name in names.iter().filter(|name| ends.iter().any(|end| name.ends_with(end))) {
        fill(file, name, |_| 0.0);
    }
}
