//! Bounds on time that hold beside the other work of a machine, and on a processor that a program stands for: `SEGNO_TEST_SLOWNESS` says how
//! many times slower that is, 1 by default.

use std::time::Duration;

/// What others do spoils a measurement now and then; work that is too slow is too slow each time.
const ATTEMPTS: usize = 4;

/// Runs `measure`, which gives its time first, until a run stays within `limit`; the run of the shortest time, which is told as that of a
/// processor of its own.
pub fn shortest<T>(limit: Duration, mut measure: impl FnMut() -> (Duration, T)) -> (Duration, T) {
    let slowness: u32 = std::env::var("SEGNO_TEST_SLOWNESS").map_or(1, |text| text.parse().expect("a number"));
    let mut measure = || {
        let (time, value) = measure();
        (time / slowness, value)
    };
    let mut best = measure();
    for _ in 1..ATTEMPTS {
        if best.0 <= limit {
            break;
        }
        let next = measure();
        if next.0 < best.0 {
            best = next;
        }
    }
    best
}
