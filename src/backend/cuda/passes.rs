//! The passes of a session as launches: the lists, a graph of a list for every bucket and tier of steps, and which of them serves a batch.

use super::args::Shape;
use super::launch::Launch;
use super::lower::lists::Lists;
use super::lower::{Addresses, lower, lower_drafts};
use super::module::{Graph, Stream};
use super::runner::CudaRunner;
use super::select::attention::splits;
use crate::backend::{Batch, Chooser};
use crate::error::{Error, Result};
use crate::plan::Program;
use crate::plan::memory::Placement;
use std::sync::atomic::{AtomicBool, Ordering};

/// Lists of launches, and their graphs. The graphs hold addresses of a session's memory, so whoever owns that has them before it.
pub struct Passes {
    /// In the order of `Sizes::shapes`; none where the driver made none.
    pub graphs: Vec<Option<Graph>>,
    /// What the graphs are made of, and what runs without them.
    pub lists: Lists,
}

impl Passes {
    /// Passes without graphs.
    pub fn new(lists: Lists) -> Passes {
        Passes { graphs: Vec::new(), lists }
    }

    /// Those of a program, and where there are `drafts` those whose rows may follow each other, without graphs.
    pub fn of(
        program: &Program,
        placement: &Placement,
        addresses: &Addresses,
        drafts: bool,
    ) -> Result<(Passes, Option<Passes>)> {
        let drafted = drafts.then(|| lower_drafts(program, placement, addresses)).transpose()?;
        Ok((Passes::new(lower(program, placement, addresses)?), drafted.map(Passes::new)))
    }

    /// A graph a bucket and tier; where the driver refuses one, its steps run the list, and this tells why. The context must be current.
    pub fn build_graphs(&mut self, stream: &Stream, shapes: impl Iterator<Item = Shape>) -> Option<String> {
        let mut refused = None;
        self.graphs.clear();
        for shape in shapes {
            let graph = Graph::new(stream.kernels(), self.lists.of(&shape), &shape);
            let graph = graph.and_then(|graph| stream.upload_graph(&graph).map(|()| graph));
            if let Err(reason) = &graph {
                let say = || format!("steps run as single launches, since a graph could not be made: {reason}");
                refused.get_or_insert_with(say);
            }
            self.graphs.push(graph.ok());
        }
        refused
    }

    /// Starts the graph of a step; none where there is none.
    pub fn replay(&self, stream: &Stream, graph: Option<usize>) -> Option<Result<()>> {
        graph.and_then(|index| self.graphs[index].as_ref()).map(|graph| stream.replay(graph))
    }
}

/// Starts the launches of a list, each of which `before` hears of first.
pub fn launch_all(
    stream: &Stream,
    launches: &[Launch],
    shape: &Shape,
    cancel: &AtomicBool,
    mut before: impl FnMut(&Launch) -> Result<()>,
) -> Result<()> {
    launches.iter().try_for_each(|launch| match cancel.load(Ordering::Relaxed) {
        true => Err(Error::Cancelled),
        false => before(launch).and_then(|()| stream.launch(launch, shape)),
    })
}

impl CudaRunner {
    /// Takes note of what a pass asks for: adapters, and rows that follow each other.
    pub fn note_rows(&mut self, batch: &Batch) {
        self.note_adapters(batch);
        self.follows = !self.adapts && follow(batch) && self.drafted_step(batch).is_some();
    }

    /// Which of the steps with drafts has room for a pass.
    fn drafted_step(&self, batch: &Batch) -> Option<usize> {
        let (rows, outputs) = (batch.rows.len(), batch.outputs.len());
        let has_room = |&(most_rows, most_outputs): &(usize, usize)| rows <= most_rows && outputs <= most_outputs;
        if outputs == 0 { None } else { self.sizes.drafted.iter().position(has_room) }
    }

    /// The shape of a pass that was noted, and its graph if it is a step of a bucket.
    pub fn choose(&self, batch: &Batch) -> (Shape, Option<usize>) {
        let (rows, outputs) = (batch.rows.len(), batch.outputs.len());
        let draws = u32::from(batch.chooser == Chooser::Device && self.shared.draws.any(outputs));
        let is_step = (1..=rows).contains(&outputs) && rows <= self.sizes.outputs;
        let (step, steps, size) = match self.drafted_step(batch) {
            Some(step) if self.follows => (step, self.sizes.drafted.len(), self.sizes.drafted[step]),
            // Attention of other steps counts on every older key being in the cache when the step begins.
            _ if !is_step || follow(batch) => {
                return (Shape { rows: rows as u32, outputs: outputs as u32, splits: 0, draws }, None);
            }
            _ => {
                let (step, buckets) = (rows.next_power_of_two().ilog2() as usize, &self.sizes.buckets);
                (step, buckets.len(), (buckets[step], buckets[step]))
            }
        };
        let longest = batch.rows.iter().map(|row| row.position as usize + 1).max().unwrap_or(1);
        let longest = splits(longest);
        let tier = self.sizes.tiers.iter().position(|&tier| tier >= longest).unwrap_or(self.sizes.tiers.len() - 1);
        let splits = self.sizes.tiers[tier] as u32;
        let shape = Shape { rows: size.0 as u32, outputs: size.1 as u32, splits, draws };
        (shape, Some((steps * draws as usize + step) * self.sizes.tiers.len() + tier))
    }

    /// The passes among which the noted one is.
    pub fn chosen_passes(&self) -> &Passes {
        match &self.drafted {
            Some(drafted) if self.follows => drafted,
            _ => self.passes_of_rows(),
        }
    }
}

/// Whether rows of a batch follow others of their sequence.
fn follow(batch: &Batch) -> bool {
    batch.rows.windows(2).any(|pair| pair[0].slot == pair[1].slot)
}
