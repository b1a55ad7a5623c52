//! End to end through the C API: load to first token, prompts, decoding alone and in batches, short and long contexts, and beside threads
//! that compete for the processors; and saving and restoring a sequence, to memory.
//!
//! `cargo bench --bench e2e -- [--threads N] [--runs N] MODEL.gguf...` prints one table a model. Each decode row also shows the weights'
//! bytes a second as a share of this machine's read bandwidth, which is measured first with the same threads. Figures are medians
//! of several runs; they mean something only on a machine that does nothing else.

#[path = "../tests/common/mod.rs"]
mod common;

use common::saved::through_memory;
use common::{Ctx, Model, Session, greedy};
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_Q8};
use segno::ffi::status::SEGNO_OK;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const PROMPTS: [usize; 2] = [128, 512];
const BATCHES: [usize; 4] = [1, 2, 4, 8];
const CONTEXTS: [usize; 2] = [128, 2048];
/// Tokens behind which types of the cache are compared.
const LONG_CONTEXTS: [usize; 2] = [2048, 8128];
const STEPS: usize = 32;
const FIRST_PROMPT: usize = 16;
const BANDWIDTH_BYTES: usize = 1 << 30;
/// Places that a thread reads from at once, and words of a cache line.
const STREAMS: usize = 8;
const LINE_WORDS: usize = 8;

struct Options {
    threads: usize,
    runs: usize,
    models: Vec<PathBuf>,
}

fn main() {
    let options = parse();
    let bandwidth = read_bandwidth(options.threads);
    println!("{}, {} threads, read bandwidth {:.1} GB/s", processor(), options.threads, bandwidth / 1e9);
    for path in &options.models {
        report(path, &options, bandwidth);
    }
}

fn parse() -> Options {
    let mut options = Options { threads: segno::os::usable_cores(), runs: 5, models: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number follows the option");
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--threads" => options.threads = number(),
            "--runs" => options.runs = number(),
            path => options.models.push(PathBuf::from(path)),
        }
    }
    options
}

fn processor() -> String {
    segno::engine::device::info(segno::engine::device::Kind::Cpu, 0).map_or_else(|_| "cpu".into(), |info| info.name)
}

/// Bytes a second that `threads` threads read together, the best of several passes over memory that no cache holds. Each thread reads several
/// streams, as decoding does: one alone keeps too few lines on their way.
fn read_bandwidth(threads: usize) -> f64 {
    let words = vec![1u64; BANDWIDTH_BYTES / 8];
    let share = words.len() / threads;
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(share) {
                scope.spawn(move || std::hint::black_box(sum_streams(part)));
            }
        });
        BANDWIDTH_BYTES as f64 / start.elapsed().as_secs_f64()
    };
    (0..8).map(|_| pass()).fold(0.0, f64::max)
}

