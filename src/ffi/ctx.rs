//! The noun `segno_ctx`: one device with its threads and its log.

use super::argument::{Out, SizedStruct, known_flags, options, write_sized};
use super::device::{SEGNO_DEVICE_AUTO, kind_of};
use super::error::{one_line, segno_error};
use super::guard::{guard, guard_free, guard_value, silence_panics};
use super::handle::{Handle, Object, share, unshare};
use super::process;
use super::status::{SEGNO_OK, segno_status};
use super::version::SEGNO_ABI_VERSION;
use crate::backend::{GpuOptions, cpu};
use crate::engine::context::{LogSink, Options};
use crate::engine::device::Kind;
use crate::engine::{Context, LogLevel, callback};
use crate::error::{Error, Result};
use crate::os;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// One device with its worker threads and its log. Owned by the host, shareable between threads.
#[allow(non_camel_case_types)]
pub struct segno_ctx {
    _private: [u8; 0],
}

impl Handle for segno_ctx {
    type Target = Context;
    const KIND: Object = Object::Ctx;
}

/// Quantized weights meet 8-bit activations.
pub const SEGNO_PRECISION_DEFAULT: i32 = 0;
/// f32 weights and activations: slow, for comparison.
pub const SEGNO_PRECISION_PRECISE: i32 = 1;
/// Do not use 512-bit instructions.
pub const SEGNO_CTX_NO_AVX512: u32 = 1;
/// Do not let a GPU choose tokens: greedy ones too are taken from the logits on the host, for exact comparison. No effect on the processor.
pub const SEGNO_CTX_HOST_ARGMAX: u32 = 2;
/// Run every decode step on a GPU as single launches and measure each: when a session is freed, the log hears a table at level INFO, with bytes,
/// microseconds, GB/s and share of the memory's peak for every launch. Steps are slower meanwhile. No effect on the processor.
pub const SEGNO_CTX_TIMING: u32 = 4;
/// Let products of prompts, and of batches of more than 4 rows, on a GPU multiply weights and activations as 16-bit floats, with sums in f32. They
/// are faster by far (README.md has figures), and mostly closer to the precise result than with 8-bit activations, but a sequence's tokens may depend
/// on whether it ran alone, in a batch, and in which. Without this flag they never do. Smaller batches stay as they are. No effect on the processor,
/// on GPUs of another compute capability than 9.0, on weights of other types than Q8_0, Q4_K, Q5_K and Q6_K, and on matrices whose columns
/// are no multiple of 128 or whose rows are none of 16; those of experts count in prompts alone, with rows of each a multiple of 128. The log says at
/// level INFO whether fast batches are in use.
pub const SEGNO_CTX_FAST_BATCHES: u32 = 8;
/// Take memory although there is not as much. Without this flag loading a model and creating a session answer OUT_OF_MEMORY, before anything is
/// taken, where they need more host memory than the system, the limits of the process's cgroups and of its address space leave. Pages of files that
/// the system keeps count as memory that can be taken, and a mapped model as memory that is needed.
pub const SEGNO_CTX_OVERCOMMIT: u32 = 16;
/// Let the threads that compute give way to all others of the machine: the workers, and the threads of sessions to which steps are submitted. For
/// games and desktops, whose own threads then run when they want to, though a model uses what is left of every core. A thread that calls keeps the
/// priority that it has. On Linux their nice value is 10, on Windows their priority is the lowest; elsewhere no effect.
pub const SEGNO_CTX_BACKGROUND: u32 = 32;
/// Something failed.
pub const SEGNO_LOG_ERROR: i32 = 0;
/// Something works worse than it could.
pub const SEGNO_LOG_WARN: i32 = 1;
/// What was chosen and loaded.
pub const SEGNO_LOG_INFO: i32 = 2;
/// Details for finding a fault.
pub const SEGNO_LOG_DEBUG: i32 = 3;

