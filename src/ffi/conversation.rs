//! Conversations: the noun `segno_chat`, messages and the sequence that answers them.

use super::argument::{Buffer, Out, SizedStruct, known_flags, optional_name, options, slice, write_sized};
use super::chat::{optional, optional_text};
use super::error::segno_error;
use super::exclusive::Exclusive;
use super::grammar::segno_grammar;
use super::guard::{guard, guard_free, guard_value};
use super::handle::{Handle, Object, borrow, share, share_of, unshare};
use super::seq::{sampler, segno_sampler_opts};
use super::session::{Shared as SharedSession, segno_session, with_session};
use super::status::{SEGNO_OK, segno_status};
use super::text::{segno_string, stop_texts};
use super::tools::{SEGNO_TOOLS_FREE, choice as choice_of, is_parallel};
use crate::engine::conversation::{End, Setup, owned_bytes, owned_text};
use crate::engine::{Conversation, Failure};
use crate::error::{Error, Result};
use std::ffi::c_char;
use std::sync::Arc;

/// When the context is full, the oldest turns are forgotten: a user's message with all that answers it, never the system's messages, never
/// the newest turn. Messages that are forgotten stay in the conversation, but the model no longer sees them.
pub const SEGNO_CHAT_FORGET: u32 = 1;

/// No reply has ended yet, or one is being written.
pub const SEGNO_CHAT_END_NONE: i32 = 0;
/// The model ended the reply.
pub const SEGNO_CHAT_END_TOKEN: i32 = 1;
/// A stop string was complete.
pub const SEGNO_CHAT_END_STOP: i32 = 2;
/// The reply had `max_tokens`.
pub const SEGNO_CHAT_END_LENGTH: i32 = 3;
/// The grammar let nothing follow.
pub const SEGNO_CHAT_END_GRAMMAR: i32 = 4;
/// A message was added before the reply was over.
pub const SEGNO_CHAT_END_INTERRUPTED: i32 = 5;

/// A conversation: messages, the template that renders them, one sequence of a session, and the reader of its replies. Owned by the host, one
/// call at a time; from `segno_chat_submit` until `segno_chat_poll` has told what became of the step, a call is running. Keeps its session alive.
#[allow(non_camel_case_types)]
pub struct segno_chat {
    _private: [u8; 0],
}

/// What lies behind a `segno_chat`.
pub(super) struct Shared {
    pub(super) session: Arc<SharedSession>,
    pub(super) conversation: Exclusive<Conversation>,
}

impl Handle for segno_chat {
    type Target = Shared;
    const KIND: Object = Object::Chat;
}

/// Options of a conversation; fill with `segno_chat_create_opts_init`. Texts are UTF-8; everything is copied.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_chat_create_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// `SEGNO_CHAT_FORGET` or 0 (default): then a full context is CONTEXT_FULL.
    pub flags: u32,
    /// What the system says, the first message; NULL (default) for nothing.
    pub system_text: *const c_char,
    /// Bytes at `system_text`.
    pub system_len: usize,
    /// A template in place of the model's own, at most 128 KiB; NULL (default) for the model's.
    pub template_text: *const c_char,
    /// Bytes at `template_text`.
    pub template_len: usize,
    /// The tools that the model may call, a JSON array; NULL (default) for none.
    pub tools_json: *const c_char,
    /// Bytes at `tools_json`.
    pub tools_len: usize,
    /// A JSON object whose entries become variables of the template, `enable_thinking` for example; NULL (default) for none.
    pub vars_json: *const c_char,
    /// Bytes at `vars_json`.
    pub vars_len: usize,
    /// The time that the template sees in every turn, in Unix seconds, UTC; 0 (default): the clock as the conversation begins.
    pub now: i64,
    /// Name of the format of replies, NUL-terminated, as in `segno_reply_opts`; NULL (default): the template tells.
    pub format: *const c_char,
    /// `stop_count` texts that end the content of a reply; NULL when there are none.
    pub stops: *const segno_string,
    /// Number of texts at `stops`.
    pub stop_count: usize,
    /// How tokens are drawn; NULL for defaults. A token that ends generation by the rules of the vocabulary ends a reply whatever it says.
    pub sampler: *const segno_sampler_opts,
    /// What the content of each reply follows, behind its reasoning if the prompt opens that; NULL (default) for none.
    pub grammar: *const segno_grammar,
    /// The sampled token behind which the grammar begins instead; -1 (default) for none.
    pub grammar_start: i32,
    /// Most tokens of a reply; 0 (default): as many as fit.
    pub max_tokens: u32,
    /// Most tokens of a reply's reasoning: then the marker that ends it is put in for the model. -1 (default): no limit.
    pub reasoning_tokens: i64,
    /// Most tokens of the conversation in the cache; 0 (default): the model's context or the session's `kv_tokens`, whichever is less. Several
    /// conversations share `kv_tokens`.
    pub context_tokens: u64,
}

