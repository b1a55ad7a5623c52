//! What adapters add to products, row by row: `y += factor * B (A x)`, by the adapters of the row's slot.
//!
//! The sums `A x` of all rows and all products of a stage are made before it, in as many tiles as threads can share; `B` is added where the stage
//! writes its own tiles, so that it costs no stage. Sums have the order of any product of floats, and columns of `B` are added one after the other
//! in the order of ranks: so neither company nor tiles enter. Rows without adapters are left alone.

use super::aligned::Aligned;
use super::lower::{MAX_GROUP, Product};
use super::pool::{Grid, TileMut};
use super::runner::{CpuRunner, Pass};
use super::simd::{FloatRun, Input, Kernels, Matrix};
use crate::backend::{Limits, Row, Scaled};
use crate::error::{Result, filled};
use crate::plan::ValueId;
use crate::plan::adapter::{Down, Floats, Up};
use crate::plan::op::{MatrixId, Rows};
use std::ops::Range;

/// What the memory is for.
const WHAT: &str = "buffers of adapters";
/// Fewest multiplications of a stage for which waking other threads pays.
const PARALLEL_PRODUCTS: usize = 32 * 1024;
/// Rows of a tile, and sums of one of few rows and of many.
const TILE_ROWS: usize = 32;
const TILE_SUMS: usize = 8;
const TILE_SUMS_OF_MANY: usize = 64;

/// The adapters of a session.
pub struct Adapting {
    /// Those of each slot.
    sets: Vec<Vec<Scaled>>,
    /// The sums of the stage that comes next: rows behind each other.
    sums: Aligned<f32>,
}

/// Bytes of the buffers for `limits`.
pub fn bytes(limits: &Limits) -> usize {
    limits.rows.saturating_mul(limits.ranks).saturating_mul(MAX_GROUP * size_of::<f32>())
}

impl Adapting {
    /// Reserves what batches within `limits` need.
    pub fn new(limits: &Limits) -> Result<Adapting> {
        Ok(Adapting { sets: filled(limits.seqs, Vec::new(), WHAT)?, sums: room(limits.rows, limits.ranks)? })
    }

    /// Makes room for `ranks` of each of `rows` rows.
    pub fn grow(&mut self, rows: usize, ranks: usize) -> Result<()> {
        self.sums = room(rows, ranks)?;
        Ok(())
    }

    /// Gives a slot other adapters, for whose ranks there is room.
    pub fn set(&mut self, slot: usize, adapters: Vec<Scaled>) {
        self.sets[slot] = adapters;
    }

    /// Whether one of these rows has adapters.
    pub fn concerns(&self, rows: &[Row]) -> bool {
        rows.iter().any(|row| !self.sets[row.slot as usize].is_empty())
    }
}

fn room(rows: usize, ranks: usize) -> Result<Aligned<f32>> {
    Aligned::filled(rows.saturating_mul(ranks).saturating_mul(MAX_GROUP), 0.0, WHAT)
}

/// The pairs that a set has for a product, in the set's order, each with the factor on what it adds.
fn pairs(set: &[Scaled], matrix: MatrixId) -> impl Iterator<Item = (&Down, &Up, f32)> {
    set.iter().filter_map(move |scaled| {
        let (down, up) = scaled.adapter.weights.of(matrix)?;
        Some((down, up, up.factor * scaled.scale))
    })
}

/// Sums that a row with this set has in a stage.
fn count_sums(set: &[Scaled], products: &[Product]) -> usize {
    products.iter().flat_map(|product| pairs(set, product.matrix)).map(|(down, ..)| down.rank).sum()
}

/// The rows of a value, as slots.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    rows: &'a [Row],
    /// Which rows of the batch they are; `None` for all of them.
    outputs: Option<&'a [u32]>,
}

impl Slots<'_> {
    fn of(&self, row: usize) -> usize {
        self.rows[self.outputs.map_or(row, |outputs| outputs[row] as usize)].slot as usize
    }
}

/// The sums of a stage.
#[derive(Clone, Copy)]
pub struct Sums<'a> {
    slots: Slots<'a>,
    /// Sums of a row, as many as the row with the most has.
    each: usize,
}

