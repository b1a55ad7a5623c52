//! Devices that run a program: the trait, and the one place that chooses an implementation.
//!
//! A [`Backend`] is one device of a context. It prepares a program once a model ([`Prepared`]) and opens any number of
//! runners on it ([`Runner`]), one a session. Everything that a step needs exists when [`Prepared::open`] returns.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
pub mod cuda;
pub mod divided;
mod memory;

use crate::error::{Error, Progress, Result};
use crate::kv::state::Move;
use crate::kv::{HeadSizes, Layout, Reach, Stores, Tables, WindowLimits, q8};
use crate::plan::op::Exchanged;
use crate::plan::{Program, ValueId, adapter};
use crate::sample;
pub use memory::Memory;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// One GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// What the maker calls it.
    pub name: String,
    /// All its memory, in bytes.
    pub memory_total: u64,
    /// Memory that can be taken now, in bytes.
    pub memory_free: u64,
    /// Compute capability, ten times the major number plus the minor one: 90 for 9.0.
    pub compute: u32,
    /// CUDA version of the driver, a thousand times the major number plus ten times the minor one: 13000 for 13.0.
    pub driver: u32,
}

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// Which of this machine's.
    pub index: usize,
    /// Address of a CUDA context of the host's own, in which all work is then done; 0 for the device's primary one.
    pub context: usize,
    /// Priority of the streams, within the device's range; lower numbers run first.
    pub stream_priority: i32,
    /// Whether steps run as single launches, each timed, for [`Runner::report`].
    pub timed: bool,
    /// Whether products of prompts and of many rows may multiply weights and activations as 16-bit floats.
    pub fast_batches: bool,
    /// Most threads that work while a model is loaded, the caller's included; 0 for as many as the process may use.
    pub threads: usize,
    /// How long a call waits for the device before it is given up; zero for the time that suits every machine. The rows of a pass add to it.
    pub longest_wait: Duration,
}

/// One device.
pub trait Backend: Send + Sync {
    /// What else the log should say of it.
    fn note(&self) -> Option<&'static str> {
        None
    }
    /// Refuses, by name, what this device cannot run of `program`.
    fn check(&self, _program: &Program) -> Result<()> {
        Ok(())
    }
    /// Memory that `program` and a runner within `limits` would take here.
    fn memory(&self, program: &Program, limits: &Limits) -> Result<Memory>;
    /// What of that are buffers of adapters, with graphs of the passes that have some.
    fn adapter_memory(&self, program: &Program, limits: &Limits) -> Result<Memory>;
    /// Bytes of the device's own memory that the weights of `program` take beside those of `first`, programs of the files that it has weights of; 0
    /// for the processor.
    fn weights_beside(&self, _program: &Program, _first: &[&Program]) -> Result<u64> {
        Ok(0)
    }
    /// Bytes of the device's own memory that it takes while weights are brought there, beside them.
    fn loading_memory(&self) -> u64 {
        0
    }
    /// Bytes of the device's own memory that can be taken now; 0 for the processor, which has none.
    fn memory_free(&self) -> Result<u64> {
        Ok(0)
    }
    /// Bytes of the weights of `program` that passes read where they lie in host memory; those of a device with memory of its own are not read again.
    fn weights_on_host(&self, program: &Program) -> Result<u64> {
        Ok(program.weight_bytes())
    }
    /// Where its models have their weights, all of which a program may then have some of; nothing where two devices share a model.
    fn place(&self) -> Option<Place> {
        None
    }
    /// Makes `program` ready to run on this device; `progress` hears of weights that are brought there.
    fn prepare(&self, program: Arc<Program>, progress: &mut Progress) -> Result<Arc<dyn Prepared>>;
}

/// Where a model's weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the host's memory.
    Host,
    /// In that of the GPU of a context.
    Gpu,
}

/// A program on a device.
pub trait Prepared: Any + Send + Sync {
    /// Reserves everything that batches within `limits` need.
    fn open(&self, limits: &Limits) -> Result<Box<dyn Runner>>;
    /// The same for a program that reads the keys of `lender`, a runner in the same [`Place`] with as many pages, and has none of its own; what runs
    /// then is [`Runner::run_over`].
    fn open_over(&self, limits: &Limits, _lender: &dyn Runner) -> Result<Box<dyn Runner>> {
        self.open(limits)
    }
    /// Makes another program ready, which has weights in common with this one, and with `other`, of another file in the same [`Place`], where that is
    /// given.
    fn beside(&self, program: Arc<Program>, other: Option<&dyn Prepared>) -> Result<Arc<dyn Prepared>>;
    /// Makes an adapter of the program ready for runners on this device.
    fn adapter(&self, weights: adapter::Adapter) -> Result<Adapter> {
        Ok(Adapter { weights, on_device: None })
    }
}

