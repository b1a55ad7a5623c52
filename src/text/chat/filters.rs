//! What may stand behind `|`: Jinja's filters, with the `tojson` of chat templates.

use super::arguments::{Arguments, count};
use super::arithmetic;
use super::attributes;
use super::budget::{Budget, Cost, INDENT_COLUMNS, exceeded, failure};
use super::case;
use super::characters;
use super::heap::{Buffer, Entries, Str, Text};
use super::integer;
use super::key::Key;
use super::lazy::{Generator, Part, View};
use super::links;
use super::markup;
use super::methods;
use super::operators;
use super::pretty;
use super::sequences;
use super::show::{JsonStyle, display, push_json};
use super::tree::BinOpKind;
use super::value::{Items, Value};
use super::wrap;
use crate::error::{Excerpt, Result};
use std::cmp::Ordering;
use std::rc::Rc;

/// Units of work for each byte of a text whose characters are classified.
const CLASS_UNITS: usize = 8;

type Filter = fn(&Budget, &Value, &Arguments) -> Result<Value>;

/// All filters in the order of their names, with what a call pays for its operands.
pub(super) const FILTERS: [(&str, Cost, Filter); 54] = [
    ("abs", Cost::Constant, |budget, value, _| match value {
        Value::Bool(value) => Ok(Value::Int((*value).into())),
        value if value.as_float() < Some(0.0) => arithmetic::negate(budget, value),
        value => number(budget, value),
    }),
    ("attr", Cost::Constant, attr),
    ("batch", Cost::Operands, |budget, value, arguments| Generator::of_all(budget, value, sequences::batch, arguments)),
    ("capitalize", Cost::Operands, |budget, value, arguments| method(budget, value, "capitalize", arguments)),
    ("center", Cost::Operands, |budget, value, arguments| method(budget, value, "center", arguments)),
    ("count", Cost::Constant, |budget, value, _| value.length(budget).map(|len| Value::Int(len as i128))),
    ("d", Cost::Constant, default),
    ("default", Cost::Constant, default),
    ("dictsort", Cost::Operands, sequences::dictsort),
    ("e", Cost::Operands, markup::escape),
    ("escape", Cost::Operands, markup::escape),
    ("filesizeformat", Cost::Constant, file_size),
    ("first", Cost::Constant, sequences::first),
    ("float", Cost::Constant, to_float),
    ("forceescape", Cost::Operands, markup::force_escape),
    ("format", Cost::Operands, |budget, value, arguments| {
        super::format::percent(budget, &Value::Text(display(budget, value)?), &operand(budget, arguments)?)
    }),
    ("groupby", Cost::Operands, sequences::groupby),
    ("indent", Cost::Operands, indent),
    ("int", Cost::Constant, to_int),
    ("items", Cost::Constant, |budget, value, arguments| Generator::of_all(budget, value, items, arguments)),
    ("join", Cost::Operands, sequences::join),
    ("last", Cost::Constant, sequences::last),
    ("length", Cost::Constant, |budget, value, _| value.length(budget).map(|len| Value::Int(len as i128))),
    ("list", Cost::Constant, |budget, value, _| value.iterate(budget).map(Value::List)),
    ("lower", Cost::Operands, |budget, value, arguments| method(budget, value, "lower", arguments)),
    ("map", Cost::Operands, sequences::map),
    ("max", Cost::Operands, |budget, value, arguments| sequences::extreme(budget, value, arguments, Ordering::Greater)),
    ("min", Cost::Operands, |budget, value, arguments| sequences::extreme(budget, value, arguments, Ordering::Less)),
    ("pprint", Cost::Operands, |budget, value, _| pretty::pretty(budget, value)),
    ("random", Cost::Constant, sequences::random),
    ("reject", Cost::Operands, |budget, value, arguments| sequences::select(budget, value, arguments, None, false)),
    ("rejectattr", Cost::Operands, |budget, value, arguments| sequences::select_by(budget, value, arguments, false)),
    ("replace", Cost::Operands, replace),
    ("reverse", Cost::Operands, sequences::reverse),
    ("round", Cost::Constant, round),
    ("safe", Cost::Constant, markup::safe),
    ("select", Cost::Operands, |budget, value, arguments| sequences::select(budget, value, arguments, None, true)),
    ("selectattr", Cost::Operands, |budget, value, arguments| sequences::select_by(budget, value, arguments, true)),
    ("slice", Cost::Operands, |budget, value, arguments| Generator::of_all(budget, value, sequences::slice, arguments)),
    ("sort", Cost::Operands, sequences::sort),
    ("string", Cost::Constant, |budget, value, _| display(budget, value).map(Value::Text)),
    ("striptags", Cost::Operands, markup::strip_tags),
    ("sum", Cost::Operands, sequences::sum),
    ("title", Cost::Operands, |budget, value, _| case::title(budget, &display(budget, value)?)),
    ("tojson", Cost::Operands, tojson),
    ("trim", Cost::Operands, trim),
    ("truncate", Cost::Operands, truncate),
    ("unique", Cost::Operands, |budget, value, arguments| {
        Generator::of_all(budget, value, sequences::unique, arguments)
    }),
    ("upper", Cost::Operands, |budget, value, arguments| method(budget, value, "upper", arguments)),
    ("urlencode", Cost::Operands, markup::url_encode),
    ("urlize", Cost::Operands, links::urlize),
    ("wordcount", Cost::Operands, |budget, value, _| {
        let text = display(budget, value)?;
        budget.work(text.len().saturating_mul(CLASS_UNITS))?;
        let words = text.split(|c: char| !characters::is_word(c)).filter(|word| !word.is_empty());
        Ok(Value::Int(words.count() as i128))
    }),
    ("wordwrap", Cost::Operands, wrap::word_wrap),
    ("xmlattr", Cost::Operands, markup::attributes),
];

