//! Writing GGUF files, version 3: metadata of any source, tensors from wherever they lie.

use super::gguf::{TensorInfo, alignment};
use super::metadata::{Array, Entry, Metadata, TYPE_ARRAY, TYPE_STRING, Value};
use super::replace::{Refused, replace};
use crate::error::{Error, Progress, Result, extend, filled, reserve};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What the memory of a header is for.
const HEADER: &str = "the header of the file";
/// Bytes between two reports of progress.
const STEP_BYTES: usize = 4 << 20;
/// What keys begin with that tell of the parts of a split model.
const SPLIT: &str = "split.";

/// What is to be written.
#[derive(Clone, Copy)]
pub struct Draft<'a> {
    /// Where metadata comes from: an entry of a later one takes the place of earlier ones of its name. What tells of the parts of a split model is
    /// left out.
    pub metadata: &'a [&'a Metadata],
    /// The tensors, in the order of the file.
    pub tensors: &'a [TensorInfo],
    /// Bytes of a tensor; none where the type is not known.
    pub bytes: fn(&TensorInfo) -> Option<u64>,
}

/// Writes `draft` to the file at `path`, which is replaced if it is there, once all is written and on the disk. `progress` hears of it; when it
/// asks to stop, or something fails, there is nothing left of the attempt.
pub fn save(draft: &Draft, path: &Path, progress: &mut Progress) -> Result<()> {
    let layout = draft.layout()?;
    replace(path, progress, |file, refused, progress| layout.write(draft, file, refused, progress))
}

/// A header, and where tensors go.
struct Layout {
    header: Vec<u8>,
    /// Bytes of each tensor.
    lens: Vec<usize>,
    alignment: usize,
}

impl Draft<'_> {
    /// The entries that are written.
    fn entries(&self) -> impl Iterator<Item = (&Metadata, &str, &Entry)> {
        let redefined =
            |number: usize, key: &str| self.metadata[number + 1..].iter().any(|later| later.get(key).is_some());
        self.metadata.iter().enumerate().flat_map(move |(number, metadata)| {
            let kept = move |(key, _): &(&str, &Entry)| !key.starts_with(SPLIT) && !redefined(number, key);
            metadata.entries().filter(kept).map(move |(key, entry)| (*metadata, key, entry))
        })
    }

    fn layout(&self) -> Result<Layout> {
        let alignment = self.metadata.first().map_or(Ok(1), |metadata| alignment(metadata))?;
        let mut lens = reserve(self.tensors.len(), HEADER)?;
        for tensor in self.tensors {
            lens.push(self.len_of(tensor)?);
        }
        let mut out = Header(Vec::new());
        out.bytes(b"GGUF")?;
        out.u32(3)?;
        out.u64(self.tensors.len() as u64)?;
        out.u64(self.entries().count() as u64)?;
        for (metadata, key, entry) in self.entries() {
            out.text(key.as_bytes())?;
            out.u32(entry.type_id)?;
            out.value(metadata, entry)?;
        }
        let mut offset = 0u64;
        for (tensor, len) in self.tensors.iter().zip(&lens) {
            out.text(tensor.name.as_bytes())?;
            out.u32(tensor.dims.len() as u32)?;
            tensor.dims.iter().try_for_each(|&dim| out.u64(dim))?;
            out.u32(tensor.type_id)?;
            out.u64(offset)?;
            offset += len.next_multiple_of(alignment) as u64;
        }
        Ok(Layout { header: out.0, lens, alignment })
    }

    fn len_of(&self, tensor: &TensorInfo) -> Result<usize> {
        let len = (self.bytes)(tensor).and_then(|len| usize::try_from(len).ok());
        len.ok_or_else(|| {
            let (name, id) = (&tensor.name, tensor.type_id);
            Error::Unsupported(format!("tensor `{name}` has the unknown type {id}, so nobody knows how long it is"))
        })
    }
}

impl Layout {
    fn write(&self, draft: &Draft, file: &mut File, refused: &Refused, progress: &mut Progress) -> Result<()> {
        let total = self.header.len() + self.lens.iter().sum::<usize>();
        let zeros = filled(self.alignment, 0u8, HEADER)?;
        let mut written = 0;
        let mut put = |bytes: &[u8], file: &mut File| {
            for step in bytes.chunks(STEP_BYTES) {
                progress(written as f32 / total as f32)?;
                file.write_all(step).map_err(refused)?;
                written += step.len();
            }
            let gap = bytes.len().next_multiple_of(self.alignment) - bytes.len();
            file.write_all(&zeros[..gap]).map_err(refused)
        };
        put(&self.header, file)?;
        draft.tensors.iter().zip(&self.lens).try_for_each(|(tensor, &len)| put(&tensor.bytes(len)?, file))
    }
}

/// A header under construction.
struct Header(Vec<u8>);

impl Header {
    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        extend(&mut self.0, bytes, HEADER)
    }

    fn u32(&mut self, value: u32) -> Result<()> {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> Result<()> {
        self.bytes(&value.to_le_bytes())
    }

    fn text(&mut self, text: &[u8]) -> Result<()> {
        self.u64(text.len() as u64)?;
        self.bytes(text)
    }

    fn value(&mut self, metadata: &Metadata, entry: &Entry) -> Result<()> {
        match &entry.value {
            Value::String(span) => self.text(metadata.bytes(span)),
            Value::Array(array) => self.array(metadata, array),
            scalar => {
                let raw = match *scalar {
                    Value::Unsigned(value) => value.to_le_bytes(),
                    Value::Signed(value) => value.to_le_bytes(),
                    Value::F64(value) => value.to_le_bytes(),
                    Value::Bool(value) => u64::from(value).to_le_bytes(),
                    Value::F32(value) => u64::from(value.to_bits()).to_le_bytes(),
                    Value::String(_) | Value::Array(_) => [0; 8],
                };
                self.bytes(&raw[..entry.scalar_bytes()])
            }
        }
    }

    fn array(&mut self, metadata: &Metadata, array: &Array) -> Result<()> {
        self.u32(match array {
            Array::Scalars { kind, .. } => kind.number(),
            Array::Strings(_) => TYPE_STRING,
            Array::Arrays(_) => TYPE_ARRAY,
        })?;
        self.u64(array.len() as u64)?;
        match array {
            Array::Scalars { bytes, .. } => self.bytes(metadata.bytes(bytes)),
            Array::Strings(spans) => spans.iter().try_for_each(|span| self.text(metadata.bytes(span))),
            Array::Arrays(arrays) => arrays.iter().try_for_each(|array| self.array(metadata, array)),
        }
    }
}
