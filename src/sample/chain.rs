//! The sampler's order of work, and the buffers it works in.
//!
//! [`sample_masked`] gives a token. Neither changes the logits nor allocates.

use super::filters::{self, Candidate};
use super::{Options, penalties, rng};
use crate::error::{Error, Result, filled, reserve};

/// Buffers of sampling for one vocabulary size, reserved when a session is made and shared by all of its sequences.
#[derive(Debug)]
pub struct Scratch {
    pub(super) adjusted: Vec<f32>,
    pub(super) counts: Vec<u32>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) bins: Vec<u64>,
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

/// The tokens that may be drawn: those of a list of bits, the lowest token first, and some that are named. Without a list every token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask<'a> {
    /// A bit for each token; those behind its end may not be drawn.
    pub bits: Option<&'a [u32]>,
    /// Tokens that may be drawn beside those of the list, if they are in the vocabulary.
    pub named: [&'a [i32]; 2],
}

impl Mask<'_> {
    /// Whether `token` may be drawn.
    pub fn allows(&self, token: i32) -> bool {
        let bit = |bits: &[u32]| bits.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
        self.bits.is_none_or(bit) || self.named.iter().any(|named| named.contains(&token))
    }

    /// Whether no token may be drawn.
    pub fn is_empty(&self) -> bool {
        let is_zero = self.bits.is_some_and(|bits| bits.iter().all(|&word| word == 0));
        is_zero && self.named.iter().all(|named| named.is_empty())
    }

    /// Takes the other tokens out of `kept`, a copy of `logits`.
    fn apply(&self, logits: &[f32], kept: &mut [f32]) {
        let Some(bits) = self.bits else { return };
        for (tile, &word) in kept.chunks_mut(32).zip(bits.iter().chain(std::iter::repeat(&0))) {
            match word {
                u32::MAX => {}
                0 => tile.fill(f32::NEG_INFINITY),
                _ => tile.iter_mut().enumerate().for_each(|(token, logit)| {
                    if word >> token & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }),
            }
        }
        for &token in self.named.into_iter().flatten() {
            if let Some(&logit) = logits.get(token as usize) {
                kept[token as usize] = logit;
            }
        }
    }
}

/// As [`sample_masked`], of all tokens.
#[cfg(feature = "testing")]
pub fn sample(options: &Options, logits: &[f32], history: &[i32], position: u64, scratch: &mut Scratch) -> Result<i32> {
    sample_masked(options, logits, &Mask::default(), history, position, scratch)
}

/// Draws the token that stands at `position` of its sequence from `logits` of the whole vocabulary, of
/// the tokens that `mask` allows.
///
/// `history` holds the sequence's tokens so far, the prompt included; `position` is the index that the new token will have.
/// `options` must have passed [`Options::validate`]. `InvalidArgument` for a number of logits that the scratch is not made
/// for, for tokens outside the vocabulary, and when the bias leaves nothing to draw; `Device` when the logits do.
pub fn sample_masked(
    options: &Options,
    logits: &[f32],
    mask: &Mask,
    history: &[i32],
    position: u64,
    scratch: &mut Scratch,
) -> Result<i32> {
    if options.temperature == 0.0 {
        let adjusted = adjust(options, logits, mask, history, &mut scratch.adjusted, &mut scratch.counts)?;
        return filters::greedy(adjusted).ok_or_else(|| nothing_left(logits, mask));
    }
    let candidates = filtered(options, logits, mask, history, scratch)?;
    Ok(rng::draw(candidates, options.temperature, options.seed, position))
}

/// The tokens that [`sample_masked`] draws from at a temperature above 0, in no order: at least one, or its errors.
#[cfg(feature = "testing")]
pub fn survivors<'a>(
    options: &Options,
    logits: &[f32],
    history: &[i32],
    scratch: &'a mut Scratch,
) -> Result<&'a [Candidate]> {
    filtered(options, logits, &Mask::default(), history, scratch)
}

fn filtered<'a>(
    options: &Options,
    logits: &[f32],
    mask: &Mask,
    history: &[i32],
    scratch: &'a mut Scratch,
) -> Result<&'a [Candidate]> {
    let Scratch { adjusted, counts, candidates, bins } = scratch;
    let adjusted = adjust(options, logits, mask, history, adjusted, counts)?;
    filters::top_k(adjusted, options.top_k.max(0) as usize, candidates);
    if candidates.is_empty() {
        return Err(nothing_left(logits, mask));
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

/// The logits after mask, bias and penalties: themselves where none is in use, else a changed copy.
pub(super) fn adjust<'a>(
    options: &Options,
    logits: &'a [f32],
    mask: &Mask,
    history: &[i32],
    copy: &'a mut [f32],
    counts: &mut [u32],
) -> Result<&'a [f32]> {
    if logits.len() != copy.len() {
        let (given, made_for) = (logits.len(), copy.len());
        return Err(Error::InvalidArgument(format!("{given} logits given to a sampler of {made_for} tokens")));
    }
    if mask.bits.is_none() && !penalties::changes_logits(options) {
        return Ok(logits);
    }
    copy.copy_from_slice(logits);
    mask.apply(logits, copy);
    penalties::apply(options, history, copy, counts)?;
    Ok(copy)
}

/// Why there is no candidate, given the logits as the model gave them.
fn nothing_left(logits: &[f32], mask: &Mask) -> Error {
    let is_usable = |token: usize| mask.allows(token as i32) && logits[token] > f32::NEG_INFINITY;
    if mask.bits.is_some() && !(0..logits.len()).any(is_usable) {
        return Error::Device("the model gave no usable logit for any token that the grammar lets through".into());
    }
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
