//! Masks of several sequences at once, on threads of their own, while a device is at work: one after the other they would take longer than the pass.

use crate::backend::cpu::pool::{Grid, Pool};
use crate::grammar;
use crate::memory;
use crate::sync::threads;
use std::sync::atomic::AtomicBool;

/// Most threads, the caller's included: more masks than that are seldom asked for at once, and the threads are the host's processors.
const MOST_THREADS: usize = 8;

/// The threads of a session, which start when a pass first needs several masks.
pub(super) struct MaskThreads {
    threads: usize,
    gives_way: bool,
    pool: Option<Pool>,
}

impl MaskThreads {
    /// For `threads` threads at most, which may give way to all others.
    pub(super) fn new(threads: usize, gives_way: bool) -> MaskThreads {
        MaskThreads { threads: threads.min(MOST_THREADS), gives_way, pool: None }
    }

    /// Calls `prepare` for each of `items` that `is_wanted`, by its index, says is wanted, on several threads if more than one is. Once `cancel` is
    /// raised no further call begins.
    pub(super) fn each<T: Send>(
        &mut self,
        items: &mut [T],
        is_wanted: impl Fn(usize) -> bool + Sync,
        prepare: impl Fn(&mut T) + Sync,
        cancel: &AtomicBool,
    ) {
        let wanted = (0..items.len()).filter(|&index| is_wanted(index)).count();
        let Some(pool) = self.pool(wanted) else {
            let wanted = items.iter_mut().enumerate().filter(|(index, _)| is_wanted(*index));
            return wanted.for_each(|(_, item)| prepare(item));
        };
        // Nobody else has this pool, so that its turn comes at once; a cancelled pass asks for no mask.
        let Ok(mut turn) = pool.enter(cancel) else { return };
        let _ = turn.for_each_tile(&[Grid::new(items, 1, 1, 1)], cancel, |_, mut tile| {
            if is_wanted(tile.first_row()) && is_ready() {
                prepare(&mut tile.row_mut(0)[0]);
            }
        });
    }

    /// The threads, if so many items are worth them. Where they cannot be started, the caller works alone.
    fn pool(&mut self, wanted: usize) -> Option<&Pool> {
        if wanted < 2 || self.threads < 2 {
            return None;
        }
        if self.pool.is_none() {
            self.pool = Pool::new(self.threads, self.gives_way).ok();
            self.threads = self.pool.as_ref().map_or(1, Pool::threads);
        }
        self.pool.as_ref()
    }
}

/// Makes a thread of ours ready for the engine of grammars; false where there is no memory for that. The caller's own is.
fn is_ready() -> bool {
    if !threads::is_ours() {
        return true;
    }
    // What an earlier mask was refused was told then.
    memory::forget();
    grammar::note_values_of_thread().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::time::Duration;

    static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);

    #[test]
    fn each_item_that_is_wanted_is_prepared_once() {
        for threads in [1, 2, 5, 64] {
            let mut masks = MaskThreads::new(threads, false);
            let mut items = [0; 37];
            for round in 1..=20 {
                masks.each(&mut items, |index| index % 3 == 1, |item| *item += 1, &NOT_CANCELLED);
                assert!(items.iter().enumerate().all(|(index, &item)| item == if index % 3 == 1 { round } else { 0 }));
            }
            assert_eq!(masks.pool.is_some(), threads > 1);
        }
    }

    #[test]
    fn several_threads_work_but_for_a_single_item() {
        let mut masks = MaskThreads::new(4, false);
        let seen = Mutex::new(HashSet::new());
        let note = |_: &mut ()| {
            seen.lock().unwrap().insert(std::thread::current().id());
            std::thread::sleep(Duration::from_millis(20));
        };
        masks.each(&mut [(); 9], |index| index == 4, note, &NOT_CANCELLED);
        assert!(masks.pool.is_none() && seen.lock().unwrap().len() == 1);
        masks.each(&mut [(); 9], |_| true, note, &NOT_CANCELLED);
        assert!(seen.lock().unwrap().len() > 1);
    }

    #[test]
    fn a_cancelled_pass_asks_for_no_more() {
        let (mut masks, cancel) = (MaskThreads::new(2, false), AtomicBool::new(true));
        let mut items = [0; 8];
        masks.each(&mut items, |_| true, |item| *item += 1, &cancel);
        assert_eq!(items, [0; 8]);
    }
}
