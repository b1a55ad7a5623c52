//! The filter `pprint`: values laid out in lines of 80 columns, as Python's `pprint` does it.

use super::budget::{Budget, exceeded};
use super::characters::is_space;
use super::heap::{Buffer, Str, Text};
use super::key::Key;
use super::methods;
use super::operators;
use super::show::push_repr;
use super::value::{Map, Value};
use crate::error::Result;
use std::cmp::Ordering;

/// Columns of a line.
const WIDTH: isize = 80;

/// Where a part of a value stands.
#[derive(Clone, Copy)]
struct Place {
    /// Columns before it.
    indent: isize,
    /// Columns that what closes the values around it needs behind it.
    allowance: isize,
    /// Containers around it.
    level: usize,
}

/// The filter.
pub(super) fn pretty(budget: &Budget, value: &Value) -> Result<Value> {
    let sorted = sorted(budget, value)?;
    let mut out = Text::new(budget);
    push(&mut out, &sorted, Place { indent: 0, allowance: 0, level: 0 })?;
    Ok(out.value())
}

/// The value with all its dictionaries in the order of their keys.
fn sorted(budget: &Budget, value: &Value) -> Result<Value> {
    let _level = budget.enter()?;
    let each = |items: &[Value]| Buffer::gathered(budget, items.iter().map(|item| sorted(budget, item)));
    match value {
        Value::List(items) => Value::list(each(items)?),
        Value::Tuple(items) => Value::tuple(each(items)?),
        Value::Map(map) => {
            let mut entries = super::heap::Entries::new(budget);
            for key in keys(budget, map)?.iter() {
                let value = map.get(key).map_or(Ok(Value::None), |value| sorted(budget, value))?;
                entries.insert(key.clone(), value)?;
            }
            Value::map(entries)
        }
        other => Ok(other.clone()),
    }
}

/// Keys of types that have no common order stand in that of the types' names.
fn keys(budget: &Budget, map: &Map) -> Result<Buffer<Key>> {
    let mut keys: Buffer<(Value, Key)> = Buffer::new(budget);
    for key in map.keys() {
        // By insertion behind the last that is not greater; each look goes to the middle of what is left.
        let (mut low, mut high) = (0, keys.len());
        while low < high {
            let middle = (low + high) / 2;
            let order = match operators::order(budget, &keys[middle].0, &key.0) {
                Ok(order) => order.unwrap_or(Ordering::Equal),
                Err(_) => {
                    budget.spend(0)?;
                    keys[middle].0.type_name().cmp(key.0.type_name())
                }
            };
            if order == Ordering::Greater { high = middle } else { low = middle + 1 }
        }
        keys.push((key.0.clone(), key.clone()))?;
        keys[low..].rotate_right(1);
    }
    Buffer::of(budget, keys.into_iter().map(|(_, key)| key))
}

fn shown(budget: &Budget, value: &Value) -> Result<Str> {
    let mut out = Text::new(budget);
    push_repr(&mut out, value)?;
    Ok(out.finish())
}

fn columns(budget: &Budget, text: &str) -> Result<isize> {
    budget.work(text.len())?;
    Ok(text.chars().count() as isize)
}

fn push(out: &mut Text, value: &Value, place: Place) -> Result<()> {
    let budget = out.budget().clone();
    let text = shown(&budget, value)?;
    let room = WIDTH - place.indent - place.allowance;
    if columns(&budget, &text)? <= room {
        return out.push(&text);
    }
    let _level = budget.enter()?;
    let inner = |close: isize| Place { allowance: place.allowance + close, level: place.level + 1, ..place };
    match value {
        Value::List(items) if !items.is_empty() => push_items(out, ["[", "]"], items, inner(1)),
        Value::Tuple(items) if items.len() == 1 => push_items(out, ["(", ",)"], items, inner(2)),
        Value::Tuple(items) if !items.is_empty() => push_items(out, ["(", ")"], items, inner(1)),
        Value::Map(map) if !map.is_empty() => push_entries(out, map, inner(1)),
        Value::Text(text) if !text.is_markup() => push_text(out, text, inner(0)),
        _ => out.push(&text),
    }
}

fn new_line(out: &mut Text, indent: isize) -> Result<()> {
    out.push("\n")?;
    out.repeat(" ", indent.max(0) as usize)
}

fn push_items(out: &mut Text, [open, close]: [&str; 2], items: &[Value], place: Place) -> Result<()> {
    let indent = place.indent + 1;
    out.push(open)?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(",")?;
            new_line(out, indent)?;
        }
        let allowance = if index + 1 == items.len() { place.allowance } else { 1 };
        push(out, item, Place { indent, allowance, ..place })?;
    }
    out.push(close)
}

fn push_entries(out: &mut Text, map: &Map, place: Place) -> Result<()> {
    let indent = place.indent + 1;
    out.push("{")?;
    for (index, (key, value)) in map.iter().enumerate() {
        if index > 0 {
            out.push(",")?;
            new_line(out, indent)?;
        }
        let key = shown(out.budget(), &key.0)?;
        out.push(&key)?;
        out.push(": ")?;
        let width = columns(out.budget(), &key)?;
        let allowance = if index + 1 == map.len() { place.allowance } else { 1 };
        push(out, value, Place { indent: indent + width + 2, allowance, ..place })?;
    }
    out.push("}")
}

/// A text in several literals, each of a line or of words that fit.
fn push_text(out: &mut Text, text: &str, place: Place) -> Result<()> {
    let budget = out.budget().clone();
    if text.len() > isize::MAX as usize / 8 {
        return exceeded("output", "a text");
    }
    let is_outermost = place.level == 1;
    let indent = place.indent + isize::from(is_outermost);
    let allowance = place.allowance + isize::from(is_outermost);
    let room = WIDTH - indent;
    let mut chunks: Buffer<Str> = Buffer::new(&budget);
    let mut lines = methods::lines(text, true).peekable();
    while let Some(line) = lines.next() {
        let behind = if lines.peek().is_none() { allowance } else { 0 };
        let whole = quoted(&budget, line)?;
        if columns(&budget, &whole)? <= room - behind {
            chunks.push(whole)?;
            continue;
        }
        push_words(&budget, &mut chunks, line, room, behind)?;
    }
    if let [only] = &chunks[..] {
        return out.push(only);
    }
    out.push(if is_outermost { "(" } else { "" })?;
    for (index, chunk) in chunks.iter().enumerate() {
        if index > 0 {
            new_line(out, indent)?;
        }
        out.push(chunk)?;
    }
    out.push(if is_outermost { ")" } else { "" })
}

fn quoted(budget: &Budget, text: &str) -> Result<Str> {
    shown(budget, &Value::text(budget, text)?)
}

/// The words of a line, with the spaces behind them, in chunks that are as long as they may be.
fn push_words(budget: &Budget, chunks: &mut Buffer<Str>, line: &str, room: isize, behind: isize) -> Result<()> {
    let (mut from, mut end) = (0, 0);
    while end < line.len() {
        let word = line[end..].find(is_space).map_or(line.len(), |at| end + at);
        let next = line[word..].find(|c| !is_space(c)).map_or(line.len(), |at| word + at);
        let room = if next == line.len() { room - behind } else { room };
        let fits = columns(budget, &quoted(budget, &line[from..next])?)? <= room;
        if !fits && end > from {
            chunks.push(quoted(budget, &line[from..end])?)?;
            from = end;
        }
        end = next;
    }
    chunks.push(quoted(budget, &line[from..])?)
}
