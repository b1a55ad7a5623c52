//! Methods of texts, lists, dictionaries and loops.

use super::arguments::{Arguments, count};
use super::budget::{Budget, Text, failure};
use super::case;
use super::format;
use super::operators::equal;
use super::show::{push_display, push_repr};
use super::value::{Items, Key, Loop, Map, VALUES, Value, gathered};
use crate::error::{Result, collected, push};
use std::rc::Rc;

const TEXT_METHODS: [&str; 36] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "upper",
];
const MORE_TEXT_METHODS: [&str; 2] = ["swapcase", "zfill"];
const LIST_METHODS: [&str; 3] = ["count", "index", "copy"];
const MAP_METHODS: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LOOP_METHODS: [&str; 2] = ["cycle", "changed"];
const CHANGING_LIST_METHODS: [&str; 8] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const CHANGING_MAP_METHODS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// Whether `value` has a method called `name`.
pub(super) fn has(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => TEXT_METHODS.contains(&name) || MORE_TEXT_METHODS.contains(&name),
        Value::List(_) => LIST_METHODS.contains(&name),
        Value::Tuple(_) => name != "copy" && LIST_METHODS.contains(&name),
        Value::Map(_) => MAP_METHODS.contains(&name),
        Value::Loop(_) => LOOP_METHODS.contains(&name),
        _ => false,
    }
}

/// Whether the sandbox keeps templates from the attribute: it changes its object, or is not meant for them.
pub(super) fn is_unsafe(value: &Value, name: &str) -> bool {
    match value {
        Value::List(_) if CHANGING_LIST_METHODS.contains(&name) => true,
        Value::Map(_) if CHANGING_MAP_METHODS.contains(&name) => true,
        Value::Map(_) | Value::Namespace(_) => false,
        _ => name.starts_with('_'),
    }
}

/// Calls the method `name` of `value`.
pub(super) fn call(budget: &Budget, value: &Value, name: &str, arguments: &Arguments) -> Result<Value> {
    match value {
        Value::Text(text) => {
            budget.scan(text.len())?;
            text_method(budget, text, name, arguments)
        }
        Value::List(items) | Value::Tuple(items) => list_method(budget, value, items, name, arguments),
        Value::Map(map) => map_method(budget, value, map, name, arguments),
        Value::Loop(current) => loop_method(budget, current, name, arguments),
        other => failure(format!("'{}' object has no method '{name}'", other.type_name())),
    }
}

/// White space as Python's `str.isspace` has it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn text_method(budget: &Budget, text: &str, name: &str, arguments: &Arguments) -> Result<Value> {
    let made = |text: &str| Value::text(budget, text);
    match name {
        "strip" | "lstrip" | "rstrip" => made(strip(text, arguments.optional_text(0, "chars")?, name)),
        "lower" | "casefold" | "upper" | "title" | "capitalize" | "swapcase" => {
            Ok(Value::Text(case::recase(budget, text, name)?.into()))
        }
        "startswith" | "endswith" => affix(budget, text, arguments, name == "startswith").map(Value::Bool),
        "removeprefix" => made(text.strip_prefix(arguments.text(0, "prefix")?).unwrap_or(text)),
        "removesuffix" => made(text.strip_suffix(arguments.text(0, "suffix")?).unwrap_or(text)),
        "replace" => {
            let limit = arguments.optional_int(2, "count")?.filter(|&limit| limit >= 0).map_or(usize::MAX, count);
            let replaced = replace(budget, text, arguments.text(0, "old")?, arguments.text(1, "new")?, limit)?;
            Ok(Value::Text(replaced.into()))
        }
        "split" | "rsplit" => split(budget, text, arguments, name == "rsplit"),
        "splitlines" => {
            let lines = split_lines(text, arguments.flag(0, "keepends"))?;
            budget.take_items(lines.len())?;
            Value::list(budget, gathered(lines.into_iter().map(made))?)
        }
        "partition" | "rpartition" => partition(budget, text, arguments.text(0, "sep")?, name == "rpartition"),
        "find" | "rfind" | "index" => find(text, arguments.text(0, "sub")?, name),
        "count" => {
            let part = arguments.text(0, "sub")?;
            let found = if part.is_empty() { text.chars().count() + 1 } else { text.matches(part).count() };
            Ok(Value::Int(found as i128))
        }
        "join" => join(budget, text, arguments.required(0, "iterable")?),
        "format" => format::braces(budget, text, arguments),
        "ljust" | "rjust" | "center" | "zfill" => justify(budget, text, name, arguments),
        _ => Ok(Value::Bool(classify(text, name))),
    }
}

