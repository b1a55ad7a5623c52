//! A board of numbers that one thread writes and any number read at the same time, nobody waiting for anybody: how the figures of a session are
//! known beside a running call.
//!
//! There are two copies. The writer fills the one that is not shown, then shows it by adding one to the version, whose lowest bit names the
//! copy. A reader takes the version, reads that copy, and looks whether the version is still the same: only after that may the
//! writer touch this copy again, so what was read belongs together. Otherwise it reads anew, which takes two writes during one read. This
//! is a sequence lock (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012) whose reader does not wait
//! for a writer that the system has put aside.

use crate::error::{Result, reserve};
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// Numbers that are read and written together.
pub struct Board {
    version: AtomicU64,
    /// Both copies, one behind the other.
    cells: Vec<AtomicU64>,
}

impl Board {
    /// A board of `len` zeros.
    pub fn new(len: usize) -> Result<Board> {
        let mut cells = reserve(2 * len, "figures")?;
        cells.resize_with(2 * len, || AtomicU64::new(0));
        Ok(Board { version: AtomicU64::new(0), cells })
    }

    /// How many numbers there are.
    pub fn count(&self) -> usize {
        self.cells.len() / 2
    }

    /// Shows new numbers; what `numbers` does not give keeps the value of the time before last. One thread at a time.
    pub fn write(&self, numbers: impl IntoIterator<Item = u64>) {
        let version = self.version.load(Ordering::Relaxed).wrapping_add(1);
        // Who reads one of the stores below finds the version that was shown before them, and so an old one no longer.
        fence(Ordering::Release);
        let copy = self.copy(version);
        copy.iter().zip(numbers).for_each(|(cell, number)| cell.store(number, Ordering::Relaxed));
        self.version.store(version, Ordering::Release);
    }

    /// What `look` makes of the numbers, which it gets by their index. It may be called several times: what it saw belongs together only
    /// in the call whose result is returned.
    pub fn read<R>(&self, look: impl Fn(&dyn Fn(usize) -> u64) -> R) -> R {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let copy = self.copy(version);
            let result = look(&|index| copy[index].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return result;
            }
        }
    }

    fn copy(&self, version: u64) -> &[AtomicU64] {
        let len = self.count();
        &self.cells[(version & 1) as usize * len..][..len]
    }
}
