//! Memory that is not there is refused before anything is taken: by the figures of the system, of control groups, and of the process's limits.

#[path = "../common/mod.rs"]
mod common;

use common::skip::{Lack, skip};
use common::{Ctx, bundled_model};
use segno::backend::{GpuOptions, KvType, cpu};
use segno::engine::device::Kind;
use segno::engine::model::Options as Loading;
use segno::engine::{Context, Model, Plan, context, session};
use segno::error::Error;
use segno::ffi::ctx::SEGNO_CTX_OVERCOMMIT;
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::ffi::status::SEGNO_E_OUT_OF_MEMORY;
use segno::speculate;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What the prepared system says can be taken; one test at a time.
static FREE: AtomicU64 = AtomicU64::new(0);
static ALONE: Mutex<()> = Mutex::new(());

fn context(overcommits: bool) -> Arc<Context> {
    let cpu = cpu::Options { threads: 1, precise: false, allow_avx512: true, gives_way: false };
    let free_memory = || Some(FREE.load(Ordering::Relaxed));
    let (device, gpu) = (Kind::Cpu, GpuOptions::default());
    let options = context::Options { device, cpu, gpu, host_argmax: false, free_memory, overcommits };
    Arc::new(Context::new(&options, None).unwrap())
}

fn load(context: &Arc<Context>, map: bool) -> Result<Model, Error> {
    Model::load(context, &bundled_model(), &Loading { map, ..MAPPED }, &mut |_| Ok(()))
}

const MAPPED: Loading = Loading { map: true, quantize: None, device_memory: 0 };

const OPTIONS: session::Options = session::Options {
    max_seqs: 1,
    kv_tokens: 512,
    max_prefill: 16,
    max_prompt: 0,
    kv_type: KvType::F16,
    marks: 0,
    drafts: speculate::Options::OFF,
    ranks: 0,
};

/// The bytes needed and free of a refusal.
fn refused<T>(result: Result<T, Error>) -> (u64, u64) {
    match result.err() {
        Some(Error::HostMemory { needed, free, .. }) => (needed, free),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_the_numbers() {
    let _alone = ALONE.lock().unwrap();
    let (careful, insisting) = (context(false), context(true));
    let bytes = std::fs::metadata(bundled_model()).unwrap().len();
    for map in [true, false] {
        FREE.store(u64::MAX, Ordering::Relaxed);
        let weights = if map { load(&careful, true).unwrap().program().weight_bytes() } else { bytes };
        for (free, fits) in [(weights - 1, false), (weights, true)] {
            FREE.store(free, Ordering::Relaxed);
            if fits {
                load(&careful, map).unwrap();
            } else {
                assert_eq!(refused(load(&careful, map)), (weights, free), "mapped: {map}");
            }
            load(&insisting, map).unwrap();
        }
    }
    FREE.store(bytes - 1, Ordering::Relaxed);
    let file = std::fs::read(bundled_model()).unwrap();
    assert_eq!(refused(Model::load_buffer(&careful, &file, &MAPPED, &mut |_| Ok(()))), (bytes, bytes - 1));
}

#[test]
fn a_session_that_does_not_fit_is_refused_as_its_plan_says() {
    let _alone = ALONE.lock().unwrap();
    let (careful, insisting) = (context(false), context(true));
    FREE.store(u64::MAX, Ordering::Relaxed);
    let models = [&careful, &insisting].map(|context| Arc::new(load(context, true).unwrap()));
    let copied = Arc::new(load(&careful, false).unwrap());
    let plan = || Plan::new(&careful, &bundled_model(), &MAPPED, &OPTIONS, None).unwrap();
    let memory = plan().memory;
    let needed = memory.weights + memory.kv + memory.arena;
    for (free, fits) in [(needed - 1, false), (needed, true)] {
        FREE.store(free, Ordering::Relaxed);
        assert_eq!((plan().fits(), plan().free), (fits, free));
        let made = session::Session::create(&models[0], &OPTIONS, None);
        if fits {
            made.unwrap();
        } else {
            assert_eq!(refused(made), (needed, free));
        }
        session::Session::create(&models[1], &OPTIONS, None).unwrap();
    }
    // Weights that were read have their memory already.
    FREE.store(needed - memory.weights, Ordering::Relaxed);
    session::Session::create(&copied, &OPTIONS, None).unwrap();
}

#[test]
fn what_the_machine_does_not_have_is_refused_at_once() {
    let ctx =
        |flags| Ctx::new(|opts| (opts.device, opts.n_threads, opts.flags) = (SEGNO_DEVICE_CPU, 1, flags)).unwrap();
    let model = ctx(0).load(&bundled_model()).unwrap();
    let failed = model.session(|opts| opts.kv_tokens = 1 << 30).err().unwrap();
    assert_eq!(failed.status, SEGNO_E_OUT_OF_MEMORY);
    assert!(failed.message.contains("can be taken") && failed.message.contains("OVERCOMMIT"), "{}", failed.message);
    ctx(SEGNO_CTX_OVERCOMMIT).load(&bundled_model()).unwrap().session(|_| ()).unwrap();
}

/// The folder of a new control group below this process's own, of at most so many bytes; none where groups cannot be made here.
fn group(bytes: u64) -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path_of = |line: &str| line.splitn(3, ':').nth(2).map(|path| path.trim_start_matches('/').to_owned());
    let one =
        groups.lines().find(|line| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|n| n == "memory")));
    let (mount, path, limit) = match one {
        Some(line) => ("/sys/fs/cgroup/memory", path_of(line)?, "memory.limit_in_bytes"),
        None => ("/sys/fs/cgroup", path_of(groups.lines().find(|line| line.starts_with("0::"))?)?, "memory.max"),
    };
    let folder = PathBuf::from(mount).join(path).join(format!("segno-test-{}", std::process::id()));
    std::fs::create_dir(&folder).ok()?;
    if std::fs::write(folder.join(limit), bytes.to_string()).is_err() {
        _ = std::fs::remove_dir(&folder);
        return None;
    }
    Some(folder)
}

#[test]
fn a_control_groups_limit_is_an_error_and_never_the_end_of_the_process() {
    let Some(folder) = group(256 << 20) else {
        skip(Lack::Machine, "control groups cannot be made here");
        return;
    };
    let command = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", folder.display());
    let program = std::env::current_exe().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).arg(program);
    let output =
        shell.args(["inside_a_group", "--exact", "--ignored", "--nocapture", "--test-threads=1"]).output().unwrap();
    std::fs::remove_dir(&folder).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "started in a control group of the test's own"]
fn inside_a_group() {
    let ctx = Ctx::new(|opts| (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 1)).unwrap();
    let model = ctx.load(&bundled_model()).unwrap();
    let info = model.info();
    let token = 4 * u64::from(info.layers * info.kv_heads * info.head_dim);
    let failed = model.session(|opts| opts.kv_tokens = (512 << 20) / token).err().unwrap();
    assert_eq!(failed.status, SEGNO_E_OUT_OF_MEMORY);
    assert!(failed.message.contains("can be taken"), "{}", failed.message);
    model.session(|opts| opts.kv_tokens = (32 << 20) / token).unwrap();
}
