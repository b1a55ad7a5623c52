//! Lowering to CUDA launches, which needs no GPU: every op of every family is covered exactly once, in every bucket.

#![cfg(feature = "cuda")]

mod common;

use common::gguf::Shape;
use common::launches::{fast_lists, goldens, lists, program};
use segno::backend::cuda::args::{Activation, Args, Shape as Batch};
use segno::backend::cuda::lower::{Extent, Kernel, Launch};
use segno::backend::cuda::supported;
use segno::format::{Data, Gguf};
use segno::plan::{Op, Program};
use segno::quant::DType;
use std::path::PathBuf;

fn programs() -> Vec<(PathBuf, Program)> {
    let bundled = common::bundled_model();
    let program = program(&Gguf::open(&bundled, true, &mut |_| Ok(())).unwrap());
    let runnable = goldens().into_iter().filter(|(_, _, runs)| runs.is_ok());
    runnable.map(|(path, program, _)| (path, program)).chain([(bundled, program)]).collect()
}

#[test]
fn every_family_without_experts_runs() {
    for (path, program, runs) in goldens() {
        let has_experts = program.ops.iter().any(|op| matches!(op, Op::Route { .. }));
        match runs {
            Err(refused) if has_experts => {
                assert!(
                    refused.to_string().ends_with("experts are not yet computed on a gpu; use the cpu"),
                    "{refused}"
                );
            }
            runs => assert!(runs.is_ok() && !has_experts, "{}: {runs:?}", path.display()),
        }
    }
}

#[test]
fn what_the_kernels_lack_is_refused_by_name() {
    let (_, mut program, _) = goldens().swap_remove(0);
    program.ops.push(program.ops[0].clone());
    let last = program.ops.len() - 1;
    let refused = supported::check(&program).unwrap_err().to_string();
    assert_eq!(
        refused,
        format!("the cuda backend cannot run op {last} (embed): the embedding comes first; use the cpu")
    );
    program.ropes = vec![program.ropes[0].clone(); 5];
    let refused = supported::check(&program).unwrap_err().to_string();
    assert_eq!(refused, "5 rotations: the cuda kernels take 4 at most");
    program.kv.head_dim = 514;
    let refused = supported::check(&program).unwrap_err().to_string();
    assert_eq!(refused, "heads of 514 elements: the cuda kernels take even sizes to 512");
}

#[test]
fn every_op_is_covered_exactly_once() {
    let programs = programs();
    assert!(programs.len() >= 15);
    for (path, program) in &programs {
        let (exact, fast) = (lists(program), fast_lists(program));
        let all = [&exact, &fast]
            .map(|lists| [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch, &lists.prompt]);
        for list in all.as_flattened() {
            let mut covered: Vec<usize> = list.iter().flat_map(|launch| launch.covers.clone()).collect();
            covered.sort_unstable();
            let all: Vec<usize> = (0..program.ops.len()).collect();
            assert_eq!(covered, all, "{}", path.display());
        }
    }
}

#[test]
fn no_type_is_refused() {
    for dtype in DType::ALL {
        let bytes = common::random::odd(dtype).bytes();
        let program = program(&Gguf::parse(Data::copy(&bytes, &mut |_| Ok(())).unwrap()).unwrap());
        let lists = lists(&program);
        for list in [&lists.single, &lists.two, &lists.four] {
            let covered = list.iter().map(|launch| launch.covers.len()).sum::<usize>();
            assert_eq!(covered, program.ops.len(), "{dtype}");
        }
    }
}

#[test]
fn every_bucket_launches_every_kernel() {
    for (path, program) in &programs() {
        let lists = lists(program);
        for bucket in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            for (splits, draws) in [(0, 0), (0, 1), (1, 0), (8, 1), (64, 0), (512, 1), (1, 1)] {
                let shape = Batch { rows: bucket, outputs: bucket, splits, draws };
                let idle = |launch: &&Launch| !launch.runs(&shape);
                let other = |kernel| match kernel {
                    Kernel::Argmax | Kernel::StepEnd => draws == 1,
                    kernel => kernel == Kernel::Sample && draws == 0,
                };
                let wrong = lists.of(&shape).iter().find(|launch| idle(launch) != other(launch.kernel));
                assert!(wrong.is_none(), "{}: bucket {bucket}, draws {draws}: {wrong:?}", path.display());
            }
        }
    }
}

