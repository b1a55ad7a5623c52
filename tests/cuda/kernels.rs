//! Every kernel for products against sums in f64 of the plain decoders' weights, alone: all weight types, odd sizes, and what stands before and after
//! the products. Each case names the kernel that must run, which is checked without a GPU too.
//!
//! Activations are whole multiples of a power of two for each 32 of them, so that neither blocks of 8 bits nor 16-bit floats round them, and what is
//! left are the roundings of sums.

use crate::common;
use crate::common::launches::Sort;
use crate::common::parts::Parts;
use crate::common::passes::Run;
use segno::backend::cuda::Cuda;
use segno::backend::cuda::args::Shape;
use segno::backend::cuda::catalogue::{DeviceType, Kernel};
use segno::backend::{Chooser, KvType, Row};
use segno::kv::HeadSizes;
use segno::plan::op::{Activation, Index, Norm, NormKind, Rows};
use segno::plan::{Op, Program, ValueId, validate};
use segno::quant::DType;
use segno::quant::synthetic::Random;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rows of the embedding, and tokens of a case: row i has token i of these.
const TOKENS: usize = 24;
const EPS: f32 = 1e-5;

/// What stands around the products.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// One product with a bias.
    Plain,
    /// A norm and one product.
    Normed,
    /// The same, added to what was normed.
    Residual,
    /// A norm, two products and the gated unit.
    Gated,
    /// A norm and three products, whose sum counts; the last may have another type.
    Three(DType),
    /// The rows of the outputs, a norm, and the product that is the logits.
    Head,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    form: Form,
    dtype: DType,
    cols: usize,
    rows: usize,
    /// Rows of activations: a step of as many sequences, or with `prompt` a pass over one.
    batch: usize,
    prompt: bool,
    fast: bool,
    kernel: &'static str,
}

struct Built {
    program: Arc<Program>,
    /// The op of the products.
    op: usize,
    embedding: Vec<f32>,
    norm: Vec<f32>,
    /// Decoded matrices, and the bias.
    weights: Vec<Vec<f32>>,
    bias: Vec<f32>,
}

/// Whole numbers up to 127, of which each 32 have one, times a power of two of their own.
fn whole_activations(count: usize, random: &mut Random) -> Vec<f32> {
    let mut values = Vec::with_capacity(count);
    for _ in 0..count / 32 {
        let unit = 2f32.powi(-7 - (random.bits() % 3) as i32);
        let first = values.len();
        values.extend((0..32).map(|_| ((random.bits() % 255) as i32 - 127) as f32 * unit));
        values[first + random.bits() as usize % 32] = 127.0 * unit;
    }
    values.resize(count, 0.5);
    values
}

fn build(case: &Case) -> Built {
    let Case { form, dtype, cols, rows, .. } = *case;
    let mut b = Parts::new((cols * 31 + rows) as u64, HeadSizes::new(1, 1, 64));
    let embedding = whole_activations(TOKENS * cols, &mut b.random);
    let bytes: Vec<u8> = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
    let table = b.matrix(DType::F32, TOKENS, cols, &bytes);
    let mut x = b.value(cols, Rows::Batch);
    b.program.ops.push(Op::Embed { table, index: Index::Token, out: x });
    let select = |b: &mut Parts, x: ValueId| {
        let out = b.value(b.program.values[x.0].width, Rows::Outputs);
        b.program.ops.push(Op::SelectRows { x, out });
        out
    };
    if form == Form::Head {
        x = select(&mut b, x);
    }
    // Powers of two keep what they multiply whole.
    let norm: Vec<f32> = (0..cols).map(|index| 2f32.powi((index / 32 % 3) as i32 - 1)).collect();
    let mut normed = x;
    if form != Form::Plain {
        normed = b.value(cols, b.program.values[x.0].rows);
        let norm = Norm { kind: NormKind::Rms, weight: b.vector(&norm), bias: None, eps: EPS };
        b.program.ops.push(Op::Norm { x, norm, out: normed });
    }
    let types = match form {
        Form::Gated => vec![dtype, dtype],
        Form::Three(last) => vec![dtype, dtype, last],
        _ => vec![dtype],
    };
    let bias: Vec<f32> = if form == Form::Plain { b.random.uniforms(rows).into_iter().collect() } else { Vec::new() };
    let matrices: Vec<_> = types.iter().map(|&dtype| b.random_matrix(dtype, rows, cols, 0.05)).collect();
    let op = b.program.ops.len();
    let mut outs = Vec::new();
    for (matrix, _) in &matrices {
        let bias = if bias.is_empty() { None } else { Some(b.vector(&bias)) };
        outs.push(b.product(normed, *matrix, bias));
    }
    let result = match form {
        Form::Residual => {
            b.program.ops.push(Op::Add { x, y: outs[0] });
            x
        }
        Form::Gated => {
            b.program.ops.push(Op::Gate { kind: Activation::Silu, gate: outs[0], up: outs[1] });
            outs[0]
        }
        _ => {
            let first = outs[0];
            outs[1..].iter().for_each(|&y| b.program.ops.push(Op::Add { x: first, y }));
            first
        }
    };
    b.program.logits = Some(if form == Form::Head { result } else { select(&mut b, result) });
    validate::check(&b.program).unwrap();
    let weights = matrices.into_iter().map(|(_, values)| values).collect();
    Built { program: Arc::new(b.program), op, embedding, norm, weights, bias }
}

