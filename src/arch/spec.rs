//! The families. A new family is a constant that differs from another one by a field.

use super::rope::RopeLayout;
use crate::error::{Error, Excerpt, Result};

/// What the layers of a family hold, beyond sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    /// `general.architecture` of its files, and the prefix of its metadata keys.
    pub name: &'static str,
    /// Which elements of a head the file's row order pairs for rotation.
    pub rope: RopeLayout,
    /// Biases of the Q, K and V projections.
    pub qkv_bias: Presence,
    /// Bias of the attention's output projection.
    pub output_bias: Presence,
    /// RMS norm over each head of Q and K before rotation.
    pub qk_norm: Presence,
}

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

/// Llama 1 to 3, Mistral, and the many models that share their layers.
pub const LLAMA: Arch = Arch {
    name: "llama",
    rope: RopeLayout::Pairs,
    qkv_bias: Presence::Optional,
    output_bias: Presence::Optional,
    qk_norm: Presence::Absent,
};

/// Qwen 2 and 2.5.
pub const QWEN2: Arch = Arch {
    name: "qwen2",
    rope: RopeLayout::Halves,
    qkv_bias: Presence::Required,
    output_bias: Presence::Absent,
    qk_norm: Presence::Absent,
};

/// Qwen 3, dense.
pub const QWEN3: Arch = Arch { name: "qwen3", qkv_bias: Presence::Optional, qk_norm: Presence::Required, ..QWEN2 };

/// Every family.
pub const ALL: [Arch; 3] = [LLAMA, QWEN2, QWEN3];

impl Arch {
    /// The family called `name` in a file.
    pub fn find(name: &str) -> Result<Arch> {
        ALL.into_iter().find(|arch| arch.name == name).ok_or_else(|| {
            let known: Vec<_> = ALL.iter().map(|arch| arch.name).collect();
            let (name, known) = (Excerpt(name.as_bytes()), known.join(", "));
            Error::Unsupported(format!("architecture `{name}` is not supported; supported: {known}"))
        })
    }
}
