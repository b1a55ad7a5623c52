//! A program in two halves, for a device without the memory for all of it: the host does the first layers, or the experts of some layers, and the
//! device the rest. The halves exchange rows of values ([`Op::Send`], [`Op::Receive`]); both know values, matrices and layers by the same numbers.
//!
//! What the host does without a pause is a part. The device sends what a part reads as soon as all of it is there, and receives what the part gives
//! when it first reads any of it: what stands between, such as a shared expert, both do at once. Between two parts there is always something that the
//! device does, so that memory for one exchange each way suffices.

use super::op::{Embedding, Exchanged, Op, Program, Rows, ValueId, VectorId, Weight};
use crate::error::{Error, Result, collected, filled, push};
use crate::kv::state::Shape;
use crate::kv::{HeadSizes, Layout};

const WHAT: &str = "the plan of a pass";

/// What the host does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// So many layers, the first ones.
    pub layers: usize,
    /// The experts of the layers behind these, as far as they are among the first so many.
    pub experts: usize,
}

/// The halves of a program.
#[derive(Debug)]
pub struct Halves {
    /// What begins and ends a pass.
    pub device: Program,
    /// The parts of the host, one after the other; each begins with what it receives.
    pub host: Program,
}

/// Every cut of `program`, each of which leaves the device less than the one before it: experts first, since a token reads few of their weights, then
/// whole layers. None comes between keys and a later layer that reads them too.
pub fn cuts(program: &Program) -> Result<Vec<Cut>> {
    let layers = program.layers.len().saturating_sub(1);
    let experts = (0..layers).filter(|&layer| layer_ops(program, layer).iter().any(|op| is_of_experts(program, op)));
    let experts = experts.map(|layer| Cut { layers: 0, experts: layer + 1 });
    let whole = (1..=layers).filter(|&count| keeps_its_keys(program, count));
    collected(experts.chain(whole.map(|count| Cut { layers: count, experts: layers })), WHAT)
}

/// How many layers of `program` have their experts on the host alone.
pub fn expert_layers(program: &Program, cut: Cut) -> usize {
    let behind = cut.layers..cut.experts.max(cut.layers);
    behind.filter(|&layer| layer_ops(program, layer).iter().any(|op| is_of_experts(program, op))).count()
}

fn layer_ops(program: &Program, layer: usize) -> &[Op] {
    &program.ops[program.layers[layer]..program.layers[layer + 1]]
}

/// Whether an op reads or writes rows of chosen experts.
fn is_of_experts(program: &Program, op: &Op) -> bool {
    op.reads().chain(op.writes()).any(|id| matches!(program.values[id.0].rows, Rows::Chosen(_)))
}

/// Whether no layer behind the first `count` reads keys that one of these stores.
fn keeps_its_keys(program: &Program, count: usize) -> bool {
    let (before, behind) = program.ops.split_at(program.layers[count]);
    let stores = |wanted: usize| before.iter().any(|op| matches!(*op, Op::StoreKv { layer, .. } if layer == wanted));
    !behind.iter().any(|op| matches!(op, Op::Attention { kind, .. } if stores(kind.layer)))
}

/// Divides `program`; none where the host has nothing to do.
pub fn divide(program: &Program, cut: Cut) -> Result<Option<Halves>> {
    let part_of = assign(program, cut)?;
    if part_of.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut divider = Divider {
        program,
        part_of: &part_of,
        device: Side::new(program)?,
        host: Side::new(program)?,
        awaited: Vec::new(),
        begun: 0,
    };
    let after = divider.run()?;
    let Divider { device, host, .. } = divider;
    let embedding = program.embedding.clone().map(|embedding| Embedding { after, ..embedding });
    let of_embedding = embedding.iter().flat_map(|embedding| &embedding.ops);
    let mut device = half(program, device.ops.iter().chain(of_embedding))?.with(device.ops);
    (device.logits, device.embedding, device.idle) = (program.logits, embedding, program.idle);
    let host = half(program, host.ops.iter())?.with(host.ops);
    Ok(Some(Halves { device, host }))
}

