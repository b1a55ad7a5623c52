//! How long a call waits for a GPU: until it is cancelled, and never for ever. Needs no GPU: `tests/cuda/fake_driver.c` stands for the driver, and
//! hangs when it is told to. Each test starts this program again, as `tests/driver/calls.rs` does.

use crate::common::embeddings::embed_opts;
use crate::common::{Session, bundled_model, greedy};
use crate::fake::{Fake, built, open, under_a_driver};
use segno::backend::{GpuOptions, KvType, cpu};
use segno::engine::device::Kind;
use segno::engine::{Context, Model, context, model, session};
use segno::error::Error;
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::status::*;
use segno::sample;
use segno::speculate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a call takes from cancel to return at the most, on a busy machine.
const SOON: Duration = Duration::from_secs(2);
/// How long the device may be silent in these tests, and longer than any call may then take.
const LIMIT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_call_that_waits_for_the_device_ends_when_it_is_cancelled() {
    under_a_driver("wait::cancel_inside", &[]);
}

/// Cancels `call` while it waits; the status that it returns.
fn cancelled(session: &Session, call: impl FnOnce(&Session) -> segno_status) -> segno_status {
    let (status, took) = std::thread::scope(|scope| {
        let canceller = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            session.cancel(true);
            Instant::now()
        });
        let status = call(session);
        let returned = Instant::now();
        (status, returned.saturating_duration_since(canceller.join().unwrap()))
    });
    session.cancel(false);
    assert!(took < SOON, "{took:?} from cancel to return");
    status
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn cancel_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let model = open(SEGNO_DEVICE_CUDA).0.unwrap().load(&bundled_model()).unwrap();
    let session = model.session(|_| ()).unwrap();
    let seqs = [(); 2].map(|()| session.open(&greedy()).unwrap());
    for seq in seqs {
        session.prefill(seq, &[5, 6]).unwrap();
        session.step(seq).unwrap();
        assert_eq!(session.step(seq).unwrap().0, 7);
    }
    fake.hang(true);
    // The first call waits for its own pass, the others for the cancelled one.
    let texts = |session: &Session| session.embed(&[&[5, 6, 7], &[8]], &embed_opts()).unwrap().0;
    let calls: [&dyn Fn(&Session) -> segno_status; 7] = [
        &|session| session.step(seqs[0]).unwrap().1,
        &|session| session.step(seqs[0]).unwrap().1,
        &|session| session.batch(&seqs).2.unwrap(),
        &|session| session.prefill(seqs[1], &[3; 30]).unwrap(),
        &texts,
        &|session| session.step(seqs[1]).unwrap().1,
        &texts,
    ];
    for (index, call) in calls.iter().enumerate() {
        assert_eq!(cancelled(&session, call), SEGNO_CANCELLED, "call {index}");
        assert!(seqs.iter().all(|&seq| session.length(seq).unwrap() == 4), "call {index}");
    }
    fake.hang(false);
    // The host chooses the first token, since the device might still have been reading what it chooses by.
    session.batch(&seqs).2.unwrap();
    assert_eq!(session.batch(&seqs).0, [7, 7]);
    assert_eq!(texts(&session), SEGNO_OK);
    fake.hang(true);
    assert_eq!(cancelled(&session, |session| session.prefill(seqs[0], &[3; 30]).unwrap()), SEGNO_CANCELLED);
    fake.hang(false);
    session.prefill(seqs[0], &[3; 30]).unwrap();
    assert_eq!(session.length(seqs[0]).unwrap(), 36);
    drop((session, model));
    assert_eq!(fake.live(), 0);
}

#[test]
fn a_step_that_was_submitted_waits_for_the_device_in_the_place_of_its_host() {
    under_a_driver("wait::submit_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn submit_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let model = open(SEGNO_DEVICE_CUDA).0.unwrap().load(&bundled_model()).unwrap();
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5, 6]).unwrap();
    session.step(seq).unwrap();
    let step = |budget| {
        session.submit(&[seq], budget).unwrap();
        session.poll(1, u64::MAX)
    };
    assert_eq!(step(0), (vec![7], vec![SEGNO_OK], Ok(SEGNO_OK)));
    let length = session.length(seq).unwrap();
    fake.hang(true);
    session.submit(&[seq], 1000).unwrap();
    for timeout_us in [0, 20_000] {
        let start = Instant::now();
        assert_eq!(session.poll(1, timeout_us).2, Ok(SEGNO_PENDING));
        assert!(start.elapsed() < SOON);
    }
    assert_eq!(cancelled(&session, |session| session.poll(1, u64::MAX).2.unwrap()), SEGNO_CANCELLED);
    assert_eq!(session.length(seq), Ok(length));
    fake.hang(false);
    step(0).2.unwrap();
    assert_eq!(step(0).0, [7]);
    drop((session, model));
    assert_eq!(fake.live(), 0);
}

