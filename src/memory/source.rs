//! Where memory comes from while tests run: the system, or what a test has put in its place to count requests and to refuse some.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where memory comes from in place of the system. What it hands out may be freed after it is gone, and what the system handed out before by it, so
/// it must pass requests on to [`System`].
pub struct Source(pub &'static (dyn GlobalAlloc + Sync));

/// The source of memory; null stands for the system.
static SOURCE: AtomicPtr<Source> = AtomicPtr::new(std::ptr::null_mut());

/// Draws memory from `source` from now on, in all threads.
pub fn draw_from(source: &'static Source) {
    SOURCE.store((&raw const *source).cast_mut(), Ordering::Release);
}

/// What memory is drawn from.
pub struct Drawn;

impl Drawn {
    #[inline]
    fn source(&self) -> &'static (dyn GlobalAlloc + Sync) {
        // SAFETY: null, or a source that lives as long as the process.
        unsafe { SOURCE.load(Ordering::Acquire).as_ref() }.map_or(&System, |source| source.0)
    }
}

// SAFETY: the system's allocator, or one that passes requests on to it.
unsafe impl GlobalAlloc for Drawn {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.source().alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.source().alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.source().dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.source().realloc(block, layout, size) }
    }
}
