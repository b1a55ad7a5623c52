//! How the library meets a driver: absent, too old, without a device, failing at any call. Needs no GPU: `tests/cuda/fake_driver.c` stands for
//! the driver. Each test starts this program again with the stand-in on the loader's path, for the test that carries the suffix `_inside`.

use crate::common;
use crate::common::embeddings::{case, embed_opts};
use crate::common::gguf::Shape;
use crate::common::{Ctx, Failed, Model, bundled_model, call, greedy};
use crate::divided::divided;
use crate::fake::{Fake, built, open, open_with, under_a_driver};
use segno::backend::cuda;
use segno::ffi::ctx::{SEGNO_CTX_TIMING, SEGNO_LOG_INFO, SEGNO_LOG_WARN, segno_ctx_opts};
use segno::ffi::device::*;
use segno::ffi::seq::segno_sampler_opts;
use segno::ffi::session::{SEGNO_KV_F16, SEGNO_KV_F32, SEGNO_KV_Q8};
use segno::ffi::status::*;
use segno::format::Gguf;
use std::ffi::c_void;

/// Asks for the GPU and for the best device; the GPU's answer, which is what the second logs.
fn refusal() -> Failed {
    let failed = open(SEGNO_DEVICE_CUDA).0.err().unwrap();
    let (ctx, lines) = open(SEGNO_DEVICE_AUTO);
    assert!(ctx.is_ok());
    let lines = lines.lock().unwrap();
    // Without the advice that who asked for the GPU gets.
    let reason = failed.message.trim_end_matches("; the cpu can be used instead");
    assert_eq!(lines[0], format!("{SEGNO_LOG_INFO} cpu chosen: {reason}"));
    assert!(lines[1].contains("cpu: "));
    failed
}

fn count() -> i32 {
    let mut count = -1;
    call(|err| segno_device_count(SEGNO_DEVICE_CUDA, &mut count, err)).unwrap();
    count
}

