//! The worker pool on real threads: every tile once, whoever joins, cancels or panics. `tests/models` looks at its orders.

use segno::backend::cpu::pool::{Grid, Pool, TileMut};
use segno::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longer than a worker spins before it parks.
const UNTIL_PARKED: Duration = Duration::from_micros(120);
/// Longer than a session waits for its turn before it looks at its cancel flag.
const UNTIL_LOOKED: Duration = Duration::from_millis(10);

fn sum_on(pool: &Pool, stages: usize, cells: usize) {
    let mut values = vec![0u64; cells];
    let cancel = AtomicBool::new(false);
    let mut turn = pool.enter(&cancel).unwrap();
    for stage in 1..=stages {
        let grid = Grid::new(&mut values, 7, 3, 2);
        turn.for_each_tile(&[grid], &cancel, |_, mut tile| {
            for row in 0..tile.rows() {
                tile.row_mut(row).iter_mut().for_each(|v| *v += stage as u64);
            }
        })
        .unwrap();
    }
    let expected = (stages * (stages + 1) / 2) as u64;
    assert!(values.iter().all(|&v| v == expected));
}

#[test]
fn every_tile_is_done_once_for_any_number_of_threads() {
    for threads in 1..=4 {
        sum_on(&Pool::new(threads, false).unwrap(), 300, 7 * 11);
    }
}

#[test]
fn parked_workers_wake_for_the_next_stage() {
    let pool = Pool::new(3, false).unwrap();
    for _ in 0..20 {
        sum_on(&pool, 3, 7 * 5);
        std::thread::sleep(UNTIL_PARKED);
    }
}

#[test]
fn sessions_on_several_threads_take_turns() {
    let pool = Pool::new(3, false).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| sum_on(&pool, 100, 7 * 9));
        }
    });
}

#[test]
fn tiles_of_several_grids_are_all_visited() {
    let pool = Pool::new(2, false).unwrap();
    let (mut a, mut b) = (vec![0u8; 12], vec![0u8; 10]);
    let grids = [Grid::new(&mut a, 4, 1, 3), Grid::new(&mut b, 5, 2, 2)];
    let mark = |grid: usize, mut tile: TileMut<u8>| (0..tile.rows()).for_each(|r| tile.row_mut(r).fill(grid as u8 + 1));
    let go = AtomicBool::new(false);
    pool.enter(&go).unwrap().for_each_tile(&grids, &go, mark).unwrap();
    assert!(a.iter().all(|&v| v == 1) && b.iter().all(|&v| v == 2));
}

#[test]
fn tiles_begin_at_listed_rows_and_are_all_visited_once() {
    let (pool, go) = (Pool::new(2, false).unwrap(), AtomicBool::new(false));
    for starts in [&[0][..], &[0, 1, 2, 3, 4, 5, 6], &[0, 4, 5]] {
        let mut values = vec![0u32; 7 * 5];
        let mark = |_, mut tile: TileMut<u32>| {
            let first = tile.first_row() as u32;
            assert!(starts.contains(&first));
            (0..tile.rows()).for_each(|row| tile.row_mut(row).iter_mut().for_each(|v| *v += 1 + first));
        };
        let grid = Grid::listed(&mut values, 5, starts, 2);
        assert_eq!(grid.len(), 3 * starts.len());
        pool.enter(&go).unwrap().for_each_tile(&[grid], &go, mark).unwrap();
        for (row, values) in (0..).zip(values.chunks_exact(5)) {
            let first = starts.iter().rfind(|&&start| start <= row).unwrap();
            assert!(values.iter().all(|&v| v == 1 + first), "{starts:?}, row {row}: {values:?}");
        }
    }
    for starts in [&[][..], &[1, 2], &[0, 2, 2], &[0, 3, 1], &[0, 7]] {
        let refused = catch_unwind(|| Grid::listed(&mut [0u8; 7 * 5], 5, starts, 2).len());
        assert!(refused.is_err(), "{starts:?}");
    }
}

#[test]
fn a_raised_cancel_ends_a_stage() {
    let pool = Pool::new(2, false).unwrap();
    let (cancel, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut values = vec![0u8; 10_000];
    let mut turn = pool.enter(&cancel).unwrap();
    let result = turn.for_each_tile(&[Grid::new(&mut values, 1, 1, 1)], &cancel, |_, _| {
        if calls.fetch_add(1, Ordering::Relaxed) == 10 {
            cancel.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert!(calls.load(Ordering::Relaxed) < 10_000);
}

/// A flag that is lowered when all threads have seen it and left, and before the stage ends: its caller sleeps until the last one has left.
#[test]
fn a_stage_that_was_cut_short_says_so_though_the_flag_is_lowered() {
    let (pool, never) = (Pool::new(2, false).unwrap(), AtomicBool::new(false));
    let (cancel, leaves, over) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let (mut cut, mut wrong) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if leaves.swap(false, Ordering::Relaxed) {
                    cancel.store(false, Ordering::Relaxed);
                }
            }
        });
        let mut turn = pool.enter(&never).unwrap();
        for _ in 0..200 {
            let mut done = [0u8; 4];
            let begin = Instant::now();
            let stage = turn.for_each_tile(&[Grid::new(&mut done, 1, 1, 1)], &cancel, |_, mut tile| {
                tile.row_mut(0).fill(1);
                match tile.first_row() {
                    0 => {
                        while !cancel.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_millis(1) {
                            std::hint::spin_loop();
                        }
                    }
                    2 => {
                        cancel.store(true, Ordering::Relaxed);
                        std::thread::sleep(UNTIL_PARKED);
                        leaves.store(true, Ordering::Relaxed);
                    }
                    _ => {}
                }
            });
            cut += usize::from(done.contains(&0));
            wrong += usize::from(stage.is_ok() && done.contains(&0));
            cancel.store(false, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(cut > 0 && wrong == 0, "{cut} stages were cut short, {wrong} of them count as done");
}

#[test]
fn a_raised_cancel_ends_the_wait_for_a_turn() {
    let pool = Pool::new(1, false).unwrap();
    let (go, cancel) = (AtomicBool::new(false), AtomicBool::new(false));
    let turn = pool.enter(&go).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.enter(&cancel).map(drop));
        std::thread::sleep(UNTIL_LOOKED);
        assert!(!waiting.is_finished());
        cancel.store(true, Ordering::Relaxed);
        assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled)));
    });
    drop(turn);
    // A free pool is entered even so: its first stage sees the flag.
    assert!(pool.enter(&cancel).is_ok());
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    let pool = Pool::new(3, false).unwrap();
    let mut values = vec![0u8; 64];
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (grid, go) = (Grid::new(&mut values, 1, 1, 1), AtomicBool::new(false));
        pool.enter(&go).unwrap().for_each_tile(&[grid], &go, |_, tile| assert!(tile.first_row() != 40))
    }));
    assert!(outcome.is_err());
    sum_on(&pool, 10, 70);
}
