//! The rules of a session that a host relies on: limits, failures that change nothing, cancelling, freeing in any order.

mod common;

use common::{Ctx, Model, Session, bundled_model, greedy, sampler};
use segno::ffi::status::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn model() -> Model {
    Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&bundled_model()).unwrap()
}

fn status_of<T>(result: common::Result<T>) -> segno_status {
    result.map(|_| SEGNO_OK).unwrap_or_else(|failed| failed.status)
}

fn tokens(count: usize) -> Vec<i32> {
    (0..count as i32).map(|i| i % 97 + 1).collect()
}

#[test]
fn an_id_is_never_used_twice_and_a_closed_one_is_unknown() {
    let model = model();
    let session = model.session(|opts| opts.max_seqs = 2).unwrap();
    let first = session.open(&sampler()).unwrap();
    let second = session.open(&sampler()).unwrap();
    assert_eq!(status_of(session.open(&sampler())), SEGNO_E_SEQ_FULL);
    assert_eq!(status_of(session.fork(first, None)), SEGNO_E_SEQ_FULL);
    session.close(first).unwrap();
    assert_eq!(status_of(session.close(first)), SEGNO_E_NOT_FOUND);
    assert_eq!(status_of(session.length(first)), SEGNO_E_NOT_FOUND);
    let third = session.open(&sampler()).unwrap();
    assert!(third != first && third != second);
}

#[test]
fn the_pool_holds_what_it_promises_and_gives_back_what_is_closed() {
    let model = model();
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (4, 128)).unwrap();
    let seqs: Vec<i32> = (0..4).map(|_| session.open(&greedy()).unwrap()).collect();
    for &seq in &seqs {
        session.prefill(seq, &tokens(32)).unwrap();
    }
    // The promise is 128 tokens in all, however they are spread; one partial page a sequence comes on top.
    for &seq in &seqs {
        session.prefill(seq, &tokens(32)).unwrap();
    }
    let failed = session.prefill(seqs[0], &tokens(1)).unwrap_err();
    assert_eq!(failed.status, SEGNO_E_KV_FULL, "{}", failed.message);
    assert_eq!(session.length(seqs[0]), Ok(64), "a failed prefill leaves nothing behind");
    session.close(seqs[3]).unwrap();
    session.prefill(seqs[0], &tokens(1)).unwrap();
}

#[test]
fn a_full_pool_fails_one_item_and_the_others_advance() {
    let model = model();
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, 64)).unwrap();
    let (long, short) = (session.open(&greedy()).unwrap(), session.open(&greedy()).unwrap());
    session.prefill(long, &tokens(96)).unwrap();
    session.append(short, &tokens(40)).unwrap();
    let (tokens_out, statuses, result) = session.batch(&[short, long]);
    let failed = result.unwrap_err();
    assert_eq!((failed.status, failed.item), (SEGNO_E_KV_FULL, 0));
    assert_eq!((statuses, tokens_out[0]), (vec![SEGNO_E_KV_FULL, SEGNO_OK], -1));
    assert_eq!((session.length(short), session.length(long)), (Ok(40), Ok(97)));
    session.close(long).unwrap();
    assert_eq!(status_of(session.step(short)), SEGNO_OK);
}

#[test]
fn the_models_context_ends_a_sequence() {
    let model = model();
    let context = model.info().context as usize;
    let session = model.session(|opts| opts.kv_tokens = context as u64).unwrap();
    let seq = session.open(&greedy()).unwrap();
    assert_eq!(status_of(session.append(seq, &tokens(context + 1))), SEGNO_E_CONTEXT_FULL);
    assert_eq!(session.length(seq), Ok(0));
    session.prefill(seq, &tokens(context - 1)).unwrap();
    assert_eq!(status_of(session.step(seq)), SEGNO_OK);
    assert_eq!(status_of(session.step(seq)), SEGNO_E_CONTEXT_FULL);
    assert_eq!(session.length(seq), Ok(context));
    assert!(session.logits(seq).is_ok());
}

#[test]
fn bad_items_of_a_batch_are_named_and_the_others_advance() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let (good, empty) = (session.open(&greedy()).unwrap(), session.open(&greedy()).unwrap());
    session.prefill(good, &tokens(5)).unwrap();
    let (tokens_out, statuses, result) = session.batch(&[good, empty, 12345, good]);
    let failed = result.unwrap_err();
    assert_eq!((failed.status, failed.item), (SEGNO_E_INVALID_ARGUMENT, 1));
    assert_eq!(statuses, [SEGNO_OK, SEGNO_E_INVALID_ARGUMENT, SEGNO_E_NOT_FOUND, SEGNO_E_INVALID_ARGUMENT]);
    assert!(tokens_out[0] >= 0 && tokens_out[1..] == [-1, -1, -1]);
    assert_eq!(session.length(good), Ok(6));
    assert_eq!(session.batch(&[]).2, Ok(SEGNO_OK));
}

#[test]
fn a_token_outside_the_vocabulary_is_named_and_nothing_is_queued() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    for bad in [-1, model.info().vocab as i32, i32::MAX] {
        let failed = session.append(seq, &[1, 2, bad, 3]).unwrap_err();
        assert_eq!((failed.status, failed.item), (SEGNO_E_INVALID_ARGUMENT, 2));
    }
    assert_eq!(session.length(seq), Ok(0));
    assert_eq!(status_of(session.logits(seq)), SEGNO_E_INVALID_ARGUMENT);
    assert_eq!(status_of(session.truncate(seq, 1)), SEGNO_E_INVALID_ARGUMENT);
}

