//! What adapters add to products, row by row: `y += factor * B (A x)`, by the adapters of the row's slot, and to the embedding of tokens.
//!
//! The sums `A x` of all rows and all products of a stage are made before it, in as many tiles as threads can share; `B` is added where the stage
//! writes its own tiles, so that it costs no stage. Sums have the order of any product of floats, and columns of `B` are added one after the other
//! in the order of ranks: so neither company nor tiles enter. Rows without adapters are left alone. A product with matrices of experts has sums for
//! each expert of a row, at the place that the row has there ([`super::experts`]).

use super::aligned::Aligned;
use super::lower::{MAX_EXPERT_GROUP, MAX_GROUP, Product};
use super::pool::{Grid, TileMut};
use super::runner::{CpuRunner, Pass};
use super::simd::{FloatRun, Input, Kernels, Matrix};
use crate::backend::{Limits, Row, Scaled};
use crate::error::{Result, filled};
use crate::plan::adapter::{Down, Floats, Up};
use crate::plan::op::{ExpertProduct, MatrixId, Op, Rows};
use crate::plan::{Program, ValueId};
use crate::quant::reference;
use std::ops::Range;

/// What the memory is for.
const WHAT: &str = "buffers of adapters";
/// Fewest multiplications of a stage for which waking other threads pays.
const PARALLEL_PRODUCTS: usize = 32 * 1024;
/// Rows of a tile, and sums of one of few rows and of many.
const TILE_ROWS: usize = 32;
const TILE_SUMS: usize = 8;
const TILE_SUMS_OF_MANY: usize = 64;
/// Elements of a token's row that are on the stack together.
const STRETCH: usize = 256;

/// The adapters of a session.
pub struct Adapting {
    /// Those of each slot.
    sets: Vec<Vec<Scaled>>,
    /// The sums of the stage that comes next: rows behind each other, or places of rows at their experts.
    sums: Aligned<f32>,
    /// Most sums of a row in a stage, for each rank.
    each: usize,
}

/// Most sums that a row has in a stage for each rank: one for each product, with experts for each of these too.
fn sums_each(program: &Program) -> usize {
    let choices = program.all_ops().filter_map(|op| match op {
        Op::ExpertMatMul(product) => Some(program.chosen(product.choice)),
        _ => None,
    });
    choices.max().map_or(MAX_GROUP, |chosen| MAX_GROUP.max(MAX_EXPERT_GROUP * chosen))
}

/// Bytes of the buffers for `limits`.
pub fn bytes(program: &Program, limits: &Limits) -> usize {
    limits.rows.saturating_mul(limits.ranks).saturating_mul(sums_each(program) * size_of::<f32>())
}

impl Adapting {
    /// Reserves what batches within `limits` need.
    pub fn new(program: &Program, limits: &Limits) -> Result<Adapting> {
        let each = sums_each(program);
        let sums = room(limits.rows, limits.ranks, each)?;
        Ok(Adapting { sets: filled(limits.seqs, Vec::new(), WHAT)?, sums, each })
    }

    /// Makes room for `ranks` of each of `rows` rows.
    pub fn grow(&mut self, rows: usize, ranks: usize) -> Result<()> {
        self.sums = room(rows, ranks, self.each)?;
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

fn room(rows: usize, ranks: usize, each: usize) -> Result<Aligned<f32>> {
    Aligned::filled(rows.saturating_mul(ranks).saturating_mul(each), 0.0, WHAT)
}

/// The pairs that a set has for a product, in the set's order, each with the factor on what it adds.
fn pairs(set: &[Scaled], matrix: MatrixId) -> impl Iterator<Item = (&Down, &Up, f32)> {
    set.iter().filter_map(move |scaled| {
        let (down, up) = scaled.adapter.weights.of(matrix)?;
        Some((down, up, up.factor * scaled.scale))
    })
}

/// Sums that a row with this set has in a stage with these matrices.
fn count_sums(set: &[Scaled], matrices: impl Iterator<Item = MatrixId>) -> usize {
    matrices.flat_map(|matrix| pairs(set, matrix)).map(|(down, ..)| down.rank).sum()
}

/// The matrices of products.
fn matrices(products: &[Product]) -> impl Iterator<Item = MatrixId> {
    products.iter().map(|product| product.matrix)
}

/// The same of products with matrices of experts.
fn tables(products: &[ExpertProduct]) -> impl Iterator<Item = MatrixId> {
    products.iter().map(|product| product.experts.matrix)
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
        let each = self.most_sums(slots, rows, || matrices(products));
        if each == 0 {
            return Ok(None);
        }
        let sums = Sums { slots, each };
        let width = if rows < TILE_SUMS { TILE_SUMS } else { TILE_SUMS_OF_MANY };
        let write = |runner: &CpuRunner, tile: &mut TileMut<f32>| runner.write_sums(x, products, &sums, tile);
        self.fill_sums(x, (rows, each), (TILE_ROWS, width), write)?;
        Ok(Some(sums))
    }

    /// Makes the sums of the rows of `x` at the places of their experts, in whose order they stand; `None` where no row has adapters for any of
    /// these products.
    pub(super) fn expert_sums(&mut self, x: ValueId, products: &[ExpertProduct]) -> Result<Option<Sums<'a>>> {
        if !self.adapts {
            return Ok(None);
        }
        let (slots, rows) = (self.slots_of(products[0].choice), self.rows_of(products[0].choice));
        let each = self.most_sums(slots, rows, || tables(products));
        if each == 0 {
            return Ok(None);
        }
        let (sums, places) = (Sums { slots, each }, self.rows_of(products[0].out));
        let write = |runner: &CpuRunner, tile: &mut TileMut<f32>| runner.write_expert_sums(x, products, &sums, tile);
        self.fill_sums(x, (places, each), (1, each), write)?;
        Ok(Some(sums))
    }

