//! What the kernels of this backend lack: programs that it refuses by name when a model is loaded, before anything is uploaded.

use super::lower::MAX_HEAD_DIM;
use crate::error::{Error, Result, filled};
use crate::plan::op::{Activation, Norm, NormKind};
use crate::plan::{Op, Program, ValueId, validate};

/// Refuses what the kernels lack, by name.
pub fn check(program: &Program) -> Result<()> {
    let dim = program.kv.head_dim;
    if !dim.is_multiple_of(2) || dim > MAX_HEAD_DIM {
        return Err(Error::Unsupported(format!(
            "heads of {dim} elements: the cuda kernels take even sizes to {MAX_HEAD_DIM}"
        )));
    }
    let mut is_plainly_read = filled(program.values.len(), false, "the plan of a pass")?;
    for op in program.ops.iter().filter(|op| !matches!(op, Op::MatMul { .. })) {
        op.reads().for_each(|id| is_plainly_read[id.0] = true);
    }
    validate::check_device(program, "cuda", |at| match program.ops[at] {
        // The kernels leave it to the products to divide by the root of the mean square.
        Op::Norm { out, .. } if is_plainly_read[out.0] => Some("only products read a normalized value"),
        _ => refusal(program, at),
    })
}

/// Why the op at `at` cannot run here, if so.
fn refusal(program: &Program, at: usize) -> Option<&'static str> {
    match program.ops[at] {
        Op::Scale { .. } | Op::Mul { .. } | Op::Softcap { .. } | Op::Temperature { .. } | Op::Activate { .. } => {
            Some("it has no kernel")
        }
        Op::Norm { norm, .. } | Op::HeadNorm { norm, .. } if !is_plain(norm) => Some("norms have no mean and no bias"),
        Op::Gate { kind, .. } if kind != Activation::Silu => Some("gates are of kind silu"),
        Op::HeadNorm { .. } if follows_rope(program, at) => Some("heads are normalized before they are rotated"),
        Op::StoreKv { .. } if !are_rotated(program, at) => Some("queries and keys are rotated by one table"),
        Op::Attention { kind, .. } if kind.window.is_some() => Some("attention has no window"),
        Op::Attention { kind, .. } if kind.softcap.is_some() || kind.sinks.is_some() => {
            Some("attention has neither caps nor sinks")
        }
        Op::Attention { kind, .. } if kind.scale != 1.0 / (program.kv.head_dim as f32).sqrt() => {
            Some("the scale of attention follows from the size of a head")
        }
        Op::Add { y, .. } if !follows_product(program, at, y) => Some("only products are added to a value"),
        _ => None,
    }
}

fn is_plain(norm: Norm) -> bool {
    norm.kind == NormKind::Rms && norm.bias.is_none()
}

/// Whether queries and keys are both rotated right before the store at `at`.
fn are_rotated(program: &Program, at: usize) -> bool {
    let heads = program.ops[..at].iter().rev().take_while(|op| matches!(op, Op::HeadNorm { .. } | Op::Rope { .. }));
    program.ropes.iter().map(|rope| rope.long.is_none()).eq([true])
        && heads.filter(|op| matches!(op, Op::Rope { .. })).count() == 2
}

fn follows_rope(program: &Program, at: usize) -> bool {
    let heads = program.ops[..at].iter().rev().take_while(|op| matches!(op, Op::HeadNorm { .. } | Op::Rope { .. }));
    heads.into_iter().any(|op| matches!(op, Op::Rope { .. }))
}

fn follows_product(program: &Program, at: usize, y: ValueId) -> bool {
    at > 0 && matches!(program.ops[at - 1], Op::MatMul { out, .. } if out == y)
}