/// The part that each op belongs to; none for those of the device.
fn assign(program: &Program, cut: Cut) -> Result<Vec<Option<usize>>> {
    let mut part_of = filled(program.ops.len(), None, WHAT)?;
    let layers = program.layers.len().saturating_sub(1);
    let mut parts = 0;
    if cut.layers > 0 && cut.layers <= layers {
        part_of[program.layers[0]..program.layers[cut.layers]].fill(Some(0));
        parts = 1;
    }
    for layer in cut.layers..cut.experts.min(layers) {
        let (first, ops) = (program.layers[layer], layer_ops(program, layer));
        let own = ops.iter().zip(&mut part_of[first..]).filter(|(op, _)| is_of_experts(program, op));
        let count = own.map(|(_, part)| *part = Some(parts)).count();
        parts += usize::from(count > 0);
    }
    Ok(part_of)
}

/// The ops of a half on their way.
struct Side {
    ops: Vec<Op>,
    /// Of each value whether it is there as it is now, and whether it was ever.
    is_fresh: Vec<bool>,
    was_there: Vec<bool>,
}

impl Side {
    fn new(program: &Program) -> Result<Side> {
        let none = || filled(program.values.len(), false, WHAT);
        Ok(Side { ops: Vec::new(), is_fresh: none()?, was_there: none()? })
    }

    fn push(&mut self, op: Op) -> Result<()> {
        push(&mut self.ops, op, WHAT)
    }

    fn note(&mut self, id: ValueId) {
        (self.is_fresh[id.0], self.was_there[id.0]) = (true, true);
    }

    fn receive(&mut self, out: ValueId, by: Exchanged) -> Result<()> {
        self.push(Op::Receive { out, by, again: self.was_there[out.0] })?;
        self.note(out);
        Ok(())
    }
}

struct Divider<'a> {
    program: &'a Program,
    part_of: &'a [Option<usize>],
    device: Side,
    host: Side,
    /// What the last part gives, until the device receives it.
    awaited: Vec<(ValueId, Exchanged)>,
    /// Parts that are in their places.
    begun: usize,
}

impl Divider<'_> {
    /// Puts every op in its place; the number of the device's first op behind the last layer.
    fn run(&mut self) -> Result<usize> {
        let program = self.program;
        let end = program.embedding.as_ref().map_or(program.ops.len(), |embedding| embedding.after);
        let mut after = None;
        for (at, op) in program.ops.iter().enumerate() {
            if at == end {
                self.receive()?;
                after = Some(self.device.ops.len());
            }
            match self.part_of[at] {
                Some(part) if part < self.begun => {}
                Some(part) => {
                    self.receive()?;
                    self.begin(part, at)?;
                }
                None => {
                    if op.reads().any(|id| self.awaited.iter().any(|&(awaited, _)| awaited == id)) {
                        self.receive()?;
                    }
                    self.device.push(op.clone())?;
                    if let Some(out) = op.writes() {
                        self.device.note(out);
                        self.host.is_fresh[out.0] = false;
                    }
                }
            }
        }
        self.receive()?;
        Ok(after.unwrap_or(self.device.ops.len()))
    }

    /// Has the device receive what the last part gives.
    fn receive(&mut self) -> Result<()> {
        for (id, by) in std::mem::take(&mut self.awaited) {
            self.device.receive(id, by)?;
        }
        Ok(())
    }

    /// Puts all ops of a part in their places, the first of which has the number `first`.
    fn begin(&mut self, part: usize, first: usize) -> Result<()> {
        let (program, part_of) = (self.program, self.part_of);
        let ops = || program.ops.iter().enumerate().skip(first).filter(|(at, _)| part_of[*at] == Some(part));
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for (at, op) in ops() {
            for id in op.reads() {
                if !written.contains(&id) && !self.host.is_fresh[id.0] && !read.contains(&id) {
                    self.check_ready(id, first..at)?;
                    push(&mut read, id, WHAT)?;
                }
            }
            if let Some(out) = op.writes().filter(|out| !written.contains(out)) {
                push(&mut written, out, WHAT)?;
            }
        }
        let is_wanted = |id: &ValueId| {
            let later = program.ops.iter().enumerate().skip(first).filter(|(at, _)| part_of[*at].is_none());
            let of_embedding = program.embedding.iter().flat_map(|embedding| &embedding.ops);
            later.map(|(_, op)| op).chain(of_embedding).any(|op| op.reads().any(|read| read == *id))
        };
        let given = collected(written.iter().copied().filter(is_wanted), WHAT)?;
        for (id, by) in exchanged(program, part, &read)? {
            self.device.push(Op::Send { x: id, by })?;
            self.host.receive(id, by)?;
        }
        ops().try_for_each(|(_, op)| self.host.push(op.clone()))?;
        for &id in &written {
            self.host.note(id);
            self.device.is_fresh[id.0] = false;
        }
        self.awaited = exchanged(program, part, &given)?;
        for &(x, by) in &self.awaited {
            self.host.push(Op::Send { x, by })?;
        }
        self.begun = part + 1;
        Ok(())
    }

    /// Refuses a value that the device does not have when a part begins, or that one of `between` changes while the part runs.
    fn check_ready(&self, id: ValueId, between: std::ops::Range<usize>) -> Result<()> {
        let mut others = between.filter(|&at| self.part_of[at].is_none());
        if self.device.is_fresh[id.0] && !others.any(|at| self.program.ops[at].writes() == Some(id)) {
            return Ok(());
        }
        Err(Error::Unsupported("its experts cannot be computed by the host while the device does the rest".into()))
    }
}

