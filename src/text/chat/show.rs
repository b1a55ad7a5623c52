//! Values as text: Python's `str` and `repr`, and JSON as `json.dumps` writes it.

use super::budget::{Budget, INDENT_COLUMNS, exceeded, failure};
use super::heap::{Buffer, Str, Text};
use super::integer;
use super::key::Key;
use super::value::Value;
use crate::error::Result;
use indexmap::IndexMap;

/// Units of work for each byte of a text that is quoted.
const QUOTED_UNITS: usize = 8;

/// `str(value)`.
pub(super) fn display(budget: &Budget, value: &Value) -> Result<Str> {
    if let Value::Text(text) = value {
        return Ok(text.clone());
    }
    let mut text = Text::new(budget);
    push_display(&mut text, value)?;
    Ok(text.finish())
}

/// Appends `str(value)`.
pub(super) fn push_display(out: &mut Text, value: &Value) -> Result<()> {
    match value {
        Value::Text(text) => out.push(text),
        Value::Undefined(_) => Ok(()),
        other => push_repr(out, other),
    }
}

/// Appends `repr(value)`.
pub(super) fn push_repr(out: &mut Text, value: &Value) -> Result<()> {
    out.budget().spend(1)?;
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(true) => out.push("True"),
        Value::Bool(false) => out.push("False"),
        Value::Int(_) | Value::Large(_) => push_integer(out, value),
        Value::Float(number) => out.push(&float(*number)),
        Value::Text(text) if text.is_markup() => {
            out.push("Markup(")?;
            push_quoted(out, text)?;
            out.push(")")
        }
        Value::Text(text) => push_quoted(out, text),
        Value::List(items) => push_items(out, "[", items, "]"),
        Value::Tuple(items) => push_items(out, "(", items, if items.len() == 1 { ",)" } else { ")" }),
        Value::Map(map) => push_entries(out, map),
        Value::Namespace(namespace) => {
            // Namespaces may hold each other.
            let _level = out.budget().enter()?;
            out.push("<Namespace ")?;
            push_entries(out, &namespace.entries.borrow())?;
            out.push(">")
        }
        Value::Range(range) => {
            let step = if range.step == 1 { String::new() } else { format!(", {}", range.step) };
            out.push(&format!("range({}, {}{step})", range.start, range.stop))
        }
        Value::View(view) => {
            out.push(value.type_name())?;
            push_items(out, "([", &view.items(out.budget())?, "])")
        }
        Value::Macro(declared) => {
            let Some(name) = &declared.name else { return out.push("<Macro anonymous>") };
            out.push("<Macro ")?;
            push_quoted(out, name)?;
            out.push(">")
        }
        Value::Template => out.push("<TemplateReference None>"),
        Value::Loop(current) => out.push(&format!("<LoopContext {}/{}>", current.index.get() + 1, current.items.len())),
        other => {
            out.push("<")?;
            out.push(other.type_name())?;
            out.push(">")
        }
    }
}

fn push_integer(out: &mut Text, value: &Value) -> Result<()> {
    let (negative, digits) = integer::digits(out.budget(), value, 10)?;
    out.push(if negative { "-" } else { "" })?;
    out.push(&digits)
}

fn push_entries(out: &mut Text, entries: &IndexMap<Key, Value>) -> Result<()> {
    out.push("{")?;
    for (index, (key, value)) in entries.iter().enumerate() {
        out.push(if index > 0 { ", " } else { "" })?;
        push_repr(out, &key.0)?;
        out.push(": ")?;
        push_repr(out, value)?;
    }
    out.push("}")
}

fn push_items(out: &mut Text, open: &str, items: &[Value], close: &str) -> Result<()> {
    out.push(open)?;
    for (index, item) in items.iter().enumerate() {
        out.push(if index > 0 { ", " } else { "" })?;
        push_repr(out, item)?;
    }
    out.push(close)
}

fn push_quoted(out: &mut Text, text: &str) -> Result<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push_char(quote)?;
    out.budget().work(text.len().saturating_mul(QUOTED_UNITS))?;
    let mut rest = text;
    let stays = |c: char| is_printable(c) && c != '\\' && c != quote;
    while let Some((at, c)) = rest.char_indices().find(|&(_, c)| !stays(c)) {
        out.push(&rest[..at])?;
        rest = &rest[at + c.len_utf8()..];
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            c if c == quote => out.push(if quote == '"' { "\\\"" } else { "\\'" })?,
            c => {
                let code = c as u32;
                let (prefix, digits) = match code {
                    ..=0xff => ("\\x", 2),
                    0x100..=0xffff => ("\\u", 4),
                    _ => ("\\U", 8),
                };
                out.push(prefix)?;
                push_hex(out, code, digits, false)?;
            }
        }
    }
    out.push(rest)?;
    out.push_char(quote)
}

/// Appends the last `digits` hexadecimal digits of `number`.
pub(super) fn push_hex(out: &mut Text, number: u32, digits: u32, large: bool) -> Result<()> {
    (0..digits).rev().try_for_each(|place| {
        let digit = char::from_digit(number >> (4 * place) & 15, 16).unwrap_or('0');
        out.push_char(if large { digit.to_ascii_uppercase() } else { digit })
    })
}

/// Whether `repr` shows the character as it is: all but controls, formats, separators and private use.
pub(super) fn is_printable(c: char) -> bool {
    !matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{a0}' | '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{1680}'
        | '\u{180e}' | '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}' | '\u{3000}'
        | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' | '\u{f0000}'..)
}