/// Receives diagnostics: `user` as given in the options, a level (`SEGNO_LOG_...`), a NUL-terminated UTF-8 line valid during the call. Called
/// from any thread, one call at a time. Must not unwind. Calls from inside it on the context or what was made from it answer BUSY, and so does
/// making a context while one is being made; freeing them inside it is not allowed.
#[allow(non_camel_case_types)]
pub type segno_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char)>;

/// Options of a context; fill with `segno_ctx_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_ctx_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// `SEGNO_DEVICE_AUTO` (default), `SEGNO_DEVICE_CPU` or `SEGNO_DEVICE_CUDA`. By the first, a GPU where there is one that the library can use;
    /// a model that it cannot run is run on the processor, and the log says why. The others never change.
    pub device: i32,
    /// Which device of that kind, 0 by default.
    pub device_index: i32,
    /// Threads that compute, the calling thread included, at most 1024; 0 (default): the physical cores that the process may use. Never more than
    /// the processors that it may use by its affinity and its cgroup's quota: the log says at level WARN that there are fewer. Beside a GPU they load
    /// models, and compute what that has no memory for (`device_memory` of `segno_model_opts`).
    pub n_threads: u32,
    /// `SEGNO_PRECISION_DEFAULT` or `SEGNO_PRECISION_PRECISE`.
    pub precision: i32,
    /// `SEGNO_CTX_...`, combined with `|`.
    pub flags: u32,
    /// Receives diagnostics; NULL (default) for none.
    pub log: segno_log_fn,
    /// First argument of `log`; must stay valid until the context and all made from it are freed.
    pub log_user: *mut c_void,
    /// A `CUcontext` of the host's own, in which all work on the GPU is then done; NULL (default): the device's primary context. It is never
    /// destroyed here, and must stay until the context and all made from it are freed. Its device is used: `device_index` is 0 or that
    /// device, and `device` not `SEGNO_DEVICE_CPU`.
    pub cuda_context: *mut c_void,
    /// Priority of the work on a GPU beside that of other streams: 0 (default) to the lowest number that the device takes (-5 on many), which runs
    /// first. No effect on the processor.
    pub stream_priority: i32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), size first, six 4-byte, three 8-byte and two 4-byte fields without padding; NULL is a valid callback.
unsafe impl SizedStruct for segno_ctx_opts {}

const MAX_THREADS: u32 = 1024;
const FLAGS: u32 = SEGNO_CTX_NO_AVX512
    | SEGNO_CTX_HOST_ARGMAX
    | SEGNO_CTX_TIMING
    | SEGNO_CTX_FAST_BATCHES
    | SEGNO_CTX_OVERCOMMIT
    | SEGNO_CTX_BACKGROUND;

