//! Tests of the checks: what fits passes, and what does not is named.

use super::super::op::{
    AttentionKind, AttentionMask, Embedding, Index, MatrixId, NormKind, Rope, RopeId, RopeLayout, Score, Weight,
};
use super::*;
use crate::format::{Bytes, Data};
use crate::kv::Layout;
use crate::quant::DType;

const X: ValueId = ValueId(0);
const Y: ValueId = ValueId(1);
const WIDE: ValueId = ValueId(2);
const SAME: ValueId = ValueId(3);

/// No matrices; a vector of 4 and one of 8; values 4, 4, 8 and 4 wide, of which the first is written.
fn program(op: Op) -> Program {
    let value = |width| Value::floats(width, Rows::Batch);
    let norm = Norm { kind: NormKind::Rms, weight: VectorId(0), bias: None, eps: 1e-5 };
    Program {
        // The first value stands for one that an op made before.
        ops: vec![Op::Norm { x: X, norm, out: Y }, op],
        values: vec![value(4), value(4), value(8), value(4)],
        vectors: vec![vec![1.0; 4], vec![1.0; 8]],
        ropes: vec![Rope { layout: RopeLayout::Halves, frequencies: vec![1.0], magnitude: 1.0, long: None }],
        logits: Some(X),
        ..Program::new(Layout::new([HeadSizes::new(2, 1, 2)]).unwrap())
    }
}

fn problem(op: Op) -> Option<String> {
    problem_of(&program(op))
}

fn problem_of(program: &Program) -> Option<String> {
    let mut checker = Checker { program, at: 0, written: vec![true, false, false, false] };
    let outcome = program.ops.iter().enumerate().try_for_each(|(at, op)| {
        checker.at = at;
        checker.op(op)
    });
    outcome.err().map(|error| error.to_string())
}

#[test]
fn what_fits_passes() {
    let kind = AttentionKind {
        layer: 0,
        scale: 0.5,
        mask: AttentionMask::Causal,
        window: Some(3),
        softcap: Some(5.0),
        sinks: None,
    };
    let norm = Norm { kind: NormKind::Layer, weight: VectorId(0), bias: Some(VectorId(0)), eps: 0.0 };
    for op in [
        Op::Add { x: X, y: Y },
        Op::Mul { x: X, y: Y },
        Op::Gate { kind: Activation::GeluErf, gate: X, up: Y },
        Op::Activate { kind: Activation::GeluErf, x: Y },
        Op::Temperature { x: X, factor: 0.1, period: 16 },
        Op::Scale { x: X, factor: 2.0 },
        Op::Softcap { x: X, cap: 2.0 },
        Op::Rope { x: Y, head_dim: 2, table: RopeId(0) },
        Op::Norm { x: X, norm, out: SAME },
        Op::GroupNorm { x: X, groups: 2, norm, out: SAME },
        Op::Attention { kind, queries: X, out: SAME },
        Op::JoinHeads { x: X, part: HeadPart { each: 2, first: 0, count: 2 }, y: Y, out: WIDE },
    ] {
        assert_eq!(problem(op), None);
    }
}

#[test]
fn a_layer_that_the_cache_lacks_is_named() {
    let store = |layer| {
        let mut program = program(Op::StoreKv { layer, keys: X, values: X });
        program.kv = Layout::new([HeadSizes::new(1, 1, 4); 2]).unwrap();
        problem_of(&program)
    };
    assert_eq!([store(0), store(1)], [const { None }; 2]);
    assert!(store(2).is_some_and(|found| found.contains("keys or values do not fit the cache")));
}

#[test]
fn each_layer_has_heads_of_its_own() {
    let kind =
        AttentionKind { layer: 0, scale: 0.5, mask: AttentionMask::Causal, window: None, softcap: None, sinks: None };
    let problem = |op| {
        let mut program = program(op);
        program.kv = Layout::new([HeadSizes::new(2, 2, 2), HeadSizes::new(2, 1, 2), HeadSizes::new(4, 1, 2)]).unwrap();
        problem_of(&program)
    };
    let store = |layer| problem(Op::StoreKv { layer, keys: X, values: X });
    let attend = |layer| problem(Op::Attention { kind: AttentionKind { layer, ..kind }, queries: X, out: SAME });
    // Keys of layer 0 are 4 wide, those of the others 2; queries of layer 2 are 8 wide.
    assert_eq!([store(0).is_none(), store(1).is_none(), store(2).is_none()], [true, false, false]);
    assert_eq!([attend(0).is_none(), attend(1).is_none(), attend(2).is_none()], [true, true, false]);
}

