//! Placing values and lowering programs: as the plain rule has it, and in time that grows with the layers, not with their square.

#[cfg(feature = "cuda")]
use crate::common;
use crate::common::gguf::{File, Shape, parsed};
use segno::arch::{Arch, Hparams};
use segno::plan::memory::{Buffer, Placement, place};
use segno::plan::op::Embedding;
use segno::plan::{Op, Program, ValueId, build::build};
use std::time::{Duration, Instant};

fn program(file: &File, layers: usize) -> Program {
    let gguf = parsed(&file.bytes());
    let arch = Arch::find(gguf.metadata().text("general.architecture").unwrap().unwrap()).unwrap();
    let hparams = Hparams::read(gguf.metadata(), &arch).unwrap();
    let (heads, feed_forward) = (vec![hparams.heads[0]; layers], vec![hparams.feed_forward[0]; layers]);
    let key_sources = (0..layers).collect();
    build(&gguf, &arch, &Hparams { layers, heads, feed_forward, key_sources, ..hparams }).unwrap()
}

/// A program of so many layers; files may have fewer.
fn deep(layers: usize) -> Program {
    let tiny = Shape { hidden: 2, heads: 1, kv_heads: 1, head_dim: 2, feed_forward: 2, vocab: 2, ..Shape::small() };
    program(Shape { layers, ..tiny }.file().set("llama.block_count", 1u32), layers)
}

/// The last of all ops that touches a value: keys and values live until the attention that follows their store, logits and embeddings to the end.
fn last_use(program: &Program, ops: &[Op], id: usize) -> usize {
    let embeddings = program.embedding.iter().flat_map(Embedding::ends);
    if program.logits.into_iter().chain(embeddings).any(|end| end == ValueId(id)) {
        return usize::MAX;
    }
    let touches = |op: &Op| op.reads().chain(op.writes()).any(|touched| touched.0 == id);
    let last = ops.iter().rposition(touches).unwrap_or(0);
    match ops[last] {
        Op::StoreKv { .. } => last + ops[last..].iter().position(|op| matches!(op, Op::Attention { .. })).unwrap(),
        _ => last,
    }
}

/// The rule as it is written: after each op every value is looked at.
fn placed_plainly(program: &Program) -> Placement {
    let mut placement = Placement { buffer_of: vec![usize::MAX; program.values.len()], buffers: Vec::new() };
    let mut free: Vec<usize> = Vec::new();
    let ops: Vec<Op> = program.all_ops().cloned().collect();
    for (at, op) in ops.iter().enumerate() {
        if let Some(id) = op.writes().filter(|id| placement.buffer_of[id.0] == usize::MAX) {
            let (value, buffers) = (program.values[id.0], &mut placement.buffers);
            let fits = |index: &usize| buffers[*index].rows == value.rows;
            let near = |index: &usize| (buffers[*index].width.abs_diff(value.width), *index);
            let index = free.iter().copied().filter(fits).min_by_key(near).unwrap_or(buffers.len());
            if index == buffers.len() {
                buffers.push(Buffer { width: 0, rows: value.rows });
            }
            free.retain(|&other| other != index);
            buffers[index].width = buffers[index].width.max(value.width);
            placement.buffer_of[id.0] = index;
        }
        let ends = |id: &usize| placement.buffer_of[*id] != usize::MAX && last_use(program, &ops, *id) == at;
        free.extend((0..program.values.len()).filter(ends).map(|id| placement.buffer_of[id]));
    }
    placement
}

#[test]
fn values_are_placed_as_the_plain_rule_has_it() {
    let small = Shape::small();
    let wide = Shape { hidden: 128, feed_forward: 640, head_dim: 64, vocab: 300, tied: true, ..small };
    for arch in ["llama", "qwen2", "qwen3"] {
        for shape in [small, wide, Shape { layers: 1, ..wide }, Shape { layers: 7, head_dim: 32, ..small }] {
            let shape = Shape { arch, ..shape };
            let program = program(&shape.file(), shape.layers);
            assert_eq!(place(&program).unwrap(), placed_plainly(&program), "{arch}, {} layers", shape.layers);
        }
    }
}

/// The host reads logits after the pass, whatever came behind them.
#[test]
fn nothing_takes_the_place_of_logits() {
    let mut program = deep(1);
    let x = program.ops.iter().find_map(|op| if let Op::SelectRows { x, .. } = op { Some(*x) } else { None }).unwrap();
    let end = program.logits.unwrap();
    let logits = program.values[end.0];
    program.values[x.0].width = logits.width;
    program.values.push(logits);
    let behind = ValueId(program.values.len() - 1);
    program.ops.push(Op::SelectRows { x, out: behind });
    let placement = place(&program).unwrap();
    assert_ne!(placement.buffer_of[behind.0], placement.buffer_of[end.0]);
}

/// The best time of some runs: others use the machine too.
fn time<T>(mut work: impl FnMut() -> T) -> Duration {
    let timed = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..5).map(timed).min().unwrap()
}

/// Sixteen times the layers may take sixty times as long, were it the square it would be 256 times.
fn assert_grows_with_layers(what: &str, work: impl Fn(&Program)) {
    let (few, many) = (deep(400), deep(6400));
    let (short, long) = (time(|| work(&few)), time(|| work(&many)));
    println!("{what}: {short:?} for 400 layers, {long:?} for 6400");
    assert!(long < 60 * short.max(Duration::from_micros(100)), "{what}: {short:?}, then {long:?}");
    assert!(long < Duration::from_secs(10), "{what}: {long:?}");
}

#[test]
fn values_are_placed_in_time_that_grows_with_the_layers() {
    assert_grows_with_layers("placement", |program| drop(place(program).unwrap()));
}

#[cfg(feature = "cuda")]
#[test]
fn launches_are_listed_in_time_that_grows_with_the_layers() {
    use common::launches::{fast_lists, lists};
    assert_grows_with_layers("launches", |program| drop(lists(program)));
    assert_grows_with_layers("launches of fast batches", |program| drop(fast_lists(program)));
}