fn sum_streams(words: &[u64]) -> u64 {
    let streams: Vec<&[u64]> = words.chunks_exact(words.len() / STREAMS).collect();
    let lines = streams[0].len() / LINE_WORDS;
    let line_sum = |stream: &[u64], line: usize| stream[line * LINE_WORDS..][..LINE_WORDS].iter().sum::<u64>();
    (0..lines).map(|line| streams.iter().map(|stream| line_sum(stream, line)).sum::<u64>()).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn tokens(count: usize) -> Vec<i32> {
    (0..count).map(|i| (i * 37 % 1000 + 5) as i32).collect()
}

fn load(path: &Path, threads: usize) -> Model {
    Ctx::new(|opts| opts.n_threads = threads as u32).unwrap().load(path).unwrap()
}

fn open(model: &Model) -> Session {
    model.session(|opts| opts.kv_tokens = (BATCHES[3] * (CONTEXTS[1] + STEPS)) as u64).unwrap()
}

fn report(path: &Path, options: &Options, bandwidth: f64) {
    let repeat = |f: &dyn Fn() -> f64| median((0..options.runs).map(|_| f()).collect());
    println!("\n{}", path.file_name().unwrap_or_default().to_string_lossy());
    let first = repeat(&|| first_token_seconds(path, options.threads));
    println!("  load to first token, {FIRST_PROMPT}-token prompt: {:.3} s", first);
    let model = load(path, options.threads);
    let session = open(&model);
    // A tied embedding is read whole, as the head; an untied one is not, and counts here all the same.
    let weights = model.info().weight_bytes as f64;
    for count in PROMPTS {
        println!("  prompt {count}: {:.1} tokens/s", repeat(&|| count as f64 / prompt_seconds(&session, count)));
    }
    for (context, batch) in [CONTEXTS[0]].iter().flat_map(|c| BATCHES.map(|b| (*c, b))).chain([(CONTEXTS[1], 1)]) {
        let steps = repeat(&|| STEPS as f64 / decode_seconds(&session, context, batch));
        let share = 100.0 * steps * weights / bandwidth;
        println!(
            "  decode, context {context}, batch {batch}: {:.2} tokens/s, {share:.0} % of the bandwidth",
            steps * batch as f64
        );
    }
    LONG_CONTEXTS.into_iter().for_each(|context| compare_caches(&model, context, options.runs));
    let bytes = saved(&session).0;
    let [out, back] = [0, 1].map(|way| repeat(&|| bytes as f64 / 1e9 / saved(&session).1[way]));
    println!(
        "  {} tokens as {:.1} MB: saved at {out:.2} GB/s, restored at {back:.2} GB/s",
        CONTEXTS[1],
        bytes as f64 / 1e6
    );
    let alone = repeat(&|| STEPS as f64 / decode_seconds(&session, CONTEXTS[0], 1));
    let beside = repeat(&|| STEPS as f64 / busy(options.threads, &|| decode_seconds(&session, CONTEXTS[0], 1)));
    println!("  decode beside {} busy threads: {beside:.2} tokens/s, {:.2} of alone", options.threads, beside / alone);
}

/// Decoding behind `context` tokens over caches of 16 and of 8 bits, by turns, where the model reaches so far.
fn compare_caches(model: &Model, context: usize, runs: usize) {
    if (model.info().context as usize) < context + STEPS + 1 {
        return;
    }
    let open = |kv_type| {
        let room = (context + STEPS + 1) as u64;
        let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.kv_type) = (1, room, kv_type)).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &tokens(context)).unwrap();
        (session, seq)
    };
    let sessions = [SEGNO_KV_F16, SEGNO_KV_Q8].map(open);
    let mut seconds = [(); 2].map(|()| Vec::new());
    for _ in 0..runs {
        for ((session, seq), seconds) in sessions.iter().zip(&mut seconds) {
            session.truncate(*seq, context).unwrap();
            session.step(*seq).unwrap();
            let start = Instant::now();
            session.generate(*seq, STEPS).unwrap();
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    let [f16, q8] = seconds.map(|seconds| STEPS as f64 / median(seconds));
    println!("  decode, context {context}: {f16:.2} tokens/s over f16, {q8:.2} over q8, {:.2} times", q8 / f16);
}

/// A sequence at the longer context on its way out and back: bytes, and seconds of each way.
fn saved(session: &Session) -> (usize, [f64; 2]) {
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &tokens(CONTEXTS[1])).unwrap();
    let result = through_memory(session, seq);
    session.close(seq).unwrap();
    result
}

/// Runs `f` while `threads` other threads compute without a pause.
fn busy(threads: usize, f: &dyn Fn() -> f64) -> f64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0u64..).take_while(|_| !done.load(Ordering::Relaxed)).map(std::hint::black_box).last());
        }
        let result = f();
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn first_token_seconds(path: &Path, threads: usize) -> f64 {
    let start = Instant::now();
    let model = load(path, threads);
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &tokens(FIRST_PROMPT)).unwrap();
    session.step(seq).unwrap();
    start.elapsed().as_secs_f64()
}

fn prompt_seconds(session: &Session, count: usize) -> f64 {
    let seq = session.open(&greedy()).unwrap();
    let start = Instant::now();
    session.prefill(seq, &tokens(count)).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    session.close(seq).unwrap();
    seconds
}

fn decode_seconds(session: &Session, context: usize, batch: usize) -> f64 {
    let seqs: Vec<i32> = (0..batch).map(|_| session.open(&greedy()).unwrap()).collect();
    for &seq in &seqs {
        session.prefill(seq, &tokens(context)).unwrap();
    }
    // The first step after a prompt only samples.
    assert_eq!(session.batch(&seqs).2, Ok(SEGNO_OK));
    let start = Instant::now();
    for _ in 0..STEPS {
        assert_eq!(session.batch(&seqs).2, Ok(SEGNO_OK));
    }
    let seconds = start.elapsed().as_secs_f64();
    for seq in seqs {
        session.close(seq).unwrap();
    }
    seconds
}
