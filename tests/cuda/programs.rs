//! Programs of all ops in random order on a GPU, against the processor's precise mode and against themselves over graphs, batches and chunks: no op
//! counts on what stands beside it. On a machine without a GPU the lists of launches alone are made.

use crate::common;
use crate::common::distance::distance;
use crate::common::passes::{Run, bits, precise};
use crate::common::programs::{latent, random, recurrent};
use segno::backend::cuda::Cuda;
use segno::backend::cuda::args::Args;
use segno::backend::cuda::catalogue::Kernel;
use segno::backend::cuda::launch::Launch;
use segno::backend::cuda::lower::supported;
use segno::backend::{Backend, KvType, cpu};
use segno::plan::{Op, Program};
use segno::quant::DType;
use std::sync::Arc;

const POSITIONS: usize = 290;
/// From this seed on programs have layers with states.
const STATES: u64 = 1000;
/// From this one on, rows of weights for each head.
const LATENT: u64 = 2000;

fn program(seed: u64) -> (Arc<Program>, bool) {
    let program = match seed {
        LATENT.. => latent(seed),
        STATES.. => recurrent(seed),
        _ => random(seed, !seed.is_multiple_of(3)),
    };
    let is_float = program.matrices.iter().all(|matrix| matrix.dtype == DType::F32);
    (Arc::new(program), is_float)
}

/// Passes of one row and of many, beside others and in chunks, change no bit of a program with experts, with rows of weights for each head, or with
/// layers whose heads differ; of floats alone, the usual mode is as good as the precise one.
#[test]
fn random_programs_with_experts_change_no_bit_on_the_processor() {
    const END: usize = 100;
    let open = |threads, precise, allow_avx512| {
        cpu::Cpu::new(&cpu::Options { threads, precise, allow_avx512, gives_way: false }).unwrap()
    };
    let (mut with_experts, mut of_floats, mut uneven) = (0, 0, 0);
    for seed in 0..40 {
        let program = Arc::new(if seed % 2 == 1 { latent(seed) } else { random(seed, true) });
        with_experts += usize::from(program.ops.iter().any(|op| matches!(op, Op::Route { .. })));
        uneven += usize::from(program.kv.all().any(|sizes| sizes != program.kv.of(0)));
        let mut modes = Vec::new();
        for precise in [false, true] {
            let mut run = Run::new(&open(2, precise, true), &program, KvType::F16, END, 5);
            let alone = run.steps(0..END, 1);
            for seqs in [2, 5] {
                assert!(bits(&alone) == bits(&run.steps(0..END, seqs)), "program {seed}: {seqs} at once differ");
            }
            for chunk in [7, 64, END] {
                let last = run.chunks(1, END, chunk);
                assert!(bits(&[last]) == bits(&alone[END - 1..]), "program {seed}: chunks of {chunk} differ");
            }
            let last = Run::new(&open(1, precise, false), &program, KvType::F16, END, 1).chunks(0, END, END);
            assert!(bits(&[last]) == bits(&alone[END - 1..]), "program {seed}: other instructions differ");
            modes.push(alone);
        }
        if program.matrices.iter().all(|matrix| matrix.dtype == DType::F32) {
            let apart = worst(&modes[0], &modes[1]);
            assert!(apart < 1e-4, "program {seed}: {apart:.1e} from the precise mode");
            of_floats += 1;
        }
    }
    assert!(with_experts > 25 && of_floats > 4 && uneven > 4, "{with_experts}, {of_floats}, {uneven}");
}

fn seeds(plain: u64, others: u64) -> impl Iterator<Item = u64> {
    (0..plain).chain(STATES..STATES + others).chain(LATENT..LATENT + others)
}

/// Whether a launch of products adds to the value that it reads, which its other blocks may still be reading.
fn adds_to_its_input(launch: &Launch) -> bool {
    let (x, segments) = match &launch.args {
        Args::Matmul(args) => (args.x.x, &args.segments[..]),
        Args::Tensor(args) => (args.x.x, &args.segments[..]),
        Args::Matvec(args) => (args.x.x, &args.segments[..]),
        _ => return false,
    };
    segments.iter().any(|segment| segment.adds != 0.0 && segment.out == x)
}

