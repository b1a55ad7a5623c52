//! An allocator with a ceiling: what would go beyond it fails and is counted. A case keeps its bound when nothing was refused meanwhile.

use segno::memory::Source;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

/// Most bytes in use at once.
pub const CEILING: isize = 1 << 30;

/// Less than is in use by what was there before anything was counted.
static USED: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// Most bytes that were in use at once so far.
pub fn peak() -> isize {
    PEAK.load(Ordering::Relaxed)
}

/// Allocations that would have gone beyond the ceiling so far.
pub fn refused() -> usize {
    REFUSED.load(Ordering::Relaxed)
}

struct Capped;

pub static CAPPED: Source = Source(&Capped);

fn take(size: usize) -> bool {
    // No layout has more bytes than the type holds.
    let used = USED.fetch_add(size as isize, Ordering::Relaxed) + size as isize;
    if used > CEILING {
        give(size);
        REFUSED.fetch_add(1, Ordering::Relaxed);
        return false;
    }
    PEAK.fetch_max(used, Ordering::Relaxed);
    true
}

fn give(size: usize) {
    USED.fetch_sub(size as isize, Ordering::Relaxed);
}

// SAFETY: memory comes from the system's allocator, or not at all.
unsafe impl GlobalAlloc for Capped {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        give(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
