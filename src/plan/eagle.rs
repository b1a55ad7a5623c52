//! Heads that draft for another model by vectors between its layers (EAGLE-3; see [`crate::arch::eagle`]).
//!
//! A head has one layer with keys and values of its own. A row stands for a token of the text and brings along a vector that is made of those which
//! the model had of the token before, between some of its layers: the layer reads the embedding of the token and that vector, each behind a norm, one
//! behind the other, and adds to the vector. The row of a further draft brings along what the head's layer gave for the token before. So a head runs
//! as a predictor does ([`super::predictor`]); what is made of the model's vectors is made in the pass of the model, by [`telling`].

use super::assistant::unsuited;
use super::build::Builder;
use super::op::{HeadPart, Index, MatrixId, Norm, Op, Program, Rows, Value, ValueId, VectorId};
use super::program::Embedding;
use super::tensors::PLAN;
use super::validate;
use crate::arch::eagle::{Features, USUAL_LAYERS, usual_layers};
use crate::arch::names::{global, in_layer, layer};
use crate::arch::spec::Presence;
use crate::arch::{Arch, Hparams};
use crate::error::{Error, Result, collected, push};
use crate::format::{Gguf, Metadata};
use std::sync::Arc;

/// What makes a head's vector of those of the model.
#[derive(Debug)]
pub struct Fusion {
    /// The layers whose input is read; their number stands for what the last one gives. Where the head says nothing: [`usual_layers`].
    pub layers: Option<Vec<usize>>,
    /// Elements of each of these vectors.
    pub width: usize,
    /// The norm of all together.
    pub norm: Option<Norm>,
    /// What they are multiplied by.
    pub matrix: MatrixId,
    /// The norm before the model's head, of a head that has no matrix of its own for logits.
    pub last_norm: Option<Norm>,
    /// Tokens that the model has, where the file of the head says that; else 0.
    pub vocab: usize,
}

impl Fusion {
    pub(super) fn copied(&self) -> Result<Fusion> {
        let layers = self.layers.as_deref().map(|layers| collected(layers.iter().copied(), PLAN)).transpose()?;
        Ok(Fusion { layers, ..*self })
    }

    /// The layers of a model of so many.
    fn layers_of(&self, layers: usize) -> Result<Vec<usize>> {
        let usual = || usual_layers(layers).map(|usual| collected(usual, PLAN)).transpose();
        let read = match &self.layers {
            Some(listed) => Some(collected(listed.iter().copied(), PLAN)?),
            None => usual()?,
        };
        let are_there = |read: &Vec<usize>| read.iter().all(|&layer| layer <= layers);
        read.filter(are_there).ok_or_else(|| unsuited("it reads vectors of layers that the model lacks"))
    }
}

/// Some of a model's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subset {
    /// Of each logit the token.
    pub tokens: Arc<[u32]>,
    /// How many tokens the model has.
    pub of: usize,
}

/// Builds the program of a head. It lacks the table of tokens, unless the file has one: [`over`] takes the model's.
pub(super) fn build(gguf: &Gguf, arch: &Arch, hparams: &Hparams, features: &Features) -> Result<Program> {
    let mut builder = Builder::new(gguf, arch, hparams)?;
    let [token, given] = builder.head_input()?;
    builder.begin_layer()?;
    let (index, hidden) = (0, hparams.hidden);
    let token = builder.norm(&in_layer(index, layer::ATTENTION_NORM), token)?;
    let normed = builder.norm(&in_layer(index, layer::FEATURES_NORM), given)?;
    let both = builder.value(2 * hidden, Rows::Batch)?;
    builder.push(Op::JoinHeads { x: token, part: whole(hidden), y: normed, out: both })?;
    let sum = if features.adds_to_normalized { normed } else { given };
    let attended = builder.attention(index, both)?;
    builder.push(Op::Add { x: sum, y: attended })?;
    let input = builder.norm(&in_layer(index, arch.feed_forward_norm), sum)?;
    let fed = builder.feed_forward(index, input)?;
    builder.push(Op::Add { x: sum, y: fed })?;
    builder.begin_layer()?;
    let after = builder.ops.len();
    let norm = builder.norm_of(arch.output_norm, hidden, arch.norm, arch.norm_bias)?;
    let has_head = builder.tensors.has(global::HEAD, Presence::Optional)?;
    let (logits, out) = if has_head {
        let rows = builder.tensors.rows_of_tokens(global::HEAD, hidden)?;
        let out = builder.head_of(sum, Some(norm), (global::HEAD_PROJECTION, global::HEAD), rows)?;
        (Some(rows), Some(out))
    } else {
        (None, None)
    };
    let embedding = builder.vectors_of_head(sum, after)?;
    let subset = builder.subset(gguf.metadata(), logits)?;
    let last_norm = Some(norm).filter(|_| !has_head);
    let vocab = gguf.metadata().u32(&format!("{}.vocab_size", arch.name))?.unwrap_or(0) as usize;
    let fusion = Fusion { last_norm, vocab, ..builder.fusion(features)? };
    let own = builder.finish(out, embedding, None)?;
    Ok(Program { subset, fusion: Some(fusion), ..own })
}

