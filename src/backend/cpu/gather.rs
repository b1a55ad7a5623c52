//! Parts of rows copied one behind the other, in the form that a multiplication reads: those of one expert, or of one head, then stand together.

use super::aligned::Aligned;
use super::lower::Gathered;
use super::runner::{CpuRunner, Pass};
use super::simd::{Form, Input, Q8_LEN, Q8Block};
use super::tiles::for_each_row;
use crate::backend::Limits;
use crate::error::{Result, filled};
use crate::plan::ValueId;
use half::bf16;
use std::ops::Range;

/// Room for the copies of one multiplication.
#[derive(Default)]
pub struct Copies {
    floats: Aligned<f32>,
    quantized: Vec<Q8Block>,
    rounded: Aligned<bf16>,
}

impl Copies {
    /// Reserves what batches within `limits` need.
    pub fn new(gathered: &Gathered, limits: &Limits) -> Result<Copies> {
        let (count, what) = (|each: usize| limits.rows.saturating_mul(each), "buffers of the forward pass");
        Ok(Copies {
            floats: Aligned::filled(count(gathered.floats), 0.0, what)?,
            quantized: filled(count(gathered.quantized / Q8_LEN), Q8Block::default(), what)?,
            rounded: Aligned::filled(count(gathered.rounded), bf16::ZERO, what)?,
        })
    }

    /// Bytes that [`Copies::new`] reserves.
    pub fn bytes(gathered: &Gathered, limits: &Limits) -> usize {
        let each = gathered.floats * size_of::<f32>()
            + gathered.quantized / Q8_LEN * size_of::<Q8Block>()
            + gathered.rounded * size_of::<bf16>();
        limits.rows * each
    }

    /// The copies `places`, of `len` elements each.
    pub fn input(&self, form: Form, len: usize, places: Range<usize>) -> Input<'_> {
        let elements = places.start * len..places.end * len;
        match form {
            Form::F32 => Input::F32 { values: &self.floats[elements] },
            Form::Q8 => Input::Q8 { blocks: &self.quantized[blocks(elements)] },
            Form::Bf16 => Input::Bf16 { values: &self.rounded[elements] },
        }
    }
}

/// The blocks that hold `elements`, which begin and end with a block.
fn blocks(elements: Range<usize>) -> Range<usize> {
    elements.start / Q8_LEN..elements.end / Q8_LEN
}

impl CpuRunner {
    /// Some elements of a row of a value, as a multiplication reads them.
    pub(super) fn part(&self, x: ValueId, form: Form, row: usize, part: Range<usize>) -> Input<'_> {
        match self.input(x, form, row, 1) {
            Input::F32 { values } => Input::F32 { values: &values[part] },
            Input::Q8 { blocks: values } => Input::Q8 { blocks: &values[blocks(part)] },
            Input::Bf16 { values } => Input::Bf16 { values: &values[part] },
        }
    }
}

impl Pass<'_> {
    /// Copies `len` elements of `x` to each of so many `places`: those of the row, and from the element on, that `from` says.
    pub(super) fn gather(
        &mut self,
        x: ValueId,
        form: Form,
        places: usize,
        len: usize,
        from: impl Fn(usize) -> (usize, usize) + Sync,
    ) -> Result<()> {
        let mut copies = std::mem::take(&mut self.runner.copies);
        let (runner, turn, cancel) = (&*self.runner, &mut self.turn, self.cancel);
        let part = |place: usize| {
            let (row, first) = from(place);
            runner.part(x, form, row, first..first + len)
        };
        let result = match form {
            Form::F32 => for_each_row(turn, &mut copies.floats[..places * len], len, len, cancel, |place, out| {
                if let Input::F32 { values } = part(place) {
                    out.copy_from_slice(values);
                }
            }),
            Form::Q8 => {
                let blocks = len / Q8_LEN;
                for_each_row(turn, &mut copies.quantized[..places * blocks], blocks, len, cancel, |place, out| {
                    if let Input::Q8 { blocks } = part(place) {
                        out.copy_from_slice(blocks);
                    }
                })
            }
            Form::Bf16 => for_each_row(turn, &mut copies.rounded[..places * len], len, len, cancel, |place, out| {
                if let Input::Bf16 { values } = part(place) {
                    out.copy_from_slice(values);
                }
            }),
        };
        self.runner.copies = copies;
        result
    }
}
