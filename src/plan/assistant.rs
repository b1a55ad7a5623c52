//! Models that only draft for another one, by its keys and values (Gemma 4's assistants).
//!
//! A row stands for a token that the other model, the backbone, has not evaluated yet. It brings along the backbone's vector of the token before it,
//! which is joined to the backbone's embedding of the token; the layers have queries alone, which see what the backbone keeps of all tokens before.
//! The row of a further draft stands at the same position, for the token that was guessed, with the vector that the assistant gave for that. File
//! and layers say what the assistant computes ([`super::build`]), and [`over`] puts a backbone under it.

use super::build::Builder;
use super::op::{AttentionKind, HeadPart, Index, MatrixId, Op, Program, Rows, Value, ValueId};
use super::tensors::PLAN;
use super::validate;
use crate::arch::names::global;
use crate::arch::spec::Presence;
use crate::error::{Error, Result, collected, push};
use crate::kv::Layout;

impl Builder<'_> {
    /// What the first layer reads: a projection of the vectors that come with a row, of which there are two as wide as the backbone's.
    pub(super) fn backbone_input(&mut self, backbone: usize) -> Result<ValueId> {
        // The head reads it too, and so it is the first of all matrices.
        self.token_table(global::EMBEDDING)?;
        let given = self.value(2 * backbone, Rows::Batch)?;
        self.push(Op::Given { out: given })?;
        self.project(global::BACKBONE_IN, given, self.hparams.hidden, Presence::Absent)
    }
}

/// The program of an assistant for the model `backbone`, which multiplies embeddings by `scale`: it embeds tokens as that does, and its layers read
/// those of that model's last layers with keys that see as far.
pub fn over(assistant: &Program, backbone: &Program, scale: f32) -> Result<Program> {
    let table = check(assistant, backbone)?;
    let mut over = assistant.copied()?;
    let width = backbone.matrices[table.0].cols;
    let (both, joined) = match over.ops.first() {
        Some(&Op::Given { out }) if over.values[out.0].width == 2 * width => (out, MatrixId(over.matrices.len())),
        _ => return Err(unsuited("its vectors are of another size")),
    };
    push(&mut over.matrices, backbone.matrices[table.0].clone(), PLAN)?;
    push(&mut over.origins, backbone.origins[table.0].clone(), PLAN)?;
    let [token, given] = [over.values.len(), over.values.len() + 1].map(ValueId);
    (0..2).try_for_each(|_| push(&mut over.values, Value::floats(width, Rows::Batch), PLAN))?;
    let part = HeadPart { each: width, first: 0, count: width };
    let input = [
        Op::Embed { table: joined, index: Index::Token, out: token },
        Op::Scale { x: token, factor: scale },
        Op::Given { out: given },
        Op::JoinHeads { x: token, part, y: given, out: both },
    ];
    let more = input.len() - 1;
    over.ops = collected(input.into_iter().chain(over.ops.drain(1..)), PLAN)?;
    over.layers.iter_mut().for_each(|first| *first += more);
    over.embedding.iter_mut().for_each(|embedding| embedding.after += more);
    lend_keys(&mut over, &assistant.kv, backbone)?;
    validate::check(&over)?;
    Ok(over)
}

/// The backbone's table of tokens, if the two can work together.
fn check(assistant: &Program, backbone: &Program) -> Result<MatrixId> {
    if !assistant.borrows_keys() {
        return Err(unsuited("it has keys and values of its own"));
    }
    let table = backbone.token_table().filter(|_| backbone.logits.is_some() && !backbone.borrows_keys());
    table.ok_or_else(|| unsuited("the model makes no text"))
}

/// The error for two models that cannot work together.
pub(super) fn unsuited(problem: &str) -> Error {
    Error::Unsupported(format!("the draft model was made for another model: {problem}"))
}

/// Lets each layer read the keys and values of the backbone's last one that sees as far.
fn lend_keys(over: &mut Program, own: &Layout, backbone: &Program) -> Result<()> {
    let mut sizes = collected(backbone.kv.all(), PLAN)?;
    for op in &mut over.ops {
        let Op::Attention { kind, .. } = op else { continue };
        let (wanted, lent) = (own.of(kind.layer), last_like(backbone, kind));
        let fits = |&layer: &usize| {
            let has = backbone.kv.of(layer);
            (has.kv_heads, has.head_dim, has.value_dim) == (wanted.kv_heads, wanted.head_dim, wanted.value_dim)
        };
        kind.layer = lent.filter(fits).ok_or_else(|| unsuited("no layer has the keys that it reads"))?;
        if kind.window == Some(1) {
            return Err(unsuited("its window ends before it sees a key"));
        }
        sizes[kind.layer].heads = wanted.heads;
    }
    over.kv = Layout::new(sizes)?;
    Ok(())
}

/// The number of the last layer of the cache that the model sees through the same window.
fn last_like(backbone: &Program, kind: &AttentionKind) -> Option<usize> {
    backbone.attentions().filter(|other| other.window == kind.window).map(|other| other.layer).max()
}
