//! The filters of sequences: `map`, `select`, `sort` and their kin.

use super::arguments::{Arguments, count};
use super::budget::{Budget, failure};
use super::case;
use super::heap::{Buffer, Entries, Str, Text};
use super::key::Key;
use super::lazy::{Generator, Step};
use super::markup::{escaped, marked};
use super::methods;
use super::operators;
use super::show::display;
use super::tree::BinOpKind;
use super::value::{Items, Value};
use crate::error::{Excerpt, Result};
use std::cmp::Ordering;
use std::rc::Rc;

/// What stands for an item that a sequence without items has not.
fn end_of(budget: &Budget, item: Option<&Value>) -> Result<Value> {
    let none = || Value::undefined(budget, format_args!("the sequence was empty, it has no such item"));
    item.cloned().map_or_else(none, Ok)
}

/// The first value; of an iterator nothing more is used up.
pub(super) fn first(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    if let Value::Generator(generator) = value {
        return end_of(budget, generator.next(budget)?.as_ref());
    }
    end_of(budget, value.iterate(budget)?.first())
}

/// The last value; iterators cannot be gone through from their end.
pub(super) fn last(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    if matches!(value, Value::Generator(_)) {
        return failure("'generator' object is not reversible, put '| list' before '| last'");
    }
    // The first character of HTML comes by iteration, as plain text, the last one by its place.
    operators::as_text(budget, value, end_of(budget, value.iterate(budget)?.last())?)
}

/// One of the values. Templates are to render the same text every time, so it is always the one in the middle.
pub(super) fn random(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    if matches!(value, Value::Generator(_)) {
        return failure("object of type 'generator' has no len()");
    }
    let values = value.iterate(budget)?;
    operators::as_text(budget, value, end_of(budget, values.get(values.len() / 2))?)
}

/// The values as texts with `d` between them.
pub(super) fn join(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let separator = arguments.get(0, "d").map_or(Ok(Str::default()), |separator| display(budget, separator))?;
    let values = by_attribute(budget, &value.iterate(budget)?, arguments.get(1, "attribute"))?;
    let has_html = || values.iter().chain(arguments.get(0, "d")).any(Value::is_markup);
    if arguments.escapes && has_html() {
        let separator = arguments.get(0, "d").map_or(Ok(Str::default()), |separator| escaped(budget, separator))?;
        let values = Buffer::gathered(budget, values.iter().map(|value| escaped(budget, value).map(Value::Text)))?;
        return marked(budget, methods::join_shown(budget, &separator, &values)?);
    }
    methods::join_shown(budget, &separator, &values)
}

/// The value at a dotted path such as `function.name` or `0.id`; `default` stands for each part that is not there.
pub(super) fn at_path(budget: &Budget, value: &Value, path: &Value, default: Option<&Value>) -> Result<Value> {
    let part = |value: &Value, part: &Value| match (operators::item(budget, value, part)?, default) {
        (Value::Undefined(_), Some(default)) => Ok(default.clone()),
        (found, _) => Ok(found),
    };
    let Some(path) = path.as_str() else { return part(value, path) };
    path.split('.').try_fold(value.clone(), |value, name| {
        budget.spend(1)?;
        let is_index = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        let index = name.parse().ok().filter(|_| is_index);
        part(&value, &index.map_or_else(|| Value::text(budget, name), |index| Ok(Value::Int(index)))?)
    })
}

fn by_attribute(budget: &Budget, values: &[Value], path: Option<&Value>) -> Result<Buffer<Value>> {
    match path {
        None | Some(Value::None) => Buffer::of(budget, values.iter().cloned()),
        Some(path) => Buffer::gathered(budget, values.iter().map(|value| at_path(budget, value, path, None))),
    }
}

/// Each value through a filter, or an attribute of each.
pub(super) fn map(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let step = match arguments.named("attribute") {
        Some(path) if arguments.positional.is_empty() => {
            if let Some((name, _)) =
                arguments.named.iter().find(|(name, _)| !matches!(&**name, "attribute" | "default"))
            {
                return failure(format!("unexpected keyword argument '{}'", Excerpt(name.as_bytes())));
            }
            Step::Attribute(path.clone(), arguments.named("default").cloned())
        }
        _ => {
            let (name, rest) = first_argument(budget, arguments, 0)?;
            Step::Map(name.map_or_else(|| failure("map requires a filter argument"), Ok)?, rest)
        }
    };
    Generator::of_step(budget, value, step)
}

