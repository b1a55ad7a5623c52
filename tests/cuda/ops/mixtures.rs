//! Products with the matrices of experts: their choice, the gated unit, and the sum over a row's experts, exact and as 16-bit floats.

use super::cases::{BLOCKS, embedded, finish, one_head, random_vector};
use super::{Case, Pass, chosen, names};
use crate::common::parts::Parts;
use segno::backend::KvType;
use segno::backend::cuda::catalogue::DeviceType;
use segno::plan::op::{Activation, ExpertProduct, Experts, Groups, Kind, Norm, NormKind, Routing, Rows, Score};
use segno::plan::{Op, Program, ValueId};
use segno::quant::DType;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Of products of 16-bit floats, and of what those of others are made of.
const HALVES: f64 = 2e-3;
/// Of products of 8 bits one behind the other, beside those of unrounded values.
const UNROUNDED: f64 = 2e-2;

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
    /// How many there are, of which a row has so many; and the type of their last product if it is another.
    count: usize,
    chosen: usize,
    down: Option<DType>,
    /// Whether the sum is added to the value before, and a norm of that multiplied.
    is_normed: bool,
}

const PLAIN: Routing = Routing { score: Score::Softmax, bias: None, groups: None, normalizes: true, scale: 1.0 };
const UNIT: Unit = Unit {
    routing: PLAIN,
    kind: Activation::Silu,
    has_bias: false,
    router: None,
    count: COUNT,
    chosen: CHOSEN,
    down: None,
    is_normed: false,
};

fn experts(dtype: DType, width: usize, unit: Unit) -> Arc<Program> {
    experts_of(dtype, (512, width), unit)
}

/// Experts whose rows have so many elements, outside and inside.
fn experts_of(dtype: DType, (hidden, width): (usize, usize), unit: Unit) -> Arc<Program> {
    let (mut b, before) = embedded(one_head(), hidden);
    let norm = |b: &mut Parts, x: ValueId| {
        let norm = Norm { kind: NormKind::Rms, weight: random_vector(b, hidden, 1.0), bias: None, eps: 1e-5 };
        let out = b.value(hidden, Rows::Batch);
        b.program.ops.push(Op::Norm { x, norm, out });
        out
    };
    let x = if unit.router.is_some() { norm(&mut b, before) } else { before };
    let (router, _) = b.random_matrix(unit.router.unwrap_or(DType::F32), unit.count, hidden, 0.2);
    let logits = b.product(x, router, None);
    let choice = b.value(2 * unit.chosen, Rows::Batch);
    b.program.values[choice.0].kind = Kind::Choices;
    b.program.ops.push(Op::Route { logits, routing: unit.routing, choice });
    let product = |b: &mut Parts, x: ValueId, width: usize, dtype: DType| {
        let (matrix, _) = b.random_matrix(dtype, unit.count * width, b.program.values[x.0].width, 0.1);
        let bias = unit.has_bias.then(|| random_vector(b, unit.count * width, 0.0));
        let scale = unit.has_bias.then(|| random_vector(b, unit.count, 1.0));
        let out = b.value(width, Rows::Chosen(choice));
        let experts = Experts { matrix, each: width, first: 0 };
        b.program.ops.push(Op::ExpertMatMul(ExpertProduct { x, choice, experts, scale, bias, out }));
        out
    };
    let (gate, up) = (product(&mut b, x, width, dtype), product(&mut b, x, width, dtype));
    b.program.ops.push(Op::Gate { kind: unit.kind, gate, up });
    let down = product(&mut b, gate, hidden, unit.down.unwrap_or(dtype));
    let sum = b.value(hidden, Rows::Batch);
    b.program.ops.push(Op::WeightedSum { x: down, choice, out: sum });
    if !unit.is_normed {
        return finish(b, sum);
    }
    b.program.ops.push(Op::Add { x: before, y: sum });
    let normed = norm(&mut b, before);
    let (matrix, _) = b.random_matrix(DType::Q8_0, hidden, hidden, 0.1);
    let out = b.product(normed, matrix, None);
    finish(b, out)
}

pub fn mixtures() -> Vec<Case> {
    let mut cases = Vec::new();
    of_every_type(&mut cases);
    with_biases(&mut cases);
    chosen_in_many_ways(&mut cases);
    cases
}

/// The kernel of a family for a type.
fn of_type(family: &str, dtype: DType) -> String {
    format!("{family}_{}", DeviceType::of(dtype).name().to_lowercase())
}

/// Adds a case to a list.
fn add(cases: &mut Vec<Case>, kernels: &[&str], program: &Arc<Program>, pass: Pass) {
    let kernels = kernels.iter().map(|&name| name.to_owned()).collect();
    let program = Arc::clone(program);
    cases.push(Case { kernels, program, pass, cache: KvType::F16, fast: false, within: BLOCKS });
}

