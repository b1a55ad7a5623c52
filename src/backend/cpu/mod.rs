//! The CPU backend: the default everywhere, and in precise mode the oracle.
//!
//! [`lower`] turns a program into steps, `runner` runs them over a batch: wide steps on the context's worker pool, narrow
//! ones on the calling thread. Weights are used where they lie in the mapped file.

pub mod adapting;
mod aligned;
mod attending;
pub mod attention;
pub mod cache;
mod converting;
mod exchanging;
mod experts;
mod gather;
mod heads;
pub mod lower;
mod norms;
#[allow(unsafe_code)]
pub mod pool;
mod recurrent;
mod rotation;
mod routing;
mod runner;
#[allow(unsafe_code)]
pub mod simd;
mod tiles;

use super::{Backend, Limits, Memory, Place, Prepared, Runner};
use crate::error::{Progress, Result};
use crate::os;
use crate::plan::Program;
use lower::Lowered;
use pool::Pool;
use simd::Kernels;
use std::sync::Arc;

/// The processor of this machine, with the threads of one context.
pub struct Cpu {
    pool: Arc<Pool>,
    kernels: &'static Kernels,
    precise: bool,
}

/// How a context wants its processor used.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that compute, the caller included; 0 means the physical cores that the process may use.
    pub threads: usize,
    /// f32 activations everywhere instead of 8-bit ones for quantized weights: slow, and the oracle of every other path.
    pub precise: bool,
    /// Whether 512-bit instructions may be used where the processor has them.
    pub allow_avx512: bool,
    /// Whether the threads that the library starts give way to others.
    pub gives_way: bool,
}

impl Cpu {
    /// Starts the worker threads.
    pub fn new(options: &Options) -> Result<Cpu> {
        let threads = if options.threads == 0 { os::usable_cores() } else { options.threads };
        let pool = Arc::new(Pool::new(threads, options.gives_way)?);
        Ok(Cpu { pool, kernels: simd::detect(options.allow_avx512), precise: options.precise })
    }

    /// Threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Name of the instruction set in use.
    pub fn instruction_set(&self) -> &'static str {
        self.kernels.name
    }
}

impl Backend for Cpu {
    fn memory(&self, program: &Program, limits: &Limits) -> Result<Memory> {
        let lowered = lower::lower(program, self.kernels, self.precise)?;
        Ok(Memory {
            weights: program.weight_bytes(),
            kv: cache::bytes(program, limits)?.saturating_add(recurrent::bytes(program, limits)?),
            arena: runner::arena_bytes(program, &lowered, limits),
            ..Memory::default()
        })
    }

    fn adapter_memory(&self, program: &Program, limits: &Limits) -> Result<Memory> {
        Ok(Memory { arena: adapting::bytes(program, limits) as u64, ..Memory::default() })
    }

    fn place(&self) -> Option<Place> {
        Some(Place::Host)
    }

    fn prepare(&self, program: Arc<Program>, _progress: &mut Progress) -> Result<Arc<dyn Prepared>> {
        let lowered = Arc::new(lower::lower(&program, self.kernels, self.precise)?);
        let (kernels, pool, precise) = (self.kernels, Arc::clone(&self.pool), self.precise);
        Ok(Arc::new(Loaded { program, lowered, kernels, pool, precise }))
    }
}

/// A lowered program.
struct Loaded {
    program: Arc<Program>,
    lowered: Arc<Lowered>,
    kernels: &'static Kernels,
    pool: Arc<Pool>,
    precise: bool,
}

impl Prepared for Loaded {
    fn beside(&self, program: Arc<Program>, _other: Option<&dyn Prepared>) -> Result<Arc<dyn Prepared>> {
        let lowered = Arc::new(lower::lower(&program, self.kernels, self.precise)?);
        Ok(Arc::new(Loaded { program, lowered, pool: Arc::clone(&self.pool), ..*self }))
    }

    fn open(&self, limits: &Limits) -> Result<Box<dyn Runner>> {
        let (program, lowered, pool) = (Arc::clone(&self.program), Arc::clone(&self.lowered), Arc::clone(&self.pool));
        Ok(Box::new(runner::CpuRunner::new(program, lowered, self.kernels, pool, limits)?))
    }
}
