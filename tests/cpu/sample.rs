//! The sampler against plain NumPy on recorded logits, and its draw against the exact distribution.
//!
//! The goldens of `tests/golden/sample` are written by `tests/golden/make_sample.py`.

use crate::common::draws::{Golden, float, history, int, off, options};
use segno::elementary;
use segno::error::Error;
use segno::sample::{Options, SEED_RANDOM, Scratch, chain, sample};
use serde_json::Value;

#[test]
fn every_filter_and_chain_keeps_what_numpy_keeps() {
    let golden = Golden::load();
    assert!(golden.cases.len() > 300);
    for case in &golden.cases {
        let logits = golden.logits(case);
        let mut scratch = Scratch::new(logits.len()).unwrap();
        let kept = chain::survivors(&options(case), logits, &history(case), &mut scratch).unwrap();
        let mut kept: Vec<(i32, f32)> = kept.iter().map(|candidate| (candidate.id, candidate.logit)).collect();
        kept.sort_by_key(|&(id, _)| id);
        assert_eq!(kept.len() as u64, case["count"].as_u64().unwrap(), "{case}");
        match &case["ids"] {
            Value::Array(ids) => assert!(kept.iter().map(|&(id, _)| id).eq(ids.iter().map(int)), "{kept:?} {case}"),
            squares => {
                assert_eq!(kept.iter().map(|&(id, _)| u64::from(id as u32).pow(2)).sum::<u64>(), *squares, "{case}")
            }
        }
        if let Value::Array(values) = &case["values"] {
            assert!(kept.iter().map(|&(_, logit)| logit).eq(values.iter().map(float)), "{kept:?} {case}");
        }
    }
}

#[test]
fn every_draw_is_that_of_the_definition_in_python() {
    let golden = Golden::load();
    let mut draws = 0;
    for case in &golden.cases {
        let logits = golden.logits(case);
        let mut scratch = Scratch::new(logits.len()).unwrap();
        for draw in case["draws"].as_array().into_iter().flatten() {
            let options = Options { seed: draw[0].as_u64().unwrap(), ..options(case) };
            let position = draw[1].as_u64().unwrap();
            let token = sample(&options, logits, &history(case), position, &mut scratch).unwrap();
            assert_eq!(token, int(&draw[2]), "{case}");
            draws += 1;
        }
    }
    assert!(draws > 800, "{draws}");
}

#[test]
fn elementary_functions_have_the_bits_of_the_definition_in_python() {
    let points = Golden::load().elementary;
    assert!(points.len() > 10);
    for [x, exponential, logarithm] in points {
        let x = f64::from_bits(x);
        assert_eq!((elementary::exp(-x).to_bits(), elementary::ln(x).to_bits()), (exponential, logarithm), "{x}");
    }
}

#[test]
fn temperature_zero_takes_the_highest_adjusted_logit_whatever_the_filters() {
    let golden = Golden::load();
    for case in &golden.cases {
        let logits = golden.logits(case);
        let mut scratch = Scratch::new(logits.len()).unwrap();
        let greedy = Options { temperature: 0.0, ..options(case) };
        let first = Options { top_k: 1, typical_p: 1.0, temperature: 1.0, ..options(case) };
        let expected = chain::survivors(&first, logits, &history(case), &mut scratch).unwrap()[0].id;
        for position in 0..3 {
            assert_eq!(sample(&greedy, logits, &history(case), position, &mut scratch).unwrap(), expected, "{case}");
        }
    }
}

#[test]
fn draws_over_positions_follow_the_exact_distribution() {
    let logits: Vec<f32> = (0..60).map(|id| ((id * 37) % 60) as f32 / 12.0).collect();
    for (temperature, seed) in [(1.0, 1), (0.5, 2), (3.0, u64::MAX - 1)] {
        let options = Options { temperature, seed, ..off() };
        let counts = counted(&options, &logits, (0..100_000).map(|position| (seed, position)));
        assert_plausible(&counts, &softmax(&logits, temperature));
        let other = softmax(&logits, temperature * 1.1);
        assert!(excess(&counts, &other) > 4.0, "a temperature 10 % higher must show");
    }
}

