//! The filters of sequences: `map`, `select`, `sort` and their kin.

use super::arguments::{Arguments, count};
use super::budget::{Budget, Text, failure};
use super::case;
use super::filters::apply;
use super::methods;
use super::operators;
use super::predicates;
use super::show::display;
use super::value::{Items, Key, VALUES, Value, gathered};
use crate::error::{Error, Result, collected, copied, copied_text, filled, grow, push};
use indexmap::IndexMap;
use minijinja::machinery::ast::BinOpKind;
use std::cmp::Ordering;

/// The first or last value, as given.
pub(super) fn end_of(item: Option<&Value>) -> Value {
    item.cloned().unwrap_or_else(|| Value::Undefined("the sequence is empty, it has no first or last item".into()))
}

/// The values as texts with `d` between them.
pub(super) fn join(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let separator = arguments.get(0, "d").map_or(Ok(String::new()), |separator| display(budget, separator))?;
    let values = by_attribute(budget, &*value.iterate(budget)?, arguments.get(1, "attribute"))?;
    methods::join_shown(budget, &separator, &values)
}

/// The value at a dotted path such as `function.name` or `0.id`.
fn at_path(budget: &Budget, value: &Value, path: &Value) -> Result<Value> {
    let Some(path) = path.as_str() else { return operators::item(budget, value, path) };
    path.split('.').try_fold(value.clone(), |value, part| {
        let part = part.parse().map_or_else(|_| Value::text(budget, part), |index| Ok(Value::Int(index)))?;
        operators::item(budget, &value, &part)
    })
}

fn by_attribute(budget: &Budget, values: &Items, path: Option<&Value>) -> Result<Vec<Value>> {
    budget.take_items(values.len())?;
    match path {
        None | Some(Value::None) => copied(values, VALUES),
        Some(path) => gathered(values.iter().map(|value| at_path(budget, value, path))),
    }
}

/// Each value through a filter, or an attribute of each.
pub(super) fn map(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = value.iterate(budget)?;
    budget.take_items(values.len())?;
    if let Some(path) = arguments.named("attribute") {
        let default = arguments.named("default");
        let at = |value: &Value| match (at_path(budget, value, path)?, default) {
            (Value::Undefined(_), Some(default)) => Ok(default.clone()),
            (found, _) => Ok(found),
        };
        return Value::list(budget, gathered(values.iter().map(at))?);
    }
    let (name, rest) = first_argument(arguments, 0)?;
    let name = name.map_or_else(|| failure("map requires a filter argument"), Ok)?;
    Value::list(budget, gathered(values.iter().map(|value| apply(budget, &name, value, &rest)))?)
}

/// The name at `index` and the arguments after it.
fn first_argument(arguments: &Arguments, index: usize) -> Result<(Option<String>, Arguments)> {
    let name = match arguments.positional.get(index) {
        Some(_) => Some(copied_text(arguments.text(index, "name")?, VALUES)?),
        None => None,
    };
    let positional = copied(arguments.positional.get(index + 1..).unwrap_or_default(), VALUES)?;
    let named = arguments.named.iter().map(|(name, value)| Ok((copied_text(name, VALUES)?, value.clone())));
    Ok((name, Arguments { positional, named: gathered(named)? }))
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
    let (test, rest) = first_argument(arguments, usize::from(path.is_some()))?;
    let mut kept = Vec::new();
    for item in value.iterate(budget)?.iter() {
        let subject = path.map_or_else(|| Ok(item.clone()), |path| at_path(budget, item, path))?;
        let holds = match &test {
            Some(test) => predicates::holds(budget, test, &subject, &rest)?,
            None => subject.is_true(),
        };
        if holds == wanted {
            push(&mut kept, item.clone(), VALUES)?;
        }
    }
    Value::list(budget, kept)
}

/// What values are compared by: their text in small letters, unless the case counts.
fn sort_key(budget: &Budget, value: &Value, case_sensitive: bool) -> Result<Value> {
    match value.as_str() {
        Some(text) if !case_sensitive => Ok(Value::Text(case::recase(budget, text, "lower")?.into())),
        _ => Ok(value.clone()),
    }
}

/// The values in the order of their keys, equal ones as they stood. A merge sort of places: those of the standard library take
/// memory without asking, and cannot stop at a comparison that fails.
fn sort_by_keys<T: Clone>(budget: &Budget, pairs: &[(Value, T)], reverse: bool) -> Result<Vec<T>> {
    let order = |a: usize, b: usize| {
        let order = operators::total_order(budget, &pairs[a].0, &pairs[b].0)?;
        Ok(if reverse { order.reverse() } else { order })
    };
    let (mut from, mut to) = (collected(0..pairs.len(), VALUES)?, filled(pairs.len(), 0, VALUES)?);
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
    collected(from.into_iter().map(|place| pairs[place].1.clone()), VALUES)
}

fn keyed(budget: &Budget, values: &Items, path: Option<&Value>, case: bool) -> Result<Vec<(Value, Value)>> {
    let keys = by_attribute(budget, values, path)?;
    let keys = gathered(keys.iter().map(|key| sort_key(budget, key, case)))?;
    collected(keys.into_iter().zip(values.iter().cloned()), VALUES)
}

/// The values in order.
pub(super) fn sort(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = value.iterate(budget)?;
    let pairs = keyed(budget, &values, arguments.get(2, "attribute"), arguments.flag(1, "case_sensitive"))?;
    Value::list(budget, sort_by_keys(budget, &pairs, arguments.flag(0, "reverse"))?)
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
    budget.take_items(3 * map.len())?;
    let mut pairs = Vec::new();
    for (key, value) in map.iter() {
        let subject = if by_value { value } else { &key.0 };
        let pair = Value::tuple(budget, vec![key.0.clone(), value.clone()])?;
        let key = sort_key(budget, subject, arguments.flag(0, "case_sensitive"))?;
        push(&mut pairs, (key, pair), VALUES)?;
    }
    Value::list(budget, sort_by_keys(budget, &pairs, arguments.flag(2, "reverse"))?)
}

