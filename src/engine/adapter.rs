//! Adapters beside a model: loading them, and giving them to sequences.
//!
//! What a sequence has in the cache was made with its adapters. So other ones make it forget that: its tokens stay and are evaluated anew, and
//! depend on its history and the adapters that it has, never on those that it had.

use super::context::LogLevel;
use super::model::Model;
use super::session::{Failure, Session};
use crate::backend::{self, Scaled};
use crate::error::{Count, Error, Result, copied, push};
use crate::format::Gguf;
use crate::plan::adapter::{self, Base};
use std::path::Path;
use std::sync::Arc;

pub use crate::backend::MOST_ADAPTERS;

/// Most ranks that a session makes room for.
pub(super) const MOST_RANKS: usize = 1 << 16;
/// What memory is for.
const WHAT: &str = "an adapter";

/// An adapter of a model, shared by any number of its sequences.
pub struct Adapter {
    model: Arc<Model>,
    ready: Arc<backend::Adapter>,
}

impl Adapter {
    /// Loads the GGUF file at `path`.
    pub fn load(model: &Arc<Model>, path: &Path) -> Result<Adapter> {
        let context = model.context();
        // What is kept is made of the file's bytes, which are read: nobody changes them meanwhile.
        context.require_memory(Gguf::bytes_on_disk(path), WHAT)?;
        let gguf = Gguf::open(path, false, &mut |_| Ok(()))?;
        context.require_memory(adapter::Adapter::bytes_of(&gguf), WHAT)?;
        let (program, family) = (model.program(), model.arch().name);
        let base = Base { program, family, hparams: model.hparams(), tensors: model.tensors() };
        let read = gguf.check_apart(super::model::stored_bytes).and_then(|()| adapter::Adapter::read(&gguf, &base));
        let weights = read.map_err(|error| gguf.blamed(error))?;
        let (rank, pairs, kib) = (weights.rank(), Count(weights.pairs(), "tensor"), weights.bytes() >> 10);
        context.log(LogLevel::Info, format_args!("adapter: rank {rank}, changes {pairs}, {kib} KiB"));
        Ok(Adapter { model: Arc::clone(model), ready: Arc::new(model.prepared().adapter(weights)?) })
    }
}

impl Session {
    /// Gives a sequence these adapters in place of those that it has, each with the factor on what it adds. What it has evaluated it evaluates again
    /// with its next step, unless they are the same.
    pub fn set_adapters(&mut self, id: i32, adapters: &[(Arc<Adapter>, f32)]) -> Result<(), Failure> {
        let slot = self.slot(id)?;
        let mut set = Vec::new();
        for (item, (adapter, scale)) in adapters.iter().enumerate() {
            let refused = |problem| Failure { error: Error::InvalidArgument(problem), item: Some(item) };
            if !Arc::ptr_eq(&adapter.model, self.model()) {
                return Err(refused(format!("`adapters[{item}]` was loaded for another model")));
            }
            if !scale.is_finite() {
                return Err(refused(format!("`scales[{item}]` is {scale}, a finite number is needed")));
            }
            if *scale != 0.0 {
                push(&mut set, Scaled { adapter: Arc::clone(&adapter.ready), scale: *scale }, WHAT)?;
            }
        }
        if set == self.sequence(slot).adapters {
            return Ok(());
        }
        self.make_room_for(&set)?;
        self.runner.adapt(slot, copied(&set, WHAT)?)?;
        let sequence = self.sequence_mut(slot);
        sequence.adapters = set;
        sequence.forget_ahead();
        sequence.has_logits = false;
        self.evaluate_anew(slot);
        self.paging.shrink(slot, 0);
        Ok(())
    }

    /// Makes room for the ranks of a set, outside of any step.
    fn make_room_for(&mut self, set: &[Scaled]) -> Result<()> {
        let ranks: usize = set.iter().map(|scaled| scaled.adapter.weights.rank()).sum();
        if ranks <= self.limits.ranks {
            return Ok(());
        }
        if ranks > MOST_RANKS {
            let problem =
                format!("the adapters of a sequence have {ranks} ranks together, at most {MOST_RANKS} can be");
            return Err(Error::InvalidArgument(problem));
        }
        let mut limits = self.limits;
        limits.ranks = ranks;
        let memory = self.model.backend().adapter_memory(self.model.program(), &limits)?;
        self.model.context().require_memory(memory.on_host(0), "buffers of adapters")?;
        self.runner.adapt_within(ranks)?;
        self.limits = limits;
        Ok(())
    }

    /// Gives the empty slot `to` the adapters of the sequence in `from`.
    pub(super) fn copy_adapters(&mut self, from: usize, to: usize) -> Result<Vec<Scaled>> {
        let set = copied(&self.sequence(from).adapters, WHAT)?;
        self.runner.adapt(to, copied(&set, WHAT)?)?;
        Ok(set)
    }

    /// Takes the adapters of a slot away.
    pub(super) fn drop_adapters(&mut self, slot: usize) {
        // To have none cannot fail.
        let _ = self.runner.adapt(slot, Vec::new());
    }
}
