//! Values as keys of dictionaries: what has a hash, and when two are one key.

use super::budget::{Budget, failure};
use super::integer;
use super::lazy::Part;
use super::value::Value;
use crate::error::Result;
use indexmap::Equivalent;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// A value that can be a dictionary's key: all but lists and dictionaries, and tuples that hold those.
#[derive(Clone)]
pub(super) struct Key(pub(super) Value);

impl Key {
    /// The key of `value`, if it can be one; pays for its hash, and for comparing it with one other key.
    pub(super) fn new(budget: &Budget, value: Value) -> Result<Key> {
        match Key::of(budget, &value)? {
            Some(key) => Ok(key),
            None => failure(format!("unhashable type: '{}'", value.type_name())),
        }
    }

    /// The same, or nothing if it cannot be a key.
    pub(super) fn of(budget: &Budget, value: &Value) -> Result<Option<Key>> {
        Ok(is_hashable(budget, value)?.then(|| Key(value.clone())))
    }

    /// The key that a text is.
    pub(super) fn text(budget: &Budget, text: &str) -> Result<Key> {
        Key::new(budget, Value::text(budget, text)?)
    }
}

/// Whether Python would give the value a hash; pays for making and comparing it.
fn is_hashable(budget: &Budget, value: &Value) -> Result<bool> {
    budget.work(value.size().saturating_mul(2))?;
    Ok(match value {
        Value::List(_) | Value::Map(_) => false,
        Value::View(view) => view.part == Part::Values,
        Value::Tuple(items) => {
            for item in items.iter() {
                if !is_hashable(budget, item)? {
                    return Ok(false);
                }
            }
            true
        }
        _ => true,
    })
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        same_key(&self.0, &other.0)
    }
}

/// Whether two values are one key. What is no number is the same as itself here, or a dictionary could not find it again.
fn same_key(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) | (Value::Undefined(_), Value::Undefined(_)) => true,
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::Tuple(a), Value::Tuple(b)) => a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same_key(a, b)),
        (Value::Float(a), Value::Float(b)) if a.is_nan() => b.is_nan(),
        (a, b) => a.is_same(b) || a.number_order(b) == Some(Ordering::Equal),
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_key(&self.0, state);
    }
}

/// Equal numbers of different types are one key, and different ones have different hashes, lest many meet in one place.
fn hash_key<H: Hasher>(value: &Value, state: &mut H) {
    match value {
        Value::Text(text) => text.hash(state),
        Value::Tuple(items) => items.iter().for_each(|item| hash_key(item, state)),
        Value::Float(number) if number.fract() == 0.0 && (-INTEGER_LIMIT..INTEGER_LIMIT).contains(number) => {
            (*number as i128).hash(state);
        }
        Value::Float(number) if number.is_nan() => f64::NAN.to_bits().hash(state),
        Value::Float(number) => number.to_bits().hash(state),
        Value::Large(number) => match integer::float(number).filter(|&float| integer::whole(float) == ***number) {
            Some(float) => float.to_bits().hash(state),
            None => number.hash(state),
        },
        other => other.as_int().hash(state),
    }
}

/// Floats below it are integers of 128 bits, if they are whole: 2 to the power of 127.
const INTEGER_LIMIT: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;

impl Equivalent<Key> for str {
    fn equivalent(&self, key: &Key) -> bool {
        key.0.as_str() == Some(self)
    }
}
