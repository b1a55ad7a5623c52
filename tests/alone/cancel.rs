//! From cancel to return: a call that is cancelled at any moment of its work returns soon, and leaves its session as it was.
//!
//! `SEGNO_CANCEL_MODEL` names another model than the bundled one, `SEGNO_CANCEL_SAMPLES` how many calls of each kind are cancelled. On a
//! machine with other work the time that the calling thread computes says more than the clock, so both are told.

#[path = "../common/mod.rs"]
mod common;

use common::clock::ThreadClock;
use common::{Ctx, Model, Result, Session, bundled_model, sampler};
use segno::ffi::model::segno_model_info;
use segno::ffi::session::segno_session_opts;
use segno::ffi::status::*;
use segno::quant::synthetic::Random;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Of a hundred cancelled calls, all but one return within this time.
const BOUND: Duration = Duration::from_millis(50);
/// The same for the bundled model, whose test runs on machines with other work.
const BUNDLED_BOUND: Duration = Duration::from_millis(250);
/// Processors that others keep busy may spoil a measurement, a slow call is slow each time.
const ATTEMPTS: usize = 3;
/// Tokens that a sequence has before the call.
const HISTORY: usize = 24;

/// Prompt tokens of a pass: as many as make the largest tiles.
const PASS: usize = 128;
/// Sequences of a session.
const SEQS: usize = 32;

/// One kind of call.
struct Kind {
    name: &'static str,
    /// Prompt tokens of the call.
    prompt: usize,
    call: fn(&Session, &[i32], &[i32]) -> Result<segno_status>,
}

const KINDS: [Kind; 4] = [
    Kind { name: "prompt", prompt: PASS + 32, call: |session, seqs, prompt| session.prefill(seqs[0], prompt) },
    Kind { name: "step", prompt: 0, call: |session, seqs, _| session.step(seqs[0]).map(|(_, status)| status) },
    Kind { name: "batch", prompt: 0, call: |session, seqs, _| session.batch(seqs).2 },
    Kind { name: "step after a prompt", prompt: 100, call: prompt_and_step },
];

fn prompt_and_step(session: &Session, seqs: &[i32], prompt: &[i32]) -> Result<segno_status> {
    session.append(seqs[0], prompt)?;
    session.step(seqs[0]).map(|(_, status)| status)
}

/// A session with sequences of the same length.
struct World {
    session: Session,
    seqs: Vec<i32>,
    info: segno_model_info,
}

impl World {
    fn new(model: &Model) -> World {
        let options = |opts: &mut segno_session_opts| {
            (opts.kv_tokens, opts.max_seqs, opts.max_prefill) = (4096, SEQS as u32, PASS as u32);
        };
        let session = model.session(options).unwrap();
        // Every token is a candidate, so choosing one takes a while.
        let mut opts = sampler();
        opts.top_k = 0;
        let seqs: Vec<i32> = (0..SEQS).map(|_| session.open(&opts).unwrap()).collect();
        let world = World { session, seqs, info: model.info() };
        for &seq in &world.seqs {
            world.session.prefill(seq, &world.prompt(HISTORY)).unwrap();
        }
        world
    }

    /// Token ids without a meaning, as many as the context has room for.
    fn prompt(&self, length: usize) -> Vec<i32> {
        let room = self.info.context as usize - 2 * HISTORY;
        (0..length.min(room)).map(|index| (index * 7919 % self.info.vocab as usize) as i32).collect()
    }

    /// Undoes a call.
    fn reset(&self) {
        self.session.cancel(false);
        for &seq in &self.seqs {
            self.session.truncate(seq, HISTORY).unwrap();
        }
    }

    /// How long a call takes that nobody cancels, its best of two.
    fn duration(&self, kind: &Kind, prompt: &[i32]) -> Duration {
        let measure = || {
            let started = Instant::now();
            let status = (kind.call)(&self.session, &self.seqs, prompt).unwrap();
            assert!([SEGNO_OK, SEGNO_DONE].contains(&status), "{}: {status}", kind.name);
            let took = started.elapsed();
            self.reset();
            took
        };
        measure().min(measure())
    }

