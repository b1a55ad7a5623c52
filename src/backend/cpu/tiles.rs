//! How the work of a step is cut for the threads of the pool.

use super::pool::{Grid, Turn};
use super::simd::Form;
use crate::error::Result;
use std::sync::atomic::AtomicBool;

/// Fewest elements of an output for which waking other threads pays, for ops that do little with each.
const PARALLEL_ELEMENTS: usize = 32 * 1024;
/// Weight rows of a tile: a multiple of the vector kernels' 16, few enough that a raised cancel is seen soon.
const TILE_WEIGHTS: usize = 256;
/// The same for products of floats, whose kernels take 13.
const TILE_FLOATS: usize = 208;
/// Batch rows of a tile.
pub(super) const TILE_ROWS: usize = 128;

/// Calls `f(row, values)` for every row of `out`, `width` values each; on other threads too when the rows hold enough elements of
/// work, `work` a row.
pub(super) fn for_each_row<T: Send>(
    turn: &mut Turn,
    out: &mut [T],
    width: usize,
    work: usize,
    cancel: &AtomicBool,
    f: impl Fn(usize, &mut [T]) + Sync,
) -> Result<()> {
    let rows = out.len() / width;
    if rows < 2 || rows * work < PARALLEL_ELEMENTS {
        out.chunks_exact_mut(width).enumerate().for_each(|(row, values)| f(row, values));
        return Ok(());
    }
    let tile_rows = (PARALLEL_ELEMENTS / 4).div_ceil(work);
    turn.for_each_tile(&[Grid::new(out, width, tile_rows, width)], cancel, |_, mut tile| {
        (0..tile.rows()).for_each(|row| f(tile.first_row() + row, tile.row_mut(row)));
    })
}

/// Weight rows of a tile: enough tiles for every thread to have several, none too large.
pub(super) fn tile_weights(weights: usize, form: Form, threads: usize) -> usize {
    let most = if form == Form::Q8 { TILE_WEIGHTS } else { TILE_FLOATS };
    weights.div_ceil(4 * threads).next_multiple_of(16).min(most)
}
