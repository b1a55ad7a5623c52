//! What tells models apart, and adapters: a hash of their tensors, and of what their metadata says of the forward pass.

use super::Model;
use super::header::stored_bytes;
use crate::error::Result;
use crate::format::{Gguf, Metadata, TensorInfo};
use crate::plan::adapter::ALPHA;
use twox_hash::XxHash3_128;

/// Tensors of at most so many bytes are hashed whole.
const WHOLE: usize = 64 << 10;
/// Of larger ones so many pieces of so many bytes, the first and the last among them, so that a model need not be read for it.
const PIECES: usize = 16;
const PIECE: usize = 4 << 10;

impl Model {
    /// A hash of names, types, shapes and contents of all tensors, the contents of large ones by pieces, and of the metadata of the architecture. The
    /// same for a folder and the file that is saved of it, in whatever order they stand there.
    pub(super) fn fingerprint(&self) -> Result<u128> {
        if let Some(&known) = self.known_fingerprint().get() {
            return Ok(known);
        }
        let prefix = format!("{}.", self.arch().name);
        // The size of the vocabulary is what a saved file says beside its folder.
        let sum = sum(self.tensors(), WHOLE, self.metadata(), |key| {
            key.strip_prefix(&prefix).filter(|&key| key != "vocab_size")
        })?;
        Ok(*self.known_fingerprint().get_or_init(|| sum))
    }
}

/// The same of an adapter, whose tensors are hashed whole: it is read for itself anyway.
pub(super) fn of_adapter(gguf: &Gguf) -> Result<u128> {
    sum(gguf.tensors(), usize::MAX, gguf.metadata(), |key| (key == ALPHA).then_some(key))
}

/// The sum of the hashes of tensors, of those of at most `whole` bytes whole, and of the metadata under the names that `own` gives to its keys.
fn sum(tensors: &[TensorInfo], whole: usize, metadata: &Metadata, own: impl Fn(&str) -> Option<&str>) -> Result<u128> {
    let mut sum = 0u128;
    for tensor in tensors {
        sum = sum.wrapping_add(hash_of(tensor, whole)?);
    }
    for (key, entry) in metadata.entries().filter_map(|(key, entry)| Some((own(key)?, entry))) {
        let mut hasher = XxHash3_128::new();
        write_text(&mut hasher, key.as_bytes());
        write_text(&mut hasher, &metadata.render(&entry.value)?);
        sum = sum.wrapping_add(hasher.finish_128());
    }
    Ok(sum)
}

fn hash_of(tensor: &TensorInfo, whole: usize) -> Result<u128> {
    let mut hasher = XxHash3_128::new();
    write_text(&mut hasher, tensor.name.as_bytes());
    hasher.write(&tensor.type_id.to_le_bytes());
    tensor.dims.iter().for_each(|dim| hasher.write(&dim.to_le_bytes()));
    // Without a known type nobody reads it.
    let len = stored_bytes(tensor).and_then(|len| usize::try_from(len).ok()).unwrap_or(0);
    let bytes = tensor.bytes(len)?;
    if len <= whole {
        hasher.write(&bytes);
    } else {
        let piece = |index: usize| (len - PIECE) / (PIECES - 1) * index;
        (0..PIECES - 1).for_each(|index| hasher.write(&bytes[piece(index)..][..PIECE]));
        hasher.write(&bytes[len - PIECE..]);
    }
    Ok(hasher.finish_128())
}

/// With its length, so that neighbours are told apart.
fn write_text(hasher: &mut XxHash3_128, text: &[u8]) {
    hasher.write(&(text.len() as u64).to_le_bytes());
    hasher.write(text);
}
