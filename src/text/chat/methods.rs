//! Methods of texts, lists, dictionaries and loops.

use super::arguments::{Arguments, count};
use super::budget::{Budget, Cost, failure};
use super::case;
use super::characters::{CharSet, classify, is_space};
use super::format;
use super::heap::{Buffer, Entries, Str, Text};
use super::key::Key;
use super::lazy::{Part, View};
use super::markup::{escaped, marked, strip_tags, unescaped};
use super::numbers;
use super::operators::equal;
use super::show::{push_display, push_repr};
use super::translation;
use super::value::{Items, Loop, Map, Value};
use crate::error::Result;
use std::rc::Rc;

/// Calls the method `name` of `value`.
pub(super) fn call(budget: &Budget, value: &Value, name: &str, arguments: &Arguments) -> Result<Value> {
    // Those of texts look at all of it; the others pay for what they look at.
    let cost = if matches!(value, Value::Text(_)) { Cost::Operands } else { Cost::Constant };
    budget.call(cost, value, arguments)?;
    match value {
        Value::Text(text) if text.is_markup() => markup_method(budget, text, name, arguments),
        Value::Text(text) => text_method(budget, text, name, arguments),
        Value::List(items) | Value::Tuple(items) => list_method(budget, value, items, name, arguments),
        Value::Map(map) => map_method(budget, value, map, name, arguments),
        Value::Loop(current) => loop_method(budget, current, name, arguments),
        Value::Range(_) => list_method(budget, value, &*value.iterate(budget)?, name, arguments),
        Value::Cycler(cycler) if name == "next" => Ok(cycler.next()),
        Value::Cycler(cycler) => {
            cycler.reset();
            Ok(Value::None)
        }
        Value::View(view) => disjoint(budget, &*view.items(budget)?, arguments.required(0, "other")?),
        number if number.as_float().is_some() => numbers::method(budget, number, name),
        other => failure(format!("'{}' object has no method '{name}'", other.type_name())),
    }
}

/// A method of text that counts as HTML: so does what it makes, and what it takes in is escaped.
fn markup_method(budget: &Budget, text: &Str, name: &str, arguments: &Arguments) -> Result<Value> {
    let mut given = arguments.copy(budget)?;
    let takes_in = |index: usize| matches!((name, index), ("replace", 1) | ("ljust" | "rjust" | "center", 1));
    for (index, value) in given.positional.iter_mut().enumerate() {
        if takes_in(index) {
            *value = Value::Text(escaped(budget, value)?);
        }
    }
    if name == "join" {
        let values = arguments.required(0, "iterable")?.iterate(budget)?;
        let values = Buffer::gathered(budget, values.iter().map(|value| escaped(budget, value).map(Value::Text)))?;
        return marked(budget, join(budget, text, &Value::list(values)?)?);
    }
    match name {
        "format" => return marked(budget, format::braces(budget, text, arguments, true)?),
        "escape" => return Ok(Value::Text(escaped(budget, arguments.required(0, "s")?)?)),
        "striptags" => return strip_tags(budget, &Value::Text(text.clone()), arguments),
        "unescape" => return unescaped(budget, text),
        "maketrans" => return translation::table(budget, arguments),
        _ => {}
    }
    marked(budget, text_method(budget, text, name, &given)?)
}

fn text_method(budget: &Budget, text: &str, name: &str, arguments: &Arguments) -> Result<Value> {
    let made = |text: &str| Value::text(budget, text);
    match name {
        "strip" | "lstrip" | "rstrip" => made(strip(budget, text, arguments.optional_text(0, "chars")?, name)?),
        "lower" | "casefold" | "upper" | "title" | "capitalize" | "swapcase" => case::recase(budget, text, name),
        "startswith" | "endswith" => affix(budget, text, arguments, name == "startswith").map(Value::Bool),
        "removeprefix" => made(text.strip_prefix(arguments.text(0, "prefix")?).unwrap_or(text)),
        "removesuffix" => made(text.strip_suffix(arguments.text(0, "suffix")?).unwrap_or(text)),
        "replace" => {
            let limit = arguments.optional_int(2, "count")?.filter(|&limit| limit >= 0).map_or(usize::MAX, count);
            replace(budget, text, arguments.text(0, "old")?, arguments.text(1, "new")?, limit).map(Value::Text)
        }
        "split" | "rsplit" => split(budget, text, arguments, name == "rsplit"),
        "splitlines" => Value::list(Buffer::gathered(budget, lines(text, arguments.flag(0, "keepends")).map(made))?),
        "partition" | "rpartition" => partition(budget, text, arguments.text(0, "sep")?, name == "rpartition"),
        "find" | "rfind" | "index" | "rindex" => position(text, arguments, name),
        "expandtabs" => expand_tabs(budget, text, arguments.optional_int(0, "tabsize")?.map_or(8, count)),
        "count" => {
            let part = arguments.text(0, "sub")?;
            let found = within(text, arguments)?.map_or(0, |(text, _)| {
                if part.is_empty() { text.chars().count() + 1 } else { text.matches(part).count() }
            });
            Ok(Value::Int(found as i128))
        }
        "join" => join(budget, text, arguments.required(0, "iterable")?),
        "format" => format::braces(budget, text, arguments, false),
        "maketrans" => translation::table(budget, arguments),
        "translate" => translation::translate(budget, text, arguments.required(0, "table")?),
        "format_map" => {
            let Value::Map(map) = arguments.required(0, "mapping")? else {
                return failure("format_map needs a dictionary");
            };
            let mut named = Arguments::new(budget);
            for (key, value) in map.iter() {
                if let Value::Text(name) = &key.0 {
                    named.named.push((name.clone(), value.clone()))?;
                }
            }
            format::braces(budget, text, &named, false)
        }
        "ljust" | "rjust" | "center" | "zfill" => justify(budget, text, name, arguments),
        _ => Ok(Value::Bool(classify(text, name))),
    }
}