/// `text.strip(chars)` and its one-sided forms.
pub(super) fn strip<'t>(text: &'t str, chars: Option<&str>, name: &str) -> &'t str {
    let strips = |c: char| chars.map_or(is_space(c), |chars| chars.contains(c));
    let text = if name == "rstrip" { text } else { text.trim_start_matches(strips) };
    if name == "lstrip" { text } else { text.trim_end_matches(strips) }
}

fn affix(budget: &Budget, text: &str, arguments: &Arguments, start: bool) -> Result<bool> {
    let holds = |part: &str| if start { text.starts_with(part) } else { text.ends_with(part) };
    match arguments.required(0, "prefix")? {
        Value::Text(part) => Ok(holds(part)),
        Value::Tuple(parts) => {
            budget.spend(parts.len() as u64)?;
            Ok(parts.iter().filter_map(Value::as_str).any(holds))
        }
        other => failure(format!("first arg must be str or a tuple of str, not {}", other.type_name())),
    }
}

/// `text.replace(old, new, limit)`
pub(super) fn replace(budget: &Budget, text: &str, old: &str, new: &str, limit: usize) -> Result<String> {
    let mut out = Text::new(budget);
    let mut from = 0;
    for (at, part) in text.match_indices(old).take(limit) {
        budget.spend(1)?;
        out.push(&text[from..at])?;
        out.push(new)?;
        from = at + part.len();
    }
    out.push(&text[from..])?;
    Ok(out.finish())
}

fn split(budget: &Budget, text: &str, arguments: &Arguments, from_end: bool) -> Result<Value> {
    let limit = arguments.optional_int(1, "maxsplit")?.filter(|&limit| limit >= 0).map_or(usize::MAX, count);
    let parts: Vec<&str> = match arguments.optional_text(0, "sep")? {
        Some("") => return failure("empty separator"),
        Some(separator) if from_end => {
            let mut parts: Vec<&str> = collected(text.rsplitn(limit.saturating_add(1), separator), VALUES)?;
            parts.reverse();
            parts
        }
        Some(separator) => collected(text.splitn(limit.saturating_add(1), separator), VALUES)?,
        None if from_end && limit != usize::MAX => split_spaces_from_end(text, limit)?,
        None => split_spaces(text, limit)?,
    };
    budget.take_items(parts.len())?;
    Value::list(budget, gathered(parts.into_iter().map(|part| Value::text(budget, part)))?)
}

fn split_spaces(text: &str, limit: usize) -> Result<Vec<&str>> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if parts.len() == limit { None } else { rest.find(is_space) };
        let Some(end) = end else {
            let last = if parts.len() == limit { rest } else { rest.trim_end_matches(is_space) };
            push(&mut parts, last, VALUES)?;
            break;
        };
        push(&mut parts, &rest[..end], VALUES)?;
        rest = rest[end..].trim_start_matches(is_space);
    }
    Ok(parts)
}

fn split_spaces_from_end(text: &str, limit: usize) -> Result<Vec<&str>> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        let last = if parts.len() == limit { None } else { rest.char_indices().rfind(|&(_, c)| is_space(c)) };
        let Some((at, space)) = last else {
            push(&mut parts, rest, VALUES)?;
            break;
        };
        push(&mut parts, &rest[at + space.len_utf8()..], VALUES)?;
        rest = rest[..at].trim_end_matches(is_space);
    }
    parts.reverse();
    Ok(parts)
}

/// The lines of a text by Python's line ends.
pub(super) fn split_lines(text: &str, keep_ends: bool) -> Result<Vec<&str>> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(end) = rest.find(ends) else {
            push(&mut lines, rest, VALUES)?;
            break;
        };
        let width =
            if rest[end..].starts_with("\r\n") { 2 } else { rest[end..].chars().next().map_or(1, char::len_utf8) };
        push(&mut lines, &rest[..if keep_ends { end + width } else { end }], VALUES)?;
        rest = &rest[end + width..];
    }
    Ok(lines)
}

fn partition(budget: &Budget, text: &str, separator: &str, from_end: bool) -> Result<Value> {
    if separator.is_empty() {
        return failure("empty separator");
    }
    let found = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Value::tuple(budget, gathered(parts.into_iter().map(|part| Value::text(budget, part)))?)
}

