//! The noun `segno_model`: weights, tokenizer and metadata of one file on one device.

use super::argument::{
    self, Buffer, Out, SizedStruct, chars, check_reserved, known_flags, options, slice, text, write_sized,
};
use super::ctx::segno_ctx;
use super::error::segno_error;
use super::guard::{guard, guard_free, guard_value};
use super::handle::{Handle, Object, borrow, share, share_of, unshare};
use super::status::{SEGNO_OK, segno_status};
use crate::engine::Model;
use crate::engine::model::Options;
use crate::error::{Error, Result};
use crate::quant::DType;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// An immutable model on a device. Owned by the host, shareable between threads, keeps its context alive.
#[allow(non_camel_case_types)]
pub struct segno_model {
    _private: [u8; 0],
}

impl Handle for segno_model {
    type Target = Model;
    const KIND: Object = Object::Model;
}

/// Read the file into memory instead of mapping it: for files that somebody may truncate while they are in use, which raises a
/// signal in a process that has them mapped.
pub const SEGNO_MODEL_NO_MMAP: u32 = 1;

/// Hears how far a load has come, from 0 to 1, which is heard once, at the end; a non-zero result cancels it. Called on the loading thread,
/// in every phase of the load: at least once for every 16 MiB of weights, 256 KiB of metadata and 16,384 tokens or merges. Must not unwind.
/// Calls from inside it on the context or what was made from it answer BUSY.
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
    /// `SEGNO_TYPE_...`: what matrices of floats become while they are loaded; `SEGNO_TYPE_KEEP` by default. Those that are quantized already
    /// stay as they are, vectors too. The blocks are those of ggml's reference quantization, bit for bit.
    pub quantize: i32,
    /// Must be 0.
    pub reserved: u32,
    /// Bytes of the GPU's memory that the model may take together with a session of default options; 0 (default) for what is free. What does not
    /// fit stays in host memory and is computed there while the GPU computes the rest: the experts of the first layers, and where that
    /// is not enough the first layers. `segno_plan_get` tells how many. Tokens are the same in any company and however prompts are cut; they may
    /// differ from those of the model on the GPU alone as those of the CPU do. `UINT64_MAX` keeps all of a model on the GPU, or fails. What
    /// does not fit however it is divided is DEVICE_MEMORY. Without effect on the CPU.
    pub device_memory: u64,
}

/// Weights stay as they are stored.
pub const SEGNO_TYPE_KEEP: i32 = 0;
/// IEEE half precision.
pub const SEGNO_TYPE_F16: i32 = 1;
/// The upper half of a single.
pub const SEGNO_TYPE_BF16: i32 = 2;
/// 8 bits, a scale for 32 values.
pub const SEGNO_TYPE_Q8_0: i32 = 3;
/// 4 bits, a scale for 32 values.
pub const SEGNO_TYPE_Q4_0: i32 = 4;
/// 4 bits, a scale and a minimum for 32 values.
pub const SEGNO_TYPE_Q4_1: i32 = 5;
/// 5 bits, a scale for 32 values.
pub const SEGNO_TYPE_Q5_0: i32 = 6;
/// 5 bits, a scale and a minimum for 32 values.
pub const SEGNO_TYPE_Q5_1: i32 = 7;
/// 4 bits, 6-bit scales and minimums for 32 values each; columns must be a multiple of 256.
pub const SEGNO_TYPE_Q4_K: i32 = 8;
/// 5 bits, 6-bit scales and minimums for 32 values each; columns must be a multiple of 256.
pub const SEGNO_TYPE_Q5_K: i32 = 9;
/// 6 bits, 8-bit scales for 16 values each; columns must be a multiple of 256.
pub const SEGNO_TYPE_Q6_K: i32 = 10;

// SAFETY: repr(C), size first, four 4-byte and three 8-byte fields without padding; NULL is a valid callback.
unsafe impl SizedStruct for segno_model_opts {}

