//! A buffer for every value: values whose lifetimes do not meet share one.
//!
//! A value lives from the op that first writes it to the last op that touches it; logits live to the end, keys and values until the
//! attention that follows their store, what convolutions read until the last of those that stand together, and what experts are chosen by until
//! their sum, so that a backend may do them at once. Buffers are handed out in op order, the free one closest in width first, so that the plan
//! depends on the program alone.

use super::op::{Convolution, Op, Program, Rows, ValueId};
use crate::error::{Result, collected, filled, push};

const WHAT: &str = "the plan of a pass";

/// Where each value lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Buffer of each value.
    pub buffer_of: Vec<usize>,
    /// Width in elements and kind of rows of each buffer.
    pub buffers: Vec<Buffer>,
}

/// One block of memory, `width` elements for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Elements of a row, enough for every value placed here.
    pub width: usize,
    /// Number of rows.
    pub rows: Rows,
}

/// Places the values of `program`. Those of embeddings may take the room of what leads to logits and leave it to that: a pass makes either.
pub fn place(program: &Program) -> Result<Placement> {
    let kept = collected(program.logits.into_iter().chain(program.vectors_made()), WHAT)?;
    place_ops(program, &collected(program.all_ops(), WHAT)?, &kept)
}

/// Places the values that `ops` touch; those in `kept` live to the end.
fn place_ops(program: &Program, ops: &[&Op], kept: &[ValueId]) -> Result<Placement> {
    let last_use = last_uses(program, ops, kept)?;
    // In the order in which lives end, so that each op meets only the values that end with it.
    let mut ending = collected(0..program.values.len(), WHAT)?;
    ending.sort_unstable_by_key(|&id| last_use[id]);
    let mut ending = ending.into_iter().peekable();
    let mut placement = Placement { buffer_of: filled(program.values.len(), usize::MAX, WHAT)?, buffers: Vec::new() };
    let mut free: Vec<usize> = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        if let Some(id) = op.writes().filter(|id| placement.buffer_of[id.0] == usize::MAX) {
            let (width, rows) = program.extent(id);
            placement.buffer_of[id.0] = take(&mut placement.buffers, &mut free, width, rows)?;
        }
        while let Some(id) = ending.next_if(|&id| last_use[id] == at) {
            let buffer = placement.buffer_of[id];
            if buffer != usize::MAX && !free.contains(&buffer) {
                push(&mut free, buffer, WHAT)?;
            }
        }
    }
    Ok(placement)
}

fn touched(op: &Op) -> impl Iterator<Item = usize> {
    op.reads().chain(op.writes()).map(|id| id.0)
}

fn last_uses(program: &Program, ops: &[&Op], kept: &[ValueId]) -> Result<Vec<usize>> {
    let mut last = filled(program.values.len(), 0, WHAT)?;
    let (mut stored, mut chosen) = (None, None);
    for (at, op) in ops.iter().enumerate() {
        touched(op).for_each(|id| last[id] = at);
        match **op {
            Op::StoreKv { keys, values, .. } => stored = Some([keys, values]),
            Op::Route { logits, .. } => chosen = Some(logits),
            Op::WeightedSum { .. } => chosen.take().into_iter().for_each(|id: ValueId| last[id.0] = at),
            Op::Attention { .. } => stored.take().into_iter().flatten().for_each(|id| last[id.0] = at),
            Op::Convolve(Convolution { x, .. }) => {
                let others = ops[at + 1..].iter().take_while(|op| matches!(op, Op::Convolve(_)));
                last[x.0] = at + others.count();
            }
            _ => {}
        }
    }
    kept.iter().for_each(|id| last[id.0] = usize::MAX);
    Ok(last)
}

/// A free buffer for `width` elements a row, widened if need be, or a new one.
fn take(buffers: &mut Vec<Buffer>, free: &mut Vec<usize>, width: usize, rows: Rows) -> Result<usize> {
    let distance = |index: &usize| (buffers[*index].width.abs_diff(width), *index);
    let best = free.iter().copied().filter(|&index| buffers[index].rows == rows).min_by_key(distance);
    match best {
        Some(index) => {
            free.retain(|&other| other != index);
            buffers[index].width = buffers[index].width.max(width);
            Ok(index)
        }
        None => {
            push(buffers, Buffer { width, rows }, WHAT)?;
            Ok(buffers.len() - 1)
        }
    }
}
