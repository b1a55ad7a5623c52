//! What the host and the history add to the logits before any filter: bias, and repeat, frequency and presence penalties.
//!
//! All arithmetic is binary32, one rounding an operation, in the order written here. The history is counted afresh in every
//! call, so that truncating and forking a sequence need no state.

use super::Options;
use crate::error::{Error, Result};

/// Whether [`apply`] would change any logit.
pub fn changes_logits(options: &Options) -> bool {
    !options.bias.is_empty() || penalizes(options)
}

/// Adds the bias, entry by entry, then applies the penalties over the last `penalty_last_n` tokens of the history.
///
/// Each token of that window is treated once, with c its number of occurrences: a positive logit is divided by
/// `repeat_penalty`, any other multiplied; then c x `frequency_penalty` is subtracted, then `presence_penalty`. `counts` has
/// an entry a token, all zero, and is left so.
pub fn apply(options: &Options, history: &[i32], logits: &mut [f32], counts: &mut [u32]) -> Result<()> {
    for &(token, bias) in &options.bias {
        logits[index(token, counts.len())?] += bias;
    }
    occurrences(options, history, counts, |token, count| {
        let logit = &mut logits[token];
        *logit = if *logit > 0.0 { *logit / options.repeat_penalty } else { *logit * options.repeat_penalty };
        *logit -= count as f32 * options.frequency_penalty;
        *logit -= options.presence_penalty;
    })
}

/// Tells `visit` every token that the penalties concern, once, and how often it occurs in their window. `counts` has an entry a token, all zero, and
/// is left so.
pub fn occurrences(
    options: &Options,
    history: &[i32],
    counts: &mut [u32],
    mut visit: impl FnMut(usize, u32),
) -> Result<()> {
    if !penalizes(options) {
        return Ok(());
    }
    let window = window(history, options.penalty_last_n);
    // Checked before the first count, so that a bad token leaves no counts behind.
    for &token in window {
        index(token, counts.len())?;
    }
    for &token in window {
        counts[token as usize] += 1;
    }
    for &token in window {
        // Zero when the token was treated already.
        let count = std::mem::take(&mut counts[token as usize]);
        if count > 0 {
            visit(token as usize, count);
        }
    }
    Ok(())
}

fn penalizes(options: &Options) -> bool {
    let neutral = options.repeat_penalty == 1.0 && options.frequency_penalty == 0.0 && options.presence_penalty == 0.0;
    !neutral && options.penalty_last_n != 0
}

/// The last `last_n` tokens; all of them for a negative number.
fn window(history: &[i32], last_n: i32) -> &[i32] {
    let tokens = usize::try_from(last_n).unwrap_or(usize::MAX).min(history.len());
    &history[history.len() - tokens..]
}