/// A context whose device may be silent for [`LIMIT`] only.
fn impatient() -> Arc<Context> {
    let cpu = cpu::Options { threads: 1, precise: false, allow_avx512: true, gives_way: false };
    let gpu = GpuOptions { longest_wait: LIMIT, ..GpuOptions::default() };
    let (free_memory, overcommits) = (segno::os::memory_free as fn() -> Option<u64>, false);
    let options = context::Options { device: Kind::Cuda, cpu, gpu, host_argmax: false, free_memory, overcommits };
    Arc::new(Context::new(&options, None).unwrap())
}

fn load(context: &Arc<Context>) -> Result<Arc<Model>, Error> {
    Model::load(context, &bundled_model(), &model::Options { map: true, quantize: None, device_memory: 0 }, &mut |_| {
        Ok(())
    })
    .map(Arc::new)
}

fn session(model: &Arc<Model>) -> Result<session::Session, Error> {
    let options = session::Options {
        max_seqs: 2,
        kv_tokens: 256,
        max_prefill: 16,
        max_prompt: 0,
        kv_type: KvType::F16,
        marks: 0,
        drafts: speculate::Options::OFF,
        ranks: 0,
    };
    session::Session::create(model, &options, None)
}

/// Asserts that a call has given the device up.
fn assert_given_up<T>(result: Result<T, Error>, reason: &str) {
    match result.err() {
        Some(Error::Device(message)) => assert!(message.contains(reason), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_device_that_never_answers_is_given_up() {
    for name in [
        "wait::silent_step_inside",
        "wait::silent_prompt_inside",
        "wait::silent_load_inside",
        "wait::silent_free_inside",
    ] {
        under_a_driver(name, &[]);
    }
}

/// Runs `call` on a session whose device has stopped to answer. Whatever follows is an error or nothing, and never a wait.
fn silence(call: impl FnOnce(&mut session::Session, i32) -> Result<(), Error>) {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let model = load(&impatient()).unwrap();
    let (mut first, mut second) = (session(&model).unwrap(), session(&model).unwrap());
    let never = AtomicBool::new(false);
    let ids = [&mut first, &mut second].map(|session| {
        let id = session.open(sample::Options::defaults()).unwrap();
        session.prefill(id, &[5, 6], &never).unwrap();
        session.decode(&[id], &never, |_, _| ()).unwrap();
        id
    });
    fake.hang(true);
    let start = Instant::now();
    assert_given_up(call(&mut first, ids[0]), "has not answered for");
    assert_given_up(first.decode(&[ids[0]], &never, |_, _| ()).map_err(|failure| failure.error), "answer");
    assert_given_up(second.decode(&[ids[1]], &never, |_, _| ()).map_err(|failure| failure.error), "stopped answering");
    assert_given_up(session(&model), "stopped answering");
    assert_given_up(load(model.context()), "stopped answering");
    // What the device may still be using is kept: a driver that is asked to free it waits for ever, and the stand-in ends the program.
    drop((first, second, model));
    assert!(start.elapsed() < LONG && fake.live() > 0);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn silent_step_inside() {
    silence(|session, id| session.decode(&[id], &AtomicBool::new(false), |_, _| ()).map_err(|failure| failure.error));
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn silent_prompt_inside() {
    silence(|session, id| session.prefill(id, &[3; 30], &AtomicBool::new(false)).map_err(|failure| failure.error));
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn silent_load_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let context = impatient();
    let model = load(&context).unwrap();
    fake.hang(true);
    assert_given_up(session(&model), "has not answered for");
    drop((context, model));
    assert!(fake.live() > 0);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn silent_free_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let mut session = session(&load(&impatient()).unwrap()).unwrap();
    let id = session.open(sample::Options::defaults()).unwrap();
    let cancel = AtomicBool::new(false);
    session.prefill(id, &[5, 6], &cancel).unwrap();
    fake.hang(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(LIMIT / 4);
            cancel.store(true, Ordering::Relaxed);
        });
        // The first token comes from the logits of the prompt; the second is waited for.
        let results = [(); 2].map(|()| session.decode(&[id], &cancel, |_, _| ()));
        assert!(matches!(&results[1], Err(failure) if matches!(failure.error, Error::Cancelled)));
    });
    let start = Instant::now();
    drop(session);
    assert!(start.elapsed() < LONG && fake.live() > 0);
}
