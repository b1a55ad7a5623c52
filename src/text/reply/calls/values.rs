//! Values that meet a schema as rules: JSON through the engine's own compiler, Python's and Gemma's notation here.

use super::rules::{Piece, Rules, any_of, holds_none, joined, literal, maybe, written};
use super::schema::{ANYTHING, Members, Root, listed, types};
use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::collections::HashMap;

/// How values are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Json,
    Python,
    Gemma,
}

/// Deepest nesting of a schema.
const NESTING: usize = 64;

/// Keywords that are watched in every style.
const KNOWN: [&str; 22] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "$ref",
    "strict",
];

/// Values in a style.
pub(super) struct Values<'a> {
    pub(super) root: Root<'a>,
    pub(super) style: Style,
    /// What strings stand between in Gemma's notation.
    pub(super) quote: Vec<Piece>,
    /// Rules of what is referred to.
    pub(super) known: HashMap<String, String>,
    /// Schemas that the engine compiles.
    pub(super) schemas: &'a mut Vec<(String, Value)>,
    pub(super) depth: usize,
}

impl<'a> Values<'a> {
    /// A value of `schema` as JSON without white space but for a space behind separators.
    pub(super) fn json(&mut self, rules: &mut Rules, schema: &Value) -> Result<String> {
        let mut schema = match schema {
            Value::Bool(true) => json!({}),
            Value::Bool(false) => return Err(self.root.refuse("a value is never possible")),
            schema if schema.to_string().contains("\"$ref\"") => self.root.complete(schema.clone()),
            schema => schema.clone(),
        };
        let map = schema.as_object_mut().ok_or_else(|| self.root.refuse("a schema is no object"))?;
        map.remove("x-guidance");
        let kept = Value::Object(map.clone());
        map.insert(
            "x-guidance".into(),
            json!({"whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?"}),
        );
        let name = rules.rule(&format!("%json {schema}"));
        if !self.schemas.iter().any(|(_, known)| *known == kept) {
            self.schemas.push((self.root.tool.into(), kept));
        }
        Ok(name)
    }

    /// A value of `schema`.
    pub(super) fn value(&mut self, rules: &mut Rules, schema: &'a Value) -> Result<String> {
        if self.style == Style::Json {
            return self.json(rules, schema);
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            if let Some(name) = self.known.get(target) {
                return Ok(name.clone());
            }
            let name = rules.name("r");
            self.known.insert(target.into(), name.clone());
            let body = self.value(rules, self.root.resolved(schema)?)?;
            rules.define(&name, &body);
            return Ok(name);
        }
        self.depth += 1;
        if self.depth > NESTING {
            return Err(self.root.refuse(&format!("more than {NESTING} schemas within each other")));
        }
        let value = self.plain(rules, schema);
        self.depth -= 1;
        value
    }

    fn plain(&mut self, rules: &mut Rules, schema: &'a Value) -> Result<String> {
        match schema {
            Value::Bool(true) => return self.anything(rules),
            Value::Bool(false) => return Err(self.root.refuse("a value is never possible")),
            _ => {}
        }
        let map = self.root.members(schema, &KNOWN)?;
        if let Some(list) = listed(map) {
            let list: Result<Vec<String>> = list.into_iter().map(|value| self.literal(value)).collect();
            return self.one_of(list?);
        }
        if let Some((key, list)) = self.root.alternatives(map)? {
            if let Some(other) = map.keys().find(|other| KNOWN.contains(&&***other) && *other != key) {
                return Err(self.root.unknown(&format!("{other}` beside `{key}")));
            }
            let list: Result<Vec<String>> = list.iter().map(|schema| self.value(rules, schema)).collect();
            return self.one_of(list?);
        }
        let has_type = map.contains_key("type") || map.contains_key("properties") || map.contains_key("items");
        if !has_type && !map.keys().any(|key| KNOWN.contains(&&**key)) {
            return self.anything(rules);
        }
        let kinds = match (map.contains_key("type"), map.contains_key("properties"), map.contains_key("items")) {
            (false, true, _) => vec!["object"],
            (false, _, true) => vec!["array"],
            _ => types(map),
        };
        let mut choices = Vec::new();
        for kind in kinds {
            let choice = match kind {
                "string" => self.string(rules, &self.root.text(map)?)?,
                "number" | "integer" => self.number(rules, kind, schema)?,
                "array" => self.list(rules, map)?,
                "object" => {
                    let members = Members::of(map);
                    let (open, close) = ("\"{\"", "\"}\"");
                    let inside = self.members(rules, &members, ": ?")?;
                    joined(&[open, &inside, close])
                }
                kind => self.word(kind)?,
            };
            choices.push(choice);
        }
        self.one_of(choices)
    }

    fn one_of(&self, choices: Vec<String>) -> Result<String> {
        if choices.is_empty() {
            return Err(self.root.refuse("a value is never possible"));
        }
        Ok(any_of(&choices))
    }

