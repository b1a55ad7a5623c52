//! Steps that are submitted and polled instead of made by one call.

use super::{Failed, Model, Session, greedy, sampler};
use segno::ffi::status::*;

pub const FOREVER: u64 = u64::MAX;

/// Submits and polls to the end: what a batch gives.
pub fn step(
    session: &Session,
    seqs: &[i32],
    budget_us: u64,
) -> (Vec<i32>, Vec<segno_status>, Result<segno_status, Failed>) {
    assert_eq!(session.submit(seqs, budget_us), Ok(SEGNO_OK));
    session.poll(seqs.len(), FOREVER)
}

/// Generates by steps with budgets of all sizes: the tokens are those of sequences that are alone and step by step.
pub fn tokens_are_those_of_batches(model: &Model) {
    let session = || model.session(|opts| (opts.max_prefill, opts.max_seqs) = (64, 4)).unwrap();
    let lengths = [3, 90, 1, 40];
    let open = |session: &Session| {
        lengths.map(|length| {
            let mut opts = if length % 2 == 0 { greedy() } else { sampler() };
            opts.seed = length as u64;
            let seq = session.open(&opts).unwrap();
            let text: Vec<i32> = (0..length).map(|place| place * 37 % 200 + 40).collect();
            session.append(seq, &text).unwrap();
            seq
        })
    };
    let alone = session();
    let expected = open(&alone).map(|seq| alone.generate(seq, 30).unwrap());
    for budget_us in [0, 1, 300, 4000, u64::MAX] {
        let session = session();
        let seqs = open(&session);
        let mut tokens: [Vec<i32>; 4] = Default::default();
        while tokens.iter().any(|tokens| tokens.len() < 30) {
            let (given, statuses, result) = step(&session, &seqs, budget_us);
            assert_eq!(result, Ok(SEGNO_OK));
            for ((tokens, token), status) in tokens.iter_mut().zip(given).zip(statuses) {
                assert_eq!(token >= 0, status == SEGNO_OK);
                tokens.extend((status == SEGNO_OK).then_some(token));
            }
        }
        for (tokens, expected) in tokens.iter().zip(&expected) {
            assert_eq!(tokens[..30], *expected, "a budget of {budget_us}");
        }
    }
}
