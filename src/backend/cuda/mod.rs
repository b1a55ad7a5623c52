//! NVIDIA GPUs: which are there, and why one cannot be used.
//!
//! The driver is opened at run time (`driver`), so the library also loads on machines without one. No call here leaves another
//! current context behind than it found. [`lower`] turns a program into launches, [`select`] chooses their kernels for a shape, `runner` replays them
//! as graphs, whose last kernel chooses the tokens (`draws`). Adapters have passes of their own (`adapting`), and so have embeddings (`texts`). What
//! rows bring along and leave goes through memory of the host (`vectors`). Of a model that the device shares with the host (`super::divided`), passes
//! have parts that the host does while they run (`exchange`).

#![allow(unsafe_code)]

mod adapting;
pub mod args;
pub mod catalogue;
mod draws;
mod driver;
mod exchange;
mod idle;
pub mod launch;
mod lending;
pub mod lower;
mod memory;
mod module;
mod pages;
mod passes;
mod runner;
pub mod select;
mod shared;
mod sizes;
#[cfg(feature = "testing")]
pub mod testing;
mod texts;
mod timing;
mod vectors;
mod weights;

use super::{Adapter, Backend, Gpu, GpuOptions, Limits, Memory, Place, Prepared, Runner, not_lent};
use crate::error::{Error, Progress, Result, collected};
use crate::plan::{Program, adapter};
use adapting::Uploaded;
use driver::Primary;
use lower::supported;
use module::Kernels;
use runner::CudaRunner;
use sizes::{AdapterNeeds, Needs, Sizes};
use std::any::Any;
use std::sync::Arc;
use weights::Weights;

/// Number of GPUs that the driver shows; 0 where there is no driver, or an older one than this library can use.
pub fn count() -> usize {
    driver::open().and_then(|driver| driver.devices()).unwrap_or(0)
}

/// Describes GPU `index`. Makes the device's primary context for as long as that takes, if nobody holds it.
pub fn info(index: usize) -> Result<Gpu> {
    let driver = driver::open()?;
    let device = driver.device(index)?;
    let memory = device.memory()?;
    Ok(Gpu {
        name: device.name()?,
        memory_total: memory.total,
        memory_free: memory.free,
        compute: device.compute()?,
        driver: driver.version(),
    })
}

/// One GPU, with the kernels loaded.
pub struct Cuda {
    primary: Arc<Primary>,
    kernels: Arc<Kernels>,
    eager: bool,
    options: GpuOptions,
}

impl Cuda {
    /// Opens a GPU as a host wants it.
    pub fn open(options: &GpuOptions) -> Result<Cuda> {
        // Asked first: without kernels there is no use for the driver, nor for the time that opening it takes.
        if !module::is_built() {
            return Err(Error::Unsupported("this library is built without cuda kernels".into()));
        }
        let primary = Arc::new(work_place(options)?);
        let current = primary.enter()?;
        let kernels = Arc::new(Kernels::load(&primary)?);
        drop(current);
        Ok(Cuda { primary, kernels, eager: options.timed, options: *options })
    }

    /// Whether products of several rows round what they multiply, as far as there are kernels for their types.
    pub fn rounds(&self) -> bool {
        self.options.fast_batches && self.kernels.has_f16()
    }

    /// Brings a program's weights to the device; `progress` hears how many are sent.
    pub fn upload(&self, program: Arc<Program>, progress: &mut Progress) -> Result<Loaded> {
        supported::check(&program)?;
        let _current = self.primary.enter()?;
        let (primary, kernels) = (Arc::clone(&self.primary), Arc::clone(&self.kernels));
        let threads = self.options.threads;
        let weights = Arc::new(Weights::upload(&program, &[], &primary, &kernels, threads, progress)?);
        let (eager, timed, fast) = (self.eager, self.options.timed, self.rounds());
        Ok(Loaded { program, weights, kernels, primary, threads, eager, timed, fast })
    }
}

/// The context that options ask for.
fn work_place(options: &GpuOptions) -> Result<Primary> {
    let device = driver::open()?.device(options.index)?;
    let mut primary = match options.context {
        0 => Primary::retain(device)?,
        context => Primary::adopt(context)?,
    };
    let (index, own) = (options.index, primary.device());
    if index != 0 && own != device {
        let own = own.ordinal();
        return Err(Error::InvalidArgument(format!(
            "cuda_context belongs to device {own}, device_index is {index}; leave device_index 0"
        )));
    }
    primary.set_longest_wait(options.longest_wait);
    if options.stream_priority != 0 {
        primary.set_stream_priority(options.stream_priority)?;
    }
    Ok(primary)
}

/// Whether there is a GPU, and the kernels for it are in this library.
pub fn is_usable() -> bool {
    module::is_built() && count() > 0
}

/// Opens a GPU as a backend.
pub fn open(options: &GpuOptions) -> Result<Box<dyn Backend>> {
    Ok(Box::new(Cuda::open(options)?))
}

