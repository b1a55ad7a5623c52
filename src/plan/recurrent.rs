//! Ops of layers that keep a state of fixed size in place of keys and values. Rows of a sequence are computed one after the other, and
//! that is the canonical order: however many rows a pass has, the sums are those of passes of one row each.

use super::op::{ValueId, VectorId};

/// Index into [`super::Program::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(pub usize);

/// Most rows that a convolution sees.
pub const MOST_TAPS: usize = 16;

/// A convolution of each column with the rows before: `out[row] = bias + sum of weight[tap] * x[row - taps + 1 + tap]`, added in the order of the
/// taps, the oldest row first. Rows before the first of a sequence are zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Convolution {
    /// Keeps the last rows of `x`, one fewer than there are taps.
    pub state: StateId,
    /// Read.
    pub x: ValueId,
    /// How many rows each output sees, its own included.
    pub taps: usize,
    /// Weights, a row as wide as `x` for each tap.
    pub weight: VectorId,
    /// Added; as wide as `x`.
    pub bias: Option<VectorId>,
    /// Written; as wide as `x`.
    pub out: ValueId,
}

/// How much of a row's values enters the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strength {
    /// `1 / (1 + exp(-x))` of this value, an element for each head, of what the state does not know yet: the delta rule (Yang et al., "Gated
    /// Delta Networks").
    Delta(ValueId),
    /// The step of the head, of the values themselves: a selective state space (Dao and Gu, "Transformers are SSMs").
    Step,
}

/// Linear attention through a matrix for each head, which decays from row to row.
///
/// With `step = ln(1 + exp(decay + bias))` and `kept = exp(rate * step)`, each row of a sequence makes of the head's matrix `S`, of a row for each
/// element of a key and a column for each of a value:
///
/// - `S = kept * S`
/// - `new = strength * (value - S^T key)` by the delta rule, else `new = step * value`
/// - `S = S + key * new^T`
/// - `out = S^T query + skip * value`
///
/// Sums over a key's elements are taken in their order, by fused multiplication and addition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scan {
    /// Keeps the matrices.
    pub state: StateId,
    /// Read; a head for each key head.
    pub queries: ValueId,
    /// Read; as wide as queries.
    pub keys: ValueId,
    /// Read; a head for each matrix.
    pub values: ValueId,
    /// Read; an element for each matrix.
    pub decay: ValueId,
    /// What enters.
    pub strength: Strength,
    /// Added to `decay`, an element for each matrix.
    pub bias: VectorId,
    /// Of the exponential, an element for each matrix; none is positive.
    pub rate: VectorId,
    /// Factor on values that are added to the result, an element for each matrix.
    pub skip: Option<VectorId>,
    /// Key heads. They divide the matrices.
    pub key_heads: usize,
    /// Whether matrix `h` has the key head `h % key_heads`, or `h / (matrices / key_heads)`.
    pub is_tiled: bool,
    /// Written; as wide as values.
    pub out: ValueId,
}

impl Scan {
    /// The key head of matrix `head`, of `heads`.
    pub fn key_head(&self, head: usize, heads: usize) -> usize {
        if self.is_tiled { head % self.key_heads } else { head / (heads / self.key_heads) }
    }

    /// What is read.
    pub fn reads(&self) -> [Option<ValueId>; 5] {
        let strength = match self.strength {
            Strength::Delta(strength) => Some(strength),
            Strength::Step => None,
        };
        [Some(self.queries), Some(self.keys), Some(self.values), Some(self.decay), strength]
    }
}