// SAFETY: repr(C), size first, two 4-byte fields, fourteen of 8 bytes, two of 4 and two of 8 without padding; NULL pointers are valid.
unsafe impl SizedStruct for segno_chat_create_opts {}

/// Figures of a conversation, and of its last turn.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_chat_stats {
    /// Bytes of this struct that the library knows.
    pub struct_size: u32,
    /// `SEGNO_CHAT_END_...`: why the last reply ended.
    pub end: i32,
    /// Messages, forgotten ones included.
    pub messages: u64,
    /// Messages that the model no longer sees: those that follow the system's.
    pub forgotten: u64,
    /// Turns: a message of the user, or several, with all that answers it; what comes before the first of these is one too.
    pub turns: u64,
    /// Index of the first message of the newest turn; `messages` if there is none.
    pub last_turn: u64,
    /// Tokens of the conversation as the last reply found it.
    pub prompt_tokens: u64,
    /// Those of them that were in the cache already.
    pub kept_tokens: u64,
    /// Tokens that had to be evaluated before the first token of the reply: what is new, and the last token of what was kept, if nothing is.
    pub evaluated_tokens: u64,
    /// Tokens of the reply.
    pub reply_tokens: u64,
    /// Those of them that were reasoning.
    pub reasoning_tokens: u64,
}

// SAFETY: repr(C), size first, 4 + 4 + 9 * 8 bytes without padding, numbers only.
unsafe impl SizedStruct for segno_chat_stats {}

fn defaults() -> segno_chat_create_opts {
    segno_chat_create_opts {
        struct_size: size_of::<segno_chat_create_opts>() as u32,
        flags: 0,
        system_text: std::ptr::null(),
        system_len: 0,
        template_text: std::ptr::null(),
        template_len: 0,
        tools_json: std::ptr::null(),
        tools_len: 0,
        vars_json: std::ptr::null(),
        vars_len: 0,
        now: 0,
        format: std::ptr::null(),
        stops: std::ptr::null(),
        stop_count: 0,
        sampler: std::ptr::null(),
        grammar: std::ptr::null(),
        grammar_start: -1,
        max_tokens: 0,
        reasoning_tokens: -1,
        context_tokens: 0,
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_create_opts_init(opts: *mut segno_chat_create_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

fn setup(opts: &segno_chat_create_opts) -> Result<Setup> {
    known_flags(opts.flags, SEGNO_CHAT_FORGET, "chat")?;
    let count = |name: &str, value: i64| match value {
        -1 => Ok(None),
        0.. => Ok(Some(usize::try_from(value).unwrap_or(usize::MAX))),
        _ => Err(Error::InvalidArgument(format!("{name} is {value}; give a number from 0 on, or -1 for none"))),
    };
    Ok(Setup {
        template: owned_text(optional_text(opts.template_text, opts.template_len, "template_text")?)?,
        tools_json: owned_bytes(optional(opts.tools_json, opts.tools_len, "tools_json")?)?,
        vars_json: owned_bytes(optional(opts.vars_json, opts.vars_len, "vars_json")?)?,
        now: opts.now,
        format: owned_text(optional_name(opts.format, "format")?)?,
        stops: stop_texts(opts.stops, opts.stop_count)?,
        grammar: if opts.grammar.is_null() { None } else { Some(share_of(opts.grammar)?) },
        grammar_start: count("grammar_start", opts.grammar_start.into())?.map(|_| opts.grammar_start),
        forgets: opts.flags & SEGNO_CHAT_FORGET != 0,
        max_tokens: opts.max_tokens as usize,
        reasoning_tokens: count("reasoning_tokens", opts.reasoning_tokens)?,
        context_tokens: usize::try_from(opts.context_tokens).unwrap_or(usize::MAX),
    })
}

/// Begins a conversation: opens a sequence of the session for it.
///
/// `opts`: NULL for defaults. `out` receives the conversation, NULL on failure; free it with `segno_chat_free`. Codes: NULL_POINTER,
/// INVALID_ARGUMENT (an option out of range, tools that are no JSON array, a bad stop string, a grammar of another model), NOT_FOUND (neither the
/// model nor `opts` has a template, or there is no such format), UNSUPPORTED (the file has no tokenizer), SEQ_FULL, OUT_OF_MEMORY, BUSY (the
/// session), POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_create(
    session: *mut segno_session,
    opts: *const segno_chat_create_opts,
    out: *mut *mut segno_chat,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |entered, _| {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let opts = options(opts, defaults(), "opts")?;
        let system = optional_text(opts.system_text, opts.system_len, "system_text")?;
        let conversation = Conversation::create(entered, setup(&opts)?, system, sampler(opts.sampler)?)?;
        out.set(shared(share_of(session)?, conversation)?);
        Ok(SEGNO_OK)
    })
}

fn shared(session: Arc<SharedSession>, conversation: Conversation) -> Result<*mut segno_chat> {
    share(Arc::new(Shared { session, conversation: Exclusive::new(conversation) }))
}

/// Runs the body of a call on a conversation that does without its session.
pub(super) fn with_chat(
    chat: *const segno_chat,
    err: *mut *mut segno_error,
    body: impl FnOnce(&mut Conversation) -> Result<segno_status>,
) -> segno_status {
    let context = borrow(chat).ok().map(|shared| shared.session.context());
    guard(context, err, || {
        let mut conversation = borrow(chat)?.conversation.enter(segno_chat::NAME)?;
        Ok::<_, Failure>(body(&mut conversation)?)
    })
}

/// Adds a message that is a text. A reply that is being written ends there: what there is of it becomes the assistant's message, and events
/// that have not been taken are lost.
///
/// `role`: NUL-terminated, "user" for example. `text`: `len` bytes of UTF-8; no part of it ever becomes a special token. Nothing is rendered before
/// the next reply. Codes: NULL_POINTER, INVALID_ARGUMENT (not UTF-8), OUT_OF_MEMORY, BUSY, POISONED; a failed call adds nothing. May run beside a
/// call on the session for others. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_say(
    chat: *mut segno_chat,
    role: *const c_char,
    text: *const c_char,
    len: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_chat(chat, err, |conversation| {
        let role = super::argument::text(role, "role")?;
        conversation.say(role, optional_text(text, len, "text")?.unwrap_or_default())?;
        Ok(SEGNO_OK)
    })
}

