//! Which layers of a model, and which experts, the host does, where a GPU lacks the memory for all of them.

use super::context::{Context, LogLevel};
use super::limits;
use super::session::Options;
use crate::backend::divided::Divided;
use crate::backend::{Backend, Memory};
use crate::error::{Count, Error, Result};
use crate::plan::Program;
use crate::plan::halves::{Cut, cuts, expert_layers};
use std::sync::Arc;

/// Who runs a model.
pub(super) struct Runs {
    /// The device, or both.
    pub(super) backend: Arc<dyn Backend>,
    /// What of the model the host does.
    pub(super) cut: Cut,
    /// Why it cannot be loaded, where the memory that the caller allows is too little for any cut.
    pub(super) refused: Option<Error>,
}

/// Chooses who runs `program`, whose sequences have `length` tokens at most. All is the device's that fits there with a session of the usual size
/// beside it, into `most` bytes, or where that is 0 into those that are free. Of what does not fit, experts are the host's first, then layers. Where
/// no cut is enough nothing is divided, as if all fitted.
pub(super) fn choose(context: &Context, program: &Program, length: usize, most: u64) -> Result<Runs> {
    let device = context.backend_for(program)?;
    let whole = Runs { backend: Arc::clone(&device), cut: Cut::default(), refused: None };
    if device.weights_on_host(program)? > 0 {
        // It is the host.
        return Ok(whole);
    }
    let room = if most == 0 { device.memory_free()? } else { most };
    let session = limits::of(length, program, &Options::default())?;
    // Of free memory some is taken while the model is loaded.
    let loading = if most == 0 { device.loading_memory() } else { 0 };
    let needed = |backend: &dyn Backend| Ok(on_device(&limits::memory(backend, program, &session)?, loading));
    let needed_whole: u64 = needed(&*device)?;
    let cuts = cuts(program)?;
    if needed_whole <= room || cuts.is_empty() {
        return Ok(whole);
    }
    let host = context.processor()?;
    let divided = |cut| Divided { device: Arc::clone(&device), host: Arc::clone(&host), cut };
    let cut = least(&cuts, |cut| Ok(needed(&divided(cut))? <= room))?;
    let Some(cut) = cut else {
        let needed = cuts.last().map_or(Ok(needed_whole), |&cut| needed(&divided(cut)))?;
        let refused = (most > 0).then_some(Error::DeviceMemory { needed, free: room });
        return Ok(Runs { refused, ..whole });
    };
    // A caller that has set a limit expects it.
    let level = if most == 0 { LogLevel::Warn } else { LogLevel::Info };
    let (layers, experts) = (Count(cut.layers, "layer"), Count(expert_layers(program, cut), "layer"));
    let mib = room >> 20;
    context.log(
        level,
        format_args!("the host does {layers} of the model, and the experts of {experts}: {mib} MiB of device memory do not hold more"),
    );
    Ok(Runs { backend: Arc::new(divided(cut)), cut, refused: None })
}

/// The first of `cuts` that fits; all behind one that does fit too.
fn least(cuts: &[Cut], fits: impl Fn(Cut) -> Result<bool>) -> Result<Option<Cut>> {
    let (mut first, mut end) = (0, cuts.len());
    while first < end {
        let middle = (first + end) / 2;
        (first, end) = if fits(cuts[middle])? { (first, middle) } else { (middle + 1, end) };
    }
    Ok(cuts.get(first).copied())
}

/// What weights, and behind them a session, take of a device whose loading takes so much before there is a session.
fn on_device(memory: &Memory, loading: u64) -> u64 {
    let Memory { device_weights, device_kv, device_arena, device_graphs, .. } = *memory;
    let session = device_kv.saturating_add(device_arena).saturating_add(device_graphs);
    device_weights.saturating_add(session.max(loading))
}
