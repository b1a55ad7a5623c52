//! Steps that a host submits and polls: the tokens of batches, slices within a budget, a session that is busy until the poll, cancelling, failing,
//! and freeing amid a step.

use crate::common::conversation::Chat;
use crate::common::gguf::Shape;
use crate::common::submitted::{FOREVER, step, tokens_are_those_of_batches};
use crate::common::{Ctx, Model, Session, bundled_model, call, greedy};
use segno::ffi::decode::segno_decode_step;
use segno::ffi::session::segno_session_opts;
use segno::ffi::status::*;
use segno::ffi::submit::{segno_session_poll, segno_session_submit};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

fn small() -> Model {
    Ctx::precise().load_buffer(&Shape::small().file().bytes()).unwrap()
}

fn session(model: &Model, max_prefill: u32) -> Session {
    let change = |opts: &mut segno_session_opts| (opts.max_prefill, opts.max_seqs) = (max_prefill, 4);
    model.session(change).unwrap()
}

fn prompt(session: &Session, length: usize) -> i32 {
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &vec![3; length]).unwrap();
    seq
}

/// Steps of one sequence until its first token has come.
fn until_token(session: &Session, seq: i32, budget_us: u64) -> usize {
    let status = |_: &usize| step(session, &[seq], budget_us).1[0];
    (1..100).find(|round| status(round) == SEGNO_OK).unwrap()
}

#[test]
fn tokens_are_those_of_batches_whatever_the_budget() {
    tokens_are_those_of_batches(&Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&bundled_model()).unwrap());
}

#[test]
fn a_budget_bounds_the_slices_of_prompts_by_what_passes_have_taken() {
    let model = small();
    // Nothing ends within a microsecond, so a slice has one token.
    let session_of_16 = session(&model, 16);
    let seq = prompt(&session_of_16, 10);
    assert_eq!(until_token(&session_of_16, seq, 1), 10);
    // Without a budget 16 + 16 + 8.
    let session_of_16 = session(&model, 16);
    let seq = prompt(&session_of_16, 40);
    assert_eq!(until_token(&session_of_16, seq, 0), 3);
    // A session that has learnt nothing begins with one token: 1 + 16 + 16 + 7.
    let session_of_16 = session(&model, 16);
    let seq = prompt(&session_of_16, 40);
    assert_eq!(until_token(&session_of_16, seq, 60_000_000), 4);
    // Any pass teaches.
    let session_of_16 = session(&model, 16);
    let other = prompt(&session_of_16, 1);
    session_of_16.prefill(other, &[5; 16]).unwrap();
    let seq = prompt(&session_of_16, 40);
    assert_eq!(until_token(&session_of_16, seq, 60_000_000), 3);
}

#[test]
fn streams_advance_beside_the_slices_of_a_prompt() {
    let session = session(&small(), 16);
    let (long, stream) = (prompt(&session, 9), prompt(&session, 1));
    for round in 1..=10 {
        let (_, statuses, result) = step(&session, &[long, stream], 1);
        let of_long = if round < 9 { SEGNO_PENDING } else { SEGNO_OK };
        assert_eq!((result, statuses), (Ok(SEGNO_OK), vec![of_long, SEGNO_OK]), "step {round}");
    }
    assert_eq!(session.stats().unwrap().passes, 10);
}

#[test]
fn a_session_is_busy_until_the_poll_has_told_the_outcome() {
    let session = session(&small(), 16);
    let seq = prompt(&session, 12);
    let nothing = session.poll(1, 0).2.unwrap_err();
    assert!(nothing.status == SEGNO_E_INVALID_ARGUMENT && nothing.message.contains("submitted"), "{nothing:?}");
    assert_eq!(session.submit(&[seq], 0), Ok(SEGNO_OK));
    // Whether the step is over by now or not.
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        std::thread::sleep(wait);
        let busy = session.append(seq, &[1]).unwrap_err();
        assert!(busy.status == SEGNO_E_BUSY && busy.message.contains("segno_session_poll"), "{busy:?}");
        assert_eq!(session.submit(&[seq], 0).unwrap_err().status, SEGNO_E_BUSY);
        assert_eq!(session.step(seq).unwrap_err().status, SEGNO_E_BUSY);
        assert_eq!(session.open(&greedy()).unwrap_err().status, SEGNO_E_BUSY);
        assert!(session.stats().is_ok() && session.seq_stats(seq).is_ok() && session.length(seq).is_ok());
        session.cancel(false);
    }
    // A poll without room leaves the step to be polled again.
    let without = call(|err| segno_session_poll(session.0, 0, null_mut(), &mut 0, err)).unwrap_err();
    assert_eq!(without.status, SEGNO_E_NULL_POINTER);
    let (tokens, statuses, result) = session.poll(1, FOREVER);
    assert!(result == Ok(SEGNO_OK) && statuses == [SEGNO_OK] && tokens[0] >= 0);
    assert_eq!(session.poll(1, FOREVER).2.unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    assert_eq!((session.length(seq), session.append(seq, &[1])), (Ok(13), Ok(SEGNO_OK)));
}

