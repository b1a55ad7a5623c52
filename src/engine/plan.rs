//! Will it fit: the memory of a model and a session, told from the file's header before anything is loaded.

use super::context::Context;
use super::dividing::{self, Runs};
use super::guide::{Guide, Kind};
use super::header::{Header, own_bytes};
use super::limits;
use super::model::{self, Model};
use super::session::Options;
use super::speculation;
use crate::arch::names::Idle;
use crate::backend::{Limits, Memory};
use crate::convert::Making;
use crate::error::Result;
use crate::plan::halves::expert_layers;
use std::path::Path;

/// Memory needed and memory there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What model and session would take.
    pub memory: Memory,
    /// Bytes of weights that take memory of the host: those that a device reads from a mapped file once do not.
    pub kept: u64,
    /// How many layers the host does for a GPU, and of how many more it does the experts.
    pub on_host: (usize, usize),
    /// Bytes that can be taken now, what the system can give up for them included.
    pub free: u64,
    /// Bytes that can be taken on the GPU that would run the model now, and that it may take; 0 for the processor.
    pub device_free: u64,
}

impl Plan {
    /// Plans a session with `options` of the model at `path`. The file is mapped, whatever the model's options say: only its header
    /// is looked at. `draft` is the model that drafts, which is loaded already, so that its weights take nothing more.
    pub fn new(
        context: &Context,
        path: &Path,
        loading: &model::Options,
        options: &Options,
        draft: Option<&Model>,
    ) -> Result<Plan> {
        let folder = model::open(context, path, loading, &mut |_| Ok(()))?;
        let mut header = Header::read(&folder)?;
        let (length, most) = (header.hparams.context, loading.device_memory);
        let Runs { backend, cut, .. } = dividing::choose(context, &header.program, length, most)?;
        header.suit(&folder.gguf, &*backend);
        let Header { hparams, program, predictor, .. } = &header;
        let own = match predictor {
            Ok(own) => {
                let weights = own_bytes(own, program, hparams.layers, &*backend)?;
                let (kind, backend, context) = (Kind::Predictor, &*backend, hparams.context);
                Ok(Guide { kind, backend, program: own, context, own: weights })
            }
            Err(reason) => Err(reason.as_str()),
        };
        let own = own.as_ref().map_err(|reason| *reason);
        let hidden = speculation::hidden(options, draft, own.map(|_| ()))?;
        // A host that limits the model's memory wants no more than is needed.
        let room =
            if most > 0 { 0 } else { backend.memory_free()?.saturating_sub(backend.weights_beside(program, &[])?) };
        let options = &limits::with_prompts(options, &*backend, hparams.context, program, room)?;
        let limits = Limits { hidden, ..limits::of(hparams.context, program, options)? };
        let memory = limits::memory(&*backend, program, &limits)?;
        let memory = memory.with(&speculation::memory(options, draft, (&*backend, program, hparams), own)?);
        let free = context.free_memory().unwrap_or(0);
        let is_in_place = loading.map && folder.makings.is_empty();
        let made = folder.makings.iter().filter(|making| Idle::of(making.name(), hparams) == Some(Idle::Prediction));
        // Those of a predictor are made with the others, whether any session drafts with it or not.
        let beside: u64 = made.map(Making::bytes).sum();
        let kept =
            if is_in_place { backend.weights_on_host(program)? } else { program.weight_bytes().saturating_add(beside) };
        let on_host = (cut.layers, expert_layers(program, cut));
        let allowed = if most == 0 { u64::MAX } else { most };
        Ok(Plan { memory, kept, on_host, free, device_free: backend.memory_free()?.min(allowed) })
    }

    /// Whether everything fits.
    pub fn fits(&self) -> bool {
        let Memory { device_weights, device_kv, device_arena, device_graphs, .. } = self.memory;
        let session = device_kv.saturating_add(device_arena).saturating_add(device_graphs);
        let device = device_weights.saturating_add(session);
        self.memory.on_host(self.kept) <= self.free && device <= self.device_free
    }
}
