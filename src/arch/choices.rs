//! What a family may choose of: the values of the fields of [`super::spec::Arch`].

/// Whether a tensor belongs to a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Never; a file that holds it is refused.
    Absent,
    /// When the file holds it.
    Optional,
    /// Always; a file without it is refused.
    Required,
}

/// What a norm of queries or keys is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormSpan {
    /// Each head by itself.
    Head,
    /// All heads of a row together.
    Row,
}

/// What a layer is made of. The first block is attention, or what stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// The first block and a feed-forward block.
    Two,
    /// The same; the first one is attention and a state space, which read the same and whose results are added.
    TwoWithState,
    /// One of the two: attention where the file counts key-value heads, a feed-forward block where it tells its width, else what stands for
    /// attention.
    One,
}

/// The factor on the dot products of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionScale {
    /// One by the root of a head's elements.
    OfHeads,
    /// The same, but in models of so many layers, where `hidden / heads` stands for a head's elements.
    WideAt(usize),
    /// One.
    One,
}

/// Where the two blocks of a layer have norms. A block is the attention or the feed-forward part; its result is added to its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOrder {
    /// Before each block.
    Before,
    /// Before each block, and of its result.
    BeforeAndAfter,
    /// Of each block's result alone.
    After,
    /// Once, before both blocks, which read the same.
    Parallel,
    /// Before each block but the first of all, whose input is normalized already.
    BeforeButFirst,
    /// Of the sum of each block's result and its input; there is no last norm then.
    AfterSum,
}

impl NormOrder {
    /// Whether blocks read a normalized input.
    pub fn has_before(self) -> bool {
        !matches!(self, NormOrder::After | NormOrder::AfterSum)
    }

    /// Whether results of blocks are normalized.
    pub fn has_after(self) -> bool {
        matches!(self, NormOrder::BeforeAndAfter | NormOrder::After)
    }
}

/// The two norms of transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)` (Zhang and Sennrich, "Root Mean Square Layer Normalization").
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps)` (Ba et al., "Layer Normalization").
    Layer,
}

impl NormKind {
    /// Metadata key, without the family's name, of what is added to the mean square or the variance.
    pub fn eps_key(self) -> &'static str {
        match self {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        }
    }
}

/// Projections of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`
    Gated,
    /// The same; the rows of `up` stand behind those of the gate, in one tensor.
    FusedGate,
    /// `down(activation(up(x)))`
    Plain,
}

/// Activation of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` (Hendrycks and Gimpel, "Gaussian Error Linear Units").
    GeluTanh,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`
    GeluErf,
    /// `max(x, 0)^2`
    SquaredRelu,
    /// Of gated blocks alone: `g / (1 + exp(-slope * g)) * (u + 1)` with `g = min(x, limit)` and the other factor `u` clamped to `-limit..limit`.
    ClampedSilu {
        /// Largest magnitude.
        limit: f32,
        /// Slope of the sigmoid.
        slope: f32,
    },
}

/// Which tokens a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Itself and those before it.
    Causal,
    /// All of its text, so that a model makes embeddings of texts, and no logits.
    Bidirectional,
    /// Those before it, by the keys and values of another model, for which the model drafts.
    Borrowed,
}

/// What `attention.sliding_window` means for a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRule {
    /// All layers have it, so nothing further back is ever seen: it ends the context.
    EndsContext,
    /// Local layers have it. Of every `period` layers the last is global, unless the file says which are.
    LocalLayers {
        /// Layers from a global one to the next.
        period: usize,
    },
    /// The same, but of every `period` layers the first is global.
    GlobalFirst {
        /// As above.
        period: usize,
    },
}

/// Which layers rotate queries and keys, and by which angles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeRule {
    /// All, alike.
    Same,
    /// All but each layer whose number, counted from 1, is a multiple.
    SkipEvery(usize),
    /// All; local layers by a base of their own and without scaling.
    LocalBase,
    /// All; local layers by the same base without scaling.
    LocalUnscaled,
    /// All, alike; YaRN blends frequencies between numbers of pairs that need not be whole.
    Unrounded,
    /// Local layers alone, in models that have any.
    LocalOnly,
    /// None.
    Never,
    /// All, or none where the file says that positions were not trained.
    IfFinetuned,
}

/// A number in the metadata that changes what a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// On token embeddings.
    Embedding,
    /// On what each block adds.
    Residual,
    /// On the dot products of attention.
    Attention,
    /// On logits.
    Logits,
    /// On logits, which are divided by it.
    LogitDivisor,
    /// On queries: its product with the logarithm of how often a position has passed the trained context is added to 1.
    Temperature,
    /// Cap of the scores of attention.
    AttentionSoftcap,
    /// Cap of logits.
    FinalSoftcap,
}

impl Factor {
    /// Its key, without the family's name.
    pub fn key(self) -> &'static str {
        match self {
            Factor::Embedding => "embedding_scale",
            Factor::Residual => "residual_scale",
            Factor::Attention => "attention.scale",
            Factor::Logits | Factor::LogitDivisor => "logit_scale",
            Factor::Temperature => "attention.temperature_scale",
            Factor::AttentionSoftcap => "attn_logit_softcapping",
            Factor::FinalSoftcap => "final_logit_softcapping",
        }
    }
}
