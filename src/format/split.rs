//! Models split over several files, as llama.cpp's `gguf-split` writes them: `NAME-00001-of-0000N.gguf` and so on.
//!
//! The first part holds the metadata of the model, every part a number of its own (`split.no`, from 0), their count
//! (`split.count`) and the tensor count of the whole (`split.tensors.count`).

use super::metadata::Metadata;
use crate::error::{Error, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TENSORS: &str = "split.tensors.count";
/// Most parts of a model; the file name has room for five digits.
const MAX_PARTS: u64 = 99_999;

/// Number of parts of the model; 1 when it is not split.
pub(super) fn count(meta: &Metadata) -> Result<usize> {
    match meta.unsigned(COUNT)? {
        None | Some(0) => Ok(1),
        Some(count) if count <= MAX_PARTS => Ok(count as usize),
        Some(count) => Err(meta.bad(COUNT, &format!("is {count}, at most {MAX_PARTS} parts are possible"))),
    }
}

/// Number of parts that the name of the first one tells; 1 for any other name.
pub(super) fn count_by_name(path: &Path) -> usize {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".gguf"));
    let count = name.and_then(|name| name.rsplit_once("-00001-of-")?.1.parse().ok());
    count.filter(|&count| count > 0).unwrap_or(1)
}

/// Paths of the parts after the first, as its name tells them.
pub(super) fn further_by_name(first: &Path) -> impl Iterator<Item = PathBuf> {
    let count = count_by_name(first).min(MAX_PARTS as usize);
    let name = first.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (2..=count).map(move |part| first.with_file_name(name.replacen("-00001-of-", &format!("-{part:05}-of-"), 1)))
}

/// The files of a model.
pub(super) struct Parts<'a> {
    first: &'a Path,
    /// What the names of all parts begin with.
    stem: &'a str,
    /// How many there are.
    pub(super) count: usize,
}

impl<'a> Parts<'a> {
    /// The parts of the model whose first one has this path and metadata.
    pub(super) fn of(first: &'a Path, meta: &Metadata) -> Result<Parts<'a>> {
        let count = count(meta)?;
        let stem = if count == 1 { "" } else { stem_of_first(first, meta, count)? };
        Ok(Parts { first, stem, count })
    }

    /// Path of part `index`, counted from 0.
    pub(super) fn path(&self, index: usize) -> PathBuf {
        self.first.with_file_name(format!("{}-{:05}-of-{:05}.gguf", self.stem, index + 1, self.count))
    }
}

fn stem_of_first<'a>(path: &'a Path, meta: &Metadata, count: usize) -> Result<&'a str> {
    let number = meta.unsigned(NUMBER)?.unwrap_or(0);
    if number != 0 {
        let (path, part) = (path.display(), number.saturating_add(1));
        let message = format!(
            "{path} is part {part} of {count}; load the first part, whose name ends in -00001-of-{count:05}.gguf"
        );
        return Err(Error::InvalidArgument(message));
    }
    let suffix = format!("-00001-of-{count:05}.gguf");
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(&suffix));
    name.ok_or_else(|| {
        Error::InvalidArgument(format!(
            "{} is the first of {count} parts, its name must end in {suffix}",
            path.display()
        ))
    })
}

/// Checks that a file is part `index` (from 0) of `parts`, as its name says.
pub(super) fn check_part(meta: &Metadata, index: usize, parts: usize) -> Result<()> {
    let number = meta.required(NUMBER, meta.unsigned(NUMBER)?)?;
    let count = count(meta)?;
    if count != parts {
        return Err(Error::Format(format!("it belongs to a model of {count} parts, not of {parts}; replace it")));
    }
    if number != index as u64 {
        let (found, named) = (number.saturating_add(1), index + 1);
        return Err(Error::Format(format!(
            "it holds part {found}, not part {named}; rename the parts as their order is"
        )));
    }
    Ok(())
}

/// The error of opening one of `count` parts; that it is not there is told with where it should be.
pub(super) fn if_missing(error: Error, count: usize) -> Error {
    match error {
        Error::Io { path, source } if source.kind() == ErrorKind::NotFound => {
            let message = format!("not found; all {count} parts of the model must lie in one folder");
            Error::Io { path, source: std::io::Error::new(ErrorKind::NotFound, message) }
        }
        other => other,
    }
}

/// Checks that all parts together have as many tensors as the first one says.
pub(super) fn check_total(meta: &Metadata, tensors: usize) -> Result<()> {
    if count(meta)? == 1 {
        return Ok(());
    }
    match meta.unsigned(TENSORS)? {
        Some(total) if total != tensors as u64 => {
            Err(meta.bad(TENSORS, &format!("is {total}, the parts have {tensors}; they are not of one model")))
        }
        _ => Ok(()),
    }
}
