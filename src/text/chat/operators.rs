//! Operators of expressions: arithmetic, comparison, membership, subscripts, as Python defines them.

use super::budget::{Budget, Text, failure};
use super::format;
use super::methods;
use super::show::push_display;
use super::value::{Items, Key, VALUES, Value};
use crate::error::{Excerpt, Result, collected};
use minijinja::machinery::ast::{BinOpKind, CompareOpKind};
use std::cmp::Ordering;
use std::rc::Rc;

/// `left op right` for every operator that evaluates both sides.
pub(super) fn binary(budget: &Budget, op: BinOpKind, left: &Value, right: &Value) -> Result<Value> {
    match op {
        BinOpKind::Add => add(budget, left, right),
        BinOpKind::Mul => multiply(budget, left, right),
        BinOpKind::Concat => concat(budget, left, right),
        BinOpKind::Rem if left.as_str().is_some() => format::percent(budget, left.as_str().unwrap_or(""), right),
        BinOpKind::Eq => compare(budget, CompareOpKind::Eq, left, right).map(Value::Bool),
        BinOpKind::Ne => compare(budget, CompareOpKind::Ne, left, right).map(Value::Bool),
        BinOpKind::Lt => compare(budget, CompareOpKind::Lt, left, right).map(Value::Bool),
        BinOpKind::Lte => compare(budget, CompareOpKind::Lte, left, right).map(Value::Bool),
        BinOpKind::Gt => compare(budget, CompareOpKind::Gt, left, right).map(Value::Bool),
        BinOpKind::Gte => compare(budget, CompareOpKind::Gte, left, right).map(Value::Bool),
        BinOpKind::In => contains(budget, right, left).map(Value::Bool),
        _ => arithmetic(op, left, right),
    }
}

fn sign(op: BinOpKind) -> &'static str {
    match op {
        BinOpKind::Add => "+",
        BinOpKind::Sub => "-",
        BinOpKind::Mul => "*",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        _ => "**",
    }
}

fn unsupported(op: BinOpKind, left: &Value, right: &Value) -> Result<Value> {
    left.defined()?;
    right.defined()?;
    let (left, right) = (left.type_name(), right.type_name());
    failure(format!("unsupported operand type(s) for {}: '{left}' and '{right}'", sign(op)))
}

fn add(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    match (left, right) {
        (Value::Text(_), Value::Text(_)) => concat(budget, left, right),
        (Value::List(a), Value::List(b)) => Value::list(budget, joined(budget, a, b)?),
        (Value::Tuple(a), Value::Tuple(b)) => Value::tuple(budget, joined(budget, a, b)?),
        _ => arithmetic(BinOpKind::Add, left, right),
    }
}

fn joined(budget: &Budget, a: &Items, b: &Items) -> Result<Vec<Value>> {
    budget.take_items(a.len() + b.len())?;
    collected(a.iter().chain(b.iter()).cloned(), VALUES)
}

fn concat(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    let mut text = Text::new(budget);
    push_display(&mut text, left)?;
    push_display(&mut text, right)?;
    Ok(Value::Text(text.finish().into()))
}

fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    let (sequence, count) = match (left, right) {
        (Value::Text(_) | Value::List(_) | Value::Tuple(_), count) => (left, count.as_int()),
        (count, Value::Text(_) | Value::List(_) | Value::Tuple(_)) => (right, count.as_int()),
        _ => return arithmetic(BinOpKind::Mul, left, right),
    };
    let Some(count) = count else { return unsupported(BinOpKind::Mul, left, right) };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    let repeated = |items: &Items| {
        budget.take_items(items.len().saturating_mul(count))?;
        collected((0..count).flat_map(|_| items.iter().cloned()), VALUES)
    };
    match sequence {
        Value::List(items) => Value::list(budget, repeated(items)?),
        Value::Tuple(items) => Value::tuple(budget, repeated(items)?),
        text => {
            let mut out = Text::new(budget);
            out.repeat(text.as_str().unwrap_or(""), count)?;
            Ok(Value::Text(out.finish().into()))
        }
    }
}

fn arithmetic(op: BinOpKind, left: &Value, right: &Value) -> Result<Value> {
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int())
        && !matches!(op, BinOpKind::Div)
    {
        return integers(op, a, b);
    }
    let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else { return unsupported(op, left, right) };
    if b == 0.0 && matches!(op, BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem) {
        return failure("division by zero");
    }
    Ok(Value::Float(match op {
        BinOpKind::Add => a + b,
        BinOpKind::Sub => a - b,
        BinOpKind::Mul => a * b,
        BinOpKind::Div => a / b,
        BinOpKind::FloorDiv => (a / b).floor(),
        BinOpKind::Rem => a - b * (a / b).floor(),
        _ => a.powf(b),
    }))
}

fn integers(op: BinOpKind, a: i128, b: i128) -> Result<Value> {
    if b == 0 && matches!(op, BinOpKind::FloorDiv | BinOpKind::Rem) {
        return failure("integer division or modulo by zero");
    }
    let floored = |quotient: i128| if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient };
    let result = match op {
        BinOpKind::Add => a.checked_add(b),
        BinOpKind::Sub => a.checked_sub(b),
        BinOpKind::Mul => a.checked_mul(b),
        BinOpKind::FloorDiv => a.checked_div(b).map(floored),
        BinOpKind::Rem => a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }),
        _ if b < 0 => return Ok(Value::Float((a as f64).powf(b as f64))),
        _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    result.map(Value::Int).map_or_else(|| failure(format!("the result of {a} {} {b} is too large", sign(op))), Ok)
}

