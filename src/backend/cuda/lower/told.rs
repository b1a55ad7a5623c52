//! What the gated unit of experts tells the sum behind it: the choice, in words with flags, so that the sum asks for its weights beside the unit.

use super::experts::most_experts;
use super::lists::ROUTED_ROWS;
use super::{Extent, Lowering};
use crate::backend::cuda::args::{Address, Args, ExpertSumArgs, Flagged};
use crate::backend::cuda::memory::Places;
use crate::plan::Program;

/// Turns that a flag tells apart, as in `ptx/flagged.cuh`.
const MOST_TURNS: u32 = 1024;

/// Where the words are, and how many there is room for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToldPlace {
    /// The first.
    pub words: Address,
    /// How many.
    pub count: usize,
}

/// A place for the choices of steps of so many rows.
pub fn place(program: &Program, rows: usize, places: &mut Places) -> ToldPlace {
    let chosen = most_experts(program).map_or(0, |(chosen, _)| chosen);
    let count = 2 * chosen * rows.min(ROUTED_ROWS as usize);
    ToldPlace { words: places.named("told choices", count * size_of::<u64>()), count }
}

impl Lowering<'_> {
    /// Has the unit tell the sum of its choice, where it is the last launch.
    pub fn tell_sum(&mut self, args: &mut ExpertSumArgs) {
        let (turn, place, serial) = (self.turns + 1, self.addresses.told, self.addresses.step.serial);
        let Some(rows) = self.batches.rows() else { return };
        // The step's number is there from its first launch on.
        let is_numbered = matches!(self.launches.first().map(|launch| &launch.args), Some(Args::Step(_)));
        let Some(launch) = self.launches.last_mut() else { return };
        let (Args::ExpertUnit(unit), Extent::Pairs { tiles, .. }) = (&mut launch.args, &mut launch.grid[0]) else {
            return;
        };
        let fits = 2 * args.chosen as usize * rows as usize <= place.count && turn < MOST_TURNS;
        if !is_numbered || !fits || unit.choice != args.choice {
            return;
        }
        // One block of a row tells the choice.
        *tiles += u32::from(unit.route.logits == 0);
        let told = Flagged { words: place.words, serial, turn, pad: 0 };
        (unit.told, args.told, self.turns) = (told, told, turn);
    }
}
