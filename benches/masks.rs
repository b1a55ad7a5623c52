//! What masks cost: schemas of real services, each compiled and walked through by what a model says within it.
//!
//! `cargo bench --bench masks -- [--tokens N] FOLDER MODEL.gguf` takes JSON files of the folder until 200 compile, the last names first;
//! `make schemas` fetches some into `.schemas/services`. It tells how many do not, and why, the time to the first mask, and the times of masks where
//! the model had a choice. The model draws at temperature 1, so that texts differ; its passes are not measured.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Ctx, Model, Session, sampler};
use segno::ffi::grammar::SEGNO_GRAMMAR_JSON_SCHEMA;
use segno::ffi::status::{SEGNO_OK, SEGNO_PENDING};
use segno::grammar::{Constraint, Form, Grammar, Kind, Next, Vocabulary};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Schemas that are measured.
const MOST: usize = 200;

/// What was measured, in microseconds.
#[derive(Default)]
struct Times {
    firsts: Vec<f64>,
    masks: Vec<f64>,
    asked: Vec<f64>,
    forced: usize,
    refused: BTreeMap<String, usize>,
}

fn main() {
    let (mut tokens, mut paths) = (64, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--tokens" => tokens = args.next().and_then(|text| text.parse().ok()).expect("a number follows --tokens"),
            path => paths.push(PathBuf::from(path)),
        }
    }
    let [folder, path] = &paths[..] else { panic!("usage: masks [--tokens N] FOLDER MODEL.gguf") };
    let tokenizer = Arc::new(common::metadata::tokenizer(path));
    let vocabulary = Arc::new(Vocabulary::of(&tokenizer).unwrap());
    let model = Ctx::new(|_| ()).unwrap().load(path).unwrap();
    let session = model.session(|_| ()).unwrap();
    let mut times = Times::default();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The last names first: those of services stand behind the many of AWS.
    files.sort_by(|a, b| b.cmp(a));
    for file in &files {
        if times.firsts.len() == MOST {
            break;
        }
        measure(&mut times, &vocabulary, &model, &session, file, tokens);
    }
    let refused: usize = times.refused.values().sum();
    println!("{} schemas compile, {refused} do not, {} forced tokens", times.firsts.len(), times.forced);
    for (cause, count) in &times.refused {
        println!("  {count} refused: {cause}");
    }
    report("time to the first mask", &mut times.firsts);
    report("masks", &mut times.masks);
    report("asking for the token that was drawn", &mut times.asked);
}

fn measure(
    times: &mut Times,
    vocabulary: &Arc<Vocabulary>,
    model: &Model,
    session: &Session,
    file: &Path,
    most: usize,
) {
    let text = std::fs::read(file).unwrap();
    let start = Instant::now();
    let form = Form { kind: Kind::JsonSchema, text: &text, compact: false };
    let grammar = match Grammar::compile(vocabulary, &form) {
        Ok(grammar) => Arc::new(grammar),
        Err(error) => return *times.refused.entry(cause(&error.to_string())).or_default() += 1,
    };
    let mut walk = Constraint::new(&grammar, None).unwrap();
    walk.prepare();
    times.firsts.push(start.elapsed().as_secs_f64() * 1e6);
    let said = said(model, session, std::str::from_utf8(&text).unwrap(), most);
    let mut walk = Constraint::new(&grammar, None).unwrap();
    for (position, &token) in said.iter().enumerate() {
        match walk.peek().unwrap() {
            Next::Forced(_) => times.forced += 1,
            Next::Choice if !walk.is_prepared() => {
                let start = Instant::now();
                walk.allows(&[token]).unwrap();
                times.asked.push(start.elapsed().as_secs_f64() * 1e6);
                let start = Instant::now();
                walk.prepare();
                times.masks.push(start.elapsed().as_secs_f64() * 1e6);
            }
            _ => {}
        }
        walk.advance(token, position, false).unwrap();
    }
}

/// What the model says within a schema.
fn said(model: &Model, session: &Session, schema: &str, most: usize) -> Vec<i32> {
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, 0, schema).unwrap();
    let mut opts = sampler();
    (opts.temperature, opts.seed) = (1.0, schema.len() as u64);
    let seq = session.open(&opts).unwrap();
    session.append(seq, &model.tokenize(b"A record of the service, as JSON:\n", 0).unwrap()).unwrap();
    session.constrain(seq, Some(&grammar), -1).unwrap();
    let mut said = Vec::new();
    while said.len() < most {
        match session.step(seq).unwrap() {
            (token, SEGNO_OK) => said.push(token),
            (_, SEGNO_PENDING) => {}
            _ => break,
        }
    }
    session.close(seq).unwrap();
    said
}

/// What an error says, without the place.
fn cause(message: &str) -> String {
    let message =
        message.split(": ").skip(usize::from(message.starts_with("the schema at"))).collect::<Vec<_>>().join(": ");
    message.chars().take(110).collect()
}

fn report(what: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values.get((values.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    println!(
        "  {what}: {} of them, median {:.1} us, 90 % {:.1}, 99 % {:.1}, most {:.1}, mean {mean:.1}",
        values.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        values.last().copied().unwrap_or(f64::NAN)
    );
}
