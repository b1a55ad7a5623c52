//! Whole models on a GPU: against the processor's precise mode, and against themselves over graphs, buckets and chunks.
//!
//! `SEGNO_CUDA_MODELS` (paths with `:` between) replaces the models of the repository and of the shared data. On a machine without a GPU the
//! tests say so and prove nothing.

#![cfg(feature = "cuda")]

mod common;

use segno::arch::{Arch, Hparams};
use segno::backend::cuda::{self, Cuda};
use segno::backend::{Backend, Batch, KvType, Limits, Row, Runner, cpu};
use segno::format::Gguf;
use segno::kv::{Pages, Tables};
use segno::plan::{Program, build::build};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const POSITIONS: usize = 64;
/// Largest relative distance of trained models, and of ones with random weights, which amplify rounding.
const TRAINED: f64 = 3e-2;
const RANDOM: f64 = 4e-2;
const SEQS: usize = 8;

fn models() -> Vec<PathBuf> {
    if cuda::count() == 0 {
        println!("skipped: no cuda device");
        return Vec::new();
    }
    if let Ok(list) = std::env::var("SEGNO_CUDA_MODELS") {
        return list.split(':').map(PathBuf::from).collect();
    }
    let shared = common::shared_data().map(|data| data.join("models"));
    let names = ["stories260K.gguf", "TinyStories-656K-Q8_0.gguf"];
    let shared = shared.iter().flat_map(|folder| names.map(|name| folder.join(name)));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hf");
    let goldens = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let goldens = goldens.filter(|path| path.extension().is_some_and(|ext| ext == "gguf"));
    shared.chain(goldens).chain([common::bundled_model()]).collect()
}

fn program(path: &Path) -> Arc<Program> {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let arch = gguf.metadata().text("general.architecture").unwrap().unwrap();
    let arch = Arch::find(arch).unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    Arc::new(build(&gguf, &arch, &hparams).unwrap())
}

/// A runner with page tables for all its slots.
struct Run {
    runner: Box<dyn Runner>,
    tables: Tables,
    vocab: usize,
}

impl Run {
    fn new(backend: &dyn Backend, program: &Arc<Program>, kv_type: KvType, positions: usize) -> Run {
        let each = positions.div_ceil(32);
        let limits = Limits { rows: 512 + SEQS, outputs: SEQS, pages: SEQS * each, kv_type };
        let mut pages = Pages::new(limits.pages).unwrap();
        let mut tables = Tables::new(SEQS, each).unwrap();
        (0..SEQS).for_each(|slot| assert!(tables.grow(slot, each, &mut pages)));
        let runner = backend.prepare(Arc::clone(program)).unwrap().open(&limits).unwrap();
        Run { runner, tables, vocab: program.vocab() }
    }

    fn pass(&mut self, rows: &[Row], outputs: &[u32], wants_logits: bool) -> Vec<Vec<f32>> {
        let batch = Batch { rows, outputs, wants_logits, tables: &self.tables };
        self.runner.run(&batch, &AtomicBool::new(false)).unwrap();
        if !wants_logits {
            return Vec::new();
        }
        (0..outputs.len()).map(|index| self.runner.logits(index).to_vec()).collect()
    }

    fn token(&self, position: usize) -> u32 {
        ((position * 7919 + 13) % self.vocab) as u32
    }

    /// Logits of `count` positions, a step each, `seqs` equal sequences at once; those of the last sequence.
    fn steps(&mut self, count: usize, seqs: usize) -> Vec<Vec<f32>> {
        let step = |run: &mut Run, position: usize| {
            let token = run.token(position);
            let row = |slot| Row { token, position: position as u32, slot: slot as u32 };
            let rows: Vec<Row> = (0..seqs).map(row).collect();
            let outputs: Vec<u32> = (0..seqs as u32).collect();
            run.pass(&rows, &outputs, true).pop().unwrap()
        };
        (0..count).map(|position| step(self, position)).collect()
    }

    /// Logits of the last of `count` positions, evaluated in chunks.
    fn chunks(&mut self, count: usize, chunk: usize) -> Vec<f32> {
        let mut last = Vec::new();
        for start in (0..count).step_by(chunk) {
            let end = count.min(start + chunk);
            let rows: Vec<Row> =
                (start..end).map(|p| Row { token: self.token(p), position: p as u32, slot: 1 }).collect();
            last = self.pass(&rows, &[(end - start - 1) as u32], true).pop().unwrap();
        }
        last
    }
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|v| v.to_bits()).collect()).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(a - b))).sum();
    (error / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}

