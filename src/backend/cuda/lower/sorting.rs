//! Pairs of a row and an expert in the order of experts, so that those of one share its weights: by a launch, or by the blocks that multiply them.

use super::{Lowering, ONE, OrderPlace};
use crate::backend::cuda::args::{Args, ExpertGemmArgs, OrderArgs};
use crate::backend::cuda::catalogue::Kernel;
use crate::backend::cuda::select::experts::{self, TilePairs};
use crate::plan::op::ExpertProduct;

/// Threads of the block that sorts.
const ORDER_THREADS: usize = 1024;

impl Lowering<'_> {
    /// Gives a product on tensor cores its pairs in such tiles: their choice, where its blocks sort them.
    pub fn sort_pairs(&mut self, args: &mut ExpertGemmArgs, product: ExpertProduct, tiles: TilePairs) {
        let rows = self.batches.rows().filter(|_| tiles == experts::GROUPED_TILES);
        if rows.is_some_and(|rows| experts::sorts_pairs(args, rows, &self.addresses.device)) {
            args.choice = self.value(product.choice);
            return;
        }
        let place = self.order(product, tiles);
        (args.order, args.tiles, args.count) = (place.pairs, place.tiles, place.count);
    }

    /// Where the pairs of a product's choice stand in the order of their experts, in such tiles: sorts them, unless they are.
    pub fn order(&mut self, product: ExpertProduct, tiles: TilePairs) -> OrderPlace {
        let (place, choice) = (self.addresses.order, product.choice);
        if self.ordered.replace((choice, tiles)) == Some((choice, tiles)) {
            return place;
        }
        let experts = (self.program.matrices[product.experts.matrix.0].rows / product.experts.each) as u32;
        let chosen = self.program.chosen(choice) as u32;
        let args = OrderArgs {
            choice: self.value(choice),
            order: place.pairs,
            tiles: place.tiles,
            count: place.count,
            experts,
            chosen,
            widths: tiles.widths,
            rows: tiles.rows(experts, chosen),
            pad: 0,
        };
        self.push(Kernel::ExpertOrder.only(), [ONE; 3], ORDER_THREADS, Args::Order(args), 0);
        place
    }

    /// Whether the last launch is the gated unit of the same pairs in the same tiles, which grouped GEMV multiplies where it does these.
    pub fn is_behind_unit(&self, args: &ExpertGemmArgs) -> bool {
        let Some(launch) = self.launches.last().filter(|launch| launch.function.kernel == Kernel::ExpertGemm) else {
            return false;
        };
        let tiles = |args: &ExpertGemmArgs| experts::exact_tiles(args, &self.addresses.device);
        matches!(&launch.args, Args::ExpertGemm(unit) if tiles(unit) == tiles(args) && unit.gated.x == args.x.x)
    }
}
