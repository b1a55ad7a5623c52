//! Lowering to CUDA launches, which needs no GPU: every op of every family is covered exactly once, in every bucket.

use crate::common;
use crate::common::gguf::{Shape, parsed};
use crate::common::launches::{Sort, fast_lists, goldens, lists, lists_of, program};
use crate::common::layers::{LAYERS, Uneven};
use crate::common::mixture::mixture;
use segno::backend::cuda::args::{Activation, Args, Shape as Batch};
use segno::backend::cuda::catalogue::Kernel;
use segno::backend::cuda::launch::{Extent, Launch};
use segno::backend::cuda::lower::supported;
use segno::format::Gguf;
use segno::kv::{HeadSizes, Layout};
use segno::plan::memory::place;
use segno::plan::op::Index;
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
fn every_family_runs() {
    let (mut latent, mut groups) = (0, 0);
    for (path, program, runs) in goldens() {
        if let Err(refused) = runs {
            panic!("{}: {refused}", path.display());
        }
        latent += usize::from(program.kv.all().any(|sizes| sizes.value_dim != sizes.head_dim));
        groups += usize::from(program.ops.iter().any(|op| matches!(op, Op::GroupNorm { .. })));
    }
    assert!(latent >= 5 && groups >= 4, "{latent} with latent attention, {groups} with norms of groups");
}

#[test]
fn what_the_kernels_lack_is_refused_by_name() {
    let (_, mut program, _) = goldens().swap_remove(0);
    let Op::Embed { index, .. } = &mut program.ops[0] else { panic!("{:?}", program.ops[0]) };
    *index = Index::Position;
    let refused = supported::check(&program).unwrap_err().to_string();
    assert_eq!(refused, "the cuda backend cannot run op 0 (embed): the first embedding is that of tokens");
    program.ropes = vec![program.ropes[0].clone(); 5];
    let refused = supported::check(&program).unwrap_err().to_string();
    assert_eq!(refused, "5 rotations: the cuda kernels take 4 at most");
    program.kv = Layout::new([HeadSizes::new(2, 1, 64), HeadSizes::new(2, 1, 514)]).unwrap();
    let refused = supported::check(&program).unwrap_err().to_string();
    assert_eq!(refused, "heads of 514 elements with values of 514: the cuda kernels take even sizes to 576 and 512");
    let mut program = goldens().into_iter().find(|(path, ..)| path.ends_with("deepseekv3-plain.gguf")).unwrap().1;
    for op in &mut program.ops {
        if let Op::HeadMatMul { part, .. } = op {
            part.count = 544;
        }
    }
    let refused = supported::check(&program).unwrap_err().to_string();
    assert!(refused.ends_with("(head matmul): its kernel takes 512 elements of each head at most"), "{refused}");
}

#[test]
fn every_op_of_passes_for_vectors_is_covered_once() {
    let mut encoders = 0;
    let of_cases = common::embeddings::cases().into_iter().map(|case| {
        let program = program(&Gguf::open(&case.file, true, &mut |_| Ok(())).unwrap());
        supported::check(&program).unwrap();
        (case.file, program)
    });
    for (path, program) in of_cases.chain(programs()) {
        let embedding = program.embedding.as_ref().unwrap();
        let ops: Vec<&Op> = program.ops[..embedding.after].iter().chain(&embedding.ops).collect();
        for sort in [Sort::Exact, Sort::Fast, Sort::F32Cache, Sort::Q8Cache] {
            let lists = lists_of(&program, sort);
            let mut covered: Vec<usize> = lists.texts.iter().flat_map(|launch| launch.covers.clone()).collect();
            covered.sort_unstable();
            let all: Vec<usize> = (0..ops.len()).collect();
            assert_eq!(covered, all, "{}", path.display());
            let steps = [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch, &lists.prompt];
            assert!(steps.iter().all(|list| list.is_empty() == program.logits.is_none()), "{}", path.display());
            // Nothing that is left to products may be what the host reads.
            let leaves_factors = |launch: &Launch| matches!(launch.args, Args::Norm(args) if args.out.factors != 0);
            let writes_tokens = |&op: &usize| ops[op].writes() == Some(embedding.tokens);
            let last = lists.texts.iter().rfind(|launch| launch.covers.iter().any(writes_tokens)).unwrap();
            assert!(!leaves_factors(last), "{}: {last:?}", path.display());
        }
        encoders += usize::from(program.logits.is_none());
    }
    assert_eq!(encoders, 6);
}

