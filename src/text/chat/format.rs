//! Python's two ways to fill in a text: `"%s" % value` and `"{}".format(value)`.

use super::arguments::Arguments;
use super::budget::{Budget, Text, failure};
use super::operators;
use super::show::{push_display, push_repr};
use super::value::{VALUES, Value};
use crate::error::{Result, copied};

/// How a value is laid out in its place.
struct Spec {
    fill: char,
    align: Option<char>,
    plus: bool,
    alternate: bool,
    width: usize,
    comma: bool,
    precision: Option<usize>,
    kind: char,
}

/// Widest field and finest precision.
const MAX_WIDTH: usize = 1 << 16;
/// Finest precision of a number, which has no more than 1074 digits behind its point.
const MAX_DIGITS: usize = 4096;

/// `template % values`
pub(super) fn percent(budget: &Budget, template: &str, values: &Value) -> Result<Value> {
    let mut out = Text::new(budget);
    let positional: Vec<Value> = match values {
        Value::Tuple(items) => copied(items, VALUES)?,
        one => vec![one.clone()],
    };
    let mut next = positional.iter();
    let mut rest = template;
    while let Some(at) = rest.find('%') {
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push("%")?;
            rest = after;
            continue;
        }
        let named = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let value = match named {
            Some((name, after)) => {
                rest = after;
                operators::item(budget, values, &Value::text(budget, name)?)?
            }
            None => next.next().map_or_else(|| failure("not enough arguments for format string"), |v| Ok(v.clone()))?,
        };
        let (spec, after) = percent_spec(rest)?;
        push_formatted(&mut out, &value, &spec)?;
        rest = after;
    }
    out.push(rest)?;
    if next.next().is_some() && !matches!(values, Value::Map(_)) {
        return failure("not all arguments converted during string formatting");
    }
    Ok(Value::Text(out.finish().into()))
}

fn percent_spec(text: &str) -> Result<(Spec, &str)> {
    let mut spec = Spec::of('s');
    let flags = text.len() - text.trim_start_matches(['-', '+', ' ', '#', '0']).len();
    for flag in text[..flags].chars() {
        match flag {
            '-' => spec.align = Some('<'),
            '0' if spec.align.is_none() => (spec.fill, spec.align) = ('0', Some('=')),
            '+' => spec.plus = true,
            '#' => spec.alternate = true,
            _ => {}
        }
    }
    let (width, rest) = leading_number(&text[flags..])?;
    spec.width = width.unwrap_or(0);
    let (precision, rest) = leading_precision(rest)?;
    spec.precision = precision;
    spec.align = spec.align.or(Some('>'));
    let mut characters = rest.chars();
    spec.kind = characters.next().map_or_else(|| failure("incomplete format"), Ok)?;
    Ok((spec, characters.as_str()))
}

fn leading_number(text: &str) -> Result<(Option<usize>, &str)> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if digits == 0 {
        return Ok((None, text));
    }
    match text[..digits].parse() {
        Ok(number) if number <= MAX_WIDTH => Ok((Some(number), &text[digits..])),
        _ => failure(format!("format width {} is too large, at most {MAX_WIDTH}", &text[..digits.min(20)])),
    }
}

fn leading_precision(text: &str) -> Result<(Option<usize>, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Ok((None, text)) };
    let (precision, rest) = leading_number(rest)?;
    Ok((Some(precision.unwrap_or(0)), rest))
}

/// `template.format(arguments)`
pub(super) fn braces(budget: &Budget, template: &str, arguments: &Arguments) -> Result<Value> {
    let mut out = Text::new(budget);
    let mut automatic = 0;
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let doubled = rest[at..].starts_with("{{") || rest[at..].starts_with("}}");
        if doubled {
            out.push(&rest[at..=at])?;
            rest = &rest[at + 2..];
            continue;
        }
        let inner = rest[at..].strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let Some((field, after)) = inner else { return failure("single brace in format string") };
        push_field(&mut out, field, arguments, &mut automatic)?;
        rest = after;
    }
    out.push(rest)?;
    Ok(Value::Text(out.finish().into()))
}

fn push_field(out: &mut Text, field: &str, arguments: &Arguments, automatic: &mut usize) -> Result<()> {
    let (path, spec) = field.split_once(':').unwrap_or((field, ""));
    let (path, conversion) = path.split_once('!').unwrap_or((path, ""));
    let name_end = path.find(['.', '[']).unwrap_or(path.len());
    let name = &path[..name_end];
    let found = if name.is_empty() {
        *automatic += 1;
        arguments.positional.get(*automatic - 1)
    } else {
        name.parse().map_or_else(|_| arguments.named(name), |index: usize| arguments.positional.get(index))
    };
    let Some(value) = found else { return failure(format!("no argument for the format field '{name}'")) };
    let value = follow(out.budget(), value.clone(), &path[name_end..])?;
    let mut shown = Text::new(out.budget());
    let value = match conversion {
        "r" => {
            push_repr(&mut shown, &value)?;
            Value::Text(shown.finish().into())
        }
        "s" => {
            push_display(&mut shown, &value)?;
            Value::Text(shown.finish().into())
        }
        _ => value,
    };
    push_formatted(out, &value, &brace_spec(spec)?)
}

/// Follows `.name` and `[key]` of a format field.
fn follow(budget: &Budget, mut value: Value, mut path: &str) -> Result<Value> {
    while !path.is_empty() {
        if let Some((key, rest)) = path.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            let key = key.parse().map_or_else(|_| Value::text(budget, key), |index| Ok(Value::Int(index)))?;
            value = operators::item(budget, &value, &key)?;
            path = rest;
        } else {
            let rest = path.trim_start_matches('.');
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            value = operators::attribute(&value, &rest[..end])?;
            path = &rest[end..];
        }
    }
    Ok(value)
}

