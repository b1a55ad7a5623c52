//! What speculation gains and costs, through the C API: the same texts with and without drafts, in turns, and the same tokens.
//!
//! `cargo bench --bench speculation -- [--cuda] [--threads N] [--runs N] [--tokens N] [--drafts N] [--draft MODEL.gguf] [--mtp] [--shared]
//! [--text NAME] MODEL.gguf...` prints a line for each text, or one of them, and way to draft, the model's own predictor (`--mtp`) and what
//! earlier runs have said (`--shared`) among them, of at most `--drafts` each time: tokens a second without and with, medians of runs that
//! alternate, their ratio, and how many drafts were evaluated and right.
//! Texts: the edit of a program, which repeats it; a text that says one thing again and again; one drawn evenly from four tokens, whose repetitions
//! are many and tell nothing; and free text. The penalties that make two of these do so with weights of any kind.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Ctx, Model, Session, greedy};
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::ffi::seq::{segno_logit_bias, segno_sampler_opts};
use segno::ffi::session::*;
use std::path::PathBuf;
use std::time::Instant;

const PROGRAM: &str = "\
def total_price(items, tax_rate):
    total = 0
    for item in items:
        total += item.price * item.quantity
    return total * (1 + tax_rate)

def print_receipt(items, tax_rate):
    for item in items:
        print(item.name, item.quantity, item.price)
    print('total', total_price(items, tax_rate))

def cheapest(items):
    best = items[0]
    for item in items:
        if item.price < best.price:
            best = item
    return best
";

struct Options {
    device: i32,
    threads: usize,
    runs: usize,
    tokens: usize,
    /// Most drafts; 0 for what the library takes.
    drafts: u32,
    draft: Option<PathBuf>,
    mtp: bool,
    shared: bool,
    text: Option<String>,
    models: Vec<PathBuf>,
}

/// Who drafts.
#[derive(Clone, Copy)]
enum Way<'a> {
    Repetitions,
    Shared,
    Model(&'a Model),
    Predictor,
}

impl Way<'_> {
    fn name(self) -> &'static str {
        match self {
            Way::Repetitions => "ngram",
            Way::Shared => "shared",
            Way::Model(_) => "model",
            Way::Predictor => "mtp",
        }
    }

    fn set(self, opts: &mut segno_session_opts) {
        opts.speculation = match self {
            Way::Repetitions => SEGNO_SPECULATION_NGRAM,
            Way::Shared => SEGNO_SPECULATION_NGRAM + SEGNO_SPECULATION_SHARED,
            Way::Model(draft) => {
                opts.draft = draft.0;
                SEGNO_SPECULATION_DRAFT
            }
            Way::Predictor => SEGNO_SPECULATION_MTP,
        };
    }
}

fn main() {
    let options = parse();
    let ctx = Ctx::new(|opts| (opts.device, opts.n_threads) = (options.device, options.threads as u32)).unwrap();
    let draft = options.draft.as_ref().map(|path| ctx.load(path).unwrap());
    for path in &options.models {
        println!("{}, {} threads, {} tokens", path.display(), options.threads, options.tokens);
        println!(
            "{:<12}{:<8}{:>10}{:>10}{:>8}{:>10}{:>10}",
            "text", "drafts", "without", "with", "ratio", "drafted", "right"
        );
        let model = ctx.load(path).unwrap();
        let wanted = |text: &Text| options.text.as_ref().is_none_or(|name| name == text.name);
        for text in texts(&model).into_iter().filter(wanted) {
            let (shared, predictor) = (options.shared.then_some(Way::Shared), options.mtp.then_some(Way::Predictor));
            let ways =
                [Way::Repetitions].into_iter().chain(shared).chain(draft.iter().map(Way::Model)).chain(predictor);
            ways.into_iter().for_each(|way| report(&model, &text, &options, way));
        }
    }
}

fn parse() -> Options {
    let threads = segno::os::usable_cores();
    let (device, draft, text, models) = (SEGNO_DEVICE_CPU, None, None, Vec::new());
    let (runs, tokens, drafts, mtp, shared) = (7, 200, 0, false, false);
    let mut options = Options { device, threads, runs, tokens, drafts, draft, mtp, shared, text, models };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number follows the option");
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--cuda" => options.device = SEGNO_DEVICE_CUDA,
            "--threads" => options.threads = number(),
            "--runs" => options.runs = number(),
            "--tokens" => options.tokens = number(),
            "--drafts" => options.drafts = number() as u32,
            "--mtp" => options.mtp = true,
            "--shared" => options.shared = true,
            "--draft" => options.draft = args.next().map(PathBuf::from),
            "--text" => options.text = args.next(),
            path => options.models.push(PathBuf::from(path)),
        }
    }
    options
}

struct Text {
    name: &'static str,
    prompt: Vec<i32>,
    sampler: segno_sampler_opts,
}

fn texts(model: &Model) -> Vec<Text> {
    let edit = format!("```python\n{PROGRAM}```\nThe same program, with `items` renamed to `goods`:\n```python\n");
    let edit = model.tokenize(edit.as_bytes(), 0).unwrap();
    // Far more than any logit, so that these four are drawn, each as often as the others.
    static FOUR: [segno_logit_bias; 4] = [bias(300), bias(301), bias(302), bias(303)];
    let (mut again, mut chance, mut free) = (greedy(), greedy(), greedy());
    (again.frequency_penalty, again.penalty_last_n) = (-10.0, -1);
    (chance.bias, chance.bias_count, chance.temperature, chance.seed) = (FOUR.as_ptr(), FOUR.len(), 100.0, 1);
    (chance.top_k, chance.top_p, chance.min_p) = (4, 1.0, 0.0);
    (free.temperature, free.seed) = (0.8, 1);
    let text = |name, sampler| Text { name, prompt: edit.clone(), sampler };
    vec![text("edit", greedy()), text("again", again), text("chance", chance), text("free", free)]
}

const fn bias(token: i32) -> segno_logit_bias {
    segno_logit_bias { token, bias: 1e6 }
}

fn report(model: &Model, text: &Text, options: &Options, way: Way) {
    let sessions = [None, Some(way)].map(|way| {
        let opts = |opts: &mut segno_session_opts| {
            (opts.max_seqs, opts.kv_tokens) = (1, 2048);
            if let Some(way) = way {
                way.set(opts);
                opts.max_drafts = options.drafts;
            }
        };
        model.session(opts).unwrap()
    });
    let mut times = [Vec::new(), Vec::new()];
    for run in 0..options.runs {
        let mut said = Vec::new();
        for turn in 0..2 {
            let which = (run + turn) % 2;
            let (tokens, seconds) = timed(&sessions[which], text, options.tokens);
            times[which].push(seconds);
            said.push(tokens);
        }
        assert_eq!(said[0], said[1], "drafts change no token");
    }
    let [without, with] = times.map(|times| options.tokens as f64 / median(times));
    let (stats, way) = (sessions[1].stats().unwrap(), way.name());
    let (ratio, runs) = (with / without, options.runs as u64);
    let (drafted, right) = (stats.drafted / runs, stats.accepted / runs);
    println!("{:<12}{way:<8}{without:>10.1}{with:>10.1}{ratio:>8.3}{drafted:>10}{right:>10}", text.name);
}

/// The tokens behind the prompt, and how long they took.
fn timed(session: &Session, text: &Text, count: usize) -> (Vec<i32>, f64) {
    let seq = session.open(&text.sampler).unwrap();
    session.prefill(seq, &text.prompt).unwrap();
    let start = Instant::now();
    let tokens = session.generate(seq, count).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    session.close(seq).unwrap();
    (tokens, seconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