/// `repr` of a float: the shortest digits that give it back, with an exponent beyond 16 digits.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if number != 0.0 && !(1e-4..1e16).contains(&number.abs()) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// How JSON is laid out.
pub(super) struct JsonStyle {
    /// Between items.
    pub(super) comma: Str,
    /// Between key and value.
    pub(super) colon: Str,
    /// What each level of an indented layout begins with.
    pub(super) indent: Option<String>,
    /// Whether keys are sorted.
    pub(super) sorted: bool,
    /// Whether characters beyond ASCII are escaped.
    pub(super) ascii: bool,
}

impl JsonStyle {
    /// The unit of an indented layout for an `indent` argument.
    pub(super) fn indent(value: &Value) -> Result<Option<String>> {
        let unit = match value {
            Value::None => return Ok(None),
            Value::Text(text) if text.len() <= INDENT_COLUMNS => text.to_string(),
            other => match other.as_position() {
                Some(columns) if columns <= INDENT_COLUMNS as i128 => " ".repeat(columns.max(0) as usize),
                Some(_) => return exceeded("indent", format_args!("{INDENT_COLUMNS} columns")),
                None if other.as_str().is_some() => {
                    return exceeded("indent", format_args!("{INDENT_COLUMNS} columns"));
                }
                None => return failure(format!("indent must be a number, not {}", other.type_name())),
            },
        };
        Ok(Some(unit))
    }
}

/// Appends `value` as JSON at nesting `level`.
pub(super) fn push_json(out: &mut Text, value: &Value, style: &JsonStyle, level: usize) -> Result<()> {
    out.budget().spend(1)?;
    match value {
        Value::None => out.push("null"),
        Value::Bool(true) => out.push("true"),
        Value::Bool(false) => out.push("false"),
        Value::Int(_) | Value::Large(_) => push_integer(out, value),
        Value::Float(number) => out.push(&json_float(*number)),
        Value::Text(text) => push_json_text(out, text, style.ascii),
        Value::List(items) | Value::Tuple(items) => {
            let push = |out: &mut Text, item: &Value| push_json(out, item, style, level + 1);
            push_json_container(out, ["[", "]"], items.iter(), style, level, push)
        }
        Value::Map(map) => {
            let mut entries: Buffer<(&Key, &Value)> = Buffer::of(out.budget(), map.iter())?;
            if style.sorted {
                // Each key is compared about as often as the number of keys has bits.
                let bytes: usize = map.keys().map(|key| key.0.size()).sum();
                out.budget().work(bytes.saturating_mul(map.len().max(1).ilog2() as usize + 1))?;
                entries.sort_unstable_by(|a, b| a.0.0.as_str().cmp(&b.0.0.as_str()));
            }
            let push = |out: &mut Text, (key, value): (&Key, &Value)| {
                push_json_key(out, key, style.ascii)?;
                out.push(&style.colon)?;
                push_json(out, value, style, level + 1)
            };
            push_json_container(out, ["{", "}"], entries.into_iter(), style, level, push)
        }
        other => failure(format!("Object of type {} is not JSON serializable", other.type_name())),
    }
}

fn push_json_container<T>(
    out: &mut Text,
    brackets: [&str; 2],
    items: impl ExactSizeIterator<Item = T>,
    style: &JsonStyle,
    level: usize,
    push: impl Fn(&mut Text, T) -> Result<()>,
) -> Result<()> {
    let empty = items.len() == 0;
    out.push(brackets[0])?;
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(&style.comma)?;
        }
        push_line(out, style, level + 1)?;
        push(out, item)?;
    }
    if !empty {
        push_line(out, style, level)?;
    }
    out.push(brackets[1])
}

fn push_line(out: &mut Text, style: &JsonStyle, level: usize) -> Result<()> {
    let Some(unit) = &style.indent else { return Ok(()) };
    out.push("\n")?;
    out.repeat(unit, level)
}

fn push_json_key(out: &mut Text, key: &Key, ascii: bool) -> Result<()> {
    match &key.0 {
        Value::Text(text) => push_json_text(out, text, ascii),
        Value::None => out.push("\"null\""),
        Value::Bool(value) => out.push(if *value { "\"true\"" } else { "\"false\"" }),
        Value::Int(_) | Value::Large(_) => {
            out.push("\"")?;
            push_integer(out, &key.0)?;
            out.push("\"")
        }
        Value::Float(number) => out.push(&format!("\"{}\"", json_float(*number))),
        other => failure(format!("keys must be str, int, float, bool or None, not {}", other.type_name())),
    }
}

fn json_float(number: f64) -> String {
    match number {
        n if n.is_nan() => "NaN".into(),
        n if n.is_infinite() => if n > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        n => float(n),
    }
}

fn push_json_text(out: &mut Text, text: &str, ascii: bool) -> Result<()> {
    out.push_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.push("\\\"")?,
            '\\' => out.push("\\\\")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\u{8}' => out.push("\\b")?,
            '\u{c}' => out.push("\\f")?,
            c if (c as u32) < 0x20 || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push("\\u")?;
                    push_hex(out, (*unit).into(), 4, false)?;
                }
            }
            c => out.push_char(c)?,
        }
    }
    out.push_char('"')
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [(1.0, "1.0"), (0.1, "0.1"), (1e16, "1e+16"), (1.5e-5, "1.5e-05"), (123456.789, "123456.789")];
        for (number, text) in cases.into_iter().chain([(-0.0, "-0.0"), (9007199254740993.0, "9007199254740992.0")]) {
            assert_eq!(float(number), text);
        }
        assert_eq!(float(1e-300), "1e-300");
        assert_eq!(float(f64::NEG_INFINITY), "-inf");
    }
}
