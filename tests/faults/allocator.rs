//! An allocator that refuses: the allocation of a number, or all from there on, of those that have at least so many bytes.

use segno::memory::{self, Source};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Refusing;

static REFUSING: Source = Source(&Refusing);

/// Smallest allocation that counts; no allocation does while nothing is to be refused.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Allocations that still pass before one is refused.
static PASSING: AtomicIsize = AtomicIsize::new(0);
/// Whether all that follow are refused too.
static ALL: AtomicBool = AtomicBool::new(false);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Which allocations are refused.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Bytes of the smallest that counts.
    pub least: usize,
    /// Its number, from 0.
    pub number: usize,
    /// Whether those behind it are refused too.
    pub all: bool,
}

/// The allocator is everybody's: one test at a time, and `tests/watchdog.sh` has the harness stand still meanwhile.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    memory::draw_from(&REFUSING);
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many of `samples` are taken: `SEGNO_FAULT_SHARE` says how many times fewer where memory or the processor is slow.
pub fn share_of(samples: usize) -> usize {
    let fewer: usize = std::env::var("SEGNO_FAULT_SHARE").map_or(1, |text| text.parse().expect("a number"));
    samples.div_ceil(fewer)
}

/// Calls `f` by the rule; how many allocations were refused.
pub fn refusing<T>(rule: Rule, f: impl FnOnce() -> T) -> (T, usize) {
    PASSING.store(rule.number as isize, Ordering::SeqCst);
    ALL.store(rule.all, Ordering::SeqCst);
    REFUSED.store(0, Ordering::SeqCst);
    LEAST.store(rule.least, Ordering::SeqCst);
    let value = f();
    LEAST.store(usize::MAX, Ordering::SeqCst);
    (value, REFUSED.load(Ordering::SeqCst))
}

/// Allocations of at least `least` bytes that `f` makes.
pub fn counted<T>(least: usize, f: impl FnOnce() -> T) -> (T, usize) {
    let (value, _) = refusing(Rule { least, number: isize::MAX as usize, all: false }, f);
    (value, (isize::MAX - PASSING.load(Ordering::SeqCst)) as usize)
}

/// Bytes that are allocated now, beside those that were before anything was counted.
pub fn live() -> isize {
    LIVE.load(Ordering::SeqCst)
}

/// Whether nothing is left in the reserve, and what was is little beside it.
pub fn reserve_is_whole() -> bool {
    memory::refused().is_none() && memory::reserve_peak() < memory::RESERVE_BYTES / 4
}

fn is_refused(size: usize) -> bool {
    if size < LEAST.load(Ordering::SeqCst) {
        return false;
    }
    let passing = PASSING.fetch_sub(1, Ordering::SeqCst);
    let refused = passing == 0 || (passing < 0 && ALL.load(Ordering::SeqCst));
    REFUSED.fetch_add(usize::from(refused), Ordering::SeqCst);
    refused
}

fn count(change: isize) {
    LIVE.fetch_add(change, Ordering::SeqCst);
}

// SAFETY: memory comes from the system's allocator, or not at all.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_refused(size) {
            return std::ptr::null_mut();
        }
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
