//! A model's own predictor under a driver that stands in for the real one (`fake`): whatever call fails is reported, nothing is left behind, and
//! what both programs of a file have is on the device once.

use crate::common::drafts::{Drafting, PLAIN, session};
use crate::common::predictors::{Guesses, MODELS, plan, predicting, predictor_of};
use crate::common::{self, Ctx, Failed, Folder, Model, greedy};
use crate::fake::{Fake, built, open, under_a_driver};
use segno::backend::Backend;
use segno::backend::cuda::Cuda;
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::session::*;
use segno::ffi::status::SEGNO_E_DEVICE;

const PREDICTED: i32 = SEGNO_SPECULATION_MTP + SEGNO_SPECULATION_ALWAYS;
const RANDOM: Guesses = Guesses::Random { own: false };

/// A session that drafts by itself.
fn life(file: &[u8]) -> Result<(), Failed> {
    let ctx: Ctx = open(SEGNO_DEVICE_CUDA).0?;
    drafts(&ctx.load_buffer(file)?, |opts| (opts.speculation, opts.max_drafts) = (PREDICTED, 3))
}

/// A session that drafts in such a way: prompts longer than what waits for a predictor, steps, a fork and a cut.
pub fn drafts(model: &Model, set: impl FnOnce(&mut segno_session_opts)) -> Result<(), Failed> {
    let session = model.session(|opts| {
        (opts.max_seqs, opts.kv_tokens, opts.max_prefill) = (2, 256, 48);
        set(opts);
    })?;
    let seq = session.open(&greedy())?;
    session.append(seq, &[5; 70])?;
    for _ in 0..6 {
        session.step(seq)?;
    }
    let child = session.fork(seq, None)?;
    session.batch(&[seq, child]).2?;
    session.truncate(child, 5)?;
    session.step(child).map(|_| ())
}

#[test]
fn whatever_call_fails_is_reported_and_nothing_is_left_behind() {
    under_a_driver("predictors::any_call_fails_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn any_call_fails_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let file = predicting("glm4moe-plain", 2, RANDOM).bytes();
    fail_calls(&fake, [29, 1], || life(&file));
}

/// Lets calls of such a life fail: one of so many that come `before` its passes, and one of so many `of_passes`.
pub fn fail_calls(fake: &Fake, [before, of_passes]: [usize; 2], life: impl Fn() -> Result<(), Failed>) {
    let start = fake.calls();
    life().unwrap();
    let calls = fake.calls() - start;
    assert_eq!(fake.live(), 0);
    let mut failures = 0;
    // Most calls upload weights and make graphs, as everywhere.
    let passes = calls - 400;
    for at in (0..passes).step_by(before).chain((passes..calls).step_by(of_passes)) {
        fake.fail_from(at);
        if let Err(failed) = life() {
            assert_eq!(failed.status, SEGNO_E_DEVICE, "call {at}: {}", failed.message);
            failures += 1;
        }
        fake.heal();
        assert_eq!(fake.live(), 0, "call {at} failed, and something was left");
    }
    println!("{calls} calls in a life; {failures} of their failures were reported");
    assert!(passes > 0 && failures > 50);
    life().unwrap();
}

#[test]
fn plans_count_the_weights_of_a_predictor_that_its_model_lacks() {
    under_a_driver("predictors::planned_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn planned_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let device = Cuda::new(0, false).unwrap();
    for (name, layer) in MODELS {
        let weights = |own: bool| {
            let gguf = common::gguf::parsed(&predicting(name, layer, Guesses::Random { own }).bytes());
            let model = common::launches::program(&gguf);
            let table = model.matrices[model.token_table().unwrap().0].bytes.len() as u64;
            (device.weights_beside(&predictor_of(&gguf), &[&model]).unwrap(), table)
        };
        let ((shared, table), (own, _)) = (weights(false), weights(true));
        // An embedding, a head and a norm more.
        assert!(own >= shared + 2 * table && own < shared + 2 * table + 4096, "{name}: {own}, {shared}, {table}");
    }
    let (ctx, folder) = (open(SEGNO_DEVICE_CUDA).0.unwrap(), Folder::new("driver-predictor"));
    let path = folder.join("model.gguf");
    predicting("qwen35-plain", 1, RANDOM).write(&path);
    let model = ctx.load(&path).unwrap();
    let [without, with] = [SEGNO_SPECULATION_NGRAM, SEGNO_SPECULATION_AUTO].map(|speculation| {
        let memory = session(&model, Drafting { speculation, ..PLAIN }, 512).memory();
        let planned = plan(&ctx, &path, speculation);
        let device = (planned.device_weights, planned.device_kv, planned.device_arena, planned.device_graphs);
        assert_eq!(device, (memory.device_weights, memory.device_kv, memory.device_arena, memory.device_graphs));
        assert_eq!((planned.host_kv, planned.host_arena), (memory.host_kv, memory.host_arena));
        memory
    });
    // Keys and values of one layer, 20 pages of 32 positions and one for padding, of two heads.
    assert_eq!(with.device_kv - without.device_kv, 21 * 32 * 2 * 2 * 16 * 2);
    assert!(with.device_weights > without.device_weights && with.device_arena > without.device_arena);
    drop((model, ctx, device));
    assert_eq!(fake.live(), 0);
}
