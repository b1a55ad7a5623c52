//! Integers beyond 128 bits: exact, as Python's are, up to the digits that Python itself reads and writes.
//!
//! What fits into 128 bits is always a [`Value::Int`], so most work never comes here. No number takes more than two
//! kilobytes, and what a calculation takes is paid before it is made.

use super::budget::{Budget, Hold, failure};
use super::tree::BinOpKind;
use super::value::Value;
use crate::error::Result;
use num_bigint::{BigInt, Sign};
use std::borrow::Cow;
use std::ops::Deref;
use std::rc::Rc;

/// Most decimal digits of an integer.
pub(super) const MAX_DIGITS: usize = 4_300;
/// Bits that numbers of so many digits may need.
const MAX_BITS: u64 = 14_285;
/// Bits of a piece that numbers are calculated in.
const PIECE_BITS: u64 = 64;
/// Units of work for multiplying a piece with a piece, as long multiplication and division do.
const PIECE_UNITS: u64 = 3;
/// Units of work for a calculation, beside those for its pieces.
const CALL_UNITS: u64 = 256;

/// An integer that does not fit into 128 bits.
pub(super) struct Large {
    number: BigInt,
    _hold: Hold,
}

impl Deref for Large {
    type Target = BigInt;

    fn deref(&self) -> &BigInt {
        &self.number
    }
}

/// The error that an integer would have too many digits.
pub(super) fn too_large<T>(what: impl std::fmt::Display) -> Result<T> {
    failure(format!("{what} is too large, integers have at most {MAX_DIGITS} digits"))
}

/// The value of a number of any size.
pub(super) fn value(budget: &Budget, number: BigInt) -> Result<Value> {
    if let Ok(small) = i128::try_from(&number) {
        return Ok(Value::Int(small));
    }
    if number.bits() > MAX_BITS {
        return too_large("the number");
    }
    let mut hold = Hold::new(budget);
    hold.counted::<Large>()?;
    hold.block((pieces(&number) * PIECE_BITS / 8) as usize)?;
    Ok(Value::Large(Rc::new(Large { number, _hold: hold })))
}

fn pieces(number: &BigInt) -> u64 {
    number.bits() / PIECE_BITS + 1
}

/// Pays for long multiplication or division, or for writing or reading digits.
fn pay(budget: &Budget, left: u64, right: u64) -> Result<()> {
    budget.work((CALL_UNITS + left * right * PIECE_UNITS) as usize)
}

impl Value {
    /// The integer of an integer of any size, or of a boolean.
    pub(super) fn as_big(&self) -> Option<Cow<'_, BigInt>> {
        match self {
            Value::Large(number) => Some(Cow::Borrowed(&number.number)),
            other => other.as_int().map(|number| Cow::Owned(number.into())),
        }
    }

    /// The same as a position or count; beyond 128 bits it is as good as the last of those.
    pub(super) fn as_position(&self) -> Option<i128> {
        match self {
            Value::Large(number) if number.sign() == Sign::Minus => Some(i128::MIN),
            Value::Large(_) => Some(i128::MAX),
            other => other.as_int(),
        }
    }
}

/// `left op right` for all but the true division.
pub(super) fn arithmetic(budget: &Budget, op: BinOpKind, left: &BigInt, right: &BigInt) -> Result<Value> {
    let (a, b) = (pieces(left), pieces(right));
    let result = match op {
        BinOpKind::Add => left + right,
        BinOpKind::Sub => left - right,
        BinOpKind::Mul => {
            pay(budget, a, b)?;
            left * right
        }
        BinOpKind::Pow => return power(budget, left, right),
        _ => {
            // Two divisions, each with a step for every piece beside those of the multiplication.
            pay(budget, a, 2 * (b + 1))?;
            let (quotient, rest) = (left / right, left % right);
            // The rest of a division has the sign of the number divided, Python's that of the divisor.
            let moves = rest.sign() != Sign::NoSign && rest.sign() != right.sign();
            match op {
                BinOpKind::FloorDiv => quotient - BigInt::from(u8::from(moves)),
                _ if moves => rest + right,
                _ => rest,
            }
        }
    };
    value(budget, result)
}