fn of_every_type(cases: &mut Vec<Case>) {
    let all: BTreeSet<&str> = names().collect();
    for dtype in DType::ALL {
        let own = DeviceType::of(dtype);
        let program = experts(dtype, 256, UNIT);
        let of = |family: &str| all.get(of_type(family, dtype).as_str()).copied();
        let (unit, sum) = (of("expert_unit").unwrap_or("expert_dp4a_n1"), of("expert_sum").unwrap_or("expert_dp4a_n1"));
        // A single row's unit chooses by itself.
        let (of_unit, of_any) = ([unit, sum], ["route", unit, sum]);
        let single: &[&str] = if unit == "expert_dp4a_n1" { &of_any } else { &of_unit };
        add(cases, single, &program, Pass::Step(1, 0));
        add(cases, &["route", unit, sum], &program, Pass::Step(2, 0));
        add(cases, &[unit, sum], &program, Pass::Step(3, 0));
        let has_gemm = own.has_gemm() || own == DeviceType::MXFP4;
        let sorted =
            if has_gemm { ["expert_gemm_16", "expert_gemm_16", "expert_gemm_32"] } else { ["expert_dp4a_n8"; 3] };
        let more = experts(dtype, 256, Unit { count: 2 * COUNT, ..UNIT });
        // Grouped GEMV sorts the pairs of few rows by itself.
        match of("expert_grouped_gemv") {
            Some(grouped) => add(cases, &[grouped, "weighted_sum"], &more, Pass::Step(9, 0)),
            None => add(cases, &["expert_order", sorted[0], "weighted_sum"], &more, Pass::Step(9, 0)),
        }
        for (kernel, pass) in [(sorted[1], Pass::Prompt(45)), (sorted[2], Pass::Prompt(130))] {
            add(cases, &["expert_order", kernel, "weighted_sum"], &program, pass);
        }
    }
}

/// Experts with biases, factors and other gates; and sizes that end within a block or a slice, with two kinds of products.
fn with_biases(cases: &mut Vec<Case>) {
    let clamped = Activation::ClampedSilu { limit: 0.7, slope: 1.7 };
    for (dtype, kind) in [(DType::Q8_0, Activation::GeluTanh), (DType::Q4_K, clamped), (DType::MXFP4, clamped)] {
        let program = experts(dtype, 512, Unit { kind, has_bias: true, count: 2 * COUNT, ..UNIT });
        let [unit, grouped] = ["expert_unit", "expert_grouped_gemv"].map(|family| of_type(family, dtype));
        let few = names().find(|name| *name == grouped).unwrap_or("expert_gemm_16");
        for (kernel, pass) in [
            (unit.as_str(), Pass::Step(2, 0)),
            (few, Pass::Step(9, 0)),
            (few, Pass::Prompt(31)),
            ("expert_gemm_16", Pass::Prompt(32)),
            ("expert_gemm_32", Pass::Prompt(130)),
        ] {
            add(cases, &[kernel], &program, pass);
        }
    }
    // The largest number of pairs that blocks sort by themselves, and more than one tile of an expert.
    let program = experts_of(DType::Q8_0, (256, 64), Unit { count: 70, chosen: 8, ..UNIT });
    add(cases, &["expert_grouped_gemv_q8_0"], &program, Pass::Step(12, 0));
    for (dtype, down, sizes) in [
        (DType::Q8_0, DType::Q8_0, (1088, 192)),
        (DType::Q4_K, DType::Q6_K, (1280, 768)),
        (DType::Q5_K, DType::Q4_K, (2048, 1792)),
    ] {
        let program = experts_of(dtype, sizes, Unit { has_bias: true, count: 2 * COUNT, down: Some(down), ..UNIT });
        let [unit, last] = [dtype, down].map(|dtype| of_type("expert_grouped_gemv", dtype));
        add(cases, &[&unit, &last], &program, Pass::Step(12, 0));
        add(cases, &["expert_order", &unit, &last], &program, Pass::Prompt(31));
    }
    for (sizes, router) in [((512, 256), None), ((1088, 192), Some(DType::F32)), ((4160, 64), None)] {
        let unit = Unit { router, count: 2 * COUNT, is_normed: true, ..UNIT };
        let program = experts_of(DType::Q8_0, sizes, unit);
        for pass in [Pass::Step(7, 0), Pass::Step(12, 0)] {
            add(cases, &["expert_grouped_gemv_q8_0", "weighted_sum_norm"], &program, pass);
        }
        for pass in [Pass::Step(23, 0), Pass::Prompt(45)] {
            add(cases, &["expert_order", "weighted_sum_norm"], &program, pass);
        }
    }
    // Scales and sums of activations that are no multiple of 16 bytes are not for grouped GEMV.
    let program = experts_of(DType::Q8_0, (1120, 96), Unit { count: 2 * COUNT, ..UNIT });
    add(cases, &["expert_order", "expert_gemm_16", "weighted_sum"], &program, Pass::Prompt(31));
}

