//! Speculation on a GPU: whatever is drafted and whatever a host does, tokens and outcomes are those of a session that drafts nothing. On a machine
//! without a GPU the tests say so and prove nothing.

use crate::common::drafts::{
    DRAFTED, Drafting, MODELS, PLAIN, STATES, WAYS, WAYS_OF_MODELS, assert_mixed, session, tokens, walk, walks,
    walks_in,
};
use crate::common::predictors::{Guesses, MODELS as PREDICTING, PREDICTED, assert_right, plan, predicting};
use crate::common::{Ctx, Folder, gpu};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::session::*;

#[test]
fn tokens_are_those_without_drafts() {
    if !gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for (kv_type, ways) in [(SEGNO_KV_F16, &WAYS[..]), (SEGNO_KV_F16, &WAYS_OF_MODELS), (SEGNO_KV_Q8, &WAYS[..1])] {
        let (drafted, accepted) = walks_in(&ctx, kv_type, &MODELS, ways);
        assert_mixed(drafted, accepted);
    }
}

#[test]
fn tokens_are_those_without_drafts_where_layers_have_a_state() {
    if !gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    let (found, right) = walks(&ctx, &STATES, &WAYS);
    let (wrong, few) = (found - right, tokens() as u64 / 2);
    assert!(right > few && wrong > few, "of {found} drafts {right} were right");
    let (drafted, accepted) = walks(&ctx, &STATES, &[(DRAFTED, 5, Some("llama-bias"))]);
    assert!(drafted - accepted > few, "of {drafted} drafts {accepted} were right");
}

const RANDOM: Guesses = Guesses::Random { own: false };

#[test]
fn tokens_are_those_without_drafts_of_a_models_own_predictor() {
    if !gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    let (mut drafted, mut accepted) = (0, 0);
    for (seed, (name, layer)) in (11..).zip(PREDICTING) {
        for (guesses, speculation, most, kv_type) in [
            (Guesses::Right, PREDICTED, 5, SEGNO_KV_F16),
            (RANDOM, PREDICTED, 0, SEGNO_KV_F16),
            (Guesses::Right, SEGNO_SPECULATION_AUTO, 15, SEGNO_KV_F16),
            (Guesses::Random { own: true }, SEGNO_SPECULATION_MTP, 1, SEGNO_KV_F16),
            (Guesses::Nothing, PREDICTED, 3, SEGNO_KV_F16),
            (Guesses::Right, PREDICTED, 4, SEGNO_KV_Q8),
            (RANDOM, PREDICTED, 2, SEGNO_KV_F32),
        ] {
            let model = ctx.load_buffer(&predicting(name, layer, guesses).bytes()).unwrap();
            let drafting = Drafting { speculation, most, kv_type, ..PLAIN };
            let kv_tokens = if name.starts_with("glm") && seed % 2 == 0 { 320 } else { 1024 };
            let (more, right) = walk(&model, drafting, kv_tokens, seed, tokens());
            println!("{name}, {guesses:?}: of {more} drafts {right} were right");
            let is_sure = guesses != Guesses::Nothing && speculation >= SEGNO_SPECULATION_ALWAYS;
            assert!(more > 0 || !is_sure, "{name}, {guesses:?}");
            (drafted, accepted) = (drafted + more, accepted + right);
        }
    }
    assert_mixed(drafted, accepted);
}

#[test]
fn a_predictor_that_thinks_as_the_model_is_right() {
    if !gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    PREDICTING.into_iter().for_each(|which| assert_right(&ctx, which));
}

#[test]
fn memory_and_plan_count_a_predictor_that_auto_takes_too() {
    if !gpu() {
        return;
    }
    let (ctx, folder) = (Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap(), Folder::new("cuda-predictor"));
    let path = folder.join("model.gguf");
    predicting("qwen35-plain", 1, RANDOM).write(&path);
    let model = ctx.load(&path).unwrap();
    let kinds = [SEGNO_SPECULATION_NGRAM, SEGNO_SPECULATION_MTP, SEGNO_SPECULATION_AUTO];
    let [without, with, auto] = kinds.map(|speculation| {
        let memory = session(&model, Drafting { speculation, ..PLAIN }, 512).memory();
        let planned = plan(&ctx, &path, speculation);
        let device = (planned.device_weights, planned.device_kv, planned.device_arena, planned.device_graphs);
        assert_eq!(device, (memory.device_weights, memory.device_kv, memory.device_arena, memory.device_graphs));
        assert_eq!((planned.host_kv, planned.host_arena), (memory.host_kv, memory.host_arena));
        memory
    });
    assert_eq!((with.device_kv, with.device_weights), (auto.device_kv, auto.device_weights));
    // Keys and values of one layer, 20 pages of 32 positions and one for padding, of two heads.
    assert_eq!(with.device_kv - without.device_kv, 21 * 32 * 2 * 2 * 16 * 2);
    assert!(with.device_weights > without.device_weights && with.device_arena > without.device_arena);
}
