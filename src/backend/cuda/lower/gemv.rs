//! Lowering of batches of one, two or four rows: launches that cover a norm, its products and what follows them.
//!
//! What does not fit is left to the launches of other batches.

use super::products::Follower;
use super::{Extent, Lowering, ONE};
use crate::backend::cuda::args::{Args, FEW_SEGMENTS, MOST_SEGMENTS, MatvecArgs};
use crate::backend::cuda::catalogue::Kernel;
use crate::backend::cuda::select::{self, gemv};
use crate::plan::op::Norm;
use crate::plan::{Op, ValueId};

const THREADS: usize = 256;

impl Lowering<'_> {
    /// Lowers the next ops for a batch of so many rows; false leaves them as they are.
    pub fn few_rows(&mut self, batch: u32) -> bool {
        match self.ops[self.next..] {
            [Op::SelectRows { x, out: selected }, Op::Norm { x: normed, norm, out }, ..]
                if normed == selected && self.uses.is_deferred(out) && self.uses.of_value(selected).readers == 1 =>
            {
                if batch == 1 {
                    return self.gemv(1, 2, x, Some(norm), out);
                }
                self.norm(x, norm, out, self.addresses.step.outputs, 2);
                true
            }
            // Each block would norm all rows: a launch of its own is quicker for more than one.
            [Op::Norm { x, norm, out }, ..] if batch == 1 && self.uses.is_deferred(out) => {
                self.gemv(1, 1, x, Some(norm), out)
            }
            [Op::Route { logits, routing, choice }, ..] if batch == 1 => self.choice_with_unit(logits, routing, choice),
            [Op::MatMul { x, .. }, ..] if batch > 1 && self.small_batch_gemm(batch, x) => true,
            [Op::MatMul { x, .. }, ..] => self.gemv(batch, 0, x, None, x),
            _ => false,
        }
    }

    /// Lowers products of `x` to launches on tensor cores, where these are quicker; false leaves them. Tokens of the head are chosen by the kernels
    /// of few rows.
    fn small_batch_gemm(&mut self, batch: u32, x: ValueId) -> bool {
        if matches!(self.ops[self.next], Op::MatMul { out, .. } if Some(out) == self.program.logits) {
            return false;
        }
        let Some((args, covered)) = self.tensor_args(x) else { return false };
        if select::gemm(&args, batch, &self.addresses.device).function.kernel != Kernel::GemmI8SmallBatch {
            return false;
        }
        self.push_gemm(x, args, covered);
        true
    }

    /// Products of `x`, which the ops behind the next `skipped` read as `seen`.
    fn gemv(&mut self, batch: u32, skipped: usize, x: ValueId, norm: Option<Norm>, seen: ValueId) -> bool {
        let most = if batch == 1 { MOST_SEGMENTS } else { FEW_SEGMENTS };
        let products = self.products_of(seen, self.next + skipped, most);
        let mut args = MatvecArgs {
            batch,
            cols: self.width(x) as u32,
            count: products.count as u32,
            segments: products.segments,
            ..MatvecArgs::default()
        };
        let end = self.next + skipped + products.count;
        let is_whole = norm.is_none() || self.uses.of_value(seen).readers == products.count;
        let unit_norms = !is_whole && self.unit_norms(seen, products.count, end);
        if !(is_whole || unit_norms) || !gemv::takes(&mut args, &self.addresses.device) {
            return false;
        }
        args.x = self.input(x);
        (args.norm, args.eps) = (self.vector(norm.map(|norm| norm.weight)), norm.map_or(0.0, |norm| norm.eps));
        self.normed = norm.filter(|_| unit_norms).map(|norm| (seen, x, norm));
        let follower = self.follower(x, &products, end);
        match &follower {
            Some(Follower::Gate { unit, gate }) => (args.gated, args.unit) = (self.activation(*gate), *unit),
            Some(Follower::Sum(sum)) => {
                (args.segments[0].out, args.segments[0].adds) = (self.value(sum.to), sum.factor)
            }
            None => {}
        }
        self.adapt(x, norm, &products, &mut args.segments);
        // Tokens are chosen from logits as they are at the end.
        let is_head = products.first_out() == self.program.logits && end == self.program.ops.len();
        if is_head {
            args.best = self.addresses.step.best;
        }
        let chosen = gemv::choose(&mut args, &self.addresses.device);
        let blocks = match is_head {
            true => Extent::Tiles { tiles: chosen.blocks, on_outputs: true },
            false => Extent::Fixed(chosen.blocks),
        };
        let covered = skipped + products.count + follower.map_or(0, |follower| follower.ops());
        self.push(chosen.function, [blocks, ONE, ONE], THREADS, Args::Matvec(args), covered);
        self.launches.last_mut().expect("just added").shared_bytes = chosen.shared_bytes;
        true
    }
}
