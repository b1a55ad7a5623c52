//! Text: tokenizing, detokenizing, and the noun `segno_text`.

use super::argument::{Buffer, Out, SizedStruct, known_flags, options, slice, write_sized};
use super::error::segno_error;
use super::exclusive::Exclusive;
use super::guard::{guard, guard_free, guard_value};
use super::handle::{Handle, Object, borrow, disown, own};
use super::model::segno_model;
use super::status::{SEGNO_DONE, SEGNO_OK, segno_status};
use crate::engine::{Context, Failure};
use crate::error::{Result, copied, reserve};
use crate::text::stream::Pending;
use crate::text::{StreamOptions, TextStream};
use std::ffi::c_char;
use std::sync::Arc;

/// Add the begin and end tokens that the model asks for.
pub const SEGNO_TOKENIZE_ADD_SPECIAL: u32 = 1;
/// Names of special tokens in the text become those tokens; otherwise they are plain text.
pub const SEGNO_TOKENIZE_PARSE_SPECIAL: u32 = 2;
/// Write special tokens by their names.
pub const SEGNO_DETOKENIZE_SPECIAL: u32 = 1;
/// Show special tokens by their names.
pub const SEGNO_TEXT_SPECIAL: u32 = 1;

/// A text stream: tokens in, whole UTF-8 characters out, stop strings held back. Owned by the host, one call at a time; keeps what it
/// needs of its model alive.
#[allow(non_camel_case_types)]
pub struct segno_text {
    _private: [u8; 0],
}

/// What lies behind a `segno_text`.
pub(super) struct Shared {
    context: Arc<Context>,
    stream: Exclusive<TextStream>,
}

impl Handle for segno_text {
    type Target = Shared;
    const KIND: Object = Object::Text;
}

/// Bytes of a text, not NUL-terminated.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_string {
    /// `len` bytes of UTF-8.
    pub data: *const c_char,
    /// Number of bytes.
    pub len: usize,
}

/// Options of a text stream; fill with `segno_text_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_text_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// `SEGNO_TEXT_...`, combined with `|`; 0 by default.
    pub flags: u32,
    /// `stop_count` texts that end the stream, copied; NULL when there are none.
    pub stops: *const segno_string,
    /// Number of texts at `stops`.
    pub stop_count: usize,
}

// SAFETY: repr(C), size first, two 4-byte and two 8-byte fields without padding; a NULL pointer is valid.
unsafe impl SizedStruct for segno_text_opts {}

fn defaults() -> segno_text_opts {
    let struct_size = size_of::<segno_text_opts>() as u32;
    segno_text_opts { struct_size, flags: 0, stops: std::ptr::null(), stop_count: 0 }
}

/// Turns text into tokens.
///
/// `text`: `text_len` bytes of UTF-8, NULL when there are none. `flags`: `SEGNO_TOKENIZE_...`. `tokens`: room for `cap` ids; `count` receives
/// how many there are. Text is brought to Unicode's form C first where the model's own library does so (Qwen 2 and 3, GPT-NeoX, Command R and
/// their kin), and is not changed otherwise. The call can't be cancelled, so it is bounded: at most 64 MiB of text, and a time and memory in
/// proportion to its length, whatever it holds: about a second and at most 200 MiB a MiB of text, commonly a tenth. Codes: NULL_POINTER,
/// INVALID_ARGUMENT (not UTF-8, with the offset; more than 64 MiB; unknown flags), BUFFER_TOO_SMALL, UNSUPPORTED (the file has no
/// tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_tokenize(
    model: *const segno_model,
    text: *const c_char,
    text_len: usize,
    flags: u32,
    tokens: *mut i32,
    cap: usize,
    count: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(None, err, || {
        let buffer = Buffer::new(tokens, cap, count, ["tokens", "count"])?;
        known_flags(flags, SEGNO_TOKENIZE_ADD_SPECIAL | SEGNO_TOKENIZE_PARSE_SPECIAL, "tokenize")?;
        let text = slice(text.cast::<u8>(), text_len, "text")?;
        let (add, parse) = (flags & SEGNO_TOKENIZE_ADD_SPECIAL != 0, flags & SEGNO_TOKENIZE_PARSE_SPECIAL != 0);
        buffer.fill(&borrow(model)?.tokenizer()?.encode(text, add, parse)?)?;
        Ok(SEGNO_OK)
    })
}

