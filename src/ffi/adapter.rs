//! Adapters: the noun `segno_adapter`, and the call that gives some to a sequence.

use super::argument::{Out, SizedStruct, check_reserved, known_flags, options, path as path_of, slice, write_sized};
use super::error::segno_error;
use super::guard::{guard, guard_free, guard_value};
use super::handle::{Handle, Object, borrow, share, share_of, unshare};
use super::model::segno_model;
use super::session::{segno_session, with_session};
use super::status::{SEGNO_OK, segno_status};
use crate::engine::adapter::MOST_ADAPTERS;
use crate::engine::{Adapter, Failure};
use crate::error::{Error, push};
use std::ffi::c_char;
use std::sync::Arc;

/// A low-rank change of a model (LoRA), kept beside its weights. Owned by the host, immutable; sequences that have it keep what they need of it.
/// Keeps its model alive.
#[allow(non_camel_case_types)]
pub struct segno_adapter {
    _private: [u8; 0],
}

impl Handle for segno_adapter {
    type Target = Adapter;
    const KIND: Object = Object::Adapter;
}

/// How an adapter is loaded; fill with `segno_adapter_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_adapter_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// Zero: there are none yet.
    pub flags: u32,
    /// Zero.
    pub reserved: u64,
}

// SAFETY: repr(C), size first, two 4-byte fields and one of 8 bytes without padding, numbers only.
unsafe impl SizedStruct for segno_adapter_opts {}

fn defaults() -> segno_adapter_opts {
    segno_adapter_opts { struct_size: size_of::<segno_adapter_opts>() as u32, flags: 0, reserved: 0 }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_adapter_opts_init(opts: *mut segno_adapter_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Loads a LoRA adapter for a model from a GGUF file as llama.cpp's convert_lora_to_gguf.py writes it. Any number of adapters may be loaded beside
/// one model, and each given to any number of sequences; the model's weights stay as they are.
///
/// The file has `general.type` "adapter", `adapter.type` "lora", the model's `general.architecture`, `adapter.lora.alpha`, and pairs of tensors
/// `NAME.lora_a` [inputs, rank] and `NAME.lora_b` [rank, outputs], where NAME is a tensor of the model that products read: projections of attention
/// and of dense feed-forward blocks, of layers with a state, of routers, and the output head. A pair adds `scale * alpha / rank * B (A x)` to the
/// product, `scale` that of `segno_seq_adapters_set`; without alpha, or with 0, `scale * B (A x)`. Matrices of experts have pairs with a matrix for
/// each, [inputs, rank, experts] and [rank, outputs, experts]. The embedding of tokens has [rank, vocabulary] and [rank, width], as llama.cpp has it:
/// the row of a token is what the second is multiplied by; where the embedding is the output head too, that changes with it, as if merged.
/// Ranks are at most 4096; tensors may be of any type that models have: F16 and BF16 stay that narrow where they can, all others are decoded to 32
/// bits. What it would change beside (other embeddings, matrices of single heads, norms, biases, matrices with a scale beside them) and activated
/// adapters are refused by name, and on a GPU so are those of the embedding of tokens. The file is read whole, copied, to the device's memory where
/// the model is on a GPU, and not needed any more; of a model that the host shares (`device_memory` of its options) each side has the pairs of what
/// it computes.
///
/// `path`: NUL-terminated. `opts`: NULL for defaults. `out` receives the adapter, NULL on failure; free it with `segno_adapter_free`. Codes:
/// NULL_POINTER, INVALID_ARGUMENT, IO, FORMAT (a damaged file, tensors that the model does not have, or in other shapes), UNSUPPORTED (no adapter,
/// one for another family, or of a kind that is not supported), OUT_OF_MEMORY, DEVICE_MEMORY, DEVICE. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_adapter_load(
    model: *const segno_model,
    path: *const c_char,
    opts: *const segno_adapter_opts,
    out: *mut *mut segno_adapter,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(model).ok().map(|model| &**model.context());
    guard(context, err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let (model, path) = (share_of(model)?, path_of(path, "path")?);
        let opts = options(opts, defaults(), "opts")?;
        known_flags(opts.flags, 0, "adapter")?;
        check_reserved(opts.reserved)?;
        out.set(share(Arc::new(Adapter::load(&model, path)?))?);
        Ok(SEGNO_OK)
    })
}

/// Frees an adapter; NULL is allowed. Sequences that have it keep what they need of it; its memory comes back when the last of them is closed, or
/// has others. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_adapter_free(adapter: *mut segno_adapter) {
    guard_free(|| drop(unshare(adapter)))
}

/// Gives a sequence adapters in place of those that it has. Sequences with none, one and several may share a pass; each gives the tokens that it
/// gives alone, and a sequence without adapters costs what it cost, to the bit.
///
/// `adapters`: `count` of them, at most 64, loaded for the session's model; 0 takes all away. What several add is summed, in the order of the list;
/// one may be listed twice. `scales`: as many factors, finite ones; NULL for 1 each. One of 0 leaves its adapter out.
///
/// **What the sequence has evaluated was made with the adapters that it had: it keeps its tokens, gives up their keys and values, and evaluates them
/// again with its next step.** So its tokens depend on its history and on the adapters that it has, and on nothing before. Set them before the
/// prompt; the same adapters and scales once more change nothing. Marks are given up too. A fork has its parent's adapters. A draft model drafts
/// without them, which changes no token; `segno_embed` has adapters of its own, in its options. A saved sequence has its adapters again where
/// they are loaded (`segno_seq_restore`).
///
/// Sums of ranks need room in each row of a pass: `adapter_ranks` of the session's options reserves it when the session is made, and is counted by
/// `segno_plan_get`; a set with more of them, each adapter counted with its largest rank, makes it grow here, never in a step, and
/// `segno_session_memory` tells. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT (an adapter of another model, a scale that is no number;
/// `segno_error_item` is its index), OUT_OF_MEMORY, DEVICE_MEMORY, DEVICE, BUSY, POISONED; a failed call changes nothing. On a GPU adapters that
/// change other matrices than all before have the session's launches made anew here, which takes a part of the time that making it took. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_adapters_set(
    session: *mut segno_session,
    seq: i32,
    adapters: *const *const segno_adapter,
    scales: *const f32,
    count: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        session.set_adapters(seq, &listed(adapters, scales, count)?)?;
        Ok(SEGNO_OK)
    })
}

/// The adapters of a list, and the factor of each.
pub(super) fn listed(
    adapters: *const *const segno_adapter,
    scales: *const f32,
    count: usize,
) -> Result<Vec<(Arc<Adapter>, f32)>, Failure> {
    if count > MOST_ADAPTERS {
        let problem = format!("count is {count}, at most {MOST_ADAPTERS} adapters are possible");
        return Err(Error::InvalidArgument(problem).into());
    }
    let adapters = slice(adapters, count, "adapters")?;
    let scales = if scales.is_null() { &[1.0; MOST_ADAPTERS][..count] } else { slice(scales, count, "scales")? };
    let mut set = Vec::new();
    for (item, (&adapter, &scale)) in adapters.iter().zip(scales).enumerate() {
        let adapter = share_of(adapter).map_err(|error| Failure { error, item: Some(item) })?;
        push(&mut set, (adapter, scale), "adapters")?;
    }
    Ok(set)
}