#[test]
fn draws_over_seeds_follow_the_exact_distribution() {
    let logits: Vec<f32> = (0..40).map(|id| (id % 7) as f32 * 0.6).collect();
    let counts = counted(&off(), &logits, (0..100_000).map(|seed| (seed << 20, 5)));
    assert_plausible(&counts, &softmax(&logits, 1.0));
}

#[test]
fn filtered_draws_follow_the_distribution_of_what_is_left() {
    let logits: Vec<f32> = (0..5_000).map(|id| ((id * 1_237) % 5_000) as f32 / 700.0).collect();
    let options = Options { top_k: 30, top_p: 0.9, temperature: 0.7, ..off() };
    let mut scratch = Scratch::new(logits.len()).unwrap();
    let kept: Vec<i32> =
        chain::survivors(&options, &logits, &[], &mut scratch).unwrap().iter().map(|candidate| candidate.id).collect();
    let counts = counted(&options, &logits, (0..100_000).map(|position| (99, position)));
    let counts: Vec<u64> = kept.iter().map(|&id| counts[id as usize]).collect();
    assert_eq!(counts.iter().sum::<u64>(), 100_000, "nothing else is drawn");
    let left: Vec<f32> = kept.iter().map(|&id| logits[id as usize]).collect();
    assert_plausible(&counts, &softmax(&left, 0.7));
}

#[test]
fn draws_at_neighbouring_positions_and_tokens_are_independent() {
    // Pairs of successive draws from four equal tokens: sixteen equally likely outcomes.
    let mut scratch = Scratch::new(4).unwrap();
    let options = Options { seed: 8, ..off() };
    let mut counts = vec![0u64; 16];
    for pair in 0..100_000 {
        let mut draw = |position| sample(&options, &[0.0; 4], &[], position, &mut scratch).unwrap() as usize;
        counts[draw(2 * pair) * 4 + draw(2 * pair + 1)] += 1;
    }
    assert_plausible(&counts, &[1.0 / 16.0; 16]);
}

#[test]
fn a_draw_depends_on_seed_and_position_alone() {
    let logits: Vec<f32> = (0..200).map(|id| (id % 13) as f32 * 0.1).collect();
    let mut scratch = Scratch::new(logits.len()).unwrap();
    let mut draw = |seed, position| sample(&Options { seed, ..off() }, &logits, &[], position, &mut scratch).unwrap();
    let first: Vec<i32> = (0..100).map(|position| draw(3, position)).collect();
    let again: Vec<i32> = (0..100).rev().map(|position| draw(3, position)).collect();
    assert!(first.iter().eq(again.iter().rev()));
    let far: Vec<i32> = (0..100).map(|position| draw(3, position + (1 << 32))).collect();
    let other: Vec<i32> = (0..100).map(|position| draw(3 + (1 << 32), position)).collect();
    assert!(first != far && first != other && far != other);
}

#[test]
fn the_logits_stay_as_they_are() {
    let logits: Vec<f32> = (0..100).map(|id| id as f32 / 10.0).collect();
    let options = Options { bias: vec![(5, 3.0)], repeat_penalty: 1.5, frequency_penalty: 1.0, ..Options::defaults() };
    let before = logits.clone();
    let mut scratch = Scratch::new(100).unwrap();
    for position in 0..10 {
        sample(&options, &logits, &[1, 5, 99], position, &mut scratch).unwrap();
    }
    assert_eq!(logits, before);
}

#[test]
fn a_banned_token_is_never_drawn() {
    let mut scratch = Scratch::new(3).unwrap();
    let logits = [f32::INFINITY, 30.0, 0.0];
    let ban = vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)];
    for temperature in [0.0, 1.0, 100.0] {
        let options = Options { temperature, bias: ban.clone(), ..off() };
        for position in 0..100 {
            assert_eq!(sample(&options, &logits, &[], position, &mut scratch).unwrap(), 2);
        }
    }
}

#[test]
fn without_a_usable_logit_the_error_says_whose_fault_it_is() {
    let mut scratch = Scratch::new(2).unwrap();
    for temperature in [0.0, 1.0] {
        let options = Options { temperature, ..Options::defaults() };
        let broken = sample(&options, &[f32::NAN, f32::NEG_INFINITY], &[], 0, &mut scratch).unwrap_err();
        assert!(matches!(broken, Error::Device(_)), "{broken}");
        let options = Options { bias: vec![(0, f32::NEG_INFINITY)], ..options };
        let banned = sample(&options, &[1.0, f32::NAN], &[], 0, &mut scratch).unwrap_err();
        assert!(matches!(banned, Error::InvalidArgument(_)), "{banned}");
        assert_eq!(sample(&options, &[1.0, -5.0], &[], 0, &mut scratch).unwrap(), 1, "the scratch stays usable");
    }
}

