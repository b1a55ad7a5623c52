//! How the vectors of a text's tokens become one, or scores, and what a file says of that.

use super::hparams::Keys;
use super::spec::Arch;
use crate::error::{Error, Result};
use crate::format::Metadata;

/// Which vector stands for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// None: every token has its own.
    None,
    /// The mean of all.
    Mean,
    /// That of the first token, which encoders call CLS.
    First,
    /// That of the last token.
    Last,
    /// None: a classifier makes scores of the first token's vector, or where tokens do not see what follows them, of the last one's.
    Rank,
}

/// How scores of a text are made, in files that have the weights for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classifier {
    /// Not at all.
    None,
    /// `output(tanh(dense(x)))`
    Dense,
    /// `softmax(output(x))`
    Shares,
}

impl Pooling {
    /// What the file of a model says, by the numbers of llama.cpp; none where it says nothing.
    pub fn read(meta: &Metadata, arch: &Arch) -> Result<Option<Pooling>> {
        let key = Keys::new(arch).of("pooling_type");
        match meta.u32(&key)? {
            None => Ok(None),
            Some(0) => Ok(Some(Pooling::None)),
            Some(1) => Ok(Some(Pooling::Mean)),
            Some(2) => Ok(Some(Pooling::First)),
            Some(3) => Ok(Some(Pooling::Last)),
            Some(4) => Ok(Some(Pooling::Rank)),
            Some(other) => Err(Error::Unsupported(format!("metadata `{key}` is {other}, which is not supported"))),
        }
    }
}
