//! A model that two devices share: a GPU that lacks the memory for all of it, and the processor, which does some layers or the experts of some
//! ([`crate::plan::halves`]). Each half of the program is a program of its own device, with caches, states and buffers of its own layers; a runner of
//! the GPU's half asks for each part of the other one as its pass comes to it.
//!
//! Keys and values, and states, of a page or record stand in the order of layers; those of the host are the first ones. An adapter is divided as the
//! program is: each half has the pairs of its matrices, and adds them to its products.

use super::{
    Adapter, Backend, Batch, Beside, Drawn, Exchange, Give, KvType, Limits, Memory, Prepared, Runner, Scaled, Stage,
};
use crate::error::{Progress, Result, collected, push, reserve};
use crate::kv::{Reach, Stores, state};
use crate::plan::halves::{Cut, Halves, divide};
use crate::plan::{Program, adapter};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A GPU and the processor, for models that are divided between them.
pub struct Divided {
    /// The GPU.
    pub device: Arc<dyn Backend>,
    /// The processor.
    pub host: Arc<dyn Backend>,
    /// What of a model the processor does.
    pub cut: Cut,
}

impl Backend for Divided {
    fn note(&self) -> Option<&'static str> {
        self.device.note()
    }

    fn check(&self, program: &Program) -> Result<()> {
        self.device.check(program)
    }

    fn memory(&self, program: &Program, limits: &Limits) -> Result<Memory> {
        let Some(Halves { device, host }) = divide(program, self.cut)? else {
            return self.device.memory(program, limits);
        };
        let both = self.device.memory(&device, limits)?.with(&self.host.memory(&host, limits)?);
        Ok(Memory { weights: program.weight_bytes(), ..both })
    }

    fn adapter_memory(&self, program: &Program, limits: &Limits) -> Result<Memory> {
        let Some(Halves { device, host }) = divide(program, self.cut)? else {
            return self.device.adapter_memory(program, limits);
        };
        Ok(self.device.adapter_memory(&device, limits)?.with(&self.host.adapter_memory(&host, limits)?))
    }

    fn weights_beside(&self, program: &Program, first: &[&Program]) -> Result<u64> {
        let mut halves = reserve(first.len(), "programs of a divided model")?;
        for first in first {
            halves.push(divide(first, self.cut)?);
        }
        let of_device =
            halves.iter().zip(first).map(|(halves, first)| halves.as_ref().map_or(*first, |both| &both.device));
        self.device.weights_beside(program, &collected(of_device, "programs of a divided model")?)
    }

    fn memory_free(&self) -> Result<u64> {
        self.device.memory_free()
    }

    fn weights_on_host(&self, program: &Program) -> Result<u64> {
        Ok(divide(program, self.cut)?.map_or(0, |halves| halves.host.weight_bytes()))
    }

    fn prepare(&self, program: Arc<Program>, progress: &mut Progress) -> Result<Arc<dyn Prepared>> {
        let Some(Halves { device, host }) = divide(&program, self.cut)? else {
            return self.device.prepare(program, progress);
        };
        let (device_half, host_half) = (Arc::new(device), Arc::new(host));
        let host = self.host.prepare(Arc::clone(&host_half), &mut |_| Ok(()))?;
        let device = self.device.prepare(Arc::clone(&device_half), progress)?;
        Ok(Arc::new(Loaded { device, host, device_half, host_half }))
    }
}

/// Both halves on their devices.
struct Loaded {
    device: Arc<dyn Prepared>,
    host: Arc<dyn Prepared>,
    device_half: Arc<Program>,
    host_half: Arc<Program>,
}

impl Prepared for Loaded {
    fn open(&self, limits: &Limits) -> Result<Box<dyn Runner>> {
        let (sizes, ranks) = (Sizes::new(&self.host_half, limits)?, limits.ranks);
        Ok(Box::new(DividedRunner { device: self.device.open(limits)?, host: self.host.open(limits)?, sizes, ranks }))
    }

    fn beside(&self, program: Arc<Program>, other: Option<&dyn Prepared>) -> Result<Arc<dyn Prepared>> {
        self.device.beside(program, other)
    }

    fn adapter(&self, mut weights: adapter::Adapter) -> Result<Adapter> {
        let (device, host) = (weights.part(&self.device_half)?, weights.part(&self.host_half)?);
        // The parts alone have them now, so those of the GPU are freed where they are uploaded.
        weights.forget_numbers();
        let parts = Parts { device: Arc::new(self.device.adapter(device)?), host: Arc::new(self.host.adapter(host)?) };
        Ok(Adapter { weights, on_device: Some(Box::new(parts)) })
    }
}

/// An adapter on both devices.
struct Parts {
    device: Arc<Adapter>,
    host: Arc<Adapter>,
}

/// A half's parts of adapters, each with the factor of the whole. Those that change nothing there are left out, so that they cost nothing.
fn parts_of(adapters: &[Scaled], half: fn(&Parts) -> &Arc<Adapter>) -> Result<Vec<Scaled>> {
    let mut parts = Vec::new();
    for Scaled { adapter, scale } in adapters {
        let part = half(adapter.kept()?);
        if !part.weights.is_empty() {
            push(&mut parts, Scaled { adapter: Arc::clone(part), scale: *scale }, "adapters")?;
        }
    }
    Ok(parts)
}

