//! The value of one argument, which stands between markers: text as it is, everything else as JSON.

use super::envelope::whole;
use super::events::Events;
use super::literal::{BareKeys, Literal, escape, escape_all};
use super::schema::Types;
use super::{MAX_BUFFER, write};
use crate::error::Result;

/// A value that is being read.
pub(super) struct Value {
    types: Types,
    /// Whether a line feed at each end belongs to the markers.
    lines: bool,
    /// What has come; of text that is given out at once, a line feed that may be the last one.
    raw: String,
    /// Whether text is given out at once.
    streams: bool,
    is_empty: bool,
    /// The quotation mark of a string that is open in a list or an object, and whether a backslash was last.
    quoted: Option<(char, bool)>,
}

impl Value {
    /// Begins the value of `key`. `attribute` is what the model says of it, `types` what the tool does.
    pub(super) fn begin(key: &str, attribute: &str, types: Types, lines: bool, events: &mut Events) -> Result<Value> {
        let types = match attribute {
            "true" | "string" => Types::TEXT,
            "" => types,
            _ => Types::NO_TEXT,
        };
        events.key(key)?;
        let mut value =
            Value { types, lines, raw: String::new(), streams: types.is_text(), is_empty: true, quoted: None };
        if value.streams {
            value.open(events)?;
        }
        Ok(value)
    }

    /// Begins to give out text.
    fn open(&mut self, events: &mut Events) -> Result<()> {
        (self.streams, self.quoted) = (true, None);
        events.arguments(|out| write(out, "\""))
    }

    /// Whether the place is inside a string of a value that is no text, where characters that look like a marker are none.
    pub(super) fn is_quoted(&self) -> bool {
        self.quoted.is_some()
    }

    fn watch_quotes(&mut self, c: char) {
        self.quoted = match self.quoted {
            // No notation has line feeds in strings.
            _ if c == '\n' => None,
            Some((quote, false)) if c == quote => None,
            Some((quote, was_backslash)) => Some((quote, c == '\\' && !was_backslash)),
            None if matches!(c, '"' | '\'') && self.raw.trim_start().starts_with(['{', '[', '(']) => Some((c, false)),
            None => None,
        };
    }

    pub(super) fn push(&mut self, c: char, events: &mut Events) -> Result<()> {
        let is_first = std::mem::replace(&mut self.is_empty, false);
        if is_first && self.lines && c == '\n' {
            return Ok(());
        }
        if !self.streams {
            if !self.types.has_text() {
                self.watch_quotes(c);
            }
            write(&mut self.raw, c.encode_utf8(&mut [0; 4]))?;
            // More than any number or short object: text.
            return if self.raw.len() > MAX_BUFFER { self.give_out(events) } else { Ok(()) };
        }
        events.arguments(|out| {
            escape_all(&self.raw, out)?;
            self.raw.clear();
            if self.lines && c == '\n' { write(&mut self.raw, "\n") } else { escape(c, out) }
        })
    }

    /// Gives out what has come as text.
    fn give_out(&mut self, events: &mut Events) -> Result<()> {
        self.open(events)?;
        let raw = std::mem::take(&mut self.raw);
        raw.chars().try_for_each(|c| self.push(c, events))
    }

    /// Ends the value.
    pub(super) fn end(mut self, events: &mut Events) -> Result<()> {
        if !self.streams {
            let text = if self.lines { self.raw.strip_suffix('\n').unwrap_or(&self.raw) } else { &self.raw };
            if let Some(json) = as_json(text, self.types)? {
                return events.arguments(|out| write(out, &json));
            }
            self.give_out(events)?;
        }
        events.arguments(|out| write(out, "\""))
    }
}

/// The JSON that a text is where the types allow that; in quotation marks only where no text would stand without them.
pub(super) fn as_json(text: &str, types: Types) -> Result<Option<String>> {
    let mut json = String::new();
    let is_json = whole(&mut Literal::new(BareKeys::Never), text.trim(), &mut json)?;
    let fits = !json.starts_with('"') || !types.has_text() || types == Types::NO_TEXT;
    let allowed = types.allow(&json) || types == Types::NO_TEXT;
    Ok(Some(json).filter(|_| is_json && fits && allowed))
}
