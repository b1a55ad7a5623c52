//! Values that products of several rows read as 16-bit floats, where the host allows that: which these are, and the memory that they take.
//!
//! They stand in blocks of rows, tiled as `kernels/quant/f16_layout.cuh` tells.

use super::Lowering;
use crate::backend::cuda::args::{Activation, Address, ElementwiseArgs};
use crate::backend::cuda::catalogue::Kernel;
use crate::backend::cuda::memory::Places;
use crate::plan::ValueId;

/// Rows of a block.
const ROWS: usize = 512;
/// What the first byte is aligned to.
const ALIGNMENT: usize = 1024;

/// Where values of a pass of so many rows stand, the widest with `width` elements a row; 0 where that is 0.
pub fn place(width: usize, rows: usize, places: &mut Places) -> Address {
    if width == 0 {
        return 0;
    }
    let bytes = width.saturating_mul(rows.next_multiple_of(ROWS)).saturating_mul(2);
    places.named("values of 16-bit floats", bytes.saturating_add(ALIGNMENT)).next_multiple_of(ALIGNMENT as u64)
}

impl Lowering<'_> {
    /// Whether the list reads and writes this value as 16-bit floats.
    pub fn is_f16(&self, id: ValueId) -> bool {
        let place = self.uses.of_value(id).place.map_or(0, |place| self.addresses.forms[place].f16);
        let may_round = match self.uses.of_value(id).is_read_by_experts() {
            true => self.batches.rounds_experts(),
            false => self.batches.may_round(),
        };
        place != 0 && may_round && !self.is_read_by_adapters(id) && self.uses.is_roundable(self.program, id)
    }

    /// Whether products with experts may read a value as 16-bit floats, as which it is written, or which are made of its floats.
    pub fn is_f16_for_experts(&self, id: ValueId) -> bool {
        let place = self.uses.of_value(id).place;
        let has_place = place.is_some_and(|place| self.addresses.forms[place].f16 != 0);
        has_place && self.batches.rounds_experts() && self.uses.experts_round(self.program, id)
    }

    /// Those 16-bit floats.
    pub fn f16_input(&mut self, id: ValueId) -> Activation {
        let input = self.input(id);
        if self.is_f16(id) {
            return input;
        }
        let place = self.uses.of_value(id).place.expect("products read it");
        let made = Activation { q: self.addresses.forms[place].f16, meta: 0, ..input };
        if self.rounded != Some(id) {
            let args = ElementwiseArgs { x: made, width: self.width(id) as u32, ..Default::default() };
            self.push_elementwise(Kernel::CopyRows, id, args, 0);
            self.rounded = Some(id);
        }
        made
    }
}
