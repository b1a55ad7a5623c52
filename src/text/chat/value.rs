//! Values of templates: Python's, as far as templates see them.
//!
//! Lists and maps never change once made, as in the sandbox that templates are written for; only namespaces do.
//! Containers know how deep they are, so that no value can be nested without bound.

use super::budget::{Budget, Cost, Hold, VALUE_DEPTH, exceeded, failure};
use super::heap::{Buffer, Entries, Str, Text};
use super::integer::{self, Large};
use super::key::Key;
use super::lazy::{Cycler, Generator, Joiner, Part, Range, View};
use super::references::MacroValue;
use crate::error::{Excerpt, Result};
use indexmap::IndexMap;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;

/// A value.
#[derive(Clone)]
pub(super) enum Value {
    /// Nothing by that name; holds what to say when it is used.
    Undefined(Str),
    /// `none`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// An integer that does not fit into 128 bits.
    Large(Rc<Large>),
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
    /// Numbers that are not written out.
    Range(Rc<Range>),
    /// The keys, values or entries of a dictionary.
    View(Rc<View>),
    /// What can be gone through once.
    Generator(Rc<Generator>),
    /// Values in turn.
    Cycler(Rc<Cycler>),
    /// A separator that is left out at first.
    Joiner(Rc<Joiner>),
    /// The one thing that can be assigned to.
    Namespace(Rc<Namespace>),
    /// The `loop` variable.
    Loop(Rc<Loop>),
    /// A macro.
    Macro(Rc<MacroValue>),
    /// `self`: the template, with its blocks.
    Template,
    /// A block, by its place in the tree.
    Block(usize),
    /// A function of the environment.
    Function(Function),
    /// A method with the value it belongs to.
    Method(Rc<Method>),
}

/// What the memory of values is for.
pub(super) const VALUES: &str = "a chat template";

/// Functions that every template has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    /// `range(start, stop, step)`
    Range,
    /// `dict(**items)`
    Dict,
    /// `namespace(**items)`
    Namespace,
    /// `cycler(*items)`
    Cycler,
    /// `joiner(separator)`
    Joiner,
    /// `raise_exception(message)`
    RaiseException,
    /// `strftime_now(format)`
    StrftimeNow,
    /// `lipsum()`
    Lipsum,
}

/// The functions by their names, and what a call pays.
pub(super) const FUNCTIONS: [(&str, Cost, Function); 8] = [
    ("range", Cost::Constant, Function::Range),
    ("dict", Cost::Operands, Function::Dict),
    ("namespace", Cost::Operands, Function::Namespace),
    ("cycler", Cost::Operands, Function::Cycler),
    ("joiner", Cost::Constant, Function::Joiner),
    ("raise_exception", Cost::Operands, Function::RaiseException),
    ("strftime_now", Cost::Operands, Function::StrftimeNow),
    ("lipsum", Cost::Constant, Function::Lipsum),
];

impl Function {
    /// The function called `name`.
    pub(super) fn named(name: &str) -> Option<Function> {
        FUNCTIONS.iter().find(|(other, ..)| *other == name).map(|&(_, _, function)| function)
    }

    /// What a call pays.
    pub(super) fn cost(self) -> Cost {
        FUNCTIONS.iter().find(|&&(_, _, other)| other == self).map_or(Cost::Operands, |&(_, cost, _)| cost)
    }
}

/// The items of a list or tuple.
pub(super) struct Items {
    values: Buffer<Value>,
    depth: u32,
    is_group: bool,
}

/// A dictionary.
pub(super) struct Map {
    entries: Entries,
    depth: u32,
}

/// Names that a template may assign to.
pub(super) struct Namespace {
    /// The names with their values.
    pub(super) entries: RefCell<Entries>,
    _hold: Hold,
}

/// A method that was asked for and not called yet.
pub(super) struct Method {
    /// What it belongs to.
    pub(super) of: Value,
    /// Its name.
    pub(super) name: &'static str,
    _hold: Hold,
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
    pub(super) last_changed: RefCell<Option<Str>>,
    _hold: Hold,
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
    /// The items of a container.
    pub(super) fn new(mut values: Buffer<Value>) -> Result<Rc<Items>> {
        let depth = container_depth(values.iter())?;
        values.hold_mut().counted::<Items>()?;
        Ok(Rc::new(Items { values, depth, is_group: false }))
    }

    /// A group of `groupby`: what its values have in common, and the values; these have names too.
    pub(super) fn group(budget: &Budget, common: Value, values: Value) -> Result<Rc<Items>> {
        let mut values = Buffer::of(budget, [common, values])?;
        let depth = container_depth(values.iter())?;
        values.hold_mut().counted::<Items>()?;
        Ok(Rc::new(Items { values, depth, is_group: true }))
    }

    /// How deep containers are nested here.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// The part of a group with that name.
    pub(super) fn named(&self, name: &str) -> Option<Value> {
        let at = ["grouper", "list"].iter().position(|&part| part == name && self.is_group)?;
        self.values.get(at).cloned()
    }
}

