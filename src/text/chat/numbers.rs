//! Attributes and methods of numbers.

use super::budget::{Budget, failure};
use super::heap::Text;
use super::integer;
use super::value::Value;
use crate::error::Result;
use num_bigint::BigInt;

/// An attribute of a number that is no method.
pub(super) fn attribute(budget: &Budget, number: &Value, name: &str) -> Result<Option<Value>> {
    let is_float = matches!(number, Value::Float(_));
    Ok(match name {
        "real" => Some(itself(budget, number)?),
        "imag" => Some(if is_float { Value::Float(0.0) } else { Value::Int(0) }),
        "numerator" if !is_float => Some(itself(budget, number)?),
        "denominator" if !is_float => Some(Value::Int(1)),
        _ => None,
    })
}

/// The number, of which a boolean is one or zero.
fn itself(budget: &Budget, number: &Value) -> Result<Value> {
    match number.as_big() {
        Some(integer) => integer::value(budget, integer.into_owned()),
        None => Ok(number.clone()),
    }
}

/// `number.name()`
pub(super) fn method(budget: &Budget, number: &Value, name: &str) -> Result<Value> {
    match (name, number, number.as_big()) {
        ("conjugate", ..) => itself(budget, number),
        ("bit_length", _, Some(integer)) => Ok(Value::Int(integer.bits().into())),
        ("bit_count", _, Some(integer)) => Ok(Value::Int(integer.magnitude().count_ones().into())),
        ("as_integer_ratio", _, Some(_)) => Value::pair(budget, itself(budget, number)?, Value::Int(1)),
        ("as_integer_ratio", Value::Float(float), _) => float_ratio(budget, *float),
        ("is_integer", Value::Float(float), _) => Ok(Value::Bool(float.is_finite() && float.fract() == 0.0)),
        ("hex", Value::Float(float), _) => hexadecimal(budget, *float),
        _ => failure(format!("'{}' object has no method '{name}'", number.type_name())),
    }
}

/// A float as a fraction in its lowest terms.
fn float_ratio(budget: &Budget, float: f64) -> Result<Value> {
    if !float.is_finite() {
        return failure("a number that is not finite is no ratio of integers");
    }
    // Doubling is exact until the number is whole, which takes no more steps than a float has places behind its point.
    let (mut scaled, mut power) = (float, 0u32);
    while scaled.fract() != 0.0 {
        scaled *= 2.0;
        power += 1;
    }
    budget.spend(1 + u64::from(power) / 16)?;
    let denominator = integer::value(budget, BigInt::from(1) << power)?;
    Value::pair(budget, integer::value(budget, integer::whole(scaled))?, denominator)
}

/// A float in base 16, as `float.hex` writes it.
fn hexadecimal(budget: &Budget, float: f64) -> Result<Value> {
    if !float.is_finite() {
        return Value::text(budget, &super::show::float(float));
    }
    let bits = float.abs().to_bits();
    let (exponent, fraction) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
    let mut out = Text::new(budget);
    out.push(if float.is_sign_negative() { "-" } else { "" })?;
    out.push(&match (exponent, fraction) {
        (0, 0) => "0x0.0p+0".to_owned(),
        (0, _) => format!("0x0.{fraction:013x}p-1022"),
        _ => format!("0x1.{fraction:013x}p{:+}", exponent - 1_023),
    })?;
    Ok(out.value())
}
