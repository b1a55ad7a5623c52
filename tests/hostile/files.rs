//! Hostile files: thousands of tiny models, each changed in a way that matters, end in a model or an error. No panic, no crash, at
//! most 2 seconds and 1 GiB each.
//!
//! `SEGNO_HOSTILE_CASES` sets how many (`make fuzz` asks for more), `SEGNO_HOSTILE_FIRST` where to begin: a case is its number. With
//! `SEGNO_HOSTILE_LARGE=1` large files are truncated too. A crash leaves the file at fault as `hostile-*.gguf` in cargo's folder for the
//! temporary files of tests.

use crate::common;
use crate::common::Ctx;
use crate::common::patient::shortest;
use crate::dice::Dice;
use crate::gguf::{File, Value};
use crate::host::{self, Reached, use_bytes, use_file};
use crate::{memory, models, mutation};
use segno::memory::draw_from;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CASES: usize = 20_000;
const LONGEST: Duration = Duration::from_secs(2);
/// Bytes above which a file has too many truncations for every run of the tests.
const LARGE: u64 = 5 << 18;
/// A case that has not ended by then never will.
const HANG: Duration = Duration::from_secs(30);

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Two threads, whatever the machine has: the case files stay few.
const WORKERS: usize = 2;

fn context() -> Ctx {
    draw_from(&memory::CAPPED);
    Ctx::new(|opts| opts.n_threads = 1).unwrap()
}

/// Where the case of a test's worker lies while it runs.
fn case_file(test: &str, worker: usize) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{}-{test}-{worker}.gguf", std::process::id()))
}

/// How far the cases came, and the slowest.
#[derive(Clone, Copy, Default)]
struct Tally {
    refused: usize,
    models: usize,
    decoded: usize,
    slowest: Duration,
    slowest_case: usize,
}

impl Tally {
    fn note(&mut self, case: usize, reached: Reached, took: Duration) {
        match reached {
            Reached::Refusal => self.refused += 1,
            Reached::Model => self.models += 1,
            Reached::Tokens => self.decoded += 1,
        }
        if took > self.slowest {
            (self.slowest, self.slowest_case) = (took, case);
        }
    }
}

/// Runs the cases of a test on all workers; `case(number, ctx, file)` is one.
fn run(test: &str, cases: Range<usize>, case: impl Fn(usize, &Ctx, &Path) -> Reached + Sync) -> Tally {
    let (next, tally, failed) = (AtomicUsize::new(cases.start), Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    let running: [Mutex<Option<(usize, Instant)>>; WORKERS] = Default::default();
    let work = |worker: usize| {
        let (ctx, file) = (context(), case_file(test, worker));
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= cases.end {
                break;
            }
            let timed = || {
                let (started, refused) = (Instant::now(), memory::refused());
                *running[worker].lock().unwrap() = Some((number, started));
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let reached = case(number, &ctx, &file);
                    assert_eq!(
                        refused,
                        memory::refused(),
                        "case {number}, or the one beside it, goes beyond its memory"
                    );
                    reached
                }));
                (started.elapsed(), outcome)
            };
            let (took, outcome) = shortest(LONGEST, timed);
            match outcome {
                Ok(reached) => tally.lock().unwrap().note(number, reached, took),
                Err(_) => failed.lock().unwrap().push(number),
            }
        }
        *running[worker].lock().unwrap() = None;
        // Tests that load from memory have written none.
        let _ = std::fs::remove_file(file);
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            for (worker, running) in running.iter().enumerate() {
                if let Some((number, started)) = *running.lock().unwrap()
                    && started.elapsed() > HANG
                {
                    eprintln!("case {number} hangs; its file is {}", case_file(test, worker).display());
                    std::process::abort();
                }
            }
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} cases failed: {failed:?}", failed.len());
    let tally = tally.into_inner().unwrap();
    let Tally { slowest, slowest_case, .. } = tally;
    assert!(slowest <= LONGEST, "case {slowest_case} took {slowest:?}");
    tally
}

