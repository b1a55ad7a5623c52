//! Cuts text into the words that byte-pair encoding works on.
//!
//! A pre-tokenizer is a list of rules, each applied to every piece that the one before it left; matches and what lies
//! between them both become pieces. Patterns are regular expressions without look-around, so that every text takes
//! linear time; the look-ahead for white space that all of them share is [`Spaces`].

use super::patterns::{Rule, Spaces};
use crate::error::{Error, Result, push, reserve};
use regex::{Regex, RegexBuilder};
use std::ops::Range;

/// Most memory that a pattern's automaton grows to. With the default of 2 MiB a text of many scripts rebuilds it over and
/// over: ten times slower for 1 MB of random characters.
const DFA_BYTES: usize = 16 << 20;

/// The compiled rules of one pre-tokenizer.
pub(super) struct Pretokenizer {
    rules: Vec<Compiled>,
}

enum Compiled {
    Pattern(Regex, Spaces),
    DigitGroups(Regex),
}

impl Pretokenizer {
    /// Compiles `rules`.
    pub(super) fn new(rules: &[Rule]) -> Result<Pretokenizer> {
        let regex = |pattern| {
            let built = RegexBuilder::new(pattern).dfa_size_limit(DFA_BYTES).build();
            built.map_err(|error| Error::Unsupported(format!("pre-tokenizer pattern `{pattern}`: {error}")))
        };
        let compile = |rule: &Rule| match *rule {
            Rule::Pattern(pattern, spaces) => Ok(Compiled::Pattern(regex(pattern)?, spaces)),
            Rule::DigitGroups(pattern) => Ok(Compiled::DigitGroups(regex(pattern)?)),
        };
        Ok(Pretokenizer { rules: rules.iter().map(compile).collect::<Result<_>>()? })
    }

    /// The words of `text`, in order and without gaps.
    pub(super) fn split(&self, text: &str) -> Result<Vec<Range<usize>>> {
        let whole = 0..text.len();
        let mut pieces = vec![whole];
        for rule in &self.rules {
            let mut finer = reserve(pieces.len(), "text")?;
            for piece in pieces {
                let mut cuts = Cuts { base: piece.start, at: 0, pieces: &mut finer };
                rule.apply(&text[piece.clone()], &mut cuts)?;
                cuts.until(piece.len())?;
            }
            pieces = finer;
        }
        Ok(pieces)
    }
}

/// Collects the pieces of one piece.
struct Cuts<'a> {
    base: usize,
    at: usize,
    pieces: &'a mut Vec<Range<usize>>,
}

impl Cuts<'_> {
    /// Ends a piece at `end`, unless it would be empty.
    fn until(&mut self, end: usize) -> Result<()> {
        if end > self.at {
            push(self.pieces, self.base + self.at..self.base + end, "text")?;
            self.at = end;
        }
        Ok(())
    }
}

impl Compiled {
    fn apply(&self, text: &str, cuts: &mut Cuts) -> Result<()> {
        match self {
            Compiled::Pattern(regex, spaces) => cut_matches(regex, *spaces, text, cuts),
            Compiled::DigitGroups(regex) => cut_digits(regex, text, cuts),
        }
    }
}

fn cut_matches(regex: &Regex, spaces: Spaces, text: &str, cuts: &mut Cuts) -> Result<()> {
    let mut from = 0;
    while let Some(found) = regex.find_at(text, from) {
        cuts.until(found.start())?;
        let run = spaces.divides(found.as_str());
        let followed = text[found.end()..].starts_with(|c: char| !c.is_whitespace());
        from = match found.as_str().char_indices().next_back() {
            Some((last, _)) if run && followed && last > 0 => found.start() + last,
            _ => found.end(),
        };
        if run && spaces == Spaces::Doubling {
            cut_doubling(&text[..from], found.start(), cuts)?;
        }
        cuts.until(from)?;
    }
    Ok(())
}

impl Spaces {
    /// Whether `found` is a run of white space that may have to leave its last character to what follows.
    fn divides(self, found: &str) -> bool {
        let ends_line = found.ends_with(['\r', '\n']);
        match self {
            Spaces::Whole => false,
            Spaces::Ahead => found.chars().all(char::is_whitespace),
            Spaces::AheadInLine | Spaces::Doubling => !ends_line && found.chars().all(char::is_whitespace),
        }
    }
}

/// Longest piece of white space under [`Spaces::Doubling`].
const LONGEST_RUN: usize = 512;

fn cut_doubling(text: &str, start: usize, cuts: &mut Cuts) -> Result<()> {
    let mut left = text[start..].chars().count();
    let mut ends = text[start..].char_indices().map(|(at, c)| start + at + c.len_utf8());
    while left > 0 {
        let step = LONGEST_RUN.min(1 << left.ilog2());
        if let Some(end) = ends.nth(step - 1) {
            cuts.until(end)?;
        }
        left -= step;
    }
    Ok(())
}

fn cut_digits(regex: &Regex, text: &str, cuts: &mut Cuts) -> Result<()> {
    for run in regex.find_iter(text) {
        cuts.until(run.start())?;
        let digits = run.as_str().chars().count();
        for (index, (at, _)) in run.as_str().char_indices().enumerate() {
            if (digits - index).is_multiple_of(3) {
                cuts.until(run.start() + at)?;
            }
        }
        cuts.until(run.end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokenizer::patterns::Family;
    use serde_json::Value;

    #[test]
    fn texts_are_cut_as_the_published_pre_tokenizers_cut_them() {
        let golden: Value = serde_json::from_str(include_str!("../../../tests/golden/text/splits.json")).unwrap();
        let texts = golden["texts"].as_array().unwrap();
        let splits = golden["splits"].as_object().unwrap();
        assert!(splits.len() >= 12 && texts.len() >= 30);
        let mut wrong = Vec::new();
        for (name, wanted) in splits {
            let words = Pretokenizer::new(Family::named(name).unwrap().rules).unwrap();
            for (text, wanted) in texts.iter().zip(wanted.as_array().unwrap()) {
                let text = text.as_str().unwrap();
                let pieces: Vec<&str> = words.split(text).unwrap().into_iter().map(|piece| &text[piece]).collect();
                assert_eq!(pieces.concat(), text);
                let lengths: Vec<usize> = pieces.iter().map(|piece| piece.chars().count()).collect();
                if serde_json::to_value(&lengths).unwrap() != *wanted {
                    wrong.push(format!("{name}: {pieces:?}, wanted lengths {wanted}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
