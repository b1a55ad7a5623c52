//! Steps that hosts do not wait for: submitted, carried out by a thread of the session's, and polled.
//!
//! The session is lent to that thread from a submit until a poll has told what became of the step. Both go through one
//! lock, so that the two sides of the thread's desk (`engine::deputy`) are one thread each.

use super::argument::{SizedStruct, check_reserved, options, slice, slice_mut, write_sized};
use super::conversation::Shared as Chat;
use super::decode::outcome;
use super::error::segno_error;
use super::guard::{contain, guard, guard_value};
use super::handle::{Handle, borrow};
use super::session::{Core, Shared, segno_session};
use super::status::{SEGNO_E_PANIC, SEGNO_OK, SEGNO_PENDING, segno_status};
use super::turn::Told;
use crate::engine::deputy::Deputy;
use crate::engine::{Failure, Session};
use crate::error::{Count, Error, Result, checked, reserve};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Options of a step that is submitted; fill with `segno_submit_opts_init`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct segno_submit_opts {
    /// `sizeof` this struct, set by the init function.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Microseconds that the step should take: prompts get as many tokens of it as passes have taken so long in this session, at least one, and at
    /// most `max_prefill`, or `max_prompt` where no listed stream runs. 0 (default): as many. A session learns as it runs, so its first slices are
    /// short. Listed sequences whose prompt is evaluated always take part: their step takes what it takes.
    pub budget_us: u64,
}

// SAFETY: repr(C), size first, 4 + 4 + 8 bytes without padding, numbers only.
unsafe impl SizedStruct for segno_submit_opts {}

/// The time that the options leave to the slice of a prompt, if they bound it.
pub(super) fn budget(opts: *const segno_submit_opts) -> Result<Option<Duration>> {
    let opts = options(opts, defaults(), "opts")?;
    check_reserved(opts.reserved)?;
    Ok(Some(opts.budget_us).filter(|&us| us > 0).map(Duration::from_micros))
}

fn defaults() -> segno_submit_opts {
    segno_submit_opts { struct_size: size_of::<segno_submit_opts>() as u32, reserved: 0, budget_us: 0 }
}

/// What carries out a step, on the thread of the session: of sequences that is `segno_decode_batch` within a budget.
pub(super) type Work = fn(&mut Session, &mut Step, &AtomicBool) -> Result<(), Failure>;

/// Token and status of one sequence.
pub(super) type Item = (i32, segno_status);

/// What a step advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Sequences, by `segno_session_submit`.
    Sequences,
    /// Conversations, by `segno_chat_submit`.
    Conversations,
}

/// What is asked of a step, and what came of each item.
#[derive(Default)]
pub(super) struct Step {
    /// Microseconds that it should take.
    pub(super) budget: Option<Duration>,
    pub(super) seqs: Vec<i32>,
    pub(super) items: Vec<Item>,
    /// Conversations that are lent to the step.
    pub(super) chats: Vec<Arc<Chat>>,
    pub(super) told: Vec<Told>,
}

impl Step {
    /// Gives everything back.
    fn clear(&mut self) {
        self.chats.drain(..).for_each(|chat| chat.conversation.take_back());
        self.seqs.clear();
        self.items.clear();
        self.told.clear();
    }
}

/// A step, and what came of it as a whole.
struct Job {
    step: Step,
    work: Work,
    /// None until it is over.
    result: Option<Result<(), Failure>>,
}

/// What steps are submitted to.
pub(super) struct Submitter {
    deputy: Deputy,
    /// The deputy's while it works.
    job: Arc<Mutex<Job>>,
    /// Kind and number of items of the step that has not been polled to its end, if there is one.
    submitted: Option<(Kind, usize)>,
}

impl Submitter {
    /// Starts the thread of a session of up to `max_seqs` sequences.
    fn start(core: &Arc<Core>, max_seqs: usize) -> Result<Submitter> {
        let what = "a step";
        let step = Step {
            budget: None,
            seqs: reserve(max_seqs, what)?,
            items: reserve(max_seqs, what)?,
            chats: reserve(max_seqs, what)?,
            told: reserve(max_seqs, what)?,
        };
        let job = Arc::new(Mutex::new(Job { step, work: decode, result: None }));
        let (core, own) = (Arc::clone(core), Arc::clone(&job));
        let gives_way = core.context.gives_way();
        let deputy = Deputy::start("segno-step", gives_way, move || carry_out(&core, &mut lock(&own)))?;
        checked(what)?;
        Ok(Submitter { deputy, job, submitted: None })
    }

