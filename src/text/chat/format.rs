//! Python's two ways to fill in a text: `"%s" % value` and `"{}".format(value)`.

use super::arguments::Arguments;
use super::budget::{Budget, failure};
use super::field::{Spec, push_ascii, push_formatted, push_percent};
use super::heap::{Buffer, Text};
use super::markup::escaped;
use super::operators;
use super::show::{push_display, push_repr};
use super::value::Value;
use crate::error::{Excerpt, Result};

/// Widest field and finest precision.
const MAX_WIDTH: usize = 1 << 16;

fn is_markup(value: &Value) -> bool {
    matches!(value, Value::Text(text) if text.is_markup())
}

/// `template % values`
pub(super) fn percent(budget: &Budget, template: &Value, values: &Value) -> Result<Value> {
    budget.work(template.as_str().map_or(0, str::len))?;
    let mut out = Text::new(budget);
    let mut positional = match values {
        Value::Tuple(items) => Buffer::of(budget, items.iter().cloned())?,
        one => Buffer::of(budget, [one.clone()])?,
    }
    .into_iter();
    let mut rest = template.as_str().unwrap_or("");
    while let Some(at) = rest.find('%') {
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        let named = match rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            Some((name, after)) => {
                rest = after;
                let Value::Map(map) = values else { return failure("format requires a mapping") };
                budget.work(name.len())?;
                let missing = || failure(format!("no entry '{}' for a format", Excerpt(name.as_bytes())));
                Some(map.get(name).cloned().map_or_else(missing, Ok)?)
            }
            None => None,
        };
        let mut next = || positional.next().map_or_else(|| failure("not enough arguments for format string"), Ok);
        let (spec, after) = percent_spec(rest, &mut next)?;
        rest = after;
        if spec.kind == '%' {
            out.push("%")?;
            continue;
        }
        let value = named.map_or_else(next, Ok)?;
        let escapes = is_markup(template) && spec.kind == 's';
        let value = if escapes { Value::Text(escaped(budget, &value)?) } else { value };
        push_percent(&mut out, &value, &spec)?;
    }
    out.push(rest)?;
    let may_be_left = matches!(values, Value::Map(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_));
    if positional.next().is_some() && !may_be_left {
        return failure("not all arguments converted during string formatting");
    }
    operators::as_text(budget, template, out.value())
}

fn percent_spec<'t>(text: &'t str, next: &mut impl FnMut() -> Result<Value>) -> Result<(Spec, &'t str)> {
    let mut spec = Spec::of('s');
    let flags = text.len() - text.trim_start_matches(['-', '+', ' ', '#', '0']).len();
    for flag in text[..flags].chars() {
        match flag {
            '-' => (spec.fill, spec.align) = (' ', Some('<')),
            '0' if spec.align.is_none() => (spec.fill, spec.align) = ('0', Some('=')),
            '+' => spec.sign = '+',
            ' ' if spec.sign == '-' => spec.sign = ' ',
            '#' => spec.alternate = true,
            _ => {}
        }
    }
    let mut number = |text: &'t str| match text.strip_prefix('*') {
        Some(rest) => match next()?.as_int() {
            Some(number) if number.unsigned_abs() <= MAX_WIDTH as u128 => Ok((Some(number), rest)),
            _ => failure(format!("* wants a number of at most {MAX_WIDTH}")),
        },
        None => leading_number(text).map(|(number, rest)| (number.map(|number| number as i128), rest)),
    };
    let (width, mut rest) = number(&text[flags..])?;
    if width.is_some_and(|width| width < 0) {
        (spec.fill, spec.align) = (' ', Some('<'));
    }
    spec.width = width.unwrap_or(0).unsigned_abs() as usize;
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = number(after)?;
        spec.precision = Some(precision.unwrap_or(0).max(0) as usize);
        rest = after;
    }
    spec.align = spec.align.or(Some('>'));
    let mut characters = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest).chars();
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

/// The arguments of a format and which of them come next.
struct Fields<'a> {
    arguments: &'a Arguments,
    next: usize,
    /// Whether fields are numbered by their order, or by themselves; none when not known yet.
    automatic: Option<bool>,
    escapes: bool,
}

/// `template.format(arguments)`
pub(super) fn braces(budget: &Budget, template: &str, arguments: &Arguments, escapes: bool) -> Result<Value> {
    let mut fields = Fields { arguments, next: 0, automatic: None, escapes };
    let mut out = Text::new(budget);
    fields.push(&mut out, template, 2)?;
    Ok(out.value())
}

