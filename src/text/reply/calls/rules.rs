//! Rules of a grammar under construction, in Lark as llguidance has it, and markers of a format as parts of them.

use crate::error::Result;
use crate::text::reply::formats::{Format, Mark, Part};
use crate::text::reply::{Unit, units};
use crate::text::tokenizer::{Role, Tokenizer};
use std::collections::HashMap;
use std::fmt::Write;

/// Rules and terminals, each known by its body, so that what is said twice is one.
#[derive(Default)]
pub(super) struct Rules {
    out: String,
    named: HashMap<String, String>,
    count: usize,
}

impl Rules {
    /// The name of a rule with this body.
    pub(super) fn rule(&mut self, body: &str) -> String {
        self.add("r", body)
    }

    /// The name of a terminal with this body.
    pub(super) fn terminal(&mut self, body: &str) -> String {
        self.add("T", body)
    }

    fn add(&mut self, prefix: &str, body: &str) -> String {
        let key = format!("{prefix}{body}");
        if let Some(name) = self.named.get(&key) {
            return name.clone();
        }
        let name = self.name(prefix);
        self.define(&name, body);
        self.named.insert(key, name.clone());
        name
    }

    /// A name that nothing has; define it later.
    pub(super) fn name(&mut self, prefix: &str) -> String {
        self.count += 1;
        format!("{prefix}{}", self.count)
    }

    /// Says what a rule or terminal is.
    pub(super) fn define(&mut self, name: &str, body: &str) {
        // Writing to a text does not fail.
        let _ = writeln!(self.out, "{name}: {}", if body.is_empty() { "\"\"" } else { body });
    }

    /// Any text up to the first `end` and with it.
    pub(super) fn up_to(&mut self, end: &str) -> String {
        let key = format!("suffix {end}");
        if let Some(name) = self.named.get(&key) {
            return name.clone();
        }
        let name = self.name("u");
        let _ = writeln!(self.out, "{name}[suffix={}]: /(?s:.*)/", literal(end));
        self.named.insert(key, name.clone());
        name
    }

    /// Text that is not empty and holds none of `without`.
    pub(super) fn text_without(&mut self, without: &[&str]) -> String {
        let any = "/(?s:.+)/";
        if without.is_empty() {
            return self.terminal(any);
        }
        let body = format!("{any} & {}", holds_none(without));
        self.terminal(&body)
    }

    /// Bytes of the rules so far.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    /// The grammar that begins with `start`.
    pub(super) fn finish(mut self, start: &str) -> String {
        self.define("start", start);
        self.out
    }
}

/// An expression of terminals for texts without any of `without`, which is not empty.
pub(super) fn holds_none(without: &[&str]) -> String {
    let list: Vec<String> = without.iter().map(|text| literal(text)).collect();
    format!("~(/(?s:.*)/ ({}) /(?s:.*)/)", list.join(" | "))
}

/// A text in quotation marks.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// One of several expressions.
pub(super) fn any_of(choices: &[String]) -> String {
    match choices {
        [one] => one.clone(),
        several => format!("({})", several.join(" | ")),
    }
}

/// One after the other, without what is empty.
pub(super) fn joined(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty() && *part != "\"\"").collect();
    parts.join(" ")
}

/// The expression, or nothing.
pub(super) fn maybe(expression: &str) -> String {
    if expression.is_empty() { String::new() } else { format!("({expression})?") }
}

/// A stretch of a marker: characters, or a special token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Token(i32),
}

/// The markers of a format in a vocabulary.
pub(super) struct Marks<'a> {
    tokenizer: &'a Tokenizer,
    format: &'static Format,
    template: &'a str,
}

impl<'a> Marks<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, format: &'static Format, template: &'a str) -> Marks<'a> {
        Marks { tokenizer, format, template }
    }

    /// The stretches of `text`: its special tokens are those that no text of a grammar holds.
    pub(super) fn pieces(&self, text: &str) -> Result<Vec<Piece>> {
        let mut pieces: Vec<Piece> = Vec::new();
        for unit in units(self.tokenizer, text)? {
            let text = match unit {
                Unit::Character(c) => c.to_string(),
                Unit::Special(token) => match self.tokenizer.role(token)? {
                    Role::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    Role::Special(_) | Role::Unused => {
                        pieces.push(Piece::Token(token));
                        continue;
                    }
                },
            };
            match pieces.last_mut() {
                Some(Piece::Text(before)) => before.push_str(&text),
                _ => pieces.push(Piece::Text(text)),
            }
        }
        Ok(pieces)
    }

    /// `text` as an expression.
    pub(super) fn expression(&self, text: &str) -> Result<String> {
        Ok(written(&self.pieces(text)?))
    }

    /// The texts of a role, those that the template has first.
    pub(super) fn texts(&self, role: Mark) -> Vec<&'static str> {
        let all = self.format.marks.iter().filter(|(mark, _)| *mark == role).map(|(_, text)| *text);
        let (mut found, rest): (Vec<&str>, Vec<&str>) = all.partition(|text| self.template.contains(text));
        found.extend(rest);
        found
    }

    /// The text of a role, if there is one.
    pub(super) fn text(&self, role: Mark) -> Option<&'static str> {
        self.texts(role).first().copied()
    }

    /// What a part of a call is that stands for itself.
    pub(super) fn part(&self, part: &Part) -> &'static str {
        match part {
            Part::Mark(role) | Part::MayMark(role) => self.text(*role).unwrap_or_default(),
            Part::Other(role) => self.texts(*role).get(1).copied().unwrap_or_default(),
            Part::Text(text) => text,
            _ => "",
        }
    }

    /// The special token that a text begins with, if it does.
    pub(super) fn first_token(&self, text: &str) -> Result<Option<i32>> {
        Ok(match self.pieces(text)?.first() {
            Some(Piece::Token(token)) => Some(*token),
            _ => None,
        })
    }
}

/// Pieces as an expression.
pub(super) fn written(pieces: &[Piece]) -> String {
    let parts: Vec<String> = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => literal(text),
            Piece::Token(token) => format!("<[{token}]>"),
        })
        .collect();
    parts.join(" ")
}
