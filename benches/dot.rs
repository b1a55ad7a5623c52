//! Products of weights and activations on one thread: every type with a kernel of its own, every instruction set.
//!
//! `cargo bench --bench dot` measures all; a filter such as `Q4_K/avx512` some. Up to 8 activation rows the weights
//! come from memory (96 MiB, more than a cache) and the throughput is theirs in bytes: compare it with the machine's
//! bandwidth. From 64 rows on the weights are small and the throughput is multiplications and additions. The pieces of
//! attention and the element-wise kernels are in `ops`,
//! encoders of weights in `encode`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use segno::backend::cpu::pool::TileMut;
use segno::backend::cpu::simd::{Form, Input, Kernels, KvRun, Matrix, Q8_LEN, Q8Block, available};
use segno::plan::op::Activation;
use segno::quant::synthetic::{self, Random};
use segno::quant::{DType, encode};
use std::cell::LazyCell;
use std::hint::black_box;
use std::time::Duration;

const COLS: usize = 2048;
const STREAMED_BYTES: usize = 96 << 20;
const CACHED_ROWS: usize = 256;

fn products(c: &mut Criterion) {
    let native = |dtype: &DType| dtype.block_len() == 1 || available()[0].form(*dtype) == Form::Q8;
    for dtype in DType::ALL.into_iter().filter(native) {
        for kernels in available().into_iter().filter(|kernels| kernels.name != "scalar") {
            let mut group = c.benchmark_group(format!("{dtype}/{}", kernels.name));
            group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
            for tokens in [1, 4, 8, 64, 512] {
                // Made only when the filter lets the benchmark run.
                let product = LazyCell::new(|| Product::new(dtype, tokens));
                group.throughput(throughput(dtype, tokens));
                group.bench_function(BenchmarkId::from_parameter(tokens), |b| {
                    let mut out = vec![0.0; tokens * product.rows];
                    b.iter(|| product.run(kernels, &mut out));
                });
            }
        }
    }
}

fn row_bytes(dtype: DType) -> usize {
    COLS / dtype.block_len() * dtype.block_bytes()
}

fn weight_rows(dtype: DType, tokens: usize) -> usize {
    if tokens <= 8 { STREAMED_BYTES / row_bytes(dtype) } else { CACHED_ROWS }
}

fn throughput(dtype: DType, tokens: usize) -> Throughput {
    let rows = weight_rows(dtype, tokens);
    if tokens <= 8 {
        return Throughput::Bytes((rows * row_bytes(dtype)) as u64);
    }
    Throughput::Elements((2 * rows * COLS * tokens) as u64)
}

/// A product of weights with `tokens` activation rows.
struct Product {
    dtype: DType,
    rows: usize,
    bytes: Vec<u8>,
    floats: Vec<f32>,
    blocks: Vec<Q8Block>,
    rounded: Vec<bf16>,
}

impl Product {
    fn new(dtype: DType, tokens: usize) -> Product {
        let mut random = Random::new(1);
        let rows = weight_rows(dtype, tokens);
        let pattern = synthetic::blocks(dtype, 64 * COLS / dtype.block_len(), &mut random);
        let bytes = pattern.into_iter().cycle().take(rows * row_bytes(dtype)).collect();
        let floats = random.uniforms(tokens * COLS);
        let mut blocks = vec![Q8Block::default(); floats.len() / Q8_LEN];
        available()[0].quantize(&floats, &mut blocks);
        let rounded = floats.iter().copied().map(bf16::from_f32).collect();
        Product { dtype, rows, bytes, floats, blocks, rounded }
    }

    fn run(&self, kernels: &Kernels, out: &mut [f32]) {
        let matrix = Matrix::new(self.dtype, &self.bytes, self.rows, COLS).expect("the bytes are whole rows");
        let input = match kernels.form(self.dtype) {
            Form::F32 => Input::F32 { values: &self.floats },
            Form::Q8 => Input::Q8 { blocks: &self.blocks },
            Form::Bf16 => Input::Bf16 { values: &self.rounded },
        };
        kernels.matmul(&matrix, &input, &mut TileMut::whole(out, self.rows));
    }
}

const LEN: usize = 4096;
const KEYS: usize = 32;

fn ops(c: &mut Criterion) {
    let mut random = Random::new(2);
    let (x, y, mut out) = (random.uniforms(LEN), random.uniforms(LEN), vec![0.0; LEN]);
    let mut blocks = vec![Q8Block::default(); LEN / Q8_LEN];
    for kernels in available() {
        let mut group = c.benchmark_group(format!("ops/{}", kernels.name));
        group.sample_size(20).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(300));
        group.throughput(Throughput::Elements(LEN as u64));
        group.bench_function("quantize", |b| b.iter(|| kernels.quantize(&x, &mut blocks)));
        group.bench_function("rms_norm", |b| b.iter(|| kernels.rms_norm(&x, &y, 1e-5, &mut out)));
        group.bench_function("silu_mul", |b| b.iter(|| kernels.gate(Activation::Silu, &mut out, &y)));
        group.bench_function("exp_sum", |b| b.iter(|| black_box(kernels.exp_sum(&mut out, 1.0))));
        group.throughput(Throughput::Elements(KEYS as u64));
        for head in [64, 128] {
            let halves: Vec<f16> = random.uniforms(KEYS * head).into_iter().map(f16::from_f32).collect();
            let run = KvRun::F16(&halves);
            // Four queries, as attention takes them.
            let (queries, mut scores, mut sums) = ([&x[..head]; 4], [[0.0; KEYS]; 4], [[0.0; 128]; 4]);
            let id = |name| BenchmarkId::new(name, head);
            group.bench_function(id("score"), |b| {
                b.iter(|| kernels.score(queries, run, 0.1, scores.each_mut().map(|scores| &mut scores[..])));
            });
            let weights = scores.each_ref().map(|scores| &scores[..]);
            group.bench_function(id("mix"), |b| {
                b.iter(|| kernels.mix(weights, run, sums.each_mut().map(|sums| &mut sums[..head])));
            });
        }
    }
}

/// Encoding of weights: those of a million elements, plain and by every instruction set.
fn encoders(c: &mut Criterion) {
    let values: Vec<f32> = Random::new(3).uniforms(1 << 20).iter().map(|x| x * 0.02).collect();
    for dtype in encode::ENCODABLE {
        let mut out = vec![0; dtype.row_bytes(values.len() as u64).unwrap() as usize];
        let mut group = c.benchmark_group(format!("encode/{dtype}"));
        group.sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
        group.throughput(Throughput::Elements(values.len() as u64));
        group.bench_function("plain", |b| b.iter(|| encode::encode(dtype, &values, &mut out)));
        for kernels in available() {
            group.bench_function(kernels.name, |b| b.iter(|| kernels.encode(dtype, &values, &mut out)));
        }
    }
}

criterion_group!(benches, products, ops, encoders);
criterion_main!(benches);
