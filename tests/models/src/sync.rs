//! What `segno::sync` offers, made of loom's parts.

pub use loom::sync::atomic;
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use loom::thread;
pub use std::sync::{PoisonError, TryLockError};

use std::time::Duration;

/// The library's threads; in a model they are loom's.
pub mod threads {
    pub struct Thread(loom::thread::JoinHandle<()>);

    pub fn spawn(_name: &str, _stack_bytes: usize, body: impl FnOnce() + 'static) -> std::io::Result<Thread> {
        Ok(Thread(loom::thread::spawn(body)))
    }

    /// Models have no priorities.
    pub fn give_way() {}

    impl Thread {
        pub fn join(self) {
            self.0.join().expect("a worker catches every panic");
        }
    }
}

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

/// Loom's locks cannot be poisoned.
pub fn is_poisoned<T>(_lock: &Mutex<T>) -> bool {
    false
}

/// Models have no clock: one look stands for all, and whether it succeeds is for the interleaving to say.
pub fn spin_until(_most: Duration, done: impl Fn() -> bool) -> bool {
    done()
}
