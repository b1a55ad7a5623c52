//! What the library's threads and callbacks mean to the process around them: signals stay with the host's threads, the environment changes
//! nothing, and a call from inside a callback is answered.

#[path = "../common/mod.rs"]
mod common;

use common::process::{assert_passes, program};
use common::{Ctx, Failed, bundled_model, call};
use segno::ffi::chat::segno_chat_render;
use segno::ffi::ctx::{SEGNO_CTX_BACKGROUND, segno_ctx, segno_ctx_create, segno_ctx_opts, segno_ctx_opts_init};
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::ffi::model::{segno_model, segno_model_load, segno_model_opts, segno_model_opts_init};
use segno::ffi::status::*;
use segno::ffi::version::SEGNO_ABI_VERSION;
use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// The masks of blocked signals of this process's threads whose name has the beginning that workers have: `count` or more of them, as soon as
/// they have given themselves their names.
fn masks_of_workers(count: usize) -> Vec<u64> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let masks = masks_of_named_workers();
        if masks.len() >= count || Instant::now() > deadline {
            return masks;
        }
        std::thread::yield_now();
    }
}

fn masks_of_named_workers() -> Vec<u64> {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let workers = tasks.filter(|task| read(task.join("comm")).starts_with("segno-"));
    let mask = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        line.map(|digits| u64::from_str_radix(digits.trim(), 16).unwrap())
    };
    workers.filter_map(|task| mask(read(task.join("status")))).collect()
}

#[test]
fn threads_that_compute_give_way_where_the_host_says_so() {
    assert_passes(&mut program("priorities_inside"));
}

/// The nice value of a thread, if it is still there.
fn nice(task: &std::path::Path) -> Option<i32> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok()
}

/// The nice values of the library's threads.
fn nice_values() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let name = |task: &std::path::Path| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    tasks.filter(|task| name(task).starts_with("segno-")).filter_map(|task| nice(&task)).collect()
}

#[test]
#[ignore = "started in a process of its own"]
fn priorities_inside() {
    let own = nice("/proc/thread-self".as_ref()).unwrap();
    let processors = std::thread::available_parallelism().unwrap().get();
    for (flags, expected) in [(0, own), (SEGNO_CTX_BACKGROUND, own.max(10))] {
        let change = |opts: &mut segno_ctx_opts| {
            (opts.device, opts.n_threads, opts.flags) = (SEGNO_DEVICE_CPU, processors as u32, flags)
        };
        let model = Ctx::new(change).unwrap().load(&bundled_model()).unwrap();
        let session = model.session(|_| ()).unwrap();
        session.submit(&[], 0).unwrap();
        assert_eq!(session.poll(0, u64::MAX).2, Ok(SEGNO_OK));
        // Workers beside the calling thread, and the session's. A thread that has been waited for may be seen a little longer.
        let soon = Instant::now() + Duration::from_secs(10);
        while nice_values().len() > processors && Instant::now() < soon {
            std::thread::yield_now();
        }
        assert_eq!(nice_values(), vec![expected; processors], "flags {flags}");
        assert_eq!(nice("/proc/thread-self".as_ref()), Some(own));
    }
}

#[test]
fn workers_leave_the_hosts_signals_to_the_hosts_threads() {
    let processors = std::thread::available_parallelism().unwrap().get() as u32;
    let _ctx = Ctx::new(|opts| (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, processors)).unwrap();
    let workers = processors as usize - 1;
    let masks = masks_of_workers(workers);
    assert!(masks.len() >= workers);
    let bit = |signal: i32| 1u64 << (signal - 1);
    // The system takes no part of the first two, the C library keeps the next two to itself, and faults belong to who makes them.
    let never = [libc::SIGKILL, libc::SIGSTOP, 32, 33];
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    let open: u64 = never.iter().chain(&faults).map(|&signal| bit(signal)).sum();
    for mask in masks {
        assert_eq!(mask | open, u64::MAX, "a worker takes signals: {:064b}", !(mask | open));
        assert!(faults.iter().all(|&fault| mask & bit(fault) == 0), "a worker hides its faults: {mask:064b}");
    }
}

#[test]
fn the_environment_does_not_size_our_stacks() {
    // As much as no system has: a thread that heeds it cannot start.
    assert_passes(program("every_thread_starts_inside").env("RUST_MIN_STACK", "99999999999999"));
}

