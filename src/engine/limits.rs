//! What a session is made for: the limits that its options give, and the memory that it takes with them.

use super::adapter::MOST_RANKS;
use super::session::Options;
use crate::backend::{Backend, Hidden, Limits, Memory, Place, Row};
use crate::error::{Error, Result};
use crate::kv::Reach;
use crate::kv::layout::{WindowLimits, pages_for, pages_of_window};
use crate::kv::state::{States, default_marks, records};
use crate::plan::Program;
use crate::sample;
use crate::speculate::{self, Costs};

const MAX_SEQS: usize = 256;
const MAX_PREFILL: usize = 16_384;
/// Times as many prompt tokens as usual of passes that no running stream waits for.
const LONGER: usize = 4;
pub(super) const MAX_MARKS: usize = 1024;
const DEFAULT_KV_TOKENS: usize = 8192;

/// Bytes that a session with `limits` takes for `program`, the weights included.
pub(super) fn memory(backend: &dyn Backend, program: &Program, limits: &Limits) -> Result<Memory> {
    let mut memory = backend.memory(program, limits)?;
    let kept_logits = logits_len(limits.seqs, program)? * size_of::<f32>();
    let pages = limits.own_pages(program, Reach::Whole) + limits.own_pages(program, Reach::Window);
    let lists = limits.rows * (size_of::<Row>() + size_of::<u32>()) + pages * 2 * size_of::<u32>();
    let states = if limits.records > 0 { States::bytes(limits.seqs, limits.records) } else { 0 };
    let drafting = if limits.have_drafts() { Costs::bytes(limits.outputs) } else { 0 };
    let costs = Costs::bytes(limits.rows) + drafting;
    memory.arena += (kept_logits + lists + states + costs) as u64 + sample::Scratch::bytes(program.vocab());
    Ok(memory)
}

/// Marks of a session.
pub(super) fn marks(options: &Options) -> Result<usize> {
    match options.marks {
        0 => Ok(default_marks(options.max_seqs)),
        marks => in_range("max_marks", marks, MAX_MARKS),
    }
}

fn in_range(name: &str, value: usize, max: usize) -> Result<usize> {
    if (1..=max).contains(&value) {
        return Ok(value);
    }
    Err(Error::InvalidArgument(format!("{name} is {value}, 1 to {max} are possible")))
}

/// The options with the tokens that a pass has where no running stream waits for it, if the host leaves that open: more where a GPU has all of the
/// model, whose SMs a few hundred rows do not fill and whose experts get few each, if of the `room` that it has beside the weights as much is left as
/// the session takes more for that.
pub(super) fn with_prompts(
    options: &Options,
    backend: &dyn Backend,
    context: usize,
    program: &Program,
    room: u64,
) -> Result<Options> {
    let usual = Options { max_prompt: options.max_prompt.max(options.max_prefill), ..*options };
    // Windows would be longer by as much for every sequence.
    if options.max_prompt > 0 || backend.place() != Some(Place::Gpu) || program.window().is_some() {
        return Ok(usual);
    }
    let limits = of(context, program, &usual)?;
    let most = (LONGER * options.max_prefill).min(MAX_PREFILL).min(limits.context);
    let long = Options { max_prompt: most.max(options.max_prefill), ..*options };
    let Ok(with) = memory(backend, program, &of(context, program, &long)?) else { return Ok(usual) };
    let without = memory(backend, program, &limits)?;
    let [with, without] = [with, without].map(|memory| memory.device_kv + memory.device_arena + memory.device_graphs);
    Ok(if with.saturating_add(with.saturating_sub(without)) <= room { long } else { usual })
}

/// What a runner must be able to do for a session of a model of this context length.
pub(super) fn of(context: usize, program: &Program, options: &Options) -> Result<Limits> {
    let seqs = in_range("max_seqs", options.max_seqs, MAX_SEQS)?;
    let prefill = in_range("max_prefill", options.max_prefill, MAX_PREFILL)?;
    let most_drafts = options.drafts.most_each(prefill)?;
    let prefill = prefill.max(in_range("max_prompt", options.max_prompt.max(1), MAX_PREFILL)?);
    let outputs = seqs + speculate::Options::most_together(seqs, most_drafts);
    let kv_tokens = match options.kv_tokens {
        0 => context.min(DEFAULT_KV_TOKENS),
        n => usize::try_from(n).map_err(|_| Error::out_of_memory("the kv cache", usize::MAX))?,
    };
    let pages = pages_for(kv_tokens).checked_add(seqs).filter(|&pages| pages <= u32::MAX as usize);
    let pages = pages.ok_or_else(|| Error::out_of_memory("the kv cache", usize::MAX))?;
    let context = context.min(kv_tokens);
    let windows = program.window().map(|window| WindowLimits { window, pages_each: pages_of_window(window, prefill) });
    // A cache of their own only where that takes less.
    let windows = windows.filter(|windows| seqs.saturating_mul(windows.pages_each) < pages);
    let marks = marks(options)?;
    // States that drafts have left behind are brought up in a pass of any number of sequences.
    let (records, steps) = match program.states.is_empty() {
        true => (0, outputs),
        false => (records(seqs, marks, most_drafts > 0), seqs * (1 + most_drafts)),
    };
    let (rows, kv_type) = (prefill + steps, options.kv_type);
    let ranks = if options.ranks == 0 { 0 } else { in_range("adapter_ranks", options.ranks, MOST_RANKS)? };
    let (hidden, behind) = (Hidden::None, 0);
    Ok(Limits { rows, outputs, seqs, pages, context, kv_type, windows, records, ranks, hidden, behind })
}

/// How many logits outlive their pass.
pub(super) fn logits_len(max_seqs: usize, program: &Program) -> Result<usize> {
    max_seqs.checked_mul(program.logits_width()).ok_or_else(|| Error::out_of_memory("logits", usize::MAX))
}
