//! States of layers without keys: their memory, and the ops that carry them from row to row.
//!
//! A matrix lies in blocks of 16 columns, a block's row behind the other, the last block filled with zeros, so that a tile's part is one
//! stretch of memory that stays in the first-level cache while all rows of a prompt pass by. A state that is read and one that is written are
//! different records.

use super::aligned::Aligned;
use super::pool::{Grid, TileMut};
use super::runner::{CpuRunner, Pass};
use super::simd::ScanRow;
use super::tiles::for_each_row;
use crate::backend::{Limits, Row};
use crate::elementary::{exp, ln};
use crate::error::{Result, reserve};
use crate::kv::state::{self, BLOCK, Move, Shape};
use crate::plan::Program;
use crate::plan::op::{Convolution, Scan, StateId, Strength};
use std::ops::Range;

/// Most blocks of a tile: as many sums as are under way at once.
const TILE_BLOCKS: usize = 4;
const WHAT: &str = "states of layers";

/// The states of all sequences.
#[derive(Default)]
pub struct States {
    records: Vec<Aligned<f32>>,
    /// Where in a record each state begins, and where the last one ends.
    starts: Vec<usize>,
    /// Of each row how much of a matrix is kept, and how much of a value enters, for all matrices.
    gates: Aligned<f32>,
}

impl States {
    /// Zeroed records for `program`.
    pub fn new(program: &Program, limits: &Limits) -> Result<States> {
        let starts = state::starts(&program.states)?;
        let each = starts.last().copied().unwrap_or(0);
        let count = if each > 0 { limits.records } else { 0 };
        let mut records = reserve(count, WHAT)?;
        for _ in 0..count {
            records.push(Aligned::filled(each, 0.0, WHAT)?);
        }
        let gates = Aligned::filled(limits.rows.saturating_mul(gates_width(program)), 0.0, WHAT)?;
        Ok(States { records, starts, gates })
    }

    /// Gives out a record.
    pub fn read(&self, record: u32, out: &mut [u8]) {
        let record = &self.records[record as usize];
        assert_eq!(record.len() * size_of::<f32>(), out.len());
        out.as_chunks_mut().0.iter_mut().zip(&record[..]).for_each(|(to, from)| *to = from.to_le_bytes());
    }

    /// Takes a record in.
    pub fn write(&mut self, record: u32, bytes: &[u8]) {
        let record = &mut self.records[record as usize];
        assert_eq!(record.len() * size_of::<f32>(), bytes.len());
        record.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, &from)| *to = f32::from_le_bytes(from));
    }

    fn range(&self, state: StateId) -> Range<usize> {
        self.starts[state.0]..self.starts[state.0 + 1]
    }

    /// A state in the record of which a pass begins.
    fn before(&self, from: Option<u32>, state: StateId) -> Option<&[f32]> {
        from.map(|from| &self.records[from as usize][self.range(state)])
    }
}

/// Bytes of the records.
pub fn bytes(program: &Program, limits: &Limits) -> Result<u64> {
    let each = state::starts(&program.states)?.last().copied().unwrap_or(0);
    Ok((each as u64).saturating_mul(limits.records as u64).saturating_mul(size_of::<f32>() as u64))
}

/// Bytes of what the ops need beside the records.
pub fn arena_bytes(program: &Program, limits: &Limits) -> usize {
    limits.rows * gates_width(program) * size_of::<f32>()
}

/// Two elements for each matrix.
fn gates_width(program: &Program) -> usize {
    let heads =
        program.states.iter().map(|shape| if let Shape::Matrices { heads, .. } = shape { 2 * heads } else { 0 });
    heads.max().unwrap_or(0)
}

/// The rows that a convolution sees: those of a sequence in the batch, and the ones before.
struct Window<'a> {
    /// None at the beginning of a sequence, where they are zeros.
    kept: Option<&'a [f32]>,
    rows: &'a [f32],
    width: usize,
    /// Rows before those of the batch.
    count: usize,
}

impl Window<'_> {
    /// Row `index`, of which the first one of the batch is `count`; none for zeros.
    fn row(&self, index: usize) -> Option<&[f32]> {
        let (rows, index) = if index < self.count { (self.kept?, index) } else { (self.rows, index - self.count) };
        Some(&rows[index * self.width..(index + 1) * self.width])
    }

    /// Writes the rows that are kept behind the first `end` rows of the batch.
    fn keep(&self, end: usize, out: &mut [f32]) {
        for (place, out) in out.chunks_exact_mut(self.width).take(self.count).enumerate() {
            match self.row(end + place) {
                Some(row) => out.copy_from_slice(row),
                None => out.fill(0.0),
            }
        }
    }
}

/// The rows of a batch by sequence, each with the number of its first one.
fn stretches(rows: &[Row]) -> impl Iterator<Item = (usize, &[Row])> {
    let mut end = 0;
    rows.chunk_by(|a, b| a.slot == b.slot).map(move |rows| {
        end += rows.len();
        (end - rows.len(), rows)
    })
}

