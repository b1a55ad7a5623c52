//! What a step costs the host: which calls of the driver it makes, and how long it takes beside its graph. On a machine without a
//! GPU the tests say so and prove nothing.

#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;

use common::passes::limits;
use common::predictors::{Guesses, predicting};
use common::{Ctx, Model, bundled_model, greedy, sampler};
use segno::arch::{Arch, Hparams};
use segno::backend::cuda::{self, Cuda};
use segno::backend::{Batch, Chooser, Limits, Row};
use segno::ffi::device::SEGNO_DEVICE_CUDA;
use segno::ffi::session::{SEGNO_SPECULATION_ALWAYS, SEGNO_SPECULATION_MTP, SEGNO_SPECULATION_NGRAM};
use segno::format::Gguf;
use segno::kv::{Pages, Tables};
use segno::plan::build::build;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// One test at a time, so that timings have the device to themselves.
static ALONE: Mutex<()> = Mutex::new(());

fn model() -> Model {
    Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap().load(&bundled_model()).unwrap()
}

/// The calls of a step, those apart that only ask whether it has ended.
fn calls_of(step: impl FnOnce()) -> Vec<&'static str> {
    let ((), mut calls) = cuda::testing::calls_of(step);
    calls.retain(|call| *call != "cuStreamQuery");
    calls
}

const REPLAY: [&str; 3] = ["cuCtxPushCurrent", "cuGraphLaunch", "cuCtxPopCurrent"];

#[test]
fn a_step_is_one_graph_launch() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let model = model();
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (64, 8192)).unwrap();
    let seqs: Vec<i32> = (0..64).map(|_| session.open(&greedy()).unwrap()).collect();
    seqs.iter().for_each(|&seq| _ = session.prefill(seq, &[seq % 200 + 3, 5, 6]).unwrap());
    // The first token comes from the logits of the prompt.
    assert_eq!(calls_of(|| drop(session.batch(&seqs))), [] as [&str; 0]);
    // New pages, and further splits of attention, come on the way.
    let context = model.info().context as usize;
    for step in 4..context.min(600) {
        let calls = calls_of(|| assert!(session.step(seqs[0]).unwrap().0 >= 0));
        assert_eq!(calls, REPLAY, "step {step} of one sequence");
    }
    for count in [2, 3, 5, 8, 13, 40, 63] {
        for _ in 0..40 / count + 2 {
            let calls = calls_of(|| _ = session.batch(&seqs[1..=count]).2.unwrap());
            assert_eq!(calls, REPLAY, "a step of {count} sequences");
        }
    }
}

#[test]
fn a_step_that_draws_is_one_graph_launch_too() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let session = model().session(|_| ()).unwrap();
    let seqs: Vec<i32> = (0..6u64)
        .map(|seed| {
            let mut opts = sampler();
            (opts.seed, opts.flags) = (seed, greedy().flags);
            // Greedy, the defaults, penalties, a whole vocabulary.
            match seed {
                0 => opts.temperature = 0.0,
                1 => {}
                2 => (opts.repeat_penalty, opts.penalty_last_n) = (1.2, -1),
                3 => (opts.temperature, opts.repeat_penalty) = (0.0, 1.2),
                4 => opts.top_k = 0,
                _ => (opts.top_k, opts.typical_p) = (200, 0.9),
            }
            let seq = session.open(&opts).unwrap();
            session.prefill(seq, &[seed as i32 + 5, 6]).unwrap();
            session.step(seq).unwrap();
            seq
        })
        .collect();
    // Sequences join and leave, whatever their options.
    for step in 0..120 {
        let some: Vec<i32> = seqs.iter().copied().filter(|seq| (step * 7 + seq * 5) % 4 != 0).collect();
        let calls = calls_of(|| _ = session.batch(&some).2.unwrap());
        assert_eq!(calls, if some.is_empty() { &[] } else { &REPLAY[..] }, "step {step} of {some:?}");
    }
}

#[test]
fn a_step_whose_tokens_the_host_draws_reads_its_logits_and_nothing_else() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let session = model().session(|_| ()).unwrap();
    let mut opts = sampler();
    // More entries than the device takes.
    let bias = vec![segno::ffi::seq::segno_logit_bias { token: 5, bias: 0.001 }; 2_049];
    (opts.bias, opts.bias_count) = (bias.as_ptr(), bias.len());
    let seq = session.open(&opts).unwrap();
    session.prefill(seq, &[5, 6, 7]).unwrap();
    session.step(seq).unwrap();
    let [push, launch, pop] = REPLAY;
    let expected = [push, launch, "cuMemcpyDtoHAsync", pop];
    for _ in 0..40 {
        assert_eq!(calls_of(|| _ = session.step(seq).unwrap()), expected);
    }
}