    /// Lets the thread carry out the step that `list` describes; it can enter the session that is lent to it.
    fn begin(&mut self, (kind, count): (Kind, usize), work: Work, list: impl FnOnce(&mut Step)) {
        let mut job = lock(&self.job);
        job.step.clear();
        list(&mut job.step);
        job.work = work;
        self.submitted = Some((kind, count));
        drop(job);
        self.deputy.begin();
    }

    /// Forgets a step that is over, and gives the session back.
    fn end(&mut self, core: &Core) {
        lock(&self.job).step.clear();
        self.submitted = None;
        self.deputy.collect();
        core.session.take_back();
    }
}

fn lock(job: &Mutex<Job>) -> MutexGuard<'_, Job> {
    job.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries out a step, on the thread of the session.
fn carry_out(core: &Core, job: &mut Job) {
    let Job { step, work, result } = job;
    *result = Some(contain(Some(&core.context), || {
        let mut session = core.session.enter_lent(segno_session::NAME)?;
        let result = work(&mut session, step, &core.cancel);
        session.show();
        result
    }));
}

fn decode(session: &mut Session, step: &mut Step, cancel: &AtomicBool) -> Result<(), Failure> {
    let Step { seqs, budget, items, .. } = step;
    session.decode_within(seqs, *budget, cancel, |item, step| items[item] = outcome(step))
}

impl Shared {
    /// Submits a step of these sequences.
    pub(super) fn submit(&self, seqs: &[i32], budget: Option<Duration>, work: Work) -> Result<(), Failure> {
        self.submit_step((Kind::Sequences, seqs.len()), work, |step| {
            step.budget = budget;
            step.seqs.extend_from_slice(seqs);
            // A step that panics tells of no item; every other one of each.
            step.items.resize(seqs.len(), (-1, SEGNO_E_PANIC));
        })
    }

    /// Submits a step of so many items, which `list` writes down without allocating, once nothing can fail any more.
    pub(super) fn submit_step(
        &self,
        (kind, count): (Kind, usize),
        work: Work,
        list: impl FnOnce(&mut Step),
    ) -> Result<(), Failure> {
        let mut submitter = self.submitter.enter(segno_session::NAME)?;
        self.run(|session, _| {
            let most = session.shown().max_seqs();
            if count > most {
                let what = if kind == Kind::Sequences { "sequence" } else { "conversation" };
                let problem = format!("{} listed, max_seqs is {most}", Count(count, what));
                return Err(Error::InvalidArgument(problem).into());
            }
            let submitter = match &mut *submitter {
                Some(submitter) => submitter,
                none => none.insert(Submitter::start(&self.core, most)?),
            };
            self.core.session.lend();
            submitter.begin((kind, count), work, list);
            Ok(())
        })
    }

    /// Waits for the end of a step of this kind, at most so long. `results` makes sure of the room for so many results before, `tell` writes them.
    pub(super) fn poll<R>(
        &self,
        kind: Kind,
        timeout_us: u64,
        results: impl FnOnce(usize) -> Result<R>,
        tell: impl FnOnce(R, &mut Step, Result<(), Failure>) -> Result<segno_status, Failure>,
    ) -> Result<segno_status, Failure> {
        let mut submitter = self.submitter.enter(segno_session::NAME)?;
        let submitted = submitter.as_mut().and_then(|submitter| submitter.submitted.map(|what| (submitter, what)));
        let Some((submitter, (found, count))) = submitted else {
            return self.run(|_, _| Err(Error::InvalidArgument("nothing was submitted to this session".into()).into()));
        };
        if found != kind {
            let problem = match found {
                Kind::Sequences => "sequences were submitted to this session: call segno_session_poll",
                Kind::Conversations => "conversations were submitted to this session: call segno_chat_poll",
            };
            return Err(Error::InvalidArgument(problem.into()).into());
        }
        let results = results(count)?;
        let most = Some(timeout_us).filter(|&us| us < u64::MAX).map(Duration::from_micros);
        if !submitter.deputy.wait(most) {
            return Ok(SEGNO_PENDING);
        }
        let mut job = lock(&submitter.job);
        let result = job.result.take().unwrap_or(Ok(()));
        let status = tell(results, &mut job.step, result);
        drop(job);
        submitter.end(&self.core);
        status
    }

