//! The worker pool, the lock of one-call-at-a-time objects, the thread that steps are submitted to, and the board of a session's figures under loom:
//! every interleaving of a few threads, with at most so many preemptions, in every order that the memory model allows.
//!
//! The files of the library are compiled a second time here, against loom's primitives; nothing is copied. A data race, a deadlock, a
//! lost notice or a thread left over ends a model. Loom sees sequentially consistent accesses as acquire and release, so what holds
//! here holds without their total order.

#![cfg(test)]

mod sync;

#[allow(dead_code)] // The models use a part of it.
#[path = "../../../src/error.rs"]
mod error;

#[allow(dead_code, unused_imports)] // As above.
#[path = "../../../src/memory/mod.rs"]
mod memory;

#[allow(dead_code, unused_imports)] // As above.
#[path = "../../../src/backend"]
mod backend {
    pub mod cpu {
        pub mod pool;
    }
}

#[path = "../../../src/engine"]
mod engine {
    pub mod board;
    pub mod deputy;
}

#[allow(dead_code)] // As above.
#[path = "../../../src/ffi"]
mod ffi {
    pub mod exclusive;
}

use backend::cpu::pool::{Grid, Pool};
use engine::board::Board;
use engine::deputy::Deputy;
use error::{Error, Result};
use ffi::exclusive::Exclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::{Arc, Cell, thread};

/// Explores `model` with at most so many preemptions in one run.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// What the tiles of a stage write to, watched by loom.
struct Tiles<const N: usize>([Cell<usize>; N]);

// SAFETY: which thread uses a tile when is what the models are about; loom ends one in which two do at once.
unsafe impl<const N: usize> Sync for Tiles<N> {}
// SAFETY: the numbers are bound to no thread.
unsafe impl<const N: usize> Send for Tiles<N> {}

impl<const N: usize> Tiles<N> {
    fn new() -> Tiles<N> {
        Tiles(std::array::from_fn(|_| Cell::new(0)))
    }

    fn add(&self, tile: usize) {
        // SAFETY: loom has checked that nobody else is here.
        self.0[tile].with_mut(|count| unsafe { *count += 1 });
    }

    fn counts(&self) -> [usize; N] {
        // SAFETY: as above.
        std::array::from_fn(|tile| self.0[tile].with(|count| unsafe { *count }))
    }

    /// Runs one stage that adds 1 to every tile.
    fn stage(&self, pool: &Pool, cancel: &AtomicBool) -> Result<()> {
        let mut values = [0u8; N];
        let grid = Grid::new(&mut values, 1, 1, 1);
        pool.enter(cancel)?.for_each_tile(&[grid], cancel, |_, tile| self.add(tile.first_row()))
    }
}

#[test]
fn every_tile_of_every_stage_is_done_once_and_seen_by_the_owner() {
    explore(3, || {
        let (pool, tiles, cancel) = (Pool::new(2, false).unwrap(), Tiles::<2>::new(), AtomicBool::new(false));
        for stage in 1..=2 {
            tiles.stage(&pool, &cancel).unwrap();
            assert_eq!(tiles.counts(), [stage; 2]);
        }
    });
}

#[test]
fn two_workers_and_the_owner_share_a_stage() {
    explore(2, || {
        let (pool, tiles) = (Pool::new(3, false).unwrap(), Tiles::<3>::new());
        tiles.stage(&pool, &AtomicBool::new(false)).unwrap();
        assert_eq!(tiles.counts(), [1; 3]);
    });
}

#[test]
fn a_pool_ends_whatever_its_workers_are_doing() {
    explore(3, || drop(Pool::new(2, false).unwrap()));
    explore(2, || drop(Pool::new(3, false).unwrap()));
}

#[test]
fn sessions_take_turns_at_a_pool() {
    explore(2, || {
        let (pool, tiles) = (Arc::new(Pool::new(2, false).unwrap()), Arc::new(Tiles::<2>::new()));
        let other = {
            let (pool, tiles) = (Arc::clone(&pool), Arc::clone(&tiles));
            thread::spawn(move || tiles.stage(&pool, &AtomicBool::new(false)).unwrap())
        };
        tiles.stage(&pool, &AtomicBool::new(false)).unwrap();
        other.join().unwrap();
        assert_eq!(tiles.counts(), [2; 2]);
    });
}

#[test]
fn a_cancel_reaches_a_session_that_waits_for_its_turn() {
    explore(2, || {
        let (pool, tiles) = (Arc::new(Pool::new(1, false).unwrap()), Arc::new(Tiles::<1>::new()));
        let cancel = Arc::new(AtomicBool::new(false));
        let other = {
            let (pool, tiles, cancel) = (Arc::clone(&pool), Arc::clone(&tiles), Arc::clone(&cancel));
            thread::spawn(move || tiles.stage(&pool, &cancel))
        };
        tiles.stage(&pool, &AtomicBool::new(false)).unwrap();
        cancel.store(true, Ordering::Release);
        let done = other.join().unwrap();
        assert!(matches!(done, Ok(()) | Err(Error::Cancelled)));
        let counts = tiles.counts()[0];
        assert!(counts == 2 || (counts == 1 && done.is_err()), "{counts} stages");
    });
}

