//! A pass of which the host does parts ([`crate::backend::divided`]): memory that both see, with rows of values and a flag for each row, and the
//! host's side of `kernels/step/exchange.cu`. Kernels that wait for the host are parts of the pass, so that a step stays one graph.

use super::args::{Args, Shape};
use super::catalogue::Kernel;
use super::driver::Primary;
use super::launch::Launch;
use super::lower::{Addresses, ExchangePlaces};
use super::memory::Mapped;
use super::passes::launch_all;
use super::runner::CudaRunner;
use super::sizes::Sizes;
use crate::backend::{Exchange, Host};
use crate::error::Result;
use crate::plan::op::Exchanged;
use crate::plan::{Op, Program};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Words from the flag of a row to the next, as `kernels/step/exchange.cu` has it: a line each.
const FLAG_WORDS: usize = 8;
/// The part in a flag that ends all waiting of a step.
const RELEASED: u32 = u32::MAX;

/// What passes of a program exchange with the host.
pub struct Exchanges {
    /// Values that the device sends, and those that it receives.
    values: [Mapped<f32>; 2],
    flags: [Mapped<u64>; 2],
    /// Rows of each value.
    rows: usize,
    /// Parts of the host.
    parts: usize,
    /// The next of them in the running pass.
    next: usize,
}

/// Elements of a row of all that the device sends for a part, the most of any, the same of what it receives, and how many parts there are.
fn extent(program: &Program) -> ([usize; 2], usize) {
    let (mut widths, mut parts) = ([0; 2], 0);
    for op in &program.ops {
        let (way, id, by) = match *op {
            Op::Send { x, by } => (0, x, by),
            Op::Receive { out, by, .. } => (1, out, by),
            _ => continue,
        };
        widths[way] = widths[way].max(by.start + program.values[id.0].width);
        parts = parts.max(by.part + 1);
    }
    (widths, parts)
}

/// Bytes of the host's memory that [`Exchanges::new`] takes.
pub fn bytes(program: &Program, sizes: &Sizes) -> usize {
    let ([sent, received], parts) = extent(program);
    let floats = sizes.rows.saturating_mul(sent + received).saturating_mul(size_of::<f32>());
    if parts == 0 { 0 } else { floats.saturating_add(2 * sizes.rows * FLAG_WORDS * size_of::<u64>()) }
}

impl Exchanges {
    /// For passes of `program`; none where the host has no part of it. The context must be current.
    pub fn new(primary: &Arc<Primary>, program: &Program, sizes: &Sizes) -> Result<Option<Exchanges>> {
        let (widths, parts) = extent(program);
        if parts == 0 {
            return Ok(None);
        }
        let rows = sizes.rows;
        let values = |width: usize| Mapped::new(primary, rows.saturating_mul(width));
        let flags = || Mapped::new(primary, rows * FLAG_WORDS);
        let values = [values(widths[0])?, values(widths[1])?];
        Ok(Some(Exchanges { values, flags: [flags()?, flags()?], rows, parts, next: 0 }))
    }

    /// Tells where the device sees it.
    pub fn tell(&self, addresses: &mut Addresses) {
        addresses.exchange = ExchangePlaces {
            values: [self.values[0].device(), self.values[1].device()],
            flags: [self.flags[0].device(), self.flags[1].device()],
            rows: self.rows as u64,
        };
    }

    /// Tells that the first `rows` of a part are there.
    fn publish(&mut self, serial: u32, part: u32, rows: usize) {
        (0..rows).for_each(|row| self.flags[1].publish(row * FLAG_WORDS, flag(serial, part)));
    }

    /// Lets a step run to its end without the host.
    fn release(&mut self, serial: u32) {
        self.publish(serial, RELEASED, self.rows);
    }
}

fn flag(serial: u32, part: u32) -> u64 {
    u64::from(serial) << 32 | u64::from(part)
}

