//! The noun `segno_model`: weights, tokenizer and metadata of one file on one device.

use super::argument::{Buffer, Out, Sized_, chars, options, slice, text, write_sized};
use super::ctx::segno_ctx;
use super::error::segno_error;
use super::guard::{guard, guard_value};
use super::handle::{Handle, borrow, share, share_of, unshare};
use super::status::{SEGNO_OK, segno_status};
use crate::engine::Model;
use crate::error::{Error, Result};
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;

/// An immutable model on a device. Owned by the host, shareable between threads, keeps its context alive.
#[allow(non_camel_case_types)]
pub struct segno_model {
    _private: [u8; 0],
}

impl Handle for segno_model {
    type Target = Model;
    const NAME: &'static str = "model";
}

/// Read the file into memory instead of mapping it: for files that somebody may truncate while they are in use, which raises a
/// signal in a process that has them mapped.
pub const SEGNO_MODEL_NO_MMAP: u32 = 1;

/// Hears how far a load has come, from 0 to 1; a non-zero result cancels it. Called on the loading thread. Must not unwind, nor use the
/// context.
#[allow(non_camel_case_types)]
pub type segno_progress_fn = Option<unsafe extern "C" fn(user: *mut c_void, done: f32) -> i32>;

/// Options of a model; fill with `segno_model_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_model_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// `SEGNO_MODEL_...`, combined with `|`; 0 by default.
    pub flags: u32,
    /// Hears of progress; NULL (default) for nobody.
    pub progress: segno_progress_fn,
    /// First argument of `progress`.
    pub progress_user: *mut c_void,
}

// SAFETY: repr(C), size first, two 4-byte and two 8-byte fields without padding; NULL is a valid callback.
unsafe impl Sized_ for segno_model_opts {}

fn defaults() -> segno_model_opts {
    segno_model_opts {
        struct_size: size_of::<segno_model_opts>() as u32,
        flags: 0,
        progress: None,
        progress_user: std::ptr::null_mut(),
    }
}

/// Sizes and names of a model.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_model_info {
    /// Bytes of this struct that the library knows.
    pub struct_size: u32,
    /// Number of tokens, and of logits.
    pub vocab: u32,
    /// Longest sequence, in tokens.
    pub context: u32,
    /// Transformer layers.
    pub layers: u32,
    /// Elements of a token's vector.
    pub hidden: u32,
    /// Query heads of a layer.
    pub heads: u32,
    /// Key-value heads of a layer.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Token that begins a text, -1 when there is none.
    pub bos: i32,
    /// Token that ends a text, -1 when there is none.
    pub eos: i32,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of the weights as they are stored.
    pub weight_bytes: u64,
    /// Family, for example "llama".
    pub arch: [c_char; 32],
    /// Name that the file gives itself, "" when there is none.
    pub name: [c_char; 128],
}

// SAFETY: repr(C), size first, ten 4-byte fields, two 8-byte fields, 160 bytes of text, no padding, numbers only.
unsafe impl Sized_ for segno_model_info {}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL or a size under 4 does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_model_opts_init(opts: *mut segno_model_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Loads a GGUF file.
///
/// `path`: NUL-terminated UTF-8. `opts`: NULL for defaults. `out` receives the model, NULL on failure; free it with `segno_model_free`. A
/// mapped file (the default) must not be truncated while the model lives. Codes: NULL_POINTER, INVALID_ARGUMENT, IO, FORMAT,
/// UNSUPPORTED (an architecture, storage type or tokenizer that the library lacks, by name), OUT_OF_MEMORY, and the outcome
/// `SEGNO_CANCELLED`. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_model_load(
    ctx: *const segno_ctx,
    path: *const c_char,
    opts: *const segno_model_opts,
    out: *mut *mut segno_model,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(borrow(ctx).ok(), err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let context = share_of(ctx)?;
        let opts = model_options(opts)?;
        let map = opts.flags & SEGNO_MODEL_NO_MMAP == 0;
        let path = Path::new(text(path, "path")?);
        let model = Model::load(&context, path, map, &mut |done| report(&opts, done))?;
        out.set(share(Arc::new(model)));
        Ok(SEGNO_OK)
    })
}

