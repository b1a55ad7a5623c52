//! Brings text to normalization form C (Unicode Standard Annex 15), which some vocabularies expect.
//!
//! The tables are those of the crate `unicode-normalization`. Its iterators keep runs of marks in memory that cannot be refused, so
//! the steps of the form are made here: decompose, sort marks by class, compose.

use crate::error::{Result, grow_text, push, reserve};
use std::sync::LazyLock;
use unicode_normalization::char::{canonical_combining_class, compose, decompose_canonical};
use unicode_normalization::{IsNormalized, is_nfc_quick};

const TEXT: &str = "normalized text";

/// The form C of `text`; `None` when `text` is in it already, as nearly all text is.
pub(super) fn composed(text: &str) -> Result<Option<String>> {
    if text.is_ascii() || is_composed(text) {
        return Ok(None);
    }
    let mut out = Composer { text: String::new(), starter: None, marks: reserve(16, TEXT)? };
    grow_text(&mut out.text, text.len(), TEXT)?;
    for c in text.chars() {
        let mut added = Ok(());
        decompose_canonical(c, |part| {
            if added.is_ok() {
                added = out.add(part);
            }
        });
        added?;
    }
    out.end()?;
    Ok(Some(out.text))
}

/// The quick check of the annex: true only for text in form C, and for nearly all such text.
fn is_composed(text: &str) -> bool {
    let mut last_class = 0;
    text.chars().all(|c| {
        let class = if is_inert(c) { 0 } else { canonical_combining_class(c) };
        let ordered = class == 0 || class >= last_class;
        last_class = class;
        ordered && (is_inert(c) || is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes)
    })
}

/// Whether `c` is known to be of class 0 and to stay as it is, without a search in the crate's tables, which takes longer than all the
/// rest of tokenizing.
fn is_inert(c: char) -> bool {
    let number = c as u32;
    match number {
        0..TABLED => INERT[number as usize / 64] >> (number % 64) & 1 == 1,
        // Ideographs, Hangul and symbols.
        0x3100..0xa000 | 0xac00..0xd7a4 | 0x1f000..0x1fb00 | 0x20000..0x2a000 => true,
        _ => false,
    }
}

/// Characters below this number have a bit in [`INERT`].
const TABLED: u32 = 0x3100;

static INERT: LazyLock<[u64; TABLED as usize / 64]> = LazyLock::new(|| {
    let mut bits = [0; TABLED as usize / 64];
    for (number, c) in ('\0'..).take(TABLED as usize).enumerate() {
        if canonical_combining_class(c) == 0 && is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes {
            bits[number / 64] |= 1 << (number % 64);
        }
    }
    bits
});

/// Takes decomposed characters and writes them composed.
struct Composer {
    text: String,
    /// The last character of class 0, with which what follows may combine; not written yet.
    starter: Option<char>,
    /// What follows it, of other classes.
    marks: Vec<Mark>,
}

/// A character that is not of class 0. Ordered by class; those of one class keep their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) class: u8,
    pub(super) place: u32,
    pub(super) character: char,
}

impl Composer {
    fn add(&mut self, c: char) -> Result<()> {
        let class = canonical_combining_class(c);
        if class != 0 {
            let place = self.marks.len() as u32;
            return push(&mut self.marks, Mark { class, place, character: c }, TEXT);
        }
        self.combine_marks();
        // Marks that are left stand between the two.
        let joined = self.starter.filter(|_| self.marks.is_empty()).and_then(|starter| compose(starter, c));
        if joined.is_none() {
            self.end()?;
        }
        self.starter = Some(joined.unwrap_or(c));
        Ok(())
    }

    /// Sorts the marks and combines the starter with each that no mark of the same class keeps from it.
    fn combine_marks(&mut self) {
        self.marks.sort_unstable();
        let Some(mut starter) = self.starter else { return };
        let mut last_class = 0;
        self.marks.retain(|mark| match compose(starter, mark.character) {
            Some(composite) if mark.class > last_class => {
                starter = composite;
                false
            }
            _ => {
                last_class = mark.class;
                true
            }
        });
        self.starter = Some(starter);
    }

    /// Writes what cannot change any more.
    fn end(&mut self) -> Result<()> {
        self.combine_marks();
        let characters = usize::from(self.starter.is_some()) + self.marks.len();
        grow_text(&mut self.text, characters * char::MAX_LEN_UTF8, TEXT)?;
        self.text.extend(self.starter.take());
        self.text.extend(self.marks.drain(..).map(|mark| mark.character));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{composed, is_composed};
    use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

    fn check(text: &str) {
        assert_eq!(is_composed(text), is_nfc_quick(text.chars()) == IsNormalized::Yes, "{text:?}");
        let wanted: String = text.nfc().collect();
        match composed(text).unwrap() {
            Some(text) => assert_eq!(text, wanted),
            None => assert_eq!(text, wanted, "left as it was"),
        }
    }

    #[test]
    fn every_character_and_its_decomposition_equal_the_crates() {
        for c in '\0'..=char::MAX {
            check(c.encode_utf8(&mut [0; 4]));
            check(&c.to_string().nfd().collect::<String>());
            check(&format!("e{c}\u{301}\u{323}"));
        }
    }

    #[test]
    fn random_sequences_equal_the_crates() {
        let marks =
            "\u{300}\u{301}\u{302}\u{303}\u{307}\u{308}\u{30a}\u{31b}\u{323}\u{327}\u{328}\u{338}\u{345}\u{5b4}\u{93c}";
        let starters = "aeouADEIOSYΑΥω가각각ऩनகெ\u{9c7}\u{9be}\u{0dd9}\u{0dcf}\u{0ddf}\u{0dca}Å\u{212b}\u{1100}\u{1161}\u{11a8}\u{fb2b} é";
        let pool: Vec<char> = marks.chars().chain(marks.chars()).chain(starters.chars()).collect();
        let mut state = 1u64;
        let mut next = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        for _ in 0..100_000 {
            let text: String = (0..next(12)).map(|_| pool[next(pool.len())]).collect();
            check(&text);
        }
    }

    #[test]
    fn a_long_run_of_marks_is_sorted() {
        let run: String = (0..20_000).map(|i| ['\u{323}', '\u{301}', '\u{327}'][i % 3]).collect();
        check(&format!("a{run}b{run}"));
    }
}
