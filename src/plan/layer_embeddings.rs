//! Embeddings that tokens have for every layer beside the common one: each layer adds what it makes of its own.

use super::build::Builder;
use super::op::{HeadPart, Index, Norm, NormKind, Op, Rows, ValueId};
use crate::arch::names::{global, in_layer, layer};
use crate::arch::spec::Presence;
use crate::error::{Error, Result};

impl Builder<'_> {
    /// The embeddings of all layers, behind each other in a row, in models that have some. They are those of the token and a projection of its
    /// common embedding, in equal parts.
    pub(super) fn layer_embeddings(&mut self, embedded: ValueId) -> Result<Option<ValueId>> {
        let Some(each) = self.hparams.layer_embedding else { return Ok(None) };
        let (vocab, hidden) = (self.tensors.weight(super::MatrixId(0)).rows, self.hparams.hidden);
        let width = each.checked_mul(self.hparams.layers);
        let width = width.ok_or_else(|| Error::Format(format!("embeddings of {each} elements are too large")))?;
        let table = self.tensors.matrix(global::LAYER_EMBEDDINGS, vocab, width)?;
        let of_token = self.value(width, Rows::Batch)?;
        self.push(Op::Embed { table, index: Index::Token, out: of_token })?;
        let half = 0.5f32.sqrt();
        self.scale(of_token, half * (each as f32).sqrt())?;
        let name = global::LAYER_EMBEDDINGS_PROJECTION;
        let projected = self.project(name, embedded, width, Presence::Absent)?;
        let weight = format!("{}.weight", global::LAYER_EMBEDDINGS_NORM);
        let weight = self.tensors.scaled_vector(&weight, each, half)?;
        // What is projected counts as divided by the root of the hidden size, which the norm does not see but for this.
        let eps = self.hparams.norm_eps * hidden as f32;
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps };
        self.push(Op::HeadNorm { x: projected, head_dim: each, norm })?;
        self.push(Op::Add { x: projected, y: of_token })?;
        Ok(Some(projected))
    }

    /// Adds to what layer `index` gives what it makes of its part of `embeddings`.
    pub(super) fn add_layer_embedding(&mut self, index: usize, embeddings: ValueId, hidden: ValueId) -> Result<()> {
        let width = self.values[embeddings.0].width;
        let count = width / self.hparams.layers;
        let gate = self.project(&in_layer(index, layer::EMBEDDING_GATE), hidden, count, Presence::Absent)?;
        // The part stands beside the gate, for backends that do neighbouring ops together.
        let own = self.take_heads(embeddings, HeadPart { each: width, first: index * count, count })?;
        self.push(Op::Gate { kind: self.arch.activation, gate, up: own })?;
        let name = in_layer(index, layer::EMBEDDING_OUTPUT);
        let output = self.project(&name, gate, self.hparams.hidden, Presence::Absent)?;
        let output = self.norm(&in_layer(index, layer::POST_EMBEDDING_NORM), output)?;
        self.push(Op::Add { x: hidden, y: output })
    }
}
