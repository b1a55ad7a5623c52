//! The rules of a session that a host relies on: limits, failures that change nothing, cancelling, freeing in any order.

use crate::common;
use crate::common::{Ctx, Model, Session, bundled_model, greedy, sampler};
use segno::ffi::seq::{SEGNO_SAMPLER_IGNORE_EOG, SEGNO_SEED_RANDOM};
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
    let logits = session.logits(seq).unwrap();
    let other = session.open(&greedy()).unwrap();
    session.append(other, &tokens(10)).unwrap();
    let passes = session.stats().unwrap().passes;
    session.cancel(true);
    assert_eq!(session.prefill(seq, &tokens(3)), Ok(SEGNO_CANCELLED));
    session.cancel(false);
    assert!(
        session.logits(seq).unwrap() == logits && session.stats().unwrap().passes == passes,
        "nothing is evaluated again"
    );
    session.cancel(true);
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
            met.fetch_or(status_of(session.append(seq, &[])) == SEGNO_E_BUSY, Ordering::Relaxed);
        }
    });
    assert!(met.into_inner(), "the calls never met");
    session.prefill(seq, &tokens(context - 1)).unwrap();
    assert_eq!(session.length(seq), Ok(context - 1));
}

#[test]
fn forks_of_a_random_seed_draw_their_own_words_and_those_of_a_given_seed_the_same() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    for given in [None, Some(7)] {
        let mut opts = sampler();
        (opts.temperature, opts.top_k, opts.top_p, opts.min_p) = (5.0, 0, 1.0, 0.0);
        // Whatever the seed, 24 tokens come.
        opts.flags = SEGNO_SAMPLER_IGNORE_EOG;
        opts.seed = given.unwrap_or(SEGNO_SEED_RANDOM);
        let parent = session.open(&opts).unwrap();
        session.prefill(parent, &tokens(8)).unwrap();
        let forks = [session.fork(parent, None).unwrap(), session.fork(parent, None).unwrap()];
        let words = [parent, forks[0], forks[1]].map(|seq| session.generate(seq, 24).unwrap());
        let seeds = [parent, forks[0], forks[1]].map(|seq| session.seq_stats(seq).unwrap().seed);
        let differ = words[0] != words[1] && words[1] != words[2] && words[0] != words[2];
        match given {
            None => assert!(differ, "{words:?}"),
            Some(seed) => assert!(words.iter().all(|w| *w == words[0]) && seeds == [seed; 3], "{words:?}, {seeds:?}"),
        }
        // The seed that is told gives the same words again, a random one too.
        opts.seed = seeds[1];
        let again = session.open(&opts).unwrap();
        session.prefill(again, &tokens(8)).unwrap();
        assert_eq!(session.generate(again, 24).unwrap(), words[1]);
        [parent, forks[0], forks[1], again].iter().for_each(|&seq| assert_eq!(session.close(seq), Ok(SEGNO_OK)));
    }
}

#[test]
fn figures_add_up() {
    let model = model();
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.max_prefill) = (4, 256, 16)).unwrap();
    let empty = session.stats().unwrap();
    assert_eq!((empty.max_seqs, empty.seqs, empty.tokens, empty.pages_used, empty.passes), (4, 0, 0, 0, 0));
    let (page, pages) = (u64::from(empty.page_tokens), empty.pages_free);
    assert_eq!(pages, 256 / page + 4);
    let (first, second) = (session.open(&greedy()).unwrap(), session.open(&greedy()).unwrap());
    session.prefill(first, &tokens(40)).unwrap();
    session.append(second, &tokens(20)).unwrap();
    let queued = session.stats().unwrap();
    assert_eq!((queued.seqs, queued.tokens, queued.prompt_tokens, queued.passes), (2, 60, 40, 3));
    assert_eq!((queued.pages_used, queued.pages_used + queued.pages_free), (40u64.div_ceil(page), pages));
    assert!(queued.prompt_us > 0 && queued.decoded_tokens == 0);
    // The first step of `first` samples from kept logits; `second` takes two passes for its prompt, and samples in the second.
    for _ in 0..3 {
        session.batch(&[first, second]).2.unwrap();
    }
    let (one, two) = (session.seq_stats(first).unwrap(), session.seq_stats(second).unwrap());
    assert_eq!((one.tokens, one.evaluated, one.prompt_tokens, one.decoded_tokens), (43, 42, 40, 3));
    assert_eq!((two.tokens, two.evaluated, two.prompt_tokens, two.decoded_tokens), (22, 21, 16 + 4, 2));
    let all = session.stats().unwrap();
    assert_eq!((all.tokens, all.prompt_tokens, all.decoded_tokens, all.passes), (65, 60, 5, 6));
    assert_eq!(all.pages_used, one.pages + two.pages);
    assert!(all.decode_us > 0);
    // A shared page counts once for the session, and for each that holds it.
    let fork = session.fork(first, None).unwrap();
    let forked = session.seq_stats(fork).unwrap();
    assert_eq!((forked.tokens, forked.pages, forked.prompt_tokens, forked.decoded_tokens), (43, one.pages, 0, 0));
    assert_eq!(session.stats().unwrap().pages_used, all.pages_used + 1);
    [first, second, fork].iter().for_each(|&seq| assert_eq!(session.close(seq), Ok(SEGNO_OK)));
    let closed = session.stats().unwrap();
    assert_eq!((closed.seqs, closed.tokens, closed.pages_free), (0, 0, pages));
    for seq in [first, 0, -1, i32::MAX, i32::MIN] {
        assert_eq!(status_of(session.seq_stats(seq)), SEGNO_E_NOT_FOUND);
        assert_eq!(status_of(session.length(seq)), SEGNO_E_NOT_FOUND);
    }
}