impl Builder<'_> {
    /// The embedding of each row's token, and the vector that it brings along: both at once where the file has no table.
    fn head_input(&mut self) -> Result<[ValueId; 2]> {
        let hidden = self.hparams.hidden;
        if self.tensors.has(global::EMBEDDING, Presence::Optional)? {
            let token = self.embed_tokens(global::EMBEDDING)?;
            let given = self.value(hidden, Rows::Batch)?;
            self.push(Op::Given { out: given })?;
            return Ok([token, given]);
        }
        let both = self.value(2 * hidden, Rows::Batch)?;
        self.push(Op::Given { out: both })?;
        let token = self.take_heads(both, HeadPart { each: 2 * hidden, first: 0, count: hidden })?;
        let given = self.take_heads(both, HeadPart { each: 2 * hidden, first: hidden, count: hidden })?;
        Ok([token, given])
    }

    /// The vectors of the layer `sum` as a value of their own, behind the first `after` ops, since a host reads them where others do not.
    fn vectors_of_head(&mut self, sum: ValueId, after: usize) -> Result<Embedding> {
        let first = self.ops.len();
        let tokens = self.take_heads(sum, whole(self.hparams.hidden))?;
        let ops = collected(self.ops.drain(first..), PLAN)?;
        Ok(Embedding { after, ops, tokens, texts: tokens, scores: None })
    }

    /// Which tokens the head's `logits` are of, where it has some.
    fn subset(&mut self, meta: &Metadata, logits: Option<usize>) -> Result<Option<Subset>> {
        let name = global::DRAFT_TOKENS;
        let Some(logits) = logits else {
            return match self.tensors.has(name, Presence::Optional)? {
                true => {
                    Err(Error::Format(format!("tensor `{name}` lists tokens of `{}`, which is missing", global::HEAD)))
                }
                false => Ok(None),
            };
        };
        let has_table = self.tensors.has(global::EMBEDDING, Presence::Optional)?;
        let table =
            if has_table { Some(self.tensors.rows_of_tokens(global::EMBEDDING, self.hparams.hidden)?) } else { None };
        if !self.tensors.has(name, Presence::Optional)? {
            return match table.filter(|&rows| rows != logits) {
                None => Ok(None),
                Some(rows) => {
                    Err(Error::Format(format!("the head has logits of {logits} tokens, and embeddings of {rows}")))
                }
            };
        }
        let key = format!("{}.vocab_size", self.arch.name);
        let of = table.map_or_else(|| Ok(meta.required(&key, meta.u32(&key)?)? as usize), Ok)?;
        let tokens = self.tensors.integers(name, logits)?;
        if let Some(token) = tokens.iter().find(|&&token| token < 0 || token >= of as i64) {
            return Err(Error::Format(format!("tensor `{name}` names the token {token} of {of}")));
        }
        let tokens = collected(tokens.iter().map(|&token| token as u32), PLAN)?;
        Ok(Some(Subset { tokens: tokens.into(), of }))
    }

    fn fusion(&mut self, features: &Features) -> Result<Fusion> {
        let Features { ref layers, width, are_normalized, .. } = *features;
        let all = width * layers.as_ref().map_or(USUAL_LAYERS, Vec::len);
        let norm = match are_normalized {
            true => Some(self.norm_of(global::FEATURES_IN_NORM, all, self.arch.norm, self.arch.norm_bias)?),
            false => None,
        };
        let name = format!("{}.weight", global::FEATURES_IN);
        let matrix = self.tensors.matrix(&name, self.hparams.hidden, all)?;
        let layers = layers.as_deref().map(|layers| collected(layers.iter().copied(), PLAN)).transpose()?;
        Ok(Fusion { layers, width, norm, matrix, last_norm: None, vocab: 0 })
    }
}

