//! The adapters of a saved sequence: what each is recognized by, and the factor on what it adds. The numbers of their matrices are not saved: whoever
//! restores the sequence has loaded them.
//!
//! A checksum of their own stands behind them, so that one that is not loaded can be named before gigabytes are read.

use super::adapter::{Identity, MOST_ADAPTERS, NAME_BYTES};
use super::model::Model;
use super::saved::{Reader, Writer};
use super::saved_header::{CHECK_BYTES, bad};
use crate::backend::Scaled;
use crate::error::{Result, extend, push};
use twox_hash::XxHash3_128;

/// What memory is for.
const WHAT: &str = "adapters of a saved sequence";
/// Bytes of an adapter before its name: fingerprint, factor, and how long the name is.
const ENTRY_BYTES: usize = 16 + 4 + 4;

/// Writes the adapters of a sequence: how many, each of them, a checksum.
pub fn write(adapters: &[Scaled], model: &Model, writer: &mut Writer) -> Result<()> {
    let mut bytes = Vec::new();
    extend(&mut bytes, &(adapters.len() as u32).to_le_bytes(), WHAT)?;
    for Scaled { adapter, scale } in adapters {
        let Identity { fingerprint, name } = model.identity_of(adapter)?;
        extend(&mut bytes, &fingerprint.to_le_bytes(), WHAT)?;
        extend(&mut bytes, &scale.to_le_bytes(), WHAT)?;
        extend(&mut bytes, &(name.len() as u32).to_le_bytes(), WHAT)?;
        extend(&mut bytes, name.as_bytes(), WHAT)?;
    }
    let check = XxHash3_128::oneshot(&bytes);
    extend(&mut bytes, &check.to_le_bytes(), WHAT)?;
    writer.put(&bytes)
}

/// Reads what [`write`] has written, and finds the adapters among those of `model`.
pub fn read(model: &Model, reader: &mut Reader) -> Result<Vec<Scaled>> {
    let (mut hasher, mut count) = (XxHash3_128::new(), [0; 4]);
    reader.fill(&mut count)?;
    hasher.write(&count);
    let count = u32::from_le_bytes(count) as usize;
    if count == 0 || count > MOST_ADAPTERS {
        return Err(bad(&format!("it has {count} adapters, 1 to {MOST_ADAPTERS} are possible")));
    }
    let mut listed = Vec::new();
    for _ in 0..count {
        push(&mut listed, read_one(reader, &mut hasher)?, WHAT)?;
    }
    let mut check = [0; CHECK_BYTES];
    reader.fill(&mut check)?;
    if check != hasher.finish_128().to_le_bytes() {
        return Err(bad("the checksum of its adapters is wrong"));
    }
    let mut adapters = Vec::new();
    for (identity, scale) in &listed {
        push(&mut adapters, Scaled { adapter: model.adapter_like(identity)?, scale: *scale }, WHAT)?;
    }
    Ok(adapters)
}

/// The next adapter, and the factor on what it adds.
fn read_one(reader: &mut Reader, hasher: &mut XxHash3_128) -> Result<(Identity, f32)> {
    let mut entry = [0; ENTRY_BYTES];
    reader.fill(&mut entry)?;
    hasher.write(&entry);
    let (fingerprint, [scale, length]) = (field(&entry, 0), [16, 20].map(|at| u32::from_le_bytes(field(&entry, at))));
    let (scale, length) = (f32::from_bits(scale), length as usize);
    if !scale.is_finite() || scale == 0.0 {
        return Err(bad(&format!("it has an adapter with the factor {scale}")));
    }
    if length > NAME_BYTES {
        return Err(bad("it has an adapter whose name is too long"));
    }
    let name = reader.take_all(length, |[byte]: [u8; 1]| byte)?;
    hasher.write(&name);
    let name = String::from_utf8(name).map_err(|_| bad("the name of an adapter of it is not utf-8"))?;
    Ok((Identity { fingerprint: u128::from_le_bytes(fingerprint), name }, scale))
}

/// The bytes of a number.
fn field<const N: usize>(entry: &[u8; ENTRY_BYTES], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&entry[at..][..N]);
    number
}
