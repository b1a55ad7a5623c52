//! Sequences of a session: opening, feeding, forking, cutting, closing.

use super::argument::{Buffer, Out, SizedStruct, known_flags, options, slice, write_sized};
use super::error::segno_error;
use super::guard::guard_value;
use super::session::{beside_session, segno_session, with_session};
use super::status::{SEGNO_OK, segno_status};
use crate::error::{Result, reserve};
use crate::sample;

/// A number added to a token's logit.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_logit_bias {
    /// The token.
    pub token: i32,
    /// Added to its logit; negative infinity bans it.
    pub bias: f32,
}

/// Tokens that end generation by the rules of the vocabulary do not end it; `stop_tokens` still do.
pub const SEGNO_SAMPLER_IGNORE_EOG: u32 = 1;
/// A seed taken at random.
pub const SEGNO_SEED_RANDOM: u64 = 0xFFFF_FFFF_FFFF_FFFF;

/// How tokens are drawn; fill with `segno_sampler_opts_init`. Applied in this order: bias, penalties over the last tokens of the history
/// (prompt included), top_k, typical_p, top_p, min_p, temperature. The draw depends on the seed, the position and the logits alone.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_sampler_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// `SEGNO_SAMPLER_...`, combined with `|`; 0 by default.
    pub flags: u32,
    /// 0 to 100, 0.8 by default; 0 takes the highest logit after bias and penalties.
    pub temperature: f32,
    /// Keeps the most probable tokens that sum to this, above 0 to 1, 0.95 by default; 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this probable relative to the best, 0 to 1, 0.05 by default; 0 is off.
    pub min_p: f32,
    /// Keeps the tokens whose information is closest to the expected, above 0 to 1; 1 (default) is off.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of repeated tokens, above 0 to 10; 1 (default) is off.
    pub repeat_penalty: f32,
    /// Subtracted for every occurrence of a token, -10 to 10; 0 (default) is off.
    pub frequency_penalty: f32,
    /// Subtracted once from tokens that have occurred, -10 to 10; 0 (default) is off.
    pub presence_penalty: f32,
    /// Keeps this many of the highest logits, 40 by default; 0 is off.
    pub top_k: i32,
    /// Tokens of the history that penalties look at, 64 by default; 0 is none, -1 is all.
    pub penalty_last_n: i32,
    /// Zero.
    pub reserved: u32,
    /// Seed of the draw, `SEGNO_SEED_RANDOM` by default.
    pub seed: u64,
    /// `bias_count` entries, copied; NULL when there are none.
    pub bias: *const segno_logit_bias,
    /// Number of entries at `bias`.
    pub bias_count: usize,
    /// `stop_token_count` tokens that end generation too, copied; NULL when there are none.
    pub stop_tokens: *const i32,
    /// Number of tokens at `stop_tokens`.
    pub stop_token_count: usize,
}

// SAFETY: repr(C), size first, twelve 4-byte and five 8-byte fields without padding; NULL pointers are valid.
unsafe impl SizedStruct for segno_sampler_opts {}

fn defaults() -> segno_sampler_opts {
    let options = sample::Options::defaults();
    segno_sampler_opts {
        struct_size: size_of::<segno_sampler_opts>() as u32,
        flags: 0,
        temperature: options.temperature,
        top_p: options.top_p,
        min_p: options.min_p,
        typical_p: options.typical_p,
        repeat_penalty: options.repeat_penalty,
        frequency_penalty: options.frequency_penalty,
        presence_penalty: options.presence_penalty,
        top_k: options.top_k,
        penalty_last_n: options.penalty_last_n,
        reserved: 0,
        seed: SEGNO_SEED_RANDOM,
        bias: std::ptr::null(),
        bias_count: 0,
        stop_tokens: std::ptr::null(),
        stop_token_count: 0,
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_sampler_opts_init(opts: *mut segno_sampler_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// The options of a sampler; NULL for defaults.
pub(super) fn sampler(opts: *const segno_sampler_opts) -> Result<sample::Options> {
    let opts = options(opts, defaults(), "opts")?;
    known_flags(opts.flags, SEGNO_SAMPLER_IGNORE_EOG, "sampler")?;
    let given = slice(opts.bias, opts.bias_count, "bias")?;
    let mut bias = reserve(given.len(), "bias")?;
    bias.extend(given.iter().map(|entry| (entry.token, entry.bias)));
    let given = slice(opts.stop_tokens, opts.stop_token_count, "stop_tokens")?;
    let mut stop_tokens = reserve(given.len(), "stop_tokens")?;
    stop_tokens.extend_from_slice(given);
    Ok(sample::Options {
        ignore_eog: opts.flags & SEGNO_SAMPLER_IGNORE_EOG != 0,
        temperature: opts.temperature,
        top_p: opts.top_p,
        min_p: opts.min_p,
        typical_p: opts.typical_p,
        repeat_penalty: opts.repeat_penalty,
        frequency_penalty: opts.frequency_penalty,
        presence_penalty: opts.presence_penalty,
        top_k: opts.top_k,
        penalty_last_n: opts.penalty_last_n,
        seed: opts.seed,
        bias,
        stop_tokens,
    })
}

/// Opens an empty sequence.
///
/// `opts`: NULL for defaults; arrays are copied. `seq` receives the id, which the session never uses again. Codes: NULL_POINTER,
/// INVALID_ARGUMENT (an option out of range), SEQ_FULL, OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_open(
    session: *mut segno_session,
    opts: *const segno_sampler_opts,
    seq: *mut i32,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        let out = Out::new(seq, "seq")?;
        out.set(session.open(sampler(opts)?)?);
        Ok(SEGNO_OK)
    })
}