/// `-value`
pub(super) fn negate(value: &Value) -> Result<Value> {
    match (value.as_int(), value) {
        (Some(number), _) => {
            number.checked_neg().map(Value::Int).map_or_else(|| failure("the number is too large"), Ok)
        }
        (None, Value::Float(number)) => Ok(Value::Float(-number)),
        _ => {
            value.defined()?;
            failure(format!("bad operand type for unary -: '{}'", value.type_name()))
        }
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
            budget.scan(a.len().min(b.len()))?;
            a == b
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            a.len() == b.len() && all_pairs(a.iter().zip(b.iter()), |(a, b)| equal(budget, a, b))?
        }
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len()
                && all_pairs(a.iter(), |(key, value)| {
                    b.get(key).map_or(Ok(false), |other| equal(budget, value, other))
                })?
        }
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => a == b,
        (a, b) => number_order(a, b) == Some(Ordering::Equal),
    })
}

/// How two numbers compare, exactly; `None` for other values and what is no number.
fn number_order(left: &Value, right: &Value) -> Option<Ordering> {
    let (a, b) = (left.as_float()?, right.as_float()?);
    let whole = |value: &Value, float: f64| value.as_int().unwrap_or(float as i128);
    Some(a.partial_cmp(&b)?.then_with(|| whole(left, a).cmp(&whole(right, b))))
}

fn all_pairs<T>(mut pairs: impl Iterator<Item = T>, same: impl Fn(T) -> Result<bool>) -> Result<bool> {
    pairs.try_fold(true, |all, pair| Ok(all && same(pair)?))
}

/// Which of two values comes first; `None` when a number is not comparable, an error when the types are not.
pub(super) fn order(budget: &Budget, left: &Value, right: &Value) -> Result<Option<Ordering>> {
    budget.spend(1)?;
    match (left, right) {
        (Value::Text(a), Value::Text(b)) => {
            budget.scan(a.len().min(b.len()))?;
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
        (a, b) if a.as_float().is_some() && b.as_float().is_some() => Ok(number_order(a, b)),
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
                budget.scan(text.len() + part.len())?;
                Ok(text.contains(&**part))
            }
            other => failure(format!("'in <string>' requires string as left operand, not {}", other.type_name())),
        },
        Value::Map(map) => Ok(map.contains_key(&Key::new(item.clone())?)),
        Value::List(items) | Value::Tuple(items) => {
            for other in items.iter() {
                if equal(budget, item, other)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Undefined(_) => Ok(false),
        other => failure(format!("argument of type '{}' is not iterable", other.type_name())),
    }
}

/// `value.name`: an attribute, else the item of that name.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value> {
    value.defined()?;
    if methods::is_unsafe(value, name) {
        let (name, kind) = (Excerpt(name.as_bytes()), value.type_name());
        let message = format!("access to attribute '{name}' of '{kind}' object is unsafe.");
        return Ok(Value::Undefined(message.into()));
    }
    if methods::has(value, name) {
        return Ok(Value::Method(Rc::new((value.clone(), name.to_owned()))));
    }
    Ok(match value {
        Value::Map(map) => map.get(name).cloned(),
        Value::Namespace(namespace) => namespace.borrow().get(name).cloned(),
        Value::Loop(current) => methods::loop_attribute(current, name),
        _ => None,
    }
    .unwrap_or_else(|| value.missing(name)))
}

/// `value[subscript]`: an item, else the attribute of that name.
pub(super) fn item(budget: &Budget, value: &Value, subscript: &Value) -> Result<Value> {
    value.defined()?;
    let found = match (value, subscript) {
        (Value::Map(map), key) => map.get(&Key::new(key.clone())?).cloned(),
        (Value::List(items) | Value::Tuple(items), index) => {
            index.as_int().and_then(|index| position(index, items.len())).map(|index| items[index].clone())
        }
        (Value::Text(text), index) if index.as_int().is_some() => {
            budget.scan(text.len())?;
            let index = position(index.as_int().unwrap_or(0), text.chars().count());
            let c = index.and_then(|index| text.chars().nth(index));
            c.map(Value::character)
        }
        _ => None,
    };
    match (found, subscript) {
        (Some(found), _) => Ok(found),
        (None, Value::Text(name)) => attribute(value, name),
        (None, other) => {
            let shown = super::show::display(budget, other)?;
            let shown = Excerpt(shown.as_bytes());
            Ok(Value::Undefined(format!("{} object has no element {shown}", value.type_name()).into()))
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
        Value::List(items) => Value::list(budget, sliced(budget, items, bounds)?),
        Value::Tuple(items) => Value::tuple(budget, sliced(budget, items, bounds)?),
        Value::Text(text) => {
            let span = Span::of(bounds, value.length(budget)?)?;
            if span.step == 1 {
                let at = |index: i128| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
                return Value::text(budget, &text[at(span.start)..at(span.end.max(span.start))]);
            }
            budget.take(text.len().saturating_mul(size_of::<char>()))?;
            let characters: Vec<char> = collected(text.chars(), VALUES)?;
            let mut out = Text::new(budget);
            span.positions().try_for_each(|at| out.push(characters[at].encode_utf8(&mut [0; 4])))?;
            Ok(Value::Text(out.finish().into()))
        }
        other => {
            other.defined()?;
            failure(format!("'{}' object is not subscriptable", other.type_name()))
        }
    }
}

fn sliced(budget: &Budget, items: &Items, bounds: [&Value; 3]) -> Result<Vec<Value>> {
    let span = Span::of(bounds, items.len())?;
    budget.spend(span.positions().size_hint().0 as u64)?;
    collected(span.positions().map(|at| items[at].clone()), VALUES)
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
        let bound = |value: &Value| match (value.as_int(), value) {
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
