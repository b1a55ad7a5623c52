//! One session on a GPU: buffers at fixed addresses, the list of launches, and a graph for every bucket.
//!
//! The host writes rows, outputs and changed page-table entries into mapped memory; the first kernel of a step fetches them, the last one
//! writes the tokens and the step's number. Passes of prompts run the same list without a graph.

use super::Loaded;
use super::adapting::Adapting;
use super::args::{NONE, Row, Shape, TableUpdate};
use super::driver::Primary;
use super::exchange::{Exchanges, What};
use super::lending;
use super::lower::Addresses;
#[cfg(feature = "testing")]
use super::memory::Part;
use super::memory::{Block, Places, free_bytes};
use super::module::Stream;
use super::pages;
use super::passes::Passes;
use super::shared::Shared;
use super::sizes::{Needs, Sizes, arrange};
use super::timing::Timing;
use super::weights::Weights;
use crate::backend::{Batch, Beside, Chooser, Drawn, Give, Host, Limits, Runner, Scaled, Stage};
use crate::error::{Error, Result, filled};
use crate::kv::{Reach, Tables};
use crate::plan::memory::{Placement, place};
use crate::plan::{Program, ValueId};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A session's buffers, launches and graphs. The graphs hold addresses of the blocks, so they stand before them and go first.
pub struct CudaRunner {
    pub passes: Passes,
    /// Passes whose rows may follow each other in a sequence, where there are drafts; without prompts.
    pub drafted: Option<Passes>,
    /// Of the lender, where there is one, so that what that does to its cache comes before what reads it here.
    pub stream: Arc<Stream>,
    /// Adapters, and the passes of rows that have some.
    pub adapting: Option<Adapting>,
    pub program: Arc<Program>,
    /// Where everything lies that the launches read and write, and in which buffer each value does.
    pub addresses: Addresses,
    pub placement: Placement,
    pub shared: Shared,
    /// What passes exchange with the host, where that does parts of the program.
    pub exchange: Option<Exchanges>,
    pub sizes: Sizes,
    /// Page tables as the device has them, and a slot for padded rows behind the others.
    tables: Vec<u32>,
    table_stride: usize,
    /// That of another runner, whose keys the program reads, where there is a lender.
    pub cache: Arc<Block>,
    /// Owns what the launches read and write.
    #[allow(dead_code)] // Tests look into it.
    pub arena: Block,
    /// What lies where in the arena.
    #[cfg(feature = "testing")]
    pub parts: Vec<Part>,
    vocab: usize,
    /// Number of the last pass.
    pub serial: u32,
    /// Whether steps run without their graphs.
    pub eager: bool,
    /// Why they do so although nobody asked.
    warning: Option<String>,
    pub failed: Option<String>,
    /// The device may be at work on a pass that was cancelled: until it has ended, nothing may be written that a pass reads.
    pub at_work: bool,
    /// Whether the rows of the pass have adapters.
    pub adapts: bool,
    /// Whether rows of the pass follow each other, and it is among those of drafts.
    pub follows: bool,
    /// Whether the logits of the last run are on the host.
    outputs: usize,
    /// Measures steps, where the host wants that.
    timing: Option<Timing>,
    pub primary: Arc<Primary>,
    weights: Arc<Weights>,
}