impl<'a> Pass<'a> {
    fn slots_of(&self, x: ValueId) -> Slots<'a> {
        let all = self.runner.program.values[x.0].rows == Rows::Batch && !self.selected;
        Slots { rows: self.batch.rows, outputs: if all { None } else { Some(self.batch.outputs) } }
    }

    /// Makes the sums of the rows of `x` for these products; `None` where no row has adapters for any of them.
    pub(super) fn adapter_sums(&mut self, x: ValueId, products: &[Product]) -> Result<Option<Sums<'a>>> {
        if !self.adapts {
            return Ok(None);
        }
        let (slots, rows) = (self.slots_of(x), self.rows_of(x));
        let runner = &*self.runner;
        let sets = &runner.adapting.sets;
        let each = (0..rows).map(|row| count_sums(&sets[slots.of(row)], products)).max().unwrap_or(0);
        if each == 0 {
            return Ok(None);
        }
        let sums = Sums { slots, each };
        let work = rows * each * runner.program.values[x.0].width;
        let mut buffer = std::mem::take(&mut self.runner.adapting.sums);
        let (runner, values) = (&*self.runner, &mut buffer[..rows * each]);
        let result = if work < PARALLEL_PRODUCTS {
            runner.write_sums(x, products, &sums, &mut TileMut::whole(values, each));
            Ok(())
        } else {
            let width = if rows < TILE_SUMS { TILE_SUMS } else { TILE_SUMS_OF_MANY };
            let grid = Grid::new(values, each, TILE_ROWS, width);
            self.turn.for_each_tile(&[grid], self.cancel, |_, mut tile| {
                runner.write_sums(x, products, &sums, &mut tile);
            })
        };
        self.runner.adapting.sums = buffer;
        result.map(|()| Some(sums))
    }
}

impl CpuRunner {
    /// Writes a tile of sums. Neighbouring rows with the same adapters are multiplied together.
    fn write_sums(&self, x: ValueId, products: &[Product], sums: &Sums, tile: &mut TileMut<f32>) {
        let (first, mut row) = (tile.first_row(), 0);
        while row < tile.rows() {
            let set = self.set_of(sums, first + row);
            let end = (row + 1..tile.rows()).find(|&next| self.set_of(sums, first + next) != set);
            let rows = row..end.unwrap_or(tile.rows());
            row = rows.end;
            let input = Input::F32 { values: self.rows(x, first + rows.start, rows.len()) };
            let mut at = 0;
            for (down, _, factor) in products.iter().flat_map(|product| pairs(set, product.matrix)) {
                self.write_part(down, factor, &input, rows.clone(), at, tile);
                at += down.rank;
            }
        }
    }

    fn set_of(&self, sums: &Sums, row: usize) -> &[Scaled] {
        &self.adapting.sets[sums.slots.of(row)]
    }

    /// Writes what a tile has of the sums of one pair, which begin at the column `at` of all.
    fn write_part(
        &self,
        down: &Down,
        factor: f32,
        input: &Input,
        rows: Range<usize>,
        at: usize,
        tile: &mut TileMut<f32>,
    ) {
        let (start, end) = (tile.first_col(), tile.first_col() + tile.cols());
        let cols = at.max(start)..(at + down.rank).min(end);
        if cols.is_empty() {
            return;
        }
        let matrix = Matrix::new(down.dtype, &down.bytes, down.rank, down.cols);
        let mut part = tile.part(rows, cols.start - start..cols.end - start, cols.start - at);
        self.kernels.matmul(&matrix.expect("adapters hold whole matrices"), input, &mut part);
        (0..part.rows()).for_each(|row| self.kernels.scale(part.row_mut(row), factor));
    }

    /// Adds to a tile of the product `index` what its rows' adapters make of their sums.
    pub(super) fn add_adapters(&self, products: &[Product], index: usize, sums: &Sums, tile: &mut TileMut<f32>) {
        let (first, col) = (tile.first_row(), tile.first_col());
        for row in 0..tile.rows() {
            let set = self.set_of(sums, first + row);
            let mut at = (first + row) * sums.each + count_sums(set, &products[..index]);
            for (down, up, _) in pairs(set, products[index].matrix) {
                let factors = &self.adapting.sums[at..at + down.rank];
                add_columns(self.kernels, factors, up, col, tile.row_mut(row));
                at += down.rank;
            }
        }
    }
}

fn add_columns(kernels: &Kernels, factors: &[f32], up: &Up, col: usize, out: &mut [f32]) {
    let values = match &up.values {
        Floats::F16(values) => FloatRun::F16(&values[col..]),
        Floats::F32(values) => FloatRun::F32(&values[col..]),
    };
    kernels.mix_part(factors, values, up.width, out);
}
