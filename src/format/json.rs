//! Metadata values as text, for a host that asks: strings and numbers as they are, arrays as JSON.
//!
//! The text grows by fallible reservations alone, since a file decides how long it becomes.

use super::metadata::{Array, Metadata, Value};
use crate::error::{Error, Result, extend};
use std::fmt::{self, Write};

impl Metadata {
    /// A value as text: strings as their bytes, numbers in decimal, booleans as `true` and `false`, arrays as JSON, in which floats
    /// that JSON cannot hold are null, and bytes that are not UTF-8 are U+FFFD.
    pub fn render(&self, value: &Value) -> Result<Vec<u8>> {
        let mut text = Text(Vec::new());
        let result = match value {
            Value::String(span) => text.push(self.bytes(span)),
            Value::F32(v) => write!(text, "{v}"),
            Value::F64(v) => write!(text, "{v}"),
            other => text.value(self, other),
        };
        match result {
            Ok(()) => Ok(text.0),
            Err(fmt::Error) => Err(Error::out_of_memory("metadata text", text.0.len())),
        }
    }
}

/// JSON under construction; a write fails when memory runs out, and only then.
struct Text(Vec<u8>);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes())
    }
}

impl Text {
    fn push(&mut self, bytes: &[u8]) -> fmt::Result {
        extend(&mut self.0, bytes, "metadata text").map_err(|_| fmt::Error)
    }

    fn value(&mut self, meta: &Metadata, value: &Value) -> fmt::Result {
        match value {
            Value::Unsigned(v) => write!(self, "{v}"),
            Value::Signed(v) => write!(self, "{v}"),
            Value::F32(v) if v.is_finite() => write!(self, "{v:?}"),
            Value::F64(v) if v.is_finite() => write!(self, "{v:?}"),
            Value::F32(_) | Value::F64(_) => self.push(b"null"),
            Value::Bool(v) => write!(self, "{v}"),
            Value::String(span) => self.string(meta.bytes(span)),
            Value::Array(array) => self.array(meta, array),
        }
    }

    fn array(&mut self, meta: &Metadata, array: &Array) -> fmt::Result {
        match array {
            Array::Scalars { kind, bytes } => {
                let elements = meta.bytes(bytes).chunks_exact(kind.size());
                self.list(elements, |text, raw| text.value(meta, &kind.decode(raw)))
            }
            Array::Strings(spans) => self.list(spans.iter(), |text, span| text.string(meta.bytes(span))),
            Array::Arrays(arrays) => self.list(arrays.iter(), |text, array| text.array(meta, array)),
        }
    }

    fn list<T>(
        &mut self,
        elements: impl Iterator<Item = T>,
        write: impl Fn(&mut Text, T) -> fmt::Result,
    ) -> fmt::Result {
        self.push(b"[")?;
        for (index, element) in elements.enumerate() {
            if index > 0 {
                self.push(b",")?;
            }
            write(self, element)?;
        }
        self.push(b"]")
    }

    fn string(&mut self, bytes: &[u8]) -> fmt::Result {
        self.push(b"\"")?;
        for chunk in bytes.utf8_chunks() {
            chunk.valid().chars().try_for_each(|c| self.char(c))?;
            if !chunk.invalid().is_empty() {
                self.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        self.push(b"\"")
    }

    fn char(&mut self, c: char) -> fmt::Result {
        match c {
            '"' | '\\' => write!(self, "\\{c}"),
            '\0'..='\x1F' => write!(self, "\\u{:04x}", u32::from(c)),
            _ => self.write_char(c),
        }
    }
}
