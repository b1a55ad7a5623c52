//! Text that counts as HTML: what joins it is escaped first, as Python's `markupsafe` does.

use super::arguments::Arguments;
use super::budget::{Budget, failure};
use super::characters;
use super::heap::{Buffer, Str, Text};
use super::show::{display, push_display, push_hex};
use super::value::Value;
use crate::error::{Excerpt, Result};

/// Units of work for each byte of a text that is escaped.
const ESCAPED_UNITS: usize = 4;
/// Units of work for each byte of a text whose tags go: it is looked at for comments, tags, spaces and references.
const STRIPPED_UNITS: usize = 12;

/// Appends `text` with the five characters that mean something in HTML written as references.
pub(super) fn push_escaped(out: &mut Text, text: &str) -> Result<()> {
    out.budget().work(text.len().saturating_mul(ESCAPED_UNITS))?;
    let mut rest = text;
    while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
        out.push(&rest[..at])?;
        out.push(match rest.as_bytes()[at] {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&#34;",
            _ => "&#39;",
        })?;
        rest = &rest[at + 1..];
    }
    out.push(rest)
}

/// The text of `value`, escaped unless it counts as HTML already.
pub(super) fn escaped(budget: &Budget, value: &Value) -> Result<Str> {
    if let Value::Text(text) = value
        && text.is_markup()
    {
        return Ok(text.clone());
    }
    let mut out = Text::new(budget);
    push_escaped(&mut out, &display(budget, value)?)?;
    Ok(out.finish().marked())
}

/// The filters `e` and `escape`.
pub(super) fn escape(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    escaped(budget, value).map(Value::Text)
}

/// Escapes what counts as HTML too.
pub(super) fn force_escape(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    let mut out = Text::new(budget);
    push_escaped(&mut out, &display(budget, value)?)?;
    Ok(Value::Text(out.finish().marked()))
}

/// The text of `value`, which counts as HTML from here on.
pub(super) fn safe(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    Ok(Value::Text(display(budget, value)?.marked()))
}

/// Marks a text, or each text of a list or tuple.
pub(super) fn marked(budget: &Budget, value: Value) -> Result<Value> {
    let each = |items: &[Value]| Buffer::gathered(budget, items.iter().map(|item| marked(budget, item.clone())));
    match &value {
        Value::Text(text) => Ok(Value::Text(text.clone().marked())),
        Value::List(items) => Value::list(each(items)?),
        Value::Tuple(items) => Value::tuple(each(items)?),
        _ => Ok(value),
    }
}

/// The text without comments, tags and surplus spaces, its references resolved.
pub(super) fn strip_tags(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    let text = display(budget, value)?;
    budget.work(text.len().saturating_mul(STRIPPED_UNITS))?;
    let (mut words, mut rest) = (Text::new(budget), &*text);
    while let Some(at) = rest.find('<') {
        let tag = &rest[at..];
        let end = match tag.strip_prefix("<!--") {
            Some(comment) => comment.find("-->").map(|end| end + 7),
            None => tag.find('>').map(|end| end + 1),
        };
        // What is not closed ends the search, whatever follows.
        let Some(end) = end else { break };
        words.push(&rest[..at])?;
        rest = &tag[end..];
    }
    words.push(rest)?;
    let words = words.finish();
    let mut out = Text::new(budget);
    for (index, word) in words.split(characters::is_space).filter(|word| !word.is_empty()).enumerate() {
        out.push(if index > 0 { " " } else { "" })?;
        out.push(word)?;
    }
    unescaped(budget, &out.finish())
}

/// Names of the characters from U+00A0 to U+00FF.
const LATIN_NAMES: &str = "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 \
    sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc \
    Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve \
    Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN szlig agrave aacute \
    acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth ntilde \
    ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml";
/// What the numbers from 128 to 159 stand for; those that are no character there stand for themselves.
const WINDOWS: &str = "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ";

/// Resolves references by number, those that escaping makes, and those of Latin letters and signs; the semicolon may be missing.
pub(super) fn unescaped(budget: &Budget, text: &str) -> Result<Value> {
    let mut out = Text::new(budget);
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        let found = if let Some(number) = rest.strip_prefix('#') { by_number(number) } else { by_name(budget, rest)? };
        match found {
            Some((character, behind)) => {
                character.map_or(Ok(()), |character| out.push_char(character))?;
                rest = behind.strip_prefix(';').unwrap_or(behind);
            }
            None => out.push("&")?,
        }
    }
    out.push(rest)?;
    Ok(out.value())
}

