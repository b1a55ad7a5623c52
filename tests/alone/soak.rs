//! Many threads at once, for as long as `SEGNO_SOAK_SECONDS` says: sessions of one context, of several, one session that threads
//! share, forks, batches, cancelled calls, and objects that come and go. Every token is the one that its sequence gives alone.

#[path = "../common/mod.rs"]
mod common;

use common::{Ctx, Failed, Model, Result, Session, bundled_model, greedy};
use segno::ffi::seq::segno_sampler_opts;
use segno::ffi::status::*;
use segno::quant::synthetic::Random;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TOKENS: usize = 12;
const STREAMS: usize = 4;
/// Threads that do as they like.
const HOSTS: u64 = 4;
const KV_TOKENS: u64 = 512;

fn options(stream: usize) -> segno_sampler_opts {
    let mut opts = greedy();
    if stream % 2 == 1 {
        (opts.temperature, opts.seed) = (0.9, stream as u64);
    }
    opts
}

fn prompt(stream: usize) -> Vec<i32> {
    (0..[1, 9, 33, 40][stream]).map(|index| ((index * 37 + stream * 101 + 3) % 512) as i32).collect()
}

/// Calls until the answer is neither BUSY nor CANCELLED, lowering the flag; how often it was either is added up.
fn insist(met: &Met, session: &Session, mut call: impl FnMut() -> Result<segno_status>) -> segno_status {
    loop {
        match call() {
            Ok(SEGNO_CANCELLED) => {
                met.cancelled.fetch_add(1, Ordering::Relaxed);
                session.cancel(false);
            }
            Err(Failed { status: SEGNO_E_BUSY, .. }) => {
                met.busy.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
            result => return result.unwrap(),
        }
    }
}

/// What the threads have met so far.
#[derive(Default)]
struct Met {
    busy: AtomicUsize,
    cancelled: AtomicUsize,
    streams: AtomicUsize,
    lives: AtomicUsize,
}

impl Met {
    fn compare(&self, got: &[i32], expected: &[i32]) {
        assert_eq!(got, expected);
        self.streams.fetch_add(1, Ordering::Relaxed);
    }
}

/// A sequence from open to close, forked on the way; both must give the tokens of the stream alone.
fn forked_stream(met: &Met, session: &Session, stream: usize, expected: &[i32]) {
    let open = |call: &dyn Fn() -> Result<i32>| {
        let mut seq = -1;
        insist(met, session, || call().map(|opened| seq = opened).map(|()| SEGNO_OK));
        seq
    };
    let parent = open(&|| session.open(&options(stream)));
    insist(met, session, || session.prefill(parent, &prompt(stream)));
    let mut got = steps(met, session, parent, TOKENS / 2);
    let child = open(&|| session.fork(parent, None));
    let mut other = got.clone();
    other.extend(steps(met, session, child, TOKENS - got.len()));
    got.extend(steps(met, session, parent, TOKENS - got.len()));
    met.compare(&got, expected);
    met.compare(&other, expected);
    for seq in [parent, child] {
        insist(met, session, || session.close(seq));
    }
}

fn steps(met: &Met, session: &Session, seq: i32, count: usize) -> Vec<i32> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let mut token = -1;
        let step = || {
            session.step(seq).map(|(next, status)| {
                token = next;
                status
            })
        };
        if insist(met, session, step) == SEGNO_OK {
            tokens.push(token);
        }
    }
    tokens
}

/// A step of all sequences that is submitted within a budget, polled, and now and then cancelled.
fn submitted(session: &Session, seqs: &[i32], random: &mut Random) -> Outcomes {
    session.submit(seqs, random.bits() % 2000).unwrap();
    loop {
        let outcomes = session.poll(seqs.len(), random.bits() % 300);
        if outcomes.2 != Ok(SEGNO_PENDING) {
            session.cancel(false);
            return outcomes;
        }
        session.cancel(random.bits().is_multiple_of(4));
    }
}

type Outcomes = (Vec<i32>, Vec<segno_status>, Result<segno_status>);

/// All streams in one session, stepped together by `step`.
fn batch(met: &Met, model: &Model, expected: &[Vec<i32>], mut step: impl FnMut(&Session, &[i32]) -> Outcomes) {
    let session = model.session(|opts| (opts.kv_tokens, opts.max_prefill) = (KV_TOKENS, 16)).unwrap();
    let seqs: Vec<i32> = (0..STREAMS).map(|stream| session.open(&options(stream)).unwrap()).collect();
    for (stream, &seq) in seqs.iter().enumerate() {
        session.append(seq, &prompt(stream)).unwrap();
    }
    let mut got = vec![Vec::new(); STREAMS];
    while got.iter().any(|tokens| tokens.len() < TOKENS) {
        let (tokens, statuses, result) = step(&session, &seqs);
        result.unwrap();
        let ready = (0..STREAMS).filter(|&stream| statuses[stream] == SEGNO_OK);
        ready.for_each(|stream| got[stream].push(tokens[stream]));
    }
    got.iter().zip(expected).for_each(|(got, expected)| met.compare(&got[..TOKENS], expected));
}

