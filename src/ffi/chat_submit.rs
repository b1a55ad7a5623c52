//! Steps of conversations that hosts do not wait for: submitted, carried out by the thread of the session's (`submit`), and polled. Conversations are
//! lent to the step as their session is.

use super::argument::slice;
use super::conversation::segno_chat;
use super::error::segno_error;
use super::guard::guard;
use super::handle::{Handle, borrow, share_of};
use super::reply::segno_event;
use super::session::{Shared, segno_session};
use super::status::{SEGNO_CANCELLED, SEGNO_OK, segno_status};
use super::submit::{Kind, Step, Work, budget, segno_submit_opts};
use super::turn::{BATCH, Results, Told, advance, enter};
use crate::engine::{Failure, Session};
use crate::error::{Result, reserve};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Starts a step of every listed conversation, that of `segno_chat_next_batch`, and returns at once: rendering, evaluating and reading are done by
/// the thread of the session's that also carries out the steps of `segno_session_submit`. Tokens, events and messages are the same.
/// `segno_chat_poll` tells what became of it.
///
/// `chats`: `count` conversations of the session, each once, at most `max_seqs`; the list is copied. `opts`: NULL for defaults; `budget_us` bounds
/// the slices of prompts, and not the time that templates and grammars take. The first submit of a session starts the thread.
///
/// Until the poll that answers other than `SEGNO_PENDING`, a call is running on the session and on each listed conversation: all other calls on
/// these are BUSY, but for `segno_chat_poll`, `segno_session_cancel`, the two stats calls and `segno_seq_length`. Other conversations take messages
/// meanwhile, and are read. A listed one may be freed, and the session too, which cancels the step.
///
/// Codes: NULL_POINTER, INVALID_ARGUMENT (too many, one of another session), OUT_OF_MEMORY, DEVICE (the thread cannot be started), BUSY (the session,
/// or a conversation, which may be listed twice), POISONED; nothing was submitted then, and `segno_error_item` is the conversation at fault.
/// What goes wrong in a conversation's step comes from the poll. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_submit(
    session: *mut segno_session,
    chats: *const *mut segno_chat,
    count: usize,
    opts: *const segno_submit_opts,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(session.cast_const()).ok().map(Shared::context);
    guard(context, err, || {
        let shared = borrow(session.cast_const())?;
        let chats = slice(chats, count, "chats")?;
        let budget = budget(opts)?;
        shared.submit_chats(chats, budget, carry_out).map(|()| SEGNO_OK)
    })
}

/// Asks what became of the step of conversations that was submitted.
///
/// `timeout_us`: microseconds to wait for its end at most: 0 asks and never waits, UINT64_MAX waits as long as it takes. Answers `SEGNO_PENDING`, and
/// writes nothing, while the step runs. Otherwise it is over, and session and conversations can be used again: the answer, `events`, `counts` and
/// `statuses` are those of `segno_chat_next_batch`, with room for as many results as conversations were submitted, and for `cap` events of each:
/// those of conversation i begin at `events[i * cap]`. `statuses[i]` is `SEGNO_OK`, `SEGNO_PENDING` (its prompt needs more steps: submit again),
/// `SEGNO_DONE`, a code, or `SEGNO_CANCELLED`, where it was freed meanwhile. With BUFFER_TOO_SMALL, `counts[i]` says how much room is needed, and its
/// next step gives the events again, before it does anything else. Texts of events are valid until the next call on the conversation, a submit that
/// lists it among them. `SEGNO_CANCELLED`: no conversation has advanced.
///
/// Codes: those of `segno_chat_next_batch`; INVALID_ARGUMENT (nothing was submitted, or sequences were), NULL_POINTER, BUSY (another poll or submit
/// is running) leave a step as it is, to be polled again. PANIC: the step has failed inside the library, session and conversations are poisoned.
/// Any thread; not beside the freeing of a listed conversation. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_poll(
    session: *mut segno_session,
    timeout_us: u64,
    events: *mut segno_event,
    cap: usize,
    counts: *mut usize,
    statuses: *mut segno_status,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(session.cast_const()).ok().map(Shared::context);
    guard(context, err, || {
        let results = |count| Results::new(count, (events, cap), counts, statuses);
        borrow(session.cast_const())?.poll(Kind::Conversations, timeout_us, results, tell)
    })
}

impl Shared {
    /// Submits a step of these conversations, which are lent to it.
    pub(super) fn submit_chats(
        &self,
        chats: &[*mut segno_chat],
        budget: Option<Duration>,
        work: Work,
    ) -> Result<(), Failure> {
        let (mut shares, mut inside) = (reserve(chats.len(), BATCH)?, reserve(chats.len(), BATCH)?);
        for (item, &chat) in chats.iter().enumerate() {
            let entered = enter(self, chat, item).and_then(|entered| Ok((share_of(chat.cast_const())?, entered)));
            let (share, (_, conversation)) = entered.map_err(|error| Failure { error, item: Some(item) })?;
            shares.push(share);
            inside.push(conversation);
        }
        // Whoever carries out the step waits until nobody is inside any more.
        self.submit_step((Kind::Conversations, chats.len()), work, |step| {
            shares.iter().for_each(|chat| chat.conversation.lend());
            step.budget = budget;
            step.told.resize(shares.len(), Told::Nothing);
            step.chats.append(&mut shares);
        })
    }
}

/// The work of a step of conversations.
fn carry_out(session: &mut Session, step: &mut Step, cancel: &AtomicBool) -> Result<(), Failure> {
    let Step { budget, chats, told, .. } = step;
    let mut items = reserve(chats.len(), BATCH)?;
    for (item, chat) in chats.iter().enumerate() {
        items.push((item, chat.conversation.enter_lent(segno_chat::NAME)?));
    }
    advance(session, &mut items, *budget, cancel, told)
}

/// Writes what came of a step. Allocates nothing before the statuses are written.
fn tell(mut results: Results, step: &mut Step, result: Result<(), Failure>) -> Result<segno_status, Failure> {
    let Step { chats, told, .. } = step;
    for (chat, told) in chats.iter().zip(&mut *told) {
        // The host's share is gone with the host's interest.
        if Arc::strong_count(chat) == 1 {
            *told = Told::Status(SEGNO_CANCELLED);
        }
    }
    // Only a panic poisons, of which the result tells.
    let items = chats.iter().enumerate().filter(|(item, _)| told[*item] == Told::Events);
    let items = items.filter_map(|(item, chat)| Some((item, chat.conversation.enter_lent(segno_chat::NAME).ok()?)));
    results.tell(told, items, None, result)
}
