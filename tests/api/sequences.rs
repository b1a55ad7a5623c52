//! What a sequence's tokens may depend on: its own history, options and seed, and nothing else.

use crate::common;
use crate::common::gguf::Shape;
use crate::common::latent::latent;
use crate::common::mixture::mixture;
use crate::common::{Ctx, Model, Session, bundled_model, greedy, sampler};
use segno::ffi::seq::segno_sampler_opts;
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8};
use segno::ffi::status::*;

const LENGTHS: [usize; 8] = [1, 2, 7, 31, 32, 33, 100, 150];
const TOKENS: usize = 24;

/// A prompt of `length` tokens that differs from the others'.
fn prompt(length: usize, vocab: u32) -> Vec<i32> {
    (0..length).map(|i| ((i * 37 + length * 101 + 3) % vocab as usize) as i32).collect()
}

/// Options of the `index`-th sequence: greedy, or drawn with a seed of its own; never ending by itself.
fn options(index: usize) -> segno_sampler_opts {
    let mut opts = greedy();
    if index % 2 == 1 {
        opts.temperature = 0.9;
        opts.seed = index as u64;
    }
    opts
}

fn load(threads: u32) -> Model {
    Ctx::new(|opts| opts.n_threads = threads).unwrap().load(&bundled_model()).unwrap()
}

/// The bundled model, one with experts, and one with latent attention.
fn models(threads: u32) -> [Model; 3] {
    let ctx = Ctx::new(|opts| opts.n_threads = threads).unwrap();
    let [mixture, latent] =
        [mixture, latent].map(|file| ctx.load_buffer(&file(segno::quant::DType::Q8_0).bytes()).unwrap());
    [load(threads), mixture, latent]
}

/// What every sequence gives when it is alone in its session.
fn alone(model: &Model) -> Vec<Vec<i32>> {
    let vocab = model.info().vocab;
    let tokens = LENGTHS.iter().enumerate().map(|(index, &length)| {
        let session = model.session(|_| ()).unwrap();
        let seq = session.open(&options(index)).unwrap();
        session.prefill(seq, &prompt(length, vocab)).unwrap();
        session.generate(seq, TOKENS).unwrap()
    });
    tokens.collect()
}

/// Steps the sequences together until each has [`TOKENS`] tokens, and leaves the finished ones out; how often an item was PENDING.
fn run_batch(session: &Session, seqs: &[i32]) -> (Vec<Vec<i32>>, usize) {
    let mut outputs = vec![Vec::new(); seqs.len()];
    let mut pending = 0;
    loop {
        let open: Vec<usize> = (0..seqs.len()).filter(|&item| outputs[item].len() < TOKENS).collect();
        if open.is_empty() {
            return (outputs, pending);
        }
        let listed: Vec<i32> = open.iter().map(|&item| seqs[item]).collect();
        let (tokens, statuses, result) = session.batch(&listed);
        assert_eq!(result, Ok(SEGNO_OK));
        for (index, &item) in open.iter().enumerate() {
            match statuses[index] {
                SEGNO_OK => outputs[item].push(tokens[index]),
                SEGNO_PENDING => pending += 1,
                other => panic!("unexpected status {other}"),
            }
        }
    }
}

#[test]
fn tokens_do_not_depend_on_company_chunks_or_threads() {
    let expected = models(1).map(|model| alone(&model));
    for (threads, (model, expected)) in
        (1..=4).flat_map(|threads| models(threads).into_iter().zip(&expected).map(move |pair| (threads, pair)))
    {
        let vocab = model.info().vocab;
        for chunk in [1, 7, 64, 512] {
            let session = model.session(|opts| (opts.max_prefill, opts.kv_tokens) = (chunk, 2048)).unwrap();
            let seqs: Vec<i32> = (0..LENGTHS.len()).map(|index| session.open(&options(index)).unwrap()).collect();
            for (&seq, &length) in seqs.iter().zip(&LENGTHS) {
                session.append(seq, &prompt(length, vocab)).unwrap();
            }
            let (outputs, pending) = run_batch(&session, &seqs);
            assert_eq!(outputs, *expected, "{threads} threads, chunks of {chunk}");
            assert_eq!(pending > 0, chunk < 512, "{pending} pending items with chunks of {chunk}");
        }
    }
}

#[test]
fn a_prompt_appended_beside_running_streams_changes_neither() {
    let model = load(2);
    let (expected, vocab) = (alone(&model), model.info().vocab);
    let session = model.session(|opts| opts.max_prefill = 7).unwrap();
    let first = session.open(&options(0)).unwrap();
    session.prefill(first, &prompt(LENGTHS[0], vocab)).unwrap();
    let mut stream = session.generate(first, 4).unwrap();
    let second = session.open(&options(6)).unwrap();
    session.append(second, &prompt(LENGTHS[6], vocab)).unwrap();
    let mut late = Vec::new();
    let mut pending = 0;
    while late.len() < TOKENS {
        let (tokens, statuses, result) = session.batch(&[first, second]);
        assert_eq!((result, statuses[0]), (Ok(SEGNO_OK), SEGNO_OK), "a running stream advances in every step");
        stream.push(tokens[0]);
        match statuses[1] {
            SEGNO_PENDING => {
                assert_eq!(tokens[1], -1);
                pending += 1;
            }
            _ => late.push(tokens[1]),
        }
    }
    assert_eq!(pending, LENGTHS[6].div_ceil(7) - 1);
    assert_eq!((&stream[..TOKENS], late), (&expected[0][..], expected[6].clone()));
}

