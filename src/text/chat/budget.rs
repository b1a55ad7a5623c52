//! What a template may use up: work, memory, output, depth. Each limit is an error with its name.
//!
//! Work and memory are separate. Work is never given back and bounds the time. Memory is what the values of the template
//! hold at the moment: it is paid by the containers of `heap` as they grow, and goes back when they are dropped.
//!
//! How a new operation pays:
//!
//! 1. It builds its result with [`Text`](super::heap::Text), [`Buffer`](super::heap::Buffer) and
//!    [`Entries`](super::heap::Entries): values can be made of nothing else. They pay for memory, and for the work of
//!    writing what is in them.
//! 2. Its entry in a table says with [`Cost`] whether it looks at its operands. The caller of the table pays for their size,
//!    before it runs.
//! 3. Work that grows faster than operands and result (an order of values, a search in each of many) it pays itself, with
//!    [`Budget::work`] before each round. What looks into values of values goes through `equal`, `order`, `Key::new`,
//!    `push_repr` and `push_json`, which pay for every value that they meet.
//! 4. What calls another operation goes one level deeper with [`Budget::enter`].
//!
//! `tests/alone/text_limits.rs` tries each entry of the tables with large operands in a loop.

use super::arguments::Arguments;
use super::value::{VALUES, Value};
use crate::error::{Error, Result, checked};
use std::cell::Cell;
use std::rc::Rc;

/// Longest template in bytes.
pub(super) const SOURCE_BYTES: usize = 128 << 10;
/// Longest output in bytes.
pub(super) const OUTPUT_BYTES: usize = 4 << 20;
/// Widest `indent` of `tojson` and of the `indent` filter.
pub(super) const INDENT_COLUMNS: usize = 64;
/// What a template may use up; the rest of the limits are the same for all.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Steps of evaluation.
    pub steps: u64,
    /// Bytes of all values of a template at one time.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { steps: 4_000_000, bytes: 96 << 20 }
    }
}

/// Depth of nested expressions, statements and calls.
const NESTING_DEPTH: usize = 2_000;
/// Depth of lists in lists.
pub(super) const VALUE_DEPTH: u32 = 256;
/// Units of work in a step. A unit is the time to look at a byte, about a nanosecond of a slow processor.
const STEP_UNITS: u64 = 256;
/// Units of work for each byte of an operand.
const OPERAND_UNITS: usize = 4;

/// Units of work for each argument, which operations look for by name.
pub(super) const ARGUMENT_UNITS: usize = 32;

/// An error of a template.
pub(super) fn failure<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Template(message.into()))
}

/// The error that a limit is reached.
pub(super) fn exceeded<T>(limit: &str, amount: impl std::fmt::Display) -> Result<T> {
    failure(format!("chat template exceeds its {limit} limit of {amount}"))
}

/// What an operation of a table pays for its operands before it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    /// It looks at the kind or the length of its operands alone, or pays for what it looks at itself.
    Constant,
    /// It looks at every byte and item of its operands, a fixed number of times.
    Operands,
}

/// What is left. Copies are handles of one budget.
#[derive(Clone)]
pub(super) struct Budget(Rc<Left>);

struct Left {
    limits: Limits,
    work: Cell<u64>,
    memory: Cell<usize>,
    depth: Cell<usize>,
}

impl Budget {
    /// A budget with all of its limits left.
    pub(super) fn new(limits: Limits) -> Budget {
        Budget(Rc::new(Left {
            limits,
            work: Cell::new(limits.steps.saturating_mul(STEP_UNITS)),
            memory: Cell::new(limits.bytes),
            depth: Cell::new(0),
        }))
    }

    /// What the host's own values may use: as much as there is.
    pub(super) fn of_input() -> Budget {
        Budget::new(Limits { steps: u64::MAX, bytes: usize::MAX })
    }

    /// Pays for `steps`, each the work of evaluating an expression.
    pub(super) fn spend(&self, steps: u64) -> Result<()> {
        self.pay(steps.saturating_mul(STEP_UNITS))
    }

    /// Pays for `units` of work, each that of looking at a byte.
    pub(super) fn work(&self, units: usize) -> Result<()> {
        self.pay(units as u64)
    }

