//! What the ops of a program do with each value, gathered in one walk: lowering then takes time in proportion to the ops. Also where the forms of
//! values stand that products read.

use crate::backend::cuda::catalogue::DeviceType;
use crate::backend::cuda::select::experts::{self, ROUNDED_COLUMNS};
use crate::backend::cuda::select::gemm_f16;
use crate::error::{Error, Result, collected, filled, push};
use crate::plan::op::{ExpertProduct, NormKind};
use crate::plan::{Op, Program, ValueId};
use std::borrow::Cow;

/// Columns that the width of a value is a multiple of where it may be 16-bit floats, if other products than those with experts read it; so many have
/// room in every row.
const COLUMNS: usize = 128;
const WHAT: &str = "a list of launches";

/// The ops of one kind of pass, and what they do with each value.
pub struct PassOps<'a> {
    /// In order.
    pub ops: Cow<'a, [Op]>,
    /// What they do with each value.
    pub uses: Uses,
    /// What the host reads of the pass.
    ends: Vec<ValueId>,
    /// What the host reads of all rows beside logits, where the pass leaves that.
    pub hidden: Option<ValueId>,
}

impl PassOps<'_> {
    /// Those that lead to logits, of a program that makes some; with what the host reads of all rows beside them, if the pass `leaves` that: vectors
    /// for a head, or what the last norm gives.
    pub fn of_logits(program: &Program, leaves: bool) -> Result<Option<PassOps<'_>>> {
        let Some(logits) = program.logits else { return Ok(None) };
        let features = program.features.filter(|_| leaves);
        if !leaves || features.is_some() {
            let ends = collected(features.into_iter().chain([logits]), WHAT)?;
            let pass = PassOps::new(program, Cow::Borrowed(&program.ops), ends)?;
            return Ok(Some(PassOps { hidden: features, ..pass }));
        }
        let embedding = program.embedding.as_ref();
        let norm = embedding.and_then(|embedding| {
            let end = embedding.ops.iter().rposition(|op| op.writes() == Some(embedding.tokens))?;
            Some((&embedding.ops[..=end], embedding.tokens))
        });
        let (norm, tokens) =
            norm.ok_or_else(|| Error::Unsupported("no norm gives vectors of tokens behind the last layer".into()))?;
        let ops = collected(program.ops.iter().chain(norm).cloned(), WHAT)?;
        let pass = PassOps::new(program, Cow::Owned(ops), vec![logits, tokens])?;
        Ok(Some(PassOps { hidden: Some(tokens), ..pass }))
    }

    /// Those that lead to embeddings, of a program that makes some.
    pub fn of_embeddings(program: &Program) -> Result<Option<PassOps<'_>>> {
        let Some(embedding) = &program.embedding else { return Ok(None) };
        let ops = program.ops[..embedding.after].iter().chain(&embedding.ops).cloned();
        let (ops, ends) = (collected(ops, WHAT)?, collected(embedding.ends(), WHAT)?);
        PassOps::new(program, Cow::Owned(ops), ends).map(Some)
    }

    fn new<'a>(program: &Program, ops: Cow<'a, [Op]>, ends: Vec<ValueId>) -> Result<PassOps<'a>> {
        Ok(PassOps { uses: Uses::of(program, &ops, &ends)?, ops, ends, hidden: None })
    }

    /// Whether the host reads a value.
    pub fn ends_with(&self, id: ValueId) -> bool {
        self.ends.contains(&id)
    }
}

/// What is done with one value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    /// Ops that read it.
    pub readers: usize,
    /// The index of the last of them.
    pub last_reader: usize,
    /// Which of the places its form has that products read; none where none reads it.
    pub place: Option<usize>,
    /// Products with experts that read it.
    by_experts: usize,
    /// Whether some do, and all of them can read 16-bit floats.
    experts_round: bool,
    /// Whether a norm by the root of the mean square writes it, and nothing else.
    is_of_norm: bool,
    /// Whether that norm leaves the division to the products that read the value.
    is_deferred: bool,
    /// Ops that write it.
    writers: usize,
    /// Ops that multiply it by a matrix.
    products: usize,
    /// Index of the op from which on a launch may write its form, and of the last multiplication that reads it.
    first: usize,
    last: usize,
    /// One more than the index of the last multiplication by a quantized matrix that reads it; 0 for none.
    quantized_end: usize,
    /// Ops that write it with kernels that can write 16-bit floats, and whether the last writer is one of them.
    emitters: usize,
    has_writer: bool,
    /// Whether anything reads what that op wrote, and whether anything but products of 16-bit floats does.
    is_read: bool,
    is_read_as_floats: bool,
}