/// Adds a message, or an array of messages, as JSON: what a tool answers, a message with parts, or all that `segno_chat_messages` has given. A
/// reply that is being written ends there, as with `segno_chat_say`.
///
/// `message_json`: `len` bytes, objects as for `segno_chat_render`, each with a text as its "role". Codes: NULL_POINTER, INVALID_ARGUMENT (JSON that
/// is none, a message without a role), OUT_OF_MEMORY, BUSY, POISONED; a failed call adds nothing. May run beside a call on the session for others.
/// Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_add(
    chat: *mut segno_chat,
    message_json: *const c_char,
    len: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_chat(chat, err, |conversation| {
        conversation.add(slice(message_json.cast::<u8>(), len, "message_json")?)?;
        Ok(SEGNO_OK)
    })
}

/// Lets the replies that begin from now on call the conversation's tools as a grammar has it: names are those of tools, arguments meet their
/// schemas. It begins with the token that begins a call, behind reasoning, where the family has one; see `segno_tools_grammar_create`, whose flags
/// and choices these are. The calls are events and become a part of the assistant's message, and `segno_chat_add` takes what the tools answer.
///
/// `choice`: `SEGNO_TOOLS_AUTO`, `_REQUIRED`, `_NONE`, `_NAMED`, or `_FREE` for replies that nothing watches, as at the beginning. `flags`:
/// `SEGNO_TOOLS_ONE_CALL` or 0. `name`: the tool of `SEGNO_TOOLS_NAMED`, NUL-terminated, else not looked at. A reply that is being written goes
/// on as it began. Codes: NULL_POINTER, INVALID_ARGUMENT (unknown flags or choice, tools that are none, a conversation with a grammar), NOT_FOUND
/// (no such tool), GRAMMAR (which tool cannot be watched, and why), TEMPLATE, OUT_OF_MEMORY, BUSY, POISONED; a failed call changes nothing. May
/// run beside a call on the session for others. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_tools_set(
    chat: *mut segno_chat,
    choice: i32,
    flags: u32,
    name: *const c_char,
    err: *mut *mut segno_error,
) -> segno_status {
    with_chat(chat, err, |conversation| {
        let parallel = is_parallel(flags)?;
        let choice = if choice == SEGNO_TOOLS_FREE { None } else { Some(choice_of(choice, name)?) };
        conversation.watch_calls(choice, parallel)?;
        Ok(SEGNO_OK)
    })
}

/// Cuts a conversation back to its first `messages` messages, without the reply that is being written. `last_turn` of `segno_chat_stats` undoes the
/// newest turn, one more lets it be answered anew.
///
/// What the cache has of it is kept until the next reply, which uses as much as it can. Codes: INVALID_ARGUMENT (more than there are), NULL_POINTER,
/// BUSY, POISONED. May run beside a call on the session for others. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_truncate(
    chat: *mut segno_chat,
    messages: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_chat(chat, err, |conversation| {
        conversation.truncate(messages)?;
        Ok(SEGNO_OK)
    })
}