#[test]
fn forks_and_truncations_equal_fresh_evaluation() {
    for model in models(2) {
        for kv_type in [SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8] {
            for keep in [1, 31, 32, 33, 64, 100, 150] {
                assert_forks_equal_fresh_evaluation(&model, kv_type, keep);
            }
        }
    }
}

fn assert_forks_equal_fresh_evaluation(model: &Model, kv_type: i32, keep: usize) {
    let history = prompt(150, model.info().vocab);
    let session = || model.session(|opts| (opts.kv_tokens, opts.kv_type) = (2048, kv_type)).unwrap();
    let fresh = |tokens: &[i32], opts: &segno_sampler_opts| {
        let session = session();
        let seq = session.open(opts).unwrap();
        session.prefill(seq, tokens).unwrap();
        let logits = session.logits(seq).unwrap();
        (logits, session.generate(seq, TOKENS).unwrap())
    };
    let session = session();
    let parent = session.open(&options(1)).unwrap();
    session.prefill(parent, &history).unwrap();
    let child = session.fork(parent, None).unwrap();
    let other = session.fork(parent, Some(&options(3))).unwrap();
    session.truncate(child, keep).unwrap();
    assert_eq!(session.length(child), Ok(keep));
    let (outputs, _) = run_batch(&session, &[parent, child, other]);
    let (_, whole) = fresh(&history, &options(1));
    let (logits, cut) = fresh(&history[..keep], &options(1));
    assert_eq!(outputs[0], whole, "parent beside forks");
    assert_eq!(outputs[1], cut, "fork cut to {keep}");
    assert_eq!(outputs[2], fresh(&history, &options(3)).1, "fork with options of its own");
    session.truncate(parent, keep).unwrap();
    assert_eq!(session.logits(parent).unwrap(), logits, "parent cut to {keep}");
    assert_eq!(session.generate(parent, TOKENS).unwrap(), cut, "parent cut to {keep}");
}

/// The longest prompt, in whole pages, for which the pool has room now.

#[test]
fn what_follows_a_gap_is_what_follows_the_tokens_that_are_left() {
    for model in models(2) {
        let vocab = model.info().vocab;
        let history = prompt(150, vocab);
        let session = model.session(|opts| opts.max_prefill = 40).unwrap();
        for (index, (first, count)) in
            [(0, 150), (0, 1), (0, 149), (5, 90), (64, 32), (149, 1), (150, 0)].into_iter().enumerate()
        {
            let seq = session.open(&options(index)).unwrap();
            session.prefill(seq, &history[..140]).unwrap();
            session.append(seq, &history[140..]).unwrap();
            session.remove(seq, first, count).unwrap();
            let left = [&history[..first], &history[first + count..], &[7]].concat();
            session.append(seq, &[7]).unwrap();
            assert_eq!(session.length(seq), Ok(left.len()));
            let fresh = session.open(&options(index)).unwrap();
            session.prefill(fresh, &left).unwrap();
            assert_eq!(session.generate(seq, TOKENS), session.generate(fresh, TOKENS), "{first}, {count}");
            session.close(seq).unwrap();
            session.close(fresh).unwrap();
        }
    }
}

/// A text without end: its head stays, and whenever the context is full the older half of the rest goes.
#[test]
fn a_sequence_whose_context_is_full_goes_on() {
    const HEAD: usize = 6;
    let model = load(1);
    let session = model.session(|opts| (opts.kv_tokens, opts.max_seqs) = (64, 1)).unwrap();
    let seq = session.open(&options(1)).unwrap();
    let mut known = prompt(HEAD, model.info().vocab);
    session.append(seq, &known).unwrap();
    let (mut tokens, mut gaps) = (0, 0);
    while tokens < 300 {
        match session.step(seq) {
            Ok((token, SEGNO_OK)) => (tokens, known) = (tokens + 1, [&known[..], &[token]].concat()),
            Ok((_, status)) => assert_eq!(status, SEGNO_PENDING),
            Err(failed) => {
                assert!([SEGNO_E_CONTEXT_FULL, SEGNO_E_KV_FULL].contains(&failed.status), "{failed:?}");
                let half = (known.len() - HEAD) / 2;
                session.remove(seq, HEAD, half).unwrap();
                known.drain(HEAD..HEAD + half);
                gaps += 1;
            }
        }
    }
    assert!(gaps >= 5, "the context was full {gaps} times");
    let used = session.stats().unwrap().pages_used;
    session.remove(seq, 0, known.len()).unwrap();
    assert!(used > 0 && session.stats().unwrap().pages_used == 0, "an emptied sequence has pages");
}