    /// Cancels a step that has not been polled to its end, waits for it, and forgets it.
    pub(super) fn end_submitted(&self) {
        let Ok(mut submitter) = self.submitter.enter(segno_session::NAME) else { return };
        let Some(submitter) = submitter.as_mut().filter(|submitter| submitter.submitted.is_some()) else { return };
        let raised = self.core.cancel.swap(true, Ordering::AcqRel);
        submitter.deputy.wait(None);
        self.core.cancel.store(raised, Ordering::Release);
        // What came of it is nobody's concern any more.
        submitter.end(&self.core);
    }
}

/// Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_submit_opts_init(opts: *mut segno_submit_opts, size: usize) {
    guard_value((), || drop(write_sized(opts, size, &defaults(), "opts")))
}

/// Starts a step of every listed sequence, that of `segno_decode_batch`, and returns at once: for loops that draw frames or serve events and have no
/// thread to wait with. The tokens are the same. `segno_session_poll` tells what became of it.
///
/// `seqs`: `count` ids, each once, at most `max_seqs`; they are copied. `opts`: NULL for defaults. A thread of the session's carries the step out,
/// parked while there is none, with the workers of the context: as many threads compute as in a call, `n_threads`. The first submit of a session
/// starts that thread (one with `count` 0 does nothing else); later ones allocate nothing, wait for nothing and cost some ten microseconds.
///
/// Until the poll that answers other than `SEGNO_PENDING`, a call is running: all others on the session are BUSY, but for `segno_session_poll`,
/// cancel, the two stats calls and `segno_seq_length`. Errors of items come from the poll. Codes: NULL_POINTER, INVALID_ARGUMENT, OUT_OF_MEMORY,
/// DEVICE (the thread cannot be started), BUSY, POISONED; nothing was submitted then. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_submit(
    session: *mut segno_session,
    seqs: *const i32,
    count: usize,
    opts: *const segno_submit_opts,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(session.cast_const()).ok().map(Shared::context);
    guard(context, err, || {
        let shared = borrow(session.cast_const())?;
        let seqs = slice(seqs, count, "seqs")?;
        let budget = budget(opts)?;
        shared.submit(seqs, budget, decode).map(|()| SEGNO_OK)
    })
}

/// Asks what became of the step that was submitted.
///
/// `timeout_us`: microseconds to wait for its end at most: 0 asks and never waits, UINT64_MAX waits as long as it takes. Answers `SEGNO_PENDING`, and
/// writes nothing, while the step runs. Otherwise it is over, and the session can be used again: the answer, `tokens` and `statuses` are those of
/// `segno_decode_batch`, with room for as many results as sequences were submitted. So `SEGNO_OK` with `statuses[i]` `SEGNO_PENDING` says that the
/// slice is done and the prompt of item i is not: what is done stays done, submit again. `SEGNO_CANCELLED`: no item has advanced.
///
/// Codes: those of `segno_decode_batch`; INVALID_ARGUMENT (nothing was submitted), NULL_POINTER, BUSY (another poll or submit is running) leave a
/// step as it is, to be polled again. PANIC: the step has failed inside the library, and the session is poisoned. Any thread; allocates
/// nothing. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_session_poll(
    session: *mut segno_session,
    timeout_us: u64,
    tokens: *mut i32,
    statuses: *mut segno_status,
    err: *mut *mut segno_error,
) -> segno_status {
    let context = borrow(session.cast_const()).ok().map(Shared::context);
    guard(context, err, || {
        let shared = borrow(session.cast_const())?;
        let results = |count| Ok((slice_mut(tokens, count, "tokens")?, slice_mut(statuses, count, "statuses")?));
        shared.poll(Kind::Sequences, timeout_us, results, |(tokens, statuses), step, result| {
            for (index, &(token, status)) in step.items.iter().enumerate() {
                tokens[index].write(token);
                statuses[index].write(status);
            }
            result.map(|()| SEGNO_OK)
        })
    })
}
