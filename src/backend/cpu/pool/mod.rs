//! The worker threads of a context, and the tiles that they share out.
//!
//! A stage is a set of tiles and a function; the calling thread publishes it, works on it with whichever workers join in
//! time, and returns when all tiles are done. Each thread begins with a run of neighbouring tiles, which suits prefetching, and
//! then takes from the runs of the others. A worker that the system has put aside is not waited for unless it has joined,
//! so a busy machine costs no more than the share that others take. Workers spin briefly for the next stage, then park.

mod tile;

pub use tile::{Grid, TileMut};

use crate::error::{Error, Result, reserve};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::threads::{self, Thread};
use crate::sync::{Arc, Cell, Condvar, Mutex, PoisonError, spin_until, thread};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// How long a thread spins for work, or for the last worker of a stage, before it parks. Stages of a step follow each other
/// within some ten microseconds; waking a parked thread costs about fifty.
const SPIN: Duration = Duration::from_micros(60);

/// Stack of a worker: a tile has its buffers there, and no recursion.
const STACK_BYTES: usize = 2 << 20;

/// How often a session that waits for its turn looks at its cancel flag.
const LOOK: Duration = Duration::from_millis(5);

/// A set of worker threads. Shared by all sessions of a context, which take turns.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Thread>,
    /// Whether a session has its turn.
    taken: Mutex<bool>,
    turn_over: Condvar,
}

impl Pool {
    /// A pool in which `threads` threads work on a stage: the caller and `threads - 1` workers, which may give way to other threads.
    pub fn new(threads: usize, gives_way: bool) -> Result<Pool> {
        let mut pool = Pool {
            shared: Arc::new(Shared::new(threads.max(1))?),
            workers: reserve(threads, "threads")?,
            taken: Mutex::new(false),
            turn_over: Condvar::new(),
        };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = threads::spawn(&format!("segno-{index}"), STACK_BYTES, move || {
                if gives_way {
                    threads::give_way();
                }
                shared.work(index);
            });
            pool.workers
                .push(worker.map_err(|error| Error::Device(format!("cannot start worker thread {index}: {error}")))?);
        }
        // What a thread allocates when it starts must not fall into somebody's step.
        while pool.shared.started.load(Ordering::Acquire) < pool.workers.len() {
            thread::yield_now();
        }
        Ok(pool)
    }

    /// Threads that work on a stage, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Waits until no other session uses the pool; [`Error::Cancelled`] once `cancel` is raised meanwhile.
    pub fn enter(&self, cancel: &AtomicBool) -> Result<Turn<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            taken = self.turn_over.wait_timeout(taken, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        Ok(Turn { pool: self })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_workers();
        self.workers.drain(..).for_each(Thread::join);
    }
}

/// The right to run stages on a pool.
pub struct Turn<'a> {
    pool: &'a Pool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A panic in a stage leaves the pool ready for the next turn, so poison says nothing here.
        *self.pool.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.pool.turn_over.notify_one();
    }
}