/// A sum in f64, and how far one in f32 may be from it.
#[derive(Clone, Copy)]
struct Near {
    value: f64,
    within: f64,
}

/// A product of one row of activations: what a kernel rounds is a part of the largest values of a group, since types with minimums take the
/// difference of two sums.
fn dot(weights: &[f32], x: &[f32], relative: f64) -> Near {
    let (mut value, mut magnitude) = (0.0, 0.0);
    for (w, x) in weights.chunks(256).zip(x.chunks(256)) {
        let most = w.iter().fold(0.0, |most: f64, &w| most.max(f64::from(w.abs())));
        for (&w, &x) in w.iter().zip(x) {
            value += f64::from(w) * f64::from(x);
            magnitude += most * f64::from(x.abs());
        }
    }
    Near { value, within: relative * magnitude + 1e-7 }
}

/// What the case must give for a token.
fn expected(case: &Case, built: &Built, token: usize) -> Vec<Near> {
    // Of sums of some hundreds of terms, and of weights as 16-bit floats.
    let relative = if case.fast { 3e-4 } else { 1e-7 };
    let own = &built.embedding[token * case.cols..][..case.cols];
    let square = own.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / case.cols as f64;
    let (x, factor): (Vec<f32>, f64) = match case.form {
        Form::Plain => (own.to_vec(), 1.0),
        _ => (own.iter().zip(&built.norm).map(|(v, n)| v * n).collect(), 1.0 / (square + f64::from(EPS)).sqrt()),
    };
    let product = |matrix: &[f32], row: usize| {
        let Near { value, within } = dot(&matrix[row * case.cols..][..case.cols], &x, relative);
        Near { value: value * factor, within: within * factor + 3e-7 * (value * factor).abs() }
    };
    let last = built.weights.last().unwrap();
    let row = |row: usize| match case.form {
        Form::Plain => {
            let (near, bias) = (product(last, row), f64::from(built.bias[row]));
            Near { value: near.value + bias, within: near.within + 1e-7 * bias.abs() }
        }
        Form::Residual => {
            let near = product(last, row);
            Near { value: near.value + f64::from(own[row]), within: near.within + 1e-6 }
        }
        Form::Gated => {
            let (gate, up) = (product(&built.weights[0], row), product(last, row));
            let silu = gate.value / (1.0 + (-gate.value).exp());
            let within = 1.1 * gate.within * up.value.abs() + silu.abs() * up.within + 1e-6 * (silu * up.value).abs();
            // The unit is written as a 16-bit float where products of such read it, and as a float here.
            Near { value: silu * up.value, within: within + 1e-6 }
        }
        Form::Normed | Form::Three(_) | Form::Head => {
            let all = built.weights.iter().map(|matrix| product(matrix, row));
            all.fold(Near { value: 0.0, within: 0.0 }, |sum, near| Near {
                value: sum.value + near.value,
                within: sum.within + near.within + 1e-7 * (sum.value + near.value).abs(),
            })
        }
    };
    (0..case.rows).map(row).collect()
}

