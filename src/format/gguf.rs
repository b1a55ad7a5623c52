//! GGUF, versions 1 to 3, little-endian: header, metadata, tensor directory.
//!
//! Layout (ggml's `docs/gguf.md`): magic, version, tensor count, metadata count, key-value pairs, tensor infos, padding to
//! `general.alignment`, tensor data. Version 1 has 32-bit counts and lengths. Every count and length is checked against
//! the bytes that are left before anything is reserved for it.

use super::metadata::{Array, Metadata, ScalarKind, Value};
use super::mmap::{Bytes, Data, Progress};
use super::split;
use crate::error::{Error, Excerpt, Result, copied_text, grow, push, reserve};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A parsed file, or all parts of a split one: metadata, and where each tensor lies.
#[derive(Debug)]
pub struct Gguf {
    parts: Vec<Arc<Data>>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// One entry of the tensor directory.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// ggml's number of the storage type, not checked here.
    pub type_id: u32,
    /// One to four sizes, the contiguous dimension first; none is zero and their product fits `u64`.
    pub dims: Vec<u64>,
    data: Arc<Data>,
    start: usize,
}

impl Gguf {
    /// Parses the file at `path`, and the other parts if it is the first of a split model; `map` chooses between mapping and
    /// reading, `progress` hears of what is read.
    pub fn open(path: &Path, map: bool, progress: &mut Progress) -> Result<Gguf> {
        let names = split::count_by_name(path) as f32;
        let mut open = |index: usize, path: &Path| {
            let mut part_progress = |done: f32| progress((index as f32 + done) / names);
            Gguf::parse_part(Data::open(path, map, &mut part_progress)?)
        };
        let mut whole = open(0, path)?;
        let further = split::Parts::of(path, whole.metadata())?;
        for index in 1..further.count {
            let path = further.path(index);
            let part = open(index, &path).and_then(|part| whole.join(part, index, further.count));
            part.map_err(|error| split::in_part(error, &path, further.count))?;
        }
        split::check_total(&whole.metadata, whole.tensors.len())?;
        Ok(whole)
    }

    /// Parses a whole model from one file's bytes.
    pub fn parse(data: Arc<Data>) -> Result<Gguf> {
        let gguf = Gguf::parse_part(data)?;
        match split::count(gguf.metadata())? {
            1 => Ok(gguf),
            parts => Err(Error::Unsupported(format!("a model split into {parts} parts is loaded from its files"))),
        }
    }

    /// Brings mapped files into memory; does nothing for those that were read.
    pub fn populate(&self, progress: &mut Progress) -> Result<()> {
        let total: usize = self.parts.iter().map(|part| part.len()).sum();
        let mut before = 0;
        for part in &self.parts {
            let len = part.len() as f64;
            part.populate(&mut |done| progress(((before as f64 + f64::from(done) * len) / total as f64) as f32))?;
            before += part.len();
        }
        Ok(())
    }

    /// Adds the tensors of part `index` of `count`.
    fn join(&mut self, part: Gguf, index: usize, count: usize) -> Result<()> {
        split::check_part(part.metadata(), index, count)?;
        let more = part.tensors.len();
        let out_of_memory = |_| Error::out_of_memory("the tensor directory", more);
        self.by_name.try_reserve(more).map_err(out_of_memory)?;
        grow(&mut self.tensors, more, "the tensor directory")?;
        part.parts.into_iter().try_for_each(|data| push(&mut self.parts, data, "the parts of the model"))?;
        part.tensors.into_iter().try_for_each(|tensor| self.add(tensor))
    }

