//! Models that draft by the keys of another one: their logits and vectors against those of transformers, and the cache that they read.

use crate::common::assistants::{Golden, VOCAB, golden, model_path, path, program_of, program_over};
use crate::common::distance::distance;
use crate::common::passes::{limits, precise};
use segno::arch::Hparams;
use segno::backend::{Backend, Batch, Chooser, Hidden, KvType, Limits, Row, Runner};
use segno::error::Error;
use segno::format::Gguf;
use segno::kv::{Pages, Tables};
use segno::plan::{Program, assistant};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Largest relative L2 distance in precise mode with an F32 cache.
const PRECISE: f64 = 2e-5;
/// Pages of a text.
const PAGES: usize = 2;

fn open(path: &std::path::Path) -> Gguf {
    Gguf::open(path, true, &mut |_| Ok(())).unwrap()
}

/// A runner for two texts, with so many pages.
fn runner(backend: &dyn Backend, program: Program, pages: usize, hidden: Hidden, kv_type: KvType) -> Box<dyn Runner> {
    let limits = Limits { outputs: 64, pages, kv_type, hidden, ..limits(&program, 64, 2) };
    backend.prepare(Arc::new(program), &mut |_| Ok(())).unwrap().open(&limits).unwrap()
}

fn batch<'a>(rows: &'a [Row], outputs: &'a [u32], tables: &'a Tables) -> Batch<'a> {
    Batch { rows, outputs, chooser: Chooser::Host, tables, window_tables: None, moves: &[] }
}

/// Two texts, of which the second is the golden one, and the assistant's runner beside.
struct Pair {
    model: Box<dyn Runner>,
    assistant: Box<dyn Runner>,
    tables: Tables,
}

impl Pair {
    fn new(kv_type: KvType) -> Pair {
        let (backbone, own, backend) = (open(&model_path()), open(&path()), precise());
        let model = runner(&backend, program_of(&backbone).0, 2 * PAGES, Hidden::Rows, kv_type);
        let assistant = runner(&backend, program_over(&own, &backbone), 0, Hidden::Outputs, kv_type);
        let (mut pages, mut tables) = (Pages::new(2 * PAGES).unwrap(), Tables::new(2, PAGES).unwrap());
        // Pages of both texts lie between each other.
        for count in 1..=PAGES {
            (0..2).for_each(|slot| assert!(tables.grow(slot, count, &mut pages)));
        }
        Pair { model, assistant, tables }
    }

    /// Evaluates both texts; the vectors of the second.
    fn evaluate(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        for slot in [0, 1] {
            let row = |(place, &token): (usize, &u32)| Row {
                token: (token + 1 - slot) % VOCAB as u32,
                position: place as u32,
                slot,
            };
            let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
            self.model.run(&batch(&rows, &[], &self.tables), &AtomicBool::new(false)).unwrap();
        }
        (0..tokens.len()).map(|row| self.model.hidden(row).to_vec()).collect()
    }

    /// A round of drafts for beginnings of the second text: the position of each, its token, and the vector that comes with it.
    fn round(&mut self, rows: &[(usize, u32, Vec<f32>)]) -> Vec<[Vec<f32>; 2]> {
        let Pair { model, assistant, tables } = self;
        let (mut listed, outputs) = (Vec::new(), (0..rows.len() as u32).collect::<Vec<_>>());
        for (index, (position, token, vector)) in rows.iter().enumerate() {
            assistant.given(index).copy_from_slice(vector);
            listed.push(Row { token: *token, position: *position as u32, slot: 1 });
        }
        let lent = model.lend().unwrap();
        assistant.run_over(lent, &batch(&listed, &outputs, tables), &AtomicBool::new(false)).unwrap();
        (0..rows.len()).map(|row| [assistant.logits(row).to_vec(), assistant.hidden(row).to_vec()]).collect()
    }
}

#[test]
fn drafts_are_those_of_transformers() {
    let Golden { tokens, texts } = golden();
    let mut pair = Pair::new(KvType::F32);
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
    println!("{worst:.2e} from transformers");
    assert!(texts.len() > 5 && worst <= PRECISE, "{worst:.2e}");
}

#[test]
fn rows_of_several_lengths_in_one_pass_are_those_of_each_alone() {
    let Golden { tokens, texts } = golden();
    for kv_type in [KvType::F16, KvType::F32, KvType::Q8] {
        let mut pair = Pair::new(kv_type);
        let vectors = pair.evaluate(&tokens);
        let rows: Vec<_> =
            texts.iter().map(|&(length, _)| (length - 1, tokens[length - 1], vectors[length - 2].clone())).collect();
        let together = pair.round(&rows);
        let alone: Vec<_> = rows.iter().flat_map(|row| pair.round(std::slice::from_ref(row))).collect();
        assert!(together == alone, "{kv_type:?}");
    }
}

#[test]
fn a_row_sees_no_key_at_its_own_position_or_behind() {
    let Golden { tokens, texts } = golden();
    let mut pair = Pair::new(KvType::F16);
    let vectors = pair.evaluate(&tokens);
    let rows: Vec<_> =
        texts.iter().map(|&(length, _)| (length - 1, tokens[length - 1], vectors[length - 2].clone())).collect();
    let before = pair.round(&rows[..4]);
    // The text goes on in another way from the position of the fourth row on.
    let mut others = tokens.clone();
    others[rows[3].0..].iter_mut().for_each(|token| *token = (*token + 5) % VOCAB as u32);
    pair.evaluate(&others);
    assert!(pair.round(&rows[..4]) == before);
    others[0] += 1;
    pair.evaluate(&others);
    assert!(pair.round(&rows[..4]) != before);
}

#[test]
fn models_that_do_not_suit_are_refused_by_name() {
    let (backbone, own) = (open(&model_path()), open(&path()));
    let ((model, hparams), (assistant, _)) = (program_of(&backbone), program_of(&own));
    let refused =
        |assistant: &Program, model: &Program| match assistant::over(assistant, model, hparams.embedding_scale) {
            Err(Error::Unsupported(problem)) => problem,
            other => panic!("{other:?}"),
        };
    assert!(refused(&model, &model).contains("keys and values of its own"));
    assert!(refused(&assistant, &assistant).contains("makes no text"));
    let other = |name: &str| program_of(&open(&model_path().with_file_name(name))).0;
    assert!(refused(&assistant, &other("llama-ratio1.gguf")).contains("no layer has the keys"));
    assert!(refused(&assistant, &other("gemma3-plain.gguf")).contains("no layer has the keys"));
    let mut wide = program_of(&own).0;
    wide.values[0].width += 2;
    assert!(refused(&wide, &model).contains("another size"));
}

#[test]
fn its_sizes_are_those_of_its_file() {
    let (program, Hparams { layers, backbone, predicting_blocks, .. }) = program_of(&open(&path()));
    assert_eq!((layers, backbone, predicting_blocks), (3, Some(32), 0));
    assert_eq!((program.vocab(), program.given_width(), program.window()), (VOCAB, 64, Some(9)));
    assert!(program.borrows_keys() && !program_of(&open(&model_path())).0.borrows_keys());
}