/// Two layers may read one cache, but not through two windows.
#[test]
fn layers_that_read_one_cache_see_as_far() {
    let kind = AttentionKind {
        layer: 0,
        scale: 0.5,
        window: Some(3),
        softcap: None,
        sinks: None,
        mask: AttentionMask::Causal,
    };
    let problem = |window| {
        let mut program = program(Op::Attention { kind, queries: X, out: SAME });
        program.ops.push(Op::Attention { kind: AttentionKind { window, ..kind }, queries: SAME, out: Y });
        problem_of(&program)
    };
    let other = "op 1 (attention) of the program: a layer is seen through two windows";
    assert_eq!((problem(Some(4)).as_deref(), problem(None).as_deref()), (Some(other), Some(other)));
    assert!(problem(Some(3)).is_some_and(|found| found.contains("written by two ops")));
}

/// Every token has a row in all embeddings of tokens.
#[test]
fn an_embedding_that_lacks_tokens_is_named() {
    let data = Data::copy(&[0; 128], &mut |_| Ok(())).unwrap();
    let of = |rows: usize| {
        let mut program = program(Op::Embed { table: MatrixId(1), index: Index::Token, out: SAME });
        program.ops[0] = Op::Embed { table: MatrixId(0), index: Index::Token, out: Y };
        for rows in [4, rows] {
            let bytes = Bytes::new(&data, 0..16 * rows).unwrap();
            program.matrices.push(Weight { dtype: DType::F32, rows, cols: 4, bytes });
        }
        problem_of(&program)
    };
    let lacks = "op 1 (embed) of the program: the table has no row for some tokens";
    assert_eq!((of(3).as_deref(), of(4), of(8)), (Some(lacks), None, None));
}

/// A matrix of two experts, four outputs and four columns each; logits 4 wide, a choice of one, what the experts give, and their sum.
fn with_experts(op: Op, change: fn(&mut Program)) -> Option<String> {
    let mut program = program(Op::MulSigmoid { x: X, gate: Y });
    let data = Data::copy(&[0; 128], &mut |_| Ok(())).unwrap();
    let bytes = Bytes::new(&data, 0..128).unwrap();
    program.matrices.push(Weight { dtype: DType::F32, rows: 8, cols: 4, bytes });
    let chosen = Value::floats(4, Rows::Chosen(CHOICE));
    program.values[CHOICE.0] = Value { width: 2, rows: Rows::Batch, kind: Kind::Choices };
    program.values[SAME.0] = chosen;
    let wide = Value::floats(8, Rows::Batch);
    program.values.extend([Value::floats(4, Rows::Batch), program.values[CHOICE.0], chosen, wide]);
    program.ops.extend([ROUTE, MULTIPLY, Op::Add { x: SAME, y: SAME }, op]);
    change(&mut program);
    let mut checker = Checker { program: &program, at: 0, written: vec![false; 8] };
    checker.written[X.0] = true;
    let outcome = program.ops.iter().enumerate().try_for_each(|(at, op)| {
        checker.at = at;
        checker.op(op)
    });
    outcome.err().map(|error| error.to_string())
}

const CHOICE: ValueId = WIDE;
const ROUTING: Routing =
    Routing { score: Score::Sigmoid, bias: Some(VectorId(0)), groups: None, normalizes: true, scale: 1.0 };
const ROUTE: Op = Op::Route { logits: X, routing: ROUTING, choice: CHOICE };
const EXPERTS: Experts = Experts { matrix: MatrixId(0), each: 4, first: 0 };
const MULTIPLY: Op = Op::ExpertMatMul(ExpertProduct {
    x: Y,
    choice: CHOICE,
    experts: EXPERTS,
    scale: None,
    bias: Some(VectorId(1)),
    out: SAME,
});
const SUM: Op = Op::WeightedSum { x: SAME, choice: CHOICE, out: ValueId(4) };

