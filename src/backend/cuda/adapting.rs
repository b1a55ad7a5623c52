//! Adapters on a GPU: their matrices in device memory, which of them each slot of a session has, and the passes of rows that have some.
//!
//! What a slot has is a list of entries in device memory that launches look into. So those change only where an adapter comes that changes other
//! matrices than all before, or has more ranks.

use super::args::{AdapterEntry, AdapterPair};
use super::catalogue::DeviceType;
use super::driver::Primary;
use super::lower::adapters::AdapterPlaces;
use super::lower::{Addresses, lower};
use super::memory::{Block, Places, free_bytes};
use super::module::{Kernels, Stream};
use super::passes::Passes;
use super::runner::CudaRunner;
use super::sizes::Sizes;
use crate::backend::{Batch, MOST_ADAPTERS, Row, Scaled};
use crate::error::{Error, Result, collected, filled};
use crate::plan::MatrixId;
use crate::plan::adapter::{Adapter, Floats};
use std::sync::Arc;

/// What the host's memory is for.
const WHAT: &str = "an adapter";

/// An adapter's matrices on the device.
pub struct Uploaded {
    /// The address of a pair for each matrix of the program.
    pairs: u64,
    /// Owns what the pairs point to.
    _block: Block,
}

/// Where an adapter's matrices go.
struct Placed {
    /// The first of the pairs.
    table: u64,
    downs: Vec<u64>,
    pairs: Vec<AdapterPair>,
}

fn place(adapter: &Adapter, matrices: usize, places: &mut Places) -> Result<Placed> {
    let table = places.take(matrices.saturating_mul(size_of::<AdapterPair>()));
    let downs = collected(adapter.downs().iter().map(|down| places.take(down.bytes.len())), WHAT)?;
    let pair = |matrix| match adapter.of(MatrixId(matrix)) {
        Some((down, up)) => AdapterPair {
            down: downs[up.down],
            up: places.take(up.values.bytes()),
            rank: down.rank as u32,
            down_type: DeviceType::of(down.dtype),
            up_type: DeviceType::of(up.values.dtype()),
            factor: up.factor,
        },
        None => AdapterPair::default(),
    };
    let pairs = collected((0..matrices).map(pair), WHAT)?;
    Ok(Placed { table, downs, pairs })
}

impl Uploaded {
    /// Uploads an adapter of a program with so many matrices; the context must be current.
    pub fn new(adapter: &Adapter, matrices: usize, primary: &Arc<Primary>, kernels: &Arc<Kernels>) -> Result<Uploaded> {
        let mut counted = Places::default();
        place(adapter, matrices, &mut counted)?;
        let (needed, free) = (counted.bytes() as u64, free_bytes()?);
        if needed > free {
            return Err(Error::DeviceMemory { needed, free });
        }
        let block = Block::new(primary, counted.bytes())?;
        let Placed { table, downs, pairs } = place(adapter, matrices, &mut Places::new(block.address()))?;
        // What it copies outlives it: when it goes, it waits for its copies.
        let stream = Stream::new(kernels)?;
        for (down, &to) in adapter.downs().iter().zip(&downs) {
            stream.upload(to, down.bytes.as_ptr(), down.bytes.len())?;
        }
        for (matrix, pair) in pairs.iter().enumerate() {
            let Some((_, up)) = adapter.of(MatrixId(matrix)) else { continue };
            let from = match &up.values {
                Floats::F16(values) => values.as_ptr().cast(),
                Floats::F32(values) => values.as_ptr().cast(),
            };
            stream.upload(pair.up, from, up.values.bytes())?;
        }
        stream.upload(table, pairs.as_ptr().cast(), size_of_val(pairs.as_slice()))?;
        stream.wait()?;
        Ok(Uploaded { pairs: table, _block: block })
    }
}

/// A session's adapters.
pub struct Adapting {
    /// Passes of rows that have adapters; none before the first. Its graphs go before the memory that they read.
    pub passes: Option<Passes>,
    places: AdapterPlaces,
    _entries: Block,
    sums: Block,
    /// The adapters of each slot, whose memory its entries point to.
    sets: Vec<Vec<Scaled>>,
}

impl Adapting {
    /// Whether one of these rows has adapters.
    pub fn concerns(&self, rows: &[Row]) -> bool {
        rows.iter().any(|row| !self.sets[row.slot as usize].is_empty())
    }

    /// Whether a slot has adapters.
    pub fn concerns_slot(&self, slot: usize) -> bool {
        !self.sets[slot].is_empty()
    }

