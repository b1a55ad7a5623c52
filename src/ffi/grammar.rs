//! Grammars: the noun `segno_grammar`, and the call that gives one to a sequence.

use super::argument::{Out, SizedStruct, check_reserved, known_flags, options, slice, write_sized};
use super::error::segno_error;
use super::guard::{guard, guard_free, guard_value};
use super::handle::{Handle, Object, borrow, share, share_of, unshare};
use super::model::segno_model;
use super::session::{segno_session, with_session};
use super::status::{SEGNO_OK, segno_status};
use crate::error::{Error, Result};
use crate::grammar::{Form, Grammar, Kind};
use std::ffi::c_char;
use std::sync::Arc;

/// JSON Schema, drafts 4 to 2020-12.
pub const SEGNO_GRAMMAR_JSON_SCHEMA: i32 = 0;
/// A regular expression that the whole text matches.
pub const SEGNO_GRAMMAR_REGEX: i32 = 1;
/// Lark, as llguidance has it.
pub const SEGNO_GRAMMAR_LARK: i32 = 2;
/// GBNF, the notation of llama.cpp; the text is what its rule `root` describes.
pub const SEGNO_GRAMMAR_GBNF: i32 = 3;

/// JSON of a schema has no white space outside of strings.
pub const SEGNO_GRAMMAR_COMPACT: u32 = 1;

/// A compiled grammar: which tokens of a model may follow which. Owned by the host, immutable; sequences that have it keep it alive.
#[allow(non_camel_case_types)]
pub struct segno_grammar {
    _private: [u8; 0],
}

impl Handle for segno_grammar {
    type Target = Grammar;
    const KIND: Object = Object::Grammar;
}

/// What a grammar is compiled from; fill with `segno_grammar_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_grammar_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// One of `SEGNO_GRAMMAR_JSON_SCHEMA` (default), `_REGEX`, `_LARK` and `_GBNF`.
    pub kind: i32,
    /// `SEGNO_GRAMMAR_COMPACT` or 0 (default).
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// The grammar, UTF-8, at most 256 KiB; not NUL-terminated. NULL (default) is the schema of any JSON value.
    pub text: *const c_char,
    /// Bytes at `text`.
    pub text_len: usize,
}

// SAFETY: repr(C), size first, four 4-byte and two 8-byte fields without padding; a NULL pointer is valid.
unsafe impl SizedStruct for segno_grammar_opts {}

fn defaults() -> segno_grammar_opts {
    segno_grammar_opts {
        struct_size: size_of::<segno_grammar_opts>() as u32,
        kind: SEGNO_GRAMMAR_JSON_SCHEMA,
        flags: 0,
        reserved: 0,
        text: std::ptr::null(),
        text_len: 0,
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_grammar_opts_init(opts: *mut segno_grammar_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Compiles a grammar for the tokens of a model. Any number of sequences, sessions and threads share it.
///
/// `opts`: NULL for any JSON value. `out` receives the grammar, NULL on failure; free it with `segno_grammar_free`. The first grammar of a model
/// also brings its tokens in order, which takes about a second and 110 MB for 256,000 tokens, and stays with the model. Every text ends in a
/// grammar or an error within about two seconds and 256 MB. A schema's properties come in its order; what it says must hold, so that one with
/// keywords that cannot be watched while a text is written (`not`, `if`, `contains`, `uniqueItems`, `propertyNames`, `unevaluated...`,
/// `dependent...`) is refused by name, and one that refers to other documents or by `$id` and `$anchor` is too. A regular expression has Rust's
/// syntax, without look-around and word boundaries. Special tokens are let through only where a grammar in Lark names them: `<|name|>` or
/// `<[number]>`. Codes: NULL_POINTER, INVALID_ARGUMENT (not UTF-8, unknown kind or flags), GRAMMAR (line or place, and cause), UNSUPPORTED (the
/// file has no tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_grammar_create(
    model: *const segno_model,
    opts: *const segno_grammar_opts,
    out: *mut *mut segno_grammar,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(model).ok().map(|model| &**model.context());
    guard(context, err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let model = borrow(model)?;
        let opts = options(opts, defaults(), "opts")?;
        out.set(share(Arc::new(model.compile(&form(&opts)?)?))?);
        Ok(SEGNO_OK)
    })
}

fn form(opts: &segno_grammar_opts) -> Result<Form<'_>> {
    known_flags(opts.flags, SEGNO_GRAMMAR_COMPACT, "grammar")?;
    check_reserved(opts.reserved)?;
    let kind = match opts.kind {
        SEGNO_GRAMMAR_JSON_SCHEMA => Kind::JsonSchema,
        SEGNO_GRAMMAR_REGEX => Kind::Regex,
        SEGNO_GRAMMAR_LARK => Kind::Lark,
        SEGNO_GRAMMAR_GBNF => Kind::Gbnf,
        other => return Err(Error::InvalidArgument(format!("there is no kind {other} of grammar"))),
    };
    let is_any = kind == Kind::JsonSchema && opts.text.is_null() && opts.text_len == 0;
    let text = if is_any { b"{}" } else { slice(opts.text.cast::<u8>(), opts.text_len, "text")? };
    Ok(Form { kind, text, compact: opts.flags & SEGNO_GRAMMAR_COMPACT != 0 })
}

/// Frees a grammar; NULL is allowed. Sequences that have it keep what they need of it. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_grammar_free(grammar: *mut segno_grammar) {
    guard_free(|| drop(unshare(grammar)))
}

/// Lets the tokens that a sequence samples follow a grammar, or sets it free again.
///
/// `grammar`: NULL for none. It begins with the next sampled token; with a `start_token` of 0 or more behind the next sampled token of that id, and
/// until then every token may come. -1: at once. Tokens that the host appends do not move it. Where the text may end, the tokens that end
/// generation may come too, and with one of them `SEGNO_DONE`; where nothing else may come, one of them does, and where the sampler ignores
/// them all, the step answers `SEGNO_GRAMMAR_END`, and so does every one behind the end, until another grammar or none is set. A fork walks on
/// from where its parent is, and `segno_seq_truncate` leads back to where the sequence was at that length. Codes: NULL_POINTER (the
/// session), NOT_FOUND, INVALID_ARGUMENT (a grammar of another model, a token outside the vocabulary), OUT_OF_MEMORY, BUSY, POISONED; a failed call
/// changes nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_grammar_set(
    session: *mut segno_session,
    seq: i32,
    grammar: *const segno_grammar,
    start_token: i32,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        let grammar = if grammar.is_null() { None } else { Some(share_of(grammar)?) };
        let trigger = if start_token == -1 { None } else { Some(start_token) };
        session.set_grammar(seq, grammar.as_ref(), trigger)?;
        Ok(SEGNO_OK)
    })
}
