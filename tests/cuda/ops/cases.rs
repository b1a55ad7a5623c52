//! Small programs in each of which one kernel, or a few, do what is looked at.

use super::{Case, Pass, TOKENS, names};
use crate::common::parts::Parts;
use segno::arch::rope::{Rope, RopeLayout};
use segno::backend::KvType;
use segno::backend::cuda::catalogue::DeviceType;
use segno::kv::HeadSizes;
use segno::plan::op::{
    Activation, AttentionKind, AttentionMask, ExpertProduct, Experts, Groups, Index, Kind, Norm, NormKind, RopeId,
    Routing, Rows, Score,
};
use segno::plan::{Op, Program, ValueId, VectorId, validate};
use segno::quant::DType;
use std::collections::BTreeSet;
use std::sync::Arc;

const HIDDEN: usize = 64;

/// Roundings of sums of some tens of f32, and of functions of them.
const ROUNDING: f64 = 3e-6;
/// Of attention whose weights are 16-bit floats.
pub const F16: f64 = 1e-3;
/// Of attention over a cache of 8 bits, whose multiples may be rounded to the neighbour; a small part of a head is rotated back by itself.
pub const EIGHT_BITS: f64 = 5e-3;
/// Of 8-bit blocks: a value close to half a step may be rounded the other way.
const BLOCKS: f64 = 1e-3;

pub const PASSES: [Pass; 5] =
    [Pass::Step(1, 7), Pass::Step(2, 40), Pass::Step(3, 0), Pass::Step(7, 90), Pass::Prompt(29)];

pub fn begin(kv: HeadSizes) -> (Parts, ValueId) {
    embedded(kv, HIDDEN)
}

/// A program that begins with rows of random numbers.
fn embedded(kv: HeadSizes, width: usize) -> (Parts, ValueId) {
    let mut b = Parts::new(width as u64, kv);
    let (table, _) = b.random_matrix(DType::F32, TOKENS, width, 1.0);
    let out = b.value(width, Rows::Batch);
    b.program.ops.push(Op::Embed { table, index: Index::Token, out });
    (b, out)
}

fn floats(b: &mut Parts, x: ValueId, width: usize) -> ValueId {
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
        // How the result is added to another value: not at all, as it is, scaled.
        for (width, factor) in [(96, None), (333, Some(1.0)), (2080, Some(0.3))] {
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
            let result = if factor.is_some() { sum } else { out };
            in_passes(&mut cases, "normalize", finish(b, result), &PASSES);
        }
    }
    cases
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

fn rope(b: &mut Parts, layout: RopeLayout, dims: usize) -> RopeId {
    let frequencies = (0..dims / 2).map(|i| 500f32.powf(-2.0 * i as f32 / dims as f32)).collect();
    b.program.ropes.push(Rope { layout, frequencies, magnitude: 1.1, long: None });
    RopeId(b.program.ropes.len() - 1)
}

/// What attention has beside its sizes.
#[derive(Clone, Copy, Default)]
pub struct Attention {
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub has_sinks: bool,
    /// Norms of heads before the rotation.
    pub has_norms: bool,
    pub rope: Option<RopeLayout>,
}

fn attention(kv: HeadSizes, with: Attention) -> Arc<Program> {
    let (b, out) = attended(kv, with, AttentionMask::Causal);
    finish(b, out)
}

/// A program that ends with attention, and what that gives.
pub fn attended(kv: HeadSizes, with: Attention, mask: AttentionMask) -> (Parts, ValueId) {
    let (mut b, hidden) = begin(kv);
    let queries = floats(&mut b, hidden, kv.heads * kv.head_dim);
    let keys = floats(&mut b, hidden, kv.kv_heads * kv.head_dim);
    let values = floats(&mut b, hidden, kv.kv_heads * kv.head_dim);
    if with.has_norms {
        for x in [queries, keys] {
            let weight = random_vector(&mut b, kv.head_dim, 1.0);
            let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-6 };
            b.program.ops.push(Op::HeadNorm { x, head_dim: kv.head_dim, norm });
        }
    }
    if let Some(layout) = with.rope {
        let table = rope(&mut b, layout, kv.head_dim / 2);
        b.program.ops.extend([queries, keys].map(|x| Op::Rope { x, head_dim: kv.head_dim, table }));
    }
    b.program.ops.push(Op::StoreKv { layer: 0, keys, values });
    let sinks = with.has_sinks.then(|| random_vector(&mut b, kv.heads, 1.0));
    let scale = 1.0 / (kv.head_dim as f32).sqrt();
    let kind = AttentionKind { layer: 0, scale, mask, window: with.window, softcap: with.softcap, sinks };
    let out = b.value(kv.heads * kv.head_dim, Rows::Batch);
    b.program.ops.push(Op::Attention { kind, queries, out });
    (b, out)
}