fn brace_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::of('\0');
    let mut rest = text;
    let mut characters = rest.chars();
    let (first, second) = (characters.next(), characters.next());
    let aligns = |c: &char| matches!(c, '<' | '>' | '^' | '=');
    if let (Some(fill), Some(align)) = (first, second.filter(aligns)) {
        (spec.fill, spec.align) = (fill, Some(align));
        rest = characters.as_str();
    } else if let Some(align) = first.filter(aligns) {
        spec.align = Some(align);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix(['+', '-', ' ']) {
        spec.plus = rest.starts_with('+');
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('#') {
        spec.alternate = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('0')
        && spec.align.is_none()
    {
        (spec.fill, spec.align) = ('0', Some('='));
        rest = after;
    }
    let (width, after) = leading_number(rest)?;
    spec.width = width.unwrap_or(0);
    rest = after;
    if let Some(after) = rest.strip_prefix([',', '_']) {
        spec.comma = true;
        rest = after;
    }
    (spec.precision, rest) = leading_precision(rest)?;
    let mut characters = rest.chars();
    spec.kind = characters.next().unwrap_or('\0');
    if characters.next().is_some() { failure(format!("invalid format specifier '{text}'")) } else { Ok(spec) }
}

impl Spec {
    fn of(kind: char) -> Spec {
        Spec { fill: ' ', align: None, plus: false, alternate: false, width: 0, comma: false, precision: None, kind }
    }
}

fn push_formatted(out: &mut Text, value: &Value, spec: &Spec) -> Result<()> {
    let is_number = value.as_float().is_some() && !matches!(spec.kind, 's' | 'r') && !matches!(value, Value::Bool(_));
    let body = if is_number { format_number(value, spec)? } else { format_text(out.budget(), value, spec)? };
    let missing = spec.width.saturating_sub(body.chars().count());
    let fill = spec.fill.encode_utf8(&mut [0; 4]).to_owned();
    let signed = body.starts_with(['-', '+']) && is_number;
    let (before, after) = match spec.align.unwrap_or(if is_number { '>' } else { '<' }) {
        '<' => (0, missing),
        '^' => (missing / 2, missing - missing / 2),
        '=' if signed => {
            out.push(&body[..1])?;
            out.repeat(&fill, missing)?;
            return out.push(&body[1..]);
        }
        _ => (missing, 0),
    };
    out.repeat(&fill, before)?;
    out.push(&body)?;
    out.repeat(&fill, after)
}

fn format_text(budget: &Budget, value: &Value, spec: &Spec) -> Result<String> {
    let mut text = Text::new(budget);
    match spec.kind {
        's' | '\0' => push_display(&mut text, value)?,
        'r' | 'a' => push_repr(&mut text, value)?,
        'c' if value.as_str().is_some() => push_display(&mut text, value)?,
        kind if matches!(value, Value::Bool(_)) => {
            return format_number(&Value::Int(value.as_int().unwrap_or(0)), &Spec { kind, ..Spec::of(kind) });
        }
        kind => return failure(format!("unknown format code '{kind}' for object of type '{}'", value.type_name())),
    }
    let mut text = text.finish();
    if let Some((end, _)) = spec.precision.and_then(|limit| text.char_indices().nth(limit)) {
        text.truncate(end);
    }
    Ok(text)
}

fn format_number(value: &Value, spec: &Spec) -> Result<String> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_DIGITS {
        return failure(format!("format precision {precision} is too large for a number, at most {MAX_DIGITS}"));
    }
    let float = value.as_float().unwrap_or(0.0);
    let mut body = match (spec.kind, value.as_int()) {
        ('f' | 'F', _) => format!("{float:.precision$}"),
        ('e', _) => exponent(float, precision),
        ('%', _) => format!("{:.precision$}%", float * 100.0),
        ('d' | 'i' | 'u', None) => format!("{}", float.trunc() as i128),
        ('\0' | 'd' | 'i' | 'u' | 'n', Some(number)) => number.to_string(),
        ('x', Some(number)) => radix(number, spec, |n| format!("{n:x}"), "0x"),
        ('X', Some(number)) => radix(number, spec, |n| format!("{n:X}"), "0X"),
        ('o', Some(number)) => radix(number, spec, |n| format!("{n:o}"), "0o"),
        ('b', Some(number)) => radix(number, spec, |n| format!("{n:b}"), "0b"),
        ('c', Some(number)) => u32::try_from(number).ok().and_then(char::from_u32).unwrap_or('\u{fffd}').to_string(),
        ('\0' | 'g' | 'n', _) if spec.precision.is_none() => super::show::float(float),
        ('\0' | 'g', _) => super::show::float(exponent(float, precision.max(1) - 1).parse().unwrap_or(float)),
        (kind, _) => return failure(format!("unknown format code '{kind}' for a number")),
    };
    if spec.comma {
        body = grouped(&body);
    }
    if spec.plus && !body.starts_with('-') {
        body.insert(0, '+');
    }
    Ok(body)
}

fn radix(number: i128, spec: &Spec, digits: impl Fn(u128) -> String, prefix: &str) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}{}", if spec.alternate { prefix } else { "" }, digits(number.unsigned_abs()))
}

fn exponent(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn grouped(number: &str) -> String {
    let start = usize::from(number.starts_with('-'));
    let end = number.find('.').unwrap_or(number.len());
    let mut out = number[..start].to_owned();
    for (index, digit) in number[start..end].char_indices() {
        if index > 0 && (end - start - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + &number[end..]
}