impl Fields<'_> {
    /// Appends a template; in the format of a field there may be fields once more.
    fn push(&mut self, out: &mut Text, template: &str, levels: u32) -> Result<()> {
        if levels == 0 {
            return failure("fields of a format are nested too deeply");
        }
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            out.push(&rest[..at])?;
            if rest[at..].starts_with("{{") || rest[at..].starts_with("}}") {
                out.push(&rest[at..=at])?;
                rest = &rest[at + 2..];
                continue;
            }
            let inner = &rest[at + 1..];
            let Some(end) = field_end(inner).filter(|_| rest[at..].starts_with('{')) else {
                return failure("single brace in format string");
            };
            self.push_field(out, &inner[..end], levels)?;
            rest = &inner[end + 1..];
        }
        out.push(rest)
    }

    fn push_field(&mut self, out: &mut Text, field: &str, levels: u32) -> Result<()> {
        let budget = out.budget().clone();
        let path_end = field.find(['!', ':', '[']).unwrap_or(field.len());
        let path_end = match field[path_end..].strip_prefix('[').and_then(|inner| inner.find(']')) {
            Some(close) => {
                let from = path_end + close + 2;
                field[from..].find(['!', ':']).map_or(field.len(), |at| from + at)
            }
            None => path_end,
        };
        let (path, spec) = field.split_at(path_end);
        let name_end = path.find(['.', '[']).unwrap_or(path.len());
        let value = self.argument(&path[..name_end])?;
        let value = follow(&budget, value, &path[name_end..])?;
        let (conversion, spec) = match spec.strip_prefix('!') {
            Some(rest) => rest.split_once(':').unwrap_or((rest, "")),
            None => ("", spec.strip_prefix(':').unwrap_or("")),
        };
        let mut shown = Text::new(&budget);
        let value = match conversion {
            "" => value,
            "r" => push_repr(&mut shown, &value).map(|()| shown.value())?,
            "s" => push_display(&mut shown, &value).map(|()| shown.value())?,
            "a" => push_ascii(&mut shown, &value).map(|()| shown.value())?,
            other => return failure(format!("unknown conversion specifier '{}'", Excerpt(other.as_bytes()))),
        };
        let mut laid_out = Text::new(&budget);
        self.push(&mut laid_out, spec, levels - 1 + u32::from(!spec.contains('{')))?;
        let spec = brace_spec(&laid_out.finish())?;
        if !self.escapes {
            return push_formatted(out, &value, &spec);
        }
        let mut plain = Text::new(&budget);
        push_formatted(&mut plain, &value, &spec)?;
        let plain = if is_markup(&value) { Value::Text(plain.finish().marked()) } else { plain.value() };
        out.push(&escaped(&budget, &plain)?)
    }

    fn argument(&mut self, name: &str) -> Result<Value> {
        let by_itself = name.is_empty();
        let index = if by_itself { Some(self.next) } else { name.parse::<usize>().ok() };
        if index.is_some() && *self.automatic.get_or_insert(by_itself) != by_itself {
            return failure("fields of a format have numbers, or all of them have none");
        }
        self.next += usize::from(by_itself);
        let found = index.map_or_else(|| self.arguments.named(name), |index| self.arguments.positional.get(index));
        let missing = || failure(format!("no argument for the format field '{}'", Excerpt(name.as_bytes())));
        found.cloned().map_or_else(missing, Ok)
    }
}

/// Where the `}` is that closes a field.
fn field_end(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.bytes().position(|byte| {
        let ends = byte == b'}' && depth == 0;
        depth = match byte {
            b'{' => depth + 1,
            b'}' => depth.max(1) - 1,
            _ => depth,
        };
        ends
    })
}

/// Follows `.name` and `[key]` of a format field.
fn follow(budget: &Budget, mut value: Value, mut path: &str) -> Result<Value> {
    while !path.is_empty() {
        budget.spend(1)?;
        if let Some((key, rest)) = path.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            let key = key.parse().map_or_else(|_| Value::text(budget, key), |index| Ok(Value::Int(index)))?;
            value = operators::item(budget, &value, &key)?;
            path = rest;
        } else {
            let Some(rest) = path.strip_prefix('.') else {
                return failure("only '.' or '[' may follow ']' in a format");
            };
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            value = operators::attribute(budget, &value, &rest[..end])?;
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
        spec.sign = rest.chars().next().unwrap_or('-');
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('#') {
        spec.alternate = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('0') {
        if spec.align.is_none() {
            (spec.fill, spec.align) = ('0', Some('='));
        }
        rest = after;
    }
    let (width, after) = leading_number(rest)?;
    spec.width = width.unwrap_or(0);
    rest = after;
    if let Some(after) = rest.strip_prefix([',', '_']) {
        spec.groups = rest.chars().next();
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = leading_number(after)?;
        spec.precision = Some(precision.map_or_else(|| failure("a format lacks its precision"), Ok)?);
        rest = after;
    }
    let mut characters = rest.chars();
    spec.kind = characters.next().unwrap_or('\0');
    if characters.next().is_some() {
        return failure(format!("invalid format specifier '{}'", Excerpt(text.as_bytes())));
    }
    Ok(spec)
}
