//! Products of each head of a row with rows of weights of its own, heads put together of two values, and parts of heads.
//!
//! The parts of a batch's rows that a head multiplies are copied one behind the other, so that its weights are unpacked once for all rows; a
//! lone row is read where it lies. A tile holds outputs of one head.

use super::lower::HeadProduct;
use super::pool::Grid;
use super::runner::Pass;
use super::simd::Matrix;
use super::tiles::{TILE_ROWS, tile_weights};
use crate::error::Result;
use crate::plan::ValueId;
use crate::plan::op::HeadPart;

impl Pass<'_> {
    /// Multiplies each head by its own rows of the matrix.
    pub(super) fn multiply_heads(&mut self, product: &HeadProduct) -> Result<()> {
        let &HeadProduct { x, form, part: HeadPart { each, first, count }, matrix, out } = product;
        let program = &self.runner.program;
        let (rows, heads) = (self.rows_of(out), program.values[x.0].width / each);
        let width = program.values[out.0].width;
        if rows > 1 {
            self.gather(x, form, heads * rows, count, |place| (place % rows, place / rows * each + first))?;
        }
        let mut buffer = self.runner.take(out);
        let runner = &*self.runner;
        let own = width / heads;
        let cols = tile_of_head(own, tile_weights(width, form, runner.pool.threads()));
        let grid = Grid::new(&mut buffer[..rows * width], width, TILE_ROWS, cols);
        let result = self.turn.for_each_tile(&[grid], self.cancel, |_, mut tile| {
            let weight = &runner.program.matrices[matrix.0];
            let matrix = Matrix::new(weight.dtype, &weight.bytes, weight.rows, weight.cols);
            let (head, row) = (tile.first_col() / own, tile.first_row());
            let input = if rows == 1 {
                runner.part(x, form, 0, head * each + first..head * each + first + count)
            } else {
                runner.copies.input(form, count, head * rows + row..head * rows + row + tile.rows())
            };
            runner.kernels.matmul(&matrix.expect("the program holds whole matrices"), &input, &mut tile);
        });
        self.runner.give_back(out, buffer);
        result
    }

    /// Puts each head together of a part of that of `x` and of that of `y`.
    pub(super) fn join_heads(&mut self, x: ValueId, part: HeadPart, y: ValueId, out: ValueId) -> Result<()> {
        let HeadPart { each, first, count } = part;
        let values = &self.runner.program.values;
        let heads = values[x.0].width / each;
        let (behind, joined) = (values[y.0].width / heads, values[out.0].width / heads);
        self.write_rows(out, |runner, row, out| {
            let heads = runner.row(x, row).chunks_exact(each).zip(runner.row(y, row).chunks_exact(behind));
            for (out, (x, y)) in out.chunks_exact_mut(joined).zip(heads) {
                out[..count].copy_from_slice(&x[first..first + count]);
                out[count..].copy_from_slice(y);
            }
        })
    }

    /// Takes a part of each head of `x`.
    pub(super) fn take_heads(&mut self, x: ValueId, part: HeadPart, out: ValueId) -> Result<()> {
        let HeadPart { each, first, count } = part;
        self.write_rows(out, |runner, row, out| {
            let heads = runner.row(x, row).chunks_exact(each);
            out.chunks_exact_mut(count).zip(heads).for_each(|(out, x)| out.copy_from_slice(&x[first..first + count]));
        })
    }
}

/// Weight rows of a tile: an equal part of a head's, in whole vectors and near to `most`, or all of them where there is none.
fn tile_of_head(own: usize, most: usize) -> usize {
    let tile = (16..=most).rev().step_by(16).map(|cols| cols / 16 * 16).find(|&cols| own.is_multiple_of(cols));
    tile.unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_end_with_their_head() {
        for (own, most, expected) in
            [(512, 256, 256), (512, 208, 128), (128, 208, 128), (96, 64, 48), (8, 208, 8), (40, 16, 40)]
        {
            assert_eq!(tile_of_head(own, most), expected, "{own} rows of a head, tiles of {most}");
        }
    }
}
