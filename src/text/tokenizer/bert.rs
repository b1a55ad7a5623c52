//! What BERT does to text: controls go, white space becomes spaces, ideographs stand alone, accents and capitals may go too.
//!
//! The steps and their order are those of `BertNormalizer` in the library `tokenizers`.

use super::bert_characters::{IDEOGRAPHS, MARKS, PUNCTUATION, REMOVED};
use super::normal::Mark;
use super::parts::BertRules;
use crate::error::{Result, grow_text, push};
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

const TEXT: &str = "normalized text";

/// `text` as BERT's vocabularies expect it.
pub(super) fn normalized(text: &str, rules: BertRules) -> Result<String> {
    let mut out = Writer { text: String::new(), marks: Vec::new(), rules };
    grow_text(&mut out.text, text.len(), TEXT)?;
    for c in text.chars() {
        match c {
            '\t' | '\n' | '\r' => out.add(' ')?,
            _ if is_in(&REMOVED, c) => {}
            _ if c.is_whitespace() => out.add(' ')?,
            _ if is_in(&IDEOGRAPHS, c) => [' ', c, ' '].into_iter().try_for_each(|c| out.add(c))?,
            _ => out.add(c)?,
        }
    }
    out.write_marks()?;
    Ok(out.text)
}

/// Whether `c` is a word of its own, whatever stands beside it.
pub(super) fn is_punctuation(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_punctuation() } else { is_in(&PUNCTUATION, c) }
}

fn is_in(ranges: &[(u32, u32)], c: char) -> bool {
    let number = c as u32;
    let after = ranges.partition_point(|&(_, last)| last < number);
    ranges.get(after).is_some_and(|&(first, _)| first <= number)
}

/// Takes cleaned characters and writes them as the rules have it.
struct Writer {
    text: String,
    /// What of the last decomposed characters is not of class 0, which is written by class.
    marks: Vec<Mark>,
    rules: BertRules,
}

impl Writer {
    fn add(&mut self, c: char) -> Result<()> {
        if !self.rules.strip_accents {
            return self.write(c);
        }
        let mut added = Ok(());
        decompose_canonical(c, |part| {
            if added.is_ok() {
                added = self.add_part(part);
            }
        });
        added
    }

    fn add_part(&mut self, part: char) -> Result<()> {
        let class = canonical_combining_class(part);
        if class == 0 {
            self.write_marks()?;
            return self.write(part);
        }
        let place = self.marks.len() as u32;
        push(&mut self.marks, Mark { class, place, character: part }, TEXT)
    }

    fn write_marks(&mut self) -> Result<()> {
        let mut marks = std::mem::take(&mut self.marks);
        marks.sort_unstable();
        marks.drain(..).try_for_each(|mark| self.write(mark.character))?;
        self.marks = marks;
        Ok(())
    }

    fn write(&mut self, c: char) -> Result<()> {
        if self.rules.strip_accents && is_in(&MARKS, c) {
            return Ok(());
        }
        grow_text(&mut self.text, 3 * char::MAX_LEN_UTF8, TEXT)?;
        match self.rules.lowercase {
            true => self.text.extend(c.to_lowercase()),
            false => self.text.push(c),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::wordpiece::words;
    use super::{BertRules, normalized};
    use serde_json::Value;

    /// The hash of Fowler, Noll and Vo.
    fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
        bytes.fold(0xcbf2_9ce4_8422_2325, |value, byte| (value ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// The words that become of `c` between two letters, under both rules.
    fn parts(c: char) -> Vec<String> {
        let rules = [true, false].map(|both| BertRules { lowercase: both, strip_accents: both });
        let texts = rules.map(|rules| normalized(&format!("a{c}b"), rules).unwrap());
        texts.iter().flat_map(|text| words(text).map(String::from)).collect()
    }

    #[test]
    fn every_character_becomes_what_the_published_rules_make_of_it() {
        let golden: Value = serde_json::from_str(include_str!("../../../tests/golden/text/bert.json")).unwrap();
        let [left_out, hashes] = ["left_out", "hashes"].map(|key| golden[key].as_array().unwrap());
        let is_left_out = |c: &char| left_out.contains(&Value::from(*c as u32));
        assert!(hashes.len() == 0x110000 / 1024 && left_out.len() < 30);
        let mut wrong = Vec::new();
        for (start, wanted) in (0u32..).step_by(1024).zip(hashes) {
            let characters = (start..start + 1024).filter_map(char::from_u32).filter(|c| !is_left_out(c));
            let found: Vec<String> = characters.flat_map(parts).collect();
            if format!("{:016x}", fnv(found.join("|").bytes())) != wanted.as_str().unwrap() {
                wrong.push(format!("{start:x}"));
            }
        }
        assert!(wrong.is_empty(), "blocks of 1024 from {wrong:?}");
    }
}
