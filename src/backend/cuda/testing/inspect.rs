//! Looking into a session on a GPU: its buffers after a step, the beginning of a step alone, and the time that a graph takes.
//!
//! For diagnosis and tests. Two inspections of one program, one eager and one replayed, have the same parts in the same order.

use crate::backend::cuda::Loaded;
use crate::backend::cuda::args::{Args, Flagged};
use crate::backend::cuda::launch::Launch;
use crate::backend::cuda::lower::lists::Lists;
use crate::backend::cuda::memory::Part;
use crate::backend::cuda::module::{Event, Graph, Kernels};
use crate::backend::cuda::runner::CudaRunner;
use crate::backend::cuda::sizes::{COUNTERS, PAGE_TABLES};
use crate::backend::{Batch, Chooser, Drawn, Limits, Runner};
use crate::error::{Error, Result, filled};
use crate::sample::Options;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What fills buffers before a step, so that nothing stays from the step before: NaN as a float, an impossible token or position.
const POISON: u8 = 0xff;
/// The parts of the arena that outlive a step.
const LASTING: [&str; 2] = [PAGE_TABLES, COUNTERS];

/// A session that shows its buffers.
pub struct Inspection {
    runner: CudaRunner,
    kernels: Arc<Kernels>,
    cache_bytes: usize,
}

/// The bytes of one part of a session's device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// What lies there.
    pub name: &'static str,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Loaded {
    /// Opens a session that shows its buffers; `eager` runs its steps as single launches.
    pub fn inspect(&self, limits: &Limits, eager: bool) -> Result<Inspection> {
        let runner = CudaRunner::new(self, limits, eager, None)?;
        let cache_bytes = runner.cache_bytes(limits);
        Ok(Inspection { runner, kernels: Arc::clone(&self.kernels), cache_bytes })
    }
}

impl Inspection {
    /// Kernel and covered ops of every launch of a batch's step, in order.
    pub fn launches(&self, batch: &Batch) -> Vec<String> {
        let (shape, _) = self.runner.choose(batch);
        let running = self.runner.passes.lists.of(&shape).iter().filter(|launch| launch.runs(&shape));
        let say = |launch: &Launch| format!("{}, ops {:?}", launch.choose(&shape).function.entry().name, launch.covers);
        running.map(say).collect()
    }

    /// Leaves a launch out of every step from now on: what a fault in building graphs would look like.
    pub fn leave_out(&mut self, launch: usize) -> Result<()> {
        let primary = Arc::clone(&self.runner.primary);
        let _current = primary.enter()?;
        let Lists { single, two, four, narrow, batch, sorted, prompt, .. } = &mut self.runner.passes.lists;
        // Without experts there is no list of sorted ones.
        let all = [single, two, four, narrow, batch, sorted, prompt].into_iter().filter(|list| !list.is_empty());
        let all: Vec<_> = all.collect();
        let least = all.iter().map(|list| list.len()).min().unwrap_or(0);
        if launch >= least {
            return Err(Error::NotFound(format!(
                "there is no launch {launch} in every step; the shortest has {least}"
            )));
        }
        for list in all {
            list.remove(launch);
            // A sum would wait for ever for what a unit that is left out does not tell.
            if let Some(Args::ExpertSum(sum)) = list.get_mut(launch).map(|next| &mut next.args) {
                (sum.is_early, sum.told) = (0, Flagged::default());
            }
        }
        self.runner.build_graphs();
        Ok(())
    }

    /// Puts back the cache that [`Inspection::read`] gave.
    pub fn write_cache(&mut self, cache: &Contents) -> Result<()> {
        assert_eq!(cache.bytes.len(), self.cache_bytes);
        let _current = self.runner.primary.enter()?;
        self.runner.stream.upload(self.runner.cache.address(), cache.bytes.as_ptr(), cache.bytes.len())?;
        self.runner.stream.wait()
    }

    /// Fills everything that a step computes with what no step gives.
    pub fn poison(&mut self) -> Result<()> {
        let _current = self.runner.primary.enter()?;
        for part in self.runner.parts.iter().filter(|part| !LASTING.contains(&part.name)) {
            self.runner.stream.fill(self.runner.arena.address() + part.offset as u64, POISON, part.bytes)?;
        }
        self.runner.stream.wait()
    }

    /// Says how the token of an output of the next batches is drawn, as [`Runner::draw`] does.
    pub fn draw(&mut self, output: usize, options: &Options, history: &[i32]) -> bool {
        let position = history.len() as u64;
        self.runner.draw(output, &Drawn { options, history, position, is_masked: false })
    }

    /// Runs a batch whole, with logits.
    pub fn run(&mut self, batch: &Batch) -> Result<()> {
        self.runner.run(&Batch { chooser: Chooser::Host, ..*batch }, &AtomicBool::new(false))
    }

    /// Runs the first `count` launches of a batch: as a graph made of them alone, or eagerly.
    pub fn run_first(&mut self, batch: &Batch, count: usize) -> Result<()> {
        let primary = Arc::clone(&self.runner.primary);
        let _current = primary.enter()?;
        let updates = self.runner.write_batch(batch);
        let (shape, _) = self.runner.choose(batch);
        self.runner.pad_rows(batch.rows.len(), batch.outputs.len(), &shape);
        self.runner.announce(updates);
        let CudaRunner { passes, stream, eager, .. } = &self.runner;
        let list = passes.lists.of(&shape);
        let list = &list[..count.min(list.len())];
        let graph = if *eager { None } else { Some(Graph::new(&self.kernels, list, &shape)?) };
        match &graph {
            Some(graph) => stream.replay(graph)?,
            None => list.iter().try_for_each(|launch| stream.launch(launch, &shape))?,
        }
        stream.wait()
    }

    /// All parts of the session's memory, the cache last.
    pub fn read(&mut self) -> Result<Vec<Contents>> {
        let _current = self.runner.primary.enter()?;
        self.runner.stream.wait()?;
        let arena = self.runner.arena.address();
        let cache = Part { name: "cache", offset: 0, bytes: self.cache_bytes };
        let places = self.runner.parts.iter().map(|part| (arena, part)).chain([(self.runner.cache.address(), &cache)]);
        let read = |(base, part): (u64, &Part)| {
            let mut bytes = filled(part.bytes, 0, "a copy of device memory")?;
            self.runner.stream.download(bytes.as_mut_ptr(), base + part.offset as u64, part.bytes)?;
            self.runner.stream.wait()?;
            Ok(Contents { name: part.name, bytes })
        };
        places.map(read).collect()
    }

    /// Seconds that the device takes for one replay of the graph of `batch`, the mean of `times` in a row without the host between them.
    pub fn replay_seconds(&mut self, batch: &Batch, times: u32) -> Result<f64> {
        self.runner.run(batch, &AtomicBool::new(false))?;
        let _current = self.runner.primary.enter()?;
        let (_, index) = self.runner.choose(batch);
        let graph = index.and_then(|index| self.runner.passes.graphs[index].as_ref());
        let graph = graph.ok_or_else(|| Error::Unsupported("this batch has no graph".into()))?;
        let (begin, end) = (Event::new(&self.runner.primary)?, Event::new(&self.runner.primary)?);
        self.runner.stream.record(&begin)?;
        (0..times).try_for_each(|_| self.runner.stream.replay(graph))?;
        self.runner.stream.record(&end)?;
        self.runner.stream.wait()?;
        Ok(end.since(&begin)? / f64::from(times))
    }
}
