//! Lowering of what begins and ends a step: embeddings, the rows whose logits are wanted, their tokens.

use super::{Extent, Lowering, ONE};
use crate::backend::cuda::args::{ArgmaxArgs, Args, EmbedArgs, SampleArgs, SelectArgs, StepArgs, TableRow};
use crate::backend::cuda::catalogue::Kernel;
use crate::backend::cuda::draws;
use crate::plan::op::Index;
use crate::plan::{MatrixId, ValueId};

/// Blocks that look for the highest logit of a row.
const ARGMAX_BLOCKS: u32 = 64;
/// Threads that decode the row of a table.
const EMBED_THREADS: usize = 128;

impl Lowering<'_> {
    /// The start of a step, which decodes the first embedding too.
    pub fn begin(&mut self, table: MatrixId, out: ValueId) {
        let (embedding, embedded) = (self.addresses.matrices[table.0], self.value(out));
        let args = StepArgs { embedding, embedded, ..self.addresses.step };
        self.push(Kernel::StepBegin.only(), [Extent::Rows, ONE, ONE], 256, Args::Step(args), 1);
    }

    /// An embedding beside that.
    pub fn embed(&mut self, table: MatrixId, index: Index, out: ValueId) {
        let row = match index {
            Index::Token => TableRow::Token,
            Index::Position => TableRow::Position,
            Index::First => TableRow::First,
        };
        let (table, rows, out) = (self.addresses.matrices[table.0], self.addresses.step.rows, self.value(out));
        let args = Args::Embed(EmbedArgs { table, rows, out, row, pad: 0 });
        self.push(Kernel::Embed.only(), [Extent::Rows, ONE, ONE], EMBED_THREADS, args, 1);
    }

    pub fn select(&mut self, x: ValueId, out: ValueId) {
        let (x, to, width) = (self.value(x), self.value(out), self.width(out) as u32);
        let args = SelectArgs { x, outputs: self.addresses.step.outputs, out: to, width, pad: 0 };
        self.push(Kernel::SelectRows.only(), [Extent::Outputs, ONE, ONE], 256, Args::Select(args), 1);
    }

    /// The choice of tokens, greedy and drawn, where the head has not made it.
    pub fn choose_tokens(&mut self, logits: ValueId) {
        // These launches come behind all others of the list, so what those leave for the host is there before the tokens are.
        let has_vectors = self.hidden.is_some().into();
        let args = Args::Argmax(ArgmaxArgs {
            logits: self.value(logits),
            best: self.addresses.step.best,
            serial: self.addresses.step.serial,
            host_tokens: self.addresses.host_tokens,
            vocab: self.width(logits) as u32,
            has_vectors,
        });
        let chosen = self.launches.iter().any(|launch| matches!(launch.args, Args::Matvec(args) if args.best != 0));
        if !chosen {
            self.push(Kernel::Argmax.only(), [Extent::Fixed(ARGMAX_BLOCKS), Extent::Outputs, ONE], 256, args, 0);
        }
        self.push(Kernel::StepEnd.only(), [ONE, ONE, ONE], 256, args, 0);
        let vocab = self.width(logits);
        let args = SampleArgs {
            logits: self.value(logits),
            draws: self.addresses.step.draws,
            serial: self.addresses.step.serial,
            host_tokens: self.addresses.host_tokens,
            vocab: vocab as u32,
            parts: draws::parts(vocab) as u32,
            has_vectors,
            ..self.addresses.sample
        };
        let grid = [Extent::Fixed(args.parts), Extent::Outputs, ONE];
        self.push(Kernel::Sample.only(), grid, draws::THREADS, Args::Sample(args), 0);
    }
}
