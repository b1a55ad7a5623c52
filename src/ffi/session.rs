//! The noun `segno_session`: sequences of one model, their cache and buffers.

use super::argument::{Out, SizedStruct, check_reserved, options, write_sized};
use super::error::segno_error;
use super::exclusive::Exclusive;
use super::guard::{guard, guard_free, guard_value};
use super::handle::{Handle, Object, borrow, share, share_of, unshare};
use super::model::segno_model;
use super::process;
use super::status::{SEGNO_E_PANIC, SEGNO_OK, segno_status, status_of};
use super::submit::Submitter;
use crate::backend::KvType;
use crate::engine::session::Options;
use crate::engine::stats::{SessionStats, Shown};
use crate::engine::{Context, Failure, Model, Session};
use crate::error::{Error, Result};
use crate::kv::PAGE_TOKENS;
use crate::speculate::{self, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything that changes while a model runs: sequences, KV cache, buffers. Owned by the host; takes one call at a time, a second
/// one gets BUSY. Beside a call may run `segno_session_cancel`, `segno_session_stats_get`, `segno_seq_stats_get` and `segno_seq_length`.
/// From `segno_session_submit` until `segno_session_poll` has told what became of the step, a call is running. Keeps its model alive.
#[allow(non_camel_case_types)]
pub struct segno_session {
    _private: [u8; 0],
}

/// What a call on a session, and the thread that works for one, needs.
pub(super) struct Core {
    pub(super) context: Arc<Context>,
    pub(super) cancel: AtomicBool,
    pub(super) session: Exclusive<Session>,
}

/// What lies behind a `segno_session`.
pub(super) struct Shared {
    /// What hosts submit steps to; made by the first of them. Its thread ends before the session does.
    pub(super) submitter: Exclusive<Option<Submitter>>,
    pub(super) core: Arc<Core>,
    shown: Shown,
    /// Whether a conversation was freed beside a running call, so that its sequence is still open.
    has_abandoned: AtomicBool,
}

impl Shared {
    /// The context of its model.
    pub(super) fn context(&self) -> &Context {
        &self.core.context
    }

    /// Runs the body of a call: enters the lock, and hands out the cancel flag.
    pub(super) fn run<T>(
        &self,
        body: impl FnOnce(&mut Session, &AtomicBool) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut session = self.core.session.enter(segno_session::NAME)?;
        if self.has_abandoned.swap(false, Ordering::AcqRel) {
            session.close_abandoned()?;
        }
        let result = body(&mut session, &self.core.cancel);
        session.show();
        result
    }

    /// Closes sequences whose conversations are gone: now, or as the next call begins if one is running.
    pub(super) fn close_abandoned(&self) {
        self.has_abandoned.store(true, Ordering::Release);
        // What fails is a session that is in use, or of no more use.
        let _ = self.run(|_, _| Ok(()));
    }
}

impl Handle for segno_session {
    type Target = Shared;
    const KIND: Object = Object::Session;
}

/// KV cache in 16-bit floats.
pub const SEGNO_KV_F16: i32 = 0;
/// KV cache in 32-bit floats.
pub const SEGNO_KV_F32: i32 = 1;
/// KV cache in 8-bit integers, with a 16-bit scale for each 32: 53 % of the memory of `SEGNO_KV_F16`. Heads are rotated by Hadamard matrices as they
/// are stored, and results back, so that an outlier coarsens its block less.
pub const SEGNO_KV_Q8: i32 = 2;

/// No speculation.
pub const SEGNO_SPECULATION_OFF: i32 = 0;
/// Drafts from all that is there: repetitions in a sequence's text, and the draft model if there is one, or else the model's own predictor (MTP), if
/// it has one that runs on its device.
pub const SEGNO_SPECULATION_AUTO: i32 = 1;
/// Drafts from repetitions in a sequence's own text, prompt included: for edits of code, summaries, quotes.
pub const SEGNO_SPECULATION_NGRAM: i32 = 2;
/// Drafts from the draft model.
pub const SEGNO_SPECULATION_DRAFT: i32 = 3;
/// Drafts from the model's own predictor (multi-token prediction, MTP): the first block behind the layers of files whose metadata has
/// `nextn_predict_layers` (Qwen 3.5 and 3.6, GLM 4.5 and later, DeepSeek), and of folders whose `config.json` announces such blocks and whose
/// weights have them. It has a cache of its own, which counts as KV memory,
/// and reads what each pass leaves of all its tokens, prompts included. The first session of a model that uses it brings it to the device.
pub const SEGNO_SPECULATION_MTP: i32 = 4;
/// Added to one of the others: drafts are evaluated whether they are expected to pay or not.
pub const SEGNO_SPECULATION_ALWAYS: i32 = 256;
/// Added to AUTO or NGRAM: repetitions are looked for in what all sequences of the session have said too, also those that were removed. For answers
/// that are alike: agents in loops, forms, many readers of one text. It takes 4 MiB, and keeps what about 250,000 tokens have said. How fast a
/// sequence advances then tells of what others say; what it says does not.
pub const SEGNO_SPECULATION_SHARED: i32 = 512;

/// Options of a session; fill with `segno_session_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_session_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// Most sequences open at once, 1 to 256, 8 by default.
    pub max_seqs: u32,
    /// Tokens that the KV cache holds for all sequences together; 0 (default): the model's context, at most 8192. Models with two rotations
    /// (LongRoPE) use the long one in all sequences where this is more than the context that they were first trained for. Layers that see a
    /// window (Gemma, OLMo 3 and others) keep no more than it and `max_prompt` tokens of each sequence, where that is less.
    pub kv_tokens: u64,
    /// Most prompt tokens of a pass in which streams run, 1 to 16384, 512 by default: what these may have to wait for.
    pub max_prefill: u32,
    /// `SEGNO_KV_F16` (default), `SEGNO_KV_F32` or `SEGNO_KV_Q8`: how keys and values are kept.
    pub kv_type: i32,
    /// Marks that all sequences together keep, 1 to 1024: snapshots of models whose layers have a state (LFM2), to which `segno_seq_truncate` goes
    /// back. 0 (default): one for each sequence, and four. Each takes the memory of a sequence's states.
    pub max_marks: u32,
    /// Zero.
    pub reserved: u32,
    /// `SEGNO_SPECULATION_...`: whether tokens to come are drafted, and evaluated together with the last one; those that are right cost no pass of
    /// their own. **Tokens and outcomes are the same with and without**, greedy and sampled, but with `SEGNO_CTX_FAST_BATCHES`. A sequence drafts
    /// as many tokens as let it advance the fastest, by what passes have taken here and how often its drafts were right: none where they lose.
    /// Where layers have a state, it goes back to before drafts of which fewer were right than all but one, and the right ones are evaluated again
    /// with the next; each sequence has one more state for that, which counts as KV memory. OFF by default.
    pub speculation: i32,
    /// Most drafts of a sequence in a pass, 1 to 15; 0 (default): 7. Passes have room for as many for each sequence, up to 56 together; buffers
    /// grow with that.
    pub max_drafts: u32,
    /// The model that drafts; NULL (default): none. The session keeps it alive. It has the same vocabulary, but for special tokens, whose numbers
    /// may differ, and no layers with a state; it gets a cache of its own, and sees of each sequence the last 256 tokens when it begins, and what
    /// follows. Or it is an assistant that was made for the model (`gemma4-assistant`), which reads that one's embeddings, keys and values in place
    /// of a cache of its own; or a head that was made for it (`eagle3`), which reads vectors between that one's layers and has a cache of one
    /// layer. Both run where the model does, which is not divided between a GPU and the host.
    pub draft: *const segno_model,
    /// Ranks of adapters for which buffers are reserved from the start, at most 65536: the sum over those of one sequence, the most of any. 0
    /// (default): none, and `segno_seq_adapters_set` makes room when it is needed. Each takes 12 bytes a row of a pass (`max_prompt` and drafts),
    /// or 8 for each expert that a row has, where that is more; of a model that the host shares, on both sides.
    pub adapter_ranks: u32,
    /// Zero.
    pub reserved2: u32,
    /// Most prompt tokens of a pass in which no stream runs, up to 16384; less than `max_prefill` counts as that. Models of 27B and mixtures of
    /// experts read long prompts faster by a third and more with 2048 than with 512 (H100). Buffers grow with it, and what layers with a window keep
    /// of each sequence. 0 (default): four times `max_prefill`, as far as sequences can be so long, where a GPU has all of a model without
    /// windows and `device_memory` does not limit it, as long as that leaves as much memory free as it takes more; else `max_prefill`.
    pub max_prompt: u32,
    /// Zero.
    pub reserved3: u32,
}