#[test]
fn passes_for_vectors_launch_every_kernel_for_any_number_of_rows() {
    for case in common::embeddings::cases() {
        let lists = lists(&program(&Gguf::open(&case.file, true, &mut |_| Ok(())).unwrap()));
        for rows in [1, 2, 7, 64, 512, 8192] {
            let shape = Batch { rows, outputs: 0, splits: 0, draws: 0 };
            assert!(lists.texts.iter().all(|launch| launch.runs(&shape)), "{}: {rows} rows", case.name);
        }
    }
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
        let program = program(&parsed(&bytes));
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
                let wrong = lists.of(&shape).iter().find(|launch| idle(launch) != other(launch.function.kernel));
                assert!(wrong.is_none(), "{}: bucket {bucket}, draws {draws}: {wrong:?}", path.display());
            }
        }
    }
}

#[test]
fn the_tiles_of_a_multiplication_hold_every_weight_row() {
    for (path, program) in &programs() {
        for launch in lists(program).batch.iter().filter(|launch| launch.function.kernel == Kernel::GemmDp4a) {
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
        for sort in [Sort::Exact, Sort::Q8Cache] {
            let lists = lists_of(&program(&parsed(&bytes)), sort);
            let all = [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch, &lists.prompt];
            for launch in all.into_iter().flatten() {
                let Args::Attention(args) = launch.args else { continue };
                let read = [args.heads.q, args.heads.k, args.heads.v];
                assert!(!read.contains(&args.out.x), "{kv_heads} x {group} heads of {dim}: {:?}", launch.function);
                fused += usize::from(args.heads.k != 0);
            }
        }
    }
    assert_eq!(fused, 2 * 5 * 4 * 2, "two layers each, in all lists but that of prompts");
}

#[test]
fn caches_of_8_bits_have_kernels_of_their_own() {
    for dim in [48, 64, 80, 96, 128, 256] {
        let bytes = common::random::of_heads(dim, 2, 2, DType::Q8_0).bytes();
        let lists = lists_of(&program(&parsed(&bytes)), Sort::Q8Cache);
        for (rows, splits) in [(1, 1), (1, 64), (2, 1), (8, 8), (64, 64), (300, 0)] {
            let shape = Batch { rows, outputs: rows, splits, draws: 0 };
            let name = |launch: &Launch| launch.choose(&shape).function.entry().name;
            let of_heads = |launch: &&Launch| matches!(launch.args, Args::Attention(_) | Args::Heads(_));
            let names: Vec<&str> = lists.of(&shape).iter().filter(of_heads).map(name).collect();
            assert!(names.iter().all(|name| name.contains("q8")), "heads of {dim}, {rows} rows: {names:?}");
            let is_whole = dim % 32 == 0 && splits > 0;
            assert_eq!(
                names.len(),
                if is_whole {
                    2
                } else if dim % 32 == 0 || splits > 0 && dim == 80 {
                    4
                } else {
                    6
                }
            );
        }
    }
}

#[test]
fn attention_fits_on_a_processor_however_few_blocks_have_more_room() {
    let mut spread = 0;
    for dim in [64, 80, 96, 128, 256] {
        let bytes = common::random::of_heads(dim, 2, 2, DType::Q8_0).bytes();
        let lists = lists(&program(&parsed(&bytes)));
        for (rows, splits) in [1, 2, 4, 8, 16, 64].into_iter().flat_map(|rows| [1, 8, 64].map(|splits| (rows, splits)))
        {
            let shape = Batch { rows, outputs: rows, splits, draws: 0 };
            for launch in lists.of(&shape).iter().filter(|launch| matches!(launch.args, Args::Attention(_))) {
                let choice = launch.choose(&shape);
                let (bytes, blocks) = (choice.shared_bytes, choice.blocks.iter().product::<u32>());
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
            let is_gemm = matches!(launch.args, Args::Tensor(_));
            assert!(products == 0 || is_gemm, "{}: {launch:?}", path.display());
            for rows in (1..=80).chain([512]).filter(|_| is_gemm) {
                let shape = Batch { rows, outputs: rows, splits: 1, draws: 0 };
                let choice = launch.choose(&shape);
                assert!(choice.shared_bytes <= 227 << 10 && choice.runs(), "{rows} rows");
                assert!(choice.function.entry().file.starts_with("gemm_i8"));
            }
        }
    }
}

#[test]
fn steps_take_seven_launches_a_layer_at_most() {
    let of_heads = common::random::of_heads(64, 2, 2, DType::Q8_0).bytes();
    let program = program(&parsed(&of_heads));
    let layers = program.ops.iter().filter(|op| matches!(op, Op::Attention { .. })).count();
    let lists = lists(&program);
    let all =
        [(&lists.single, 5, 1), (&lists.two, 7, 2), (&lists.four, 7, 2), (&lists.narrow, 7, 3), (&lists.batch, 7, 3)];
    for (list, of_layer, of_head) in all {
        let launches = list.iter().filter(|launch| !launch.covers.is_empty()).count();
        assert_eq!(launches, 1 + of_layer * layers + of_head);
    }
}

#[test]
fn layers_that_differ_have_attention_of_their_own_sizes() {
    let program = program(&parsed(&Uneven::new(&LAYERS).file().bytes()));
    supported::check(&program).unwrap();
    let expected = LAYERS.map(|layer| [layer.heads, layer.kv_heads, layer.head_dim].map(|size| size as u32));
    let lists = lists(&program);
    let steps = [&lists.single, &lists.two, &lists.four, &lists.narrow, &lists.batch];
    for (list, is_step) in steps.into_iter().map(|list| (list, true)).chain([(&lists.prompt, false)]) {
        let attends =
            |launch: &&Launch| launch.covers.iter().any(|&op| matches!(program.ops[op], Op::Attention { .. }));
        for (launch, expected) in list.iter().filter(attends).zip(expected) {
            let Args::Attention(args) = &launch.args else { panic!("{launch:?}") };
            assert_eq!([args.heads.heads, args.heads.kv_heads, args.heads.head_dim], expected);
            // Pages pass through shared memory where heads are of a size that has kernels for that.
            let family = match (expected[2], is_step) {
                (64 | 128, true) => "attention_decode",
                (64 | 128, false) => "attention_prefill",
                _ => "attention_f16",
            };
            let name = launch.function.entry().name;
            assert!(name.starts_with(family), "{name} for heads of {}", expected[2]);
        }
        assert_eq!(list.iter().filter(attends).count(), LAYERS.len());
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
    program(&parsed(&bytes))
}

#[test]
fn single_rows_take_the_kernel_that_their_sizes_and_types_call_for() {
    let kernels = |program: &Program| -> Vec<&str> {
        let products = lists(program).single.into_iter().filter(|launch| matches!(launch.args, Args::Matvec(_)));
        products.map(|launch| launch.function.entry().name).collect()
    };
    // Queries, keys and values; attention's output; gate and up; down; head.
    let plain = |name| [name; 5];
    let q2_k = [
        "gemv_registers_plain",
        "gemv_single_stage_q2_k",
        "gemv_registers_glu",
        "gemv_single_stage_q2_k",
        "gemv_registers_head",
    ];
    assert_eq!(kernels(&of_1b(DType::Q2_K, 304)), q2_k);
    assert_eq!(kernels(&of_1b(DType::Q2_K, 301)), [&q2_k[..4], &["gemv_b1_q2_k"]].concat());
    let (ring, single) = ("gemv_b1_q3_k", "gemv_single_stage_q3_k");
    assert_eq!(kernels(&of_1b(DType::Q3_K, 304)), [ring, single, ring, single, ring]);
    let ring = "gemv_b1_q4_k";
    assert_eq!(kernels(&of_1b(DType::Q4_K, 304)), [ring, ring, ring, "gemv_single_stage_q4_k", ring]);
    // Sixteen rows of down are more than a block may have.
    assert_eq!(kernels(&of_1b(DType::Q8_0, 304)), plain("gemv_b1_q8_0"));
    assert_eq!(kernels(&of_1b(DType::BF16, 304)), plain("gemv_b1_bf16"));
    let small =
        Shape { layers: 1, hidden: 256, heads: 4, kv_heads: 2, head_dim: 64, feed_forward: 256, ..Shape::small() };
    for (dtype, value_type, kernel) in [
        (DType::Q2_K, DType::Q4_K, "gemv_b1_q2_k_q4_k"),
        (DType::Q4_K, DType::Q6_K, "gemv_b1_q4_k"),
        (DType::Q2_K, DType::Q6_K, "gemv_b1_any"),
        (DType::Q4_K, DType::F32, "gemv_b1_any"),
    ] {
        let program = stored(&small, |name| if name.contains("attn_v") { value_type } else { dtype });
        assert_eq!(kernels(&program)[0], kernel, "{dtype} and {value_type}");
    }
    for dtype in [DType::Q2_K, DType::Q4_K] {
        for launch in lists(&of_1b(dtype, 304)).single {
            let shape = Batch { rows: 1, outputs: 1, splits: 1, draws: 0 };
            assert!(launch.choose(&shape).shared_bytes <= (227 << 10) - 9728, "{:?}", launch.function);
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
        list.filter(|launch| launch.runs(shape)).cloned().collect()
    };
    let kernels: Vec<Kernel> = running(&shape).iter().map(|launch| launch.function.kernel).collect();
    assert!(kernels.contains(&Kernel::StepBegin) && kernels.contains(&Kernel::StepEnd));
    assert!(!kernels.contains(&Kernel::SelectRows) && !kernels.contains(&Kernel::Argmax));
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
    let read = |file: common::gguf::File| program(&parsed(&file.bytes()));
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
            let (mut left, mut f16, mut other) = (Vec::<Activation>::new(), 0, 0);
            for launch in list {
                if let Some(read) = read_by(launch) {
                    let from = left.iter().rfind(|left| left.x == read.x).unwrap();
                    let is_f16 = matches!(launch.args, Args::Tensor(args) if args.is_f16());
                    assert_eq!(is_f16, from.q != 0 && from.meta == 0, "{launch:?}");
                    // What floats alone read has no other form.
                    assert!(from.q == 0 || (from.q, from.meta) == (read.q, read.meta), "{launch:?} of {from:?}");
                    (f16, other) = (f16 + usize::from(is_f16), other + usize::from(!is_f16));
                }
                left.extend(left_by(launch));
            }
            // Gate and up, or down, of both layers.
            assert!(f16 >= 2 * 3 && (other > 0) == (index >= 4), "program {index}: {f16} f16, {other} others");
        }
    }
}

#[test]
fn fast_batches_of_every_size_have_a_kernel() {
    for program in programs_to_round() {
        let lists = fast_lists(&program);
        let is_f16 = |launch: &&Launch| matches!(launch.args, Args::Tensor(args) if args.is_f16());
        for launch in lists.narrow.iter().chain(&lists.batch).chain(&lists.prompt).filter(is_f16) {
            for rows in (1..=80).chain([100, 128, 200, 256, 300, 512, 576]) {
                let shape = Batch { rows, outputs: rows, splits: 1, draws: 0 };
                let choice = launch.choose(&shape);
                assert!(choice.shared_bytes <= 227 << 10 && choice.runs(), "{rows} rows");
                let file = choice.function.entry().file;
                assert!(["gemm_f16", "gemm_f16_small_batch"].contains(&file), "{rows} rows: {file}");
            }
        }
    }
}

/// The unit of a single row's experts norms the row and chooses among them; that of more rows finds both made.
#[test]
fn the_unit_of_a_single_row_norms_and_chooses() {
    let file = mixture(DType::Q8_0);
    let program = program(&parsed(&file.bytes()));
    let lists = lists(&program);
    for (list, inside) in [(&lists.single, true), (&lists.two, false), (&lists.four, false)] {
        let mut units = 0;
        for launch in list {
            let Args::ExpertUnit(args) = launch.args else { continue };
            assert_eq!((args.norm != 0, args.route.logits != 0), (inside, inside), "{:?}", launch.covers);
            units += 1;
        }
        let routes = list.iter().filter(|launch| matches!(launch.args, Args::Route(_) | Args::Router(_))).count();
        assert_eq!((units, routes), (2, if inside { 0 } else { 2 }), "of two layers");
    }
}

/// A unit that chooses reads them while other blocks already write.
#[test]
fn nothing_between_a_choice_and_the_sum_takes_the_place_of_its_logits() {
    let mut looked_at = 0;
    for (path, program, _) in goldens() {
        let buffer_of = place(&program).unwrap().buffer_of;
        let choices = program.ops.iter().enumerate().filter_map(|(at, op)| match *op {
            Op::Route { logits, .. } => Some((at, logits)),
            _ => None,
        });
        for (at, logits) in choices {
            let until_sum = program.ops[at..].iter().take_while(|op| !matches!(op, Op::WeightedSum { .. }));
            for id in until_sum.filter_map(|op| op.writes()) {
                looked_at += 1;
                assert_ne!(buffer_of[id.0], buffer_of[logits.0], "{}", path.display());
            }
        }
    }
    assert!(looked_at > 100, "{looked_at}");
}
