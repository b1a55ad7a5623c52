//! From a file and its family to a [`Program`]: the one description of a forward pass.

use super::eagle;
use super::op::{
    AttentionKind, AttentionMask, Embedding, HeadPart, Index, MatrixId, Norm, NormKind, Op, Program, RopeId, Rows,
    Value, ValueId, VectorId,
};
use super::tensors::{PLAN, Part, Tensors, Weights};
use crate::arch::names::{global, in_layer, layer};
use crate::arch::rope::{Divisors, Rope};
use crate::arch::spec::{Blocks, NormOrder, NormSpan, Presence, RopeRule};
use crate::arch::{Arch, Hparams, heads::Heads, hparams::Keys};
use crate::error::{Error, Result, collected, push};
use crate::format::{Gguf, limits};
use crate::kv::state::Shape;
use crate::kv::{HeadSizes, Layout};

/// Builds the program of the model in `gguf`. Tensors that the family does not use are refused: the model would run wrongly
/// without them.
pub fn build(gguf: &Gguf, arch: &Arch, hparams: &Hparams) -> Result<Program> {
    if let Some(features) = &hparams.features {
        return eagle::build(gguf, arch, hparams, features);
    }
    let mut builder = Builder::new(gguf, arch, hparams)?;
    let mut hidden = match hparams.backbone {
        Some(backbone) => builder.backbone_input(backbone)?,
        None => builder.embed()?,
    };
    let embeddings = builder.layer_embeddings(hidden)?;
    for index in 0..hparams.layers {
        builder.begin_layer()?;
        hidden = builder.layer(index, hidden)?;
        if let Some(embeddings) = embeddings {
            builder.add_layer_embedding(index, embeddings, hidden)?;
        }
        builder.scale_layer(index, hidden)?;
    }
    builder.begin_layer()?;
    let after = builder.ops.len();
    let norm = match arch.norms {
        NormOrder::AfterSum => None,
        _ => Some(builder.norm_of(arch.output_norm, hparams.hidden, arch.norm, arch.norm_bias)?),
    };
    let logits = match arch.mask {
        AttentionMask::Causal | AttentionMask::Borrowed => Some(builder.head(hidden, norm, None)?),
        AttentionMask::Bidirectional => None,
    };
    let embedding = builder.embedding(hidden, norm, after)?;
    builder.finish(logits, embedding, None)
}