/// The name at `index` and the arguments after it.
fn first_argument(budget: &Budget, arguments: &Arguments, index: usize) -> Result<(Option<Str>, Arguments)> {
    let name = match arguments.positional.get(index) {
        Some(_) => Some(Str::of(budget, arguments.text(index, "name")?)?),
        None => None,
    };
    let rest = arguments.positional.get(index + 1..).unwrap_or_default();
    let positional = Buffer::of(budget, rest.iter().cloned())?;
    let named = Buffer::of(budget, arguments.named.iter().cloned())?;
    Ok((name, Arguments { positional, named, escapes: arguments.escapes }))
}

/// The values of whose attribute a test holds, or does not.
pub(super) fn select_by(budget: &Budget, value: &Value, arguments: &Arguments, wanted: bool) -> Result<Value> {
    select(budget, value, arguments, Some(arguments.required(0, "attribute")?), wanted)
}

/// The values of which a test holds, or does not.
pub(super) fn select(
    budget: &Budget,
    value: &Value,
    arguments: &Arguments,
    path: Option<&Value>,
    wanted: bool,
) -> Result<Value> {
    let (test, arguments) = first_argument(budget, arguments, usize::from(path.is_some()))?;
    Generator::of_step(budget, value, Step::Select { test, arguments, path: path.cloned(), wanted })
}

/// What values are compared by: their text in small letters, unless the case counts.
fn sort_key(budget: &Budget, value: &Value, case_sensitive: bool) -> Result<Value> {
    match value.as_str() {
        Some(text) if !case_sensitive => case::recase(budget, text, "lower"),
        _ => Ok(value.clone()),
    }
}

