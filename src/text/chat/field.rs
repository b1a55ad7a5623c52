//! One value laid out in its place of a format: width, sign, groups of digits, precision, as Python's `format` and `%` do.

use super::arithmetic;
use super::budget::{Budget, failure};
use super::heap::Text;
use super::integer;
use super::show::{push_display, push_repr};
use super::value::Value;
use crate::error::Result;

/// How a value is laid out.
pub(super) struct Spec {
    pub(super) fill: char,
    pub(super) align: Option<char>,
    /// What positive numbers begin with: `+`, a space, or `-` for nothing.
    pub(super) sign: char,
    pub(super) alternate: bool,
    pub(super) width: usize,
    /// What stands between groups of digits.
    pub(super) groups: Option<char>,
    pub(super) precision: Option<usize>,
    /// The letter at the end; NUL for none.
    pub(super) kind: char,
}

/// Finest precision of a number, which has no more than 1074 digits behind its point.
const MAX_DIGITS: usize = 4096;
/// Steps of work for writing a number, beside those for its precision.
const NUMBER_STEPS: u64 = 8;
/// Digits behind the point that one step of work pays for.
const DIGITS_A_STEP: u64 = 4;

/// A number in the parts that a layout keeps apart.
struct Number {
    negative: bool,
    prefix: &'static str,
    whole: String,
    rest: String,
}

impl Spec {
    /// Nothing special, of a kind.
    pub(super) fn of(kind: char) -> Spec {
        let (fill, sign, width, alternate) = (' ', '-', 0, false);
        Spec { fill, align: None, sign, alternate, width, groups: None, precision: None, kind }
    }

    fn is_plain(&self) -> bool {
        let sized = self.width > 0 || self.precision.is_some() || self.align.is_some();
        !sized && self.kind == '\0' && self.sign == '-' && !self.alternate && self.groups.is_none()
    }
}

/// Appends `format(value, spec)`.
pub(super) fn push_formatted(out: &mut Text, value: &Value, spec: &Spec) -> Result<()> {
    if spec.is_plain() {
        return push_display(out, value);
    }
    if value.as_float().is_some() {
        let number = number_of(out.budget(), value, spec)?;
        return push_number(out, &number, spec);
    }
    if !matches!(value, Value::Text(_)) {
        value.defined()?;
        return failure(format!("unsupported format string passed to {}.__format__", value.type_name()));
    }
    if !matches!(spec.kind, 's' | '\0') || spec.align == Some('=') || spec.groups.is_some() || spec.sign != '-' {
        return failure(format!("a format of numbers for text, with code '{}'", spec.kind));
    }
    push_text(out, value.as_str().unwrap_or(""), spec)
}

/// Appends what `%` with the kind of `spec` makes of `value`.
pub(super) fn push_percent(out: &mut Text, value: &Value, spec: &Spec) -> Result<()> {
    let budget = out.budget().clone();
    let mut shown = Text::new(&budget);
    match spec.kind {
        's' => push_display(&mut shown, value)?,
        'r' => push_repr(&mut shown, value)?,
        'a' => push_ascii(&mut shown, value)?,
        'c' => match (value.as_str(), value.as_big()) {
            (Some(text), _) if text.chars().count() == 1 => shown.push(text)?,
            (None, Some(_)) => shown.push_char(character(value)?)?,
            _ => return failure("%c needs a number or one character"),
        },
        'd' | 'i' | 'u' => {
            let whole = match (value.as_big(), value) {
                (Some(_), _) => value.clone(),
                (None, Value::Float(float)) if float.is_finite() => integer::value(&budget, integer::whole(*float))?,
                _ => return not_a_number(value, spec),
            };
            let mut number = whole_number(&budget, &whole, 10, "")?;
            let missing = spec.precision.unwrap_or(0).min(MAX_DIGITS).saturating_sub(number.whole.len());
            number.whole.insert_str(0, &"0".repeat(missing));
            return push_number(out, &number, spec);
        }
        'o' | 'x' | 'X' if value.as_big().is_none() => return not_a_number(value, spec),
        'o' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' if value.as_float().is_some() => {
            let number = number_of(&budget, value, spec)?;
            return push_number(out, &number, spec);
        }
        'o' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => return not_a_number(value, spec),
        other => return failure(format!("unsupported format character '{other}'")),
    }
    let align = spec.align.filter(|&align| align != '=').or(Some('>'));
    push_text(out, &shown.finish(), &Spec { fill: ' ', align, ..*spec })
}

fn not_a_number<T>(value: &Value, spec: &Spec) -> Result<T> {
    value.defined()?;
    failure(format!("%{} format: a number is required, not {}", spec.kind, value.type_name()))
}

/// Appends `ascii(value)`.
pub(super) fn push_ascii(out: &mut Text, value: &Value) -> Result<()> {
    let mut shown = Text::new(out.budget());
    push_repr(&mut shown, value)?;
    for c in shown.finish().chars() {
        match c as u32 {
            0..=0x7f => out.push_char(c),
            code @ ..=0xff => out.push(&format!("\\x{code:02x}")),
            code @ ..=0xffff => out.push(&format!("\\u{code:04x}")),
            code => out.push(&format!("\\U{code:08x}")),
        }?;
    }
    Ok(())
}

fn push_text(out: &mut Text, text: &str, spec: &Spec) -> Result<()> {
    out.budget().work(text.len())?;
    let kept = spec.precision.and_then(|limit| text.char_indices().nth(limit)).map_or(text, |(end, _)| &text[..end]);
    push_aligned(out, kept, spec, '<')
}

