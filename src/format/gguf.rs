//! GGUF, versions 1 to 3, little-endian: a file, or all parts of a split model, and where each tensor lies.
//!
//! Layout (ggml's `docs/gguf.md`): magic, version, tensor count, metadata count, key-value pairs, tensor infos, padding to
//! `general.alignment`, tensor data. Version 1 has 32-bit counts and lengths. The header is read by `header`, which checks every count and
//! length against the bytes that are left before anything is reserved for it.

use super::header::{self, Entry, Header};
use super::metadata::Metadata;
use super::mmap::{Bytes, Data};
use super::split;
use crate::error::{
    Error, Excerpt, Progress, Result, collected, copied, copied_text, grow, push, reserve, room, share,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// A parsed file, or all parts of a split one: metadata, and where each tensor lies. What other files hold is told in the same way, as the
/// file that a converter would write of them.
#[derive(Debug)]
pub struct Gguf {
    parts: Vec<Arc<Part>>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// What memory is for.
const PARTS: &str = "the parts of the model";
const DIRECTORY: &str = "the tensor directory";

/// ggml's number of 64-bit integers, of which no weights are.
pub const INTEGERS_64: u32 = 27;

/// One file.
#[derive(Debug)]
struct Part {
    data: Arc<Data>,
    /// Its name without folders; empty for bytes that have none.
    name: String,
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
    part: Arc<Part>,
    start: usize,
}

impl Gguf {
    /// Parses the file at `path`, and the other parts if it is the first of a split model; `map` chooses between mapping and
    /// reading, `progress` hears of what is read.
    pub fn open(path: &Path, map: bool, progress: &mut Progress) -> Result<Gguf> {
        let names = split::count_by_name(path) as f32;
        let mut open = |index: usize, path: &Path| {
            let mut part = share(progress, index as f32 / names, (index + 1) as f32 / names);
            let data = Data::open(path, map, &mut share(&mut part, 0.0, 0.9))?;
            let name = path.file_name().unwrap_or_default().display().to_string();
            Gguf::parse_part(data, &name, &mut share(&mut part, 0.9, 1.0)).map_err(|error| in_file(error, &name))
        };
        let mut whole = open(0, path)?;
        let further = split::Parts::of(path, whole.metadata()).map_err(|error| whole.blamed(error))?;
        for index in 1..further.count {
            let path = further.path(index);
            let name = path.file_name().unwrap_or_default().display().to_string();
            let part = open(index, &path).map_err(|error| split::if_missing(error, further.count))?;
            whole.join(part, index, further.count).map_err(|error| in_file(error, &name))?;
        }
        split::check_total(&whole.metadata, whole.tensors.len()).map_err(|error| whole.blamed(error))?;
        Ok(whole)
    }

    /// Bytes of the file at `path`, and of the other parts where its name is that of the first one. Files that cannot be looked at count nothing:
    /// opening them tells why.
    pub fn bytes_on_disk(path: &Path) -> u64 {
        let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
        bytes(path).saturating_add(split::further_by_name(path).map(|path| bytes(&path)).sum())
    }

    /// Parses a whole model from one file's bytes; `progress` hears of it.
    pub fn parse(data: Arc<Data>, progress: &mut Progress) -> Result<Gguf> {
        let gguf = Gguf::parse_part(data, "", progress)?;
        match split::count(gguf.metadata())? {
            1 => Ok(gguf),
            parts => Err(Error::Unsupported(format!("a model split into {parts} parts is loaded from its files"))),
        }
    }

    /// The file called `name` that has this metadata and no tensors yet.
    pub fn of(metadata: Metadata, name: &str) -> Result<Gguf> {
        let mut gguf = Gguf { parts: Vec::new(), metadata, tensors: Vec::new(), by_name: HashMap::new() };
        gguf.add_part(Arc::new(Data::Owned(Vec::new())), name)?;
        Ok(gguf)
    }

    /// Adds bytes in which tensors lie; messages call their file `name`. Returns its number.
    pub fn add_part(&mut self, data: Arc<Data>, name: &str) -> Result<usize> {
        let part = Arc::new(Part { data, name: copied_text(name, PARTS)? });
        push(&mut self.parts, part, PARTS)?;
        Ok(self.parts.len() - 1)
    }

    /// Adds a tensor that begins at byte `start` of a part; type and sizes are as in [`TensorInfo`].
    pub fn add_tensor(&mut self, name: &str, type_id: u32, dims: Vec<u64>, part: usize, start: usize) -> Result<()> {
        let part = Arc::clone(&self.parts[part]);
        room(name.len(), DIRECTORY, || self.by_name.try_reserve(1))?;
        grow(&mut self.tensors, 1, DIRECTORY)?;
        self.add(TensorInfo { name: copied_text(name, "tensor names")?, type_id, dims, part, start })
    }

    /// Gives tensor `index` another type and other bytes, which messages say are of the same file.
    pub fn replace(&mut self, index: usize, type_id: u32, data: Arc<Data>) -> Result<()> {
        let name = copied_text(&self.tensors[index].part.name, PARTS)?;
        let part = self.add_part(data, &name)?;
        let tensor = &mut self.tensors[index];
        (tensor.type_id, tensor.start, tensor.part) = (type_id, 0, Arc::clone(&self.parts[part]));
        Ok(())
    }

    /// Gives tensor `index` another name and other sizes.
    pub fn rename(&mut self, index: usize, name: &str, dims: Vec<u64>) -> Result<()> {
        let name = copied_text(name, "tensor names")?;
        room(name.len(), DIRECTORY, || self.by_name.try_reserve(1))?;
        if self.by_name.contains_key(&name) {
            return Err(Error::Format(format!("tensor `{name}` stands beside `{}`", self.tensors[index].name)));
        }
        let tensor = &mut self.tensors[index];
        self.by_name.remove(&tensor.name);
        (tensor.name, tensor.dims) = (copied_text(&name, "tensor names")?, dims);
        self.by_name.insert(name, index);
        Ok(())
    }

    /// What messages call the file that holds tensor `index`.
    pub fn file_of(&self, index: usize) -> &str {
        &self.tensors[index].part.name
    }

    /// Brings mapped files into memory; does nothing for those that were read.
    pub fn populate(&self, progress: &mut Progress) -> Result<()> {
        let total: usize = self.parts.iter().map(|part| part.data.len()).sum();
        let mut before = 0;
        let share_of = |bytes: usize| (bytes as f64 / total.max(1) as f64) as f32;
        for Part { data, .. } in self.parts.iter().map(|part| &**part) {
            data.populate(&mut share(progress, share_of(before), share_of(before + data.len())))?;
            before += data.len();
        }
        Ok(())
    }

    /// Adds the tensors of part `index` of `count`.
    fn join(&mut self, part: Gguf, index: usize, count: usize) -> Result<()> {
        split::check_part(part.metadata(), index, count)?;
        let more = part.tensors.len();
        room(more, DIRECTORY, || self.by_name.try_reserve(more))?;
        grow(&mut self.tensors, more, DIRECTORY)?;
        part.parts.into_iter().try_for_each(|data| push(&mut self.parts, data, PARTS))?;
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

    fn parse_part(data: Arc<Data>, name: &str, progress: &mut Progress) -> Result<Gguf> {
        let Header { metadata, tensors, end } = header::read(&data, progress)?;
        let alignment = alignment(&metadata)?;
        let base = data_start(end, alignment)?;
        let mut by_name = HashMap::new();
        room(tensors.len(), "tensor names", || by_name.try_reserve(tensors.len()))?;
        let directory = reserve(tensors.len(), DIRECTORY)?;
        let part = Arc::new(Part { data, name: copied_text(name, PARTS)? });
        let mut gguf = Gguf { parts: collected([Arc::clone(&part)], PARTS)?, metadata, tensors: directory, by_name };
        for entry in tensors {
            gguf.add(TensorInfo::locate(entry, &part, base, alignment)?)?;
        }
        progress(1.0)?;
        Ok(gguf)
    }

    /// Refuses tensors that overlap: a file could declare a model that is far larger than itself. `len_of` tells the bytes of those whose
    /// type is known.
    pub fn check_apart(&self, len_of: impl Fn(&TensorInfo) -> Option<u64>) -> Result<()> {
        let mut order: Vec<&TensorInfo> = collected(&self.tensors, DIRECTORY)?;
        order.sort_unstable_by_key(|tensor| (Arc::as_ptr(&tensor.part) as usize, tensor.start));
        let mut reached: Option<(&TensorInfo, u64)> = None;
        for tensor in order {
            let (start, before) =
                (tensor.start as u64, reached.filter(|(other, _)| Arc::ptr_eq(&other.part, &tensor.part)));
            if let Some((other, end)) = before.filter(|&(_, end)| end > start) {
                let (first, second) = (&other.name, &tensor.name);
                let problem = format!(
                    "tensor `{first}` ends at byte {end}, tensor `{second}` begins at byte {start}: they overlap"
                );
                return Err(in_file(Error::Format(problem), &tensor.part.name));
            }
            let end = len_of(tensor).map(|len| start.saturating_add(len));
            reached = end.map_or(before, |end| Some((tensor, end)));
        }
        Ok(())
    }

    /// `error` with the name of the file at fault, if it has one and the error is not told with it yet: the file that holds the tensor, or
    /// else the first one, which holds the metadata.
    pub fn blamed(&self, error: Error) -> Error {
        let is_told = |problem: &str| self.parts.iter().any(|part| problem.starts_with(&begins(&part.name)));
        if matches!(&error, Error::Format(problem) if is_told(problem)) {
            return error;
        }
        let tensor = if let Error::Tensor { name, .. } = &error { self.tensor(name) } else { None };
        in_file(error, &tensor.map_or(&self.parts[0], |tensor| &tensor.part).name)
    }

    /// The key-value pairs.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The key-value pairs, and the tensors in file order: what they need of the file, they hold themselves.
    pub fn into_contents(self) -> (Metadata, Vec<TensorInfo>) {
        (self.metadata, self.tensors)
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
        let (end, data) = (self.start.checked_add(len), &self.part.data);
        end.and_then(|end| Bytes::new(data, self.start..end)).ok_or_else(|| {
            let left = data.len().saturating_sub(self.start);
            let problem = format!("tensor `{}` needs {len} bytes, the file has {left} at its place", self.name);
            in_file(Error::Format(problem), &self.part.name)
        })
    }

    /// Keeps `len` bytes of its own, if it lies in a file that was read: else a small tensor would keep all of that in memory.
    pub fn detach(&mut self, len: usize) -> Result<()> {
        if matches!(*self.part.data, Data::Owned(_)) && len < self.part.data.len() {
            let bytes = Data::Owned(copied(&self.bytes(len)?, PARTS)?);
            let name = copied_text(&self.part.name, PARTS)?;
            (self.part, self.start) = (Arc::new(Part { data: Arc::new(bytes), name }), 0);
        }
        Ok(())
    }

    /// Turns the offset in the data section into one in the file.
    fn locate(entry: Entry, part: &Arc<Part>, base: usize, alignment: usize) -> Result<TensorInfo> {
        let Entry { name, type_id, dims, offset } = entry;
        if !offset.is_multiple_of(alignment) {
            return Err(Error::Format(format!("tensor `{name}` lies at offset {offset}, no multiple of {alignment}")));
        }
        match base.checked_add(offset).filter(|&start| start <= part.data.len()) {
            Some(start) => Ok(TensorInfo { name, type_id, dims, part: Arc::clone(part), start }),
            None => Err(Error::Format(format!("tensor `{name}` lies beyond the end of the file"))),
        }
    }
}

/// `error`, if it says that a file breaks its format, with the file's name in front.
fn in_file(error: Error, name: &str) -> Error {
    match error {
        Error::Format(_) | Error::Metadata { .. } | Error::Tensor { .. } if !name.is_empty() => {
            let text = error.to_string();
            let problem = text.strip_prefix("bad model file: ").unwrap_or(&text);
            Error::Format(format!("{}{problem}", begins(name)))
        }
        other => other,
    }
}

/// What the problem of a file begins with.
fn begins(name: &str) -> String {
    format!("{}: ", Excerpt(name.as_bytes()))
}

const DEFAULT_ALIGNMENT: u64 = 32;

/// To what the offsets of tensors are multiples of.
pub(super) fn alignment(metadata: &Metadata) -> Result<usize> {
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