/// The character of a reference by number, and what is behind its digits; no character for what must not be written so.
fn by_number(text: &str) -> Option<(Option<char>, &str)> {
    let hex = text.strip_prefix(['x', 'X']);
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    let len = digits.bytes().take_while(|&byte| char::from(byte).is_digit(radix)).count();
    let (digits, behind) = digits.split_at(len);
    // What overflows is beyond all characters too.
    let number = if len == 0 { return None } else { u32::from_str_radix(digits, radix).unwrap_or(u32::MAX) };
    let character = match number {
        0 | 0xd800..0xe000 | 0x11_0000.. => Some('\u{fffd}'),
        0x80..=0x9f => WINDOWS.chars().nth(number as usize - 0x80),
        1..=8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef => None,
        _ if number & 0xfffe == 0xfffe => None,
        _ => char::from_u32(number),
    };
    Some((character, behind))
}

/// The character of the longest name that the text begins with, and what is behind the name.
fn by_name<'t>(budget: &Budget, text: &'t str) -> Result<Option<(Option<char>, &'t str)>> {
    budget.work(LATIN_NAMES.len())?;
    let latin = LATIN_NAMES.split_whitespace().zip('\u{a0}'..='\u{ff}');
    let basic =
        [("amp", '&'), ("lt", '<'), ("gt", '>'), ("quot", '"'), ("AMP", '&'), ("LT", '<'), ("GT", '>'), ("QUOT", '"')];
    // This name alone is none without its semicolon.
    let last = [("apos;", '\''), ("COPY", '©'), ("REG", '®')];
    let names = latin.chain(basic).chain(last).filter(|(name, _)| text.starts_with(name));
    Ok(names.max_by_key(|(name, _)| name.len()).map(|(name, c)| (Some(c), &text[name.trim_end_matches(';').len()..])))
}

/// The entries of a dictionary as attributes of a tag; nothing for what is none or undefined.
pub(super) fn attributes(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Value::Map(map) = value else {
        return failure(format!("'{}' object has no attribute 'items'", value.type_name()));
    };
    let spaced = arguments.get(0, "autospace").is_none_or(Value::is_true);
    let mut out = Text::new(budget);
    let mut first = true;
    for (key, value) in map.iter().filter(|(_, value)| !matches!(value, Value::None | Value::Undefined(_))) {
        let Some(name) = key.0.as_str() else { return failure("the names of attributes must be texts") };
        if name.contains([' ', '\t', '\n', '\r', '\u{b}', '\u{c}', '/', '>', '=']) {
            return failure(format!("invalid character in the attribute name '{}'", Excerpt(name.as_bytes())));
        }
        out.push(if std::mem::take(&mut first) && !spaced { "" } else { " " })?;
        out.push(&escaped(budget, &key.0)?)?;
        out.push("=\"")?;
        out.push(&escaped(budget, value)?)?;
        out.push("\"")?;
    }
    if arguments.escapes { marked(budget, out.value()) } else { Ok(out.value()) }
}

/// A text as part of a path, or the entries of a dictionary, or pairs, as a query.
pub(super) fn url_encode(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    let mut out = Text::new(budget);
    let pairs = match value {
        Value::Map(map) => super::lazy::View::value(budget, map, super::lazy::Part::Items)?.iterate(budget)?,
        Value::Text(_) => {
            push_quoted(&mut out, value, "/")?;
            return Ok(out.value());
        }
        other if other.is_iterable() => other.iterate(budget)?,
        other => {
            push_quoted(&mut out, other, "/")?;
            return Ok(out.value());
        }
    };
    for (index, pair) in pairs.iter().enumerate() {
        let [name, value] = &pair.iterate(budget)?[..] else { return failure("a query needs pairs of values") };
        out.push(if index > 0 { "&" } else { "" })?;
        push_quoted(&mut out, name, "")?;
        out.push("=")?;
        push_quoted(&mut out, value, "")?;
    }
    Ok(out.value())
}

/// In a query, which keeps nothing, a space is a plus.
fn push_quoted(out: &mut Text, value: &Value, kept: &str) -> Result<()> {
    let mut text = Text::new(out.budget());
    push_display(&mut text, value)?;
    text.finish().bytes().try_for_each(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push_char(byte as char),
        b' ' if kept.is_empty() => out.push_char('+'),
        _ if kept.as_bytes().contains(&byte) => out.push_char(byte as char),
        _ => {
            out.push_char('%')?;
            push_hex(out, byte.into(), 2, true)
        }
    })
}