#[test]
fn a_step_with_drafts_is_one_graph_launch_too() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let session = model().session(|opts| {
        (opts.max_seqs, opts.speculation) = (3, SEGNO_SPECULATION_NGRAM + SEGNO_SPECULATION_ALWAYS);
    });
    let session = session.unwrap();
    let mut drawn = sampler();
    (drawn.seed, drawn.flags, drawn.temperature) = (3, greedy().flags, 0.3);
    let seqs: Vec<i32> = [greedy(), drawn, greedy()].iter().map(|opts| session.open(opts).unwrap()).collect();
    let text: Vec<i32> = (0..60).map(|place| 40 + place % 6).collect();
    for &seq in &seqs {
        session.prefill(seq, &text).unwrap();
        session.step(seq).unwrap();
    }
    for step in 0..150 {
        let count = 1 + step % seqs.len();
        let calls = calls_of(|| _ = session.batch(&seqs[..count]).2.unwrap());
        assert!(calls.is_empty() || calls == REPLAY, "step {step} of {count}: {calls:?}");
    }
    let stats = session.stats().unwrap();
    assert!(stats.drafted > 50, "{} drafts", stats.drafted);
}

#[test]
fn a_step_with_drafts_of_the_models_own_predictor_starts_no_copy() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let ctx = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CUDA).unwrap();
    let model = ctx.load_buffer(&predicting("qwen35-plain", 1, Guesses::Right).bytes()).unwrap();
    let session = model.session(|opts| {
        (opts.speculation, opts.max_drafts) = (SEGNO_SPECULATION_MTP + SEGNO_SPECULATION_ALWAYS, 3);
    });
    let session = session.unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5, 6, 7]).unwrap();
    let mut replays = 0;
    for step in 0..120 {
        let calls = calls_of(|| assert!(session.step(seq).unwrap().0 >= 0));
        let starts = |call: &&&str| ["cuGraphLaunch", "cuLaunchKernel", REPLAY[0], REPLAY[2]].contains(call);
        assert_eq!(calls.iter().filter(starts).count(), calls.len(), "step {step}: {calls:?}");
        replays += calls.iter().filter(|call| **call == "cuGraphLaunch").count();
    }
    // Drafts behind the first of a pass are steps of the predictor.
    assert!(replays > 20 && session.stats().unwrap().accepted > 40, "{replays} replays");
}

/// Microseconds of a step through the C API, the least over several stretches.
fn step_time(model: &Model) -> f64 {
    let session = model.session(|opts| opts.kv_tokens = 512).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[5]).unwrap();
    session.generate(seq, 16).unwrap();
    let stretch = || {
        let start = Instant::now();
        session.generate(seq, 20).unwrap();
        start.elapsed().as_secs_f64() * 1e6 / 20.0
    };
    (0..10).map(|_| stretch()).fold(f64::MAX, f64::min)
}

/// Microseconds of the graph of such a step on the device.
fn graph_time() -> f64 {
    let gguf = Gguf::open(&bundled_model(), true, &mut |_| Ok(())).unwrap();
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    let program = Arc::new(build(&gguf, &arch, &Hparams::read(gguf.metadata(), &arch).unwrap()).unwrap());
    let limits = Limits { rows: 16, pages: 24, ..limits(&program, 32, 8) };
    let mut inspection =
        Cuda::new(0, false).unwrap().upload(program, &mut |_| Ok(())).unwrap().inspect(&limits, false).unwrap();
    let (mut tables, mut pages) = (Tables::new(1, 8).unwrap(), Pages::new(24).unwrap());
    assert!(tables.grow(0, 8, &mut pages));
    let rows = [Row { token: 5, position: 120, slot: 0 }];
    let batch = Batch {
        rows: &rows,
        outputs: &[0],
        chooser: Chooser::Device,
        tables: &tables,
        window_tables: None,
        moves: &[],
    };
    (0..10).map(|_| inspection.replay_seconds(&batch, 100).unwrap() * 1e6).fold(f64::MAX, f64::min)
}

#[test]
fn the_host_adds_little_to_a_step() {
    if !common::gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap();
    let (step, graph) = (step_time(&model()), graph_time());
    println!("a step takes {step:.1} us, its graph {graph:.1} us: {:.1} us of the host", step - graph);
    assert!(step - graph < 15.0, "{step} us a step, {graph} us its graph");
}
