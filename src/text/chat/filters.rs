//! What may stand behind `|`: Jinja's filters, with the `tojson` of chat templates.

use super::arguments::{Arguments, count};
use super::budget::{Budget, INDENT_COLUMNS, Text, exceeded, failure};
use super::case;
use super::methods;
use super::operators;
use super::sequences;
use super::show::{JsonStyle, display, push_json};
use super::value::{Key, VALUES, Value, insert};
use crate::error::{Result, copied, copied_text, grow_text};
use indexmap::IndexMap;
use std::cmp::Ordering;

type Filter = fn(&Budget, &Value, &Arguments) -> Result<Value>;

const FILTERS: [(&str, Filter); 46] = [
    (
        "abs",
        |budget, value, _| if value.as_float() < Some(0.0) { operators::negate(value) } else { number(budget, value) },
    ),
    ("attr", attr),
    ("batch", sequences::batch),
    ("capitalize", |budget, value, arguments| method(budget, value, "capitalize", arguments)),
    ("center", |budget, value, arguments| method(budget, value, "center", arguments)),
    ("count", |budget, value, _| value.length(budget).map(|len| Value::Int(len as i128))),
    ("d", default),
    ("default", default),
    ("dictsort", sequences::dictsort),
    ("e", escape),
    ("escape", escape),
    ("first", |budget, value, _| Ok(sequences::end_of(value.iterate(budget)?.first()))),
    ("float", to_float),
    ("format", |budget, value, arguments| {
        super::format::percent(budget, &display(budget, value)?, &operand(budget, arguments)?)
    }),
    ("groupby", sequences::groupby),
    ("indent", indent),
    ("int", to_int),
    ("items", items),
    ("join", sequences::join),
    ("last", |budget, value, _| Ok(sequences::end_of(value.iterate(budget)?.last()))),
    ("length", |budget, value, _| value.length(budget).map(|len| Value::Int(len as i128))),
    ("list", |budget, value, _| value.iterate(budget).map(Value::List)),
    ("lower", |budget, value, arguments| method(budget, value, "lower", arguments)),
    ("map", sequences::map),
    ("max", |budget, value, arguments| sequences::extreme(budget, value, arguments, Ordering::Greater)),
    ("min", |budget, value, arguments| sequences::extreme(budget, value, arguments, Ordering::Less)),
    ("reject", |budget, value, arguments| sequences::select(budget, value, arguments, None, false)),
    ("rejectattr", |budget, value, arguments| sequences::select_by(budget, value, arguments, false)),
    ("replace", replace),
    ("reverse", sequences::reverse),
    ("round", round),
    ("safe", |_, value, _| Ok(value.clone())),
    ("select", |budget, value, arguments| sequences::select(budget, value, arguments, None, true)),
    ("selectattr", |budget, value, arguments| sequences::select_by(budget, value, arguments, true)),
    ("slice", sequences::slice),
    ("sort", sequences::sort),
    ("string", |budget, value, _| Ok(Value::Text(display(budget, value)?.into()))),
    ("sum", sequences::sum),
    ("title", |budget, value, _| Ok(Value::Text(case::title(budget, &display(budget, value)?)?.into()))),
    ("tojson", tojson),
    ("trim", trim),
    ("truncate", truncate),
    ("unique", sequences::unique),
    ("upper", |budget, value, arguments| method(budget, value, "upper", arguments)),
    ("urlencode", urlencode),
    ("wordcount", |budget, value, _| {
        let text = display(budget, value)?;
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        Ok(Value::Int(words.count() as i128))
    }),
];

/// Whether there is a filter called `name`.
pub(super) fn exists(name: &str) -> bool {
    FILTERS.binary_search_by_key(&name, |(name, _)| name).is_ok()
}

/// `value|name(arguments)`
pub(super) fn apply(budget: &Budget, name: &str, value: &Value, arguments: &Arguments) -> Result<Value> {
    budget.spend(1)?;
    match FILTERS.binary_search_by_key(&name, |(name, _)| name) {
        Ok(index) => FILTERS[index].1(budget, value, arguments),
        Err(_) => failure(format!("No filter named '{name}' found.")),
    }
}