#[test]
fn prompts_that_no_stream_waits_for_take_longer_passes() {
    let model = model();
    let of = |max_prompt: u32| {
        let session = model.session(|opts| (opts.kv_tokens, opts.max_prefill, opts.max_prompt) = (512, 16, max_prompt));
        let session = session.unwrap();
        let [stream, prompt, other] = [0; 3].map(|_| session.open(&greedy()).unwrap());
        session.prefill(stream, &tokens(100)).unwrap();
        let alone = session.stats().unwrap().passes;
        session.append(prompt, &tokens(60)).unwrap();
        let mut steps = 0;
        while session.seq_stats(prompt).unwrap().decoded_tokens == 0 {
            session.batch(&[stream, prompt]).2.unwrap();
            steps += 1;
        }
        session.append(other, &tokens(40)).unwrap();
        let before = session.stats().unwrap().passes;
        let text = session.generate(other, 8).unwrap();
        let own = session.stats().unwrap().passes - before;
        (alone, steps, own, text, session.memory().host_arena)
    };
    let (usual, long) = (of(0), of(64));
    // A hundred tokens by 16 or by 64; sixty beside a stream by 16; forty and seven single ones.
    assert_eq!((usual.0, usual.1, usual.2), (7, 4, 3 + 7));
    assert_eq!((long.0, long.1, long.2), (2, 4, 1 + 7));
    assert_eq!(usual.3, long.3);
    assert!(usual.4 < long.4, "{} bytes of buffers, {} with longer passes", usual.4, long.4);
    assert_eq!(of(3), usual, "less than max_prefill is as much");
    let failed = model.session(|opts| opts.max_prompt = 16_385).err().unwrap();
    assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT);
    assert!(failed.message.contains("max_prompt is 16385, 1 to 16384"), "{}", failed.message);
}

#[test]
fn figures_are_told_beside_a_running_call_and_belong_together() {
    let model = model();
    let context = model.info().context as usize;
    let session = model.session(|opts| (opts.max_prefill, opts.kv_tokens) = (8, context as u64)).unwrap();
    let seq = session.open(&greedy()).unwrap();
    let pages = session.stats().unwrap().pages_free;
    let (running, deadline) = (AtomicBool::new(true), Instant::now() + Duration::from_secs(60));
    let mut seen = std::collections::BTreeSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            session.prefill(seq, &tokens(context / 2)).unwrap();
            running.store(false, Ordering::Release);
        });
        while running.load(Ordering::Acquire) && Instant::now() < deadline {
            let (all, one) = (session.stats().unwrap(), session.seq_stats(seq).unwrap());
            assert_eq!(all.pages_used + all.pages_free, pages);
            assert_eq!(one.evaluated, one.prompt_tokens, "figures of one moment");
            assert!(one.prompt_tokens >= all.prompt_tokens && session.length(seq).unwrap() as u64 >= one.tokens);
            seen.insert(one.evaluated);
        }
    });
    println!("seen: {seen:?}");
    assert!(seen.len() > 3, "the passes of a running call are seen: {seen:?}");
    assert_eq!(session.seq_stats(seq).unwrap().evaluated, context as u64 / 2);
}

#[test]
fn options_out_of_range_are_refused_with_the_range() {
    let model = model();
    for (seqs, prefill, kv_type) in [(0, 512, 0), (257, 512, 0), (8, 0, 0), (8, 512, 3), (8, 512, -1)] {
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
