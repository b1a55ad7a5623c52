//! Small programs in each of which one kernel, or a few, do what is looked at.

use super::{Case, Pass, TOKENS};
use crate::common::parts::Parts;
use segno::arch::rope::{Rope, RopeLayout};
use segno::backend::KvType;
use segno::kv::HeadSizes;
use segno::plan::op::{Activation, HeadPart, Index, Norm, NormKind, RopeId, Rows};
use segno::plan::{Op, Program, ValueId, VectorId, validate};
use segno::quant::DType;
use std::sync::Arc;

const HIDDEN: usize = 64;

/// Roundings of sums of some tens of f32, and of functions of them.
const ROUNDING: f64 = 3e-6;
/// Of attention whose weights are 16-bit floats.
pub const F16: f64 = 1e-3;
/// Of attention over a cache of 8 bits, whose multiples may be rounded to the neighbour; a small part of a head is rotated back by itself.
pub const EIGHT_BITS: f64 = 5e-3;
/// Of 8-bit blocks: a value close to half a step may be rounded the other way.
pub const BLOCKS: f64 = 1e-3;

pub const PASSES: [Pass; 5] =
    [Pass::Step(1, 7), Pass::Step(2, 40), Pass::Step(3, 0), Pass::Step(7, 90), Pass::Prompt(29)];

pub fn begin(kv: HeadSizes) -> (Parts, ValueId) {
    embedded(kv, HIDDEN)
}

/// A program that begins with rows of random numbers.
pub fn embedded(kv: HeadSizes, width: usize) -> (Parts, ValueId) {
    let mut b = Parts::new(width as u64, kv);
    let (table, _) = b.random_matrix(DType::F32, TOKENS, width, 1.0);
    let out = b.value(width, Rows::Batch);
    b.program.ops.push(Op::Embed { table, index: Index::Token, out });
    (b, out)
}

pub fn floats(b: &mut Parts, x: ValueId, width: usize) -> ValueId {
    let (matrix, _) = b.random_matrix(DType::F32, width, b.program.values[x.0].width, 0.4);
    b.product(x, matrix, None)
}

/// Values that no product takes further: another op stands behind it.
pub fn apart(b: &mut Parts, x: ValueId, width: usize) -> ValueId {
    let x = floats(b, x, width);
    b.program.ops.push(Op::Softcap { x, cap: 3.0 });
    x
}

pub fn random_vector(b: &mut Parts, len: usize, mean: f32) -> VectorId {
    let values: Vec<f32> = b.random.uniforms(len).into_iter().map(|v| mean + 0.4 * v).collect();
    b.vector(&values)
}

fn select(b: &mut Parts, x: ValueId) -> ValueId {
    let out = b.value(b.program.values[x.0].width, Rows::Outputs);
    b.program.ops.push(Op::SelectRows { x, out });
    out
}

pub fn finish(mut b: Parts, result: ValueId) -> Arc<Program> {
    let logits = select(&mut b, result);
    finish_with(b, logits)
}

fn finish_with(mut b: Parts, logits: ValueId) -> Arc<Program> {
    b.program.logits = Some(logits);
    validate::check(&b.program).unwrap();
    Arc::new(b.program)
}

/// A case for each of `passes`.
pub fn in_passes(cases: &mut Vec<Case>, kernel: &str, program: Arc<Program>, passes: &[Pass]) {
    cases.extend(passes.iter().map(|&pass| Case {
        kernels: vec![kernel.into()],
        program: Arc::clone(&program),
        pass,
        cache: KvType::F16,
        fast: false,
        within: ROUNDING,
    }));
}

pub fn one_head() -> HeadSizes {
    HeadSizes::new(1, 1, 64)
}

