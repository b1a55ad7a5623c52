//! The use of a model that a GPU shares with the host, under the stand-in of the driver.

use crate::common;
use crate::common::adapters::{Form, Lora};
use crate::common::divided::{limited, on_device};
use crate::common::embeddings::{embed_opts, with};
use crate::common::saved::{restore, save};
use crate::common::{Ctx, Failed, Folder, Model, Session, Watch, call, greedy, model_opts};
use crate::fake::{Fake, built, open, under_a_driver};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::model::segno_model_opts;
use segno::ffi::plan::{segno_plan, segno_plan_get};
use segno::ffi::session::{segno_memory, segno_session_opts, segno_session_opts_init};
use segno::ffi::status::{SEGNO_E_DEVICE, SEGNO_E_DEVICE_MEMORY, SEGNO_E_UNSUPPORTED};
use std::ffi::CString;
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    common::root().join("tests/golden/hf/qwen3moe-plain.gguf")
}

/// How a model is loaded of which the host does the experts of a layer.
fn sharing(ctx: &Ctx) -> Result<segno_model_opts, Failed> {
    let opts = limited(on_device(&ctx.plan(&golden(), &limited(u64::MAX))?) - 1);
    assert!(ctx.plan(&golden(), &opts)?.host_expert_layers > 0);
    Ok(opts)
}

fn shared(ctx: &Ctx) -> Result<Model, Failed> {
    ctx.load_with(&golden(), &sharing(ctx)?).map(|(_, model)| model)
}

/// The use of such a model.
pub fn divided(ctx: &Ctx) -> Result<(), Failed> {
    let model = shared(ctx)?;
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
    let (ctx, path) = (ctx.unwrap(), golden());
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
    // Of such a small model the rest may take more than the weights that are not there.
    assert!(found.fits == 1 && found.host_expert_layers > 0 && found.device_weights < whole.device_weights);
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

/// Writes an adapter of some tensors of the model; how many bytes its numbers have.
fn written(path: &Path, of: impl Fn(&str) -> bool) -> u64 {
    let lora = Lora::whole(&std::fs::read(golden()).unwrap(), Form::new(5, 6), of);
    lora.file().write(path);
    lora.pairs.iter().map(|pair| 4 * (pair.a.len() + pair.b.len()) as u64).sum()
}

/// Figures of what adapters take: buffers on both sides, and graphs.
fn told(memory: &segno_memory) -> [u64; 3] {
    [memory.host_arena, memory.device_arena, memory.device_graphs]
}

fn narrow(model: &Model, ranks: u32) -> Result<Session, Failed> {
    model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.adapter_ranks) = (2, 128, ranks))
}

/// The same figures of the plan of such a session.
fn planned(ctx: &Ctx, ranks: u32) -> [u64; 3] {
    let path = CString::new(golden().to_str().unwrap()).unwrap();
    // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
    let (mut opts, mut plan) = unsafe { std::mem::zeroed::<(segno_session_opts, segno_plan)>() };
    segno_session_opts_init(&mut opts, size_of::<segno_session_opts>());
    (opts.max_seqs, opts.kv_tokens, opts.adapter_ranks) = (2, 128, ranks);
    let (loading, size) = (sharing(ctx).unwrap(), size_of::<segno_plan>());
    call(|err| segno_plan_get(ctx.0, path.as_ptr(), &loading, &opts, &mut plan, size, err)).unwrap();
    [plan.host_arena, plan.device_arena, plan.device_graphs]
}