/// The values in the order of their keys, equal ones as they stood. A merge sort of places: those of the standard library take
/// memory without asking, and cannot stop at a comparison that fails.
fn sort_by_keys<T: Clone>(budget: &Budget, pairs: &[(Value, T)], reverse: bool) -> Result<Buffer<T>> {
    let order = |a: usize, b: usize| {
        let order = operators::total_order(budget, &pairs[a].0, &pairs[b].0)?;
        Ok(if reverse { order.reverse() } else { order })
    };
    let (mut from, mut to) = (Buffer::of(budget, 0..pairs.len())?, Buffer::of(budget, 0..pairs.len())?);
    let mut width = 1;
    while width < pairs.len() {
        for start in (0..pairs.len()).step_by(2 * width) {
            let (middle, end) = ((start + width).min(pairs.len()), (start + 2 * width).min(pairs.len()));
            let (mut a, mut b) = (start, middle);
            for place in &mut to[start..end] {
                let is_right = a == middle || (b < end && order(from[b], from[a])? == Ordering::Less);
                let next = if is_right { &mut b } else { &mut a };
                *place = from[*next];
                *next += 1;
            }
        }
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    Buffer::of(budget, from.into_iter().map(|place| pairs[place].1.clone()))
}

fn keyed(budget: &Budget, values: &[Value], path: Option<&Value>, case: bool) -> Result<Buffer<(Value, Value)>> {
    let keys = by_attribute(budget, values, path)?;
    let pair = |(key, value): (&Value, &Value)| Ok((sort_key(budget, key, case)?, value.clone()));
    Buffer::gathered(budget, keys.iter().zip(values.iter()).map(pair))
}

/// The values with what is at each of the paths, which commas divide, as a list: what is equal in lists is never ordered.
fn keyed_by_several(
    budget: &Budget,
    values: &[Value],
    paths: Option<&Value>,
    case: bool,
) -> Result<Buffer<(Value, Value)>> {
    let paths = match paths {
        Some(Value::Text(paths)) => Buffer::gathered(budget, paths.split(',').map(|path| Value::text(budget, path)))?,
        other => Buffer::of(budget, [other.cloned().unwrap_or(Value::None)])?,
    };
    let key = |value: &Value, path: &Value| match path {
        Value::None => sort_key(budget, value, case),
        path => sort_key(budget, &at_path(budget, value, path, None)?, case),
    };
    let pair = |value: &Value| {
        let keys = Buffer::gathered(budget, paths.iter().map(|path| key(value, path)))?;
        Ok((Value::list(keys)?, value.clone()))
    };
    Buffer::gathered(budget, values.iter().map(pair))
}

/// The values in order.
pub(super) fn sort(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = value.iterate(budget)?;
    let case = arguments.flag(1, "case_sensitive");
    let pairs = keyed_by_several(budget, &values, arguments.get(2, "attribute"), case)?;
    Value::list(sort_by_keys(budget, &pairs, arguments.flag(0, "reverse"))?)
}

/// The entries of a dictionary in order.
pub(super) fn dictsort(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Value::Map(map) = value else {
        return failure(format!("'{}' object has no attribute 'items'", value.type_name()));
    };
    let by_value = match arguments.optional_text(1, "by")?.unwrap_or("key") {
        "key" => false,
        "value" => true,
        _ => return failure("you can only sort by either \"key\" or \"value\""),
    };
    let mut pairs = Buffer::new(budget);
    for (key, value) in map.iter() {
        let subject = if by_value { value } else { &key.0 };
        let pair = Value::pair(budget, key.0.clone(), value.clone())?;
        let key = sort_key(budget, subject, arguments.flag(0, "case_sensitive"))?;
        pairs.push((key, pair))?;
    }
    Value::list(sort_by_keys(budget, &pairs, arguments.flag(2, "reverse"))?)
}

/// Each value once.
pub(super) fn unique(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Rc<Items>> {
    let values = value.iterate(budget)?;
    let mut first = Entries::new(budget);
    for (key, value) in keyed(budget, &values, arguments.get(1, "attribute"), arguments.flag(0, "case_sensitive"))? {
        let key = Key::new(budget, key)?;
        if !first.contains_key(&key) {
            first.insert(key, value)?;
        }
    }
    Items::new(Buffer::of(budget, first.values().cloned())?)
}

/// The values with an attribute in common, by that attribute.
pub(super) fn groupby(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let path = arguments.required(0, "attribute")?;
    let values = value.iterate(budget)?;
    let (default, case) = (arguments.get(1, "default"), arguments.flag(2, "case_sensitive"));
    let default = default.filter(|default| !matches!(default, Value::None));
    let common = |value: &Value| at_path(budget, value, path, default);
    let pair = |value: &Value| {
        let key = sort_key(budget, &common(value)?, case)?;
        Ok((key.clone(), (key, value.clone())))
    };
    let pairs = Buffer::gathered(budget, values.iter().map(pair))?;
    let mut groups: Buffer<(Value, Buffer<Value>)> = Buffer::new(budget);
    for (key, value) in sort_by_keys(budget, &pairs, false)? {
        match groups.last_mut() {
            Some((last, group)) if operators::equal(budget, last, &key)? => group.push(value)?,
            _ => groups.push((key, Buffer::of(budget, [value])?))?,
        }
    }
    let group = |(_, group): (Value, Buffer<Value>)| {
        let key = common(&group[0])?;
        Items::group(budget, key, Value::list(group)?).map(Value::Tuple)
    };
    Value::list(Buffer::gathered(budget, groups.into_iter().map(group))?)
}

/// The least or the greatest value.
pub(super) fn extreme(budget: &Budget, value: &Value, arguments: &Arguments, wanted: Ordering) -> Result<Value> {
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
    end_of(budget, best.map(|(_, value)| value).as_ref())
}

/// All values added up.
pub(super) fn sum(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = by_attribute(budget, &value.iterate(budget)?, arguments.get(0, "attribute"))?;
    let start = arguments.get(1, "start").cloned().unwrap_or(Value::Int(0));
    if matches!(start, Value::Text(_)) {
        return failure("sum cannot add texts up, use join");
    }
    values.iter().try_fold(start, |sum, value| {
        budget.work(size_of::<Value>())?;
        operators::binary(budget, BinOpKind::Add, &sum, value)
    })
}

/// The values, or the characters, from the end.
pub(super) fn reverse(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    if let Value::Text(text) = value {
        let mut out = Text::new(budget);
        text.chars().rev().try_for_each(|c| out.push_char(c))?;
        return operators::as_text(budget, value, out.value());
    }
    let values = value.iterate(budget)?;
    let reversed = Items::new(Buffer::of(budget, values.iter().rev().cloned())?)?;
    if matches!(value, Value::Generator(_)) {
        return Ok(Value::List(reversed));
    }
    Generator::of_items(budget, reversed)
}

/// Rows of so many values.
pub(super) fn batch(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Rc<Items>> {
    let size = arguments.optional_int(0, "linecount")?.map_or(0, count);
    let values = value.iterate(budget)?;
    if size == 0 {
        return failure("batch needs a count above zero");
    }
    let mut rows = Buffer::new(budget);
    for row in values.chunks(size) {
        let mut row = Buffer::of(budget, row.iter().cloned())?;
        if let Some(fill) = arguments.get(1, "fill_with").filter(|fill| !matches!(fill, Value::None)) {
            (row.len()..size).try_for_each(|_| row.push(fill.clone()))?;
        }
        rows.push(Value::list(row)?)?;
    }
    Items::new(rows)
}

/// So many columns of values.
pub(super) fn slice(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Rc<Items>> {
    let columns = arguments.optional_int(0, "slices")?.map_or(0, count);
    let values = value.iterate(budget)?;
    if columns == 0 {
        return failure("slice needs a count above zero");
    }
    let (each, longer) = (values.len() / columns, values.len() % columns);
    let mut from = 0;
    let mut parts = Buffer::new(budget);
    for column in 0..columns {
        let len = each + usize::from(column < longer);
        let mut part = Buffer::of(budget, values[from..from + len].iter().cloned())?;
        // As Jinja does it: where all columns have the same length, each is filled.
        let fill = arguments.get(1, "fill_with").filter(|fill| !matches!(fill, Value::None));
        if let Some(fill) = fill.filter(|_| column >= longer) {
            part.push(fill.clone())?;
        }
        parts.push(Value::list(part)?)?;
        from += len;
    }
    Items::new(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(numbers: &[f64], reverse: bool) -> Vec<f64> {
        let budget = Budget::of_input();
        let pairs: Vec<(Value, f64)> = numbers.iter().map(|&number| (Value::Float(number), number)).collect();
        sort_by_keys(&budget, &pairs, reverse).unwrap().to_vec()
    }

    #[test]
    fn numbers_are_sorted_and_what_is_none_stands_behind_them() {
        for len in 0..70 {
            let numbers: Vec<f64> =
                (0..len).map(|index| if index % 3 == 1 { f64::NAN } else { f64::from(index * 37 % 11) }).collect();
            let mut expected: Vec<f64> = numbers.iter().copied().filter(|number| !number.is_nan()).collect();
            expected.sort_by(f64::total_cmp);
            let result = sorted(&numbers, false);
            let (front, back) = result.split_at(expected.len());
            assert_eq!(front, expected);
            assert!(back.len() + front.len() == numbers.len() && back.iter().all(|number| number.is_nan()));
            let backwards: Vec<f64> = sorted(&numbers, true).into_iter().filter(|number| !number.is_nan()).collect();
            assert_eq!(backwards, expected.into_iter().rev().collect::<Vec<_>>());
        }
    }

    #[test]
    fn equal_keys_stay_as_they_stood() {
        let pairs: Vec<(Value, usize)> = (0..50).map(|place| (Value::Int(place as i128 % 4), place)).collect();
        for reverse in [false, true] {
            let mut expected: Vec<usize> = (0..50).collect();
            expected.sort_by_key(|place| if reverse { 3 - place % 4 } else { place % 4 });
            assert_eq!(*sort_by_keys(&Budget::of_input(), &pairs, reverse).unwrap(), expected);
        }
    }

    #[test]
    fn large_integers_and_floats_have_one_order() {
        let budget = Budget::of_input();
        let large = 1i128 << 53;
        let values = [Value::Float(f64::NAN), Value::Int(large + 1), Value::Float(large as f64), Value::Int(large - 1)];
        let pairs: Vec<(Value, usize)> = values.into_iter().zip(0..).collect();
        assert_eq!(*sort_by_keys(&budget, &pairs, false).unwrap(), [3, 2, 1, 0]);
        let list = |numbers: [f64; 2]| Value::list(Buffer::of(&budget, numbers.map(Value::Float)).unwrap()).unwrap();
        let lists = [list([f64::NAN, 2.0]), list([f64::NAN, 1.0]), list([5.0, 0.0])];
        let pairs: Vec<(Value, usize)> = lists.into_iter().zip(0..).collect();
        assert_eq!(*sort_by_keys(&budget, &pairs, false).unwrap(), [2, 1, 0]);
        let mixed = [(Value::Int(1), ()), (Value::Text(Str::default()), ())];
        assert!(sort_by_keys(&budget, &mixed, false).is_err());
    }
}
