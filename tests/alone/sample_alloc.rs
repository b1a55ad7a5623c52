//! Sampling does not allocate, whatever the options, once the scratch is there.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use segno::memory::{Source, draw_from};
use segno::sample::{Options, Scratch, sample};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every request is passed on unchanged to the system's allocator; counting in a constant-initialised
// thread-local cell neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller's promises are those that `System` asks for.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller's promises are those that `System` asks for.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

static COUNTING: Source = Source(&Counting);

#[test]
fn a_draw_allocates_nothing() {
    const VOCAB: usize = 40_000;
    draw_from(&COUNTING);
    let logits: Vec<f32> = (0..VOCAB as u32).map(|id| (id.wrapping_mul(2_654_435_769) >> 8) as f32 * 1e-6).collect();
    let history: Vec<i32> = (0..3_000).map(|index| index * 7 % 1_000).collect();
    let defaults = Options::defaults();
    let all_on = Options {
        typical_p: 0.9,
        top_k: 0,
        repeat_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        penalty_last_n: -1,
        bias: vec![(3, 1.0), (4, f32::NEG_INFINITY)],
        ..defaults.clone()
    };
    let off = Options { top_k: 0, top_p: 1.0, min_p: 0.0, ..defaults.clone() };
    let chains = [
        Options { temperature: 0.0, ..all_on.clone() },
        Options { top_k: 30_000, ..off.clone() },
        Options { top_k: VOCAB as i32, ..all_on.clone() },
        Options { top_p: 0.99, ..off.clone() },
        defaults,
        all_on,
        off,
    ];
    let before = ALLOCATIONS.get();
    let mut scratch = Scratch::new(VOCAB).unwrap();
    assert!(ALLOCATIONS.get() > before, "the counter counts");
    for options in &chains {
        let before = ALLOCATIONS.get();
        for position in 0..4 {
            sample(options, &logits, &history, position, &mut scratch).unwrap();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{options:?}");
    }
}
