//! A model and its assistant, of `tests/golden/hf` and `tests/golden/assistant`.

use super::distance::distance;
use super::drafts::walks_of_pairs;
use super::eagle::open;
use super::gguf::{Content, File};
use super::passes::limits;
use super::predictors::{file_at, fill};
use super::{Ctx, Model, root};
use segno::arch::{Arch, Hparams};
use segno::backend::{Backend, Batch, Chooser, Hidden, KvType, Limits, Row, Runner};
use segno::format::Gguf;
use segno::kv::{Pages, Tables};
use segno::plan::{Program, assistant, build::build};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Elements of the vectors of the golden model, and of its assistant.
const BACKBONE: u64 = 32;
const HIDDEN: u64 = 24;
/// Its tokens.
pub const VOCAB: usize = 131;
/// Pages of a text, and texts: the golden one again and again, but for the first, which is another.
const PAGES: usize = 2;
const TEXTS: usize = 8;

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

/// The same, loaded.
pub fn loaded_alike(ctx: &Ctx) -> [Model; 2] {
    alike().map(|file| ctx.load_buffer(&file.bytes()).unwrap())
}

/// Walks with assistants beside walks without; how many were drafted, and how many of them were right.
pub fn walks(ctx: &Ctx) -> (u64, u64) {
    let (model, assistant) = (ctx.load(&model_path()).unwrap(), ctx.load(&path()).unwrap());
    let [still, like] = loaded_alike(ctx);
    walks_of_pairs(21, [(&model, &assistant), (&still, &like), (&still, &like), (&still, &assistant)])
}

/// Lets no layer add anything.
fn still(file: &mut File) {
    let ends = ["attn_output.weight", "ffn_down.weight", ".proj.weight"];
    let names: Vec<String> = file.tensors.iter().map(|tensor| tensor.name.clone()).collect();
    for name in names.iter().filter(|name| ends.iter().any(|end| name.ends_with(end))) {
        fill(file, name, |_| 0.0);
    }
}

/// A model with several texts, and its assistant beside.
struct Pair {
    model: Box<dyn Runner>,
    assistant: Box<dyn Runner>,
    tables: Tables,
}

impl Pair {
    fn new(backend: &dyn Backend, kv_type: KvType) -> Pair {
        let (backbone, own) = (open(&model_path()), open(&path()));
        let limits = |program: &Program, hidden| {
            let pages = TEXTS * PAGES;
            Limits { outputs: 64, pages, kv_type, hidden, ..limits(program, 64, TEXTS) }
        };
        let prepare = |program| backend.prepare(Arc::new(program), &mut |_| Ok(())).unwrap();
        let (of_model, over) = (program_of(&backbone).0, program_over(&own, &backbone));
        let both = [limits(&of_model, Hidden::Rows), limits(&over, Hidden::Outputs)];
        let model = prepare(of_model).open(&both[0]).unwrap();
        let assistant = prepare(over).open_over(&both[1], &*model).unwrap();
        let (mut pages, mut tables) = (Pages::new(TEXTS * PAGES).unwrap(), Tables::new(TEXTS, PAGES).unwrap());
        // Pages of all texts lie between each other.
        for count in 1..=PAGES {
            (0..TEXTS).for_each(|slot| assert!(tables.grow(slot, count, &mut pages)));
        }
        Pair { model, assistant, tables }
    }

    /// Evaluates all texts; the vectors of the last.
    fn evaluate(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        for slot in 0..TEXTS as u32 {
            let row = |(place, &token): (usize, &u32)| Row {
                token: (token + u32::from(slot == 0)) % VOCAB as u32,
                position: place as u32,
                slot,
            };
            let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
            self.model.run(&batch(&rows, &[], &self.tables), &AtomicBool::new(false)).unwrap();
        }
        (0..tokens.len()).map(|row| self.model.hidden(row).to_vec()).collect()
    }

    /// A round of drafts for beginnings of the golden text: the position of each, its token, and the vector that comes with it.
    fn round(&mut self, rows: &[Start]) -> Vec<[Vec<f32>; 2]> {
        let Pair { model, assistant, tables } = self;
        let (mut listed, outputs) = (Vec::new(), (0..rows.len() as u32).collect::<Vec<_>>());
        for (index, (position, token, vector)) in rows.iter().enumerate() {
            assistant.given(index).copy_from_slice(vector);
            listed.push(Row { token: *token, position: *position as u32, slot: 1 + index as u32 });
        }
        let lent = model.lend().unwrap();
        assistant.run_over(lent, &batch(&listed, &outputs, tables), &AtomicBool::new(false)).unwrap();
        (0..rows.len()).map(|row| [assistant.logits(row).to_vec(), assistant.hidden(row).to_vec()]).collect()
    }

    /// The first rows of the drafts for each beginning of the golden text.
    fn starts(&mut self) -> Vec<Start> {
        let Golden { tokens, texts } = golden();
        let vectors = self.evaluate(&tokens);
        let start = |(length, _): (usize, _)| (length - 1, tokens[length - 1], vectors[length - 2].clone());
        texts.into_iter().map(start).collect()
    }
}

/// A position, a token, and the vector that comes with it.
type Start = (usize, u32, Vec<f32>);

fn batch<'a>(rows: &'a [Row], outputs: &'a [u32], tables: &'a Tables) -> Batch<'a> {
    Batch { rows, outputs, chooser: Chooser::Host, tables, window_tables: None, moves: &[] }
}

/// The largest relative L2 distance of logits and vectors of drafts from those of transformers; with an F32 cache.
pub fn distance_of_drafts(backend: &dyn Backend) -> f64 {
    let Golden { tokens, texts } = golden();
    let mut pair = Pair::new(backend, KvType::F32);
    let vectors = pair.evaluate(&tokens);
    let mut worst = 0f64;
    for (length, rounds) in &texts {
        let mut vector = vectors[length - 2].clone();
        for (token, logits, next) in rounds {
            let [found, given] = pair.round(&[(length - 1, *token, vector)]).remove(0);
            worst = worst.max(distance(&found, logits).relative_l2).max(distance(&given, next).relative_l2);
            vector = given;
        }
    }
    assert!(texts.len() > 5);
    worst
}

/// Rows of several lengths in one pass are those of each alone, to the bit, over every cache.
pub fn assert_alone(backend: &dyn Backend) {
    for kv_type in [KvType::F16, KvType::F32, KvType::Q8] {
        let mut pair = Pair::new(backend, kv_type);
        let rows = pair.starts();
        let together = pair.round(&rows);
        let alone: Vec<_> = rows.iter().flat_map(|row| pair.round(std::slice::from_ref(row))).collect();
        assert!(together == alone, "{kv_type:?}");
    }
}

/// Rows see no key at their own position or behind, and all of those before.
pub fn own_keys_unseen(backend: &dyn Backend) {
    let mut pair = Pair::new(backend, KvType::F16);
    let (rows, tokens) = (pair.starts(), golden().tokens);
    let before = pair.round(&rows[..4]);
    // The text goes on in another way from the position of the fourth row on.
    let mut others = tokens.clone();
    others[rows[3].0..].iter_mut().for_each(|token| *token = (*token + 5) % VOCAB as u32);
    pair.evaluate(&others);
    assert!(pair.round(&rows[..4]) == before);
    // The last one that the fourth row sees.
    others[rows[3].0 - 1] += 1;
    pair.evaluate(&others);
    assert!(pair.round(&rows[..4])[3] != before[3]);
    others[0] += 1;
    pair.evaluate(&others);
    assert!(pair.round(&rows[..4])[0] != before[0]);
}