/// The records that a sequence's pass fills, taken out to be written: behind its last row, and before it.
type Targets = [Option<Aligned<f32>>; 2];

impl CpuRunner {
    fn take_records(&mut self, moved: &Move) -> Targets {
        let records = &mut self.states.records;
        [Some(moved.to), moved.before].map(|at| at.map(|at| std::mem::take(&mut records[at as usize])))
    }

    fn give_back_records(&mut self, moved: &Move, targets: Targets) {
        for (record, target) in [Some(moved.to), moved.before].into_iter().zip(targets) {
            record.into_iter().zip(target).for_each(|(at, target)| self.states.records[at as usize] = target);
        }
    }
}

impl Pass<'_> {
    /// Convolves every column with the rows before.
    pub(super) fn convolve(&mut self, convolution: &Convolution) -> Result<()> {
        let (batch, mut buffer) = (self.batch, self.runner.take(convolution.out));
        let mut all = stretches(batch.rows);
        let result = all.try_for_each(|(first, rows)| self.convolve_sequence(convolution, first, rows, &mut buffer));
        self.runner.give_back(convolution.out, buffer);
        result
    }

    fn convolve_sequence(&mut self, op: &Convolution, first: usize, rows: &[Row], out: &mut [f32]) -> Result<()> {
        let moved = self.batch.moves[rows[0].slot as usize];
        let mut targets = self.runner.take_records(&moved);
        let (runner, vectors) = (&*self.runner, &self.runner.program.vectors);
        let width = runner.program.values[op.x.0].width;
        let (kept, rows) = (runner.states.before(moved.from, op.state), runner.rows(op.x, first, rows.len()));
        let window = Window { kept, rows, width, count: op.taps - 1 };
        let (weight, bias) = (&vectors[op.weight.0], op.bias.map(|bias| &vectors[bias.0]));
        let own = &mut out[first * width..first * width + rows.len()];
        let result = for_each_row(&mut self.turn, own, width, width * op.taps, self.cancel, |row, out| {
            match bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for (tap, weight) in weight.chunks_exact(width).enumerate() {
                window.row(row + tap).into_iter().for_each(|x| runner.kernels.mul_add(out, x, weight));
            }
        });
        let end = rows.len() / width;
        for (target, end) in targets.iter_mut().zip([end, end - 1]) {
            target.iter_mut().for_each(|target| window.keep(end, &mut target[runner.states.range(op.state)]));
        }
        self.runner.give_back_records(&moved, targets);
        result
    }

    /// Linear attention through states.
    pub(super) fn scan(&mut self, scan: &Scan) -> Result<()> {
        self.compute_gates(scan)?;
        let (batch, mut buffer) = (self.batch, self.runner.take(scan.out));
        let mut all = stretches(batch.rows);
        let result = all.try_for_each(|(first, rows)| self.scan_sequence(scan, first, rows, &mut buffer));
        self.runner.give_back(scan.out, buffer);
        result
    }

    /// Of every row how much of each matrix is kept, and then how much of each value enters.
    fn compute_gates(&mut self, scan: &Scan) -> Result<()> {
        let (rows, heads) = (self.rows_of(scan.out), self.runner.program.values[scan.decay.0].width);
        let mut gates = std::mem::take(&mut self.runner.states.gates);
        let runner = &*self.runner;
        let [bias, rate] = [scan.bias, scan.rate].map(|id| &runner.program.vectors[id.0]);
        let own = &mut gates[..rows * 2 * heads];
        let result = for_each_row(&mut self.turn, own, 2 * heads, GATE_WORK * heads, self.cancel, |row, gates| {
            let (kept, entering) = gates.split_at_mut(heads);
            let strength = match scan.strength {
                Strength::Delta(strength) => Some(runner.row(strength, row)),
                Strength::Step => None,
            };
            for (head, decay) in runner.row(scan.decay, row).iter().enumerate() {
                let step = softplus(f64::from(*decay) + f64::from(bias[head]));
                kept[head] = exp(f64::from(rate[head]) * step) as f32;
                entering[head] = strength.map_or(step, |strength| sigmoid(f64::from(strength[head]))) as f32;
            }
        });
        self.runner.states.gates = gates;
        result
    }

    fn scan_sequence(&mut self, scan: &Scan, first: usize, rows: &[Row], out: &mut [f32]) -> Result<()> {
        let moved = self.batch.moves[rows[0].slot as usize];
        let mut targets = self.runner.take_records(&moved);
        let runner = &*self.runner;
        let work = Sequence::new(runner, scan, first, rows.len(), moved.from);
        let own = &mut out[first * work.width()..(first + rows.len()) * work.width()];
        let out = Grid::new(own, work.width(), rows.len(), work.tile_cols);
        let len = work.state_tile();
        let range = runner.states.range(scan.state);
        let [to, before] = &mut targets;
        let to = to.as_mut().expect("every pass has a record to fill");
        let to = Grid::new(&mut to[range.clone()], range.len(), 1, len);
        let result = match before {
            None => self.turn.for_each_tile_of_all(&[out, to], self.cancel, |[out, state]| work.run(out, state, None)),
            Some(before) => {
                let grids = [out, to, Grid::new(&mut before[range.clone()], range.len(), 1, len)];
                self.turn.for_each_tile_of_all(&grids, self.cancel, |[out, state, before]| {
                    work.run(out, state, Some(before));
                })
            }
        };
        self.runner.give_back_records(&moved, targets);
        result
    }
}