impl Turn<'_> {
    /// Calls `f(grid, tile)` once for every tile of every grid, on all threads of the pool, and returns when all calls have.
    /// Once `cancel` is raised no further tile begins, and the result is [`Error::Cancelled`]. A panic in `f` ends the stage and
    /// goes on in the caller.
    pub fn for_each_tile<'g, T: Send>(
        &mut self,
        grids: &[Grid<'g, T>],
        cancel: &AtomicBool,
        f: impl Fn(usize, TileMut<'g, T>) + Sync,
    ) -> Result<()> {
        let total: usize = grids.iter().map(Grid::len).sum();
        let run = |index: usize| {
            let mut local = index;
            for (number, grid) in grids.iter().enumerate() {
                if local < grid.len() {
                    // SAFETY: a stage hands out each index once, so this is the only tile of its number.
                    return f(number, unsafe { grid.tile(local) });
                }
                local -= grid.len();
            }
        };
        self.pool.shared.run_stage(Stage { total, cancel, run: &run })
    }

    /// The same for grids of as many tiles: calls `f` with the tiles of one number of all grids together.
    ///
    /// # Panics
    /// If a grid has another number of tiles.
    pub fn for_each_tile_of_all<'g, T: Send, const N: usize>(
        &mut self,
        grids: &[Grid<'g, T>; N],
        cancel: &AtomicBool,
        f: impl Fn([TileMut<'g, T>; N]) + Sync,
    ) -> Result<()> {
        let total = grids[0].len();
        assert!(grids.iter().all(|grid| grid.len() == total));
        // SAFETY: a stage hands out each index once, so these are the only tiles of their number, each of another grid.
        let run = |index: usize| f(std::array::from_fn(|grid| unsafe { grids[grid].tile(index) }));
        self.pool.shared.run_stage(Stage { total, cancel, run: &run })
    }
}

/// What the threads of a stage share.
struct Stage<'a> {
    total: usize,
    cancel: &'a AtomicBool,
    run: &'a (dyn Fn(usize) + Sync),
}

/// Open bit of the gate; below it the number of workers inside, above it the stage's number.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const NUMBER: u64 = 1 << 32;

/// A counter on a cache line of its own.
#[repr(align(64))]
struct Run(AtomicUsize);

struct Shared {
    /// Stage number, open bit, workers inside.
    gate: AtomicU64,
    /// The stage, readable by whoever has entered the open gate and has not left.
    stage: Cell<Option<Stage<'static>>>,
    /// The next tile of each thread's run.
    runs: Vec<Run>,
    /// Whether a thread has seen a raised cancel flag and left tiles, which counts even if the flag is lowered meanwhile.
    cut_short: AtomicBool,
    failed: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    started: AtomicUsize,
    stop: AtomicBool,
    parked: AtomicUsize,
    lock: Mutex<()>,
    work_ready: Condvar,
    stage_done: Condvar,
}

// SAFETY: `stage` is written only while the gate is closed and nobody is inside, and read only from inside.
unsafe impl Sync for Shared {}
// SAFETY: the references in `stage` are gone when `run_stage` returns; nothing else is bound to a thread.
unsafe impl Send for Shared {}

impl Shared {
    fn new(threads: usize) -> Result<Shared> {
        let mut runs = reserve(threads, "threads")?;
        runs.resize_with(threads, || Run(AtomicUsize::new(0)));
        Ok(Shared {
            gate: AtomicU64::new(0),
            stage: Cell::new(None),
            runs,
            cut_short: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            panic: Mutex::new(None),
            started: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            work_ready: Condvar::new(),
            stage_done: Condvar::new(),
        })
    }

    /// First tile of a thread's run, of `total` tiles.
    fn run_start(&self, thread: usize, total: usize) -> usize {
        thread * total / self.runs.len()
    }

    /// Runs one stage to its end. The caller holds the pool's turn.
    fn run_stage(&self, stage: Stage<'_>) -> Result<()> {
        for (thread, run) in self.runs.iter().enumerate() {
            run.0.store(self.run_start(thread, stage.total), Ordering::Relaxed);
        }
        let cancel = stage.cancel;
        // SAFETY: the caller holds the turn and the gate is closed and empty, so nobody else touches the cell. The lifetime is
        // extended only until this function returns: it closes the gate and waits for all who entered.
        let stage = unsafe { std::mem::transmute::<Stage<'_>, Stage<'static>>(stage) };
        // SAFETY: as above.
        self.stage.with_mut(|place| unsafe { *place = Some(stage) });
        let number = (self.gate.load(Ordering::Relaxed) & !(NUMBER - 1)).wrapping_add(NUMBER);
        self.gate.store(number | OPEN, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) > 0 {
            self.wake_workers();
        }
        self.take_tiles(0);
        self.close();
        // SAFETY: the gate is closed and empty again.
        self.stage.with_mut(|place| unsafe { *place = None });
        let cut_short = self.cut_short.swap(false, Ordering::Relaxed);
        if self.failed.swap(false, Ordering::Relaxed) {
            let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            resume_unwind(panic.unwrap_or_else(|| Box::new("panic in a worker")));
        }
        if cut_short || cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Works on tiles until none is left: those of the thread's own run first. Called from inside the gate, or by its owner.
    fn take_tiles(&self, thread: usize) {
        self.stage.with(|place| {
            // SAFETY: the owner of the stage waits for everyone inside before it clears the cell.
            if let Some(stage) = unsafe { &*place } {
                self.take_tiles_of(stage, thread);
            }
        });
    }

    fn take_tiles_of(&self, stage: &Stage, thread: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            for other in 0..self.runs.len() {
                let run = (thread + other) % self.runs.len();
                let end = self.run_start(run + 1, stage.total);
                while !self.is_cancelled(stage) && !self.failed.load(Ordering::Relaxed) {
                    let index = self.runs[run].0.fetch_add(1, Ordering::Relaxed);
                    if index >= end {
                        break;
                    }
                    (stage.run)(index);
                }
            }
        }));
        if let Err(panic) = result {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the cancel flag is raised, which is noted.
    fn is_cancelled(&self, stage: &Stage) -> bool {
        let is_raised = stage.cancel.load(Ordering::Relaxed);
        if is_raised {
            self.cut_short.store(true, Ordering::Relaxed);
        }
        is_raised
    }

    /// Closes the gate and waits until everyone who entered has left.
    fn close(&self) {
        let inside = self.gate.fetch_and(!OPEN, Ordering::SeqCst) & INSIDE;
        if inside == 0 || spin_until(SPIN, || self.inside() == 0) {
            return;
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.inside() > 0 {
            guard = self.stage_done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn inside(&self) -> u64 {
        self.gate.load(Ordering::SeqCst) & INSIDE
    }

    /// The life of a worker.
    fn work(&self, thread: usize) {
        self.started.fetch_add(1, Ordering::Release);
        let mut last = 0;
        while let Some(number) = self.wait_for_stage(last) {
            last = number;
            if self.enter(number) {
                self.take_tiles(thread);
                self.leave();
            }
        }
    }

    /// The number of an open stage other than `last`; `None` when the pool is being dropped.
    fn wait_for_stage(&self, last: u64) -> Option<u64> {
        let stopped = || self.stop.load(Ordering::SeqCst);
        let ready = || stopped() || self.open_stage(last).is_some();
        if !spin_until(SPIN, ready) {
            let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.parked.fetch_add(1, Ordering::SeqCst);
            while !ready() {
                guard = self.work_ready.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
        // A stage that closed meanwhile is no loss: `enter` refuses it.
        if stopped() { None } else { Some(self.open_stage(last).unwrap_or(last)) }
    }

    fn open_stage(&self, last: u64) -> Option<u64> {
        let gate = self.gate.load(Ordering::SeqCst);
        let number = gate / NUMBER;
        (gate & OPEN != 0 && number != last).then_some(number)
    }

    /// Enters the stage `number` if it is still open.
    fn enter(&self, number: u64) -> bool {
        let open = |gate: u64| (gate / NUMBER == number && gate & OPEN != 0).then_some(gate + 1);
        self.gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, open).is_ok()
    }

    fn leave(&self) {
        let before = self.gate.fetch_sub(1, Ordering::SeqCst);
        if before & INSIDE == 1 && before & OPEN == 0 {
            // Taking the lock orders this after the owner's last look, so the notice cannot be lost.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.stage_done.notify_one();
        }
    }

    fn wake_workers(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.work_ready.notify_all();
    }
}
