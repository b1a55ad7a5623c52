//! What a model is made of: sizes, kinds of layers, and numbers of its family.

use super::eagle::Head;
use super::gemma4::Gemma4;

/// Sizes of a model.
pub struct Shape {
    pub name: &'static str,
    pub arch: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
    pub vocab: usize,
    pub tied: bool,
    pub rope_base: f32,
    pub norm_eps: f32,
    pub context: u32,
    /// Elements of a head that rotate.
    pub rope_dims: usize,
    /// Norms of heads.
    pub head_norms: bool,
    pub norms: Norms,
    /// Whether queries, keys and values are one matrix, and gate and up too.
    pub fused: bool,
    /// Experts in place of one feed-forward block.
    pub experts: Option<Experts>,
    /// Layers at the beginning that have none, and the elements between the halves of what all tokens have beside them.
    pub dense_layers: usize,
    pub shared_feed_forward: usize,
    /// Latent attention: the elements of the vector of a token, and of a head that do not rotate. Heads of values have `head_dim` elements.
    pub latent: Option<Latent>,
    /// Layers that keep a state in place of keys and values.
    pub recurrent: Option<Recurrent>,
    /// Layers of two kinds.
    pub gemma4: Option<Gemma4>,
    /// What a head has that drafts for another model.
    pub head_of: Option<Head>,
    /// Biases of all projections, and one more score for each head: gpt-oss.
    pub sinks: bool,
    /// Biases of all projections and norms, and no gate: StarCoder 2.
    pub plain: bool,
    /// Pairs of elements that rotate by each of four positions, where a token has several.
    pub rope_sections: &'static [u32],
    /// Numbers of the family, by their keys without its name.
    pub floats: &'static [(&'static str, f32)],
    pub numbers: &'static [(&'static str, u32)],
}

/// Norms around the two blocks of a layer.
#[derive(Clone, Copy, PartialEq)]
pub enum Norms {
    /// Before each.
    Before,
    /// Of what each gives.
    After,
    /// Both.
    Around,
    /// One before both, which run side by side.
    Parallel,
}

/// Sizes of latent attention whose queries come from the input.
#[derive(Clone, Copy)]
pub struct Latent {
    pub rank: usize,
    pub plain: usize,
}

/// What most layers have in place of attention.
#[derive(Clone, Copy)]
pub enum Recurrent {
    /// The gated delta rule in all layers but every fourth, whose attention has a gate.
    DeltaNet {
        /// Heads of keys, and of values, of `dim` elements each.
        key_heads: usize,
        value_heads: usize,
        dim: usize,
    },
    /// A convolution over three tokens in all layers but these.
    ShortConvolution { attention: &'static [usize] },
}

impl Recurrent {
    /// Whether a layer has attention.
    pub fn attends(&self, layer: usize) -> bool {
        match self {
            Recurrent::DeltaNet { .. } => layer % 4 == 3,
            Recurrent::ShortConvolution { attention } => attention.contains(&layer),
        }
    }
}

/// Experts of every layer.
#[derive(Clone, Copy)]
pub struct Experts {
    pub count: usize,
    /// How many a token has.
    pub chosen: usize,
    /// Elements between the halves of one.
    pub feed_forward: usize,
}
