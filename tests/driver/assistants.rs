//! A model that drafts by the keys of another one, under a driver that stands in for the real one (`fake`): whatever call fails is reported, nothing
//! is left behind, memory is as planned, and a model that the host shares is refused.

use crate::common::assistants::{model_path, path, program_of, program_over};
use crate::common::divided::{limited, on_device};
use crate::common::drafts::{DRAFTED, assert_refused, planned_memory};
use crate::common::eagle::open as file;
use crate::common::{Ctx, Failed};
use crate::fake::{Fake, built, open, open_with, under_a_driver};
use crate::predictors::{drafts, fail_calls};
use segno::backend::Backend;
use segno::backend::cuda::Cuda;
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};

/// A session with an assistant.
fn life() -> Result<(), Failed> {
    let ctx: Ctx = open(SEGNO_DEVICE_CUDA).0?;
    let (model, assistant) = (ctx.load(&model_path())?, ctx.load(&path())?);
    drafts(&model, |opts| (opts.speculation, opts.max_drafts, opts.draft) = (DRAFTED, 3, assistant.0))
}

#[test]
fn whatever_call_fails_is_reported_and_nothing_is_left_behind() {
    under_a_driver("assistants::any_call_fails_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn any_call_fails_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    fail_calls(&fake, [37, 3], life);
}

#[test]
fn memory_is_planned_and_models_elsewhere_are_refused() {
    under_a_driver("assistants::planned_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn planned_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let ctx = open(SEGNO_DEVICE_CUDA).0.unwrap();
    let (model, assistant) = (ctx.load(&model_path()).unwrap(), ctx.load(&path()).unwrap());
    let [alone, memory] = planned_memory(&ctx, &model_path(), &assistant);
    // It has no cache of its own.
    assert_eq!(memory.device_kv, alone.device_kv);
    let limit = on_device(&ctx.plan(&model_path(), &limited(u64::MAX)).unwrap()) - 1;
    let shared = ctx.load_with(&model_path(), &limited(limit)).unwrap().1;
    assert_refused(&shared, Some(&assistant), "both have to run on one device");
    let host = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CPU).unwrap();
    assert_refused(&model, Some(&host.load(&path()).unwrap()), "both have to run on one device");
    assert_refused(&host.load(&model_path()).unwrap(), Some(&assistant), "both have to run on one device");
    let elsewhere = open_with(|opts| (opts.device, opts.cuda_context) = (SEGNO_DEVICE_CUDA, fake.host_context()));
    let elsewhere = elsewhere.0.unwrap();
    assert_refused(&model, Some(&elsewhere.load(&path()).unwrap()), "in one context of one GPU");
    drop((model, assistant, shared, ctx, elsewhere));
    weights_of_both_are_there_once();
    assert_eq!(fake.live(), 0);
}

/// Beside both, only norms and angles come again.
fn weights_of_both_are_there_once() {
    let device = Cuda::new(0, false).unwrap();
    let (model, own) = (file(&model_path()), file(&path()));
    let over = program_over(&own, &model);
    let (model, own) = (program_of(&model).0, program_of(&own).0);
    let bytes = |there: &[_]| device.weights_beside(&over, there).unwrap();
    assert!(bytes(&[&own, &model]) < bytes(&[&own]) && bytes(&[&own]) < bytes(&[]));
}
