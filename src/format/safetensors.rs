//! Safetensors: the weights of a folder, one file or the shards that an index lists, and where each tensor lies.
//!
//! Layout (the format's README): the header's length as 8 bytes, the header as JSON, the tensors' bytes without gaps. The header is copied
//! before it is read. Element types are told by the format's own names; what they mean is not known here.

use super::document::{Document, Item};
use super::limits::{CONFIG_BYTES, SAFETENSORS_HEADER_BYTES, SHARDS, TENSORS};
use super::mmap::{Parts, read_small};
use crate::error::{Error, Excerpt, Progress, Result, collected, copied_text, filled, push, reserve, room};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the weights of a folder that are in one file, and of the index of those that are not.
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Element types and their bits.
const TYPES: [(&str, u64); 16] = [
    ("BOOL", 8),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F4", 4),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("I64", 64),
    ("F64", 64),
];

const MAX_NAME_BYTES: usize = 1024;
const MAX_DIMS: usize = 8;
const LENGTH_BYTES: u64 = 8;
/// What the memory of a directory is for.
const DIRECTORY: &str = "the tensor directory";

/// All tensors of a folder.
#[derive(Debug)]
pub struct Safetensors {
    tensors: Vec<Stored>,
    by_name: HashMap<String, usize>,
}

/// One file of weights.
#[derive(Debug)]
pub struct Shard {
    /// Its content.
    pub parts: Parts,
    /// Its name without folders.
    pub name: String,
}

/// A tensor as a file stores it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Name in the file.
    pub name: String,
    /// The format's name of its element type.
    pub type_name: &'static str,
    /// Sizes, the contiguous dimension last; their product fits `u64`.
    pub shape: Vec<u64>,
    /// The file.
    pub shard: Arc<Shard>,
    /// First byte in the file.
    pub start: u64,
    /// Number of bytes, which lie in the file and suit type and shape.
    pub len: u64,
}

impl Safetensors {
    /// Opens the weights in `folder`; `map` chooses between mapping files and reading tensors one by one.
    pub fn open(folder: &Path, map: bool, progress: &mut Progress) -> Result<Safetensors> {
        let mut all = Safetensors { tensors: Vec::new(), by_name: HashMap::new() };
        let index = folder.join(INDEX);
        if folder.join(WHOLE).exists() {
            all.add_shard(folder.join(WHOLE), map)?;
        } else if index.exists() {
            all.add_shards(
                folder,
                &Document::read(&read_small(&index, CONFIG_BYTES.max(16 << 20))?, INDEX)?,
                map,
                progress,
            )?;
        } else {
            return Err(Error::Unsupported(without_weights(folder)));
        }
        progress(1.0)?;
        Ok(all)
    }

    /// All tensors, file by file.
    pub fn tensors(&self) -> &[Stored] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Stored> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    fn add_shards(&mut self, folder: &Path, index: &Document, map: bool, progress: &mut Progress) -> Result<()> {
        let places = weight_map(index)?;
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut names: Vec<&str> = Vec::new();
        for (_, file) in &places {
            room(size_of::<(&str, usize)>(), DIRECTORY, || numbers.try_reserve(1))?;
            if !numbers.contains_key(file) {
                check_file_name(file)?;
                numbers.insert(file, names.len());
                push(&mut names, *file, DIRECTORY)?;
            }
        }
        if names.len() > SHARDS {
            return Err(Error::Format(format!("{INDEX}: {} files, at most {SHARDS} are allowed", names.len())));
        }
        for (number, name) in names.iter().enumerate() {
            progress(number as f32 / names.len() as f32)?;
            self.add_shard(folder.join(name), map)?;
        }
        let is_there = |(tensor, file): &&(&str, &str)| self.tensor(tensor).is_some_and(|t| t.shard.name == *file);
        match places.iter().find(|place| !is_there(place)) {
            None => Ok(()),
            Some((tensor, file)) => {
                let (tensor, file) = (Excerpt(tensor.as_bytes()), Excerpt(file.as_bytes()));
                Err(Error::Format(format!("{file}: tensor `{tensor}`, which {INDEX} places there, is missing")))
            }
        }
    }

    fn add_shard(&mut self, path: PathBuf, map: bool) -> Result<()> {
        let name = path.file_name().unwrap_or_default().display().to_string();
        let shard = Arc::new(Shard { parts: Parts::open(&path, map)?, name });
        self.read_shard(&shard).map_err(|error| match error {
            Error::Format(problem) => Error::Format(format!("{}: {problem}", Excerpt(shard.name.as_bytes()))),
            other => other,
        })
    }

    fn read_shard(&mut self, shard: &Arc<Shard>) -> Result<()> {
        let (header, base) = header(shard)?;
        let first = self.tensors.len();
        let entries = header.root().entries().ok_or_else(|| Error::Format("its header is no map".into()))?;
        for (name, entry) in entries.filter(|(name, _)| *name != "__metadata__") {
            if self.tensors.len() >= TENSORS {
                return Err(Error::Format(format!("more than {TENSORS} tensors")));
            }
            let tensor = read_tensor(name, entry, shard, base)?;
            let key = copied_text(name, DIRECTORY)?;
            room(key.len(), DIRECTORY, || self.by_name.try_reserve(1))?;
            if self.by_name.insert(key, self.tensors.len()).is_some() {
                return Err(Error::Format(format!("tensor `{}` appears twice", tensor.name)));
            }
            push(&mut self.tensors, tensor, DIRECTORY)?;
        }
        check_gapless(&self.tensors[first..], base, shard.parts.len())
    }
}

