//! Adapters beside a model: loading them, and giving them to sequences.
//!
//! What a sequence has in the cache was made with its adapters. So other ones make it forget that: its tokens stay and are evaluated anew, and
//! depend on its history and the adapters that it has, never on those that it had.

use super::context::LogLevel;
use super::fingerprint;
use super::model::Model;
use super::session::{Failure, Session};
use crate::backend::{self, Scaled};
use crate::error::{Count, Error, Result, copied, copied_text, push};
use crate::format::Gguf;
use crate::plan::adapter::{self, Base};
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::sync::{Arc, Weak};

pub use crate::backend::MOST_ADAPTERS;

/// Most ranks that a session makes room for.
pub(super) const MOST_RANKS: usize = 1 << 16;
/// What memory is for.
const WHAT: &str = "an adapter";

/// Most bytes of a name that are kept.
pub(super) const NAME_BYTES: usize = 256;

/// What an adapter is recognized by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// A hash of its tensors and of its alpha.
    pub fingerprint: u128,
    /// What its file calls it, the beginning of that if it is long; empty without a name.
    pub name: String,
}

impl Identity {
    fn of(gguf: &Gguf) -> Result<Identity> {
        let name = gguf.metadata().text("general.name")?.unwrap_or_default();
        let name = copied_text(&name[..name.floor_char_boundary(NAME_BYTES)], WHAT)?;
        Ok(Identity { fingerprint: fingerprint::of_adapter(gguf)?, name })
    }

    fn copied(&self) -> Result<Identity> {
        Ok(Identity { name: copied_text(&self.name, WHAT)?, ..*self })
    }
}

impl Display for Identity {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match &*self.name {
            "" => f.write_str("without a name")?,
            name => write!(f, "`{}`", name.escape_debug())?,
        }
        write!(f, " (fingerprint {:032x})", self.fingerprint)
    }
}

/// What a model knows of an adapter that was loaded beside it, for as long as somebody has it.
pub(super) struct Known {
    ready: Weak<backend::Adapter>,
    identity: Identity,
}

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
        let read = gguf.check_apart(super::header::stored_bytes).and_then(|()| adapter::Adapter::read(&gguf, &base));
        let weights = read.map_err(|error| gguf.blamed(error))?;
        let identity = Identity::of(&gguf).map_err(|error| gguf.blamed(error))?;
        let (rank, pairs, kib) = (weights.rank(), Count(weights.pairs(), "tensor"), weights.bytes() >> 10);
        context.log(LogLevel::Info, format_args!("adapter {identity}: rank {rank}, changes {pairs}, {kib} KiB"));
        let ready = Arc::new(model.prepared().adapter(weights)?);
        model.know(&ready, identity)?;
        Ok(Adapter { model: Arc::clone(model), ready })
    }
}

impl Model {
    /// Takes note of an adapter that was loaded, and forgets those that nobody has any more.
    fn know(&self, ready: &Arc<backend::Adapter>, identity: Identity) -> Result<()> {
        let mut adapters = self.adapters();
        adapters.retain(|known| known.ready.strong_count() > 0);
        push(&mut adapters, Known { ready: Arc::downgrade(ready), identity }, WHAT)
    }

    /// What an adapter of its own is recognized by.
    pub(super) fn identity_of(&self, adapter: &Arc<backend::Adapter>) -> Result<Identity> {
        let adapters = self.adapters();
        let known = adapters.iter().find(|known| std::ptr::eq(known.ready.as_ptr(), Arc::as_ptr(adapter)));
        known.expect("every adapter was taken note of").identity.copied()
    }

    /// The adapter that is recognized by `identity`: one that the host has not freed, or that a sequence has.
    pub(super) fn adapter_like(&self, identity: &Identity) -> Result<Arc<backend::Adapter>> {
        let adapters = self.adapters();
        let mut alike = adapters.iter().filter(|known| known.identity.fingerprint == identity.fingerprint);
        alike.find_map(|known| known.ready.upgrade()).ok_or_else(|| {
            let problem = "which is not loaded for the model; load it first";
            Error::NotFound(format!("this saved sequence has the adapter {identity}, {problem}"))
        })
    }
}

impl Session {
    /// Gives a sequence these adapters in place of those that it has, each with the factor on what it adds. What it has evaluated it evaluates again
    /// with its next step, unless they are the same.
    pub fn set_adapters(&mut self, id: i32, adapters: &[(Arc<Adapter>, f32)]) -> Result<(), Failure> {
        let (slot, set) = (self.slot(id)?, self.set_of(adapters)?);
        if set == self.sequence(slot).adapters {
            return Ok(());
        }
        self.adapt(slot, &set)?;
        let sequence = self.sequence_mut(slot);
        sequence.adapters = set;
        sequence.forget_ahead();
        sequence.has_logits = false;
        self.evaluate_anew(slot);
        self.paging.shrink(slot, 0);
        Ok(())
    }

    /// What a list of adapters and factors is to a runner: those of 0 are left out.
    pub(super) fn set_of(&self, adapters: &[(Arc<Adapter>, f32)]) -> Result<Vec<Scaled>, Failure> {
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
        Ok(set)
    }

    /// Lets a slot have the adapters of a set, with room for their ranks.
    pub(super) fn adapt(&mut self, slot: usize, set: &[Scaled]) -> Result<()> {
        self.make_room_for(set)?;
        self.runner.adapt(slot, copied(set, WHAT)?)
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
        self.adapt(to, &set)?;
        Ok(set)
    }

    /// Takes the adapters of a slot away.
    pub(super) fn drop_adapters(&mut self, slot: usize) {
        // To have none cannot fail.
        let _ = self.runner.adapt(slot, Vec::new());
    }
}
