//! Reading the header of a GGUF file: counts, metadata, tensor directory.
//!
//! The header is copied piece by piece as it is read, and every number and text is taken from the copy. So whoever writes to a mapped file
//! meanwhile cannot change what was checked: a text that was found to be UTF-8 stays UTF-8.

use super::kind;
use super::limits::{HEADER_BYTES, METADATA_VALUES, TENSORS};
use super::metadata::{Array, Entries, Entry as Pair, Metadata, ScalarKind, Span, TYPE_ARRAY, TYPE_STRING, Value};
use crate::error::{Error, Excerpt, Progress, Result, copied_text, extend, reserve, room};

/// What a file's header says.
pub(super) struct Header {
    /// The key-value pairs.
    pub metadata: Metadata,
    /// The tensor directory, in file order.
    pub tensors: Vec<Entry>,
    /// Bytes of the header.
    pub end: usize,
}

/// One entry of the tensor directory.
pub(super) struct Entry {
    /// Name in the file.
    pub name: String,
    /// ggml's number of the storage type.
    pub type_id: u32,
    /// One to four sizes; none is zero and their product fits `u64`.
    pub dims: Vec<u64>,
    /// First byte, counted from the start of the data section.
    pub offset: usize,
}

/// Reads the header of the file whose bytes are `data`; `progress` hears how much of it is read.
pub(super) fn read(data: &[u8], progress: &mut Progress) -> Result<Header> {
    let mut reader = Reader { data, copy: Vec::new(), at: 0, version: 0, values: 0, progress };
    reader.begin()?;
    let tensors = reader.count("tensor count")?;
    let entries = reader.count("metadata count")?;
    let entries = reader.entries(entries)?;
    let tensors = reader.tensors(tensors)?;
    let (mut copy, end) = (reader.copy, reader.at);
    copy.truncate(end);
    Ok(Header { metadata: Metadata::new(copy, entries), tensors, end })
}

const MAX_KEY_BYTES: usize = 65_535;
/// Longest tensor name. The format allows 64 bytes; older writers did not look.
const MAX_NAME_BYTES: usize = 1024;
const MAX_DIMS: usize = 4;
const MAX_ARRAY_DEPTH: usize = 4;
/// Fewest bytes of a metadata entry: key length, type, one byte of value (version 1).
const MIN_ENTRY_BYTES: usize = 9;
/// Fewest bytes of a tensor info: name length, dimension count, one dimension, type, offset (version 1).
const MIN_TENSOR_BYTES: usize = 24;
/// Bytes that are copied at a time, and so between two reports of progress.
const STEP_BYTES: usize = 256 << 10;

/// A cursor over the header.
struct Reader<'a, 'b> {
    /// The file. What was copied of it is not looked at again.
    data: &'a [u8],
    /// Its beginning.
    copy: Vec<u8>,
    at: usize,
    version: u32,
    /// Metadata entries and arrays within arrays so far.
    values: usize,
    progress: &'a mut Progress<'b>,
}

impl Reader<'_, '_> {
    fn begin(&mut self) -> Result<()> {
        let start = &self.data[..self.data.len().min(4)];
        if start.is_empty() || !b"GGUF".starts_with(start) {
            return Err(kind::no_gguf(self.data));
        }
        if self.take(4, "magic")? != b"GGUF" {
            return Err(Error::Format("somebody writes to it".into()));
        }
        self.version = self.u32("version")?;
        match self.version {
            1..=3 => Ok(()),
            v if (1..=3).contains(&v.swap_bytes()) => Err(Error::Unsupported("big-endian gguf files".into())),
            v => Err(Error::Unsupported(format!("gguf version {v}; versions 1 to 3 are supported"))),
        }
    }

    /// Bytes of the file, or of what its header may take of it, behind the cursor.
    fn left(&self) -> usize {
        self.data.len().min(HEADER_BYTES) - self.at
    }

    /// Goes on by `len` bytes, which the copy holds then.
    fn skip(&mut self, len: usize, what: &str) -> Result<Span> {
        if len > self.left() {
            return Err(self.too_short(len, what));
        }
        let end = self.at + len;
        if end > self.copy.len() {
            let copied = self.copy.len();
            let until = end.max(copied + STEP_BYTES).min(self.data.len());
            extend(&mut self.copy, &self.data[copied..until], "metadata")?;
            (self.progress)((until as f32 / self.data.len().min(HEADER_BYTES) as f32).min(1.0))?;
        }
        let span = self.at as u32..end as u32;
        self.at = end;
        Ok(span)
    }