#[test]
fn every_op_of_any_program_is_covered_once() {
    let (mut sorted_types, mut routers, mut shared) = (Vec::new(), [0; 2], [0; 3]);
    let (mut steps, mut added, mut normed, mut early) = (0, 0, 0, 0);
    for seed in seeds(600, 200) {
        let (program, _) = program(seed);
        supported::check(&program).unwrap();
        for lists in [common::launches::lists(&program), common::launches::fast_lists(&program)] {
            let sorted = Some(&lists.sorted).filter(|list| !list.is_empty());
            let all = [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch, &lists.prompt];
            for list in all.into_iter().chain(sorted) {
                let mut covered: Vec<usize> = list.iter().flat_map(|launch| launch.covers.clone()).collect();
                covered.sort_unstable();
                assert_eq!(covered, (0..program.ops.len()).collect::<Vec<usize>>(), "program {seed}");
                for launch in list {
                    let is_wrong = adds_to_its_input(launch) || convolves_over_its_input(launch);
                    assert!(!is_wrong, "program {seed}: {launch:?}");
                }
            }
            let adds = |launch: &&Launch| matches!(&launch.args, Args::WeightedSum(args) if args.adds != 0.0);
            added += lists.prompt.iter().filter(adds).count();
            normed += lists.prompt.iter().filter(|launch| launch.function.kernel == Kernel::WeightedSumNorm).count();
            for pair in lists.prompt.windows(2) {
                let Args::ExpertGemm(args) = &pair[1].args else { continue };
                let is_behind = matches!(&pair[0].args, Args::ExpertGemm(unit) if unit.gated.x == args.x.x);
                assert!(args.is_early == 0 || is_behind, "program {seed}: {:?}", pair[1]);
                early += args.is_early;
            }
            sorted_types.extend(lists.prompt.iter().filter_map(|launch| match &launch.args {
                Args::ExpertGemm(args) => Some((args.tables[0].matrix.dtype as u32, args.gated.x != 0)),
                _ => None,
            }));
            for launch in lists.four.iter().chain(&lists.single) {
                match &launch.args {
                    Args::Router(args) => routers[usize::from(args.gate_out != 0)] += 1,
                    Args::ExpertUnit(args) => shared[0] += usize::from(args.shared_width > 0),
                    Args::RecurrentStep(_) => steps += 1,
                    Args::ExpertSum(args) if args.shared.data > 0 => {
                        shared[1 + usize::from(args.shared_gate != 0)] += 1
                    }
                    _ => {}
                }
            }
        }
    }
    // Each type that tensor cores take, with the gated unit and without.
    sorted_types.sort_unstable();
    sorted_types.dedup();
    assert_eq!(sorted_types.len(), 2 * 5, "{sorted_types:?}");
    let often =
        routers.iter().chain(&shared).chain([&steps, &added]).all(|&count| count > 5) && normed > 0 && early > 5;
    assert!(
        often,
        "{routers:?} routers without a gate and with one, {shared:?} shared halves, sums with a gate last, {steps} steps, {added} weighted sums added, {normed} with a norm, {early} products early"
    );
}

/// Whether a launch of convolutions writes what another of its blocks may still read.
fn convolves_over_its_input(launch: &Launch) -> bool {
    let Args::Convolve(args) = &launch.args else { return false };
    let parts = &args.parts[..args.count as usize];
    parts.iter().any(|part| parts.iter().any(|other| part.out == other.convolution.x))
}

/// The worst relative distance of a row of logits.
fn distances(found: &[Vec<f32>], expected: &[Vec<f32>]) -> Vec<f64> {
    let distances = found.iter().zip(expected).map(|(row, reference)| distance(row, reference).relative_l2);
    // What is no number must fail, so a comparison may not pass over it.
    distances.map(|d| if d.is_nan() { f64::INFINITY } else { d }).collect()
}

fn worst(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    distances(found, expected).into_iter().fold(0.0, f64::max)
}

/// The processor's usual mode rounds activations and the cache as the GPU does, so a program may lose there as much, but not much more.
#[test]
fn random_programs_compute_what_the_processor_computes() {
    if !common::gpu() {
        return;
    }
    let cuda = Cuda::new(0, false).unwrap();
    let usual =
        cpu::Cpu::new(&cpu::Options { threads: 0, precise: false, allow_avx512: true, gives_way: false }).unwrap();
    for seed in seeds(60, 30) {
        let (program, is_float) = program(seed);
        let steps =
            |backend: &dyn Backend, kv_type| Run::new(backend, &program, kv_type, POSITIONS, 1).steps(0..POSITIONS, 1);
        let expected = steps(&precise(), KvType::F32);
        let types = [KvType::F32, KvType::F16];
        let usually = types.map(|kv_type| worst(&steps(&usual, kv_type), &expected));
        let usually = usually[0].max(usually[1]);
        // Where scores of experts are close, rounding of any kind may choose another: that of a coarser cache tells at which positions.
        let has_experts = program.ops.iter().any(|op| matches!(op, Op::Route { .. }));
        let close = has_experts.then(|| distances(&steps(&usual, KvType::Q8), &expected));
        for kv_type in types {
            let found = distances(&steps(&cuda, kv_type), &expected);
            let worst = found.iter().copied().fold(0.0, f64::max);
            println!("program {seed}, {kv_type:?}: distance {worst:.2e}, of the processor's usual mode {usually:.2e}");
            let is_exact = is_float && kv_type == KvType::F32;
            for (position, found) in found.into_iter().enumerate() {
                let allowed = close.as_ref().map_or(usually, |close| close[position].max(usually));
                let allowed = if is_exact { 1e-4 } else { 3.0 * allowed + 1e-3 };
                assert!(found <= allowed, "program {seed}, {kv_type:?}, position {position}: {found:.2e}");
            }
        }
    }
}

#[test]
fn random_programs_change_no_bit_however_they_are_run() {
    if !common::gpu() {
        return;
    }
    let (graphs, eager) = (Cuda::new(0, false).unwrap(), Cuda::new(0, true).unwrap());
    for seed in seeds(60, 30) {
        let (program, _) = program(seed);
        for kv_type in [KvType::F16, KvType::F32] {
            let mut run = Run::new(&graphs, &program, kv_type, POSITIONS, 9);
            let alone = run.steps(0..POSITIONS, 1);
            let listed = Run::new(&eager, &program, kv_type, POSITIONS, 1).steps(0..POSITIONS, 1);
            assert!(bits(&alone) == bits(&listed), "program {seed}: eager differs from replay");
            for seqs in [2, 3, 5, 9] {
                assert!(bits(&alone) == bits(&run.steps(0..POSITIONS, seqs)), "program {seed}: {seqs} at once differ");
            }
            for chunk in [1, 50, POSITIONS] {
                let last = run.chunks(1, POSITIONS, chunk);
                assert!(bits(&[last]) == bits(&alone[POSITIONS - 1..]), "program {seed}: chunks of {chunk} differ");
            }
        }
    }
}
