//! Products of one value, taken together, and what follows them that their launch does too.

use super::elementwise::{Sum, sigmoid};
use super::{Lowering, Segment};
use crate::backend::cuda::args::{FEW_SEGMENTS, MOST_SEGMENTS, Sigmoid};
use crate::backend::cuda::select::gemv::GATED_ROWS;
use crate::plan::{MatrixId, Op, ValueId};

/// Products of a value that stand one behind the other.
pub struct Products {
    /// Their arguments; `count` of them.
    pub segments: [Segment; MOST_SEGMENTS],
    /// How many there are.
    pub count: usize,
    /// What they write.
    outs: [ValueId; MOST_SEGMENTS],
    /// Their matrices.
    matrices: [MatrixId; MOST_SEGMENTS],
}

/// What follows products and is done by their launch.
pub enum Follower {
    /// The gated unit of both.
    Gate { unit: Sigmoid, gate: ValueId },
    /// The addition of the only one to another value.
    Sum(Sum),
}

impl Follower {
    /// Ops that it takes.
    pub fn ops(&self) -> usize {
        match self {
            Follower::Gate { .. } => 1,
            Follower::Sum(sum) => sum.ops,
        }
    }
}

impl Products {
    /// The arguments of those that a launch of several rows takes.
    pub fn few_segments(&self) -> [Segment; FEW_SEGMENTS] {
        *self.segments.first_chunk().expect("a launch of one row takes more")
    }

    /// The matrices of the program.
    pub fn matrices(&self) -> &[MatrixId] {
        &self.matrices[..self.count]
    }

    /// What the first writes.
    pub fn first_out(&self) -> Option<ValueId> {
        (self.count > 0).then_some(self.outs[0])
    }
}

impl Lowering<'_> {
    /// The products of `x` from op `first` on: `most`, or fewer.
    pub fn products_of(&self, x: ValueId, first: usize, most: usize) -> Products {
        let mut all = Products {
            segments: [Segment::default(); MOST_SEGMENTS],
            count: 0,
            outs: [ValueId(0); MOST_SEGMENTS],
            matrices: [MatrixId(0); MOST_SEGMENTS],
        };
        for op in &self.ops[first..] {
            let &Op::MatMul { x: read, matrix, bias, out } = op else { break };
            if read != x || all.count == most {
                break;
            }
            all.segments[all.count] = Segment {
                matrix: self.addresses.matrices[matrix.0],
                bias: self.vector(bias),
                out: self.value(out),
                ..Segment::default()
            };
            (all.outs[all.count], all.matrices[all.count]) = (out, matrix);
            all.count += 1;
        }
        all
    }

    /// Whether adapters change one of their matrices.
    pub fn are_adapted(&self, products: &Products) -> bool {
        products.matrices().iter().any(|&matrix| self.is_adapted(matrix))
    }

    /// What op `at` and those after it are to these products of `x`, if their launch can do it.
    pub fn follower(&self, x: ValueId, products: &Products, at: usize) -> Option<Follower> {
        match (self.ops.get(at), &products.outs[..products.count]) {
            (Some(&Op::Gate { kind, gate, up }), &[first, second]) if (first, second) == (gate, up) => {
                let unit = sigmoid(kind)?;
                let [a, b, ..] = &products.segments;
                let fits = a.matrix.dtype == b.matrix.dtype && a.matrix.rows.is_multiple_of(GATED_ROWS);
                let is_plain = a.bias == 0 && b.bias == 0 && self.uses.of_value(up).readers == 1;
                let is_plain = is_plain && !self.are_adapted(products);
                (fits && is_plain).then_some(Follower::Gate { unit, gate })
            }
            (_, &[only]) => self.sum_of_product(x, only, at).map(Follower::Sum),
            _ => None,
        }
    }
}
