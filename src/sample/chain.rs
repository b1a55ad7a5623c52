//! The sampler's order of work, and the buffers it works in.
//!
//! [`sample`] gives a token; [`survivors`] stops before the draw. Neither changes the logits nor allocates.

use super::filters::{self, Candidate};
use super::{Options, penalties, rng};
use crate::error::{Error, Result, filled, reserve};

/// Buffers of sampling for one vocabulary size, reserved when a session is made and shared by all of its sequences.
#[derive(Debug)]
pub struct Scratch {
    adjusted: Vec<f32>,
    counts: Vec<u32>,
    candidates: Vec<Candidate>,
    bins: Vec<u64>,
}

impl Scratch {
    /// Buffers for `vocab` logits; fails when they cannot be allocated, or beyond 2^23 tokens.
    pub fn new(vocab: usize) -> Result<Scratch> {
        if vocab > filters::MAX_CANDIDATES {
            let most = filters::MAX_CANDIDATES;
            return Err(Error::Unsupported(format!("vocabulary of {vocab} tokens: sampling handles at most {most}")));
        }
        Ok(Scratch {
            adjusted: filled(vocab, 0.0, "sampler logits")?,
            counts: filled(vocab, 0, "sampler token counts")?,
            candidates: reserve(vocab, "sampler candidates")?,
            bins: filled(filters::BINS, 0, "sampler bins")?,
        })
    }

    /// Bytes that [`Scratch::new`] reserves.
    pub fn bytes(vocab: usize) -> u64 {
        let per_token = size_of::<f32>() + size_of::<u32>() + size_of::<Candidate>();
        (vocab as u64).saturating_mul(per_token as u64) + (filters::BINS * size_of::<u64>()) as u64
    }
}

/// Draws the token that stands at `position` of its sequence from `logits` of the whole vocabulary.
///
/// `history` holds the sequence's tokens so far, the prompt included; `position` is the index that the new token will have.
/// `options` must have passed [`Options::validate`]. `InvalidArgument` for a number of logits that the scratch is not made
/// for, for tokens outside the vocabulary, and when the bias leaves nothing to draw; `Device` when the logits do.
pub fn sample(options: &Options, logits: &[f32], history: &[i32], position: u64, scratch: &mut Scratch) -> Result<i32> {
    if options.temperature == 0.0 {
        let adjusted = adjust(options, logits, history, &mut scratch.adjusted, &mut scratch.counts)?;
        return filters::greedy(adjusted).ok_or_else(|| nothing_left(logits));
    }
    let candidates = survivors(options, logits, history, scratch)?;
    Ok(rng::draw(candidates, options.temperature, options.seed, position))
}

/// The tokens that [`sample`] draws from at a temperature above 0, in no order: at least one, or its errors.
pub fn survivors<'a>(
    options: &Options,
    logits: &[f32],
    history: &[i32],
    scratch: &'a mut Scratch,
) -> Result<&'a [Candidate]> {
    let Scratch { adjusted, counts, candidates, bins } = scratch;
    let adjusted = adjust(options, logits, history, adjusted, counts)?;
    filters::top_k(adjusted, options.top_k.max(0) as usize, candidates);
    if candidates.is_empty() {
        return Err(nothing_left(logits));
    }
    if options.typical_p < 1.0 {
        filters::typical_p(candidates, options.typical_p, bins);
    }
    if options.top_p < 1.0 {
        filters::top_p(candidates, options.top_p, bins);
    }
    if options.min_p > 0.0 {
        filters::min_p(candidates, options.min_p);
    }
    Ok(candidates)
}

/// The logits after bias and penalties: themselves where neither is in use, else a changed copy.
fn adjust<'a>(
    options: &Options,
    logits: &'a [f32],
    history: &[i32],
    copy: &'a mut [f32],
    counts: &mut [u32],
) -> Result<&'a [f32]> {
    if logits.len() != copy.len() {
        let (given, made_for) = (logits.len(), copy.len());
        return Err(Error::InvalidArgument(format!("{given} logits given to a sampler of {made_for} tokens")));
    }
    if !penalties::changes_logits(options) {
        return Ok(logits);
    }
    copy.copy_from_slice(logits);
    penalties::apply(options, history, copy, counts)?;
    Ok(copy)
}

/// Why there is no candidate, given the logits as the model gave them.
fn nothing_left(logits: &[f32]) -> Error {
    if filters::greedy(logits).is_some() {
        return Error::InvalidArgument("bias and penalties leave no token to draw".into());
    }
    Error::Device(format!("the model gave no usable logit: all {} are NaN or minus infinity", logits.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_told_are_the_bytes_reserved() {
        for vocab in [1, 1_000, 32_001] {
            let scratch = Scratch::new(vocab).unwrap();
            let reserved = scratch.adjusted.capacity() * size_of::<f32>()
                + scratch.counts.capacity() * size_of::<u32>()
                + scratch.candidates.capacity() * size_of::<Candidate>()
                + scratch.bins.capacity() * size_of::<u64>();
            assert_eq!(Scratch::bytes(vocab), reserved as u64);
        }
    }
}
