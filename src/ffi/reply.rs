//! Replies: the noun `segno_reply`, which tells what the tokens of an assistant mean.

use super::argument::{Buffer, Out, SizedStruct, known_flags, optional_name, options, write_sized};
use super::chat::{optional, optional_text};
use super::error::segno_error;
use super::exclusive::Exclusive;
use super::guard::{guard, guard_free, guard_value};
use super::handle::{Handle, Object, borrow, disown, own};
use super::model::segno_model;
use super::status::{SEGNO_DONE, SEGNO_OK, segno_status};
use super::text::{segno_string, stop_texts};
use crate::engine::model::Chat;
use crate::engine::{Context, Failure};
use crate::error::{Error, Result, reserve};
use crate::text::Reply;
use crate::text::reply::{Event, Kind};
use std::ffi::c_char;
use std::sync::Arc;

/// A stretch of reasoning.
pub const SEGNO_EVENT_REASONING: i32 = 1;
/// A stretch of content.
pub const SEGNO_EVENT_CONTENT: i32 = 2;
/// A call begins; the text is the name of the function.
pub const SEGNO_EVENT_TOOL_BEGIN: i32 = 3;
/// A stretch of the call's arguments; all of them together are one JSON object.
pub const SEGNO_EVENT_TOOL_ARGUMENTS: i32 = 4;
/// The call is whole. A call without this event was not: it ended early, or its arguments are not what the format allows.
pub const SEGNO_EVENT_TOOL_END: i32 = 5;
/// The reply is over.
pub const SEGNO_EVENT_END: i32 = 6;

/// A reader of replies: tokens in, events out. Owned by the host, one call at a time; keeps what it needs of its model alive.
#[allow(non_camel_case_types)]
pub struct segno_reply {
    _private: [u8; 0],
}

/// What lies behind a `segno_reply`.
pub(super) struct Shared {
    context: Arc<Context>,
    reply: Exclusive<Pending>,
}

/// A reply, and the call whose events have not been taken.
pub(super) struct Pending {
    reply: Reply,
    waiting: Option<Step>,
    /// Whether the reply was over after the last step, or before it if that was a flush.
    ended: bool,
}

/// A call that moves a reply on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Push(i32),
    Flush,
}

impl Handle for segno_reply {
    type Target = Shared;
    const KIND: Object = Object::Reply;
}

/// What happened in a reply. Texts are whole UTF-8 characters, not NUL-terminated, and valid until the next call on the object that gave
/// them.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_event {
    /// `SEGNO_EVENT_...`.
    pub kind: i32,
    /// Number of the call in its reply, from 0; 0 for other events.
    pub index: i32,
    /// `len` bytes: reasoning, content, the name of a function, or a part of its arguments.
    pub text: *const c_char,
    /// Bytes at `text`.
    pub len: usize,
    /// With TOOL_END the id that the answer of the tool refers to: the model's, or `call` and five digits. With TOOL_BEGIN the same, or
    /// nothing where the model may still write one.
    pub id: *const c_char,
    /// Bytes at `id`.
    pub id_len: usize,
}

/// Options of a reader of replies; fill with `segno_reply_opts_init`. Texts are UTF-8.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_reply_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// 0: there are none yet.
    pub flags: u32,
    /// Name of the format, NUL-terminated; NULL (default): the template tells. One of harmony, gemma4, dsml, deepseek, kimi-k2, kimi-k3,
    /// minimax-m2, hunyuan, glm4, qwen3-coder, minicpm5, lfm2, cohere, gigachat, functionary, mistral, nemotron, firefunction, hermes, llama3,
    /// think, plain.
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
    /// The tools of the conversation, a JSON array: they tell which values of arguments are text. NULL (default) for none.
    pub tools_json: *const c_char,
    /// Bytes at `tools_json`.
    pub tools_len: usize,
    /// `stop_count` texts that end the content of a reply, copied; NULL when there are none.
    pub stops: *const segno_string,
    /// Number of texts at `stops`.
    pub stop_count: usize,
}

