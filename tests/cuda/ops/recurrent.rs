//! Small programs of layers with a state: convolutions with what one launch takes along, scans, and parts of heads.

use super::Case;
use super::cases::{PASSES, apart, begin, finish, in_passes, one_head, random_vector};
use crate::common::parts::Parts;
use segno::kv::state::Shape;
use segno::plan::op::{Activation, Convolution, HeadPart, Norm, NormKind, Rows, Scan, StateId, Strength};
use segno::plan::{Op, ValueId, VectorId};
use std::sync::Arc;

pub fn recurrent() -> Vec<Case> {
    let mut cases = Vec::new();
    convolutions(&mut cases);
    // Exponentials of sums, and what they keep of a state of some tens of rows.
    let first = cases.len();
    scans(&mut cases);
    cases[first..].iter_mut().for_each(|case| case.within = 2e-5);
    gated_norms(&mut cases);
    let first = cases.len();
    layers(&mut cases);
    cases[first..].iter_mut().for_each(|case| case.within = 5e-5);
    for (each, first, count) in [(24, 0, 12), (24, 12, 12), (7, 2, 3)] {
        let (mut b, hidden) = begin(one_head());
        let x = apart(&mut b, hidden, 5 * each);
        let out = b.value(5 * count, Rows::Batch);
        b.program.ops.push(Op::TakeHeads { x, part: HeadPart { each, first, count }, out });
        in_passes(&mut cases, "copy_heads", finish(b, out), &PASSES);
    }
    for (heads, each, first, count, own) in [(5, 24, 0, 12, 12), (3, 7, 2, 3, 5), (1, 96, 0, 96, 96)] {
        let (mut b, hidden) = begin(one_head());
        let (x, y) = (apart(&mut b, hidden, heads * each), apart(&mut b, hidden, heads * own));
        let out = b.value(heads * (count + own), Rows::Batch);
        b.program.ops.push(Op::JoinHeads { x, part: HeadPart { each, first, count }, y, out });
        in_passes(&mut cases, "copy_heads", finish(b, out), &PASSES);
    }
    cases
}

fn state(b: &mut Parts, shape: Shape) -> StateId {
    b.program.states.push(shape);
    StateId(b.program.states.len() - 1)
}

fn convolved(b: &mut Parts, x: ValueId, taps: usize, has_bias: bool) -> ValueId {
    let width = b.program.values[x.0].width;
    let state = state(b, Shape::Rows { count: taps - 1, width });
    let weight = random_vector(b, taps * width, 0.3);
    let bias = has_bias.then(|| random_vector(b, width, 0.2));
    let out = b.value(width, Rows::Batch);
    b.program.ops.push(Op::Convolve(Convolution { state, x, taps, weight, bias, out }));
    out
}

fn normed(b: &mut Parts, x: ValueId, head_dim: usize) {
    let norm = Norm { kind: NormKind::Rms, weight: random_vector(b, head_dim, 1.0), bias: None, eps: 1e-5 };
    b.program.ops.push(Op::HeadNorm { x, head_dim, norm });
}

/// One value and four in a row, of which a launch takes three; activated, normalized by heads, or neither.
fn convolutions(cases: &mut Vec<Case>) {
    for (head_dim, taps, count, activates, norms) in [
        (96, 4, 1, false, false),
        (333, 2, 1, true, false),
        (80, 16, 1, false, true),
        (128, 4, 4, true, true),
        (40, 3, 2, true, true),
        (256, 5, 3, true, false),
    ] {
        let (mut b, hidden) = begin(one_head());
        let values: Vec<ValueId> = (1..=count).map(|heads| apart(&mut b, hidden, heads * head_dim)).collect();
        let values: Vec<ValueId> = values.into_iter().map(|x| convolved(&mut b, x, taps, count % 2 == 1)).collect();
        let all = values.iter().take(if activates { count } else { 0 });
        b.program.ops.extend(all.map(|&x| Op::Activate { kind: Activation::Silu, x }));
        // Of several the last is left as it is.
        values.iter().take(if norms { count.max(2) - 1 } else { 0 }).for_each(|&x| normed(&mut b, x, head_dim));
        // Their first heads together, so that each of them counts.
        let part = |x: ValueId| HeadPart { each: b.program.values[x.0].width, first: 0, count: head_dim };
        let parts: Vec<HeadPart> = values.iter().map(|&x| part(x)).collect();
        let result = b.value(head_dim, Rows::Batch);
        b.program.ops.push(Op::TakeHeads { x: values[0], part: parts[0], out: result });
        for (&x, &part) in values.iter().zip(&parts).skip(1) {
            let y = b.value(head_dim, Rows::Batch);
            b.program.ops.extend([Op::TakeHeads { x, part, out: y }, Op::Add { x: result, y }]);
        }
        in_passes(cases, "convolve", finish(b, result), &PASSES);
    }
}