// SAFETY: repr(C), size first, 4 + 4 + 8 + 6 * 4 bytes, a pointer and 4 * 4 bytes without padding, numbers and a pointer for which zero is a value.
unsafe impl SizedStruct for segno_session_opts {}

/// Memory that a session takes, in bytes, the weights that it shares with others included.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_memory {
    /// Bytes of this struct that the library knows.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Weights in host memory, a mapped file included.
    pub host_weights: u64,
    /// KV cache in host memory.
    pub host_kv: u64,
    /// Buffers of the forward pass in host memory, logits included.
    pub host_arena: u64,
    /// Weights in the GPU's memory.
    pub device_weights: u64,
    /// KV cache in the GPU's memory.
    pub device_kv: u64,
    /// Buffers of the forward pass in the GPU's memory.
    pub device_arena: u64,
    /// Graphs in the GPU's memory.
    pub device_graphs: u64,
}

// SAFETY: repr(C), size first, 4 + 4 + 7 * 8 bytes without padding, numbers only.
unsafe impl SizedStruct for segno_memory {}

/// Figures of a session. Of a running call they are those that its last finished pass has left; together they are of one moment.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_session_stats {
    /// Bytes of this struct that the library knows.
    pub struct_size: u32,
    /// Tokens of a page of the KV cache.
    pub page_tokens: u32,
    /// Most sequences open at once.
    pub max_seqs: u32,
    /// Sequences that are open.
    pub seqs: u32,
    /// Tokens of all open sequences: evaluated, queued and sampled.
    pub tokens: u64,
    /// Pages of the KV cache that sequences hold; one that several share counts once.
    pub pages_used: u64,
    /// Pages that nobody holds. A sequence takes one when its last is full, and a fork takes one at once.
    pub pages_free: u64,
    /// Passes over the model that ended well.
    pub passes: u64,
    /// Tokens that were evaluated as prompts: by prefill and logits calls, and by decode calls for a sequence that lacked more than one.
    pub prompt_tokens: u64,
    /// Tokens that were sampled.
    pub decoded_tokens: u64,
    /// Microseconds of passes for prompts. A pass that also served other sequences is divided by the number of tokens that it evaluated.
    pub prompt_us: u64,
    /// Microseconds of passes for sampled tokens, divided likewise, of sampling and of drafting.
    pub decode_us: u64,
    /// Drafts that were evaluated (`speculation` of the session's options).
    pub drafted: u64,
    /// Those of them that were right: each a token without a pass of its own.
    pub accepted: u64,
}

