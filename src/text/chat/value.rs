//! Values of templates: Python's, as far as templates see them.
//!
//! Lists and maps never change once made, as in the sandbox that templates are written for; only namespaces do.
//! Containers know how deep they are, so that no value can be nested without bound.

use super::budget::{Budget, VALUE_DEPTH, exceeded, failure};
use crate::error::{Error, Excerpt, Result, collected, copied_text, push, reserve};
use indexmap::{Equivalent, IndexMap};
use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// A value.
#[derive(Clone)]
pub(super) enum Value {
    /// Nothing by that name; holds what to say when it is used.
    Undefined(Rc<str>),
    /// `none`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
    /// Text.
    Text(Str),
    /// A list.
    List(Rc<Items>),
    /// A tuple.
    Tuple(Rc<Items>),
    /// A dictionary in order of insertion.
    Map(Rc<Map>),
    /// The one thing that can be assigned to.
    Namespace(Rc<RefCell<IndexMap<Key, Value>>>),
    /// The `loop` variable.
    Loop(Rc<Loop>),
    /// A macro, by its number in the interpreter.
    Macro(usize),
    /// A function of the environment.
    Function(Function),
    /// A method with the value it belongs to.
    Method(Rc<(Value, String)>),
}

/// Text that values share. Made of a `String`, whose memory can be asked for and refused, and never copied.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Str(Rc<String>);

impl std::ops::Deref for Str {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<String> for Str {
    fn from(text: String) -> Str {
        Str(Rc::new(text))
    }
}

/// What the memory of values is for.
pub(super) const VALUES: &str = "a chat template";

/// The values of an iterator, or the first error.
pub(super) fn gathered<T>(values: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let values = values.into_iter();
    let mut all = reserve(values.size_hint().0, VALUES)?;
    for value in values {
        push(&mut all, value?, VALUES)?;
    }
    Ok(all)
}

/// Adds an entry to a dictionary under construction.
pub(super) fn insert(entries: &mut IndexMap<Key, Value>, key: Key, value: Value) -> Result<()> {
    let bytes = (entries.len() + 1).saturating_mul(size_of::<(Key, Value)>());
    entries.try_reserve(1).map_err(|_| Error::out_of_memory(VALUES, bytes))?;
    entries.insert(key, value);
    Ok(())
}

/// Functions that every template has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    /// `range(start, stop, step)`
    Range,
    /// `dict(**items)`
    Dict,
    /// `namespace(**items)`
    Namespace,
    /// `raise_exception(message)`
    RaiseException,
    /// `strftime_now(format)`
    StrftimeNow,
}

/// The items of a list or tuple.
pub(super) struct Items {
    values: Vec<Value>,
    depth: u32,
}

/// A dictionary.
pub(super) struct Map {
    entries: IndexMap<Key, Value>,
    depth: u32,
}

/// What a loop knows of itself.
pub(super) struct Loop {
    /// Everything that is gone through.
    pub(super) items: Rc<Items>,
    /// Position, from 0.
    pub(super) index: Cell<usize>,
    /// Loops of the same recursive loop around this one.
    pub(super) depth: usize,
    /// Number of the recursive loop in the interpreter.
    pub(super) recursive: Option<usize>,
    /// What `changed` was last called with, as text: the value itself might hold this loop.
    pub(super) last_changed: RefCell<Option<String>>,
}

impl std::ops::Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.values
    }
}

impl std::ops::Deref for Map {
    type Target = IndexMap<Key, Value>;

    fn deref(&self) -> &IndexMap<Key, Value> {
        &self.entries
    }
}

impl Items {
    /// Pays for and makes the items of a container.
    pub(super) fn new(budget: &Budget, values: Vec<Value>) -> Result<Rc<Items>> {
        budget.take_items(values.len())?;
        let depth = container_depth(values.iter())?;
        Ok(Rc::new(Items { values, depth }))
    }
}

fn container_depth<'v>(values: impl Iterator<Item = &'v Value>) -> Result<u32> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > VALUE_DEPTH { exceeded("nesting", format_args!("{VALUE_DEPTH} containers")) } else { Ok(depth) }
}

impl Value {
    /// Pays for and makes text.
    pub(super) fn text(budget: &Budget, text: &str) -> Result<Value> {
        budget.take(text.len())?;
        Ok(Value::Text(copied_text(text, VALUES)?.into()))
    }

    /// A text of one character.
    pub(super) fn character(c: char) -> Value {
        Value::Text(String::from(c).into())
    }

    /// Pays for and makes a list.
    pub(super) fn list(budget: &Budget, values: Vec<Value>) -> Result<Value> {
        Items::new(budget, values).map(Value::List)
    }

    /// Pays for and makes a tuple.
    pub(super) fn tuple(budget: &Budget, values: Vec<Value>) -> Result<Value> {
        Items::new(budget, values).map(Value::Tuple)
    }