fn push_aligned(out: &mut Text, text: &str, spec: &Spec, align: char) -> Result<()> {
    let missing = spec.width.saturating_sub(text.chars().count());
    let before = match spec.align.unwrap_or(align) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    let mut buffer = [0; 4];
    let fill = spec.fill.encode_utf8(&mut buffer);
    out.repeat(fill, before)?;
    out.push(text)?;
    out.repeat(fill, missing - before)
}

fn push_number(out: &mut Text, number: &Number, spec: &Spec) -> Result<()> {
    let sign = match spec.sign {
        _ if number.negative => "-",
        '+' => "+",
        ' ' => " ",
        _ => "",
    };
    let size = if matches!(spec.kind, 'b' | 'o' | 'x' | 'X') { 4 } else { 3 };
    let prefix = if spec.alternate { number.prefix } else { "" };
    let beside = sign.len() + prefix.len() + number.rest.len();
    let room = spec.width.saturating_sub(beside);
    let fills_inside = spec.align == Some('=');
    let digits = match spec.groups {
        Some(groups) => grouped(&number.whole, groups, size, if fills_inside && spec.fill == '0' { room } else { 0 }),
        None => number.whole.clone(),
    };
    if fills_inside {
        out.push(sign)?;
        out.push(prefix)?;
        out.repeat(spec.fill.encode_utf8(&mut [0; 4]), room.saturating_sub(digits.len()))?;
        out.push(&digits)?;
        return out.push(&number.rest);
    }
    push_aligned(out, &format!("{sign}{prefix}{digits}{}", number.rest), spec, '>')
}

/// Digits with `between` after every `size` of them, and zeros before them up to `room` characters.
fn grouped(digits: &str, between: char, size: usize, room: usize) -> String {
    let len = |digits: usize| digits + digits.saturating_sub(1) / size;
    let mut count = digits.len();
    while len(count) < room {
        count += 1;
    }
    let zeros = "0".repeat(count - digits.len());
    let mut out = String::new();
    for (index, digit) in zeros.chars().chain(digits.chars()).enumerate() {
        if index > 0 && (count - index).is_multiple_of(size) {
            out.push(between);
        }
        out.push(digit);
    }
    out
}

/// The parts of an integer in a base.
fn whole_number(budget: &Budget, value: &Value, radix: u32, prefix: &'static str) -> Result<Number> {
    let (negative, whole) = integer::digits(budget, value, radix)?;
    Ok(Number { negative, prefix, whole, rest: String::new() })
}

fn character(code: &Value) -> Result<char> {
    let character = code.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
    character.map_or_else(|| failure("there is no character with that number"), Ok)
}

fn number_of(budget: &Budget, value: &Value, spec: &Spec) -> Result<Number> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_DIGITS {
        return failure(format!("format precision {precision} is too large for a number, at most {MAX_DIGITS}"));
    }
    // Exact digits take time with their number.
    budget.spend(NUMBER_STEPS + precision as u64 / DIGITS_A_STEP)?;
    if value.as_big().is_some() {
        let (radix, prefix) = match spec.kind {
            '\0' | 'd' | 'n' => (10, ""),
            'x' => (16, "0x"),
            'X' => (16, "0X"),
            'o' => (8, "0o"),
            'b' => (2, "0b"),
            'c' => {
                let whole = character(value)?.to_string();
                return Ok(Number { negative: false, prefix: "", whole, rest: String::new() });
            }
            _ => (0, ""),
        };
        if radix > 0 {
            let mut number = whole_number(budget, value, radix, prefix)?;
            if spec.kind == 'X' {
                number.whole.make_ascii_uppercase();
            }
            return Ok(number);
        }
    }
    let float = arithmetic::finite(value)?.unwrap_or(0.0);
    let size = float.abs();
    let text = match spec.kind {
        _ if !float.is_finite() => {
            if float.is_nan() { "nan" } else { "inf" }.to_owned() + if spec.kind == '%' { "%" } else { "" }
        }
        'f' | 'F' => format!("{size:.precision$}"),
        '%' => format!("{:.precision$}%", size * 100.0),
        'e' | 'E' => exponent(size, precision),
        'g' | 'G' | 'n' => general(size, precision, spec.alternate, false),
        '\0' if spec.precision.is_none() => super::show::float(size),
        '\0' => general(size, precision, false, true),
        kind => return failure(format!("unknown format code '{kind}' for object of type '{}'", value.type_name())),
    };
    let text = if matches!(spec.kind, 'E' | 'F' | 'G') { text.to_uppercase() } else { text };
    let whole = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = if float.is_finite() { text.split_at(whole) } else { (&text[..], "") };
    let negative = float.is_sign_negative() && !float.is_nan();
    Ok(Number { negative, prefix: "", whole: whole.to_owned(), rest: rest.to_owned() })
}

/// The format `g`: `precision` digits, with an exponent where the number is large or small; `pointed` keeps a digit behind
/// the point.
fn general(size: f64, precision: usize, keeps_zeros: bool, pointed: bool) -> String {
    let precision = precision.max(1);
    let text = exponent(size, precision - 1);
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') && !keeps_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if power < -4 || power >= precision as i32 - i32::from(pointed) {
        return format!("{}e{}", trimmed(digits), &text[digits.len() + 1..]);
    }
    let text = trimmed(&format!("{size:.*}", (precision as i32 - 1 - power) as usize));
    if pointed && !text.contains('.') { text + ".0" } else { text }
}

fn exponent(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}
