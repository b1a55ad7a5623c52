//! Times of the launches of a step, one by one, by events between them, and the table that tells them.
//!
//! Steps of a bucket are measured; passes of prompts, whose shapes vary, are not. The host queues a few launches while the stream is held
//! back, so that no time of the host is in an interval.

use super::args::{Matrix, Shape};
use super::driver::Primary;
use super::launch::Launch;
use super::lower::lists::Lists;
use super::memory::Mapped;
use super::module::{Event, Stream};
use crate::backend::KvType;
use crate::error::{Error, Result, collected, filled, reserve};
use crate::plan::op::{Convolution, ExpertProduct, Scan, StateId};
use crate::plan::{Op, Program};
use crate::sync::threads;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Launches that are queued together; a stream takes about a thousand, and waiting for room while it is held back would last for ever.
const TOGETHER: usize = 64;
/// A driver's call of another thread may wait for the held stream, with a lock that queueing needs: then the stream goes on after this time, and
/// the step's times have the host's in them.
const LONGEST_HOLD: Duration = Duration::from_millis(20);
/// The medians are those of so many latest steps.
const STEPS: usize = 64;
/// Stack of the thread that lets the stream go on.
const STACK_BYTES: usize = 128 << 10;

/// Measures a session's steps.
pub struct Timing {
    /// Moments between launches that are queued together.
    events: Vec<Event>,
    /// 1 lets the stream go on.
    gate: Mapped<u32>,
    tables: Vec<Table>,
    /// Bytes a second of the device's memory.
    bandwidth: f64,
}

/// The steps of one bucket whose tokens are chosen in one way.
struct Table {
    shape: Shape,
    lines: Vec<Line>,
    /// Microseconds of the launches of the latest steps, a step after the other.
    times: Vec<f32>,
    /// Microseconds between two events without a launch, of the same steps.
    empty: Vec<f32>,
    steps: usize,
    /// Positions that the rows of the latest step attend to, all together.
    positions: u64,
}

/// One launch.
struct Line {
    /// Kernel and ops.
    name: String,
    /// Bytes of weights that it reads, and of states that it reads and writes.
    weights: u64,
    /// Bytes of keys and values that it reads for each position of each row.
    position_bytes: u64,
}

/// What the host's memory is for.
const WHAT: &str = "times of launches";

impl Timing {
    /// For steps of these shapes, one for each bucket and way of choosing tokens; the context must be current.
    pub fn new(
        primary: &Arc<Primary>,
        program: &Program,
        matrices: &[Matrix],
        lists: &Lists,
        shapes: impl Iterator<Item = Shape>,
        kv_type: KvType,
    ) -> Result<Timing> {
        let mut events = reserve(TOGETHER + 2, WHAT)?;
        for _ in 0..TOGETHER + 2 {
            events.push(Event::new(primary)?);
        }
        let mut tables = Vec::new();
        for shape in shapes {
            let launches = lists.of(&shape).iter().filter(|launch| launch.runs(&shape));
            let lines = collected(launches.map(|launch| Line::new(program, matrices, launch, &shape, kv_type)), WHAT)?;
            let (times, empty) = (filled(lines.len() * STEPS, 0.0, WHAT)?, filled(STEPS, 0.0, WHAT)?);
            tables.push(Table { shape, lines, times, empty, steps: 0, positions: 0 });
        }
        Ok(Timing { events, gate: Mapped::new(primary, 1)?, tables, bandwidth: primary.device().memory_bandwidth()? })
    }

    /// Runs a step of a bucket, launch by launch; `positions` are those that its rows attend to, all together.
    pub fn run(&mut self, stream: &Stream, launches: &[Launch], shape: &Shape, positions: u64) -> Result<()> {
        let Some(index) =
            self.tables.iter().position(|table| (table.shape.rows, table.shape.draws) == (shape.rows, shape.draws))
        else {
            return launches.iter().try_for_each(|launch| stream.launch(launch, shape));
        };
        let step = self.tables[index].steps % STEPS;
        let (mut done, mut rest) = (0, launches);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(TOGETHER.min(rest.len()));
            let count = self.run_together(stream, now, shape)?;
            let table = &mut self.tables[index];
            let first = step * table.lines.len() + done;
            for (slot, pair) in table.times[first..first + count].iter_mut().zip(self.events[1..].windows(2)) {
                *slot = (pair[1].since(&pair[0])? * 1e6) as f32;
            }
            table.empty[step] = (self.events[1].since(&self.events[0])? * 1e6) as f32;
            (done, rest) = (done + count, later);
        }
        let table = &mut self.tables[index];
        (table.steps, table.positions) = (table.steps + 1, positions);
        Ok(())
    }

    /// Runs a few launches with an event after each, and two before the first; how many there were to run.
    fn run_together(&mut self, stream: &Stream, launches: &[Launch], shape: &Shape) -> Result<usize> {
        // SAFETY: the element lives as long as `self`, is aligned, and everyone else only reads it.
        let gate = unsafe { AtomicU32::from_ptr(self.gate.host()) };
        gate.store(0, Ordering::SeqCst);
        let queued = std::thread::scope(|scope| {
            let open = || {
                std::thread::park_timeout(LONGEST_HOLD);
                gate.store(1, Ordering::SeqCst);
            };
            let opener = threads::spawn_scoped(scope, "segno-timing", STACK_BYTES, open).map_err(|error| {
                Error::Device(format!("cannot start the thread that lets a measured stream go on: {error}"))
            })?;
            let queued = stream.hold(self.gate.device()).and_then(|()| self.queue(stream, launches, shape));
            opener.thread().unpark();
            queued
        });
        stream.wait()?;
        queued
    }

    fn queue(&self, stream: &Stream, launches: &[Launch], shape: &Shape) -> Result<usize> {
        stream.record(&self.events[0])?;
        stream.record(&self.events[1])?;
        let mut count = 0;
        for launch in launches.iter().filter(|launch| launch.runs(shape)) {
            stream.launch(launch, shape)?;
            count += 1;
            stream.record(&self.events[count + 1])?;
        }
        Ok(count)
    }

    /// A table for every bucket that had a step; none before the first.
    pub fn report(&self) -> Option<String> {
        let mut text = String::new();
        let tables = self.tables.iter().filter(|table| table.steps > 0);
        tables.for_each(|table| table.tell(&mut text, self.bandwidth));
        Some(text).filter(|text| !text.is_empty())
    }
}

