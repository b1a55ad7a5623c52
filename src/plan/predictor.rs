//! The predictor of a model: the first block behind its layers, which guesses a token further ahead (multi-token prediction; DeepSeek-AI,
//! "DeepSeek-V3 Technical Report", section 2.2). Here is the program that runs it; what becomes of its guesses is the engine's.
//!
//! A row stands for a token of the text and brings along what the model's last norm gave of the token before it: the block reads both, each behind
//! a norm of its own, as one vector, keeps keys and values in a cache of its own, and gives logits of the token that follows. What the norm
//! before its head gives stands for that token's predecessor, so a guess can be guessed from in turn.

use super::build::Builder;
use super::op::{HeadPart, Op, Program, Rows, ValueId};
use crate::arch::names::{global, in_layer, layer};
use crate::arch::spec::{AttentionMask, Blocks, NormOrder, Presence};
use crate::arch::{Arch, Hparams};
use crate::error::{Error, Result};
use crate::format::Gguf;

/// Builds the program of the block that is the last layer of `hparams` ([`Hparams::of_predictor`]).
pub fn build(gguf: &Gguf, arch: &Arch, hparams: &Hparams) -> Result<Program> {
    let index = hparams.layers - 1;
    let has_known_order = matches!(arch.norms, NormOrder::Before | NormOrder::BeforeAndAfter);
    let is_known = has_known_order && arch.blocks == Blocks::Two && arch.mask == AttentionMask::Causal;
    if !is_known || !hparams.attends(index) {
        let family = arch.name;
        return Err(Error::Unsupported(format!(
            "blocks that predict further tokens are not known of `{family}` models"
        )));
    }
    let mut builder = Builder::new(gguf, arch, hparams)?;
    let input = builder.predictor_input(index)?;
    let hidden = builder.layer(index, input)?;
    let after = builder.ops.len();
    let own_norm = in_layer(index, layer::NEXT_OUTPUT_NORM);
    let has_norm = builder.has_weight(&own_norm)?;
    let name = if has_norm { &own_norm } else { arch.output_norm };
    let norm = builder.norm_of(name, hparams.hidden, arch.norm, arch.norm_bias)?;
    let own_head = in_layer(index, layer::NEXT_HEAD);
    let has_head = builder.has_weight(&own_head)?;
    let logits = builder.head(hidden, Some(norm), has_head.then_some(own_head.as_str()))?;
    let embedding = builder.embedding(hidden, Some(norm), after)?;
    builder.finish(Some(logits), embedding, Some(index))
}

impl Builder<'_> {
    /// Whether the file has the optional projection or norm `name`.
    fn has_weight(&self, name: &str) -> Result<bool> {
        self.tensors.has(&format!("{name}.weight"), Presence::Optional)
    }

    /// What the block reads: a projection of the embedding of each row's token, and of the vector that the row brings along.
    fn predictor_input(&mut self, index: usize) -> Result<ValueId> {
        let hidden = self.hparams.hidden;
        let own = in_layer(index, layer::NEXT_EMBEDDING);
        let table = format!("{own}.weight");
        let token = self.embed_tokens(if self.has_weight(&own)? { &table } else { global::EMBEDDING })?;
        let token = self.norm(&in_layer(index, layer::NEXT_TOKEN_NORM), token)?;
        let given = self.value(hidden, Rows::Batch)?;
        self.push(Op::Given { out: given })?;
        let before = self.norm(&in_layer(index, layer::NEXT_HIDDEN_NORM), given)?;
        let both = self.value(2 * hidden, Rows::Batch)?;
        let part = HeadPart { each: hidden, first: 0, count: hidden };
        self.push(Op::JoinHeads { x: token, part, y: before, out: both })?;
        self.project(&in_layer(index, layer::NEXT_IN), both, hidden, Presence::Absent)
    }
}
