//! The process that the library's objects belong to: a child of `fork` has copies of them, but none of the threads that they count on, and locks
//! that nobody opens any more. It is told so by every call.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};

/// The process that made the first context; 0 before that.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Notes that the calling process makes a context.
pub(super) fn settle() {
    // Whoever was first stays: `check` has refused all others.
    _ = OWNER.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
}

/// Refuses a process that was forked from the one that made the first context.
pub(super) fn check() -> Result<()> {
    match OWNER.load(Ordering::Relaxed) {
        0 => Ok(()),
        owner if owner == std::process::id() => Ok(()),
        owner => Err(Error::Forked { owner }),
    }
}