/// What a row's gates cost for a matrix, in elements of simple ops.
const GATE_WORK: usize = 64;

/// The rows of one sequence on their way through the matrices of a scan.
struct Sequence<'a> {
    runner: &'a CpuRunner,
    scan: &'a Scan,
    /// The first row and how many.
    first: usize,
    count: usize,
    /// The matrices before them.
    before: Option<&'a [f32]>,
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    /// Columns of a tile, which belong to one head.
    tile_cols: usize,
}

impl<'a> Sequence<'a> {
    fn new(runner: &'a CpuRunner, scan: &'a Scan, first: usize, count: usize, from: Option<u32>) -> Self {
        let Shape::Matrices { heads, rows, cols } = runner.program.states[scan.state.0] else {
            unreachable!("validated: a scan has matrices")
        };
        // Tiles of a stage begin where a block does in every head.
        let blocks = cols / BLOCK;
        let tile = (1..=TILE_BLOCKS).rev().find(|&tile| blocks.is_multiple_of(tile)).map_or(cols, |tile| tile * BLOCK);
        let tile_cols = if cols.is_multiple_of(BLOCK) { tile } else { cols };
        let before = runner.states.before(from, scan.state);
        Sequence { runner, scan, first, count, before, heads, key_dim: rows, value_dim: cols, tile_cols }
    }

    fn width(&self) -> usize {
        self.heads * self.value_dim
    }

    /// Elements of a tile's part of the state.
    fn state_tile(&self) -> usize {
        self.tile_cols.next_multiple_of(BLOCK) * self.key_dim
    }

    /// Takes the part of a head's matrix in `state`, which becomes that behind the last row, and `before` that before it, through all rows.
    fn run(&self, mut out: TileMut<f32>, mut state: TileMut<f32>, mut before: Option<TileMut<f32>>) {
        let Sequence { runner, scan, first, count, heads, key_dim, value_dim, .. } = *self;
        let (start, state) = (state.first_col(), state.row_mut(0));
        match self.before {
            Some(from) => state.copy_from_slice(&from[start..start + state.len()]),
            None => state.fill(0.0),
        }
        let (head, col) = (out.first_col() / value_dim, out.first_col());
        let key = scan.key_head(head, heads) * key_dim;
        let skip = scan.skip.map(|skip| runner.program.vectors[skip.0][head]);
        for index in 0..count {
            if let Some(before) = before.as_mut().filter(|_| index + 1 == count) {
                before.row_mut(0).copy_from_slice(state);
            }
            let row = first + index;
            let gates = &runner.states.gates[row * 2 * heads..][..2 * heads];
            let row = ScanRow {
                query: &runner.row(scan.queries, row)[key..][..key_dim],
                key: &runner.row(scan.keys, row)[key..][..key_dim],
                value: &runner.row(scan.values, row)[col..][..out.cols()],
                kept: gates[head],
                strength: gates[heads + head],
                is_delta: matches!(scan.strength, Strength::Delta(_)),
                skip,
            };
            runner.kernels.scan_row(&row, state, out.row_mut(index));
        }
    }
}

/// `ln(1 + exp(x))`
fn softplus(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let small = exp(-x.abs());
    let sum = 1.0 + small;
    // What the sum has lost of a small number is made up for (Higham, "Accuracy and Stability of Numerical Algorithms", section 1.14.1).
    let rest = if sum == 1.0 { small } else { ln(sum) * (small / (sum - 1.0)) };
    x.max(0.0) + rest
}

/// `1 / (1 + exp(-x))`
fn sigmoid(x: f64) -> f64 {
    let small = exp(-x.abs());
    if x < 0.0 { small / (1.0 + small) } else { 1.0 / (1.0 + small) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_hold_at_both_ends_of_their_range() {
        for x in [-800.0_f64, -30.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 30.0, 800.0] {
            let near = |found: f64, expected: f64| (found - expected).abs() <= 1e-14 * expected.abs().max(1e-14);
            assert!(near(softplus(x), if x > 30.0 { x } else { x.exp().ln_1p() }), "softplus of {x}");
            assert!(near(sigmoid(x), 1.0 / (1.0 + (-x).exp())), "sigmoid of {x}");
        }
        assert!(softplus(f64::NAN).is_nan() && sigmoid(f64::NAN).is_nan());
        assert_eq!([softplus(f64::NEG_INFINITY), softplus(f64::INFINITY)], [0.0, f64::INFINITY]);
    }
}