/// Whether there is a filter called `name`.
pub(super) fn exists(name: &str) -> bool {
    FILTERS.binary_search_by_key(&name, |(name, ..)| name).is_ok()
}

/// `value|name(arguments)`
pub(super) fn apply(budget: &Budget, name: &str, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Ok(index) = FILTERS.binary_search_by_key(&name, |(name, ..)| name) else {
        return failure(format!("no filter named '{}' found", Excerpt(name.as_bytes())));
    };
    let (_, cost, filter) = FILTERS[index];
    let _level = budget.enter()?;
    budget.call(cost, value, arguments)?;
    filter(budget, value, arguments)
}

fn method(budget: &Budget, value: &Value, name: &str, arguments: &Arguments) -> Result<Value> {
    let text = Value::Text(display(budget, value)?);
    methods::call(budget, &text, name, arguments)
}

fn number(_: &Budget, value: &Value) -> Result<Value> {
    match value.as_float() {
        Some(_) => Ok(value.clone()),
        None => failure(format!("'{}' object is not a number", value.type_name())),
    }
}

/// An attribute that is no item.
fn attr(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let name = arguments.text(0, "name")?;
    let is_item = matches!(value, Value::Map(_)) && attributes::find(value, name).is_none();
    if is_item { value.missing(budget, name) } else { operators::attribute(budget, value, name) }
}

fn default(_: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let replaced = matches!(value, Value::Undefined(_)) || (arguments.flag(1, "boolean") && !value.is_true());
    let default = || arguments.get(0, "default_value").cloned().unwrap_or_else(|| Value::Text(Str::default()));
    Ok(if replaced { default() } else { value.clone() })
}

fn trim(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    method(budget, value, "strip", arguments)
}

fn replace(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let limit = arguments.optional_int(2, "count")?.filter(|&limit| limit >= 0).map_or(usize::MAX, count);
    let (old, new) = (arguments.required(0, "old")?, arguments.required(1, "new")?);
    if arguments.escapes && (value.is_markup() || old.is_markup() || new.is_markup()) {
        let (text, new) = (markup::escaped(budget, value)?, markup::escaped(budget, new)?);
        return methods::replace(budget, &text, &display(budget, old)?, &new, limit)
            .map(|text| Value::Text(text.marked()));
    }
    let (text, old, new) = (display(budget, value)?, display(budget, old)?, display(budget, new)?);
    methods::replace(budget, &text, &old, &new, limit).map(Value::Text)
}

fn indent(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Value::Text(text) = value else {
        return failure(format!("'{}' object cannot be indented, only text", value.type_name()));
    };
    let unit = match arguments.get(0, "width") {
        Some(Value::Text(unit)) if unit.len() <= INDENT_COLUMNS => unit.to_string(),
        Some(Value::Text(_)) => return exceeded("indent", format_args!("{INDENT_COLUMNS} columns")),
        width => match width.map_or(Some(4), Value::as_position) {
            Some(columns) if columns <= INDENT_COLUMNS as i128 => " ".repeat(count(columns)),
            _ => return exceeded("indent", format_args!("{INDENT_COLUMNS} columns")),
        },
    };
    let mut out = Text::new(budget);
    // A last line that is empty counts as a line here.
    let lines = methods::lines(text, false).chain(methods::ends_a_line(text).then_some(""));
    for (index, line) in lines.enumerate() {
        out.push(if index > 0 { "\n" } else { "" })?;
        let indents =
            if index == 0 { arguments.flag(1, "first") } else { !line.is_empty() || arguments.flag(2, "blank") };
        out.push(if indents { &unit } else { "" })?;
        out.push(line)?;
    }
    operators::as_text(budget, value, out.value())
}

