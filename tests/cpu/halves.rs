//! Programs in two halves, whose passes give the bits of the whole: every cut of every test model, the processor in the place of the device.

use crate::common::divided::Stand;
use crate::common::passes::{Run, bits, case, limits};
use crate::common::root;
use segno::backend::cpu::{Cpu, Options};
use segno::backend::divided::Divided;
use segno::backend::{Backend, Chooser, KvType, Limits, Row};
use segno::error::Error;
use segno::format::Gguf;
use segno::kv::{Reach, Stores, state};
use segno::plan::halves::{Cut, cuts, divide, expert_layers};
use segno::plan::{Op, Program, validate};
use std::path::PathBuf;
use std::sync::Arc;

const POSITIONS: usize = 64;

fn cpu() -> Cpu {
    Cpu::new(&Options { threads: 2, precise: false, allow_avx512: true, gives_way: false }).unwrap()
}

fn divided(cut: Cut) -> Divided {
    Divided { device: Arc::new(Stand(cpu())), host: Arc::new(cpu()), cut }
}

/// Programs with layers and logits of the test models, by their names.
fn programs() -> Vec<(String, Arc<Program>)> {
    let folder = std::fs::read_dir(root().join("tests/golden/hf")).unwrap();
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    let programs = paths.iter().map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let program = case(&name, &Gguf::open(path, true, &mut |_| Ok(())).unwrap(), false).program;
        (name, program)
    });
    programs.filter(|(_, program)| program.logits.is_some()).collect()
}

fn texts(backend: &dyn Backend, program: &Arc<Program>, kv_type: KvType) -> Vec<Vec<u32>> {
    let mut run = Run::new(backend, program, kv_type, POSITIONS, 3);
    let mut logits = vec![run.chunks(0, 40, 40), run.chunks(1, 23, 7)];
    let vocab = program.vocab() as u32;
    let row = |slot: u32, position: u32| Row { token: (position * 31 + slot) % vocab, position, slot };
    let steps = [row(0, 40), row(1, 23), row(2, 0)];
    logits.extend(run.pass(&steps, &[0, 1, 2], Chooser::Host));
    // Only some rows are wanted, and pages change hands.
    run.runner.copy_page(Reach::Whole, run.tables.of(0)[0], run.tables.of(2)[0]);
    let rows: Vec<Row> = (24..30).map(|position| row(1, position)).collect();
    logits.extend(run.pass(&rows, &[5], Chooser::Host));
    bits(&logits)
}

#[test]
fn halves_give_the_bits_of_the_whole() {
    let mut tried = [0, 0];
    for (name, program) in programs() {
        let expected = texts(&cpu(), &program, KvType::F16);
        let cuts = cuts(&program).unwrap();
        assert!(!cuts.is_empty(), "{name} has no cut");
        for cut in cuts {
            let halves =
                divide(&program, cut).unwrap().unwrap_or_else(|| panic!("{name}, {cut:?}: nothing is divided"));
            validate::check(&halves.device).unwrap();
            validate::check(&halves.host).unwrap();
            let found = texts(&divided(cut), &program, KvType::F16);
            assert!(found == expected, "{name}, {cut:?}: other bits");
            tried[usize::from(cut.layers > 0)] += 1;
        }
    }
    assert!(tried[0] > 20 && tried[1] > 100, "{tried:?}");
}

/// Weights, keys and values, and states are in one half each; the device keeps less with every cut.
#[test]
fn nothing_is_kept_twice() {
    for (name, program) in programs() {
        let limits = limits(&program, POSITIONS, 3);
        let page = |program: &Program| {
            let stores: Stores = Limits { windows: None, ..limits }.stores(program).unwrap();
            stores.layout(Reach::Whole).page_elements().unwrap()
        };
        let record = |program: &Program| *state::starts(&program.states).unwrap().last().unwrap();
        let matrices = |program: &Program| program.matrices.iter().map(|weight| weight.bytes.len()).sum::<usize>();
        let mut last = usize::MAX;
        for cut in cuts(&program).unwrap() {
            let halves = divide(&program, cut).unwrap().unwrap();
            assert_eq!(page(&halves.device) + page(&halves.host), page(&program), "{name}, {cut:?}");
            assert_eq!(record(&halves.device) + record(&halves.host), record(&program), "{name}, {cut:?}");
            let left = matrices(&halves.device);
            assert!(left < last && left + matrices(&halves.host) >= matrices(&program), "{name}, {cut:?}");
            last = left;
            let is_of_experts = |op: &&Op| matches!(op, Op::ExpertMatMul(_));
            assert!(
                cut.experts == 0
                    || halves.host.ops.iter().any(|op| is_of_experts(&op))
                        == (expert_layers(&program, Cut { layers: 0, ..cut }) > 0)
            );
        }
    }
}

/// A page and a record of the halves together are those of the whole, byte for byte, whichever of them wrote.
#[test]
fn pages_and_records_are_those_of_the_whole() {
    for (name, program) in programs() {
        for cut in cuts(&program).unwrap().into_iter().filter(|cut| cut.layers > 0) {
            let mut runs = [
                Run::new(&cpu(), &program, KvType::F16, POSITIONS, 2),
                Run::new(&divided(cut), &program, KvType::F16, POSITIONS, 2),
            ];
            let page = program.kv.page_elements().unwrap() * 2;
            let record = state::starts(&program.states).unwrap().last().unwrap() * 4;
            let kept: Vec<_> = runs
                .iter_mut()
                .map(|run| {
                    run.chunks(0, 33, 33);
                    let (mut bytes, mut states) = (vec![0; page], vec![0; record]);
                    let first = run.tables.of(0)[0];
                    run.runner.read_page(Reach::Whole, first, &mut bytes).unwrap();
                    if record > 0 {
                        run.runner.read_record(0, &mut states).unwrap();
                    }
                    (bytes, states)
                })
                .collect();
            assert!(kept[0] == kept[1] && kept[0].0.iter().any(|&byte| byte != 0), "{name}, {cut:?}");
            let (bytes, states) = &kept[0];
            let runner = &mut runs[1].runner;
            runner.write_page(Reach::Whole, 1, bytes).unwrap();
            let mut again = vec![0; page];
            runner.read_page(Reach::Whole, 1, &mut again).unwrap();
            assert!(again == *bytes);
            if record > 0 {
                runner.write_record(1, states).unwrap();
                let mut again = vec![0; record];
                runner.read_record(1, &mut again).unwrap();
                assert!(again == *states);
            }
        }
    }
}

/// Adapters would have to be divided too.
#[test]
fn halves_take_no_adapters() {
    let (_, program) = programs().into_iter().find(|(name, _)| name == "qwen3moe-plain").unwrap();
    let limits = Limits { ranks: 4, ..limits(&program, POSITIONS, 1) };
    let cut = cuts(&program).unwrap()[0];
    let prepared = divided(cut).prepare(Arc::clone(&program), &mut |_| Ok(())).unwrap();
    assert!(matches!(prepared.open(&limits).err(), Some(Error::Unsupported(reason)) if reason.contains("adapters")));
    assert!(divided(cut).adapter_memory(&program, &limits).is_err());
}
