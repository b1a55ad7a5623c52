//! Arguments of calls: by position, then by name.

use super::budget::{Budget, failure};
use super::heap::{Buffer, Str};
use super::value::Value;
use crate::error::Result;

/// The arguments of one call.
pub(super) struct Arguments {
    /// In the order given.
    pub(super) positional: Buffer<Value>,
    /// Given with a name.
    pub(super) named: Buffer<(Str, Value)>,
    /// Whether the call is made where texts are escaped: what joins them counts as HTML there.
    pub(super) escapes: bool,
}

impl Arguments {
    /// No arguments.
    pub(super) fn new(budget: &Budget) -> Arguments {
        Arguments { positional: Buffer::new(budget), named: Buffer::new(budget), escapes: false }
    }

    /// A copy.
    pub(super) fn copy(&self, budget: &Budget) -> Result<Arguments> {
        let positional = Buffer::of(budget, self.positional.iter().cloned())?;
        Ok(Arguments { positional, named: Buffer::of(budget, self.named.iter().cloned())?, escapes: self.escapes })
    }

    /// All values, in no order that matters.
    pub(super) fn values(&self) -> impl Iterator<Item = &Value> {
        self.positional.iter().chain(self.named.iter().map(|(_, value)| value))
    }

    /// The argument at `index`, or called `name`.
    pub(super) fn get(&self, index: usize, name: &str) -> Option<&Value> {
        self.positional.get(index).or_else(|| self.named(name))
    }

    /// The argument called `name`.
    pub(super) fn named(&self, name: &str) -> Option<&Value> {
        self.named.iter().find(|(other, _)| **other == *name).map(|(_, value)| value)
    }

    /// The argument, which must be there.
    pub(super) fn required(&self, index: usize, name: &str) -> Result<&Value> {
        self.get(index, name).map_or_else(|| failure(format!("missing the argument '{name}'")), Ok)
    }

    /// Text at `index` or called `name`.
    pub(super) fn text(&self, index: usize, name: &str) -> Result<&str> {
        let value = self.required(index, name)?;
        value.defined()?;
        let wrong = || failure(format!("argument '{name}' must be str, not {}", value.type_name()));
        value.as_str().map_or_else(wrong, Ok)
    }

    /// Text, if given and not `none`.
    pub(super) fn optional_text(&self, index: usize, name: &str) -> Result<Option<&str>> {
        match self.get(index, name) {
            None | Some(Value::None) => Ok(None),
            Some(_) => self.text(index, name).map(Some),
        }
    }

    /// An integer, if given and not `none`.
    pub(super) fn optional_int(&self, index: usize, name: &str) -> Result<Option<i128>> {
        match self.get(index, name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => match value.as_position() {
                Some(number) => Ok(Some(number)),
                None => failure(format!("argument '{name}' must be int, not {}", value.type_name())),
            },
        }
    }

    /// Whether the argument is given and true.
    pub(super) fn flag(&self, index: usize, name: &str) -> bool {
        self.get(index, name).is_some_and(Value::is_true)
    }
}

/// A count from an argument: nothing below zero.
pub(super) fn count(number: i128) -> usize {
    usize::try_from(number.max(0)).unwrap_or(usize::MAX)
}
