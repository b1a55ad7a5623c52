//! What the kernels of this backend lack: programs that it refuses by name when a model is loaded, before anything is uploaded.

use super::attention::{MAX_HEAD_DIM, MAX_VALUE_DIM};
use super::gemm::MOST_HEAD_COLS;
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
        Op::HeadMatMul { part, .. } if part.count > MOST_HEAD_COLS => {
            Some("its kernel takes 512 elements of each head at most")
        }
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
    let within = |dim: usize, most: usize| dim.is_multiple_of(2) && dim <= most;
    if within(head_dim, MAX_HEAD_DIM) && within(value_dim, MAX_VALUE_DIM) {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "heads of {head_dim} elements with values of {value_dim}: the cuda kernels take even sizes to {MAX_HEAD_DIM} and {MAX_VALUE_DIM}"
    )))
}