/// The uses of every value, by its number.
#[derive(Clone, Debug)]
pub struct Uses {
    values: Vec<Use>,
    places: usize,
}

impl Uses {
    /// Walks over `ops` of `program`; the host reads the values in `ends` behind them.
    fn of(program: &Program, ops: &[Op], ends: &[ValueId]) -> Result<Uses> {
        let mut uses = Uses { values: filled(program.values.len(), Use::default(), WHAT)?, places: 0 };
        for (index, op) in ops.iter().enumerate() {
            let first = op.reads().next();
            let others = op.reads().skip(1).filter(|&id| Some(id) != first);
            first.into_iter().chain(others).for_each(|id| uses.values[id.0].read(program, index, op));
            if let Some(id) = op.writes() {
                // A launch of products may do their gated unit too.
                let from = match *op {
                    Op::Gate { gate, up, .. } => uses.values[gate.0].first.min(uses.values[up.0].first),
                    _ => index,
                };
                uses.values[id.0].write(from, op);
            }
        }
        ends.iter().for_each(|end| uses.values[end.0].end(ops.len()));
        uses.defer(ops);
        uses.give_places()?;
        Ok(uses)
    }

    /// The uses of value `id`.
    pub fn of_value(&self, id: ValueId) -> &Use {
        &self.values[id.0]
    }

    /// Whether the norm that writes the value leaves the division to the products that read it.
    pub fn is_deferred(&self, id: ValueId) -> bool {
        self.values[id.0].is_deferred
    }

    /// Places for the forms of values that products read.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Elements that a row of the batch has of the widest quantized value at a place; 0 for none.
    pub fn widest_quantized(&self, program: &Program, place: usize) -> usize {
        self.at(place).filter(|&id| self.values[id.0].is_quantized()).map(|id| program.extent(id).0).max().unwrap_or(0)
    }

    /// The same of those that passes of 16-bit floats have as such, with the room that each of their rows has.
    pub fn widest_f16(&self, program: &Program, place: usize) -> usize {
        let room = |id: ValueId| {
            let width = program.values[id.0].width;
            program.extent(id).0 / width * width.next_multiple_of(COLUMNS)
        };
        self.at(place).filter(|&id| self.has_f16(program, id)).map(room).max().unwrap_or(0)
    }

    fn at(&self, place: usize) -> impl Iterator<Item = ValueId> + '_ {
        (0..self.values.len()).map(ValueId).filter(move |id| self.values[id.0].place == Some(place))
    }

    /// Whether a kernel writes the value in any form, and nothing reads it but products with matrices whose types have kernels for that.
    pub fn is_roundable(&self, program: &Program, id: ValueId) -> bool {
        let Use { emitters, has_writer, is_read, is_read_as_floats, products, by_experts, .. } = self.values[id.0];
        has_writer
            && emitters == 1
            && is_read
            && !is_read_as_floats
            && program.values[id.0].width.is_multiple_of(if products > by_experts { COLUMNS } else { ROUNDED_COLUMNS })
    }

    /// Whether passes of 16-bit floats have those of a value: in place of its floats, or beside them where experts read both.
    pub fn has_f16(&self, program: &Program, id: ValueId) -> bool {
        self.experts_round(program, id) || self.is_roundable(program, id)
    }

    /// Whether experts read a value, and all that do can as 16-bit floats.
    pub fn experts_round(&self, program: &Program, id: ValueId) -> bool {
        self.values[id.0].experts_round && program.values[id.0].width.is_multiple_of(ROUNDED_COLUMNS)
    }

    /// Chooses the norms whose division is left to products: nothing else reads what they write. The factors of rows have one place, so a norm whose
    /// result is read after the next one began divides by itself.
    fn defer(&mut self, ops: &[Op]) {
        let mut end = None;
        for (index, op) in ops.iter().enumerate() {
            let Op::Norm { out, .. } = *op else { continue };
            let value = &mut self.values[out.0];
            let only_products = value.readers > 0 && value.products == value.readers;
            if value.is_of_norm && value.writers == 1 && only_products && end.is_none_or(|end| end < index) {
                value.is_deferred = true;
                end = Some(value.last);
            }
        }
    }

    /// Gives the values that products read places for their forms; those of values whose times do not meet are the same.
    fn give_places(&mut self) -> Result<()> {
        let read = (0..self.values.len()).filter(|&id| self.values[id].products > 0);
        let mut order = collected(read, WHAT)?;
        order.sort_by_key(|&id| (self.values[id].first, id));
        let mut ends: Vec<usize> = Vec::new();
        for id in order {
            let Use { first, last, .. } = self.values[id];
            let place = match ends.iter().position(|&end| end < first) {
                Some(place) => place,
                None => {
                    push(&mut ends, 0, WHAT)?;
                    ends.len() - 1
                }
            };
            ends[place] = last;
            self.values[id].place = Some(place);
        }
        self.places = ends.len();
        Ok(())
    }
}