#[test]
fn infinite_logits_win_and_share_equally() {
    let logits = [f32::INFINITY, f32::MAX, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let counts = counted(&Options { min_p: 0.05, top_p: 0.95, ..off() }, &logits, (0..10_000).map(|p| (4, p)));
    assert_eq!((counts[1], counts[2], counts[4]), (0, 0, 0));
    assert_plausible(&[counts[0], counts[3]], &[0.5, 0.5]);
}

#[test]
fn extreme_options_still_draw() {
    let logits: Vec<f32> = (0..1_000).map(|id| (id % 100) as f32).chain([f32::MAX, f32::MIN]).collect();
    let mut scratch = Scratch::new(logits.len()).unwrap();
    let tiny = f32::from_bits(1);
    for (temperature, token) in [(tiny, Some(1_000)), (100.0, Some(1_000))] {
        let options = Options { temperature, top_p: tiny, typical_p: tiny, min_p: tiny, ..off() };
        options.validate(logits.len()).unwrap();
        assert_eq!(sample(&options, &logits, &[], 0, &mut scratch).ok(), token);
    }
    let options = Options { repeat_penalty: tiny, penalty_last_n: -1, ..off() };
    assert_eq!(sample(&options, &logits, &[3], 0, &mut scratch).unwrap(), 3, "3 / 1e-45 is plus infinity");
}

#[test]
fn options_inside_their_ranges_are_accepted() {
    Options::defaults().validate(1).unwrap();
    let ends = [
        Options { temperature: 0.0, top_p: 1e-40, min_p: 0.0, typical_p: 1e-40, ..off() },
        Options { temperature: 100.0, top_p: 1.0, min_p: 1.0, typical_p: 1.0, ..off() },
        Options { repeat_penalty: 1e-40, frequency_penalty: -10.0, presence_penalty: -10.0, ..off() },
        Options { repeat_penalty: 10.0, frequency_penalty: 10.0, presence_penalty: 10.0, ..off() },
        Options { top_k: i32::MAX, penalty_last_n: i32::MAX, ..off() },
        Options { top_k: 0, penalty_last_n: -1, ..off() },
        Options { bias: vec![(0, f32::NEG_INFINITY), (9, f32::MAX)], stop_tokens: vec![0, 9], ..off() },
    ];
    for options in ends {
        options.validate(10).unwrap();
    }
}

#[test]
fn options_outside_their_ranges_are_refused_by_name_value_and_range() {
    let refused = |options: Options, message: &str| {
        let error = options.validate(10).unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument(text) if text == message), "{error}");
    };
    refused(Options { temperature: -0.1, ..off() }, "temperature is -0.1, must be 0 to 100");
    refused(Options { temperature: 100.1, ..off() }, "temperature is 100.1, must be 0 to 100");
    refused(Options { top_p: 0.0, ..off() }, "top_p is 0, must be above 0, at most 1");
    refused(Options { top_p: 1.1, ..off() }, "top_p is 1.1, must be above 0, at most 1");
    refused(Options { typical_p: -1.0, ..off() }, "typical_p is -1, must be above 0, at most 1");
    refused(Options { min_p: 1.5, ..off() }, "min_p is 1.5, must be 0 to 1");
    refused(Options { min_p: -0.5, ..off() }, "min_p is -0.5, must be 0 to 1");
    refused(Options { repeat_penalty: 0.0, ..off() }, "repeat_penalty is 0, must be above 0, at most 10");
    refused(Options { repeat_penalty: 11.0, ..off() }, "repeat_penalty is 11, must be above 0, at most 10");
    refused(Options { frequency_penalty: 10.5, ..off() }, "frequency_penalty is 10.5, must be -10 to 10");
    refused(Options { presence_penalty: -10.5, ..off() }, "presence_penalty is -10.5, must be -10 to 10");
    refused(Options { top_k: -1, ..off() }, "top_k is -1, must be 0 (off) or more");
    refused(Options { penalty_last_n: -2, ..off() }, "penalty_last_n is -2, must be -1 (all), 0 (off) or more");
    refused(
        Options { bias: vec![(0, 1.0), (10, 1.0)], ..off() },
        "bias[1] names token 10, outside the vocabulary of 10 tokens",
    );
    refused(
        Options { bias: vec![(0, f32::INFINITY)], ..off() },
        "bias[0] is inf, must be finite, or minus infinity to ban the token",
    );
    refused(
        Options { stop_tokens: vec![2, -1], ..off() },
        "stop_tokens[1] names token -1, outside the vocabulary of 10 tokens",
    );
}