#[test]
fn an_old_driver_is_told_apart() {
    under_a_driver("calls::an_old_driver_inside", &[("FAKE_VERSION", "12080")]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn an_old_driver_inside() {
    assert_eq!(count(), 0);
    if built() {
        let failed = refusal();
        assert_eq!(failed.status, SEGNO_E_UNSUPPORTED);
        assert!(failed.message.contains("cuda 12.8, 13.0 is needed: install driver 580"), "{}", failed.message);
    }
}

#[test]
fn a_driver_without_devices_is_told_apart() {
    under_a_driver("calls::no_device_inside", &[("FAKE_INIT", "100")]);
    under_a_driver("calls::no_device_inside", &[("FAKE_DEVICES", "0")]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn no_device_inside() {
    assert_eq!(count(), 0);
    if built() {
        let failed = refusal();
        assert_eq!(failed.status, SEGNO_E_NOT_FOUND);
        assert!(failed.message.contains("no cuda device"), "{}", failed.message);
    }
}

#[test]
fn a_driver_that_cannot_begin_is_a_failure_of_the_device() {
    under_a_driver("calls::a_broken_driver_inside", &[("FAKE_INIT", "999")]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn a_broken_driver_inside() {
    assert_eq!(count(), 0);
    if built() {
        let failed = refusal();
        assert_eq!(failed.status, SEGNO_E_DEVICE);
        assert!(failed.message.contains("cuInit: made to fail (999)"), "{}", failed.message);
    }
}

/// A host's whole use of a GPU; the first failure ends it.
fn life() -> Result<(), Failed> {
    life_in(open(SEGNO_DEVICE_CUDA).0?)
}

/// The same in a context that is there already.
fn life_in(ctx: Ctx) -> Result<(), Failed> {
    // SAFETY: numbers only, so zeros are a value.
    let mut info = unsafe { std::mem::zeroed() };
    let size = size_of_val(&info);
    call(|err| segno_device_info_get(SEGNO_DEVICE_CUDA, 0, &mut info, size, err))?;
    let model = ctx.load(&common::root().join("tests/golden/hf/llama-single.gguf"))?;
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.kv_type) = (4, 256, SEGNO_KV_F32))?;
    let seq = session.open(&greedy())?;
    session.append(seq, &[5; 40])?;
    for _ in 0..3 {
        session.step(seq)?;
    }
    let child = session.fork(seq, None)?;
    session.batch(&[seq, child]).2?;
    session.logits(child)?;
    session.truncate(child, 5)?;
    session.step(child)?;
    session.embed(&[&[5; 40], &[6]], &embed_opts())?;
    divided(&ctx)?;
    let encoder = ctx.load(&case("bert-mean").file)?;
    let session = encoder.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, 128))?;
    session.embed(&[&[5; 40], &[6]], &embed_opts()).map(|_| ())
}

#[test]
fn a_cache_of_8_bits_takes_little_more_than_half() {
    under_a_driver("calls::small_cache_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn small_cache_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let ctx = open(SEGNO_DEVICE_CUDA).0.unwrap();
    let model = ctx.load(&common::root().join("tests/golden/hf/llama-single.gguf")).unwrap();
    let [halves, bytes] = [SEGNO_KV_F16, SEGNO_KV_Q8].map(|kv_type| {
        let session = model.session(|opts| (opts.kv_tokens, opts.kv_type) = (64, kv_type)).unwrap();
        session.memory().device_kv
    });
    // Heads of 16 elements: as many bytes, and two of a scale.
    assert_eq!(32 * bytes, 18 * halves);
    drop((model, ctx));
    assert_eq!(fake.live(), 0);
}

#[test]
fn whatever_call_fails_is_reported_and_nothing_is_left_behind() {
    under_a_driver("calls::any_call_fails_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn any_call_fails_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    assert_eq!(fake.live(), 0);
    let before = fake.calls();
    life().unwrap();
    let calls = fake.calls() - before;
    assert_eq!(fake.live(), 0);
    let mut failures = 0;
    for at in 0..calls {
        fake.fail_from(at);
        if let Err(failed) = life() {
            assert_eq!(failed.status, SEGNO_E_DEVICE, "call {at}: {}", failed.message);
            failures += 1;
        }
        fake.heal();
        assert_eq!(fake.live(), 0, "call {at} failed, and something was left");
    }
    println!("{calls} calls in a life; {failures} of their failures were reported");
    // The last calls give things up, and have nobody to report to.
    assert!(calls > 200 && failures > calls / 2);
    life().unwrap();
}

#[test]
fn models_that_a_gpu_cannot_run_take_the_processor_where_the_choice_is_free() {
    under_a_driver("calls::refused_model_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn refused_model_inside() {
    if !built() {
        return;
    }
    let _fake = Fake::open();
    // Only some of a head's elements rotate, so that their number may be odd; no kernel takes such heads.
    let mut file = Shape { head_dim: 15, ..Shape::small() }.file();
    file.set("llama.rope.dimension_count", 14u32);
    let (bytes, reason) = (file.bytes(), "heads of 15 elements");
    let failed = open(SEGNO_DEVICE_CUDA).0.unwrap().load_buffer(&bytes).err().unwrap();
    assert_eq!(failed.status, SEGNO_E_UNSUPPORTED);
    assert!(failed.message.contains(reason) && failed.message.ends_with("; the cpu can be used instead"), "{failed:?}");
    let (ctx, lines) = open(SEGNO_DEVICE_AUTO);
    let ctx = ctx.unwrap();
    let count = |words: &str| lines.lock().unwrap().iter().filter(|line| line.contains(words)).count();
    ctx.load_buffer(&Shape::small().file().bytes()).unwrap();
    assert_eq!(count("cpu"), 0, "{:?}", lines.lock().unwrap());
    let expected = logits(&open(SEGNO_DEVICE_CPU).0.unwrap().load_buffer(&bytes).unwrap());
    for times in 1..3 {
        assert!(logits(&ctx.load_buffer(&bytes).unwrap()) == expected);
        let told = lines.lock().unwrap();
        let chosen = |line: &&String| line.contains("cpu chosen for this model") && line.contains(reason);
        assert_eq!(told.iter().filter(chosen).count(), times, "{told:?}");
        // The processor is opened once.
        assert_eq!(told.iter().filter(|line| line.contains(" cpu: ")).count(), 1, "{told:?}");
    }
}

/// Logits after a short prompt.
fn logits(model: &Model) -> Vec<f32> {
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[5, 6, 7]).unwrap();
    session.logits(seq).unwrap()
}

#[test]
fn steps_run_as_launches_where_no_graph_can_be_made() {
    under_a_driver("calls::no_graph_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn no_graph_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    for name in [c"cuGraphInstantiateWithFlags", c"cuGraphUpload", c"cuGraphCreate", c"cuGraphAddKernelNode_v2"] {
        fake.fail_always(name);
        let (ctx, lines) = open(SEGNO_DEVICE_CUDA);
        let model = ctx.unwrap().load(&bundled_model()).unwrap();
        let (_, calls) = steps(&model);
        assert!(calls.contains(&"cuLaunchKernel") && !calls.contains(&"cuGraphLaunch"));
        let start = format!("{SEGNO_LOG_WARN} steps run as single launches");
        assert!(lines.lock().unwrap().iter().any(|line| line.starts_with(&start)), "{lines:?}");
        fake.heal();
        drop(model);
        assert_eq!(fake.live(), 0);
    }
}

/// Tokens and driver calls of some greedy steps.
fn steps(model: &Model) -> (Vec<i32>, Vec<&'static str>) {
    steps_of(model, &greedy())
}

fn steps_of(model: &Model, sampler: &segno_sampler_opts) -> (Vec<i32>, Vec<&'static str>) {
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(sampler).unwrap();
    session.prefill(seq, &[5, 6]).unwrap();
    session.step(seq).unwrap();
    cuda::testing::calls_of(|| session.generate(seq, 70).unwrap())
}

#[test]
fn a_step_asks_the_driver_for_one_launch() {
    under_a_driver("calls::one_launch_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn one_launch_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let model = open(SEGNO_DEVICE_CUDA).0.unwrap().load(&bundled_model()).unwrap();
    let mut drawn = greedy();
    (drawn.temperature, drawn.repeat_penalty) = (1.0, 1.1);
    for (sampler, token) in [(greedy(), 7), (drawn, 8)] {
        let (tokens, mut calls) = steps_of(&model, &sampler);
        calls.retain(|call| *call != "cuStreamQuery");
        assert_eq!(tokens, [token; 70]);
        assert_eq!(calls, ["cuCtxPushCurrent", "cuGraphLaunch", "cuCtxPopCurrent"].repeat(70));
    }
    drop(model);
    assert_eq!(fake.live(), 0);
}

#[test]
fn too_little_memory_is_refused_before_anything_is_taken() {
    under_a_driver("calls::too_little_memory_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn too_little_memory_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let ctx = open(SEGNO_DEVICE_CUDA).0.unwrap();
    let alive = fake.live();
    fake.set_memory(1 << 20);
    let (failed, calls) = cuda::testing::calls_of(|| ctx.load(&bundled_model()).err().unwrap());
    assert_eq!(failed.status, SEGNO_E_DEVICE_MEMORY);
    assert!(failed.message.contains("bytes needed, 1048576 free"), "{}", failed.message);
    assert!(!calls.contains(&"cuMemAlloc") && fake.live() == alive);
    fake.set_memory(1 << 30);
    let model = ctx.load(&bundled_model()).unwrap();
    let failed = model.session(|opts| opts.kv_tokens = 1 << 24).err().unwrap();
    assert_eq!(failed.status, SEGNO_E_DEVICE_MEMORY);
    drop((model, ctx));
    assert_eq!(fake.live(), 0);
}

#[test]
fn the_hosts_context_is_worked_in_and_left_alone() {
    under_a_driver("calls::the_hosts_context_inside", &[("FAKE_DEVICES", "2")]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn the_hosts_context_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let own = fake.host_context();
    for device in [SEGNO_DEVICE_CUDA, SEGNO_DEVICE_AUTO] {
        let ((), calls) = cuda::testing::calls_of(|| {
            let (ctx, lines) = open_with(|opts| (opts.device, opts.cuda_context) = (device, own));
            assert!(lines.lock().unwrap()[0].ends_with("cuda: device 0, in the host's context"), "{lines:?}");
            let model = ctx.unwrap().load(&bundled_model()).unwrap();
            assert_eq!(steps(&model).0, [7; 70]);
        });
        assert!(calls.contains(&"cuGraphLaunch") && !calls.iter().any(|call| call.contains("PrimaryCtx")), "{calls:?}");
        assert_eq!(fake.live(), 0);
    }
    // A whole life asks for the device's memory too, which takes the primary context for a moment.
    life_in(open_with(|opts| (opts.device, opts.cuda_context) = (SEGNO_DEVICE_CUDA, own)).0.unwrap()).unwrap();
    assert_eq!(fake.live(), 0);
    let refused = |change: &dyn Fn(&mut segno_ctx_opts)| open_with(change).0.err().unwrap();
    let failed = refused(&|opts| (opts.device, opts.cuda_context) = (SEGNO_DEVICE_CPU, own));
    assert_eq!(
        (failed.status, &*failed.message),
        (SEGNO_E_INVALID_ARGUMENT, "cuda_context is set, and device is the processor")
    );
    let failed = refused(&|opts| (opts.device_index, opts.cuda_context) = (1, own));
    assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT);
    assert_eq!(failed.message, "cuda_context belongs to device 0, device_index is 1; leave device_index 0");
    let no_context: *const c_void = std::ptr::from_ref(&fake).cast();
    let failed = refused(&|opts| opts.cuda_context = no_context.cast_mut());
    assert!(failed.status == SEGNO_E_DEVICE && failed.message.contains("cuCtxPushCurrent: "), "{failed:?}");
    assert_eq!(refused(&|opts| opts.reserved = 1).message, "reserved is 1, must be 0");
    assert_eq!(fake.live(), 0);
}

#[test]
fn adapters_take_device_memory_and_give_it_back() {
    under_a_driver("calls::adapters_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn adapters_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let path = bundled_model().with_file_name("shakespeare-lora.gguf");
    let model = open(SEGNO_DEVICE_CUDA).0.unwrap().load(&bundled_model()).unwrap();
    let loaded = fake.live();
    drop(model.adapter(&path).unwrap());
    assert_eq!(fake.live(), loaded, "an adapter that nobody has is gone");
    for ranks in [0, 64] {
        let session = model.session(|opts| opts.adapter_ranks = ranks).unwrap();
        let adapter = model.adapter(&path).unwrap();
        let (seq, other) = (session.open(&greedy()).unwrap(), session.open(&greedy()).unwrap());
        session.prefill(other, &[5, 6]).unwrap();
        session.adapt(seq, &[(&adapter, 1.0)]).unwrap();
        session.prefill(seq, &[5, 6]).unwrap();
        session.batch(&[seq, other]).2.unwrap();
        session.generate(seq, 3).unwrap();
        // More ranks need more room.
        session.adapt(other, &[(&adapter, 1.0); 9]).unwrap();
        session.batch(&[seq, other]).2.unwrap();
        session.adapt(seq, &[]).unwrap();
        let before = fake.live();
        drop(adapter);
        assert_eq!(fake.live(), before, "a sequence keeps what it has");
        session.close(other).unwrap();
        assert_eq!(fake.live(), before - 1);
        session.generate(seq, 3).unwrap();
    }
    assert_eq!(fake.live(), loaded);
}

#[test]
fn streams_have_the_priority_that_was_asked_for() {
    under_a_driver("calls::priority_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn priority_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    for priority in [-5, 0, -1] {
        let ctx = open_with(|opts| (opts.device, opts.stream_priority) = (SEGNO_DEVICE_CUDA, priority)).0.unwrap();
        let session = ctx.load(&bundled_model()).unwrap().session(|_| ()).unwrap();
        assert_eq!(fake.priority(), priority);
        drop(session);
    }
    for priority in [-6, 1, i32::MAX, i32::MIN] {
        for device in [SEGNO_DEVICE_CUDA, SEGNO_DEVICE_AUTO] {
            let opened = open_with(|opts| (opts.device, opts.stream_priority) = (device, priority)).0;
            let failed = opened.err().unwrap();
            assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT);
            assert_eq!(
                failed.message,
                format!("stream_priority is {priority}; this device takes -5 (runs first) to 0")
            );
        }
    }
    let on_processor = open_with(|opts| (opts.device, opts.stream_priority) = (SEGNO_DEVICE_CPU, 9)).0;
    assert!(on_processor.is_ok() && fake.live() == 0);
}

#[test]
fn a_timed_session_tells_what_every_launch_takes() {
    under_a_driver("calls::timing_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn timing_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    // Floats lie on the device as in the file, so the bytes that a step reads are those of the file.
    let path = common::root().join("tests/golden/hf/llama-single.gguf");
    let gguf = Gguf::open(&path, true, &mut |_| Ok(())).unwrap();
    let embedding = gguf.tensor("token_embd.weight").unwrap();
    let row = 4 * embedding.dims[0];
    assert!(gguf.tensor("output.weight").is_some());
    let all: u64 = gguf.tensors().iter().map(|tensor| 4 * tensor.dims.iter().product::<u64>()).sum();
    let others = all - 4 * embedding.dims.iter().product::<u64>();
    let (ctx, lines) = open_with(|opts| (opts.device, opts.flags) = (SEGNO_DEVICE_CUDA, SEGNO_CTX_TIMING));
    let model = ctx.unwrap().load(&path).unwrap();
    let session = model.session(|opts| (opts.max_seqs, opts.kv_type) = (2, SEGNO_KV_F32)).unwrap();
    let seqs = [5, 6].map(|token| {
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, &[token]).unwrap();
        seq
    });
    let (_, calls) = cuda::testing::calls_of(|| [(); 3].map(|()| session.step(seqs[0]).unwrap()));
    let launches = calls.iter().filter(|call| **call == "cuLaunchKernel").count() / 3;
    assert!(!calls.contains(&"cuGraphLaunch"));
    _ = session.batch(&seqs).2.unwrap();
    let before = lines.lock().unwrap().len();
    drop(session);
    let lines = lines.lock().unwrap()[before..].to_vec();
    let tables: Vec<&[String]> = lines.split_inclusive(|line| line.contains(" all ")).collect();
    assert_eq!(tables.len(), 2, "{lines:#?}");
    let info = model.info();
    for (table, rows) in tables.iter().zip([1, 2]) {
        assert!(table[0].contains(&format!("a step of {rows} rows, medians of ")), "{}", table[0]);
        let rows_of_table = &table[2..table.len() - 1];
        assert!(rows_of_table.iter().all(|line| line.split_whitespace().nth(3) == Some("2.00")), "{table:#?}");
        let bytes: u64 =
            rows_of_table.iter().map(|line| line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap()).sum();
        // The first sequence has three tokens more in the third step, and four in the batch, where the other has one.
        let positions = if rows == 1 { 3 } else { 5 };
        let cached = positions * 2 * u64::from(info.layers * info.kv_heads * info.head_dim) * 4;
        assert_eq!(bytes, others + rows * row + cached, "{table:#?}");
        let total = table.last().unwrap();
        assert!(
            total.ends_with(&format!(
                "{} bytes of weights and states, {cached} of keys and values",
                others + rows * row
            )),
            "{total}"
        );
        let ops = rows_of_table.iter().flat_map(|line| line.split(": ").nth(1)).flat_map(|ops| ops.split(", "));
        let count = |name| ops.clone().filter(|op| *op == name).count();
        let layers = info.layers as usize;
        assert_eq!([count("embed"), count("attention"), count("matmul")], [1, layers, 7 * layers + 1]);
        assert!(rows == 2 || rows_of_table.len() == launches, "{launches} launches: {table:#?}");
    }
    drop(model);
    assert_eq!(fake.live(), 0);
}
