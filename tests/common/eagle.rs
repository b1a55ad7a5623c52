//! A model and heads that draft for it by vectors between its layers, of `tests/golden/hf` and `tests/golden/eagle`.

use super::assistants::{Golden, golden_at, program_of};
use super::distance::distance;
use super::drafts::walks_of_pairs;
use super::gguf::{Content, File};
use super::passes::limits;
use super::predictors::{file_at, fill};
use super::{Ctx, Model, root};
use segno::backend::{Backend, Batch, Chooser, Hidden, KvType, Limits, Row, Runner};
use segno::format::Gguf;
use segno::kv::{Pages, Tables};
use segno::plan::Program;
use segno::plan::eagle::{over, telling};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Tokens of the golden model, and elements of its vectors.
pub const VOCAB: usize = 131;
pub const WIDTH: usize = 32;
/// Tokens that the head `plain` knows.
pub const KNOWN: usize = 50;
/// Pages of a text.
const PAGES: usize = 2;

/// The model's file.
pub fn model_path() -> PathBuf {
    root().join("tests/golden/hf/mistral-plain.gguf")
}

/// The file of the head `name`.
pub fn path(name: &str) -> PathBuf {
    root().join(format!("tests/golden/eagle/{name}.gguf"))
}

/// What the head `name` gives, which has so many logits.
pub fn golden(name: &str, logits: usize) -> Golden {
    golden_at("eagle", name, &format!("/heads/{name}"), logits)
}

/// A model that thinks the same after every text, and a head that thinks as it does, of tokens in another order.
pub fn alike() -> [File; 2] {
    let (mut model, mut head) = (file_at(&model_path()), file_at(&path("plain")));
    for layer in 0..3 {
        [".attn_output.weight", ".ffn_down.weight"]
            .into_iter()
            .for_each(|end| fill(&mut model, &format!("blk.{layer}{end}"), |_| 0.0));
    }
    fill(&mut model, "token_embd.weight", |place| 1.0 + (place % WIDTH) as f32);
    ["blk.0.attn_output.weight", "blk.0.ffn_down.weight"].into_iter().for_each(|name| fill(&mut head, name, |_| 0.0));
    // The vector of the second of three layers.
    fill(&mut head, "fc.weight", |place| f32::from(place % (3 * WIDTH) == WIDTH + place / (3 * WIDTH)));
    head.tensor("output_norm.weight").content = model.tensor("output_norm.weight").content.clone();
    let Content::Bytes(rows) = model.tensor("output.weight").content.clone() else { panic!("its bytes") };
    let turned: Vec<u8> = rows.chunks(4 * WIDTH).rev().flatten().copied().collect();
    let output = head.tensor("output.weight");
    (output.dims, output.content) = (vec![WIDTH as u64, VOCAB as u64], Content::Bytes(turned));
    let tokens = (0..VOCAB as i64).rev().flat_map(i64::to_le_bytes).collect();
    let known = head.tensor("d2t");
    (known.dims, known.content) = (vec![VOCAB as u64], Content::Bytes(tokens));
    [model, head]
}

/// The head `plain` without a matrix for logits, and with that of the model.
pub fn with_the_models_logits() -> [File; 2] {
    let mut bare = file_at(&path("plain"));
    bare.tensors.retain(|tensor| tensor.name != "output.weight" && tensor.name != "d2t");
    let mut whole = bare.clone();
    whole.tensors.push(file_at(&model_path()).tensor("output.weight").clone());
    [bare, whole]
}

/// The same, loaded.
pub fn loaded_alike(ctx: &Ctx) -> [Model; 2] {
    alike().map(|file| ctx.load_buffer(&file.bytes()).unwrap())
}

/// Walks with every head beside walks without; how many were drafted, and how many of them were right.
pub fn walks(ctx: &Ctx) -> (u64, u64) {
    let model = ctx.load(&model_path()).unwrap();
    let [plain, own] = ["plain", "own"].map(|name| ctx.load(&path(name)).unwrap());
    let [still, like] = loaded_alike(ctx);
    walks_of_pairs(41, [(&model, &plain), (&still, &like), (&model, &own), (&still, &like)])
}

/// The file at `path`.
pub fn open(path: &Path) -> Gguf {
    Gguf::open(path, true, &mut |_| Ok(())).unwrap()
}

/// The model's program.
pub fn model() -> Program {
    program_of(&open(&model_path())).0
}

/// That of the head `name`, as its file has it.
pub fn head(name: &str) -> Program {
    program_of(&open(&path(name))).0
}

/// A runner of one text of `program`, whose passes leave `hidden`.
pub fn runner(backend: &dyn Backend, program: Program, hidden: Hidden) -> Box<dyn Runner> {
    let limits = Limits { outputs: 64, pages: PAGES, kv_type: KvType::F32, hidden, ..limits(&program, 64, 1) };
    backend.prepare(Arc::new(program), &mut |_| Ok(())).unwrap().open(&limits).unwrap()
}

/// Evaluates rows of one text from the position `first` on, with the last of them as the output if that `is_output`.
pub fn run(runner: &mut dyn Runner, tokens: &[u32], first: usize, is_output: bool) {
    let (mut pages, mut tables) = (Pages::new(PAGES).unwrap(), Tables::new(1, PAGES).unwrap());
    assert!(tables.grow(0, PAGES, &mut pages));
    let row = |(index, &token): (usize, &u32)| Row { token, position: (first + index) as u32, slot: 0 };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    let outputs = [tokens.len() as u32 - 1];
    let outputs = if is_output { &outputs[..] } else { &[] };
    let batch =
        Batch { rows: &rows, outputs, chooser: Chooser::Host, tables: &tables, window_tables: None, moves: &[] };
    runner.run(&batch, &AtomicBool::new(false)).unwrap();
}

/// The largest relative L2 distance of logits and vectors of the head `name`, which has so many logits, from those of plain code; with an F32 cache.
pub fn from_plain_code(backend: &dyn Backend, name: &str, logits: usize) -> f64 {
    let Golden { tokens, texts } = golden(name, logits);
    let (model, own) = (model(), head(name));
    let mut teller = runner(backend, telling(&model, &own).unwrap(), Hidden::Rows);
    run(&mut *teller, &tokens, 0, true);
    let vectors: Vec<Vec<f32>> = (0..tokens.len()).map(|row| teller.hidden(row).to_vec()).collect();
    let mut drafter = runner(backend, over(&own, &model).unwrap(), Hidden::Outputs);
    let mut worst = 0f64;
    for (length, rounds) in &texts {
        for (row, vector) in vectors[..length - 1].iter().enumerate() {
            drafter.given(row).copy_from_slice(vector);
        }
        run(&mut *drafter, &tokens[1..*length], 0, true);
        for (round, (token, expected, vector)) in rounds.iter().enumerate() {
            if round > 0 {
                let before = drafter.hidden(0).to_vec();
                drafter.given(0).copy_from_slice(&before);
                run(&mut *drafter, &[*token], length - 2 + round, true);
            }
            worst = worst.max(distance(drafter.logits(0), expected).relative_l2);
            worst = worst.max(distance(drafter.hidden(0), vector).relative_l2);
        }
    }
    assert!(texts.len() > 5);
    worst
}
