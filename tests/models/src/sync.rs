//! What `segno::sync` offers, made of loom's parts.

pub use loom::sync::atomic;
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use loom::thread;
pub use std::sync::{PoisonError, TryLockError};

use std::time::Duration;

/// Loom's cell: an access that another thread's may meet ends the model.
pub struct Cell<T>(loom::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub fn new(value: T) -> Cell<T> {
        Cell(loom::cell::UnsafeCell::new(value))
    }

    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        self.0.with(f)
    }

    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}

/// Models have no clock: one look stands for all, and whether it succeeds is for the interleaving to say.
pub fn spin_until(_most: Duration, done: impl Fn() -> bool) -> bool {
    done()
}