/// The order in which values go one way for a part.
fn exchanged(program: &Program, part: usize, values: &[ValueId]) -> Result<Vec<(ValueId, Exchanged)>> {
    if values.is_empty() {
        return Err(Error::Unsupported("the halves of the program do not meet".into()));
    }
    let mut start = 0;
    let places = values.iter().enumerate().map(|(index, &id)| {
        let by = Exchanged { part, index, start, is_last: index + 1 == values.len() };
        start += program.values[id.0].width;
        (id, by)
    });
    let places = collected(places, WHAT)?;
    match values.iter().find(|id| program.values[id.0].rows != Rows::Batch) {
        Some(_) => Err(Error::Unsupported("rows of single experts would go from one half to the other".into())),
        None => Ok(places),
    }
}

/// A program without ops that has of `program` what `ops` use; everything else is empty in its place.
fn half<'a>(program: &Program, ops: impl Iterator<Item = &'a Op> + Clone) -> Result<Program> {
    let used = ops.clone().filter_map(Op::matrix);
    let mut has_matrix = filled(program.matrices.len(), false, WHAT)?;
    used.for_each(|id| has_matrix[id.0] = true);
    let matrices = program.matrices.iter().zip(has_matrix);
    let matrices = matrices.map(|(matrix, is_used)| if is_used { matrix.clone() } else { without_rows(matrix) });
    let mut vectors = filled(program.vectors.len(), Vec::new(), WHAT)?;
    for VectorId(id) in ops.clone().flat_map(Op::vectors) {
        if vectors[id].is_empty() {
            vectors[id] = collected(program.vectors[id].iter().copied(), WHAT)?;
        }
    }
    let rotates = ops.clone().any(|op| matches!(op, Op::Rope { .. }));
    let stores = |wanted| ops.clone().any(|op| matches!(*op, Op::StoreKv { layer, .. } if layer == wanted));
    let sizes = program.kv.all().enumerate();
    let sizes = sizes.map(|(layer, sizes)| if stores(layer) { sizes } else { HeadSizes { kv_heads: 0, ..sizes } });
    let keeps = |wanted| ops.clone().any(|op| op.state().is_some_and(|state| state.0 == wanted));
    let states = program.states.iter().enumerate();
    let states = states.map(|(id, &shape)| if keeps(id) { shape } else { Shape::Rows { count: 0, width: 0 } });
    Ok(Program {
        values: collected(program.values.iter().copied(), WHAT)?,
        matrices: collected(matrices, WHAT)?,
        origins: collected(program.origins.iter().cloned(), WHAT)?,
        vectors,
        ropes: if rotates { collected(program.ropes.iter().cloned(), WHAT)? } else { Vec::new() },
        states: collected(states, WHAT)?,
        ..Program::new(Layout::new(collected(sizes, WHAT)?)?)
    })
}

impl Program {
    fn with(self, ops: Vec<Op>) -> Program {
        Program { ops, ..self }
    }
}

fn without_rows(matrix: &Weight) -> Weight {
    Weight { rows: 0, bytes: matrix.bytes.part(0..0).expect("within any range"), ..matrix.clone() }
}