impl Loop {
    /// A loop that is about to begin.
    pub(super) fn new(budget: &Budget, items: Rc<Items>, recursive: Option<usize>, depth: usize) -> Result<Rc<Loop>> {
        let (index, last_changed) = (Cell::new(0), RefCell::new(None));
        let hold = held::<Loop>(budget)?;
        Ok(Rc::new(Loop { items, index, depth, recursive, last_changed, _hold: hold }))
    }
}

/// What a value of type `T` that is counted by reference pays.
pub(super) fn held<T>(budget: &Budget) -> Result<Hold> {
    let mut hold = Hold::new(budget);
    hold.counted::<T>()?;
    Ok(hold)
}

fn container_depth<'v>(values: impl Iterator<Item = &'v Value>) -> Result<u32> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > VALUE_DEPTH { exceeded("nesting", format_args!("{VALUE_DEPTH} containers")) } else { Ok(depth) }
}

impl Value {
    /// A copy of `text`.
    pub(super) fn text(budget: &Budget, text: &str) -> Result<Value> {
        Str::of(budget, text).map(Value::Text)
    }

    /// A text of one character.
    pub(super) fn character(budget: &Budget, c: char) -> Result<Value> {
        Value::text(budget, c.encode_utf8(&mut [0; 4]))
    }

    /// A list.
    pub(super) fn list(values: Buffer<Value>) -> Result<Value> {
        Items::new(values).map(Value::List)
    }

    /// A tuple.
    pub(super) fn tuple(values: Buffer<Value>) -> Result<Value> {
        Items::new(values).map(Value::Tuple)
    }

    /// A tuple of two.
    pub(super) fn pair(budget: &Budget, first: Value, second: Value) -> Result<Value> {
        Value::tuple(Buffer::of(budget, [first, second])?)
    }

    /// A dictionary.
    pub(super) fn map(mut entries: Entries) -> Result<Value> {
        let depth = container_depth(entries.values())?;
        entries.hold_mut().counted::<Map>()?;
        Ok(Value::Map(Rc::new(Map { entries, depth })))
    }

    /// A namespace.
    pub(super) fn namespace(budget: &Budget, entries: Entries) -> Result<Rc<Namespace>> {
        Ok(Rc::new(Namespace { entries: RefCell::new(entries), _hold: held::<Namespace>(budget)? }))
    }

    /// The method `name` of this value.
    pub(super) fn method(&self, budget: &Budget, name: &'static str) -> Result<Value> {
        Ok(Value::Method(Rc::new(Method { of: self.clone(), name, _hold: held::<Method>(budget)? })))
    }

    /// The value that stands for what is not there; `message` is the error of using it.
    pub(super) fn undefined(budget: &Budget, message: std::fmt::Arguments) -> Result<Value> {
        let mut text = Text::new(budget);
        text.push(&message.to_string())?;
        Ok(Value::Undefined(text.finish()))
    }

    /// The value that stands for a missing attribute.
    pub(super) fn missing(&self, budget: &Budget, name: &str) -> Result<Value> {
        let (kind, name) = (self.type_name(), Excerpt(name.as_bytes()));
        Value::undefined(budget, format_args!("'{kind} object' has no attribute '{name}'"))
    }

    /// What an operation that looks at the whole of this value looks at, in bytes; values in a container are not looked into.
    pub(super) fn size(&self) -> usize {
        match self {
            Value::Text(text) => text.len(),
            Value::Large(number) => number.bits() as usize / 8,
            Value::List(items) | Value::Tuple(items) => items.len().saturating_mul(size_of::<Value>()),
            Value::Map(map) => map.len().saturating_mul(2 * size_of::<Value>()),
            _ => size_of::<Value>(),
        }
    }

