//! The key-value part of a GGUF file, with typed look-ups that name the key in every error.
//!
//! Strings and arrays stay where they are in the file; a value holds only their position, so that a vocabulary of
//! 150,000 tokens costs one allocation. Strings are bytes until a caller asks for text.

use super::mmap::Data;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// One metadata value.
#[derive(Clone, Debug)]
pub enum Value {
    /// Any unsigned integer type of the file.
    Unsigned(u64),
    /// Any signed integer type of the file.
    Signed(i64),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A boolean.
    Bool(bool),
    /// Position of a string's bytes in the file.
    String(Range<usize>),
    /// A list of values of one type.
    Array(Array),
}

/// A metadata array.
#[derive(Clone, Debug)]
pub enum Array {
    /// Numbers or booleans, decoded on demand.
    Scalars {
        /// Type of every element.
        kind: ScalarKind,
        /// Position of the elements in the file, whole elements only.
        bytes: Range<usize>,
    },
    /// Positions of strings in the file.
    Strings(Vec<Range<usize>>),
    /// Arrays of arrays.
    Arrays(Vec<Array>),
}

/// Fixed-size element types of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ScalarKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl ScalarKind {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Decodes one element; `bytes` has exactly [`ScalarKind::size`] bytes.
    pub fn decode(self, bytes: &[u8]) -> Value {
        let mut raw = [0u8; 8];
        raw[..self.size()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(raw);
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Value::Unsigned(bits),
            Self::I8 => Value::Signed(bits as u8 as i8 as i64),
            Self::I16 => Value::Signed(bits as u16 as i16 as i64),
            Self::I32 => Value::Signed(bits as u32 as i32 as i64),
            Self::I64 => Value::Signed(bits as i64),
            Self::F32 => Value::F32(f32::from_bits(bits as u32)),
            Self::F64 => Value::F64(f64::from_bits(bits)),
            Self::Bool => Value::Bool(bits != 0),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::Scalars { kind, bytes } => bytes.len() / kind.size(),
            Array::Strings(spans) => spans.len(),
            Array::Arrays(arrays) => arrays.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All key-value pairs of a file.
#[derive(Clone, Debug)]
pub struct Metadata {
    data: Arc<Data>,
    entries: HashMap<String, Value>,
}

impl Metadata {
    pub(super) fn new(data: Arc<Data>, entries: HashMap<String, Value>) -> Self {
        Metadata { data, entries }
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// The bytes at a position that a value of this metadata holds.
    pub fn bytes(&self, span: &Range<usize>) -> &[u8] {
        &self.data[span.clone()]
    }

    /// Text of `key`; `None` when absent, an error when it is no UTF-8 string.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(span)) => {
                std::str::from_utf8(self.bytes(span)).map(Some).map_err(|_| self.bad(key, "is not valid utf-8"))
            }
            Some(_) => Err(self.bad(key, "is not a string")),
        }
    }

    /// Non-negative integer of `key`, whatever its width; `None` when absent.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(v)) => Ok(Some(*v)),
            Some(Value::Signed(v)) => {
                u64::try_from(*v).map(Some).map_err(|_| self.bad(key, &format!("is negative ({v})")))
            }
            Some(_) => Err(self.bad(key, "is not an integer")),
        }
    }

    /// Non-negative integer of `key` that fits 32 bits; `None` when absent.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.unsigned(key)?
            .map(|v| u32::try_from(v).map_err(|_| self.bad(key, &format!("is too large ({v})"))))
            .transpose()
    }

    /// Finite float of `key`; `None` when absent.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        let value = match self.get(key) {
            None => return Ok(None),
            Some(Value::F32(v)) => *v,
            Some(Value::F64(v)) => *v as f32,
            Some(_) => return Err(self.bad(key, "is not a float")),
        };
        if value.is_finite() { Ok(Some(value)) } else { Err(self.bad(key, "is not finite")) }
    }

    /// Boolean of `key`; `None` when absent.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(_) => Err(self.bad(key, "is not a boolean")),
        }
    }

    /// Positions of the strings of `key` (see [`Metadata::bytes`]); `None` when absent.
    pub fn strings(&self, key: &str) -> Result<Option<&[Range<usize>]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Strings(spans))) => Ok(Some(spans)),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(&[])),
            Some(_) => Err(self.bad(key, "is not an array of strings")),
        }
    }

    /// Numbers of `key`, decoded in order; `None` when absent.
    pub fn scalars(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = Value> + '_>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Scalars { kind, bytes })) => {
                let kind = *kind;
                Ok(Some(self.bytes(bytes).chunks_exact(kind.size()).map(move |raw| kind.decode(raw))))
            }
            Some(_) => Err(self.bad(key, "is not an array of numbers")),
        }
    }

    /// The error for an entry that is there but unusable.
    pub fn bad(&self, key: &str, problem: &str) -> Error {
        Error::Metadata { key: key.to_owned(), problem: problem.to_owned() }
    }

    /// `value`, or the error that `key` is missing.
    pub fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.bad(key, "is missing"))
    }
}
