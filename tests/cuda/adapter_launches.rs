//! What is launched for adapters, without a GPU, of whole models and of a device's halves: every op is covered once, what adapters add stands before
//! the products that take it, and reads floats that are there.

use super::adapters::quantized;
use super::divided::some;
use crate::common::gguf::parsed;
use crate::common::launches::{Sort, adapted_lists, goldens, lists_of, program};
use segno::backend::cuda::args::{AdapterArgs, Args, ExpertTable, Segment, Shape as Batch};
use segno::backend::cuda::catalogue::Kernel;
use segno::backend::cuda::launch::Launch;
use segno::backend::cuda::lower::lists::Lists;
use segno::plan::halves::{cuts, divide};
use segno::plan::{Op, Program};
use std::collections::BTreeSet;
use std::path::Path;

/// The programs of small models, and a device's halves of them.
fn programs() -> Vec<(String, Program)> {
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let runnable = goldens().into_iter().filter(|(_, _, runs)| runs.is_ok());
    let small = runnable.flat_map(|(path, program, _)| {
        let half = |cut| (format!("{}, {cut:?}", name(&path)), divide(&program, cut).unwrap().unwrap().device);
        let halves: Vec<_> = some(cuts(&program).unwrap()).into_iter().map(half).collect();
        halves.into_iter().chain([(name(&path), program)])
    });
    small.chain(quantized().into_iter().map(|(name, bytes)| (name.into(), program(&parsed(&bytes))))).collect()
}

/// Columns of a tile of the launch that leaves what adapters add.
const TILE: u32 = 128;

fn all_of(lists: &Lists) -> Vec<&Vec<Launch>> {
    let Lists { single, two, four, narrow, batch, sorted, prompt, .. } = lists;
    [single, two, four, narrow, batch, sorted, prompt].into_iter().filter(|list| !list.is_empty()).collect()
}

/// The products of a launch, what they read, and the weights of the norm that they take of it first.
fn products(launch: &Launch) -> Option<(&[Segment], u64, u64)> {
    match &launch.args {
        Args::Matvec(args) if args.gated.x == 0 => Some((&args.segments[..args.count as usize], args.x.x, args.norm)),
        Args::Tensor(args) if !args.is_f16() && args.gated.x == 0 => {
            Some((&args.segments[..args.count as usize], args.x.x, 0))
        }
        Args::Matmul(args) => Some((&args.segments[..args.count as usize], args.x.x, 0)),
        _ => None,
    }
}

/// The tables of experts that a launch multiplies by, what the products read, and how many outputs a pair has.
fn tables(launch: &Launch) -> Option<(Vec<ExpertTable>, u64, u32)> {
    match &launch.args {
        Args::Expert(args) => Some((vec![args.table], args.x.x, args.width)),
        Args::ExpertGemm(args) => {
            Some((args.tables[..1 + usize::from(args.gated.x != 0)].to_vec(), args.x.x, args.width))
        }
        Args::ExpertUnit(args) => Some((vec![args.gate, args.up], args.x.x, args.width)),
        Args::ExpertSum(args) => Some((vec![args.table], args.x.x, args.width)),
        _ => None,
    }
}

fn adapters_of(launch: &Launch) -> Option<&AdapterArgs> {
    match &launch.args {
        Args::Adapter(args) => Some(args),
        Args::ExpertAdapter(args) => Some(&args.own),
        _ => None,
    }
}