fn defaults() -> segno_model_opts {
    segno_model_opts {
        struct_size: size_of::<segno_model_opts>() as u32,
        flags: 0,
        progress: None,
        progress_user: std::ptr::null_mut(),
        quantize: SEGNO_TYPE_KEEP,
        reserved: 0,
        device_memory: 0,
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
    /// Query heads of a layer; where layers differ, the most of any, as below.
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
unsafe impl SizedStruct for segno_model_info {}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_model_opts_init(opts: *mut segno_model_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Loads a GGUF file, or a Hugging Face folder: `config.json` and weights as safetensors (`model.safetensors`, or the shards of
/// `model.safetensors.index.json`) in F32, F16, BF16 or F8_E4M3 with scales by block, which become BF16, and experts of gpt-oss in MXFP4.
/// A folder is the model that its GGUF file would be, bit for bit. Weights are used in the mapped files, but for those that GGUF files hold
/// in another order or type: these are made, in memory of their own. `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and
/// `chat_template.jinja` are read
/// where they are there; of the tokenizers byte-pair models.
///
/// What a file may declare has limits, beyond which it is FORMAT: 128 MiB of metadata and tensor directory, 65,536 metadata entries and as many
/// tensors, 2,097,152 tokens of at most 4,096 bytes (special ones: 1,024, UNSUPPORTED), 1,024 layers, 1,024 heads of at most 576 elements
/// (UNSUPPORTED), 131,072 elements of a token's vector, 1,048,576 of a feed-forward block, a context of 16,777,216 tokens; in a folder 4,096 files of
/// weights with headers of at most 16 MiB, 4 MiB of configuration and 64 MiB of
/// `tokenizer.json`.
///
/// `path`: of the file or folder, NUL-terminated UTF-8. `opts`: NULL for defaults. `out` receives the model, NULL on failure; free it with
/// `segno_model_free`. A mapped file (the default) must not be truncated while the model lives. Codes: NULL_POINTER, INVALID_ARGUMENT, IO, FORMAT
/// (the message names the file, of a split model the part), UNSUPPORTED (an architecture, storage type or tokenizer that the library lacks, by name,
/// or a file that is no model: an adapter, an importance matrix, a projector, a vocabulary), OUT_OF_MEMORY, and the outcome
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
        let opts = model_options(opts, "opts")?;
        let (path, options) = (argument::path(path, "path")?, engine_options(&opts)?);
        let model = Model::load(&context, path, &options, &mut |done| {
            context.calling(|| report(opts.progress, opts.progress_user, done))
        })?;
        out.set(share(Arc::new(model))?);
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
        let opts = model_options(opts, "opts")?;
        let bytes = slice(data.cast::<u8>(), len, "data")?;
        let options = engine_options(&opts)?;
        let model = Model::load_buffer(&context, bytes, &options, &mut |done| {
            context.calling(|| report(opts.progress, opts.progress_user, done))
        })?;
        out.set(share(Arc::new(model))?);
        Ok(SEGNO_OK)
    })
}

pub(super) fn model_options(opts: *const segno_model_opts, name: &'static str) -> Result<segno_model_opts> {
    let opts = options(opts, defaults(), name)?;
    known_flags(opts.flags, SEGNO_MODEL_NO_MMAP, "model")?;
    check_reserved(opts.reserved)?;
    Ok(opts)
}

/// The same as the engine takes them.
pub(super) fn engine_options(opts: &segno_model_opts) -> Result<Options> {
    let quantize = match opts.quantize {
        SEGNO_TYPE_KEEP => None,
        SEGNO_TYPE_F16 => Some(DType::F16),
        SEGNO_TYPE_BF16 => Some(DType::BF16),
        SEGNO_TYPE_Q8_0 => Some(DType::Q8_0),
        SEGNO_TYPE_Q4_0 => Some(DType::Q4_0),
        SEGNO_TYPE_Q4_1 => Some(DType::Q4_1),
        SEGNO_TYPE_Q5_0 => Some(DType::Q5_0),
        SEGNO_TYPE_Q5_1 => Some(DType::Q5_1),
        SEGNO_TYPE_Q4_K => Some(DType::Q4_K),
        SEGNO_TYPE_Q5_K => Some(DType::Q5_K),
        SEGNO_TYPE_Q6_K => Some(DType::Q6_K),
        other => return Err(Error::InvalidArgument(format!("quantize {other} is no SEGNO_TYPE_..."))),
    };
    let map = opts.flags & SEGNO_MODEL_NO_MMAP == 0;
    Ok(Options { map, quantize, device_memory: opts.device_memory })
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
        let buffer = Buffer::new(buf.cast::<u8>(), cap, len, ["buf", "len"])?;
        let (metadata, key) = (borrow(model)?.metadata(), text(key, "key")?);
        let value = metadata.get(key).ok_or_else(|| Error::NotFound(format!("the model has no metadata `{key}`")))?;
        buffer.fill(&metadata.render(value)?)?;
        Ok(SEGNO_OK)
    })
}

