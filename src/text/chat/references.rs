//! What a template can take hold of in itself: its macros, and its blocks by `self`.

use super::budget::Budget;
use super::heap::{Buffer, Str};
use super::tree::{Macro, Tree};
use super::value::{Value, held};
use crate::error::{Excerpt, Result};
use std::rc::Rc;

/// A macro as a value.
pub(super) struct MacroValue {
    /// Its place among the macros of the interpreter.
    pub(super) number: usize,
    /// Its name; the body of a call block has none.
    pub(super) name: Option<Str>,
    arguments: Value,
    catches_kwargs: bool,
    catches_varargs: bool,
    takes_caller: bool,
    has_caller: bool,
    _hold: super::budget::Hold,
}

impl MacroValue {
    /// The macro that was declared so.
    pub(super) fn value(budget: &Budget, number: usize, declaration: &Macro) -> Result<Value> {
        let name = declaration.name.map(|name| Str::of(budget, name)).transpose()?;
        let names = declaration.parameters.iter().map(|(name, _)| Value::text(budget, name));
        let arguments = Value::tuple(Buffer::gathered(budget, names)?)?;
        Ok(Value::Macro(Rc::new(MacroValue {
            number,
            name,
            arguments,
            catches_kwargs: declaration.uses.kwargs,
            catches_varargs: declaration.uses.varargs,
            takes_caller: declaration.uses.caller,
            has_caller: declaration.has_parameter("caller"),
            _hold: held::<MacroValue>(budget)?,
        })))
    }

    /// An attribute of it.
    pub(super) fn attribute(&self, name: &str) -> Option<Value> {
        Some(match name {
            "name" => self.name.clone().map_or(Value::None, Value::Text),
            "arguments" => self.arguments.clone(),
            "catch_kwargs" => Value::Bool(self.catches_kwargs),
            "catch_varargs" => Value::Bool(self.catches_varargs),
            "caller" => Value::Bool(self.takes_caller),
            "explicit_caller" => Value::Bool(self.has_caller),
            _ => return None,
        })
    }
}

/// An attribute of `self` or of one of its blocks; nothing for other values.
pub(super) fn attribute(budget: &Budget, tree: &Tree, value: &Value, name: &str) -> Option<Result<Value>> {
    match value {
        Value::Template => {
            let block = tree.blocks.iter().position(|(other, _)| *other == name);
            Some(block.map_or_else(|| value.missing(budget, name), |block| Ok(Value::Block(block))))
        }
        Value::Block(block) => match name {
            "name" => Some(Value::text(budget, tree.blocks[*block].0)),
            "super" => {
                let block = Excerpt(tree.blocks[*block].0.as_bytes());
                Some(Value::undefined(budget, format_args!("there is no parent block called '{block}'")))
            }
            _ => None,
        },
        _ => None,
    }
}
