//! The noun `segno_session`: sequences of one model, their cache and buffers.

use super::argument::{Out, Sized_, options, write_sized};
use super::error::segno_error;
use super::exclusive::Exclusive;
use super::guard::{guard, guard_value};
use super::handle::{Handle, borrow, disown, own, share_of};
use super::model::segno_model;
use super::status::{SEGNO_E_NULL_POINTER, SEGNO_E_PANIC, SEGNO_OK, segno_status};
use crate::backend::KvType;
use crate::engine::session::Options;
use crate::engine::{Context, Failure, Session};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything that changes while a model runs: sequences, KV cache, buffers. Owned by the host; takes one call at a time, a second
/// one gets BUSY; `segno_session_cancel` alone may run beside a call. Keeps its model alive.
#[allow(non_camel_case_types)]
pub struct segno_session {
    _private: [u8; 0],
}

/// What lies behind a `segno_session`.
pub(super) struct Shared {
    context: Arc<Context>,
    cancel: AtomicBool,
    session: Exclusive<Session>,
}

impl Handle for segno_session {
    type Target = Shared;
    const NAME: &'static str = "session";
}

/// KV cache in 16-bit floats.
pub const SEGNO_KV_F16: i32 = 0;
/// KV cache in 32-bit floats.
pub const SEGNO_KV_F32: i32 = 1;

/// Options of a session; fill with `segno_session_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_session_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// Most sequences open at once, 1 to 256, 8 by default.
    pub max_seqs: u32,
    /// Tokens that the KV cache holds for all sequences together; 0 (default): the model's context, at most 8192.
    pub kv_tokens: u64,
    /// Most prompt tokens of one pass, 1 to 16384, 512 by default: what a running stream may have to wait for.
    pub max_prefill: u32,
    /// `SEGNO_KV_F16` (default) or `SEGNO_KV_F32`.
    pub kv_type: i32,
}

// SAFETY: repr(C), size first, 4 + 4 + 8 + 4 + 4 bytes without padding, numbers only.
unsafe impl Sized_ for segno_session_opts {}

/// Memory that a session takes, in bytes, the weights that it shares with others included.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_memory {
    /// Bytes of this struct that the library knows.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Weights in host memory, a mapped file included.
    pub host_weights: u64,
    /// KV cache in host memory.
    pub host_kv: u64,
    /// Buffers of the forward pass in host memory, logits included.
    pub host_arena: u64,
    /// Weights in the GPU's memory.
    pub device_weights: u64,
    /// KV cache in the GPU's memory.
    pub device_kv: u64,
    /// Buffers of the forward pass in the GPU's memory.
    pub device_arena: u64,
    /// Graphs in the GPU's memory.
    pub device_graphs: u64,
}

// SAFETY: repr(C), size first, 4 + 4 + 7 * 8 bytes without padding, numbers only.
unsafe impl Sized_ for segno_memory {}

pub(super) fn defaults() -> segno_session_opts {
    segno_session_opts {
        struct_size: size_of::<segno_session_opts>() as u32,
        max_seqs: 8,
        kv_tokens: 0,
        max_prefill: 512,
        kv_type: SEGNO_KV_F16,
    }
}

/// Runs the body of a call on a session: checks the pointer, enters the lock, and hands out the cancel flag.
pub(super) fn with_session(
    session: *const segno_session,
    err: *mut *mut segno_error,
    body: impl FnOnce(&mut Session, &AtomicBool) -> Result<segno_status, Failure>,
) -> segno_status {
    let context = borrow(session).ok().map(|shared| &*shared.context);
    guard(context, err, || {
        let shared = borrow(session)?;
        body(&mut *shared.session.enter(segno_session::NAME)?, &shared.cancel)
    })
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL or a size under 4 does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_opts_init(opts: *mut segno_session_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Makes a session and reserves all its memory: no later call but opening, forking and appending to a sequence takes more.
///
/// `opts`: NULL for defaults. `out` receives the session, NULL on failure; free it with `segno_session_free`. Codes: NULL_POINTER,
/// INVALID_ARGUMENT, OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_create(
    model: *const segno_model,
    opts: *const segno_session_opts,
    out: *mut *mut segno_session,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(model).ok().map(|model| &**model.context());
    guard(context, err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let model = share_of(model)?;
        let opts = options(opts, defaults(), "opts")?;
        let session = Exclusive::new(Session::create(&model, &engine_options(&opts)?)?);
        out.set(own(Shared { context: Arc::clone(model.context()), cancel: AtomicBool::new(false), session }));
        Ok(SEGNO_OK)
    })
}

pub(super) fn engine_options(opts: &segno_session_opts) -> Result<Options> {
    let kv_type = match opts.kv_type {
        SEGNO_KV_F16 => KvType::F16,
        SEGNO_KV_F32 => KvType::F32,
        other => return Err(Error::InvalidArgument(format!("there is no kv_type {other}"))),
    };
    let (max_seqs, max_prefill) = (opts.max_seqs as usize, opts.max_prefill as usize);
    Ok(Options { max_seqs, kv_tokens: opts.kv_tokens, max_prefill, kv_type })
}

/// Frees a session and its sequences; NULL is allowed. No call on it may be running. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_free(session: *mut segno_session) {
    guard_value((), || drop(disown(session)))
}

/// Tells the memory of a session.
///
/// `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_memory(
    session: *const segno_session,
    out: *mut segno_memory,
    size: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        let memory = session.memory()?;
        let value = segno_memory {
            struct_size: 0,
            reserved: 0,
            host_weights: memory.weights,
            host_kv: memory.kv,
            host_arena: memory.arena,
            device_weights: memory.device_weights,
            device_kv: memory.device_kv,
            device_arena: memory.device_arena,
            device_graphs: memory.device_graphs,
        };
        write_sized(out, size, &value, "out")?;
        Ok(SEGNO_OK)
    })
}

/// Raises (`on` non-zero) or lowers (0) the session's cancel flag. While it is raised, prefill, logits and decode calls return
/// `SEGNO_CANCELLED`, the running one too, within a fraction of a pass; every sequence is at its length before the call.
///
/// The one call that may run beside another on the same session. Codes: NULL_POINTER. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_cancel(session: *const segno_session, on: i32) -> segno_status {
    guard_value(SEGNO_E_PANIC, || match borrow(session) {
        Ok(shared) => {
            shared.cancel.store(on != 0, Ordering::Release);
            SEGNO_OK
        }
        Err(_) => SEGNO_E_NULL_POINTER,
    })
}
