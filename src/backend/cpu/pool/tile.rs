//! Disjoint rectangles of a row-major matrix, so that threads can write one output without sharing a slice.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// A matrix cut into tiles of equal width (smaller at the right edge), numbered along rows of tiles.
pub struct Grid<'a, T> {
    origin: NonNull<T>,
    rows: usize,
    cols: usize,
    heights: Heights<'a>,
    tile_cols: usize,
    values: PhantomData<&'a mut [T]>,
}

/// Which rows of the matrix a row of tiles takes.
enum Heights<'a> {
    /// As many each (fewer at the lower edge).
    Equal(usize),
    /// From each of these to the next, or to the end. They ascend from 0, and lie within the matrix.
    Listed(&'a [u32]),
}

// SAFETY: a grid only computes the places of tiles; whoever asks for a tile promises to be its only holder.
unsafe impl<T: Send> Sync for Grid<'_, T> {}
// SAFETY: it stands for an exclusive borrow of a slice of `T: Send`.
unsafe impl<T: Send> Send for Grid<'_, T> {}

impl<'a, T> Grid<'a, T> {
    /// Cuts `values`, rows of `cols` elements each, into tiles of `tile_rows` x `tile_cols`.
    pub fn new(values: &'a mut [T], cols: usize, tile_rows: usize, tile_cols: usize) -> Self {
        assert!(cols > 0 && tile_rows > 0 && tile_cols > 0 && values.len().is_multiple_of(cols));
        let rows = values.len() / cols;
        let origin = NonNull::from(values).cast();
        Grid { origin, rows, cols, heights: Heights::Equal(tile_rows), tile_cols, values: PhantomData }
    }

    /// Cuts `values`, rows of `cols` elements each, into tiles that are `tile_cols` wide and begin at the rows `starts`.
    pub fn listed(values: &'a mut [T], cols: usize, starts: &'a [u32], tile_cols: usize) -> Self {
        let grid = Grid::new(values, cols, 1, tile_cols);
        let ascend = starts.windows(2).all(|pair| pair[0] < pair[1]);
        let fit = starts.last().is_none_or(|&last| (last as usize) < grid.rows);
        assert!(ascend && fit && starts.first().copied().unwrap_or(0) == 0 && (grid.rows == 0) == starts.is_empty());
        Grid { heights: Heights::Listed(starts), ..grid }
    }

    /// Number of tiles.
    pub fn len(&self) -> usize {
        let down = match self.heights {
            Heights::Equal(rows) => self.rows.div_ceil(rows),
            Heights::Listed(starts) => starts.len(),
        };
        down * self.tiles_across()
    }

    fn tiles_across(&self) -> usize {
        self.cols.div_ceil(self.tile_cols)
    }

    /// The tile numbered `index`.
    ///
    /// # Safety
    /// No other tile of this number may be alive.
    pub unsafe fn tile(&self, index: usize) -> TileMut<'a, T> {
        assert!(index < self.len());
        let (first_row, end) = match self.heights {
            Heights::Equal(rows) => {
                let first = index / self.tiles_across() * rows;
                (first, self.rows.min(first.saturating_add(rows)))
            }
            Heights::Listed(starts) => {
                let down = index / self.tiles_across();
                (starts[down] as usize, starts.get(down + 1).map_or(self.rows, |&next| next as usize))
            }
        };
        let first_col = index % self.tiles_across() * self.tile_cols;
        // SAFETY: the index is in range, and starts lie within the matrix, so both coordinates lie inside the borrowed slice.
        let origin = unsafe { self.origin.add(first_row * self.cols + first_col) };
        let rows = end - first_row;
        let cols = self.tile_cols.min(self.cols - first_col);
        TileMut { origin, rows, cols, stride: self.cols, first_row, first_col, values: PhantomData }
    }
}

/// One tile: `rows` x `cols` elements, `stride` elements from row to row.
pub struct TileMut<'a, T> {
    origin: NonNull<T>,
    rows: usize,
    cols: usize,
    stride: usize,
    first_row: usize,
    first_col: usize,
    values: PhantomData<&'a mut [T]>,
}

impl<'a, T> TileMut<'a, T> {
    /// The whole of `values` as one tile with rows of `cols` elements.
    pub fn whole(values: &'a mut [T], cols: usize) -> Self {
        let grid = Grid::new(values, cols, usize::MAX, usize::MAX);
        assert!(grid.rows > 0);
        // SAFETY: the grid has this one tile and is gone with this call.
        unsafe { grid.tile(0) }
    }

    /// Some rows and columns of the tile, as a tile of a matrix in which these columns begin at `first_col`, and the rows at 0.
    pub fn part(&mut self, rows: Range<usize>, cols: Range<usize>, first_col: usize) -> TileMut<'_, T> {
        assert!(rows.start <= rows.end && rows.end <= self.rows && cols.start <= cols.end && cols.end <= self.cols);
        // SAFETY: the part lies inside the tile, which nobody else holds, and `self` is borrowed for as long.
        let origin = unsafe { self.origin.add(rows.start * self.stride + cols.start) };
        let (rows, cols, stride) = (rows.len(), cols.len(), self.stride);
        TileMut { origin, rows, cols, stride, first_row: 0, first_col, values: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from the start of one row to the start of the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Row of the matrix at which the tile begins.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// Column of the matrix at which the tile begins.
    pub fn first_col(&self) -> usize {
        self.first_col
    }

    /// Row `row` of the tile.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows);
        // SAFETY: the row lies inside the tile, which nobody else holds, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.origin.as_ptr().add(row * self.stride), self.cols) }
    }

    /// Address of the first element; row `r` begins `r * stride()` elements further.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.origin.as_ptr()
    }
}