#[test]
fn a_cancel_ends_a_stage_between_tiles_and_the_next_is_whole() {
    explore(2, || {
        let (pool, tiles, cancel) = (Pool::new(2, false).unwrap(), Tiles::<2>::new(), Arc::new(AtomicBool::new(false)));
        let canceller = {
            let cancel = Arc::clone(&cancel);
            thread::spawn(move || cancel.store(true, Ordering::Release))
        };
        let result = tiles.stage(&pool, &cancel);
        let counts = tiles.counts();
        match result {
            Ok(()) => assert_eq!(counts, [1; 2]),
            Err(error) => assert!(matches!(error, Error::Cancelled) && counts.iter().all(|&count| count <= 1)),
        }
        canceller.join().unwrap();
        assert!(matches!(tiles.stage(&pool, &cancel), Err(Error::Cancelled)) && tiles.counts() == counts);
        cancel.store(false, Ordering::Release);
        tiles.stage(&pool, &cancel).unwrap();
        assert_eq!(tiles.counts(), counts.map(|count| count + 1));
    });
}

#[test]
fn a_panic_in_any_thread_reaches_the_owner_and_the_pool_goes_on() {
    explore(2, || {
        let (pool, tiles, cancel) = (Pool::new(2, false).unwrap(), Tiles::<2>::new(), AtomicBool::new(false));
        // Left after the panic: loom's locks cannot be poisoned.
        let mut turn = pool.enter(&cancel).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut values = [0u8; 2];
            // Not by `panic!`, which would print in every one of some thousand runs.
            let fail = |_, _| resume_unwind(Box::new("forced"));
            turn.for_each_tile(&[Grid::new(&mut values, 1, 1, 1)], &cancel, fail)
        }));
        drop(turn);
        assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"forced"));
        tiles.stage(&pool, &cancel).unwrap();
        assert_eq!(tiles.counts(), [1; 2]);
    });
}

#[test]
fn one_call_at_a_time_is_inside_and_the_others_are_told() {
    explore(3, || {
        let (object, done) = (Arc::new(Exclusive::new(Cell::new(0))), Arc::new(AtomicUsize::new(0)));
        let call = {
            let (object, done) = (Arc::clone(&object), Arc::clone(&done));
            move || match object.enter("object") {
                Ok(inside) => {
                    // SAFETY: loom ends the model when another thread is here too.
                    inside.with_mut(|count| unsafe { *count += 1 });
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert!(matches!(error, Error::Busy("object"))),
            }
        };
        let others = [thread::spawn(call.clone()), thread::spawn(call.clone())];
        call();
        others.into_iter().for_each(|thread| thread.join().unwrap());
        let done = done.load(Ordering::Relaxed);
        assert!(done >= 1, "whoever comes first enters");
        // SAFETY: as above.
        object.enter("object").unwrap().with(|count| assert_eq!(unsafe { *count }, done));
    });
}

#[test]
fn a_deputy_does_its_work_once_for_each_beginning_and_what_it_did_is_seen() {
    explore(3, || {
        let tiles = Arc::new(Tiles::<1>::new());
        let own = Arc::clone(&tiles);
        let deputy = Deputy::start("deputy", false, move || own.add(0)).unwrap();
        for round in 1..=2 {
            deputy.begin();
            // One that asks without waiting may see the end or not; then it has seen the work too.
            if deputy.wait(Some(Duration::ZERO)) {
                assert_eq!(tiles.counts(), [round]);
            }
            assert!(deputy.wait(None));
            assert_eq!(tiles.counts(), [round]);
            deputy.collect();
        }
    });
}

#[test]
fn a_deputy_ends_whatever_it_is_doing() {
    explore(3, || drop(Deputy::start("deputy", false, || {}).unwrap()));
    explore(3, || {
        let tiles = Arc::new(Tiles::<1>::new());
        let own = Arc::clone(&tiles);
        let deputy = Deputy::start("deputy", false, move || own.add(0)).unwrap();
        deputy.begin();
        drop(deputy);
        assert!(tiles.counts()[0] <= 1);
    });
}

#[test]
fn an_object_that_is_lent_is_the_borrowers_alone_until_it_is_taken_back() {
    explore(2, || {
        let object = Arc::new(Exclusive::new(Cell::new(0)));
        // SAFETY: loom ends the model when another thread is inside too.
        let add = |inside: &Cell<usize>| inside.with_mut(|count| unsafe { *count += 1 });
        let (borrowed, seen) = (Arc::clone(&object), Arc::clone(&object));
        let deputy = Deputy::start("deputy", false, move || add(&borrowed.enter_lent("object").unwrap())).unwrap();
        let inside = object.enter("object").unwrap();
        object.lend();
        deputy.begin();
        drop(inside);
        let other = thread::spawn(move || match seen.enter("object") {
            Ok(inside) => {
                add(&inside);
                1
            }
            Err(error) => {
                assert!(matches!(error, Error::Lent("object") | Error::Busy("object")));
                0
            }
        });
        assert!(deputy.wait(None));
        deputy.collect();
        object.take_back();
        let entered = other.join().unwrap();
        // SAFETY: as above.
        object.enter("object").unwrap().with(|count| assert_eq!(unsafe { *count }, 1 + entered));
    });
}

#[test]
fn readers_of_a_board_see_numbers_of_one_write() {
    explore(3, || {
        let board = Arc::new(Board::new(2).unwrap());
        let reader = {
            let board = Arc::clone(&board);
            thread::spawn(move || board.read(|number| [number(0), number(1)]))
        };
        for round in 1..4 {
            board.write([round, 10 * round]);
        }
        let [one, ten] = reader.join().unwrap();
        assert!(ten == 10 * one && one < 4, "{one} {ten}");
        assert_eq!(board.read(|number| [number(0), number(1)]), [3, 30]);
    });
}
