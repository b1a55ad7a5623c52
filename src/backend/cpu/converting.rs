//! Values as multiplications read them: as they are, in blocks of 8-bit integers, or as 16-bit floats.

use super::runner::{CpuRunner, Pass};
use super::simd::{Form, Input, Q8_LEN, Q8Block};
use super::tiles::for_each_row;
use crate::error::Result;
use crate::plan::ValueId;
use half::bf16;

impl CpuRunner {
    /// The rows `first..first + count` of a value, as a multiplication reads them.
    pub(super) fn input(&self, x: ValueId, form: Form, first: usize, count: usize) -> Input<'_> {
        let width = self.program.values[x.0].width;
        let blocks = width / Q8_LEN;
        match form {
            Form::F32 => Input::F32 { values: self.rows(x, first, count) },
            Form::Q8 => Input::Q8 { blocks: &self.quantized[first * blocks..(first + count) * blocks] },
            Form::Bf16 => Input::Bf16 { values: &self.rounded[first * width..(first + count) * width] },
        }
    }
}

impl Pass<'_> {
    /// Makes blocks of 8-bit integers of a value.
    pub(super) fn quantize(&mut self, x: ValueId) -> Result<()> {
        let (rows, width) = (self.rows_of(x), self.runner.program.values[x.0].width);
        let blocks = width / Q8_LEN;
        let mut quantized = std::mem::take(&mut self.runner.quantized);
        let runner = &*self.runner;
        let f = |row: usize, out: &mut [Q8Block]| runner.kernels.quantize(runner.row(x, row), out);
        let result = for_each_row(&mut self.turn, &mut quantized[..rows * blocks], blocks, width, self.cancel, f);
        self.runner.quantized = quantized;
        result
    }

    /// Rounds a value to 16-bit floats.
    pub(super) fn round(&mut self, x: ValueId) -> Result<()> {
        let (rows, width) = (self.rows_of(x), self.runner.program.values[x.0].width);
        let mut rounded = std::mem::take(&mut self.runner.rounded);
        let runner = &*self.runner;
        let f = |row: usize, out: &mut [bf16]| runner.kernels.to_bf16(runner.row(x, row), out);
        let result = for_each_row(&mut self.turn, &mut rounded[..rows * width], width, width, self.cancel, f);
        self.runner.rounded = rounded;
        result
    }
}