impl CudaRunner {
    /// Reserves everything and builds the graphs of `loaded`, which may read the keys of a `lender`.
    pub fn new(loaded: &Loaded, limits: &Limits, eager: bool, lender: Option<&CudaRunner>) -> Result<CudaRunner> {
        let Loaded { program, weights, kernels, primary, fast, .. } = loaded;
        let _current = primary.enter()?;
        let sizes = Sizes::new(program, limits)?;
        let (needs, free) = (Needs::new(program, limits, *fast)?, free_bytes()?);
        if needs.all() > free {
            return Err(Error::DeviceMemory { needed: needs.all(), free });
        }
        let (cache, stream) = match lender {
            Some(lender) => lending::shared(lender),
            None => (Arc::new(Block::new(primary, needs.cache as usize)?), Arc::new(Stream::new(kernels)?)),
        };
        let block = Block::new(primary, needs.arena as usize)?;
        let placement = place(program)?;
        let mut places = Places::new(block.address());
        let mut addresses = arrange(program, &placement, limits, &sizes, *fast, cache.address(), &mut places)?;
        let shared = Shared::new(primary, &sizes, limits, program, kernels.resident_draws()?)?;
        shared.tell(&mut addresses);
        let exchange = Exchanges::new(primary, program, &sizes)?;
        exchange.iter().for_each(|exchange| exchange.tell(&mut addresses));
        weights.tell(program, limits.context, &mut addresses);
        addresses.device = kernels.device()?;
        lender.into_iter().for_each(|lender| lending::borrow_keys(lender, &mut addresses));
        let (passes, drafted) = Passes::of(program, &placement, &addresses, !sizes.drafted.is_empty())?;
        let table_stride = limits.pages + 1;
        let mut runner = CudaRunner {
            passes,
            drafted,
            adapting: None,
            stream,
            program: Arc::clone(program),
            shared,
            exchange,
            // No page has this number, so every entry is sent once.
            tables: filled(sizes.table_entries(limits), u32::MAX, "page tables")?,
            sizes,
            table_stride,
            placement,
            addresses,
            cache,
            arena: block,
            #[cfg(feature = "testing")]
            parts: places.parts(),
            vocab: program.logits_width(),
            serial: 0,
            eager,
            warning: None,
            failed: None,
            at_work: false,
            adapts: false,
            follows: false,
            outputs: 0,
            timing: None,
            primary: Arc::clone(primary),
            weights: Arc::clone(weights),
        };
        runner.build_graphs();
        runner.send_scratch_pages(limits)?;
        runner.call_everything_once()?;
        if limits.ranks > 0 {
            runner.make_room(limits.ranks)?;
        }
        Ok(runner)
    }

    /// Measures steps from now on; the runner is eager.
    pub fn time_steps(&mut self, program: &Program) -> Result<()> {
        if self.exchange.is_some() {
            self.warning = Some("launches are not timed, since the host does a part of the model".into());
            return Ok(());
        }
        let _current = self.primary.enter()?;
        let tiers = self.sizes.tiers.len();
        let shapes = self.sizes.shapes().step_by(tiers.max(1));
        self.timing = Some(Timing::new(
            &self.primary,
            program,
            &self.weights.matrices,
            &self.passes.lists,
            shapes,
            self.sizes.kv_type,
        )?);
        Ok(())
    }

    /// Bytes of the cache.
    #[cfg(feature = "testing")]
    pub fn cache_bytes(&self, limits: &Limits) -> usize {
        self.sizes.kv_bytes(limits)
    }

    /// Makes the graphs of steps without adapters.
    pub fn build_graphs(&mut self) {
        self.warning = self.passes.build_graphs(&self.stream, self.sizes.shapes());
        if let Some(drafted) = &mut self.drafted {
            let refused = drafted.build_graphs(&self.stream, self.sizes.drafted_shapes());
            self.warning = self.warning.take().or(refused);
        }
    }

    /// Gives the slot of padded rows its page of each cache, with a pass of nothing but padding.
    fn send_scratch_pages(&mut self, limits: &Limits) -> Result<()> {
        let entry = self.sizes.outputs * self.table_stride;
        let reaches = [Reach::Whole, Reach::Window].into_iter().take(1 + usize::from(self.sizes.has_windows()));
        let updates = reaches.clone().count();
        for (update, reach) in reaches.enumerate() {
            let (index, page) = (self.first_entry(reach) + entry, limits.pages_of(reach) as u32);
            self.tables[index] = page;
            self.shared.updates.write(update, TableUpdate { index: index as u32, page });
        }
        self.run_padding(updates, None)
    }

    /// Runs a pass of nothing but padding: as its graph or as a list, and where there are no steps one that makes embeddings.
    fn run_padding(&mut self, updates: usize, graph: Option<usize>) -> Result<()> {
        let never = AtomicBool::new(false);
        let shape = Shape { rows: 1, outputs: 1, splits: 1, draws: 0 };
        self.pad_rows(0, 0, &shape);
        if self.program.logits.is_none() {
            self.start_texts(1, updates, None, &never)?;
            return self.stream.wait();
        }
        self.start(&shape, 0, updates, graph, None, &never)?;
        if graph.is_some() { self.wait(1, 1, &never) } else { self.stream.wait() }
    }