/// A position behind several splits, for batches over caches of 8 bits: to farther ones plain f64 takes minutes.
const FEWER: usize = 700;

pub fn attentions() -> Vec<Case> {
    let mut cases = Vec::new();
    let normed = Attention { has_norms: true, rope: Some(RopeLayout::Halves), ..Attention::default() };
    let turned = Attention { rope: Some(RopeLayout::Pairs), window: Some(150), ..Attention::default() };
    let mut add = |kernels: &[&str], program: &Arc<Program>, pass: Pass, cache: KvType, within: f64| {
        let kernels = kernels.iter().map(|&name| name.to_owned()).collect();
        cases.push(Case { kernels, program: Arc::clone(program), pass, cache, within });
    };
    for dim in [64, 80, 96, 128, 256] {
        for (kv_heads, group, with) in [(2, 3, normed), (1, 9, turned), (3, 1, Attention::default())] {
            let program = attention(HeadSizes::new(kv_heads * group, kv_heads, dim), with);
            let of = |name: &str| format!("{name}_hd{dim}");
            let prompt = of("attention_prefill");
            let mut prompts = vec!["qk_norm_rope_kv", prompt.as_str()];
            if dim == 80 {
                prompts.push("attention_combine");
            }
            for rows in [1, 5, 77, 300] {
                add(&prompts, &program, Pass::Prompt(rows.max(2)), KvType::F16, F16);
            }
            let prompt = of("attention_prefill_q8");
            let mut prompts = vec!["qk_norm_rope_kv_q8", prompt.as_str()];
            if dim == 80 {
                prompts.push("attention_combine_q8");
            }
            for rows in [2, 77, 300] {
                add(&prompts, &program, Pass::Prompt(rows), KvType::Q8, EIGHT_BITS);
            }
            for (position, name) in
                [(0, "attention_decode_split"), (300, "attention_decode_split"), (2500, "attention_decode")]
            {
                add(&[&of(name)], &program, Pass::Step(1, position), KvType::F16, F16);
                add(&[&of(&format!("{name}_batch"))], &program, Pass::Step(6, position), KvType::F16, F16);
                let [single, batch] = ["attention_decode_q8", "attention_decode_batch_q8"].map(of);
                add(&[&single], &program, Pass::Step(1, position), KvType::Q8, EIGHT_BITS);
                add(&[&batch], &program, Pass::Step(6, position.min(FEWER)), KvType::Q8, EIGHT_BITS);
            }
        }
    }
    let capped = Attention { softcap: Some(2.0), ..normed };
    let sinks = Attention { has_sinks: true, ..turned };
    for (dim, with, cache) in [
        (48, normed, KvType::F16),
        (64, capped, KvType::F16),
        (64, sinks, KvType::F16),
        (128, sinks, KvType::F32),
        (112, turned, KvType::F32),
        (512, normed, KvType::F16),
        (6, normed, KvType::Q8),
        (20, turned, KvType::Q8),
        (48, normed, KvType::Q8),
        (64, capped, KvType::Q8),
        (128, sinks, KvType::Q8),
        (112, turned, KvType::Q8),
        (512, normed, KvType::Q8),
    ] {
        let program = attention(HeadSizes::new(10, 2, dim), with);
        // Queries are floats here; keys may be rounded to the neighbour.
        let (kernels, within) = match cache {
            KvType::F16 => (["qk_norm_rope_kv", "attention_f16", "attention_combine"], 5e-4),
            KvType::F32 => (["qk_norm_rope_kv", "attention_f32", "attention_combine"], 1e-5),
            KvType::Q8 => (["qk_norm_rope_kv_q8", "attention_q8", "attention_combine_q8"], EIGHT_BITS),
        };
        let many = if cache == KvType::Q8 { FEWER } else { 2500 };
        for pass in [Pass::Prompt(40), Pass::Step(1, 300), Pass::Step(6, many)] {
            add(&kernels, &program, pass, cache, within);
        }
    }
    cases
}

/// Experts of a row, and of how many.
const COUNT: usize = 8;
const CHOSEN: usize = 2;

/// What experts have beside their type.
#[derive(Clone, Copy)]
struct Unit {
    routing: Routing,
    kind: Activation,
    has_bias: bool,
    /// The type of a router behind a norm.
    router: Option<DType>,
}

const PLAIN: Routing = Routing { score: Score::Softmax, bias: None, groups: None, normalizes: true, scale: 1.0 };
const UNIT: Unit = Unit { routing: PLAIN, kind: Activation::Silu, has_bias: false, router: None };

