//! The plan of a load: what a model and a session would take, before anything is loaded.

use super::argument::{self, SizedStruct, options, write_sized};
use super::ctx::segno_ctx;
use super::error::segno_error;
use super::guard::guard;
use super::handle::borrow;
use super::model::{engine_options, model_options, segno_model_opts};
use super::session::{self, segno_session_opts};
use super::status::{SEGNO_OK, segno_status};
use crate::engine::Plan;
use std::ffi::c_char;

/// Memory that a model and one session would take, in bytes, and whether there is as much.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_plan {
    /// Bytes of this struct that the library knows.
    pub struct_size: u32,
    /// 1 when everything fits into the free memory, otherwise 0.
    pub fits: u32,
    /// Weights in host memory, a mapped file included.
    pub host_weights: u64,
    /// KV cache in host memory.
    pub host_kv: u64,
    /// Buffers of the forward pass in host memory, logits included.
    pub host_arena: u64,
    /// Host memory that can be taken now, within the limits of the process's cgroups and address space.
    pub host_free: u64,
    /// Weights in the GPU's memory.
    pub device_weights: u64,
    /// KV cache in the GPU's memory.
    pub device_kv: u64,
    /// Buffers of the forward pass in the GPU's memory.
    pub device_arena: u64,
    /// Memory of the GPU that can be taken now, at most `device_memory` of the model's options where that is not 0.
    pub device_free: u64,
    /// Graphs in the GPU's memory.
    pub device_graphs: u64,
    /// Layers that the host computes for a GPU, whose weights, keys and values are in host memory.
    pub host_layers: u32,
    /// Further layers whose experts the host computes.
    pub host_expert_layers: u32,
}

// SAFETY: repr(C), size first, 4 + 4 + 9 * 8 + 2 * 4 bytes without padding, numbers only.
unsafe impl SizedStruct for segno_plan {}

/// Tells what loading a model and creating a session would take, from the file's header and the options alone: nothing is loaded. The file
/// is mapped meanwhile and must not be truncated; with `SEGNO_MODEL_NO_MMAP` all of it is read into memory instead, and given back. A draft
/// model of the session's options is loaded already: its cache and its buffers are counted, its weights are not.
///
/// `path`: NUL-terminated UTF-8. `model_opts`, `session_opts`: NULL for defaults. `out` points to a struct of `size` bytes; pass `sizeof *out`.
/// Codes: those of `segno_model_load` and `segno_session_create`. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_plan_get(
    ctx: *const segno_ctx,
    path: *const c_char,
    model_opts: *const segno_model_opts,
    session_opts: *const segno_session_opts,
    out: *mut segno_plan,
    size: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(borrow(ctx).ok(), err, || {
        let context = borrow(ctx)?;
        let path = argument::path(path, "path")?;
        let loading = engine_options(&model_options(model_opts, "model_opts")?)?;
        let session_opts = options(session_opts, session::defaults(), "session_opts")?;
        let (options, draft) = (session::engine_options(&session_opts)?, session::draft_of(&session_opts)?);
        let plan = Plan::new(context, path, &loading, &options, draft.as_deref())?;
        let value = segno_plan {
            struct_size: 0,
            fits: plan.fits().into(),
            host_weights: plan.memory.weights,
            host_kv: plan.memory.kv,
            host_arena: plan.memory.arena,
            host_free: plan.free,
            device_weights: plan.memory.device_weights,
            device_kv: plan.memory.device_kv,
            device_arena: plan.memory.device_arena,
            device_free: plan.device_free,
            device_graphs: plan.memory.device_graphs,
            host_layers: plan.on_host.0 as u32,
            host_expert_layers: plan.on_host.1 as u32,
        };
        write_sized(out, size, &value, "out")?;
        Ok(SEGNO_OK)
    })
}