    /// Cancels a call after `delay`; how long it still took, or `None` when it was done before.
    fn cancel_after(&self, kind: &Kind, prompt: &[i32], delay: Duration) -> Option<Latency> {
        let (together, computing) = (Barrier::new(2), ThreadClock::of_this_thread());
        let (status, cancelled, returned) = std::thread::scope(|scope| {
            let canceller = scope.spawn(|| {
                together.wait();
                std::thread::sleep(delay);
                let cancelled = (Instant::now(), computing.now());
                self.session.cancel(true);
                cancelled
            });
            together.wait();
            let status = (kind.call)(&self.session, &self.seqs, prompt).unwrap();
            let returned = (Instant::now(), computing.now());
            (status, canceller.join().unwrap(), returned)
        });
        let lengths: Vec<usize> = self.seqs.iter().map(|&seq| self.session.length(seq).unwrap()).collect();
        self.reset();
        if status != SEGNO_CANCELLED {
            return None;
        }
        let appended = if kind.name == "step after a prompt" { prompt.len() } else { 0 };
        assert!(
            lengths[0] == HISTORY + appended && lengths[1..].iter().all(|&length| length == HISTORY),
            "{}",
            kind.name
        );
        Some(Latency {
            passed: returned.0.saturating_duration_since(cancelled.0),
            computed: returned.1.saturating_sub(cancelled.1),
        })
    }

    /// Times from cancel to return of `samples` calls of a kind.
    fn latencies(&self, kind: &Kind, samples: usize) -> Vec<Latency> {
        let mut random = Random::new(samples as u64);
        let whole = self.prompt(kind.prompt);
        let duration = self.duration(kind, &whole);
        let mut latencies = Vec::new();
        // Most calls of a fraction of a millisecond are done before their canceller has woken.
        for _ in 0..200 * samples {
            let delay = duration.mul_f64((random.bits() >> 11) as f64 / (1u64 << 53) as f64);
            latencies.extend(self.cancel_after(kind, &whole, delay));
            if latencies.len() == samples {
                break;
            }
        }
        assert_eq!(latencies.len(), samples, "calls of kind {} take {duration:?}, and were never cancelled", kind.name);
        latencies
    }
}

/// From cancel to return.
struct Latency {
    passed: Duration,
    /// By the calling thread.
    computed: Duration,
}

/// The time that half, that all but one of a hundred, and that all stay under.
fn percentiles(latencies: &[Latency], time: impl Fn(&Latency) -> Duration) -> [Duration; 3] {
    let mut sorted: Vec<Duration> = latencies.iter().map(time).collect();
    sorted.sort();
    let count = sorted.len();
    [sorted[count / 2], sorted[(count * 99).div_ceil(100) - 1], sorted[count - 1]]
}

/// Measures until the bound is kept.
fn assert_prompt(name: &str, measure: impl Fn() -> Vec<Latency>) {
    let bound = if std::env::var_os("SEGNO_CANCEL_MODEL").is_some() { BOUND } else { BUNDLED_BOUND };
    for attempt in 1..=ATTEMPTS {
        let latencies = measure();
        let [passed, computed] = [percentiles(&latencies, |l| l.passed), percentiles(&latencies, |l| l.computed)];
        println!("{name}: {} cancelled, p50, p99, max {passed:.2?}, computing {computed:.2?}", latencies.len());
        if passed[1] <= bound {
            return;
        }
        assert!(attempt < ATTEMPTS, "{name}: {:?} from cancel to return, {bound:?} allowed", passed[1]);
    }
}

fn model_and_samples() -> (Model, usize) {
    let path = std::env::var_os("SEGNO_CANCEL_MODEL").map_or_else(bundled_model, PathBuf::from);
    let samples = std::env::var("SEGNO_CANCEL_SAMPLES").map_or(60, |text| text.parse().expect("a number"));
    (Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&path).unwrap(), samples)
}

#[test]
fn a_cancelled_call_returns_soon() {
    let (model, samples) = model_and_samples();
    let world = World::new(&model);
    for kind in &KINDS {
        assert_prompt(kind.name, || world.latencies(kind, samples));
    }
}

#[test]
fn a_call_that_waits_for_another_session_is_cancelled_soon() {
    let (model, samples) = model_and_samples();
    let (world, other) = (World::new(&model), World::new(&model));
    let step = &KINDS[1];
    assert_prompt("step beside the prompt of another session", || {
        let mut latencies = Vec::new();
        let mut random = Random::new(1);
        while latencies.len() < samples / 4 {
            std::thread::scope(|scope| {
                scope.spawn(|| (KINDS[0].call)(&other.session, &other.seqs, &other.prompt(KINDS[0].prompt)).unwrap());
                // The other session has begun its prompt, or begins it beside the step.
                let delay = Duration::from_micros(random.bits() % 4000);
                latencies.extend(world.cancel_after(step, &[], delay));
                other.session.cancel(true);
            });
            other.reset();
        }
        latencies
    });
}