#[test]
fn unchanged_models_decode() {
    let ctx = context();
    for (index, model) in models::all().iter().enumerate() {
        let reached = use_file(&ctx, &model.to_bytes(), &case_file("unchanged", 0), &mut Dice::new(0));
        assert_eq!(reached, Reached::Tokens, "model {index}");
    }
    std::fs::remove_file(case_file("unchanged", 0)).unwrap();
}

#[test]
fn changed_models_load_or_are_refused() {
    let models = models::all();
    let first = number("SEGNO_HOSTILE_FIRST", 0);
    let cases = number("SEGNO_HOSTILE_CASES", CASES);
    let started = Instant::now();
    let tally = run("changed", first..first + cases, |number, ctx, file| {
        let mut dice = Dice::new(number as u64);
        let bytes = mutation::mutate(&models[number % models.len()], &mut dice);
        use_file(ctx, &bytes, file, &mut dice)
    });
    let Tally { refused, models, decoded, slowest, slowest_case } = tally;
    println!(
        "{cases} cases in {:?}: {refused} refused, {models} models, {decoded} decoded; slowest {slowest_case} with {slowest:?}; \
         at most {} MiB",
        started.elapsed(),
        memory::peak() >> 20
    );
    assert!(cases < 1000 || (decoded > cases / 10 && refused > cases / 4), "the cases prove little");
}

/// Every GGUF file of a folder and its folders.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] });
    below.filter(|path| path.extension().is_some_and(|end| end == "gguf")).collect()
}

/// Every model of the tests as bytes; those above [`LARGE`] where they are asked for.
fn whole_models() -> Vec<Vec<u8>> {
    let mut files = files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"));
    files.extend(common::shared_data().iter().flat_map(|folder| files_below(folder)));
    if number("SEGNO_HOSTILE_LARGE", 0) == 0 {
        files.retain(|path| path.metadata().unwrap().len() <= LARGE);
    }
    files.push(common::bundled_model());
    let files = files.iter().map(|path| std::fs::read(path).unwrap());
    models::all().iter().map(|model| model.to_bytes()).chain(files).collect()
}

#[test]
fn truncated_models_are_refused() {
    let models = whole_models();
    let cuts = |at: usize| (0..models[at].len()).step_by(512).map(move |cut| (at, cut));
    let cuts: Vec<(usize, usize)> = (0..models.len()).flat_map(cuts).collect();
    let tally = run("truncated", 0..cuts.len(), |number, ctx, _| {
        let (model, cut) = cuts[number];
        use_bytes(ctx, &models[model][..cut], &mut Dice::new(0))
    });
    println!("{} truncations of {} models refused; slowest {:?}", tally.refused, models.len(), tally.slowest);
    assert_eq!(tally.refused, cuts.len());
}

fn message_of(file: &File, test: &str) -> (Option<String>, Option<String>) {
    let (ctx, path) = (context(), case_file(test, 0));
    std::fs::write(&path, file.to_bytes()).unwrap();
    let messages = host::refusals(&ctx, &file.to_bytes(), &path);
    std::fs::remove_file(path).unwrap();
    messages
}

#[test]
fn split_keys_of_a_whole_file_mean_nothing() {
    for value in [Value::text("x"), Value::u32(7)] {
        let mut file = models::all().swap_remove(0);
        file.set("split.tensors.count", value);
        assert_eq!(message_of(&file, "whole"), (None, None));
    }
}

#[test]
fn messages_are_one_short_line_whatever_the_file_says() {
    for name in ["a\nb".to_owned(), "\u{1b}[31mred".to_owned(), "x".repeat(60_000)] {
        let mut file = models::all().swap_remove(0);
        file.entries.retain(|entry| entry.key != b"general.architecture");
        file.set("general.architecture", Value::text(&name));
        let (from_file, from_bytes) = message_of(&file, "messages");
        let message = from_file.unwrap();
        assert!(
            message.contains("is not supported; supported: llama, qwen2, qwen3") && message.len() <= 1024,
            "{message}"
        );
        assert!(!message.contains(char::is_control), "{message:?}");
        assert_eq!(Some(message), from_bytes);
    }
}