/// A prepared program with a cache and buffers of its own.
pub trait Runner: Send {
    /// Evaluates `batch`. The keys and values of its rows are in the cache, and the logits of its outputs are readable, when this
    /// returns `Ok`; otherwise only the pages of its rows may have changed, and the records that were to be filled. Never
    /// allocates. `cancel` raised ends the run early with [`crate::error::Error::Cancelled`].
    fn run(&mut self, batch: &Batch, cancel: &AtomicBool) -> Result<()>;
    /// The same, and calls `beside` once, while the device is at work; where that is the caller's processor, never.
    fn run_beside(&mut self, batch: &Batch, cancel: &AtomicBool, _beside: Beside) -> Result<()> {
        self.run(batch, cancel)
    }
    /// Whether it does.
    fn runs_beside(&self) -> bool {
        false
    }
    /// The same of the device's half of a program in two, of which `host` does the parts of the other half.
    fn run_divided(&mut self, _batch: &Batch, _cancel: &AtomicBool, _host: Host, _beside: Beside) -> Result<()> {
        Err(not_divided())
    }
    /// As [`Runner::embed`], of the device's half of a program in two.
    fn embed_divided(
        &mut self,
        _batch: &Batch,
        _stage: Stage,
        _cancel: &AtomicBool,
        _host: Host,
        _give: Give,
    ) -> Result<()> {
        Err(not_divided())
    }
    /// Runs a stage of half a program: the first ends, and each further one begins, with the receipt of what the other half has for a part. A pass
    /// runs them in order; otherwise as [`Runner::run`].
    fn run_stage(
        &mut self,
        _stage: usize,
        _batch: &Batch,
        _cancel: &AtomicBool,
        _exchange: &mut dyn Exchange,
    ) -> Result<()> {
        Err(not_divided())
    }
    /// Its cache, for a runner of another program that reads what this one keeps ([`Runner::run_over`]).
    fn lend(&self) -> Option<&dyn Any> {
        None
    }
    /// As [`Runner::run`], of a program that stores no keys and reads those of another runner, which lends them: the one that it was opened over. The
    /// batch has that one's tables.
    fn run_over(&mut self, _lent: &dyn Any, _batch: &Batch, _cancel: &AtomicBool) -> Result<()> {
        Err(not_lent())
    }
    /// Takes over the choice of the token of output `index` of the next run; the run then gives the same token as [`sample::sample_masked`]
    /// would. False where the host has to choose: then [`Chooser::Host`] chooses every token of the batch. Never allocates.
    fn draw(&mut self, _index: usize, _drawn: &Drawn) -> bool {
        false
    }
    /// Evaluates `batch`, of whose outputs vectors are wanted in place of logits, and gives these in order with the indices of the outputs; otherwise
    /// as [`Runner::run`]. There may be as many outputs as rows.
    fn embed(&mut self, batch: &Batch, stage: Stage, cancel: &AtomicBool, give: Give) -> Result<()>;
    /// Room for the vector that row `row` of the next run brings along ([`crate::plan::Op::Given`]); nothing where the program takes none.
    fn given(&mut self, _row: usize) -> &mut [f32] {
        &mut []
    }
    /// What the last norm gave of a row of the last run, or what the program makes for a head ([`Program::hidden`]), where [`Limits::hidden`] asks
    /// for that: row `index` of the batch, or of its outputs. Such a runner gives it beside logits.
    fn hidden(&self, _index: usize) -> &[f32] {
        &[]
    }
    /// Logits of output `index` of the last run, `vocab` floats; readable where the host chooses, or the device found no token.
    fn logits(&self, index: usize) -> &[f32];
    /// The token of output `index` of the last run, which [`Runner::draw`] took over and whose batch left the choice to the device; none where
    /// no logit is usable or allowed. For outputs that nobody asked to draw, that of the highest logit.
    fn best_token(&self, _index: usize) -> Option<u32> {
        None
    }
    /// Makes room for so many ranks of adapters a row. May allocate; on failure nothing has changed.
    fn adapt_within(&mut self, ranks: usize) -> Result<()>;
    /// Lets the rows of a slot have `adapters` from the next run on, for which there is room: [`MOST_ADAPTERS`] at most. May allocate; on failure
    /// nothing has changed.
    fn adapt(&mut self, slot: usize, adapters: Vec<Scaled>) -> Result<()>;
    /// Copies one page over another, in the cache of the layers that see so far.
    fn copy_page(&mut self, reach: Reach, from: u32, to: u32);
    /// Gives out a page, in the order of [`crate::kv::Layout`] with the positions of each head one after the other: little-endian elements of the
    /// cache's type, or the bytes of [`q8`]. `out` holds just as much.
    fn read_page(&mut self, reach: Reach, page: u32, out: &mut [u8]) -> Result<()>;
    /// Takes a page in, in the same order.
    fn write_page(&mut self, reach: Reach, page: u32, bytes: &[u8]) -> Result<()>;
    /// Gives out a record of states, little-endian, one state after the other; `out` has room for just that.
    fn read_record(&mut self, _record: u32, _out: &mut [u8]) -> Result<()> {
        Err(Error::Unsupported("this device keeps no states of layers".into()))
    }
    /// Takes a record in, in the same form.
    fn write_record(&mut self, _record: u32, _bytes: &[u8]) -> Result<()> {
        Err(Error::Unsupported("this device keeps no states of layers".into()))
    }
    /// What was measured, as lines for the host's log; none where nobody asked.
    fn report(&self) -> Option<String> {
        None
    }
    /// What works worse than it could, and why, in a line; known once the runner is open.
    fn warning(&self) -> Option<&str> {
        None
    }
}

