//! Draws whose token is known without the mask that belongs to them: the sampler runs as if there were none, and what it would leave out is asked
//! for of few tokens. Where that tells nothing, the mask has to be worked out; no token ever differs.
//!
//! Why the token is the same. A mask takes tokens out and moves no logit, so the order of those that are left stays. Greedy, the highest logit of all
//! is that of the allowed ones if its token is allowed. Drawing, let P be the candidates that all filters leave without the mask, and all of them
//! allowed. They come first in the order of the allowed ones too; what the mask takes out lies behind, so the mass of the allowed
//! candidates is at most that of all and at least that of P. So with the mask the filters leave some of P and nothing else, and at least those that
//! reach `top_p` of P's own mass: the winner of P, if it is one of these, beats whatever is left.

use super::chain::{self, Scratch};
use super::filters::{self, Candidate};
use super::{Mask, Options, rng};
use crate::error::Result;

/// Most tokens that are asked for: where there are more, a mask is cheaper.
pub const MOST_ASKED: usize = 64;

/// The token that [`super::sample_masked`] draws with any mask that allows the tokens for which `allows` is asked, once at most; `None` where
/// nothing is known without the mask, errors included. `allows` may say no where it does not know.
pub fn sample_unmasked(
    options: &Options,
    logits: &[f32],
    history: &[i32],
    position: u64,
    scratch: &mut Scratch,
    allows: &mut dyn FnMut(&[i32]) -> Result<bool>,
) -> Result<Option<i32>> {
    if options.typical_p < 1.0 && options.temperature > 0.0 {
        return Ok(None);
    }
    let Scratch { adjusted, counts, candidates, bins } = scratch;
    let Ok(logits) = chain::adjust(options, logits, &Mask::default(), history, adjusted, counts) else {
        return Ok(None);
    };
    if options.temperature == 0.0 {
        let Some(token) = filters::greedy(logits) else { return Ok(None) };
        return Ok(allows(&[token])?.then_some(token));
    }
    let most = options.top_k.max(0) as usize;
    filters::top_k(logits, most, candidates);
    if candidates.is_empty() {
        return Ok(None);
    }
    // Whether there may be candidates that take the place of what the mask leaves out.
    let is_cut = candidates.len() == most;
    let lowest = candidates.iter().map(|candidate| candidate.logit).fold(f32::INFINITY, f32::min);
    let found = candidates.len();
    if options.top_p < 1.0 {
        filters::top_p(candidates, options.top_p, bins);
    }
    if options.min_p > 0.0 {
        filters::min_p(candidates, options.min_p);
    }
    let winner = rng::draw(candidates, options.temperature, options.seed, position);
    let is_known = if is_cut || options.top_p < 1.0 {
        let is_sure = !is_cut || candidates.len() == found || is_above(candidates, lowest);
        let stays = options.top_p == 1.0 || filters::is_within(candidates, winner, options.top_p);
        is_sure && stays && all_allowed(candidates, allows)?
    } else {
        // Nothing but the distance to the highest logit leaves out a token.
        let highest = candidates.iter().max_by(|a, b| a.logit.total_cmp(&b.logit)).map_or(winner, |best| best.id);
        allows(&[winner, highest])?
    };
    Ok(is_known.then_some(winner))
}

/// Whether all candidates rank before a token with the logit `lowest`: differences of logits are rounded, so different ones may rank alike.
fn is_above(candidates: &[Candidate], lowest: f32) -> bool {
    let top = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
    let below = |logit: f32| f64::from(logit) - f64::from(top);
    candidates.iter().all(|candidate| below(candidate.logit) > below(lowest))
}

