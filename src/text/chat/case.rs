//! Changes of case, as Python's `str` makes them, in memory that can be refused.

use super::budget::Budget;
use super::characters::is_space;
use super::heap::Text;
use super::value::Value;
use crate::error::Result;

/// Characters before and after a sigma that decide which of its two small forms it gets.
const SIGMA_CONTEXT: usize = 16;
/// Steps of work for looking at them.
const SIGMA_STEPS: u64 = 12;

/// Units of work for each byte of a text whose case changes.
const CASE_UNITS: usize = 20;

/// `text.name()` for the methods that change the case.
pub(super) fn recase(budget: &Budget, text: &str, name: &str) -> Result<Value> {
    budget.work(text.len().saturating_mul(CASE_UNITS))?;
    let mut out = Text::new(budget);
    match name {
        "upper" => push_all(&mut out, text.chars().flat_map(char::to_uppercase)),
        "title" => {
            let mut begins = true;
            text.char_indices().try_for_each(|(at, c)| {
                let begun = std::mem::replace(&mut begins, !is_cased(c));
                if begun { push_title(&mut out, c) } else { push_lower_at(&mut out, text, at, c) }
            })
        }
        "capitalize" => {
            let rest = text.chars().next().map_or(0, char::len_utf8);
            text[..rest].chars().try_for_each(|c| push_title(&mut out, c))?;
            // A sigma behind the first letter is at the end of a word if that is all there is.
            text[rest..].char_indices().try_for_each(|(at, c)| push_lower_at(&mut out, text, rest + at, c))
        }
        "swapcase" => text.char_indices().try_for_each(|(at, c)| match c {
            c if c.is_uppercase() => push_lower_at(&mut out, text, at, c),
            c if c.is_lowercase() => push_all(&mut out, c.to_uppercase()),
            c => out.push_char(c),
        }),
        "casefold" => {
            // Every letter changes its case twice.
            budget.work(text.len().saturating_mul(CASE_UNITS))?;
            text.chars().try_for_each(|c| push_folded(&mut out, c))
        }
        _ => push_lower(&mut out, text),
    }?;
    Ok(out.value())
}

/// The `title` filter, which begins words behind spaces and opening brackets with a capital letter.
pub(super) fn title(budget: &Budget, text: &str) -> Result<Value> {
    budget.work(text.len().saturating_mul(CASE_UNITS))?;
    let mut out = Text::new(budget);
    let divides = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        push_all(&mut out, first.to_uppercase())?;
        let behind = &rest[first.len_utf8()..];
        let len = if divides(first) { 0 } else { behind.find(divides).unwrap_or(behind.len()) };
        push_lower(&mut out, &behind[..len])?;
        rest = &behind[len..];
    }
    Ok(out.value())
}

/// Letters that are a capital and a small one in one character.
pub(super) fn is_title(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}' | '\u{1fa8}'..='\u{1faf}'
        | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// Whether the character is a letter of either case.
pub(super) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// The form of a character at the beginning of a word: Unicode's full mapping to title case.
fn push_title(out: &mut Text, c: char) -> Result<()> {
    let one = match c {
        'Ǆ'..='ǆ' => Some('ǅ'),
        'Ǉ'..='ǉ' => Some('ǈ'),
        'Ǌ'..='ǌ' => Some('ǋ'),
        'Ǳ'..='ǳ' => Some('ǲ'),
        // Georgian has capital letters for whole words alone.
        '\u{10d0}'..='\u{10fa}' | '\u{10fd}'..='\u{10ff}' => Some(c),
        'ᾳ' | 'ῃ' | 'ῳ' => char::from_u32(c as u32 + 9),
        '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => char::from_u32(c as u32 + 8),
        c if is_title(c) => Some(c),
        _ => None,
    };
    if let Some(one) = one {
        return out.push_char(one);
    }
    let iota_is_below = matches!(c, 'ᾲ' | 'ᾴ' | 'ᾷ' | 'ῂ' | 'ῄ' | 'ῇ' | 'ῲ' | 'ῴ' | 'ῷ');
    c.to_uppercase().enumerate().try_for_each(|(index, part)| match part {
        'Ι' if iota_is_below => out.push_char('\u{345}'),
        // Of a ligature only the first letter is a capital.
        part if index > 0 && c != 'ŉ' => push_all(out, part.to_lowercase()),
        part => out.push_char(part),
    })
}

/// The form of a character that all its cases share: Unicode's full case folding, which is the small form of the capital one
/// but for few letters.
fn push_folded(out: &mut Text, c: char) -> Result<()> {
    match c {
        'ẞ' => out.push("ss"),
        'İ' => push_all(out, c.to_lowercase()),
        'ı' | '\u{13a0}'..='\u{13f5}' => out.push_char(c),
        '\u{13f8}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => push_all(out, c.to_uppercase()),
        c => push_all(out, c.to_uppercase().flat_map(char::to_lowercase)),
    }
}

fn push_lower_at(out: &mut Text, text: &str, at: usize, c: char) -> Result<()> {
    match c {
        'Σ' => {
            out.budget().spend(SIGMA_STEPS)?;
            out.push(small_sigma(text, at))
        }
        c => push_all(out, c.to_lowercase()),
    }
}

fn push_lower(out: &mut Text, text: &str) -> Result<()> {
    text.char_indices().try_for_each(|(at, c)| push_lower_at(out, text, at, c))
}

/// The small form of the sigma at `at`: another one at the end of a word.
fn small_sigma(text: &str, at: usize) -> &'static str {
    let from = text[..at].char_indices().rev().take(SIGMA_CONTEXT).last().map_or(at, |(from, _)| from);
    let end = text[at..].char_indices().nth(SIGMA_CONTEXT).map_or(text.len(), |(len, _)| at + len);
    let before = text[from..at].to_lowercase().len();
    if text[from..end].to_lowercase()[before..].starts_with('ς') { "ς" } else { "σ" }
}

fn push_all(out: &mut Text, mut characters: impl Iterator<Item = char>) -> Result<()> {
    characters.try_for_each(|c| out.push_char(c))
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn case_changes_are_those_of_the_standard_library() {
        let budget = Budget::of_input();
        let recase = |text: &str, name: &str| super::recase(&budget, text, name).unwrap().as_str().unwrap().to_owned();
        for text in ["", "aBc ÄÖÜ ß ẞ", "ΟΔΟΣ ΣΑΣ Σ ΑΣ.Σ ΑΣ' ΑΣ'Α", "İIıi ﬁ ǆ Ǆ", "ΣΣΣ 10 ΑΣ\u{301}", &"ΑΣ ".repeat(50)]
        {
            assert_eq!(recase(text, "lower"), text.to_lowercase());
            assert_eq!(recase(text, "upper"), text.to_uppercase());
        }
        assert_eq!(recase("STRAßE ẞ", "casefold"), "strasse ss");
        assert_eq!(recase("éCOLE ΑΣ", "capitalize"), "École ας");
        assert_eq!(recase("aB ß", "swapcase"), "Ab SS");
        assert_eq!(recase("it's ONE", "title"), "It'S One");
    }
}
