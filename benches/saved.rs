//! How fast sequences are saved and restored, through the C API: to memory and back, and to a file and back.
//!
//! `cargo bench --bench saved -- [--cuda] [--threads N] [--tokens N] [--runs N] [MODEL.gguf...]` prints a line for each type of cache: bytes, and
//! GB/s of each way, medians of runs. A file is written to the disk before the call returns, and read from what the system keeps of it. Without a
//! model it is one made here, of 8 layers with 8 key-value heads of 128 elements, whose weights matter little.

#[path = "../tests/common/mod.rs"]
mod common;

use common::gguf::Shape;
use common::saved::{through_file, through_memory};
use common::{Ctx, Folder, Model, greedy};
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8};
use std::path::PathBuf;

struct Options {
    device: i32,
    threads: usize,
    tokens: usize,
    runs: usize,
    models: Vec<PathBuf>,
}

fn main() {
    let options = parse();
    let ctx = Ctx::new(|opts| (opts.device, opts.n_threads) = (options.device, options.threads as u32)).unwrap();
    if options.models.is_empty() {
        let sizes = Shape { layers: 8, hidden: 256, heads: 8, kv_heads: 8, head_dim: 128, ..Shape::small() };
        let file = Shape { feed_forward: 256, context: options.tokens + 1, ..sizes }.file();
        print(&ctx.load_buffer(&file.bytes()).unwrap(), "8 layers of 8 heads of 128", &options);
    }
    for path in &options.models {
        print(&ctx.load(path).unwrap(), &path.display().to_string(), &options);
    }
}

fn parse() -> Options {
    let threads = segno::os::usable_cores();
    let mut options = Options { device: SEGNO_DEVICE_CPU, threads, tokens: 4096, runs: 5, models: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number follows the option");
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--cuda" => options.device = SEGNO_DEVICE_CUDA,
            "--threads" => options.threads = number(),
            "--tokens" => options.tokens = number(),
            "--runs" => options.runs = number(),
            path => options.models.push(PathBuf::from(path)),
        }
    }
    options
}

/// The figures of a model, of a sequence of as many tokens as are asked for, or as its context holds.
fn print(model: &Model, name: &str, options: &Options) {
    let (folder, info) = (Folder::new("bench-saved"), model.info());
    let tokens = options.tokens.min(info.context as usize - 1);
    println!("{name}, {tokens} tokens, GB/s");
    println!("{:<6}{:>12}{:>10}{:>12}{:>10}{:>12}", "cache", "MB", "saved", "restored", "to file", "from file");
    for (kv_type, cache) in [(SEGNO_KV_F16, "f16"), (SEGNO_KV_F32, "f32"), (SEGNO_KV_Q8, "q8")] {
        // Room for the sequence and the one that is restored.
        let room = 2 * tokens as u64 + 64;
        let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.kv_type) = (2, room, kv_type)).unwrap();
        let seq = session.open(&greedy()).unwrap();
        let text: Vec<i32> = (0..tokens).map(|place| (place * 37 % info.vocab as usize) as i32).collect();
        session.prefill(seq, &text).unwrap();
        let file = folder.join("sequence.segno");
        let runs = (0..options.runs).map(|_| (through_memory(&session, seq), through_file(&session, seq, &file)));
        let runs: Vec<_> = runs.map(|((bytes, [a, b]), (_, [c, d]))| (bytes, [a, b, c, d])).collect();
        let bytes = runs[0].0 as f64;
        let speeds = [0, 1, 2, 3].map(|way| {
            let mut seconds: Vec<f64> = runs.iter().map(|(_, seconds)| seconds[way]).collect();
            seconds.sort_by(f64::total_cmp);
            bytes / 1e9 / seconds[seconds.len() / 2]
        });
        let [out, back, to_file, from_file] = speeds;
        println!("{cache:<6}{:>12.1}{out:>10.2}{back:>12.2}{to_file:>10.2}{from_file:>12.2}", bytes / 1e6);
    }
}
