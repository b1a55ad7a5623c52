//! What a session does around its passes: it waits for the end of each, cancelled ones too, and moves bytes while nothing reads them.

use super::driver::Waited;
use super::module::Stream;
use super::runner::CudaRunner;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Times that the host looks for the end of a step before it asks the driver whether something failed.
const SPINS: usize = 20_000;
/// What each row of a pass adds to the time that its call waits for the device: far more than the largest models take on the smallest.
const ROW_WAIT: Duration = Duration::from_millis(50);

impl CudaRunner {
    /// Waits until the device has done with a cancelled pass.
    pub fn settle(&mut self, cancel: &AtomicBool) -> Result<()> {
        if self.at_work {
            match self.stream.wait_for(self.longest_wait(self.sizes.rows), cancel)? {
                Waited::Ended => self.at_work = false,
                Waited::Cancelled => return Err(Error::Cancelled),
            }
        }
        Ok(())
    }

    /// Runs a pass, and notes what else may run behind it.
    pub fn run_pass(&mut self, cancel: &AtomicBool, pass: impl FnOnce(&mut CudaRunner) -> Result<()>) -> Result<()> {
        if let Some(reason) = &self.failed {
            return Err(Error::Device(reason.clone()));
        }
        let primary = Arc::clone(&self.primary);
        let _current = primary.enter()?;
        let result = self.settle(cancel).and_then(|()| pass(self));
        match &result {
            Err(Error::Device(reason)) => self.failed = Some(reason.clone()),
            Err(Error::Cancelled) => self.at_work = true,
            _ => {}
        }
        result
    }

    /// Waits for the end of all that a pass of so many rows has started.
    pub fn wait_for_pass(&self, rows: usize, cancel: &AtomicBool) -> Result<()> {
        match self.stream.wait_for(self.longest_wait(rows), cancel)? {
            Waited::Ended => Ok(()),
            Waited::Cancelled => Err(Error::Cancelled),
        }
    }

    /// How long a call waits for a pass of so many rows.
    pub fn longest_wait(&self, rows: usize) -> Duration {
        self.primary.longest_wait() + ROW_WAIT * rows as u32
    }

    /// Waits for the tokens of so many outputs, and with them for the vectors of rows: each token is released behind these (`tell_token` in
    /// `kernels/sampling/argmax.cuh`), and acquired here. A failed kernel never writes them, so the driver is asked now and then, and so are the
    /// host's flag and the clock.
    pub fn wait(&self, rows: usize, outputs: usize, cancel: &AtomicBool) -> Result<()> {
        let are_there = || (0..outputs).all(|output| (self.shared.tokens.acquire(output) >> 32) as u32 == self.serial);
        self.wait_until(rows, cancel, "a step ended without its tokens", are_there)
    }

    /// Waits until what a pass of so many rows tells the host is there; `missing` says that it ended without.
    pub fn wait_until(
        &self,
        rows: usize,
        cancel: &AtomicBool,
        missing: &str,
        are_there: impl Fn() -> bool,
    ) -> Result<()> {
        let mut start = None;
        loop {
            for _ in 0..SPINS {
                if are_there() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            // As in `Primary::wait`, the clock is looked at first.
            let (start, limit) = (*start.get_or_insert_with(Instant::now), self.longest_wait(rows));
            let is_late = start.elapsed() > limit;
            if self.stream.is_idle()? {
                return if are_there() { Ok(()) } else { Err(Error::Device(missing.into())) };
            }
            if is_late {
                return Err(self.primary.give_up(limit));
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
        }
    }

    /// Does something behind everything that the device is at; a device that fails is not used again.
    pub fn when_idle(&mut self, f: impl FnOnce(&mut CudaRunner) -> Result<()>) -> Result<()> {
        if let Some(reason) = &self.failed {
            return Err(Error::Device(reason.clone()));
        }
        let primary = Arc::clone(&self.primary);
        let _current = primary.enter()?;
        let done = self.settle(&AtomicBool::new(false)).and_then(|()| f(self));
        if let Err(Error::Device(reason)) = &done {
            self.failed = Some(reason.clone());
        }
        done
    }

    /// Has `start` begin a copy between the cache, whose address it gets, and the host, and waits for it. The host's memory need not be pinned.
    pub fn move_bytes(&mut self, start: impl FnOnce(&Stream, u64) -> Result<()>) -> Result<()> {
        self.when_idle(|runner| {
            start(&runner.stream, runner.cache.address())?;
            runner.stream.wait()
        })
    }
}