    fn pay(&self, units: u64) -> Result<()> {
        // Values are made in small pieces, some in ways that cannot fail: the next step ends a template that was refused one.
        checked(VALUES)?;
        match self.0.work.get().checked_sub(units) {
            Some(left) => {
                self.0.work.set(left);
                Ok(())
            }
            None => {
                // What would have been done is not, so whoever goes on after the error must not go on for long.
                self.0.work.set(0);
                exceeded("fuel", format_args!("{} steps", self.0.limits.steps))
            }
        }
    }

    /// Pays for calling an operation of a table with the `value` it belongs to.
    pub(super) fn call(&self, cost: Cost, value: &Value, arguments: &Arguments) -> Result<()> {
        self.spend(1)?;
        self.work((arguments.positional.len() + arguments.named.len()) * ARGUMENT_UNITS)?;
        if cost == Cost::Constant {
            return Ok(());
        }
        let mut operands = std::iter::once(value).chain(arguments.values());
        operands.try_for_each(|operand| self.work(operand.size().saturating_mul(OPERAND_UNITS)))
    }

    /// Goes one level deeper, until the level is dropped.
    pub(super) fn enter(&self) -> Result<Level> {
        self.spend(1)?;
        if self.0.depth.get() == NESTING_DEPTH {
            return exceeded("nesting", format_args!("{NESTING_DEPTH} levels"));
        }
        self.0.depth.set(self.0.depth.get() + 1);
        Ok(Level(self.clone()))
    }
}

/// One level of nesting; dropped, it goes back.
pub(super) struct Level(Budget);

impl Drop for Level {
    fn drop(&mut self) {
        let depth = &self.0.0.depth;
        depth.set(depth.get() - 1);
    }
}

/// Memory that has been paid for; dropped, it goes back.
pub(super) struct Hold {
    budget: Budget,
    bytes: usize,
}

impl Hold {
    /// Nothing yet.
    pub(super) fn new(budget: &Budget) -> Hold {
        Hold { budget: budget.clone(), bytes: 0 }
    }

    /// Pays for memory up to `bytes`, or gives back what is above.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<()> {
        let free = self.budget.0.memory.get().saturating_add(self.bytes);
        match free.checked_sub(bytes) {
            Some(left) => {
                self.budget.0.memory.set(left);
                self.bytes = bytes;
                Ok(())
            }
            None => exceeded("memory", format_args!("{} bytes", self.budget.0.limits.bytes)),
        }
    }

    /// Pays for a block of `bytes` more.
    pub(super) fn block(&mut self, bytes: usize) -> Result<()> {
        self.resize(self.bytes.saturating_add(block_bytes(bytes)))
    }

    /// Pays for a value of type `T` that is counted by reference.
    pub(super) fn counted<T>(&mut self) -> Result<()> {
        self.block(size_of::<T>() + 2 * size_of::<usize>())
    }

    /// Who pays.
    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let memory = &self.budget.0.memory;
        memory.set(memory.get().saturating_add(self.bytes));
    }
}

/// What an allocator takes for a block of `bytes`: a word beside it, rounded up to 16, and no less than 32.
pub(super) fn block_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes.saturating_add(23) & !15).max(32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_goes_back() {
        let budget = Budget::new(Limits::default());
        let left = || budget.0.memory.get();
        let full = left();
        let mut hold = Hold::new(&budget);
        hold.block(1000).unwrap();
        hold.counted::<u64>().unwrap();
        assert_eq!(left(), full - 1008 - 32);
        assert!(hold.block(full).is_err());
        hold.resize(32).unwrap();
        assert_eq!(left(), full - 32);
        drop(hold);
        assert_eq!(left(), full);
        let level = budget.enter().unwrap();
        assert_eq!(budget.0.depth.get(), 1);
        drop(level);
        assert_eq!(budget.0.depth.get(), 0);
    }

    #[test]
    fn work_does_not_come_back() {
        let budget = Budget::new(Limits::default());
        budget.spend(Limits::default().steps - 1).unwrap();
        budget.work(STEP_UNITS as usize).unwrap();
        assert!(budget.work(1).unwrap_err().to_string().contains("fuel"));
    }
}