/// Why there is nothing to load in a folder.
fn without_weights(folder: &Path) -> String {
    let has = |end: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().ends_with(end))
    };
    let what = if has(".bin") || has(".pt") || has(".pth") {
        "its weights are pytorch files: convert them to safetensors"
    } else if has(".safetensors") {
        "rename its weights to model.safetensors"
    } else {
        "get its weights as safetensors"
    };
    format!("{} holds neither {WHOLE} nor {INDEX}; {what}", folder.display())
}

/// Tensors and the files that an index places them in.
fn weight_map(index: &Document) -> Result<Vec<(&str, &str)>> {
    let bad = |problem: &str| Error::Format(format!("{INDEX}: {problem}"));
    let entries = index.root().get("weight_map").and_then(Item::entries);
    let mut places = Vec::new();
    for (tensor, file) in entries.ok_or_else(|| bad("`weight_map` is missing or no map"))? {
        let file = file.text().ok_or_else(|| bad("`weight_map` names no file for a tensor"))?;
        push(&mut places, (tensor, file), DIRECTORY)?;
    }
    match places.len() {
        0 => Err(bad("`weight_map` is empty")),
        count if count > TENSORS => Err(bad(&format!("{count} tensors, at most {TENSORS} are allowed"))),
        _ => Ok(places),
    }
}

/// The files of an index lie beside it.
fn check_file_name(name: &str) -> Result<()> {
    let is_plain = !name.contains(['/', '\\', '\0']) && name.ends_with(".safetensors");
    if is_plain {
        return Ok(());
    }
    let name = Excerpt(name.as_bytes());
    Err(Error::Format(format!("{INDEX}: `{name}` is no name of a .safetensors file beside it")))
}

/// The header of a file, and where its data begins.
fn header(shard: &Shard) -> Result<(Document, u64)> {
    let bytes = shard.parts.len();
    if bytes < LENGTH_BYTES {
        return Err(Error::Format(format!("{bytes} bytes are too few for a safetensors file")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    shard.parts.read(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > bytes - LENGTH_BYTES {
        let left = bytes - LENGTH_BYTES;
        return Err(Error::Format(format!("truncated: its header needs {length} bytes, {left} are left")));
    }
    if length > SAFETENSORS_HEADER_BYTES as u64 {
        let most = SAFETENSORS_HEADER_BYTES;
        return Err(Error::Format(format!("a header of {length} bytes, at most {most} are allowed")));
    }
    let mut copy = filled(length as usize, 0, "the header of a safetensors file")?;
    shard.parts.read(LENGTH_BYTES, &mut copy)?;
    Ok((Document::read(&copy, "header")?, LENGTH_BYTES + length))
}

fn read_tensor(name: &str, entry: Item, shard: &Arc<Shard>, base: u64) -> Result<Stored> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::Format(format!("a name of {} bytes, at most {MAX_NAME_BYTES} are allowed", name.len())));
    }
    let bad = |problem: String| Error::Format(format!("tensor `{name}` {problem}"));
    let kind = entry.get("dtype").and_then(Item::text).ok_or_else(|| bad("has no `dtype`".into()))?;
    let known = TYPES.into_iter().find(|(known, _)| *known == kind);
    let (type_name, bits) = known.ok_or_else(|| {
        let kind = Excerpt(kind.as_bytes());
        Error::Unsupported(format!("tensor `{name}` has elements of type `{kind}`, which is not supported"))
    })?;
    let shape = numbers(entry, "shape", MAX_DIMS).ok_or_else(|| bad("has no usable `shape`".into()))??;
    let offsets = numbers(entry, "data_offsets", 2).ok_or_else(|| bad("has no usable `data_offsets`".into()))??;
    let (&[from, to], Some(elements)) =
        (offsets.as_slice(), shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)))
    else {
        return Err(bad(format!("has the impossible shape {shape:?} or place {offsets:?}")));
    };
    let (start, end) = (base.checked_add(from), base.checked_add(to));
    let (Some(start), Some(end)) = (start, end.filter(|&end| end <= shard.parts.len() && from <= to)) else {
        return Err(bad(format!("lies at {from} to {to}, the file has {} bytes of data", shard.parts.len() - base)));
    };
    let needed = elements.checked_mul(bits).filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8);
    if needed != Some(end - start) {
        return Err(bad(format!("of shape {shape:?} in {type_name} does not fill its {} bytes", end - start)));
    }
    Ok(Stored {
        name: copied_text(name, DIRECTORY)?,
        type_name,
        shape,
        shard: Arc::clone(shard),
        start,
        len: end - start,
    })
}

/// The list `name` of `entry` if it holds `most` whole numbers or fewer and nothing else.
fn numbers(entry: Item, name: &str, most: usize) -> Option<Result<Vec<u64>>> {
    let mut list = match reserve(most, DIRECTORY) {
        Ok(list) => list,
        Err(error) => return Some(Err(error)),
    };
    for element in entry.get(name)?.elements()? {
        if list.len() == most {
            return None;
        }
        list.push(element.unsigned()?);
    }
    Some(Ok(list))
}

/// Every byte of the data belongs to one tensor.
fn check_gapless(tensors: &[Stored], base: u64, file: u64) -> Result<()> {
    let mut order: Vec<&Stored> = collected(tensors, DIRECTORY)?;
    order.sort_unstable_by_key(|tensor| (tensor.start, tensor.len));
    let mut end = base;
    for tensor in order {
        let (name, start) = (&tensor.name, tensor.start);
        if start < end {
            return Err(Error::Format(format!(
                "tensor `{name}` begins at byte {start}, the one before ends at {end}: they overlap"
            )));
        }
        if start > end {
            return Err(Error::Format(format!(
                "the bytes {end} to {start}, before tensor `{name}`, belong to no tensor"
            )));
        }
        end = start + tensor.len;
    }
    if end == file { Ok(()) } else { Err(Error::Format(format!("{} bytes behind its last tensor", file - end))) }
}