fn chosen_in_many_ways(cases: &mut Vec<Case>) {
    for (dtype, kernel) in [(DType::F32, "router_f32"), (DType::F16, "router_f16"), (DType::BF16, "router_bf16")] {
        let program = experts(DType::Q8_0, 256, Unit { router: Some(dtype), ..UNIT });
        add(cases, &[kernel], &program, Pass::Step(4, 0));
        add(cases, &[kernel], &program, Pass::Step(7, 0));
    }
    // Ranked by a warp, with four and with eight experts a lane of which the last is short, and by a block in several parts.
    for (count, chosen) in [(70, 8), (200, 10), (300, 40)] {
        let program = experts_of(DType::Q8_0, (256, 32), Unit { count, chosen, ..UNIT });
        add(cases, &["expert_unit_q8_0", "expert_sum_q8_0"], &program, Pass::Step(1, 0));
        add(cases, &["route", "expert_unit_q8_0", "expert_sum_q8_0"], &program, Pass::Step(2, 0));
    }
    for score in [Score::Softmax, Score::Sigmoid, Score::ChosenSoftmax] {
        let groups = |best| Some(Groups { count: 4, kept: 2, best });
        for groups in [None, groups(1), groups(2)] {
            let routing = Routing { score, groups, normalizes: groups.is_some(), scale: 1.7, bias: None };
            let program = experts(DType::F32, 32, Unit { routing, ..UNIT });
            add(cases, &["route", "expert_dp4a_n1"], &program, Pass::Step(3, 0));
            add(cases, &["route", "expert_dp4a_n8"], &program, Pass::Prompt(29));
            let program = experts(DType::Q8_0, 256, Unit { routing, ..UNIT });
            add(cases, &["expert_unit_q8_0"], &program, Pass::Step(1, 0));
        }
    }
}

/// Types of a router, of the first products and of the last of its experts, and the kernels of these: both of 16-bit floats, the first alone, the
/// last alone, none.
const MIXED: [(DType, DType, DType, &[&str]); 4] = [
    (DType::Q8_0, DType::Q8_0, DType::Q4_K, &["expert_gemm_f16_32"]),
    (DType::Q8_0, DType::Q8_0, DType::Q5_0, &["expert_gemm_f16_32", "sigmoid_mul", "expert_dp4a_n8"]),
    (DType::F32, DType::Q5_0, DType::Q4_K, &["expert_dp4a_n8", "sigmoid_mul", "expert_gemm_f16_32"]),
    (DType::F32, DType::Q8_0, DType::Q5_0, &["expert_gemm_16", "expert_dp4a_n8"]),
];

/// Experts in prompts with fast batches, of the types with kernels for that.
pub fn rounded_mixtures() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |kernels: &[&str], program: &Arc<Program>, rows: usize, within: f64| {
        let kernels = kernels.iter().map(|&name| name.to_owned()).collect();
        let (program, pass) = (Arc::clone(program), Pass::Prompt(rows));
        cases.push(Case { kernels, program, pass, cache: KvType::F16, fast: true, within });
    };
    let clamped = Activation::ClampedSilu { limit: 0.7, slope: 1.7 };
    for (dtype, kind, wide) in [
        (DType::Q8_0, Activation::GeluTanh, (640, 384)),
        (DType::Q4_K, Activation::Silu, (768, 512)),
        (DType::Q5_K, Activation::Silu, (768, 512)),
        (DType::Q6_K, clamped, (768, 512)),
    ] {
        for (sizes, has_bias, router) in [((512, 256), false, None), (wide, true, Some(DType::F32))] {
            let program = experts_of(dtype, sizes, Unit { kind, has_bias, router, ..UNIT });
            for (kernel, rows) in [("32", 7), ("32", 45), ("64", 130), ("128", 301)] {
                let kernel = format!("expert_gemm_f16_{kernel}");
                add(&["expert_order", "copy_rows", &kernel, "weighted_sum"], &program, rows, HALVES);
            }
        }
    }
    // Products without such kernels among them read 8 bits; a router with one leaves no floats.
    for (router, dtype, down, kernels) in MIXED {
        let unit = Unit { router: Some(router), count: 2 * COUNT, down: Some(down), ..UNIT };
        add(kernels, &experts_of(dtype, (512, 256), unit), 45, UNROUNDED);
    }
    cases
}

#[test]
fn few_pairs_are_sorted_by_the_blocks_that_multiply_them() {
    let program = experts(DType::Q4_K, 256, Unit { count: 2 * COUNT, ..UNIT });
    let kernels = |pass: Pass| {
        let kernels = Vec::new();
        chosen(&Case { kernels, program: Arc::clone(&program), pass, cache: KvType::F16, fast: false, within: BLOCKS })
    };
    for (pass, is_ordered) in [(Pass::Step(7, 0), false), (Pass::Step(16, 0), false), (Pass::Prompt(31), true)] {
        let run = kernels(pass);
        assert!(run.contains("expert_grouped_gemv_q4_k"), "{run:?}");
        assert_eq!(run.contains("expert_order"), is_ordered, "{run:?}");
    }
}
