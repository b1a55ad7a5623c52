//! From a program to the steps of this backend: where activations become 8-bit, which multiplications share a stage, which
//! buffer holds each value.

use super::simd::{Form, Kernels, Q8_LEN};
use crate::error::{Result, collected, push};
use crate::plan::memory::{Placement, place};
use crate::plan::op::{ExpertProduct, HeadPart, Kind, Rows};
use crate::plan::{MatrixId, Op, Program, ValueId, VectorId};

/// What the memory of a lowered program is for.
const STEPS: &str = "the plan of a pass";

/// Most multiplications of one stage: Q, K and V.
pub const MAX_GROUP: usize = 3;

/// Most multiplications by experts of one stage: gate and up.
pub const MAX_EXPERT_GROUP: usize = 2;

/// A program as this backend runs it.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// What leads to logits, in order.
    pub steps: Vec<Step>,
    /// The first step of each stage: that which begins a pass, and of half a program those that begin with what is received for a part.
    pub stages: Vec<usize>,
    /// How many of these steps come before those of embeddings.
    pub shared: usize,
    /// What makes embeddings behind them.
    pub embedding: Vec<Step>,
    /// Buffers of the values.
    pub placement: Placement,
    /// Widest value that is quantized, in elements; 0 when none is.
    pub quantized_width: usize,
    /// Widest value that is rounded to BF16, in elements; 0 when none is.
    pub rounded_width: usize,
    /// What sorting rows by expert or by head needs.
    pub gathered: Gathered,
}

/// Elements for each row of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gathered {
    /// Most experts that a row has.
    pub chosen: usize,
    /// Most experts of a layer, for all rows together.
    pub experts: usize,
    /// Widest value that all experts of a row read, times those, or of which all heads are multiplied, of each form; 0 when there is none.
    pub floats: usize,
    /// As int8 blocks.
    pub quantized: usize,
    /// As BF16.
    pub rounded: usize,
}

impl Gathered {
    /// Makes room for `width` elements a row.
    fn note(&mut self, form: Form, width: usize) {
        let widest = match form {
            Form::F32 => &mut self.floats,
            Form::Q8 => &mut self.quantized,
            Form::Bf16 => &mut self.rounded,
        };
        *widest = width.max(*widest);
    }
}

/// One step; each [`Op`] of the program is covered by exactly one of those that lead to logits or make embeddings.
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
    /// Multiplications of one value by matrices of experts, in one stage.
    Experts {
        /// Read.
        x: ValueId,
        /// In which form `x` is read.
        form: Form,
        /// Whose experts.
        choice: ValueId,
        /// One to [`MAX_EXPERT_GROUP`] products.
        products: Vec<ExpertProduct>,
    },
    /// A multiplication of each head by rows of its own.
    Heads(HeadProduct),
}

/// `out = x * matrix^T`, each head by its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadProduct {
    /// Read.
    pub x: ValueId,
    /// In which form.
    pub form: Form,
    /// Which elements of each head.
    pub part: HeadPart,
    /// Weights.
    pub matrix: MatrixId,
    /// Written.
    pub out: ValueId,
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
    let mut lowering = Lowering::default();
    let last_mix = last_mix(program);
    let end = program.ops.len();
    let after = program.embedding.as_ref().map_or(end, |embedding| embedding.after);
    let (mut shared, mut logits) = (0, 0);
    for (index, op) in program.all_ops().enumerate() {
        if index == after || index == end {
            // What is converted in one of the two ends of a pass is not there in the other.
            lowering.converted = None;
        }
        lowering.op(op, program, kernels, precise)?;
        if Some(index) == last_mix {
            lowering.converted = None;
            let read = read_before_written(program, index + 1)?;
            push(&mut lowering.steps, Step::Select(read), STEPS)?;
        }
        if index + 1 == after {
            shared = lowering.steps.len();
        }
        if index + 1 == end {
            logits = lowering.steps.len();
        }
    }
    let Lowering { mut steps, quantized_width, rounded_width, gathered, .. } = lowering;
    let embedding = collected(steps.drain(logits..), STEPS)?;
    let placement = place(program)?;
    let stages = collected(std::iter::once(0).chain(receipts(&steps)), STEPS)?;
    Ok(Lowered { steps, stages, shared, embedding, placement, quantized_width, rounded_width, gathered })
}

/// The steps that take the first value for a part from the other half of a program.
fn receipts(steps: &[Step]) -> impl Iterator<Item = usize> {
    let is_first = |step: &Step| matches!(step, Step::Plain(Op::Receive { by, .. }) if by.index == 0);
    steps.iter().enumerate().filter(move |(_, step)| is_first(step)).map(|(index, _)| index)
}

