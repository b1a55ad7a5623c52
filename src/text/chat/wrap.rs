//! The filter `wordwrap`: lines of a text broken where words end, by the rules of Python's `textwrap`.

use super::arguments::{Arguments, count};
use super::budget::{Budget, failure};
use super::characters::{is_digit, is_space, is_word};
use super::heap::{Buffer, Text};
use super::methods;
use super::value::Value;
use crate::error::Result;

/// Units of work for a character: it is looked at from several places.
const CHARACTER_UNITS: usize = 40;

/// How lines are broken.
struct Rules {
    width: usize,
    breaks_words: bool,
    breaks_at_hyphens: bool,
}

/// The filter.
pub(super) fn word_wrap(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let Value::Text(text) = value else {
        return failure(format!("'{}' object has no lines to wrap, only text", value.type_name()));
    };
    let truth = |index, name| arguments.get(index, name).is_none_or(Value::is_true);
    let width = arguments.optional_int(0, "width")?.unwrap_or(79);
    let rules = Rules {
        width: count(width),
        breaks_words: truth(1, "break_long_words"),
        breaks_at_hyphens: truth(3, "break_on_hyphens"),
    };
    let between = arguments.optional_text(2, "wrapstring")?.unwrap_or("\n");
    let mut out = Text::new(budget);
    for (index, line) in methods::lines(text, false).enumerate() {
        out.push(if index > 0 { between } else { "" })?;
        budget.work(line.len().saturating_mul(CHARACTER_UNITS))?;
        let characters = Buffer::of(budget, line.chars())?;
        if width < 1 && !line.is_empty() {
            return failure("wordwrap needs a width of at least 1");
        }
        rules.push_wrapped(&mut out, &characters, between)?;
    }
    Ok(out.value())
}

/// What is left of a line, in chunks that end at the places given.
struct Chunks<'l> {
    line: &'l [char],
    ends: &'l [usize],
    from: usize,
}

impl Chunks<'_> {
    /// Goes on to a place that is no further than the end of the first chunk.
    fn skip_to(&mut self, place: usize) {
        self.from = place;
        if self.ends.first() == Some(&place) {
            self.ends = &self.ends[1..];
        }
    }
}

impl Rules {
    /// Appends a line in rows that are no wider than allowed, if they can be broken so.
    fn push_wrapped(&self, out: &mut Text, line: &[char], between: &str) -> Result<()> {
        let mut ends = Buffer::new(out.budget());
        while let Some(from) = Some(ends.last().map_or(0, |&end| end)).filter(|&from| from < line.len()) {
            ends.push(self.chunk_end(line, from))?;
        }
        let mut rest = Chunks { line, ends: &ends, from: 0 };
        let mut is_first = true;
        while let [end, ..] = *rest.ends {
            if !is_first && is_blank(&line[rest.from..end]) {
                rest.skip_to(end);
            }
            let from = rest.from;
            let last = self.take_row(&mut rest);
            let kept = if is_blank(&line[last..rest.from]) { last } else { rest.from };
            if kept > from {
                out.push(if is_first { "" } else { between })?;
                line[from..kept].iter().try_for_each(|&c| out.push_char(c))?;
                is_first = false;
            }
        }
        Ok(())
    }

    /// Takes what fits into a row, and gives back where its last chunk begins.
    fn take_row(&self, rest: &mut Chunks) -> usize {
        let (from, mut last) = (rest.from, rest.from);
        while let [end, ..] = *rest.ends
            && end - from <= self.width
        {
            last = rest.from;
            rest.skip_to(end);
        }
        let [end, ..] = *rest.ends else { return last };
        let start = rest.from;
        if end - start <= self.width || !(self.breaks_words || start == from) {
            return last;
        }
        // A chunk that is wider than any row.
        let fits = start + self.width - (start - from);
        let hyphen = rest.line[start..fits].iter().rposition(|&c| c == '-').filter(|_| self.breaks_at_hyphens);
        let hyphen = hyphen.filter(|&at| rest.line[start..start + at].iter().any(|&c| c != '-'));
        rest.skip_to(match hyphen {
            _ if !self.breaks_words => end,
            Some(at) => start + at + 1,
            None => fits,
        });
        start
    }

    /// Where the chunk at `from` ends, of which rows are made: white space, a word or its part up to a hyphen, a dash.
    fn chunk_end(&self, line: &[char], from: usize) -> usize {
        let run = |holds: &dyn Fn(char) -> bool| from + line[from..].iter().take_while(|&&c| holds(c)).count();
        if breaks(line[from]) {
            return run(&breaks);
        }
        if !self.breaks_at_hyphens {
            return run(&|c| !breaks(c));
        }
        if from > 0 && is_word_or_mark(line[from - 1]) && is_dash(line, from) {
            return run(&|c| c == '-');
        }
        let ends = |&at: &usize| {
            at == line.len()
                || breaks(line[at])
                || (is_word_or_mark(line[at - 1]) && is_dash(line, at))
                || (line[at - 1] == '-' && at > from + 1 && is_hyphen(line, at - 1))
        };
        (from + 1..=line.len()).find(ends).unwrap_or(line.len())
    }
}

/// The white space between words, which is that of ASCII.
fn breaks(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

fn is_blank(chunk: &[char]) -> bool {
    !chunk.is_empty() && chunk.iter().all(|&c| is_space(c))
}

fn is_word_or_mark(c: char) -> bool {
    is_word(c) || matches!(c, '!' | '"' | '\'' | '&' | '.' | ',' | '?')
}

fn is_letter(c: char) -> bool {
    is_word(c) && !is_digit(c)
}

/// Whether a dash of several hyphens stands at `at`, with a word behind it.
fn is_dash(line: &[char], at: usize) -> bool {
    let hyphens = line[at..].iter().take_while(|&&c| c == '-').count();
    hyphens > 1 && line.get(at + hyphens).is_some_and(|&c| is_word(c))
}

/// Whether the hyphen at `at` divides a word: two letters before it, perhaps with a hyphen between them, and two behind it.
fn is_hyphen(line: &[char], at: usize) -> bool {
    let letter = |at: Option<usize>| at.and_then(|at| line.get(at)).is_some_and(|&c| is_letter(c));
    let before = |back: usize| letter(at.checked_sub(back));
    let hyphen_before = at >= 2 && line[at - 2] == '-';
    let follows =
        letter(Some(at + 1)) && (letter(Some(at + 2)) || (line.get(at + 2) == Some(&'-') && letter(Some(at + 3))));
    before(1) && (before(2) || (hyphen_before && before(3))) && follows
}
