//! Decoding beside threads that compete for every processor: others get their share, and a step no less than half of its own.

#[path = "../common/mod.rs"]
mod common;

use common::gguf::Shape;
use common::{Ctx, Session, greedy};
use segno::os::usable_cores;
use segno::quant::DType;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long steps are counted.
const WINDOW: Duration = Duration::from_millis(400);
/// Of what it makes alone: with as many spinning threads as there are threads of the context, a fair share is a half.
const LEAST: f64 = 0.25;
/// What other processes do meanwhile may spoil a measurement, an unfair step is unfair each time.
const ATTEMPTS: usize = 6;

/// Binds the calling thread to the processor of that number among those that it may use.
fn bind(index: usize) {
    // SAFETY: all zeros is a valid empty set.
    let (mut allowed, mut one): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the call writes at most the size given into the set.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size, &mut allowed) }, 0);
    // SAFETY: every index is below the capacity of the set.
    let mut processors = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &allowed) });
    let processor = processors.nth(index).expect("as many processors as spinning threads");
    // SAFETY: the number comes from such a set.
    unsafe { libc::CPU_SET(processor, &mut one) };
    // SAFETY: the call reads a set of the size given.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size, &one) }, 0);
}

/// Runs `f` while a thread on each processor does nothing but compute.
fn beside_spinning_threads<T>(f: impl FnOnce() -> T) -> T {
    let processors = std::thread::available_parallelism().unwrap().get();
    let (spinning, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for index in 0..processors {
            let (spinning, done) = (&spinning, &done);
            scope.spawn(move || {
                bind(index);
                spinning.fetch_add(1, Ordering::Relaxed);
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        while spinning.load(Ordering::Relaxed) < processors {
            std::thread::yield_now();
        }
        let result = f();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Steps a second of a sequence that always is about as long.
fn rate(session: &Session, seq: i32) -> f64 {
    session.truncate(seq, 1).unwrap();
    let (start, mut steps) = (Instant::now(), 0);
    while start.elapsed() < WINDOW {
        session.generate(seq, 1).unwrap();
        steps += 1;
        if session.length(seq).unwrap() > 100 {
            session.truncate(seq, 1).unwrap();
        }
    }
    f64::from(steps) / start.elapsed().as_secs_f64()
}

#[test]
fn a_decode_beside_spinning_threads_makes_at_least_half_of_its_fair_share() {
    let threads = usable_cores();
    if threads < 2 {
        common::skip::skip(common::skip::Lack::Machine, "one core");
        return;
    }
    // Steps of a millisecond or so, with stages for all threads.
    let shape =
        Shape { layers: 4, hidden: 512, heads: 8, head_dim: 64, feed_forward: 2048, vocab: 2048, ..Shape::small() };
    let bytes = common::random::stored(&shape, |_| DType::Q8_0).bytes();
    let model = Ctx::new(|opts| opts.n_threads = threads as u32).unwrap().load_buffer(&bytes).unwrap();
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[1, 2]).unwrap();
    rate(&session, seq);
    let mut shares = Vec::new();
    for _ in 0..ATTEMPTS {
        let (alone, beside) = (rate(&session, seq), beside_spinning_threads(|| rate(&session, seq)));
        println!("{threads} threads: {alone:.0} steps a second alone, {beside:.0} beside as many that spin");
        shares.push(beside / alone);
        if beside >= LEAST * alone {
            return;
        }
    }
    panic!("shares of {shares:.2?} where a half is fair, and {LEAST} the least");
}
