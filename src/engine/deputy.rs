//! A thread that does a piece of work in the place of one who does not wait for it, and that is parked while there is none.
//!
//! The work is always the same function. What it reads and writes lies elsewhere, and is the thread's from [`Deputy::begin`] until
//! [`Deputy::wait`] has said that it is over; whoever begins sees to it that nobody else touches that meanwhile. One thread at a time begins, waits
//! and collects. Nothing here allocates but [`Deputy::start`].

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::threads::{self, Thread};
use crate::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Stack of the thread: that of the threads that call elsewhere.
const STACK_BYTES: usize = 2 << 20;

/// The thread has not begun its life.
const STARTING: u32 = 0;
/// There is no work.
const IDLE: u32 = 1;
/// Work waits, or is done.
const BEGUN: u32 = 2;
/// The work is done, and nobody has collected that.
const OVER: u32 = 3;

/// The thread, which ends when this is dropped.
pub struct Deputy {
    desk: Arc<Desk>,
    thread: Option<Thread>,
}

/// Where the two sides meet.
struct Desk {
    phase: AtomicU32,
    stop: AtomicBool,
    /// Held where a side goes to sleep, and where the other wakes it.
    lock: Mutex<()>,
    changed: Condvar,
}

impl Deputy {
    /// Starts the thread, which may give way to others, and waits until it is there, so that what it allocates at its start falls into no later
    /// call. `work` catches its panics.
    pub fn start(name: &str, gives_way: bool, work: impl Fn() + Send + 'static) -> Result<Deputy> {
        let (phase, stop) = (AtomicU32::new(STARTING), AtomicBool::new(false));
        let desk = Arc::new(Desk { phase, stop, lock: Mutex::new(()), changed: Condvar::new() });
        let own = Arc::clone(&desk);
        let thread = threads::spawn(name, STACK_BYTES, move || {
            if gives_way {
                threads::give_way();
            }
            own.serve(work);
        });
        let thread = thread.map_err(|error| Error::Device(format!("cannot start the thread of a session: {error}")))?;
        desk.wait_for(IDLE, None);
        Ok(Deputy { desk, thread: Some(thread) })
    }

    /// Lets the thread work. There is no work that has not been collected.
    pub fn begin(&self) {
        self.desk.enter(BEGUN);
    }

    /// Waits until the work is over, for `most` at the longest, without it for as long as that takes; whether it is over.
    pub fn wait(&self, most: Option<Duration>) -> bool {
        self.desk.wait_for(OVER, most)
    }

    /// Takes note that the work is over.
    pub fn collect(&self) {
        self.desk.phase.store(IDLE, Ordering::Relaxed);
    }
}

impl Drop for Deputy {
    /// Work that runs is waited for; what has only been begun may never be done.
    fn drop(&mut self) {
        self.desk.stop.store(true, Ordering::SeqCst);
        self.desk.wake();
        self.thread.take().into_iter().for_each(Thread::join);
    }
}

impl Desk {
    /// The life of the thread.
    fn serve(&self, work: impl Fn()) {
        self.enter(IDLE);
        while self.wait_for(BEGUN, None) && !self.is_stopped() {
            work();
            self.enter(OVER);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn enter(&self, phase: u32) {
        self.phase.store(phase, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        // Taking the lock orders this after the other side's last look, so the notice cannot be lost.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits for a phase, for `most` at the longest, or for the end of everything; whether it came. Takes no lock where it does not wait.
    fn wait_for(&self, phase: u32, most: Option<Duration>) -> bool {
        let has_come = || self.phase.load(Ordering::SeqCst) == phase;
        if has_come() || most == Some(Duration::ZERO) {
            return has_come();
        }
        // A time that no clock reaches is none.
        let end = most.and_then(|most| Instant::now().checked_add(most));
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !has_come() && !self.is_stopped() {
            let Some(end) = end else {
                guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            guard = self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        has_come()
    }
}
