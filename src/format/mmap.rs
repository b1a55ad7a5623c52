//! The bytes of a model file: mapped, read or copied, shared by everything that points into them; or made later of what files hold.

use crate::error::{Error, Progress, Result, filled, reserve};
use crate::os;
use std::fs::{File, Metadata};
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The whole content of one model file.
#[derive(Debug)]
pub enum Data {
    /// Pages of the file itself, read on demand by the system.
    Mapped(memmap2::Mmap),
    /// A private copy.
    Owned(Vec<u8>),
    /// Bytes that are to be made.
    Later(Later),
}

/// Bytes whose number is known before they are there.
#[derive(Debug)]
pub struct Later {
    len: usize,
    bytes: OnceLock<Vec<u8>>,
}

/// Bytes between two reports of progress.
const STEP_BYTES: usize = 16 << 20;

impl Data {
    /// Opens `path`; `map` chooses between mapping the file and reading it whole.
    ///
    /// A mapped file must not be truncated by anyone while it is in use: the system answers that with a signal.
    pub fn open(path: &Path, map: bool, progress: &mut Progress) -> Result<Arc<Data>> {
        let (file, meta) = open_file(path)?;
        let io = |source| failed(path, source);
        if map && meta.len() > 0 {
            return os::map(&file).map(|map| Arc::new(Data::Mapped(map))).map_err(io);
        }
        let len = usize::try_from(meta.len()).map_err(|_| Error::out_of_memory("the model file", usize::MAX))?;
        let mut bytes = filled(len, 0, "the model file")?;
        for range in steps(len) {
            let end = range.end;
            (&file).read_exact(&mut bytes[range]).map_err(io)?;
            progress(end as f32 / len as f32)?;
        }
        Ok(Arc::new(Data::Owned(bytes)))
    }

    /// A private copy of a file's bytes.
    pub fn copy(bytes: &[u8], progress: &mut Progress) -> Result<Arc<Data>> {
        let mut copy = reserve(bytes.len(), "the model file")?;
        for range in steps(bytes.len()) {
            copy.extend_from_slice(&bytes[range]);
            progress(copy.len() as f32 / bytes.len() as f32)?;
        }
        Ok(Arc::new(Data::Owned(copy)))
    }

    /// Room for `len` bytes that [`Data::fill`] brings.
    pub fn later(len: usize) -> Arc<Data> {
        Arc::new(Data::Later(Later { len, bytes: OnceLock::new() }))
    }

    /// Takes the bytes for which there is room; they come once.
    ///
    /// # Panics
    /// If there is no such room, or it is of another size.
    pub fn fill(&self, bytes: Vec<u8>) {
        let Data::Later(later) = self else { panic!("bytes for a file that has its own") };
        assert_eq!(bytes.len(), later.len);
        assert!(later.bytes.set(bytes).is_ok(), "bytes came twice");
    }

    /// Number of bytes, whether they are there or not.
    pub fn len(&self) -> usize {
        if let Data::Later(later) = self { later.len } else { self.deref().len() }
    }

    /// Whether there are no bytes.
    #[allow(dead_code)] // Or else that of the slice would be found, which knows only bytes that are made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Brings every page of a mapped file into memory, so that no step waits for the disk.
    pub fn populate(&self, progress: &mut Progress) -> Result<()> {
        let Data::Mapped(map) = self else { return Ok(()) };
        for range in steps(map.len()) {
            let end = range.end;
            os::bring_in(map, range);
            progress(end as f32 / map.len() as f32)?;
        }
        Ok(())
    }
}

/// Opens a regular file to be read.
fn open_file(path: &Path) -> Result<(File, Metadata)> {
    let io = |source| failed(path, source);
    let file = os::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if meta.is_dir() {
        return Err(Error::InvalidArgument(format!("{} is a folder; name a .gguf file", path.display())));
    }
    if !meta.is_file() {
        return Err(Error::InvalidArgument(format!("{} is not a regular file", path.display())));
    }
    Ok((file, meta))
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.display().to_string(), source }
}

/// The content of the file at `path`, which must have at most `most` bytes.
pub fn read_small(path: &Path, most: usize) -> Result<Vec<u8>> {
    let (mut file, meta) = open_file(path)?;
    let len = usize::try_from(meta.len()).unwrap_or(usize::MAX);
    if len > most {
        let name = path.file_name().unwrap_or_default().display();
        return Err(Error::Format(format!("{name} has {len} bytes, at most {most} are allowed")));
    }
    let mut bytes = filled(len, 0, "a file of the model")?;
    file.read_exact(&mut bytes).map_err(|source| failed(path, source))?;
    Ok(bytes)
}

/// A file of which parts are read: mapped, or by calls of the system.
#[derive(Debug)]
pub enum Parts {
    /// Whole in the address space.
    Mapped(Arc<Data>),
    /// Open.
    Open {
        /// The file.
        file: File,
        /// Its size when it was opened, in bytes.
        len: u64,
        /// What messages call it.
        path: String,
    },
}

impl Parts {
    /// Opens `path`; `map` chooses between mapping the file and reading its parts one by one.
    pub fn open(path: &Path, map: bool) -> Result<Parts> {
        if map {
            return Data::open(path, true, &mut |_| Ok(())).map(Parts::Mapped);
        }
        let (file, meta) = open_file(path)?;
        Ok(Parts::Open { file, len: meta.len(), path: path.display().to_string() })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        match self {
            Parts::Mapped(data) => data.len() as u64,
            Parts::Open { len, .. } => *len,
        }
    }

    /// Copies the bytes from `start` on into `out`; they must lie within [`Parts::len`].
    pub fn read(&self, start: u64, out: &mut [u8]) -> Result<()> {
        let beyond = || Error::Format(format!("byte {start} and {} more lie beyond its end", out.len()));
        match self {
            Parts::Mapped(data) => {
                let from = usize::try_from(start).ok();
                let range = from.and_then(|from| Some(from..from.checked_add(out.len())?));
                let bytes = range.and_then(|range| data.get(range)).ok_or_else(beyond)?;
                out.copy_from_slice(bytes);
                Ok(())
            }
            Parts::Open { file, path, .. } => {
                os::read_exact_at(file, out, start).map_err(|source| Error::Io { path: path.clone(), source })
            }
        }
    }
}

/// The parts of `len` bytes after which progress is reported.
fn steps(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(STEP_BYTES).map(move |start| start..len.min(start + STEP_BYTES))
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Data::Mapped(map) => map,
            Data::Owned(bytes) => bytes,
            Data::Later(later) => later.bytes.get().map_or(&[], |bytes| bytes),
        }
    }
}

/// A checked range of a file that keeps the file's bytes alive. Bytes that are made later are there when the model is: nobody looks before.
#[derive(Clone, Debug)]
pub struct Bytes {
    data: Arc<Data>,
    range: Range<usize>,
}

impl Bytes {
    /// The range of `data`, or `None` when it reaches past the end.
    pub fn new(data: &Arc<Data>, range: Range<usize>) -> Option<Bytes> {
        if range.start > range.end || range.end > data.len() {
            return None;
        }
        Some(Bytes { data: Arc::clone(data), range })
    }

    /// How many there are, whether they are made or not.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    #[allow(dead_code)] // Or else that of the slice would be found, which knows only bytes that are made.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A range of these, or `None` when it reaches past the end.
    pub fn part(&self, range: Range<usize>) -> Option<Bytes> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start;
        Some(Bytes { data: Arc::clone(&self.data), range: start + range.start..start + range.end })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }
}