#[test]
fn the_tiles_of_a_multiplication_hold_every_weight_row() {
    for (path, program) in &programs() {
        for launch in lists(program).batch.iter().filter(|launch| launch.kernel == Kernel::Matmul) {
            let Args::Matmul(args) = launch.args else { panic!("a multiplication with other arguments") };
            let mut tiles = 0;
            for segment in &args.segments[..args.count as usize] {
                assert_eq!(segment.first_tile, tiles);
                tiles += segment.matrix.rows.div_ceil(16);
            }
            assert_eq!(tiles, args.tiles, "{}", path.display());
            assert!(matches!(launch.grid[0], Extent::Tiles { tiles, .. } if tiles == args.tiles));
        }
    }
}

/// Blocks of one launch do not wait for each other, so none may write over what another still reads.
#[test]
fn attention_writes_over_nothing_that_it_reads() {
    let mut fused = 0;
    for (dim, kv_heads, group) in [(64, 2, 1), (128, 2, 4), (128, 1, 12), (256, 1, 2)] {
        let bytes = common::random::of_heads(dim, kv_heads, group, DType::Q8_0).bytes();
        let lists = lists(&program(&Gguf::parse(Data::copy(&bytes, &mut |_| Ok(())).unwrap()).unwrap()));
        let all = [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch, &lists.prompt];
        for launch in all.into_iter().flatten() {
            let Args::Attention(args) = launch.args else { continue };
            let read = [args.heads.q, args.heads.k, args.heads.v];
            assert!(!read.contains(&args.out.x), "{kv_heads} x {group} heads of {dim}: {:?}", launch.kernel);
            fused += usize::from(args.heads.k != 0);
        }
    }
    assert_eq!(fused, 5 * 4 * 2, "two layers each, in all lists but that of prompts");
}

#[test]
fn attention_fits_on_a_processor_however_few_blocks_have_more_room() {
    let mut spread = 0;
    for dim in [64, 80, 96, 128, 256] {
        let bytes = common::random::of_heads(dim, 2, 2, DType::Q8_0).bytes();
        let lists = lists(&program(&Gguf::parse(Data::copy(&bytes, &mut |_| Ok(())).unwrap()).unwrap()));
        for (rows, splits) in [1, 2, 4, 8, 16, 64].into_iter().flat_map(|rows| [1, 8, 64].map(|splits| (rows, splits)))
        {
            let shape = Batch { rows, outputs: rows, splits, draws: 0 };
            for launch in lists.of(&shape).iter().filter(|launch| matches!(launch.args, Args::Attention(_))) {
                let (bytes, blocks) = (launch.shared_bytes(&shape), launch.blocks(&shape).iter().product::<u32>());
                assert!(bytes <= 226 << 10, "{rows} rows of heads of {dim}, {splits} splits: {bytes} bytes");
                assert!(bytes == launch.shared_bytes || blocks <= 132, "{blocks} blocks are not few");
                spread += usize::from(bytes > launch.shared_bytes);
            }
        }
    }
    assert!(spread > 0);
}

#[test]
fn products_of_quantized_matrices_run_on_tensor_cores_in_every_batch() {
    for (path, program) in &programs() {
        let types = [DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];
        let quantized =
            |op: &Op| matches!(op, Op::MatMul { matrix, .. } if types.contains(&program.matrices[matrix.0].dtype));
        let lists = lists(program);
        for launch in lists.narrow.iter().chain(&lists.batch).chain(&lists.prompt) {
            let products = launch.covers.iter().filter(|&&op| quantized(&program.ops[op])).count();
            assert!(products == 0 || launch.kernel == Kernel::Tensor, "{}: {launch:?}", path.display());
            for rows in (1..=80).chain([512]).filter(|_| launch.kernel == Kernel::Tensor) {
                let shape = Batch { rows, outputs: rows, splits: 1, draws: 0 };
                assert!(launch.shared_bytes(&shape) <= 227 << 10 && launch.blocks(&shape)[0] > 0, "{rows} rows");
                assert!(launch.function(&shape).name().0.starts_with("matmul_"));
            }
        }
    }
}

