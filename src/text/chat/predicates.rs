//! What may stand behind `is`.

use super::arguments::Arguments;
use super::budget::{Budget, Cost, failure};
use super::characters;
use super::filters;
use super::operators::{binary, compare, contains, equal};
use super::show::display;
use super::tree::{BinOpKind, CompareOpKind};
use super::value::Value;
use crate::error::{Excerpt, Result};

/// Units of work for each byte of a text whose characters are asked for their case.
const CASE_UNITS: usize = 6;

type Test = fn(&Budget, &Value, &Arguments) -> Result<bool>;

/// All tests that are no comparisons in the order of their names, with what one pays for its operands.
pub(super) const TESTS: [(&str, Cost, Test); 24] = [
    ("boolean", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Bool(_)))),
    ("callable", Cost::Constant, |_, value, _| {
        let functions = matches!(value, Value::Macro(_) | Value::Block(_) | Value::Function(_) | Value::Method(_));
        Ok(functions || matches!(value, Value::Joiner(_) | Value::Loop(_) | Value::Undefined(_)))
    }),
    ("defined", Cost::Constant, |_, value, _| Ok(!matches!(value, Value::Undefined(_)))),
    ("divisibleby", Cost::Constant, divisible),
    ("escaped", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Text(text) if text.is_markup()))),
    ("even", Cost::Constant, |budget, value, _| leaves(budget, value, &Value::Int(2), 0)),
    ("false", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Bool(false)))),
    ("filter", Cost::Constant, |_, value, _| Ok(value.as_str().is_some_and(filters::exists))),
    ("float", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Float(_)))),
    ("in", Cost::Constant, |budget, value, arguments| contains(budget, arguments.required(0, "other")?, value)),
    ("integer", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Int(_) | Value::Large(_)))),
    ("iterable", Cost::Constant, |_, value, _| Ok(value.is_iterable())),
    ("lower", Cost::Operands, |budget, value, _| is_of_case(budget, value, "islower")),
    ("mapping", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Map(_)))),
    ("none", Cost::Constant, |_, value, _| Ok(matches!(value, Value::None))),
    ("number", Cost::Constant, |_, value, _| Ok(value.as_float().is_some())),
    ("odd", Cost::Constant, |budget, value, _| leaves(budget, value, &Value::Int(2), 1)),
    ("sameas", Cost::Constant, |budget, value, arguments| same(budget, value, arguments.required(0, "other")?)),
    ("sequence", Cost::Constant, |_, value, _| {
        let lazy = matches!(value, Value::View(_) | Value::Generator(_) | Value::Loop(_));
        Ok(value.is_iterable() && !lazy)
    }),
    ("string", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Text(_)))),
    ("test", Cost::Constant, |_, value, _| Ok(value.as_str().is_some_and(exists))),
    ("true", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Bool(true)))),
    ("undefined", Cost::Constant, |_, value, _| Ok(matches!(value, Value::Undefined(_)))),
    ("upper", Cost::Operands, |budget, value, _| is_of_case(budget, value, "isupper")),
];

/// The comparisons, which are tests too.
pub(super) const COMPARISONS: [(&str, CompareOpKind); 15] = [
    ("!=", CompareOpKind::Ne),
    ("<", CompareOpKind::Lt),
    ("<=", CompareOpKind::Lte),
    ("==", CompareOpKind::Eq),
    (">", CompareOpKind::Gt),
    (">=", CompareOpKind::Gte),
    ("eq", CompareOpKind::Eq),
    ("equalto", CompareOpKind::Eq),
    ("ge", CompareOpKind::Gte),
    ("greaterthan", CompareOpKind::Gt),
    ("gt", CompareOpKind::Gt),
    ("le", CompareOpKind::Lte),
    ("lessthan", CompareOpKind::Lt),
    ("lt", CompareOpKind::Lt),
    ("ne", CompareOpKind::Ne),
];

/// Whether `value is name(arguments)`.
pub(super) fn holds(budget: &Budget, name: &str, value: &Value, arguments: &Arguments) -> Result<bool> {
    if let Ok(index) = TESTS.binary_search_by_key(&name, |(name, ..)| name) {
        let (_, cost, test) = TESTS[index];
        budget.call(cost, value, arguments)?;
        return test(budget, value, arguments);
    }
    match comparison(name) {
        Some(op) => {
            budget.call(Cost::Constant, value, arguments)?;
            compare(budget, op, value, arguments.required(0, "other")?)
        }
        None => failure(format!("no test named '{}' found", Excerpt(name.as_bytes()))),
    }
}

/// Whether there is a test called `name`.
pub(super) fn exists(name: &str) -> bool {
    TESTS.binary_search_by_key(&name, |(name, ..)| name).is_ok() || comparison(name).is_some()
}

/// What the method `name` says of the text of a value.
fn is_of_case(budget: &Budget, value: &Value, name: &str) -> Result<bool> {
    let text = display(budget, value)?;
    budget.work(text.len().saturating_mul(CASE_UNITS))?;
    Ok(characters::classify(&text, name))
}

fn comparison(name: &str) -> Option<CompareOpKind> {
    COMPARISONS.iter().find(|(other, _)| *other == name).map(|&(_, op)| op)
}

fn divisible(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<bool> {
    leaves(budget, value, arguments.required(0, "num")?, 0)
}

/// Whether `rest` is left over when a number is divided.
fn leaves(budget: &Budget, value: &Value, divisor: &Value, rest: i128) -> Result<bool> {
    if value.as_float().is_none() {
        return failure(format!("'{}' object is no number", value.type_name()));
    }
    let left = binary(budget, BinOpKind::Rem, value, divisor)?;
    equal(budget, &left, &Value::Int(rest))
}

fn same(budget: &Budget, left: &Value, right: &Value) -> Result<bool> {
    Ok(match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Text(_), Value::Text(_)) => equal(budget, left, right)?,
        _ => left.is_same(right),
    })
}

#[cfg(test)]
mod tests {
    use super::TESTS;

    #[test]
    fn tests_are_sorted_for_their_search() {
        assert!(TESTS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
