//! What a host's texts are written with while a template runs, so that none of them becomes a control token.
//!
//! Text of a user's that spells `<|im_end|>` must not end the user's turn. After rendering nobody could tell it from the template's own, so the
//! difference is carried by the characters themselves: each that the name of a special token begins or ends with is replaced in messages, before
//! the template sees them, by a stand-in, a character of the private planes that neither the messages nor the template use. Templates trim,
//! split, join, compare and cut texts; a stand-in goes wherever its original would have gone, without any operation knowing of it. Names of
//! special tokens are looked for in the rendered text while the stand-ins are there, so they are found only where their first and last mark are
//! the template's; only then are the originals put back, and the text between the names becomes tokens as it always does.
//!
//! Roles and the types of parts are the host's own words, and stay as they are. A template that looks for a marker in a message, as those do that
//! take reasoning apart from an assistant's text, does not find one there: hosts give reasoning as a member of its own.

use crate::error::{Error, Result, copied, grow_text};

/// Most characters that have stand-ins; vocabularies have fewer than ten of them.
const BLOCK: u32 = 64;

/// The last plane of Unicode, all for private use.
const FIRST: u32 = 0x10_0000;
const BLOCKS: usize = 1023;

/// Characters and what stands in for them.
#[derive(Debug)]
pub struct StandIns {
    originals: Vec<char>,
    base: u32,
}

impl StandIns {
    /// Stand-ins for `originals` that occur in none of `texts`, as characters or as escapes of JSON.
    ///
    /// More than 64 characters, or texts that use characters of all blocks of the private plane, are [`Error::Unsupported`].
    pub fn new(originals: &[char], texts: &[&str]) -> Result<StandIns> {
        if originals.len() > BLOCK as usize {
            let message = format!("the names of special tokens begin or end with {} characters", originals.len());
            return Err(Error::Unsupported(message + ", text can be kept apart from 64; tokenize the rendered text"));
        }
        let mut used = [false; BLOCKS];
        let mut mark = |code: u32| {
            let block = code.checked_sub(FIRST).and_then(|offset| used.get_mut((offset / BLOCK) as usize));
            if let Some(used) = block {
                *used = true;
            }
        };
        for text in texts {
            text.chars().for_each(|c| mark(c as u32));
            text.match_indices("\\u").filter_map(|(at, _)| escaped(&text[at..])).for_each(&mut mark);
        }
        let free = used.iter().position(|used| !used);
        let free = free.ok_or_else(|| Error::Unsupported("the conversation uses all private characters".into()))?;
        Ok(StandIns { originals: copied(originals, "a chat template")?, base: FIRST + free as u32 * BLOCK })
    }

    /// What `c` is written as.
    pub(super) fn stand_in(&self, c: char) -> char {
        let place = self.originals.iter().position(|&original| original == c);
        place.and_then(|place| char::from_u32(self.base + place as u32)).unwrap_or(c)
    }

    /// What `c` stands for.
    fn original(&self, c: char) -> char {
        let place = (c as u32).checked_sub(self.base);
        place.and_then(|place| self.originals.get(place as usize).copied()).unwrap_or(c)
    }

    /// `text` with the originals.
    pub fn restored(&self, text: &str) -> Result<String> {
        let mut out = String::new();
        grow_text(&mut out, text.len(), "a chat template")?;
        // An original takes no more bytes than its stand-in.
        text.chars().for_each(|c| out.push(self.original(c)));
        Ok(out)
    }
}

/// The character that two escapes at the beginning of `text` are together.
fn escaped(text: &str) -> Option<u32> {
    let unit = |from: usize| u32::from_str_radix(text.get(from..)?.strip_prefix("\\u")?.get(..4)?, 16).ok();
    match (unit(0)?, unit(6)?) {
        (high @ 0xd800..0xdc00, low @ 0xdc00..0xe000) => Some(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_are_found_that_no_text_uses() {
        let texts = ["a\u{100001}", r#"{"x": "\uDBC0\uDC40 \\u"}"#];
        let stand_ins = StandIns::new(&['<', '｜'], &texts).unwrap();
        assert_eq!(stand_ins.base, FIRST + 2 * BLOCK);
        let written: String = "a<b｜\u{100001}".chars().map(|c| stand_ins.stand_in(c)).collect();
        assert_eq!(written, "a\u{100080}b\u{100081}\u{100001}");
        assert_eq!(stand_ins.restored(&written).unwrap(), "a<b｜\u{100001}");
    }

    #[test]
    fn texts_that_use_every_block_are_refused() {
        let all: String = (0..BLOCKS as u32).filter_map(|block| char::from_u32(FIRST + block * BLOCK)).collect();
        assert!(StandIns::new(&['<'], &[&all]).is_err());
        assert!(StandIns::new(&['<'; 65], &[]).is_err());
    }
}
