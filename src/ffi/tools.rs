//! Tools: the call that makes a grammar of the calls that a reply may hold.

use super::argument::{Out, SizedStruct, check_reserved, known_flags, optional_name, options, text, write_sized};
use super::chat::{optional, optional_text};
use super::error::segno_error;
use super::grammar::segno_grammar;
use super::guard::{guard, guard_value};
use super::handle::{borrow, share};
use super::model::segno_model;
use super::status::{SEGNO_OK, segno_status};
use crate::engine::model::Chat;
use crate::error::{Error, Result};
use crate::text::reply::Choice;
use std::ffi::c_char;
use std::sync::Arc;

/// Calls are not watched; for `segno_chat_tools_set` alone.
pub const SEGNO_TOOLS_FREE: i32 = -1;
/// Any tool may be called, or none.
pub const SEGNO_TOOLS_AUTO: i32 = 0;
/// A reply begins with a call, behind reasoning.
pub const SEGNO_TOOLS_REQUIRED: i32 = 1;
/// No tool is called.
pub const SEGNO_TOOLS_NONE: i32 = 2;
/// A reply begins with a call of the tool that `name` names.
pub const SEGNO_TOOLS_NAMED: i32 = 3;

/// A reply has one call at most.
pub const SEGNO_TOOLS_ONE_CALL: u32 = 1;

/// What a grammar of calls is made of; fill with `segno_tools_opts_init`. Texts are UTF-8.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_tools_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// `SEGNO_TOOLS_ONE_CALL` or 0 (default): several calls in a reply, where the family writes several.
    pub flags: u32,
    /// One of `SEGNO_TOOLS_AUTO` (default), `_REQUIRED`, `_NONE` and `_NAMED`.
    pub choice: i32,
    /// Zero.
    pub reserved: u32,
    /// The tools, a JSON array as in `segno_chat_opts`, at most 256 KiB; NULL (default) for none.
    pub tools_json: *const c_char,
    /// Bytes at `tools_json`.
    pub tools_len: usize,
    /// The tool of `SEGNO_TOOLS_NAMED`, NUL-terminated; NULL (default).
    pub name: *const c_char,
    /// Name of the format, NUL-terminated, as in `segno_reply_opts`; NULL (default): the template tells.
    pub format: *const c_char,
    /// What the reply follows, the rendered conversation or its end: reasoning may have begun there. NULL (default): what the template makes of
    /// a short message.
    pub prompt: *const c_char,
    /// Bytes at `prompt`.
    pub prompt_len: usize,
    /// A template in place of the model's own; NULL (default) for the model's.
    pub template_text: *const c_char,
    /// Bytes at `template_text`.
    pub template_len: usize,
}

// SAFETY: repr(C), size first, four 4-byte and eight 8-byte fields without padding; NULL pointers are valid.
unsafe impl SizedStruct for segno_tools_opts {}

fn defaults() -> segno_tools_opts {
    segno_tools_opts {
        struct_size: size_of::<segno_tools_opts>() as u32,
        flags: 0,
        choice: SEGNO_TOOLS_AUTO,
        reserved: 0,
        tools_json: std::ptr::null(),
        tools_len: 0,
        name: std::ptr::null(),
        format: std::ptr::null(),
        prompt: std::ptr::null(),
        prompt_len: 0,
        template_text: std::ptr::null(),
        template_len: 0,
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_tools_opts_init(opts: *mut segno_tools_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Compiles a grammar of replies that call tools: what the model's family writes, with names of the tools and arguments that meet their
/// schemas. Give both results to `segno_seq_grammar_set`, and the tokens to a `segno_reply` with the same tools, format and prompt.
///
/// `opts`: NULL for defaults, that is no tools. `out` receives the grammar, NULL on failure; free it with `segno_grammar_free`.
/// `start_token` receives the special token that begins a call, behind which the grammar begins, or -1: at once. AUTO leaves the text before a
/// call as it is, at no cost where a token begins calls; families that begin them with characters (harmony, llama3, functionary, kimi-k3,
/// and any whose vocabulary lacks the token) are watched from the start, and write no special tokens but those of their format. Behind a
/// call the reply ends, goes on as text, or has another. REQUIRED and NAMED begin at once: reasoning where the family reasons, then calls,
/// then the end. NONE, too, watches the whole reply. Arguments come in the order of the schema; where it has `properties`, others
/// only if it says `additionalProperties`; no more white space than one space behind a separator. A family that does not write JSON is told by
/// name which keyword it cannot watch. Codes: NULL_POINTER, INVALID_ARGUMENT (tools that are none, unknown flags or choice), NOT_FOUND (no
/// such format or tool), GRAMMAR (which tool cannot be watched, and why), TEMPLATE (`prompt` is NULL and the template fails), UNSUPPORTED (the
/// file has no tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_tools_grammar_create(
    model: *const segno_model,
    opts: *const segno_tools_opts,
    out: *mut *mut segno_grammar,
    start_token: *mut i32,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(model).ok().map(|model| &**model.context());
    guard(context, err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let start = Out::new(start_token, "start_token")?;
        let model = borrow(model)?;
        let opts = options(opts, defaults(), "opts")?;
        check_reserved(opts.reserved)?;
        let parallel = is_parallel(opts.flags)?;
        let chat = Chat {
            template: optional_text(opts.template_text, opts.template_len, "template_text")?,
            tools_json: optional(opts.tools_json, opts.tools_len, "tools_json")?,
            ..Chat::default()
        };
        let format = optional_name(opts.format, "format")?;
        let prompt = optional_text(opts.prompt, opts.prompt_len, "prompt")?;
        let choice = choice(opts.choice, opts.name)?;
        let (grammar, token) = model.compile_calls(&chat, format, prompt, (choice, parallel))?;
        let grammar = share(Arc::new(grammar))?;
        start.set(token.unwrap_or(-1));
        out.set(grammar);
        Ok(SEGNO_OK)
    })
}

/// Whether a reply may have several calls.
pub(super) fn is_parallel(flags: u32) -> Result<bool> {
    known_flags(flags, SEGNO_TOOLS_ONE_CALL, "tools")?;
    Ok(flags & SEGNO_TOOLS_ONE_CALL == 0)
}

/// A choice by its number, and the tool that it names.
pub(super) fn choice<'a>(number: i32, name: *const c_char) -> Result<Choice<'a>> {
    match number {
        SEGNO_TOOLS_AUTO => Ok(Choice::Auto),
        SEGNO_TOOLS_REQUIRED => Ok(Choice::Required),
        SEGNO_TOOLS_NONE => Ok(Choice::None),
        SEGNO_TOOLS_NAMED => Ok(Choice::Named(text(name, "name")?)),
        other => Err(Error::InvalidArgument(format!("there is no choice {other} of tools"))),
    }
}
