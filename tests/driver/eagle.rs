//! A head that drafts by vectors between a model's layers, under a driver that stands in for the real one (`fake`): whatever call fails is reported,
//! nothing is left behind, memory is as planned, and a model that the host shares is refused.

use crate::common::divided::{limited, on_device};
use crate::common::drafts::{DRAFTED, assert_refused, planned_memory};
use crate::common::eagle::{VOCAB, WIDTH, head, model, model_path, path};
use crate::common::{Ctx, Failed};
use crate::fake::{Fake, built, open, open_with, under_a_driver};
use crate::predictors::{drafts, fail_calls};
use segno::backend::Backend;
use segno::backend::cuda::Cuda;
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::plan::eagle::{over, telling};

/// A session with a head.
fn life(name: &str) -> Result<(), Failed> {
    let ctx: Ctx = open(SEGNO_DEVICE_CUDA).0?;
    let (model, head) = (ctx.load(&model_path())?, ctx.load(&path(name))?);
    drafts(&model, |opts| (opts.speculation, opts.max_drafts, opts.draft) = (DRAFTED, 3, head.0))
}

#[test]
fn whatever_call_fails_is_reported_and_nothing_is_left_behind() {
    under_a_driver("eagle::any_call_fails_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn any_call_fails_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    ["plain", "own"].into_iter().for_each(|name| fail_calls(&fake, [37, 3], || life(name)));
}

#[test]
fn memory_is_planned_and_models_that_the_host_shares_are_refused() {
    under_a_driver("eagle::planned_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn planned_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let ctx = open(SEGNO_DEVICE_CUDA).0.unwrap();
    for name in ["plain", "own"] {
        let (model, head) = (ctx.load(&model_path()).unwrap(), ctx.load(&path(name)).unwrap());
        planned_memory(&ctx, &model_path(), &head);
        let limit = on_device(&ctx.plan(&model_path(), &limited(u64::MAX)).unwrap()) - 1;
        let shared = ctx.load_with(&model_path(), &limited(limit)).unwrap().1;
        assert_refused(&shared, Some(&head), "both have to run on one device");
        let elsewhere = open_with(|opts| (opts.device, opts.cuda_context) = (SEGNO_DEVICE_CUDA, fake.host_context()));
        let elsewhere = elsewhere.0.unwrap().load(&path(name)).unwrap();
        assert_refused(&model, Some(&elsewhere), "in one context of one GPU");
    }
    drop(ctx);
    weights_of_both_are_there_once();
    assert_eq!(fake.live(), 0);
}

/// Of a head without a table of its own only norms and angles come again, and of the model alike.
fn weights_of_both_are_there_once() {
    let device = Cuda::new(0, false).unwrap();
    let (model, head) = (model(), head("plain"));
    let bytes = |there: &[_], own| device.weights_beside(own, there).unwrap();
    let (over, telling) = (over(&head, &model).unwrap(), telling(&model, &head).unwrap());
    assert!(bytes(&[&head, &model], &over) < bytes(&[], &over) / 8);
    assert!(bytes(&[&model, &head], &telling) < bytes(&[], &telling) / 8);
    // The model's table of tokens.
    assert!(bytes(&[&head], &over) >= bytes(&[&head, &model], &over) + (VOCAB * WIDTH) as u64);
}