/// A program on its way.
pub(super) struct Builder<'a> {
    pub(super) arch: &'a Arch,
    pub(super) hparams: &'a Hparams,
    pub(super) tensors: Tensors<'a>,
    pub(super) ops: Vec<Op>,
    layers: Vec<usize>,
    pub(super) values: Vec<Value>,
    pub(super) states: Vec<Shape>,
    rotations: Vec<Rotation>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(gguf: &'a Gguf, arch: &'a Arch, hparams: &'a Hparams) -> Result<Self> {
        let mut tensors = Tensors::new(gguf)?;
        let rotations = rotations(gguf, arch, hparams, &mut tensors)?;
        let (ops, layers, values, states) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Builder { arch, hparams, tensors, ops, layers, values, states, rotations })
    }

    fn embed(&mut self) -> Result<ValueId> {
        let out = self.embed_tokens(global::EMBEDDING)?;
        if self.tensors.has(global::TOKEN_TYPES, self.arch.token_types)? {
            let types = self.rows_of(global::TOKEN_TYPES)?;
            self.add_rows(out, global::TOKEN_TYPES, types, Index::First)?;
        }
        if self.tensors.has(global::POSITIONS, self.arch.positions)? {
            self.add_rows(out, global::POSITIONS, self.hparams.context, Index::Position)?;
        }
        if self.arch.embedding_norm == Presence::Absent {
            return Ok(out);
        }
        self.norm(global::EMBEDDING_NORM, out)
    }

    /// The embeddings of tokens by the table `name`, times the model's factor.
    pub(super) fn embed_tokens(&mut self, name: &str) -> Result<ValueId> {
        let table = self.token_table(name)?;
        let out = self.value(self.hparams.hidden, Rows::Batch)?;
        self.push(Op::Embed { table, index: Index::Token, out })?;
        self.scale(out, self.hparams.embedding_scale)?;
        Ok(out)
    }

    /// The table `name`, which has a row for each token.
    pub(super) fn token_table(&mut self, name: &str) -> Result<MatrixId> {
        let hidden = self.hparams.hidden;
        let vocab = self.tensors.rows_of_tokens(name, hidden)?;
        self.tensors.matrix(name, vocab, hidden)
    }

    /// Adds a row of the table `name` to each row of `out`.
    fn add_rows(&mut self, out: ValueId, name: &str, rows: usize, index: Index) -> Result<()> {
        let width = self.hparams.hidden;
        let table = self.tensors.matrix(name, rows, width)?;
        let row = self.value(width, Rows::Batch)?;
        self.push(Op::Embed { table, index, out: row })?;
        self.push(Op::Add { x: out, y: row })
    }

    /// How many rows the matrix `name` has.
    pub(super) fn rows_of(&self, name: &str) -> Result<usize> {
        let info = self.tensors.info(name)?;
        let rows = info.dims.get(1).copied().unwrap_or(1);
        usize::try_from(rows).ok().filter(|rows| (1..=limits::HIDDEN).contains(rows)).ok_or_else(|| {
            Error::Format(format!("tensor `{name}` has {rows} rows, 1 to {} are supported", limits::HIDDEN))
        })
    }

    /// What a layer makes of `hidden`.
    pub(super) fn layer(&mut self, index: usize, hidden: ValueId) -> Result<ValueId> {
        let attention_norm = in_layer(index, layer::ATTENTION_NORM);
        if self.arch.norms == NormOrder::AfterSum {
            let attended = self.attention(index, hidden)?;
            self.push(Op::Add { x: hidden, y: attended })?;
            let hidden = self.norm(&in_layer(index, layer::ATTENTION_SUM_NORM), hidden)?;
            let fed = self.feed_forward(index, hidden)?;
            self.push(Op::Add { x: hidden, y: fed })?;
            return self.norm(&in_layer(index, layer::LAYER_SUM_NORM), hidden);
        }
        if self.arch.norms == NormOrder::Parallel {
            let input = self.norm(&attention_norm, hidden)?;
            let (attended, fed) = (self.attention(index, input)?, self.feed_forward(index, input)?);
            self.push(Op::Add { x: hidden, y: attended })?;
            self.push(Op::Add { x: hidden, y: fed })?;
            return Ok(hidden);
        }
        let is_normalized = self.arch.norms == NormOrder::BeforeButFirst && index == 0;
        let input = if is_normalized { hidden } else { self.block_input(&attention_norm, hidden)? };
        if self.arch.blocks == Blocks::One && self.hparams.feed_forward[index] > 0 {
            let output = self.feed_forward(index, input)?;
            self.add_block(hidden, output, &in_layer(index, layer::POST_FEED_FORWARD_NORM))?;
            return Ok(hidden);
        }
        let output = self.attention(index, input)?;
        self.add_block(hidden, output, &in_layer(index, layer::POST_ATTENTION_NORM))?;
        if self.arch.blocks == Blocks::One {
            return Ok(hidden);
        }
        let input = self.block_input(&in_layer(index, self.arch.feed_forward_norm), hidden)?;
        let output = self.feed_forward(index, input)?;
        let output = self.experts_beside(index, hidden, output)?;
        self.add_block(hidden, output, &in_layer(index, layer::POST_FEED_FORWARD_NORM))?;
        Ok(hidden)
    }

    /// Multiplies what a layer gives by its factor, where the file has one.
    fn scale_layer(&mut self, index: usize, hidden: ValueId) -> Result<()> {
        let name = in_layer(index, layer::LAYER_SCALE);
        if !self.tensors.has(&name, self.arch.layer_scale)? {
            return Ok(());
        }
        let factor = self.tensors.number(&name)?;
        self.scale(hidden, factor)
    }

    pub(super) fn attention(&mut self, index: usize, input: ValueId) -> Result<ValueId> {
        let recurrent = self.hparams.recurrent;
        if let Some(recurrent) = recurrent.filter(|_| !self.hparams.attends(index)) {
            return self.recurrent(index, &recurrent, input);
        }
        if let Some(recurrent) = recurrent.filter(|_| self.arch.blocks == Blocks::TwoWithState) {
            let output = self.recurrent(index, &recurrent, input)?;
            let attended = self.whole_attention(index, input)?;
            self.push(Op::Add { x: output, y: attended })?;
            return Ok(output);
        }
        self.whole_attention(index, input)
    }

    /// The attention of a layer that has one.
    fn whole_attention(&mut self, index: usize, input: ValueId) -> Result<ValueId> {
        let Hparams { temperature, latent, .. } = *self.hparams;
        if let Some(latent) = latent {
            return self.latent_attention(index, &latent, input);
        }
        if self.hparams.borrows_keys(index) || self.arch.mask == AttentionMask::Borrowed {
            let queries = self.queries(index, input)?;
            let queries = self.position(index, [(layer::Q_NORM, queries)])?;
            return self.attend(index, queries[0], None);
        }
        let ([queries, keys, values], gate) = match self.arch.gates_attention {
            true => self.gated_queries(index, input)?,
            false => (self.queries_keys_values(index, input)?, None),
        };
        if self.arch.normalizes_values {
            self.normalize_values(index, values)?;
        }
        let [queries, keys] = self.position(index, [(layer::Q_NORM, queries), (layer::K_NORM, keys)])?;
        if let Some((factor, period)) = temperature {
            self.push(Op::Temperature { x: queries, factor, period })?;
        }
        self.push(Op::StoreKv { layer: self.hparams.kv_layer(index), keys, values })?;
        self.attend(index, queries, gate)
    }

    /// The attention of queries over the cache, and the projection of its result.
    fn attend(&mut self, index: usize, queries: ValueId, gate: Option<ValueId>) -> Result<ValueId> {
        let (hidden, Heads { heads, head_dim, .. }) = (self.hparams.hidden, self.hparams.heads[index]);
        let mixed = self.value(heads * head_dim, Rows::Batch)?;
        let kind = self.attention_kind(index)?;
        self.push(Op::Attention { kind, queries, out: mixed })?;
        gate.map_or(Ok(()), |gate| self.push(Op::MulSigmoid { x: mixed, gate }))?;
        self.project(&in_layer(index, layer::ATTENTION_OUTPUT), mixed, hidden, self.arch.output_bias)
    }

    /// The three projections of a layer, which some files store as one.
    fn queries_keys_values(&mut self, index: usize, input: ValueId) -> Result<[ValueId; 3]> {
        let Heads { heads, kv_heads, head_dim, .. } = self.hparams.heads[index];
        let (q, kv, bias) = (heads * head_dim, kv_heads * head_dim, self.arch.qkv_bias);
        let fused = in_layer(index, layer::QKV);
        if self.tensors.has(&format!("{fused}.weight"), Presence::Optional)? {
            let of = q + 2 * kv;
            let mut part = |taken| self.project_part(&fused, input, &Part { taken, of }, bias);
            return Ok([part(0..q)?, part(q..q + kv)?, part(q + kv..of)?]);
        }
        let (queries, keys) = (self.queries(index, input)?, self.project(&in_layer(index, layer::K), input, kv, bias)?);
        let name = in_layer(index, layer::V);
        if self.arch.normalizes_values && !self.tensors.has(&format!("{name}.weight"), Presence::Optional)? {
            let part = HeadPart { each: head_dim, first: 0, count: head_dim };
            return Ok([queries, keys, self.take_heads(keys, part)?]);
        }
        Ok([queries, keys, self.project(&name, input, kv, bias)?])
    }

    fn queries(&mut self, index: usize, input: ValueId) -> Result<ValueId> {
        let Heads { heads, head_dim, .. } = self.hparams.heads[index];
        self.project(&in_layer(index, layer::Q), input, heads * head_dim, self.arch.qkv_bias)
    }

    /// Normalizes every head of values by itself, without weights.
    fn normalize_values(&mut self, index: usize, x: ValueId) -> Result<()> {
        let head_dim = self.hparams.heads[index].head_dim;
        let weight = self.tensors.constant(1.0, head_dim)?;
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: self.hparams.norm_eps };
        self.push(Op::HeadNorm { x, head_dim, norm })
    }

    /// Normalizes and rotates queries and keys, which come with the names of their norms, in the family's order.
    fn position<const N: usize>(&mut self, index: usize, values: [(&str, ValueId); N]) -> Result<[ValueId; N]> {
        let head_dim = self.hparams.heads[index].head_dim;
        let mut positioned = values.map(|(_, value)| value);
        if self.arch.qk_norm_after_rope {
            self.rotate(index, &positioned)?;
        }
        for (x, (name, _)) in positioned.iter_mut().zip(values) {
            *x = self.qk_norm(&in_layer(index, name), *x, head_dim)?;
        }
        if !self.arch.qk_norm_after_rope {
            self.rotate(index, &positioned)?;
        }
        Ok(positioned)
    }

    pub(super) fn rotate(&mut self, index: usize, values: &[ValueId]) -> Result<()> {
        let Some(table) = self.rope_of(index) else { return Ok(()) };
        let head_dim = self.hparams.heads[index].head_dim;
        values.iter().try_for_each(|&x| self.push(Op::Rope { x, head_dim, table }))
    }

    /// The program, once all is built; `block` where that is one of the file's blocks alone.
    pub(super) fn finish(self, logits: Option<ValueId>, embedding: Embedding, block: Option<usize>) -> Result<Program> {
        let Builder { arch, hparams, tensors, ops, layers, values, rotations, states } = self;
        let Weights { matrices, origins, vectors, idle } = tensors.finish(arch.name, hparams, block)?;
        let with_keys = (0..hparams.layers).filter(|&layer| hparams.has_keys(layer));
        let sizes = with_keys.map(|layer| {
            let Heads { heads, kv_heads, head_dim, value_dim, .. } = hparams.heads[layer];
            HeadSizes { heads, kv_heads, head_dim, value_dim }
        });
        let ropes = collected(rotations.into_iter().map(|rotation| rotation.rope), PLAN)?;
        let kv = Layout::new(sizes)?;
        let embedding = Some(embedding);
        let own = Program { ops, layers, values, matrices, origins, vectors, ropes, states, ..Program::new(kv) };
        Ok(Program { logits, embedding, idle, ..own })
    }

    pub(super) fn attention_kind(&mut self, index: usize) -> Result<AttentionKind> {
        let Hparams { attention_softcap, window, .. } = *self.hparams;
        let (heads, scale) = (self.hparams.heads[index].heads, self.hparams.attention_scale_of(index));
        let window = window.filter(|_| self.hparams.is_local(index));
        let name = format!("{}.weight", in_layer(index, layer::SINKS));
        let has_sinks = self.tensors.has(&name, self.arch.sinks)?;
        let sinks = if has_sinks { Some(self.tensors.vector(&name, heads)?) } else { None };
        let (layer, mask) = (self.hparams.kv_layer(index), self.arch.mask);
        Ok(AttentionKind { layer, scale, mask, window, softcap: attention_softcap, sinks })
    }

    /// By which table a layer rotates.
    fn rope_of(&self, index: usize) -> Option<RopeId> {
        let is_local = self.hparams.is_local(index);
        let rotates = match self.arch.rope_rule {
            RopeRule::SkipEvery(period) => !(index + 1).is_multiple_of(period),
            RopeRule::LocalOnly => is_local || self.hparams.window.is_none(),
            _ => true,
        };
        let own = Turns::of(self.arch, self.hparams, index);
        let table = self.rotations.iter().position(|rotation| rotation.turns == own);
        table.filter(|_| rotates).map(RopeId)
    }

    /// What a block reads.
    fn block_input(&mut self, norm: &str, hidden: ValueId) -> Result<ValueId> {
        if self.arch.norms.has_before() { self.norm(norm, hidden) } else { Ok(hidden) }
    }

    /// Adds what a block gives to its input.
    fn add_block(&mut self, hidden: ValueId, output: ValueId, norm: &str) -> Result<()> {
        let output = if self.arch.norms.has_after() { self.norm(norm, output)? } else { output };
        self.scale(output, self.hparams.residual_scale)?;
        self.push(Op::Add { x: hidden, y: output })
    }

    /// Notes that the next op is the first of a layer, or of what comes behind the last one.
    pub(super) fn begin_layer(&mut self) -> Result<()> {
        push(&mut self.layers, self.ops.len(), PLAN)
    }

    pub(super) fn push(&mut self, op: Op) -> Result<()> {
        push(&mut self.ops, op, PLAN)
    }

    /// A value of numbers.
    pub(super) fn value(&mut self, width: usize, rows: Rows) -> Result<ValueId> {
        self.add_value(Value::floats(width, rows))
    }

    pub(super) fn add_value(&mut self, value: Value) -> Result<ValueId> {
        push(&mut self.values, value, PLAN)?;
        Ok(ValueId(self.values.len() - 1))
    }

    pub(super) fn scale(&mut self, x: ValueId, factor: f32) -> Result<()> {
        if factor == 1.0 { Ok(()) } else { self.push(Op::Scale { x, factor }) }
    }

    /// Normalizes rows.
    pub(super) fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let width = self.values[x.0].width;
        let norm = self.norm_of(name, width, self.arch.norm, self.arch.norm_bias)?;
        self.normed(x, norm)
    }

    pub(super) fn normed(&mut self, x: ValueId, norm: Norm) -> Result<ValueId> {
        let Value { width, rows, .. } = self.values[x.0];
        let out = self.value(width, rows)?;
        self.push(Op::Norm { x, norm, out })?;
        Ok(out)
    }

    pub(super) fn norm_of(&mut self, name: &str, width: usize, kind: NormKind, bias: Presence) -> Result<Norm> {
        let full = format!("{name}.weight");
        // Files of Falcon H1 have one without the end of its name.
        let is_short = !self.tensors.has(&full, Presence::Optional)? && self.tensors.has(name, Presence::Optional)?;
        let weight = self.tensors.vector(if is_short { name } else { &full }, width)?;
        let bias = self.bias(name, &Part::all(width), bias)?;
        Ok(Norm { kind, weight, bias, eps: self.hparams.norm_eps })
    }

    /// Normalizes queries or keys, where the model does.
    fn qk_norm(&mut self, name: &str, x: ValueId, head_dim: usize) -> Result<ValueId> {
        if !self.tensors.has(&format!("{name}.weight"), self.arch.qk_norm)? {
            return Ok(x);
        }
        match self.arch.qk_norm_span {
            NormSpan::Row => self.norm(name, x),
            NormSpan::Head => {
                let norm = self.norm_of(name, head_dim, NormKind::Rms, Presence::Absent)?;
                self.push(Op::HeadNorm { x, head_dim, norm })?;
                Ok(x)
            }
        }
    }

    pub(super) fn project(&mut self, name: &str, x: ValueId, width: usize, bias: Presence) -> Result<ValueId> {
        self.project_part(name, x, &Part::all(width), bias)
    }

    /// Multiplies by some rows of a tensor that holds several projections.
    pub(super) fn project_part(&mut self, name: &str, x: ValueId, part: &Part, bias: Presence) -> Result<ValueId> {
        let bias = self.bias(name, part, bias)?;
        let out = self.multiply(name, x, part, bias)?;
        self.scale_projection(name, bias, out)?;
        Ok(out)
    }

    /// Multiplies by some rows of the tensor `name`, which has no scale.
    pub(super) fn multiply(&mut self, name: &str, x: ValueId, part: &Part, bias: Option<VectorId>) -> Result<ValueId> {
        let Value { width: cols, rows, .. } = self.values[x.0];
        let matrix = self.tensors.rows(&format!("{name}.weight"), part, cols)?;
        let out = self.value(part.taken.len(), rows)?;
        self.push(Op::MatMul { x, matrix, bias, out })?;
        Ok(out)
    }

    /// Multiplies a product by the scale that files beside 4-bit floats (NVFP4) have for the whole tensor, before any bias.
    pub(super) fn scale_projection(&mut self, name: &str, bias: Option<VectorId>, out: ValueId) -> Result<()> {
        let Some(factor) = self.tensors.scale(name)? else { return Ok(()) };
        if bias.is_some() {
            let problem = format!("tensor `{name}.scale` beside `{name}.bias` is not supported");
            return Err(Error::Unsupported(problem));
        }
        self.scale(out, factor)
    }

    pub(super) fn bias(&mut self, name: &str, part: &Part, presence: Presence) -> Result<Option<VectorId>> {
        let name = format!("{name}.bias");
        if self.tensors.has(&name, presence)? { self.tensors.elements(&name, part).map(Some) } else { Ok(None) }
    }
}