    fn add(&mut self, tensor: TensorInfo) -> Result<()> {
        let name = copied_text(&tensor.name, "tensor names")?;
        if self.by_name.insert(name, self.tensors.len()).is_some() {
            return Err(Error::Format(format!("tensor `{}` appears twice", tensor.name)));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    fn parse_part(data: Arc<Data>) -> Result<Gguf> {
        let mut reader = Reader::new(&data)?;
        let tensor_count = reader.count("tensor count")?;
        let entry_count = reader.count("metadata count")?;
        let metadata = Metadata::new(Arc::clone(&data), reader.entries(entry_count)?);
        let tensors = reader.tensors(tensor_count, &data)?;
        let alignment = alignment(&metadata)?;
        let base = data_start(reader.at, alignment)?;
        let mut by_name = HashMap::new();
        by_name.try_reserve(tensors.len()).map_err(|_| Error::out_of_memory("tensor names", tensors.len()))?;
        let room = reserve(tensors.len(), "the tensor directory")?;
        let mut gguf = Gguf { parts: vec![data], metadata, tensors: room, by_name };
        for mut tensor in tensors {
            tensor.locate(base, alignment)?;
            gguf.add(tensor)?;
        }
        Ok(gguf)
    }

    /// The key-value pairs.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The key-value pairs alone: what tensors need of the file, they hold themselves.
    pub fn into_metadata(self) -> Metadata {
        self.metadata
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The tensor's bytes, when the caller knows from its type that there are `len`.
    pub fn bytes(&self, len: usize) -> Result<Bytes> {
        let end = self.start.checked_add(len);
        end.and_then(|end| Bytes::new(&self.data, self.start..end)).ok_or_else(|| {
            let left = self.data.len().saturating_sub(self.start);
            Error::Format(format!("tensor `{}` needs {len} bytes, the file has {left} at its place", self.name))
        })
    }

    /// Turns the offset in the data section into one in the file.
    fn locate(&mut self, base: usize, alignment: usize) -> Result<()> {
        let offset = self.start;
        if !offset.is_multiple_of(alignment) {
            let name = &self.name;
            return Err(Error::Format(format!("tensor `{name}` lies at offset {offset}, no multiple of {alignment}")));
        }
        self.start = base
            .checked_add(offset)
            .filter(|&start| start <= self.data.len())
            .ok_or_else(|| Error::Format(format!("tensor `{}` lies beyond the end of the file", self.name)))?;
        Ok(())
    }
}

const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_KEY_BYTES: usize = 65_535;
/// Longest tensor name. The format allows 64 bytes; older writers did not look.
const MAX_NAME_BYTES: usize = 1024;
const MAX_DIMS: usize = 4;
const MAX_ARRAY_DEPTH: usize = 4;
/// Fewest bytes of a metadata entry: key length, type, one byte of value (version 1).
const MIN_ENTRY_BYTES: usize = 9;
/// Fewest bytes of a tensor info: name length, dimension count, one dimension, type, offset (version 1).
const MIN_TENSOR_BYTES: usize = 24;

fn alignment(metadata: &Metadata) -> Result<usize> {
    let key = "general.alignment";
    let value = metadata.unsigned(key)?.unwrap_or(DEFAULT_ALIGNMENT);
    match usize::try_from(value) {
        Ok(v) if v.is_power_of_two() && v <= 1 << 20 => Ok(v),
        _ => Err(metadata.bad(key, &format!("is {value}, a power of two up to 1048576 is needed"))),
    }
}

fn data_start(end: usize, alignment: usize) -> Result<usize> {
    end.checked_next_multiple_of(alignment).ok_or_else(|| Error::Format("header is too long".into()))
}

/// A cursor over the header.
struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    version: u32,
}

impl<'a> Reader<'a> {
    fn new(data: &'a [u8]) -> Result<Self> {
        let mut reader = Reader { data, at: 0, version: 0 };
        if reader.take(4, "magic")? != b"GGUF" {
            return Err(Error::Format("it does not begin with the GGUF magic".into()));
        }
        reader.version = reader.u32("version")?;
        match reader.version {
            1..=3 => Ok(reader),
            v if (1..=3).contains(&v.swap_bytes()) => Err(Error::Unsupported("big-endian gguf files".into())),
            v => Err(Error::Unsupported(format!("gguf version {v}; versions 1 to 3 are supported"))),
        }
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.data.len());
        let Some(end) = end else {
            let (what, left) = (Excerpt(what.as_bytes()), self.data.len() - self.at);
            return Err(Error::Format(format!("truncated at byte {}: {what} needs {len} bytes, {left} left", self.at)));
        };
        let bytes = &self.data[self.at..end];
        self.at = end;
        Ok(bytes)
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

    /// A number of items of at least `min_bytes` each, checked against the bytes that are left.
    fn plausible(&self, count: usize, min_bytes: usize, what: &str) -> Result<usize> {
        let left = self.data.len() - self.at;
        if count > left / min_bytes {
            return Err(Error::Format(format!("{count} {what} cannot fit into the {left} bytes left")));
        }
        Ok(count)
    }

    fn span(&mut self, what: &str) -> Result<Range<usize>> {
        let len = self.count(what)?;
        self.take(len, what)?;
        Ok(self.at - len..self.at)
    }

    fn name(&mut self, what: &str, most: usize) -> Result<&'a str> {
        let span = self.span(what)?;
        if span.len() > most {
            return Err(Error::Format(format!("{what} of {} bytes, at most {most} are allowed", span.len())));
        }
        let start = span.start;
        std::str::from_utf8(&self.data[span]).map_err(|_| Error::Format(format!("{what} at byte {start} is not utf-8")))
    }

    fn entries(&mut self, count: usize) -> Result<HashMap<String, Value>> {
        self.plausible(count, MIN_ENTRY_BYTES, "metadata entries")?;
        let mut entries = HashMap::new();
        entries.try_reserve(count).map_err(|_| Error::out_of_memory("metadata", count))?;
        for _ in 0..count {
            let key = self.name("metadata key", MAX_KEY_BYTES)?;
            let type_id = self.u32("metadata type")?;
            let value = self.value(type_id, key)?;
            if entries.insert(copied_text(key, "metadata")?, value).is_some() {
                return Err(bad(key, "appears twice".into()));
            }
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
                let mut spans = reserve(self.plausible(count, length_bytes, "strings")?, "metadata strings")?;
                for _ in 0..count {
                    spans.push(self.span(key)?);
                }
                Ok(Array::Strings(spans))
            }
            TYPE_ARRAY => {
                let mut arrays = reserve(self.plausible(count, 4 + length_bytes, "arrays")?, "metadata arrays")?;
                for _ in 0..count {
                    arrays.push(self.array(key, depth + 1)?);
                }
                Ok(Array::Arrays(arrays))
            }
            _ => {
                let kind = scalar_kind(type_id, key)?;
                let len = self.plausible(count, kind.size(), "array elements")? * kind.size();
                self.take(len, key)?;
                Ok(Array::Scalars { kind, bytes: self.at - len..self.at })
            }
        }
    }

