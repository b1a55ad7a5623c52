//! What a file is that is no model: told by its first bytes, or by what a GGUF file declares.

use super::gguf::Gguf;
use crate::error::{Error, Excerpt, Result};

/// What files of other formats begin with, at which byte, and what a user should do.
const BEGINNINGS: [(usize, &[u8], &str); 17] = [
    (0, b"PK\x03\x04", "a zip archive, as pytorch writes weights: convert the model to gguf"),
    (0, b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9", "an old pytorch file: convert the model to gguf"),
    (0, b"lmgg", "an old ggml file: get the model as gguf"),
    (0, b"fmgg", "an old ggml file (ggmf): get the model as gguf"),
    (0, b"tjgg", "an old ggml file (ggjt): get the model as gguf"),
    (0, b"algg", "an old ggml adapter (ggla): load a model in gguf"),
    (0, b"version https://git-lfs.github.com/spec/", "a git-lfs pointer in place of the file: run `git lfs pull`"),
    (0, b"\x89HDF\r\n\x1a\n", "an hdf5 file: convert the model to gguf"),
    (0, b"\x93NUMPY", "a numpy array: convert the model to gguf"),
    (4, b"TFL3", "a tensorflow lite file: convert the model to gguf"),
    (0, b"\x1f\x8b", "compressed with gzip: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    (0, b"\xfd7zXZ\0", "compressed with xz: unpack it first"),
    (0, b"BZh", "compressed with bzip2: unpack it first"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-zip archive: unpack it first"),
    (0, b"\x7fELF", "a program or library"),
    (0, b"%PDF-", "a pdf document"),
];

/// Bytes of a file that are looked at.
const START_BYTES: usize = 256;

/// The error for a file that does not begin as GGUF files do.
pub(super) fn no_gguf(data: &[u8]) -> Error {
    if data.is_empty() {
        return Error::Format("it is empty; get it again".into());
    }
    // A copy, since a mapped file can change between two looks at it.
    let mut copy = [0; START_BYTES];
    let start = &mut copy[..data.len().min(START_BYTES)];
    start.copy_from_slice(&data[..data.len().min(START_BYTES)]);
    let known = |(at, beginning, _): &&(usize, &[u8], &str)| start.get(*at..).is_some_and(|s| s.starts_with(beginning));
    let what = match (BEGINNINGS.iter().find(known), text_of(start)) {
        (Some((.., what)), _) => format!(": it is {what}"),
        _ if is_safetensors(start, data.len()) => ": it is a safetensors file: load the folder that it lies in".into(),
        (None, Some(text)) if is_page(text) => ": it is a web page: the download failed, get the file again".into(),
        (None, Some(text)) => {
            format!(": it is text, which begins with `{}`", Excerpt(text.lines().next().unwrap_or("").as_bytes()))
        }
        (None, None) => String::new(),
    };
    Error::Format(format!("it does not begin with the GGUF magic{what}"))
}

/// A safetensors file begins with the length of its header, which is JSON.
fn is_safetensors(start: &[u8], len: usize) -> bool {
    let Some((length, rest)) = start.split_first_chunk::<8>() else { return false };
    rest.first() == Some(&b'{') && u64::from_le_bytes(*length) <= len as u64 - 8
}

/// The beginning of a file that is all text.
fn text_of(start: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // A character that the cut has divided.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&start[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let is_text = |c: char| !c.is_control() || c.is_ascii_whitespace();
    let text = text.trim_start_matches('\u{feff}').trim_start();
    (!text.is_empty() && text.chars().all(is_text)).then_some(text)
}

fn is_page(text: &str) -> bool {
    let begins = |tag: &str| text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag));
    begins("<!doctype html") || begins("<html") || begins("<head") || begins("<?xml")
}

/// Files that belong to models, by their `general.type` or `general.architecture`.
const COMPANIONS: [(&str, &str); 7] = [
    ("adapter", "an adapter; load the model that it changes"),
    ("imatrix", "an importance matrix, which serves to quantize a model; load the model"),
    ("mmproj", "a projector of images or sound; load the language model that it belongs to"),
    ("clip", "a projector of images or sound; load the language model that it belongs to"),
    ("controlvector", "a control vector; load the model that it steers"),
    ("vocab", "a vocabulary without weights; load the model"),
    ("dataset", "a data set; load a model"),
];

/// Refuses a GGUF file that declares that it is no model, or holds nothing of one but the vocabulary.
pub fn check_is_model(gguf: &Gguf) -> Result<()> {
    let meta = gguf.metadata();
    let known = |name: &str| COMPANIONS.iter().find(|(other, _)| *other == name);
    let (kind, arch) = (meta.text("general.type")?, meta.text("general.architecture")?);
    if let Some((name, what)) = kind.and_then(known).or_else(|| arch.and_then(known)) {
        return Err(Error::Unsupported(format!("the file is no model (`{name}`): it is {what}")));
    }
    if let Some(kind) = kind.filter(|&kind| kind != "model") {
        let kind = Excerpt(kind.as_bytes());
        return Err(Error::Unsupported(format!("the file says that it is no model: `general.type` is `{kind}`")));
    }
    match (gguf.tensors(), meta.get("tokenizer.ggml.tokens")) {
        ([], Some(_)) => Err(Error::Unsupported("the file is no model: it is a vocabulary without weights".into())),
        ([], None) => Err(Error::Format("it holds no tensors".into())),
        _ => Ok(()),
    }
}