    /// The first entry of the page tables of a cache.
    fn first_entry(&self, reach: Reach) -> usize {
        match reach {
            Reach::Whole => 0,
            Reach::Window => (self.sizes.outputs + 1) * self.table_stride,
        }
    }

    /// The driver's calls are looked up on first use, which allocates; a step must find them all.
    fn call_everything_once(&mut self) -> Result<()> {
        let (from, to) = (self.addresses.step.serial, self.addresses.step.best);
        self.run_padding(0, Some(0))?;
        self.stream.is_idle()?;
        self.stream.copy(to, from, size_of::<f32>())?;
        self.stream.download(self.shared.results.host().cast(), from, size_of::<f32>())?;
        self.stream.wait()
    }

    /// Fills up what `shape` has behind the `rows` and the `outputs` of a pass: with rows that nobody reads, and greedy draws of any.
    pub fn pad_rows(&mut self, rows: usize, outputs: usize, shape: &Shape) {
        let (all_rows, all_outputs) = (shape.rows as usize, shape.outputs as usize);
        for index in rows..all_rows {
            let slot = self.sizes.outputs as u32;
            self.shared.rows.write(index, Row { token: 0, position: 0, slot, stretch: NONE });
        }
        for index in outputs..all_outputs {
            self.shared.outputs.write(index, index as u32);
            self.shared.draws.pad(index);
        }
        self.shared.pad_stretches(rows, all_rows);
    }

    /// Writes the rows, and the entries of their page tables that the device lacks; the number of those.
    pub fn write_batch(&mut self, batch: &Batch) -> usize {
        let (mut updates, mut stretches, mut first) = (0, 0, 0);
        for (index, &crate::backend::Row { token, position, slot }) in batch.rows.iter().enumerate() {
            let position = position.saturating_sub(self.addresses.step.ahead);
            self.shared.rows.write(index, Row { token, position, slot, stretch: stretches as u32 });
            let next = batch.rows.get(index + 1);
            if next.is_none_or(|next| next.slot != slot) {
                self.shared.write_stretch(stretches, first..index + 1, batch.moves.get(slot as usize));
                (stretches, first) = (stretches + 1, index + 1);
                updates = self.write_table(batch.tables, Reach::Whole, slot as usize, updates);
                if let Some(tables) = batch.window_tables.filter(|_| self.sizes.has_windows()) {
                    updates = self.write_table(tables, Reach::Window, slot as usize, updates);
                }
            }
        }
        for (index, &output) in batch.outputs.iter().enumerate() {
            self.shared.outputs.write(index, output);
        }
        self.shared.pad_stretches(stretches, batch.rows.len());
        updates
    }

    /// Writes the entries that a slot has and the device lacks.
    fn write_table(&mut self, tables: &Tables, reach: Reach, slot: usize, mut updates: usize) -> usize {
        let first = tables.first(slot);
        let (start, pages) = (self.first_entry(reach) + slot * self.table_stride + first, &tables.of(slot)[first..]);
        if self.tables[start..start + pages.len()] == *pages {
            return updates;
        }
        for (index, &page) in pages.iter().enumerate() {
            if self.tables[start + index] != page {
                self.tables[start + index] = page;
                self.shared.updates.write(updates, TableUpdate { index: (start + index) as u32, page });
                updates += 1;
            }
        }
        updates
    }

    /// Writes the head of a pass.
    pub fn announce(&mut self, updates: usize) {
        self.serial = self.serial.wrapping_add(1);
        self.shared.header.write(0, self.serial);
        self.shared.header.write(1, updates as u32);
    }

    /// Starts a pass of so many rows that are no padding: its graph, or the list. A host does its parts of it.
    fn start(
        &mut self,
        shape: &Shape,
        rows: usize,
        updates: usize,
        graph: Option<usize>,
        host: Option<Host>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.announce(updates);
        self.start_pass(What::Tokens(graph.filter(|_| !self.eager)), shape, rows, host, cancel)
    }