impl Line {
    fn new(program: &Program, matrices: &[Matrix], launch: &Launch, shape: &Shape, kv_type: KvType) -> Line {
        let mut name = launch.choose(shape).function.entry().name.to_owned();
        // Behind those that lead to logits stands the last norm of all rows, where a pass leaves that.
        let ops = launch.covers.iter().filter_map(|&op| program.all_ops().nth(op));
        let elements = ops.clone().map(|op| match op {
            Op::Attention { kind, .. } => kv_type.stored(program.kv.of(kind.layer)).position_elements(),
            _ => 0,
        });
        let position_bytes = (elements.sum::<usize>() * kv_type.bytes()) as u64;
        let weights = ops.clone().map(|op| weight_bytes(program, matrices, op, shape)).sum();
        for op in ops {
            name += if name.contains(": ") { ", " } else { ": " };
            name += op.name();
        }
        Line { name, weights, position_bytes }
    }
}

/// Bytes of weights that an op reads, and of states that it reads and writes for each row.
fn weight_bytes(program: &Program, matrices: &[Matrix], op: &Op, shape: &Shape) -> u64 {
    let matrix = |id: usize| u64::from(matrices[id].row_bytes);
    let vector = |id: usize| size_of_val(program.vectors[id].as_slice()) as u64;
    let states = |id: StateId| 2 * u64::from(shape.rows) * (program.states[id.0].elements() * size_of::<f32>()) as u64;
    match *op {
        Op::Embed { table, .. } => matrix(table.0) * u64::from(shape.rows),
        Op::Norm { norm, .. } | Op::GroupNorm { norm, .. } | Op::HeadNorm { norm, .. } => vector(norm.weight.0),
        Op::MatMul { matrix: id, bias, .. } => {
            matrix(id.0) * u64::from(matrices[id.0].rows) + bias.map_or(0, |bias| vector(bias.0))
        }
        // Those of all pairs, as if no two had the same expert.
        Op::ExpertMatMul(ExpertProduct { choice, experts, out, .. }) => {
            let pairs = u64::from(shape.rows) * program.chosen(choice) as u64;
            pairs.min(u64::from(matrices[experts.matrix.0].rows) / experts.each as u64)
                * program.values[out.0].width as u64
                * matrix(experts.matrix.0)
        }
        Op::Convolve(Convolution { state, weight, .. }) => vector(weight.0) + states(state),
        Op::Scan(Scan { state, .. }) => states(state),
        _ => 0,
    }
}

impl Table {
    fn tell(&self, text: &mut String, bandwidth: f64) {
        let steps = self.steps.min(STEPS);
        let (mut weights, mut cached, mut total) = (0, 0, 0.0);
        let empty = median(self.empty[..steps].iter().copied());
        let peak = bandwidth / 1e9;
        let drawn = if self.shape.draws == 0 { "" } else { " with drawn tokens" };
        _ = writeln!(
            text,
            "launches of a step of {} rows{drawn}, medians of {steps} steps; {empty:.1} us of each are the measurement's, share is of {peak:.0} GB/s",
            self.shape.rows
        );
        _ = writeln!(text, "{:>4} {:>12} {:>9} {:>7} {:>6}  launch", "", "bytes", "us", "GB/s", "share");
        for (index, line) in self.lines.iter().enumerate() {
            let keys = self.positions * line.position_bytes;
            let us = median((0..steps).map(|step| self.times[step * self.lines.len() + index]));
            (weights, cached, total) = (weights + line.weights, cached + keys, total + us);
            _ = writeln!(text, "{:>4} {} {}", index + 1, figures(line.weights + keys, us, bandwidth), line.name);
        }
        let sum = figures(weights + cached, total, bandwidth);
        _ = writeln!(text, " all {sum} {weights} bytes of weights and states, {cached} of keys and values");
    }
}

/// Bytes, microseconds, rate and share of the peak.
fn figures(bytes: u64, us: f32, bandwidth: f64) -> String {
    let rate = bytes as f64 / f64::from(us.max(f32::MIN_POSITIVE)) * 1e6;
    format!("{bytes:>12} {us:>9.2} {:>7.0} {:>5.1}% ", rate / 1e9, 100.0 * rate / bandwidth)
}

fn median(times: impl Iterator<Item = f32>) -> f32 {
    let mut sorted = [0.0; STEPS];
    let count = sorted.iter_mut().zip(times).map(|(slot, time)| *slot = time).count();
    sorted[..count].sort_unstable_by(f32::total_cmp);
    sorted[count / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([5.0].into_iter()), 5.0);
        assert_eq!(median((0..STEPS).map(|i| (i * 37 % STEPS) as f32)), STEPS as f32 / 2.0);
    }

    #[test]
    fn a_rate_is_bytes_by_time() {
        assert_eq!(figures(8_000_000, 4.0, 4e12), "     8000000      4.00    2000  50.0% ");
    }
}
