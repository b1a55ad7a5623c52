//! Sequences that are not written out: ranges, views of dictionaries, and iterators, which are used up by whoever goes
//! through them; and the two functions that remember how often they were called.

use super::arguments::Arguments;
use super::budget::{Budget, Hold, VALUE_DEPTH, exceeded, failure};
use super::filters::apply;
use super::heap::{Buffer, Str};
use super::predicates;
use super::sequences::at_path;
use super::value::{Items, Map, Value, held};
use crate::error::Result;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// Longest `range`.
const MAX_RANGE: u128 = 100_000;

/// `range(start, stop, step)`
pub(super) struct Range {
    /// The first number.
    pub(super) start: i128,
    /// What the numbers stay before.
    pub(super) stop: i128,
    /// From one number to the next.
    pub(super) step: i128,
    len: usize,
    items: OnceCell<Rc<Items>>,
    _hold: Hold,
}

impl Range {
    /// A range, if it is not too long.
    pub(super) fn value(budget: &Budget, start: i128, stop: i128, step: i128) -> Result<Value> {
        if step == 0 {
            return failure("range() arg 3 must not be zero");
        }
        let empty = if step > 0 { start >= stop } else { start <= stop };
        let len = if empty { 0 } else { start.abs_diff(stop).div_ceil(step.unsigned_abs()) };
        if len > MAX_RANGE {
            return failure(format!("range of {len} numbers, at most {MAX_RANGE} are supported"));
        }
        let (len, items) = (len as usize, OnceCell::new());
        Ok(Value::Range(Rc::new(Range { start, stop, step, len, items, _hold: held::<Range>(budget)? })))
    }

    /// How many numbers there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number at `index`, which must be below the length.
    pub(super) fn at(&self, index: usize) -> i128 {
        self.start.wrapping_add(self.step.wrapping_mul(index as i128))
    }

    /// Whether `number` is one of the range.
    pub(super) fn contains(&self, number: i128) -> bool {
        let inside = if self.step > 0 { self.start <= number } else { self.start >= number };
        let distance = self.start.abs_diff(number);
        let step = self.step.unsigned_abs();
        inside && distance.is_multiple_of(step) && distance / step < self.len as u128
    }

    /// The numbers.
    pub(super) fn items(&self, budget: &Budget) -> Result<Rc<Items>> {
        if let Some(items) = self.items.get() {
            return Ok(Rc::clone(items));
        }
        let items = Items::new(Buffer::of(budget, (0..self.len).map(|index| Value::Int(self.at(index))))?)?;
        Ok(Rc::clone(self.items.get_or_init(|| items)))
    }
}

/// What of a dictionary a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Keys,
    Values,
    Items,
}

/// `keys()`, `values()` or `items()` of a dictionary.
pub(super) struct View {
    /// The dictionary.
    pub(super) map: Rc<Map>,
    /// What of it is shown.
    pub(super) part: Part,
    _hold: Hold,
}

impl View {
    /// A view of `map`.
    pub(super) fn value(budget: &Budget, map: &Rc<Map>, part: Part) -> Result<Value> {
        Ok(Value::View(Rc::new(View { map: Rc::clone(map), part, _hold: held::<View>(budget)? })))
    }

    /// What it shows.
    pub(super) fn items(&self, budget: &Budget) -> Result<Rc<Items>> {
        let entries = self.map.iter();
        Items::new(match self.part {
            Part::Keys => Buffer::of(budget, entries.map(|(key, _)| key.0.clone()))?,
            Part::Values => Buffer::of(budget, entries.map(|(_, value)| value.clone()))?,
            Part::Items => {
                Buffer::gathered(budget, entries.map(|(key, value)| Value::pair(budget, key.0.clone(), value.clone())))?
            }
        })
    }
}

/// What makes the items of an iterator out of others, one by one.
pub(super) enum Step {
    /// A filter of each.
    Map(Str, Arguments),
    /// What is at a path of each, or what stands for nothing there.
    Attribute(Value, Option<Value>),
    /// Those for which a test holds or does not, of the item or of what is at a path of it.
    Select { test: Option<Str>, arguments: Arguments, path: Option<Value>, wanted: bool },
}