    /// Runs a step and measures it.
    fn start_timed(&mut self, shape: &Shape, updates: usize, batch: &Batch) -> Result<()> {
        self.announce(updates);
        let positions = batch.rows.iter().map(|row| u64::from(row.position) + 1).sum();
        let Some(timing) = &mut self.timing else { return Ok(()) };
        timing.run(&self.stream, self.passes.lists.of(shape), shape, positions)
    }

    fn step(&mut self, batch: &Batch, cancel: &AtomicBool, host: Option<Host>, beside: Beside) -> Result<()> {
        let updates = self.write_batch(batch);
        self.note_rows(batch);
        let (shape, graph) = self.choose(batch);
        if graph.is_some() {
            self.pad_rows(batch.rows.len(), batch.outputs.len(), &shape);
        }
        let started = if graph.is_some() && self.timing.is_some() && !self.adapts && !self.follows {
            // A measured step has ended when this returns.
            self.shared.draws.write_masks(self.serial.wrapping_add(1), beside);
            self.start_timed(&shape, updates, batch)
        } else {
            let started = self.start(&shape, batch.rows.len(), updates, graph, host, cancel);
            self.shared.draws.write_masks(self.serial, beside);
            started
        };
        self.check_start(started, updates)?;
        self.outputs = batch.outputs.len();
        if batch.chooser == Chooser::Host || self.outputs == 0 {
            return self.fetch_logits(batch.rows.len(), cancel);
        }
        // With the tokens come the vectors of the rows, where passes leave some.
        self.wait(batch.rows.len(), self.outputs, cancel)?;
        // Where no token could be chosen, the logits tell why.
        let is_complete = (0..self.outputs).all(|output| self.best_token(output).is_some());
        if is_complete { Ok(()) } else { self.fetch_logits(batch.rows.len(), cancel) }
    }

    /// Hands on how a pass has started that was to change so many entries of page tables.
    pub fn check_start(&mut self, started: Result<()>, updates: usize) -> Result<()> {
        if matches!(started, Err(Error::Cancelled)) && updates > 0 {
            // The first kernel may not have fetched the entries: send all again.
            let slots = self.sizes.outputs * self.table_stride;
            self.tables.chunks_mut(slots + self.table_stride).for_each(|tables| tables[..slots].fill(u32::MAX));
        }
        started
    }

    /// Where a value is.
    pub fn address_of(&self, id: ValueId) -> u64 {
        self.addresses.buffers[self.placement.buffer_of[id.0]]
    }

    fn fetch_logits(&self, rows: usize, cancel: &AtomicBool) -> Result<()> {
        let bytes = self.outputs * self.vocab * size_of::<f32>();
        if let Some(logits) = self.program.logits {
            self.stream.download(self.shared.results.host().cast(), self.address_of(logits), bytes)?;
        }
        self.wait_for_pass(rows, cancel)
    }
}

impl Drop for CudaRunner {
    fn drop(&mut self) {
        if let Ok(_current) = Arc::clone(&self.primary).enter() {
            // Graphs go first, and none may be in use. A device that does not answer is given up, and keeps them.
            _ = self.settle(&AtomicBool::new(false));
        }
    }
}

impl Runner for CudaRunner {
    fn run(&mut self, batch: &Batch, cancel: &AtomicBool) -> Result<()> {
        self.run_beside(batch, cancel, &mut |_| ())
    }