/// `text.strip(chars)` and its one-sided forms.
pub(super) fn strip<'t>(budget: &Budget, text: &'t str, chars: Option<&str>, name: &str) -> Result<&'t str> {
    let set = chars.map(|chars| CharSet::of(budget, chars)).transpose()?;
    let strips = |c: char| set.as_ref().map_or(is_space(c), |set| set.contains(c));
    let text = if name == "rstrip" { text } else { text.trim_start_matches(strips) };
    Ok(if name == "lstrip" { text } else { text.trim_end_matches(strips) })
}

fn affix(budget: &Budget, text: &str, arguments: &Arguments, start: bool) -> Result<bool> {
    let Some((text, _)) = within(text, arguments)? else { return Ok(false) };
    let holds = |part: &str| {
        budget.work(if part.len() <= text.len() { part.len() } else { 0 })?;
        Ok(if start { text.starts_with(part) } else { text.ends_with(part) })
    };
    match arguments.required(0, "prefix")? {
        Value::Text(part) => holds(part),
        Value::Tuple(parts) => {
            for part in parts.iter() {
                budget.spend(1)?;
                let Some(part) = part.as_str() else {
                    return failure(format!("tuple for startswith must only contain str, not {}", part.type_name()));
                };
                if holds(part)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => failure(format!("first arg must be str or a tuple of str, not {}", other.type_name())),
    }
}

/// `text.replace(old, new, limit)`
pub(super) fn replace(budget: &Budget, text: &str, old: &str, new: &str, limit: usize) -> Result<Str> {
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
    let made = |part: &str| Value::text(budget, part);
    let mut parts = match arguments.optional_text(0, "sep")? {
        Some("") => return failure("empty separator"),
        Some(separator) if from_end => {
            Buffer::gathered(budget, text.rsplitn(limit.saturating_add(1), separator).map(made))?
        }
        Some(separator) => Buffer::gathered(budget, text.splitn(limit.saturating_add(1), separator).map(made))?,
        None if from_end => Buffer::gathered(budget, words_from_end(text, limit).map(made))?,
        None => Buffer::gathered(budget, words(text, limit).map(made))?,
    };
    if from_end {
        parts.reverse();
    }
    Value::list(parts)
}

/// The first `limit` words of a text, and what is behind them.
fn words(text: &str, limit: usize) -> impl Iterator<Item = &str> {
    let mut rest = text.trim_start_matches(is_space);
    let mut left = limit;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = if left == 0 { None } else { rest.find(is_space) };
        left = left.saturating_sub(1);
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind.trim_start_matches(is_space);
        Some(word)
    })
}

/// The last `limit` words of a text, the last one first, and what is before them.
fn words_from_end(text: &str, limit: usize) -> impl Iterator<Item = &str> {
    let mut rest = text.trim_end_matches(is_space);
    let mut left = limit;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let space = if left == 0 { None } else { rest.char_indices().rfind(|&(_, c)| is_space(c)) };
        left = left.saturating_sub(1);
        let (before, word) = rest.split_at(space.map_or(0, |(at, space)| at + space.len_utf8()));
        rest = before.trim_end_matches(is_space);
        Some(word)
    })
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether a line feed behind the text ends a line that is empty.
pub(super) fn ends_a_line(text: &str) -> bool {
    text.is_empty() || text.ends_with(|c: char| is_line_end(c) && c != '\r')
}

/// The lines of a text by Python's line ends.
pub(super) fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find(is_line_end).unwrap_or(rest.len());
        let width =
            if rest[end..].starts_with("\r\n") { 2 } else { rest[end..].chars().next().map_or(0, char::len_utf8) };
        let line = &rest[..if keep_ends { end + width } else { end }];
        rest = &rest[end + width..];
        Some(line)
    })
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
    Value::tuple(Buffer::gathered(budget, parts.into_iter().map(|part| Value::text(budget, part)))?)
}