fn report(progress: segno_progress_fn, user: *mut c_void, done: f32) -> Result<()> {
    // SAFETY: the host's function takes the argument that came with it, as the header says.
    match progress.map(|progress| unsafe { progress(user, done) }) {
        None | Some(0) => Ok(()),
        Some(_) => Err(Error::Cancelled),
    }
}

/// Options of saving; fill with `segno_save_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_save_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Hears how far it has come, at least once for every 16 MiB; NULL (default) for nobody.
    pub progress: segno_progress_fn,
    /// First argument of `progress`.
    pub progress_user: *mut c_void,
}

// SAFETY: repr(C), size first, two 4-byte and two 8-byte fields without padding; NULL is a valid callback.
unsafe impl SizedStruct for segno_save_opts {}

fn save_defaults() -> segno_save_opts {
    segno_save_opts {
        struct_size: size_of::<segno_save_opts>() as u32,
        reserved: 0,
        progress: None,
        progress_user: std::ptr::null_mut(),
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_save_opts_init(opts: *mut segno_save_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &save_defaults(), "opts")))
}

/// Writes a model as one GGUF file (version 3) that this library loads, with the keys and names that llama.cpp reads: of a GGUF file its metadata as
/// it is, of a folder what a converter would write, tokenizer included; the tensors as they were loaded, quantized if they were. Loading it gives the
/// same logits, bit for bit, and saving that again the same file; what a model of several parts was is one file then. Of the space that a folder's
/// tokenizer may put in front of text, files tell only whether there is one, and nothing of white space that added tokens swallow, as those of
/// llama.cpp's converter.
///
/// `path`: of the file, NUL-terminated UTF-8, in a folder that exists. The bytes are written under another name beside it (`NAME.N.part`) and renamed
/// when all are on the disk: a file that is there is replaced then, and what fails or is cancelled leaves nothing behind. The file that the model is
/// loaded from may be named, on Windows only if it is not mapped: the system refuses to replace one that is (IO). `opts`: NULL for defaults. Needs
/// the files that the model is mapped from, and memory for the header alone. Codes: NULL_POINTER, INVALID_ARGUMENT (also where `path` is a folder),
/// IO (the disk is full, the folder cannot be written to), UNSUPPORTED (a tokenizer of a folder that GGUF files cannot tell), OUT_OF_MEMORY, and
/// the outcome `SEGNO_CANCELLED`. Any thread, several at once. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_model_save(
    model: *const segno_model,
    path: *const c_char,
    opts: *const segno_save_opts,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(borrow(model).ok().map(|model| &**model.context()), err, || {
        let model = borrow(model)?;
        let opts = options(opts, save_defaults(), "opts")?;
        check_reserved(opts.reserved)?;
        let (path, context) = (argument::path(path, "path")?, model.context());
        model.save(path, &mut |done| context.calling(|| report(opts.progress, opts.progress_user, done)))?;
        Ok(SEGNO_OK)
    })
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
        heads: hparams.most_of_heads(|layer| layer.heads) as u32,
        kv_heads: hparams.most_of_heads(|layer| layer.kv_heads) as u32,
        head_dim: hparams.most_of_heads(|layer| layer.head_dim) as u32,
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
    guard_free(|| drop(unshare(model)))
}
