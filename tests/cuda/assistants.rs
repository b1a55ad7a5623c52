//! Models that draft by the keys of another one on a GPU: their logits and vectors against those of transformers, the cache that they read, tokens
//! that are those of a session that drafts nothing, and the memory that is planned. On a machine without a GPU the lists of launches alone are made.

use crate::common::assistants::{
    assert_alone, distance_of_drafts, loaded_alike, model_path, own_keys_unseen, path, program_over, walks,
};
use crate::common::drafts::{assert_mixed, assert_right, planned_memory};
use crate::common::eagle::open;
use crate::common::launches::{HIDDEN, Sort, leaving_lists};
use crate::common::{Ctx, gpu, greedy};
use segno::backend::cuda::Cuda;
use segno::backend::cuda::lower::supported;
use segno::ffi::device::SEGNO_DEVICE_CUDA;

/// Largest relative L2 distance with an F32 cache.
const NEAR: f64 = 2e-5;

fn on_gpu() -> Ctx {
    Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap()
}

#[test]
fn every_pass_of_an_assistant_can_be_run() {
    let program = program_over(&open(&path()), &open(&model_path()));
    supported::check(&program).unwrap();
    for sort in [Sort::Exact, Sort::F32Cache, Sort::Q8Cache] {
        let lists = leaving_lists(&program, sort);
        let leaves = |list: &[_]| list.iter().any(|launch| format!("{launch:?}").contains(&HIDDEN.to_string()));
        assert!(leaves(&lists.single) && leaves(&lists.prompt));
    }
}

#[test]
fn drafts_are_those_of_transformers() {
    if !gpu() {
        return;
    }
    for eager in [false, true] {
        let worst = distance_of_drafts(&Cuda::new(0, eager).unwrap());
        println!("{worst:.2e} from transformers");
        assert!(worst <= NEAR, "{worst:.2e}");
    }
}

#[test]
fn rows_of_several_lengths_in_one_pass_are_those_of_each_alone() {
    if !gpu() {
        return;
    }
    assert_alone(&Cuda::new(0, false).unwrap());
}

#[test]
fn a_row_sees_no_key_at_its_own_position_or_behind() {
    if !gpu() {
        return;
    }
    own_keys_unseen(&Cuda::new(0, false).unwrap());
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
fn an_assistant_that_thinks_as_the_model_is_right() {
    if !gpu() {
        return;
    }
    let [model, assistant] = loaded_alike(&on_gpu());
    assert_right(&model, &assistant, &greedy());
}

#[test]
fn memory_and_plan_count_the_assistant() {
    if !gpu() {
        return;
    }
    let ctx = on_gpu();
    let [alone, both] = planned_memory(&ctx, &model_path(), &ctx.load(&path()).unwrap());
    // It has no cache.
    assert_eq!(both.device_kv, alone.device_kv);
    assert!(both.device_arena > alone.device_arena && both.device_graphs > alone.device_graphs);
    assert!(both.device_weights > alone.device_weights);
}