    fn word(&self, kind: &str) -> Result<String> {
        Ok(match (kind, self.style) {
            ("boolean", Style::Gemma) => "(\"true\" | \"false\")".into(),
            ("boolean", _) => "(\"True\" | \"False\" | \"true\" | \"false\")".into(),
            ("null", _) => "(\"None\" | \"null\")".into(),
            (kind, _) => return Err(self.root.refuse(&format!("there is no type `{kind}`"))),
        })
    }

    fn number(&mut self, rules: &mut Rules, kind: &str, schema: &Value) -> Result<String> {
        let mut own = json!({"type": kind});
        for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"] {
            if let Some(bound) = schema.get(key) {
                own[key] = bound.clone();
            }
        }
        self.json(rules, &own)
    }

    /// A text that matches all of `rules`.
    fn string(&mut self, rules: &mut Rules, all: &[String]) -> Result<String> {
        if self.style == Style::Gemma {
            return Ok(self.quoted(rules, all));
        }
        let mut choices = Vec::new();
        for (quote, other) in [('"', '\''), ('\'', '"')] {
            // What must match an expression is written without escapes, as the expression is of the text itself.
            let plain = format!("[^{quote}\\\\\\x00-\\x1f\\x7f]");
            let body = if all.iter().any(|rule| !rule.starts_with("/(?s:.{")) {
                format!("({})", joined_all(all.iter().cloned().chain([format!("/{plain}*/")])))
            } else {
                let one = format!("({plain}|\\\\[nrt\\\\{quote}{other}])");
                let counts = all.first().map_or("*", |rule| &rule[6..rule.len() - 2]);
                format!("/{one}{counts}/")
            };
            let quote = literal(&quote.to_string());
            choices.push(rules.terminal(&format!("{quote} {body} {quote}")));
        }
        self.one_of(choices)
    }

    /// The same between the markers of Gemma's notation.
    fn quoted(&self, rules: &mut Rules, all: &[String]) -> String {
        let ends: Vec<&str> = match self.quote.first() {
            Some(Piece::Text(text)) => vec![text],
            _ => Vec::new(),
        };
        let quote = written(&self.quote);
        let text = raw(rules, all, &ends, &self.quote);
        joined(&[&quote, &text])
    }

    /// A given value.
    fn literal(&self, value: &Value) -> Result<String> {
        Ok(match value {
            Value::String(text) if self.style == Style::Gemma => {
                let quote = written(&self.quote);
                joined(&[&quote, &literal(text), &quote])
            }
            Value::String(text) => python_texts(text),
            Value::Bool(value) if self.style == Style::Gemma => literal(if *value { "true" } else { "false" }),
            Value::Bool(value) => {
                if *value {
                    "(\"True\" | \"true\")".into()
                } else {
                    "(\"False\" | \"false\")".into()
                }
            }
            Value::Null => self.word("null")?,
            Value::Number(number) => literal(&number.to_string()),
            Value::Array(list) => {
                let list: Result<Vec<String>> = list.iter().map(|value| self.literal(value)).collect();
                joined(&["\"[\"", &list?.join(&format!(" {} ", self.comma())), "\"]\""])
            }
            Value::Object(map) => {
                let list: Result<Vec<String>> = map
                    .iter()
                    .map(|(key, value)| Ok(joined(&[&self.key(key), &self.colon(": ?"), &self.literal(value)?])))
                    .collect();
                joined(&["\"{\"", &list?.join(&format!(" {} ", self.comma())), "\"}\""])
            }
        })
    }

    pub(super) fn comma(&self) -> &'static str {
        if self.style == Style::Gemma { "\",\"" } else { "/, ?/" }
    }

    fn colon(&self, python: &str) -> String {
        if self.style == Style::Gemma { "\":\"".into() } else { format!("/{python}/") }
    }

    fn key(&self, key: &str) -> String {
        let is_bare = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-.$@".contains(c));
        match self.style {
            Style::Gemma if is_bare => literal(key),
            Style::Gemma => joined(&[&written(&self.quote), &literal(key), &written(&self.quote)]),
            _ => python_texts(key),
        }
    }

    fn list(&mut self, rules: &mut Rules, map: &'a serde_json::Map<String, Value>) -> Result<String> {
        let item = self.value(rules, map.get("items").unwrap_or(&ANYTHING))?;
        let bound = |key: &str| map.get(key).and_then(Value::as_u64);
        let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems"));
        if most.is_some_and(|most| most < least) {
            return Err(self.root.refuse("`minItems` is above `maxItems`"));
        }
        let more = match (least.saturating_sub(1), most.map(|most| most.saturating_sub(1))) {
            (_, Some(0)) => String::new(),
            (least, Some(most)) => format!("({} {item}){{{least},{most}}}", self.comma()),
            (0, None) => format!("({} {item})*", self.comma()),
            (least, None) => format!("({} {item}){{{least},}}", self.comma()),
        };
        let items = joined(&[&item, &more]);
        let items = match (least, most) {
            (_, Some(0)) => String::new(),
            (0, _) => maybe(&items),
            _ => items,
        };
        Ok(joined(&["\"[\"", &items, "\"]\""]))
    }

    /// The members of an object in order, between commas; `colon` stands behind keys, which Python's calls have bare.
    pub(super) fn members(&mut self, rules: &mut Rules, members: &Members<'a>, colon: &str) -> Result<String> {
        let mut named: Vec<_> = members.named.iter().collect();
        if self.style == Style::Gemma {
            named.sort_by_key(|(key, ..)| key.to_lowercase());
        }
        let mut items = Vec::new();
        for (key, schema, required) in named {
            let value = self.value(rules, schema)?;
            let key = if colon == "=" { literal(key) } else { self.key(key) };
            items.push((joined(&[&key, &self.colon(colon), &value]), *required));
        }
        let others = match members.others {
            Some(schema) => {
                let value = self.value(rules, schema)?;
                let taken: Vec<&str> = members.named.iter().map(|(key, ..)| *key).collect();
                let key = match (self.style, colon) {
                    (Style::Gemma, _) | (_, "=") => rules.terminal(&without(&taken, "/[A-Za-z_][A-Za-z0-9_]*/")),
                    _ => {
                        let key = without(&taken, "/[A-Za-z0-9_ .-]*/");
                        rules.terminal(&format!("\"\\\"\" ({key}) \"\\\"\" | \"'\" ({key}) \"'\""))
                    }
                };
                Some(joined(&[&key, &self.colon(colon), &value]))
            }
            None => None,
        };
        Ok(sequence(rules, &items, others.as_deref(), self.comma()))
    }

    fn anything(&mut self, rules: &mut Rules) -> Result<String> {
        if let Some(name) = self.known.get("") {
            return Ok(name.clone());
        }
        let name = rules.name("r");
        self.known.insert(String::new(), name.clone());
        let object = self.members(rules, &Members { named: Vec::new(), others: Some(&ANYTHING) }, ": ?")?;
        let choices = [
            self.string(rules, &[])?,
            self.json(rules, &json!({"type": "number"}))?,
            self.word("boolean")?,
            self.word("null")?,
            format!("\"[\" ({name} ({} {name})*)? \"]\"", self.comma()),
            joined(&["\"{\"", &object, "\"}\""]),
        ];
        rules.define(&name, &choices.join(" | "));
        Ok(name)
    }
}

