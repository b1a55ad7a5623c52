//! Sampling through the C API: what the options of a sequence do to its tokens, and when generation ends.

use crate::common;
use crate::common::{Ctx, Model, Session, bundled_model, call, greedy, sampler};
use segno::ffi::seq::*;
use segno::ffi::status::*;

fn model() -> Model {
    Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&bundled_model()).unwrap()
}

/// A sequence with a short prompt.
fn start(session: &Session, opts: &segno_sampler_opts) -> i32 {
    let seq = session.open(opts).unwrap();
    session.prefill(seq, &[0, 70, 300, 12]).unwrap();
    seq
}

fn set_sampler(session: &Session, seq: i32, opts: &segno_sampler_opts) -> common::Result<segno_status> {
    call(|err| segno_seq_sampler_set(session.0, seq, opts, err))
}

/// Greedy options under which only `token` is drawn.
fn only(bias: &segno_logit_bias, flags: u32) -> segno_sampler_opts {
    let mut opts = greedy();
    (opts.flags, opts.bias, opts.bias_count) = (flags, bias, 1);
    opts
}

#[test]
fn greedy_takes_the_highest_logit() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let seq = start(&session, &greedy());
    for _ in 0..20 {
        let logits = session.logits(seq).unwrap();
        let best = (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert_eq!(session.step(seq), Ok((best as i32, SEGNO_OK)));
    }
}

#[test]
fn the_models_end_token_ends_generation_unless_it_is_ignored() {
    let model = model();
    let end = model.info().eos;
    assert!(end >= 0);
    let session = model.session(|_| ()).unwrap();
    let bias = segno_logit_bias { token: end, bias: 1e4 };
    let seq = start(&session, &only(&bias, 0));
    assert_eq!(session.step(seq), Ok((end, SEGNO_DONE)));
    assert_eq!(session.length(seq), Ok(5), "the end token is in the history");
    assert_eq!(session.step(seq), Ok((end, SEGNO_DONE)), "a further step goes on from it");
    let ignoring = start(&session, &only(&bias, SEGNO_SAMPLER_IGNORE_EOG));
    assert_eq!(session.step(ignoring), Ok((end, SEGNO_OK)));
}

#[test]
fn stop_tokens_end_generation_even_when_the_models_are_ignored() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let bias = segno_logit_bias { token: 333, bias: 1e4 };
    let stops = [7, 333];
    let mut opts = only(&bias, SEGNO_SAMPLER_IGNORE_EOG);
    (opts.stop_tokens, opts.stop_token_count) = (stops.as_ptr(), stops.len());
    let seq = start(&session, &opts);
    assert_eq!(session.step(seq), Ok((333, SEGNO_DONE)));
    let (tokens, statuses, result) = session.batch(&[seq]);
    assert_eq!((tokens[0], statuses[0], result), (333, SEGNO_DONE, Ok(SEGNO_OK)));
}

#[test]
fn a_banned_token_is_never_drawn() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let seq = start(&session, &greedy());
    let (first, _) = session.step(seq).unwrap();
    let bias = segno_logit_bias { token: first, bias: f32::NEG_INFINITY };
    let banned = start(&session, &only(&bias, SEGNO_SAMPLER_IGNORE_EOG));
    assert!(session.generate(banned, 30).unwrap().iter().all(|&token| token != first));
}

#[test]
fn a_new_sampler_takes_over_at_the_next_token() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let seq = start(&session, &greedy());
    let plain = start(&session, &greedy());
    assert_eq!(session.generate(seq, 5), session.generate(plain, 5));
    let bias = segno_logit_bias { token: 55, bias: 1e4 };
    assert_eq!(set_sampler(&session, seq, &only(&bias, 0)), Ok(SEGNO_OK));
    assert_eq!(session.step(seq), Ok((55, SEGNO_OK)));
    let mut bad = greedy();
    bad.top_p = 0.0;
    assert_eq!(set_sampler(&session, seq, &bad).unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    assert_eq!(session.step(seq), Ok((55, SEGNO_OK)), "a refused sampler leaves the old one");
    assert_eq!(set_sampler(&session, 99, &greedy()).unwrap_err().status, SEGNO_E_NOT_FOUND);
}

#[test]
fn a_fork_keeps_a_given_seed_and_draws_what_its_parent_draws() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let mut opts = sampler();
    (opts.flags, opts.seed) = (SEGNO_SAMPLER_IGNORE_EOG, 7);
    let parent = start(&session, &opts);
    let child = session.fork(parent, None).unwrap();
    assert_eq!(session.generate(parent, 25), session.generate(child, 25));
    session.truncate(child, 10).unwrap();
    session.truncate(parent, 10).unwrap();
    assert_eq!(session.generate(parent, 5), session.generate(child, 5));
}

#[test]
fn a_fork_of_a_random_seed_draws_by_another() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let mut opts = sampler();
    (opts.flags, opts.temperature, opts.top_k, opts.seed) = (SEGNO_SAMPLER_IGNORE_EOG, 1.5, 0, SEGNO_SEED_RANDOM);
    let parent = start(&session, &opts);
    let child = session.fork(parent, None).unwrap();
    assert_ne!(session.generate(parent, 30).unwrap(), session.generate(child, 30).unwrap());
}

#[test]
fn random_seeds_differ() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let mut opts = sampler();
    (opts.flags, opts.temperature, opts.top_k, opts.seed) = (SEGNO_SAMPLER_IGNORE_EOG, 1.5, 0, SEGNO_SEED_RANDOM);
    let outputs: Vec<_> = (0..4).map(|_| session.generate(start(&session, &opts), 30).unwrap()).collect();
    assert!(outputs.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn penalties_count_the_tokens_of_the_prompt() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let likely = session.step(start(&session, &greedy())).unwrap().0;
    let history = [likely, likely, likely, 0, 70, 300, 12];
    let mut opts = greedy();
    (opts.presence_penalty, opts.frequency_penalty) = (10.0, 5.0);
    let seq = session.open(&opts).unwrap();
    session.prefill(seq, &history).unwrap();
    let mut logits = session.logits(seq).unwrap();
    for (token, logit) in logits.iter_mut().enumerate() {
        let count = history.iter().filter(|&&seen| seen as usize == token).count();
        *logit -= if count > 0 { 10.0 + 5.0 * count as f32 } else { 0.0 };
    }
    let best = (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    assert_eq!(session.step(seq), Ok((best as i32, SEGNO_OK)));
}