#[test]
fn tokens_that_there_are_not_cannot_be_taken_out() {
    let model = load(1);
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&options(0)).unwrap();
    session.prefill(seq, &prompt(9, model.info().vocab)).unwrap();
    for (first, count) in [(0, 10), (9, 1), (5, 5), (usize::MAX, 1), (1, usize::MAX), (10, 0)] {
        let failed = session.remove(seq, first, count).unwrap_err();
        assert!(
            failed.status == SEGNO_E_INVALID_ARGUMENT && failed.message.contains("of a sequence of 9"),
            "{failed:?}"
        );
    }
    assert_eq!(session.remove(seq + 1, 0, 1).unwrap_err().status, SEGNO_E_NOT_FOUND);
    assert_eq!(session.length(seq), Ok(9));
}

fn longest_prompt(session: &Session) -> usize {
    let seq = session.open(&greedy()).unwrap();
    let fits = |pages: &usize| session.prefill(seq, &vec![3; 32 * pages]).is_ok();
    let pages = (1..=8).rev().find(fits).unwrap();
    session.close(seq).unwrap();
    32 * pages
}

#[test]
fn a_pass_that_fails_gives_its_pages_back() {
    type Call = fn(&Session, [i32; 2]) -> common::Result<segno_status>;
    let calls: [(&str, Call); 5] = [
        ("step", |session, seqs| session.step(seqs[0]).map(|(_, status)| status)),
        ("batch", |session, seqs| session.batch(&seqs).2),
        ("prefill", |session, seqs| session.prefill(seqs[0], &[5; 40])),
        // A cancelled call leaves the buffer as it was.
        ("logits", |session, seqs| {
            let logits = session.logits(seqs[0])?;
            Ok(if logits[0].is_nan() { SEGNO_CANCELLED } else { SEGNO_OK })
        }),
        ("prefill of a long queue", |session, seqs| session.prefill(seqs[1], &[7; 70])),
    ];
    let model = Ctx::new(|opts| opts.n_threads = 1).unwrap().load_buffer(&Shape::small().file().bytes()).unwrap();
    for (name, call) in calls {
        let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.max_prefill) = (3, 64, 50)).unwrap();
        let room = longest_prompt(&session);
        let seqs = [(); 2].map(|()| session.open(&greedy()).unwrap());
        seqs.iter().for_each(|&seq| _ = session.append(seq, &[9; 33]).unwrap());
        session.cancel(true);
        match call(&session, seqs) {
            Ok(status) => assert_eq!(status, SEGNO_CANCELLED, "{name}"),
            Err(failed) => panic!("{name}: {}", failed.message),
        }
        session.cancel(false);
        assert_eq!(longest_prompt(&session), room, "{name}: pages of the cancelled pass are still taken");
        seqs.iter().for_each(|&seq| assert_eq!(session.length(seq), Ok(33), "{name}"));
    }
}

#[test]
fn a_fork_of_a_queued_prompt_takes_the_queue_along() {
    let model = load(1);
    let vocab = model.info().vocab;
    let session = model.session(|_| ()).unwrap();
    let parent = session.open(&options(0)).unwrap();
    session.prefill(parent, &prompt(33, vocab)).unwrap();
    session.append(parent, &prompt(7, vocab)).unwrap();
    let child = session.fork(parent, None).unwrap();
    assert_eq!(session.length(child), Ok(40));
    let (outputs, _) = run_batch(&session, &[parent, child]);
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn logits_are_the_same_however_they_are_reached() {
    let model = load(2);
    let tokens = prompt(70, model.info().vocab);
    let session = model.session(|opts| opts.max_prefill = 16).unwrap();
    let whole = session.open(&greedy()).unwrap();
    session.prefill(whole, &tokens).unwrap();
    let parts = session.open(&greedy()).unwrap();
    for part in tokens.chunks(9) {
        session.append(parts, part).unwrap();
    }
    let expected = session.logits(whole).unwrap();
    assert_eq!(session.logits(parts).unwrap(), expected);
    assert_eq!(session.logits(parts).unwrap(), expected, "asking twice evaluates nothing anew");
    session.truncate(whole, 69).unwrap();
    session.append(whole, &tokens[69..]).unwrap();
    assert_eq!(session.logits(whole).unwrap(), expected);
}

#[test]
fn logits_do_not_depend_on_512_bit_instructions() {
    let logits = |flags: u32| {
        let model = Ctx::new(|opts| opts.flags = flags).unwrap().load(&bundled_model()).unwrap();
        let session = model.session(|_| ()).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &prompt(45, model.info().vocab)).unwrap();
        session.logits(seq).unwrap()
    };
    assert_eq!(logits(0), logits(segno::ffi::ctx::SEGNO_CTX_NO_AVX512));
}

#[test]
fn a_seed_gives_the_same_tokens_in_every_run_and_another_seed_others() {
    let model = load(2);
    let run = |seed: u64| {
        let session = model.session(|_| ()).unwrap();
        let mut opts = sampler();
        opts.seed = seed;
        opts.flags = segno::ffi::seq::SEGNO_SAMPLER_IGNORE_EOG;
        let seq = session.open(&opts).unwrap();
        session.prefill(seq, &prompt(12, model.info().vocab)).unwrap();
        session.generate(seq, 60).unwrap()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
