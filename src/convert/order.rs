//! Where the rows of a matrix that is made stand in the tensor that it is made of.

use super::config::Sizes;
use super::names::{Role, Rows};
use crate::error::{Error, Result};
use crate::format::safetensors::Stored;

/// Most columns that are read at once where columns become rows, and most elements.
const TILE_COLUMNS: u64 = 256;
const TILE_ELEMENTS: u64 = 1 << 20;

/// In which order rows are taken.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Every row stays where it is.
    Plain,
    /// GGUF files of some families have neighbours where these folders have halves of a head of so many rows, an even number.
    Halves(u64),
    /// Some rows of each head.
    Part(HeadRows),
    /// Heads of values in another order.
    Tiled(Tiles),
    /// The same of columns.
    Columns(Tiles),
    /// Of so many heads, each of which has rows of a query, of a key, of values and of their gates: first those of all queries, then those of all
    /// keys, then those of all values.
    ByKeyHead {
        /// Heads.
        heads: u64,
        /// Rows of a query, and of a key.
        keys: u64,
        /// Rows of values, and of gates.
        values: u64,
    },
    /// Some rows of each head as columns.
    Transposed(Turn),
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

/// Rows that become columns.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Those of each head.
    pub rows: HeadRows,
    /// Columns of the tensor.
    pub width: u64,
    /// Which of them become rows.
    cols: HeadRows,
    /// How many are read at once, which divides them.
    pub span: u64,
}

/// Blocks of elements, which stand group by group: all first ones of the groups, then all second ones.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    /// Elements before them, which stay.
    pub first: u64,
    /// Groups.
    pub groups: u64,
    /// Blocks of a group.
    pub each: u64,
    /// Elements of a block.
    pub size: u64,
}

impl Tiles {
    /// The element that becomes element `index`.
    pub fn source(&self, index: u64) -> u64 {
        let Some(index) = index.checked_sub(self.first) else { return index };
        let (block, within) = (index / self.size, index % self.size);
        self.first + (block % self.groups * self.each + block / self.groups) * self.size + within
    }
}

impl Turn {
    /// Rows of heads as columns, of a tensor of `width` columns, of which some become rows.
    pub fn new(rows: HeadRows, width: u64, cols: HeadRows) -> Turn {
        // Few rows of the result are made at once, and those of one thread need few columns.
        let most = (TILE_ELEMENTS / rows.count.max(1)).clamp(1, TILE_COLUMNS);
        let span = (1..=most).rev().find(|&span| width.is_multiple_of(span)).unwrap_or(1);
        Turn { rows, width, cols, span }
    }

    /// The same of all columns, which are read together.
    pub fn whole(rows: HeadRows, width: u64) -> Turn {
        Turn { rows, width, cols: HeadRows::all(width), span: width }
    }

    /// Rows that become of a head.
    fn outputs(&self) -> u64 {
        self.width / self.cols.each * self.cols.count
    }

    /// The head whose column becomes row `row`, and the column.
    pub fn source(&self, row: u64) -> (u64, u64) {
        (row / self.outputs(), self.cols.source(row % self.outputs()))
    }
}

impl HeadRows {
    /// All of `each`.
    pub fn all(each: u64) -> HeadRows {
        HeadRows { each, first: 0, count: each }
    }

    /// The row that becomes row `row` of those that are meant.
    pub fn source(&self, row: u64) -> u64 {
        row / self.count * self.each + self.first + row % self.count
    }
}

impl Order {
    /// The order of the tensor `stored`, of `rows` rows.
    pub fn of(role: &Role, sizes: &Sizes, rows: u64, stored: &Stored) -> Result<Order> {
        let (name, shape) = (&stored.name, stored.shape.as_slice());
        match role.rows {
            Rows::All => Ok(Order::Plain),
            Rows::Halves(heads) => match (sizes.heads(heads), rows / sizes.heads(heads)) {
                (heads, head) if rows.is_multiple_of(heads) && head > 0 && head.is_multiple_of(2) => {
                    Ok(Order::Halves(head))
                }
                (heads, _) => {
                    Err(Error::Format(format!("tensor `{name}` has {rows} rows, which are no pairs of {heads} heads")))
                }
            },
            Rows::OfExperts(part) => sizes.fused.order(part, role.is_single(), stored),
            Rows::Half { is_second } => match *shape {
                [each, _] if each.is_multiple_of(2) => {
                    let count = each / 2;
                    Ok(Order::Part(HeadRows { each, first: if is_second { count } else { 0 }, count }))
                }
                _ => Err(Error::Format(format!("tensor `{name}` has shape {shape:?}, which no halves of blocks have"))),
            },
            Rows::State(part) => {
                let cols = shape.last().copied().unwrap_or(1);
                if part.is_of_matrix() && shape.len() != 2 {
                    return Err(Error::Format(format!(
                        "tensor `{name}` has shape {shape:?}, expected rows and columns"
                    )));
                }
                sizes.state.map_or(Ok(Order::Plain), |state| state.order(part, [rows, cols], name))
            }
        }
    }

    /// How many rows become of `rows`.
    pub fn rows(&self, rows: u64) -> u64 {
        match *self {
            Order::Part(HeadRows { each, count, .. }) => rows / each * count,
            Order::ByKeyHead { heads, keys, values } => heads * (2 * keys + values),
            Order::Transposed(turn) => rows / turn.rows.each * turn.outputs(),
            _ => rows,
        }
    }

    /// How many columns a row has then.
    pub fn cols(&self, cols: u64) -> u64 {
        if let Order::Transposed(turn) = self { turn.rows.count } else { cols }
    }

    /// The dimensions in a GGUF file of what becomes of a tensor of the shape `shape`.
    pub fn dims(&self, shape: &[u64]) -> Vec<u64> {
        let mut dims: Vec<u64> = shape.iter().rev().copied().collect();
        match (self, dims.as_mut_slice()) {
            (Order::Transposed(turn), [cols, rows, ..]) => (*cols, *rows) = (turn.rows.count, turn.outputs()),
            (_, [_, rows, ..]) => *rows = self.rows(*rows),
            _ => {}
        }
        dims
    }

    /// Whether every row stays where it is.
    pub fn is_plain(&self) -> bool {
        matches!(self, Order::Plain)
    }

    /// Whether rows are rows of the tensor, as they stand there.
    pub fn keeps_rows(&self) -> bool {
        !matches!(self, Order::Transposed(_) | Order::Columns(_))
    }

    /// The row of the tensor that becomes row `row`, where rows stay rows.
    pub fn source(&self, row: u64) -> u64 {
        match self {
            Order::Plain | Order::Transposed(_) | Order::Columns(_) => row,
            Order::Tiled(tiles) => tiles.source(row),
            &Order::ByKeyHead { heads, keys, values } => {
                let (part, each) = (row / (heads * keys), 2 * (keys + values));
                match row.checked_sub(2 * heads * keys) {
                    None => row % (heads * keys) / keys * each + part * keys + row % keys,
                    Some(row) => row / values * each + 2 * keys + row % values,
                }
            }
            Order::Halves(head) => {
                let within = row % head;
                row - within + within % 2 * (head / 2) + within / 2
            }
            Order::Part(rows) => rows.source(row),
        }
    }
}
