//! A product and a sum of binary32 rounded once, made of operations that round each.
//!
//! Not every C library's `fmaf` is right (mingw-w64's rounds twice). The product of two floats of 24 bits is exact in binary64. The sum is
//! rounded there to odd: where it is not exact, to that neighbour whose last bit is 1. Rounding that to binary32 gives what one rounding
//! gives, subnormal numbers included, as binary64 has more than two bits to spare. Source: Boldo and Melquiond, "Emulation of a FMA and
//! correctly rounded sums: proved algorithms using rounding to odd", 2008; the error of a sum is Knuth's.

/// `a * b + c`, rounded once: the processor's instruction where the target is known to have one, otherwise [`fma_exact`].
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { fma_exact(a, b, c) }
}

/// The same without such an instruction. A NaN is a NaN of any payload.
#[inline(always)]
pub fn fma_exact(a: f32, b: f32, c: f32) -> f32 {
    // No exponent of binary32 numbers, nor of their products, leaves the range of binary64: nothing here overflows or is subnormal.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    // Infinities and NaNs lose NaN, which is neither less nor more.
    let inexact = (lost < 0.0) | (lost > 0.0);
    let bits = sum.to_bits();
    // The neighbour on the side of what was lost: away from zero if that has the sum's sign. Without branches, so that lanes are vectors.
    let to_neighbour = 1 | ((lost.to_bits() ^ bits) as i64 >> 63);
    let moves = i64::from(inexact) & !(bits as i64) & 1;
    f64::from_bits(bits.wrapping_add_signed(to_neighbour & -moves)) as f32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The same by integers of any length: nothing is rounded before the end.
    fn slow(a: f32, b: f32, c: f32) -> f32 {
        use num_bigint::BigInt;
        let parts = |x: f32| {
            let (bits, exponent) = (x.to_bits() & 0x7f_ffff, ((x.to_bits() >> 23) & 0xff) as i32);
            let number = i64::from(if exponent == 0 { bits } else { bits | 0x80_0000 });
            (if x.is_sign_negative() { -number } else { number }, exponent.max(1) - 150)
        };
        let ((a, a_exponent), (b, b_exponent), (c, c_exponent)) = (parts(a), parts(b), parts(c));
        // In units of 2^-298, the smallest product.
        let scaled = |number: BigInt, exponent: i32| number << (exponent + 298) as usize;
        let sum = scaled(BigInt::from(a) * b, a_exponent + b_exponent) + scaled(BigInt::from(c), c_exponent);
        let size = sum.magnitude();
        // The lowest bit that a float of this size has.
        let low = (size.bits() as i64 - 24).max(298 - 149) as u64;
        let (kept, rest) = (size >> low, size - ((size >> low) << low));
        let half = num_bigint::BigUint::from(1u8) << (low - 1);
        let up = rest > half || (rest == half && kept.bit(0));
        let kept = u32::try_from(kept).unwrap() + u32::from(up);
        let magnitude = (f64::from(kept) * 2f64.powi(low as i32 - 298)) as f32;
        if sum.sign() == num_bigint::Sign::Minus { -magnitude } else { magnitude }
    }

    pub(crate) fn same(a: f32, b: f32, c: f32, wanted: f32) {
        let got = fma_exact(a, b, c);
        assert!(
            got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan()),
            "{a:e} * {b:e} + {c:e} is {wanted:e}, not {got:e}"
        );
    }

    /// Calls `f` with triples: of any bits, and of numbers that meet in their exponents, so that ties and cancellations are many.
    pub(crate) fn triples(count: usize, mut f: impl FnMut(f32, f32, f32)) {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let x = (state ^ (state >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            (x >> 32) as u32
        };
        for round in 0..count {
            let [a, b, c] = [next(), next(), next()];
            if round % 2 == 0 {
                f(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
                continue;
            }
            // Fractions of few bits, at either end, and an addend from far above the product to far below.
            let [a, b] = [(a, next()), (b, next())].map(|(bits, choice)| {
                let short = bits & ((1 << (choice % 24)) - 1);
                let fraction = if choice & 32 == 0 { short } else { short << (23 - choice % 24) };
                float(bits >> 31, 40 + (choice >> 8) % 175, fraction)
            });
            let exponent = ((a * b).to_bits() >> 23) & 0xff;
            let exponent = (exponent + next() % 60).saturating_sub(30).min(254);
            f(a, b, float(c >> 31, exponent, c & (u32::MAX << (next() % 24))));
        }
    }

    fn float(sign: u32, exponent: u32, fraction: u32) -> f32 {
        f32::from_bits((sign << 31) | (exponent << 23) | (fraction & 0x7f_ffff))
    }

    #[test]
    fn it_is_what_exact_arithmetic_rounds_to() {
        triples(200_000, |a, b, c| {
            if [a, b, c].into_iter().all(f32::is_finite) {
                let wanted = slow(a, b, c);
                // The sign of a zero is a rule of its own, which the processor's instruction is compared for (`backend::cpu::simd`).
                if wanted != 0.0 {
                    same(a, b, c, wanted);
                } else {
                    assert_eq!(fma_exact(a, b, c), 0.0);
                }
            }
        });
    }

    #[test]
    fn ties_subnormal_results_overflow_and_zeros_are_rounded_once() {
        let ulp = f32::EPSILON;
        // A tie that only the last bit of the product breaks: rounding twice goes the wrong way.
        same(1.0 + ulp, 1.0 + ulp, 2f32.powi(24), 2f32.powi(24) + 2.0);
        same(1.0, 1.0, 2f32.powi(24), 2f32.powi(24));
        same(1.0 - ulp / 2.0, 1.0, 2f32.powi(24), 2f32.powi(24));
        let tiny = f32::from_bits(1);
        same(tiny, 0.5, 0.0, 0.0);
        same(tiny, 0.5 + ulp, 0.0, tiny);
        same(tiny, 0.5, tiny, 2.0 * tiny);
        same(tiny, -0.5, 0.0, -0.0);
        same(f32::MIN_POSITIVE, 1.0, -tiny, f32::MIN_POSITIVE - tiny);
        same(f32::MAX, 1.0, f32::MAX * ulp / 4.0, f32::MAX);
        same(f32::MAX, 1.0, 2f32.powi(103), f32::INFINITY);
        same(f32::MAX, 2.0, -f32::MAX, f32::MAX);
        same(f32::MAX, -f32::MAX, 1.0, f32::NEG_INFINITY);
        same(1.0, -0.0, 0.0, 0.0);
        same(1.0, -0.0, -0.0, -0.0);
        same(3.0, 2.0, -6.0, 0.0);
        same(f32::INFINITY, 2.0, f32::MAX, f32::INFINITY);
        same(f32::INFINITY, 0.0, 1.0, f32::NAN);
        same(f32::INFINITY, 1.0, f32::NEG_INFINITY, f32::NAN);
        same(1.0, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY);
        same(f32::NAN, 1.0, 1.0, f32::NAN);
    }
}
