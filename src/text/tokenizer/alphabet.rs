//! How vocabularies spell bytes in their token texts, and how that is undone.
//!
//! Byte-level vocabularies (GPT-2) give every byte one printable character; SentencePiece ones write a space as U+2581
//! and a single byte as `<0x0A>`.

use super::parts::Alphabet;
use crate::error::{Result, reserve};

/// U+2581, which stands for a space.
pub(super) const ESCAPED_SPACE: char = '\u{2581}';

impl Alphabet {
    /// Appends the bytes that the token text `raw` stands for. Text outside the alphabet stands for itself.
    pub(super) fn decode(self, raw: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let Ok(text) = std::str::from_utf8(raw) else { return out.extend_from_slice(raw) };
        match self {
            Alphabet::ByteLevel => {
                for c in text.chars() {
                    let Some(byte) = byte_of(c) else {
                        out.truncate(start);
                        return out.extend_from_slice(raw);
                    };
                    out.push(byte);
                }
            }
            Alphabet::Escaped => {
                for (index, part) in text.split(ESCAPED_SPACE).enumerate() {
                    if index > 0 {
                        out.push(b' ');
                    }
                    out.extend_from_slice(part.as_bytes());
                }
            }
        }
    }
}

/// `text` with every U+2581 turned into the space that it stands for.
pub(super) fn unescape(text: &str) -> Result<String> {
    let mut bytes = reserve(text.len(), "text")?;
    Alphabet::Escaped.decode(text.as_bytes(), &mut bytes);
    Ok(String::from_utf8(bytes).expect("parts of a string and spaces are a string"))
}

/// The byte that a text such as `<0x0A>` names.
pub(super) fn byte_named(raw: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = *raw else { return None };
    let digit = |c: u8| (c as char).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

/// Whether GPT-2's alphabet writes `byte` as the character of the same number.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// First character for the bytes that are not plain, which follow in the order of their values.
const SHIFTED: u32 = 256;

/// Bytes that are not plain, in order.
const SHIFTED_BYTES: [u8; 68] = {
    let mut bytes = [0; 68];
    let (mut count, mut byte) = (0, 0);
    while byte < 256 {
        if !is_plain(byte as u8) {
            bytes[count] = byte as u8;
            count += 1;
        }
        byte += 1;
    }
    bytes
};

fn byte_of(c: char) -> Option<u8> {
    match u8::try_from(c) {
        Ok(byte) => is_plain(byte).then_some(byte),
        Err(_) => SHIFTED_BYTES.get((c as u32).wrapping_sub(SHIFTED) as usize).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(alphabet: Alphabet, raw: &str) -> Vec<u8> {
        let mut out = Vec::new();
        alphabet.decode(raw.as_bytes(), &mut out);
        out
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = [false; 256];
        for c in (0..0x200).filter_map(char::from_u32) {
            if let Some(byte) = byte_of(c) {
                assert!(!std::mem::replace(&mut seen[byte as usize], true), "byte {byte} is spelt twice");
            }
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('ł')), (Some(b' '), Some(b'\n'), Some(0xa0)));
        assert_eq!(byte_of('\u{ad}'), None);
    }

    #[test]
    fn spellings_are_undone() {
        assert_eq!(decoded(Alphabet::ByteLevel, "ĠÃ©"), " é".as_bytes());
        assert_eq!(decoded(Alphabet::ByteLevel, "a b"), b"a b", "outside the alphabet a text is itself");
        assert_eq!(decoded(Alphabet::Escaped, "▁▁a▁"), b"  a ");
        assert_eq!(byte_named(b"<0x0a>"), Some(10));
        assert_eq!(byte_named(b"<0xFF>"), Some(255));
        assert_eq!(byte_named(b"<0xG0>"), None);
    }
}
