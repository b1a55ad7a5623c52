//! Turns of conversations: steps of one, or of many in one pass.

use super::argument::{Buffer, slice, slice_mut};
use super::conversation::{Shared, segno_chat};
use super::error::segno_error;
use super::guard::guard;
use super::handle::{Handle, borrow};
use super::reply::{segno_event, shown};
use super::session::{Shared as SharedSession, segno_session, with_session};
use super::status::{SEGNO_DONE, SEGNO_OK, SEGNO_PENDING, segno_status, status_of};
use crate::engine::conversation::{self, Outcome};
use crate::engine::{Conversation, Failure};
use crate::error::{Error, Result, push, reserve};
use crate::sync::MutexGuard;
use std::mem::MaybeUninit;

/// Advances a conversation by one step. The first step after a message begins a reply: it renders the conversation, keeps what the cache has of it,
/// and evaluates the rest.
///
/// `events`: room for `cap` of them; `count` receives how many there are, and is written for BUFFER_TOO_SMALL too: then nothing was given, and the
/// next call with more room gives them, before it does anything else. Eight are enough for most tokens. Their texts are valid until the next call
/// on the conversation. Outcomes: `SEGNO_OK` (a token was read, which may bring no event), `SEGNO_PENDING` (the prompt is longer than one pass, or
/// turns were forgotten: call again), `SEGNO_DONE` (the reply is over and a message of the conversation; END is its last event), `SEGNO_CANCELLED`
/// (nothing has changed; a later call goes on).
///
/// What a template writes of earlier replies is compared with the tokens that were sampled, as text: they stay as they were where it is the same.
/// Where a template changes what was said, as those do that drop reasoning of earlier turns, what follows is evaluated anew. Codes: NULL_POINTER,
/// INVALID_ARGUMENT (there is no message to answer), CONTEXT_FULL (nothing is left to forget, or nothing may be), KV_FULL (other sequences hold the
/// pages), TEMPLATE, GRAMMAR, DEVICE, OUT_OF_MEMORY, BUSY (the conversation or its session), POISONED; the conversation is then as it was. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_next(
    chat: *mut segno_chat,
    events: *mut segno_event,
    cap: usize,
    count: *mut usize,
    err: *mut *mut segno_error,
) -> segno_status {
    let chat = chat.cast_const();
    let context = borrow(chat).ok().map(|shared| shared.session.context());
    guard(context, err, || {
        let buffer = Buffer::new(events, cap, count, ["events", "count"])?;
        let shared = borrow(chat)?;
        let mut items = [(0, shared.conversation.enter(segno_chat::NAME)?)];
        let mut pending = false;
        shared
            .session
            .run(|session, cancel| {
                conversation::next(session, &mut items, cancel, |_, step| {
                    pending = matches!(step, Ok(Outcome::Pending))
                })
            })
            .map_err(|failure| failure.error)?;
        if pending {
            buffer.fill(&[])?;
            return Ok(SEGNO_PENDING);
        }
        Ok(give(&mut items[0].1, &buffer)?)
    })
}

/// Gives out the events of a conversation's last step.
fn give(conversation: &mut Conversation, buffer: &Buffer<segno_event>) -> Result<segno_status> {
    buffer.require(conversation.event_count())?;
    let mut events = reserve(conversation.event_count(), "events")?;
    events.extend(conversation.events().map(shown));
    buffer.fill(&events)?;
    let is_done = conversation.outcome() == Some(Outcome::Done);
    conversation.taken();
    Ok(if is_done { SEGNO_DONE } else { SEGNO_OK })
}

/// Where the results of an item of a batch go.
struct Results<'a> {
    events: *mut segno_event,
    cap: usize,
    counts: &'a mut [MaybeUninit<usize>],
    statuses: &'a mut [MaybeUninit<segno_status>],
}