    /// Where adapters are once a slot has these too, if more matrices are changed then than before.
    fn places_with(&self, adapters: &[Scaled]) -> Option<AdapterPlaces> {
        let mut places = self.places.clone();
        for (matrix, is_changed) in places.changed.iter_mut().enumerate() {
            let changes = |scaled: &Scaled| scaled.adapter.weights.of(MatrixId(matrix)).is_some();
            *is_changed |= adapters.iter().any(changes);
        }
        (places.changed != self.places.changed).then_some(places)
    }
}

/// The entries of a slot with these adapters.
fn entries_of(adapters: &[Scaled]) -> Result<[AdapterEntry; MOST_ADAPTERS]> {
    assert!(adapters.len() <= MOST_ADAPTERS);
    let mut entries = [AdapterEntry::default(); MOST_ADAPTERS];
    for (entry, Scaled { adapter, scale }) in entries.iter_mut().zip(adapters) {
        *entry = AdapterEntry { pairs: adapter.kept::<Uploaded>()?.pairs, scale: *scale, pad: 0 };
    }
    Ok(entries)
}

/// Bytes of the entries of all slots, that of padded rows included.
pub fn entries_bytes(sizes: &Sizes) -> usize {
    (sizes.outputs + 1) * size_of::<[AdapterEntry; MOST_ADAPTERS]>()
}

impl CudaRunner {
    /// Makes room for so many ranks a row. Nothing is running, and the context is current.
    pub fn make_room(&mut self, ranks: usize) -> Result<()> {
        let sums = Block::new(&self.primary, AdapterPlaces::sums_bytes(&self.program, self.sizes.rows, ranks))?;
        let Some(before) = &self.adapting else {
            let entries = Block::new(&self.primary, entries_bytes(&self.sizes))?;
            let changed = filled(self.program.matrices.len(), false, WHAT)?;
            let places =
                AdapterPlaces { changed, entries: entries.address(), sums: sums.address(), ranks: ranks as u32 };
            let sets = filled(self.sizes.outputs, Vec::new(), WHAT)?;
            self.adapting = Some(Adapting { passes: None, places, _entries: entries, sums, sets });
            return Ok(());
        };
        let places = AdapterPlaces { sums: sums.address(), ranks: ranks as u32, ..before.places.clone() };
        let passes = before.passes.is_some().then(|| self.passes_with(&places)).transpose()?;
        self.stream.wait()?;
        if let Some(adapting) = &mut self.adapting {
            (adapting.passes, adapting.places, adapting.sums) = (passes, places, sums);
        }
        Ok(())
    }

    /// Gives a slot these adapters, for which there is room. Nothing is running, and the context is current.
    pub fn give_adapters(&mut self, slot: usize, adapters: Vec<Scaled>) -> Result<()> {
        let entries = entries_of(&adapters)?;
        let adapting = self.adapting.as_ref().ok_or_else(|| Error::InvalidArgument("no room for adapters".into()))?;
        let places = adapting.places_with(&adapters);
        let passes = places.as_ref().map(|places| self.passes_with(places)).transpose()?;
        let to = adapting.places.entries + (slot * size_of_val(&entries)) as u64;
        self.stream.upload(to, entries.as_ptr().cast(), size_of_val(&entries))?;
        // Behind this nobody reads the entries that were there, nor what they point to.
        self.stream.wait()?;
        if let Some(adapting) = &mut self.adapting {
            adapting.sets[slot] = adapters;
            if let (Some(places), Some(passes)) = (places, passes) {
                (adapting.passes, adapting.places) = (Some(passes), places);
            }
        }
        Ok(())
    }

    /// Takes note of whether rows of a pass have adapters.
    pub fn note_adapters(&mut self, batch: &Batch) {
        self.adapts = self.adapting.as_ref().is_some_and(|adapting| adapting.concerns(batch.rows));
    }

    /// The passes of such rows, or of others.
    pub fn passes_of_rows(&self) -> &Passes {
        let adapted = self.adapting.as_ref().and_then(|adapting| adapting.passes.as_ref()).filter(|_| self.adapts);
        adapted.unwrap_or(&self.passes)
    }

    /// Passes with launches for what adapters at these places add.
    fn passes_with(&self, places: &AdapterPlaces) -> Result<Passes> {
        let addresses = Addresses { adapters: places.clone(), ..self.addresses.clone() };
        let mut passes = Passes::new(lower(&self.program, &self.placement, &addresses)?);
        // Without a graph, steps run the list.
        passes.build_graphs(&self.stream, self.sizes.shapes());
        Ok(passes)
    }
}
