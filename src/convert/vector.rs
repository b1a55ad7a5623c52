//! Small tensors of folders, which become singles while a folder is opened.

use super::elements::{Elements, decoded};
use super::names::Change;
use super::order::Order;
use crate::error::{Error, Result, filled};
use crate::format::safetensors::Stored;

/// Most elements of such a tensor.
const ELEMENTS: u64 = 1 << 22;
/// What memory is for.
const VECTORS: &str = "the weights of the model";

/// The elements of a small tensor as singles, as converters write them; `order` is that of its `rows`.
pub fn vector(stored: &Stored, elements: &Elements, rows: u64, order: Order, change: Change) -> Result<Vec<u8>> {
    let (Elements::Plain(dtype), count) = (elements, &stored.shape.iter().product::<u64>()) else {
        let name = &stored.name;
        return Err(Error::Unsupported(format!(
            "tensor `{name}` of single numbers holds 8-bit floats, which is not supported"
        )));
    };
    if *count > ELEMENTS {
        let name = &stored.name;
        return Err(Error::Format(format!("tensor `{name}` has {count} elements, at most {ELEMENTS} are allowed")));
    }
    let values = decoded(stored, *dtype)?;
    let cols = count / rows;
    let source = |index: u64| order.source(index / cols) * cols + index % cols;
    let kept = order.rows(rows) * cols;
    let placed = (0..kept).map(|index| change.of(values[source(index) as usize]));
    let mut bytes = filled(kept as usize * size_of::<f32>(), 0, VECTORS)?;
    bytes
        .chunks_exact_mut(size_of::<f32>())
        .zip(placed)
        .for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
    Ok(bytes)
}
