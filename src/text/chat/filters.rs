//! What may stand behind `|`: Jinja's filters, with the `tojson` of chat templates.

use super::arguments::{Arguments, count};
use super::budget::{Budget, INDENT_COLUMNS, Text, exceeded, failure};
use super::methods;
use super::operators;
use super::predicates;
use super::show::{JsonStyle, display, push_json};
use super::value::{Items, Key, Value};
use crate::error::Result;
use indexmap::IndexMap;
use std::cmp::Ordering;

type Filter = fn(&Budget, &Value, &Arguments) -> Result<Value>;

const FILTERS: [(&str, Filter); 46] = [
    ("abs", |budget, value, _| if value.as_float() < Some(0.0) { operators::negate(value) } else { number(budget, value) }),
    ("attr", |_, value, arguments| operators::attribute(value, arguments.text(0, "name")?)),
    ("batch", batch),
    ("capitalize", |budget, value, _| text_of(budget, value, |text| methods::capitalize(text))),
    ("center", |budget, value, arguments| method(budget, value, "center", arguments)),
    ("count", |_, value, _| value.length().map(|len| Value::Int(len as i128))),
    ("d", default),
    ("default", default),
    ("dictsort", dictsort),
    ("e", escape),
    ("escape", escape),
    ("first", |budget, value, _| Ok(end_of(value.iterate(budget)?.first()))),
    ("float", to_float),
    ("format", |budget, value, arguments| super::format::percent(budget, &display(budget, value)?, &operand(budget, arguments)?)),
    ("groupby", groupby),
    ("indent", indent),
    ("int", to_int),
    ("items", items),
    ("join", join),
    ("last", |budget, value, _| Ok(end_of(value.iterate(budget)?.last()))),
    ("length", |_, value, _| value.length().map(|len| Value::Int(len as i128))),
    ("list", |budget, value, _| value.iterate(budget).map(Value::List)),
    ("lower", |budget, value, arguments| method(budget, value, "lower", arguments)),
    ("map", map),
    ("max", |budget, value, arguments| extreme(budget, value, arguments, Ordering::Greater)),
    ("min", |budget, value, arguments| extreme(budget, value, arguments, Ordering::Less)),
    ("reject", |budget, value, arguments| select(budget, value, arguments, None, false)),
    ("rejectattr", |budget, value, arguments| select_by(budget, value, arguments, false)),
    ("replace", replace),
    ("reverse", reverse),
    ("round", round),
    ("safe", |_, value, _| Ok(value.clone())),
    ("select", |budget, value, arguments| select(budget, value, arguments, None, true)),
    ("selectattr", |budget, value, arguments| select_by(budget, value, arguments, true)),
    ("slice", slice),
    ("sort", sort),
    ("string", |budget, value, _| Ok(Value::Text(display(budget, value)?.into()))),
    ("sum", sum),
    ("title", |budget, value, _| text_of(budget, value, title)),
    ("tojson", tojson),
    ("trim", trim),
    ("truncate", truncate),
    ("unique", unique),
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

fn text_of(budget: &Budget, value: &Value, change: fn(&str) -> String) -> Result<Value> {
    let text = display(budget, value)?;
    budget.take(text.len().saturating_mul(3))?;
    Ok(Value::Text(change(&text).into()))
}

fn number(_: &Budget, value: &Value) -> Result<Value> {
    match value.as_float() {
        Some(_) => Ok(value.clone()),
        None => failure(format!("'{}' object is not a number", value.type_name())),
    }
}

fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        if begins { out.extend(c.to_uppercase()) } else { out.extend(c.to_lowercase()) }
        begins = methods::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

fn default(_: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let replaced = matches!(value, Value::Undefined(_)) || (arguments.flag(1, "boolean") && !value.is_true());
    let default = || arguments.get(0, "default_value").cloned().unwrap_or_else(|| Value::Text("".into()));
    Ok(if replaced { default() } else { value.clone() })
}

fn end_of(item: Option<&Value>) -> Value {
    item.cloned().unwrap_or_else(|| Value::Undefined("the sequence is empty, it has no first or last item".into()))
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

fn join(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let separator = arguments.get(0, "d").map_or(Ok(String::new()), |separator| display(budget, separator))?;
    let values = by_attribute(budget, &*value.iterate(budget)?, arguments.get(1, "attribute"))?;
    methods::join_shown(budget, &separator, &values)
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
    text.push('\n');
    let mut out = Text::new(budget);
    for (index, line) in methods::split_lines(&text, false).into_iter().enumerate() {
        out.push(if index > 0 { "\n" } else { "" })?;
        let indents = if index == 0 { arguments.flag(1, "first") } else { !line.is_empty() || arguments.flag(2, "blank") };
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
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = if arguments.flag(1, "killwords") { &kept } else { kept.rsplit_once(' ').map_or(&*kept, |(kept, _)| kept) };
    Value::text(budget, &format!("{kept}{end}"))
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
        let digits = text.trim_matches(methods::is_space).replace('_', "");
        budget.take(text.len())?;
        let parsed = i128::from_str_radix(&digits, base).ok();
        let parsed = parsed.or_else(|| digits.parse::<f64>().ok().filter(|f| f.is_finite()).map(|f| f as i128));
        return Ok(parsed.map_or_else(default, Value::Int));
    }
    let finite = |float: f64| float.is_finite().then_some(float as i128);
    Ok(value.as_int().or_else(|| value.as_float().and_then(finite)).map_or_else(default, Value::Int))
}

fn to_float(_: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let parsed = match value {
        Value::Text(text) => text.trim_matches(methods::is_space).replace('_', "").parse().ok(),
        other => other.as_float(),
    };
    Ok(parsed.map_or_else(|| arguments.get(0, "default").cloned().unwrap_or(Value::Float(0.0)), Value::Float))
}

fn round(_: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Some(number) = value.as_float() else { return failure(format!("'{}' object cannot be rounded", value.type_name())) };
    let precision = arguments.optional_int(0, "precision")?.unwrap_or(0).clamp(-300, 300) as i32;
    let scale = 10f64.powi(precision);
    Ok(Value::Float(match arguments.optional_text(1, "method")?.unwrap_or("common") {
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        "common" if precision >= 0 => format!("{number:.*}", precision as usize).parse().unwrap_or(number),
        "common" => (number * scale).round_ties_even() / scale,
        _ => return failure("method must be common, ceil or floor"),
    }))
}

fn operand(budget: &Budget, arguments: &Arguments) -> Result<Value> {
    if arguments.named.is_empty() {
        return Value::tuple(budget, arguments.positional.clone());
    }
    let entries = arguments.named.iter().map(|(name, value)| (Key::text(name), value.clone())).collect();
    Value::map(budget, entries)
}

fn tojson(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let indent = JsonStyle::indent(arguments.get(1, "indent").unwrap_or(&Value::None))?;
    let (mut comma, mut colon) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    match arguments.get(2, "separators") {
        None | Some(Value::None) => {}
        Some(separators) => match &separators.iterate(budget)?[..] {
            [Value::Text(between), Value::Text(after)] => (comma, colon) = (between.to_string(), after.to_string()),
            _ => return failure("separators must be two texts"),
        },
    }
    let style =
        JsonStyle { comma, colon, indent, sorted: arguments.flag(3, "sort_keys"), ascii: arguments.flag(0, "ensure_ascii") };
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

/// The value at a dotted path such as `function.name` or `0.id`.
fn at_path(budget: &Budget, value: &Value, path: &Value) -> Result<Value> {
    let Some(path) = path.as_str() else { return operators::item(budget, value, path) };
    path.split('.').try_fold(value.clone(), |value, part| {
        let part = part.parse().map_or_else(|_| Value::Text(part.into()), Value::Int);
        operators::item(budget, &value, &part)
    })
}

fn by_attribute(budget: &Budget, values: &Items, path: Option<&Value>) -> Result<Vec<Value>> {
    budget.take_items(values.len())?;
    match path {
        None | Some(Value::None) => Ok(values.to_vec()),
        Some(path) => values.iter().map(|value| at_path(budget, value, path)).collect(),
    }
}

fn map(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = value.iterate(budget)?;
    budget.take_items(values.len())?;
    if let Some(path) = arguments.named("attribute") {
        let default = arguments.named("default");
        let at = |value: &Value| match (at_path(budget, value, path)?, default) {
            (Value::Undefined(_), Some(default)) => Ok(default.clone()),
            (found, _) => Ok(found),
        };
        return Value::list(budget, values.iter().map(at).collect::<Result<_>>()?);
    }
    let (name, rest) = first_argument(arguments, 0)?;
    let name = name.map_or_else(|| failure("map requires a filter argument"), Ok)?;
    Value::list(budget, values.iter().map(|value| apply(budget, &name, value, &rest)).collect::<Result<_>>()?)
}

/// The name at `index` and the arguments after it.
fn first_argument(arguments: &Arguments, index: usize) -> Result<(Option<String>, Arguments)> {
    let name = match arguments.positional.get(index) {
        Some(_) => Some(arguments.text(index, "name")?.to_owned()),
        None => None,
    };
    let positional = arguments.positional.iter().skip(index + 1).cloned().collect();
    Ok((name, Arguments { positional, named: arguments.named.clone() }))
}

fn select_by(budget: &Budget, value: &Value, arguments: &Arguments, wanted: bool) -> Result<Value> {
    select(budget, value, arguments, Some(arguments.required(0, "attribute")?), wanted)
}

fn select(budget: &Budget, value: &Value, arguments: &Arguments, path: Option<&Value>, wanted: bool) -> Result<Value> {
    let (test, rest) = first_argument(arguments, usize::from(path.is_some()))?;
    let mut kept = Vec::new();
    for item in value.iterate(budget)?.iter() {
        let subject = path.map_or_else(|| Ok(item.clone()), |path| at_path(budget, item, path))?;
        let holds = match &test {
            Some(test) => predicates::holds(budget, test, &subject, &rest)?,
            None => subject.is_true(),
        };
        if holds == wanted {
            kept.push(item.clone());
        }
    }
    Value::list(budget, kept)
}

/// What values are compared by: their text in small letters, unless the case counts.
fn sort_key(budget: &Budget, value: &Value, case_sensitive: bool) -> Result<Value> {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::text(budget, &text.to_lowercase()),
        _ => Ok(value.clone()),
    }
}

fn sort_by_keys<T>(budget: &Budget, mut pairs: Vec<(Value, T)>, reverse: bool) -> Result<Vec<T>> {
    let mut error = None;
    pairs.sort_by(|(a, _), (b, _)| match operators::order(budget, a, b) {
        Ok(order) if reverse => order.unwrap_or(Ordering::Equal).reverse(),
        Ok(order) => order.unwrap_or(Ordering::Equal),
        Err(first) => {
            error.get_or_insert(first);
            Ordering::Equal
        }
    });
    error.map_or_else(|| Ok(pairs.into_iter().map(|(_, value)| value).collect()), Err)
}

fn keyed(budget: &Budget, values: &Items, path: Option<&Value>, case: bool) -> Result<Vec<(Value, Value)>> {
    let keys = by_attribute(budget, values, path)?;
    let keys = keys.iter().map(|key| sort_key(budget, key, case)).collect::<Result<Vec<_>>>()?;
    Ok(keys.into_iter().zip(values.iter().cloned()).collect())
}

fn sort(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = value.iterate(budget)?;
    let pairs = keyed(budget, &values, arguments.get(2, "attribute"), arguments.flag(1, "case_sensitive"))?;
    Value::list(budget, sort_by_keys(budget, pairs, arguments.flag(0, "reverse"))?)
}

fn dictsort(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Value::Map(map) = value else { return failure(format!("'{}' object has no attribute 'items'", value.type_name())) };
    let by_value = match arguments.optional_text(1, "by")?.unwrap_or("key") {
        "key" => false,
        "value" => true,
        _ => return failure("you can only sort by either \"key\" or \"value\""),
    };
    budget.take_items(3 * map.len())?;
    let mut pairs = Vec::new();
    for (key, value) in map.iter() {
        let subject = if by_value { value } else { &key.0 };
        let pair = Value::tuple(budget, vec![key.0.clone(), value.clone()])?;
        pairs.push((sort_key(budget, subject, arguments.flag(0, "case_sensitive"))?, pair));
    }
    Value::list(budget, sort_by_keys(budget, pairs, arguments.flag(2, "reverse"))?)
}

fn unique(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = value.iterate(budget)?;
    let mut first: IndexMap<Key, Value> = IndexMap::new();
    for (key, value) in keyed(budget, &values, arguments.get(1, "attribute"), arguments.flag(0, "case_sensitive"))? {
        budget.spend(1)?;
        first.entry(Key::new(key)?).or_insert(value);
    }
    Value::list(budget, first.into_values().collect())
}

fn groupby(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let path = arguments.required(0, "attribute")?;
    let values = value.iterate(budget)?;
    let pairs = keyed(budget, &values, Some(path), arguments.flag(2, "case_sensitive"))?;
    let pairs: Vec<(Value, (Value, Value))> = pairs.into_iter().map(|(key, value)| (key.clone(), (key, value))).collect();
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, value) in sort_by_keys(budget, pairs, false)? {
        match groups.last_mut() {
            Some((last, group)) if operators::equal(budget, last, &key)? => group.push(value),
            _ => groups.push((key, vec![value])),
        }
    }
    budget.take_items(groups.len())?;
    let group = |(_, group): (Value, Vec<Value>)| {
        let key = at_path(budget, &group[0], path)?;
        let group = Value::list(budget, group)?;
        Value::tuple(budget, vec![key, group])
    };
    Value::list(budget, groups.into_iter().map(group).collect::<Result<_>>()?)
}

fn extreme(budget: &Budget, value: &Value, arguments: &Arguments, wanted: Ordering) -> Result<Value> {
    let values = value.iterate(budget)?;
    let mut best: Option<(Value, Value)> = None;
    for (key, value) in keyed(budget, &values, arguments.get(1, "attribute"), arguments.flag(0, "case_sensitive"))? {
        let better = match &best {
            Some((other, _)) => operators::order(budget, &key, other)? == Some(wanted),
            None => true,
        };
        if better {
            best = Some((key, value));
        }
    }
    Ok(end_of(best.map(|(_, value)| value).as_ref()))
}

fn sum(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = by_attribute(budget, &*value.iterate(budget)?, arguments.get(0, "attribute"))?;
    let start = arguments.get(1, "start").cloned().unwrap_or(Value::Int(0));
    let add = minijinja::machinery::ast::BinOpKind::Add;
    values.iter().try_fold(start, |sum, value| operators::binary(budget, add, &sum, value))
}

fn reverse(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    if let Value::Text(text) = value {
        budget.take(text.len())?;
        return Ok(Value::Text(text.chars().rev().collect::<String>().into()));
    }
    let values = value.iterate(budget)?;
    budget.take_items(values.len())?;
    Value::list(budget, values.iter().rev().cloned().collect())
}

fn batch(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let size = arguments.optional_int(0, "linecount")?.map_or(0, count);
    let values = value.iterate(budget)?;
    if size == 0 {
        return failure("batch needs a count above zero");
    }
    budget.take_items(values.len())?;
    let mut rows = Vec::new();
    for row in values.chunks(size) {
        let mut row = row.to_vec();
        if let Some(fill) = arguments.get(1, "fill_with").filter(|fill| !matches!(fill, Value::None)) {
            budget.take_items(size)?;
            row.resize(size, fill.clone());
        }
        rows.push(Value::list(budget, row)?);
    }
    Value::list(budget, rows)
}

fn slice(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let columns = arguments.optional_int(0, "slices")?.map_or(0, count);
    let values = value.iterate(budget)?;
    if columns == 0 {
        return failure("slice needs a count above zero");
    }
    budget.take_items(columns.saturating_add(values.len()))?;
    let (each, longer) = (values.len() / columns, values.len() % columns);
    let mut from = 0;
    let mut parts = Vec::new();
    for column in 0..columns {
        let len = each + usize::from(column < longer);
        let mut part = values[from..from + len].to_vec();
        if let (Some(fill), true) = (arguments.get(1, "fill_with"), longer > 0 && column >= longer) {
            part.push(fill.clone());
        }
        parts.push(Value::list(budget, part)?);
        from += len;
    }
    Value::list(budget, parts)
}

#[cfg(test)]
mod tests {
    use super::FILTERS;

    #[test]
    fn filters_are_sorted_for_their_search() {
        assert!(FILTERS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