/// The kernel that runs the products of the case, on a device of 132 SMs.
fn chosen(case: &Case, built: &Built) -> &'static str {
    let lists = common::launches::lists_of(&built.program, if case.fast { Sort::Fast } else { Sort::Exact });
    let rows = if case.prompt { case.batch } else { case.batch.next_power_of_two() } as u32;
    let outputs = if case.prompt { outputs(case).len() as u32 } else { rows };
    let shape = Shape { rows, outputs, splits: u32::from(!case.prompt), draws: 0 };
    let launch = lists.of(&shape).iter().find(|launch| launch.covers.contains(&built.op)).unwrap();
    launch.choose(&shape).function.entry().name
}

/// Rows of the batch whose results are looked at.
fn outputs(case: &Case) -> Vec<u32> {
    let last = case.batch as u32 - 1;
    match case.prompt {
        true => BTreeSet::from([0, last / 3, last]).into_iter().collect(),
        false => (0..=last).collect(),
    }
}

fn run(case: &Case, built: &Built, cuda: &Cuda) -> Vec<Vec<f32>> {
    let seqs = if case.prompt { 4 } else { case.batch };
    let mut run = Run::new(cuda, &built.program, KvType::F16, 512, seqs);
    let row = |index: usize| {
        let (slot, position) = if case.prompt { (0, index) } else { (index, 0) };
        Row { token: (index % TOKENS) as u32, position: position as u32, slot: slot as u32 }
    };
    let rows: Vec<Row> = (0..case.batch).map(row).collect();
    run.pass(&rows, &outputs(case), Chooser::Host)
}

fn name_of(dtype: DType) -> String {
    DeviceType::of(dtype).name().to_lowercase()
}

/// Kernel names are made for each type; the catalogue has them for as long as the program runs.
fn known(name: &str) -> &'static str {
    let all = Kernel::ALL.iter().flat_map(|kernel| kernel.variants());
    all.map(|entry| entry.name).find(|own| *own == name).unwrap_or_else(|| panic!("no kernel {name}"))
}

fn step(form: Form, dtype: DType, cols: usize, rows: usize, batch: usize, kernel: &str) -> Case {
    Case { form, dtype, cols, rows, batch, prompt: false, fast: false, kernel: known(kernel) }
}

/// Cases of every type: odd numbers of slices and rows, in all small batches.
fn cases_of_types() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        let (own, has_gemm) = (DeviceType::of(dtype), DeviceType::of(dtype).has_gemm());
        // Q6_K shares the kernel of those that files mix it with.
        let name = if own == DeviceType::Q6_K { "q4_k".into() } else { name_of(dtype) };
        for form in [Form::Plain, Form::Residual, Form::Gated, Form::Head] {
            let rows = if form == Form::Residual { 1280 } else { 96 };
            cases.push(step(form, dtype, 1280, rows, 1, &format!("gemv_b1_{name}")));
            cases.push(step(form, dtype, 1280, rows, 2, &format!("gemv_b2_{name}")));
            cases.push(step(form, dtype, 1280, rows, 4, &format!("gemv_b4_{name}")));
            let of_many = match form {
                _ if !has_gemm => "gemm_dp4a_n8",
                Form::Gated => "gemm_i8_n8",
                _ => "gemm_i8_single_stage",
            };
            cases.push(step(form, dtype, 1280, rows, 7, of_many));
            let of_prompt = if has_gemm { "gemm_i8_specialized_32_8" } else { "gemm_dp4a_n8" };
            if form != Form::Head {
                cases.push(Case { prompt: true, ..step(form, dtype, 1280, rows, 29, of_prompt) });
            }
        }
        if own.is_quantized() {
            cases.push(step(Form::Plain, dtype, 4096, 2112, 1, &format!("gemv_single_stage_{name}")));
        }
    }
    cases
}

