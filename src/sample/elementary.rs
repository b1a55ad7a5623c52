//! Exponential and logarithm with one result everywhere.
//!
//! The C library's versions differ from one system to the next and from the GPU's, and a token must not. Both functions here
//! are power series over additions, multiplications and one division in binary64, each rounded to nearest; that, and the order
//! written down here, is the definition. An implementation elsewhere must not fuse a multiplication with an addition
//! (`--fmad=false`, or the `_rn` intrinsics). The error stays below two units in the last place.
//!
//! They cover what sampling needs, no more: [`exp`] for arguments up to zero, [`ln`] for positive normal numbers.

use std::f64::consts::{FRAC_1_SQRT_2, LOG2_E};

/// ln 2 in two parts. The last 24 bits of the first are zero, so that its product with an exponent is exact.
const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fe00_0000);
const LN2_LOW: f64 = f64::from_bits(0x3e1f_473d_e6af_278f);

/// Adding it leaves a small number rounded to an integer (ties to even) in the low bits of the significand.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// Below this the result is zero: e^x would leave the range of normal numbers.
const EXP_MIN: f64 = -708.0;

/// 1/n! from n = 13 down to n = 2.
const EXP_SERIES: [f64; 12] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
];

/// 1/n for the odd n from 23 down to 3: the series of the inverse hyperbolic tangent.
const ATANH_SERIES: [f64; 11] = [
    1.0 / 23.0,
    1.0 / 21.0,
    1.0 / 19.0,
    1.0 / 17.0,
    1.0 / 15.0,
    1.0 / 13.0,
    1.0 / 11.0,
    1.0 / 9.0,
    1.0 / 7.0,
    1.0 / 5.0,
    1.0 / 3.0,
];

/// e^x for x at most zero; exactly 1 at zero, exactly 0 below -708.
///
/// x = k ln 2 + r with k the integer nearest to x / ln 2, then the Taylor series of e^r to r^13 by Horner's rule, and the
/// exponent moved by k.
#[inline]
pub fn exp(x: f64) -> f64 {
    debug_assert!(x <= 0.0);
    let shifted = x * LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (x - k * LN2_HIGH) - k * LN2_LOW;
    let tail = EXP_SERIES.iter().fold(0.0, |sum, term| sum * r + term);
    let value = 1.0 + (r + r * r * tail);
    // The low bits of `shifted` are k in two's complement; above the 12 bits that move they fall off.
    let scaled = f64::from_bits(value.to_bits().wrapping_add(shifted.to_bits() << 52));
    // Chosen last, so that a loop over many arguments has no branch and is vectorised.
    if x < EXP_MIN { 0.0 } else { scaled }
}

/// The natural logarithm of a positive normal number.
///
/// x = 2^k m with m from sqrt(1/2) up to sqrt(2), then ln m = 2 atanh(s) with s = (m - 1) / (m + 1) by its series to s^23.
#[inline]
pub fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    let above = x.to_bits().wrapping_sub(FRAC_1_SQRT_2.to_bits());
    let exponent = (above as i64) >> 52;
    let k = exponent as f64;
    let f = f64::from_bits(x.to_bits().wrapping_sub((exponent as u64) << 52)) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let tail = ATANH_SERIES.iter().fold(0.0, |sum, term| sum * z + term);
    let twice = s + s;
    k * LN2_HIGH + (twice + (twice * (z * tail) + k * LN2_LOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place.
    fn ulps(a: f64, b: f64) -> u64 {
        a.to_bits().abs_diff(b.to_bits())
    }

    #[test]
    fn the_exponential_is_within_two_ulps() {
        for step in 0..700_000 {
            let x = -f64::from(step) * 0.001_000_7;
            assert!(ulps(exp(x), x.exp()) <= 2, "e^{x}: {} and {}", exp(x), x.exp());
        }
    }

    #[test]
    fn the_exponential_is_exact_at_its_ends() {
        assert_eq!(exp(0.0).to_bits(), 1.0f64.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1.0f64.to_bits());
        assert_eq!(exp(-708.1), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert!(exp(-708.0) > 0.0);
    }

    #[test]
    fn the_logarithm_is_within_two_ulps() {
        for step in 1..400_000 {
            let x = f64::from(step) / 400_000.0;
            for x in [x, 1.0 - x * 1e-9, x * 40.0, x * 1e-16, 1e-45 / x] {
                assert!(ulps(ln(x), x.ln()) <= 2, "ln {x}: {} and {}", ln(x), x.ln());
            }
        }
    }

    #[test]
    fn the_logarithm_is_exact_at_one_and_near_it() {
        assert_eq!(ln(1.0), 0.0);
        let below = 1.0 - f64::EPSILON / 2.0;
        assert_eq!(ln(below), below.ln());
        assert_eq!(ln(f64::MIN_POSITIVE), f64::MIN_POSITIVE.ln());
    }
}