fn method(budget: &Budget, value: &Value, name: &str, arguments: &Arguments) -> Result<Value> {
    let text = Value::Text(display(budget, value)?.into());
    methods::call(budget, &text, name, arguments)
}

fn number(_: &Budget, value: &Value) -> Result<Value> {
    match value.as_float() {
        Some(_) => Ok(value.clone()),
        None => failure(format!("'{}' object is not a number", value.type_name())),
    }
}

/// An attribute that is no item.
fn attr(_: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let name = arguments.text(0, "name")?;
    let is_item = matches!(value, Value::Map(_)) && !methods::has(value, name);
    if is_item { Ok(value.missing(name)) } else { operators::attribute(value, name) }
}

fn default(_: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let replaced = matches!(value, Value::Undefined(_)) || (arguments.flag(1, "boolean") && !value.is_true());
    let default = || arguments.get(0, "default_value").cloned().unwrap_or_else(|| Value::Text(String::new().into()));
    Ok(if replaced { default() } else { value.clone() })
}

fn escape(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    let mut out = Text::new(budget);
    for c in display(budget, value)?.chars() {
        match c {
            '&' => out.push("&amp;"),
            '<' => out.push("&lt;"),
            '>' => out.push("&gt;"),
            '"' => out.push("&#34;"),
            '\'' => out.push("&#39;"),
            c => out.push(c.encode_utf8(&mut [0; 4])),
        }?;
    }
    Ok(Value::Text(out.finish().into()))
}

fn trim(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let text = display(budget, value)?;
    Value::text(budget, methods::strip(&text, arguments.optional_text(0, "chars")?, "strip"))
}

fn replace(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let limit = arguments.optional_int(2, "count")?.filter(|&limit| limit >= 0).map_or(usize::MAX, count);
    let (old, new) = (arguments.required(0, "old")?, arguments.required(1, "new")?);
    let (text, old, new) = (display(budget, value)?, display(budget, old)?, display(budget, new)?);
    Ok(Value::Text(methods::replace(budget, &text, &old, &new, limit)?.into()))
}

fn indent(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let unit = match arguments.get(0, "width") {
        Some(Value::Text(unit)) if unit.len() <= INDENT_COLUMNS => unit.to_string(),
        Some(Value::Text(_)) => return exceeded("indent", format_args!("{INDENT_COLUMNS} columns")),
        width => match width.map_or(Some(4), Value::as_int) {
            Some(columns) if columns <= INDENT_COLUMNS as i128 => " ".repeat(count(columns)),
            _ => return exceeded("indent", format_args!("{INDENT_COLUMNS} columns")),
        },
    };
    let mut text = display(budget, value)?;
    // A last line that is empty counts as a line here.
    grow_text(&mut text, 1, VALUES)?;
    text.push('\n');
    let mut out = Text::new(budget);
    for (index, line) in methods::split_lines(&text, false)?.into_iter().enumerate() {
        out.push(if index > 0 { "\n" } else { "" })?;
        let indents =
            if index == 0 { arguments.flag(1, "first") } else { !line.is_empty() || arguments.flag(2, "blank") };
        out.push(if indents { &unit } else { "" })?;
        out.push(line)?;
    }
    Ok(Value::Text(out.finish().into()))
}

fn truncate(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let text = display(budget, value)?;
    let length = arguments.optional_int(0, "length")?.map_or(255, count);
    let leeway = arguments.optional_int(3, "leeway")?.map_or(5, count);
    let end = arguments.optional_text(2, "end")?.unwrap_or("...");
    if text.chars().count() <= length.saturating_add(leeway) {
        return Value::text(budget, &text);
    }
    let most = length.saturating_sub(end.chars().count());
    let kept = &text[..text.char_indices().nth(most).map_or(text.len(), |(at, _)| at)];
    let kept = if arguments.flag(1, "killwords") { kept } else { kept.rsplit_once(' ').map_or(kept, |(kept, _)| kept) };
    let mut out = Text::new(budget);
    out.push(kept)?;
    out.push(end)?;
    Ok(Value::Text(out.finish().into()))
}

