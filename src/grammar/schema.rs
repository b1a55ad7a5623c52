//! JSON schemas: read with the place of a mistake, their references made plain, and given to the engine.

use super::{Vocabulary, measure};
use crate::error::{Error, Result};
use crate::text::dates;
use llguidance::api::TopLevelGrammar;
use llguidance::{JsonCompileOptions, TokenParser};
use serde_json::{Map, Value};

/// Compiles the schema `text`; `compact` leaves out white space.
pub fn compile(vocabulary: &Vocabulary, text: &str, compact: bool) -> Result<TokenParser> {
    let mut schema: Value = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let cause = error.to_string();
        let cause = cause.split(" at line ").next().unwrap_or_default();
        Error::Grammar(format!("the schema, line {line}, column {column}: {cause}"))
    })?;
    if schema == Value::Bool(true) {
        schema = Value::Object(Map::new());
    }
    if compact && schema.is_object() {
        JsonCompileOptions { whitespace_flexible: false, ..JsonCompileOptions::default() }.apply_to(&mut schema);
    }
    compile_value(vocabulary, schema)
}

/// Compiles a schema that has been read.
pub fn compile_value(vocabulary: &Vocabulary, schema: Value) -> Result<TokenParser> {
    measure::schema(&schema)?;
    let mut tight = schema.clone();
    dates::tighten(&mut tight);
    let source = TopLevelGrammar::from_json_schema(tight);
    super::start(vocabulary, source, |error| refused(&schema, &error.to_string()))
}

/// What the engine says of a schema, in one line, with the place of a keyword that it names.
fn refused(schema: &Value, cause: &str) -> Error {
    if cause.starts_with("panic: ") {
        return Error::Grammar("the schema is too large for the engine".into());
    }
    if super::is_empty(cause) {
        return Error::Grammar("the schema lets no value through".into());
    }
    let unknown = cause.strip_prefix("Unimplemented keys: [").map(|keys| keys.trim_end_matches(']'));
    let Some(key) = unknown.and_then(|keys| keys.split('"').nth(1)) else {
        let line = cause.lines().collect::<Vec<_>>().join(" ");
        return Error::Grammar(format!("the schema cannot be compiled: {line}"));
    };
    let mut place = String::from("#");
    find(schema, key, &mut place);
    Error::Grammar(format!("the schema at {place}: the keyword `{key}` cannot be watched while a text is written"))
}

/// Looks for the first object with `key`, and leaves its place as a JSON pointer behind what is in `place`.
fn find(value: &Value, key: &str, place: &mut String) -> bool {
    let length = place.len();
    let mut descend = |name: &dyn std::fmt::Display, value: &Value| {
        place.push_str(&format!("/{name}"));
        let found = find(value, key, place);
        if !found {
            place.truncate(length);
        }
        found
    };
    match value {
        Value::Object(map) if map.contains_key(key) => true,
        Value::Object(map) => map.iter().any(|(name, value)| descend(name, value)),
        Value::Array(list) => list.iter().enumerate().any(|(index, value)| descend(&index, value)),
        _ => false,
    }
}
