//! Cuts text into the words that byte-pair encoding works on.
//!
//! A pre-tokenizer is a list of rules, each applied to every piece that the one before it left; matches and what lies
//! between them both become pieces. Patterns are regular expressions without look-around, so that every text takes
//! linear time; the look-ahead for white space that all of them share is [`Spaces`].

use super::patterns::{Groups, Rule, Spaces};
use crate::error::{Error, Result, backed, checked, push, reserve};
use regex_automata::Input;
use regex_automata::meta::{Builder, Cache, Config, Regex};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use unicode_normalization::char::is_combining_mark;

/// Most memory that a pattern's automaton grows to. With the default of 2 MiB a text of many scripts rebuilds it over and
/// over: ten times slower for 1 MB of random characters.
const DFA_BYTES: usize = 16 << 20;

/// The automata of a search grow with the text and have no way to fail: what they may take is set aside meanwhile. What one takes from the
/// start, and then all of them: 64 KiB for the first character, 0.3 KiB a byte from 25 KB of text on, 17 MiB in the end, for the
/// patterns that take most and text of all scripts, and we set aside half as much again and more.
const FIRST_AUTOMATON_BYTES: usize = 512 << 10;
const AUTOMATON_BYTES_A_BYTE: usize = 2 << 10;
const MOST_AUTOMATON_BYTES: usize = 26 << 20;
/// Compiling a pattern takes at most 1.8 MiB.
const COMPILING_BYTES: usize = 4 << 20;

/// The compiled rules of one pre-tokenizer.
pub(super) struct Pretokenizer {
    rules: Vec<Compiled>,
    /// What searches have found out of each rule's automaton, as many sets as calls have run at once.
    caches: Mutex<Vec<Vec<Cache>>>,
}

enum Compiled {
    Pattern(Regex, Spaces),
    DigitGroups(Regex, Groups),
}

impl Pretokenizer {
    /// Compiles `rules`.
    pub(super) fn new(rules: &[Rule]) -> Result<Pretokenizer> {
        let _backing = backed(COMPILING_BYTES, "a pre-tokenizer")?;
        let regex = |pattern: &str| {
            let built = Builder::new().configure(Config::new().hybrid_cache_capacity(DFA_BYTES)).build(pattern);
            checked("a pre-tokenizer")?;
            built.map_err(|error| Error::Unsupported(format!("pre-tokenizer pattern `{pattern}`: {error}")))
        };
        let compile = |rule: &Rule| match *rule {
            Rule::Pattern(pattern, spaces) => Ok(Compiled::Pattern(regex(pattern)?, spaces)),
            Rule::DigitGroups(pattern, groups) => Ok(Compiled::DigitGroups(regex(pattern)?, groups)),
        };
        let rules = rules.iter().map(compile).collect::<Result<_>>()?;
        Ok(Pretokenizer { rules, caches: Mutex::new(Vec::new()) })
    }

    /// The words of `text`, in order and without gaps.
    pub(super) fn split(&self, text: &str) -> Result<Vec<Range<usize>>> {
        let growth = text.len().saturating_mul(AUTOMATON_BYTES_A_BYTE).min(MOST_AUTOMATON_BYTES);
        let _backing = backed(self.rules.len() * FIRST_AUTOMATON_BYTES + growth, "text")?;
        let kept = self.caches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut caches =
            kept.unwrap_or_else(|| self.rules.iter().map(|rule| rule.regex().create_cache()).collect::<Vec<Cache>>());
        let pieces = self.cut(text, &mut caches);
        // What lies in memory that was set aside must not outlive it.
        if checked("text").is_ok() {
            // Without room for them the next call begins anew.
            _ = push(&mut self.caches.lock().unwrap_or_else(PoisonError::into_inner), caches, "text");
        }
        pieces
    }

    fn cut(&self, text: &str, caches: &mut [Cache]) -> Result<Vec<Range<usize>>> {
        let whole = 0..text.len();
        let mut pieces = reserve(1, "text")?;
        pieces.push(whole);
        for (rule, cache) in self.rules.iter().zip(caches) {
            let mut finer = reserve(pieces.len(), "text")?;
            for piece in pieces {
                let mut cuts = Cuts { base: piece.start, at: 0, pieces: &mut finer };
                rule.apply(&text[piece.clone()], cache, &mut cuts)?;
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
    fn regex(&self) -> &Regex {
        let (Compiled::Pattern(regex, _) | Compiled::DigitGroups(regex, _)) = self;
        regex
    }

    fn apply(&self, text: &str, cache: &mut Cache, cuts: &mut Cuts) -> Result<()> {
        let mut find = |from: usize| {
            let found = self.regex().search_with(cache, &Input::new(text).range(from..));
            checked("text").map(|()| found.map(|found| found.range()))
        };
        match self {
            Compiled::Pattern(_, spaces) => cut_matches(&mut find, *spaces, text, cuts),
            Compiled::DigitGroups(_, groups) => cut_digits(&mut find, *groups, text, cuts),
        }
    }
}

/// The first match from a place on.
type Find<'a> = &'a mut dyn FnMut(usize) -> Result<Option<Range<usize>>>;

fn cut_matches(find: Find, spaces: Spaces, text: &str, cuts: &mut Cuts) -> Result<()> {
    let mut from = 0;
    while let Some(found) = find(from)? {
        cuts.until(found.start)?;
        if found.is_empty() {
            // A file's pattern may match nothing, which cuts there; the search goes on behind the next character.
            let Some(next) = text[found.end..].chars().next() else { break };
            from = found.end + next.len_utf8();
            continue;
        }
        let word = &text[found.clone()];
        let run = spaces.divides(word);
        let followed = text[found.end..].starts_with(|c: char| !c.is_whitespace());
        from = match word.char_indices().next_back() {
            Some((last, _)) if run && followed && last > 0 => found.start + last,
            _ => found.end,
        };
        if run && spaces == Spaces::Doubling {
            cut_doubling(&text[..from], found.start, cuts)?;
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

fn cut_digits(find: Find, groups: Groups, text: &str, cuts: &mut Cuts) -> Result<()> {
    let mut from = 0;
    while let Some(run) = find(from)? {
        from = run.end;
        if groups == Groups::AllAtWordEnd && text[run.end..].starts_with(goes_on_word) {
            continue;
        }
        let beside = groups != Groups::BeforeThrees;
        let digits = text[run.clone()].chars().count();
        for (index, (at, _)) in text[run.clone()].char_indices().enumerate() {
            if (digits - index).is_multiple_of(3) || (beside && index == 0) {
                cuts.until(run.start + at)?;
            }
        }
        if beside {
            cuts.until(run.end)?;
        }
    }
    Ok(())
}

/// Whether `c`, which is no digit, goes on a word for Oniguruma, which runs the models' own patterns.
fn goes_on_word(c: char) -> bool {
    let joins = matches!(c, '_' | '‿' | '⁀' | '⁔' | '\u{fe33}' | '\u{fe34}' | '\u{fe4d}'..='\u{fe4f}' | '＿');
    let counts = matches!(c, '²' | '³' | '¹' | '¼'..='¾');
    c.is_alphabetic() || is_combining_mark(c) || joins || counts
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