/// Queues prompt tokens behind a sequence's history without evaluating them; the next decode or prefill calls do.
///
/// `tokens`: `count` ids. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT (a token outside the vocabulary; `segno_error_item` is its
/// index), CONTEXT_FULL (nothing is queued), OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_append(
    session: *mut segno_session,
    seq: i32,
    tokens: *const i32,
    count: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        session.append(seq, slice(tokens, count, "tokens")?)?;
        Ok(SEGNO_OK)
    })
}

/// Queues prompt tokens and evaluates the whole queue, in as many passes as it takes. A failed or cancelled call leaves the sequence
/// at its length before it.
///
/// `tokens`: `count` ids. Codes: those of `segno_seq_append`, KV_FULL, DEVICE, and the outcome `SEGNO_CANCELLED`. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_prefill(
    session: *mut segno_session,
    seq: i32,
    tokens: *const i32,
    count: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        session.prefill(seq, slice(tokens, count, "tokens")?, cancel)?;
        Ok(SEGNO_OK)
    })
}

/// Number of tokens of a sequence: evaluated, queued and sampled.
///
/// `tokens` receives it; beside a running call, what the last finished pass has left. Codes: NULL_POINTER, NOT_FOUND, POISONED. Any thread, beside
/// a running call too, for which it does not wait. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_length(
    session: *const segno_session,
    seq: i32,
    tokens: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    beside_session(session, err, |shown| {
        let out = Out::new(tokens, "tokens")?;
        out.set(shown.sequence(seq)?.tokens as usize);
        Ok(())
    })
}

/// Figures of a sequence. Of a running call they are those that its last finished pass has left; together they are of one moment.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_seq_stats {
    /// Bytes of this struct that the library knows.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Its tokens: evaluated, queued and sampled.
    pub tokens: u64,
    /// Those whose keys and values are in the KV cache; the others are evaluated by the calls that need them.
    pub evaluated: u64,
    /// Pages of the KV cache that it holds, those that it shares with others included; of the layers that see everything.
    pub pages: u64,
    /// Tokens that were evaluated for it as prompts; a fork begins at 0.
    pub prompt_tokens: u64,
    /// Tokens that it has sampled; a fork begins at 0.
    pub decoded_tokens: u64,
    /// Seed of its draw; of a random one what it came to, so that the same words can be had again.
    pub seed: u64,
    /// Drafts that were evaluated for it (`speculation` of the session's options).
    pub drafted: u64,
    /// Those of them that were right.
    pub accepted: u64,
}

// SAFETY: repr(C), size first, 4 + 4 + 8 * 8 bytes without padding, numbers only.
unsafe impl SizedStruct for segno_seq_stats {}

/// Tells the figures of a sequence.
///
/// `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT, POISONED. Any thread, beside a
/// running call too, which it does not delay, and for which it does not wait. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_stats_get(
    session: *const segno_session,
    seq: i32,
    out: *mut segno_seq_stats,
    size: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    beside_session(session, err, |shown| {
        let stats = shown.sequence(seq)?;
        let value = segno_seq_stats {
            struct_size: 0,
            reserved: 0,
            tokens: stats.tokens,
            evaluated: stats.evaluated,
            pages: stats.pages,
            prompt_tokens: stats.prompt_tokens,
            decoded_tokens: stats.decoded_tokens,
            seed: stats.seed,
            drafted: stats.drafted,
            accepted: stats.accepted,
        };
        Ok(write_sized(out, size, &value, "out")?)
    })
}

/// Raw logits after the last token of a sequence, evaluating its queue first.
///
/// `buf`: room for `cap` floats; `count` receives the number of logits, the vocabulary's size. `buf` NULL with `cap` 0 asks for that number
/// and evaluates nothing. Codes: NULL_POINTER, NOT_FOUND, BUFFER_TOO_SMALL (before any evaluation), INVALID_ARGUMENT (an empty sequence),
/// KV_FULL, DEVICE, BUSY, POISONED, and the outcome `SEGNO_CANCELLED`. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_logits(
    session: *mut segno_session,
    seq: i32,
    buf: *mut f32,
    cap: usize,
    count: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        let buffer = Buffer::new(buf, cap, count, ["buf", "count"])?;
        session.length(seq)?;
        if !buffer.is_query() {
            buffer.require(session.model().vocab())?;
            buffer.fill(session.logits(seq, cancel)?)?;
        } else {
            count_only(&buffer, session.model().vocab());
        }
        Ok(SEGNO_OK)
    })
}