impl Backend for Cuda {
    fn note(&self) -> Option<&'static str> {
        match (self.options.fast_batches, self.rounds()) {
            (false, _) => None,
            (true, true) => Some("fast batches are in use"),
            (true, false) => {
                Some("fast batches are not in use: they need compute capability 9.0 and kernels compiled for it")
            }
        }
    }

    fn check(&self, program: &Program) -> Result<()> {
        supported::check(program)
    }

    fn memory(&self, program: &Program, limits: &Limits) -> Result<Memory> {
        supported::check(program)?;
        let Needs { cache, arena, graphs, adapters } = Needs::new(program, limits, self.rounds())?;
        let sizes = Sizes::new(program, limits)?;
        let floats = sizes.results(program)?.saturating_add(sizes.vectors(program)?);
        let host = floats.saturating_mul(size_of::<f32>()) + draws::bytes(sizes.outputs, program.logits_width());
        let host = host.saturating_add(exchange::bytes(program, &sizes));
        Ok(Memory {
            weights: program.weight_bytes(),
            arena: host as u64,
            device_weights: weights::bytes(program)? as u64,
            device_kv: cache,
            device_arena: arena.saturating_add(adapters.arena),
            device_graphs: graphs.saturating_add(adapters.graphs),
            ..Memory::default()
        })
    }

    fn adapter_memory(&self, program: &Program, limits: &Limits) -> Result<Memory> {
        let AdapterNeeds { arena, graphs } = Needs::new(program, limits, self.rounds())?.adapters;
        Ok(Memory { device_arena: arena, device_graphs: graphs, ..Memory::default() })
    }

    fn weights_beside(&self, program: &Program, first: &[&Program]) -> Result<u64> {
        Ok(weights::bytes_beside(program, first)? as u64)
    }

    fn place(&self) -> Option<Place> {
        Some(Place::Gpu)
    }

    fn loading_memory(&self) -> u64 {
        weights::LOADING_BYTES
    }

    fn weights_on_host(&self, _program: &Program) -> Result<u64> {
        Ok(0)
    }

    fn memory_free(&self) -> Result<u64> {
        let _current = self.primary.enter()?;
        memory::free_bytes()
    }

    fn prepare(&self, program: Arc<Program>, progress: &mut Progress) -> Result<Arc<dyn Prepared>> {
        Ok(Arc::new(self.upload(program, progress)?))
    }
}

/// A program whose weights are on the device.
pub struct Loaded {
    program: Arc<Program>,
    weights: Arc<Weights>,
    kernels: Arc<Kernels>,
    primary: Arc<Primary>,
    /// Most threads that decode weights.
    threads: usize,
    eager: bool,
    timed: bool,
    fast: bool,
}

impl Loaded {
    /// A session's runner, ready to measure its steps if the host wants that.
    fn timed_runner(&self, limits: &Limits, lender: Option<&CudaRunner>) -> Result<Box<dyn Runner>> {
        let mut runner = CudaRunner::new(self, limits, self.eager, lender)?;
        if self.timed {
            runner.time_steps(&self.program)?;
        }
        Ok(Box::new(runner))
    }
}

impl Prepared for Loaded {
    fn beside(&self, program: Arc<Program>, other: Option<&dyn Prepared>) -> Result<Arc<dyn Prepared>> {
        supported::check(&program)?;
        let _current = self.primary.enter()?;
        let other = other.and_then(|other| (other as &dyn Any).downcast_ref::<Loaded>());
        if other.is_some_and(|other| !other.primary.is_same(&self.primary)) {
            let problem = "a model and what was made to draft for it have to be in one context of one GPU";
            return Err(Error::Unsupported(problem.into()));
        }
        let there = std::iter::once(self).chain(other);
        let there = collected(there.map(|loaded| (&*loaded.program, &loaded.weights)), "weights of two models")?;
        let (primary, kernels) = (&self.primary, &self.kernels);
        let weights = Weights::upload(&program, &there, primary, kernels, self.threads, &mut |_| Ok(()))?;
        let (primary, kernels) = (Arc::clone(primary), Arc::clone(kernels));
        Ok(Arc::new(Loaded { program, weights: Arc::new(weights), kernels, primary, ..*self }))
    }

    fn open(&self, limits: &Limits) -> Result<Box<dyn Runner>> {
        self.timed_runner(limits, None)
    }

    fn open_over(&self, limits: &Limits, lender: &dyn Runner) -> Result<Box<dyn Runner>> {
        self.timed_runner(limits, Some(lending::lent(lender.lend().ok_or_else(not_lent)?)?))
    }

    fn adapter(&self, mut weights: adapter::Adapter) -> Result<Adapter> {
        weights.check_products()?;
        let _current = self.primary.enter()?;
        let uploaded = Uploaded::new(&weights, self.program.matrices.len(), &self.primary, &self.kernels)?;
        weights.forget_numbers();
        Ok(Adapter { weights, on_device: Some(Box::new(uploaded)) })
    }
}
