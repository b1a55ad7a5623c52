//! What a step does with many sequences: prompts share a budget in list order, and the first item that fails is the one that is told.

use crate::common::gguf::Shape;
use crate::common::{Ctx, Session, greedy, sampler};
use segno::ffi::{seq::segno_logit_bias, status::*};
use segno::sample::{Options, Scratch, sample};

fn session(max_prefill: u32, kv_tokens: u64) -> Session {
    let model = Ctx::precise().load_buffer(&Shape::small().file().bytes()).unwrap();
    let change = |opts: &mut segno::ffi::session::segno_session_opts| {
        (opts.max_prefill, opts.kv_tokens, opts.max_seqs) = (max_prefill, kv_tokens, 4);
    };
    model.session(change).unwrap()
}

fn prompts(session: &Session, lengths: &[usize]) -> Vec<i32> {
    let open = |&length: &usize| {
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, &vec![3; length]).unwrap();
        seq
    };
    lengths.iter().map(open).collect()
}

#[test]
fn prompts_share_the_budget_of_a_pass_in_list_order() {
    let session = session(4, 256);
    let seqs = prompts(&session, &[10, 10, 10]);
    // 4 + 4 + 2 tokens of the first prompt, 2 + 4 + 4 of the second, 4 + 4 + 2 of the third; one that is done needs none.
    let mut first_tokens = [0; 3];
    for step in 1..=8 {
        let (_, statuses, result) = session.batch(&seqs);
        assert_eq!(result, Ok(SEGNO_OK));
        for (first, status) in first_tokens.iter_mut().zip(statuses) {
            if *first == 0 && status == SEGNO_OK {
                *first = step;
            }
        }
    }
    assert_eq!(first_tokens, [3, 5, 8]);
}

#[test]
fn the_first_item_without_pages_is_told_and_the_others_advance() {
    // Three pages and one for each of four sequences.
    let session = session(512, 96);
    let seqs = prompts(&session, &[40, 130, 140, 40]);
    let (tokens, statuses, result) = session.batch(&seqs);
    assert_eq!(statuses, [SEGNO_OK, SEGNO_OK, SEGNO_E_KV_FULL, SEGNO_E_KV_FULL]);
    let failed = result.unwrap_err();
    assert_eq!((failed.status, failed.item), (SEGNO_E_KV_FULL, 2));
    assert!(tokens[0] >= 0 && tokens[1] >= 0 && tokens[2..] == [-1, -1], "{tokens:?}");
}

#[test]
fn the_first_item_without_a_token_is_told_and_the_others_advance() {
    let session = session(64, 256);
    let banned: Vec<segno_logit_bias> =
        (0..101).map(|token| segno_logit_bias { token, bias: f32::NEG_INFINITY }).collect();
    let mut nothing = greedy();
    (nothing.bias, nothing.bias_count) = (banned.as_ptr(), banned.len());
    let seqs = [greedy(), nothing, greedy(), nothing].map(|opts| session.open(&opts).unwrap());
    seqs.iter().for_each(|&seq| assert_eq!(session.append(seq, &[5, 6]), Ok(SEGNO_OK)));
    let (tokens, statuses, result) = session.batch(&seqs);
    assert_eq!(statuses, [SEGNO_OK, SEGNO_E_INVALID_ARGUMENT, SEGNO_OK, SEGNO_E_INVALID_ARGUMENT]);
    let failed = result.unwrap_err();
    assert_eq!((failed.status, failed.item), (SEGNO_E_INVALID_ARGUMENT, 1));
    assert!(tokens[0] >= 0 && tokens[1] == -1 && tokens[2] >= 0 && tokens[3] == -1, "{tokens:?}");
    assert_eq!(seqs.map(|seq| session.length(seq).unwrap()), [3, 2, 3, 2]);
}

#[test]
fn no_id_is_given_twice() {
    let session = session(64, 256);
    let mut given = Vec::new();
    for round in 0..20 {
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, &[1, 2]).unwrap();
        let fork = session.fork(seq, None).unwrap();
        assert!(!given.contains(&seq) && !given.contains(&fork) && seq != fork, "round {round}");
        given.extend([seq, fork]);
        session.close(fork).unwrap();
        session.close(seq).unwrap();
    }
}

#[test]
fn logits_after_a_cut_are_those_of_what_is_left() {
    let session = session(64, 256);
    let logits = |tokens: &[i32]| {
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, tokens).unwrap();
        let logits = session.logits(seq).unwrap();
        (seq, logits)
    };
    let ((seq, whole), (_, part)) = (logits(&[7, 8, 9, 10]), logits(&[7, 8]));
    assert!(whole != part);
    session.truncate(seq, 2).unwrap();
    assert!(session.logits(seq).unwrap() == part);
    session.append(seq, &[9, 10]).unwrap();
    assert!(session.logits(seq).unwrap() == whole);
}

#[test]
fn a_token_is_drawn_for_the_place_that_it_will_have() {
    let session = session(64, 256);
    let mut opts = sampler();
    opts.seed = 7;
    let seq = session.open(&opts).unwrap();
    let mut history = vec![3, 1, 4];
    session.append(seq, &history).unwrap();
    let (options, mut scratch) = (Options { seed: 7, ..Options::defaults() }, Scratch::new(101).unwrap());
    for _ in 0..50 {
        let logits = session.logits(seq).unwrap();
        let expected = sample(&options, &logits, &history, history.len() as u64, &mut scratch).unwrap();
        let (token, _) = session.step(seq).unwrap();
        assert_eq!(token, expected, "after {} tokens", history.len());
        history.push(token);
    }
}
