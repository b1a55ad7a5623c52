//! Logits of some tokens as those of all.

use crate::error::{Result, filled};
use crate::plan::eagle::Subset;
use std::sync::Arc;

/// Room for the logits of all tokens.
pub struct Spread {
    tokens: Arc<[u32]>,
    logits: Vec<f32>,
}

impl Spread {
    /// For logits of the tokens in `subset`; no other token is ever likely.
    pub fn new(subset: &Subset) -> Result<Spread> {
        Ok(Spread {
            tokens: Arc::clone(&subset.tokens),
            logits: filled(subset.of, f32::NEG_INFINITY, "logits of a draft model")?,
        })
    }

    /// Bytes for a subset of so many tokens.
    pub fn bytes(subset: Option<&Subset>) -> u64 {
        subset.map_or(0, |subset| (subset.of * size_of::<f32>()) as u64)
    }

    /// The token of a logit of the subset, if it is one.
    pub fn token(&self, logit: u32) -> Option<u32> {
        self.tokens.get(logit as usize).copied()
    }

    /// `logits`, one for each token of the subset, each in the place of its token.
    pub fn over(&mut self, logits: &[f32]) -> &[f32] {
        self.tokens.iter().zip(logits).for_each(|(&token, &logit)| self.logits[token as usize] = logit);
        &self.logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_logit_stands_where_its_token_does() {
        let mut spread = Spread::new(&Subset { tokens: [4, 0, 2].into(), of: 6 }).unwrap();
        let none = f32::NEG_INFINITY;
        assert_eq!(spread.over(&[1.0, 2.0, 3.0]), [2.0, none, 3.0, none, 1.0, none]);
        assert_eq!(spread.over(&[5.0, none, 0.0]), [none, none, 0.0, none, 5.0, none]);
        assert_eq!([0, 1, 2, 3].map(|logit| spread.token(logit)), [Some(4), Some(0), Some(2), None]);
        assert_eq!(Spread::bytes(Some(&Subset { tokens: [].into(), of: 6 })), 24);
    }
}