/// The form of a value of which heads are multiplied: blocks of integers must not span two heads.
fn form_of_heads(program: &Program, kernels: &Kernels, part: HeadPart, matrix: MatrixId, precise: bool) -> Form {
    let form = if precise { Form::F32 } else { kernels.form(program.matrices[matrix.0].dtype) };
    let is_whole = [part.each, part.first, part.count].iter().all(|elements| elements.is_multiple_of(Q8_LEN));
    if form == Form::Q8 && !is_whole { Form::F32 } else { form }
}

/// The last op in which rows of a batch meet, unless it cannot be told.
fn last_mix(program: &Program) -> Option<usize> {
    let index = program.ops.iter().rposition(Op::mixes_rows)?;
    let behind = || program.all_ops().skip(index + 1);
    // Rows of experts stand in an order of their own.
    let is_of_experts = |id: ValueId| {
        let value = program.values[id.0];
        value.kind == Kind::Choices || matches!(value.rows, Rows::Chosen(_))
    };
    let is_written = |id: ValueId| behind().any(|op| op.writes() == Some(id) && !op.reads().any(|read| read == id));
    let moves_experts = behind().flat_map(Op::reads).any(|id| is_of_experts(id) && !is_written(id));
    (behind().all(Op::is_row_wise) && !moves_experts).then_some(index)
}

/// The values of all rows of a batch that the ops from the number `first` on read, or that are the end of a pass, and that they did not write
/// before.
fn read_before_written(program: &Program, first: usize) -> Result<Vec<ValueId>> {
    let mut found = Vec::new();
    let ops = || program.all_ops().skip(first);
    let reads = ops().enumerate().flat_map(|(index, op)| op.reads().map(move |value| (index, value)));
    for (index, value) in reads.chain(program.vectors_made().map(|end| (usize::MAX, end))) {
        let is_written = ops().take(index).any(|op| op.writes() == Some(value));
        if !is_written && !found.contains(&value) && program.values[value.0].rows == Rows::Batch {
            push(&mut found, value, STEPS)?;
        }
    }
    Ok(found)
}

#[derive(Default)]
struct Lowering {
    steps: Vec<Step>,
    /// The value and the form that were converted last: its form's one scratch buffer holds it.
    converted: Option<(ValueId, Form)>,
    quantized_width: usize,
    rounded_width: usize,
    gathered: Gathered,
}

impl Lowering {
    /// Lowers one op.
    fn op(&mut self, op: &Op, program: &Program, kernels: &Kernels, precise: bool) -> Result<()> {
        let form_of = |matrix: MatrixId| match precise {
            true => Form::F32,
            false => kernels.form(program.matrices[matrix.0].dtype),
        };
        match *op {
            Op::MatMul { x, matrix, bias, out } => {
                let form = form_of(matrix);
                self.convert(x, form, program.extent(x).0)?;
                self.multiply(x, form, Product { matrix, bias, out })?;
            }
            Op::ExpertMatMul(product) => {
                let ExpertProduct { x, choice, experts, .. } = product;
                let form = form_of(experts.matrix);
                self.convert(x, form, program.extent(x).0)?;
                self.gather(program, x, form, choice, program.matrices[experts.matrix.0].rows / experts.each);
                self.multiply_experts(form, product)?;
            }
            Op::HeadMatMul { x, part, matrix, out } => {
                let form = form_of_heads(program, kernels, part, matrix, precise);
                self.convert(x, form, program.extent(x).0)?;
                let width = program.values[x.0].width / part.each * part.count;
                self.gathered.note(form, width);
                push(&mut self.steps, Step::Heads(HeadProduct { x, form, part, matrix, out }), STEPS)?;
            }
            _ => push(&mut self.steps, Step::Plain(op.clone()), STEPS)?,
        }
        self.forget(op.writes());
        Ok(())
    }

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

    /// Notes what sorting the rows of `x` by expert takes, `count` experts.
    fn gather(&mut self, program: &Program, x: ValueId, form: Form, choice: ValueId, count: usize) {
        let (gathered, chosen) = (&mut self.gathered, program.chosen(choice));
        gathered.chosen = gathered.chosen.max(chosen);
        gathered.experts = gathered.experts.max(count);
        if program.values[x.0].rows != Rows::Batch {
            return;
        }
        gathered.note(form, program.values[x.0].width * chosen);
    }

    fn multiply_experts(&mut self, form: Form, product: ExpertProduct) -> Result<()> {
        let ExpertProduct { x, choice, .. } = product;
        if let Some(Step::Experts { x: last_x, form: last_form, choice: last_choice, products }) = self.steps.last_mut()
            && (*last_x, *last_form, *last_choice) == (x, form, choice)
            && products.len() < MAX_EXPERT_GROUP
        {
            return push(products, product, STEPS);
        }
        push(&mut self.steps, Step::Experts { x, form, choice, products: vec![product] }, STEPS)
    }

    fn forget(&mut self, written: Option<ValueId>) {
        if self.converted.is_some_and(|(value, _)| Some(value) == written) {
            self.converted = None;
        }
    }
}
