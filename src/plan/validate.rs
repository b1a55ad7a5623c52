//! Whether a program makes sense, and whether a device can run it: the one place where both are asked, once when a model is loaded.
//!
//! A program that [`super::build`] makes always makes sense, so a refusal here is a bug of ours or a program made by hand; the checks
//! spare the backends theirs.

use super::op::{
    Activation, ExpertProduct, Experts, Groups, HeadPart, Index, Kind, MOST_CHOSEN, MOST_EXPERTS, Norm, Op, Program,
    Routing, Rows, Value, ValueId, VectorId,
};
use crate::error::{Error, Result, collected, filled};
use crate::kv::layout::HeadSizes;

/// Checks `program`: every id exists, shapes agree, values are written before they are read and have one op that makes them.
pub fn check(program: &Program) -> Result<()> {
    let mut checker = Checker { program, at: 0, written: filled(program.values.len(), false, "the plan of a pass")? };
    checker.states()?;
    let after =
        program.embedding.as_ref().map_or(program.ops.len(), |embedding| embedding.after.min(program.ops.len()));
    checker.ops(0, &program.ops[..after])?;
    let written = collected(checker.written.iter().copied(), "the plan of a pass")?;
    checker.ops(after, &program.ops[after..])?;
    match program.logits {
        Some(logits) => {
            checker.require(!program.sees_ahead(), "logits of tokens that see others behind them")?;
            checker.made(logits, "the logits are never written")?;
        }
        None => {
            let sends = program.ops.iter().any(|op| matches!(op, Op::Send { .. }));
            checker.require(program.embedding.is_some() || sends, "nothing is made")?;
        }
    }
    if let Some(features) = program.features {
        checker.made(features, "the vectors for a head are never written")?;
        checker.same(program.values[features.0], Value::floats(program.values[features.0].width, Rows::Batch))?;
    }
    let Some(embedding) = &program.embedding else { return Ok(()) };
    checker.require(embedding.after == after, "embeddings come after more ops than there are")?;
    let head = &program.ops[after..];
    let is_row_wise = head.iter().chain(&embedding.ops).all(Op::is_row_wise);
    checker.require(is_row_wise, "rows meet behind the last layer")?;
    checker.written = written;
    checker.ops(program.ops.len(), &embedding.ops)?;
    embedding.ends().try_for_each(|id| {
        checker.made(id, "an embedding is never written")?;
        checker.same(program.values[id.0], Value::floats(program.values[id.0].width, Rows::Batch))
    })
}

/// Refuses the first op of `program` for which `refusal` gives a reason why a device cannot run it; it is told the op's number, too. Those of
/// embeddings come behind all others.
pub fn check_device(
    program: &Program,
    device: &str,
    refusal: impl Fn(usize, &Op) -> Option<&'static str>,
) -> Result<()> {
    let refused = program.all_ops().enumerate().find_map(|(at, op)| refusal(at, op).map(|reason| (at, op, reason)));
    refused.map_or(Ok(()), |(at, op, reason)| {
        let name = op.name();
        Err(Error::Unsupported(format!("the {device} backend cannot run op {at} ({name}): {reason}")))
    })
}

/// The value by which an op knows the experts of its rows.
fn choice_of(op: &Op) -> Option<ValueId> {
    match *op {
        Op::Route { choice, .. } | Op::ExpertMatMul(ExpertProduct { choice, .. }) | Op::WeightedSum { choice, .. } => {
            Some(choice)
        }
        _ => None,
    }
}

pub(super) struct Checker<'a> {
    pub(super) program: &'a Program,
    at: usize,
    written: Vec<bool>,
}