pub fn elementwise() -> Vec<Case> {
    use Activation::{ClampedSilu, GeluErf, GeluTanh, Silu, SquaredRelu};
    type Make = fn(ValueId, ValueId) -> Vec<Op>;
    let ops: [(&str, Make); 16] = [
        ("add", |x, y| vec![Op::Add { x, y }]),
        ("mul", |x, y| vec![Op::Mul { x, y }]),
        ("mul_sigmoid", |x, gate| vec![Op::MulSigmoid { x, gate }]),
        ("scale", |x, _| vec![Op::Scale { x, factor: -1.7 }]),
        ("softcap", |x, _| vec![Op::Softcap { x, cap: 0.8 }]),
        ("temperature", |x, _| vec![Op::Temperature { x, factor: 0.3, period: 11 }]),
        ("sigmoid", |x, _| vec![Op::Activate { kind: Silu, x }]),
        ("sigmoid", |x, _| vec![Op::Activate { kind: GeluTanh, x }]),
        ("gelu_erf", |x, _| vec![Op::Activate { kind: GeluErf, x }]),
        ("squared_relu", |x, _| vec![Op::Activate { kind: SquaredRelu, x }]),
        ("sigmoid_mul", |gate, up| vec![Op::Gate { kind: Silu, gate, up }]),
        ("sigmoid_mul", |gate, up| vec![Op::Gate { kind: GeluTanh, gate, up }]),
        ("gelu_erf_mul", |gate, up| vec![Op::Gate { kind: GeluErf, gate, up }]),
        ("squared_relu_mul", |gate, up| vec![Op::Gate { kind: SquaredRelu, gate, up }]),
        ("clamped_silu_mul", |gate, up| vec![Op::Gate { kind: ClampedSilu { limit: 0.9, slope: 1.7 }, gate, up }]),
        ("mul_sigmoid_row", |x, gate| vec![Op::MulSigmoid { x, gate }]),
    ];
    let mut cases = Vec::new();
    for (kernel, make) in ops {
        for width in [96, 333] {
            let (mut b, hidden) = begin(one_head());
            let x = apart(&mut b, hidden, width);
            let y = apart(&mut b, hidden, if kernel == "mul_sigmoid_row" { 1 } else { width });
            b.program.ops.extend(make(x, y));
            in_passes(&mut cases, kernel, finish(b, x), &PASSES);
        }
    }
    let (mut b, hidden) = begin(one_head());
    let [x, y] = [333, 333].map(|width| apart(&mut b, hidden, width)).map(|x| select(&mut b, x));
    b.program.ops.extend([Op::Scale { x: y, factor: 0.37 }, Op::Add { x, y }]);
    in_passes(&mut cases, "add_scaled", finish_with(b, x), &PASSES);
    // Gated rows are added to a value, or to one that is then added to another.
    for additions in [1, 2] {
        let (mut b, hidden) = begin(one_head());
        let [x, gate, sum, to] = [333, 1, 333, 333].map(|width| apart(&mut b, hidden, width));
        let ops = [Op::MulSigmoid { x, gate }, Op::Add { x: sum, y: x }, Op::Add { x: to, y: sum }];
        b.program.ops.extend_from_slice(&ops[..=additions]);
        in_passes(&mut cases, "add_gated_rows", finish(b, if additions == 1 { sum } else { to }), &PASSES);
    }
    // The second value of a unit is a part of a row.
    for (kernel, kind) in [("sigmoid_mul", GeluTanh), ("clamped_silu_mul", ClampedSilu { limit: 0.9, slope: 1.7 })] {
        for (each, first, count) in [(400, 64, 96), (700, 367, 333)] {
            let (mut b, hidden) = begin(one_head());
            let [x, gate] = [each, count].map(|width| apart(&mut b, hidden, width));
            let up = b.value(count, Rows::Batch);
            b.program.ops.push(Op::TakeHeads { x, part: HeadPart { each, first, count }, out: up });
            b.program.ops.push(Op::Gate { kind, gate, up });
            in_passes(&mut cases, kernel, finish(b, gate), &PASSES);
        }
    }
    cases
}

/// Embeddings beside the first one: of another width, of the token, of the position, and the first row for all.
pub fn embeddings() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, width) in
        [(DType::F32, 50), (DType::F16, 333), (DType::BF16, 64), (DType::Q8_0, 96), (DType::Q4_K, 1280)]
    {
        for index in [Index::Token, Index::Position, Index::First] {
            let (mut b, hidden) = begin(one_head());
            let sum = apart(&mut b, hidden, width);
            let (table, _) = b.random_matrix(dtype, TOKENS, width, 1.0);
            let row = b.value(width, Rows::Batch);
            b.program.ops.extend([Op::Embed { table, index, out: row }, Op::Add { x: sum, y: row }]);
            in_passes(&mut cases, "embed", finish(b, sum), &PASSES);
        }
    }
    cases
}