fn experts(dtype: DType, width: usize, unit: Unit) -> Arc<Program> {
    let hidden = 512;
    let (mut b, mut x) = embedded(one_head(), hidden);
    if unit.router.is_some() {
        let norm = Norm { kind: NormKind::Rms, weight: random_vector(&mut b, hidden, 1.0), bias: None, eps: 1e-5 };
        let out = b.value(hidden, Rows::Batch);
        b.program.ops.push(Op::Norm { x, norm, out });
        x = out;
    }
    let (router, _) = b.random_matrix(unit.router.unwrap_or(DType::F32), COUNT, hidden, 0.2);
    let logits = b.product(x, router, None);
    let choice = b.value(2 * CHOSEN, Rows::Batch);
    b.program.values[choice.0].kind = Kind::Choices;
    b.program.ops.push(Op::Route { logits, routing: unit.routing, choice });
    let product = |b: &mut Parts, x: ValueId, width: usize| {
        let (matrix, _) = b.random_matrix(dtype, COUNT * width, b.program.values[x.0].width, 0.1);
        let bias = unit.has_bias.then(|| random_vector(b, COUNT * width, 0.0));
        let scale = unit.has_bias.then(|| random_vector(b, COUNT, 1.0));
        let out = b.value(width, Rows::Chosen(choice));
        let experts = Experts { matrix, each: width, first: 0 };
        b.program.ops.push(Op::ExpertMatMul(ExpertProduct { x, choice, experts, scale, bias, out }));
        out
    };
    let (gate, up) = (product(&mut b, x, width), product(&mut b, x, width));
    b.program.ops.push(Op::Gate { kind: unit.kind, gate, up });
    let down = product(&mut b, gate, hidden);
    let sum = b.value(hidden, Rows::Batch);
    b.program.ops.push(Op::WeightedSum { x: down, choice, out: sum });
    finish(b, sum)
}

pub fn mixtures() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |kernels: &[&str], program: &Arc<Program>, pass: Pass| {
        let kernels = kernels.iter().map(|&name| name.to_owned()).collect();
        cases.push(Case { kernels, program: Arc::clone(program), pass, cache: KvType::F16, within: BLOCKS });
    };
    let all: BTreeSet<&str> = names().collect();
    for dtype in DType::ALL {
        let own = DeviceType::of(dtype);
        let program = experts(dtype, 256, UNIT);
        let of = |name: &str| all.get(format!("{name}_{}", own.name().to_lowercase()).as_str()).copied();
        let (unit, sum) = (of("expert_unit").unwrap_or("expert_dp4a_n1"), of("expert_sum").unwrap_or("expert_dp4a_n1"));
        add(&["route", unit, sum], &program, Pass::Step(1, 0));
        add(&[unit, sum], &program, Pass::Step(3, 0));
        let has_gemm = own.has_gemm() || own == DeviceType::MXFP4;
        let (few, many) =
            if has_gemm { ("expert_gemm_16", "expert_gemm_32") } else { ("expert_dp4a_n8", "expert_dp4a_n8") };
        add(&["expert_order", few, "weighted_sum"], &program, Pass::Step(9, 0));
        add(&["expert_order", few, "weighted_sum"], &program, Pass::Prompt(45));
        add(&["expert_order", many, "weighted_sum"], &program, Pass::Prompt(130));
    }
    let clamped = Activation::ClampedSilu { limit: 0.7, slope: 1.7 };
    for (dtype, kind) in [(DType::Q8_0, Activation::GeluTanh), (DType::Q4_K, clamped), (DType::MXFP4, clamped)] {
        let program = experts(dtype, 512, Unit { kind, has_bias: true, ..UNIT });
        for (kernel, pass) in [
            ("expert_unit", Pass::Step(2, 0)),
            ("expert_gemm_16", Pass::Step(9, 0)),
            ("expert_gemm_32", Pass::Prompt(130)),
        ] {
            let kernel = if kernel == "expert_unit" {
                format!("{kernel}_{}", DeviceType::of(dtype).name().to_lowercase())
            } else {
                kernel.into()
            };
            add(&[&kernel], &program, pass);
        }
    }
    for (dtype, kernel) in [(DType::F32, "router_f32"), (DType::F16, "router_f16"), (DType::BF16, "router_bf16")] {
        let program = experts(DType::Q8_0, 256, Unit { router: Some(dtype), ..UNIT });
        add(&[kernel], &program, Pass::Step(4, 0));
        add(&[kernel], &program, Pass::Step(7, 0));
    }
    for score in [Score::Softmax, Score::Sigmoid, Score::ChosenSoftmax] {
        for groups in [None, Some(Groups { count: 4, kept: 2, best: 2 })] {
            let routing = Routing { score, groups, normalizes: groups.is_some(), scale: 1.7, bias: None };
            let program = experts(DType::F32, 32, Unit { routing, ..UNIT });
            add(&["route", "expert_dp4a_n1"], &program, Pass::Step(3, 0));
            add(&["route", "expert_dp4a_n8"], &program, Pass::Prompt(29));
        }
    }
    cases
}
