//! Changes of case, as Python's `str` makes them, in memory that can be refused.

use super::budget::{Budget, Text};
use super::methods::is_space;
use crate::error::Result;

/// Characters before and after a sigma that decide which of its two small forms it gets.
const SIGMA_CONTEXT: usize = 16;

/// `text.name()` for the methods that change the case.
pub(super) fn recase(budget: &Budget, text: &str, name: &str) -> Result<String> {
    let mut out = Text::new(budget);
    match name {
        "upper" => push_all(&mut out, text.chars().flat_map(char::to_uppercase)),
        "title" => push_title(&mut out, text, |before| !before.is_alphabetic()),
        "capitalize" => {
            let rest = text.chars().next().map_or(0, char::len_utf8);
            push_all(&mut out, text[..rest].chars().flat_map(char::to_uppercase))?;
            push_lower(&mut out, &text[rest..])
        }
        "swapcase" => text.chars().try_for_each(|c| push_turned(&mut out, c, !c.is_uppercase())),
        "casefold" => text.split(['ß', 'ẞ']).enumerate().try_for_each(|(index, part)| {
            out.push(if index > 0 { "ss" } else { "" })?;
            push_lower(&mut out, part)
        }),
        _ => push_lower(&mut out, text),
    }?;
    Ok(out.finish())
}

/// The `title` filter, which begins words behind spaces and opening brackets.
pub(super) fn title(budget: &Budget, text: &str) -> Result<String> {
    let mut out = Text::new(budget);
    push_title(&mut out, text, |before| is_space(before) || matches!(before, '-' | '(' | '{' | '[' | '<'))?;
    Ok(out.finish())
}

fn push_title(out: &mut Text, text: &str, begins_behind: impl Fn(char) -> bool) -> Result<()> {
    let mut begins = true;
    text.chars().try_for_each(|c| {
        push_turned(out, c, begins)?;
        begins = begins_behind(c);
        Ok(())
    })
}

fn push_turned(out: &mut Text, c: char, large: bool) -> Result<()> {
    if large { push_all(out, c.to_uppercase()) } else { push_all(out, c.to_lowercase()) }
}

fn push_lower(out: &mut Text, text: &str) -> Result<()> {
    text.char_indices().try_for_each(|(at, c)| match c {
        'Σ' => out.push(small_sigma(text, at)),
        c => push_all(out, c.to_lowercase()),
    })
}

/// The small form of the sigma at `at`: another one at the end of a word.
fn small_sigma(text: &str, at: usize) -> &'static str {
    let from = text[..at].char_indices().rev().take(SIGMA_CONTEXT).last().map_or(at, |(from, _)| from);
    let end = text[at..].char_indices().nth(SIGMA_CONTEXT).map_or(text.len(), |(len, _)| at + len);
    let before = text[from..at].to_lowercase().len();
    if text[from..end].to_lowercase()[before..].starts_with('ς') { "ς" } else { "σ" }
}

fn push_all(out: &mut Text, mut characters: impl Iterator<Item = char>) -> Result<()> {
    characters.try_for_each(|c| out.push(c.encode_utf8(&mut [0; 4])))
}

#[cfg(test)]
mod tests {
    use super::{Budget, recase};

    #[test]
    fn case_changes_are_those_of_the_standard_library() {
        let budget = Budget::new();
        for text in ["", "aBc ÄÖÜ ß ẞ", "ΟΔΟΣ ΣΑΣ Σ ΑΣ.Σ ΑΣ' ΑΣ'Α", "İIıi ﬁ ǆ Ǆ", "ΣΣΣ 10 ΑΣ\u{301}", &"ΑΣ ".repeat(50)]
        {
            assert_eq!(recase(&budget, text, "lower").unwrap(), text.to_lowercase());
            assert_eq!(recase(&budget, text, "upper").unwrap(), text.to_uppercase());
        }
        assert_eq!(recase(&budget, "STRAßE ẞ", "casefold").unwrap(), "strasse ss");
        assert_eq!(recase(&budget, "éCOLE ΑΣ", "capitalize").unwrap(), "École ας");
        assert_eq!(recase(&budget, "aB ß", "swapcase").unwrap(), "Ab SS");
        assert_eq!(recase(&budget, "it's ONE", "title").unwrap(), "It'S One");
    }
}
