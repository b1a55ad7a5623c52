//! Speculation on a GPU: whatever is drafted and whatever a host does, tokens and outcomes are those of a session that drafts nothing. On a machine
//! without a GPU the tests say so and prove nothing.

use crate::common::drafts::{DRAFTED, MODELS, STATES, WAYS, WAYS_OF_MODELS, tokens, walks, walks_in};
use crate::common::predictors::{Guesses, predicting};
use crate::common::{Ctx, gpu, greedy};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::session::*;
use segno::ffi::status::SEGNO_E_UNSUPPORTED;

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

#[test]
fn predictors_are_left_to_the_processor_and_repetitions_take_their_place() {
    if !gpu() {
        return;
    }
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    for (name, layer) in [("qwen35-plain", 1), ("glm4moe-plain", 2)] {
        let model = ctx.load_buffer(&predicting(name, layer, Guesses::Right).bytes()).unwrap();
        let failed = model.session(|opts| opts.speculation = SEGNO_SPECULATION_MTP).err().unwrap();
        assert_eq!(failed.status, SEGNO_E_UNSUPPORTED);
        assert!(failed.message.contains("(MTP)") && failed.message.contains("cuda backend"), "{}", failed.message);
        let kinds = [SEGNO_SPECULATION_OFF, SEGNO_SPECULATION_NGRAM, SEGNO_SPECULATION_AUTO];
        let [plain, repeating, auto] = kinds.map(|speculation| {
            let session = model.session(|opts| opts.speculation = speculation).unwrap();
            let seq = session.open(&greedy()).unwrap();
            session.append(seq, &[3, 5, 7]).unwrap();
            let memory = session.memory();
            (session.generate(seq, 60).unwrap(), (memory.host_kv, memory.device_kv, memory.device_arena))
        });
        assert_eq!(plain.0, auto.0);
        assert_eq!(repeating, auto);
    }
}
