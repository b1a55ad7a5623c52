//! Lowering of what moves elements and changes none: parts of heads, heads put together, and the vectors that rows bring along.

use super::{ELEMENTS_A_BLOCK, Extent, Lowering, ONE};
use crate::backend::cuda::args::{Address, Args, CopyHeadsArgs};
use crate::backend::cuda::catalogue::Kernel;
use crate::plan::ValueId;
use crate::plan::op::HeadPart;

impl Lowering<'_> {
    /// Some elements of each head.
    pub fn take_heads(&mut self, x: ValueId, part: HeadPart, out: ValueId) {
        let heads = self.width(x) / part.each;
        self.copy_heads((self.value(x), part), (out, 0), heads, 1);
    }

    /// Some elements of each head, and those of another value behind them.
    pub fn join_heads(&mut self, x: ValueId, part: HeadPart, y: ValueId, out: ValueId) {
        let heads = self.width(x) / part.each;
        let each = self.width(y) / heads;
        self.copy_heads((self.value(x), part), (out, 0), heads, 0);
        self.copy_heads((self.value(y), HeadPart { each, first: 0, count: each }), (out, part.count), heads, 1);
    }

    /// The vectors that rows bring along.
    pub fn given(&mut self, out: ValueId) {
        let each = self.width(out);
        self.copy_heads((self.addresses.given, HeadPart { each, first: 0, count: each }), (out, 0), 1, 1);
    }

    /// Elements of each head of what is at an address, to those of `out` from `out_first` on.
    fn copy_heads(
        &mut self,
        (x, part): (Address, HeadPart),
        (out, out_first): (ValueId, usize),
        heads: usize,
        covered: usize,
    ) {
        let width = heads * part.count;
        let args = CopyHeadsArgs {
            x,
            out: self.value(out),
            each: part.each as u32,
            first: part.first as u32,
            out_each: (self.width(out) / heads) as u32,
            out_first: out_first as u32,
            count: part.count as u32,
            width: width as u32,
        };
        let grid = [Extent::Fixed(width.div_ceil(ELEMENTS_A_BLOCK) as u32), self.rows(out), ONE];
        self.push(Kernel::CopyHeads.only(), grid, ELEMENTS_A_BLOCK, Args::CopyHeads(args), covered);
    }
}
