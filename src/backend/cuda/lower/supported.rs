//! What the kernels of this backend lack: programs that it refuses by name when a model is loaded, before anything is uploaded.

use super::attention::MAX_HEAD_DIM;
use super::recurrent::{MOST_KEYS, too_wide};
use crate::backend::cuda::args::MOST_ROPES;
use crate::error::{Error, Result};
use crate::kv::layout::HeadSizes;
use crate::kv::state::Shape;
use crate::plan::op::Index;
use crate::plan::{Op, Program, validate};

/// Refuses what the kernels lack, by name. Every op has a kernel, whatever stands before and after it; sizes have limits.
pub fn check(program: &Program) -> Result<()> {
    program.kv.all().try_for_each(check_heads)?;
    if program.ropes.len() > MOST_ROPES {
        let count = program.ropes.len();
        return Err(Error::Unsupported(format!("{count} rotations: the cuda kernels take {MOST_ROPES} at most")));
    }
    program.states.iter().try_for_each(check_state)?;
    validate::check_device(program, "cuda", |at, op| match *op {
        Op::HeadMatMul { .. } => Some("there is no kernel for latent attention"),
        Op::Route { routing, .. } if routing.groups.is_some_and(|groups| groups.best != 2) => {
            Some("its kernel ranks groups of experts by their two best")
        }
        Op::GroupNorm { .. } => Some("there is no kernel for norms of groups"),
        Op::Embed { index, .. } if at == 0 && index != Index::Token => Some("the first embedding is that of tokens"),
        _ => None,
    })
}

fn check_state(state: &Shape) -> Result<()> {
    match *state {
        Shape::Matrices { rows, .. } if rows > MOST_KEYS => Err(Error::Unsupported(too_wide(rows))),
        _ => Ok(()),
    }
}

fn check_heads(HeadSizes { head_dim, value_dim, .. }: HeadSizes) -> Result<()> {
    if !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        return Err(Error::Unsupported(format!(
            "heads of {head_dim} elements: the cuda kernels take even sizes to {MAX_HEAD_DIM}"
        )));
    }
    if value_dim != head_dim {
        return Err(Error::Unsupported(format!(
            "keys of {head_dim} elements beside values of {value_dim}: the cuda kernels take equal sizes"
        )));
    }
    Ok(())
}
