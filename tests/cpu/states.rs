//! Models some of whose layers have a state: whatever is forked, cut, cancelled or evaluated in company, every token is what fresh evaluation gives.

use crate::common::walk::{RECURRENT, sizes, walk, walk_in};
use crate::common::{Ctx, Model, Session, greedy, root};
use segno::ffi::ctx::{SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::session::SEGNO_KV_Q8;
use segno::ffi::status::*;

fn load(name: &str, precision: i32) -> Model {
    let ctx = Ctx::new(|opts| (opts.precision, opts.n_threads) = (precision, 2)).unwrap();
    ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap()
}

#[test]
fn chunks_forks_cuts_and_company_of_states_equal_fresh_evaluation() {
    let precisions = [SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE].into_iter().cycle();
    for (name, precision) in RECURRENT.into_iter().zip(precisions) {
        let model = load(name, precision);
        walk(name, &model);
        walk_in(name, &model, SEGNO_KV_Q8, 7);
    }
}

/// Tokens that were evaluated as a prompt, in this step and the ones that wait for it.
fn evaluated(session: &Session, seq: i32) -> u64 {
    let before = session.seq_stats(seq).unwrap().prompt_tokens;
    while session.step(seq).unwrap().1 == SEGNO_PENDING {}
    session.seq_stats(seq).unwrap().prompt_tokens - before
}

/// A host that lets the model answer again cuts back to the end of the prompt: that must cost a token, as everywhere.
#[test]
fn a_cut_to_the_end_of_a_prompt_evaluates_one_token() {
    let model = load("qwen35-plain", SEGNO_PRECISION_DEFAULT);
    let session = model.session(|opts| sizes(opts, 1, 32)).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5; 100]).unwrap();
    let first = session.generate(seq, 30).unwrap();
    session.truncate(seq, 100).unwrap();
    assert_eq!(session.nearest(seq, 100), Ok(99));
    assert_eq!(evaluated(&session, seq), 0);
    session.truncate(seq, 100).unwrap();
    assert_eq!(session.generate(seq, 30).unwrap(), first);
    // Within the prompt the mark of a pass is near.
    session.truncate(seq, 90).unwrap();
    assert_eq!(session.nearest(seq, 90), Ok(63));
    assert_eq!(evaluated(&session, seq), 27);
}

/// Twenty turns, after each of which the host takes back what it likes: what is evaluated again is at most what a pass takes.
#[test]
fn a_conversation_with_cuts_evaluates_little_again() {
    let model = load("lfm2-plain", SEGNO_PRECISION_DEFAULT);
    let session = model.session(|opts| (opts.kv_tokens, opts.max_seqs, opts.max_prefill) = (256, 1, 32)).unwrap();
    let seq = session.open(&greedy()).unwrap();
    let mut length = 0;
    for turn in 0..20 {
        let before = session.seq_stats(seq).unwrap().prompt_tokens;
        session.prefill(seq, &[turn; 15]).unwrap();
        let again = session.seq_stats(seq).unwrap().prompt_tokens - before - 15;
        assert!(again <= 32, "turn {turn}: {again} tokens of {length} were evaluated again");
        session.generate(seq, 8).unwrap();
        // The answer stays but for its end, or the whole turn goes.
        length += if turn % 3 < 2 { 20 } else { 0 };
        // Another conversation.
        length = if length > 200 { 0 } else { length };
        session.truncate(seq, length).unwrap();
    }
}

#[test]
fn marks_of_the_host_are_where_cuts_go_back_to() {
    let model = load("lfm2-taps", SEGNO_PRECISION_DEFAULT);
    let session = model.session(|opts| (opts.kv_tokens, opts.max_seqs, opts.max_marks) = (256, 2, 3)).unwrap();
    let seq = session.open(&greedy()).unwrap();
    assert_eq!(session.mark(seq), Ok(SEGNO_OK));
    assert_eq!(session.nearest(seq, 0), Ok(0));
    session.prefill(seq, &[5; 10]).unwrap();
    session.generate(seq, 20).unwrap();
    session.mark(seq).unwrap();
    session.generate(seq, 20).unwrap();
    assert_eq!((session.nearest(seq, 40), session.nearest(seq, 29), session.nearest(seq, 28)), (Ok(29), Ok(29), Ok(9)));
    let failed = session.nearest(seq, 51).unwrap_err();
    assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT);
    assert_eq!(failed.message, "cannot keep 51 tokens of a sequence of 50");
    // Forks have the marks of their parent, which share the pool: two more push out the prompt's, and a third the first of the host.
    let fork = session.fork(seq, None).unwrap();
    session.close(seq).unwrap();
    for expected in [9, 9, 0] {
        assert_eq!(session.nearest(fork, 28), Ok(expected));
        session.generate(fork, 5).unwrap();
        session.mark(fork).unwrap();
    }
    assert_eq!(session.nearest(fork, 29), Ok(0));
}

#[test]
fn models_without_states_need_no_marks() {
    let model = load("llama-ratio1", SEGNO_PRECISION_DEFAULT);
    let session = model.session(|opts| opts.max_marks = 1024).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5; 10]).unwrap();
    session.append(seq, &[5; 10]).unwrap();
    assert_eq!((session.mark(seq), session.nearest(seq, 7), session.nearest(seq, 20)), (Ok(SEGNO_OK), Ok(7), Ok(10)));
    let bytes = session.memory().host_kv;
    assert_eq!(bytes, model.session(|_| ()).unwrap().memory().host_kv);
    let failed = model.session(|opts| opts.max_marks = 1025).err().unwrap();
    assert_eq!(failed.message, "max_marks is 1025, 1 to 1024 are possible");
}

/// A state has a place in every record; a mark more takes one more record.
#[test]
fn the_memory_of_a_session_counts_its_states() {
    let model = load("qwen35-plain", SEGNO_PRECISION_DEFAULT);
    let kv = |marks| {
        let session = model.session(|opts| (opts.max_seqs, opts.max_marks) = (3, marks)).unwrap();
        session.memory().host_kv
    };
    // Of each of two layers four matrices of 8 rows and a block of 16 columns, and three rows of 64 elements.
    let each = 2 * (4 * 8 * 16 + 3 * 64) * 4;
    assert_eq!((kv(2) - kv(1), kv(0), kv(9) - kv(1)), (each, kv(7), 8 * each));
}

/// A prompt of several passes that is cancelled behind the first leaves the logits that a sequence had.
#[test]
fn a_cancelled_prompt_leaves_the_sequence_as_it_was() {
    let model = load("qwen3next-plain", SEGNO_PRECISION_DEFAULT);
    let session = model.session(|opts| (opts.kv_tokens, opts.max_seqs, opts.max_prefill) = (64, 1, 32)).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5; 20]).unwrap();
    let expected = session.generate(seq, 10).unwrap();
    session.truncate(seq, 0).unwrap();
    session.prefill(seq, &[5; 20]).unwrap();
    let failed = session.prefill(seq, &[9; 200]).unwrap_err();
    assert_eq!(failed.status, SEGNO_E_KV_FULL);
    assert_eq!(session.generate(seq, 10).unwrap(), expected);
}