impl Exchange for Exchanges {
    fn received(&self, by: Exchanged, rows: usize, width: usize) -> &[f32] {
        self.values[0].slice(by.start * self.rows, rows * width)
    }

    fn sent(&mut self, by: Exchanged, rows: usize, width: usize) -> &mut [f32] {
        self.values[1].slice_mut(by.start * self.rows, rows * width)
    }
}

/// What a pass runs.
pub enum What {
    /// What leads to tokens: a graph, or where there is none a list.
    Tokens(Option<usize>),
    /// What leads to vectors of texts.
    Texts,
}

impl CudaRunner {
    /// Starts a pass of so many rows that are no padding. Where it has parts of the host's, `host` does them as the device comes to them; without a
    /// host they are passed over.
    pub fn start_pass(
        &mut self,
        what: What,
        shape: &Shape,
        rows: usize,
        mut host: Option<Host>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let mut exchange = self.exchange.take();
        let started = match (&mut exchange, &mut host) {
            (Some(exchange), Some(host)) => {
                let served = self.start_and_serve(what, shape, rows, exchange, &mut **host, cancel);
                if served.is_err() {
                    exchange.release(self.serial);
                }
                served
            }
            (exchange, _) => {
                exchange.iter_mut().for_each(|exchange| exchange.release(self.serial));
                let (list, replayed) = self.replay(what, shape);
                replayed.unwrap_or_else(|| launch_all(&self.stream, list, shape, cancel, |_| Ok(())))
            }
        };
        self.exchange = exchange;
        started
    }

    /// The list of a pass; its graph is started, if it has one.
    fn replay(&self, what: What, shape: &Shape) -> (&[Launch], Option<Result<()>>) {
        match what {
            What::Tokens(graph) => {
                let passes = self.chosen_passes();
                (passes.lists.of(shape), passes.replay(&self.stream, graph))
            }
            What::Texts => (&self.passes_of_rows().lists.texts, None),
        }
    }

    fn start_and_serve(
        &self,
        what: What,
        shape: &Shape,
        rows: usize,
        exchange: &mut Exchanges,
        host: Host,
        cancel: &AtomicBool,
    ) -> Result<()> {
        exchange.next = 0;
        let all = (rows, shape.rows as usize);
        match self.replay(what, shape) {
            (_, Some(replayed)) => {
                replayed?;
                (0..exchange.parts).try_for_each(|part| self.serve(exchange, part, all, host, cancel))
            }
            // A stream takes so many launches and no more, so the host does a part before anything that waits for it is started.
            (list, None) => launch_all(&self.stream, list, shape, cancel, |launch| match part_received(launch) {
                Some(part) => self.serve(exchange, part, all, host, cancel),
                None => Ok(()),
            }),
        }
    }

    /// Waits until the rows of a part are there, has the host do it, and tells the device, which waits for `all` rows of the shape.
    fn serve(
        &self,
        exchange: &mut Exchanges,
        part: usize,
        (rows, all): (usize, usize),
        host: Host,
        cancel: &AtomicBool,
    ) -> Result<()> {
        // Several launches may wait for a part.
        if part < exchange.next {
            return Ok(());
        }
        exchange.next = part + 1;
        let is_told = |flag: u64| (flag >> 32) as u32 == self.serial && flag as u32 > part as u32;
        let are_there = || (0..rows).all(|row| is_told(exchange.flags[0].acquire(row * FLAG_WORDS)));
        self.wait_until(rows, cancel, "a step ended without what the host has to do of it", are_there)?;
        host(part, exchange)?;
        exchange.publish(self.serial, part as u32 + 1, all);
        Ok(())
    }
}

/// The part whose rows a launch waits for, if it does.
fn part_received(launch: &Launch) -> Option<usize> {
    match launch.args {
        Args::Exchange(args) if launch.function.kernel == Kernel::ReceiveRows => Some(args.part as usize),
        _ => None,
    }
}
