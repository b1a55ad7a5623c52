//! A driver for machines without a GPU, and for faults: `tests/cuda/fake_driver.c`. A test starts its program again with the stand-in on the
//! loader's path, for the test that carries the suffix `_inside`.

#![allow(dead_code)] // Every test binary uses another part.

pub use crate::common::log::Lines;
use crate::common::log::listen;
use crate::common::process::{assert_passes, program};
use crate::common::skip::{Lack, skip};
use crate::common::{self, Ctx, Failed};
use segno::backend::cuda::args::{ArgmaxArgs, ExchangeArgs, SampleArgs, Shape, StepArgs};
use segno::backend::cuda::{self, Cuda};
use segno::ffi::ctx::segno_ctx_opts;
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
pub fn under_a_driver(name: &str, settings: &[(&str, &str)]) {
    assert_passes(program(name).env("LD_LIBRARY_PATH", stand_in()).envs(settings.iter().copied()));
}

/// What a context of a kind logs, or how it fails; lines begin with their level.
pub fn open(device: i32) -> (Result<Ctx, Failed>, &'static Lines) {
    open_with(|opts| opts.device = device)
}

/// The same for a context with further options.
pub fn open_with(change: impl FnOnce(&mut segno_ctx_opts)) -> (Result<Ctx, Failed>, &'static Lines) {
    let mut lines = None;
    let ctx = Ctx::new(|opts| {
        opts.n_threads = 1;
        change(opts);
        lines = Some(listen(opts));
    });
    (ctx, lines.unwrap())
}

/// Whether the library has kernels, or a line that says what is skipped: without them the driver is never asked.
pub fn built() -> bool {
    let opened = cuda::testing::calls_of(|| Cuda::new(0, false).err());
    let message = opened.0.as_ref().map(ToString::to_string).unwrap_or_default();
    if message.contains("built without cuda kernels") {
        assert!(opened.1.is_empty(), "{:?}", opened.1);
        skip(Lack::Machine, "this library has no kernels");
        return false;
    }
    true
}

/// What the stand-in exports beside the driver's calls.
pub struct Fake {
    fail: unsafe extern "C" fn(c_long, *const c_char, i32),
    live: unsafe extern "C" fn() -> c_long,
    calls: unsafe extern "C" fn() -> c_long,
    memory: unsafe extern "C" fn(c_long),
    host_context: unsafe extern "C" fn() -> *mut c_void,
    priority: unsafe extern "C" fn() -> i32,
    hang: unsafe extern "C" fn(i32),
}

/// Words from the flag of a row that goes to the host to the next.
const FLAG_WORDS: usize = 8;

/// What a launch does: the beginning of a step hands on its number, the ends write it above a token of each output, and what goes to the host has it
/// above a part of the program for each row, behind experts that are chosen; others do nothing.
enum Work {
    Begin { serial: u64, host_header: u64 },
    End { serial: u64, host_tokens: u64, outputs: usize, token: u64 },
    Send { args: ExchangeArgs, rows: usize },
    Nothing,
}

// SAFETY: called by the stand-in with a kernel's name and its arguments.
unsafe extern "C" fn capture(name: *const c_char, arguments: *mut *mut c_void) -> *mut c_void {
    // SAFETY: the name ends with NUL; the arguments of these kernels are their struct and the shape.
    let (name, first, second) = unsafe { (CStr::from_ptr(name), *arguments, arguments.add(1)) };
    // SAFETY: as above; called where there is a shape.
    let shape = || unsafe { **second.cast::<*const Shape>() };
    let outputs = || shape().outputs as usize;
    let work = match name.to_str().unwrap() {
        "step_begin" => {
            // SAFETY: the struct of this kernel.
            let StepArgs { serial, host_header, .. } = unsafe { *first.cast::<StepArgs>() };
            Work::Begin { serial, host_header }
        }
        "step_end" => {
            // SAFETY: the struct of this kernel.
            let args = unsafe { *first.cast::<ArgmaxArgs>() };
            Work::End { serial: args.serial, host_tokens: args.host_tokens, outputs: outputs(), token: 7 }
        }
        "sample" => {
            // SAFETY: the struct of this kernel.
            let args = unsafe { *first.cast::<SampleArgs>() };
            Work::End { serial: args.serial, host_tokens: args.host_tokens, outputs: outputs(), token: 8 }
        }
        "send_rows" => {
            // SAFETY: the struct of this kernel.
            let args = unsafe { *first.cast::<ExchangeArgs>() };
            Work::Send { args, rows: shape().rows as usize }
        }
        _ => Work::Nothing,
    };
    Box::into_raw(Box::new(work)).cast()
}

