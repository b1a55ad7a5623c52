//! The exponential function.

use crate::backend::cpu::simd::vector::Simd;

/// Coefficients of r^2 to r^6: least relative error on [-ln 2 / 2, ln 2 / 2] (Remez exchange), 4e-9 as rounded here.
const POLYNOMIAL: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_71, 0.001_381_461_3];
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// exp(x) to within 1.02 ulp, subnormal results included; 0 and infinity beyond their range, NaN for NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2), then 2^n times a polynomial in r.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // The operand order keeps NaN.
    let x = s.min(s.splat(89.0), s.max(s.splat(-104.5), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let minus_n = s.mul(s.to_float(n), s.splat(-1.0));
    let r = s.fma(minus_n, s.splat(LN2_HIGH), x);
    let r = s.fma(minus_n, s.splat(LN2_LOW), r);
    let mut p = s.splat(POLYNOMIAL[4]);
    p = s.fma(p, r, s.splat(POLYNOMIAL[3]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[2]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[1]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[0]));
    // One is added last: what is added to it is smaller, and so is its rounding.
    let p = s.add(s.splat(1.0), s.fma(s.mul(r, r), p, r));
    // Two factors, because 2^n alone would leave the range before the product does.
    let half = s.sar(n, 1);
    let rest = s.add_int(n, s.mul_int(half, s.splat_int(-1)));
    s.mul(s.mul(p, power_of_two(s, half)), power_of_two(s, rest))
}

#[inline(always)]
fn power_of_two<S: Simd>(s: S, n: S::I) -> S::F {
    s.as_float(s.shl(s.add_int(n, s.splat_int(127)), 23))
}
