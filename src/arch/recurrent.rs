//! Layers that keep a state of fixed size in place of keys and values: which they are, and their sizes.

use super::hparams::Reader;
use crate::error::{Result, filled};
use crate::format::{Value, limits};

/// What layers without attention have in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrence {
    /// A convolution over few tokens between two gates, in layers for which the file counts no key-value heads.
    ShortConvolution,
    /// Convolutions and a selective state space (Dao and Gu, "Transformers are SSMs"), in layers for which the file counts no key-value heads,
    /// or in all ([`super::spec::Blocks`]).
    StateSpace,
    /// Convolutions and the gated delta rule (Yang et al., "Gated Delta Networks"), in all layers but every n-th.
    DeltaNet(ValueHeads),
}

/// Which key head a head of values belongs to, and how its gates are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueHeads {
    /// Those of a key head follow each other. One projection has the gates of both kinds, by key head.
    Grouped,
    /// All first ones of key heads, then all second ones. The gates have projections of their own.
    Tiled,
}

/// Sizes of such layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// What they compute.
    pub kind: Recurrence,
    /// Tokens that their convolutions see.
    pub taps: usize,
    /// Heads of queries and keys, which divide those of values; 0 where there are none, as for the others.
    pub key_heads: usize,
    /// Elements of each.
    pub key_dim: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Elements of each.
    pub value_dim: usize,
}

impl Recurrence {
    /// Whether layers without attention are those for which the file counts no key-value heads.
    pub fn is_counted(self) -> bool {
        matches!(self, Recurrence::ShortConvolution | Recurrence::StateSpace)
    }
}

/// Most tokens that a convolution sees.
const TAPS: usize = 16;
/// Layers from one with attention to the next, where the file does not tell.
const INTERVAL: usize = 4;

impl Reader<'_> {
    /// The sizes of layers without attention, in families that have them.
    pub(super) fn recurrent(&self) -> Result<Option<Recurrent>> {
        let none = Recurrent {
            kind: Recurrence::ShortConvolution,
            taps: 0,
            key_heads: 0,
            key_dim: 0,
            value_heads: 0,
            value_dim: 0,
        };
        match self.arch.recurrence {
            None => Ok(None),
            Some(Recurrence::ShortConvolution) => Ok(Some(Recurrent { taps: self.taps("shortconv.l_cache")?, ..none })),
            Some(kind) => {
                let (key_heads, value_heads) = (
                    self.required("ssm.group_count", limits::HEADS)?,
                    self.required("ssm.time_step_rank", limits::HEADS)?,
                );
                let key_dim = self.required("ssm.state_size", limits::STATE)?;
                let inner = self.required("ssm.inner_size", limits::FEED_FORWARD)?;
                let bad = |name: &str, problem: String| Err(self.meta.bad(&self.keys.of(name), &problem));
                if !value_heads.is_multiple_of(key_heads) {
                    return bad(
                        "ssm.group_count",
                        format!("is {key_heads}, which does not divide {value_heads} heads"),
                    );
                }
                if !inner.is_multiple_of(value_heads) {
                    return bad("ssm.inner_size", format!("is {inner}, which {value_heads} heads do not divide"));
                }
                let taps = self.taps("ssm.conv_kernel")?;
                Ok(Some(Recurrent { kind, taps, key_heads, key_dim, value_heads, value_dim: inner / value_heads }))
            }
        }
    }

    fn taps(&self, name: &str) -> Result<usize> {
        let taps = self.required(name, TAPS)?;
        if taps > 1 {
            Ok(taps)
        } else {
            Err(self.meta.bad(&self.keys.of(name), "is 1, a convolution sees 2 tokens at least"))
        }
    }

    /// Whether each layer has attention, by what the file says beside the numbers of heads.
    pub(super) fn attending(&self, count: usize) -> Result<Vec<bool>> {
        let mut attends = filled(count, true, "sizes of the layers")?;
        let Some(Recurrence::DeltaNet(_)) = self.arch.recurrence else { return Ok(attends) };
        let key = self.keys.of("attention.recurrent_layers");
        if let Some(Value::Array(_)) = self.meta.get(&key) {
            let listed = self.listed(&key, self.blocks)?;
            for (attends, listed) in attends.iter_mut().zip(listed) {
                *attends = matches!(listed, Value::Bool(false) | Value::Unsigned(0) | Value::Signed(0));
            }
            attends[self.own..].fill(true);
            return Ok(attends);
        }
        let interval = self.size("full_attention_interval", limits::LAYERS)?.unwrap_or(INTERVAL);
        attends.iter_mut().enumerate().for_each(|(index, attends)| *attends = (index + 1).is_multiple_of(interval));
        // Those that predict further tokens do, whatever their number.
        attends[self.own..].fill(true);
        Ok(attends)
    }
}