fn find(text: &str, part: &str, name: &str) -> Result<Value> {
    let found = if name == "rfind" { text.rfind(part) } else { text.find(part) };
    match found {
        Some(at) => Ok(Value::Int(text[..at].chars().count() as i128)),
        None if name == "index" => failure("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}

/// `separator.join(values)`, which takes texts only.
fn join(budget: &Budget, separator: &str, values: &Value) -> Result<Value> {
    let mut out = Text::new(budget);
    for (index, value) in values.iterate(budget)?.iter().enumerate() {
        let Some(part) = value.as_str() else {
            return failure(format!("sequence item {index}: expected str instance, {} found", value.type_name()));
        };
        out.push(if index > 0 { separator } else { "" })?;
        out.push(part)?;
    }
    Ok(Value::Text(out.finish().into()))
}

fn justify(budget: &Budget, text: &str, name: &str, arguments: &Arguments) -> Result<Value> {
    let width = arguments.optional_int(0, "width")?.map_or(0, count);
    let missing = width.saturating_sub(text.chars().count());
    let fill = if name == "zfill" { "0" } else { arguments.optional_text(1, "fillchar")?.unwrap_or(" ") };
    if fill.chars().count() != 1 {
        return failure("the fill character must be exactly one character long");
    }
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) if name == "zfill" => (&text[..1], digits),
        _ => ("", text),
    };
    // Python puts the odd place of a centred text to the left when the width is odd.
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let mut out = Text::new(budget);
    out.push(sign)?;
    out.repeat(fill, left)?;
    out.push(digits)?;
    out.repeat(fill, missing - left)?;
    Ok(Value::Text(out.finish().into()))
}

fn classify(text: &str, name: &str) -> bool {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        _ => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
    }
}

fn list_method(budget: &Budget, list: &Value, items: &Items, name: &str, arguments: &Arguments) -> Result<Value> {
    if name == "copy" {
        return Ok(list.clone());
    }
    let wanted = arguments.required(0, "value")?;
    let mut found = 0;
    for (index, item) in items.iter().enumerate() {
        if equal(budget, item, wanted)? {
            found += 1;
            if name == "index" {
                return Ok(Value::Int(index as i128));
            }
        }
    }
    if name == "index" { failure("the value is not in the list") } else { Ok(Value::Int(found)) }
}

fn map_method(budget: &Budget, value: &Value, map: &Map, name: &str, arguments: &Arguments) -> Result<Value> {
    match name {
        "get" => {
            let found = map.get(&Key::new(arguments.required(0, "key")?.clone())?);
            Ok(found.or_else(|| arguments.get(1, "default")).cloned().unwrap_or(Value::None))
        }
        "items" => items(budget, map),
        "keys" => value.iterate(budget).map(Value::List),
        "values" => Value::list(budget, collected(map.values().cloned(), VALUES)?),
        _ => Ok(value.clone()),
    }
}

/// The entries of a dictionary as pairs.
pub(super) fn items(budget: &Budget, map: &Map) -> Result<Value> {
    budget.take_items(3 * map.len())?;
    let pair = |(key, value): (&Key, &Value)| Value::tuple(budget, vec![key.0.clone(), value.clone()]);
    Value::list(budget, gathered(map.iter().map(pair))?)
}

fn loop_method(budget: &Budget, current: &Rc<Loop>, name: &str, arguments: &Arguments) -> Result<Value> {
    if name == "cycle" {
        let values = &arguments.positional;
        let index = current.index.get().checked_rem(values.len());
        return index.map_or_else(|| failure("no items for cycling given"), |index| Ok(values[index].clone()));
    }
    let mut shown = Text::new(budget);
    arguments.positional.iter().try_for_each(|value| push_repr(&mut shown, value))?;
    let shown = shown.finish();
    let changed = current.last_changed.borrow().as_ref() != Some(&shown);
    current.last_changed.replace(Some(shown));
    Ok(Value::Bool(changed))
}

/// An attribute of the `loop` variable.
pub(super) fn loop_attribute(current: &Loop, name: &str) -> Option<Value> {
    let (index, len) = (current.index.get(), current.items.len());
    let number = |value: usize| Some(Value::Int(value as i128));
    let outside = || Value::Undefined("there is no such item".into());
    match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(len - index),
        "revindex0" => number(len - index - 1),
        "length" => number(len),
        "depth" => number(current.depth + 1),
        "depth0" => number(current.depth),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == len)),
        "previtem" => Some(index.checked_sub(1).map_or_else(outside, |before| current.items[before].clone())),
        "nextitem" => Some(current.items.get(index + 1).cloned().unwrap_or_else(outside)),
        _ => None,
    }
}

/// Writes the parts of a text joined by the `join` filter, which takes any values.
pub(super) fn join_shown(budget: &Budget, separator: &str, values: &[Value]) -> Result<Value> {
    let mut out = Text::new(budget);
    for (index, value) in values.iter().enumerate() {
        out.push(if index > 0 { separator } else { "" })?;
        push_display(&mut out, value)?;
    }
    Ok(Value::Text(out.finish().into()))
}
