//! What stands behind the layers: logits, vectors of texts, and scores.

use super::build::Builder;
use super::op::{Embedding, MatrixId, Norm, Op, Rows, ValueId};
use super::tensors::{PLAN, Part};
use crate::arch::names::global;
use crate::arch::spec::{Classifier, Presence};
use crate::error::{Result, collected};

impl Builder<'_> {
    /// The last norm and the output head, which is `own` if there is one; a file without a head uses the embedding.
    pub(super) fn head(&mut self, hidden: ValueId, norm: Option<Norm>, own: Option<&str>) -> Result<ValueId> {
        let vocab = self.tensors.weight(MatrixId(0)).rows;
        let has_head = self.tensors.has(global::HEAD, self.arch.head)?;
        let shared = if has_head { global::HEAD } else { global::EMBEDDING };
        let projection = own.unwrap_or(global::HEAD_PROJECTION);
        let name = own.map_or_else(|| shared.to_owned(), |own| format!("{own}.weight"));
        self.head_of(hidden, norm, (projection, &name), vocab)
    }

    /// The same by the matrix `name` of so many rows, whose bias and scale have the name `projection`.
    pub(super) fn head_of(
        &mut self,
        hidden: ValueId,
        norm: Option<Norm>,
        (projection, name): (&str, &str),
        rows: usize,
    ) -> Result<ValueId> {
        let width = self.hparams.hidden;
        let selected = self.value(width, Rows::Outputs)?;
        self.push(Op::SelectRows { x: hidden, out: selected })?;
        let normed = norm.map_or(Ok(selected), |norm| self.normed(selected, norm))?;
        let matrix = self.tensors.matrix(name, rows, width)?;
        let bias = self.bias(projection, &Part::all(rows), Presence::Optional)?;
        let out = self.value(rows, Rows::Outputs)?;
        self.push(Op::MatMul { x: normed, matrix, bias, out })?;
        self.scale_projection(projection, bias, out)?;
        self.scale(out, self.hparams.logit_scale)?;
        // What only drafts is trained without the cap that its file has of the other model.
        let cap = self.hparams.final_softcap.filter(|_| self.hparams.backbone.is_none());
        if let Some(cap) = cap {
            self.push(Op::Softcap { x: out, cap })?;
        }
        Ok(out)
    }

    /// What the last norm gives of each token, which `after` ops come before, and what the last projections make of that.
    pub(super) fn embedding(&mut self, hidden: ValueId, norm: Option<Norm>, after: usize) -> Result<Embedding> {
        let first = self.ops.len();
        let tokens = norm.map_or(Ok(hidden), |norm| self.normed(hidden, norm))?;
        let tokens = match self.hparams.backbone {
            Some(backbone) => self.project(global::BACKBONE_OUT, tokens, backbone, Presence::Absent)?,
            None => tokens,
        };
        let mut texts = tokens;
        for name in global::TEXT_PROJECTIONS {
            if self.tensors.has(name, self.arch.text_projections)? {
                let (cols, rows) = (self.values[texts.0].width, self.rows_of(name)?);
                let matrix = self.tensors.matrix(name, rows, cols)?;
                let out = self.value(rows, Rows::Batch)?;
                self.push(Op::MatMul { x: texts, matrix, bias: None, out })?;
                texts = out;
            }
        }
        let scores = self.scores(tokens)?;
        let ops = collected(self.ops.drain(first..), PLAN)?;
        Ok(Embedding { after, ops, tokens, texts, scores })
    }

    /// What the classifier makes of each token, in files that have one.
    fn scores(&mut self, tokens: ValueId) -> Result<Option<ValueId>> {
        let name = |part: &str| format!("{part}.weight");
        let (dense, out) = (name(global::CLASSIFIER), name(global::CLASSIFIER_OUT));
        let has_out = self.arch.classifier != Classifier::None && self.tensors.has(&out, Presence::Optional)?;
        if !has_out {
            return Ok(None);
        }
        let mut x = tokens;
        if self.arch.classifier == Classifier::Dense {
            x = self.project(global::CLASSIFIER, x, self.rows_of(&dense)?, Presence::Optional)?;
            // The hyperbolic tangent.
            self.push(Op::Softcap { x, cap: 1.0 })?;
        }
        self.project(global::CLASSIFIER_OUT, x, self.rows_of(&out)?, Presence::Optional).map(Some)
    }
}
