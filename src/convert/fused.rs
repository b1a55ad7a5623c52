//! Tensors that hold a projection of all experts: whether their rows are outputs or inputs, and which of them are those of gates.

use super::config::Config;
use super::order::{HeadRows, Order, Turn};
use crate::error::{Error, Result};
use crate::format::safetensors::Stored;

/// How the folders of a family hold the projections of all experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Rows are outputs, those of gates first.
    Halves,
    /// The same, or with inputs as rows: sizes tell.
    Either,
    /// Rows are inputs, and columns of gates and of what they are multiplied with take turns; where values stand in blocks, rows do.
    Turns,
}

/// A projection that a tensor holds alone or with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// Of gates, beside what they are multiplied with.
    Gate,
    /// Of the latter.
    Up,
    /// Of what is made of both.
    Down,
}

/// What the sizes of a model say of such tensors.
#[derive(Clone, Copy, Debug)]
pub struct Fused {
    layout: Layout,
    /// Elements of a token's vector, and between the halves of an expert; 0 where shapes need not tell which way round they stand.
    hidden: u64,
    width: u64,
}

impl Fused {
    /// Reads the sizes.
    pub fn of(config: &Config) -> Result<Fused> {
        let layout = config.family.experts.map_or(Layout::Halves, |experts| experts.layout);
        let size = |name: &str| if layout == Layout::Either { config.size(name) } else { Ok(0) };
        Ok(Fused { layout, hidden: size("hidden_size")?, width: size("moe_intermediate_size")? })
    }

    /// The order of the tensor `stored`, of which `part` is made, or its biases are.
    pub fn order(&self, part: Projection, is_bias: bool, stored: &Stored) -> Result<Order> {
        let (is_turned, rows, cols) = match *stored.shape.as_slice() {
            [_, rows, cols] if !is_bias => (self.is_turned(part, stored)?, rows, cols),
            [_, biases] if is_bias => (false, biases, 1),
            _ => return Err(misshapen(stored, "which no projection of all experts has")),
        };
        let outputs = if is_turned { cols } else { rows };
        let meant = self.meant(part, outputs);
        let meant = meant.ok_or_else(|| misshapen(stored, "which no halves of experts have"))?;
        Ok(match (is_turned, part) {
            (true, _) => Order::Transposed(Turn::new(HeadRows::all(rows), cols, meant)),
            (false, Projection::Down) => Order::Plain,
            (false, _) => Order::Part(meant),
        })
    }

    /// Which of the outputs of an expert are meant.
    fn meant(&self, part: Projection, outputs: u64) -> Option<HeadRows> {
        let second = u64::from(part == Projection::Up);
        match self.layout {
            _ if part == Projection::Down => Some(HeadRows::all(outputs)),
            _ if !outputs.is_multiple_of(2) => None,
            Layout::Turns => Some(HeadRows { each: 2, first: second, count: 1 }),
            _ => Some(HeadRows { each: outputs, first: second * (outputs / 2), count: outputs / 2 }),
        }
    }

    /// Whether rows are inputs.
    fn is_turned(&self, part: Projection, stored: &Stored) -> Result<bool> {
        match self.layout {
            Layout::Halves => Ok(false),
            Layout::Turns => Ok(stored.type_name != "F4"),
            Layout::Either => {
                let (hidden, width) = (self.hidden, self.width);
                let [rows, cols] = if part == Projection::Down { [hidden, width] } else { [2 * width, hidden] };
                match stored.shape[1..] {
                    _ if rows == cols => Err(misshapen(stored, "which does not tell rows from columns")),
                    [a, b] if [a, b] == [rows, cols] => Ok(false),
                    [a, b] if [a, b] == [cols, rows] => Ok(true),
                    _ => Err(misshapen(
                        stored,
                        &format!("expected {rows} by {cols} of each expert, or {cols} by {rows}"),
                    )),
                }
            }
        }
    }
}

fn misshapen(stored: &Stored, problem: &str) -> Error {
    let (name, shape) = (&stored.name, &stored.shape);
    Error::Format(format!("tensor `{name}` has shape {shape:?}, {problem}"))
}
