//! The allocator of the library: the system's, and a reserve that stands in where the system refuses.
//!
//! A growth that can fail is asked for through the functions of `error`, which mark it ([`fallible`]): a refusal is then an error
//! of the call. Everything else (texts, boxes, what parsers of others allocate) has no way to fail in Rust but to end the process. Such a
//! request is served from memory that was there before: from what the call has set aside for a parser ([`Backing`]), or from a reserve
//! of fixed size. The thread remembers that it was refused ([`refused`]), and the call fails at its next growth, or where it hands out an
//! object, and gives everything back. So no more than what lies between two growths ever comes from the reserve.

mod reserve;
#[cfg(feature = "testing")]
mod source;

#[cfg(feature = "testing")]
pub use reserve::reserve_peak;
pub use reserve::{Backing, RESERVE_BYTES, is_low};
#[cfg(feature = "testing")]
pub use source::{Source, draw_from};

#[cfg(feature = "testing")]
use source::Drawn as Plain;
#[cfg(not(feature = "testing"))]
use std::alloc::System as Plain;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::time::Duration;

/// What a thread knows of its refusals.
struct State {
    /// Whether the thread asks for memory in a way that can fail.
    fallible: Cell<bool>,
    /// Bytes of the first request since [`forget`] that the system refused and that had no way to fail; 0 for none.
    refused: Cell<usize>,
    /// What the running call has set aside.
    backing: Cell<*mut reserve::Header>,
}

thread_local! {
    // Constant and without a destructor: a look at it allocates nothing.
    static STATE: State =
        const { State { fallible: Cell::new(false), refused: Cell::new(0), backing: Cell::new(std::ptr::null_mut()) } };
}

/// Runs `ask`, whose requests for memory can fail: what the system refuses is refused to it.
pub fn fallible<T>(ask: impl FnOnce() -> T) -> T {
    struct Mark(bool);
    impl Drop for Mark {
        fn drop(&mut self) {
            STATE.with(|state| state.fallible.set(self.0));
        }
    }
    let _mark = Mark(STATE.with(|state| state.fallible.replace(true)));
    ask()
}

/// Bytes of the first request of this thread since [`forget`] that the system refused and that had no way to fail, while anything at all
/// is still held that came from the reserve.
pub fn refused() -> Option<usize> {
    if reserve::is_empty() {
        return None;
    }
    STATE.with(|state| Some(state.refused.get()).filter(|&bytes| bytes > 0))
}

/// Begins a call: what this thread was refused before is of no concern to it.
pub fn forget() {
    STATE.with(|state| state.refused.set(0));
}

/// How often and how long a request waits that neither the system nor the reserve can serve, for other calls to end.
const WAITS: usize = 2000;
const WAIT: Duration = Duration::from_millis(1);

/// Serves a request that the system has refused; null if it is one that can fail.
#[cold]
fn stand_in(layout: Layout) -> *mut u8 {
    let (fallible, backing) = STATE.with(|state| {
        let fallible = state.fallible.get();
        if !fallible && state.refused.get() == 0 {
            state.refused.set(layout.size().max(1));
        }
        (fallible, state.backing.get())
    });
    if fallible {
        return std::ptr::null_mut();
    }
    for _ in 0..WAITS {
        let block = reserve::allocate(layout, backing);
        // A reserve that nobody uses will never have more.
        if !block.is_null() || reserve::is_empty() {
            return block;
        }
        std::thread::sleep(WAIT);
        // SAFETY: the caller of the allocator vouches for the layout.
        let block = unsafe { Plain.alloc(layout) };
        if !block.is_null() {
            return block;
        }
    }
    std::ptr::null_mut()
}

/// The allocator that the library registers.
struct Allocator;

#[global_allocator]
static GLOBAL: Allocator = Allocator;

// SAFETY: a block comes from the system or from the reserve, as large and aligned as asked for, and goes back to where it came from: the
// reserve knows its own by their addresses. Nothing here unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        let block = unsafe { Plain.alloc(layout) };
        if block.is_null() { stand_in(layout) } else { block }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        let block = unsafe { Plain.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = stand_in(layout);
        if !block.is_null() {
            // SAFETY: the block has as many bytes.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !reserve::take_back(block, layout) {
            // SAFETY: the caller's promises are passed on: the block is not the reserve's, so it came from there.
            unsafe { Plain.dealloc(block, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !reserve::owns(block) {
            // SAFETY: the caller's promises are passed on, as above.
            let grown = unsafe { Plain.realloc(block, layout, size) };
            if !grown.is_null() {
                return grown;
            }
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { self.moved(block, layout, size) }
    }
}

impl Allocator {
    /// A block of `size` bytes with what is in `block`, which is freed; null, and nothing has changed, where there is none.
    ///
    /// # Safety
    /// As for [`GlobalAlloc::realloc`].
    #[cold]
    unsafe fn moved(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up to the alignment, is possible.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller promises that the size is not 0.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both blocks have as many bytes, and one is new. The old one is given back with its own layout.
            unsafe {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests;