    /// The tensor directory; `start` holds the offset in the data section until [`TensorInfo::locate`].
    fn tensors(&mut self, count: usize, data: &Arc<Data>) -> Result<Vec<TensorInfo>> {
        let mut tensors = reserve(self.plausible(count, MIN_TENSOR_BYTES, "tensors")?, "the tensor directory")?;
        for _ in 0..count {
            let name = copied_text(self.name("tensor name", MAX_NAME_BYTES)?, "tensor names")?;
            let dims = self.dims(&name)?;
            let type_id = self.u32("tensor type")?;
            let offset = self.u64("tensor offset")?;
            let start = usize::try_from(offset)
                .map_err(|_| Error::Format(format!("tensor `{name}` lies at offset {offset}, beyond any file")))?;
            tensors.push(TensorInfo { name, type_id, dims, data: Arc::clone(data), start });
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
        let mut dims = Vec::with_capacity(count);
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

const TYPE_STRING: u32 = 8;
const TYPE_ARRAY: u32 = 9;

fn scalar_kind(type_id: u32, key: &str) -> Result<ScalarKind> {
    Ok(match type_id {
        0 => ScalarKind::U8,
        1 => ScalarKind::I8,
        2 => ScalarKind::U16,
        3 => ScalarKind::I16,
        4 => ScalarKind::U32,
        5 => ScalarKind::I32,
        6 => ScalarKind::F32,
        7 => ScalarKind::Bool,
        10 => ScalarKind::U64,
        11 => ScalarKind::I64,
        12 => ScalarKind::F64,
        _ => return Err(bad(key, format!("has the unknown type {type_id}"))),
    })
}
