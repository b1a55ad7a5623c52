//! Where the rows of a matrix that is made stand in the tensor that it is made of.

use super::config::Sizes;
use super::names::Role;
use crate::error::{Error, Result};

/// In which order rows are taken.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Every row stays where it is.
    Plain,
    /// GGUF files of some families have neighbours where these folders have halves of a head of so many rows, an even number.
    Halves(u64),
    /// Some rows of each head.
    Part(HeadRows),
    /// Some rows of each head as columns: of a tensor with so many columns, each becomes as many rows of every head.
    Transposed(HeadRows, u64),
}

/// Some rows of each head.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows {
    /// Rows of a head.
    pub each: u64,
    /// The first of them that is meant.
    pub first: u64,
    /// How many are.
    pub count: u64,
}

impl HeadRows {
    /// The row that becomes row `row` of those that are meant.
    pub fn source(&self, row: u64) -> u64 {
        row / self.count * self.each + self.first + row % self.count
    }
}

impl Order {
    /// The order of `rows` rows of the tensor `name`.
    pub fn of(role: &Role, sizes: &Sizes, rows: u64, name: &str) -> Result<Order> {
        let Some(heads) = role.halves.map(|heads| sizes.heads(heads)) else { return Ok(Order::Plain) };
        match rows / heads {
            head if rows.is_multiple_of(heads) && head > 0 && head.is_multiple_of(2) => Ok(Order::Halves(head)),
            _ => Err(Error::Format(format!("tensor `{name}` has {rows} rows, which are no pairs of {heads} heads"))),
        }
    }

    /// Whether every row stays where it is.
    pub fn is_plain(&self) -> bool {
        matches!(self, Order::Plain)
    }

    /// Whether rows are rows of the tensor.
    pub fn keeps_rows(&self) -> bool {
        !matches!(self, Order::Transposed(..))
    }

    /// The row of the tensor that becomes row `row`, where rows stay rows.
    pub fn source(&self, row: u64) -> u64 {
        match self {
            Order::Plain | Order::Transposed(..) => row,
            Order::Halves(head) => {
                let within = row % head;
                row - within + within % 2 * (head / 2) + within / 2
            }
            Order::Part(rows) => rows.source(row),
        }
    }
}
