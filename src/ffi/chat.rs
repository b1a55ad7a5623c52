//! Chat: a conversation as JSON, turned into the text that the model was trained on.

use super::argument::{Buffer, SizedStruct, known_flags, options, slice, write_sized};
use super::error::segno_error;
use super::guard::{guard, guard_value};
use super::handle::borrow;
use super::model::segno_model;
use super::status::{SEGNO_OK, segno_status};
use crate::engine::model::Chat;
use crate::error::{Error, Result};
use std::ffi::c_char;

/// End the text with the beginning of the assistant's next turn.
pub const SEGNO_CHAT_ADD_GENERATION_PROMPT: u32 = 1;

/// Options of a rendered conversation; fill with `segno_chat_opts_init`. Texts are UTF-8, not NUL-terminated.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_chat_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// `SEGNO_CHAT_...`, combined with `|`; 0 by default.
    pub flags: u32,
    /// The time that the template sees, in Unix seconds, UTC; 0 (default): the clock.
    pub now: i64,
    /// A template in place of the model's own, at most 128 KiB; NULL (default) for the model's.
    pub template_text: *const c_char,
    /// Bytes at `template_text`.
    pub template_len: usize,
    /// A JSON array of tools, anything else is INVALID_ARGUMENT; NULL (default) for none.
    pub tools_json: *const c_char,
    /// Bytes at `tools_json`.
    pub tools_len: usize,
    /// A JSON object whose entries become variables of the template and win over all others; NULL (default) for none.
    pub vars_json: *const c_char,
    /// Bytes at `vars_json`.
    pub vars_len: usize,
}

// SAFETY: repr(C), size first, 4 + 4 + 8 bytes and six 8-byte fields without padding; NULL pointers are valid.
unsafe impl SizedStruct for segno_chat_opts {}

fn defaults() -> segno_chat_opts {
    segno_chat_opts {
        struct_size: size_of::<segno_chat_opts>() as u32,
        flags: 0,
        now: 0,
        template_text: std::ptr::null(),
        template_len: 0,
        tools_json: std::ptr::null(),
        tools_len: 0,
        vars_json: std::ptr::null(),
        vars_len: 0,
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_opts_init(opts: *mut segno_chat_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Renders a conversation with the model's chat template, or with one of the caller's. Tokenize the result with
/// `SEGNO_TOKENIZE_PARSE_SPECIAL` alone: templates write the begin token themselves.
///
/// `messages_json`: `json_len` bytes, the array of messages that chat services take: objects with "role", "content" (text or parts),
/// "tool_calls" and so on. `opts`: NULL for defaults. `buf`: room for `cap` bytes; `len` receives how many there are. A template runs on a
/// thread of the library and may use up to 128 KiB of source, 4,000,000 steps, 96 MiB for its values at one time, 4 MiB of output and
/// 2,000 levels of nesting. Every operation pays steps for the size of its operands, so that they end within about two seconds of a slow
/// processor; there is no way to cancel a rendering. Codes: NULL_POINTER, INVALID_ARGUMENT (JSON that is none),
/// NOT_FOUND (the model has no template), TEMPLATE (it does not compile or exceeds a limit, by name, with the line and, where an error is about
/// one message, that message's index; what the template raises itself is the message as it is),
/// BUFFER_TOO_SMALL, OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_render(
    model: *const segno_model,
    messages_json: *const c_char,
    json_len: usize,
    opts: *const segno_chat_opts,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(model).ok().map(|model| &**model.context());
    guard(context, err, || {
        let buffer = Buffer::new(buf.cast::<u8>(), cap, len, ["buf", "len"])?;
        let messages = slice(messages_json.cast::<u8>(), json_len, "messages_json")?;
        let opts = options(opts, defaults(), "opts")?;
        known_flags(opts.flags, SEGNO_CHAT_ADD_GENERATION_PROMPT, "chat")?;
        let text = borrow(model)?.render_chat(messages, &chat(&opts)?)?;
        buffer.fill(text.as_bytes())?;
        Ok(SEGNO_OK)
    })
}

/// Renders a conversation, as `segno_chat_render` does, and gives its tokens. Texts of messages never become special tokens: a user who
/// types the name of one has typed text. What the template itself writes does, and so do roles, tools and variables, which are the host's.
///
/// `messages_json`: `json_len` bytes, as for `segno_chat_render`; give an assistant's reasoning as a member of its own (`reasoning_content`),
/// because a template finds no marker in a text. `opts`: NULL for defaults. `tokens`: room for `cap` ids; `count` receives how many there
/// are. A text without names of special tokens gives the tokens that tokenizing the rendered text gives. Codes: those of
/// `segno_chat_render`, and UNSUPPORTED (the file has no tokenizer, or all private characters of Unicode are in use). Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_tokenize(
    model: *const segno_model,
    messages_json: *const c_char,
    json_len: usize,
    opts: *const segno_chat_opts,
    tokens: *mut i32,
    cap: usize,
    count: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(model).ok().map(|model| &**model.context());
    guard(context, err, || {
        let buffer = Buffer::new(tokens, cap, count, ["tokens", "count"])?;
        let messages = slice(messages_json.cast::<u8>(), json_len, "messages_json")?;
        let opts = options(opts, defaults(), "opts")?;
        known_flags(opts.flags, SEGNO_CHAT_ADD_GENERATION_PROMPT, "chat")?;
        buffer.fill(&borrow(model)?.tokenize_chat(messages, &chat(&opts)?)?.tokens)?;
        Ok(SEGNO_OK)
    })
}

fn chat(opts: &segno_chat_opts) -> Result<Chat<'_>> {
    Ok(Chat {
        template: optional_text(opts.template_text, opts.template_len, "template_text")?,
        add_generation_prompt: opts.flags & SEGNO_CHAT_ADD_GENERATION_PROMPT != 0,
        tools_json: optional(opts.tools_json, opts.tools_len, "tools_json")?,
        vars_json: optional(opts.vars_json, opts.vars_len, "vars_json")?,
        now: opts.now,
    })
}

/// The bytes of an optional text; NULL with a length is a mistake.
pub(super) fn optional<'a>(pointer: *const c_char, len: usize, name: &'static str) -> Result<Option<&'a [u8]>> {
    if pointer.is_null() && len == 0 { Ok(None) } else { slice(pointer.cast::<u8>(), len, name).map(Some) }
}

/// The same for UTF-8.
pub(super) fn optional_text<'a>(pointer: *const c_char, len: usize, name: &'static str) -> Result<Option<&'a str>> {
    let Some(bytes) = optional(pointer, len, name)? else { return Ok(None) };
    let text = std::str::from_utf8(bytes);
    text.map(Some)
        .map_err(|error| Error::InvalidArgument(format!("`{name}` is not valid utf-8 at byte {}", error.valid_up_to())))
}
