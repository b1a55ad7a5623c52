//! The lock of an object that takes one call at a time: it is tried, never awaited. An object can be lent to a thread of the library's: until it is
//! taken back, it is to all others as if a call were running.

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, TryLockError, is_poisoned};

/// What lies behind a pointer that one call at a time may use.
pub struct Exclusive<T> {
    value: Mutex<T>,
    /// Whether it is lent: raised by who is inside.
    lent: AtomicBool,
}

impl<T> Exclusive<T> {
    /// An object that nobody uses.
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive { value: Mutex::new(value), lent: AtomicBool::new(false) }
    }

    /// Whether no call has panicked inside the object, `name` in messages; without entering it.
    pub fn healthy(&self, name: &'static str) -> Result<()> {
        if is_poisoned(&self.value) { Err(Error::Poisoned(name)) } else { Ok(()) }
    }

    /// Enters the object, `name` in messages. A panic inside an earlier call has poisoned it for good.
    pub fn enter(&self, name: &'static str) -> Result<MutexGuard<'_, T>> {
        let entered = self.value.try_lock();
        match entered {
            Err(TryLockError::Poisoned(_)) => Err(Error::Poisoned(name)),
            _ if self.lent.load(Ordering::Acquire) => Err(Error::Lent(name)),
            Err(TryLockError::WouldBlock) => Err(Error::Busy(name)),
            Ok(inside) => Ok(inside),
        }
    }

    /// Lends the object, which the caller has entered, to the thread that enters it by [`Exclusive::enter_lent`].
    pub fn lend(&self) {
        self.lent.store(true, Ordering::Release);
    }

    /// Enters the object that is lent to the calling thread: waits for those who are about to find that out.
    pub fn enter_lent(&self, name: &'static str) -> Result<MutexGuard<'_, T>> {
        self.value.lock().map_err(|_| Error::Poisoned(name))
    }

    /// Takes the object back from who has left it.
    pub fn take_back(&self) {
        self.lent.store(false, Ordering::Release);
    }
}
