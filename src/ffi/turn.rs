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
use crate::engine::{Conversation, Failure, Session};
use crate::error::{Error, Result, filled, reserve};
use crate::sync::MutexGuard;
use std::mem::MaybeUninit;
use std::ops::DerefMut;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What memory is for.
pub(super) const BATCH: &str = "a batch";

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
                conversation::next(session, &mut items, None, cancel, |_, step| {
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

/// What became of a conversation's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Nobody has told: the call as a whole has failed.
    Nothing,
    /// It has this status, and no events.
    Status(segno_status),
    /// Its events wait.
    Events,
}

/// Advances conversations by one step each; `told` has what became of them by their numbers.
pub(super) fn advance<G: DerefMut<Target = Conversation>>(
    session: &mut Session,
    items: &mut [(usize, G)],
    budget: Option<Duration>,
    cancel: &AtomicBool,
    told: &mut [Told],
) -> Result<(), Failure> {
    conversation::next(session, items, budget, cancel, |item, step| {
        told[item] = match step {
            Ok(Outcome::Events | Outcome::Done) => Told::Events,
            Ok(Outcome::Pending) => Told::Status(SEGNO_PENDING),
            Err(error) => Told::Status(status_of(error)),
        };
    })
}

/// Where the results of the items of a batch go.
pub(super) struct Results<'a> {
    events: *mut segno_event,
    cap: usize,
    counts: &'a mut [MaybeUninit<usize>],
    statuses: &'a mut [MaybeUninit<segno_status>],
}

impl<'a> Results<'a> {
    /// Those of `count` items, with room for `cap` events each.
    pub(super) fn new(
        count: usize,
        (events, cap): (*mut segno_event, usize),
        counts: *mut usize,
        statuses: *mut segno_status,
    ) -> Result<Results<'a>> {
        let room = count.checked_mul(cap).ok_or_else(|| Error::InvalidArgument(format!("`cap` cannot be {cap}")))?;
        slice_mut(events, room, "events")?;
        let (counts, statuses) = (slice_mut(counts, count, "counts")?, slice_mut(statuses, count, "statuses")?);
        Ok(Results { events, cap, counts, statuses })
    }

    /// Writes what became of all items, and the events of those of `items` that have some. `first` failed before the step, which came to `result`.
    pub(super) fn tell<G: DerefMut<Target = Conversation>>(
        &mut self,
        told: &[Told],
        items: impl Iterator<Item = (usize, G)>,
        mut first: Option<Failure>,
        result: Result<(), Failure>,
    ) -> Result<segno_status, Failure> {
        let otherwise = result.as_ref().err().map_or(SEGNO_PENDING, |failure| status_of(&failure.error));
        for (item, told) in told.iter().enumerate() {
            self.counts[item].write(0);
            self.statuses[item].write(if let Told::Status(status) = *told { status } else { otherwise });
        }
        match result {
            Err(failure) if matches!(failure.error, Error::Cancelled) || failure.item.is_none() => return Err(failure),
            Err(failure) => first = earliest(first, failure),
            Ok(()) => {}
        }
        for (item, mut conversation) in items.filter(|(item, _)| told[*item] == Told::Events) {
            if let Err(error) = self.give(item, &mut conversation) {
                first = earliest(first, Failure { error, item: Some(item) });
            }
        }
        first.map_or(Ok(SEGNO_OK), Err)
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
        let mut results = Results::new(count, (events, cap), counts, statuses)?;
        let (mut told, mut items, mut first) = (filled(count, Told::Nothing, BATCH)?, reserve(count, BATCH)?, None);
        let own = borrow(session.cast_const())?;
        for (item, &chat) in chats.iter().enumerate() {
            match enter(own, chat, item) {
                Ok((_, conversation)) => items.push((item, conversation)),
                Err(error) => {
                    told[item] = Told::Status(status_of(&error));
                    first.get_or_insert(Failure { error, item: Some(item) });
                }
            }
        }
        let result = advance(entered, &mut items, None, cancel, &mut told);
        results.tell(&told, items.into_iter(), first, result)
    })
}

/// The failure of the item that comes first in the list.
fn earliest(first: Option<Failure>, other: Failure) -> Option<Failure> {
    first.filter(|first| first.item <= other.item).or(Some(other))
}

/// Enters the conversation of a list that has this number in it, belongs to `session`, and is used by nobody.
pub(super) fn enter<'a>(
    session: &SharedSession,
    chat: *mut segno_chat,
    item: usize,
) -> Result<(&'a Shared, MutexGuard<'a, Conversation>)> {
    let shared: &'a Shared = borrow::<segno_chat>(chat.cast_const())?;
    if !std::ptr::eq(&*shared.session, session) {
        return Err(Error::InvalidArgument(format!("conversation {item} belongs to another session")));
    }
    Ok((shared, shared.conversation.enter(segno_chat::NAME)?))
}
