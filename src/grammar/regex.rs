//! Regular expressions: checked with the place of a mistake, and freed of the anchors that every match of a whole text has.

use super::measure;
use crate::error::{Error, Result};
use regex_syntax::{Parser, ParserBuilder};

/// Deepest nesting of an expression.
const NESTING: u32 = 250;

/// Refuses an expression, `what` in messages, that is none, or for which the engine would take too long.
pub fn check(text: &str, what: &str) -> Result<()> {
    parser().parse(text).map_err(|error| refused(&error, what))?;
    measure::repetitions(text, what)
}

/// The expression without `^` in front and `$` at the end, which every match of a whole text has; others look around, which nothing here can.
pub fn whole(text: &str) -> Result<&str> {
    let what = "the regular expression";
    check(text, what)?;
    let text = text.strip_prefix('^').unwrap_or(text);
    let slashes = |text: &str| text.bytes().rev().take_while(|&byte| byte == b'\\').count();
    let text = text.strip_suffix('$').filter(|before| slashes(before) % 2 == 0).unwrap_or(text);
    let parsed = parser().parse(text).map_err(|error| refused(&error, what))?;
    if !parsed.properties().look_set().is_empty() {
        return Err(Error::Grammar(format!("{what} has `^`, `$`, `\\b` or the like inside, which cannot be watched")));
    }
    if parsed.properties().maximum_len() == Some(0) {
        return Err(Error::Grammar(format!("{what} matches nothing but the empty text")));
    }
    Ok(text)
}

fn parser() -> Parser {
    ParserBuilder::new().nest_limit(NESTING).build()
}

fn refused(error: &regex_syntax::Error, what: &str) -> Error {
    let (place, cause) = match error {
        regex_syntax::Error::Parse(error) => (error.span().start, error.kind().to_string()),
        regex_syntax::Error::Translate(error) => (error.span().start, error.kind().to_string()),
        _ => return Error::Grammar(format!("{what} is not valid")),
    };
    Error::Grammar(format!("{what}, line {}, column {}: {cause}", place.line, place.column))
}
