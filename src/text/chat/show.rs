//! Values as text: Python's `str` and `repr`, and JSON as `json.dumps` writes it.

use super::budget::{Budget, INDENT_COLUMNS, Text, exceeded, failure};
use super::value::{Key, VALUES, Value};
use crate::error::{Result, collected};

/// `str(value)`.
pub(super) fn display(budget: &Budget, value: &Value) -> Result<String> {
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
        Value::Int(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&float(*number)),
        Value::Text(text) => push_quoted(out, text),
        Value::List(items) => push_items(out, "[", items, "]"),
        Value::Tuple(items) => push_items(out, "(", items, if items.len() == 1 { ",)" } else { ")" }),
        Value::Map(map) => {
            out.push("{")?;
            for (index, (key, value)) in map.iter().enumerate() {
                out.push(if index > 0 { ", " } else { "" })?;
                push_repr(out, &key.0)?;
                out.push(": ")?;
                push_repr(out, value)?;
            }
            out.push("}")
        }
        other => {
            out.push("<")?;
            out.push(other.type_name())?;
            out.push(">")
        }
    }
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
    let mut quoted = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\\' => quoted.push_str("\\\\"),
            c if c == quote => quoted.extend(['\\', c]),
            c if is_printable(c) => quoted.push(c),
            c => quoted.push_str(&match c as u32 {
                code @ ..=0xff => format!("\\x{code:02x}"),
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
        if quoted.len() >= 1024 {
            out.push(&std::mem::take(&mut quoted))?;
        }
    }
    quoted.push(quote);
    out.push(&quoted)
}

/// Whether `repr` shows the character as it is: all but controls, formats, separators and private use.
fn is_printable(c: char) -> bool {
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
    pub(super) comma: String,
    /// Between key and value.
    pub(super) colon: String,
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
            other => match other.as_int() {
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
        Value::Int(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&json_float(*number)),
        Value::Text(text) => push_json_text(out, text, style.ascii),
        Value::List(items) | Value::Tuple(items) => {
            let push = |out: &mut Text, item: &Value| push_json(out, item, style, level + 1);
            push_json_container(out, ["[", "]"], items.iter(), style, level, push)
        }
        Value::Map(map) => {
            let mut entries: Vec<(&Key, &Value)> = collected(map.iter(), VALUES)?;
            if style.sorted {
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
        Value::Int(number) => out.push(&format!("\"{number}\"")),
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
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    quoted.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => quoted.push(c),
        }
        if quoted.len() >= 1024 {
            out.push(&std::mem::take(&mut quoted))?;
        }
    }
    quoted.push('"');
    out.push(&quoted)
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
