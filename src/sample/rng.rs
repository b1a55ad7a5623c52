//! The stateless draw: Gumbel-max with noise from Philox4x32-10.
//!
//! Adding independent Gumbel noise to the logits and taking the highest sum draws from their softmax (Gumbel 1954; Yellott
//! 1977), so a draw needs neither probabilities nor their sum, and the noise of a token depends on nothing but
//! (seed, position, token). Nothing is advanced: truncating, forking, discarding steps and batching change no later draw.
//!
//! The definition, which every implementation follows to the bit:
//!
//! 1. Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), as published
//!    in Random123. Key: `[seed low word, seed high word]`. Counter: `[token, 0, position low word, position high word]`, where
//!    the position is the index in its sequence of the token being drawn. The second word is zero for this draw.
//! 2. Of the four output words w0 to w3 the first two give 52 bits, `b = w0 << 20 | w1 >> 12`, and those the uniform number
//!    `u = (b + 1/2) / 2^52`, which binary64 holds exactly and which is never 0 nor 1.
//! 3. The noise is `g = -ln(-ln u)` with [`elementary::ln`], whose bits are defined.
//! 4. The score is `logit / temperature + g`: both operands widened to binary64 first, the division rounded, then the sum.
//! 5. The highest score wins; of equal scores the lowest token.
//!
//! Resolving [`SEED_RANDOM`] is here too; choosing the candidates is not.

use std::hash::{BuildHasher, RandomState};

use super::filters::Candidate;
use crate::elementary;

/// The seed that asks for another one in every sequence; see [`resolve_seed`].
pub const SEED_RANDOM: u64 = u64::MAX;

const ROUNDS: u32 = 10;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Bits of the uniform number.
const UNIFORM_BITS: u32 = 52;

/// Slightly more than ln 2, so that a bound made with it holds for the rounded noise too.
const LN2_ABOVE: f64 = 0.6932;

/// The seed to sample with: `seed` itself, or for [`SEED_RANDOM`] one that the system's randomness gives, never [`SEED_RANDOM`].
pub fn resolve_seed(seed: u64) -> u64 {
    let mut resolved = seed;
    while resolved == SEED_RANDOM {
        // The standard library keys its hash maps with random bytes of the system, differently in every state.
        resolved = RandomState::new().hash_one(SEED_RANDOM);
    }
    resolved
}

/// The token that wins the draw at `position`. There must be a candidate; their order does not matter.
pub fn draw(candidates: &[Candidate], temperature: f32, seed: u64, position: u64) -> i32 {
    let temperature = f64::from(temperature);
    let mut winner = (f64::NEG_INFINITY, i32::MAX);
    for candidate in candidates {
        let scaled = f64::from(candidate.logit) / temperature;
        if scaled + ceiling(u64::MAX) < winner.0 {
            continue;
        }
        let bits = uniform_bits(seed, position, candidate.id);
        // Most of a whole vocabulary is out of reach whatever the logarithms are.
        if scaled + ceiling(bits) < winner.0 {
            continue;
        }
        let score = scaled + gumbel(bits);
        if score > winner.0 || (score == winner.0 && candidate.id < winner.1) {
            winner = (score, candidate.id);
        }
    }
    winner.1
}

/// Step 2 of the definition, before the division.
fn uniform_bits(seed: u64, position: u64, token: i32) -> u64 {
    let [w0, w1, ..] =
        philox([token as u32, 0, position as u32, (position >> 32) as u32], [seed as u32, (seed >> 32) as u32]);
    u64::from(w0) << 20 | u64::from(w1) >> 12
}

/// Step 3 of the definition.
fn gumbel(bits: u64) -> f64 {
    let uniform = (2 * bits + 1) as f64 / (1u64 << (UNIFORM_BITS + 1)) as f64;
    -elementary::ln(-elementary::ln(uniform))
}

/// Never below [`gumbel`] of the same bits, and a hundredth of its price: g < -ln(1 - u), as -ln u > 1 - u, and the leading
/// zeros of 1 - u bound its logarithm.
fn ceiling(bits: u64) -> f64 {
    let complement = !bits & ((1 << UNIFORM_BITS) - 1);
    let length = u64::BITS - complement.leading_zeros();
    f64::from(UNIFORM_BITS + 1 - length) * LN2_ABOVE
}