// SAFETY: repr(C), size first, two 4-byte and nine 8-byte fields without padding; NULL pointers are valid.
unsafe impl SizedStruct for segno_reply_opts {}

fn defaults() -> segno_reply_opts {
    segno_reply_opts {
        struct_size: size_of::<segno_reply_opts>() as u32,
        flags: 0,
        format: std::ptr::null(),
        prompt: std::ptr::null(),
        prompt_len: 0,
        template_text: std::ptr::null(),
        template_len: 0,
        tools_json: std::ptr::null(),
        tools_len: 0,
        stops: std::ptr::null(),
        stop_count: 0,
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_reply_opts_init(opts: *mut segno_reply_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Makes a reader of the replies of a model: what it reasons, says, and which tools it calls.
///
/// `opts`: NULL for defaults; everything is copied. `out` receives the reader, NULL on failure; free it with `segno_reply_free`. A marker of the
/// format is recognised by the ids of the vocabulary's special tokens, and by its text only where there are none. Arguments of calls
/// arrive as JSON whatever the model writes; a value that it writes as plain text becomes what the tool's schema says, and without one a
/// number, boolean, null, list or object where it is one, else a string. White space beside markers is left out. Codes: NULL_POINTER,
/// INVALID_ARGUMENT (tools that are no JSON array, a bad stop string, unknown flags), NOT_FOUND (there is no such format: the message names
/// all), TEMPLATE (`prompt` is NULL and the template fails), UNSUPPORTED (the file has no tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_reply_create(
    model: *const segno_model,
    opts: *const segno_reply_opts,
    out: *mut *mut segno_reply,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(model).ok().map(|model| &**model.context());
    guard(context, err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let model = borrow(model)?;
        let opts = options(opts, defaults(), "opts")?;
        known_flags(opts.flags, 0, "reply")?;
        let chat = Chat {
            template: optional_text(opts.template_text, opts.template_len, "template_text")?,
            tools_json: optional(opts.tools_json, opts.tools_len, "tools_json")?,
            ..Chat::default()
        };
        let format = optional_name(opts.format, "format")?;
        let prompt = optional_text(opts.prompt, opts.prompt_len, "prompt")?;
        let reply = model.open_reply(&chat, format, prompt, stop_texts(opts.stops, opts.stop_count)?)?;
        let reply = Exclusive::new(Pending { reply, waiting: None, ended: false });
        out.set(own(Shared { context: Arc::clone(model.context()), reply })?);
        Ok(SEGNO_OK)
    })
}

/// The event as a host sees it.
pub(super) fn shown(event: Event) -> segno_event {
    let kind = match event.kind {
        Kind::Reasoning => SEGNO_EVENT_REASONING,
        Kind::Content => SEGNO_EVENT_CONTENT,
        Kind::CallBegin => SEGNO_EVENT_TOOL_BEGIN,
        Kind::CallArguments => SEGNO_EVENT_TOOL_ARGUMENTS,
        Kind::CallEnd => SEGNO_EVENT_TOOL_END,
        Kind::End => SEGNO_EVENT_END,
    };
    segno_event {
        kind,
        index: event.index as i32,
        text: event.text.as_ptr().cast(),
        len: event.text.len(),
        id: event.id.as_ptr().cast(),
        id_len: event.id.len(),
    }
}

/// Gives out the events of a reply's last step.
pub(super) fn give(reply: &Reply, buffer: &Buffer<segno_event>) -> Result<()> {
    buffer.require(reply.event_count())?;
    let mut events = reserve(reply.event_count(), "events")?;
    events.extend(reply.events().map(shown));
    buffer.fill(&events)
}

/// Runs the body of a call on a reply.
pub(super) fn with_reply(
    reply: *mut segno_reply,
    err: *mut *mut segno_error,
    body: impl FnOnce(&mut Pending) -> Result<segno_status>,
) -> segno_status {
    let context = borrow(reply.cast_const()).ok().map(|shared| &*shared.context);
    guard(context, err, || {
        let mut reply = borrow(reply.cast_const())?.reply.enter(segno_reply::NAME)?;
        Ok::<_, Failure>(body(&mut reply)?)
    })
}

impl Pending {
    /// Takes a step, unless its events wait already, and gives them out.
    fn step(&mut self, step: Step, buffer: &Buffer<segno_event>) -> Result<segno_status> {
        match self.waiting {
            Some(waiting) if waiting != step => return Err(not_taken(waiting, self.reply.event_count())),
            Some(_) => {}
            None => {
                let was_over = self.reply.is_over();
                match step {
                    Step::Push(token) => self.reply.push(token)?,
                    Step::Flush => self.reply.flush()?,
                }
                let ended = if step == Step::Flush { was_over } else { self.reply.is_over() };
                (self.waiting, self.ended) = (Some(step), ended);
            }
        }
        give(&self.reply, buffer)?;
        self.waiting = None;
        Ok(if self.ended { SEGNO_DONE } else { SEGNO_OK })
    }
}

fn not_taken(step: Step, count: usize) -> Error {
    let call = match step {
        Step::Push(token) => format!("segno_reply_push for token {token}"),
        Step::Flush => "segno_reply_flush".into(),
    };
    Error::InvalidArgument(format!("{call} still has {count} events to give; call it again with room for them"))
}

/// Puts one token into a reader and receives the events that it brings, often one or none.
///
/// `events`: room for `cap` of them; `count` receives how many there are, and is written for BUFFER_TOO_SMALL too: then nothing was given, and
/// the same call with more room gives them. Four are enough for most tokens. Answers `SEGNO_DONE` once the reply is over: a token ended
/// generation, or a stop string is complete; the event END has been given, and further tokens give nothing until a flush. Codes:
/// BUFFER_TOO_SMALL, INVALID_ARGUMENT (a token outside the vocabulary; events of another call wait), NULL_POINTER, OUT_OF_MEMORY (the reply
/// is over; flush it), BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_reply_push(
    reply: *mut segno_reply,
    token: i32,
    events: *mut segno_event,
    cap: usize,
    count: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_reply(reply, err, |reply| {
        reply.step(Step::Push(token), &Buffer::new(events, cap, count, ["events", "count"])?)
    })
}