fn urlencode(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    let mut out = Text::new(budget);
    for byte in display(budget, value)?.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                out.push((byte as char).encode_utf8(&mut [0; 4]))?;
            }
            _ => out.push(&format!("%{byte:02X}"))?,
        }
    }
    Ok(Value::Text(out.finish().into()))
}

fn to_int(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let default = || arguments.get(0, "default").cloned().unwrap_or(Value::Int(0));
    let base = arguments.optional_int(1, "base")?.unwrap_or(10);
    if let (Some(text), Ok(base @ 2..=36)) = (value.as_str(), u32::try_from(base)) {
        let digits = digits_of(budget, text)?;
        let parsed = i128::from_str_radix(&digits, base).ok();
        let parsed = parsed.or_else(|| digits.parse::<f64>().ok().filter(|f| f.is_finite()).map(|f| f as i128));
        return Ok(parsed.map_or_else(default, Value::Int));
    }
    let finite = |float: f64| float.is_finite().then_some(float as i128);
    Ok(value.as_int().or_else(|| value.as_float().and_then(finite)).map_or_else(default, Value::Int))
}

/// A text's number without the `_` between its digits.
fn digits_of(budget: &Budget, text: &str) -> Result<String> {
    methods::replace(budget, text.trim_matches(methods::is_space), "_", "", usize::MAX)
}

fn to_float(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let parsed = match value {
        Value::Text(text) => digits_of(budget, text)?.parse().ok(),
        other => other.as_float(),
    };
    Ok(parsed.map_or_else(|| arguments.get(0, "default").cloned().unwrap_or(Value::Float(0.0)), Value::Float))
}

fn round(_: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Some(number) = value.as_float() else {
        return failure(format!("'{}' object cannot be rounded", value.type_name()));
    };
    let precision = arguments.optional_int(0, "precision")?.unwrap_or(0).clamp(-300, 300) as i32;
    let method = arguments.optional_text(1, "method")?.unwrap_or("common");
    if let (Some(integer), "common") = (value.as_int(), method) {
        return Ok(Value::Int(if precision < 0 {
            (number * 10f64.powi(precision)).round_ties_even() as i128 * 10i128.saturating_pow(precision.unsigned_abs())
        } else {
            integer
        }));
    }
    let scale = 10f64.powi(precision);
    Ok(Value::Float(match method {
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        "common" if precision >= 0 => format!("{number:.*}", precision as usize).parse().unwrap_or(number),
        "common" => (number * scale).round_ties_even() / scale,
        _ => return failure("method must be common, ceil or floor"),
    }))
}

fn operand(budget: &Budget, arguments: &Arguments) -> Result<Value> {
    if arguments.named.is_empty() {
        return Value::tuple(budget, copied(&arguments.positional, VALUES)?);
    }
    let mut entries = IndexMap::new();
    for (name, value) in &arguments.named {
        insert(&mut entries, Key::text(name)?, value.clone())?;
    }
    Value::map(budget, entries)
}

fn tojson(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let indent = JsonStyle::indent(arguments.get(1, "indent").unwrap_or(&Value::None))?;
    let (mut comma, mut colon) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    match arguments.get(2, "separators") {
        None | Some(Value::None) => {}
        Some(separators) => match &separators.iterate(budget)?[..] {
            [Value::Text(between), Value::Text(after)] => {
                (comma, colon) = (copied_text(between, VALUES)?, copied_text(after, VALUES)?);
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
    Ok(Value::Text(out.finish().into()))
}

fn items(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    match value {
        Value::Undefined(_) => Value::list(budget, Vec::new()),
        Value::Map(map) => methods::items(budget, map),
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