    /// How deep containers are nested here.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Value::List(items) | Value::Tuple(items) => items.depth,
            Value::View(view) => 1 + view.map.depth,
            Value::Generator(generator) => generator.depth,
            Value::Cycler(cycler) => 1 + cycler.depth(),
            Value::Joiner(joiner) => 1 + joiner.depth(),
            Value::Map(map) => map.depth,
            Value::Loop(current) => 1 + current.items.depth,
            Value::Method(method) => 1 + method.of.depth(),
            _ => 0,
        }
    }

    /// Python's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Large(_) => "int",
            Value::Float(_) => "float",
            Value::Text(text) => {
                if text.is_markup() {
                    "Markup"
                } else {
                    "str"
                }
            }
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Map(_) => "dict",
            Value::Range(_) => "range",
            Value::View(view) => match view.part {
                Part::Keys => "dict_keys",
                Part::Values => "dict_values",
                Part::Items => "dict_items",
            },
            Value::Generator(_) => "generator",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
            Value::Namespace(_) => "Namespace",
            Value::Loop(_) => "LoopContext",
            Value::Macro(_) => "Macro",
            Value::Template => "TemplateReference",
            Value::Block(_) => "BlockReference",
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
            Value::Range(range) => range.len() > 0,
            Value::View(view) => !view.map.is_empty(),
            _ => true,
        }
    }

    /// Whether a loop can go through the value.
    pub(super) fn is_iterable(&self) -> bool {
        let is_container = matches!(self, Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Map(_));
        let is_lazy = matches!(self, Value::Range(_) | Value::View(_) | Value::Generator(_));
        is_container || is_lazy || matches!(self, Value::Undefined(_) | Value::Loop(_))
    }

    /// The text of a text value.
    pub(super) fn as_str(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// Whether the value is text that counts as HTML.
    pub(super) fn is_markup(&self) -> bool {
        matches!(self, Value::Text(text) if text.is_markup())
    }

    /// The integer of a boolean or an integer that fits into 128 bits.
    pub(super) fn as_int(&self) -> Option<i128> {
        match *self {
            Value::Int(value) => Some(value),
            Value::Bool(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The number of any number or boolean; infinite for an integer that is beyond all floats.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            Value::Large(number) => {
                let beyond = || if self.as_position() < Some(0) { f64::NEG_INFINITY } else { f64::INFINITY };
                Some(integer::float(number).unwrap_or_else(beyond))
            }
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// How two numbers compare, exactly; `None` for other values and what is no number.
    pub(super) fn number_order(&self, other: &Value) -> Option<Ordering> {
        let (a, b) = (self.as_float()?, other.as_float()?);
        let whole = |value: &Value, float: f64| value.as_int().unwrap_or(float as i128);
        let order = a.partial_cmp(&b)?;
        if order != Ordering::Equal || a.abs() < 1e30 {
            return Some(order.then_with(|| whole(self, a).cmp(&whole(other, b))));
        }
        match (self, other) {
            (Value::Float(_), Value::Float(_)) => Some(order),
            // Beyond all floats: still on this side of what is infinite.
            (Value::Float(_), _) if a.is_infinite() => Some(a.total_cmp(&0.0)),
            (_, Value::Float(_)) if b.is_infinite() => Some(0f64.total_cmp(&b)),
            _ => {
                let exact =
                    |value: &Value, float: f64| value.as_big().map_or_else(|| integer::whole(float), Cow::into_owned);
                Some(exact(self, a).cmp(&exact(other, b)))
            }
        }
    }

    /// Whether two values that are no numbers and no text are one object.
    pub(super) fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::None, Value::None) => true,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => Rc::ptr_eq(a, b),
            (Value::Map(a), Value::Map(b)) => Rc::ptr_eq(a, b),
            (Value::Range(a), Value::Range(b)) => Rc::ptr_eq(a, b),
            (Value::View(a), Value::View(b)) => Rc::ptr_eq(a, b),
            (Value::Generator(a), Value::Generator(b)) => Rc::ptr_eq(a, b),
            (Value::Cycler(a), Value::Cycler(b)) => Rc::ptr_eq(a, b),
            (Value::Joiner(a), Value::Joiner(b)) => Rc::ptr_eq(a, b),
            (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
            (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
            (Value::Large(a), Value::Large(b)) => Rc::ptr_eq(a, b),
            (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
            (Value::Function(a), Value::Function(b)) => a == b,
            _ => false,
        }
    }

    /// The error of using an undefined value; any other value passes.
    pub(super) fn defined(&self) -> Result<&Value> {
        if let Value::Undefined(message) = self { failure(&**message) } else { Ok(self) }
    }

    /// The values that a loop over this one goes through.
    pub(super) fn iterate(&self, budget: &Budget) -> Result<Rc<Items>> {
        let values = match self {
            Value::List(items) | Value::Tuple(items) => return Ok(Rc::clone(items)),
            Value::Undefined(_) => Buffer::new(budget),
            Value::Range(range) => return range.items(budget),
            Value::View(view) => return view.items(budget),
            Value::Generator(generator) => return generator.rest(budget),
            Value::Map(map) => Buffer::of(budget, map.keys().map(|key| key.0.clone()))?,
            Value::Text(text) => Buffer::gathered(budget, text.chars().map(|c| Value::character(budget, c)))?,
            other => return failure(format!("'{}' object is not iterable", other.type_name())),
        };
        Items::new(values)
    }

    /// The number of items, as `length` counts them.
    pub(super) fn length(&self, budget: &Budget) -> Result<usize> {
        match self {
            Value::Undefined(_) => Ok(0),
            Value::Text(text) => {
                budget.work(text.len())?;
                Ok(text.chars().count())
            }
            Value::List(items) | Value::Tuple(items) => Ok(items.len()),
            Value::Map(map) => Ok(map.len()),
            Value::Range(range) => Ok(range.len()),
            Value::View(view) => Ok(view.map.len()),
            Value::Loop(current) => Ok(current.items.len()),
            other => failure(format!("object of type '{}' has no len()", other.type_name())),
        }
    }
}
