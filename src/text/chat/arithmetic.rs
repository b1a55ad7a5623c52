//! Arithmetic of numbers, as Python defines it.

use super::budget::{Budget, failure};
use super::integer;
use super::operators::{POWERS, PRODUCTS, SUMS};
use super::tree::BinOpKind;
use super::value::Value;
use crate::elementary::pow;
use crate::error::Result;
use num_bigint::{BigInt, Sign};

/// Steps of work for a power of floats.
const POWER_STEPS: u64 = 8;

fn sign(op: BinOpKind) -> &'static str {
    SUMS.iter().chain(&PRODUCTS).chain(&POWERS).find(|(_, other)| *other == op).map_or("", |(sign, _)| sign)
}

/// The error that an operator takes no such values.
pub(super) fn unsupported(op: BinOpKind, left: &Value, right: &Value) -> Result<Value> {
    left.defined()?;
    right.defined()?;
    let (left, right) = (left.type_name(), right.type_name());
    failure(format!("unsupported operand type(s) for {}: '{left}' and '{right}'", sign(op)))
}

/// `left op right` for numbers.
pub(super) fn arithmetic(budget: &Budget, op: BinOpKind, left: &Value, right: &Value) -> Result<Value> {
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int())
        && let Some(result) = integers(budget, op, a, b)
    {
        return result;
    }
    if let (Some(a), Some(b)) = (left.as_big(), right.as_big()) {
        return large_integers(budget, op, &a, &b);
    }
    let (Some(a), Some(b)) = (finite(left)?, finite(right)?) else { return unsupported(op, left, right) };
    if b == 0.0 && matches!(op, BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem) {
        return failure("division by zero");
    }
    if op == BinOpKind::Pow {
        return power(budget, a, b);
    }
    Ok(Value::Float(match op {
        BinOpKind::Add => a + b,
        BinOpKind::Sub => a - b,
        BinOpKind::Mul => a * b,
        BinOpKind::Div => a / b,
        BinOpKind::FloorDiv => floored(a, b),
        _ => remainder(a, b),
    }))
}

/// `a % b`, which has the sign of `b`.
fn remainder(a: f64, b: f64) -> f64 {
    let rest = a % b;
    match rest == 0.0 {
        true => 0f64.copysign(b),
        false if (rest < 0.0) != (b < 0.0) => rest + b,
        false => rest,
    }
}

/// `a // b`: what is left when the rest is taken off is a multiple of `b` but for its rounding.
fn floored(a: f64, b: f64) -> f64 {
    let rest = a % b;
    let turned = rest != 0.0 && (rest < 0.0) != (b < 0.0);
    let quotient = (a - rest) / b - f64::from(u8::from(turned));
    let whole = quotient.floor() + f64::from(u8::from(quotient - quotient.floor() > 0.5));
    if quotient == 0.0 { 0f64.copysign(a / b) } else { whole }
}

fn power(budget: &Budget, a: f64, b: f64) -> Result<Value> {
    budget.spend(POWER_STEPS)?;
    if a == 0.0 && b < 0.0 {
        return failure("0.0 cannot be raised to a negative power");
    }
    let result = pow(a, b);
    if result.is_nan() && !a.is_nan() && !b.is_nan() {
        return failure(format!("{a} ** {b} is no real number"));
    }
    if result.is_infinite() && a.is_finite() && b.is_finite() {
        return failure(format!("the result of {a} ** {b} is too large"));
    }
    Ok(Value::Float(result))
}

/// The number of a value, if it is one; an integer must not be beyond all floats.
pub(super) fn finite(value: &Value) -> Result<Option<f64>> {
    match value.as_float() {
        Some(float) if float.is_infinite() && !matches!(value, Value::Float(_)) => {
            failure("int too large to convert to float")
        }
        float => Ok(float),
    }
}

/// Largest integers up to which all are floats.
const EXACT: u128 = 1 << 53;

/// `a op b`, if 128 bits suffice.
fn integers(budget: &Budget, op: BinOpKind, a: i128, b: i128) -> Option<Result<Value>> {
    if b == 0 && matches!(op, BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem) {
        return Some(failure(if op == BinOpKind::Div {
            "division by zero"
        } else {
            "integer division or modulo by zero"
        }));
    }
    let floored = |quotient: i128| if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient };
    let result = match op {
        BinOpKind::Add => a.checked_add(b),
        BinOpKind::Sub => a.checked_sub(b),
        BinOpKind::Mul => a.checked_mul(b),
        BinOpKind::Div if a.unsigned_abs() <= EXACT && b.unsigned_abs() <= EXACT => {
            return Some(Ok(Value::Float(a as f64 / b as f64)));
        }
        BinOpKind::Div => None,
        BinOpKind::FloorDiv => a.checked_div(b).map(floored),
        BinOpKind::Rem => {
            Some(a.wrapping_rem(b)).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        BinOpKind::Pow if b < 0 => return Some(power(budget, a as f64, b as f64)),
        BinOpKind::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    result.map(|result| Ok(Value::Int(result)))
}

/// `a op b` for integers of any size.
fn large_integers(budget: &Budget, op: BinOpKind, a: &BigInt, b: &BigInt) -> Result<Value> {
    match op {
        BinOpKind::Div => match integer::divided(budget, a, b)? {
            Some(ratio) => Ok(Value::Float(ratio)),
            None if b.sign() == Sign::NoSign => failure("division by zero"),
            None => failure("integer division result too large for a float"),
        },
        BinOpKind::FloorDiv | BinOpKind::Rem if b.sign() == Sign::NoSign => {
            failure("integer division or modulo by zero")
        }
        BinOpKind::Pow if b.sign() == Sign::Minus => match (integer::float(a), integer::float(b)) {
            (Some(a), Some(b)) => power(budget, a, b),
            _ => failure("int too large to convert to float"),
        },
        _ => integer::arithmetic(budget, op, a, b),
    }
}

/// `-value`
pub(super) fn negate(budget: &Budget, value: &Value) -> Result<Value> {
    match (value.as_int().and_then(i128::checked_neg), value.as_big(), value) {
        (Some(number), ..) => Ok(Value::Int(number)),
        (None, Some(number), _) => integer::value(budget, -&*number),
        (None, None, Value::Float(number)) => Ok(Value::Float(-number)),
        _ => {
            value.defined()?;
            failure(format!("bad operand type for unary -: '{}'", value.type_name()))
        }
    }
}

/// `+value`
pub(super) fn posit(value: &Value) -> Result<Value> {
    match (value.as_int(), value) {
        (Some(number), _) => Ok(Value::Int(number)),
        (None, Value::Float(_) | Value::Large(_)) => Ok(value.clone()),
        _ => {
            value.defined()?;
            failure(format!("bad operand type for unary +: '{}'", value.type_name()))
        }
    }
}