/// Bytes of what a half keeps of sequences.
struct Sizes {
    stores: Stores,
    kv_type: KvType,
    record: usize,
}

impl Sizes {
    fn new(program: &Program, limits: &Limits) -> Result<Sizes> {
        let record = state::starts(&program.states)?.last().map_or(0, |end| end * size_of::<f32>());
        Ok(Sizes { stores: limits.stores(program)?, kv_type: limits.kv_type, record })
    }

    fn page(&self, reach: Reach) -> usize {
        let elements = self.stores.layout(reach).page_elements().unwrap_or(0);
        elements * self.kv_type.bytes()
    }
}

/// The runners of both halves.
struct DividedRunner {
    device: Box<dyn Runner>,
    host: Box<dyn Runner>,
    /// Of the host's half.
    sizes: Sizes,
    /// Ranks of adapters that both have room for.
    ranks: usize,
}

/// Runs a part of the host's half.
fn run_part(
    host: &mut dyn Runner,
    part: usize,
    batch: &Batch,
    cancel: &AtomicBool,
    exchange: &mut dyn Exchange,
) -> Result<()> {
    if part == 0 {
        host.run_stage(0, batch, cancel, exchange)?;
    }
    host.run_stage(part + 1, batch, cancel, exchange)
}

impl Runner for DividedRunner {
    fn run(&mut self, batch: &Batch, cancel: &AtomicBool) -> Result<()> {
        self.run_beside(batch, cancel, &mut |_| ())
    }

    fn run_beside(&mut self, batch: &Batch, cancel: &AtomicBool, beside: Beside) -> Result<()> {
        let DividedRunner { device, host, .. } = self;
        let mut part = |part, exchange: &mut dyn Exchange| run_part(&mut **host, part, batch, cancel, exchange);
        device.run_divided(batch, cancel, &mut part, beside)
    }

    fn runs_beside(&self) -> bool {
        self.device.runs_beside()
    }

    fn draw(&mut self, index: usize, drawn: &Drawn) -> bool {
        self.device.draw(index, drawn)
    }

    fn embed(&mut self, batch: &Batch, stage: Stage, cancel: &AtomicBool, give: Give) -> Result<()> {
        let DividedRunner { device, host, .. } = self;
        let mut part = |part, exchange: &mut dyn Exchange| run_part(&mut **host, part, batch, cancel, exchange);
        device.embed_divided(batch, stage, cancel, &mut part, give)
    }

    fn given(&mut self, row: usize) -> &mut [f32] {
        self.device.given(row)
    }

    fn hidden(&self, index: usize) -> &[f32] {
        self.device.hidden(index)
    }

    fn logits(&self, index: usize) -> &[f32] {
        self.device.logits(index)
    }

    fn best_token(&self, index: usize) -> Option<u32> {
        self.device.best_token(index)
    }

    fn adapt_within(&mut self, ranks: usize) -> Result<()> {
        self.host.adapt_within(ranks)?;
        if let Err(error) = self.device.adapt_within(ranks) {
            // Where less room is refused too, more is kept than anybody uses.
            let _ = self.host.adapt_within(self.ranks);
            return Err(error);
        }
        self.ranks = ranks;
        Ok(())
    }

    fn adapt(&mut self, slot: usize, adapters: Vec<Scaled>) -> Result<()> {
        let on_host = parts_of(&adapters, |parts| &parts.host)?;
        self.device.adapt(slot, parts_of(&adapters, |parts| &parts.device)?)?;
        // The processor takes any.
        self.host.adapt(slot, on_host)
    }

    fn copy_page(&mut self, reach: Reach, from: u32, to: u32) {
        self.host.copy_page(reach, from, to);
        self.device.copy_page(reach, from, to);
    }

    fn read_page(&mut self, reach: Reach, page: u32, out: &mut [u8]) -> Result<()> {
        let (of_host, of_device) = out.split_at_mut(self.sizes.page(reach));
        if !of_host.is_empty() {
            self.host.read_page(reach, page, of_host)?;
        }
        if of_device.is_empty() { Ok(()) } else { self.device.read_page(reach, page, of_device) }
    }

    fn write_page(&mut self, reach: Reach, page: u32, bytes: &[u8]) -> Result<()> {
        let (of_host, of_device) = bytes.split_at(self.sizes.page(reach));
        if !of_host.is_empty() {
            self.host.write_page(reach, page, of_host)?;
        }
        if of_device.is_empty() { Ok(()) } else { self.device.write_page(reach, page, of_device) }
    }

    fn read_record(&mut self, record: u32, out: &mut [u8]) -> Result<()> {
        let (of_host, of_device) = out.split_at_mut(self.sizes.record);
        if !of_host.is_empty() {
            self.host.read_record(record, of_host)?;
        }
        if of_device.is_empty() { Ok(()) } else { self.device.read_record(record, of_device) }
    }

    fn write_record(&mut self, record: u32, bytes: &[u8]) -> Result<()> {
        let (of_host, of_device) = bytes.split_at(self.sizes.record);
        if !of_host.is_empty() {
            self.host.write_record(record, of_host)?;
        }
        if of_device.is_empty() { Ok(()) } else { self.device.write_record(record, of_device) }
    }

    fn report(&self) -> Option<String> {
        self.device.report()
    }

    fn warning(&self) -> Option<&str> {
        self.device.warning()
    }
}