/// Each value once.
pub(super) fn unique(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = value.iterate(budget)?;
    let mut first: IndexMap<Key, Value> = IndexMap::new();
    for (key, value) in keyed(budget, &values, arguments.get(1, "attribute"), arguments.flag(0, "case_sensitive"))? {
        budget.spend(1)?;
        first.try_reserve(1).map_err(|_| Error::out_of_memory(VALUES, first.len()))?;
        first.entry(Key::new(key)?).or_insert(value);
    }
    Value::list(budget, collected(first.into_values(), VALUES)?)
}

/// The values with an attribute in common, by that attribute.
pub(super) fn groupby(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let path = arguments.required(0, "attribute")?;
    let values = value.iterate(budget)?;
    let pairs = keyed(budget, &values, Some(path), arguments.flag(2, "case_sensitive"))?;
    let pairs: Vec<(Value, (Value, Value))> =
        collected(pairs.into_iter().map(|(key, value)| (key.clone(), (key, value))), VALUES)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, value) in sort_by_keys(budget, &pairs, false)? {
        match groups.last_mut() {
            Some((last, group)) if operators::equal(budget, last, &key)? => push(group, value, VALUES)?,
            _ => push(&mut groups, (key, vec![value]), VALUES)?,
        }
    }
    budget.take_items(groups.len())?;
    let group = |(_, group): (Value, Vec<Value>)| {
        let key = at_path(budget, &group[0], path)?;
        let group = Value::list(budget, group)?;
        Value::tuple(budget, vec![key, group])
    };
    Value::list(budget, gathered(groups.into_iter().map(group))?)
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
    Ok(end_of(best.map(|(_, value)| value).as_ref()))
}

/// All values added up.
pub(super) fn sum(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let values = by_attribute(budget, &*value.iterate(budget)?, arguments.get(0, "attribute"))?;
    let start = arguments.get(1, "start").cloned().unwrap_or(Value::Int(0));
    values.iter().try_fold(start, |sum, value| operators::binary(budget, BinOpKind::Add, &sum, value))
}

/// The values, or the characters, from the end.
pub(super) fn reverse(budget: &Budget, value: &Value, _: &Arguments) -> Result<Value> {
    if let Value::Text(text) = value {
        let mut out = Text::new(budget);
        text.chars().rev().try_for_each(|c| out.push(c.encode_utf8(&mut [0; 4])))?;
        return Ok(Value::Text(out.finish().into()));
    }
    let values = value.iterate(budget)?;
    budget.take_items(values.len())?;
    Value::list(budget, collected(values.iter().rev().cloned(), VALUES)?)
}

/// Rows of so many values.
pub(super) fn batch(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let size = arguments.optional_int(0, "linecount")?.map_or(0, count);
    let values = value.iterate(budget)?;
    if size == 0 {
        return failure("batch needs a count above zero");
    }
    budget.take_items(values.len())?;
    let mut rows = Vec::new();
    for row in values.chunks(size) {
        let mut row = copied(row, VALUES)?;
        if let Some(fill) = arguments.get(1, "fill_with").filter(|fill| !matches!(fill, Value::None)) {
            budget.take_items(size)?;
            grow(&mut row, size, VALUES)?;
            row.resize(size, fill.clone());
        }
        push(&mut rows, Value::list(budget, row)?, VALUES)?;
    }
    Value::list(budget, rows)
}

/// So many columns of values.
pub(super) fn slice(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
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
        let mut part = copied(&values[from..from + len], VALUES)?;
        if let (Some(fill), true) = (arguments.get(1, "fill_with"), longer > 0 && column >= longer) {
            push(&mut part, fill.clone(), VALUES)?;
        }
        push(&mut parts, Value::list(budget, part)?, VALUES)?;
        from += len;
    }
    Value::list(budget, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(numbers: &[f64], reverse: bool) -> Vec<f64> {
        let budget = Budget::new();
        let pairs: Vec<(Value, f64)> = numbers.iter().map(|&number| (Value::Float(number), number)).collect();
        sort_by_keys(&budget, &pairs, reverse).unwrap()
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
            assert_eq!(sort_by_keys(&Budget::new(), &pairs, reverse).unwrap(), expected);
        }
    }

    #[test]
    fn large_integers_and_floats_have_one_order() {
        let budget = Budget::new();
        let large = 1i128 << 53;
        let values = [Value::Float(f64::NAN), Value::Int(large + 1), Value::Float(large as f64), Value::Int(large - 1)];
        let pairs: Vec<(Value, usize)> = values.into_iter().zip(0..).collect();
        assert_eq!(sort_by_keys(&budget, &pairs, false).unwrap(), [3, 2, 1, 0]);
        let list = |numbers: [f64; 2]| Value::list(&budget, numbers.map(Value::Float).to_vec()).unwrap();
        let lists = [list([f64::NAN, 2.0]), list([f64::NAN, 1.0]), list([5.0, 0.0])];
        let pairs: Vec<(Value, usize)> = lists.into_iter().zip(0..).collect();
        assert_eq!(sort_by_keys(&budget, &pairs, false).unwrap(), [2, 1, 0]);
        let mixed = [(Value::Int(1), ()), (Value::Text(String::new().into()), ())];
        assert!(sort_by_keys(&budget, &mixed, false).is_err());
    }
}