/// All elements of a row.
fn whole(width: usize) -> HeadPart {
    HeadPart { each: width, first: 0, count: width }
}

/// The program of a head for `model`, whose table it embeds by and whose head makes logits of it where it has none.
pub fn over(head: &Program, model: &Program) -> Result<Program> {
    fusion_of(head, model)?;
    let (mut over, vocab) = (head.copied()?, model.vocab());
    if let Some(subset) = &mut over.subset {
        // Neither may need all rows of its tables.
        let is_known = subset.tokens.iter().all(|&token| (token as usize) < vocab);
        subset.of = vocab;
        is_known.then_some(()).ok_or_else(|| unsuited("it has tokens that the model lacks"))?;
    }
    if let Some(norm) = over.fusion.as_ref().and_then(|fusion| fusion.last_norm) {
        over.make_logits(norm, model)?;
    }
    if let [Op::Given { .. }, Op::TakeHeads { out: token, .. }, Op::TakeHeads { out: given, .. }, ..] = over.ops[..] {
        let table = model.token_table().ok_or_else(|| unsuited("the model makes no text"))?;
        let table = over.take_matrix(model, table, over.values[token.0].width)?;
        over.ops[1] = Op::Embed { table, index: Index::Token, out: token };
        over.ops[2] = Op::Given { out: given };
        over.ops.remove(0);
        over.layers.iter_mut().for_each(|first| *first -= 1);
        over.embedding.iter_mut().for_each(|embedding| embedding.after -= 1);
    }
    validate::check(&over)?;
    Ok(over)
}

/// The program of `model` that makes of each row what `head` reads ([`Program::features`]).
pub fn telling(model: &Program, head: &Program) -> Result<Program> {
    let (fusion, layers) = fusion_of(head, model)?;
    let mut telling = model.copied()?;
    let mut vectors = collected(layers.iter().map(|_| ValueId(0)), PLAN)?;
    let mut order = collected(0..layers.len(), PLAN)?;
    // From behind, so that the places of those before do not move.
    order.sort_unstable_by_key(|&index| std::cmp::Reverse(layers[index]));
    for index in order {
        vectors[index] = telling.keep_input(layers[index], fusion.width)?;
    }
    telling.join_vectors(&vectors, head, fusion)?;
    validate::check(&telling)?;
    Ok(telling)
}

impl Program {
    fn floats(&mut self, width: usize) -> Result<ValueId> {
        push(&mut self.values, Value::floats(width, Rows::Batch), PLAN)?;
        Ok(ValueId(self.values.len() - 1))
    }

    /// A matrix of `model`, of so many columns, as one of this program too.
    fn take_matrix(&mut self, model: &Program, matrix: MatrixId, cols: usize) -> Result<MatrixId> {
        if model.matrices[matrix.0].cols != cols {
            return Err(unsuited("its vectors are of another size"));
        }
        push(&mut self.matrices, model.matrices[matrix.0].clone(), PLAN)?;
        push(&mut self.origins, model.origins[matrix.0].clone(), PLAN)?;
        Ok(MatrixId(self.matrices.len() - 1))
    }

