//! Embeddings of texts.

use super::adapter::{listed, segno_adapter};
use super::argument::{Out, SizedStruct, check_reserved, known_flags, options, slice, slice_mut, write_sized};
use super::error::segno_error;
use super::guard::guard_value;
use super::session::{segno_session, with_session};
use super::status::{SEGNO_OK, segno_status};
use crate::arch::pooling::Pooling;
use crate::engine::Failure;
use crate::engine::embedding::{Options, Texts};
use crate::error::{Error, Result};

/// Vectors are as the model gives them, not divided by their length.
pub const SEGNO_EMBED_RAW: u32 = 1;

/// What the model was made for, as its file says; the mean where it says nothing.
pub const SEGNO_POOLING_MODEL: i32 = 0;
/// A vector for each token.
pub const SEGNO_POOLING_NONE: i32 = 1;
/// The mean of the vectors of all tokens.
pub const SEGNO_POOLING_MEAN: i32 = 2;
/// The vector of the first token, which encoders call CLS.
pub const SEGNO_POOLING_FIRST: i32 = 3;
/// The vector of the last token.
pub const SEGNO_POOLING_LAST: i32 = 4;

/// No vector of the text, but scores, one a class: what a reranker says of a query and a text that a host has put together as the model wants them.
/// Those of BERT's kin are as its classifier gives them, and all tokens are of its first type; those of Qwen 3 add up to 1. Neither is divided by
/// its length.
pub const SEGNO_POOLING_RANK: i32 = 5;

/// How texts become vectors; fill with `segno_embed_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_embed_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// `SEGNO_EMBED_...`, combined with `|`; 0 by default, and each vector has the length 1.
    pub flags: u32,
    /// `SEGNO_POOLING_...`: which vector stands for a text; `SEGNO_POOLING_MODEL` by default.
    pub pooling: i32,
    /// Must be 0.
    pub reserved: u32,
    /// Leading elements of a vector that are kept, for models that were trained for that (Matryoshka); 0 (default) for all. Vectors are cut before
    /// they are divided by their length.
    pub dims: u64,
    /// `adapter_count` adapters with which the texts are evaluated, at most 64, loaded for the session's model; NULL when there are none.
    pub adapters: *const *const segno_adapter,
    /// As many factors, finite ones; NULL for 1 each.
    pub scales: *const f32,
    /// Number of adapters at `adapters`.
    pub adapter_count: usize,
}

// SAFETY: repr(C), size first, four 4-byte fields and four of 8 bytes without padding, numbers and pointers for which zero is a value.
unsafe impl SizedStruct for segno_embed_opts {}