#[test]
fn experts_that_fit_pass_and_others_are_named() {
    let set = |routing| Op::Route { logits: X, routing, choice: ValueId(5) };
    let multiply = |experts, scale| {
        Op::ExpertMatMul(ExpertProduct { x: SAME, choice: CHOICE, experts, scale, bias: None, out: ValueId(6) })
    };
    let multiply_heads = |part, matrix| Op::HeadMatMul { x: X, part, matrix, out: ValueId(7) };
    for (op, wanted) in [
        (SUM, None),
        (multiply(EXPERTS, None), None),
        (Op::MulSigmoid { x: X, gate: Y }, None),
        (multiply_heads(HeadPart { each: 4, first: 0, count: 4 }, MatrixId(0)), None),
        (
            multiply_heads(HeadPart { each: 4, first: 1, count: 2 }, MatrixId(0)),
            Some("head matmul) of the program: shapes differ"),
        ),
        (
            multiply_heads(HeadPart { each: 4, first: usize::MAX, count: 4 }, MatrixId(0)),
            Some("head matmul) of the program: a part of a head does not fit"),
        ),
        (
            multiply_heads(HeadPart { each: 4, first: 0, count: 4 }, MatrixId(1)),
            Some("head matmul) of the program: no such matrix"),
        ),
        (set(Routing { groups: Some(Groups { count: 2, kept: 1, best: 2 }), ..ROUTING }), None),
        (
            set(Routing { groups: Some(Groups { count: 3, kept: 1, best: 2 }), ..ROUTING }),
            Some("route) of the program: the groups"),
        ),
        (set(Routing { bias: Some(VectorId(1)), ..ROUTING }), Some("a vector of weights has another length")),
        (set(Routing { scale: f32::NAN, ..ROUTING }), Some("a factor is not finite")),
        (multiply(Experts { each: 3, ..EXPERTS }, None), Some("expert matmul) of the program: the rows of an expert")),
        (multiply(Experts { first: 1, ..EXPERTS }, None), Some("the rows of an expert")),
        (multiply(EXPERTS, Some(VectorId(0))), Some("a vector of weights has another length")),
        (Op::Add { x: X, y: SAME }, Some("shapes differ")),
        (Op::Add { x: CHOICE, y: CHOICE }, Some("add) of the program: a value holds something else")),
        (
            Op::WeightedSum { x: Y, choice: CHOICE, out: ValueId(4) },
            Some("weighted sum) of the program: shapes differ"),
        ),
        (Op::MulSigmoid { x: X, gate: SAME }, Some("multiply by sigmoid) of the program: shapes differ")),
    ] {
        let problem = with_experts(op.clone(), |_| ());
        let fits =
            wanted.map_or(problem.is_none(), |wanted| problem.as_ref().is_some_and(|found| found.contains(wanted)));
        assert!(fits, "{op:?}: {problem:?}, expected {wanted:?}");
    }
    let too_many = with_experts(SUM, |program| program.values[CHOICE.0].width = 10);
    assert!(too_many.is_some_and(|found| found.contains("so many experts cannot be chosen")));
    let no_choice = with_experts(SUM, |program| program.values[CHOICE.0].kind = Kind::Floats);
    assert!(no_choice.is_some_and(|found| found.contains("a value holds something else")));
}

