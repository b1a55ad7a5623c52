//! Norms of rows, of parts of rows, and of heads.

use super::attention::MAX_HEAD_DIM;
use super::runner::CpuRunner;
use crate::plan::op::{Norm, NormKind};

/// `out = norm(x)`, a row by itself.
pub fn normalize(runner: &CpuRunner, norm: Norm, x: &[f32], out: &mut [f32]) {
    normalize_groups(runner, norm, 1, x, out);
}

/// The same, each of several equal parts of the row by itself.
pub fn normalize_groups(runner: &CpuRunner, norm: Norm, groups: usize, x: &[f32], out: &mut [f32]) {
    let vectors = &runner.program.vectors;
    let width = x.len() / groups;
    let weights = vectors[norm.weight.0].chunks_exact(width);
    for ((x, out), weight) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).zip(weights) {
        match norm.kind {
            NormKind::Rms => runner.kernels.rms_norm(x, weight, norm.eps, out),
            NormKind::Layer => runner.kernels.layer_norm(x, weight, norm.eps, out),
        }
    }
    if let Some(bias) = norm.bias {
        runner.kernels.add(out, &vectors[bias.0]);
    }
}

/// Normalizes each head of `dim` elements by itself, in place.
pub fn norm_heads(runner: &CpuRunner, norm: Norm, dim: usize, heads: &mut [f32]) {
    let mut copy = [0.0; MAX_HEAD_DIM];
    let copy = &mut copy[..dim];
    for head in heads.chunks_exact_mut(dim) {
        copy.copy_from_slice(head);
        normalize(runner, norm, copy, head);
    }
}