/// Columns, rows, and rows of activations for which each kernel of 16-bit floats is the quickest.
const F16_SIZES: [(usize, usize, usize, &str); 19] = [
    (1280, 1280, 29, "gemm_f16_16_64_1"),
    (2048, 128, 20, "gemm_f16_16_64_2"),
    (256, 16384, 17, "gemm_f16_32_128_1"),
    (256, 1280, 100, "gemm_f16_32_64_1"),
    (2048, 512, 200, "gemm_f16_32_64_2"),
    (256, 2048, 300, "gemm_f16_64_128_1"),
    (1280, 1280, 200, "gemm_f16_64_64_1"),
    (2048, 1280, 100, "gemm_f16_64_64_2"),
    (256, 4352, 200, "gemm_f16_128_128_1"),
    (2048, 2048, 300, "gemm_f16_128_128_2"),
    (256, 4352, 512, "gemm_f16_256_128_1"),
    (1280, 1280, 12, "gemm_f16_small_batch_16_1_1"),
    (4096, 128, 9, "gemm_f16_small_batch_16_1_2"),
    (256, 4352, 13, "gemm_f16_small_batch_16_2_1"),
    (8448, 4096, 16, "gemm_f16_small_batch_16_2_2"),
    (1280, 1280, 7, "gemm_f16_small_batch_8_1_1"),
    (8448, 128, 5, "gemm_f16_small_batch_8_1_2"),
    (256, 4352, 8, "gemm_f16_small_batch_8_2_1"),
    (14336, 4096, 8, "gemm_f16_small_batch_8_2_2"),
];

/// The same of matrices whose rows fill no whole number of tiles, alone, or only of the narrower ones of few rows.
const RAGGED_F16_SIZES: [(usize, usize, usize, &str); 8] = [
    (1280, 48, 29, "gemm_f16_16_64_1"),
    (2048, 528, 200, "gemm_f16_32_64_2"),
    (256, 2128, 300, "gemm_f16_64_128_1"),
    (256, 4272, 512, "gemm_f16_256_128_1"),
    (1280, 48, 12, "gemm_f16_16_64_1"),
    (8448, 112, 5, "gemm_f16_16_64_2"),
    (1280, 96, 12, "gemm_f16_small_batch_16_1_1"),
    (256, 4256, 8, "gemm_f16_small_batch_8_1_1"),
];

/// Cases of kernels that are made for some sizes or pairs of types.
fn cases_of_sizes() -> Vec<Case> {
    use DType::{F32, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_0};
    let three = |dtype, last, kernel| step(Form::Three(last), dtype, 768, 80, 1, kernel);
    let mut cases = vec![
        three(Q4_K, Q6_K, "gemv_b1_q4_k"),
        three(Q5_K, Q6_K, "gemv_b1_q5_k"),
        three(Q4_K, Q5_K, "gemv_b1_q4_k_q5_k"),
        three(Q2_K, Q4_K, "gemv_b1_q2_k_q4_k"),
        three(Q3_K, Q4_K, "gemv_b1_q3_k_q4_k"),
        three(Q3_K, Q5_K, "gemv_b1_q3_k_q5_k"),
        three(IQ4_NL, Q5_K, "gemv_b1_iq4_nl_q5_k"),
        three(IQ4_XS, Q5_K, "gemv_b1_iq4_xs_q5_k"),
        three(Q8_0, F32, "gemv_b1_any"),
        step(Form::Three(Q2_K), Q2_K, 2048, 512, 1, "gemv_registers_plain"),
        step(Form::Gated, Q2_K, 2048, 512, 1, "gemv_registers_glu"),
        step(Form::Head, Q2_K, 2048, 1000, 1, "gemv_registers_head"),
        // Rows that are no whole groups.
        step(Form::Plain, F32, 1290, 50, 1, "gemm_dp4a_n1"),
        step(Form::Gated, F32, 1290, 50, 2, "gemm_dp4a_n2"),
        step(Form::Head, F32, 1290, 50, 3, "gemm_dp4a_n4"),
    ];
    for dtype in [Q8_0, Q4_K, Q5_K, Q6_K] {
        let of_two = match dtype {
            Q8_0 => "gemv_b2_q8_0",
            _ => "gemm_i8_small_batch_2_2",
        };
        cases.push(step(Form::Plain, dtype, 4096, 4096, 2, of_two));
        if dtype == Q6_K {
            cases.push(step(Form::Plain, dtype, 8448, 4096, 2, "gemm_i8_small_batch_2_1"));
        }
        cases.push(step(Form::Plain, dtype, 4096, 4096, 3, "gemm_i8_small_batch_4_2"));
        cases.push(step(Form::Gated, dtype, 4096, 4096, 4, "gemm_i8_small_batch_4_2"));
        cases.push(step(Form::Plain, dtype, 8448, 4096, 4, "gemm_i8_small_batch_4_1"));
        cases.push(step(Form::Plain, dtype, 256, 6416, 7, "gemm_i8_n8"));
        cases.push(step(Form::Plain, dtype, 4352, 104, 5, "gemm_i8_single_stage"));
        cases.push(step(Form::Three(dtype), dtype, 2048, 80, 8, "gemm_i8_single_stage"));
        cases.push(step(Form::Plain, dtype, 12288, 112, 8, "gemm_i8_resident"));
        cases.push(step(Form::Gated, dtype, 4352, 96, 8, "gemm_i8_resident"));
        let prompt = |form, cols, rows, batch, fast, kernel| Case {
            prompt: true,
            fast,
            ..step(form, dtype, cols, rows, batch, kernel)
        };
        cases.push(prompt(Form::Plain, 1280, 112, 13, false, "gemm_i8_n16"));
        cases.push(prompt(Form::Plain, 256, 4096, 29, false, "gemm_i8_n32"));
        cases.push(prompt(Form::Gated, 256, 1024, 50, false, "gemm_i8_n64"));
        cases.push(prompt(Form::Plain, 256, 2064, 300, false, "gemm_i8_specialized_64_1"));
        cases.push(prompt(Form::Plain, 1280, 4112, 300, false, "gemm_i8_specialized_64_2"));
        for (cols, rows, batch, kernel) in F16_SIZES {
            let form = if cols == rows { Form::Residual } else { Form::Normed };
            // Large matrices take the plain decoders a while.
            if cols * rows <= 1 << 22 || dtype == Q4_K {
                cases.push(prompt(form, cols, rows, batch, true, kernel));
            }
        }
        for (cols, rows, batch, kernel) in RAGGED_F16_SIZES {
            cases.push(prompt(Form::Normed, cols, rows, batch, true, kernel));
        }
        // Tiles of other matrices behind one that ends within its last.
        cases.push(prompt(Form::Three(dtype), 2048, 208, 200, true, "gemm_f16_64_64_2"));
        cases.push(prompt(Form::Three(dtype), 1280, 80, 9, true, "gemm_f16_16_64_1"));
        cases.push(prompt(Form::Three(dtype), 1280, 96, 9, true, "gemm_f16_small_batch_16_1_1"));
    }
    cases
}

