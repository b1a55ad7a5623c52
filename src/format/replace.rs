//! Files that appear under their name, or take the place of another, when they are whole: until then they are called otherwise, and what fails leaves
//! nothing behind.

use crate::error::{Error, Progress, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Names that are tried for an unfinished file.
const NAMES: u32 = 1000;

/// Makes an error of what the system said of a file.
pub type Refused<'a> = dyn Fn(io::Error) -> Error + 'a;

/// Writes the file at `path` by `write`, which hears whom to tell of progress; 1 is told here, when all is on the disk. When one of them asks to
/// stop, or something fails, there is nothing left of the attempt.
pub fn replace(
    path: &Path,
    progress: &mut Progress,
    write: impl FnOnce(&mut File, &Refused, &mut Progress) -> Result<()>,
) -> Result<()> {
    if path.is_dir() {
        let path = path.display();
        return Err(Error::InvalidArgument(format!("{path} is a folder; name the file to write")));
    }
    let refused = |source: io::Error| Error::Write { path: path.display().to_string(), source };
    let (unfinished, mut file) = create_beside(path).map_err(refused)?;
    let written = write(&mut file, &refused, progress).and_then(|()| {
        file.sync_all().map_err(refused)?;
        // Closed before it is renamed, as some systems want it.
        drop(file);
        progress(1.0)?;
        std::fs::rename(&unfinished, path).map_err(refused)
    });
    if written.is_err() {
        // There may be nothing to remove; the first error tells more.
        _ = std::fs::remove_file(&unfinished);
    }
    written
}

/// A new file in the folder of `path`.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it is no name of a file"))?;
    for number in 0..NAMES {
        let mut unfinished = name.to_owned();
        unfinished.push(format!(".{}-{number}.part", std::process::id()));
        let unfinished = path.with_file_name(unfinished);
        match OpenOptions::new().write(true).create_new(true).open(&unfinished) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (unfinished, file)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}