/// Gives all messages as a JSON array, forgotten ones included, and without the reply that is being written. `segno_chat_add` takes it, so that a
/// conversation can be saved and begun again.
///
/// Messages of the assistant have "role", "content", and where there are any "reasoning_content" and "tool_calls", whose arguments are objects.
/// `buf`: room for `cap` bytes, NULL to ask; `len` receives how many there are. Codes: BUFFER_TOO_SMALL, NULL_POINTER, OUT_OF_MEMORY, BUSY, POISONED.
/// May run beside a call on the session for others. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_messages(
    chat: *const segno_chat,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_chat(chat, err, |conversation| {
        let buffer = Buffer::new(buf.cast::<u8>(), cap, len, ["buf", "len"])?;
        buffer.fill(conversation.messages_json()?.as_bytes())?;
        Ok(SEGNO_OK)
    })
}

/// Tells the sequence of a conversation, for its figures, its logits or another sampler. The conversation brings its tokens up to date with every
/// reply, and closes it.
///
/// `seq` receives its id. Codes: NULL_POINTER, BUSY, POISONED. May run beside a call on the session for others. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_seq(chat: *const segno_chat, seq: *mut i32, err: *mut *mut segno_error) -> segno_status {
    with_chat(chat, err, |conversation| {
        Out::new(seq, "seq")?.set(conversation.seq());
        Ok(SEGNO_OK)
    })
}

/// Tells the figures of a conversation.
///
/// `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT, BUSY, POISONED. May run beside a call on the
/// session for others. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_stats_get(
    chat: *const segno_chat,
    out: *mut segno_chat_stats,
    size: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_chat(chat, err, |conversation| {
        let figures = conversation.figures();
        let messages = conversation.message_count();
        let value = segno_chat_stats {
            struct_size: 0,
            end: end_of(figures.end),
            messages: messages as u64,
            forgotten: conversation.forgotten() as u64,
            turns: conversation.turns().count() as u64,
            last_turn: conversation.turns().next_back().unwrap_or(messages) as u64,
            prompt_tokens: figures.prompt as u64,
            kept_tokens: figures.kept as u64,
            evaluated_tokens: figures.evaluated as u64,
            reply_tokens: figures.reply as u64,
            reasoning_tokens: figures.reasoning as u64,
        };
        write_sized(out, size, &value, "out")?;
        Ok(SEGNO_OK)
    })
}

fn end_of(end: End) -> i32 {
    match end {
        End::None => SEGNO_CHAT_END_NONE,
        End::Token => SEGNO_CHAT_END_TOKEN,
        End::Stop => SEGNO_CHAT_END_STOP,
        End::Length => SEGNO_CHAT_END_LENGTH,
        End::Grammar => SEGNO_CHAT_END_GRAMMAR,
        End::Interrupted => SEGNO_CHAT_END_INTERRUPTED,
    }
}

/// Begins a conversation with the messages of another, the reply that is being written included; what is evaluated is shared, not copied.
///
/// `opts`: NULL keeps the options of the sampler, as `segno_seq_fork` does. `out` receives the conversation, NULL on failure; free it with
/// `segno_chat_free`. Codes: NULL_POINTER, INVALID_ARGUMENT, SEQ_FULL, KV_FULL, NOT_FOUND (the host has closed the sequence), OUT_OF_MEMORY, BUSY
/// (the conversation or its session), POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_fork(
    chat: *const segno_chat,
    opts: *const segno_sampler_opts,
    out: *mut *mut segno_chat,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(chat).ok().map(|shared| shared.session.context());
    guard(context, err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let parent = borrow(chat)?;
        let conversation = parent.conversation.enter(segno_chat::NAME)?;
        let sampler = if opts.is_null() { None } else { Some(sampler(opts)?) };
        let fork = parent.session.run(|session, _| Ok(conversation.fork(session, sampler)?))?;
        out.set(shared(Arc::clone(&parent.session), fork)?);
        Ok(SEGNO_OK)
    })
}

/// Frees a conversation and its sequence; NULL is allowed. No call on it may be running; one on its session may, and then the sequence is closed
/// as the session's next call begins. A step that was submitted of it goes on, and what comes of it is nobody's: for this conversation
/// `segno_chat_poll` tells `SEGNO_CANCELLED`. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_free(chat: *mut segno_chat) {
    guard_free(|| {
        if let Some(chat) = unshare(chat) {
            let session = Arc::clone(&chat.session);
            drop(chat);
            session.close_abandoned();
        }
    })
}