#[test]
fn every_case_runs_the_kernel_that_it_names() {
    let mut wrong = Vec::new();
    let mut ran = BTreeSet::new();
    for case in cases_of_types().iter().chain(&cases_of_sizes()) {
        let name = chosen(case, &build(case));
        ran.insert(name);
        if name != case.kernel {
            wrong.push(format!("{case:?} runs {name}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let products = Kernel::ALL.iter().flat_map(|kernel| kernel.variants()).map(|entry| entry.name);
    let is_product = |name: &&str| name.starts_with("gemv") || name.starts_with("gemm");
    let missing: Vec<&str> = products.filter(is_product).filter(|name| !ran.contains(name)).collect();
    // The widest tiles are for chips whose blocks have too little shared memory for those of specialized warps.
    assert_eq!(missing, ["gemm_i8_64x64"], "kernels without a case");
}

fn check(cases: &[Case]) {
    let (exact, fast) = (Cuda::new(0, false).unwrap(), Cuda::fast(0, false).unwrap());
    for case in cases {
        let built = build(case);
        let found = run(case, &built, if case.fast { &fast } else { &exact });
        let mut worst: f64 = 0.0;
        for (&row, found) in outputs(case).iter().zip(&found) {
            for (index, (&found, near)) in found.iter().zip(expected(case, &built, row as usize % TOKENS)).enumerate() {
                let off = (f64::from(found) - near.value).abs() / near.within;
                assert!(
                    off <= 1.0,
                    "{case:?}: row {row}, output {index}: {found} for {} +- {}",
                    near.value,
                    near.within
                );
                worst = worst.max(off);
            }
        }
        println!(
            "{}: {:?} {} {} x {}, {} rows: {worst:.3} of the bound",
            case.kernel, case.form, case.dtype, case.rows, case.cols, case.batch
        );
    }
}

#[test]
fn products_of_every_type_are_those_of_the_plain_decoders() {
    if common::gpu() {
        check(&cases_of_types());
    }
}

#[test]
fn kernels_for_some_sizes_give_the_products_of_the_plain_decoders() {
    if common::gpu() {
        check(&cases_of_sizes());
    }
}
