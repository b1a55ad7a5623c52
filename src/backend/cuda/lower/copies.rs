//! Lowering of what moves elements and changes none: parts of heads, heads put together, the vectors that rows bring along, and rows that go to the
//! host and come from there.

use super::{ELEMENTS_A_BLOCK, Extent, Lowering, ONE};
use crate::backend::cuda::args::{Address, Args, CopyHeadsArgs, ExchangeArgs, MOST_EXCHANGED};
use crate::backend::cuda::catalogue::Kernel;
use crate::plan::op::{Exchanged, HeadPart};
use crate::plan::{Op, ValueId};

/// Threads that copy a row.
const EXCHANGE_THREADS: usize = 256;

impl Lowering<'_> {
    /// Some elements of each head, unless a gated unit takes them as they are.
    pub fn take_heads(&mut self, x: ValueId, part: HeadPart, out: ValueId) {
        if self.gate_part(x, part, out) {
            return;
        }
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

    /// Values that go to the host for a part, or come from there, as many as stand together.
    pub fn exchange(&mut self, kernel: Kernel) {
        let place = |op: &Op| match *op {
            Op::Send { x, by } if kernel == Kernel::SendRows => Some((x, by)),
            Op::Receive { out, by, .. } if kernel == Kernel::ReceiveRows => Some((out, by)),
            _ => None,
        };
        let (way, places) = (usize::from(kernel == Kernel::ReceiveRows), self.addresses.exchange);
        let mut args = ExchangeArgs { serial: self.addresses.step.serial, ..ExchangeArgs::default() };
        for (id, Exchanged { part, start, is_last, .. }) in self.ops[self.next..].iter().map_while(place) {
            let at = args.count as usize;
            if at == MOST_EXCHANGED || (at > 0 && part as u32 != args.part) {
                break;
            }
            (args.own[at], args.widths[at]) = (self.value(id), self.width(id) as u32);
            args.shared[at] = places.values[way] + 4 * places.rows * start as u64;
            (args.count, args.part) = (args.count + 1, part as u32);
            // What is sent is told of once, with the last of it; each launch waits for what it receives.
            args.flags = if is_last || way == 1 { places.flags[way] } else { 0 };
        }
        let covered = args.count as usize;
        self.push(kernel.only(), [Extent::Rows, ONE, ONE], EXCHANGE_THREADS, Args::Exchange(args), covered);
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
