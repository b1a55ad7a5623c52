//! The use of a model that a GPU shares with the host, under the stand-in of the driver.

use crate::common;
use crate::common::embeddings::embed_opts;
use crate::common::{Ctx, Failed, Watch, greedy, model_opts};
use crate::fake::{Fake, built, open, under_a_driver};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::model::segno_model_opts;
use segno::ffi::plan::segno_plan;
use segno::ffi::status::SEGNO_E_DEVICE_MEMORY;

/// What a model and its session take of the device.
fn on_device(plan: &segno_plan) -> u64 {
    plan.device_weights + plan.device_kv + plan.device_arena + plan.device_graphs
}

/// The use of a model of which the host does a part.
pub fn divided(ctx: &Ctx) -> Result<(), Failed> {
    let path = common::root().join("tests/golden/hf/qwen3moe-plain.gguf");
    let mut watch = Watch::default();
    let whole = ctx.plan(&path, &segno_model_opts { device_memory: u64::MAX, ..model_opts(0, &mut watch) })?;
    let opts = segno_model_opts { device_memory: on_device(&whole) - 1, ..model_opts(0, &mut watch) };
    assert!(ctx.plan(&path, &opts)?.host_expert_layers > 0);
    let model = ctx.load_with(&path, &opts)?.1;
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, 128))?;
    let seq = session.open(&greedy())?;
    session.append(seq, &[5; 40])?;
    (0..3).try_for_each(|_| session.step(seq).map(|_| ()))?;
    session.embed(&[&[5; 40], &[6]], &embed_opts()).map(|_| ())
}

#[test]
fn what_does_not_fit_is_the_hosts() {
    under_a_driver("divided::little_memory_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn little_memory_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let (ctx, lines) = open(SEGNO_DEVICE_CUDA);
    let (ctx, path) = (ctx.unwrap(), common::root().join("tests/golden/hf/qwen3moe-plain.gguf"));
    let plan = || {
        let mut watch = Watch::default();
        ctx.plan(&path, &model_opts(0, &mut watch)).unwrap()
    };
    let whole = plan();
    assert_eq!((whole.fits, whole.host_layers, whole.host_expert_layers), (1, 0, 0));
    // Loading takes more for a moment than the session of such a small model.
    fake.set_memory(whole.device_weights + (32 << 20) - 1);
    assert!(on_device(&whole) < whole.device_weights + (32 << 20) - 1);
    let found = plan();
    assert!(found.fits == 1 && found.host_expert_layers > 0 && on_device(&found) < on_device(&whole));
    let model = ctx.load(&path).unwrap();
    assert!(lines.lock().unwrap().iter().any(|line| line.contains("the experts of 1 layer")), "{:?}", lines.lock());
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[5; 40]).unwrap();
    (0..3).for_each(|_| _ = session.step(seq).unwrap());
    drop((session, model));
    fake.set_memory(1000);
    let (found, refused) = (plan(), ctx.load(&path).err().unwrap());
    assert_eq!((found.fits, found.host_layers, refused.status), (0, 0, SEGNO_E_DEVICE_MEMORY));
    assert_eq!(on_device(&found), on_device(&whole));
}