// SAFETY: repr(C), size first, 4 * 4 + 10 * 8 bytes without padding, numbers only.
unsafe impl SizedStruct for segno_session_stats {}

pub(super) fn defaults() -> segno_session_opts {
    let usual = Options::default();
    segno_session_opts {
        struct_size: size_of::<segno_session_opts>() as u32,
        max_seqs: usual.max_seqs as u32,
        kv_tokens: usual.kv_tokens,
        max_prefill: usual.max_prefill as u32,
        kv_type: SEGNO_KV_F16,
        max_marks: 0,
        reserved: 0,
        speculation: SEGNO_SPECULATION_OFF,
        max_drafts: 0,
        draft: std::ptr::null(),
        adapter_ranks: 0,
        reserved2: 0,
        max_prompt: 0,
        reserved3: 0,
    }
}

/// Runs the body of a call on a session: checks the pointer, enters the lock, and hands out the cancel flag.
pub(super) fn with_session(
    session: *const segno_session,
    err: *mut *mut segno_error,
    body: impl FnOnce(&mut Session, &AtomicBool) -> Result<segno_status, Failure>,
) -> segno_status {
    let context = borrow(session).ok().map(Shared::context);
    guard(context, err, || borrow(session)?.run(body))
}

/// Runs the body of a call that waits for nobody, on what the session shows of itself.
pub(super) fn beside_session(
    session: *const segno_session,
    err: *mut *mut segno_error,
    body: impl FnOnce(&Shown) -> Result<(), Failure>,
) -> segno_status {
    let context = borrow(session).ok().map(Shared::context);
    guard(context, err, || {
        let shared = borrow(session)?;
        shared.core.session.healthy(segno_session::NAME)?;
        body(&shared.shown).map(|()| SEGNO_OK)
    })
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_opts_init(opts: *mut segno_session_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Makes a session and reserves all its memory: no later call but opening, forking and appending to a sequence takes more.
///
/// `opts`: NULL for defaults. `out` receives the session, NULL on failure; free it with `segno_session_free`. Codes: NULL_POINTER,
/// INVALID_ARGUMENT, OUT_OF_MEMORY, UNSUPPORTED (a draft model that cannot draft for this one, or `SEGNO_SPECULATION_MTP` for a model that has no
/// predictor, or none that its device runs). Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_create(
    model: *const segno_model,
    opts: *const segno_session_opts,
    out: *mut *mut segno_session,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(model).ok().map(|model| &**model.context());
    guard(context, err, || {
        let out = Out::new(out, "out")?;
        out.set(std::ptr::null_mut());
        let model = share_of(model)?;
        let opts = options(opts, defaults(), "opts")?;
        let session = Session::create(&model, &engine_options(&opts)?, draft_of(&opts)?.as_ref())?;
        let (context, shown) = (Arc::clone(model.context()), session.shown().clone());
        let core = Core { context, cancel: AtomicBool::new(false), session: Exclusive::new(session) };
        let shared = Shared {
            submitter: Exclusive::new(None),
            core: Arc::new(core),
            shown,
            has_abandoned: AtomicBool::new(false),
        };
        out.set(share(Arc::new(shared))?);
        Ok(SEGNO_OK)
    })
}

pub(super) fn engine_options(opts: &segno_session_opts) -> Result<Options> {
    let kv_type = match opts.kv_type {
        SEGNO_KV_F16 => KvType::F16,
        SEGNO_KV_F32 => KvType::F32,
        SEGNO_KV_Q8 => KvType::Q8,
        other => return Err(Error::InvalidArgument(format!("there is no kv_type {other}"))),
    };
    let (max_seqs, max_prefill, max_prompt) =
        (opts.max_seqs as usize, opts.max_prefill as usize, opts.max_prompt as usize);
    let (marks, drafts) = (opts.max_marks as usize, drafts(opts)?);
    check_reserved(opts.reserved2 | opts.reserved3)?;
    let ranks = opts.adapter_ranks as usize;
    Ok(Options { max_seqs, kv_tokens: opts.kv_tokens, max_prefill, max_prompt, kv_type, marks, drafts, ranks })
}

fn drafts(opts: &segno_session_opts) -> Result<speculate::Options> {
    let is_added = |flag| opts.speculation & flag != 0;
    let (always, shares) = (is_added(SEGNO_SPECULATION_ALWAYS), is_added(SEGNO_SPECULATION_SHARED));
    let source = match opts.speculation & !(SEGNO_SPECULATION_ALWAYS | SEGNO_SPECULATION_SHARED) {
        SEGNO_SPECULATION_OFF if !always && !shares => Source::Off,
        SEGNO_SPECULATION_AUTO => Source::Auto,
        SEGNO_SPECULATION_NGRAM => Source::Repetitions,
        SEGNO_SPECULATION_DRAFT if !shares => Source::Model,
        SEGNO_SPECULATION_MTP if !shares => Source::Predictor,
        SEGNO_SPECULATION_DRAFT | SEGNO_SPECULATION_MTP => {
            let problem = "SEGNO_SPECULATION_SHARED is for drafts from repetitions (AUTO, NGRAM)";
            return Err(Error::InvalidArgument(problem.into()));
        }
        _ => return Err(Error::InvalidArgument(format!("there is no speculation {}", opts.speculation))),
    };
    Ok(speculate::Options { source, always, shares, most: opts.max_drafts as usize })
}

/// The draft model of a session's options.
pub(super) fn draft_of(opts: &segno_session_opts) -> Result<Option<Arc<Model>>> {
    if opts.draft.is_null() { Ok(None) } else { share_of(opts.draft).map(Some) }
}

/// Frees a session and its sequences; NULL is allowed. No call on it may be running; a step that was submitted is cancelled and waited for, which
/// takes a fraction of a pass. Conversations keep it alive for themselves. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_free(session: *mut segno_session) {
    guard_free(|| unshare(session).iter().for_each(|shared| shared.end_submitted()))
}