/// `base ** exponent`, of which the exponent is not negative.
fn power(budget: &Budget, base: &BigInt, exponent: &BigInt) -> Result<Value> {
    if base.magnitude().bits() <= 1 {
        let turns = base.sign() == Sign::Minus && !exponent.bit(0);
        let is_one = exponent.sign() == Sign::NoSign || turns;
        return Ok(if is_one { Value::Int(1) } else { value(budget, base.clone())? });
    }
    let exponent = u32::try_from(exponent).ok().filter(|&e| (base.bits() - 1) * u64::from(e) <= MAX_BITS);
    let Some(exponent) = exponent else { return too_large("the result of **") };
    let pieces = (base.bits() * u64::from(exponent)).div_ceil(PIECE_BITS) + 1;
    pay(budget, pieces, 2 * pieces)?;
    value(budget, base.pow(exponent))
}

/// [`ratio`], paid for.
pub(super) fn divided(budget: &Budget, left: &BigInt, right: &BigInt) -> Result<Option<f64>> {
    let (left_pieces, right_pieces) = (pieces(left), pieces(right));
    pay(budget, left_pieces.max(right_pieces), right_pieces)?;
    Ok(ratio(left, right))
}

/// The float nearest to `left / right`, to the even one if two are as near; nothing when it is beyond all floats, or `right`
/// is zero.
fn ratio(left: &BigInt, right: &BigInt) -> Option<f64> {
    if right.sign() == Sign::NoSign {
        return None;
    }
    // Nothing divided by a negative number is negative too.
    let negative = (left.sign() == Sign::Minus) != (right.sign() == Sign::Minus);
    let (left, right) = (left.magnitude(), right.magnitude());
    if left.bits() == 0 {
        return Some(if negative { -0.0 } else { 0.0 });
    }
    // A quotient of 65 or 66 bits, whose last bit says whether anything follows.
    let shift = left.bits() as i64 - right.bits() as i64 - 65;
    let (left, right) = match shift {
        0.. => (left.clone(), right << shift),
        _ => (left << -shift, right.clone()),
    };
    let rest = &left % &right;
    let quotient = u128::try_from(left / right).ok()? | u128::from(rest.bits() > 0);
    nearest(quotient, shift, negative)
}

/// The float nearest to a number of 65 or 66 bits, of which the last says whether anything follows, times 2 to the power of
/// `shift`; or to any smaller number without a shift.
fn nearest(number: u128, shift: i64, negative: bool) -> Option<f64> {
    let sign = if negative { -1.0 } else { 1.0 };
    let bits = i64::from(128 - number.leading_zeros());
    // The place of the last bit that a float keeps, which is never below the smallest float's.
    let last = (bits + shift - 53).max(-1_074);
    let dropped = last - shift;
    if dropped > 66 {
        return Some(sign * 0.0);
    }
    let (kept, behind, half) = (number >> dropped, number & ((1 << dropped) - 1), 1 << (dropped - 1));
    let up = behind > half || (behind == half && kept & 1 == 1);
    let kept = (kept + u128::from(up)) as f64;
    // Both factors are powers of two, and so is the loss: the product is exact, or infinite.
    let two_to = |power: i64| f64::from_bits(((power + 1_023) as u64) << 52);
    let first = last.clamp(-537, 971);
    let result = kept * two_to(first) * two_to((last - first).clamp(-1_022, 1_023));
    result.is_finite().then_some(sign * result)
}

/// The float nearest to an integer; nothing when it is beyond all floats.
pub(super) fn float(number: &BigInt) -> Option<f64> {
    let (size, negative) = (number.magnitude(), number.sign() == Sign::Minus);
    let shift = size.bits().saturating_sub(65);
    if shift == 0 {
        let size = u128::try_from(size).ok()? as f64;
        return Some(if negative { -size } else { size });
    }
    let follows = size.trailing_zeros().is_some_and(|zeros| zeros < shift);
    nearest(u128::try_from(size >> shift).ok()? | u128::from(follows), shift as i64, negative)
}

/// The integer part of a finite float.
pub(super) fn whole(float: f64) -> BigInt {
    let bits = float.abs().to_bits();
    let exponent = (bits >> 52) as i64;
    let fraction = bits & ((1 << 52) - 1);
    let size = match exponent {
        0 => BigInt::default(),
        _ => match exponent - 1_075 {
            shift @ 0.. => BigInt::from(fraction | 1 << 52) << shift,
            shift => BigInt::from(fraction | 1 << 52) >> -shift,
        },
    };
    if float < 0.0 { -size } else { size }
}

