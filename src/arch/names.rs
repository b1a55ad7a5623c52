//! Tensor names of GGUF files, by role.

use super::hparams::Hparams;

/// Names outside the layers; norms have `.weight` and `.bias`.
pub mod global {
    /// Token embedding, `[hidden, vocab]`; also the output head where that is absent.
    pub const EMBEDDING: &str = "token_embd.weight";
    /// The norm of embeddings.
    pub const EMBEDDING_NORM: &str = "token_embd_norm";
    /// Vectors for positions, `[hidden, context]`.
    pub const POSITIONS: &str = "position_embd.weight";
    /// Vectors for types of tokens, `[hidden, types]`.
    pub const TOKEN_TYPES: &str = "token_types.weight";
    /// Projections of the vectors of texts, one behind the other.
    pub const TEXT_PROJECTIONS: [&str; 2] = ["dense_2.weight", "dense_3.weight"];
    /// The first layer of a classifier, and its last one.
    pub const CLASSIFIER: &str = "cls";
    /// See [`CLASSIFIER`].
    pub const CLASSIFIER_OUT: &str = "cls.output";
    /// The last norm, in most families.
    pub const OUTPUT_NORM: &str = "output_norm";
    /// Output head, `[hidden, vocab]`.
    pub const HEAD: &str = "output.weight";
    /// The output head without `.weight` and `.bias`.
    pub const HEAD_PROJECTION: &str = "output";
    /// Of a model that drafts for another one: from that one's embedding of a token and its vector of the token before to the first layer.
    pub const BACKBONE_IN: &str = "nextn.pre_projection";
    /// From what the last norm gives to a vector like that one's.
    pub const BACKBONE_OUT: &str = "nextn.post_projection";
    /// Of a model that drafts by vectors of another one: from these to its own vector.
    pub const FEATURES_IN: &str = "fc";
    /// The norm before that.
    pub const FEATURES_IN_NORM: &str = "enc.output_norm";
    /// Of each of its logits the token, as an integer, where it does not have them of all tokens.
    pub const DRAFT_TOKENS: &str = "d2t";
    /// Embeddings of tokens for every layer, `[elements of a layer * layers, vocab]`.
    pub const LAYER_EMBEDDINGS: &str = "per_layer_token_embd.weight";
    /// From the embedding to what is added to those.
    pub const LAYER_EMBEDDINGS_PROJECTION: &str = "per_layer_model_proj";
    /// The norm of that, of each layer by itself.
    pub const LAYER_EMBEDDINGS_NORM: &str = "per_layer_proj_norm";
    /// Divisors of the rope frequencies.
    pub const ROPE_DIVISORS: &str = "rope_freqs.weight";
    /// The same for sequences that stay within the trained context, where they differ.
    pub const SHORT_DIVISORS: &str = "rope_factors_short.weight";
    /// The same for longer ones.
    pub const LONG_DIVISORS: &str = "rope_factors_long.weight";
}