fn not_divided() -> Error {
    Error::Unsupported("this device runs no half of a program".into())
}

fn not_lent() -> Error {
    Error::Unsupported("this device reads no keys of another model".into())
}

/// Rows of values on their way between the halves of a program.
pub trait Exchange {
    /// Rows that came from the other half, of so many elements each.
    fn received(&self, by: Exchanged, rows: usize, width: usize) -> &[f32];
    /// Room for rows that go there.
    fn sent(&mut self, by: Exchanged, rows: usize, width: usize) -> &mut [f32];
}

/// Does a part of a program, by its number, with what was received for it.
pub type Host<'a> = &'a mut dyn FnMut(usize, &mut dyn Exchange) -> Result<()>;

/// Which vectors of a run are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Those of tokens, as the last norm gives them.
    Tokens,
    /// Those that the model's last projections make of them.
    Texts,
    /// Those that its classifier makes of them.
    Scores,
}

impl Stage {
    /// The value that holds them, where the program makes such.
    pub fn value(self, program: &Program) -> Option<ValueId> {
        let embedding = program.embedding.as_ref()?;
        match self {
            Stage::Tokens => Some(embedding.tokens),
            Stage::Texts => Some(embedding.texts),
            Stage::Scores => embedding.scores,
        }
    }
}

/// What takes the vectors of a pass: the index of an output, and its vector.
pub type Give<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// Most adapters of a sequence.
pub const MOST_ADAPTERS: usize = 64;

/// An adapter that a device has made ready.
#[derive(Debug)]
pub struct Adapter {
    /// What it changes, with the numbers of its matrices where these are read there.
    pub weights: adapter::Adapter,
    /// What the device keeps of it in memory of its own, or what each of two has of it, and gives back with it.
    pub on_device: Option<Box<dyn Any + Send + Sync>>,
}

impl Adapter {
    /// What its device keeps of it; refuses an adapter of another device.
    fn kept<T: Any>(&self) -> Result<&T> {
        let kept = self.on_device.as_ref().and_then(|kept| kept.downcast_ref());
        kept.ok_or_else(|| Error::InvalidArgument("an adapter of another device".into()))
    }
}

/// An adapter, and the factor on what it adds.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// Of the runner's program.
    pub adapter: Arc<Adapter>,
    /// On top of the adapter's own.
    pub scale: f32,
}

impl PartialEq for Scaled {
    fn eq(&self, other: &Scaled) -> bool {
        Arc::ptr_eq(&self.adapter, &other.adapter) && self.scale.to_bits() == other.scale.to_bits()
    }
}

/// What a host does while a device is at work: it works out masks, and tells them by the indices of their outputs.
pub type Beside<'a> = &'a mut dyn FnMut(&mut dyn FnMut(usize, &sample::Mask));

/// How a token is drawn: the arguments of [`sample::sample_masked`], but for logits and mask.
#[derive(Clone, Copy, Debug)]
pub struct Drawn<'a> {
    /// How.
    pub options: &'a sample::Options,
    /// The tokens so far.
    pub history: &'a [i32],
    /// The index that the new token will have.
    pub position: u64,
    /// Whether there is a mask, which the host tells while the device is at work; one that it does not tell allows nothing.
    pub is_masked: bool,
}

/// Of which rows of a run the host reads what the last norm gives, beside logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hidden {
    /// Of none.
    #[default]
    None,
    /// Of those whose logits are wanted.
    Outputs,
    /// Of all.
    Rows,
}

