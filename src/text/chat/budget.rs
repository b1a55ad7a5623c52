//! What a template may use up: steps, memory, output, depth. Each limit is an error with its name.
//!
//! Everything that makes text or containers asks here before it takes memory, so a template cannot take more than
//! [`MEMORY_BYTES`], whatever it does. Memory is counted as taken and never given back: that bounds the work too.

use super::value::VALUES;
use crate::error::{Error, Result};
use std::cell::Cell;

/// Longest template in bytes.
pub(super) const SOURCE_BYTES: usize = 128 << 10;
/// Longest output in bytes.
pub(super) const OUTPUT_BYTES: usize = 4 << 20;
/// Widest `indent` of `tojson` and of the `indent` filter.
pub(super) const INDENT_COLUMNS: usize = 64;
/// Steps of evaluation.
const FUEL_STEPS: u64 = 4_000_000;
/// Memory of all values that a template makes.
const MEMORY_BYTES: usize = 96 << 20;
/// Depth of nested expressions, statements and calls.
const NESTING_DEPTH: usize = 2_000;
/// Depth of lists in lists.
pub(super) const VALUE_DEPTH: u32 = 256;
/// Bytes that one step of fuel pays for.
const BYTES_A_STEP: usize = 256;

/// An error of a template.
pub(super) fn failure<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Template(message.into()))
}

/// The error that a limit is reached.
pub(super) fn exceeded<T>(limit: &str, amount: impl std::fmt::Display) -> Result<T> {
    failure(format!("chat template exceeds its {limit} limit of {amount}"))
}

/// What is left.
pub(super) struct Budget {
    fuel: Cell<u64>,
    memory: Cell<usize>,
    depth: Cell<usize>,
}

impl Budget {
    /// A full budget.
    pub(super) fn new() -> Budget {
        Budget { fuel: Cell::new(FUEL_STEPS), memory: Cell::new(MEMORY_BYTES), depth: Cell::new(0) }
    }

    /// What the host's own values may use: as much as there is.
    pub(super) fn of_input() -> Budget {
        Budget { fuel: Cell::new(u64::MAX), memory: Cell::new(usize::MAX), depth: Cell::new(0) }
    }

    /// Pays for `steps` of work.
    pub(super) fn spend(&self, steps: u64) -> Result<()> {
        match self.fuel.get().checked_sub(steps) {
            Some(left) => {
                self.fuel.set(left);
                Ok(())
            }
            None => exceeded("fuel", format_args!("{FUEL_STEPS} steps")),
        }
    }

    /// Pays for looking at `bytes` of text.
    pub(super) fn scan(&self, bytes: usize) -> Result<()> {
        self.spend((bytes / BYTES_A_STEP) as u64)
    }

    /// Pays for `bytes` of new memory.
    pub(super) fn take(&self, bytes: usize) -> Result<()> {
        match self.memory.get().checked_sub(bytes) {
            Some(left) => {
                self.memory.set(left);
                self.scan(bytes)
            }
            None => exceeded("memory", format_args!("{MEMORY_BYTES} bytes")),
        }
    }

    /// Pays for a container of `items` values.
    pub(super) fn take_items(&self, items: usize) -> Result<()> {
        self.take(items.saturating_mul(VALUE_BYTES).saturating_add(VALUE_BYTES))
    }

    /// Goes one level deeper; [`Budget::leave`] goes back.
    pub(super) fn enter(&self) -> Result<()> {
        self.spend(1)?;
        if self.depth.get() == NESTING_DEPTH {
            return exceeded("nesting", format_args!("{NESTING_DEPTH} levels"));
        }
        self.depth.set(self.depth.get() + 1);
        Ok(())
    }

    /// Goes back one level.
    pub(super) fn leave(&self) {
        self.depth.set(self.depth.get() - 1);
    }
}

/// What a value in a container is counted as.
const VALUE_BYTES: usize = 64;

/// Text under construction, paid for as it grows.
pub(super) struct Text<'b> {
    budget: &'b Budget,
    text: String,
}

impl<'b> Text<'b> {
    /// No text yet.
    pub(super) fn new(budget: &'b Budget) -> Text<'b> {
        Text { budget, text: String::new() }
    }

    /// Appends `part`.
    pub(super) fn push(&mut self, part: &str) -> Result<()> {
        self.budget.take(part.len())?;
        self.grow(part.len())?;
        self.text.push_str(part);
        Ok(())
    }

    /// Appends `part` `count` times.
    pub(super) fn repeat(&mut self, part: &str, count: usize) -> Result<()> {
        let bytes = part.len().saturating_mul(count);
        self.budget.take(bytes)?;
        self.grow(bytes)?;
        (0..count).for_each(|_| self.text.push_str(part));
        Ok(())
    }

    fn grow(&mut self, more: usize) -> Result<()> {
        self.text.try_reserve(more).map_err(|_| Error::out_of_memory(VALUES, more))
    }

    /// The text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Who pays.
    pub(super) fn budget(&self) -> &'b Budget {
        self.budget
    }
}