    /// Makes logits of the head's vectors behind `norm`, as the last product of `model` does.
    fn make_logits(&mut self, norm: Norm, model: &Program) -> Result<()> {
        let vectors = self.embedding.as_ref().and_then(|embedding| embedding.ops.first()?.reads().next());
        let last = model.ops.iter().rev().find_map(|op| match *op {
            Op::MatMul { matrix, out, .. } if Some(out) == model.logits => Some(matrix),
            _ => None,
        });
        let (Some(vectors), Some(last)) = (vectors, last) else { return Err(unsuited("the model makes no text")) };
        let width = self.values[vectors.0].width;
        let matrix = self.take_matrix(model, last, width)?;
        let mut value = |width| {
            push(&mut self.values, Value::floats(width, Rows::Outputs), PLAN)?;
            Ok::<_, Error>(ValueId(self.values.len() - 1))
        };
        let (selected, normed, out) = (value(width)?, value(width)?, value(model.matrices[last.0].rows)?);
        for op in [
            Op::SelectRows { x: vectors, out: selected },
            Op::Norm { x: selected, norm, out: normed },
            Op::MatMul { x: normed, matrix, bias: None, out },
        ] {
            push(&mut self.ops, op, PLAN)?;
        }
        self.logits = Some(out);
        Ok(())
    }

    /// Keeps what layer `layer` reads, of `width` elements.
    fn keep_input(&mut self, layer: usize, width: usize) -> Result<ValueId> {
        let at = self.layers[layer];
        let input =
            self.ops[at].reads().next().filter(|&input| self.values[input.0] == Value::floats(width, Rows::Batch));
        let x = input.ok_or_else(|| unsuited("its vectors are of another size"))?;
        let out = self.floats(width)?;
        push(&mut self.ops, Op::TakeHeads { x, part: whole(width), out }, PLAN)?;
        self.ops[at..].rotate_right(1);
        self.layers[layer + 1..].iter_mut().for_each(|first| *first += 1);
        self.embedding.iter_mut().filter(|embedding| embedding.after >= at).for_each(|embedding| embedding.after += 1);
        Ok(out)
    }

    /// Makes one vector of `vectors`, as `head` does by `fusion`.
    fn join_vectors(&mut self, vectors: &[ValueId], head: &Program, fusion: &Fusion) -> Result<()> {
        let mut joined = vectors[0];
        for (count, &y) in (1..).zip(&vectors[1..]) {
            let out = self.floats((count + 1) * fusion.width)?;
            push(&mut self.ops, Op::JoinHeads { x: joined, part: whole(count * fusion.width), y, out }, PLAN)?;
            joined = out;
        }
        if let Some(norm) = fusion.norm {
            let weight = VectorId(self.vectors.len());
            push(&mut self.vectors, collected(head.vectors[norm.weight.0].iter().copied(), PLAN)?, PLAN)?;
            let out = self.floats(self.values[joined.0].width)?;
            push(&mut self.ops, Op::Norm { x: joined, norm: Norm { weight, bias: None, ..norm }, out }, PLAN)?;
            joined = out;
        }
        let matrix = MatrixId(self.matrices.len());
        push(&mut self.matrices, head.matrices[fusion.matrix.0].clone(), PLAN)?;
        push(&mut self.origins, head.origins[fusion.matrix.0].clone(), PLAN)?;
        let out = self.floats(head.matrices[fusion.matrix.0].rows)?;
        push(&mut self.ops, Op::MatMul { x: joined, matrix, bias: None, out }, PLAN)?;
        self.features = Some(out);
        Ok(())
    }
}

/// What `head` makes its vectors of, and the layers that it reads, if `model` has them.
fn fusion_of<'a>(head: &'a Program, model: &Program) -> Result<(&'a Fusion, Vec<usize>)> {
    let fusion = head.fusion.as_ref().ok_or_else(|| unsuited("it reads no vectors of one"))?;
    if model.logits.is_none() || model.only_drafts() {
        return Err(unsuited("the model makes no text"));
    }
    let layers = model.layers.len().checked_sub(1).ok_or_else(|| unsuited("the model has no layers"))?;
    Ok((fusion, fusion.layers_of(layers)?))
}
