//! The character map that SentencePiece compiles into a model (`precompiled_charsmap`): the longest text that the map knows becomes
//! another, from left to right.
//!
//! The map is a double array (Aoe, 1989) as `darts-clone` packs it, then the replacements, each with a zero behind it. A file is
//! checked whole when it is read, so that no text leads outside the arrays.

use super::MAX_TEXT;
use super::parts::Parts;
use crate::error::{Error, Result, copied_text, grow_text, reserve};

const NAME: &str = "precompiled_charsmap";

/// A map, checked.
pub(super) struct Charsmap {
    units: Vec<Unit>,
    replacements: String,
}

/// An element of the double array: a node, or the value at a leaf.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    /// The byte that leads here, with a bit that no byte has for values.
    fn label(self) -> u32 {
        self.0 & (1 << 31 | 0xff)
    }

    /// Whether a text of the map ends here.
    fn ends(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    /// Combined with the unit's own place, where its children begin.
    fn offset(self) -> usize {
        ((self.0 >> 10) << ((self.0 & 1 << 9) >> 6)) as usize
    }

    fn is_value(self) -> bool {
        self.0 >> 31 == 1
    }

    fn value(self) -> usize {
        (self.0 & !(1 << 31)) as usize
    }
}

impl Charsmap {
    /// Reads and checks `map`, which is a part of `parts`.
    pub(super) fn parse(parts: &Parts, map: &[u8]) -> Result<Charsmap> {
        let bad = |problem: &str| parts.bad(NAME, problem);
        let (size, rest) = map.split_first_chunk().ok_or_else(|| bad("is too short"))?;
        let size = u32::from_le_bytes(*size) as usize;
        if size == 0 || !size.is_multiple_of(size_of::<u32>()) || size > rest.len() {
            return Err(bad(&format!("has a trie of {size} bytes within {}", rest.len())));
        }
        let (trie, replacements) = rest.split_at(size);
        let replacements = std::str::from_utf8(replacements).map_err(|_| bad("has replacements that are not utf-8"))?;
        if !replacements.is_empty() && !replacements.ends_with('\0') {
            return Err(bad("has a replacement without an end"));
        }
        let mut units = reserve(size / size_of::<u32>(), "a character map")?;
        let (words, _) = trie.as_chunks();
        units.extend(words.iter().map(|word| Unit(u32::from_le_bytes(*word))));
        let map = Charsmap { units, replacements: copied_text(replacements, "a character map")? };
        if map.points_inside() { Ok(map) } else { Err(bad("points outside itself")) }
    }

    /// Whether every node has its children, of whatever bytes, in the array, and every text its replacement.
    fn points_inside(&self) -> bool {
        !self.units[0].is_value()
            && self.units.iter().enumerate().filter(|(_, unit)| !unit.is_value()).all(|(place, unit)| {
                let children = place ^ unit.offset();
                let replaced = |unit: &Unit| self.replacements.get(unit.value()..).is_some_and(|rest| !rest.is_empty());
                (children | 0xff) < self.units.len() && (!unit.ends() || replaced(&self.units[children]))
            })
    }

    /// `text` as the map has it; `None` if that is the same.
    pub(super) fn apply(&self, text: &str) -> Result<Option<String>> {
        let mut out = String::new();
        let (mut at, mut copied) = (0, 0);
        while let Some(c) = text[at..].chars().next() {
            let Some((len, replacement)) = self.longest(&text[at..]) else {
                at += c.len_utf8();
                continue;
            };
            append(&mut out, &text[copied..at])?;
            append(&mut out, replacement)?;
            at += len;
            copied = at;
        }
        if copied == 0 {
            return Ok(None);
        }
        append(&mut out, &text[copied..])?;
        Ok(Some(out))
    }

    /// The longest text of the map that `text` begins with: its length, and what it becomes.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut found = None;
        let mut place = self.units[0].offset();
        for (index, &byte) in text.as_bytes().iter().enumerate() {
            place ^= byte as usize;
            let unit = self.units[place];
            if byte == 0 || unit.label() != u32::from(byte) {
                break;
            }
            place ^= unit.offset();
            if unit.ends() && text.is_char_boundary(index + 1) {
                found = Some((index + 1, self.units[place].value()));
            }
        }
        let (len, start) = found?;
        let rest = &self.replacements[start..];
        Some((len, &rest[..rest.find('\0')?]))
    }
}

fn append(out: &mut String, text: &str) -> Result<()> {
    if out.len() + text.len() > MAX_TEXT {
        return Err(Error::InvalidArgument(format!("normalized text of more than {MAX_TEXT} bytes at once")));
    }
    grow_text(out, text.len(), "normalized text")?;
    out.push_str(text);
    Ok(())
}