fn index(token: i32, vocab: usize) -> Result<usize> {
    let outside = || Error::InvalidArgument(format!("token {token} is outside the vocabulary of {vocab} tokens"));
    usize::try_from(token).ok().filter(|&index| index < vocab).ok_or_else(outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalties(repeat: f32, frequency: f32, presence: f32, last_n: i32) -> Options {
        Options {
            repeat_penalty: repeat,
            frequency_penalty: frequency,
            presence_penalty: presence,
            penalty_last_n: last_n,
            ..Options::defaults()
        }
    }

    fn applied(options: &Options, history: &[i32], logits: &[f32]) -> Vec<f32> {
        let mut logits = logits.to_vec();
        let mut counts = vec![0; logits.len()];
        apply(options, history, &mut logits, &mut counts).unwrap();
        assert!(counts.iter().all(|&count| count == 0));
        logits
    }

    #[test]
    fn repeat_divides_positive_and_multiplies_negative_logits_once() {
        let options = penalties(2.0, 0.0, 0.0, 64);
        assert_eq!(applied(&options, &[0, 1, 2, 0, 0, 1], &[3.0, -3.0, 0.0, 5.0]), [1.5, -6.0, 0.0, 5.0]);
    }

    #[test]
    fn the_sign_of_a_logit_decides_however_small_it_is() {
        let tiny = f32::MIN_POSITIVE;
        assert_eq!(applied(&penalties(2.0, 0.0, 0.0, 64), &[0, 1], &[-tiny, 2.0 * tiny]), [-2.0 * tiny, tiny]);
    }

    #[test]
    fn frequency_counts_occurrences_and_presence_does_not() {
        assert_eq!(applied(&penalties(1.0, 0.5, 0.0, 64), &[0, 1, 0, 0], &[2.0, 2.0, 2.0]), [0.5, 1.5, 2.0]);
        assert_eq!(applied(&penalties(1.0, 0.0, 0.5, 64), &[0, 1, 0, 0], &[2.0, 2.0, 2.0]), [1.5, 1.5, 2.0]);
        assert_eq!(applied(&penalties(2.0, -1.0, 0.25, 64), &[0, 1, 0, 0], &[2.0, -2.0, 2.0]), [3.75, -3.25, 2.0]);
    }

    #[test]
    fn the_window_is_none_all_or_the_last_tokens() {
        let history: Vec<i32> = (0..100).collect();
        let logits = vec![1.0; 100];
        for (last_n, first) in [(0, 100), (1, 99), (64, 36), (99, 1), (100, 0), (101, 0), (i32::MAX, 0), (-1, 0)] {
            let after = applied(&penalties(1.0, 0.0, 1.0, last_n), &history, &logits);
            let expected: Vec<f32> = (0..100).map(|token| if token < first { 1.0 } else { 0.0 }).collect();
            assert_eq!(after, expected, "last {last_n}");
        }
    }

    #[test]
    fn tokens_that_left_the_window_do_not_count() {
        assert_eq!(applied(&penalties(1.0, 1.0, 0.0, 2), &[0, 0, 0, 1], &[5.0, 5.0]), [4.0, 4.0]);
    }

    #[test]
    fn bias_adds_up_and_comes_before_the_penalties() {
        let options = Options { bias: vec![(1, 4.0), (0, -1.0), (1, 2.0)], ..penalties(2.0, 0.0, 0.0, -1) };
        assert_eq!(applied(&options, &[0, 1], &[0.5, -2.0, 1.0]), [-1.0, 2.0, 1.0]);
    }

    #[test]
    fn a_ban_holds_against_everything() {
        let options = Options { bias: vec![(0, f32::NEG_INFINITY)], ..penalties(0.5, -10.0, -10.0, -1) };
        assert_eq!(applied(&options, &[0, 0], &[80.0, 1.0]), [f32::NEG_INFINITY, 1.0]);
        let banned = applied(&options, &[], &[f32::INFINITY, 1.0]);
        assert!(banned[0].is_nan(), "plus and minus infinity leave no number, which is never drawn");
    }

    #[test]
    fn neutral_options_change_nothing() {
        assert!(!changes_logits(&Options::defaults()));
        assert!(!changes_logits(&penalties(1.5, 1.0, 1.0, 0)));
        assert!(changes_logits(&penalties(1.5, 0.0, 0.0, 1)));
        assert!(changes_logits(&penalties(1.0, 0.0, -0.1, 1)));
        assert!(changes_logits(&Options { bias: vec![(0, 0.5)], ..Options::defaults() }));
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_refused_and_leaves_no_counts() {
        let mut counts = vec![0; 3];
        for token in [-1, 3, i32::MIN, i32::MAX] {
            let options = penalties(2.0, 0.0, 0.0, -1);
            let error = apply(&options, &[0, token], &mut [1.0; 3], &mut counts).unwrap_err();
            assert!(error.to_string().contains(&format!("{token} is outside the vocabulary of 3")), "{error}");
            let biased = Options { bias: vec![(token, 1.0)], ..Options::defaults() };
            assert!(apply(&biased, &[], &mut [1.0; 3], &mut counts).is_err());
            assert_eq!(counts, [0; 3]);
        }
    }
}
