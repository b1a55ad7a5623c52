//! How the library meets a driver: absent, too old, without a device, failing at any call. Needs no GPU: `tests/cuda/fake_driver.c` stands for
//! the driver. Each test starts this program again with the stand-in on the loader's path, for the test that carries the suffix `_inside`.

#![cfg(feature = "cuda")]

mod common;

use common::{Ctx, Failed, Model, bundled_model, call, greedy};
use segno::backend::cuda::args::{ArgmaxArgs, StepArgs};
use segno::backend::cuda::{self, Cuda};
use segno::ffi::ctx::{SEGNO_LOG_INFO, SEGNO_LOG_WARN};
use segno::ffi::device::{SEGNO_DEVICE_AUTO, SEGNO_DEVICE_CUDA, segno_device_count, segno_device_info_get};
use segno::ffi::session::SEGNO_KV_F32;
use segno::ffi::status::*;
use std::ffi::{CStr, c_char, c_long, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null;
use std::sync::Mutex;

/// The stand-in, compiled once; only its folder is told.
fn stand_in() -> PathBuf {
    static MADE: Mutex<bool> = Mutex::new(false);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-driver-{}", std::process::id()));
    let mut made = MADE.lock().unwrap();
    if !*made {
        std::fs::create_dir_all(&folder).unwrap();
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let source = common::root().join("tests/cuda/fake_driver.c");
        let output = folder.join("libcuda.so");
        let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"];
        let status = Command::new(compiler).args(flags).args([&output, &source]).status().expect("a C compiler");
        assert!(status.success());
        *made = true;
    }
    folder
}

/// Runs the test `name` of this program under a driver that `settings` describe.
fn under_a_driver(name: &str, settings: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", stand_in()).envs(settings.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("test result: ok. 1 passed"), "{text}\n{errors}");
}

type Lines = Mutex<Vec<String>>;
type Hear = unsafe extern "C" fn(*mut c_void, i32, *const c_char);

// SAFETY: called by a context with the list that came with it, and a line that ends with NUL.
unsafe extern "C" fn hear(user: *mut c_void, level: i32, line: *const c_char) {
    // SAFETY: as above; the list is never freed.
    let (lines, line) = unsafe { (&*user.cast::<Lines>(), CStr::from_ptr(line)) };
    lines.lock().unwrap().push(format!("{level} {}", line.to_str().unwrap()));
}

/// What a context of a kind logs, or how it fails; lines begin with their level.
fn open(device: i32) -> (Result<Ctx, Failed>, &'static Lines) {
    // Contexts that live on may log later, so the list is never freed.
    let lines: &Lines = Box::leak(Box::default());
    let ctx = Ctx::new(|opts| {
        (opts.device, opts.n_threads) = (device, 1);
        (opts.log, opts.log_user) = (Some(hear as Hear), (&raw const *lines).cast_mut().cast());
    });
    (ctx, lines)
}

/// Asks for the GPU and for the best device; the GPU's answer, which is what the second logs.
fn refusal() -> Failed {
    let failed = open(SEGNO_DEVICE_CUDA).0.err().unwrap();
    let (ctx, lines) = open(SEGNO_DEVICE_AUTO);
    assert!(ctx.is_ok());
    let lines = lines.lock().unwrap();
    assert_eq!(lines[0], format!("{SEGNO_LOG_INFO} cpu chosen: {}", failed.message));
    assert!(lines[1].contains("cpu: "));
    failed
}

fn count() -> i32 {
    let mut count = -1;
    call(|err| segno_device_count(SEGNO_DEVICE_CUDA, &mut count, err)).unwrap();
    count
}

/// Whether the library has kernels, or a line that says what is skipped: without them the driver is never asked.
fn built() -> bool {
    let opened = cuda::calls_of(|| Cuda::new(0, false).err());
    let message = opened.0.as_ref().map(ToString::to_string).unwrap_or_default();
    if message.contains("built without cuda kernels") {
        assert!(opened.1.is_empty(), "{:?}", opened.1);
        println!("skipped: this library has no kernels");
        return false;
    }
    true
}

#[test]
fn an_old_driver_is_told_apart() {
    under_a_driver("an_old_driver_inside", &[("FAKE_VERSION", "12080")]);
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
    under_a_driver("no_device_inside", &[("FAKE_INIT", "100")]);
    under_a_driver("no_device_inside", &[("FAKE_DEVICES", "0")]);
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
    under_a_driver("a_broken_driver_inside", &[("FAKE_INIT", "999")]);
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

/// What the stand-in exports beside the driver's calls.
struct Fake {
    fail: unsafe extern "C" fn(c_long, *const c_char, i32),
    live: unsafe extern "C" fn() -> c_long,
    calls: unsafe extern "C" fn() -> c_long,
    memory: unsafe extern "C" fn(c_long),
}

/// What a launch does: the beginning of a step hands on its number, the end sets the mark; others do nothing.
enum Work {
    Begin(StepArgs),
    End(ArgmaxArgs),
    Nothing,
}

// SAFETY: called by the stand-in with a kernel's name and its arguments.
unsafe extern "C" fn capture(name: *const c_char, arguments: *mut *mut c_void) -> *mut c_void {
    // SAFETY: the name ends with NUL; the first argument of each kernel is its struct.
    let (name, first) = unsafe { (CStr::from_ptr(name), *arguments) };
    let work = match name.to_str().unwrap() {
        // SAFETY: the struct of this kernel.
        "step_begin" => Work::Begin(unsafe { *first.cast::<StepArgs>() }),
        // SAFETY: the struct of this kernel.
        "step_end" => Work::End(unsafe { *first.cast::<ArgmaxArgs>() }),
        _ => Work::Nothing,
    };
    Box::into_raw(Box::new(work)).cast()
}

// SAFETY: called by the stand-in with what `capture` returned.
unsafe extern "C" fn run(work: *mut c_void) {
    // SAFETY: as above; addresses of the stand-in's device are addresses of this process, of memory that lives as long as the launch.
    unsafe {
        match &*work.cast::<Work>() {
            Work::Begin(args) => *(args.serial as *mut u32) = *(args.host_header as *const u32),
            Work::End(args) => {
                *(args.host_tokens as *mut u32) = 7;
                *(args.host_done as *mut u32) = *(args.serial as *const u32);
            }
            Work::Nothing => {}
        }
    }
}

// SAFETY: called by the stand-in once with what `capture` returned.
unsafe extern "C" fn give_up(work: *mut c_void) {
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(work.cast::<Work>()) });
}