fn defaults() -> segno_embed_opts {
    segno_embed_opts {
        struct_size: size_of::<segno_embed_opts>() as u32,
        flags: 0,
        pooling: SEGNO_POOLING_MODEL,
        reserved: 0,
        dims: 0,
        adapters: std::ptr::null(),
        scales: std::ptr::null(),
        adapter_count: 0,
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_embed_opts_init(opts: *mut segno_embed_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

fn engine_options(opts: &segno_embed_opts) -> Result<Options> {
    known_flags(opts.flags, SEGNO_EMBED_RAW, "embed")?;
    check_reserved(opts.reserved)?;
    let pooling = match opts.pooling {
        SEGNO_POOLING_MODEL => None,
        SEGNO_POOLING_NONE => Some(Pooling::None),
        SEGNO_POOLING_MEAN => Some(Pooling::Mean),
        SEGNO_POOLING_FIRST => Some(Pooling::First),
        SEGNO_POOLING_LAST => Some(Pooling::Last),
        SEGNO_POOLING_RANK => Some(Pooling::Rank),
        other => return Err(Error::InvalidArgument(format!("pooling {other} is no SEGNO_POOLING_..."))),
    };
    let dims = usize::try_from(opts.dims).unwrap_or(usize::MAX);
    Ok(Options { pooling, normalizes: opts.flags & SEGNO_EMBED_RAW == 0, dims })
}

/// Makes vectors of texts: what the last norm of the model gives of their tokens, pooled, sent through the model's last projections where it has
/// such, cut to `dims` elements, and divided by its length. Texts are evaluated together, as many in a pass as `max_prompt` tokens, the free
/// places of `max_seqs` sequences and the free pages of the cache allow; a vector does not depend on the texts beside its own, but with fast
/// batches (`SEGNO_CTX_FAST_BATCHES`) on a GPU. With adapters in `opts` it is what weights into which they are merged would give; room for their
/// ranks is made as `segno_seq_adapters_set` makes it. A text takes the place of a sequence and its pages for as long as it is evaluated; open
/// sequences stay as they are.
///
/// Models whose tokens see what follows them (`gemma-embedding`, `bert`, `nomic-bert`, `modern-bert`) evaluate a text in one pass, so none may have
/// more tokens than `max_prefill` and `max_prompt`; they make embeddings alone, and opening a sequence of theirs is UNSUPPORTED. Tokens are evaluated
/// as they are given: `segno_tokenize` with `SEGNO_TOKENIZE_ADD_SPECIAL` adds those that a model wants around a text.
///
/// `tokens`: those of all texts, one text behind the other. `lengths`: for each of the `texts` texts how many are its own, at least one. `opts`:
/// NULL for defaults. `out`: room for `cap` floats; it receives `dims` of them for each text in order, with `SEGNO_POOLING_NONE` for each token, and
/// is written on success alone. `dims` receives the elements of a vector, also when there is too little room; `out` NULL with `cap` 0 asks for these
/// and evaluates nothing. The call allocates what its result and its list of adapters take, and nothing else.
///
/// Codes: NULL_POINTER, INVALID_ARGUMENT (a text without tokens or with too many for one pass, a token outside the vocabulary, more `dims` than
/// there are, an adapter of another model; `segno_error_item` is the text, if one is at fault), BUFFER_TOO_SMALL (before any evaluation),
/// CONTEXT_FULL, SEQ_FULL, KV_FULL (a text that has no room by itself), UNSUPPORTED (scores of a model without a classifier), OUT_OF_MEMORY,
/// DEVICE, BUSY, POISONED, and the outcome `SEGNO_CANCELLED`. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_embed(
    session: *mut segno_session,
    tokens: *const i32,
    lengths: *const usize,
    texts: usize,
    opts: *const segno_embed_opts,
    out: *mut f32,
    cap: usize,
    dims: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        let (place, opts) = (Out::new(dims, "dims")?, options(opts, defaults(), "opts")?);
        let (options, adapters) =
            (engine_options(&opts)?, listed(opts.adapters, opts.scales, opts.adapter_count).map_err(unlisted)?);
        let lengths = slice(lengths, texts, "lengths")?;
        let count = lengths.iter().try_fold(0, |sum: usize, length| sum.checked_add(*length));
        let count = count.ok_or_else(|| Error::InvalidArgument("`lengths` add up to more than there can be".into()))?;
        let texts = Texts { tokens: slice(tokens, count, "tokens")?, lengths };
        let room = slice_mut(out, cap, "out")?;
        let form = session.embedding_form(&texts, &options)?;
        place.set(form.dims);
        if out.is_null() {
            return Ok(SEGNO_OK);
        }
        let needed = form.vectors.saturating_mul(form.dims);
        if needed > cap {
            return Err(Error::BufferTooSmall { needed, given: cap }.into());
        }
        let vectors = session.embed(&texts, &form, &adapters, cancel)?;
        room.iter_mut().zip(vectors).for_each(|(place, value)| {
            place.write(value);
        });
        Ok(SEGNO_OK)
    })
}

/// A failure whose item is none of the texts.
fn unlisted(failure: Failure) -> Failure {
    Failure { item: None, ..failure }
}
