//! Mixtures of experts: what families differ in, and the sizes and rules of one model.

use super::hparams::Reader;
use super::spec::Presence;
use crate::error::{Error, Result};
use crate::format::limits;

/// What the experts of a family hold and compute, beyond sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// What is made of the router's logits, where the file does not say.
    pub score: Score,
    /// The same in models that have a bias for the choice.
    pub biased_score: Score,
    /// Whether the weights of the chosen are divided by their sum, where the file does not say.
    pub normalizes: bool,
    /// An expert beside them that every row has.
    pub shared: Shared,
    /// Whether they stand beside the block that other layers have, with norms of their own and one before the router.
    pub is_beside_dense: bool,
    /// Biases of the router and of the experts' projections.
    pub bias: Presence,
    /// What is added to scores for the choice alone.
    pub choice_bias: Presence,
}

/// What is made of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// The softmax over all experts.
    Softmax,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// Nothing for the choice; the softmax over the chosen for their weights.
    ChosenSoftmax,
}

/// What is done with a shared expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// There is none.
    Absent,
    /// It is added, where a model has it.
    Added,
    /// The same, times the sigmoid of a product with a row of weights.
    Gated,
}

/// The experts of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// How many a row has; at most `count`.
    pub chosen: usize,
    /// Elements between the halves of an expert.
    pub feed_forward: usize,
    /// The same of the shared one; 0 for none.
    pub shared_feed_forward: usize,
    /// Elements of what stands for a row before them and behind them, where that is not the row itself.
    pub latent: Option<usize>,
    /// What is made of the router's logits, where the file says.
    pub score: Option<Score>,
    /// Whether weights are divided by their sum.
    pub normalizes: bool,
    /// Factor on weights.
    pub scale: f32,
    /// Groups of experts, and how many of them are looked at, where that is not all.
    pub groups: Option<(usize, usize)>,
    /// Layers at the beginning that have none.
    pub dense_layers: usize,
    /// Of so many layers the last has experts.
    pub step: usize,
}

impl Experts {
    /// Whether a layer has experts.
    pub fn are_in(&self, layer: usize) -> bool {
        layer >= self.dense_layers && (layer + 1).is_multiple_of(self.step)
    }
}

/// Number of experts, and of those that a row has.
const COUNT: &str = "expert_count";
const USED: &str = "expert_used_count";
/// Groups of experts, and of those that are looked at.
const GROUPS: &str = "expert_group_count";
const KEPT: &str = "expert_group_used_count";

impl Reader<'_> {
    /// The experts of the model, if it has any; `dense` is the size of its other feed-forward blocks.
    pub(super) fn experts(&self, dense: Option<usize>) -> Result<Option<Experts>> {
        // Converters write 0 for models without.
        let count = match self.meta.unsigned(&self.keys.of(COUNT))? {
            None | Some(0) => return Ok(None),
            Some(_) => self.required(COUNT, limits::EXPERTS)?,
        };
        let Some(mixture) = self.arch.mixture else {
            let family = self.arch.name;
            return Err(Error::Unsupported(format!(
                "mixture of experts ({count} experts) is not supported for the family `{family}`"
            )));
        };
        let chosen = self.required(USED, limits::CHOSEN)?;
        if chosen > count {
            return Err(self.bad(USED, format!("is {chosen} of {count} experts")));
        }
        let width = self.size("expert_feed_forward_length", limits::FEED_FORWARD)?.or(dense);
        let width = self.meta.required(&self.keys.of("expert_feed_forward_length"), width)?;
        Ok(Some(Experts {
            count,
            chosen,
            feed_forward: width,
            shared_feed_forward: self.shared(&mixture, width)?,
            latent: self.optional("moe_latent_size", limits::HIDDEN)?,
            score: self.score()?,
            normalizes: self.meta.bool(&self.keys.of("expert_weights_norm"))?.unwrap_or(mixture.normalizes),
            scale: self.meta.f32(&self.keys.of("expert_weights_scale"))?.filter(|&scale| scale != 0.0).unwrap_or(1.0),
            groups: self.groups(count, chosen)?,
            dense_layers: self.optional("leading_dense_block_count", limits::LAYERS)?.unwrap_or(0),
            step: self.optional("interleave_moe_layer_step", limits::LAYERS)?.unwrap_or(1),
        }))
    }

    /// A size up to `most`; none for 0, which converters write for what a model does not have.
    pub(super) fn optional(&self, name: &str, most: usize) -> Result<Option<usize>> {
        match self.meta.unsigned(&self.keys.of(name))? {
            None | Some(0) => Ok(None),
            Some(_) => self.size(name, most),
        }
    }

    /// Elements between the halves of the shared expert; 0 for none.
    fn shared(&self, mixture: &Mixture, width: usize) -> Result<usize> {
        if mixture.shared == Shared::Absent {
            return Ok(0);
        }
        match self.optional("expert_shared_feed_forward_length", limits::FEED_FORWARD)? {
            Some(width) => Ok(width),
            None => Ok(self.optional("expert_shared_count", limits::EXPERTS)?.unwrap_or(0) * width),
        }
    }

    fn score(&self) -> Result<Option<Score>> {
        let key = self.keys.of("expert_gating_func");
        match self.meta.u32(&key)? {
            None | Some(0) => Ok(None),
            Some(1) => Ok(Some(Score::Softmax)),
            Some(2) => Ok(Some(Score::Sigmoid)),
            Some(3) => Ok(Some(Score::ChosenSoftmax)),
            Some(other) => Err(Error::Unsupported(format!("metadata `{key}` is {other}, which is not supported"))),
        }
    }

    /// Groups of which not all are looked at.
    fn groups(&self, count: usize, chosen: usize) -> Result<Option<(usize, usize)>> {
        let Some(groups) = self.optional(GROUPS, limits::EXPERTS)? else { return Ok(None) };
        let kept = self.optional(KEPT, limits::EXPERTS)?.unwrap_or(groups);
        if !count.is_multiple_of(groups) {
            return Err(self.bad(GROUPS, format!("is {groups}, which does not divide {count} experts")));
        }
        if kept > groups || kept * (count / groups) < chosen {
            let problem = format!("is {kept} of {groups} groups, from which {chosen} of {count} experts are chosen");
            return Err(self.bad(KEPT, problem));
        }
        Ok((kept < groups).then_some((groups, kept)))
    }

    fn bad(&self, name: &str, problem: String) -> Error {
        self.meta.bad(&self.keys.of(name), &problem)
    }
}