#[test]
fn a_poll_waits_no_longer_than_it_may() {
    let model = Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap();
    let session = session(&model, 500);
    let seq = prompt(&session, 500);
    assert_eq!(session.submit(&[seq], 0), Ok(SEGNO_OK));
    // Nothing is written while the step runs.
    let (mut rounds, start) = (0, Instant::now());
    let last = loop {
        let (tokens, statuses, result) = session.poll(1, 1000 * (rounds % 2));
        rounds += 1;
        if result != Ok(SEGNO_PENDING) {
            break (tokens, statuses, result);
        }
        assert_eq!((tokens, statuses), (vec![-7], vec![-99]));
    };
    assert!(last.2 == Ok(SEGNO_OK) && last.1 == [SEGNO_OK], "{last:?}");
    assert!(rounds > 4, "{rounds} polls in {:?}", start.elapsed());
}

#[test]
fn failures_of_items_and_of_calls_are_told_apart() {
    let session = session(&small(), 16);
    let (seq, empty) = (prompt(&session, 2), session.open(&greedy()).unwrap());
    let (tokens, statuses, result) = step(&session, &[seq, empty, seq, 999], 0);
    let failed = result.unwrap_err();
    assert_eq!((failed.status, failed.item), (SEGNO_E_INVALID_ARGUMENT, 1));
    assert_eq!(statuses, [SEGNO_OK, SEGNO_E_INVALID_ARGUMENT, SEGNO_E_INVALID_ARGUMENT, SEGNO_E_NOT_FOUND]);
    assert!(tokens[0] >= 0 && tokens[1..] == [-1; 3], "{tokens:?}");
    // More than there can be is refused at once, and the session stays free.
    let many = session.submit(&[seq; 5], 0).unwrap_err();
    assert!(many.status == SEGNO_E_INVALID_ARGUMENT && many.message.contains("max_seqs is 4"), "{many:?}");
    let null = call(|err| segno_session_submit(session.0, std::ptr::null(), 1, std::ptr::null(), err)).unwrap_err();
    assert_eq!(null.status, SEGNO_E_NULL_POINTER);
    assert_eq!(step(&session, &[], 0).2, Ok(SEGNO_OK));
    assert_eq!(session.step(seq).unwrap().1, SEGNO_OK);
}

#[test]
fn a_cancelled_step_has_advanced_nobody() {
    let model = Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&bundled_model()).unwrap();
    let session = session(&model, 403);
    let seqs = [prompt(&session, 400), prompt(&session, 3)];
    session.cancel(true);
    let (tokens, statuses, result) = step(&session, &seqs, 0);
    assert_eq!((result, statuses, tokens), (Ok(SEGNO_CANCELLED), vec![SEGNO_CANCELLED; 2], vec![-1; 2]));
    session.cancel(false);
    // While it runs: by the thread that has submitted, which waits for nothing.
    let mut cancelled = 0;
    for round in 0..20 {
        session.submit(&seqs, 0).unwrap();
        std::thread::sleep(Duration::from_micros(200 * round % 1000));
        session.cancel(true);
        let (_, statuses, result) = session.poll(2, FOREVER);
        session.cancel(false);
        let ended = result == Ok(SEGNO_CANCELLED);
        cancelled += u32::from(ended);
        assert_eq!(statuses.iter().all(|&status| status == SEGNO_CANCELLED), ended);
        let lengths = seqs.map(|seq| session.length(seq).unwrap());
        assert_eq!(lengths, if ended { [400, 3] } else { [401, 4] });
        // Evaluated anew in the next round.
        seqs.iter().zip([400, 3]).for_each(|(&seq, length)| {
            session.truncate(seq, 0).unwrap();
            session.append(seq, &vec![3; length]).unwrap();
        });
    }
    assert!(cancelled > 0);
}

#[test]
fn freeing_amid_a_step_ends_it_and_takes_a_fraction_of_it() {
    let model = Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap();
    for round in 0..20 {
        let session = session(&model, 400);
        let seq = prompt(&session, 400);
        session.submit(&[seq], 0).unwrap();
        std::thread::sleep(Duration::from_micros(100 * round));
        drop(session);
    }
}

#[test]
fn conversations_go_on_when_their_session_is_freed_amid_a_step() {
    let model = Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap();
    let session = session(&model, 16);
    let seq = prompt(&session, 12);
    let chat = Chat::with_template(&session, "{{ messages[-1].content }}").unwrap();
    chat.say("user", "abc").unwrap();
    session.submit(&[seq], 0).unwrap();
    assert_eq!(chat.next().unwrap_err().status, SEGNO_E_BUSY);
    drop(session);
    assert!(chat.next().is_ok());
}

#[test]
fn sessions_of_one_context_submit_beside_each_other_and_beside_calls() {
    let model = Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&bundled_model()).unwrap();
    let open = |_| {
        let session = session(&model, 16);
        let seq = prompt(&session, 50);
        (session, seq)
    };
    let (expected, others) = (open(0), [0; 3].map(open));
    let tokens = expected.0.generate(expected.1, 10).unwrap();
    let mut given: [Vec<i32>; 3] = Default::default();
    while given.iter().any(|tokens| tokens.len() < 10) {
        for (session, seq) in &others[..2] {
            session.submit(&[*seq], 500).unwrap();
        }
        let mut token = -1;
        if segno_decode_step(others[2].0.0, others[2].1, &mut token, null_mut()) == SEGNO_OK {
            given[2].push(token);
        }
        for ((session, _), tokens) in others[..2].iter().zip(&mut given) {
            let (token, statuses, _) = session.poll(1, FOREVER);
            tokens.extend((statuses[0] == SEGNO_OK).then_some(token[0]));
        }
    }
    assert!(given.iter().all(|given| given[..10] == tokens));
}