#[test]
fn a_raised_cancel_stops_every_evaluating_call_until_it_is_lowered() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &tokens(10)).unwrap();
    let other = session.open(&greedy()).unwrap();
    session.append(other, &tokens(10)).unwrap();
    session.cancel(true);
    assert_eq!(session.prefill(seq, &tokens(3)), Ok(SEGNO_CANCELLED));
    assert_eq!(session.step(seq), Ok((-1, SEGNO_CANCELLED)));
    let (tokens_out, statuses, result) = session.batch(&[seq, other, 999]);
    assert_eq!((result, tokens_out, statuses), (Ok(SEGNO_CANCELLED), vec![-1; 3], vec![SEGNO_CANCELLED; 3]));
    assert_eq!((session.length(seq), session.length(other)), (Ok(10), Ok(10)));
    session.cancel(false);
    let fresh = model.session(|_| ()).unwrap();
    let same = fresh.open(&greedy()).unwrap();
    fresh.prefill(same, &tokens(10)).unwrap();
    assert_eq!(session.generate(seq, 8), fresh.generate(same, 8));
}

#[test]
fn a_cancel_from_another_thread_ends_a_running_prompt() {
    let model = model();
    let context = model.info().context as usize;
    let session = model.session(|opts| (opts.max_prefill, opts.kv_tokens) = (16, context as u64)).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &tokens(8)).unwrap();
    let before = session.generate(seq, 4).unwrap();
    let long = tokens(context - 12);
    let (outcome, cancelled_after) = std::thread::scope(|scope| {
        let running = scope.spawn(|| session.prefill(seq, &long));
        std::thread::sleep(Duration::from_millis(3));
        let raised = Instant::now();
        session.cancel(true);
        (running.join().unwrap(), raised.elapsed())
    });
    session.cancel(false);
    if outcome == Ok(SEGNO_OK) {
        println!("the prompt was done before the cancel came");
        return;
    }
    assert_eq!(outcome, Ok(SEGNO_CANCELLED));
    println!("cancelled within {cancelled_after:?}");
    assert_eq!(session.length(seq), Ok(12));
    session.truncate(seq, 8).unwrap();
    assert_eq!(session.generate(seq, 4).unwrap(), before, "what was there before is unharmed");
}

#[test]
fn children_keep_their_parents_alive() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let model = ctx.load(&bundled_model()).unwrap();
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    drop(ctx);
    drop(model);
    session.prefill(seq, &tokens(4)).unwrap();
    assert!(session.generate(seq, 3).is_ok());
}

#[test]
fn sessions_of_one_context_run_on_several_threads() {
    let model = model();
    let run = |session: &Session| {
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &tokens(20)).unwrap();
        session.generate(seq, 20).unwrap()
    };
    let expected = run(&model.session(|_| ()).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(run(&model.session(|_| ()).unwrap()), expected));
        }
    });
}

#[test]
fn a_second_call_on_a_session_is_busy_and_harms_nothing() {
    let model = model();
    let context = model.info().context as usize;
    let session = model.session(|opts| opts.kv_tokens = context as u64).unwrap();
    let seq = session.open(&greedy()).unwrap();
    let (met, deadline) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(60));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !met.load(Ordering::Relaxed) && Instant::now() < deadline {
                let status = status_of(session.prefill(seq, &tokens(context / 2)));
                assert!([SEGNO_OK, SEGNO_E_BUSY].contains(&status), "{status}");
                while status_of(session.truncate(seq, 0)) == SEGNO_E_BUSY {}
            }
        });
        while !met.load(Ordering::Relaxed) && Instant::now() < deadline {
            met.fetch_or(status_of(session.length(seq)) == SEGNO_E_BUSY, Ordering::Relaxed);
        }
    });
    assert!(met.into_inner(), "the calls never met");
    session.prefill(seq, &tokens(context - 1)).unwrap();
    assert_eq!(session.length(seq), Ok(context - 1));
}

#[test]
fn options_out_of_range_are_refused_with_the_range() {
    let model = model();
    for (seqs, prefill, kv_type) in [(0, 512, 0), (257, 512, 0), (8, 0, 0), (8, 512, 7)] {
        let failed = model.session(|opts| (opts.max_seqs, opts.max_prefill, opts.kv_type) = (seqs, prefill, kv_type));
        assert_eq!(status_of(failed), SEGNO_E_INVALID_ARGUMENT);
    }
    assert_eq!(status_of(model.session(|opts| opts.kv_tokens = 1 << 50)), SEGNO_E_OUT_OF_MEMORY);
    let session = model.session(|_| ()).unwrap();
    let mut opts = sampler();
    opts.temperature = f32::NAN;
    assert_eq!(status_of(session.open(&opts)), SEGNO_E_INVALID_ARGUMENT);
    for (device, precision, threads) in [(9, 0, 0), (0, 9, 0), (0, 0, 5000)] {
        let failed = Ctx::new(|opts| (opts.device, opts.precision, opts.n_threads) = (device, precision, threads));
        assert_eq!(status_of(failed), SEGNO_E_INVALID_ARGUMENT);
    }
    let gpu = Ctx::new(|opts| opts.device = segno::ffi::device::SEGNO_DEVICE_CUDA);
    assert!(gpu.err().is_none_or(|failed| failed.status == SEGNO_E_UNSUPPORTED));
}
