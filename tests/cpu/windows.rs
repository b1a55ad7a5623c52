//! Models some layers of which see a window: they keep no more than that and a pass, and every token is what it would be if they kept all.

use crate::common::walk::{MODELS, sizes, walk, walk_in};
use crate::common::{Ctx, Model, greedy, root};
use segno::ffi::ctx::{SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::session::SEGNO_KV_Q8;
use segno::ffi::status::*;

fn load(name: &str, precision: i32) -> Model {
    let ctx = Ctx::new(|opts| (opts.precision, opts.n_threads) = (precision, 2)).unwrap();
    ctx.load(&root().join(format!("tests/golden/hf/{name}.gguf"))).unwrap()
}

#[test]
fn chunks_forks_cuts_and_company_behind_windows_equal_fresh_evaluation() {
    let precisions = [SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE].into_iter().cycle();
    for (name, precision) in MODELS.into_iter().zip(precisions) {
        let model = load(name, precision);
        walk(name, &model);
        walk_in(name, &model, SEGNO_KV_Q8, 7);
    }
}

/// A host mostly cuts back by little: that must cost nothing.
#[test]
fn a_cut_by_less_than_a_pass_evaluates_one_token() {
    let model = load("gemma3-plain", SEGNO_PRECISION_DEFAULT);
    let session = model.session(|opts| sizes(opts, 1, 32)).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5; 100]).unwrap();
    session.generate(seq, 60).unwrap();
    let before = session.seq_stats(seq).unwrap();
    session.truncate(seq, 130).unwrap();
    session.step(seq).unwrap();
    let after = session.seq_stats(seq).unwrap();
    assert_eq!((after.prompt_tokens - before.prompt_tokens, after.decoded_tokens - before.decoded_tokens), (0, 1));
    session.truncate(seq, 50).unwrap();
    assert_eq!(session.seq_stats(seq).unwrap().pages, 0);
    while session.step(seq).unwrap().1 == SEGNO_PENDING {}
    assert_eq!(session.seq_stats(seq).unwrap().prompt_tokens - after.prompt_tokens, 50);
}