// SAFETY: called by the stand-in with what `capture` returned.
unsafe extern "C" fn run(work: *mut c_void) {
    // SAFETY: as above; addresses of the stand-in's device are addresses of this process, of memory that lives as long as the launch.
    unsafe {
        match &*work.cast::<Work>() {
            &Work::Begin { serial, host_header } => *(serial as *mut u32) = *(host_header as *const u32),
            &Work::End { serial, host_tokens, outputs, token } => {
                let serial = u64::from(*(serial as *const u32)) << 32;
                (0..outputs).for_each(|output| *(host_tokens as *mut u64).add(output) = serial | token);
            }
            &Work::Send { args: ExchangeArgs { serial, flags, part, count, shared, widths, .. }, rows } => {
                let told = u64::from(*(serial as *const u32)) << 32 | u64::from(part + 1);
                for row in 0..rows {
                    // Of two values the second is a choice of experts, who differ.
                    let (width, ids) = (widths[1] as usize, if count == 2 { widths[1] / 2 } else { 0 });
                    (0..ids).for_each(|id| *(shared[1] as *mut u32).add(row * width + id as usize) = id);
                    if flags != 0 {
                        *(flags as *mut u64).add(row * FLAG_WORDS) = told;
                    }
                }
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
    pub fn open() -> Fake {
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
            type Fail = unsafe extern "C" fn(c_long, *const c_char, i32);
            type Count = unsafe extern "C" fn() -> c_long;
            Fake {
                fail: std::mem::transmute::<*mut c_void, Fail>(find(c"fake_fail")),
                live: std::mem::transmute::<*mut c_void, Count>(find(c"fake_live")),
                calls: std::mem::transmute::<*mut c_void, Count>(find(c"fake_calls")),
                memory: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_long)>(find(c"fake_memory")),
                host_context: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(find(
                    c"fake_host_context",
                )),
                priority: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(find(c"fake_priority")),
                hang: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i32)>(find(c"fake_hang")),
            }
        }
    }

    /// Objects of the driver that live, and contexts that are current.
    pub fn live(&self) -> c_long {
        // SAFETY: a function of the stand-in.
        unsafe { (self.live)() }
    }

    pub fn calls(&self) -> c_long {
        // SAFETY: as above.
        unsafe { (self.calls)() }
    }

    /// Fails every call from the one of this number on, counted from now.
    pub fn fail_from(&self, call: c_long) {
        // SAFETY: as above; 719 is a failed launch.
        unsafe { (self.fail)(call, null(), 719) };
    }

    /// Fails every call of one name.
    pub fn fail_always(&self, name: &'static CStr) {
        // SAFETY: as above; the name lives for ever.
        unsafe { (self.fail)(-1, name.as_ptr(), 719) };
    }

    pub fn heal(&self) {
        // SAFETY: as above.
        unsafe { (self.fail)(-1, null(), 0) };
    }

    /// Lets the device hang, or go on with what it was given meanwhile.
    pub fn hang(&self, on: bool) {
        // SAFETY: as above.
        unsafe { (self.hang)(on.into()) };
    }

    pub fn set_memory(&self, bytes: u64) {
        // SAFETY: as above.
        unsafe { (self.memory)(bytes as c_long) };
    }

    /// A context that a host made, of device 0; it lives for ever, and nobody may give it back.
    pub fn host_context(&self) -> *mut c_void {
        // SAFETY: as above.
        unsafe { (self.host_context)() }
    }

    /// Priority of the stream that was made last.
    pub fn priority(&self) -> i32 {
        // SAFETY: as above.
        unsafe { (self.priority)() }
    }
}
