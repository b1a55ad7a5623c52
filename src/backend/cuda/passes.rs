//! The passes of a session as launches: the lists, and a graph of a list for every bucket and tier of steps.

use super::args::Shape;
use super::launch::Launch;
use super::lower::lists::Lists;
use super::module::{Graph, Stream};
use crate::error::{Error, Result};
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

    /// Starts a pass: its graph, or the list.
    pub fn start(&self, stream: &Stream, shape: &Shape, graph: Option<usize>, cancel: &AtomicBool) -> Result<()> {
        if let Some(graph) = graph.and_then(|index| self.graphs[index].as_ref()) {
            return stream.replay(graph);
        }
        launch_all(stream, self.lists.of(shape), shape, cancel)
    }

    /// Starts a pass of so many rows that makes embeddings of them.
    pub fn start_texts(&self, stream: &Stream, rows: usize, cancel: &AtomicBool) -> Result<()> {
        let shape = Shape { rows: rows as u32, outputs: 0, splits: 0, draws: 0 };
        launch_all(stream, &self.lists.texts, &shape, cancel)
    }
}

fn launch_all(stream: &Stream, launches: &[Launch], shape: &Shape, cancel: &AtomicBool) -> Result<()> {
    launches.iter().try_for_each(|launch| match cancel.load(Ordering::Relaxed) {
        true => Err(Error::Cancelled),
        false => stream.launch(launch, shape),
    })
}