/// Items of which some may be left out, and then any number of others, between commas.
pub(super) fn sequence(rules: &mut Rules, items: &[(String, bool)], others: Option<&str>, comma: &str) -> String {
    // From the last on: what may follow where something stands before, and where nothing does.
    let mut behind = others.map_or(String::new(), |other| format!("({comma} {other})*"));
    let mut first = others.map_or(String::new(), |other| maybe(&joined(&[other, &behind])));
    for (item, required) in items.iter().rev() {
        let alone = joined(&[item, &behind]);
        let next = joined(&[comma, item]);
        let next = if *required { next } else { maybe(&next) };
        first = match (*required, first.is_empty()) {
            (true, _) => alone,
            (false, true) => maybe(&alone),
            (false, false) => format!("({alone} | {first})"),
        };
        behind = joined(&[&next, &behind]);
        (first, behind) = (named(rules, first), named(rules, behind));
    }
    first
}

fn named(rules: &mut Rules, body: String) -> String {
    if body.is_empty() { body } else { rules.rule(&body) }
}

/// A text as it is that matches all of `all`, and what ends it: the first of `end`, which the text does not hold, nor any of `without`.
pub(super) fn raw(rules: &mut Rules, all: &[String], without: &[&str], end: &[Piece]) -> String {
    let mut all = all.to_vec();
    all.push("/(?s:.*)/".into());
    if !without.is_empty() {
        all.push(holds_none(without));
    }
    let body = joined_all(all.into_iter());
    match end {
        [Piece::Text(text), rest @ ..] => {
            let text = rules.terminal(&format!("({body}) {}", literal(text)));
            joined(&[&text, &written(rest)])
        }
        pieces => joined(&[&rules.terminal(&body), &written(pieces)]),
    }
}

fn joined_all(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join(" & ")
}

/// What `expression` matches, but for the texts `taken`.
fn without(taken: &[&str], expression: &str) -> String {
    if taken.is_empty() {
        return expression.into();
    }
    let list: Vec<String> = taken.iter().map(|text| literal(text)).collect();
    format!("{expression} & ~({})", list.join(" | "))
}

/// A text as Python writes it, in either kind of quotation marks.
fn python_texts(text: &str) -> String {
    let written = |quote: char| {
        let mut out = String::from(quote);
        for c in text.chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\\' => out.push_str("\\\\"),
                c if c == quote => out.extend(['\\', c]),
                c if (c as u32) < 32 || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", c as u32)),
                c => out.push(c),
            }
        }
        out.push(quote);
        literal(&out)
    };
    format!("({} | {})", written('"'), written('\''))
}

/// The error of a name that a format cannot write.
pub(super) fn bad_name(what: &str, name: &str, format: &str) -> Error {
    Error::Grammar(format!(
        "{what} `{}` cannot be written in the format {format}",
        crate::error::Excerpt(name.as_bytes())
    ))
}
