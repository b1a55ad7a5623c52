//! Products of rows with the matrices of their experts.
//!
//! The rows of a batch are sorted by expert, so that the weights of each are unpacked once for all of its rows: values with a row for each chosen
//! expert keep that order from the first product to the weighted sum. A tile is some weights of one expert and some of its rows; a lone row
//! has a tile for some weights of each of its experts. Sums over experts follow the choice's order, so company never enters.

use super::adapting::Sums;
use super::aligned::Aligned;
use super::lower::{Gathered, MAX_EXPERT_GROUP};
use super::pool::{Grid, TileMut};
use super::routing::choose;
use super::runner::{CpuRunner, Pass};
use super::simd::{Form, Input, Matrix};
use super::tiles::{TILE_ROWS, tile_weights};
use crate::backend::Limits;
use crate::error::{Result, filled, reserve};
use crate::plan::ValueId;
use crate::plan::op::{ExpertProduct, Routing, Rows, Value};

/// Elements whose sigmoids are on the stack together.
const STRETCH: usize = 256;
/// What the memory is for.
const WHAT: &str = "buffers of the forward pass";

/// The rows of a batch by their experts.
#[derive(Default)]
pub struct Sorted {
    /// By which choice.
    choice: Option<ValueId>,
    /// Of each place: the expert, and the row of the batch.
    experts: Vec<u32>,
    rows: Vec<u32>,
    /// The place of each row's experts, in the order of the choice.
    places: Vec<u32>,
    /// The first places of tiles.
    starts: Vec<u32>,
    /// Of each expert: the first place behind those that have been given out.
    ends: Vec<u32>,
}

impl Sorted {
    /// Reserves what batches within `limits` need.
    pub fn new(gathered: &Gathered, limits: &Limits) -> Result<Sorted> {
        let places = limits.rows.saturating_mul(gathered.chosen);
        Ok(Sorted {
            choice: None,
            experts: filled(places, 0, WHAT)?,
            rows: filled(places, 0, WHAT)?,
            places: filled(places, 0, WHAT)?,
            starts: reserve(places, WHAT)?,
            ends: filled(gathered.experts, 0, WHAT)?,
        })
    }

    /// Bytes that [`Sorted::new`] reserves.
    pub fn bytes(gathered: &Gathered, limits: &Limits) -> usize {
        (4 * limits.rows * gathered.chosen + gathered.experts) * size_of::<u32>()
    }

    /// Forgets whose order it holds: the rows have moved.
    pub fn forget(&mut self) {
        self.choice = None;
    }

    /// Sorts by `choices`, `chosen` experts for each row; rows of one expert keep their order.
    fn sort(&mut self, choices: &[f32], chosen: usize) {
        let ends = &mut self.ends;
        let ids = || choices.chunks_exact(2 * chosen).flat_map(|row| row[..chosen].iter().map(|id| id.to_bits()));
        ends.fill(0);
        ids().for_each(|id| ends[id as usize] += 1);
        self.starts.clear();
        let mut first = 0;
        for end in ends {
            let rows = std::mem::replace(end, first);
            self.starts.extend((first..first + rows).step_by(TILE_ROWS));
            first += rows;
        }
        for (index, id) in ids().enumerate() {
            let end = &mut self.ends[id as usize];
            let place = *end;
            *end += 1;
            self.places[index] = place;
            (self.experts[place as usize], self.rows[place as usize]) = (id, (index / chosen) as u32);
        }
    }
}

