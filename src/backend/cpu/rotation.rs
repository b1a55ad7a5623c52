//! Rotations of heads by the positions of a batch's rows: the angles of all rows, computed once a pass.

use super::simd::Kernels;
use crate::backend::{Limits, Row};
use crate::error::{Result, filled};
use crate::plan::op::{Rope, RopeLayout};

/// Cosines and sines of the rows of a batch for one rotation, `dims / 2` of each a row.
pub struct Angles {
    /// Tokens of the longest sequence, which may decide the frequencies.
    context: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    /// Room for the rows of a batch within `limits`.
    pub fn new(rope: &Rope, limits: &Limits) -> Result<Angles> {
        let (count, what) = (limits.rows.saturating_mul(rope.dims() / 2), "buffers of the forward pass");
        let (cos, sin) = (filled(count, 0.0, what)?, filled(count, 0.0, what)?);
        Ok(Angles { context: limits.context, cos, sin })
    }

    /// Computes those of `rows`.
    pub fn compute(&mut self, rope: &Rope, rows: &[Row]) {
        let half = rope.dims() / 2;
        let angles = self.cos.chunks_exact_mut(half).zip(self.sin.chunks_exact_mut(half));
        for (row, (cos, sin)) in rows.iter().zip(angles) {
            rope.angles(row.position, self.context, cos, sin);
        }
    }

    /// Rotates the heads of row `row`, `dim` elements each.
    pub fn rotate(&self, rope: &Rope, kernels: &Kernels, row: usize, dim: usize, heads: &mut [f32]) {
        let half = rope.dims() / 2;
        let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
        for head in heads.chunks_exact_mut(dim) {
            match rope.layout {
                RopeLayout::Pairs => kernels.rope_pairs(head, cos, sin),
                RopeLayout::Halves => kernels.rope_halves(head, cos, sin),
            }
        }
    }
}