#[test]
fn steps_take_seven_launches_a_layer_at_most() {
    let of_heads = common::random::of_heads(64, 2, 2, DType::Q8_0).bytes();
    let program = program(&Gguf::parse(Data::copy(&of_heads, &mut |_| Ok(())).unwrap()).unwrap());
    let layers = program.ops.iter().filter(|op| matches!(op, Op::Attention { .. })).count();
    let lists = lists(&program);
    let all =
        [(&lists.single, 5, 1), (&lists.two, 7, 2), (&lists.four, 7, 2), (&lists.narrow, 7, 3), (&lists.batch, 7, 3)];
    for (list, of_layer, of_head) in all {
        let launches = list.iter().filter(|launch| !launch.covers.is_empty()).count();
        assert_eq!(launches, 1 + of_layer * layers + of_head);
    }
}

/// A layer with the sizes of Llama 3.2 1B, and a head.
fn of_1b(dtype: DType, vocab: usize) -> Program {
    let shape =
        Shape { layers: 1, hidden: 2048, heads: 32, kv_heads: 8, head_dim: 64, feed_forward: 8192, ..Shape::small() };
    stored(&Shape { vocab, ..shape }, |_| dtype)
}

fn stored(shape: &Shape, dtype_of: impl Fn(&str) -> DType) -> Program {
    let bytes = common::random::stored(shape, dtype_of).bytes();
    program(&Gguf::parse(Data::copy(&bytes, &mut |_| Ok(())).unwrap()).unwrap())
}

#[test]
fn lone_rows_of_whole_tiles_take_kernels_without_rings() {
    use Kernel::{Matvec, MatvecColumns, MatvecMixed, MatvecWhole};
    let kernels = |program: &Program| -> Vec<Kernel> {
        let products = lists(program).single.into_iter().filter(|launch| matches!(launch.args, Args::Matvec(_)));
        products.map(|launch| launch.kernel).collect()
    };
    // Queries, keys and values; attention's output; gate and up; down; head.
    let all = [MatvecColumns, MatvecWhole, MatvecColumns, MatvecWhole, MatvecColumns];
    assert_eq!(kernels(&of_1b(DType::Q2_K, 304)), all);
    assert_eq!(kernels(&of_1b(DType::Q2_K, 301)), [&all[..4], &[Matvec]].concat());
    assert_eq!(kernels(&of_1b(DType::Q3_K, 304)), [Matvec, MatvecWhole, Matvec, MatvecWhole, Matvec]);
    assert_eq!(kernels(&of_1b(DType::Q4_K, 304)), [Matvec, Matvec, Matvec, MatvecWhole, Matvec]);
    // Sixteen rows of down are more than a block may have.
    assert_eq!(kernels(&of_1b(DType::Q8_0, 304)), [Matvec; 5]);
    assert_eq!(kernels(&of_1b(DType::BF16, 304)), [Matvec; 5]);
    let small =
        Shape { layers: 1, hidden: 256, heads: 4, kv_heads: 2, head_dim: 64, feed_forward: 256, ..Shape::small() };
    for (dtype, value_type, kernel) in [
        (DType::Q2_K, DType::Q4_K, MatvecMixed),
        (DType::Q4_K, DType::Q6_K, Matvec),
        (DType::Q2_K, DType::Q6_K, Matvec),
    ] {
        let program = stored(&small, |name| if name.contains("attn_v") { value_type } else { dtype });
        assert_eq!(kernels(&program)[0], kernel, "{dtype} and {value_type}");
    }
    for dtype in [DType::Q2_K, DType::Q4_K] {
        for launch in lists(&of_1b(dtype, 304)).single {
            let shape = Batch { rows: 1, outputs: 1, splits: 1, draws: 0 };
            assert!(launch.shared_bytes(&shape) <= (227 << 10) - 9728, "{:?}", launch.kernel);
        }
    }
}

#[test]
fn an_empty_set_of_outputs_runs_no_head() {
    let (_, program) = &programs()[0];
    let shape = Batch { rows: 7, outputs: 0, splits: 1, draws: 0 };
    let lists = lists(program);
    let running = |shape: &Batch| -> Vec<Launch> {
        let list = lists.of(shape).iter();
        list.filter(|launch| !launch.blocks(shape).contains(&0)).cloned().collect()
    };
    let kernels: Vec<Kernel> = running(&shape).iter().map(|launch| launch.kernel).collect();
    assert!(kernels.contains(&Kernel::Step) && kernels.contains(&Kernel::StepEnd));
    assert!(!kernels.contains(&Kernel::Select) && !kernels.contains(&Kernel::Argmax));
    let head = |launch: &Launch| matches!(launch.args, Args::Matvec(args) if args.best != 0);
    assert!(!running(&Batch { rows: 1, ..shape }).iter().any(head));
}