/// The part of a text between the `start` and `end` that a call may give, and the characters before it; nothing when it
/// begins behind the end of the text.
fn within<'t>(text: &'t str, arguments: &Arguments) -> Result<Option<(&'t str, usize)>> {
    let (start, end) = (arguments.optional_int(1, "start")?, arguments.optional_int(2, "end")?);
    if start.is_none() && end.is_none() {
        return Ok(Some((text, 0)));
    }
    let len = text.chars().count() as i128;
    let bound = |at: i128| if at < 0 { (at.saturating_add(len)).max(0) } else { at };
    let (start, end) = (bound(start.unwrap_or(0)), bound(end.unwrap_or(len)).min(len));
    if start > end {
        return Ok(None);
    }
    let at = |index: i128| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
    Ok(Some((&text[at(start)..at(end)], start as usize)))
}

fn position(text: &str, arguments: &Arguments, name: &str) -> Result<Value> {
    let part = arguments.text(0, "sub")?;
    let found = within(text, arguments)?.and_then(|(text, before)| {
        let at = if name.starts_with('r') { text.rfind(part) } else { text.find(part) };
        at.map(|at| before + text[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::Int(at as i128)),
        None if name.ends_with("index") => failure("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}

fn expand_tabs(budget: &Budget, text: &str, width: usize) -> Result<Value> {
    let mut out = Text::new(budget);
    let mut column = 0usize;
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = column.checked_rem(width).map_or(0, |used| width - used);
                out.repeat(" ", spaces)?;
                column += spaces;
            }
            c => {
                out.push_char(c)?;
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(out.value())
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
    Ok(out.value())
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
    Ok(out.value())
}

fn list_method(budget: &Budget, list: &Value, items: &Items, name: &str, arguments: &Arguments) -> Result<Value> {
    if name == "copy" {
        return Ok(list.clone());
    }
    let wanted = arguments.required(0, "value")?;
    let mut found = 0;
    let bound = |at: Option<i128>, other: usize| match at {
        Some(at) if at < 0 => count(at.saturating_add(items.len() as i128)),
        Some(at) => count(at),
        None => other,
    };
    let from = bound(arguments.optional_int(1, "start")?, 0);
    let end = bound(arguments.optional_int(2, "stop")?, items.len());
    for (index, item) in items.iter().enumerate().take(end).skip(from) {
        if equal(budget, item, wanted)? {
            found += 1;
            if name == "index" {
                return Ok(Value::Int(index as i128));
            }
        }
    }
    if name == "index" { failure("the value is not in the list") } else { Ok(Value::Int(found)) }
}

fn map_method(budget: &Budget, value: &Value, map: &Rc<Map>, name: &str, arguments: &Arguments) -> Result<Value> {
    match name {
        "get" => {
            let found = map.get(&Key::new(budget, arguments.required(0, "key")?.clone())?);
            Ok(found.or_else(|| arguments.get(1, "default")).cloned().unwrap_or(Value::None))
        }
        "items" => View::value(budget, map, Part::Items),
        "keys" => View::value(budget, map, Part::Keys),
        "values" => View::value(budget, map, Part::Values),
        "fromkeys" => {
            let value = arguments.get(1, "value").cloned().unwrap_or(Value::None);
            let mut entries = Entries::new(budget);
            for key in arguments.required(0, "iterable")?.iterate(budget)?.iter() {
                entries.insert(Key::new(budget, key.clone())?, value.clone())?;
            }
            Value::map(entries)
        }
        _ => Ok(value.clone()),
    }
}

/// Whether two collections have no item in common.
fn disjoint(budget: &Budget, items: &Items, other: &Value) -> Result<Value> {
    for item in other.iterate(budget)?.iter() {
        for own in items.iter() {
            if equal(budget, own, item)? {
                return Ok(Value::Bool(false));
            }
        }
    }
    Ok(Value::Bool(true))
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
pub(super) fn loop_attribute(budget: &Budget, current: &Loop, name: &str) -> Result<Option<Value>> {
    let (index, len) = (current.index.get(), current.items.len());
    let number = |value: usize| Some(Value::Int(value as i128));
    let outside = || Value::undefined(budget, format_args!("there is no such item"));
    let neighbour = |index: Option<usize>| {
        index.and_then(|index| current.items.get(index)).map_or_else(outside, |item| Ok(item.clone())).map(Some)
    };
    Ok(match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(len - index),
        "revindex0" => number(len - index - 1),
        "length" => number(len),
        "depth" => number(current.depth + 1),
        "depth0" => number(current.depth),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == len)),
        "previtem" => neighbour(index.checked_sub(1))?,
        "nextitem" => neighbour(index.checked_add(1))?,
        _ => None,
    })
}

/// Writes the parts of a text joined by the `join` filter, which takes any values.
pub(super) fn join_shown(budget: &Budget, separator: &str, values: &[Value]) -> Result<Value> {
    let mut out = Text::new(budget);
    for (index, value) in values.iter().enumerate() {
        out.push(if index > 0 { separator } else { "" })?;
        push_display(&mut out, value)?;
    }
    Ok(out.value())
}
