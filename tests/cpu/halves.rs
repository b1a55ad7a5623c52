//! Programs in two halves, whose passes give the bits of the whole: every cut of every test model, the processor in the place of the device.

use crate::common::adapters::{Form, Lora};
use crate::common::divided::Stand;
use crate::common::gguf::parsed;
use crate::common::passes::{Run, bits, case, limits};
use crate::common::root;
use segno::arch::{Arch, Hparams};
use segno::backend::cpu::{Cpu, Options};
use segno::backend::divided::Divided;
use segno::backend::{Backend, Chooser, KvType, Limits, Memory, Prepared, Row, Scaled};
use segno::format::Gguf;
use segno::kv::{Reach, Stores, state};
use segno::plan::adapter::{Adapter, Base};
use segno::plan::halves::{Cut, cuts, divide, expert_layers};
use segno::plan::{Op, Program, validate};
use segno::quant::DType;
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

fn texts(backend: &dyn Backend, program: &Arc<Program>) -> Vec<Vec<u32>> {
    texts_of(Run::new(backend, program, KvType::F16, POSITIONS, 3), program)
}

fn texts_of(mut run: Run, program: &Program) -> Vec<Vec<u32>> {
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
        let expected = texts(&cpu(), &program);
        let cuts = cuts(&program).unwrap();
        assert!(!cuts.is_empty(), "{name} has no cut");
        for cut in cuts {
            let halves =
                divide(&program, cut).unwrap().unwrap_or_else(|| panic!("{name}, {cut:?}: nothing is divided"));
            validate::check(&halves.device).unwrap();
            validate::check(&halves.host).unwrap();
            let found = texts(&divided(cut), &program);
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

/// Ranks of all adapters of a sequence.
const RANKS: usize = 5 + 2 * 3;

/// Two adapters of a test model: one changes all that can be changed, the other one, in 16 bits, some of what attention multiplies.
fn adapters(name: &str, program: &Program) -> [Adapter; 2] {
    let base = std::fs::read(root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap();
    let gguf = parsed(&base);
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    let base_of = Base { program, family: arch.name, hparams: &hparams, tensors: gguf.tensors() };
    let read = |lora: Lora| Adapter::read(&parsed(&lora.file().bytes()), &base_of).unwrap();
    let narrow = Form { dtype: DType::F16, ..Form::new(8, 3) };
    [
        read(Lora::whole(&base, Form::new(7, 5), |_| true)),
        read(Lora::random(&base, narrow, |name| name.contains("attn"))),
    ]
}

/// A run whose first sequence has one adapter, whose second has both, one of them twice, and whose third has none.
fn adapted(backend: &dyn Backend, name: &str, program: &Arc<Program>, ranks: usize) -> Run {
    let prepared: Arc<dyn Prepared> = backend.prepare(Arc::clone(program), &mut |_| Ok(())).unwrap();
    let [first, second] = adapters(name, program).map(|weights| Arc::new(prepared.adapter(weights).unwrap()));
    let mut run = Run::open(&*prepared, program, &Limits { ranks, ..limits(program, POSITIONS, 3) });
    if ranks == 0 {
        run.runner.adapt_within(RANKS).unwrap();
    }
    let of = |adapter: &Arc<_>, scale| Scaled { adapter: Arc::clone(adapter), scale };
    run.runner.adapt(0, vec![of(&first, 0.6)]).unwrap();
    run.runner.adapt(1, vec![of(&second, -0.5), of(&first, 1.0), of(&second, 1.5)]).unwrap();
    run
}

#[test]
fn adapters_give_the_bits_of_the_whole_with_them() {
    for (name, program) in programs() {
        let expected = texts_of(adapted(&cpu(), &name, &program, RANKS), &program);
        let plain = texts(&cpu(), &program);
        let changed: Vec<bool> = expected.iter().zip(&plain).map(|(a, b)| a != b).collect();
        assert_eq!(changed, [true, true, true, true, false, true], "{name}");
        for (index, cut) in cuts(&program).unwrap().into_iter().enumerate() {
            let ranks = [RANKS, 0][index % 2];
            let run = adapted(&divided(cut), &name, &program, ranks);
            assert!(texts_of(run, &program) == expected, "{name}, {cut:?}: other bits");
            if index % 4 == 0 {
                let mut run = adapted(&divided(cut), &name, &program, ranks);
                (0..3).for_each(|slot| run.runner.adapt(slot, Vec::new()).unwrap());
                assert!(texts_of(run, &program) == plain, "{name}, {cut:?}: something is left of adapters");
            }
        }
    }
}

/// Each pair is in the half that multiplies by its matrix, and in no other; what is whole has no numbers beside them.
#[test]
fn adapters_are_kept_once() {
    let mut empty = 0;
    for (name, program) in programs() {
        let [all, attention] = adapters(&name, &program);
        for cut in cuts(&program).unwrap() {
            let halves = divide(&program, cut).unwrap().unwrap();
            for adapter in [&all, &attention] {
                let parts = [&halves.device, &halves.host].map(|half| adapter.part(half).unwrap());
                let bytes = parts.each_ref().map(Adapter::bytes);
                assert_eq!(bytes[0] + bytes[1], adapter.bytes(), "{name}, {cut:?}");
                for op in program.all_ops().filter(|op| matches!(op, Op::MatMul { .. } | Op::ExpertMatMul(_))) {
                    let id = op.matrix().unwrap();
                    let is_there = [&halves.device, &halves.host].map(|half| half.matrices[id.0].rows > 0);
                    let has_pair = parts.each_ref().map(|part| part.of(id).is_some());
                    let wanted = is_there.map(|is_there| is_there && adapter.of(id).is_some());
                    assert_eq!(has_pair, wanted, "{name}, {cut:?}: {id:?}");
                }
                let is_empty = parts.each_ref().map(Adapter::is_empty);
                assert!(is_empty == bytes.map(|bytes| bytes == 0), "{name}, {cut:?}");
                empty += usize::from(is_empty[1]);
            }
            let weights = attention.part(&program).unwrap();
            assert_eq!((weights.bytes(), weights.rank()), (attention.bytes(), 3));
            let prepared = divided(cut).prepare(Arc::clone(&program), &mut |_| Ok(())).unwrap();
            let adapter = prepared.adapter(weights).unwrap();
            assert_eq!((adapter.weights.bytes(), adapter.weights.rank()), (0, 3), "{name}, {cut:?}");
        }
    }
    assert!(empty > 20, "of {empty} halves nothing is changed");
}

/// Both halves have room for the ranks, and what that takes is told before.
#[test]
fn room_for_adapters_is_counted_in_both_halves() {
    for (name, program) in programs() {
        for cut in cuts(&program).unwrap() {
            let (both, bare) = (divided(cut), limits(&program, POSITIONS, 3));
            let limits = Limits { ranks: RANKS, ..bare };
            let halves = divide(&program, cut).unwrap().unwrap();
            let of = |half: &Program| cpu().adapter_memory(half, &limits).unwrap().arena;
            let told = both.adapter_memory(&program, &limits).unwrap();
            assert!(of(&halves.device) > 0 && of(&halves.host) > 0, "{name}, {cut:?}");
            assert_eq!(told, Memory { arena: of(&halves.device) + of(&halves.host), ..Memory::default() });
            let arena = [bare, limits].map(|limits| both.memory(&program, &limits).unwrap().arena);
            assert_eq!(arena[1] - arena[0], told.arena, "{name}, {cut:?}");
            assert_eq!(both.adapter_memory(&program, &bare).unwrap(), Memory::default());
        }
    }
}
