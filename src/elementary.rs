//! Exponential, logarithm, power, sine and cosine with one result everywhere.
//!
//! The C library's versions differ from one system to the next and from the GPU's, and a token must not. The functions here
//! are power series over additions, multiplications and one division in binary64, each rounded to nearest; that, and the order
//! written down here, is the definition. An implementation elsewhere must not fuse a multiplication with an addition
//! (`--fmad=false`, or the `_rn` intrinsics). The error stays below two units in the last place.
//!
//! They cover what the library needs, no more: [`exp`] for arguments up to zero, [`ln`] for positive normal numbers, [`sin_cos`] for angles of
//! positions; [`pow`] for all numbers, whose result is the nearest one but for cases too rare to be met; and [`fma()`], which is exact.

pub(crate) mod fma;
mod power;

pub use fma::fma;
pub use power::pow;

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, LOG2_E, TAU};

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

/// pi / 2 in four parts. The first three have 21 bits each, so that their products with an integer below 2^32 are exact.
const HALF_PI: [f64; 4] = [
    f64::from_bits(0x3ff9_21fb_0000_0000),
    f64::from_bits(0x3e95_110c_0000_0000),
    f64::from_bits(0xbd47_3dcc_0000_0000),
    f64::from_bits(0x3bf8_98cc_5170_1b84),
];

/// Up to here an angle loses nothing when multiples of pi / 2 are taken off.
const LARGEST_ANGLE: f64 = 4_294_967_296.0;

/// Factors of x^17 down to x^3 in the sine.
const SIN_SERIES: [f64; 8] = [
    1.0 / 355_687_428_096_000.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 39_916_800.0,
    1.0 / 362_880.0,
    -1.0 / 5_040.0,
    1.0 / 120.0,
    -1.0 / 6.0,
];

/// Factors of x^18 down to x^4 in the cosine.
const COS_SERIES: [f64; 8] = [
    -1.0 / 6_402_373_705_728_000.0,
    1.0 / 20_922_789_888_000.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 479_001_600.0,
    -1.0 / 3_628_800.0,
    1.0 / 40_320.0,
    -1.0 / 720.0,
    1.0 / 24.0,
];

/// e^x for x at most zero; exactly 1 at zero, exactly 0 below -708, NaN for NaN.
///
/// x = k ln 2 + r with k the integer nearest to x / ln 2, then the Taylor series of e^r to r^13 by Horner's rule, and the
/// exponent moved by k.
#[inline]
pub fn exp(x: f64) -> f64 {
    debug_assert!(x.is_nan() || x <= 0.0);
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

/// Sine and cosine of an angle in radians, within 2^-52; beyond 2^32, of what is left when multiples of the number nearest to 2 pi are taken off.
///
/// x = n pi / 2 + r with n the integer nearest to x / (pi / 2), then the Taylor series of r to r^17 and r^18 by Horner's rule, exchanged and negated
/// as the last two bits of n say.
#[inline]
pub fn sin_cos(x: f64) -> (f64, f64) {
    // The remainder of a division is exact by its definition, so the C library's is everybody's.
    let x = if x.abs() < LARGEST_ANGLE { x } else { x % TAU };
    let shifted = x * FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = ((x - n * HALF_PI[0]) - n * HALF_PI[1] - n * HALF_PI[2]) - n * HALF_PI[3];
    let z = r * r;
    let tail = |series: &[f64]| series.iter().fold(0.0, |sum, term| sum * z + term);
    let sin = r + r * (z * tail(&SIN_SERIES));
    let cos = 1.0 - (0.5 * z - z * (z * tail(&COS_SERIES)));
    match shifted.to_bits() & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
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

    #[test]
    fn sine_and_cosine_are_near_the_c_librarys_at_every_size() {
        let mut different = 0;
        for step in 0..400_000u64 {
            // Every exponent from 2^-20 to 2^31, with fractions spread evenly.
            let fraction = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64;
            let x = (1.0 + fraction) * f64::powi(2.0, (step % 52) as i32 - 20);
            let ((sin, cos), (other_sin, other_cos)) = (sin_cos(x), x.sin_cos());
            for (own, other) in [(sin, other_sin), (cos, other_cos)] {
                assert!((own - other).abs() <= f64::EPSILON, "{x}: {own} and {other}");
                assert!(ulps(own, other) <= 4 || other.abs() < 1e-3, "{x}: {own} and {other}");
                different += usize::from(own as f32 != other as f32);
            }
        }
        assert!(different <= 8, "{different} of 800,000 differ as singles");
    }

    #[test]
    fn sine_and_cosine_have_the_bits_of_the_definition() {
        for (x, sin, cos) in [
            (0.0, 0x0000_0000_0000_0000, 0x3ff0_0000_0000_0000),
            (1.0, 0x3fea_ed54_8f09_0cee, 0x3fe1_4a28_0fb5_068c),
            (2.0, 0x3fed_18f6_ead1_b446, 0xbfda_a226_5753_7205),
            (3.0, 0x3fc2_1038_6db6_d55b, 0xbfef_ae04_be85_e5d2),
            (123456.789, 0xbfef_f50e_60ab_53f9, 0x3faa_74d2_7c41_b22a),
            (4294967295.5, 0x3f94_3d3e_0a10_72f3, 0xbfef_fe66_5569_837f),
        ] {
            let (own_sin, own_cos) = sin_cos(x);
            assert_eq!((own_sin.to_bits(), own_cos.to_bits()), (sin, cos), "{x}");
        }
    }

    #[test]
    fn angles_beyond_all_positions_have_a_sine_too() {
        for x in [4_294_967_296.0, 1e15, 1e300, -1e15] {
            let (sin, cos) = sin_cos(x);
            assert!((sin * sin + cos * cos - 1.0).abs() < 1e-14, "{x}: {sin}, {cos}");
        }
        assert!(sin_cos(f64::INFINITY).0.is_nan() && sin_cos(f64::NAN).1.is_nan() && exp(f64::NAN).is_nan());
    }
}