/// Norms of sums that norms are added to, which are there for those alone or for others too; rows are held or too wide.
fn norms_of_sums(cases: &mut Vec<Case>) {
    for (width, is_read, factor) in [(96, false, 1.0), (2816, false, 0.3), (96, true, 1.0), (4128, false, 1.0)] {
        let (mut b, hidden) = begin(one_head());
        let [x, sum, last] = [(); 3].map(|()| apart(&mut b, hidden, width));
        for (x, to) in [(x, sum), (sum, last)] {
            let norm = Norm { kind: NormKind::Rms, weight: random_vector(&mut b, width, 1.0), bias: None, eps: 1e-4 };
            let out = b.value(width, Rows::Batch);
            b.program.ops.push(Op::Norm { x, norm, out });
            b.program.ops.extend((factor != 1.0).then_some(Op::Scale { x: out, factor }));
            b.program.ops.push(Op::Add { x: to, y: out });
        }
        b.program.ops.push(Op::Scale { x: last, factor: 1.3 });
        b.program.ops.extend(is_read.then_some(Op::Add { x: last, y: sum }));
        in_passes(cases, "normalize", finish(b, last), &PASSES);
    }
}

pub fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for (width, kernel) in [(320, "rms_norm"), (2112, "rms_norm_split")] {
        let (mut b, hidden) = begin(one_head());
        let x = apart(&mut b, hidden, width);
        let norm = Norm { kind: NormKind::Rms, weight: random_vector(&mut b, width, 1.0), bias: None, eps: 1e-5 };
        let out = b.value(width, Rows::Batch);
        b.program.ops.push(Op::Norm { x, norm, out });
        let result = floats(&mut b, out, 50);
        let program = finish(b, result);
        in_passes(&mut cases, kernel, Arc::clone(&program), &PASSES[1..4]);
        in_passes(&mut cases, "rms_norm", program, &PASSES[4..]);
    }
    for (kind, has_bias) in
        [(NormKind::Rms, false), (NormKind::Rms, true), (NormKind::Layer, false), (NormKind::Layer, true)]
    {
        // How the result is added to another value: not at all, as it is, scaled; and by what the sum is multiplied.
        for (width, factor, scale) in [
            (96, None, None),
            (333, Some(1.0), None),
            (2080, Some(0.3), None),
            (333, Some(0.3), Some(1.7)),
            (2080, Some(1.0), Some(-0.4)),
        ] {
            let (mut b, hidden) = begin(one_head());
            let (x, sum) = (apart(&mut b, hidden, width), apart(&mut b, hidden, width));
            let bias = has_bias.then(|| random_vector(&mut b, width, 0.0));
            let norm = Norm { kind, weight: random_vector(&mut b, width, 1.0), bias, eps: 1e-3 };
            let out = b.value(width, Rows::Batch);
            b.program.ops.push(Op::Norm { x, norm, out });
            if let Some(factor) = factor {
                b.program.ops.extend((factor != 1.0).then_some(Op::Scale { x: out, factor }));
                b.program.ops.push(Op::Add { x: sum, y: out });
            }
            b.program.ops.extend(scale.map(|factor| Op::Scale { x: sum, factor }));
            let result = if factor.is_some() { sum } else { out };
            in_passes(&mut cases, "normalize", finish(b, result), &PASSES);
        }
    }
    norms_of_sums(&mut cases);
    for (kind, width, groups, dtype) in [
        (NormKind::Rms, 96, 3, None),
        (NormKind::Layer, 333, 9, None),
        (NormKind::Rms, 2048, 8, Some(DType::Q8_0)),
        (NormKind::Rms, 192, 4, Some(DType::Q8_0)),
        (NormKind::Rms, 192, 4, Some(DType::F16)),
    ] {
        let (mut b, hidden) = begin(one_head());
        let x = apart(&mut b, hidden, width);
        let bias = (kind == NormKind::Layer).then(|| random_vector(&mut b, width, 0.0));
        let norm = Norm { kind, weight: random_vector(&mut b, width, 1.0), bias, eps: 1e-5 };
        let out = b.value(width, Rows::Batch);
        b.program.ops.push(Op::GroupNorm { x, groups, norm, out });
        let result = dtype.map_or(out, |dtype| {
            let (matrix, _) = b.random_matrix(dtype, 50, width, 0.3);
            b.product(out, matrix, None)
        });
        let start = cases.len();
        in_passes(&mut cases, "normalize", finish(b, result), &PASSES);
        let within = if dtype == Some(DType::Q8_0) { BLOCKS } else { ROUNDING };
        cases[start..].iter_mut().for_each(|case| case.within = within);
    }
    cases
}