impl Checker<'_> {
    /// Checks `ops`, the first of which has the number `first`.
    fn ops(&mut self, first: usize, ops: &[Op]) -> Result<()> {
        ops.iter().enumerate().try_for_each(|(index, op)| {
            self.at = first + index;
            self.op(op)
        })
    }

    fn made(&self, id: ValueId, problem: &str) -> Result<()> {
        self.require(self.written.get(id.0).copied().unwrap_or(false), problem)
    }

    fn op(&mut self, op: &Op) -> Result<()> {
        let choice = choice_of(op);
        for id in op.reads() {
            self.value(id)?;
            self.require(self.written[id.0], "a value is read before it is written")?;
        }
        let moves = matches!(op, Op::Send { .. } | Op::Receive { .. });
        for id in op.reads().chain(op.writes()).filter(|_| !moves) {
            let wanted = if choice == Some(id) { Kind::Choices } else { Kind::Floats };
            self.require(self.value(id)?.kind == wanted, "a value holds something else")?;
        }
        if let Some(out) = op.writes() {
            self.value(out)?;
            let in_place = op.reads().any(|id| id == out);
            self.require(in_place || !self.written[out.0], "a value is written by two ops")?;
            self.written[out.0] = true;
        }
        self.shapes(op)
    }

    fn shapes(&self, op: &Op) -> Result<()> {
        match *op {
            Op::Embed { table, index, out } => {
                let (table, first) = (self.matrix(table.0)?, self.program.token_table());
                let tokens = first.map_or(Ok(0), |first| self.matrix(first.0).map(|(rows, _)| rows))?;
                self.require(index != Index::Token || table.0 >= tokens, "the table has no row for some tokens")?;
                self.same(self.value(out)?, Value::floats(table.1, Rows::Batch))
            }
            Op::Given { out } => {
                let mut others = self.program.all_ops().filter(|op| matches!(op, Op::Given { .. }));
                self.require(others.nth(1).is_none(), "rows come with one vector each")?;
                self.same(self.value(out)?, Value::floats(self.value(out)?.width, Rows::Batch))
            }
            Op::Scale { factor, .. } => self.require(factor.is_finite(), "a factor is not finite"),
            Op::Softcap { cap, .. } => self.require(cap > 0.0, "a cap must be positive"),
            Op::Norm { x, norm, out } => {
                self.same(self.value(x)?, self.value(out)?)?;
                self.norm(norm, self.value(x)?.width)
            }
            Op::GroupNorm { x, groups, norm, out } => {
                let width = self.value(x)?.width;
                self.same(self.value(x)?, self.value(out)?)?;
                self.require(groups > 0 && width.is_multiple_of(groups), "its groups do not fit")?;
                self.norm(norm, width)
            }
            Op::MatMul { x, matrix, bias, out } => {
                let ((rows, cols), from, to) = (self.matrix(matrix.0)?, self.value(x)?, self.value(out)?);
                self.require(from.width == cols && to.width == rows && from.rows == to.rows, "shapes differ")?;
                bias.map_or(Ok(()), |bias| self.vector(bias, rows))
            }
            Op::Convolve(convolution) => self.convolution(convolution),
            Op::Scan(scan) => self.scan(scan),
            Op::HeadMatMul { .. }
            | Op::JoinHeads { .. }
            | Op::TakeHeads { .. }
            | Op::HeadNorm { .. }
            | Op::Rope { .. }
            | Op::StoreKv { .. }
            | Op::Attention { .. } => self.shapes_of_heads(op),
            Op::Temperature { x, factor, period } => {
                self.require(factor.is_finite() && period > 0, "its factor is not finite or its period 0")?;
                self.same(self.value(x)?, Value { rows: Rows::Batch, ..self.value(x)? })
            }
            Op::Activate { kind, .. } => {
                self.require(!matches!(kind, Activation::ClampedSilu { .. }), "this activation needs two values")
            }
            Op::Gate { gate: x, up: y, .. } | Op::Add { x, y } | Op::Mul { x, y } => {
                self.same(self.value(x)?, self.value(y)?)
            }
            Op::MulSigmoid { .. } | Op::Route { .. } | Op::ExpertMatMul(_) | Op::WeightedSum { .. } => {
                self.shapes_of_experts(op)
            }
            Op::Send { x: id, .. } | Op::Receive { out: id, .. } => {
                self.require(self.value(id)?.rows == Rows::Batch, "only rows of the batch are exchanged")
            }
            Op::SelectRows { x, out } => {
                let (from, to) = (self.value(x)?, self.value(out)?);
                self.require(
                    from.width == to.width && (from.rows, to.rows) == (Rows::Batch, Rows::Outputs),
                    "shapes differ",
                )
            }
        }
    }

    /// The same of ops that know heads apart.
    fn shapes_of_heads(&self, op: &Op) -> Result<()> {
        match *op {
            Op::HeadMatMul { x, part, matrix, out } => {
                let (from, to, (rows, cols)) = (self.value(x)?, self.value(out)?, self.matrix(matrix.0)?);
                let heads = self.heads_of(from, part)?;
                self.require(
                    part.count == cols && to.width == rows && rows.is_multiple_of(heads) && from.rows == to.rows,
                    "shapes differ",
                )
            }
            Op::JoinHeads { x, part, y, out } => {
                let (from, behind, to) = (self.value(x)?, self.value(y)?, self.value(out)?);
                let heads = self.heads_of(from, part)?;
                let fits = behind.width.is_multiple_of(heads) && to.width == heads * part.count + behind.width;
                self.require(fits && from.rows == to.rows && behind.rows == to.rows, "shapes differ")
            }
            Op::TakeHeads { x, part, out } => {
                let (from, to) = (self.value(x)?, self.value(out)?);
                let fits = to.width == self.heads_of(from, part)? * part.count;
                self.require(fits && from.rows == to.rows, "shapes differ")
            }
            Op::HeadNorm { x, head_dim, norm } => {
                self.heads(x, head_dim)?;
                self.norm(norm, head_dim)
            }
            Op::Rope { x, head_dim, table } => {
                let rope = self.program.ropes.get(table.0);
                self.require(rope.is_some_and(|rope| rope.dims() <= head_dim), "no such rotation of a head")?;
                self.heads(x, head_dim)
            }
            Op::StoreKv { layer, keys, values } => {
                let sizes = self.head_sizes(layer, "keys or values do not fit the cache")?;
                let fits = [(keys, sizes.head_dim), (values, sizes.value_dim)]
                    .iter()
                    .all(|(id, dim)| self.program.values[id.0] == Value::floats(sizes.kv_heads * dim, Rows::Batch));
                self.require(fits, "keys or values do not fit the cache")
            }
            Op::Attention { kind, queries, out } => {
                let sizes = self.head_sizes(kind.layer, "queries do not fit the cache")?;
                self.same(self.value(out)?, Value::floats(sizes.heads * sizes.value_dim, Rows::Batch))?;
                let fits = self.value(queries)? == Value::floats(sizes.heads * sizes.head_dim, Rows::Batch);
                self.require(fits, "queries do not fit the cache")?;
                self.require(
                    kind.window != Some(0) && kind.softcap.is_none_or(|cap| cap > 0.0),
                    "a limit must be positive",
                )?;
                // The cache keeps of a layer what one window needs, whoever reads it.
                let mut others = self.program.attentions().filter(|other| other.layer == kind.layer);
                self.require(others.all(|other| other.window == kind.window), "a layer is seen through two windows")?;
                kind.sinks.map_or(Ok(()), |sinks| self.vector(sinks, sizes.heads))
            }
            _ => Ok(()),
        }
    }

    /// The same of ops that only models with experts have.
    fn shapes_of_experts(&self, op: &Op) -> Result<()> {
        match *op {
            Op::MulSigmoid { x, gate } => {
                let (x, gate) = (self.value(x)?, self.value(gate)?);
                self.require(x.rows == gate.rows && (gate.width == 1 || gate.width == x.width), "shapes differ")
            }
            Op::Route { logits, routing, choice } => self.routing(self.value(logits)?, routing, self.value(choice)?),
            Op::ExpertMatMul(ExpertProduct { x, choice, experts, scale, bias, out }) => {
                let (from, to) = (self.value(x)?, self.value(out)?);
                let fits = from.rows == Rows::Batch || from.rows == Rows::Chosen(choice);
                self.require(fits && to.rows == Rows::Chosen(choice), "shapes differ")?;
                let count = self.experts(experts, from.width, to.width)?;
                scale.map_or(Ok(()), |scale| self.vector(scale, count))?;
                bias.map_or(Ok(()), |bias| self.vector(bias, count * to.width))
            }
            Op::WeightedSum { x, choice, out } => {
                let (from, to) = (self.value(x)?, self.value(out)?);
                let fits = from.rows == Rows::Chosen(choice) && to.rows == Rows::Batch;
                self.require(fits && from.width == to.width, "shapes differ")
            }
            _ => Ok(()),
        }
    }

    /// A rule that can be followed for as many experts as there are logits.
    fn routing(&self, logits: Value, routing: Routing, choice: Value) -> Result<()> {
        let (experts, chosen) = (logits.width, choice.width / 2);
        self.require(logits.rows == Rows::Batch && choice.rows == Rows::Batch, "shapes differ")?;
        let fits = choice.width == 2 * chosen && (1..=MOST_CHOSEN.min(experts)).contains(&chosen);
        self.require(fits && experts <= MOST_EXPERTS, "so many experts cannot be chosen")?;
        self.require(routing.scale.is_finite(), "a factor is not finite")?;
        let fits = routing.groups.is_none_or(|Groups { count, kept, best }| {
            let is_cut = (1..=count).contains(&kept) && experts.is_multiple_of(count);
            is_cut && kept * (experts / count) >= chosen && (1..=2).contains(&best)
        });
        self.require(fits, "the groups of experts do not fit")?;
        routing.bias.map_or(Ok(()), |bias| self.vector(bias, experts))
    }

    /// How many experts a matrix holds, each with rows for `width` outputs of `cols` columns; every choice that the program makes is among them.
    fn experts(&self, experts: Experts, cols: usize, width: usize) -> Result<usize> {
        let Experts { matrix, each, first } = experts;
        let (rows, own) = self.matrix(matrix.0)?;
        let fits = own == cols && each > 0 && rows.is_multiple_of(each) && first + width <= each;
        self.require(fits, "the rows of an expert do not fit")?;
        Ok(rows / each)
    }

    pub(super) fn value(&self, id: ValueId) -> Result<Value> {
        let value = self.program.values.get(id.0).copied().ok_or_else(|| self.error("no such value"))?;
        if let Rows::Chosen(choice) = value.rows {
            let choice = self.program.values.get(choice.0);
            self.require(choice.is_some_and(|choice| choice.kind == Kind::Choices), "no such choice")?;
        }
        Ok(value)
    }

    /// Rows and columns of a matrix.
    fn matrix(&self, id: usize) -> Result<(usize, usize)> {
        let matrix = self.program.matrices.get(id);
        matrix.map(|matrix| (matrix.rows, matrix.cols)).ok_or_else(|| self.error("no such matrix"))
    }

    pub(super) fn vector(&self, id: VectorId, width: usize) -> Result<()> {
        let fits = self.program.vectors.get(id.0).is_some_and(|vector| vector.len() == width);
        self.require(fits, "a vector of weights has another length")
    }

    fn norm(&self, norm: Norm, width: usize) -> Result<()> {
        self.vector(norm.weight, width)?;
        norm.bias.map_or(Ok(()), |bias| self.vector(bias, width))?;
        self.require(norm.eps >= 0.0, "eps is negative")
    }

    fn heads(&self, id: ValueId, dim: usize) -> Result<()> {
        let value = self.value(id)?;
        let is_whole = dim > 0 && value.width.is_multiple_of(dim);
        self.require(value.rows == Rows::Batch && is_whole, "a value does not hold whole heads")
    }

    /// The heads of a layer of the cache.
    fn head_sizes(&self, layer: usize, problem: &str) -> Result<HeadSizes> {
        let kv = &self.program.kv;
        if layer < kv.count() { Ok(kv.of(layer)) } else { Err(self.error(problem)) }
    }

    /// How many heads a value holds of which `part` is meant.
    fn heads_of(&self, value: Value, part: HeadPart) -> Result<usize> {
        let HeadPart { each, first, count } = part;
        let fits = count > 0 && first.checked_add(count).is_some_and(|end| end <= each);
        self.require(fits && value.width >= each && value.width.is_multiple_of(each), "a part of a head does not fit")?;
        Ok(value.width / each)
    }

    pub(super) fn same(&self, a: Value, b: Value) -> Result<()> {
        self.require(a == b, "shapes differ")
    }

    pub(super) fn require(&self, holds: bool, problem: &str) -> Result<()> {
        if holds { Ok(()) } else { Err(self.error(problem)) }
    }

    fn error(&self, problem: &str) -> Error {
        let name = self.program.ops.get(self.at).map_or("end", Op::name);
        Error::Unsupported(format!("op {} ({name}) of the program: {problem}", self.at))
    }
}

mod recurrent;
#[cfg(test)]
mod tests;