    fn lend(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn run_over(&mut self, lent: &dyn Any, batch: &Batch, cancel: &AtomicBool) -> Result<()> {
        self.check_lender(lending::lent(lent)?)?;
        self.run(batch, cancel)
    }

    fn runs_beside(&self) -> bool {
        true
    }

    fn run_beside(&mut self, batch: &Batch, cancel: &AtomicBool, beside: Beside) -> Result<()> {
        self.run_pass(cancel, |runner| runner.step(batch, cancel, None, beside))
    }

    fn run_divided(&mut self, batch: &Batch, cancel: &AtomicBool, host: Host, beside: Beside) -> Result<()> {
        self.run_pass(cancel, |runner| runner.step(batch, cancel, Some(host), beside))
    }

    fn embed_divided(
        &mut self,
        batch: &Batch,
        stage: Stage,
        cancel: &AtomicBool,
        host: Host,
        give: Give,
    ) -> Result<()> {
        self.run_pass(cancel, |runner| runner.embed_texts(batch, stage, cancel, Some(host), give))
    }

    fn embed(&mut self, batch: &Batch, stage: Stage, cancel: &AtomicBool, give: Give) -> Result<()> {
        self.run_pass(cancel, |runner| runner.embed_texts(batch, stage, cancel, None, give))
    }

    fn given(&mut self, row: usize) -> &mut [f32] {
        self.given_vector(row)
    }

    fn hidden(&self, index: usize) -> &[f32] {
        self.hidden_vector(index)
    }

    fn draw(&mut self, index: usize, drawn: &Drawn) -> bool {
        // What a cancelled pass may still be reading stays as it is: the host chooses this token.
        if self.at_work {
            return false;
        }
        self.shared.draws.set(index, drawn)
    }

    fn logits(&self, index: usize) -> &[f32] {
        assert!(index < self.outputs);
        self.shared.results.slice(index * self.vocab, self.vocab)
    }

    fn best_token(&self, index: usize) -> Option<u32> {
        assert!(index < self.outputs);
        Some(self.shared.tokens.read(index) as u32).filter(|&token| token != u32::MAX)
    }

    fn adapt_within(&mut self, ranks: usize) -> Result<()> {
        self.when_idle(|runner| runner.make_room(ranks))
    }

    fn adapt(&mut self, slot: usize, adapters: Vec<Scaled>) -> Result<()> {
        let has_some = self.adapting.as_ref().is_some_and(|adapting| adapting.concerns_slot(slot));
        if adapters.is_empty() && !has_some {
            return Ok(());
        }
        self.when_idle(|runner| runner.give_adapters(slot, adapters))
    }

    fn copy_page(&mut self, reach: Reach, from: u32, to: u32) {
        let ((from, bytes), (to, _)) = (self.sizes.page(reach, from), self.sizes.page(reach, to));
        let at = |offset: usize| self.cache.address() + offset as u64;
        let copied = self.primary.enter().and_then(|_current| self.stream.copy(at(to), at(from), bytes));
        match copied {
            Err(Error::Device(reason)) => _ = self.failed.get_or_insert(reason),
            Err(error) => _ = self.failed.get_or_insert(error.to_string()),
            Ok(()) => {}
        }
    }

    fn read_page(&mut self, reach: Reach, page: u32, out: &mut [u8]) -> Result<()> {
        let (start, bytes) = self.sizes.page(reach, page);
        assert_eq!(out.len(), bytes);
        self.move_bytes(|stream, cache| stream.download(out.as_mut_ptr(), cache + start as u64, bytes))?;
        pages::from_device(&self.sizes, reach, out)
    }

    fn write_page(&mut self, reach: Reach, page: u32, given: &[u8]) -> Result<()> {
        let (start, bytes) = self.sizes.page(reach, page);
        assert_eq!(given.len(), bytes);
        let page = pages::to_device(&self.sizes, reach, given)?;
        self.move_bytes(|stream, cache| stream.upload(cache + start as u64, page.as_ptr(), bytes))
    }

    fn read_record(&mut self, record: u32, out: &mut [u8]) -> Result<()> {
        let (start, bytes) = self.sizes.record(record);
        assert_eq!(out.len(), bytes);
        self.move_bytes(|stream, cache| stream.download(out.as_mut_ptr(), cache + start as u64, bytes))
    }

    fn write_record(&mut self, record: u32, given: &[u8]) -> Result<()> {
        let (start, bytes) = self.sizes.record(record);
        assert_eq!(given.len(), bytes);
        self.move_bytes(|stream, cache| stream.upload(cache + start as u64, given.as_ptr(), bytes))
    }

    fn report(&self) -> Option<String> {
        self.timing.as_ref()?.report()
    }

    fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}