#[test]
fn nan_is_refused_in_every_option() {
    let nan = f32::NAN;
    let options = [
        Options { temperature: nan, ..off() },
        Options { top_p: nan, ..off() },
        Options { min_p: nan, ..off() },
        Options { typical_p: nan, ..off() },
        Options { repeat_penalty: nan, ..off() },
        Options { frequency_penalty: nan, ..off() },
        Options { presence_penalty: nan, ..off() },
        Options { bias: vec![(0, nan)], ..off() },
    ];
    for options in options {
        let message = options.validate(10).unwrap_err().to_string();
        assert!(message.contains("is NaN, must be"), "{message}");
    }
}

#[test]
fn the_defaults_are_those_of_the_c_api() {
    let defaults = Options::defaults();
    assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p, defaults.min_p), (0.8, 40, 0.95, 0.05));
    assert_eq!((defaults.typical_p, defaults.repeat_penalty), (1.0, 1.0));
    assert_eq!((defaults.frequency_penalty, defaults.presence_penalty, defaults.penalty_last_n), (0.0, 0.0, 64));
    assert_eq!((defaults.seed, defaults.ignore_eog), (SEED_RANDOM, false));
    assert!(defaults.bias.is_empty() && defaults.stop_tokens.is_empty());
}

#[test]
fn stop_tokens_and_ignore_eog_do_not_touch_the_draw() {
    let logits: Vec<f32> = (0..50).map(|id| (id % 9) as f32).collect();
    let mut scratch = Scratch::new(50).unwrap();
    let plain = Options { seed: 6, ..Options::defaults() };
    let stopping = Options { ignore_eog: true, stop_tokens: (0..50).collect(), ..plain.clone() };
    for position in 0..200 {
        let token = sample(&plain, &logits, &[], position, &mut scratch).unwrap();
        assert_eq!(sample(&stopping, &logits, &[], position, &mut scratch).unwrap(), token);
    }
}

#[test]
fn a_scratch_of_another_size_is_refused() {
    let mut scratch = Scratch::new(8).unwrap();
    for (temperature, length) in [(0.0, 7), (1.0, 9)] {
        let options = Options { temperature, ..off() };
        let error = sample(&options, &vec![0.0; length], &[], 0, &mut scratch).unwrap_err();
        assert_eq!(error.to_string(), format!("{length} logits given to a sampler of 8 tokens"));
    }
    assert!(matches!(Scratch::new((1 << 23) + 1), Err(Error::Unsupported(_))));
}

/// How often each token is drawn at the given seeds and positions.
fn counted(options: &Options, logits: &[f32], draws: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
    let mut scratch = Scratch::new(logits.len()).unwrap();
    let mut counts = vec![0; logits.len()];
    for (seed, position) in draws {
        let options = Options { seed, ..options.clone() };
        counts[sample(&options, logits, &[], position, &mut scratch).unwrap() as usize] += 1;
    }
    counts
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&logit| (f64::from(logit) / f64::from(temperature)).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Pearson's statistic as a standard normal deviate, by the cube root of Wilson and Hilferty (1931).
fn excess(counts: &[u64], probabilities: &[f64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let terms = counts.iter().zip(probabilities).map(|(&count, p)| (count as f64 - total * p).powi(2) / (total * p));
    let freedom = (counts.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((terms.sum::<f64>() / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Neither worse nor better than chance allows: 4 standard deviations.
fn assert_plausible(counts: &[u64], probabilities: &[f64]) {
    let excess = excess(counts, probabilities);
    assert!(excess.abs() < 4.0, "chi-square is {excess} standard deviations off: {counts:?}");
}