/// Loads a GGUF file from memory. What the model needs is copied; `data` may be freed afterwards.
///
/// `data`: `len` bytes, the whole file; a split model is loaded from its files. `opts`: NULL for defaults. `out` receives the model, NULL
/// on failure; free it with `segno_model_free`. Codes: those of `segno_model_load`. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_model_load_buffer(
    ctx: *const segno_ctx,
    data: *const c_void,
    len: usize,
    opts: *const segno_model_opts,
    out: *mut *mut segno_model,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(borrow(ctx).ok(), err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let context = share_of(ctx)?;
        let opts = model_options(opts)?;
        let bytes = slice(data.cast::<u8>(), len, "data")?;
        let model = Model::load_buffer(&context, bytes, &mut |done| report(&opts, done))?;
        out.set(share(Arc::new(model)));
        Ok(SEGNO_OK)
    })
}

pub(super) fn model_options(opts: *const segno_model_opts) -> Result<segno_model_opts> {
    let opts = options(opts, defaults(), "opts")?;
    match opts.flags & !SEGNO_MODEL_NO_MMAP {
        0 => Ok(opts),
        unknown => Err(Error::InvalidArgument(format!("unknown model flags {unknown:#x}"))),
    }
}

/// One entry of a model's metadata as text: strings as they are, numbers in decimal, booleans as true and false, arrays as JSON.
///
/// `key`: NUL-terminated, for example "general.architecture". `buf`: room for `cap` bytes; `len` receives how many there are. Codes:
/// NULL_POINTER, INVALID_ARGUMENT (the key is not UTF-8), NOT_FOUND, BUFFER_TOO_SMALL, OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_model_meta(
    model: *const segno_model,
    key: *const c_char,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(None, err, || {
        let buffer = Buffer::new(buf.cast::<u8>(), cap, len, "buf")?;
        let (metadata, key) = (borrow(model)?.metadata(), text(key, "key")?);
        let value = metadata.get(key).ok_or_else(|| Error::NotFound(format!("the model has no metadata `{key}`")))?;
        buffer.fill(&metadata.render(value)?)?;
        Ok(SEGNO_OK)
    })
}

fn report(opts: &segno_model_opts, done: f32) -> Result<()> {
    // SAFETY: the host's function takes the argument that came with it, as the header says.
    match opts.progress.map(|progress| unsafe { progress(opts.progress_user, done) }) {
        None | Some(0) => Ok(()),
        Some(_) => Err(Error::Cancelled),
    }
}

/// Describes a model.
///
/// `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_model_info_get(
    model: *const segno_model,
    out: *mut segno_model_info,
    size: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(None, err, || {
        write_sized(out, size, &info(borrow(model)?)?, "out")?;
        Ok(SEGNO_OK)
    })
}

fn info(model: &Model) -> Result<segno_model_info> {
    let hparams = model.hparams();
    let tokenizer = model.tokenizer().ok();
    let token = |token: Option<i32>| token.unwrap_or(-1);
    Ok(segno_model_info {
        struct_size: 0,
        vocab: model.vocab() as u32,
        context: hparams.context as u32,
        layers: hparams.layers as u32,
        hidden: hparams.hidden as u32,
        heads: hparams.heads as u32,
        kv_heads: hparams.kv_heads as u32,
        head_dim: hparams.head_dim as u32,
        bos: token(tokenizer.and_then(|t| t.bos())),
        eos: token(tokenizer.and_then(|t| t.eos())),
        parameters: model.parameters(),
        weight_bytes: model.program().weight_bytes(),
        arch: chars(model.arch().name),
        name: chars(model.metadata().text("general.name").ok().flatten().unwrap_or("")),
    })
}

/// Gives up a model; NULL is allowed. Sessions and texts made from it keep working. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_model_free(model: *mut segno_model) {
    guard_value((), || drop(unshare(model)))
}
