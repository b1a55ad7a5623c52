//! What a schema says of a value, taken apart as far as notations need that differ from JSON.

use super::pattern;
use crate::error::{Error, Result};
use crate::text::dates;
use serde_json::{Map, Value, json};

/// Keywords that say nothing of a value.
const REMARKS: [&str; 14] = [
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "example",
    "examples",
    "nullable",
    "readOnly",
    "title",
    "writeOnly",
];

/// The types of values, as schemas name them.
pub(super) const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "null", "object", "array"];

/// Most references that lead to one another.
const MOST_LINKS: usize = 16;

/// The parameters of a tool, to which the references in them are relative.
#[derive(Clone, Copy)]
pub(super) struct Root<'a> {
    pub(super) tool: &'a str,
    pub(super) schema: &'a Value,
    /// The name of the format, for messages.
    pub(super) format: &'static str,
}

impl<'a> Root<'a> {
    pub(super) fn refuse(&self, cause: &str) -> Error {
        Error::Grammar(format!("the parameters of the tool `{}`: {cause}", self.tool))
    }

    pub(super) fn unknown(&self, keyword: &str) -> Error {
        self.refuse(&format!(
            "the keyword `{keyword}` cannot be watched here in the format {}, which does not write json",
            self.format
        ))
    }

    /// What `schema` refers to, itself where it does not.
    pub(super) fn resolved(&self, schema: &'a Value) -> Result<&'a Value> {
        let mut schema = schema;
        for _ in 0..MOST_LINKS {
            let Some(target) = schema.get("$ref").and_then(Value::as_str) else { return Ok(schema) };
            let place = target.strip_prefix('#').and_then(|place| self.schema.pointer(place));
            schema = place.ok_or_else(|| self.refuse(&format!("`{target}` refers to nothing in them")))?;
        }
        Err(self.refuse("their references lead to one another"))
    }

    /// The members of a schema, unless it has a keyword that is neither a remark nor one of `known`.
    pub(super) fn members(&self, schema: &'a Value, known: &[&str]) -> Result<&'a Map<String, Value>> {
        let map = schema.as_object().ok_or_else(|| self.refuse("a schema is no object"))?;
        let is_known = |key: &str| is_remark(key) || known.contains(&key);
        match map.keys().find(|key| !is_known(key)) {
            Some(key) => Err(self.unknown(key)),
            None => Ok(map),
        }
    }

    /// `schema` with what its references lead to.
    pub(super) fn complete(&self, mut schema: Value) -> Value {
        for key in ["$defs", "definitions"] {
            if let (Some(map), Some(defs)) = (schema.as_object_mut(), self.schema.get(key)) {
                map.entry(key).or_insert_with(|| defs.clone());
            }
        }
        schema
    }

    /// What a text must match, each an expression of terminals.
    pub(super) fn text(&self, map: &Map<String, Value>) -> Result<Vec<String>> {
        let mut all = Vec::new();
        if let Some(text) = map.get("pattern").and_then(Value::as_str) {
            all.push(pattern::slashed(&pattern::whole(text)?));
        }
        if let Some(name) = map.get("format").and_then(Value::as_str) {
            let known = pattern::of_format(name);
            let known = known.ok_or_else(|| self.refuse(&format!("there is no format `{name}` to watch")))?;
            all.push(pattern::slashed(known));
        }
        let length = |key: &str| match map.get(key) {
            None => Ok(None),
            Some(value) => {
                let length = value.as_u64().or_else(|| value.as_f64().filter(|v| v.fract() == 0.0).map(|v| v as u64));
                length.map(Some).ok_or_else(|| self.refuse(&format!("`{key}` is no length")))
            }
        };
        let (least, most) = (length("minLength")?, length("maxLength")?);
        if least.is_some() || most.is_some() {
            let most = most.map_or(String::new(), |most| most.to_string());
            all.push(format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0)));
        }
        Ok(all)
    }
}

/// Whether a keyword says nothing of a value.
pub(super) fn is_remark(key: &str) -> bool {
    REMARKS.contains(&key) || key.starts_with("x-")
}

/// The types that a schema names; all where it names none.
pub(super) fn types(map: &Map<String, Value>) -> Vec<&str> {
    match map.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => TYPES.iter().copied().filter(|kind| *kind != "integer").collect(),
    }
}

/// The type of a value.
pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The values that a schema lists, if it does.
pub(super) fn listed(map: &Map<String, Value>) -> Option<Vec<&Value>> {
    if let Some(value) = map.get("const") {
        return Some(vec![value]);
    }
    let kinds = map.get("type").map(|_| types(map));
    let fits = |value: &&Value| {
        kinds.as_ref().is_none_or(|kinds| {
            let kind = type_of(value);
            kinds.contains(&kind) || kind == "number" && value.is_i64() && kinds.contains(&"integer")
        })
    };
    map.get("enum").and_then(Value::as_array).map(|list| list.iter().filter(fits).collect())
}

/// What the values of an object may be: its named members, those that must be there, and the schema of others if there may be any.
pub(super) struct Members<'a> {
    pub(super) named: Vec<(&'a str, &'a Value, bool)>,
    pub(super) others: Option<&'a Value>,
}

/// A schema that anything meets.
pub(super) const ANYTHING: Value = Value::Bool(true);

impl<'a> Members<'a> {
    /// The members of an object. Those that it does not name are not written, unless it says so or names none.
    pub(super) fn of(map: &'a Map<String, Value>) -> Members<'a> {
        let properties = map.get("properties").and_then(Value::as_object);
        let required: Vec<&str> =
            map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let mut named: Vec<(&str, &Value, bool)> = properties
            .into_iter()
            .flatten()
            .map(|(key, schema)| (&**key, schema, required.contains(&&**key)))
            .collect();
        for key in required {
            if !named.iter().any(|(name, ..)| *name == key) {
                named.push((key, &ANYTHING, true));
            }
        }
        let others = match map.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            Some(schema) => Some(schema),
            None => properties.is_none().then_some(&ANYTHING),
        };
        Members { named, others }
    }
}

/// The parameters of a tool as they are watched: an object, closed where it names its members and does not say otherwise, with dates of the calendar.
pub(super) fn parameters(given: Option<&Value>) -> Value {
    let mut schema = match given {
        Some(Value::Object(map)) => Value::Object(map.clone()),
        Some(Value::Bool(true)) => json!({}),
        _ => json!({"properties": {}}),
    };
    if let Some(map) = schema.as_object_mut() {
        let refers = ["$ref", "anyOf", "oneOf", "allOf"].iter().any(|key| map.contains_key(*key));
        if !refers {
            map.entry("type").or_insert_with(|| "object".into());
            if map.contains_key("properties") && !map.contains_key("patternProperties") {
                map.entry("additionalProperties").or_insert(Value::Bool(false));
            }
        }
    }
    dates::tighten(&mut schema);
    schema
}
