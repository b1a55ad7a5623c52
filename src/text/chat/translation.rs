//! `translate` and `maketrans` of texts: characters exchanged by a dictionary.

use super::arguments::Arguments;
use super::budget::{Budget, failure};
use super::heap::{Buffer, Entries, Text};
use super::key::Key;
use super::value::Value;
use crate::error::Result;

/// `text.translate(table)`: a number in the table is a character, nothing takes it away.
pub(super) fn translate(budget: &Budget, text: &str, table: &Value) -> Result<Value> {
    let Value::Map(table) = table else { return failure("translate needs a dictionary, such as maketrans makes") };
    let mut out = Text::new(budget);
    for c in text.chars() {
        match table.get(&Key::new(budget, code(c))?) {
            None => out.push_char(c)?,
            Some(Value::None) => {}
            Some(Value::Text(text)) => out.push(text)?,
            Some(number) => match number.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32) {
                Some(c) => out.push_char(c)?,
                None => return failure("character mapping must be in range(0x110000), a text, or none"),
            },
        }
    }
    Ok(out.value())
}

fn code(c: char) -> Value {
    Value::Int((c as u32).into())
}

/// `text.maketrans(...)`: a table of one dictionary, or of characters, what they become, and those that go.
pub(super) fn table(budget: &Budget, arguments: &Arguments) -> Result<Value> {
    let mut entries = Entries::new(budget);
    let mut insert = |key: Value, value: Value| entries.insert(Key::new(budget, key)?, value);
    match &arguments.positional[..] {
        [Value::Map(map)] => {
            for (key, value) in map.iter() {
                let key = match &key.0 {
                    Value::Text(text) if text.chars().count() == 1 => text.chars().next().map_or(Value::None, code),
                    Value::Text(_) => return failure("string keys in translate table must be of length 1"),
                    number if number.as_int().is_some() => number.clone(),
                    _ => return failure("keys in translate table must be strings or integers"),
                };
                insert(key, value.clone())?;
            }
        }
        [Value::Text(from), Value::Text(to), gone @ ..]
            if gone.len() < 2 && gone.iter().all(|gone| gone.as_str().is_some()) =>
        {
            let (from, to) = (Buffer::of(budget, from.chars())?, Buffer::of(budget, to.chars())?);
            if from.len() != to.len() {
                return failure("the first two maketrans arguments must have equal length");
            }
            from.iter().zip(to.iter()).try_for_each(|(&from, &to)| insert(code(from), code(to)))?;
            let gone = gone.first().and_then(Value::as_str).unwrap_or("");
            gone.chars().try_for_each(|c| insert(code(c), Value::None))?;
        }
        _ => return failure("maketrans takes a dictionary, or two or three texts"),
    }
    Value::map(entries)
}