fn defaults() -> segno_ctx_opts {
    segno_ctx_opts {
        struct_size: size_of::<segno_ctx_opts>() as u32,
        device: SEGNO_DEVICE_AUTO,
        device_index: 0,
        n_threads: 0,
        precision: SEGNO_PRECISION_DEFAULT,
        flags: 0,
        log: None,
        log_user: std::ptr::null_mut(),
        cuda_context: std::ptr::null_mut(),
        stream_priority: 0,
        reserved: 0,
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_ctx_opts_init(opts: *mut segno_ctx_opts, size: usize) {
    // The function has no way to report a NULL pointer; the next call does.
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Makes a context: opens the device and starts its worker threads.
///
/// `abi_version`: pass `SEGNO_ABI_VERSION`; checked first. `opts`: NULL for defaults. `out` receives the context, NULL on failure; free it with
/// `segno_ctx_free`. The thread's current CUDA context is as before. Codes: ABI, NULL_POINTER, INVALID_ARGUMENT, UNSUPPORTED (CUDA in a build
/// without it, a driver that is missing or too old, or the process is a fork), NOT_FOUND (no such device), DEVICE (a thread cannot be started, or
/// the driver failed), BUSY (from inside the log callback of a context in the making). Any thread.
///
/// A process that was forked from one that had made a context cannot use the library: every call answers UNSUPPORTED, and frees do nothing. It may
/// call exec; or fork before the first context is made. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_ctx_create(
    abi_version: u32,
    opts: *const segno_ctx_opts,
    out: *mut *mut segno_ctx,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(None, err, || {
        let out = Out::new(out, "out");
        if let Ok(out) = out {
            out.set(std::ptr::null_mut());
        }
        if abi_version != SEGNO_ABI_VERSION {
            return Err(Error::Abi { header: abi_version, library: SEGNO_ABI_VERSION }.into());
        }
        let out = out?;
        if callback::is_running(callback::MAKING) {
            return Err(Error::InCallback.into());
        }
        silence_panics();
        let opts = options(opts, defaults(), "opts")?;
        let engine_options = engine_options(&opts)?;
        process::settle();
        let context = Context::new(&engine_options, log_sink(&opts))?;
        out.set(share(Arc::new(context))?);
        Ok(SEGNO_OK)
    })
}

/// Gives up a context; NULL is allowed. Models and sessions made from it keep working; its threads end with the last of them. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_ctx_free(ctx: *mut segno_ctx) {
    guard_free(|| drop(unshare(ctx)))
}

fn engine_options(opts: &segno_ctx_opts) -> Result<Options> {
    let index = opts.device_index;
    let index =
        usize::try_from(index).map_err(|_| Error::InvalidArgument(format!("device_index {index} is negative")))?;
    let precise = match opts.precision {
        SEGNO_PRECISION_DEFAULT => false,
        SEGNO_PRECISION_PRECISE => true,
        other => return Err(Error::InvalidArgument(format!("there is no precision {other}"))),
    };
    known_flags(opts.flags, FLAGS, "context")?;
    if opts.n_threads > MAX_THREADS {
        return Err(Error::InvalidArgument(format!(
            "n_threads is {}, at most {MAX_THREADS} are possible",
            opts.n_threads
        )));
    }
    let allow_avx512 = opts.flags & SEGNO_CTX_NO_AVX512 == 0;
    let gives_way = opts.flags & SEGNO_CTX_BACKGROUND != 0;
    let cpu = cpu::Options { threads: opts.n_threads as usize, precise, allow_avx512, gives_way };
    let host_argmax = opts.flags & SEGNO_CTX_HOST_ARGMAX != 0;
    let (context, timed) = (opts.cuda_context.expose_provenance(), opts.flags & SEGNO_CTX_TIMING != 0);
    if opts.reserved != 0 {
        return Err(Error::InvalidArgument(format!("reserved is {}, must be 0", opts.reserved)));
    }
    let device = match kind_of(opts.device)? {
        Kind::Cpu if context != 0 => {
            return Err(Error::InvalidArgument("cuda_context is set, and device is the processor".into()));
        }
        // Who hands a context over wants its device.
        Kind::Auto if context != 0 => Kind::Cuda,
        device => device,
    };
    let (stream_priority, fast_batches) = (opts.stream_priority, opts.flags & SEGNO_CTX_FAST_BATCHES != 0);
    let threads = cpu.threads;
    let gpu = GpuOptions { index, context, stream_priority, timed, fast_batches, threads, ..GpuOptions::default() };
    let overcommits = opts.flags & SEGNO_CTX_OVERCOMMIT != 0;
    Ok(Options { device, cpu, gpu, host_argmax, free_memory: os::memory_free, overcommits })
}

/// The host's callback and its argument.
struct HostLog {
    function: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    user: *mut c_void,
}

// SAFETY: the header demands that the callback can be called from any thread with this argument.
unsafe impl Send for HostLog {}

impl HostLog {
    fn write(&self, level: LogLevel, message: &str) {
        let line = one_line(message);
        // SAFETY: the function and its argument are valid as long as the context lives, as the header demands.
        unsafe { (self.function)(self.user, level as i32, line.as_ptr()) }
    }
}

fn log_sink(opts: &segno_ctx_opts) -> Option<LogSink> {
    let log = HostLog { function: opts.log?, user: opts.log_user };
    Some(Box::new(move |level, message| log.write(level, message)))
}
