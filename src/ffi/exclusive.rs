//! The lock of an object that takes one call at a time: it is tried, never awaited.

use crate::error::{Error, Result};
use crate::sync::{Mutex, MutexGuard, TryLockError, is_poisoned};

/// What lies behind a pointer that one call at a time may use.
pub struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    /// An object that nobody uses.
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive(Mutex::new(value))
    }

    /// Whether no call has panicked inside the object, `name` in messages; without entering it.
    pub fn healthy(&self, name: &'static str) -> Result<()> {
        if is_poisoned(&self.0) { Err(Error::Poisoned(name)) } else { Ok(()) }
    }

    /// Enters the object, `name` in messages. A panic inside an earlier call has poisoned it for good.
    pub fn enter(&self, name: &'static str) -> Result<MutexGuard<'_, T>> {
        self.0.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::Busy(name),
            TryLockError::Poisoned(_) => Error::Poisoned(name),
        })
    }
}