impl Step {
    /// How deep containers are nested in what the step was given.
    fn depth(&self) -> u32 {
        match self {
            Step::Map(_, arguments) => deepest(arguments.values()),
            Step::Attribute(path, default) => deepest(default.iter().chain([path])),
            Step::Select { arguments, path, .. } => deepest(path.iter().chain(arguments.values())),
        }
    }
}

fn deepest<'v>(values: impl Iterator<Item = &'v Value>) -> u32 {
    values.map(Value::depth).max().unwrap_or(0)
}

/// A filter that looks at all items before it has its first.
pub(super) type Whole = fn(&Budget, &Value, &Arguments) -> Result<Rc<Items>>;

enum State {
    /// Nothing was asked for yet.
    Waiting(Value, Step),
    /// The same, of a filter that needs all items.
    WaitingForAll(Value, Whole, Arguments),
    /// Items come one by one.
    Running(Source, Step),
    /// What is left.
    Left(Rc<Items>, usize),
    /// Used up, or an error came.
    Over,
}

/// Where the items of an iterator come from.
enum Source {
    Items(Rc<Items>, usize),
    Iterator(Rc<Generator>),
}

/// An iterator: every item comes once.
pub(super) struct Generator {
    state: RefCell<State>,
    /// Iterators that stand behind this one.
    pub(super) depth: u32,
    _hold: Hold,
}

impl Generator {
    fn value(budget: &Budget, state: State, depth: u32) -> Result<Value> {
        if depth > VALUE_DEPTH {
            return exceeded("nesting", format_args!("{VALUE_DEPTH} containers"));
        }
        let hold = held::<Generator>(budget)?;
        Ok(Value::Generator(Rc::new(Generator { state: RefCell::new(state), depth, _hold: hold })))
    }

    /// An iterator over what `step` makes of the items of `value`. What is false has no items here.
    pub(super) fn of_step(budget: &Budget, value: &Value, step: Step) -> Result<Value> {
        let depth = 1 + value.depth().max(step.depth());
        Generator::value(budget, State::Waiting(value.clone(), step), depth)
    }

    /// An iterator over what a filter makes of all items of `value`.
    pub(super) fn of_all(budget: &Budget, value: &Value, whole: Whole, arguments: &Arguments) -> Result<Value> {
        let arguments = arguments.copy(budget)?;
        let depth = 1 + value.depth().max(deepest(arguments.values()));
        Generator::value(budget, State::WaitingForAll(value.clone(), whole, arguments), depth)
    }

    /// An iterator over `items`.
    pub(super) fn of_items(budget: &Budget, items: Rc<Items>) -> Result<Value> {
        let depth = items.depth();
        Generator::value(budget, State::Left(items, 0), depth)
    }

    /// The next item.
    pub(super) fn next(&self, budget: &Budget) -> Result<Option<Value>> {
        let _level = budget.enter()?;
        let Ok(mut state) = self.state.try_borrow_mut() else { return failure("generator already executing") };
        // An iterator that failed is over.
        let mut running = match std::mem::replace(&mut *state, State::Over) {
            State::Waiting(value, _) if !value.is_true() => return Ok(None),
            State::Waiting(Value::Generator(inner), step) => State::Running(Source::Iterator(inner), step),
            State::Waiting(value, step) => State::Running(Source::Items(value.iterate(budget)?, 0), step),
            State::WaitingForAll(value, whole, arguments) => State::Left(whole(budget, &value, &arguments)?, 0),
            other => other,
        };
        let item = match &mut running {
            State::Running(source, step) => pulled(budget, source, step)?,
            State::Left(items, at) => {
                *at += 1;
                items.get(*at - 1).cloned()
            }
            _ => None,
        };
        if item.is_some() {
            *state = running;
        }
        Ok(item)
    }

