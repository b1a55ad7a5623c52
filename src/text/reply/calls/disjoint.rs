//! Whether no value can meet two schemas, as far as that is easily seen: what `oneOf` asks of its alternatives, since a text that is being written is
//! held against each by itself.

use super::schema::{Root, listed, type_of, types};
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// Deepest nesting that is looked into.
const DEPTH: usize = 8;

impl<'a> Root<'a> {
    /// The alternatives of a schema, and the keyword that lists them. Those of a `oneOf` must leave no value to two of them.
    pub(super) fn alternatives(&self, map: &'a Map<String, Value>) -> Result<Option<(&'static str, &'a [Value])>> {
        let list = |key: &str| map.get(key).and_then(Value::as_array).map(Vec::as_slice);
        if let Some(list) = list("anyOf") {
            return Ok(Some(("anyOf", list)));
        }
        let Some(list) = list("oneOf") else { return Ok(None) };
        for (index, one) in list.iter().enumerate() {
            for other in &list[index + 1..] {
                if !self.are_disjoint(one, other, 0)? {
                    return Err(self.overlap());
                }
            }
        }
        Ok(Some(("oneOf", list)))
    }

    fn overlap(&self) -> Error {
        self.refuse(&format!(
            "the keyword `oneOf` cannot be watched here in the format {}, unless its alternatives differ by type, by values that they list, or by those \
             of a required member",
            self.format
        ))
    }

    fn are_disjoint(&self, one: &'a Value, other: &'a Value, depth: usize) -> Result<bool> {
        if depth > DEPTH {
            return Ok(false);
        }
        let (one, other) = (self.resolved(one)?, self.resolved(other)?);
        if [one, other].contains(&&Value::Bool(false)) {
            return Ok(true);
        }
        let (Some(one_map), Some(other_map)) = (one.as_object(), other.as_object()) else { return Ok(false) };
        for (map, than) in [(one_map, other), (other_map, one)] {
            for list in ["anyOf", "oneOf"].iter().filter_map(|key| map.get(*key)?.as_array()) {
                let apart: Result<Vec<bool>> = list.iter().map(|it| self.are_disjoint(it, than, depth + 1)).collect();
                if apart?.iter().all(|&apart| apart) {
                    return Ok(true);
                }
            }
        }
        let (one, other) = (one_map, other_map);
        match (listed(one), listed(other)) {
            (Some(these), Some(those)) => {
                return Ok(!these.iter().any(|it| those.iter().any(|that| is_same(it, that))));
            }
            (Some(these), None) => return Ok(these.iter().all(|it| !kinds(other).contains(&type_of(it)))),
            (None, Some(those)) => return Ok(those.iter().all(|it| !kinds(one).contains(&type_of(it)))),
            (None, None) => {}
        }
        let others = kinds(other);
        let common: Vec<&str> = kinds(one).into_iter().filter(|kind| others.contains(kind)).collect();
        match common[..] {
            [] => Ok(true),
            ["object"] => self.have_disjoint_members(one, other, depth),
            ["number"] => Ok(is_below(one, other) || is_below(other, one)),
            _ => Ok(false),
        }
    }

    /// Whether a member that one of two objects must have tells them apart.
    fn have_disjoint_members(
        &self,
        one: &'a Map<String, Value>,
        other: &'a Map<String, Value>,
        depth: usize,
    ) -> Result<bool> {
        let required =
            |map: &'a Map<String, Value>| map.get("required").and_then(Value::as_array).into_iter().flatten();
        for key in required(one).chain(required(other)).filter_map(Value::as_str) {
            let (this, that) = (member(one, key), member(other, key));
            if this.is_none() || that.is_none() {
                return Ok(true);
            }
            let pair = this.flatten().zip(that.flatten());
            if pair.map_or(Ok(false), |(this, that)| self.are_disjoint(this, that, depth + 1))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What an object says of a member: nothing, if it may not have it; the inner one of it, if it may be anything.
fn member<'a>(map: &'a Map<String, Value>, key: &str) -> Option<Option<&'a Value>> {
    if let Some(schema) = map.get("properties").and_then(|properties| properties.get(key)) {
        return Some(Some(schema));
    }
    let is_closed = map.get("additionalProperties") == Some(&Value::Bool(false));
    if is_closed && !map.contains_key("patternProperties") { None } else { Some(None) }
}

/// The types of a schema's values; integers are numbers.
fn kinds(map: &Map<String, Value>) -> Vec<&str> {
    let mut kinds: Vec<&str> =
        types(map).into_iter().map(|kind| if kind == "integer" { "number" } else { kind }).collect();
    kinds.dedup();
    kinds
}

/// Whether two values are one to a schema: of numbers the value counts, not how it is written.
fn is_same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| one == other)
}

/// Whether all numbers of one schema are below those of another.
fn is_below(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let bound = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_f64);
    let (most, least) = (bound(one, "maximum"), bound(other, "minimum"));
    most.zip(least).is_some_and(|(most, least)| most < least)
}
