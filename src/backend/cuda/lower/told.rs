//! Sums over experts that begin beside the gated unit of these, so that their weights are on their way: a unit that makes the choice tells it in
//! words with flags.

use super::Lowering;
use super::experts::most_experts;
use crate::backend::cuda::args::{Address, Args, ExpertSumArgs, Flagged};
use crate::backend::cuda::memory::Places;
use crate::plan::Program;

/// Turns that a flag tells apart, as in `ptx/flagged.cuh`.
const MOST_TURNS: u32 = 1024;

/// A place for the choice of a row.
pub fn place(program: &Program, places: &mut Places) -> Address {
    let chosen = most_experts(program).map_or(0, |(chosen, _)| chosen);
    places.named("told choice", 2 * chosen * size_of::<u64>())
}

impl Lowering<'_> {
    /// Has the sum begin beside the unit of its experts, where that is the last launch: the choice is there then, or the unit tells it.
    pub fn begin_beside_unit(&mut self, args: &mut ExpertSumArgs) {
        let (turn, words, serial) = (self.turns + 1, self.addresses.told, self.addresses.step.serial);
        // The step's number is there from its first launch on.
        let is_numbered = matches!(self.launches.first().map(|launch| &launch.args), Some(Args::Step(_)));
        let Some(Args::ExpertUnit(unit)) = self.launches.last_mut().map(|launch| &mut launch.args) else { return };
        let is_made = unit.route.logits != 0;
        if unit.choice != args.choice || is_made && (!is_numbered || turn >= MOST_TURNS) {
            return;
        }
        args.is_early = 1;
        if is_made {
            let told = Flagged { words, serial, turn, pad: 0 };
            (unit.told, args.told, self.turns) = (told, told, turn);
        }
    }
}
