//! Will it fit: the memory of a model and a session, told from the file's header before anything is loaded.

use super::context::Context;
use super::device;
use super::model::Header;
use super::session::{self, Options};
use crate::backend::Memory;
use crate::error::Result;
use crate::format::Gguf;
use std::path::Path;

/// Memory needed and memory there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What model and session would take.
    pub memory: Memory,
    /// Bytes that can be taken now, what the system can give up for them included.
    pub free: u64,
    /// Bytes that can be taken on the context's GPU now; 0 for the processor.
    pub device_free: u64,
}

impl Plan {
    /// Plans a session with `options` of the model at `path`. The file is mapped, whatever the model's options say: only its header
    /// is looked at.
    pub fn new(context: &Context, path: &Path, map: bool, options: &Options) -> Result<Plan> {
        let header = Header::read(&Gguf::open(path, map, &mut |_| Ok(()))?)?;
        let limits = session::limits(header.hparams.context, options)?;
        let memory = session::memory(context, &header.program, &limits)?;
        let free = device::info(device::Kind::Cpu, 0)?.memory_free;
        Ok(Plan { memory, free, device_free: context.backend().memory_free()? })
    }

    /// Whether everything fits.
    pub fn fits(&self) -> bool {
        let Memory { weights, kv, arena, device_weights, device_kv, device_arena, device_graphs } = self.memory;
        let session = device_kv.saturating_add(device_arena).saturating_add(device_graphs);
        let device = device_weights.saturating_add(session);
        weights.saturating_add(kv).saturating_add(arena) <= self.free && device <= self.device_free
    }
}