impl Results<'_> {
    fn set(&mut self, item: usize, status: segno_status) {
        self.counts[item].write(0);
        self.statuses[item].write(status);
    }

    /// Gives out the events of item `item`.
    fn give(&mut self, item: usize, conversation: &mut Conversation) -> Result<()> {
        let events = self.events.wrapping_add(if self.cap == 0 { 0 } else { item * self.cap });
        let buffer = Buffer::new(events, self.cap, self.counts[item].as_mut_ptr(), ["events", "counts"])?;
        match give(conversation, &buffer) {
            Ok(status) => {
                self.statuses[item].write(status);
                Ok(())
            }
            Err(error) => {
                self.statuses[item].write(status_of(&error));
                Err(error)
            }
        }
    }
}

/// Advances conversations of one session by one step each, in one pass; each answers as it would alone.
///
/// `chats`: `count` conversations, each once. `events`: room for `count` times `cap` of them; those of conversation i begin at `events[i * cap]`.
/// `counts` and `statuses`: room for `count` results; `statuses[i]` is what `segno_chat_next` would answer for conversation i, and `counts[i]` the
/// number of its events. Returns `SEGNO_OK`, or the code of the first that failed (`segno_error_item` is its index): the others have advanced; or
/// `SEGNO_CANCELLED`: none has. Codes: those of `segno_chat_next`; one that is listed twice is BUSY, one of another session INVALID_ARGUMENT.
/// Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_chat_next_batch(
    session: *mut segno_session,
    chats: *const *mut segno_chat,
    count: usize,
    events: *mut segno_event,
    cap: usize,
    counts: *mut usize,
    statuses: *mut segno_status,
    err: *mut *mut segno_error,
) -> segno_status {
    with_session(session, err, |entered, cancel| {
        let chats = slice(chats, count, "chats")?;
        let room = count.checked_mul(cap).ok_or_else(|| Error::InvalidArgument(format!("`cap` cannot be {cap}")))?;
        slice_mut(events, room, "events")?;
        let (counts, statuses) = (slice_mut(counts, count, "counts")?, slice_mut(statuses, count, "statuses")?);
        let mut results = Results { events, cap, counts, statuses };
        let (mut items, mut first) = enter_all(borrow(session.cast_const())?, chats, &mut results)?;
        let mut waiting = reserve(count, "a batch")?;
        let result = conversation::next(entered, &mut items, cancel, |item, step| {
            results.set(item, step.map_or_else(status_of, |_| SEGNO_PENDING));
            waiting.retain(|&other| other != item);
            if matches!(step, Ok(Outcome::Events | Outcome::Done)) {
                waiting.push(item);
            }
        });
        match result {
            Err(failure) if matches!(failure.error, Error::Cancelled) || failure.item.is_none() => return Err(failure),
            Err(failure) => first = earliest(first, failure),
            Ok(()) => {}
        }
        for (item, conversation) in &mut items {
            if waiting.contains(item)
                && let Err(error) = results.give(*item, conversation)
            {
                first = earliest(first, Failure { error, item: Some(*item) });
            }
        }
        first.map_or(Ok(SEGNO_OK), Err)
    })
}

/// The failure of the item that comes first in the list.
fn earliest(first: Option<Failure>, other: Failure) -> Option<Failure> {
    first.filter(|first| first.item <= other.item).or(Some(other))
}

type Entered<'a> = Vec<(usize, MutexGuard<'a, Conversation>)>;

/// Enters all conversations of a list that belong to `session` and that nobody uses.
fn enter_all<'a>(
    session: &SharedSession,
    chats: &[*mut segno_chat],
    results: &mut Results,
) -> Result<(Entered<'a>, Option<Failure>)> {
    let (mut items, mut first) = (reserve(chats.len(), "a batch")?, None);
    for (item, &chat) in chats.iter().enumerate() {
        let entered = borrow::<segno_chat>(chat.cast_const()).and_then(|shared: &'a Shared| {
            if !std::ptr::eq(&*shared.session, session) {
                return Err(Error::InvalidArgument(format!("conversation {item} belongs to another session")));
            }
            shared.conversation.enter(segno_chat::NAME)
        });
        match entered {
            Ok(conversation) => push(&mut items, (item, conversation), "a batch")?,
            Err(error) => {
                results.set(item, status_of(&error));
                first.get_or_insert(Failure { error, item: Some(item) });
            }
        }
    }
    Ok((items, first))
}