impl Pass<'_> {
    /// Chooses the experts of every row.
    pub(super) fn route(&mut self, logits: ValueId, routing: &Routing, choice: ValueId) -> Result<()> {
        self.runner.sorted.forget();
        self.write_rows(choice, |runner, row, choice| {
            let bias = routing.bias.map(|bias| runner.program.vectors[bias.0].as_slice());
            choose(runner.kernels, routing, bias, runner.row(logits, row), choice);
        })
    }

    /// Multiplies each row of `x` by the sigmoid of its gate, or each element by that of its own.
    pub(super) fn multiply_by_sigmoid(&mut self, x: ValueId, gate: ValueId) -> Result<()> {
        self.write_rows(x, |runner, row, x| {
            let gate = runner.row(gate, row);
            let mut factors = [0.0; STRETCH];
            if let [gate] = *gate {
                factors[0] = gate;
                runner.kernels.sigmoid(&mut factors[..1]);
                return runner.kernels.scale(x, factors[0]);
            }
            for (x, gate) in x.chunks_mut(STRETCH).zip(gate.chunks(STRETCH)) {
                let factors = &mut factors[..gate.len()];
                factors.copy_from_slice(gate);
                runner.kernels.sigmoid(factors);
                runner.kernels.mul(x, factors);
            }
        })
    }

    /// Sorts the rows by `choice`, unless they are.
    fn sort(&mut self, choice: ValueId) {
        if self.runner.sorted.choice == Some(choice) {
            return;
        }
        let mut sorted = std::mem::take(&mut self.runner.sorted);
        let rows = self.rows_of(choice);
        sorted.sort(self.runner.rows(choice, 0, rows), self.runner.program.chosen(choice));
        sorted.choice = Some(choice);
        self.runner.sorted = sorted;
    }

    /// Multiplies the rows of `x` by matrices of their experts, in one stage.
    pub(super) fn multiply_experts(
        &mut self,
        x: ValueId,
        form: Form,
        choice: ValueId,
        products: &[ExpertProduct],
    ) -> Result<()> {
        self.sort(choice);
        let (places, batch) = (self.rows_of(products[0].out), self.rows_of(choice));
        let Value { width, rows: rows_of_x, .. } = self.runner.program.values[x.0];
        let is_shared = rows_of_x == Rows::Batch;
        // A lone row is the same for all of its experts.
        if is_shared && batch > 1 {
            let rows = std::mem::take(&mut self.runner.sorted.rows);
            let result = self.gather(x, form, places, width, |place| (rows[place] as usize, 0));
            self.runner.sorted.rows = rows;
            result?;
        }
        let sums = self.expert_sums(x, products)?;
        let mut buffers: [Aligned<f32>; MAX_EXPERT_GROUP] = Default::default();
        products.iter().zip(&mut buffers).for_each(|(product, buffer)| *buffer = self.runner.take(product.out));
        let runner = &*self.runner;
        let mut slots = buffers.iter_mut();
        let grids: [Grid<f32>; MAX_EXPERT_GROUP] = std::array::from_fn(|index| {
            let buffer = slots.next().expect("one slot a grid");
            let Some(product) = products.get(index) else { return Grid::new(&mut [], 1, 1, 1) };
            let width = runner.program.values[product.out.0].width;
            let starts = &runner.sorted.starts;
            let cols = tile_weights((width * starts.len()).max(1), form, runner.pool.threads());
            Grid::listed(&mut buffer[..places * width], width, starts, cols)
        });
        let result = self.turn.for_each_tile(&grids, self.cancel, |index, mut tile| {
            let (first, count) = (tile.first_row(), tile.rows());
            let input = match is_shared {
                true if batch > 1 => runner.copies.input(form, width, first..first + count),
                true => runner.input(x, form, 0, 1),
                false => runner.input(x, form, first, count),
            };
            runner.multiply_expert(products, index, (&input, sums.as_ref()), &mut tile);
        });
        products.iter().zip(buffers).for_each(|(product, buffer)| self.runner.give_back(product.out, buffer));
        result
    }

    /// Adds up the rows of each row's experts, by their weights.
    pub(super) fn weighted_sum(&mut self, x: ValueId, choice: ValueId, out: ValueId) -> Result<()> {
        self.sort(choice);
        let chosen = self.runner.program.chosen(choice);
        self.write_rows(out, |runner, row, out| {
            let places = &runner.sorted.places[row * chosen..][..chosen];
            let weights = &runner.row(choice, row)[chosen..];
            out.fill(0.0);
            for (place, weight) in places.iter().zip(weights) {
                runner.kernels.scale_add(out, 1.0, runner.row(x, *place as usize), *weight);
            }
        })
    }
}

impl CpuRunner {
    /// The expert, and the row of the batch, that stand at a place of rows sorted by expert.
    pub(super) fn at_place(&self, place: usize) -> (usize, usize) {
        (self.sorted.experts[place] as usize, self.sorted.rows[place] as usize)
    }

    /// Writes a tile of one expert's rows of the product `index`, of which adapters may have made sums.
    fn multiply_expert(
        &self,
        products: &[ExpertProduct],
        index: usize,
        (input, sums): (&Input, Option<&Sums>),
        tile: &mut TileMut<f32>,
    ) {
        let ExpertProduct { experts, scale, bias, out, .. } = products[index];
        let (expert, width) = (self.sorted.experts[tile.first_row()] as usize, self.program.values[out.0].width);
        let weight = &self.program.matrices[experts.matrix.0];
        let row_bytes = weight.bytes.len() / weight.rows;
        let bytes = &weight.bytes[(expert * experts.each + experts.first) * row_bytes..][..width * row_bytes];
        let matrix = Matrix::new(weight.dtype, bytes, width, weight.cols);
        self.kernels.matmul(&matrix.expect("the program holds whole matrices"), input, tile);
        if let Some(sums) = sums {
            self.add_expert_adapters(products, index, sums, tile);
        }
        if let Some(scale) = scale {
            let factor = self.program.vectors[scale.0][expert];
            (0..tile.rows()).for_each(|row| self.kernels.scale(tile.row_mut(row), factor));
        }
        if let Some(bias) = bias {
            let first = expert * width + tile.first_col();
            let bias = &self.program.vectors[bias.0][first..first + tile.cols()];
            (0..tile.rows()).for_each(|row| self.kernels.add(tile.row_mut(row), bias));
        }
    }
}
