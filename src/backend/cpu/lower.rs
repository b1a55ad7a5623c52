//! From a program to the steps of this backend: where activations become 8-bit, which multiplications share a stage, which
//! buffer holds each value.

use super::simd::Kernels;
use crate::error::{Result, push};
use crate::plan::memory::{Placement, place};
use crate::plan::{MatrixId, Op, Program, ValueId, VectorId};

/// What the memory of a lowered program is for.
const STEPS: &str = "the plan of a pass";

/// Most multiplications of one stage: Q, K and V.
pub const MAX_GROUP: usize = 3;

/// A program as this backend runs it.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// Buffers of the values.
    pub placement: Placement,
    /// Widest value that is quantized, in elements; 0 when none is.
    pub quantized_width: usize,
}

/// One step; each [`Op`] of the program is covered by exactly one.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// An op that needs no more than its description.
    Plain(Op),
    /// Rounds a value to 8-bit blocks, for the multiplications that follow.
    Quantize(ValueId),
    /// Multiplications of one value by several matrices, in one stage.
    MatMuls {
        /// Read.
        x: ValueId,
        /// Whether the 8-bit blocks of `x` are read, instead of its floats.
        quantized: bool,
        /// One to [`MAX_GROUP`] products.
        products: Vec<Product>,
    },
}

/// `out = x * matrix^T + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Weights.
    pub matrix: MatrixId,
    /// Added to every row.
    pub bias: Option<VectorId>,
    /// Written.
    pub out: ValueId,
}

/// Lowers `program`; in precise mode every multiplication reads floats.
pub fn lower(program: &Program, kernels: &Kernels, precise: bool) -> Result<Lowered> {
    let mut lowering = Lowering { steps: Vec::new(), quantized: None, quantized_width: 0 };
    for op in &program.ops {
        match *op {
            Op::MatMul { x, matrix, bias, out } => {
                let quantized = !precise && kernels.takes_q8(program.matrices[matrix.0].dtype);
                if quantized {
                    lowering.quantize(x, program.values[x.0].width)?;
                }
                lowering.multiply(x, quantized, Product { matrix, bias, out })?;
            }
            _ => push(&mut lowering.steps, Step::Plain(op.clone()), STEPS)?,
        }
        lowering.forget(op.writes());
    }
    Ok(Lowered { steps: lowering.steps, placement: place(program)?, quantized_width: lowering.quantized_width })
}

struct Lowering {
    steps: Vec<Step>,
    /// The value whose 8-bit form the one scratch buffer holds.
    quantized: Option<ValueId>,
    quantized_width: usize,
}

impl Lowering {
    fn quantize(&mut self, x: ValueId, width: usize) -> Result<()> {
        if self.quantized != Some(x) {
            push(&mut self.steps, Step::Quantize(x), STEPS)?;
            self.quantized = Some(x);
            self.quantized_width = self.quantized_width.max(width);
        }
        Ok(())
    }

    fn multiply(&mut self, x: ValueId, quantized: bool, product: Product) -> Result<()> {
        if let Some(Step::MatMuls { x: last_x, quantized: last_form, products }) = self.steps.last_mut()
            && *last_x == x
            && *last_form == quantized
            && products.len() < MAX_GROUP
        {
            return push(products, product, STEPS);
        }
        push(&mut self.steps, Step::MatMuls { x, quantized, products: vec![product] }, STEPS)
    }

    fn forget(&mut self, written: Option<ValueId>) {
        if written.is_some() && self.quantized == written {
            self.quantized = None;
        }
    }
}