/// Step 1 of the definition.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let even = u64::from(counter[0]) * u64::from(MULTIPLIERS[0]);
        let odd = u64::from(counter[2]) * u64::from(MULTIPLIERS[1]);
        counter = [
            (odd >> 32) as u32 ^ counter[1] ^ key[0],
            odd as u32,
            (even >> 32) as u32 ^ counter[3] ^ key[1],
            even as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_known_answers() {
        let answers = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in answers {
            assert_eq!(philox(counter, key), answer);
        }
    }

    #[test]
    fn counter_and_key_are_laid_out_as_documented() {
        let (seed, position, token) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0x7654_3210);
        let words = philox([0x7654_3210, 0, 0x7654_3210, 0xfedc_ba98], [0x89ab_cdef, 0x0123_4567]);
        let expected = (u64::from(words[0]) * (1 << 32) + u64::from(words[1])) / (1 << 12);
        assert_eq!(uniform_bits(seed, position, token), expected);
    }

    #[test]
    fn the_noise_is_finite_and_monotone_at_the_ends() {
        let top = (1u64 << UNIFORM_BITS) - 1;
        let ends = [0, 1, top / 2, top - 1, top].map(gumbel);
        assert!(ends.is_sorted_by(|a, b| a < b), "{ends:?}");
        assert!((ends[0] - -(53.0 * std::f64::consts::LN_2).ln()).abs() < 1e-12);
        assert!((ends[4] - 53.0 * std::f64::consts::LN_2).abs() < 1e-12);
    }

    #[test]
    fn the_ceiling_is_above_the_noise_and_not_far() {
        let top = (1u64 << UNIFORM_BITS) - 1;
        let powers = (0..UNIFORM_BITS).flat_map(|bit| [1u64 << bit, top - (1 << bit), top >> bit]);
        let drawn = (0..100_000).map(|position| uniform_bits(7, position, 3));
        for bits in powers.chain(drawn) {
            assert!(ceiling(bits) > gumbel(bits), "{bits:#x}");
            assert!(bits < top / 2 || ceiling(bits) < gumbel(bits) + 1.1, "{bits:#x}");
        }
    }

    #[test]
    fn leaving_out_hopeless_candidates_changes_no_draw() {
        let candidates: Vec<Candidate> =
            (0..500).map(|id| Candidate { logit: ((id * 37) % 101) as f32 / 4.0, id }).collect();
        for position in 0..2_000 {
            for temperature in [0.3, 1.0, 20.0] {
                let score = |c: &Candidate| {
                    f64::from(c.logit) / f64::from(temperature) + gumbel(uniform_bits(5, position, c.id))
                };
                let plain = candidates.iter().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap();
                assert_eq!(draw(&candidates, temperature, 5, position), plain.id);
            }
        }
    }

    #[test]
    fn the_order_of_the_candidates_does_not_matter() {
        let mut candidates: Vec<Candidate> = (0..64).map(|id| Candidate { logit: (id % 5) as f32, id }).collect();
        for position in 0..500 {
            let token = draw(&candidates, 1.0, 1, position);
            candidates.reverse();
            assert_eq!(draw(&candidates, 1.0, 1, position), token);
            candidates.rotate_left(7);
        }
    }

    #[test]
    fn equal_scores_go_to_the_lowest_id() {
        // So far from zero that adding the noise changes nothing.
        let candidates = [9, 4, 6].map(|id| Candidate { logit: 3e38, id });
        for position in 0..100 {
            assert_eq!(draw(&candidates, 1.0, 3, position), 4);
        }
    }

    #[test]
    fn a_random_seed_is_resolved_to_a_new_one_each_time() {
        assert_eq!(resolve_seed(42), 42);
        let seeds: std::collections::HashSet<u64> = (0..1000).map(|_| resolve_seed(SEED_RANDOM)).collect();
        assert_eq!(seeds.len(), 1000);
        assert!(!seeds.contains(&SEED_RANDOM));
    }
}
