//! From a program to the steps of this backend: where activations become 8-bit, which multiplications share a stage, which
//! buffer holds each value.

use super::simd::{Form, Kernels};
use crate::error::{Result, push};
use crate::plan::memory::{Placement, place};
use crate::plan::op::Rows;
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
    /// Widest value that is rounded to BF16, in elements; 0 when none is.
    pub rounded_width: usize,
}

/// One step; each [`Op`] of the program is covered by exactly one.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// An op that needs no more than its description.
    Plain(Op),
    /// From here on only rows whose logits are wanted matter: the values that are still read keep these, and lose the others.
    Select(Vec<ValueId>),
    /// Brings a value into a form for the multiplications that follow.
    Convert {
        /// Read.
        x: ValueId,
        /// Not [`Form::F32`].
        form: Form,
    },
    /// Multiplications of one value by several matrices, in one stage.
    MatMuls {
        /// Read.
        x: ValueId,
        /// In which form `x` is read.
        form: Form,
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
    let mut lowering = Lowering { steps: Vec::new(), converted: None, quantized_width: 0, rounded_width: 0 };
    let last_mix = last_mix(program);
    for (index, op) in program.ops.iter().enumerate() {
        match *op {
            Op::MatMul { x, matrix, bias, out } => {
                let form = if precise { Form::F32 } else { kernels.form(program.matrices[matrix.0].dtype) };
                lowering.convert(x, form, program.values[x.0].width)?;
                lowering.multiply(x, form, Product { matrix, bias, out })?;
            }
            _ => push(&mut lowering.steps, Step::Plain(op.clone()), STEPS)?,
        }
        lowering.forget(op.writes());
        if Some(index) == last_mix {
            lowering.converted = None;
            let read = read_before_written(program, &program.ops[index + 1..])?;
            push(&mut lowering.steps, Step::Select(read), STEPS)?;
        }
    }
    let Lowering { steps, quantized_width, rounded_width, .. } = lowering;
    Ok(Lowered { steps, placement: place(program)?, quantized_width, rounded_width })
}

/// The last op in which rows of a batch meet, unless it cannot be told.
fn last_mix(program: &Program) -> Option<usize> {
    let index = program.ops.iter().rposition(|op| matches!(op, Op::Attention { .. }))?;
    program.ops[index + 1..].iter().all(Op::is_row_wise).then_some(index)
}

/// The values of all rows of a batch that `ops` read and did not write before.
fn read_before_written(program: &Program, ops: &[Op]) -> Result<Vec<ValueId>> {
    let mut found = Vec::new();
    for (index, op) in ops.iter().enumerate() {
        for value in op.reads() {
            let is_written = ops[..index].iter().any(|op| op.writes() == Some(value));
            if !is_written && !found.contains(&value) && program.values[value.0].rows == Rows::Batch {
                push(&mut found, value, STEPS)?;
            }
        }
    }
    Ok(found)
}

struct Lowering {
    steps: Vec<Step>,
    /// The value and the form that were converted last: its form's one scratch buffer holds it.
    converted: Option<(ValueId, Form)>,
    quantized_width: usize,
    rounded_width: usize,
}

impl Lowering {
    fn convert(&mut self, x: ValueId, form: Form, width: usize) -> Result<()> {
        if form == Form::F32 || self.converted == Some((x, form)) {
            return Ok(());
        }
        self.converted = Some((x, form));
        let widest = if form == Form::Q8 { &mut self.quantized_width } else { &mut self.rounded_width };
        *widest = width.max(*widest);
        push(&mut self.steps, Step::Convert { x, form }, STEPS)
    }

    fn multiply(&mut self, x: ValueId, form: Form, product: Product) -> Result<()> {
        if let Some(Step::MatMuls { x: last_x, form: last_form, products }) = self.steps.last_mut()
            && *last_x == x
            && *last_form == form
            && products.len() < MAX_GROUP
        {
            return push(products, product, STEPS);
        }
        push(&mut self.steps, Step::MatMuls { x, form, products: vec![product] }, STEPS)
    }

    fn forget(&mut self, written: Option<ValueId>) {
        if self.converted.is_some_and(|(value, _)| Some(value) == written) {
            self.converted = None;
        }
    }
}