fn all_allowed(candidates: &[Candidate], allows: &mut dyn FnMut(&[i32]) -> Result<bool>) -> Result<bool> {
    if candidates.len() > MOST_ASKED {
        return Ok(false);
    }
    let mut tokens = [0; MOST_ASKED];
    tokens.iter_mut().zip(candidates).for_each(|(token, candidate)| *token = candidate.id);
    allows(&tokens[..candidates.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::sample_masked;

    /// Numbers without order.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % end
        }

        fn choose<T: Copy>(&mut self, values: &[T]) -> T {
            values[self.below(values.len())]
        }

        fn logit(&mut self, kind: usize) -> f32 {
            let normal = (0..4).map(|_| self.below(2001) as f32 / 1000.0 - 1.0).sum::<f32>();
            match kind {
                0 => normal.round(),
                1 => normal * 6.0,
                // Beside the highest, most of these differ by less than a rounding.
                2 => normal * if self.below(9) == 0 { 30.0 } else { 1e-20 },
                3 => self.choose(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 2.0, f32::MAX, normal]),
                _ => normal,
            }
        }

        fn options(&mut self, vocab: usize) -> Options {
            Options {
                temperature: self.choose(&[0.0, 0.3, 0.8, 1.0, 5.0]),
                top_k: self.choose(&[0, 1, 3, 10, 40, 1000]),
                top_p: self.choose(&[1.0, 0.99, 0.95, 0.5, 0.01]),
                min_p: self.choose(&[0.0, 0.0, 0.05, 0.5]),
                typical_p: self.choose(&[1.0, 1.0, 1.0, 0.9]),
                repeat_penalty: self.choose(&[1.0, 1.0, 1.3]),
                seed: self.below(1 << 30) as u64,
                bias: (0..self.choose(&[0, 0, 3])).map(|_| (self.below(vocab) as i32, self.logit(1))).collect(),
                ..Options::defaults()
            }
        }
    }

    #[test]
    fn what_is_known_without_the_mask_is_what_comes_out_with_it() {
        let mut dice = Dice(3);
        let (mut known, mut open) = (0, 0);
        for case in 0..60_000 {
            let vocab = dice.choose(&[1, 2, 9, 33, 150]);
            let kind = dice.below(5);
            let logits: Vec<f32> = (0..vocab).map(|_| dice.logit(kind)).collect();
            let (options, rare) = (dice.options(vocab), dice.choose(&[1, 2, 10, 100]));
            let mut bits = vec![0u32; vocab.div_ceil(32)];
            (0..vocab).filter(|_| dice.below(rare) > 0).for_each(|token| bits[token / 32] |= 1 << (token % 32));
            let mask = Mask { bits: Some(&bits), named: [&[], &[]] };
            let history = [dice.below(vocab) as i32, 0];
            let position = dice.below(1000) as u64;
            let mut scratch = Scratch::new(vocab).unwrap();
            let mut asked = 0;
            let mut allows = |tokens: &[i32]| {
                asked += 1;
                Ok(tokens.iter().all(|&token| mask.allows(token)))
            };
            let early = sample_unmasked(&options, &logits, &history, position, &mut scratch, &mut allows).unwrap();
            assert!(asked <= 1);
            let Some(token) = early else {
                open += 1;
                continue;
            };
            let masked = sample_masked(&options, &logits, &mask, &history, position, &mut scratch);
            assert_eq!(masked.ok(), Some(token), "case {case}: {options:?} {mask:?} {logits:?}");
            known += 1;
        }
        assert!(known > 10_000 && open > 10_000, "{known} known, {open} open");
    }

    #[test]
    fn who_does_not_know_leaves_the_choice_open() {
        let (options, mut scratch) = (Options { seed: 1, ..Options::defaults() }, Scratch::new(3).unwrap());
        for temperature in [0.0, 0.8] {
            let options = Options { temperature, ..options.copied().unwrap() };
            let mut no = |_: &[i32]| Ok(false);
            let open = sample_unmasked(&options, &[1.0, 2.0, 3.0], &[], 0, &mut scratch, &mut no);
            assert_eq!(open.unwrap(), None);
            let mut failed = |_: &[i32]| Err(crate::error::Error::Grammar("broken".into()));
            assert!(sample_unmasked(&options, &[1.0, 2.0, 3.0], &[], 0, &mut scratch, &mut failed).is_err());
        }
    }
}
