//! Values: the matrices that ops exchange.

/// Index into [`super::Program::values`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ValueId(pub usize);

/// Which rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One for each row of the batch.
    Batch,
    /// One for each row whose logits are wanted.
    Outputs,
    /// One for each expert that this value chose for a row of the batch. Those of a batch stand in any order that a backend likes.
    Chosen(ValueId),
}

/// What a value holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Numbers.
    Floats,
    /// Chosen experts: their numbers, as the bits of unsigned 32-bit integers, in the first half of a row, their weights in the second.
    Choices,
}

/// A matrix that ops exchange, of elements of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Elements of a row.
    pub width: usize,
    /// Number of rows.
    pub rows: Rows,
    /// What they are.
    pub kind: Kind,
}

impl Value {
    /// Numbers.
    pub fn floats(width: usize, rows: Rows) -> Value {
        Value { width, rows, kind: Kind::Floats }
    }
}