/// Where a launch leaves what products read, if it does that.
fn left_by(launch: &Launch) -> Option<Activation> {
    match launch.args {
        Args::Norm(args) => Some(args.out),
        Args::Normalize(args) => Some(args.out),
        Args::Elementwise(args) => Some(args.x),
        Args::Attention(args) => Some(args.out),
        Args::Tensor(args) => Some(args.gated).filter(|gated| gated.x != 0),
        _ => None,
    }
}

fn read_by(launch: &Launch) -> Option<Activation> {
    match launch.args {
        Args::Tensor(args) => Some(args.x),
        Args::Matmul(args) => Some(args.x),
        _ => None,
    }
}

/// Random models of whole chunks of columns, of types that fast batches take, and with others among them.
fn programs_to_round() -> Vec<Program> {
    let shape =
        Shape { hidden: 512, heads: 8, kv_heads: 2, head_dim: 64, feed_forward: 768, vocab: 384, ..Shape::small() };
    let file = |dtype_of: &dyn Fn(&str) -> DType| common::random::stored(&shape, dtype_of);
    let types = [DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K].map(|dtype| file(&|_| dtype));
    let up = |name: &str| if name.contains("ffn_up") { DType::Q4_0 } else { DType::Q8_0 };
    let down = |name: &str| if name.contains("ffn_down") { DType::F16 } else { DType::Q4_K };
    let mixed = [file(&up), file(&down)];
    let read =
        |file: common::gguf::File| program(&Gguf::parse(Data::copy(&file.bytes(), &mut |_| Ok(())).unwrap()).unwrap());
    types.into_iter().chain(mixed).map(read).collect()
}

#[test]
fn fast_batches_change_no_step_of_up_to_four_rows() {
    for program in programs().into_iter().map(|(_, program)| program).chain(programs_to_round()) {
        let (exact, fast) = (lists(&program), fast_lists(&program));
        // Three rows are padded to four.
        for rows in [1, 2, 4] {
            let shape = Batch { rows, outputs: rows, splits: 1, draws: 0 };
            assert_eq!(format!("{:?}", exact.of(&shape)), format!("{:?}", fast.of(&shape)));
        }
    }
}

#[test]
fn products_of_fast_batches_read_what_was_left_for_them() {
    for (index, program) in programs_to_round().into_iter().enumerate() {
        let lists = fast_lists(&program);
        for list in [&lists.narrow, &lists.batch, &lists.prompt] {
            let (mut left, mut loose, mut other) = (Vec::<Activation>::new(), 0, 0);
            for launch in list {
                if let Some(read) = read_by(launch) {
                    let from = left.iter().rfind(|left| left.x == read.x).unwrap();
                    let is_loose = matches!(launch.args, Args::Tensor(args) if args.loose != 0);
                    assert_eq!(is_loose, from.q != 0 && from.meta == 0, "{launch:?}");
                    // What floats alone read has no other form.
                    assert!(from.q == 0 || (from.q, from.meta) == (read.q, read.meta), "{launch:?} of {from:?}");
                    (loose, other) = (loose + usize::from(is_loose), other + usize::from(!is_loose));
                }
                left.extend(left_by(launch));
            }
            // Gate and up, or down, of both layers.
            assert!(loose >= 2 * 3 && (other > 0) == (index >= 4), "program {index}: {loose} loose, {other} others");
        }
    }
}

#[test]
fn fast_batches_of_every_size_have_a_kernel() {
    for program in programs_to_round() {
        let lists = fast_lists(&program);
        let is_loose = |launch: &&Launch| matches!(launch.args, Args::Tensor(args) if args.loose != 0);
        for launch in lists.narrow.iter().chain(&lists.batch).chain(&lists.prompt).filter(is_loose) {
            for rows in (1..=80).chain([100, 128, 200, 256, 300, 512, 576]) {
                let shape = Batch { rows, outputs: rows, splits: 1, draws: 0 };
                assert!(launch.shared_bytes(&shape) <= 227 << 10 && launch.blocks(&shape)[0] > 0, "{rows} rows");
                let (file, _) = launch.function(&shape).name();
                assert!(["matmul_loose", "matmul_skinny"].contains(&file), "{rows} rows: {file}");
            }
        }
    }
}
