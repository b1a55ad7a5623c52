//! Decoding: one token a call for one sequence, or for many in one pass.

use super::argument::{Out, slice, slice_mut};
use super::error::segno_error;
use super::session::{segno_session, with_session};
use super::status::{SEGNO_DONE, SEGNO_GRAMMAR_END, SEGNO_OK, SEGNO_PENDING, segno_status, status_of};
use crate::engine::Step;
use crate::error::{Error, Result};

/// Token and status of one item.
pub(super) fn outcome(step: Result<Step, &Error>) -> (i32, segno_status) {
    match step {
        Ok(Step::Token(token)) => (token, SEGNO_OK),
        Ok(Step::Done(token)) => (token, SEGNO_DONE),
        Ok(Step::Pending) => (-1, SEGNO_PENDING),
        Ok(Step::GrammarEnd) => (-1, SEGNO_GRAMMAR_END),
        Err(error) => (-1, status_of(error)),
    }
}

/// Advances one sequence: evaluates what it lacks, at most `max_prompt` tokens, then samples a token and appends it.
///
/// `token` receives the sampled token; it is written with `SEGNO_OK` and `SEGNO_DONE` (the token ended generation; it is in the history, and a
/// further call goes on from it). Other outcomes: `SEGNO_PENDING` (the prompt is longer than one pass: call again), `SEGNO_CANCELLED`,
/// `SEGNO_GRAMMAR_END` (the sequence's grammar lets no token follow). A token that the grammar forces costs no pass: it is evaluated together with
/// the next one that is sampled. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT (an empty sequence), CONTEXT_FULL, KV_FULL, GRAMMAR, DEVICE,
/// BUSY, POISONED; the sequence is then as it was. Allocates nothing but for sequences with a grammar. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_decode_step(
    session: *mut segno_session,
    seq: i32,
    token: *mut i32,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        let out = Out::new(token, "token")?;
        let mut result = (-1, SEGNO_OK);
        session.decode(&[seq], cancel, |_, step| result = outcome(step)).map_err(|failure| failure.error)?;
        if result.0 >= 0 {
            out.set(result.0);
        }
        Ok(result.1)
    })
}

/// Advances one sequence as `segno_decode_step`, and gives at once all tokens that the pass has settled, where the session drafts (`speculation` of
/// its options): what drafts gave beyond the first is otherwise handed out by the steps that follow, one each, without a pass. The tokens are the
/// same.
///
/// `tokens`: room for `cap` tokens, at least one; what is left over comes with later calls. `count` receives how many there are, 0 where
/// `segno_decode_step` gives none. The outcome is that of the last step. Codes: those of `segno_decode_step`. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_decode_many(
    session: *mut segno_session,
    seq: i32,
    tokens: *mut i32,
    cap: usize,
    count: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        let (out, mut given) = (Out::new(count, "count")?, 0);
        if cap == 0 {
            return Err(Error::InvalidArgument("`cap` is 0; pass room for a token".into()).into());
        }
        let tokens = slice_mut(tokens, cap, "tokens")?;
        let last = session.decode_many(seq, cap, cancel, |token| {
            tokens[given].write(token);
            given += 1;
        });
        let outcome = last.map(|last| outcome(Ok(last)).1).map_err(|failure| failure.error);
        if matches!(outcome, Ok(_) | Err(Error::Cancelled)) {
            out.set(given);
        }
        Ok(outcome?)
    })
}

/// Advances every listed sequence by one step, in one pass: running streams always, prompts within a budget of `max_prefill` tokens in
/// list order, or of `max_prompt` where all lack some of theirs.
///
/// `seqs`: `count` ids, each once. `tokens` and `statuses`: room for `count` results, all written once the call has begun; `tokens[i]` is -1
/// unless `statuses[i]` is `SEGNO_OK` or `SEGNO_DONE`. `statuses[i]` is what `segno_decode_step` would answer for item i. Returns `SEGNO_OK`, or the
/// code of the first failed item (`segno_error_item` is its index): its sequence is as it was, the others have advanced; or
/// `SEGNO_CANCELLED`: no item has advanced. Also: NULL_POINTER, BUSY, POISONED. Allocates nothing but for sequences with a grammar. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_decode_batch(
    session: *mut segno_session,
    seqs: *const i32,
    count: usize,
    tokens: *mut i32,
    statuses: *mut segno_status,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |session, cancel| {
        let seqs = slice(seqs, count, "seqs")?;
        let tokens = slice_mut(tokens, count, "tokens")?;
        let statuses = slice_mut(statuses, count, "statuses")?;
        session.decode(seqs, cancel, |item, step| {
            let (token, status) = outcome(step);
            tokens[item].write(token);
            statuses[item].write(status);
        })?;
        Ok(SEGNO_OK)
    })
}