/// Products of parts of heads with rows of their own.
pub fn head_products() -> Vec<Case> {
    let mut cases = Vec::new();
    // As they are, with the rest of each head before them, and read by a product.
    let mut add = |dtype: DType, heads: usize, part: HeadPart, width: usize, then: Then| {
        let (mut b, hidden) = begin(one_head());
        let x = apart(&mut b, hidden, heads * part.each);
        let (matrix, _) = b.random_matrix(dtype, heads * width, part.count, 0.3);
        let out = b.value(heads * width, Rows::Batch);
        b.program.ops.push(Op::HeadMatMul { x, part, matrix, out });
        let result = match then {
            Then::Nothing => out,
            Then::Join(kept) => {
                let joined = b.value(heads * (width + kept.count), Rows::Batch);
                b.program.ops.push(Op::JoinHeads { x, part: kept, y: out, out: joined });
                joined
            }
            Then::Product(dtype) => {
                let (matrix, _) = b.random_matrix(dtype, 40, heads * width, 0.3);
                b.product(out, matrix, None)
            }
        };
        let program = finish(b, result);
        for (pass, name) in PASSES.into_iter().zip(["n1", "n8", "n8", "n8", "n8"]) {
            let kernels = vec![format!("head_matmul_{name}")];
            let program = Arc::clone(&program);
            cases.push(Case { kernels, program, pass, cache: KvType::F16, fast: false, within: BLOCKS });
        }
    };
    for dtype in DType::ALL {
        let is_whole = |count: &usize| count.is_multiple_of(dtype.block_len());
        for count in [256, 512].into_iter().filter(is_whole) {
            add(dtype, 3, HeadPart { each: count + 24, first: 8, count }, 77, Then::Nothing);
        }
    }
    for (dtype, each, first, count, width) in [
        (DType::Q8_0, 32, 0, 32, 300),
        (DType::Q8_0, 192, 0, 128, 512),
        (DType::Q4_0, 100, 3, 96, 5),
        (DType::F32, 13, 2, 11, 40),
        (DType::F16, 320, 64, 256, 16),
        (DType::BF16, 39, 0, 39, 64),
    ] {
        add(dtype, 5, HeadPart { each, first, count }, width, Then::Nothing);
    }
    let part = HeadPart { each: 192, first: 0, count: 128 };
    add(DType::Q8_0, 3, part, 512, Then::Join(HeadPart { each: 192, first: 128, count: 64 }));
    add(DType::F32, 3, part, 7, Then::Join(HeadPart { each: 192, first: 0, count: 9 }));
    let part = HeadPart { each: 512, first: 0, count: 512 };
    for (width, dtype) in [(128, DType::Q8_0), (96, DType::F16), (24, DType::Q8_0)] {
        add(DType::Q4_0, 4, part, width, Then::Product(dtype));
    }
    cases
}

/// What follows products of heads.
enum Then {
    Nothing,
    Join(HeadPart),
    Product(DType),
}

/// Changes of heads that stand alone.
pub fn heads() -> Vec<Case> {
    let mut cases = Vec::new();
    for dim in [48, 80, 128] {
        let (mut b, hidden) = begin(HeadSizes::new(3, 1, dim));
        let x = apart(&mut b, hidden, 3 * dim);
        let norm = Norm { kind: NormKind::Layer, weight: random_vector(&mut b, dim, 1.0), bias: None, eps: 1e-5 };
        b.program.ops.push(Op::HeadNorm { x, head_dim: dim, norm });
        in_passes(&mut cases, "normalize", finish(b, x), &PASSES);
        for (layout, rotated) in [(RopeLayout::Pairs, dim), (RopeLayout::Halves, dim), (RopeLayout::Halves, dim / 2)] {
            let (mut b, hidden) = begin(HeadSizes::new(3, 1, dim));
            let x = apart(&mut b, hidden, 3 * dim);
            let table = rope(&mut b, layout, rotated);
            b.program.ops.push(Op::Rope { x, head_dim: dim, table });
            in_passes(&mut cases, "rope", finish(b, x), &PASSES);
        }
    }
    cases
}

pub fn rope(b: &mut Parts, layout: RopeLayout, dims: usize) -> RopeId {
    let frequencies = (0..dims / 2).map(|i| 500f32.powf(-2.0 * i as f32 / dims as f32)).collect();
    b.program.ropes.push(Rope { layout, frequencies, magnitude: 1.1, long: None });
    RopeId(b.program.ropes.len() - 1)
}
