//! Operators of expressions: arithmetic, comparison, membership, subscripts, as Python defines them.

use super::arithmetic::{arithmetic, unsupported};
use super::attributes;
use super::budget::{Budget, failure};
use super::format;
use super::heap::{Buffer, Text};
use super::key::Key;
use super::lazy::{Part, Range};
use super::markup::{escaped, marked};
use super::methods;
use super::numbers;
use super::show::push_display;
use super::tree::{BinOpKind, CompareOpKind};
use super::value::{Items, Value};
use crate::error::{Excerpt, Result};
use std::cmp::Ordering;

/// Units of work for a byte that is searched, or searched for.
pub(super) const SEARCH_UNITS: usize = 2;

/// Operators between two values, in groups that bind alike, the loosest first.
pub(super) const SUMS: [(&str, BinOpKind); 2] = [("+", BinOpKind::Add), ("-", BinOpKind::Sub)];
pub(super) const PRODUCTS: [(&str, BinOpKind); 4] =
    [("*", BinOpKind::Mul), ("/", BinOpKind::Div), ("//", BinOpKind::FloorDiv), ("%", BinOpKind::Rem)];
pub(super) const POWERS: [(&str, BinOpKind); 1] = [("**", BinOpKind::Pow)];

/// `left op right` for every operator that evaluates both sides.
pub(super) fn binary(budget: &Budget, op: BinOpKind, left: &Value, right: &Value) -> Result<Value> {
    match op {
        BinOpKind::Add => add(budget, left, right),
        BinOpKind::Mul => multiply(budget, left, right),
        BinOpKind::Rem if left.as_str().is_some() => format::percent(budget, left, right),
        _ => arithmetic(budget, op, left, right),
    }
}

fn add(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    match (left, right) {
        (Value::Text(a), Value::Text(b)) => {
            if a.is_markup() || b.is_markup() {
                let mut text = Text::new(budget);
                text.push(&escaped(budget, left)?)?;
                text.push(&escaped(budget, right)?)?;
                return Ok(Value::Text(text.finish().marked()));
            }
            let mut text = Text::with_room(budget, a.len() + b.len())?;
            text.push(a)?;
            text.push(b)?;
            Ok(text.value())
        }
        (Value::List(a), Value::List(b)) => Value::list(joined(budget, a, b)?),
        (Value::Tuple(a), Value::Tuple(b)) => Value::tuple(joined(budget, a, b)?),
        _ => arithmetic(budget, BinOpKind::Add, left, right),
    }
}

fn joined(budget: &Budget, a: &Items, b: &Items) -> Result<Buffer<Value>> {
    Buffer::of(budget, a.iter().chain(b.iter()).cloned())
}

/// `a ~ b ~ c`; `html`: what does not count as HTML is escaped.
pub(super) fn concat(budget: &Budget, parts: &[Value], html: bool) -> Result<Value> {
    let bytes = parts.iter().filter_map(Value::as_str).map(str::len).sum();
    let mut text = Text::with_room(budget, bytes)?;
    if html {
        parts.iter().try_for_each(|part| text.push(&escaped(budget, part)?))?;
        return Ok(Value::Text(text.finish().marked()));
    }
    parts.iter().try_for_each(|part| push_display(&mut text, part))?;
    Ok(text.value())
}

fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    let (sequence, count) = match (left, right) {
        (Value::Text(_) | Value::List(_) | Value::Tuple(_), count) => (left, count.as_position()),
        (count, Value::Text(_) | Value::List(_) | Value::Tuple(_)) => (right, count.as_position()),
        _ => return arithmetic(budget, BinOpKind::Mul, left, right),
    };
    let Some(count) = count else { return unsupported(BinOpKind::Mul, left, right) };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    let repeated = |items: &Items| {
        // Nothing repeated is nothing, however often.
        let len = items.len().saturating_mul(count);
        Buffer::of(budget, items.iter().cycle().take(len).cloned())
    };
    match sequence {
        Value::List(items) => Value::list(repeated(items)?),
        Value::Tuple(items) => Value::tuple(repeated(items)?),
        text => {
            let mut out = Text::new(budget);
            out.repeat(text.as_str().unwrap_or(""), count)?;
            as_text(budget, text, out.value())
        }
    }
}

