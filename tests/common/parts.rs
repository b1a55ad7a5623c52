//! Parts of programs made by tests: values, weights, products.

use segno::format::{Bytes, Data};
use segno::kv::{HeadSizes, Layout};
use segno::plan::op::{Rows, Value};
use segno::plan::{MatrixId, Op, Program, ValueId, VectorId, program::Weight};
use segno::quant::synthetic::{Random, scaled_blocks};
use segno::quant::{DType, reference};

/// A program on its way, and what its weights are drawn from.
pub struct Parts {
    pub random: Random,
    pub program: Program,
}

impl Parts {
    /// An empty program with a cache of this shape.
    pub fn new(seed: u64, heads: HeadSizes) -> Parts {
        let program = Program { logits: Some(ValueId(0)), ..Program::new(Layout::new([heads]).unwrap()) };
        Parts { random: Random::new(seed), program }
    }

    pub fn value(&mut self, width: usize, rows: Rows) -> ValueId {
        self.program.values.push(Value::floats(width, rows));
        ValueId(self.program.values.len() - 1)
    }

    pub fn vector(&mut self, values: &[f32]) -> VectorId {
        self.program.vectors.push(values.to_vec());
        VectorId(self.program.vectors.len() - 1)
    }

    pub fn matrix(&mut self, dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> MatrixId {
        let data = Data::copy(bytes, &mut |_| Ok(())).unwrap();
        let bytes = Bytes::new(&data, 0..bytes.len()).unwrap();
        self.program.matrices.push(Weight { dtype, rows, cols, bytes });
        MatrixId(self.program.matrices.len() - 1)
    }

    /// A random matrix of values up to about `spread`, and these.
    pub fn random_matrix(&mut self, dtype: DType, rows: usize, cols: usize, spread: f32) -> (MatrixId, Vec<f32>) {
        let bytes = scaled_blocks(dtype, rows * cols / dtype.block_len(), spread, &mut self.random);
        let mut values = vec![0.0; rows * cols];
        reference::decode(dtype, &bytes, &mut values);
        (self.matrix(dtype, rows, cols, &bytes), values)
    }

    /// A product with a matrix.
    pub fn product(&mut self, x: ValueId, matrix: MatrixId, bias: Option<VectorId>) -> ValueId {
        let width = self.program.matrices[matrix.0].rows;
        let out = self.value(width, self.program.values[x.0].rows);
        self.program.ops.push(Op::MatMul { x, matrix, bias, out });
        out
    }
}