/// By what a layer's rotation is told from another's.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Turns {
    /// Whether it is that of local layers, where theirs differs.
    is_local: bool,
    /// Elements of a head that rotate.
    dims: usize,
}

impl Turns {
    fn of(arch: &Arch, hparams: &Hparams, layer: usize) -> Turns {
        let differs = matches!(arch.rope_rule, RopeRule::LocalBase | RopeRule::LocalUnscaled);
        Turns { is_local: differs && hparams.is_local(layer), dims: hparams.heads[layer].rope_dims }
    }
}

struct Rotation {
    turns: Turns,
    rope: Rope,
}

/// Factors on the frequencies of layers that do not turn in a way of their own.
fn divisors(hparams: &Hparams, arch: &Arch, tensors: &mut Tensors) -> Result<Divisors> {
    let whole = (0..hparams.layers).map(|layer| Turns::of(arch, hparams, layer)).find(|turns| !turns.is_local);
    let dims = whole.map_or(hparams.heads[0].rope_dims, |turns| turns.dims);
    let mut divisors = |name, presence| {
        let is_there = tensors.has(name, presence)?;
        if is_there { tensors.decode(name, dims / 2).map(Some) } else { Ok(None) }
    };
    let long = divisors(global::LONG_DIVISORS, Presence::Optional)?;
    let presence = whole.map_or(Presence::Optional, |_| arch.rope_divisors);
    let all = divisors(if long.is_some() { global::SHORT_DIVISORS } else { global::ROPE_DIVISORS }, presence)?;
    Ok(Divisors { all, long })
}

/// The rotations of layers that see everything, and after them those of local ones where theirs differ; none for a model without positions.
fn rotations(gguf: &Gguf, arch: &Arch, hparams: &Hparams, tensors: &mut Tensors) -> Result<Vec<Rotation>> {
    let divisors = divisors(hparams, arch, tensors)?;
    let mut rotations: Vec<Rotation> = Vec::new();
    if !hparams.rotates {
        return Ok(rotations);
    }
    let (meta, keys) = (gguf.metadata(), Keys::new(arch));
    for is_local in [false, true] {
        let of_layers = (0..hparams.layers).map(|layer| Turns::of(arch, hparams, layer));
        for turns in of_layers.filter(|turns| turns.is_local == is_local) {
            if rotations.iter().any(|known| known.turns == turns) {
                continue;
            }
            let dims = turns.dims;
            let own_base = arch.rope_rule == RopeRule::LocalBase;
            let rope = match is_local {
                true => Rope::read_local(meta, &keys, arch.rope, dims, own_base)?,
                false => Rope::read(meta, arch, dims, &divisors)?,
            };
            push(&mut rotations, Rotation { turns, rope }, PLAN)?;
        }
    }
    Ok(rotations)
}
