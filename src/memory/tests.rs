//! Tests of the allocator: what stands in when the system refuses, to whom, and that all of it comes back.

use super::*;
use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Refuses everything to a thread that has asked for that.
struct Refusing;

thread_local! {
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: memory comes from the system, or not at all.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        if REFUSES.get() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

static REFUSING: Source = Source(&Refusing);

/// The reserve is everybody's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    draw_from(&REFUSING);
    forget();
    guard
}

/// Runs `f` while the system refuses everything to this thread.
fn without_memory<T>(f: impl FnOnce() -> T) -> T {
    REFUSES.set(true);
    let value = f();
    REFUSES.set(false);
    value
}

#[test]
fn what_can_fail_fails_and_what_cannot_comes_from_the_reserve() {
    let _alone = alone();
    let failed = without_memory(|| fallible(|| Vec::<u8>::new().try_reserve_exact(1).is_err()));
    assert!(failed && refused().is_none());
    let mut text = without_memory(|| String::from("from the reserve"));
    assert_eq!(refused(), Some(16));
    assert!(reserve::owns(text.as_mut_ptr()));
    // With memory again it moves to the system when it grows.
    text.push_str(" and back");
    assert!(!reserve::owns(text.as_mut_ptr()) && refused().is_none());
    assert_eq!(text, "from the reserve and back");
    let mut text = String::from("from the system");
    without_memory(|| text.push_str(" to the reserve"));
    assert!(reserve::owns(text.as_mut_ptr()));
    assert_eq!(text, "from the system to the reserve");
    drop(text);
    assert!(reserve::is_empty());
}

#[test]
fn blocks_are_aligned_apart_and_zero_where_asked_for() {
    let _alone = alone();
    without_memory(|| {
        for align in [1, 8, 16, 64, 4096] {
            let layout = Layout::from_size_align(1000, align).unwrap();
            // SAFETY: the layout has bytes, and each block is freed with it.
            unsafe {
                let first = std::alloc::alloc(layout);
                first.write_bytes(0xAA, 1000);
                std::alloc::dealloc(first, layout);
                let (zero, other) = (std::alloc::alloc_zeroed(layout), std::alloc::alloc(layout));
                assert!(zero.addr().is_multiple_of(align) && other.addr().is_multiple_of(align));
                other.write_bytes(0xBB, 1000);
                assert!(std::slice::from_raw_parts(zero, 1000).iter().all(|&byte| byte == 0));
                std::alloc::dealloc(zero, layout);
                std::alloc::dealloc(other, layout);
            }
        }
    });
    assert!(reserve::is_empty());
}

#[test]
fn a_call_that_holds_nothing_any_more_was_not_refused() {
    let _alone = alone();
    let text = without_memory(|| String::from("x"));
    assert_eq!(refused(), Some(1));
    drop(text);
    assert_eq!(refused(), None);
    let text = without_memory(|| String::from("y"));
    forget();
    assert_eq!(refused(), None, "the next call");
    drop(text);
}

#[test]
fn what_a_call_sets_aside_comes_before_the_reserve() {
    let _alone = alone();
    let peak = reserve_peak();
    let outer = Backing::new(1 << 20).unwrap();
    let kept = {
        let _inner = Backing::new(4 << 20).unwrap();
        // All of it takes Miri minutes.
        let (count, bytes) = if cfg!(miri) { (8, 1_000) } else { (100, 30_000) };
        let blocks: Vec<Vec<u8>> = without_memory(|| (0..count).map(|index| vec![index; bytes]).collect());
        assert!(blocks.iter().zip(0..).all(|(block, index)| block.iter().all(|&byte| byte == index)));
        blocks.into_iter().nth(7).unwrap()
    };
    assert_eq!(reserve_peak(), peak, "the reserve is untouched");
    assert!(without_memory(|| Backing::new(1)).is_none());
    let text = without_memory(|| "z".repeat(1000));
    drop(outer);
    // Both outlive what they lie in.
    assert!(kept.iter().all(|&byte| byte == 7) && text.bytes().all(|byte| byte == b'z'));
    drop((kept, text));
    assert!(reserve::is_empty());
    assert_eq!(reserve_peak(), peak);
}

#[test]
fn a_block_may_be_freed_by_any_thread() {
    let _alone = alone();
    let blocks = without_memory(|| (0..64).map(|size| vec![1u8; size * 64 + 1]).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for block in blocks {
            scope.spawn(move || drop(block));
        }
    });
    assert!(reserve::is_empty() && !is_low());
}