/// `value`, made of the text `of`: it counts as HTML if that does.
pub(super) fn as_text(budget: &Budget, of: &Value, value: Value) -> Result<Value> {
    match of {
        of if of.is_markup() => marked(budget, value),
        _ => Ok(value),
    }
}

/// `left op right` for comparisons.
pub(super) fn compare(budget: &Budget, op: CompareOpKind, left: &Value, right: &Value) -> Result<bool> {
    Ok(match op {
        CompareOpKind::Eq => equal(budget, left, right)?,
        CompareOpKind::Ne => !equal(budget, left, right)?,
        CompareOpKind::Lt => order(budget, left, right)? == Some(Ordering::Less),
        CompareOpKind::Lte => matches!(order(budget, left, right)?, Some(Ordering::Less | Ordering::Equal)),
        CompareOpKind::Gt => order(budget, left, right)? == Some(Ordering::Greater),
        CompareOpKind::Gte => matches!(order(budget, left, right)?, Some(Ordering::Greater | Ordering::Equal)),
        CompareOpKind::In => contains(budget, right, left)?,
        CompareOpKind::NotIn => !contains(budget, right, left)?,
    })
}

/// `left == right`
pub(super) fn equal(budget: &Budget, left: &Value, right: &Value) -> Result<bool> {
    budget.spend(1)?;
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Text(a), Value::Text(b)) => {
            // Texts of different lengths are told apart by them.
            budget.work(if a.len() == b.len() { a.len() } else { 0 })?;
            a == b
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            a.len() == b.len() && all_pairs(a.iter().zip(b.iter()), |(a, b)| equal(budget, a, b))?
        }
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len()
                && all_pairs(a.iter(), |(key, value)| {
                    let key = Key::new(budget, key.0.clone())?;
                    b.get(&key).map_or(Ok(false), |other| equal(budget, value, other))
                })?
        }
        (Value::Range(a), Value::Range(b)) => {
            a.len() == b.len() && (a.len() == 0 || a.start == b.start) && (a.len() < 2 || a.step == b.step)
        }
        (Value::View(a), Value::View(b)) if a.part == b.part && a.part != Part::Values => {
            a.map.len() == b.map.len()
                && all_pairs(a.map.iter(), |(key, value)| {
                    let other = b.map.get(&Key::new(budget, key.0.clone())?);
                    match other {
                        Some(other) if a.part == Part::Items => equal(budget, value, other),
                        other => Ok(other.is_some()),
                    }
                })?
        }
        (a, b) => a.is_same(b) || a.number_order(b) == Some(Ordering::Equal),
    })
}

fn all_pairs<T>(mut pairs: impl Iterator<Item = T>, same: impl Fn(T) -> Result<bool>) -> Result<bool> {
    pairs.try_fold(true, |all, pair| Ok(all && same(pair)?))
}

/// Which of two values comes first; `None` when a number is not comparable, an error when the types are not.
pub(super) fn order(budget: &Budget, left: &Value, right: &Value) -> Result<Option<Ordering>> {
    budget.spend(1)?;
    match (left, right) {
        (Value::Text(a), Value::Text(b)) => {
            budget.work(a.len().min(b.len()))?;
            Ok(Some(a.cmp(b)))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.iter().zip(b.iter()) {
                if !equal(budget, a, b)? {
                    return order(budget, a, b);
                }
            }
            Ok(Some(a.len().cmp(&b.len())))
        }
        (a, b) if a.as_float().is_some() && b.as_float().is_some() => Ok(a.number_order(b)),
        _ => {
            left.defined()?;
            right.defined()?;
            let (left, right) = (left.type_name(), right.type_name());
            failure(format!("'<' not supported between instances of '{left}' and '{right}'"))
        }
    }
}

