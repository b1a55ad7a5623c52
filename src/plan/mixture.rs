//! Products with the matrices of experts, and how experts are chosen.

use super::op::{MatrixId, ValueId, VectorId};
use crate::arch::spec::Score;
use crate::format::limits;

/// Most experts of a layer, and most that a row has.
pub const MOST_EXPERTS: usize = limits::EXPERTS;
/// See [`MOST_EXPERTS`].
pub const MOST_CHOSEN: usize = limits::CHOSEN;

/// How experts are chosen for a row, and weighed.
///
/// Scores are made of the logits. Those with the largest score plus bias are chosen, of equal ones those of lower numbers, and a sum that is
/// no number comes last. Where experts stand in groups, only those of the groups with the largest sums of their best are looked at. Without bias
/// and groups the logits rank, whose order is that of exact scores: rounding makes no two of them equal.
/// The weight of a chosen expert is its score without the bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// What is made of logits.
    pub score: Score,
    /// Added to scores for the choice alone.
    pub bias: Option<VectorId>,
    /// Groups of neighbouring experts.
    pub groups: Option<Groups>,
    /// Whether weights are divided by their sum, which counts as 2^-14 at least.
    pub normalizes: bool,
    /// Factor on weights.
    pub scale: f32,
}

/// Experts in groups of equal size, of which some are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many are looked at.
    pub kept: usize,
    /// Of how many of its best experts a group's rank is the sum: 1 or 2.
    pub best: usize,
}

/// The rows of one projection of all experts, which stand in one matrix, an expert after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Weights.
    pub matrix: MatrixId,
    /// Rows of each expert in the matrix.
    pub each: usize,
    /// The first of them that belongs to the projection.
    pub first: usize,
}

/// A product of rows with the matrices of their experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertProduct {
    /// Read; a row for each of the batch, which all of its experts read, or one for each of them.
    pub x: ValueId,
    /// Read: which experts.
    pub choice: ValueId,
    /// Weights, of each expert one row for each column of `out`.
    pub experts: Experts,
    /// A factor for each expert.
    pub scale: Option<VectorId>,
    /// Added; as many elements for each expert as `out` has columns.
    pub bias: Option<VectorId>,
    /// Written; a row for each chosen expert.
    pub out: ValueId,
}