/// A scan of heads whose keys have `rows` elements and whose values have `cols`, as many as `decay` has elements.
fn scanned(
    b: &mut Parts,
    [queries, keys, values, decay]: [ValueId; 4],
    strength: Strength,
    [rows, cols, key_heads]: [usize; 3],
    skip: Option<VectorId>,
    is_tiled: bool,
) -> ValueId {
    let heads = b.program.values[decay.0].width;
    let state = state(b, Shape::Matrices { heads, rows, cols });
    let (bias, rate) = (random_vector(b, heads, -1.0), random_vector(b, heads, -0.6));
    let out = b.value(heads * cols, Rows::Batch);
    b.program.ops.push(Op::Scan(Scan {
        state,
        queries,
        keys,
        values,
        decay,
        strength,
        bias,
        rate,
        skip,
        key_heads,
        is_tiled,
        out,
    }));
    out
}

/// A norm of heads as the second value of a gated unit.
fn gated_norms(cases: &mut Vec<Case>) {
    for (kind, dim) in [(Activation::Silu, 128), (Activation::GeluTanh, 96), (Activation::Silu, 40)] {
        let (mut b, hidden) = begin(one_head());
        let [gate, up] = [3 * dim; 2].map(|width| apart(&mut b, hidden, width));
        normed(&mut b, up, dim);
        b.program.ops.push(Op::Gate { kind, gate, up });
        in_passes(cases, "normalize", finish(b, gate), &PASSES);
    }
}

/// Whole layers, which steps do in one launch.
fn layers(cases: &mut Vec<Case>) {
    for (rows, cols, key_heads, group, is_tiled, is_delta, taps, has_norms) in [
        (128, 128, 2, 2, true, true, 4, true),
        (64, 96, 1, 3, false, true, 3, true),
        (32, 128, 2, 1, false, false, 2, false),
    ] {
        let heads = key_heads * group;
        let (mut b, hidden) = begin(one_head());
        let gate = apart(&mut b, hidden, heads * cols);
        let [decay, strength] = [heads; 2].map(|width| apart(&mut b, hidden, width));
        let widths = [key_heads * rows, key_heads * rows, heads * cols];
        let projected = widths.map(|width| apart(&mut b, hidden, width));
        let all = projected.map(|x| convolved(&mut b, x, taps, has_norms));
        b.program.ops.extend(all.map(|x| Op::Activate { kind: Activation::Silu, x }));
        let [queries, keys, values] = all;
        for x in [queries, keys].into_iter().take(if has_norms { 2 } else { 0 }) {
            let weight = random_vector(&mut b, rows, 1.0 / (rows as f32).sqrt());
            let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-6 };
            b.program.ops.push(Op::HeadNorm { x, head_dim: rows, norm });
        }
        let strength = if is_delta { Strength::Delta(strength) } else { Strength::Step };
        let out = scanned(&mut b, [queries, keys, values, decay], strength, [rows, cols, key_heads], None, is_tiled);
        normed(&mut b, out, cols);
        b.program.ops.push(Op::Gate { kind: Activation::Silu, gate, up: out });
        let program = finish(b, gate);
        in_passes(cases, "recurrent_step", Arc::clone(&program), &PASSES[..4]);
        in_passes(cases, "convolve", program, &PASSES[4..]);
    }
}

/// Every size of keys that there is a kernel for, and columns that fill no block.
fn scans(cases: &mut Vec<Case>) {
    for (kernel, rows, cols, key_heads, group, is_tiled, is_delta, has_skip) in [
        ("scan_64", 8, 16, 1, 1, false, true, false),
        ("scan_64", 33, 100, 2, 2, true, true, true),
        ("scan_64", 64, 8, 3, 1, false, false, true),
        ("scan_128", 100, 48, 2, 3, false, true, false),
        ("scan_128", 128, 128, 1, 2, true, true, false),
        ("scan_128", 128, 64, 1, 6, false, false, true),
        ("scan_256", 200, 33, 2, 1, false, false, false),
        ("scan_256", 256, 160, 1, 2, false, true, true),
    ] {
        let heads = key_heads * group;
        let (mut b, hidden) = begin(one_head());
        let mut heads_of = |count: usize, dim: usize, norms: bool| {
            let x = apart(&mut b, hidden, count * dim);
            if norms {
                let norm = Norm { kind: NormKind::Rms, weight: random_vector(&mut b, dim, 0.0), bias: None, eps: 1e-5 };
                b.program.ops.push(Op::HeadNorm { x, head_dim: dim, norm });
            }
            x
        };
        let (queries, keys) = (heads_of(key_heads, rows, true), heads_of(key_heads, rows, true));
        let values = heads_of(heads, cols, false);
        let (decay, strength) = (heads_of(heads, 1, false), heads_of(heads, 1, false));
        // Keys of about unit length, as the delta rule asks for: longer ones make the state grow.
        b.program.ops.extend([queries, keys].map(|x| Op::Scale { x, factor: 4.0 / (rows as f32).sqrt() }));
        let skip = has_skip.then(|| random_vector(&mut b, heads, 0.5));
        let strength = if is_delta { Strength::Delta(strength) } else { Strength::Step };
        let out = scanned(&mut b, [queries, keys, values, decay], strength, [rows, cols, key_heads], skip, is_tiled);
        in_passes(cases, kernel, finish(b, out), &PASSES);
    }
}