/// A session whose calls are cancelled from beside, again and again.
fn cancelled_stream(met: &Met, model: &Model, stream: usize, expected: &[i32]) {
    let session = model.session(|opts| opts.kv_tokens = KV_TOKENS).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(stream as u64);
            // Longer and longer pauses, so that any call ends some time.
            for pause in (500..).step_by(500).take_while(|_| !over.load(Ordering::Relaxed)) {
                session.cancel(true);
                std::thread::sleep(Duration::from_micros(random.bits() % pause));
            }
        });
        forked_stream(met, &session, stream, expected);
        over.store(true, Ordering::Relaxed);
    });
}

/// A context, a model and a session of its own, freed in one of two orders.
fn life(met: &Met, stream: usize, expected: &[i32]) {
    let ctx = Ctx::new(|opts| opts.n_threads = 1 + stream as u32).unwrap();
    let model = ctx.load(&bundled_model()).unwrap();
    let session = model.session(|opts| opts.kv_tokens = KV_TOKENS).unwrap();
    if stream.is_multiple_of(2) {
        drop(ctx);
        drop(model);
        forked_stream(met, &session, stream, expected);
    } else {
        forked_stream(met, &session, stream, expected);
        drop(session);
        drop(ctx);
    }
    met.lives.fetch_add(1, Ordering::Relaxed);
}

/// What the hosts have in common: models of two contexts, and a session that all of them call.
struct World {
    models: [Model; 2],
    shared: Session,
    expected: Vec<Vec<i32>>,
    met: Met,
}

impl World {
    fn new() -> World {
        let load = |threads| Ctx::new(|opts| opts.n_threads = threads).unwrap().load(&bundled_model()).unwrap();
        let models = [load(2), load(3)];
        let alone = |stream: usize| {
            let session = models[0].session(|opts| opts.kv_tokens = KV_TOKENS).unwrap();
            let seq = session.open(&options(stream)).unwrap();
            session.prefill(seq, &prompt(stream)).unwrap();
            session.generate(seq, TOKENS).unwrap()
        };
        let expected = (0..STREAMS).map(alone).collect();
        let shared = models[0].session(|opts| (opts.max_seqs, opts.kv_tokens) = (2 * HOSTS as u32, 2048)).unwrap();
        World { models, shared, expected, met: Met::default() }
    }

    /// One thing after another, all hosts beginning with the session that they share.
    fn host(&self, number: u64, until: Instant) {
        let mut random = Random::new(number);
        let World { met, expected, shared, .. } = self;
        for turn in 0.. {
            if Instant::now() > until {
                return;
            }
            let stream = (random.bits() % STREAMS as u64) as usize;
            let (model, tokens) = (&self.models[(random.bits() % 2) as usize], &expected[stream]);
            match turn % 6 {
                0 => forked_stream(met, shared, stream, tokens),
                1 => forked_stream(met, &model.session(|opts| opts.kv_tokens = KV_TOKENS).unwrap(), stream, tokens),
                2 => batch(met, model, expected, Session::batch),
                3 => batch(met, model, expected, |session, seqs| submitted(session, seqs, &mut random)),
                4 => cancelled_stream(met, model, stream, tokens),
                _ => life(met, stream, tokens),
            }
        }
    }
}

#[test]
fn tokens_are_those_of_each_alone_whatever_others_do() {
    let seconds = std::env::var("SEGNO_SOAK_SECONDS").map_or(5, |text| text.parse().expect("a number"));
    let world = World::new();
    let until = Instant::now() + Duration::from_secs(seconds);
    let host = |number| world.host(number, until);
    std::thread::scope(|scope| (0..HOSTS).for_each(|number| drop(scope.spawn(move || host(number)))));
    let Met { busy, cancelled, streams, lives } = world.met;
    let met = [busy, cancelled, streams, lives].map(AtomicUsize::into_inner);
    println!("{seconds} s: {} streams, {} lives of a context, {} busy, {} cancelled", met[2], met[3], met[0], met[1]);
    assert!(met.iter().all(|&count| count > 0), "the threads never met: {met:?}");
}
