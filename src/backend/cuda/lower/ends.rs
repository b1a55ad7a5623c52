//! Lowering of what begins and ends a step: the embedding, the rows whose logits are wanted, their tokens.

use super::{Extent, Lowering, ONE};
use crate::backend::cuda::args::{ArgmaxArgs, Args, SampleArgs, SelectArgs, StepArgs};
use crate::backend::cuda::catalogue::Kernel;
use crate::backend::cuda::draws;
use crate::plan::{MatrixId, ValueId};

/// Blocks that look for the highest logit of a row.
const ARGMAX_BLOCKS: u32 = 64;

impl Lowering<'_> {
    /// The start of a step, which decodes the embedding too.
    pub fn embed(&mut self, table: MatrixId, out: ValueId) {
        let (embedding, embedded) = (self.addresses.matrices[table.0], self.value(out));
        let args = StepArgs { embedding, embedded, ..self.addresses.step };
        self.push(Kernel::StepBegin.only(), [Extent::Rows, ONE, ONE], 256, Args::Step(args), 1);
    }

    pub fn select(&mut self, x: ValueId, out: ValueId) {
        let (x, to, width) = (self.value(x), self.value(out), self.width(out) as u32);
        let args = SelectArgs { x, outputs: self.addresses.step.outputs, out: to, width, pad: 0 };
        self.push(Kernel::SelectRows.only(), [Extent::Outputs, ONE, ONE], 256, Args::Select(args), 1);
    }

    fn logits(&self) -> ValueId {
        self.program.logits.expect("a program without is refused when a model is loaded")
    }

    /// The choice of tokens, greedy and drawn, where the head has not made it.
    pub fn choose_tokens(&mut self) {
        let args = Args::Argmax(ArgmaxArgs {
            logits: self.value(self.logits()),
            best: self.addresses.step.best,
            serial: self.addresses.step.serial,
            host_tokens: self.addresses.host_tokens,
            vocab: self.program.vocab() as u32,
            pad: 0,
        });
        let chosen = self.launches.last().is_some_and(|last| matches!(last.args, Args::Matvec(args) if args.best != 0));
        if !chosen {
            self.push(Kernel::Argmax.only(), [Extent::Fixed(ARGMAX_BLOCKS), Extent::Outputs, ONE], 256, args, 0);
        }
        self.push(Kernel::StepEnd.only(), [ONE, ONE, ONE], 256, args, 0);
        let vocab = self.program.vocab();
        let args = SampleArgs {
            logits: self.value(self.logits()),
            draws: self.addresses.step.draws,
            serial: self.addresses.step.serial,
            host_tokens: self.addresses.host_tokens,
            vocab: vocab as u32,
            parts: draws::parts(vocab) as u32,
            ..self.addresses.sample
        };
        let grid = [Extent::Fixed(args.parts), Extent::Outputs, ONE];
        self.push(Kernel::Sample.only(), grid, draws::THREADS, Args::Sample(args), 0);
    }
}
