//! The key-value part of a GGUF file, with typed look-ups that name the key in every error.
//!
//! Strings and arrays stay where they are in a copy of the file's header; a value holds only their position, so that a vocabulary of
//! 150,000 tokens costs one allocation. Strings are bytes until a caller asks for text. [`Builder`] makes the same of what other files say.

use super::limits::HEADER_BYTES;
use crate::error::{Error, Result, copied_text, extend, push, room};
use indexmap::IndexMap;
use std::ops::Range;

/// Position in the header, in bytes; headers are far shorter than 4 GiB.
pub type Span = Range<u32>;

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
    String(Span),
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
        bytes: Span,
    },
    /// Positions of strings in the file.
    Strings(Vec<Span>),
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

    /// The type with this number.
    pub(super) fn numbered(type_id: u32) -> Option<ScalarKind> {
        SCALARS.into_iter().find(|(id, _)| *id == type_id).map(|(_, kind)| kind)
    }

    /// Its number.
    pub(super) fn number(self) -> u32 {
        SCALARS.into_iter().find(|(_, kind)| *kind == self).map_or(0, |(id, _)| id)
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

/// Types of GGUF and their numbers.
const SCALARS: [(u32, ScalarKind); 11] = [
    (0, ScalarKind::U8),
    (1, ScalarKind::I8),
    (2, ScalarKind::U16),
    (3, ScalarKind::I16),
    (4, ScalarKind::U32),
    (5, ScalarKind::I32),
    (6, ScalarKind::F32),
    (7, ScalarKind::Bool),
    (10, ScalarKind::U64),
    (11, ScalarKind::I64),
    (12, ScalarKind::F64),
];
/// The numbers of a string and of an array.
pub(super) const TYPE_STRING: u32 = 8;
pub(super) const TYPE_ARRAY: u32 = 9;

/// A value as a file has it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it says.
    pub value: Value,
    /// The number of its type.
    pub(super) type_id: u32,
}

impl Entry {
    /// Bytes of a number or truth value.
    pub(super) fn scalar_bytes(&self) -> usize {
        ScalarKind::numbered(self.type_id).map_or(0, ScalarKind::size)
    }
}

/// The entries of a file in its order.
pub(super) type Entries = IndexMap<String, Entry>;

/// All key-value pairs of a file.
#[derive(Clone, Debug)]
pub struct Metadata {
    header: Vec<u8>,
    entries: Entries,
}

impl Metadata {
    /// `entries` of the file that begins with `header`.
    pub(super) fn new(header: Vec<u8>, entries: Entries) -> Self {
        Metadata { header, entries }
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// All entries, in the order of the file.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(key, entry)| (key.as_str(), entry))
    }

    /// The bytes at a position that a value of this metadata holds.
    pub fn bytes(&self, span: &Span) -> &[u8] {
        &self.header[span.start as usize..span.end as usize]
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
    pub fn strings(&self, key: &str) -> Result<Option<&[Span]>> {
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

    /// Bytes of `key`, an array of 8-bit numbers; `None` when absent.
    pub fn byte_array(&self, key: &str) -> Result<Option<&[u8]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Scalars { kind: ScalarKind::U8 | ScalarKind::I8, bytes })) => {
                Ok(Some(self.bytes(bytes)))
            }
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(&[])),
            Some(_) => Err(self.bad(key, "is not an array of bytes")),
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

/// Metadata under construction; setting a key again replaces its value.
#[derive(Debug, Default)]
pub struct Builder {
    header: Vec<u8>,
    entries: Entries,
}

/// What the memory of metadata is for.
const METADATA: &str = "metadata";

impl Builder {
    /// Everything that was set.
    pub fn build(self) -> Metadata {
        Metadata::new(self.header, self.entries)
    }

    /// Sets a text.
    pub fn set_text(&mut self, key: &str, text: &str) -> Result<()> {
        let span = self.keep(text.as_bytes())?;
        self.set(key, Value::String(span), TYPE_STRING)
    }

    /// Sets a whole number from 0.
    pub fn set_unsigned(&mut self, key: &str, value: u64) -> Result<()> {
        let kind = if u32::try_from(value).is_ok() { ScalarKind::U32 } else { ScalarKind::U64 };
        self.set(key, Value::Unsigned(value), kind.number())
    }

    /// Sets a number.
    pub fn set_f32(&mut self, key: &str, value: f32) -> Result<()> {
        self.set(key, Value::F32(value), ScalarKind::F32.number())
    }

    /// Sets a truth value.
    pub fn set_bool(&mut self, key: &str, value: bool) -> Result<()> {
        self.set(key, Value::Bool(value), ScalarKind::Bool.number())
    }

    /// Sets a list of texts.
    pub fn set_texts<'t>(&mut self, key: &str, texts: impl IntoIterator<Item = &'t [u8]>) -> Result<()> {
        let mut spans = Vec::new();
        for text in texts {
            let span = self.keep(text)?;
            push(&mut spans, span, METADATA)?;
        }
        self.set(key, Value::Array(Array::Strings(spans)), TYPE_ARRAY)
    }

    /// Sets a list of numbers or truth values; `bytes` holds them as GGUF does, whole elements only.
    pub fn set_scalars(&mut self, key: &str, kind: ScalarKind, bytes: &[u8]) -> Result<()> {
        let bytes = self.keep(bytes)?;
        self.set(key, Value::Array(Array::Scalars { kind, bytes }), TYPE_ARRAY)
    }

    fn set(&mut self, key: &str, value: Value, type_id: u32) -> Result<()> {
        let name = copied_text(key, METADATA)?;
        room(name.len(), METADATA, || self.entries.try_reserve(1))?;
        self.entries.insert(name, Entry { value, type_id });
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<Span> {
        let start = self.header.len();
        if bytes.len() > HEADER_BYTES - start.min(HEADER_BYTES) {
            return Err(Error::Format(format!("its metadata takes more than {HEADER_BYTES} bytes")));
        }
        extend(&mut self.header, bytes, METADATA)?;
        Ok(start as u32..self.header.len() as u32)
    }
}