impl Use {
    /// Whether products with experts read the value.
    pub fn is_read_by_experts(&self) -> bool {
        self.by_experts > 0
    }

    /// Whether a multiplication by a quantized matrix reads the value in op `next` or a later one.
    pub fn is_quantized_from(&self, next: usize) -> bool {
        self.quantized_end > next
    }

    /// Whether one ever does.
    pub fn is_quantized(&self) -> bool {
        self.quantized_end > 0
    }

    /// Whether anything but multiplications reads the value.
    pub fn is_read_beside_products(&self) -> bool {
        self.readers > self.products
    }

    /// The host reads it as floats.
    fn end(&mut self, index: usize) {
        (self.readers, self.last_reader) = (self.readers + 1, index);
        (self.is_read, self.is_read_as_floats) = (true, true);
    }

    fn read(&mut self, program: &Program, index: usize, op: &Op) {
        (self.readers, self.last_reader) = (self.readers + 1, index);
        self.is_read = true;
        let (dtype, rounds) = match op {
            Op::MatMul { matrix, .. } => {
                let weight = &program.matrices[matrix.0];
                let dtype = DeviceType::of(weight.dtype);
                (dtype, gemm_f16::takes(dtype, weight.rows))
            }
            Op::ExpertMatMul(ExpertProduct { experts, out, .. }) => {
                let dtype = DeviceType::of(program.matrices[experts.matrix.0].dtype);
                let rounds = experts::rounds(dtype, program.values[out.0].width);
                self.experts_round = rounds && (self.experts_round || self.by_experts == 0);
                self.by_experts += 1;
                (dtype, rounds)
            }
            _ => {
                self.is_read_as_floats = true;
                return;
            }
        };
        self.is_read_as_floats |= !rounds;
        (self.products, self.last) = (self.products + 1, index);
        if dtype.is_quantized() {
            self.quantized_end = index + 1;
        }
    }

    fn write(&mut self, from: usize, op: &Op) {
        self.first = if self.writers == 0 { from } else { self.first.min(from) };
        self.writers += 1;
        self.is_of_norm = matches!(op, Op::Norm { norm, .. } if norm.kind == NormKind::Rms && norm.bias.is_none());
        self.has_writer = !matches!(
            op,
            Op::Embed { .. }
                | Op::GroupNorm { .. }
                | Op::MatMul { .. }
                | Op::HeadMatMul { .. }
                | Op::ExpertMatMul(_)
                | Op::Given { .. }
                | Op::JoinHeads { .. }
                | Op::TakeHeads { .. }
                | Op::Convolve(_)
                | Op::Scan(_)
                | Op::HeadNorm { .. }
                | Op::Rope { .. }
                | Op::SelectRows { .. }
                | Op::Receive { .. }
                | Op::Add { .. }
        );
        self.emitters += usize::from(self.has_writer);
        (self.is_read, self.is_read_as_floats) = (false, false);
    }
}
