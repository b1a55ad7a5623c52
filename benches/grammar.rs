//! What a grammar costs: decoding within a schema of moderate size beside free decoding, through the C API.
//!
//! `cargo bench --bench grammar -- [--threads N] [--rounds N] [--cuda] MODEL.gguf...` takes turns between a free and a constrained run of as many
//! tokens, and prints medians. Tokens that the grammar forces need no pass of their own, so runs are compared twice: by the token, and by the pass
//! of a single row, where a constrained one has the mask in addition. Figures mean something only on a machine that does nothing else.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Ctx, Grammar, Model, Session, greedy, sampler};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::grammar::{SEGNO_GRAMMAR_COMPACT, SEGNO_GRAMMAR_JSON_SCHEMA};
use segno::ffi::seq::{SEGNO_SAMPLER_IGNORE_EOG, segno_sampler_opts};
use segno::ffi::status::SEGNO_OK;
use std::path::PathBuf;
use std::time::Instant;

/// Records of orders: objects in lists, texts with and without a form, numbers with bounds, choices, what may be left out.
const SCHEMA: &str = r#"{"type": "array", "minItems": 60, "items": {"type": "object", "additionalProperties": false,
    "required": ["id", "customer", "status", "items", "created"], "properties": {
    "id": {"type": "integer", "minimum": 1, "maximum": 99999},
    "customer": {"type": "object", "required": ["name", "email"], "additionalProperties": false, "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 40},
        "email": {"type": "string", "pattern": "^[a-z0-9.]{1,20}@[a-z0-9]{1,20}\\.(com|org|net)$"},
        "city": {"type": "string", "maxLength": 30},
        "vip": {"type": "boolean"}}},
    "status": {"enum": ["open", "paid", "packed", "shipped", "delivered", "returned"]},
    "items": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "object", "required": ["article", "count"],
        "additionalProperties": false, "properties": {
        "article": {"type": "string", "minLength": 3, "maxLength": 60},
        "count": {"type": "integer", "minimum": 1, "maximum": 20},
        "price": {"type": "number", "minimum": 0, "maximum": 1000},
        "colour": {"anyOf": [{"enum": ["red", "green", "blue"]}, {"type": "null"}]}}}},
    "created": {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])$"},
    "note": {"type": "string", "maxLength": 120}}}}"#;
const PROMPT: &[u8] =
    b"The orders of last week, as JSON with the customer, the status, all items and the date of each order:\n";
const BATCHES: [usize; 2] = [1, 8];
const TOKENS: usize = 160;

struct Options {
    threads: usize,
    rounds: usize,
    cuda: bool,
    models: Vec<PathBuf>,
}

fn main() {
    let options = parse();
    for path in &options.models {
        let ctx = Ctx::new(|opts| {
            opts.n_threads = options.threads as u32;
            if options.cuda {
                opts.device = SEGNO_DEVICE_CUDA;
            }
        });
        let model = ctx.unwrap().load(path).unwrap();
        println!("{}, {} threads", path.file_name().unwrap_or_default().to_string_lossy(), options.threads);
        let start = Instant::now();
        let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_COMPACT, SCHEMA).unwrap();
        println!("  the first grammar: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        drop(model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_COMPACT, SCHEMA).unwrap());
        println!("  the second: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        let mut drawn = sampler();
        drawn.flags = SEGNO_SAMPLER_IGNORE_EOG;
        for (name, sampler) in [("greedy", greedy()), ("drawn", drawn)] {
            for batch in BATCHES {
                compare(&model, &grammar, &sampler, &format!("{name}, batch {batch}"), batch, options.rounds);
            }
        }
    }
}

fn parse() -> Options {
    let mut options = Options { threads: segno::os::usable_cores(), rounds: 7, cuda: false, models: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number follows the option");
        match arg.as_str() {
            // What cargo adds for every benchmark.
            "--bench" => {}
            "--threads" => options.threads = number(),
            "--rounds" => options.rounds = number(),
            "--cuda" => options.cuda = true,
            path => options.models.push(PathBuf::from(path)),
        }
    }
    options
}

/// What a run took.
#[derive(Default)]
struct Run {
    seconds: f64,
    passes: u64,
    /// Steps in which no sequence lacked more than a token.
    steps: Vec<f64>,
}

fn compare(model: &Model, grammar: &Grammar, sampler: &segno_sampler_opts, name: &str, batch: usize, rounds: usize) {
    let session = model.session(|opts| opts.kv_tokens = (batch * 512) as u64).unwrap();
    let (mut free, mut constrained) = (Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=rounds {
        let pair = [run(model, &session, None, sampler, batch), run(model, &session, Some(grammar), sampler, batch)];
        if round > 0 {
            let [one, other] = pair;
            free.push(one);
            constrained.push(other);
        }
    }
    let tokens = (TOKENS * batch) as f64;
    let by_token = |runs: &[Run]| median(runs.iter().map(|run| tokens / run.seconds).collect());
    let by_step = |runs: &[Run]| median(runs.iter().flat_map(|run| run.steps.iter().copied()).collect()) * 1e6;
    let mean_step = |runs: &[Run]| {
        let means = runs.iter().map(|run| run.steps.iter().sum::<f64>() / run.steps.len() as f64);
        median(means.collect()) * 1e6
    };
    let slower = median(free.iter().zip(&constrained).map(|(free, other)| other.seconds / free.seconds).collect());
    println!(
        "  {name}: free {:.1} tokens/s, constrained {:.1} in {} passes for {TOKENS}: {:+.2} % of the time",
        by_token(&free),
        by_token(&constrained),
        constrained[0].passes,
        100.0 * (slower - 1.0)
    );
    let ratio = |of: f64, one: f64| 100.0 * (of / one - 1.0);
    println!(
        "    {:.0} passes of a row each: free {:.1} us, constrained {:.1} us ({:+.2} %); mean {:.1} and {:.1} us ({:+.2} %)",
        constrained.iter().map(|run| run.steps.len()).sum::<usize>() as f64 / constrained.len() as f64,
        by_step(&free),
        by_step(&constrained),
        ratio(by_step(&constrained), by_step(&free)),
        mean_step(&free),
        mean_step(&constrained),
        ratio(mean_step(&constrained), mean_step(&free)),
    );
}

fn run(model: &Model, session: &Session, grammar: Option<&Grammar>, sampler: &segno_sampler_opts, batch: usize) -> Run {
    let prompt = model.tokenize(PROMPT, 0).unwrap();
    let open = |index: usize| {
        let mut opts = *sampler;
        opts.seed += index as u64;
        let seq = session.open(&opts).unwrap();
        session.prefill(seq, &prompt).unwrap();
        session.constrain(seq, grammar, -1).unwrap();
        seq
    };
    let seqs: Vec<i32> = (0..batch).map(open).collect();
    let mut run = Run::default();
    let before = session.stats().unwrap();
    let mut last = before;
    let start = Instant::now();
    for _ in 0..TOKENS {
        let begin = Instant::now();
        assert_eq!(session.batch(&seqs).2, Ok(SEGNO_OK));
        let seconds = begin.elapsed().as_secs_f64();
        let now = session.stats().unwrap();
        if now.passes - last.passes == 1
            && now.decoded_tokens > last.decoded_tokens
            && now.prompt_tokens == last.prompt_tokens
        {
            run.steps.push(seconds);
        }
        last = now;
    }
    run.seconds = start.elapsed().as_secs_f64();
    run.passes = last.passes - before.passes;
    seqs.into_iter().for_each(|seq| _ = session.close(seq).unwrap());
    run
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
