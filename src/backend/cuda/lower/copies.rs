//! Lowering of what moves elements and changes none: parts of heads, heads put together, and the vectors that rows bring along.

use super::{ELEMENTS_A_BLOCK, Extent, Lowering, ONE};
use crate::backend::cuda::args::{Address, Args, CopyHeadsArgs};
use crate::backend::cuda::catalogue::Kernel;
use crate::plan::ValueId;
use crate::plan::op::HeadPart;

impl Lowering<'_> {
    /// Some elements of each head.
    pub fn take_heads(&mut self, x: ValueId, part: HeadPart, out: ValueId) {
        self.copy_heads(self.value(x), part, (0, 0), out);
    }

    /// Some elements of each head, and those of another value behind them.
    pub fn join_heads(&mut self, x: ValueId, part: HeadPart, y: ValueId, out: ValueId) {
        let heads = self.width(x) / part.each;
        self.copy_heads(self.value(x), part, (self.value(y), self.width(y) / heads), out);
    }

    /// The vectors that rows bring along.
    pub fn given(&mut self, out: ValueId) {
        let each = self.width(out);
        self.copy_heads(self.addresses.given, HeadPart { each, first: 0, count: each }, (0, 0), out);
    }

    /// Elements of each head of what is at `x`, and behind them the heads of so many elements that are at `y`.
    fn copy_heads(&mut self, x: Address, part: HeadPart, (y, y_each): (Address, usize), out: ValueId) {
        let width = self.width(out);
        let args = CopyHeadsArgs {
            x,
            y,
            out: self.value(out),
            each: part.each as u32,
            first: part.first as u32,
            count: part.count as u32,
            y_each: y_each as u32,
            width: width as u32,
            pad: 0,
        };
        let grid = [Extent::Fixed(width.div_ceil(ELEMENTS_A_BLOCK) as u32), self.rows(out), ONE];
        self.push(Kernel::CopyHeads.only(), grid, ELEMENTS_A_BLOCK, Args::CopyHeads(args), 1);
    }
}