    /// All items that are left.
    pub(super) fn rest(&self, budget: &Budget) -> Result<Rc<Items>> {
        if let Ok(mut state) = self.state.try_borrow_mut()
            && let State::Left(items, 0) = &*state
        {
            let items = Rc::clone(items);
            *state = State::Over;
            return Ok(items);
        }
        let mut all = Buffer::new(budget);
        while let Some(item) = self.next(budget)? {
            all.push(item)?;
        }
        Items::new(all)
    }

    /// Puts back what a loop that ended early has not come to: the items from `index` on.
    pub(super) fn put_back(&self, items: &Rc<Items>, index: usize) {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            *state = State::Left(Rc::clone(items), index);
        }
    }
}

fn pulled(budget: &Budget, source: &mut Source, step: &Step) -> Result<Option<Value>> {
    loop {
        budget.work(size_of::<Value>())?;
        let item = match source {
            Source::Items(items, at) => {
                *at += 1;
                items.get(*at - 1).cloned()
            }
            Source::Iterator(inner) => inner.next(budget)?,
        };
        let Some(item) = item else { return Ok(None) };
        match step {
            Step::Map(name, arguments) => return apply(budget, name, &item, arguments).map(Some),
            Step::Attribute(path, default) => {
                return at_path(budget, &item, path, default.as_ref()).map(Some);
            }
            Step::Select { test, arguments, path, wanted } => {
                let subject =
                    path.as_ref().map_or_else(|| Ok(item.clone()), |path| at_path(budget, &item, path, None))?;
                let holds = match test {
                    Some(test) => predicates::holds(budget, test, &subject, arguments)?,
                    None => subject.is_true(),
                };
                if holds == *wanted {
                    return Ok(Some(item));
                }
            }
        }
    }
}

/// `cycler(a, b)`
pub(super) struct Cycler {
    items: Rc<Items>,
    at: Cell<usize>,
    _hold: Hold,
}

impl Cycler {
    /// A cycler over `items`.
    pub(super) fn value(budget: &Budget, items: Buffer<Value>) -> Result<Value> {
        if items.is_empty() {
            return failure("at least one item has to be provided");
        }
        let items = Items::new(items)?;
        Ok(Value::Cycler(Rc::new(Cycler { items, at: Cell::new(0), _hold: held::<Cycler>(budget)? })))
    }

    /// The item that comes next.
    pub(super) fn current(&self) -> Value {
        self.items[self.at.get()].clone()
    }

    /// The item, and on to the next.
    pub(super) fn next(&self) -> Value {
        let item = self.current();
        self.at.set((self.at.get() + 1) % self.items.len());
        item
    }

    /// Back to the first.
    pub(super) fn reset(&self) {
        self.at.set(0);
    }

    /// An attribute of it.
    pub(super) fn attribute(&self, name: &str) -> Option<Value> {
        match name {
            "current" => Some(self.current()),
            "items" => Some(Value::Tuple(Rc::clone(&self.items))),
            "pos" => Some(Value::Int(self.at.get() as i128)),
            _ => None,
        }
    }

    /// How deep its items are.
    pub(super) fn depth(&self) -> u32 {
        self.items.depth()
    }
}

/// `joiner(separator)`: nothing at the first call, the separator at all others.
pub(super) struct Joiner {
    separator: Value,
    used: Cell<bool>,
    _hold: Hold,
}

impl Joiner {
    /// A joiner that was not called yet.
    pub(super) fn value(budget: &Budget, separator: Value) -> Result<Value> {
        Ok(Value::Joiner(Rc::new(Joiner { separator, used: Cell::new(false), _hold: held::<Joiner>(budget)? })))
    }

    /// What a call gives.
    pub(super) fn call(&self) -> Value {
        if self.used.replace(true) { self.separator.clone() } else { Value::Text(Str::default()) }
    }

    /// An attribute of it.
    pub(super) fn attribute(&self, name: &str) -> Option<Value> {
        match name {
            "sep" => Some(self.separator.clone()),
            "used" => Some(Value::Bool(self.used.get())),
            _ => None,
        }
    }

    /// How deep its separator is.
    pub(super) fn depth(&self) -> u32 {
        self.separator.depth()
    }
}