impl Fake {
    /// Finds the stand-in, and gives it kernels.
    fn open() -> Fake {
        let functions = [capture as *const () as usize, run as *const () as usize, give_up as *const () as usize];
        // SAFETY: the stand-in is on the loader's path and exports these functions with these types.
        unsafe {
            let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null());
            let find = |name: &CStr| {
                let found = libc::dlsym(library, name.as_ptr());
                assert!(!found.is_null(), "{name:?}");
                found
            };
            type Give = unsafe extern "C" fn(*const usize);
            std::mem::transmute::<*mut c_void, Give>(find(c"fake_kernels"))(functions.as_ptr());
            Fake {
                fail: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_long, *const c_char, i32)>(find(
                    c"fake_fail",
                )),
                live: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_long>(find(c"fake_live")),
                calls: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_long>(find(c"fake_calls")),
                memory: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_long)>(find(c"fake_memory")),
            }
        }
    }

    /// Objects of the driver that live, and contexts that are current.
    fn live(&self) -> c_long {
        // SAFETY: a function of the stand-in.
        unsafe { (self.live)() }
    }

    fn calls(&self) -> c_long {
        // SAFETY: as above.
        unsafe { (self.calls)() }
    }

    /// Fails every call from the one of this number on, counted from now.
    fn fail_from(&self, call: c_long) {
        // SAFETY: as above; 719 is a failed launch.
        unsafe { (self.fail)(call, null(), 719) };
    }

    /// Fails every call of one name.
    fn fail_always(&self, name: &'static CStr) {
        // SAFETY: as above; the name lives for ever.
        unsafe { (self.fail)(-1, name.as_ptr(), 719) };
    }

    fn heal(&self) {
        // SAFETY: as above.
        unsafe { (self.fail)(-1, null(), 0) };
    }

    fn set_memory(&self, bytes: u64) {
        // SAFETY: as above.
        unsafe { (self.memory)(bytes as c_long) };
    }
}

/// A host's whole use of a GPU; the first failure ends it.
fn life() -> Result<(), Failed> {
    let ctx = open(SEGNO_DEVICE_CUDA).0?;
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
    session.step(child).map(|_| ())
}

#[test]
fn whatever_call_fails_is_reported_and_nothing_is_left_behind() {
    under_a_driver("any_call_fails_inside", &[]);
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
fn steps_run_as_launches_where_no_graph_can_be_made() {
    under_a_driver("no_graph_inside", &[]);
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
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[5, 6]).unwrap();
    session.step(seq).unwrap();
    cuda::calls_of(|| session.generate(seq, 70).unwrap())
}

#[test]
fn a_step_asks_the_driver_for_one_launch() {
    under_a_driver("one_launch_inside", &[]);
}

#[test]
#[ignore = "started under a driver of the test's own"]
fn one_launch_inside() {
    if !built() {
        return;
    }
    let fake = Fake::open();
    let model = open(SEGNO_DEVICE_CUDA).0.unwrap().load(&bundled_model()).unwrap();
    let (tokens, mut calls) = steps(&model);
    calls.retain(|call| *call != "cuStreamQuery");
    assert_eq!(tokens, [7; 70]);
    assert_eq!(calls, ["cuCtxPushCurrent", "cuGraphLaunch", "cuCtxPopCurrent"].repeat(70));
    drop(model);
    assert_eq!(fake.live(), 0);
}

#[test]
fn too_little_memory_is_refused_before_anything_is_taken() {
    under_a_driver("too_little_memory_inside", &[]);
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
    let (failed, calls) = cuda::calls_of(|| ctx.load(&bundled_model()).err().unwrap());
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
