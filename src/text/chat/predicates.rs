//! What may stand behind `is`.

use super::arguments::Arguments;
use super::budget::{Budget, failure};
use super::filters;
use super::operators::{compare, contains};
use super::value::Value;
use crate::error::Result;
use minijinja::machinery::ast::CompareOpKind;
use std::rc::Rc;

/// Whether `value is name(arguments)`.
pub(super) fn holds(budget: &Budget, name: &str, value: &Value, arguments: &Arguments) -> Result<bool> {
    let other = || arguments.required(0, "other");
    let integer = || match value.as_int() {
        Some(number) => Ok(number),
        None => failure(format!("'{}' object is no integer", value.type_name())),
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "iterable" => value.iterate(budget).is_ok(),
        "sequence" => {
            matches!(value, Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Map(_) | Value::Undefined(_))
        }
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_) | Value::Method(_)),
        "escaped" => false,
        "lower" => value.as_str().is_some_and(|text| !text.chars().any(char::is_uppercase)),
        "upper" => value.as_str().is_some_and(|text| !text.chars().any(char::is_lowercase)),
        "odd" => integer()?.rem_euclid(2) == 1,
        "even" => integer()?.rem_euclid(2) == 0,
        "divisibleby" => match other()?.as_int() {
            Some(divisor) if divisor != 0 => integer()?.rem_euclid(divisor) == 0,
            _ => return failure("divisibleby needs a number that is not zero"),
        },
        "sameas" => same(value, other()?),
        "in" => contains(budget, other()?, value)?,
        "filter" => value.as_str().is_some_and(filters::exists),
        "test" => value.as_str().is_some_and(exists),
        _ => match comparison(name) {
            Some(op) => compare(budget, op, value, other()?)?,
            None => return failure(format!("no test named '{name}' found")),
        },
    })
}

const PLAIN: [&str; 24] = [
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "callable",
    "escaped",
    "lower",
    "upper",
    "odd",
    "even",
    "divisibleby",
    "sameas",
    "in",
    "filter",
    "test",
];

fn exists(name: &str) -> bool {
    PLAIN.contains(&name) || comparison(name).is_some()
}

fn comparison(name: &str) -> Option<CompareOpKind> {
    Some(match name {
        "eq" | "equalto" | "==" => CompareOpKind::Eq,
        "ne" | "!=" => CompareOpKind::Ne,
        "lt" | "lessthan" | "<" => CompareOpKind::Lt,
        "le" | "<=" => CompareOpKind::Lte,
        "gt" | "greaterthan" | ">" => CompareOpKind::Gt,
        "ge" | ">=" => CompareOpKind::Gte,
        _ => return None,
    })
}

fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => Rc::ptr_eq(a, b),
        (Value::Map(a), Value::Map(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}
