//! Models that a device shares with the processor: on a GPU by how much of its memory they may take, and for tests without one the processor in its
//! place, which runs the device's half of a program.

use super::{Ctx, Model};
use segno::backend::cpu::Cpu;
use segno::backend::{Backend, Batch, Beside, Exchange, Give, Host, Limits, Memory, Prepared, Runner, Scaled, Stage};
use segno::error::{Progress, Result};
use segno::ffi::model::{segno_model_opts, segno_model_opts_init};
use segno::ffi::plan::segno_plan;
use segno::ffi::status::SEGNO_E_DEVICE_MEMORY;
use segno::kv::Reach;
use segno::plan::op::Exchanged;
use segno::plan::{Op, Program};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The processor as a device.
pub struct Stand(pub Cpu);

impl Backend for Stand {
    fn memory(&self, program: &Program, limits: &Limits) -> Result<Memory> {
        self.0.memory(program, limits)
    }

    fn adapter_memory(&self, program: &Program, limits: &Limits) -> Result<Memory> {
        self.0.adapter_memory(program, limits)
    }

    fn prepare(&self, program: Arc<Program>, progress: &mut Progress) -> Result<Arc<dyn Prepared>> {
        let parts = program.ops.iter().filter(|op| matches!(op, Op::Receive { by, .. } if by.index == 0)).count();
        Ok(Arc::new(Loaded { prepared: self.0.prepare(program, progress)?, parts }))
    }
}

struct Loaded {
    prepared: Arc<dyn Prepared>,
    parts: usize,
}

impl Prepared for Loaded {
    fn open(&self, limits: &Limits) -> Result<Box<dyn Runner>> {
        let way = || Way { values: Vec::new(), rows: limits.rows };
        Ok(Box::new(Half { runner: self.prepared.open(limits)?, parts: self.parts, ways: [way(), way()] }))
    }

    fn beside(&self, program: Arc<Program>, other: Option<&dyn Prepared>) -> Result<Arc<dyn Prepared>> {
        self.prepared.beside(program, other)
    }
}

/// Values that go one way.
struct Way {
    values: Vec<f32>,
    rows: usize,
}

/// Both ways as one of the halves sees them: what it sends, and what it receives.
struct Ends<'a>(&'a mut Way, &'a Way);

impl Exchange for Ends<'_> {
    fn received(&self, by: Exchanged, rows: usize, width: usize) -> &[f32] {
        &self.1.values[by.start * self.1.rows..][..rows * width]
    }

    fn sent(&mut self, by: Exchanged, rows: usize, width: usize) -> &mut [f32] {
        let (start, Way { values, .. }) = (by.start * self.0.rows, &mut self.0);
        values.resize(values.len().max(start + rows * width), f32::NAN);
        &mut values[start..][..rows * width]
    }
}

struct Half {
    runner: Box<dyn Runner>,
    parts: usize,
    ways: [Way; 2],
}

impl Runner for Half {
    fn run(&mut self, batch: &Batch, cancel: &AtomicBool) -> Result<()> {
        self.runner.run(batch, cancel)
    }

    fn run_divided(&mut self, batch: &Batch, cancel: &AtomicBool, host: Host, _beside: Beside) -> Result<()> {
        let Half { runner, parts, ways: [down, up] } = self;
        runner.run_stage(0, batch, cancel, &mut Ends(down, up))?;
        for part in 0..*parts {
            host(part, &mut Ends(up, down))?;
            // What is read again would show.
            down.values.fill(f32::NAN);
            runner.run_stage(part + 1, batch, cancel, &mut Ends(down, up))?;
            up.values.fill(f32::NAN);
        }
        Ok(())
    }

    fn embed(&mut self, batch: &Batch, stage: Stage, cancel: &AtomicBool, give: Give) -> Result<()> {
        self.runner.embed(batch, stage, cancel, give)
    }

    fn logits(&self, index: usize) -> &[f32] {
        self.runner.logits(index)
    }

    fn adapt_within(&mut self, ranks: usize) -> Result<()> {
        self.runner.adapt_within(ranks)
    }

    fn adapt(&mut self, slot: usize, adapters: Vec<Scaled>) -> Result<()> {
        self.runner.adapt(slot, adapters)
    }

    fn copy_page(&mut self, reach: Reach, from: u32, to: u32) {
        self.runner.copy_page(reach, from, to);
    }

    fn read_page(&mut self, reach: Reach, page: u32, out: &mut [u8]) -> Result<()> {
        self.runner.read_page(reach, page, out)
    }

    fn write_page(&mut self, reach: Reach, page: u32, bytes: &[u8]) -> Result<()> {
        self.runner.write_page(reach, page, bytes)
    }

    fn read_record(&mut self, record: u32, out: &mut [u8]) -> Result<()> {
        self.runner.read_record(record, out)
    }

    fn write_record(&mut self, record: u32, bytes: &[u8]) -> Result<()> {
        self.runner.write_record(record, bytes)
    }
}

/// Options of a load that may take so much of the device.
pub fn limited(device_memory: u64) -> segno_model_opts {
    // SAFETY: plain data, which the next line fills.
    let mut opts: segno_model_opts = unsafe { std::mem::zeroed() };
    segno_model_opts_init(&mut opts, size_of::<segno_model_opts>());
    segno_model_opts { device_memory, ..opts }
}

/// What a model and its session take of the device.
pub fn on_device(plan: &segno_plan) -> u64 {
    plan.device_weights + plan.device_kv + plan.device_arena + plan.device_graphs
}

/// The model of a file in so many shares of what it would take of the device, from nearly all to as few as can be.
pub fn shares(ctx: &Ctx, path: &Path) -> Vec<Model> {
    let whole = ctx.plan(path, &limited(u64::MAX)).unwrap();
    assert_eq!((whole.host_layers, whole.host_expert_layers), (0, 0));
    let (mut limit, mut models) = (on_device(&whole) - 1, Vec::new());
    loop {
        let found = ctx.plan(path, &limited(limit)).unwrap();
        if found.host_layers + found.host_expert_layers == 0 {
            // Nothing is left to divide.
            let refused = ctx.load_with(path, &limited(limit)).err().unwrap();
            assert_eq!((found.fits, refused.status), (0, SEGNO_E_DEVICE_MEMORY));
            assert!(!models.is_empty(), "{}: {}", path.display(), refused.message);
            return models;
        }
        assert!(on_device(&found) <= limit && found.fits == 1);
        models.push(ctx.load_with(path, &limited(limit)).unwrap().1);
        limit = on_device(&found) - 1;
    }
}
