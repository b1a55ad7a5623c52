//! Powers: logarithm and exponential of numbers in two parts, so that rounding at the end is all that is lost.
//!
//! A pair is a sum of two floats that are rounded to nearest, the second of which holds what the first one lost: about 104 bits.
//! The error-free sums and products are those of Dekker ("A floating-point technique for extending the available precision", 1971)
//! and Knuth, which need nothing but additions and multiplications.

use std::f64::consts::LOG2_E;

/// A number as the sum of two floats.
#[derive(Clone, Copy)]
struct Pair(f64, f64);

/// ln 2.
const LN2: Pair = Pair(f64::from_bits(0x3fe6_2e42_fefa_39ef), f64::from_bits(0x3c7a_bc9e_3b39_803f));
/// Terms of the series of the inverse hyperbolic tangent for arguments up to 0.172: the next one is below 2^-110.
const ATANH_TERMS: u32 = 22;
/// Terms of the series of the exponential for arguments up to 0.35.
const EXP_TERMS: u32 = 27;
/// Splits a float of 53 bits into two of 26: 2^27 + 1.
const SPLIT: f64 = 134_217_729.0;
/// From here on e^x is beyond all floats, and below the negative of it nothing.
const LARGEST: f64 = 746.0;

/// `a + b`
fn sum(a: f64, b: f64) -> Pair {
    let high = a + b;
    let part = high - a;
    Pair(high, (a - (high - part)) + (b - part))
}

/// `a * b`
fn product(a: f64, b: f64) -> Pair {
    let halves = |x: f64| {
        let high = SPLIT * x - (SPLIT * x - x);
        (high, x - high)
    };
    let ((a_high, a_low), (b_high, b_low)) = (halves(a), halves(b));
    let high = a * b;
    Pair(high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low)
}

impl Pair {
    fn plus(self, other: Pair) -> Pair {
        let (high, low) = (sum(self.0, other.0), sum(self.1, other.1));
        let high = sum(high.0, high.1 + low.0);
        sum(high.0, high.1 + low.1)
    }

    fn times(self, other: Pair) -> Pair {
        let high = product(self.0, other.0);
        sum(high.0, high.1 + (self.0 * other.1 + self.1 * other.0))
    }

    fn over(self, other: Pair) -> Pair {
        let minus = |from: Pair, quotient: f64| {
            let part = other.times(Pair(-quotient, 0.0));
            from.plus(part)
        };
        let first = self.0 / other.0;
        let rest = minus(self, first);
        let second = rest.0 / other.0;
        let third = minus(rest, second).0 / other.0;
        let high = sum(first, second);
        sum(high.0, high.1 + third)
    }
}

/// 2 to a power that a normal number has.
fn two_to(power: i32) -> f64 {
    f64::from_bits(((power + 1_023) as u64) << 52)
}

/// The natural logarithm of a positive finite number.
///
/// x = 2^k m with m from about sqrt(1/2) to sqrt(2), and ln m = 2 atanh(s) with s = (m - 1) / (m + 1) by its series.
fn ln(x: f64) -> Pair {
    let (x, down) = if x.is_normal() { (x, 0) } else { (x * two_to(54), 54) };
    let above = x.to_bits().wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits());
    let exponent = (above as i64) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub((exponent as u64) << 52));
    let s = Pair(m - 1.0, 0.0).over(sum(m, 1.0));
    let z = s.times(s);
    let term = |index: u32| Pair(1.0, 0.0).over(Pair(f64::from(2 * index + 1), 0.0));
    let series = (0..ATANH_TERMS).rev().fold(Pair(0.0, 0.0), |sum, index| sum.times(z).plus(term(index)));
    let twice = Pair(2.0 * s.0, 2.0 * s.1);
    Pair((exponent - down) as f64, 0.0).times(LN2).plus(twice.times(series))
}

