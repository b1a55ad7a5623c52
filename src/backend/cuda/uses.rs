//! What the ops of a program do with each value, gathered in one walk: lowering then takes time in proportion to the ops.

use super::form::is_quantized;
use super::loose;
use crate::error::{Result, filled};
use crate::plan::{Op, Program, ValueId};

/// Columns that the width of a value is a multiple of where it may be 16-bit floats.
const COLUMNS: usize = 128;

/// What is done with one value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    /// Whether a norm writes it.
    pub is_normed: bool,
    /// Whether a gated unit writes it.
    pub is_gated: bool,
    /// Ops that read it.
    pub readers: usize,
    /// One more than the index of the last multiplication by a quantized matrix that reads it; 0 for none.
    quantized_end: usize,
    /// Whether the last op that writes it has a kernel that can write 16-bit floats.
    has_writer: bool,
    /// Whether anything reads what that op wrote, and whether anything but products of 16-bit floats does.
    is_read: bool,
    is_read_as_floats: bool,
}

/// The uses of every value, by its number.
#[derive(Clone, Debug)]
pub struct Uses(Vec<Use>);

impl Uses {
    /// Walks over the ops of `program`.
    pub fn of(program: &Program) -> Result<Uses> {
        let mut uses = Uses(filled(program.values.len(), Use::default(), "a list of launches")?);
        for (index, op) in program.ops.iter().enumerate() {
            let first = op.reads().next();
            let others = op.reads().skip(1).filter(|&id| Some(id) != first);
            first.into_iter().chain(others).for_each(|id| uses.0[id.0].read(program, index, op));
            if let Some(id) = op.writes() {
                uses.0[id.0].write(op);
            }
        }
        Ok(uses)
    }

    /// The uses of value `id`.
    pub fn of_value(&self, id: ValueId) -> &Use {
        &self.0[id.0]
    }

    /// Whether a kernel writes the value in any form, and nothing reads it but products with matrices whose types have kernels for that.
    pub fn is_roundable(&self, program: &Program, id: ValueId) -> bool {
        let Use { has_writer, is_read, is_read_as_floats, .. } = self.0[id.0];
        has_writer && is_read && !is_read_as_floats && program.values[id.0].width.is_multiple_of(COLUMNS)
    }
}

impl Use {
    /// Whether a multiplication by a quantized matrix reads the value in op `next` or a later one.
    pub fn is_quantized_from(&self, next: usize) -> bool {
        self.quantized_end > next
    }

    fn read(&mut self, program: &Program, index: usize, op: &Op) {
        self.readers += 1;
        self.is_read = true;
        let Op::MatMul { matrix, .. } = op else {
            self.is_read_as_floats = true;
            return;
        };
        let weight = &program.matrices[matrix.0];
        self.is_read_as_floats |= !loose::takes(weight.dtype, weight.rows);
        if is_quantized(weight.dtype) {
            self.quantized_end = index + 1;
        }
    }

    fn write(&mut self, op: &Op) {
        self.is_normed |= matches!(op, Op::Norm { .. });
        self.is_gated |= matches!(op, Op::Gate { .. });
        self.has_writer = matches!(op, Op::Norm { .. } | Op::Attention { .. } | Op::Gate { .. });
        (self.is_read, self.is_read_as_floats) = (false, false);
    }
}
