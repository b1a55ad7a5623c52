//! Kinds of characters, as Python's `str` tells them apart, and sets of characters.

use super::budget::Budget;
use super::case::{is_cased, is_title};
use super::show::is_printable;
use super::value::VALUES;
use crate::error::{Result, room};
use hashbrown::HashSet;
use unicode_normalization::char::is_combining_mark;

/// The zeros of all scripts that have decimal digits; each is followed by the digits 1 to 9.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620,
    0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0,
    0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60,
    0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];
/// Digits that are no decimal ones: raised, lowered, in circles and brackets; first and last.
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// Ideographs that stand for numbers.
const NUMERIC_IDEOGRAPHS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭\
    \u{f96b}\u{f973}\u{f978}\u{f9b2}\u{f9d1}\u{f9d3}\u{f9fd}\u{2f890}";

/// Whether a number may be written with the character.
fn is_decimal(c: char) -> bool {
    decimal(c).is_some()
}

/// Whether the character stands for a digit in any way.
pub(super) fn is_digit(c: char) -> bool {
    is_decimal(c) || OTHER_DIGITS.iter().any(|&(first, last)| (first..=last).contains(&(c as u32)))
}

/// The digit that the character is, in any script.
pub(super) fn decimal(c: char) -> Option<u32> {
    let code = c as u32;
    let at = ZEROS.partition_point(|&zero| zero <= code).checked_sub(1)?;
    Some(code - ZEROS[at]).filter(|&digit| digit < 10)
}

/// Whether the character is a letter: marks and numbers in the form of letters are none.
fn is_letter(c: char) -> bool {
    begins_name(c) && !c.is_numeric()
}

/// Whether a name may begin with the character: a letter, or a number in the form of letters.
fn begins_name(c: char) -> bool {
    c.is_ascii_alphabetic() || (!c.is_ascii() && c.is_alphabetic() && !is_combining_mark(c) && !is_sign(c))
}

/// Letters in circles and squares, which are signs.
fn is_sign(c: char) -> bool {
    matches!(c, 'Ⓐ'..='ⓩ' | '\u{1f130}'..='\u{1f189}')
}

/// Whether the character stands for a number in any way.
fn is_numeric(c: char) -> bool {
    c.is_numeric() || (c >= '㐅' && NUMERIC_IDEOGRAPHS.contains(c))
}

/// Whether the character is a letter or stands for a number.
fn is_alphanumeric(c: char) -> bool {
    is_letter(c) || is_numeric(c)
}

/// What words are made of, as regular expressions of Python have it: `\w`.
pub(super) fn is_word(c: char) -> bool {
    is_alphanumeric(c) || c == '_'
}

/// Whether a name may have the character behind its first.
pub(super) fn continues_name(c: char) -> bool {
    is_word(c) || c.is_alphanumeric() || is_combining_mark(c)
}

/// White space as Python's `str.isspace` has it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// What an `is...` method says of a text.
pub(super) fn classify(text: &str, name: &str) -> bool {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    match name {
        "isalnum" => all(is_alphanumeric),
        "isalpha" => all(is_letter),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(is_digit),
        "isnumeric" => all(is_numeric),
        "isspace" => all(is_space),
        "isprintable" => text.chars().all(is_printable),
        "isidentifier" => {
            let continues = |c: char| begins_name(c) || c == '_' || is_decimal(c) || is_combining_mark(c);
            text.starts_with(|c: char| begins_name(c) || c == '_') && text.chars().all(continues)
        }
        "istitle" => {
            let mut before = false;
            let fits = text.chars().all(|c| {
                let fits = if c.is_uppercase() || is_title(c) { !before } else { !c.is_lowercase() || before };
                before = is_cased(c);
                fits
            });
            fits && text.chars().any(is_cased)
        }
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(|c| c.is_uppercase() || is_title(c)),
        _ => text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_title(c)),
    }
}

/// Characters, found in a time that does not depend on how many there are.
pub(super) struct CharSet {
    ascii: u128,
    others: HashSet<char>,
}

/// Units of work for a character that is beyond ASCII, once in the set and once in the text.
const HASHED_UNITS: usize = 32;

impl CharSet {
    /// The characters of `chars`.
    pub(super) fn of(budget: &Budget, chars: &str) -> Result<CharSet> {
        let mut set = CharSet { ascii: 0, others: HashSet::new() };
        for c in chars.chars() {
            if c.is_ascii() {
                set.ascii |= 1 << c as u32;
            } else {
                budget.work(HASHED_UNITS)?;
                let bytes = (set.others.len() + 1).saturating_mul(size_of::<char>());
                room(bytes, VALUES, || set.others.try_reserve(1))?;
                set.others.insert(c);
            }
        }
        Ok(set)
    }

    /// Whether `c` is one of them.
    pub(super) fn contains(&self, c: char) -> bool {
        if c.is_ascii() { self.ascii >> c as u32 & 1 == 1 } else { self.others.contains(&c) }
    }
}