#[test]
#[ignore = "started with an environment of the test's own"]
fn every_thread_starts_inside() {
    let model =
        Ctx::new(|opts| (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 2)).unwrap().load(&bundled_model()).unwrap();
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&common::greedy()).unwrap();
    session.prefill(seq, &[5; 100]).unwrap();
    session.step(seq).unwrap();
    let (messages, template) = (b"[{\"role\": \"user\", \"content\": \"a\"}]", b"{{ messages[0].content }}");
    // SAFETY: pointers and numbers, for which zeros are a value.
    let mut opts: segno::ffi::chat::segno_chat_opts = unsafe { std::mem::zeroed() };
    segno::ffi::chat::segno_chat_opts_init(&mut opts, size_of_val(&opts));
    (opts.template_text, opts.template_len) = (template.as_ptr().cast(), template.len());
    let (mut text, mut len) = ([0u8; 8], 0);
    call(|err| {
        let (json, json_len) = (messages.as_ptr().cast(), messages.len());
        segno_chat_render(model.0, json, json_len, &opts, text.as_mut_ptr().cast(), text.len(), &mut len, err)
    })
    .unwrap();
    assert_eq!(&text[..len], b"a");
}

/// What calls from inside callbacks have answered, and the context that they are made on.
struct Inner {
    ctx: AtomicPtr<segno_ctx>,
    answers: Mutex<Vec<Result<segno_status, Failed>>>,
}

impl Inner {
    fn note(&self, answer: Result<segno_status, Failed>) {
        self.answers.lock().unwrap().push(answer);
    }

    /// Loads a model on the context, or makes another where there is none yet.
    fn call(&self) {
        let ctx = self.ctx.load(Ordering::SeqCst);
        if ctx.is_null() {
            let mut opts = options(self);
            let mut other = null_mut();
            opts.device = SEGNO_DEVICE_CPU;
            self.note(call(|err| segno_ctx_create(SEGNO_ABI_VERSION, &opts, &mut other, err)));
        } else {
            self.note(load(ctx, null()).map(|_| SEGNO_OK));
        }
    }

    fn take(&self) -> Vec<Result<segno_status, Failed>> {
        std::mem::take(&mut self.answers.lock().unwrap())
    }
}

// SAFETY: called by the library with the address that came with the callback.
unsafe extern "C" fn log(user: *mut c_void, _level: i32, _line: *const c_char) {
    // SAFETY: as above; the value outlives the context.
    unsafe { &*user.cast::<Inner>() }.call();
}

// SAFETY: as above.
unsafe extern "C" fn progress(user: *mut c_void, _done: f32) -> i32 {
    // SAFETY: as above.
    unsafe { &*user.cast::<Inner>() }.call();
    0
}

fn options(inner: &Inner) -> segno_ctx_opts {
    // SAFETY: pointers and numbers, for which zeros are a value.
    let mut opts: segno_ctx_opts = unsafe { std::mem::zeroed() };
    segno_ctx_opts_init(&mut opts, size_of_val(&opts));
    (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 1);
    opts.log = Some(log);
    opts.log_user = std::ptr::from_ref(inner).cast_mut().cast();
    opts
}

fn load(ctx: *mut segno_ctx, opts: *const segno_model_opts) -> Result<*mut segno_model, Failed> {
    let path = CString::new(bundled_model().into_os_string().into_vec()).unwrap();
    let mut model = null_mut();
    call(|err| segno_model_load(ctx, path.as_ptr(), opts, &mut model, err)).map(|_| model)
}

#[test]
fn a_call_from_inside_a_callback_is_answered() {
    let inner = Inner { ctx: AtomicPtr::new(null_mut()), answers: Mutex::default() };
    let refused = |answers: Vec<Result<segno_status, Failed>>| {
        assert!(!answers.is_empty());
        for answer in answers {
            let failed = answer.err().unwrap();
            assert_eq!(failed.status, SEGNO_E_BUSY, "{}", failed.message);
            assert!(failed.message.contains("callback"), "{}", failed.message);
        }
    };
    let ctx = Ctx::new(|opts| *opts = options(&inner)).unwrap();
    refused(inner.take());
    inner.ctx.store(ctx.0, Ordering::SeqCst);
    let first = load(ctx.0, null()).unwrap();
    refused(inner.take());
    // SAFETY: pointers and numbers, for which zeros are a value.
    let mut opts: segno_model_opts = unsafe { std::mem::zeroed() };
    segno_model_opts_init(&mut opts, size_of_val(&opts));
    opts.progress = Some(progress);
    opts.progress_user = std::ptr::from_ref(&inner).cast_mut().cast();
    let second = load(ctx.0, &opts).unwrap();
    refused(inner.take());
    // Outside of callbacks the context works as before.
    inner.ctx.store(null_mut(), Ordering::SeqCst);
    for model in [first, second] {
        segno::ffi::model::segno_model_free(model);
    }
}
