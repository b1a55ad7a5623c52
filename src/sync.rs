//! The primitives that threads meet at: those of the standard library, by the names that models of concurrency replace.
//!
//! The worker pool, the lock of one-call-at-a-time objects and the thread of submitted steps import from here alone. `tests/models` compiles the same
//! files against `loom`, which tries the interleavings and memory orders that the ones of the machine only may show.

#[allow(unsafe_code)]
pub mod threads;

pub use std::sync::atomic;
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
pub use std::thread;

use std::time::{Duration, Instant};

/// A cell whose accesses a model can watch: each lasts as long as the closure that it is handed to.
#[derive(Debug, Default)]
pub struct Cell<T>(std::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> Cell<T> {
        Cell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with the place, for reading. Nobody may write it meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with the place, for writing. Nobody else may use it meanwhile.
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Whether a thread has panicked while it held `lock`; without waiting for it.
pub fn is_poisoned<T>(lock: &Mutex<T>) -> bool {
    lock.is_poisoned()
}

/// Looks again and again whether `done`, for `most` at the longest; whether it became true.
pub fn spin_until(most: Duration, done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > most {
            return false;
        }
    }
}