/// e^x rounded once.
///
/// x = n ln 2 + r with n the integer nearest to x / ln 2, and e^r by its series.
fn exp(x: Pair) -> f64 {
    let n = (x.0 * LOG2_E).round_ties_even();
    let r = x.plus(Pair(-n, 0.0).times(LN2));
    let one = Pair(1.0, 0.0);
    let value = (1..=EXP_TERMS).rev().fold(one, |sum, index| sum.times(r).over(Pair(f64::from(index), 0.0)).plus(one));
    let n = n as i32;
    if n > 1_024 {
        return f64::INFINITY;
    }
    // In two steps, because neither 2^1024 nor the least powers are normal numbers.
    let scaled = |value: f64| value * two_to(n / 2) * two_to(n - n / 2);
    if n > -1_022 || (n == -1_022 && value.0 >= 1.0) {
        return scaled(value.0);
    }
    // What is added leaves no more bits than the small result has room for.
    let room = two_to(-1_022 - n);
    let rounded = sum(room, value.0);
    let rounded = rounded.0 + (rounded.1 + value.1);
    scaled(rounded - room)
}

/// `base` to the power of `exponent`, the float nearest to it in all but the rarest cases, where it is a neighbour of that; NaN where
/// the result is no real number. What is infinite, zero or negative is as IEEE 754 has it.
pub fn pow(base: f64, exponent: f64) -> f64 {
    if exponent == 0.0 || base == 1.0 {
        return 1.0;
    }
    if base.is_nan() || exponent.is_nan() {
        return f64::NAN;
    }
    let is_whole = exponent.fract() == 0.0;
    let is_odd = is_whole && (exponent * 0.5).fract() != 0.0;
    let sign = if is_odd && base.is_sign_negative() { -1.0 } else { 1.0 };
    let size = base.abs();
    if size == 0.0 || size.is_infinite() || exponent.is_infinite() {
        let grows = if exponent.is_infinite() && size == 1.0 { return 1.0 } else { (size > 1.0) == (exponent > 0.0) };
        return sign * if grows { f64::INFINITY } else { 0.0 };
    }
    if base < 0.0 && !is_whole {
        return f64::NAN;
    }
    let logarithm = ln(size);
    let rough = exponent * logarithm.0;
    sign * match rough {
        rough if rough > LARGEST => f64::INFINITY,
        rough if rough < -LARGEST => 0.0,
        // e^x is 1 to the last bit.
        rough if rough.abs() < f64::EPSILON / 8.0 => 1.0,
        _ => exp(Pair(exponent, 0.0).times(logarithm)),
    }
}

#[cfg(test)]
mod tests {
    use super::pow;

    /// Powers that `tests/golden/make_pow.py` has calculated with many digits and rounded once: the bits of base, exponent, result.
    #[test]
    fn powers_are_the_nearest_numbers() {
        let golden = include_str!("../../tests/golden/pow.txt");
        let mut cases = 0;
        for line in golden.lines() {
            let bits: Vec<f64> =
                line.split(' ').map(|bits| f64::from_bits(u64::from_str_radix(bits, 16).unwrap())).collect();
            let [base, exponent, nearest] = bits[..] else { panic!("{line}") };
            let own = pow(base, exponent);
            assert_eq!(own.to_bits(), nearest.to_bits(), "{base:e} ** {exponent:e}: {own:e} instead of {nearest:e}");
            cases += 1;
        }
        assert!(cases > 2_000, "{cases} cases");
    }

    #[test]
    fn what_has_no_end_no_size_or_no_sign_is_as_the_standard_says() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let values =
            [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 2.5, -2.5, 1e300, -1e300, inf, -inf, nan, 5e-324];
        for base in values {
            for exponent in values {
                let (own, other) = (pow(base, exponent), base.powf(exponent));
                let same = own.to_bits() == other.to_bits() || (own.is_nan() && other.is_nan());
                // The C library's may be a neighbour, where the result is no whole number.
                let near = own.is_finite() && (own - other).abs() <= own.abs() * f64::EPSILON;
                assert!(same || near, "{base:e} ** {exponent:e}: {own:e} and {other:e}");
            }
        }
    }
}
