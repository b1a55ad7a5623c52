//! The bytes of a model file: mapped, read or copied, shared by everything that points into them.
//!
//! The only unsafe code of the format layer: the memory map itself.

use crate::error::{Error, Result, filled, reserve};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::ops::{Deref, Range};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// The whole content of one model file.
#[derive(Debug)]
pub enum Data {
    /// Pages of the file itself, read on demand by the system.
    Mapped(memmap2::Mmap),
    /// A private copy.
    Owned(Vec<u8>),
}

/// Hears how much of a file is in memory, 0 to 1; an error ends the load.
pub type Progress<'a> = dyn FnMut(f32) -> Result<()> + 'a;

/// Bytes between two reports of progress.
const STEP_BYTES: usize = 16 << 20;

impl Data {
    /// Opens `path`; `map` chooses between mapping the file and reading it whole.
    ///
    /// A mapped file must not be truncated by anyone while it is in use: the system answers that with a signal.
    pub fn open(path: &Path, map: bool, progress: &mut Progress) -> Result<Arc<Data>> {
        let io = |source| Error::Io { path: path.display().to_string(), source };
        // Otherwise the open of a pipe waits until somebody writes to it; files do not care.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(Error::InvalidArgument(format!("{} is not a regular file", path.display())));
        }
        if map && meta.len() > 0 {
            return Self::map(&file).map(Arc::new).map_err(io);
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

    /// Brings every page of a mapped file into memory, so that no step waits for the disk.
    pub fn populate(&self, progress: &mut Progress) -> Result<()> {
        let Data::Mapped(map) = self else { return Ok(()) };
        for range in steps(map.len()) {
            // Kernels before 5.14 lack this advice; pages then come in on first use.
            let _ = map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len());
            progress(range.end as f32 / map.len() as f32)?;
        }
        Ok(())
    }

    fn map(file: &File) -> std::io::Result<Data> {
        // SAFETY: the map is private and read-only, and every access goes through slices of its length. That nobody
        // truncates the file meanwhile is the host's promise (SEGNO_MODEL_NO_MMAP is for hosts that cannot give it).
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Data::Mapped(map))
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
        }
    }
}

/// A checked range of a file that keeps the file's bytes alive.
#[derive(Clone, Debug)]
pub struct Bytes {
    data: Arc<Data>,
    range: Range<usize>,
}

impl Bytes {
    /// The range of `data`, or `None` when it reaches past the end.
    pub fn new(data: &Arc<Data>, range: Range<usize>) -> Option<Bytes> {
        data.get(range.clone())?;
        Some(Bytes { data: Arc::clone(data), range })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }
}