/// The value of digits in a base up to 36, without sign and prefix; nothing when they are too many.
pub(super) fn parsed(budget: &Budget, digits: &str, radix: u32, negative: bool) -> Result<Option<Value>> {
    let sign = if negative { "-" } else { "" };
    if digits.len() < 38
        && let Ok(number) = i128::from_str_radix(&format!("{sign}{digits}"), radix)
    {
        return Ok(Some(Value::Int(number)));
    }
    let digits = digits.trim_start_matches('0');
    let bits = digits.len() as u64 * u64::from(radix.ilog2());
    if bits > MAX_BITS || (radix == 10 && digits.len() > MAX_DIGITS) {
        return Ok(None);
    }
    let pieces = digits.len() as u64 / 10 + 1;
    pay(budget, pieces, pieces)?;
    match BigInt::parse_bytes(digits.as_bytes(), radix) {
        Some(number) if number.bits() <= MAX_BITS => value(budget, if negative { -number } else { number }).map(Some),
        _ => Ok(Some(Value::Int(0)).filter(|_| digits.is_empty())),
    }
}

/// Whether an integer is negative, and the digits of its size in base 2, 8, 10 or 16; none for what is no integer.
pub(super) fn digits(budget: &Budget, value: &Value, radix: u32) -> Result<(bool, String)> {
    if let Some(number) = value.as_int() {
        let size = number.unsigned_abs();
        let digits = match radix {
            2 => format!("{size:b}"),
            8 => format!("{size:o}"),
            16 => format!("{size:x}"),
            _ => size.to_string(),
        };
        return Ok((number < 0, digits));
    }
    let Some(number) = value.as_big() else { return Ok((false, String::new())) };
    pay(budget, pieces(&number), pieces(&number))?;
    Ok((number.sign() == Sign::Minus, number.magnitude().to_str_radix(radix)))
}

/// 10 to the power of `zeros`, which is at most [`MAX_DIGITS`].
pub(super) fn power_of_ten(budget: &Budget, zeros: u32) -> Result<BigInt> {
    let pieces = u64::from(zeros) / 19 + 1;
    pay(budget, pieces, pieces)?;
    Ok(BigInt::from(10).pow(zeros))
}

/// `number` to the nearest multiple of 10 to the power of `zeros`, to the even one if two are as near; `more` says that
/// something behind the point follows.
pub(super) fn rounded(budget: &Budget, number: &BigInt, zeros: u32, more: bool) -> Result<BigInt> {
    let unit = power_of_ten(budget, zeros.min(MAX_DIGITS as u32))?;
    pay(budget, pieces(number), pieces(&unit))?;
    let (quotient, rest) = (number.magnitude() / unit.magnitude(), number.magnitude() % unit.magnitude());
    let twice = rest * 2u8;
    let up = match twice.cmp(unit.magnitude()) {
        std::cmp::Ordering::Equal => more || quotient.bit(0),
        order => order == std::cmp::Ordering::Greater,
    };
    let size = BigInt::from(quotient + u8::from(up)) * unit;
    Ok(if number.sign() == Sign::Minus { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_floats_where_floats_are_exact() {
        let mut state = 3u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as i64 * if state & 1024 == 0 { 1 } else { -1 }
        };
        for round in 0..200_000 {
            let (a, b) = (random() >> (round % 50), random() >> (round / 7 % 50));
            if b != 0 {
                assert_eq!(ratio(&a.into(), &b.into()), Some(a as f64 / b as f64), "{a} / {b}");
            }
        }
    }

    #[test]
    fn integers_become_floats_and_floats_integers_as_the_language_converts_them() {
        for shift in 0..127 {
            for number in [1i128 << shift, (1 << shift) + 1, (1 << shift) - 1, (3 << shift >> 1) + (1 << shift >> 53)] {
                for number in [number, -number] {
                    assert_eq!(float(&number.into()), Some(number as f64), "{number}");
                    assert_eq!(whole(number as f64 / 3.0), BigInt::from((number as f64 / 3.0) as i128), "{number}");
                }
            }
        }
        let huge = whole(f64::MAX);
        assert_eq!(float(&huge), Some(f64::MAX));
        assert_eq!(float(&(&huge + (BigInt::from(1) << 969))), Some(f64::MAX));
        assert_eq!(float(&(&huge + (BigInt::from(1) << 970))), None);
        let tiny = |bits: i32| ratio(&BigInt::from(3), &(BigInt::from(1) << bits));
        assert_eq!(tiny(1_075), Some(f64::from_bits(2)), "one and a half of the smallest: to the even one");
        assert_eq!(tiny(1_076), Some(f64::from_bits(1)));
        assert_eq!(tiny(1_077), Some(0.0));
        assert_eq!(tiny(1_024), Some(3.0 * 2f64.powi(-1_023) / 2.0));
    }
}