#[test]
fn adapters_cover_every_op_once_and_stand_before_each_product() {
    let mut norms = 0;
    for (name, program) in programs() {
        for sort in [Sort::Exact, Sort::Fast, Sort::F32Cache] {
            let lists = adapted_lists(&program, sort, vec![true; program.matrices.len()]);
            for list in all_of(&lists) {
                let mut covered: Vec<usize> = list.iter().flat_map(|launch| launch.covers.clone()).collect();
                covered.sort_unstable();
                assert_eq!(covered, (0..program.ops.len()).collect::<Vec<_>>(), "{name}");
                let mut adapted = 0;
                for triple in list.windows(3) {
                    let [shrink, expand, product] = triple else { unreachable!() };
                    let (Kernel::AdapterShrink, Some(args)) = (shrink.function.kernel, adapters_of(shrink)) else {
                        continue;
                    };
                    let (segments, x, norm) = products(product).unwrap_or_else(|| panic!("{name}: {product:?}"));
                    assert_eq!((expand.function.kernel, adapters_of(expand)), (Kernel::AdapterExpand, Some(args)));
                    // What the product reads, or what it is the norm of, which is left there then.
                    let makes_norm = args.normed.x != 0;
                    norms += usize::from(makes_norm);
                    let read = if makes_norm { args.normed.x } else { args.x.x };
                    assert_eq!((args.count as usize, read, args.x.q), (segments.len(), x, 0), "{name}");
                    assert!(if makes_norm { args.norm != 0 && norm == 0 } else { args.norm == norm }, "{name}");
                    let mut tiles = 0;
                    for (matrix, segment) in args.matrices.iter().zip(segments) {
                        assert_eq!(
                            (matrix.out, matrix.width, matrix.first_tile),
                            (segment.out, segment.matrix.rows, tiles)
                        );
                        assert!(segment.adds == if matrix.adds == 0.0 { 1.0 } else { matrix.adds });
                        tiles += matrix.width.div_ceil(TILE);
                    }
                    for shape in [
                        Batch { rows: 5, outputs: 3, splits: 0, draws: 0 },
                        Batch { rows: 9, outputs: 9, splits: 0, draws: 0 },
                    ] {
                        let [x, y, z] = expand.choose(&shape).blocks;
                        let rows = if args.outputs != 0 { shape.outputs } else { shape.rows };
                        let of_block = expand.choose(&shape).function.entry().numbers[0];
                        assert_eq!((x, y, z), (tiles, rows.div_ceil(of_block), 1), "{name}");
                        assert_eq!(shrink.choose(&shape).blocks[1], y);
                    }
                    adapted += segments.len();
                }
                let all = program.ops.iter().filter(|op| matches!(op, Op::MatMul { .. })).count();
                assert_eq!(adapted, all, "{name}: products without their adapters");
            }
        }
    }
    assert!(norms > 100, "{norms} norms are made along with sums");
}

/// Of tables of experts too: what is left for a pair is what the launch behind adds, each table's in a place of its own, and no launch but that of
/// the products writes there. Only the order of experts may stand between.
#[test]
fn adapters_of_experts_stand_before_each_product() {
    for (name, program) in programs() {
        for sort in [Sort::Exact, Sort::Fast] {
            let lists = adapted_lists(&program, sort, vec![true; program.matrices.len()]);
            for list in all_of(&lists) {
                let list: Vec<&Launch> =
                    list.iter().filter(|launch| launch.function.kernel != Kernel::ExpertOrder).collect();
                let mut adapted = 0;
                for triple in list.windows(3) {
                    let [shrink, expand, product] = triple else { unreachable!() };
                    let (Kernel::AdapterShrinkExperts, Args::ExpertAdapter(args)) =
                        (shrink.function.kernel, &shrink.args)
                    else {
                        continue;
                    };
                    let (tables, x, width) = tables(product).unwrap_or_else(|| panic!("{name}: {product:?}"));
                    assert_eq!((expand.function.kernel, &expand.args), (Kernel::AdapterExpandExperts, &shrink.args));
                    assert_eq!((args.own.count as usize, args.own.x.x), (tables.len(), x), "{name}");
                    let tiles = width.div_ceil(TILE);
                    for (index, table) in tables.iter().enumerate() {
                        let (matrix, part) = (args.own.matrices[index], args.tables[index]);
                        assert_eq!((matrix.out, matrix.width), (table.added, width), "{name}");
                        assert_eq!((matrix.first_tile, matrix.adds), (index as u32 * tiles, 0.0), "{name}");
                        assert_eq!((part.scale, part.each, part.first), (table.scale, table.each, table.first));
                    }
                    let places: BTreeSet<u64> = tables.iter().map(|table| table.added).collect();
                    assert!(places.len() == tables.len() && !places.contains(&0), "{name}: {places:?}");
                    if let Args::ExpertUnit(args) = &product.args {
                        assert_eq!(args.shared_width, 0, "{name}: the shared expert's outputs may stand there");
                        assert_eq!(args.route.logits, 0, "{name}: adapters read what the unit is to choose");
                    }
                    let shape = Batch { rows: 5, outputs: 5, splits: 0, draws: 0 };
                    let blocks = [tables.len() as u32 * tiles, 5 * args.chosen, 1];
                    assert_eq!(expand.choose(&shape).blocks, blocks, "{name}");
                    assert_eq!(shrink.choose(&shape).blocks[1], blocks[1]);
                    adapted += tables.len();
                }
                let is_product = |op: &&Op| matches!(op, Op::ExpertMatMul(_));
                let all = program.ops.iter().filter(is_product).count();
                assert_eq!(adapted, all, "{name}: products with experts without their adapters");
            }
        }
    }
}

