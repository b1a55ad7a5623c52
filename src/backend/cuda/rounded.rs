//! Values that products of several rows read as 16-bit floats, where the host allows that: which these are, and the memory that they take.
//!
//! They stand in blocks of rows, tiled as `kernels/common/loose.cuh` tells.

use super::args::Address;
use super::loose;
use super::lower::Lowering;
use super::memory::Places;
use crate::plan::{Op, Program, ValueId};

/// Rows of a block, and the columns that its width is a multiple of.
const ROWS: usize = 512;
const COLUMNS: usize = 128;
/// What the first byte is aligned to.
const ALIGNMENT: usize = 1024;

/// Whether a kernel writes the value in any form, and nothing reads it but products with matrices whose types have kernels for that.
pub fn is_roundable(program: &Program, id: ValueId) -> bool {
    let writer = program.ops.iter().rposition(|op| op.writes() == Some(id)).unwrap_or(0);
    let is_written = matches!(program.ops[writer], Op::Norm { .. } | Op::Attention { .. } | Op::SiluMul { .. });
    let mut readers = program.ops[writer + 1..].iter().filter(|op| op.reads().contains(&Some(id))).peekable();
    let takes = |op: &Op| match op {
        Op::MatMul { matrix, .. } => loose::takes(program.matrices[matrix.0].dtype, program.matrices[matrix.0].rows),
        _ => false,
    };
    let fits = is_written && program.values[id.0].width.is_multiple_of(COLUMNS);
    fits && readers.peek().is_some() && readers.all(takes)
}

/// Whether a gated unit writes the value.
pub fn is_gated(program: &Program, id: ValueId) -> bool {
    program.ops.iter().any(|op| matches!(op, Op::SiluMul { gate, .. } if *gate == id))
}

/// Where the values of a pass of so many rows stand, those of gated units or all others; 0 where there is none.
pub fn place(program: &Program, rows: usize, gated: bool, places: &mut Places) -> Address {
    let ids = (0..program.values.len()).map(ValueId);
    let fits = |&id: &ValueId| is_gated(program, id) == gated && is_roundable(program, id);
    let Some(width) = ids.filter(fits).map(|id| program.values[id.0].width).max() else { return 0 };
    let bytes = width.saturating_mul(rows.next_multiple_of(ROWS)).saturating_mul(2);
    places.named("rounded values", bytes.saturating_add(ALIGNMENT)).next_multiple_of(ALIGNMENT as u64)
}

impl Lowering<'_> {
    /// Whether the list reads and writes this value as 16-bit floats.
    pub fn is_loose(&self, id: ValueId) -> bool {
        let all = self.addresses;
        let place = if is_gated(self.program, id) { all.loose_gated } else { all.loose };
        place != 0 && self.batches.may_round() && is_roundable(self.program, id)
    }
}