    /// The sums of the row that has the most in a stage.
    fn most_sums<I: Iterator<Item = MatrixId>>(&self, slots: Slots, rows: usize, matrices: impl Fn() -> I) -> usize {
        let sets = &self.runner.adapting.sets;
        (0..rows).map(|row| count_sums(&sets[slots.of(row)], matrices())).max().unwrap_or(0)
    }

    /// Has `write` fill `rows` rows of `each` sums over `x`, in tiles that threads share where that pays.
    fn fill_sums(
        &mut self,
        x: ValueId,
        (rows, each): (usize, usize),
        (tile_rows, tile_sums): (usize, usize),
        write: impl Fn(&CpuRunner, &mut TileMut<f32>) + Sync,
    ) -> Result<()> {
        let work = rows * each * self.runner.program.values[x.0].width;
        let mut buffer = std::mem::take(&mut self.runner.adapting.sums);
        let (runner, values) = (&*self.runner, &mut buffer[..rows * each]);
        let result = if work < PARALLEL_PRODUCTS {
            write(runner, &mut TileMut::whole(values, each));
            Ok(())
        } else {
            let grid = Grid::new(values, each, tile_rows, tile_sums);
            self.turn.for_each_tile(&[grid], self.cancel, |_, mut tile| write(runner, &mut tile))
        };
        self.runner.adapting.sums = buffer;
        result
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
            for (down, _, factor) in matrices(products).flat_map(|matrix| pairs(set, matrix)) {
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

    /// Writes a tile of sums of rows at their experts, all columns of it.
    fn write_expert_sums(&self, x: ValueId, products: &[ExpertProduct], sums: &Sums, tile: &mut TileMut<f32>) {
        let is_shared = self.program.values[x.0].rows == Rows::Batch;
        for row in 0..tile.rows() {
            let place = tile.first_row() + row;
            let (expert, of) = self.at_place(place);
            let values = self.rows(x, if is_shared { of } else { place }, 1);
            let (set, mut at) = (&self.adapting.sets[sums.slots.of(of)], 0);
            for (down, _, factor) in tables(products).flat_map(|table| pairs(set, table)) {
                let bytes = down.bytes.len() / down.experts;
                let matrix = Matrix::new(down.dtype, &down.bytes[expert * bytes..][..bytes], down.rank, down.cols);
                let mut part = tile.part(row..row + 1, at..at + down.rank, 0);
                let input = Input::F32 { values };
                self.kernels.matmul(&matrix.expect("adapters hold whole matrices"), &input, &mut part);
                self.kernels.scale(part.row_mut(0), factor);
                at += down.rank;
            }
        }
    }

    /// Adds to a tile of the product `index` what its rows' adapters make of their sums.
    pub(super) fn add_adapters(&self, products: &[Product], index: usize, sums: &Sums, tile: &mut TileMut<f32>) {
        let (first, col) = (tile.first_row(), tile.first_col());
        for row in 0..tile.rows() {
            let set = self.set_of(sums, first + row);
            let mut at = (first + row) * sums.each + count_sums(set, matrices(&products[..index]));
            for (down, up, _) in pairs(set, products[index].matrix) {
                let factors = &self.adapting.sums[at..at + down.rank];
                add_columns(self.kernels, factors, &up.values, (col, up.width), tile.row_mut(row));
                at += down.rank;
            }
        }
    }

    /// Adds to a tile of rows at one expert, of the product `index`, what their adapters make of their sums.
    pub(super) fn add_expert_adapters(
        &self,
        products: &[ExpertProduct],
        index: usize,
        sums: &Sums,
        tile: &mut TileMut<f32>,
    ) {
        let (first, experts) = (tile.first_row(), products[index].experts);
        for row in 0..tile.rows() {
            let (expert, of) = self.at_place(first + row);
            let set = &self.adapting.sets[sums.slots.of(of)];
            let mut at = (first + row) * sums.each + count_sums(set, tables(&products[..index]));
            for (down, up, _) in pairs(set, experts.matrix) {
                let factors = &self.adapting.sums[at..at + down.rank];
                let from = expert * down.rank * up.width + experts.first + tile.first_col();
                add_columns(self.kernels, factors, &up.values, (from, up.width), tile.row_mut(row));
                at += down.rank;
            }
        }
    }

    /// Adds what the adapters of a row make of its token to its embedding by `table`.
    pub(super) fn add_to_token(&self, table: MatrixId, row: &Row, out: &mut [f32]) {
        for Scaled { adapter, scale } in &self.adapting.sets[row.slot as usize] {
            let Some(tokens) = adapter.weights.tokens_of(table) else { continue };
            let element = tokens.dtype.block_bytes();
            for first in (0..tokens.rank).step_by(STRETCH) {
                let mut factors = [0.0; STRETCH];
                let factors = &mut factors[..STRETCH.min(tokens.rank - first)];
                let at = (row.token as usize * tokens.rank + first) * element;
                reference::decode(tokens.dtype, &tokens.bytes[at..][..factors.len() * element], factors);
                self.kernels.scale(factors, tokens.factor * scale);
                add_columns(self.kernels, factors, &tokens.values, (first * tokens.width, tokens.width), out);
            }
        }
    }
}

/// Adds rows of `values`, which are `stride` elements apart, from the element `from` on, each times its factor.
fn add_columns(kernels: &Kernels, factors: &[f32], values: &Floats, (from, stride): (usize, usize), out: &mut [f32]) {
    let values = match values {
        Floats::F16(values) => FloatRun::F16(&values[from..]),
        Floats::F32(values) => FloatRun::F32(&values[from..]),
    };
    kernels.mix_part(factors, values, stride, out);
}