    fn too_short(&self, len: usize, what: &str) -> Error {
        let (what, left) = (Excerpt(what.as_bytes()), self.data.len() - self.at);
        if len > left {
            return Error::Format(format!("truncated at byte {}: {what} needs {len} bytes, {left} left", self.at));
        }
        Error::Format(format!("its metadata and tensor directory take more than {HEADER_BYTES} bytes, see {what}"))
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&[u8]> {
        let span = self.skip(len, what)?;
        Ok(&self.copy[span.start as usize..span.end as usize])
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        let mut raw = [0; 4];
        raw.copy_from_slice(self.take(4, what)?);
        Ok(u32::from_le_bytes(raw))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        let mut raw = [0; 8];
        raw.copy_from_slice(self.take(8, what)?);
        Ok(u64::from_le_bytes(raw))
    }

    /// A count or length, 32 bits wide in version 1.
    fn count(&mut self, what: &str) -> Result<usize> {
        let value = if self.version == 1 { self.u32(what)?.into() } else { self.u64(what)? };
        let too_large = |_| Error::Format(format!("{} {value} is too large", Excerpt(what.as_bytes())));
        usize::try_from(value).map_err(too_large)
    }

    /// A number of items of at least `min_bytes` each, checked against the bytes that are left and the `most` that are allowed.
    fn plausible(&self, count: usize, min_bytes: usize, most: usize, what: &str) -> Result<usize> {
        let left = self.left();
        if count > left / min_bytes {
            return Err(Error::Format(format!("{count} {what} cannot fit into the {left} bytes left")));
        }
        if count > most {
            return Err(Error::Format(format!("{count} {what}, at most {most} are allowed")));
        }
        Ok(count)
    }

    fn span(&mut self, what: &str) -> Result<Span> {
        let len = self.count(what)?;
        self.skip(len, what)
    }

    fn name(&mut self, what: &'static str, most: usize) -> Result<String> {
        let span = self.span(what)?;
        if span.len() > most {
            return Err(Error::Format(format!("{what} of {} bytes, at most {most} are allowed", span.len())));
        }
        match std::str::from_utf8(&self.copy[span.start as usize..span.end as usize]) {
            Ok(name) => copied_text(name, what),
            Err(_) => Err(Error::Format(format!("{what} at byte {} is not utf-8", span.start))),
        }
    }

    fn entries(&mut self, count: usize) -> Result<Entries> {
        self.plausible(count, MIN_ENTRY_BYTES, METADATA_VALUES, "metadata entries")?;
        self.values = count;
        let mut entries = Entries::new();
        room(count, "metadata", || entries.try_reserve(count))?;
        for _ in 0..count {
            let key = self.name("metadata key", MAX_KEY_BYTES)?;
            let type_id = self.u32("metadata type")?;
            let value = self.value(type_id, &key)?;
            if entries.contains_key(&key) {
                return Err(bad(&key, "appears twice".into()));
            }
            entries.insert(key, Pair { value, type_id });
        }
        Ok(entries)
    }

    fn value(&mut self, type_id: u32, key: &str) -> Result<Value> {
        match type_id {
            TYPE_STRING => Ok(Value::String(self.span(key)?)),
            TYPE_ARRAY => Ok(Value::Array(self.array(key, 1)?)),
            _ => {
                let kind = scalar_kind(type_id, key)?;
                Ok(kind.decode(self.take(kind.size(), key)?))
            }
        }
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<Array> {
        if depth > MAX_ARRAY_DEPTH {
            return Err(bad(key, format!("nests arrays more than {MAX_ARRAY_DEPTH} deep")));
        }
        let type_id = self.u32(key)?;
        let count = self.count(key)?;
        let length_bytes = if self.version == 1 { 4 } else { 8 };
        match type_id {
            TYPE_STRING => {
                let count = self.plausible(count, length_bytes, usize::MAX, "strings")?;
                let mut spans = reserve(count, "metadata strings")?;
                for _ in 0..count {
                    spans.push(self.span(key)?);
                }
                Ok(Array::Strings(spans))
            }
            TYPE_ARRAY => {
                let most = METADATA_VALUES.saturating_sub(self.values);
                let count = self.plausible(count, 4 + length_bytes, most, "arrays")?;
                self.values += count;
                let mut arrays = reserve(count, "metadata arrays")?;
                for _ in 0..count {
                    arrays.push(self.array(key, depth + 1)?);
                }
                Ok(Array::Arrays(arrays))
            }
            _ => {
                let kind = scalar_kind(type_id, key)?;
                let len = self.plausible(count, kind.size(), usize::MAX, "array elements")? * kind.size();
                Ok(Array::Scalars { kind, bytes: self.skip(len, key)? })
            }
        }
    }

    fn tensors(&mut self, count: usize) -> Result<Vec<Entry>> {
        let count = self.plausible(count, MIN_TENSOR_BYTES, TENSORS, "tensors")?;
        let mut tensors = reserve(count, "the tensor directory")?;
        for _ in 0..count {
            let name = self.name("tensor name", MAX_NAME_BYTES)?;
            let dims = self.dims(&name)?;
            let type_id = self.u32("tensor type")?;
            let offset = self.u64("tensor offset")?;
            let offset = usize::try_from(offset)
                .map_err(|_| Error::Format(format!("tensor `{name}` lies at offset {offset}, beyond any file")))?;
            tensors.push(Entry { name, type_id, dims, offset });
        }
        Ok(tensors)
    }

    fn dims(&mut self, name: &str) -> Result<Vec<u64>> {
        let count = self.u32("dimension count")? as usize;
        if !(1..=MAX_DIMS).contains(&count) {
            return Err(Error::Format(format!(
                "tensor `{name}` has {count} dimensions, 1 to {MAX_DIMS} are supported"
            )));
        }
        let mut dims = reserve(count, "the tensor directory")?;
        for _ in 0..count {
            let dim = if self.version == 1 { self.u32(name)?.into() } else { self.u64(name)? };
            dims.push(dim);
        }
        let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        match elements {
            Some(n) if n > 0 => Ok(dims),
            _ => Err(Error::Format(format!("tensor `{name}` has the impossible shape {dims:?}"))),
        }
    }
}

/// The error for an entry of the file's.
fn bad(key: &str, problem: String) -> Error {
    Error::Metadata { key: Excerpt(key.as_bytes()).to_string(), problem }
}

fn scalar_kind(type_id: u32, key: &str) -> Result<ScalarKind> {
    ScalarKind::numbered(type_id).ok_or_else(|| bad(key, format!("has the unknown type {type_id}")))
}
