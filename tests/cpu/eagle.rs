//! Heads that draft by vectors between a model's layers: their logits and vectors against plain code, and what they are refused for.

use crate::common::assistants::{Golden, program_of};
use crate::common::distance::distance;
use crate::common::eagle::{KNOWN, VOCAB, WIDTH, golden, model_path, path};
use crate::common::gguf::parsed;
use crate::common::passes::{limits, precise};
use crate::common::predictors::file_at;
use segno::backend::{Backend, Batch, Chooser, Hidden, KvType, Limits, Row, Runner, cpu};
use segno::error::Error;
use segno::format::Gguf;
use segno::kv::{Pages, Tables};
use segno::plan::eagle::{over, telling};
use segno::plan::{Op, Program};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Largest relative L2 distance in precise mode with an F32 cache.
const PRECISE: f64 = 2e-5;
/// Pages of a text.
const PAGES: usize = 2;

fn open(path: &std::path::Path) -> Gguf {
    Gguf::open(path, true, &mut |_| Ok(())).unwrap()
}

fn model() -> Program {
    program_of(&open(&model_path())).0
}

fn head(name: &str) -> Program {
    program_of(&open(&path(name))).0
}

fn runner(backend: &dyn Backend, program: Program, hidden: Hidden) -> Box<dyn Runner> {
    let limits = Limits { outputs: 64, pages: PAGES, kv_type: KvType::F32, hidden, ..limits(&program, 64, 1) };
    backend.prepare(Arc::new(program), &mut |_| Ok(())).unwrap().open(&limits).unwrap()
}

/// Evaluates rows of one text from the position `first` on, with the last of them as the output if that `is_output`.
fn run(runner: &mut dyn Runner, tokens: &[u32], first: usize, is_output: bool) {
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

#[test]
fn drafts_are_those_of_plain_code() {
    for (name, logits) in [("plain", KNOWN), ("own", VOCAB)] {
        let Golden { tokens, texts } = golden(name, logits);
        let (backend, model, own) = (precise(), model(), head(name));
        let mut teller = runner(&backend, telling(&model, &own).unwrap(), Hidden::Rows);
        run(&mut *teller, &tokens, 0, true);
        let vectors: Vec<Vec<f32>> = (0..tokens.len()).map(|row| teller.hidden(row).to_vec()).collect();
        let mut drafter = runner(&backend, over(&own, &model).unwrap(), Hidden::Outputs);
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
        println!("{name}: {worst:.2e} from plain code");
        assert!(texts.len() > 5 && worst <= PRECISE, "{name}: {worst:.2e}");
    }
}

/// What a pass of the model gives beside the vectors does not depend on whether it makes them.
#[test]
fn logits_are_those_of_the_model_alone() {
    let tokens = golden("own", VOCAB).tokens;
    for precise in [true, false] {
        let options = cpu::Options { threads: 2, precise, allow_avx512: true, gives_way: false };
        let backend = cpu::Cpu::new(&options).unwrap();
        let logits = [model(), telling(&model(), &head("own")).unwrap()].map(|program| {
            let mut runner = runner(&backend, program, Hidden::None);
            run(&mut *runner, &tokens, 0, true);
            runner.logits(0).to_vec()
        });
        assert!(logits[0] == logits[1]);
    }
}

#[test]
fn models_that_do_not_suit_are_refused_by_name() {
    let refused =
        |head: &Program, model: &Program| match (over(head, model), telling(head, model), telling(model, head)) {
            (Err(Error::Unsupported(over)), Err(Error::Unsupported(_)), Err(Error::Unsupported(telling))) => {
                [over, telling]
            }
            other => panic!("{other:?}"),
        };
    let other = |name: &str| program_of(&open(&model_path().with_file_name(name))).0;
    let [own, lent] = [head("own"), head("plain")];
    assert!(over(&model(), &model()).unwrap_err().to_string().contains("reads no vectors"));
    assert!(refused(&own, &own)[0].contains("makes no text"));
    assert!(refused(&own, &other("llama-ratio1.gguf"))[0].contains("layers that the model lacks"));
    let mut narrow = head("plain");
    narrow.fusion.as_mut().unwrap().width = 31;
    assert!(telling(&model(), &narrow).unwrap_err().to_string().contains("another size"));
    let mut few = model();
    let Some(&Op::MatMul { matrix, out, .. }) = few.ops.last() else { panic!("the head comes last") };
    (few.matrices[matrix.0].rows, few.values[out.0].width) = (60, 60);
    assert!(over(&lent, &few).unwrap_err().to_string().contains("tokens that the model lacks"));
}

/// Of a file that lists no layers they are an early one, one in the middle and a late one of the model.
#[test]
fn the_usual_layers_are_read_where_none_are_listed() {
    let ops = |layers: Option<[u32; 3]>| {
        let mut file = file_at(&path("plain"));
        file.entries.retain(|(key, _)| key != "eagle3.target_layers");
        if let Some(layers) = layers {
            file.set("eagle3.target_layers", layers);
        }
        telling(&model(), &program_of(&parsed(&file.bytes())).0).unwrap().ops
    };
    assert!(ops(None) == ops(Some([2, 1, 0])) && ops(None) != ops(Some([2, 0, 1])));
    let mut few = head("plain");
    few.fusion.as_mut().unwrap().layers = None;
    let two = program_of(&open(&model_path().with_file_name("llama-ratio1.gguf"))).0;
    assert!(telling(&two, &few).unwrap_err().to_string().contains("layers that the model lacks"));
}

#[test]
fn its_sizes_are_those_of_its_file() {
    for (name, width, logits) in [("plain", 2 * WIDTH, KNOWN), ("own", 24, VOCAB)] {
        let program = head(name);
        assert_eq!((program.vocab(), program.logits_width(), program.given_width()), (VOCAB, logits, width), "{name}");
        assert!(program.only_drafts() && !model().only_drafts());
        let joined = over(&program, &model()).unwrap();
        assert_eq!((joined.vocab(), joined.logits_width()), (VOCAB, logits), "{name}");
        assert_eq!(joined.given_width(), if name == "own" { 24 } else { WIDTH });
        assert_eq!(telling(&model(), &program).unwrap().layers.len(), 4, "{name}");
    }
}
