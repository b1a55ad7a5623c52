//! Latent attention, in the form that keeps one vector a token: see [`crate::arch::latent`].

use super::build::Builder;
use super::op::{HeadPart, Norm, NormKind, Op, Rows, ValueId};
use super::tensors::Part;
use crate::arch::latent::{Latent, NORM_EPS};
use crate::arch::names::{in_layer, layer};
use crate::arch::spec::Presence;
use crate::error::Result;

impl Builder<'_> {
    /// What the attention of layer `index` makes of `input`.
    pub(super) fn latent_attention(&mut self, index: usize, latent: &Latent, input: ValueId) -> Result<ValueId> {
        let &Latent { rank, plain, rotated, value, .. } = latent;
        let (heads, hidden) = (self.hparams.heads[index].heads, self.hparams.hidden);
        let own = self.latent_queries(index, latent, input)?;
        let (vector, shared) = self.latent_vector(index, latent, input)?;

        let each = plain + rotated;
        let part = HeadPart { each, first: 0, count: plain };
        let products = self.head_product(&in_layer(index, layer::K_OF_LATENT), own, part, heads * rank)?;
        let queries = self.join_heads(own, HeadPart { each, first: plain, count: rotated }, products, heads)?;
        let keys = self.join_heads(shared, HeadPart { each: rotated, first: 0, count: rotated }, vector, 1)?;
        self.rotate(index, &[queries, keys])?;
        self.push(Op::StoreKv { layer: self.hparams.kv_layer(index), keys, values: vector })?;
        let mixed = self.value(heads * rank, Rows::Batch)?;
        let kind = self.attention_kind(index)?;
        self.push(Op::Attention { kind, queries, out: mixed })?;
        let part = HeadPart { each: rank, first: 0, count: rank };
        let values = self.head_product(&in_layer(index, layer::V_OF_LATENT), mixed, part, heads * value)?;
        self.project(&in_layer(index, layer::ATTENTION_OUTPUT), values, hidden, self.arch.output_bias)
    }

    /// The queries of all heads, of each those elements first that do not rotate.
    fn latent_queries(&mut self, index: usize, latent: &Latent, input: ValueId) -> Result<ValueId> {
        let (width, bias) = (self.hparams.heads[index].heads * (latent.plain + latent.rotated), self.arch.qkv_bias);
        let Some(rank) = latent.query_rank else {
            return self.project(&in_layer(index, layer::Q), input, width, bias);
        };
        let vector = self.project(&in_layer(index, layer::Q_LATENT), input, rank, bias)?;
        let vector = self.latent_norm(&in_layer(index, layer::Q_LATENT_NORM), vector, rank)?;
        self.project(&in_layer(index, layer::Q_OF_LATENT), vector, width, bias)
    }

    /// The vector of keys and values, and the key that all heads share.
    fn latent_vector(&mut self, index: usize, latent: &Latent, input: ValueId) -> Result<(ValueId, ValueId)> {
        let (rank, of, name) = (latent.rank, latent.rank + latent.rotated, in_layer(index, layer::KV_LATENT));
        let mut part = |taken| self.project_part(&name, input, &Part { taken, of }, Presence::Absent);
        let (vector, shared) = (part(0..rank)?, part(rank..of)?);
        Ok((self.latent_norm(&in_layer(index, layer::KV_LATENT_NORM), vector, rank)?, shared))
    }

    fn latent_norm(&mut self, name: &str, x: ValueId, width: usize) -> Result<ValueId> {
        let norm = self.norm_of(name, width, NormKind::Rms, Presence::Absent)?;
        let out = self.value(width, Rows::Batch)?;
        self.push(Op::Norm { x, norm: Norm { eps: NORM_EPS, ..norm }, out })?;
        Ok(out)
    }

    /// Multiplies a part of each head by rows of its own, `width` of all heads together.
    fn head_product(&mut self, name: &str, x: ValueId, part: HeadPart, width: usize) -> Result<ValueId> {
        let heads = self.values[x.0].width / part.each;
        let matrix = self.tensors.experts(&format!("{name}.weight"), width / heads, part.count, heads)?;
        let out = self.value(width, Rows::Batch)?;
        self.push(Op::HeadMatMul { x, part, matrix, out })?;
        Ok(out)
    }

    fn join_heads(&mut self, x: ValueId, part: HeadPart, y: ValueId, heads: usize) -> Result<ValueId> {
        let out = self.value(heads * part.count + self.values[y.0].width, Rows::Batch)?;
        self.push(Op::JoinHeads { x, part, y, out })?;
        Ok(out)
    }
}
