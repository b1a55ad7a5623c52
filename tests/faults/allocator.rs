//! An allocator that refuses: the allocation of a number, or all above a size. Only what the library itself asks for is refused; what
//! libraries that it uses ask for has no way to fail, and is told apart by the place in the source.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

pub struct Refusing;

/// Smallest allocation that counts; no allocation does while nothing is to be refused.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Allocations that still pass before one is refused.
static PASSING: AtomicIsize = AtomicIsize::new(0);
/// Whether all that follow are refused too.
static ALL: AtomicBool = AtomicBool::new(false);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static SPARED: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);
/// Crates whose allocations were spared.
static OTHERS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

thread_local! {
    /// Set while this thread finds out who asks.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// What happened while allocations were refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Allocations of the library that were refused.
    pub refused: usize,
    /// Allocations of others that would have been.
    pub spared: usize,
}

/// Calls `f` and refuses the library's allocation number `number` (from 0) of at least `least` bytes, or it and `all` that follow.
pub fn refusing<T>(least: usize, number: usize, all: bool, f: impl FnOnce() -> T) -> (T, Outcome) {
    PASSING.store(number as isize, Ordering::SeqCst);
    ALL.store(all, Ordering::SeqCst);
    REFUSED.store(0, Ordering::SeqCst);
    SPARED.store(0, Ordering::SeqCst);
    LEAST.store(least, Ordering::SeqCst);
    let value = f();
    LEAST.store(usize::MAX, Ordering::SeqCst);
    (value, Outcome { refused: REFUSED.load(Ordering::SeqCst), spared: SPARED.load(Ordering::SeqCst) })
}

/// Bytes that are allocated now.
pub fn live() -> isize {
    LIVE.load(Ordering::SeqCst)
}

/// Names of the crates whose allocations were spared so far.
pub fn others() -> Vec<String> {
    OTHERS.lock().unwrap().iter().cloned().collect()
}

fn is_refused(size: usize) -> bool {
    if size < LEAST.load(Ordering::SeqCst) || ASKING.get() {
        return false;
    }
    let passing = PASSING.fetch_sub(1, Ordering::SeqCst);
    if passing > 0 || (passing < 0 && !ALL.load(Ordering::SeqCst)) {
        return false;
    }
    ASKING.set(true);
    let other = asking_crate();
    let refused = other.is_none();
    OTHERS.lock().unwrap().extend(other);
    ASKING.set(false);
    (if refused { &REFUSED } else { &SPARED }).fetch_add(1, Ordering::SeqCst);
    refused
}

/// Containers of others that the library fills itself, with allocations that can fail.
const CONTAINERS: [&str; 2] = ["hashbrown-", "indexmap-"];

/// The crate whose code asks for memory, unless it is the library.
fn asking_crate() -> Option<String> {
    let trace = Backtrace::force_capture().to_string();
    let mut function = "";
    for line in trace.lines() {
        let Some(place) = line.trim().strip_prefix("at ") else {
            function = line;
            continue;
        };
        let package = place.split_once("/registry/src/").and_then(|(_, rest)| rest.split('/').nth(1));
        match package {
            Some(package) if CONTAINERS.iter().any(|name| package.starts_with(name)) => {}
            Some(package) => return Some(package.to_owned()),
            // The standard library, and the way to the allocator.
            None if place.contains("/rustc/") || function.contains("__rust_") || place.contains("allocator.rs") => {}
            None if place.contains("tests/") => return Some(format!("the test: {place}")),
            None if place.contains("src/") => {
                if std::env::var_os("SEGNO_SHOW_REFUSED").is_some() {
                    eprintln!("refused at {place}");
                }
                return None;
            }
            None => {}
        }
    }
    panic!("nobody asks:\n{trace}")
}

fn count(change: isize) {
    if !ASKING.get() {
        LIVE.fetch_add(change, Ordering::SeqCst);
    }
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