#[test]
fn logits_are_near_those_of_the_precise_processor() {
    for path in models() {
        let program = program(&path);
        let options = cpu::Options { threads: 0, precise: true, allow_avx512: true };
        let precise = cpu::Cpu::new(&options).unwrap();
        for kv_type in [KvType::F32, KvType::F16] {
            let expected = Run::new(&precise, &program, kv_type, POSITIONS).steps(POSITIONS, 1);
            let found = Run::new(&Cuda::new(0, false).unwrap(), &program, kv_type, POSITIONS).steps(POSITIONS, 1);
            let worst = found.iter().zip(&expected).map(|(a, b)| distance(a, b)).fold(0.0, f64::max);
            println!("{} {kv_type:?}: worst relative distance {worst:.3e}", path.display());
            let bar = if path.to_string_lossy().contains("synth") { RANDOM } else { TRAINED };
            assert!(worst <= bar, "{}: {worst}", path.display());
        }
    }
}

#[test]
fn graphs_buckets_and_chunks_change_no_bit() {
    for path in models() {
        let program = program(&path);
        let (graphs, eager) = (Cuda::new(0, false).unwrap(), Cuda::new(0, true).unwrap());
        let count = 300;
        let alone = Run::new(&graphs, &program, KvType::F16, count).steps(count, 1);
        let listed = Run::new(&eager, &program, KvType::F16, count).steps(count, 1);
        assert!(bits(&alone) == bits(&listed), "{}: eager differs from replay", path.display());
        for seqs in [2, 3, 5, 8] {
            let together = Run::new(&graphs, &program, KvType::F16, count).steps(count, seqs);
            assert!(bits(&alone) == bits(&together), "{}: {seqs} at once differ from one", path.display());
        }
        for chunk in [1, 7, 64, 300] {
            let last = Run::new(&graphs, &program, KvType::F16, count).chunks(count, chunk);
            assert!(bits(&[last]) == bits(&alone[count - 1..]), "{}: chunks of {chunk} differ", path.display());
        }
        println!("{}: graphs, buckets and chunks agree", path.display());
    }
}

#[test]
fn the_device_chooses_the_token_of_the_highest_logit() {
    for path in models() {
        let program = program(&path);
        let mut run = Run::new(&Cuda::new(0, false).unwrap(), &program, KvType::F16, POSITIONS);
        for logits in run.steps(POSITIONS, 1).iter().skip(POSITIONS - 1) {
            let best = segno::sample::filters::greedy(logits).map(|token| token as u32);
            assert_eq!(run.runner.best_token(0), best);
        }
    }
}

/// Greedy decoding at 128 positions of context, and a prompt of 512; printed, never judged.
#[test]
#[ignore = "a measurement"]
fn speed() {
    for path in models() {
        let program = program(&path);
        let start = Instant::now();
        let mut run = Run::new(&Cuda::new(0, false).unwrap(), &program, KvType::F16, 1024);
        let loaded = start.elapsed().as_secs_f64();
        let rows: Vec<Row> = (0..512).map(|p| Row { token: run.token(p), position: p as u32, slot: 1 }).collect();
        run.pass(&rows, &[511], false);
        let start = Instant::now();
        run.pass(&rows, &[511], false);
        let prompt = 512.0 / start.elapsed().as_secs_f64();
        for seqs in [1, 2, 4, 8] {
            let mut token = 1;
            let mut began = Instant::now();
            for position in 0..256u32 {
                if position == 128 {
                    began = Instant::now();
                }
                let rows: Vec<Row> = (0..seqs).map(|slot| Row { token, position, slot }).collect();
                let outputs: Vec<u32> = (0..seqs).collect();
                run.pass(&rows, &outputs, false);
                token = run.runner.best_token(0).unwrap();
            }
            let rate = 128.0 * f64::from(seqs) / began.elapsed().as_secs_f64();
            println!("{} batch {seqs}: {rate:.0} tok/s (prompt {prompt:.0} tok/s, load {loaded:.2} s)", path.display());
        }
    }
}