/// Turns tokens into text: UTF-8, bytes that are none replaced by U+FFFD; without the space that tokenizing put in front.
///
/// `tokens`: `count` ids. `flags`: `SEGNO_DETOKENIZE_...`. `buf`: room for `cap` bytes; `len` receives how many there are. Codes:
/// NULL_POINTER, INVALID_ARGUMENT (a token outside the vocabulary, unknown flags), BUFFER_TOO_SMALL, UNSUPPORTED (the file has no
/// tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_detokenize(
    model: *const segno_model,
    tokens: *const i32,
    count: usize,
    flags: u32,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(None, err, || {
        let buffer = Buffer::new(buf.cast::<u8>(), cap, len, ["buf", "len"])?;
        known_flags(flags, SEGNO_DETOKENIZE_SPECIAL, "detokenize")?;
        let tokens = slice(tokens, count, "tokens")?;
        let text = borrow(model)?.tokenizer()?.decode(tokens, flags & SEGNO_DETOKENIZE_SPECIAL != 0)?;
        buffer.fill(&text)?;
        Ok(SEGNO_OK)
    })
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_text_opts_init(opts: *mut segno_text_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Makes a text stream for the tokens of a model.
///
/// `opts`: NULL for defaults; stop strings are copied. `out` receives the stream, NULL on failure; free it with `segno_text_free`. Codes:
/// NULL_POINTER, INVALID_ARGUMENT (an empty stop string, or one that is not UTF-8; unknown flags), UNSUPPORTED (the file has no
/// tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_text_create(
    model: *const segno_model,
    opts: *const segno_text_opts,
    out: *mut *mut segno_text,
    err: *mut *mut segno_error,
) -> segno_status {
    guard(None, err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let model = borrow(model)?;
        let options = stream_options(&options(opts, defaults(), "opts")?)?;
        let stream = Exclusive::new(TextStream::new(Arc::clone(model.tokenizer()?), options)?);
        out.set(own(Shared { context: Arc::clone(model.context()), stream })?);
        Ok(SEGNO_OK)
    })
}

fn stream_options(opts: &segno_text_opts) -> Result<StreamOptions> {
    known_flags(opts.flags, SEGNO_TEXT_SPECIAL, "text")?;
    let stops = stop_texts(opts.stops, opts.stop_count)?;
    Ok(StreamOptions { special: opts.flags & SEGNO_TEXT_SPECIAL != 0, stops })
}

/// Copies of `count` stop strings.
pub(super) fn stop_texts(stops: *const segno_string, count: usize) -> Result<Vec<Vec<u8>>> {
    let given = slice(stops, count, "stops")?;
    let mut stops = reserve(given.len(), "stop strings")?;
    for stop in given {
        stops.push(copied(slice(stop.data.cast::<u8>(), stop.len, "stops")?, "stop strings")?);
    }
    Ok(stops)
}

/// Runs the body of a call on a stream, and gives out the text that it releases if the host's buffer holds it.
pub(super) fn with_text(
    text: *mut segno_text,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut *mut segno_error,
    body: impl FnOnce(&mut TextStream) -> Result<Pending<'_>>,
) -> segno_status {
    let context = borrow(text.cast_const()).ok().map(|shared| &*shared.context);
    guard(context, err, || {
        let buffer = Buffer::new(buf.cast::<u8>(), cap, len, ["buf", "len"])?;
        let mut stream = borrow(text.cast_const())?.stream.enter(segno_text::NAME)?;
        let pending = body(&mut stream)?;
        buffer.require(pending.text().len())?;
        buffer.fill(pending.text())?;
        let status = if pending.done() { SEGNO_DONE } else { SEGNO_OK };
        pending.commit();
        Ok::<_, Failure>(status)
    })
}

/// Puts one token into a stream and receives the whole characters that it releases.
///
/// `buf`: room for `cap` bytes; `len` receives how many there are, often 0. Text that may be the beginning of a stop string is held back
/// until that is decided. Answers `SEGNO_DONE` once a stop string is complete: the text before it has been given out, the stop string
/// never is, and further tokens give nothing. Codes: BUFFER_TOO_SMALL (the token is not consumed: push it again), INVALID_ARGUMENT (a
/// token outside the vocabulary), NULL_POINTER, OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_text_push(
    text: *mut segno_text,
    token: i32,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_text(text, buf, cap, len, err, |stream| stream.push(token))
}

/// Ends a stream: receives the text that was held back, and readies the object for the next stream.
///
/// `buf`: room for `cap` bytes; `len` receives how many there are. Answers `SEGNO_DONE` if a stop string had ended the stream. Codes:
/// BUFFER_TOO_SMALL (nothing is lost: call again), NULL_POINTER, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_text_flush(
    text: *mut segno_text,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_text(text, buf, cap, len, err, |stream| Ok(stream.flush()))
}

/// Frees a text stream; NULL is allowed. No call on it may be running. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_text_free(text: *mut segno_text) {
    guard_free(|| drop(disown(text)))
}