fn truncate(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let length = arguments.optional_int(0, "length")?.map_or(255, count);
    let leeway = arguments.optional_int(3, "leeway")?.unwrap_or(5);
    let end = arguments.optional_text(2, "end")?.unwrap_or("...");
    let most = length.checked_sub(end.chars().count());
    let (Some(most), 0..) = (most, leeway) else {
        return failure(format!("truncate needs a length of at least {} and no leeway below 0", end.chars().count()));
    };
    if value.length(budget)? <= length.saturating_add(count(leeway)) {
        return Ok(value.clone());
    }
    let Value::Text(text) = value else {
        return failure(format!("'{}' object cannot be truncated, only text", value.type_name()));
    };
    let kept = &text[..text.char_indices().nth(most).map_or(text.len(), |(at, _)| at)];
    let kept = if arguments.flag(1, "killwords") { kept } else { kept.rsplit_once(' ').map_or(kept, |(kept, _)| kept) };
    let kept = operators::as_text(budget, value, Value::text(budget, kept)?)?;
    operators::binary(budget, BinOpKind::Add, &kept, &Value::text(budget, end)?)
}

fn to_int(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    value.defined()?;
    let default = || Ok(arguments.get(0, "default").cloned().unwrap_or(Value::Int(0)));
    let base = arguments.get(1, "base").map_or(Some(10), Value::as_position);
    let float = match value {
        Value::Text(text) => {
            budget.work(text.len().saturating_mul(4))?;
            let Some(base) = base else { return failure("the base of int must be a number") };
            if let Some(number) = integer_of(budget, text, base)? {
                return Ok(number);
            }
            float_of(text)
        }
        Value::Bool(value) => return Ok(Value::Int((*value).into())),
        Value::Int(_) | Value::Large(_) => return Ok(value.clone()),
        Value::Float(float) if float.is_infinite() => return failure("cannot convert float infinity to integer"),
        other => other.as_float(),
    };
    match float {
        Some(float) if float.is_finite() => integer::value(budget, integer::whole(float)),
        _ => default(),
    }
}

/// The integer that a text says in `base`, as Python reads it: with a sign, spaces around it, `_` between digits, and a prefix
/// that fits the base, which base 0 goes by.
fn integer_of(budget: &Budget, text: &str, base: i128) -> Result<Option<Value>> {
    let text = text.trim_matches(characters::is_space);
    let (negative, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let prefixed = match digits.get(..2) {
        Some("0b" | "0B") => Some(2),
        Some("0o" | "0O") => Some(8),
        Some("0x" | "0X") => Some(16),
        _ => None,
    };
    let prefixed = prefixed.filter(|&prefix| base == 0 || base == prefix);
    let base = prefixed.unwrap_or(if base == 0 { 10 } else { base });
    let digits = if prefixed.is_some() { digits[2..].strip_prefix('_').unwrap_or(&digits[2..]) } else { digits };
    let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else { return Ok(None) };
    let digit = |c: char| c.to_digit(base).or_else(|| characters::decimal(c).filter(|&digit| digit < base));
    if !has_digits(digits, |c| digit(c).is_some()) {
        return Ok(None);
    }
    let mut plain = Text::new(budget);
    digits
        .chars()
        .filter_map(digit)
        .filter_map(|digit| char::from_digit(digit, base))
        .try_for_each(|c| plain.push_char(c))?;
    integer::parsed(budget, &plain.finish(), base, negative)
}

/// Whether a text has digits alone, with single `_` between them.
fn has_digits(text: &str, is_digit: impl Fn(char) -> bool) -> bool {
    let mut digit_before = false;
    text.ends_with(&is_digit)
        && text.chars().all(|c| {
            let fits = is_digit(c) || (c == '_' && digit_before);
            digit_before = is_digit(c);
            fits
        })
}

/// The float that a text says, as Python reads it.
fn float_of(text: &str) -> Option<f64> {
    let text = text.trim_matches(characters::is_space);
    if !text.contains('_') {
        return text.parse().ok();
    }
    let parts_fit =
        text.split(['.', 'e', 'E', '+', '-']).all(|part| part.is_empty() || has_digits(part, |c| c.is_ascii_digit()));
    if parts_fit { text.replace('_', "").parse().ok() } else { None }
}

fn to_float(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    value.defined()?;
    let parsed = match value {
        Value::Text(text) => {
            budget.work(text.len().saturating_mul(4))?;
            float_of(text)
        }
        other => arithmetic::finite(other)?,
    };
    Ok(parsed.map_or_else(|| arguments.get(0, "default").cloned().unwrap_or(Value::Float(0.0)), Value::Float))
}

/// A size in bytes with a unit that suits it.
fn file_size(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Some(bytes) = arithmetic::finite(value)?.or_else(|| value.as_str()?.trim().parse().ok()) else {
        return failure(format!("'{}' object is no size", value.type_name()));
    };
    let binary = arguments.flag(0, "binary");
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    let units = if binary {
        ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    } else {
        ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]
    };
    let text = if bytes == 1.0 {
        "1 Byte".to_owned()
    } else if bytes < base {
        format!("{:.0} Bytes", bytes.trunc() + 0.0)
    } else {
        let power = (2..9).find(|&power| bytes < base.powi(power)).unwrap_or(9);
        format!("{:.1} {}", base * bytes / base.powi(power), units[power as usize - 2])
    };
    Value::text(budget, &text)
}

