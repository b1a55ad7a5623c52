//! Speculation on a GPU: whatever is drafted and whatever a host does, tokens and outcomes are those of a session that drafts nothing. On a machine
//! without a GPU the tests say so and prove nothing.

use crate::common::drafts::{DRAFTED, MODELS, STATES, WAYS, WAYS_OF_MODELS, tokens, walks, walks_in};
use crate::common::{Ctx, gpu};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_Q8};

#[test]
fn tokens_are_those_without_drafts() {
    if !gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    // No GPU runs latent attention.
    let models: Vec<&str> = MODELS.into_iter().filter(|name| !name.starts_with("deepseek")).collect();
    for (kv_type, ways) in [(SEGNO_KV_F16, &WAYS[..]), (SEGNO_KV_F16, &WAYS_OF_MODELS), (SEGNO_KV_Q8, &WAYS[..1])] {
        let (drafted, accepted) = walks_in(&ctx, kv_type, &models, ways);
        let (wrong, few) = (drafted - accepted, tokens() as u64);
        assert!(accepted > few && wrong > few, "of {drafted} drafts {accepted} were right");
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
