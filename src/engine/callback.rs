//! Which callbacks of hosts run on the calling thread, so that a call from inside one is answered where it would wait for itself.

use std::cell::Cell;

/// Stands for a context in the making, which has no address yet that lasts.
pub const MAKING: usize = 0;

/// Callbacks inside each other on one thread that are told apart; further ones count as those of every context.
const DEEPEST: usize = 8;

thread_local! {
    /// Contexts whose callbacks run on this thread, by address, the outermost first; and how many there are.
    static RUNNING: Cell<([usize; DEEPEST], usize)> = const { Cell::new(([0; DEEPEST], 0)) };
}

/// Runs a callback of the context with this address.
pub fn run<T>(context: usize, callback: impl FnOnce() -> T) -> T {
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            let (contexts, depth) = RUNNING.get();
            RUNNING.set((contexts, depth - 1));
        }
    }
    let (mut contexts, depth) = RUNNING.get();
    if let Some(place) = contexts.get_mut(depth) {
        *place = context;
    }
    RUNNING.set((contexts, depth + 1));
    let _ended = Ended;
    callback()
}

/// Whether a callback of this context runs on the calling thread.
pub fn is_running(context: usize) -> bool {
    let (contexts, depth) = RUNNING.get();
    depth > DEEPEST || contexts[..depth].contains(&context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_are_known_while_they_run_and_by_their_context() {
        run(5, || {
            run(7, || assert!(is_running(5) && is_running(7) && !is_running(6)));
            assert!(is_running(5) && !is_running(7));
            assert!(!std::thread::spawn(|| is_running(5)).join().unwrap());
        });
        assert!(!is_running(5));
        let broken = std::panic::catch_unwind(|| run(5, || panic!("in a callback")));
        assert!(broken.is_err() && !is_running(5));
    }

    #[test]
    fn callbacks_deeper_than_can_be_told_apart_count_for_every_context() {
        fn nest(depth: usize) -> bool {
            if depth == 0 { is_running(99) } else { run(1, || nest(depth - 1)) }
        }
        assert!(!nest(DEEPEST) && nest(DEEPEST + 1) && !is_running(1));
    }
}
