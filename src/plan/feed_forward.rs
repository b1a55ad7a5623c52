//! The feed-forward block of a layer: dense, or experts of which each row has some.

use super::build::Builder;
use super::op::{ExpertProduct, Experts, Groups, Kind, Norm, NormKind, Op, Routing, Rows, Score, Value, ValueId};
use super::tensors::Part;
use crate::arch::experts;
use crate::arch::names::{in_layer, layer};
use crate::arch::spec::{FeedForward, Mixture, Presence, Shared};
use crate::error::Result;

/// Names of the projections of a dense block, within a layer.
const DENSE: [&str; 3] = [layer::GATE, layer::UP, layer::DOWN];
/// The same of the shared expert.
const SHARED: [&str; 3] = [layer::SHARED_GATE, layer::SHARED_UP, layer::SHARED_DOWN];

impl Builder<'_> {
    /// What the block of layer `index` makes of `input`.
    pub(super) fn feed_forward(&mut self, index: usize, input: ValueId) -> Result<ValueId> {
        let hparams = self.hparams;
        match hparams.experts_of(index).zip(self.arch.mixture) {
            Some((experts, mixture)) if !mixture.is_beside_dense => {
                let routed = self.route(index, experts, &mixture, input)?;
                self.mixture(index, experts, &mixture, input, routed)
            }
            _ => {
                let (kind, bias) = (self.arch.feed_forward, self.arch.feed_forward_bias);
                self.dense(DENSE.map(|name| in_layer(index, name)), hparams.feed_forward[index], kind, bias, input)
            }
        }
    }

    /// Adds to `dense`, which a layer's block has made of `hidden`, what experts beside that make of it.
    pub(super) fn experts_beside(&mut self, index: usize, hidden: ValueId, dense: ValueId) -> Result<ValueId> {
        let beside = self.hparams.experts_of(index).zip(self.arch.mixture);
        let Some((experts, mixture)) = beside.filter(|(_, mixture)| mixture.is_beside_dense) else { return Ok(dense) };
        let dense = self.norm(&in_layer(index, layer::POST_DENSE_NORM), dense)?;
        let asked = self.router_input(index, hidden)?;
        let routed = self.route(index, experts, &mixture, asked)?;
        let input = self.norm(&in_layer(index, layer::EXPERTS_NORM), hidden)?;
        let output = self.mixture(index, experts, &mixture, input, routed)?;
        let output = self.norm(&in_layer(index, layer::POST_EXPERTS_NORM), output)?;
        self.push(Op::Add { x: dense, y: output })?;
        Ok(dense)
    }

    /// What the router of experts beside a dense block reads: rows of length 1 times weights.
    fn router_input(&mut self, index: usize, hidden: ValueId) -> Result<ValueId> {
        let width = self.hparams.hidden;
        let factor = 1.0 / (width as f32).sqrt();
        let weight = self.tensors.scaled_vector(&in_layer(index, layer::ROUTER_NORM), width, factor)?;
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: self.hparams.norm_eps };
        let out = self.value(width, Rows::Batch)?;
        self.push(Op::Norm { x: hidden, norm, out })?;
        Ok(out)
    }

    /// A block of `width` elements between its halves.
    fn dense(
        &mut self,
        [gate, up, down]: [String; 3],
        width: usize,
        projections: FeedForward,
        bias: Presence,
        input: ValueId,
    ) -> Result<ValueId> {
        let inner = self.dense_inner([gate, up], width, projections, bias, input)?;
        self.project(&down, inner, self.hparams.hidden, bias)
    }

    /// The first half of such a block.
    fn dense_inner(
        &mut self,
        [gate, up]: [String; 2],
        width: usize,
        projections: FeedForward,
        bias: Presence,
        input: ValueId,
    ) -> Result<ValueId> {
        let kind = self.arch.activation;
        let inner = match projections {
            FeedForward::Plain => {
                let x = self.project(&up, input, width, bias)?;
                self.push(Op::Activate { kind, x })?;
                x
            }
            FeedForward::Gated => {
                let (gate, up) = (self.project(&gate, input, width, bias)?, self.project(&up, input, width, bias)?);
                self.push(Op::Gate { kind, gate, up })?;
                gate
            }
            FeedForward::FusedGate => {
                let mut half = |first: usize| {
                    let part = Part { taken: first..first + width, of: 2 * width };
                    self.project_part(&up, input, &part, bias)
                };
                let (gate, up) = (half(0)?, half(width)?);
                self.push(Op::Gate { kind, gate, up })?;
                gate
            }
        };
        Ok(inner)
    }

    /// The sum of a row's experts, which the router has chosen, and of the shared one.
    fn mixture(
        &mut self,
        index: usize,
        experts: &experts::Experts,
        mixture: &Mixture,
        input: ValueId,
        (choice, gate): (ValueId, Option<ValueId>),
    ) -> Result<ValueId> {
        let hidden = self.hparams.hidden;
        let width = experts.latent.unwrap_or(hidden);
        let given = match experts.latent {
            Some(_) => self.project(&in_layer(index, layer::LATENT_DOWN), input, width, Presence::Absent)?,
            None => input,
        };
        let products = Products { index, choice, count: experts.count, bias: mixture.bias };
        let [gate_name, up_name, down_name] = SHARED.map(|name| in_layer(index, name));
        let kind = if self.arch.feed_forward == FeedForward::Plain { FeedForward::Plain } else { FeedForward::Gated };
        // Halves of the shared expert stand behind those of the others, for backends that do neighbouring ops together.
        let inner = self.expert_inner(&products, experts.feed_forward, given)?;
        let shared = match experts.shared_feed_forward {
            0 => None,
            width => Some(self.dense_inner([gate_name, up_name], width, kind, Presence::Absent, input)?),
        };
        let each = self.expert_product(&products, layer::EXPERT_DOWN, inner, width)?;
        let mut out = self.value(width, Rows::Batch)?;
        self.push(Op::WeightedSum { x: each, choice, out })?;
        if experts.latent.is_some() {
            out = self.project(&in_layer(index, layer::LATENT_UP), out, hidden, Presence::Absent)?;
        }
        if let Some(inner) = shared {
            let shared = self.project(&down_name, inner, hidden, Presence::Absent)?;
            if let Some(gate) = gate {
                self.push(Op::MulSigmoid { x: shared, gate })?;
            }
            self.push(Op::Add { x: out, y: shared })?;
        }
        Ok(out)
    }

    /// Which experts the rows of `input` have, and the logit of how much of the shared one counts, where that has a gate.
    fn route(
        &mut self,
        index: usize,
        experts: &experts::Experts,
        mixture: &Mixture,
        input: ValueId,
    ) -> Result<(ValueId, Option<ValueId>)> {
        let name = in_layer(index, layer::ROUTER);
        let logits = match mixture.is_beside_dense {
            // What the file calls its scale are the weights of the norm before it.
            true => self.multiply(&name, input, &Part::all(experts.count), None)?,
            false => self.project(&name, input, experts.count, mixture.bias)?,
        };
        let bias = self.bias(&in_layer(index, layer::CHOICE_BIAS), &Part::all(experts.count), mixture.choice_bias)?;
        let choice = self.add_value(Value { width: 2 * experts.chosen, rows: Rows::Batch, kind: Kind::Choices })?;
        // Without a key of its own, a file says by the bias that scores are sigmoids.
        let score = experts.score.unwrap_or(if bias.is_some() { mixture.biased_score } else { mixture.score });
        // Groups are ranked by their best expert where scores are shares of one whole.
        let best = if score == Score::Softmax { 1 } else { 2 };
        let routing = Routing {
            score,
            bias,
            groups: experts.groups.map(|(count, kept)| Groups { count, kept, best }),
            normalizes: experts.normalizes,
            scale: experts.scale,
        };
        let has_gate = experts.shared_feed_forward > 0 && mixture.shared == Shared::Gated;
        let gate = match has_gate {
            true => Some(self.project(&in_layer(index, layer::SHARED_ROUTER), input, 1, Presence::Absent)?),
            false => None,
        };
        self.push(Op::Route { logits, routing, choice })?;
        Ok((choice, gate))
    }

    /// The first half of the experts, `width` elements of each.
    fn expert_inner(&mut self, products: &Products, width: usize, input: ValueId) -> Result<ValueId> {
        let kind = self.arch.activation;
        if self.arch.feed_forward == FeedForward::Plain {
            let x = self.expert_product(products, layer::EXPERT_UP, input, width)?;
            self.push(Op::Activate { kind, x })?;
            return Ok(x);
        }
        let fused = in_layer(products.index, layer::EXPERT_GATE_UP);
        let [gate, up] = if self.tensors.has(&format!("{fused}.weight"), Presence::Optional)? {
            let cols = self.values[input.0].width;
            let matrix = self.tensors.experts(&format!("{fused}.weight"), 2 * width, cols, products.count)?;
            let mut half = |first| {
                let experts = Experts { matrix, each: 2 * width, first };
                self.multiply_experts(products, &fused, input, experts, width)
            };
            [half(0)?, half(width)?]
        } else {
            let mut product = |name| self.expert_product(products, name, input, width);
            [product(layer::EXPERT_GATE)?, product(layer::EXPERT_UP)?]
        };
        self.push(Op::Gate { kind, gate, up })?;
        Ok(gate)
    }

    /// Multiplies each row by the projection `name` of its expert.
    fn expert_product(&mut self, products: &Products, name: &str, x: ValueId, width: usize) -> Result<ValueId> {
        let (name, cols) = (in_layer(products.index, name), self.values[x.0].width);
        let matrix = self.tensors.experts(&format!("{name}.weight"), width, cols, products.count)?;
        self.multiply_experts(products, &name, x, Experts { matrix, each: width, first: 0 }, width)
    }

    fn multiply_experts(
        &mut self,
        products: &Products,
        name: &str,
        x: ValueId,
        experts: Experts,
        width: usize,
    ) -> Result<ValueId> {
        let &Products { choice, count, bias, .. } = products;
        let scale = self.tensors.expert_scales(name, count)?;
        let name = format!("{name}.bias");
        // Biases of fused projections would have to be cut.
        let presence = if experts.each == width { bias } else { Presence::Absent };
        let bias =
            if self.tensors.has(&name, presence)? { Some(self.tensors.table(&name, width, count)?) } else { None };
        let out = self.value(width, Rows::Chosen(choice))?;
        self.push(Op::ExpertMatMul(ExpertProduct { x, choice, experts, scale, bias, out }))?;
        Ok(out)
    }
}

/// What the products of a layer's experts have in common.
struct Products {
    index: usize,
    choice: ValueId,
    /// Experts.
    count: usize,
    bias: Presence,
}
