//! How likely a model finds a text over caches of 16 and of 8 bits, on the CPU.
//!
//! `cargo bench --bench perplexity -- [--threads N] [--tokens N] TEXT MODEL.gguf...` prints both perplexities of the first tokens of a text file, in
//! windows of 512 that see nothing of each other, and by how much they differ, with the standard error of that over the windows.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Ctx;
use common::perplexity::{WINDOW, losses};
use segno::backend::KvType;
use std::path::PathBuf;

/// Bytes that are tokenized at a time.
const PIECE: usize = 32 << 10;

fn main() {
    let (mut threads, mut most, mut paths) = (segno::os::usable_cores(), usize::MAX, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number follows the option");
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--threads" => threads = number(),
            "--tokens" => most = number(),
            path => paths.push(PathBuf::from(path)),
        }
    }
    let (text, models) = paths.split_first().expect("usage: perplexity [--threads N] [--tokens N] TEXT MODEL.gguf...");
    let text = std::fs::read(text).unwrap();
    for path in models {
        let model = Ctx::new(|_| ()).unwrap().load(path).unwrap();
        let mut tokens: Vec<i32> = text.chunks(PIECE).flat_map(|piece| model.tokenize(piece, 0).unwrap()).collect();
        tokens.truncate(most.min(tokens.len()) / WINDOW * WINDOW);
        let [halves, blocks] = [KvType::F16, KvType::Q8].map(|kv_type| losses(path, kv_type, &tokens, threads));
        let differences: Vec<f64> = halves.iter().zip(&blocks).map(|(half, block)| block - half).collect();
        let (difference, error) = mean_and_error(&differences);
        println!(
            "{}, {} tokens: perplexity {:.4} over f16, {:.4} over q8: {:+.4} %, standard error {:.4} %",
            path.file_name().unwrap_or_default().to_string_lossy(),
            tokens.len(),
            mean_and_error(&halves).0.exp(),
            mean_and_error(&blocks).0.exp(),
            difference.exp_m1() * 100.0,
            error * 100.0
        );
    }
}

/// The mean, and its standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}