#[test]
fn adapters_are_divided_as_the_model_is() {
    under_a_driver("divided::adapters_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn adapters_inside() {
    if !built() {
        return;
    }
    let (fake, folder) = (Fake::open(), Folder::new("driver-divided-adapters"));
    let ctx = open(SEGNO_DEVICE_CUDA).0.unwrap();
    let (whole, model) = (ctx.load(&golden()).unwrap(), shared(&ctx).unwrap());
    let [experts, attention, embedding] = ["experts", "attention", "embedding"].map(|name| folder.join(name));
    let bytes = written(&experts, |name| name == "blk.0.ffn_down_exps.weight");
    written(&attention, |name| name == "blk.0.attn_q.weight");
    written(&embedding, |name| name == "token_embd.weight");
    // What is the host's takes nothing of the device.
    fake.set_memory(1000);
    let needed = |model: &Model, path| {
        let failed = model.adapter(path).err().unwrap();
        assert_eq!(failed.status, SEGNO_E_DEVICE_MEMORY, "{}", failed.message);
        failed.message.split(' ').find_map(|word| word.parse::<u64>().ok()).unwrap()
    };
    assert_eq!(needed(&model, &attention), needed(&whole, &attention));
    let taken = needed(&whole, &experts) - needed(&model, &experts);
    assert!(taken >= bytes && taken < bytes + 1024, "{taken} of {bytes} bytes");
    fake.set_memory(1 << 30);
    let adapters = [&experts, &attention].map(|path| model.adapter(path).unwrap());
    let set = [(&adapters[0], 1.0), (&adapters[1], -0.5)];
    // Room is made as it is reserved, on both sides or on none.
    let [grown, reserved, bare, failing] = [0, 12, 0, 0].map(|ranks| narrow(&model, ranks).unwrap());
    let (seq, before) = (failing.open(&greedy()).unwrap(), told(&failing.memory()));
    fake.fail_always(c"cuMemAlloc_v2");
    assert_eq!(failing.adapt(seq, &set).unwrap_err().status, SEGNO_E_DEVICE);
    fake.heal();
    assert_eq!(told(&failing.memory()), before);
    let seqs = [&grown, &reserved].map(|session| {
        let seq = session.open(&greedy()).unwrap();
        session.adapt(seq, &set).unwrap();
        session.append(seq, &[5; 40]).unwrap();
        assert_eq!(session.generate(seq, 3).unwrap(), [7; 3]);
        seq
    });
    let [with_room, without] = [&grown, &bare].map(|session| told(&session.memory()));
    assert_eq!(with_room, told(&reserved.memory()));
    assert_eq!([12, 0].map(|ranks| planned(&ctx, ranks)), [with_room, without]);
    assert!((0..3).all(|at| with_room[at] > without[at]), "{with_room:?}, {without:?}");
    let bytes = save(&grown, seqs[0]);
    let again = restore(&bare, &bytes).unwrap();
    assert!(save(&bare, again) == bytes && told(&bare.memory()) == with_room);
    let refused = model.adapter(&embedding).err().unwrap();
    assert_eq!(refused.status, SEGNO_E_UNSUPPORTED);
    assert!(refused.message.contains("cannot be applied on a gpu"), "{}", refused.message);
    drop((grown, reserved, bare, failing, adapters, model, whole, ctx));
    assert_eq!(fake.live(), 0);
}

/// A life with adapters on both sides: given, taken away and given again, with other ranks and other matrices.
fn adapted(paths: &[PathBuf; 2]) -> Result<(), Failed> {
    let model = shared(&open(SEGNO_DEVICE_CUDA).0?)?;
    let session = narrow(&model, 0)?;
    let seq = session.open(&greedy())?;
    let [first, second] = [model.adapter(&paths[0])?, model.adapter(&paths[1])?];
    for set in [&[(&first, 1.0)][..], &[], &[(&first, 1.0), (&second, 0.5)]] {
        session.adapt(seq, set)?;
        session.append(seq, &[5; 20])?;
        session.step(seq)?;
    }
    session.embed(&[&[5; 40], &[6]], &with(&[second.0.cast_const()], &[1.0])).map(|_| ())
}

#[test]
fn whatever_call_fails_with_adapters_is_reported_and_nothing_is_left_behind() {
    under_a_driver("divided::any_call_fails_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn any_call_fails_inside() {
    if !built() {
        return;
    }
    let (fake, folder) = (Fake::open(), Folder::new("driver-divided-failures"));
    let (paths, before) = ([folder.join("experts"), folder.join("both")], fake.calls());
    written(&paths[0], |name| name == "blk.0.ffn_down_exps.weight");
    written(&paths[1], |name| name.starts_with("blk.0.attn_q") || name.contains("ffn_up_exps"));
    adapted(&paths).unwrap();
    let calls = fake.calls() - before;
    assert_eq!(fake.live(), 0);
    let mut failures = 0;
    for at in (0..calls).step_by(7) {
        fake.fail_from(at);
        if let Err(failed) = adapted(&paths) {
            assert_eq!(failed.status, SEGNO_E_DEVICE, "call {at}: {}", failed.message);
            failures += 1;
        }
        fake.heal();
        assert_eq!(fake.live(), 0, "call {at} failed, and something was left");
    }
    println!("{calls} calls in a life; {failures} of their failures were reported");
    assert!(failures > 50);
    adapted(&paths).unwrap();
}