/// Which of two values comes first when values are put in order: as [`order`], with what is no number behind all numbers.
pub(super) fn total_order(budget: &Budget, left: &Value, right: &Value) -> Result<Ordering> {
    let ((Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b))) = (left, right) else {
        let is_nan = |value: &Value| value.as_float().is_some_and(f64::is_nan);
        return Ok(order(budget, left, right)?.unwrap_or_else(|| is_nan(left).cmp(&is_nan(right))));
    };
    for (a, b) in a.iter().zip(b.iter()) {
        if !equal(budget, a, b)? {
            match total_order(budget, a, b)? {
                Ordering::Equal => {}
                order => return Ok(order),
            }
        }
    }
    Ok(a.len().cmp(&b.len()))
}

/// `item in container`
pub(super) fn contains(budget: &Budget, container: &Value, item: &Value) -> Result<bool> {
    match container {
        Value::Text(text) => match item {
            Value::Text(part) => {
                budget.work((text.len() + part.len()).saturating_mul(SEARCH_UNITS))?;
                Ok(text.contains(&**part))
            }
            other => failure(format!("'in <string>' requires string as left operand, not {}", other.type_name())),
        },
        Value::Map(map) => Ok(map.contains_key(&Key::new(budget, item.clone())?)),
        Value::List(items) | Value::Tuple(items) => {
            for other in items.iter() {
                if equal(budget, item, other)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Undefined(_) => Ok(false),
        Value::Range(range) if item.as_int().is_some() => Ok(range.contains(item.as_int().unwrap_or(0))),
        Value::View(view) if view.part == Part::Keys => Ok(view.map.contains_key(&Key::new(budget, item.clone())?)),
        Value::Range(_) | Value::View(_) => {
            let items = container.iterate(budget)?;
            contains(budget, &Value::List(items), item)
        }
        Value::Generator(generator) => {
            while let Some(other) = generator.next(budget)? {
                if equal(budget, item, &other)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => failure(format!("argument of type '{}' is not iterable", other.type_name())),
    }
}

/// `value.name`: an attribute, else the item of that name.
pub(super) fn attribute(budget: &Budget, value: &Value, name: &str) -> Result<Value> {
    // Of what is undefined only its class is there, and that is unsafe.
    if name != "__class__" {
        value.defined()?;
    }
    budget.work(name.len())?;
    if attributes::is_unsafe(value, name) {
        let (name, kind) = (Excerpt(name.as_bytes()), value.type_name());
        return Value::undefined(budget, format_args!("access to attribute '{name}' of '{kind}' object is unsafe."));
    }
    if let Some(name) = attributes::find(value, name) {
        return value.method(budget, name);
    }
    let found = match value {
        Value::Map(map) => map.get(name).cloned(),
        Value::Namespace(namespace) => namespace.entries.borrow().get(name).cloned(),
        Value::Loop(current) => methods::loop_attribute(budget, current, name)?,
        Value::Tuple(items) => items.named(name),
        Value::Macro(declared) => declared.attribute(name),
        Value::Cycler(cycler) => cycler.attribute(name),
        Value::Joiner(joiner) => joiner.attribute(name),
        number if number.as_float().is_some() => numbers::attribute(budget, number, name)?,
        Value::Range(range) => match name {
            "start" => Some(Value::Int(range.start)),
            "stop" => Some(Value::Int(range.stop)),
            "step" => Some(Value::Int(range.step)),
            _ => None,
        },
        _ => None,
    };
    found.map_or_else(|| value.missing(budget, name), Ok)
}

/// `value[subscript]`: an item, else the attribute of that name.
pub(super) fn item(budget: &Budget, value: &Value, subscript: &Value) -> Result<Value> {
    value.defined()?;
    let found = match (value, subscript) {
        (Value::Map(map), key) => Key::of(budget, key)?.and_then(|key| map.get(&key).cloned()),
        (Value::Range(range), index) => {
            let index = index.as_int().and_then(|index| position(index, range.len()));
            index.map(|index| Value::Int(range.at(index)))
        }
        (Value::List(items) | Value::Tuple(items), index) => {
            index.as_int().and_then(|index| position(index, items.len())).map(|index| items[index].clone())
        }
        (Value::Text(text), index) if index.as_int().is_some() => {
            budget.work(text.len().saturating_mul(2))?;
            let index = position(index.as_int().unwrap_or(0), text.chars().count());
            let c = index.and_then(|index| text.chars().nth(index));
            c.map(|c| as_text(budget, value, Value::character(budget, c)?)).transpose()?
        }
        _ => None,
    };
    match (found, subscript) {
        (Some(found), _) => Ok(found),
        (None, Value::Text(name)) => attribute(budget, value, name),
        (None, other) => {
            let shown = super::show::display(budget, other)?;
            let shown = Excerpt(shown.as_bytes());
            Value::undefined(budget, format_args!("{} object has no element {shown}", value.type_name()))
        }
    }
}

fn position(index: i128, len: usize) -> Option<usize> {
    let index = if index < 0 { index + len as i128 } else { index };
    usize::try_from(index).ok().filter(|&index| index < len)
}

/// `value[start:stop:step]`
pub(super) fn slice(budget: &Budget, value: &Value, bounds: [&Value; 3]) -> Result<Value> {
    match value {
        Value::List(items) => Value::list(sliced(budget, items, bounds)?),
        Value::Tuple(items) => Value::tuple(sliced(budget, items, bounds)?),
        Value::Text(text) => {
            let span = Span::of(bounds, value.length(budget)?)?;
            if span.step == 1 {
                budget.work(text.len().saturating_mul(2))?;
                let at = |index: i128| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
                let part = Value::text(budget, &text[at(span.start)..at(span.end.max(span.start))])?;
                return as_text(budget, value, part);
            }
            let characters = Buffer::of(budget, text.chars())?;
            let mut out = Text::new(budget);
            span.positions().try_for_each(|at| out.push_char(characters[at]))?;
            as_text(budget, value, out.value())
        }
        Value::Range(range) => {
            let span = Span::of(bounds, range.len())?;
            let number = |index: i128| range.start.saturating_add(range.step.saturating_mul(index));
            Range::value(budget, number(span.start), number(span.end), range.step.saturating_mul(span.step))
        }
        other => {
            other.defined()?;
            failure(format!("'{}' object is not subscriptable", other.type_name()))
        }
    }
}

fn sliced(budget: &Budget, items: &Items, bounds: [&Value; 3]) -> Result<Buffer<Value>> {
    let span = Span::of(bounds, items.len())?;
    Buffer::of(budget, span.positions().map(|at| items[at].clone()))
}

/// The positions of a slice: from `start` to before `end`.
#[derive(Clone, Copy)]
struct Span {
    start: i128,
    end: i128,
    step: i128,
}

impl Span {
    /// Python's rules for a sequence of `len` items.
    fn of([start, stop, step]: [&Value; 3], len: usize) -> Result<Span> {
        let bound = |value: &Value| match (value.as_position(), value) {
            (Some(number), _) => Ok(Some(number)),
            (None, Value::None) => Ok(None),
            (None, other) => failure(format!("slice indices must be integers or None, not {}", other.type_name())),
        };
        let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
        let len = len as i128;
        let clamp = |at: i128, low, high| (if at < 0 { at.saturating_add(len) } else { at }).clamp(low, high);
        Ok(match step {
            0 => return failure("slice step cannot be zero"),
            1.. => Span {
                start: start.map_or(0, |at| clamp(at, 0, len)),
                end: stop.map_or(len, |at| clamp(at, 0, len)),
                step,
            },
            _ => Span {
                start: start.map_or(len - 1, |at| clamp(at, -1, len - 1)),
                end: stop.map_or(-1, |at| clamp(at, -1, len - 1)),
                step,
            },
        })
    }

    fn positions(self) -> impl Iterator<Item = usize> {
        let distance = if self.step > 0 { self.end - self.start } else { self.start - self.end };
        let count = (distance.max(0) as u128).div_ceil(self.step.unsigned_abs()) as usize;
        (0..count).map(move |index| (self.start + index as i128 * self.step) as usize)
    }
}