fn count_only(buffer: &Buffer<f32>, vocab: usize) {
    // A query has no room, so the size needed is told and the answer is not an error.
    let _ = buffer.require(vocab);
}

/// Gives a sequence another sampler, from its next token on.
///
/// `opts`: NULL for defaults; arrays are copied. Codes: NOT_FOUND, INVALID_ARGUMENT (an option out of range), NULL_POINTER, OUT_OF_MEMORY, BUSY,
/// POISONED; a failed call keeps the old sampler. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_sampler_set(
    session: *mut segno_session,
    seq: i32,
    opts: *const segno_sampler_opts,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        session.set_sampler(seq, sampler(opts)?)?;
        Ok(SEGNO_OK)
    })
}

/// Opens a sequence with the history of another, queue included; evaluated tokens are shared, not copied.
///
/// `opts`: NULL keeps the parent's options, and its seed if one was given; the fork of a sequence with a random seed gets another one. `out` receives
/// the new id. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT, SEQ_FULL, KV_FULL, OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_fork(
    session: *mut segno_session,
    seq: i32,
    opts: *const segno_sampler_opts,
    out: *mut i32,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        let out = Out::new(out, "out")?;
        let sampler = if opts.is_null() { None } else { Some(sampler(opts)?) };
        out.set(session.fork(seq, sampler)?);
        Ok(SEGNO_OK)
    })
}

/// Keeps the first `tokens` tokens of a sequence; 0 empties it.
///
/// Of most models this costs one token, which the next call evaluates again where it needs logits. Layers that see a window keep the last
/// tokens alone: a model with such layers is cut by up to about `max_prompt` tokens at that price, further back it gives its pages up and evaluates
/// what is kept anew in the calls that follow, `segno_decode_step` with PENDING until it is done. Layers with a state (LFM2, Qwen 3.5) cannot be cut
/// anywhere: the sequence goes back to the last mark before, and evaluates what lies between likewise. Prompts set marks by themselves, at the end
/// of each pass and of the prompt, so that a cut back to the last turn costs a token; `segno_seq_mark` sets more.
///
/// Codes: NOT_FOUND, INVALID_ARGUMENT (more than its length), BUSY, POISONED, NULL_POINTER. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_truncate(
    session: *mut segno_session,
    seq: i32,
    tokens: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        session.truncate(seq, tokens)?;
        Ok(SEGNO_OK)
    })
}

/// Takes `count` tokens out of a sequence, from the index `first` on: how a sequence whose context is full goes on, with its head kept and the oldest
/// of the rest forgotten. What follows is what would follow in a new sequence of the tokens that are left: those behind the gap are queued, and
/// evaluated again by the calls that need them, `segno_decode_step` with PENDING until it is done. Those before it stay evaluated as
/// `segno_seq_truncate` says.
///
/// A grammar goes on where it is; tokens that it has followed cannot be taken out. `segno_chat_next` forgets whole turns by itself. Codes: NOT_FOUND,
/// INVALID_ARGUMENT (beyond its length, or tokens that its grammar has followed), OUT_OF_MEMORY (nothing has changed), BUSY, POISONED,
/// NULL_POINTER. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_remove(
    session: *mut segno_session,
    seq: i32,
    first: usize,
    count: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        session.remove(seq, first, count)?;
        Ok(SEGNO_OK)
    })
}

/// Sets a mark at the present length of a sequence: a snapshot of the states of its layers, to which `segno_seq_truncate` can go back. Tokens
/// that are queued are not evaluated for it, so call it behind `segno_seq_prefill` or a decode call. Marks of all sequences share `max_marks`
/// snapshots, of which the oldest is given up for a new one; forks share those of their parent.
///
/// Models whose layers have no state need no marks, and the call does nothing. Codes: NOT_FOUND, BUSY, POISONED, NULL_POINTER. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_mark(session: *mut segno_session, seq: i32, err: *mut *mut segno_error) -> segno_status {
    with_session(session, err, |session, _| {
        session.mark(seq)?;
        Ok(SEGNO_OK)
    })
}

/// Tells how many tokens of a sequence would stay evaluated if it were cut to its first `tokens`: what lies behind is evaluated again by the
/// calls that follow. Where layers have a state that is the place of the last mark before.
///
/// `found` receives the number, `tokens` at most; the last token is evaluated again where its logits are wanted, which may ask for a mark
/// before it. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT (more than its length), BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_mark_nearest(
    session: *mut segno_session,
    seq: i32,
    tokens: usize,
    found: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        let out = Out::new(found, "found")?;
        out.set(session.mark_nearest(seq, tokens)?);
        Ok(SEGNO_OK)
    })
}

/// Closes a sequence and gives its pages back to the pool.
///
/// Codes: NOT_FOUND, BUSY, POISONED, NULL_POINTER. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_seq_close(session: *mut segno_session, seq: i32, err: *mut *mut segno_error) -> segno_status {
    with_session(session, err, |session, _| {
        session.close(seq)?;
        Ok(SEGNO_OK)
    })
}
