//! How likely a model finds a text over caches of each type.

use super::passes::limits;
use super::{Model, sampler, shared_data};
use segno::arch::{Arch, Hparams};
use segno::backend::{Backend, Batch, Chooser, KvType, Limits, Row, cpu};
use segno::format::Gguf;
use segno::kv::{PAGE_TOKENS, Pages, Tables};
use segno::plan::build::build;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Tokens that see one another.
pub const WINDOW: usize = 512;

/// Texts of `count` windows: the end of the plays that the bundled model was not trained on, where the shared test data is there, and what the
/// model itself writes.
pub fn texts(model: &Model, count: usize) -> Vec<(&'static str, Vec<i32>)> {
    let mut opts = sampler();
    (opts.flags, opts.temperature, opts.seed) = (super::greedy().flags, 0.8, 1);
    let session = model.session(|opts| opts.kv_tokens = WINDOW as u64).unwrap();
    let start = model.info().bos.max(0);
    let own = (0..count).flat_map(|window| {
        opts.seed = window as u64 + 1;
        let seq = session.open(&opts).unwrap();
        session.append(seq, &[start]).unwrap();
        let tokens = session.generate(seq, WINDOW - 1).unwrap();
        session.close(seq).unwrap();
        std::iter::once(start).chain(tokens)
    });
    let mut texts = vec![("its own text", own.collect())];
    if let Some(data) = shared_data() {
        let text = std::fs::read(data.join("text/tinyshakespeare.txt")).unwrap();
        let mut tokens = model.tokenize(&text[text.len() / 10 * 9..], 0).unwrap();
        tokens.truncate(count * WINDOW);
        assert_eq!(tokens.len(), count * WINDOW);
        texts.push(("tinyshakespeare", tokens));
    }
    texts
}

/// The mean loss, in nats, of the tokens of `text` but for the first of each window, over a cache of this type.
pub fn loss(path: &Path, kv_type: KvType, text: &[i32]) -> f64 {
    let losses = losses(path, kv_type, text, 2);
    losses.iter().sum::<f64>() / losses.len() as f64
}

/// The same of each window.
pub fn losses(path: &Path, kv_type: KvType, text: &[i32], threads: usize) -> Vec<f64> {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    let program = Arc::new(build(&gguf, &arch, &hparams).unwrap());
    let pages = WINDOW / PAGE_TOKENS;
    let limits = Limits { rows: WINDOW, outputs: WINDOW, context: WINDOW, kv_type, ..limits(&program, WINDOW, 1) };
    let cpu = cpu::Cpu::new(&cpu::Options { threads, precise: false, allow_avx512: true, gives_way: false }).unwrap();
    let mut runner = cpu.prepare(program, &mut |_| Ok(())).unwrap().open(&limits).unwrap();
    let (mut free, mut tables) = (Pages::new(pages).unwrap(), Tables::new(1, pages).unwrap());
    assert!(tables.grow(0, pages, &mut free));
    let outputs: Vec<u32> = (0..WINDOW as u32).collect();
    let mut of_window = |window: &[i32]| {
        let row = |(position, &token): (usize, &i32)| Row { token: token as u32, position: position as u32, slot: 0 };
        let rows: Vec<Row> = window.iter().enumerate().map(row).collect();
        let (chooser, tables) = (Chooser::Host, &tables);
        let batch = Batch { rows: &rows, outputs: &outputs, chooser, tables, window_tables: None, moves: &[] };
        runner.run(&batch, &AtomicBool::new(false)).unwrap();
        let nexts = window.iter().skip(1).enumerate();
        nexts.map(|(at, &next)| surprise(runner.logits(at), next)).sum::<f64>() / (WINDOW - 1) as f64
    };
    text.chunks_exact(WINDOW).map(&mut of_window).collect()
}

/// Minus the logarithm of a token's probability.
fn surprise(logits: &[f32], token: i32) -> f64 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - most)
}
