//! How fast texts become vectors, through the C API.
//!
//! `cargo bench --bench embeddings -- [--threads N] [--rounds N] [--cuda] [--fast] [--texts N] [--tokens N,N...] [--prefill N] [--kv f16|f32|q8]
//! MODEL.gguf...` makes vectors of so many texts of so many tokens each, as the model pools them, and prints medians of texts and tokens a second.
//! Passes take up to `--prefill` tokens, and as many texts as have room there. Figures mean something only on a machine that does nothing else.

#[path = "../tests/common/mod.rs"]
mod common;

use common::embeddings::embed_opts;
use common::{Ctx, Model};
use segno::ffi::ctx::SEGNO_CTX_FAST_BATCHES;
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8};
use std::path::PathBuf;
use std::time::Instant;

/// Most texts of a pass.
const MOST_TEXTS: usize = 64;

struct Options {
    threads: usize,
    rounds: usize,
    cuda: bool,
    fast: bool,
    texts: usize,
    tokens: Vec<usize>,
    prefill: usize,
    kv_type: i32,
    models: Vec<PathBuf>,
}

fn main() {
    let options = parse();
    for path in &options.models {
        let ctx = Ctx::new(|opts| {
            opts.n_threads = options.threads as u32;
            opts.device = if options.cuda { SEGNO_DEVICE_CUDA } else { SEGNO_DEVICE_CPU };
            opts.flags |= if options.fast { SEGNO_CTX_FAST_BATCHES } else { 0 };
        });
        let model = ctx.unwrap().load(path).unwrap();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        println!("{name}, passes of up to {} tokens", options.prefill);
        options.tokens.iter().for_each(|&tokens| measure(&model, &options, tokens));
    }
}

fn parse() -> Options {
    let mut options = Options {
        threads: segno::os::usable_cores(),
        rounds: 7,
        cuda: false,
        fast: false,
        texts: 256,
        tokens: vec![32, 128, 512],
        prefill: 2048,
        kv_type: SEGNO_KV_F16,
        models: Vec::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("a value follows the option");
        let number = |text: String| text.parse().expect("a number follows the option");
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--threads" => options.threads = number(value()),
            "--rounds" => options.rounds = number(value()),
            "--cuda" => options.cuda = true,
            "--fast" => options.fast = true,
            "--texts" => options.texts = number(value()),
            "--tokens" => options.tokens = value().split(',').map(|text| number(text.into())).collect(),
            "--prefill" => options.prefill = number(value()),
            "--kv" => {
                options.kv_type = match value().as_str() {
                    "f16" => SEGNO_KV_F16,
                    "f32" => SEGNO_KV_F32,
                    "q8" => SEGNO_KV_Q8,
                    other => panic!("{other} is no type of a cache"),
                }
            }
            path => options.models.push(PathBuf::from(path)),
        }
    }
    options
}

fn measure(model: &Model, options: &Options, tokens: usize) {
    let (context, vocab) = (model.info().context as usize, model.info().vocab as usize);
    if tokens > context {
        return println!("  {tokens} tokens are more than the {context} of the model's context");
    }
    let seqs = (options.prefill / tokens).clamp(1, MOST_TEXTS);
    let session = model.session(|opts| {
        (opts.max_seqs, opts.max_prefill) = (seqs as u32, options.prefill.max(tokens) as u32);
        (opts.kv_type, opts.kv_tokens) = (options.kv_type, (seqs * tokens.next_multiple_of(32)) as u64);
    });
    let session = session.unwrap();
    // Small numbers are special tokens of many models.
    let token = |text: usize, at: usize| ((text * 7919 + at * 31) % (vocab / 2) + vocab / 4) as i32;
    let texts: Vec<Vec<i32>> = (0..options.texts).map(|text| (0..tokens).map(|at| token(text, at)).collect()).collect();
    let texts: Vec<&[i32]> = texts.iter().map(Vec::as_slice).collect();
    // The first round warms up.
    session.vectors(&texts, &embed_opts());
    let round = |_| {
        let start = Instant::now();
        session.vectors(&texts, &embed_opts());
        start.elapsed().as_secs_f64()
    };
    let mut seconds: Vec<f64> = (0..options.rounds.max(1)).map(round).collect();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    println!(
        "  {} texts of {tokens} tokens, {seqs} a pass at most: {:.1} texts/s, {:.0} tokens/s, {:.3} ms a text",
        options.texts,
        options.texts as f64 / median,
        (options.texts * tokens) as f64 / median,
        1e3 * median / options.texts as f64
    );
}