/// Ends a reply: receives what was held back and the event END, unless it has been given, and readies the object for the next reply to the
/// same kind of prompt. Ids of calls count on.
///
/// `events`: room for `cap` of them; `count` receives how many there are. Answers `SEGNO_DONE` if the reply was over. Codes: BUFFER_TOO_SMALL
/// (nothing is lost: call again), INVALID_ARGUMENT (events of a push wait), NULL_POINTER, OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_reply_flush(
    reply: *mut segno_reply,
    events: *mut segno_event,
    cap: usize,
    count: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_reply(reply, err, |reply| reply.step(Step::Flush, &Buffer::new(events, cap, count, ["events", "count"])?))
}

/// Gives the name of the format that replies are read in, as in `segno_reply_opts`.
///
/// `buf`: room for `cap` bytes, NULL to ask; `len` receives how many there are. Codes: BUFFER_TOO_SMALL, NULL_POINTER, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_reply_format(
    reply: *mut segno_reply,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_reply(reply, err, |reply| {
        Buffer::new(buf.cast::<u8>(), cap, len, ["buf", "len"])?.fill(reply.reply.format().as_bytes())?;
        Ok(SEGNO_OK)
    })
}

/// Frees a reader; NULL is allowed. No call on it may be running. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_reply_free(reply: *mut segno_reply) {
    guard_free(|| drop(disown(reply)))
}
