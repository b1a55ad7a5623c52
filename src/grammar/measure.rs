//! What is refused before the engine sees it, since its own limits do not end it in time: it counts what it builds, and some of that takes more
//! than in proportion to build, or recurses.

use super::regex;
use crate::error::{Error, Result};
use serde_json::Value;

/// Deepest nesting of brackets in Lark.
const NESTING: usize = 200;
/// Most repetitions in the texts of a grammar: the engine compares each with all that follow.
const REPETITIONS: usize = 2_000;
/// Most expressions that must hold of one text at once: the engine follows all combinations of their branches.
const CONJUNCTS: usize = 3;
/// Most rules, and most named or listed values: the engine's tables grow with the square of some of them.
const RULES: usize = 8_000;

/// Refuses more repetitions than the engine takes; `what` is for messages. Also counts characters that are no repetitions, so few texts are near.
pub fn repetitions(text: &str, what: &str) -> Result<()> {
    let count = text.bytes().filter(|byte| matches!(byte, b'*' | b'+' | b'?' | b'{')).count();
    if count > REPETITIONS {
        return Err(Error::Grammar(format!("{what} has more than {REPETITIONS} repetitions")));
    }
    Ok(())
}

/// Refuses a Lark grammar that is nested too deeply, or has too many rules, repetitions, intersections or complements.
pub fn lark(text: &str) -> Result<()> {
    repetitions(text, "the grammar")?;
    let (mut depth, mut conjuncts, mut line) = (0usize, 0, 1);
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\n' => line += 1,
            b'#' => while bytes.next_if(|&byte| byte != b'\n').is_some() {},
            b'/' if bytes.peek() == Some(&b'/') => while bytes.next_if(|&byte| byte != b'\n').is_some() {},
            b'"' | b'/' => {
                while let Some(inner) = bytes.next_if(|&inner| inner != byte && inner != b'\n') {
                    if inner == b'\\' {
                        bytes.next_if(|&escaped| escaped != b'\n');
                    }
                }
                bytes.next_if(|&end| end == byte);
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'&' | b'~' => conjuncts += 1,
            _ => {}
        }
        if depth > NESTING {
            return Err(Error::Grammar(format!(
                "the grammar, line {line}: more than {NESTING} brackets within each other"
            )));
        }
    }
    if conjuncts > CONJUNCTS {
        return Err(Error::Grammar(format!(
            "the grammar has more than {CONJUNCTS} intersections, complements and `~` counts"
        )));
    }
    if line > RULES {
        return Err(Error::Grammar(format!("the grammar has more than {RULES} lines")));
    }
    Ok(())
}

/// Refuses a schema with expressions that are wrong or too large, or with too much that must hold of one text.
pub fn schema(schema: &Value) -> Result<()> {
    let mut seen = Seen { values: 0, repetitions: 0 };
    visit(schema, schema, &mut seen)?;
    if seen.repetitions > REPETITIONS {
        return Err(Error::Grammar(format!(
            "the schema has patterns with more than {REPETITIONS} repetitions together"
        )));
    }
    if seen.values > RULES {
        return Err(Error::Grammar(format!("the schema has more than {RULES} properties, subschemas and values")));
    }
    Ok(())
}

struct Seen {
    values: usize,
    repetitions: usize,
}

fn visit(root: &Value, value: &Value, seen: &mut Seen) -> Result<()> {
    match value {
        Value::Object(map) => {
            seen.values += map.len();
            for pattern in patterns(value) {
                regex::check(pattern, &format!("the pattern {pattern:?}"))?;
                seen.repetitions += pattern.bytes().filter(|byte| matches!(byte, b'*' | b'+' | b'?' | b'{')).count();
            }
            if map.contains_key("allOf") && conjuncts(root, value, 0) > CONJUNCTS {
                let problem = format!(
                    "the schema has an `allOf` with more than {CONJUNCTS} patterns, formats and lengths of a text"
                );
                return Err(Error::Grammar(problem));
            }
            map.values().try_for_each(|value| visit(root, value, seen))
        }
        Value::Array(list) => {
            seen.values += list.len();
            list.iter().try_for_each(|value| visit(root, value, seen))
        }
        _ => Ok(()),
    }
}

/// The expressions of a schema: its `pattern`, and the names of its `patternProperties`.
fn patterns(schema: &Value) -> impl Iterator<Item = &str> {
    let pattern = schema.get("pattern").and_then(Value::as_str);
    let names = schema.get("patternProperties").and_then(Value::as_object);
    pattern.into_iter().chain(names.into_iter().flat_map(|names| names.keys().map(String::as_str)))
}

/// How many expressions must hold at once of a text that `schema` describes, at most.
fn conjuncts(root: &Value, schema: &Value, depth: usize) -> usize {
    if depth > CONJUNCTS * 4 {
        return CONJUNCTS + 1;
    }
    let own = ["pattern", "format"].iter().filter(|&&key| schema.get(key).is_some_and(Value::is_string)).count();
    let length = usize::from(schema.get("maxLength").or(schema.get("minLength")).is_some());
    let below = |schema: &Value| conjuncts(root, schema, depth + 1);
    let members = |key: &str| schema.get(key).and_then(Value::as_array).map(|list| list.iter());
    let all: usize = members("allOf").into_iter().flatten().map(below).sum();
    let any: usize =
        ["anyOf", "oneOf"].iter().map(|key| members(key).into_iter().flatten().map(below).max().unwrap_or(0)).sum();
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|place| place.strip_prefix('#'));
    let referred = target.and_then(|place| root.pointer(place)).map_or(0, below);
    own + length + all + any + referred
}