/// Tells the memory of a session.
///
/// `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT, BUSY, POISONED. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_memory(
    session: *const segno_session,
    out: *mut segno_memory,
    size: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, _| {
        let memory = session.memory()?;
        let value = segno_memory {
            struct_size: 0,
            reserved: 0,
            host_weights: memory.weights,
            host_kv: memory.kv,
            host_arena: memory.arena,
            device_weights: memory.device_weights,
            device_kv: memory.device_kv,
            device_arena: memory.device_arena,
            device_graphs: memory.device_graphs,
        };
        write_sized(out, size, &value, "out")?;
        Ok(SEGNO_OK)
    })
}

/// Tells the figures of a session: how full it is, and what it has done since it was created.
///
/// `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT, POISONED. Any thread, beside a running call
/// too, which it does not delay, and for which it does not wait. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_stats_get(
    session: *const segno_session,
    out: *mut segno_session_stats,
    size: usize,
    err: *mut *mut segno_error,
) -> segno_status {
    beside_session(session, err, |shown| {
        let SessionStats { seqs, tokens, pages, pages_free, done } = shown.session();
        let value = segno_session_stats {
            struct_size: 0,
            page_tokens: PAGE_TOKENS as u32,
            max_seqs: shown.max_seqs() as u32,
            seqs: seqs as u32,
            tokens,
            pages_used: pages - pages_free,
            pages_free,
            passes: done.passes,
            prompt_tokens: done.prompt_tokens,
            decoded_tokens: done.decoded_tokens,
            prompt_us: done.prompt_ns / 1000,
            decode_us: done.decode_ns / 1000,
            drafted: done.drafted,
            accepted: done.accepted,
        };
        Ok(write_sized(out, size, &value, "out")?)
    })
}

/// Raises (`on` non-zero) or lowers (0) the session's cancel flag. While it is raised, prefill, logits and decode calls return
/// `SEGNO_CANCELLED`, the running one too, within a fraction of a pass; every sequence is at its length before the call. A wait for a GPU ends
/// too, though the GPU may be at work a little longer: the session's next call waits for that. A GPU that answers nobody for 60 seconds, and 50
/// milliseconds more for each token of the pass, fails the call with DEVICE, and every later one of the context.
///
/// May run beside another call on the same session. Codes: NULL_POINTER, INVALID_ARGUMENT. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_cancel(session: *const segno_session, on: i32) -> segno_status {
    guard_value(SEGNO_E_PANIC, || match process::check().and_then(|()| borrow(session)) {
        Ok(shared) => {
            shared.core.cancel.store(on != 0, Ordering::Release);
            SEGNO_OK
        }
        Err(error) => status_of(&error),
    })
}