fn round(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Some(number) = value.as_float() else {
        return failure(format!("'{}' object cannot be rounded", value.type_name()));
    };
    let precision = arguments.optional_int(0, "precision")?.unwrap_or(0).clamp(-300, 300) as i32;
    let method = arguments.optional_text(1, "method")?.unwrap_or("common");
    let zeros = precision.min(0).unsigned_abs();
    // Exact digits take time with their number.
    budget.spend(1 + u64::from(precision.unsigned_abs()) / 4)?;
    match (method, value.as_big()) {
        ("common", Some(number)) => integer::value(budget, integer::rounded(budget, &number, zeros, false)?),
        ("common", None) if !number.is_finite() => Ok(value.clone()),
        ("common", None) if precision >= 0 => {
            Ok(Value::Float(format!("{number:.*}", precision as usize).parse().unwrap_or(number)))
        }
        ("common", None) => {
            let whole = integer::whole(number);
            let rounded = integer::rounded(budget, &whole, zeros, number.fract() != 0.0)?;
            let rounded = integer::float(&rounded).map(|rounded| rounded.copysign(number));
            rounded
                .map_or_else(|| failure("the rounded number is too large for a float"), |float| Ok(Value::Float(float)))
        }
        ("ceil" | "floor", _) => round_to(budget, value, precision, method == "ceil"),
        _ => failure("method must be common, ceil or floor"),
    }
}

/// A number with `precision` digits behind the point, the next one up or down.
fn round_to(budget: &Budget, value: &Value, precision: i32, up: bool) -> Result<Value> {
    let too_large = || failure("the number is too large, or not finite, to be rounded");
    let float = |float: Option<f64>| float.map_or_else(too_large, |float| Ok(Value::Float(float)));
    if let (Some(number), 0..) = (value.as_big(), precision) {
        return float(integer::float(&number));
    }
    let scale: f64 = format!("1e{precision}").parse().unwrap_or(1.0);
    let scaled = value.as_float().unwrap_or(f64::NAN) * scale;
    if !scaled.is_finite() {
        return too_large();
    }
    let whole = integer::whole(if up { scaled.ceil() } else { scaled.floor() });
    match precision {
        0.. => {
            let unit = integer::power_of_ten(budget, precision.unsigned_abs())?;
            float(integer::divided(budget, &whole, &unit)?)
        }
        _ => float(integer::float(&whole).map(|whole| whole / scale)),
    }
}

fn operand(budget: &Budget, arguments: &Arguments) -> Result<Value> {
    if arguments.named.is_empty() {
        return Value::tuple(Buffer::of(budget, arguments.positional.iter().cloned())?);
    }
    let mut entries = Entries::new(budget);
    for (name, value) in arguments.named.iter() {
        entries.insert(Key::new(budget, Value::Text(name.clone()))?, value.clone())?;
    }
    Value::map(entries)
}

fn tojson(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let indent = JsonStyle::indent(arguments.get(1, "indent").unwrap_or(&Value::None))?;
    let comma = if indent.is_some() { "," } else { ", " };
    let (mut comma, mut colon) = (Str::of(budget, comma)?, Str::of(budget, ": ")?);
    match arguments.get(2, "separators") {
        None | Some(Value::None) => {}
        Some(separators) => match &separators.iterate(budget)?[..] {
            [Value::Text(between), Value::Text(after)] => {
                (comma, colon) = (between.clone(), after.clone());
            }
            _ => return failure("separators must be two texts"),
        },
    }
    let style = JsonStyle {
        comma,
        colon,
        indent,
        sorted: arguments.flag(3, "sort_keys"),
        ascii: arguments.flag(0, "ensure_ascii"),
    };
    let mut out = Text::new(budget);
    push_json(&mut out, value, &style, 0)?;
    Ok(out.value())
}

fn items(budget: &Budget, value: &Value, _: &Arguments) -> Result<Rc<Items>> {
    match value {
        Value::Undefined(_) => Items::new(Buffer::new(budget)),
        Value::Map(map) => View::value(budget, map, Part::Items)?.iterate(budget),
        _ => failure("Can only get item pairs from a mapping."),
    }
}

#[cfg(test)]
mod tests {
    use super::FILTERS;

    #[test]
    fn filters_are_sorted_for_their_search() {
        assert!(FILTERS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
