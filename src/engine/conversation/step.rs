//! Advancing conversations: what each has to do before a pass, the pass, and what its tokens mean.

use super::turn::Phase;
use super::{CONVERSATION, Conversation, End};
use crate::engine::Step;
use crate::engine::session::{Failure, Session};
use crate::error::{Error, Result, collected, reserve};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a step did for a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A token was read, and brought the events that wait, perhaps none.
    Events,
    /// The reply is over; its last events wait.
    Done,
    /// The prompt is not evaluated yet.
    Pending,
}

/// What became of a conversation's part in a pass.
enum Passed {
    Step(Step),
    /// There was no room for a token.
    Full(Error),
    /// Told already.
    Failed,
}

/// Advances every conversation of `session` by one step, in one pass; each of `items` has its number, which `report` hears with what came of it.
/// What an [`Outcome`] says to wait is in [`Conversation::outcome`].
///
/// The first that fails makes the call fail, the others have advanced. When the call is cancelled, none has. No more of prompts is evaluated than is
/// expected to end within `budget`, if there is one.
pub fn next<G: DerefMut<Target = Conversation>>(
    session: &mut Session,
    items: &mut [(usize, G)],
    budget: Option<Duration>,
    cancel: &AtomicBool,
    mut report: impl FnMut(usize, Result<Outcome, &Error>),
) -> Result<(), Failure> {
    if cancel.load(Ordering::Relaxed) {
        items.iter().for_each(|(item, _)| report(*item, Err(&Error::Cancelled)));
        return Err(Error::Cancelled.into());
    }
    let mut first: Option<Failure> = None;
    let mut running = reserve(items.len(), CONVERSATION)?;
    for (place, (item, conversation)) in items.iter_mut().enumerate() {
        let ready = conversation.prepare(session).or_else(|failure| conversation.make_room(session, failure));
        match ready {
            Ok(Ready::Pass) => running.push(place),
            Ok(Ready::Waits(outcome)) => report(*item, Ok(outcome)),
            Err(failure) => fail(&mut first, *item, failure.error, &mut report),
        }
    }
    let ids = collected(running.iter().map(|&place| items[place].1.seq), CONVERSATION)?;
    let mut passed = reserve(ids.len(), CONVERSATION)?;
    passed.resize_with(ids.len(), || Passed::Failed);
    // The first error is told to the host; one that says that there is no room, only if no turn can be forgotten.
    let mut other = None;
    let result = session.decode_within(&ids, budget, cancel, |place, step| {
        passed[place] = match step {
            Ok(step) => Passed::Step(step),
            Err(error) => match full(error) {
                Some(error) => Passed::Full(error),
                None => {
                    let item = items[running[place]].0;
                    report(item, Err(error));
                    other.get_or_insert_with(|| Failure { error: copied(error), item: Some(item) });
                    Passed::Failed
                }
            },
        };
    });
    match result {
        Err(Failure { error: error @ Error::Cancelled, .. }) => {
            items.iter().for_each(|(item, _)| report(*item, Err(&error)));
            return Err(error.into());
        }
        Err(Failure { error, item }) if full(&error).is_none() => {
            first.get_or_insert(Failure { error, item: item.map(|place| items[running[place]].0) });
        }
        _ => first = first.or(other),
    }
    for (passed, &place) in passed.into_iter().zip(&running) {
        let (item, conversation) = &mut items[place];
        match conversation.finish(session, passed) {
            Ok(Some(outcome)) => report(*item, Ok(outcome)),
            Ok(None) => {}
            Err(failure) => fail(&mut first, *item, failure.error, &mut report),
        }
    }
    first.map_or(Ok(()), Err)
}

fn fail(
    first: &mut Option<Failure>,
    item: usize,
    error: Error,
    report: &mut impl FnMut(usize, Result<Outcome, &Error>),
) {
    report(item, Err(&error));
    first.get_or_insert(Failure { error, item: Some(item) });
}

/// The same error, if it says that a sequence has no room for a token.
fn full(error: &Error) -> Option<Error> {
    match *error {
        Error::ContextFull { length, more, limit } => Some(Error::ContextFull { length, more, limit }),
        Error::ConversationFull { needed, limit } => Some(Error::ConversationFull { needed, limit }),
        Error::KvFull { needed, free, total } => Some(Error::KvFull { needed, free, total }),
        _ => None,
    }
}

/// The error of an item of a pass once more.
fn copied(error: &Error) -> Error {
    match error {
        Error::InvalidArgument(message) => Error::InvalidArgument(message.clone()),
        Error::NotFound(message) => Error::NotFound(message.clone()),
        Error::OutOfMemory { what, bytes } => Error::OutOfMemory { what, bytes: *bytes },
        other => Error::Grammar(other.to_string()),
    }
}

/// What a conversation has to do in a step.
enum Ready {
    /// It takes part in the pass.
    Pass,
    /// It does not.
    Waits(Outcome),
}

impl Conversation {
    /// Does what needs no pass.
    fn prepare(&mut self, session: &mut Session) -> Result<Ready, Failure> {
        if let Some(outcome) = self.outcome() {
            return Ok(Ready::Waits(outcome));
        }
        if self.open_turn().is_none() {
            self.begin(session)?;
        }
        self.mend()?;
        self.end_if_over()?;
        match self.turn.as_ref().map(|turn| turn.phase) {
            Some(Phase::Closing(end)) => self.close(end)?,
            Some(Phase::Open) => {}
            _ => return Ok(Ready::Waits(Outcome::Done)),
        }
        if let Some(outcome) = self.outcome() {
            return Ok(Ready::Waits(outcome));
        }
        if self.unread(session)?.is_none() && self.must_stop_reasoning() {
            self.stop_reasoning(session)?;
        }
        if let Some(token) = self.unread(session)? {
            self.read(session, token)?;
            return Ok(Ready::Waits(self.outcome().unwrap_or(Outcome::Events)));
        }
        if session.length(self.seq)? >= self.capacity(session) {
            return Err(self.full(session)?.into());
        }
        Ok(Ready::Pass)
    }

    /// Forgets turns where `failure` says that there is no room, so that a later step evaluates what is left.
    fn make_room(&mut self, session: &mut Session, failure: Failure) -> Result<Ready, Failure> {
        if full(&failure.error).is_none() || self.open_turn().is_none() {
            return Err(failure);
        }
        self.forget(session, failure.error)?;
        Ok(Ready::Waits(Outcome::Pending))
    }

    /// Reads what a pass has brought.
    fn finish(&mut self, session: &mut Session, passed: Passed) -> Result<Option<Outcome>, Failure> {
        match passed {
            Passed::Failed => return Ok(None),
            Passed::Full(error) => {
                self.forget(session, error)?;
                return Ok(Some(Outcome::Pending));
            }
            Passed::Step(Step::Pending) => return Ok(Some(Outcome::Pending)),
            Passed::Step(Step::Token(token) | Step::Done(token)) => self.read(session, token)?,
            Passed::Step(Step::GrammarEnd) => self.close(End::Grammar)?,
        }
        Ok(self.outcome())
    }
}
