//! What adapters cost a step, through the C API: the same steps with and without, in turns.
//!
//! `cargo bench --bench adapters -- [--cuda] [--threads N] [--steps N] [--rank N] [--tensors NAME]... MODEL.gguf...` prints a line for each choice
//! of tensors and type: the time of a step of four sequences without adapters and with one each, another for each, and of one sequence without and
//! with all four; medians of steps that alternate, and their ratio. Adapters are random, and change the projections of queries and values, as PEFT
//! does by default, of attention, tables of experts where there are any, or all matrices of layers: choices `qv`, `attention`, `experts` and `all`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::adapters::{Adapter, Form, Lora};
use common::gguf::parsed;
use common::{Ctx, Folder, Model, Session, greedy};
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::quant::DType;
use std::path::PathBuf;
use std::time::{Duration, Instant};

struct Options {
    device: i32,
    threads: usize,
    steps: usize,
    rank: usize,
    /// Names of choices; all where there are none.
    tensors: Vec<String>,
    models: Vec<PathBuf>,
}

/// A choice of tensors, and which they are.
type Choice = (&'static str, fn(&str) -> bool);

const CHOICES: [Choice; 4] = [
    ("qv", |name| name.contains("attn_q.") || name.contains("attn_v.")),
    ("attention", |name| name.contains("attn_")),
    ("experts", |name| name.contains("_exps.")),
    ("all", |_| true),
];

fn main() {
    let options = parse();
    let ctx = Ctx::new(|opts| (opts.device, opts.n_threads) = (options.device, options.threads as u32)).unwrap();
    for path in &options.models {
        println!("{}, {} threads, rank {}", path.display(), options.threads, options.rank);
        println!(
            "{:<12}{:<6}{:>10}{:>10}{:>8}{:>12}{:>10}{:>8}",
            "tensors", "type", "4 seqs", "with", "ratio", "1 seq", "with 4", "ratio"
        );
        let (model, bytes) = (ctx.load(path).unwrap(), std::fs::read(path).unwrap());
        let is_wanted = |name: &str| options.tensors.is_empty() || options.tensors.iter().any(|wanted| wanted == name);
        for (name, of) in CHOICES.into_iter().filter(|(name, of)| is_wanted(name) && has_some(&bytes, *of)) {
            for dtype in [DType::F16, DType::F32] {
                let adapters = load(&model, &bytes, Form { dtype, ..Form::new(1, options.rank) }, of);
                let each: Vec<_> = adapters.iter().map(|adapter| vec![(adapter, 1.0)]).collect();
                let four = times(&model, [&[const { Vec::new() }; 4], &each], options.steps);
                let all = vec![adapters.iter().map(|adapter| (adapter, 0.25)).collect()];
                let one = times(&model, [&[Vec::new()], &all], options.steps);
                let row = [four, one].map(|[without, with]| {
                    let ratio = with.as_secs_f64() / without.as_secs_f64();
                    format!("{:>8.0}us{:>8.0}us{ratio:>8.3}", without.as_secs_f64() * 1e6, with.as_secs_f64() * 1e6)
                });
                println!("{name:<12}{dtype:<6}{}  {}", row[0], row[1]);
            }
        }
    }
}

fn parse() -> Options {
    let threads = segno::os::usable_cores();
    let (tensors, models) = (Vec::new(), Vec::new());
    let mut options = Options { device: SEGNO_DEVICE_CPU, threads, steps: 150, rank: 16, tensors, models };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--tensors" {
            options.tensors.push(args.next().expect("a name follows the option"));
            continue;
        }
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number follows the option");
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--cuda" => options.device = SEGNO_DEVICE_CUDA,
            "--threads" => options.threads = number(),
            "--steps" => options.steps = number(),
            "--rank" => options.rank = number(),
            path => options.models.push(PathBuf::from(path)),
        }
    }
    options
}

/// Whether a model has tensors of layers that `of` takes.
fn has_some(bytes: &[u8], of: fn(&str) -> bool) -> bool {
    parsed(bytes).tensors().iter().any(|tensor| tensor.name.starts_with("blk.") && of(&tensor.name))
}

/// Four adapters of the tensors of layers that `of` takes.
fn load(model: &Model, bytes: &[u8], form: Form, of: fn(&str) -> bool) -> [Adapter; 4] {
    let folder = Folder::new("bench-adapters");
    [1, 2, 3, 4].map(|seed| {
        let path = folder.join("adapter.gguf");
        Lora::of_products(bytes, Form { seed, ..form }, |name| name.starts_with("blk.") && of(name))
            .file()
            .write(&path);
        model.adapter(&path).unwrap()
    })
}

/// A session with a sequence of each set, whose prompts are evaluated.
fn open(model: &Model, sets: &[Vec<(&Adapter, f32)>]) -> (Session, Vec<i32>) {
    let session = model.session(|opts| opts.max_seqs = 4).unwrap();
    let open = |set: &Vec<(&Adapter, f32)>| {
        let seq = session.open(&greedy()).unwrap();
        session.adapt(seq, set).unwrap();
        session.prefill(seq, &[5; 32]).unwrap();
        seq
    };
    let seqs = sets.iter().map(open).collect();
    (session, seqs)
}

/// The median times of steps of two sets of sequences, which alternate.
fn times(model: &Model, sets: [&[Vec<(&Adapter, f32)>]; 2], steps: usize) -> [Duration; 2] {
    let sessions = sets.map(|sets| open(model, sets));
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..steps {
        for ((session, seqs), times) in sessions.iter().zip(&mut times) {
            let start = Instant::now();
            session.batch(seqs).2.unwrap();
            times.push(start.elapsed());
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}