    /// Pays for and makes a dictionary.
    pub(super) fn map(budget: &Budget, entries: IndexMap<Key, Value>) -> Result<Value> {
        budget.take_items(2 * entries.len())?;
        let depth = container_depth(entries.values())?;
        Ok(Value::Map(Rc::new(Map { entries, depth })))
    }

    /// The value that stands for a missing attribute.
    pub(super) fn missing(&self, name: &str) -> Value {
        Value::Undefined(
            format!("'{} object' has no attribute '{}'", self.type_name(), Excerpt(name.as_bytes())).into(),
        )
    }

    fn depth(&self) -> u32 {
        match self {
            Value::List(items) | Value::Tuple(items) => items.depth,
            Value::Map(map) => map.depth,
            Value::Loop(current) => 1 + current.items.depth,
            Value::Method(method) => 1 + method.0.depth(),
            _ => 0,
        }
    }

    /// Python's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Map(_) => "dict",
            Value::Namespace(_) => "Namespace",
            Value::Loop(_) => "LoopContext",
            Value::Macro(_) => "Macro",
            Value::Function(_) => "function",
            Value::Method(_) => "method",
        }
    }

    /// Whether a condition on the value holds.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(items) | Value::Tuple(items) => !items.is_empty(),
            Value::Map(map) => !map.is_empty(),
            _ => true,
        }
    }

    fn is_scalar(&self) -> bool {
        matches!(self, Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_))
    }

    /// The text of a text value.
    pub(super) fn as_str(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// The integer of an integer or boolean.
    pub(super) fn as_int(&self) -> Option<i128> {
        match *self {
            Value::Int(value) => Some(value),
            Value::Bool(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The number of any number or boolean.
    pub(super) fn as_float(&self) -> Option<f64> {
        if let Value::Float(value) = *self { Some(value) } else { self.as_int().map(|value| value as f64) }
    }

    /// The error of using an undefined value; any other value passes.
    pub(super) fn defined(&self) -> Result<&Value> {
        if let Value::Undefined(message) = self { failure(&**message) } else { Ok(self) }
    }

    /// The values that a loop over this one goes through.
    pub(super) fn iterate(&self, budget: &Budget) -> Result<Rc<Items>> {
        let values = match self {
            Value::List(items) | Value::Tuple(items) => {
                budget.spend(items.len() as u64 / ITEMS_A_STEP)?;
                return Ok(Rc::clone(items));
            }
            Value::Undefined(_) => Vec::new(),
            Value::Map(map) => collected(map.keys().map(|key| key.0.clone()), VALUES)?,
            Value::Text(text) => {
                budget.take(text.len().saturating_mul(16))?;
                collected(text.chars().map(Value::character), VALUES)?
            }
            other => return failure(format!("'{}' object is not iterable", other.type_name())),
        };
        Items::new(budget, values)
    }

    /// The number of items, as `length` counts them.
    pub(super) fn length(&self, budget: &Budget) -> Result<usize> {
        match self {
            Value::Undefined(_) => Ok(0),
            Value::Text(text) => {
                budget.scan(text.len())?;
                Ok(text.chars().count())
            }
            Value::List(items) | Value::Tuple(items) => Ok(items.len()),
            Value::Map(map) => Ok(map.len()),
            other => failure(format!("object of type '{}' has no len()", other.type_name())),
        }
    }
}

/// Items that one step of fuel pays for looking at.
const ITEMS_A_STEP: u64 = 8;
/// Longest tuple that is a dictionary's key.
const KEY_ITEMS: usize = 16;

/// A value that can be a dictionary's key: scalars, and short tuples of them.
#[derive(Clone)]
pub(super) struct Key(pub(super) Value);

impl Key {
    /// The key of `value`, if it can be one.
    pub(super) fn new(value: Value) -> Result<Key> {
        match &value {
            scalar if scalar.is_scalar() => Ok(Key(value)),
            Value::Tuple(items) if items.len() <= KEY_ITEMS && items.iter().all(Value::is_scalar) => Ok(Key(value)),
            other => failure(format!("unhashable type: '{}'", other.type_name())),
        }
    }

    /// The key that a text is.
    pub(super) fn text(text: &str) -> Result<Key> {
        Ok(Key(Value::Text(copied_text(text, VALUES)?.into())))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        match (&self.0, &other.0) {
            (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => a == b,
            (Value::Tuple(a), Value::Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| Key(a.clone()) == Key(b.clone()))
            }
            (a, b) => match (a.as_int(), b.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => a.as_float().is_some_and(|a| Some(a) == b.as_float()),
            },
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Value::Text(text) => text.hash(state),
            Value::Tuple(items) => items.iter().for_each(|item| Key(item.clone()).hash(state)),
            // Equal numbers of different types are one key.
            other => other.as_float().map(|number| (number + 0.0).to_bits()).hash(state),
        }
    }
}

impl Equivalent<Key> for str {
    fn equivalent(&self, key: &Key) -> bool {
        key.0.as_str() == Some(self)
    }
}