#[test]
fn what_does_not_fit_is_named() {
    let norm = Norm { kind: NormKind::Layer, weight: VectorId(1), bias: None, eps: 1e-5 };
    let kind =
        AttentionKind { layer: 1, scale: 0.5, mask: AttentionMask::Causal, window: None, softcap: None, sinks: None };
    for (op, wanted) in [
        (Op::Add { x: X, y: WIDE }, "op 1 (add) of the program: a value is read before it is written"),
        (Op::Add { x: X, y: ValueId(7) }, "op 1 (add) of the program: no such value"),
        (Op::Norm { x: X, norm, out: WIDE }, "op 1 (norm) of the program: shapes differ"),
        (
            Op::HeadNorm { x: X, head_dim: 2, norm },
            "op 1 (head norm) of the program: a vector of weights has another length",
        ),
        (Op::GroupNorm { x: X, groups: 3, norm, out: SAME }, "op 1 (group norm) of the program: its groups do not fit"),
        (
            Op::GroupNorm { x: X, groups: 2, norm, out: SAME },
            "op 1 (group norm) of the program: a vector of weights has another length",
        ),
        (Op::Norm { x: X, norm, out: Y }, "op 1 (norm) of the program: a value is written by two ops"),
        (Op::Rope { x: X, head_dim: 2, table: RopeId(1) }, "op 1 (rope) of the program: no such rotation of a head"),
        (Op::Softcap { x: X, cap: 0.0 }, "op 1 (softcap) of the program: a cap must be positive"),
        (Op::Scale { x: X, factor: f32::NAN }, "op 1 (scale) of the program: a factor is not finite"),
        (
            Op::StoreKv { layer: 0, keys: X, values: Y },
            "op 1 (store kv) of the program: keys or values do not fit the cache",
        ),
        (
            Op::HeadNorm { x: X, head_dim: 3, norm },
            "op 1 (head norm) of the program: a value does not hold whole heads",
        ),
        (Op::Rope { x: X, head_dim: 0, table: RopeId(0) }, "op 1 (rope) of the program: no such rotation of a head"),
        (
            Op::Attention { kind, queries: X, out: SAME },
            "op 1 (attention) of the program: queries do not fit the cache",
        ),
        (
            Op::Attention { kind: AttentionKind { layer: 0, ..kind }, queries: X, out: WIDE },
            "op 1 (attention) of the program: shapes differ",
        ),
        (
            Op::Activate { kind: Activation::ClampedSilu { limit: 7.0, slope: 1.7 }, x: X },
            "op 1 (activate) of the program: this activation needs two values",
        ),
        (
            Op::Temperature { x: X, factor: 0.1, period: 0 },
            "op 1 (temperature) of the program: its factor is not finite or its period 0",
        ),
        (
            Op::JoinHeads { x: X, part: HeadPart { each: 2, first: 1, count: 1 }, y: Y, out: WIDE },
            "op 1 (join heads) of the program: shapes differ",
        ),
        (
            Op::JoinHeads { x: X, part: HeadPart { each: 2, first: 1, count: 2 }, y: Y, out: WIDE },
            "op 1 (join heads) of the program: a part of a head does not fit",
        ),
        (
            Op::JoinHeads { x: X, part: HeadPart { each: 3, first: 0, count: 3 }, y: Y, out: WIDE },
            "op 1 (join heads) of the program: a part of a head does not fit",
        ),
        (Op::SelectRows { x: X, out: WIDE }, "op 1 (select rows) of the program: shapes differ"),
    ] {
        assert_eq!(problem(op).as_deref(), Some(wanted));
    }
}

#[test]
fn what_embeddings_are_made_of_is_checked() {
    let norm = Norm { kind: NormKind::Rms, weight: VectorId(0), bias: None, eps: 1e-5 };
    let data = Data::copy(&[0; 128], &mut |_| Ok(())).unwrap();
    // One op for the body, one for a head; behind the body a norm of its own.
    let made = |change: &dyn Fn(&mut Program)| {
        let mut program = program(Op::Norm { x: X, norm, out: Y });
        let bytes = Bytes::new(&data, 0..128).unwrap();
        program.matrices.push(Weight { dtype: DType::F32, rows: 8, cols: 4, bytes });
        program.ops[0] = Op::Embed { table: MatrixId(0), index: Index::Token, out: X };
        program.logits = Some(Y);
        let ops = vec![Op::Norm { x: X, norm, out: SAME }];
        program.embedding = Some(Embedding { after: 1, ops, tokens: SAME, texts: X, scores: None });
        change(&mut program);
        check(&program).err().map(|error| error.to_string())
    };
    let embedding = |program: &mut Program, change: &dyn Fn(&mut Embedding)| {
        change(program.embedding.as_mut().unwrap());
    };
    assert_eq!(made(&|_| ()), None);
    assert_eq!(made(&|program| program.logits = None), None);
    let mask = AttentionMask::Bidirectional;
    let kind = AttentionKind { layer: 0, scale: 0.5, mask, window: None, softcap: None, sinks: None };
    let ahead = Op::Attention { kind, queries: X, out: SAME };
    for (problem, expected) in [
        (made(&|p| embedding(p, &|e| e.tokens = WIDE)), "an embedding is never written"),
        (made(&|p| embedding(p, &|e| e.scores = Some(ValueId(9)))), "an embedding is never written"),
        // The head is not run for embeddings.
        (made(&|p| embedding(p, &|e| e.texts = Y)), "an embedding is never written"),
        (made(&|p| embedding(p, &|e| e.ops = vec![Op::Add { x: X, y: Y }])), "a value is read before it is written"),
        (made(&|p| embedding(p, &|e| e.after = 3)), "more ops than there are"),
        (made(&|p| embedding(p, &|e| e.ops.push(of_positions()))), "rows meet behind the last layer"),
        (made(&|p| (p.logits, p.embedding) = (None, None)), "nothing is made"),
        (made(&|p| p.ops.insert(1, ahead.clone())), "logits of tokens that see others behind them"),
    ] {
        let problem = problem.unwrap();
        assert!(problem.contains(expected), "{problem} for {expected}");
    }
}

fn of_positions() -> Op {
    Op::Embed { table: MatrixId(0), index: Index::Position, out: WIDE }
}