/// Roles within a layer; the text is the part of the name after `blk.N.`, without `.weight` and `.bias`.
pub mod layer {
    /// The norm before attention.
    pub const ATTENTION_NORM: &str = "attn_norm";
    /// The norm of the vector that is read beside an embedding.
    pub const FEATURES_NORM: &str = "attn_norm_2";
    /// Query, key and value projections as one: their rows, in this order.
    pub const QKV: &str = "attn_qkv";
    /// Query projection.
    pub const Q: &str = "attn_q";
    /// Key projection.
    pub const K: &str = "attn_k";
    /// Value projection.
    pub const V: &str = "attn_v";
    /// Output projection of the attention.
    pub const ATTENTION_OUTPUT: &str = "attn_output";
    /// Of latent attention: from the input to the vector of queries.
    pub const Q_LATENT: &str = "attn_q_a";
    /// The norm of that.
    pub const Q_LATENT_NORM: &str = "attn_q_a_norm";
    /// From that to queries.
    pub const Q_OF_LATENT: &str = "attn_q_b";
    /// From the input to the vector of keys and values, and, its last rows, to the key that all heads share.
    pub const KV_LATENT: &str = "attn_kv_a_mqa";
    /// The norm of that vector.
    pub const KV_LATENT_NORM: &str = "attn_kv_a_norm";
    /// Of each head, transposed: from the vector to keys.
    pub const K_OF_LATENT: &str = "attn_k_b";
    /// Of each head: from the vector to values.
    pub const V_OF_LATENT: &str = "attn_v_b";
    /// The last two as one, of each head the rows for keys, which are not transposed, and then those for values.
    pub const KV_OF_LATENT: &str = "attn_kv_b";
    /// Norm over each query head.
    pub const Q_NORM: &str = "attn_q_norm";
    /// Norm over each key head.
    pub const K_NORM: &str = "attn_k_norm";
    /// The norm of the attention's result.
    pub const POST_ATTENTION_NORM: &str = "post_attention_norm";
    /// The norm of the feed-forward block's result.
    pub const POST_FEED_FORWARD_NORM: &str = "post_ffw_norm";
    /// The norm of the sum of the attention's result and its input.
    pub const ATTENTION_SUM_NORM: &str = "attn_output_norm";
    /// The norm of the sum of the feed-forward block's result and its input.
    pub const LAYER_SUM_NORM: &str = "layer_output_norm";
    /// The norm before the feed-forward block, in most families.
    pub const FEED_FORWARD_NORM: &str = "ffn_norm";
    /// Gate projection.
    pub const GATE: &str = "ffn_gate";
    /// Up projection.
    pub const UP: &str = "ffn_up";
    /// Down projection.
    pub const DOWN: &str = "ffn_down";
    /// One more score of attention for each query head.
    pub const SINKS: &str = "attn_sinks";
    /// Of a short convolution: both gates and the values, their rows in this order.
    pub const SHORT_IN: &str = "shortconv.in_proj";
    /// Its weights, of each column those of all taps.
    pub const SHORT_CONVOLUTION: &str = "shortconv.conv";
    /// Its output projection.
    pub const SHORT_OUT: &str = "shortconv.out_proj";
    /// Of a state space: the gate of its result, values, keys, queries and steps, their rows in this order.
    pub const SPACE_IN: &str = "ssm_in";
    /// Factor on values that are added to the result, which has no `.weight`.
    pub const SPACE_SKIP: &str = "ssm_d";
    /// The gate of a scan's result.
    pub const SCAN_GATE: &str = "attn_gate";
    /// Weights of the convolution before a scan, of each column those of all taps.
    pub const SCAN_CONVOLUTION: &str = "ssm_conv1d";
    /// How much enters the state.
    pub const SCAN_STRENGTH: &str = "ssm_beta";
    /// How much of the state is kept.
    pub const SCAN_DECAY: &str = "ssm_alpha";
    /// Both, by key head.
    pub const SCAN_GATES: &str = "ssm_ba";
    /// What is added to the decay.
    pub const SCAN_STEP: &str = "ssm_dt.bias";
    /// The rate of the decay, which has no `.weight`.
    pub const SCAN_RATE: &str = "ssm_a";
    /// Norm over each head of the result.
    pub const SCAN_NORM: &str = "ssm_norm";
    /// Output projection of a scan.
    pub const SCAN_OUT: &str = "ssm_out";
    /// Of experts beside a dense block: the norm before them.
    pub const EXPERTS_NORM: &str = "pre_ffw_norm_2";
    /// The norm of their sum.
    pub const POST_EXPERTS_NORM: &str = "post_ffw_norm_2";
    /// The norm of the dense block's result.
    pub const POST_DENSE_NORM: &str = "post_ffw_norm_1";
    /// Weights of the norm before their router, which has no `.weight`.
    pub const ROUTER_NORM: &str = "ffn_gate_inp.scale";
    /// Gate projection for a layer's embedding.
    pub const EMBEDDING_GATE: &str = "inp_gate";
    /// Output projection of that embedding.
    pub const EMBEDDING_OUTPUT: &str = "proj";
    /// The norm of its result.
    pub const POST_EMBEDDING_NORM: &str = "post_norm";
    /// Factor on what the layer gives.
    pub const LAYER_SCALE: &str = "layer_output_scale.weight";
    /// Router: a logit for each expert.
    pub const ROUTER: &str = "ffn_gate_inp";
    /// What is added to the router's scores for the choice alone.
    pub const CHOICE_BIAS: &str = "exp_probs_b";
    /// From a row to what its experts read, where that is shorter.
    pub const LATENT_DOWN: &str = "ffn_latent_down";
    /// Back from what they give.
    pub const LATENT_UP: &str = "ffn_latent_up";
    /// Gate projections of all experts.
    pub const EXPERT_GATE: &str = "ffn_gate_exps";
    /// Up projections of all experts.
    pub const EXPERT_UP: &str = "ffn_up_exps";
    /// Both as one: of each expert the rows of the gate, then those of up.
    pub const EXPERT_GATE_UP: &str = "ffn_gate_up_exps";
    /// Down projections of all experts.
    pub const EXPERT_DOWN: &str = "ffn_down_exps";
    /// Gate projection of the shared expert.
    pub const SHARED_GATE: &str = "ffn_gate_shexp";
    /// Up projection of the shared expert.
    pub const SHARED_UP: &str = "ffn_up_shexp";
    /// Down projection of the shared expert.
    pub const SHARED_DOWN: &str = "ffn_down_shexp";
    /// The row of weights by which the shared expert is weighed.
    pub const SHARED_ROUTER: &str = "ffn_gate_inp_shexp";
    /// Of a block that predicts a further token: its own embedding of tokens, where that is not the model's, which has `.weight`.
    pub const NEXT_EMBEDDING: &str = "nextn.embed_tokens";
    /// The norm of the next token's embedding.
    pub const NEXT_TOKEN_NORM: &str = "nextn.enorm";
    /// The norm of what the last norm gives of a token.
    pub const NEXT_HIDDEN_NORM: &str = "nextn.hnorm";
    /// From both, the embedding first, to what the block reads.
    pub const NEXT_IN: &str = "nextn.eh_proj";
    /// The norm of what the block gives, where that is not the model's last.
    pub const NEXT_OUTPUT_NORM: &str = "nextn.shared_head_norm";
    /// Its own output head, where that is not the model's.
    pub const NEXT_HEAD: &str = "nextn.shared_head_head";
}

