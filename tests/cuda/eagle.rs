//! Heads that draft by vectors between a model's layers on a GPU: their logits and vectors against plain code, tokens that are those of a session
//! that drafts nothing, and the memory that is planned. On a machine without a GPU the lists of launches alone are made.

use crate::common::assistants::program_of;
use crate::common::drafts::{assert_mixed, assert_right, planned_memory};
use crate::common::eagle::{
    KNOWN, VOCAB, from_plain_code, head, loaded_alike, model, model_path, path, walks, with_the_models_logits,
};
use crate::common::gguf::parsed;
use crate::common::launches::{HIDDEN, Sort, leaving_lists};
use crate::common::{Ctx, gpu, greedy};
use segno::backend::cuda::Cuda;
use segno::backend::cuda::lower::supported;
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::plan::eagle::{over, telling};

/// Largest relative L2 distance with an F32 cache.
const NEAR: f64 = 2e-5;

fn on_gpu() -> Ctx {
    Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap()
}

#[test]
fn every_pass_of_a_head_and_of_its_model_can_be_run() {
    let bare = program_of(&parsed(&with_the_models_logits()[0].bytes())).0;
    for (name, head) in [("plain", head("plain")), ("own", head("own")), ("bare", bare)] {
        let model = model();
        for program in [over(&head, &model).unwrap(), telling(&model, &head).unwrap()] {
            supported::check(&program).unwrap();
            let lists = leaving_lists(&program, Sort::Exact);
            let leaves = |list: &[_]| list.iter().any(|launch| format!("{launch:?}").contains(&HIDDEN.to_string()));
            assert!(leaves(&lists.single) && leaves(&lists.prompt), "{name}");
        }
    }
}

#[test]
fn drafts_are_those_of_plain_code() {
    if !gpu() {
        return;
    }
    let device = Cuda::new(0, false).unwrap();
    for (name, logits) in [("plain", KNOWN), ("own", VOCAB)] {
        let worst = from_plain_code(&device, name, logits);
        println!("{name}: {worst:.2e} from plain code");
        assert!(worst <= NEAR, "{name}: {worst:.2e}");
    }
}

#[test]
fn tokens_are_those_without_drafts() {
    if !gpu() {
        return;
    }
    let (drafted, accepted) = walks(&on_gpu());
    assert_mixed(drafted, accepted);
}

#[test]
fn a_head_that_thinks_as_the_model_is_right() {
    if !gpu() {
        return;
    }
    let [model, head] = loaded_alike(&on_gpu());
    let mut drawn = greedy();
    (drawn.temperature, drawn.seed) = (1.0, 5);
    assert_right(&model, &head, &greedy());
    assert_right(&model, &head, &drawn);
}

#[test]
fn memory_and_plan_count_the_head() {
    if !gpu() {
        return;
    }
    let ctx = on_gpu();
    let [alone, both] = planned_memory(&ctx, &model_path(), &ctx.load(&path("plain")).unwrap());
    assert!(both.device_kv > alone.device_kv && both.device_arena > alone.device_arena);
    assert!(both.device_weights > alone.device_weights);
}