/// The sum over experts begins beside their unit where that is the launch before it, and waits for what stands before it where adapters come between.
/// A unit that makes the choice tells it, each time with a flag of its own; others have waited for it.
#[test]
fn sums_begin_beside_units_of_experts_alone() {
    let (mut told, mut beside, mut behind) = (0, 0, 0);
    for (name, program) in programs() {
        for changed in [false, true] {
            let lists = adapted_lists(&program, Sort::Exact, vec![changed; program.matrices.len()]);
            for (number, list) in all_of(&lists).into_iter().enumerate() {
                let mut turns = 0;
                for pair in list.windows(2) {
                    let Args::ExpertSum(sum) = &pair[1].args else { continue };
                    let unit = if let Args::ExpertUnit(unit) = &pair[0].args { Some(unit) } else { None };
                    let unit = unit.filter(|unit| unit.choice == sum.choice);
                    assert_eq!(sum.is_early != 0, unit.is_some(), "{name}: behind {:?}", pair[0].function);
                    let chooses = unit.is_some_and(|unit| unit.route.logits != 0);
                    assert_eq!(sum.told.words != 0, chooses, "{name}: list {number}");
                    let Some(unit) = unit else {
                        behind += 1;
                        continue;
                    };
                    assert_eq!(unit.told, sum.told, "{name}: list {number}");
                    if chooses {
                        assert!(sum.told.turn > turns, "{name}: turn {} behind {turns}", sum.told.turn);
                        (turns, told) = (sum.told.turn, told + 1);
                    } else {
                        beside += 1;
                    }
                }
            }
        }
    }
    assert!(told > 0 && beside > 0 && behind > 0, "{told} sums are told, {beside} beside and {behind} behind");
}

/// What adapters read is there as floats: whatever launch writes it last leaves no other form alone.
#[test]
fn adapters_read_floats() {
    for (name, program) in programs() {
        for sort in [Sort::Exact, Sort::Fast] {
            let lists = adapted_lists(&program, sort, vec![true; program.matrices.len()]);
            for list in all_of(&lists) {
                for (at, launch) in list.iter().enumerate() {
                    let Some(args) = adapters_of(launch) else { continue };
                    let writes = |before: &&Launch| before.args.written().any(|written| written.x == args.x.x);
                    let Some(writer) = list[..at].iter().rfind(writes) else { continue };
                    let left = *writer.args.written().find(|written| written.x == args.x.x).unwrap();
                    assert!(left.q == 0 || left.meta != 0, "{name}: 16-bit floats of {writer:?}");
                    if let Args::Attention(args) = &writer.args {
                        assert_eq!(args.floats, 1, "{name}: {writer:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn matrices_that_no_adapter_changes_have_no_launches() {
    for (name, program) in programs() {
        let none = adapted_lists(&program, Sort::Exact, vec![false; program.matrices.len()]);
        assert_eq!(format!("{none:?}"), format!("{:?}", lists_of(&program, Sort::Exact)), "{name}");
        let values = program.origins.iter().map(|origin| origin.tensor.contains("attn_v")).collect();
        let lists = adapted_lists(&program, Sort::Exact, values);
        let of =
            |op: &Op| matches!(op, Op::MatMul { matrix, .. } if program.origins[matrix.0].tensor.contains("attn_v"));
        let products = program.ops.iter().filter(|op| of(op)).count();
        for list in all_of(&lists) {
            let launches = list.iter().filter_map(adapters_of).count();
            assert_eq!(launches, 2 * products, "{name}");
            assert!(list.iter().filter_map(adapters_of).all(|args| args.count == 1), "{name}");
        }
    }
}