/// What a session may ask of its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most rows of one batch.
    pub rows: usize,
    /// Most outputs of one batch.
    pub outputs: usize,
    /// Most sequences, whose slots are numbered below that: no more than outputs.
    pub seqs: usize,
    /// Pages of the cache, or of that of another runner whose keys the program reads.
    pub pages: usize,
    /// Tokens of the longest sequence that was asked for: it decides between the rotations of models that have two.
    pub context: usize,
    /// Element type of the cache.
    pub kv_type: KvType,
    /// What layers that see a window keep in a cache of their own; `None` where they keep all positions beside the other layers.
    pub windows: Option<WindowLimits>,
    /// Records, each of which holds all states of a sequence; none of them for a program without.
    pub records: usize,
    /// Ranks of adapters for which each row has room: those of a sequence together.
    pub ranks: usize,
    /// Which rows [`Runner::hidden`] tells of; only of programs with [`Program::embedding`].
    pub hidden: Hidden,
    /// Most rows of a sequence, the last of which alone has an output, that a draft model lacks as a rule when it is asked for the next drafts: so
    /// passes of so many are as usual as those of one. 0 where they are not.
    pub behind: usize,
}

impl Limits {
    /// Whether passes have drafts, each with an output.
    pub fn have_drafts(&self) -> bool {
        self.outputs > self.seqs
    }

    /// The caches of a session of `program`, and the layers in them, with the sizes of heads that [`KvType::stored`] gives.
    pub fn stores(&self, program: &Program) -> Result<Stores> {
        let kept = program.attentions().filter(|kind| self.windows.is_some() && kind.window.is_some());
        let stored = Layout::new(program.kv.all().map(|sizes| self.kv_type.stored(sizes)))?;
        Stores::new(&stored, kept.map(|kind| kind.layer))
    }

    /// Pages that a runner of `program` itself has in a cache: none where it reads the keys of another one.
    pub fn own_pages(&self, program: &Program, reach: Reach) -> usize {
        if program.borrows_keys() { 0 } else { self.pages_of(reach) }
    }

    /// Pages of a cache.
    pub fn pages_of(&self, reach: Reach) -> usize {
        match reach {
            Reach::Whole => self.pages,
            Reach::Window => self.window_pages(),
        }
    }

    /// Pages of the cache of layers that see a window.
    pub fn window_pages(&self) -> usize {
        self.windows.map_or(0, |windows| self.seqs.saturating_mul(windows.pages_each))
    }
}

/// Element type of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// 16-bit floats.
    #[default]
    F16,
    /// 32-bit floats.
    F32,
    /// Rotated blocks of 8-bit integers ([`q8`]).
    Q8,
}

impl KvType {
    /// Bytes of an element of the cache, which may be less than an element of a head.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
            KvType::Q8 => 1,
        }
    }

    /// The heads of a layer in elements of the cache: with [`KvType::Q8`] the bytes of a head.
    pub fn stored(self, sizes: HeadSizes) -> HeadSizes {
        match self {
            KvType::F16 | KvType::F32 => sizes,
            KvType::Q8 => {
                HeadSizes { head_dim: q8::bytes(sizes.head_dim), value_dim: q8::bytes(sizes.value_dim), ..sizes }
            }
        }
    }
}

/// One token to evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Token id, within the vocabulary.
    pub token: u32,
    /// Its index in its sequence.
    pub position: u32,
    /// Slot whose page table it uses.
    pub slot: u32,
}

/// Who chooses the tokens of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// The host, which reads [`Runner::logits`].
    Host,
    /// The runner: the host reads [`Runner::best_token`] alone. [`Runner::draw`] has taken over every output, or is asked for none of them and
    /// the highest logit wins.
    Device,
}

/// Rows of several sequences to evaluate in one pass. The rows of a sequence stand together in order of position, and follow what
/// its cache holds without a gap.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The tokens.
    pub rows: &'a [Row],
    /// Indices of the rows whose logits are wanted, ascending.
    pub outputs: &'a [u32],
    /// Who makes tokens of the logits.
    pub chooser: Chooser,
    /// Pages of every slot, enough for the rows' positions.
    pub tables: &'a Tables,
    /// The same in the cache of layers that see a window, from the first position that a row sees on; where [`Limits::windows`] says so.
    pub window_tables: Option<&'a Tables>,
    /// The records that each slot with rows reads and writes; empty for a program without states.
    pub moves: &'a [Move],
}

impl Batch<'_> {
    /// The tables for layers that see so far.
    pub fn tables_of(&self, reach: Reach) -> &Tables {
        match reach {
            Reach::Whole => self.tables,
            Reach::Window => self.window_tables.unwrap_or(self.tables),
        }
    }
}