/// Full name of `part` in layer `index`.
pub fn in_layer(index: usize, part: &str) -> String {
    format!("blk.{index}.{part}")
}

/// Whether the tensor `name` is one of layer `index`.
pub fn is_in_layer(index: usize, name: &str) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    layer.is_some_and(|(number, _)| number.parse() == Ok(index))
}

/// Tensors that a model file may hold and that are not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Rope frequencies of a layer, which old converters wrote: they follow from metadata.
    Frequencies,
    /// Blocks behind the layers that predict further tokens (`nextn_predict_layers`).
    Prediction,
    /// Encoders of images and sound, and what leads from them to the text.
    Media,
    /// Projections and norms of keys and values in layers that read those of another one.
    Keys,
    /// Groups of tokens by which drafting models leave out most logits.
    Groups,
}

impl Idle {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Idle; 5] = [Idle::Frequencies, Idle::Prediction, Idle::Media, Idle::Keys, Idle::Groups];

    /// What the tensor `name` is in a model of these sizes; none where it has a part in the forward pass, or is not known.
    pub fn of(name: &str, hparams: &Hparams) -> Option<Idle> {
        let Hparams { layers, predicting_blocks: predicting, .. } = *hparams;
        if MEDIA.iter().any(|part| name.starts_with(part)) {
            return Some(Idle::Media);
        }
        if name.starts_with(GROUPS) && hparams.backbone.is_some() {
            return Some(Idle::Groups);
        }
        let (index, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let index = index.parse::<usize>().ok();
        if index.is_some_and(|index| (layers..layers + predicting).contains(&index)) {
            return Some(Idle::Prediction);
        }
        let role = part.split_once('.').map_or(part, |(role, _)| role);
        let is_of_keys = [layer::K, layer::V, layer::K_NORM].contains(&role);
        if is_of_keys && index.is_some_and(|index| index < layers && hparams.borrows_keys(index)) {
            return Some(Idle::Keys);
        }
        matches!(part, "attn_rot_embd" | "attn_rot_embd.weight").then_some(Idle::Frequencies)
    }

    /// What they are, in the plural.
    pub fn description(self) -> &'static str {
        match self {
            Idle::Frequencies => "rope frequencies that follow from metadata",
            Idle::Prediction => "blocks that predict further tokens",
            Idle::Media => "encoders of images or sound",
            Idle::Keys => "keys and values of layers that read another layer's",
            Idle::Groups => "groups of tokens that leave out logits",
        }
    }
}

/// What names of groups of tokens begin with.
const GROUPS: &str = "masked_embd_";
/// What names of encoders and their projections begin with.
const MEDIA: [&str; 3] = ["v.", "a.", "mm."];
