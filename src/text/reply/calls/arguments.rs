//! Arguments that stand one by one between markers: text as it is, everything else in the notation of values.

use super::rules::{Marks, Rules, any_of, joined, literal};
use super::schema::{ANYTHING, Members, Root, TYPES, listed, type_of, types};
use super::values::{Style, Values, bad_name, raw, sequence};
use crate::error::Result;
use crate::text::reply::formats::{Mark, Part, Writing};
use crate::text::reply::schema::{Tools, Types};
use crate::text::reply::value::as_json;
use serde_json::{Value, json};

/// What an argument may be.
#[derive(Default)]
struct Choices {
    /// Any text that matches all of an entry's expressions.
    texts: Vec<Vec<String>>,
    /// These texts.
    given: Vec<String>,
    /// Values that are no text, with their type, or none where that is open.
    values: Vec<(Option<&'static str>, Value)>,
}

/// Arguments of one tool.
pub(super) struct Arguments<'a, 'b> {
    pub(super) values: Values<'a>,
    pub(super) writing: &'static Writing,
    pub(super) marks: &'b Marks<'b>,
    /// What the reader takes the values for.
    pub(super) tools: &'b Tools,
}

/// Keywords that may stand beside `type` where a value may be a text.
const OF_TEXTS: [&str; 20] = [
    "type",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "items",
    "minItems",
    "maxItems",
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
    "prefixItems",
    "strict",
];

impl<'a> Arguments<'a, '_> {
    /// All arguments, in the order of the schema.
    pub(super) fn all(&mut self, rules: &mut Rules, members: &Members<'a>) -> Result<String> {
        let mut items = Vec::new();
        for (key, schema, required) in &members.named {
            let ends = self.marks.texts(Mark::KeyEnd);
            let is_plain = !key.is_empty() && key.trim() == *key && !key.contains(['\n', '<', '>', '"']);
            if !is_plain || ends.iter().any(|end| key.contains(end)) {
                return Err(bad_name("the argument", key, self.values.root.format));
            }
            let types = self.tools.types(self.values.root.tool, key);
            items.push((self.one(rules, &literal(key), schema, types)?, *required));
        }
        let others = match members.others {
            Some(schema) => {
                let taken: Vec<String> = members.named.iter().map(|(key, ..)| literal(key)).collect();
                let key = "/[A-Za-z_][A-Za-z0-9_.-]*/";
                let key = if taken.is_empty() { key.into() } else { format!("{key} & ~({})", taken.join(" | ")) };
                let key = rules.terminal(&key);
                Some(self.one(rules, &key, schema, Types::ANY)?)
            }
            None => None,
        };
        Ok(sequence(rules, &items, others.as_deref(), ""))
    }

    /// An argument with its markers. `types` is what the reader makes of it where its markers do not say.
    fn one(&mut self, rules: &mut Rules, key: &str, schema: &'a Value, types: Types) -> Result<String> {
        let mut choices = Choices::default();
        self.choose(schema, &mut choices, 0)?;
        let says_type = self.writing.value != self.writing.texts[0];
        let types = if says_type { Types::TEXT } else { types };
        let mut forms = Vec::new();
        for (index, parts) in self.writing.texts.iter().enumerate() {
            let without = self.without(index)?;
            let without: Vec<&str> = without.iter().map(String::as_str).collect();
            for all in &choices.texts {
                let mut all = all.clone();
                all.extend(not_json(types));
                let end = self.end(parts)?;
                let text = raw(rules, &all, &without, &self.marks.pieces(&end)?);
                forms.push(joined(&[&self.head(parts, key, "string")?, &text, &behind(parts)]));
            }
            for text in choices.given.iter().filter(|text| !without.iter().any(|other| text.contains(other))) {
                if as_json(text, types)?.is_some() {
                    let cause = format!("the text `{text}` would be read as what is no text in this format");
                    return Err(self.values.root.refuse(&cause));
                }
                let end = self.marks.expression(&self.end(parts)?)?;
                forms.push(joined(&[&self.head(parts, key, "string")?, &literal(text), &end, &behind(parts)]));
            }
        }
        // Where text may stand too, the reader does not look whether a string is open when it finds a marker of characters.
        let is_mixed = !(says_type || choices.texts.is_empty() && choices.given.is_empty());
        let hides = is_mixed && !self.without(usize::MAX)?.is_empty();
        let is_kept = |kind: &Option<&str>| !hides || !matches!(kind, None | Some("object" | "array"));
        for (kind, value) in choices.values.iter().filter(|(kind, _)| is_kept(kind)) {
            let parts = self.writing.value;
            let written = self.value(rules, *kind, value)?;
            let end = self.marks.expression(&self.end(parts)?)?;
            let head = self.head(parts, key, kind.unwrap_or("object"))?;
            forms.push(joined(&[&head, &written, &end, &behind(parts)]));
        }
        if forms.is_empty() {
            return Err(self.values.root.refuse(&format!("the argument {key} is never possible in this format")));
        }
        Ok(rules.rule(&any_of(&forms)))
    }

    fn value(&mut self, rules: &mut Rules, kind: Option<&str>, schema: &Value) -> Result<String> {
        let is_bare = schema.as_object().is_some_and(|map| map.len() == 1 && map.contains_key("type"));
        match kind {
            Some("boolean") if is_bare => Ok("(\"true\" | \"false\" | \"True\" | \"False\")".into()),
            Some("null") if is_bare => Ok("(\"null\" | \"None\")".into()),
            _ if self.values.style == Style::Json => self.values.json(rules, schema),
            _ => {
                // Rules of a schema that is made here must not be taken for those of the tool's own.
                let schema = self.values.root.complete(schema.clone());
                let root = Root { schema: &schema, ..self.values.root };
                let mut values = Values {
                    root,
                    style: self.values.style,
                    quote: Vec::new(),
                    known: Default::default(),
                    schemas: &mut *self.values.schemas,
                    depth: 0,
                };
                values.value(rules, &schema)
            }
        }
    }

    /// What stands before the value.
    fn head(&self, parts: &[Part], key: &str, kind: &str) -> Result<String> {
        let mut written = Vec::new();
        let mut text = String::new();
        for part in parts.iter().take_while(|part| **part != Part::Value) {
            match part {
                Part::Key => {
                    written.push(self.marks.expression(&text)?);
                    written.push(key.into());
                    text.clear();
                }
                Part::May(text_or_none) => {
                    written.push(self.marks.expression(&text)?);
                    written.push(format!("({})?", literal(text_or_none)));
                    text.clear();
                }
                Part::Type => text.push_str(if kind == "integer" { "number" } else { kind }),
                part => text.push_str(self.marks.part(part)),
            }
        }
        written.push(self.marks.expression(&text)?);
        Ok(joined(&written.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// What stands behind it, but for what may be missing.
    fn end(&self, parts: &[Part]) -> Result<String> {
        let behind = parts.iter().skip_while(|part| **part != Part::Value).skip(1);
        Ok(behind.map(|part| self.marks.part(part)).collect())
    }

    /// What no text holds in the form of this number: markers that would end it and are characters alone.
    fn without(&self, form: usize) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for text in self.marks.texts(Mark::ValueEnd) {
            if let [super::rules::Piece::Text(text)] = &self.marks.pieces(text)?[..] {
                all.push(text.clone());
            }
        }
        if form == 0 && self.writing.texts.len() > 1 {
            // What the other form begins and ends with.
            all.extend(["<".to_string(), "]".to_string()]);
        }
        Ok(all)
    }

    /// Takes a schema apart.
    fn choose(&self, schema: &'a Value, choices: &mut Choices, depth: usize) -> Result<()> {
        let root = self.values.root;
        let schema = root.resolved(schema)?;
        if depth > 16 {
            return Err(root.refuse("alternatives within alternatives"));
        }
        if *schema == ANYTHING {
            choices.texts.push(Vec::new());
            let kinds = TYPES.iter().filter(|kind| !matches!(**kind, "string" | "integer"));
            choices.values.extend(kinds.map(|kind| (Some(*kind), json!({"type": kind}))));
            return Ok(());
        }
        let map = schema.as_object().ok_or_else(|| root.refuse("a value is never possible"))?;
        if let Some(list) = listed(map) {
            for value in list {
                match value {
                    Value::String(text) => choices.given.push(text.clone()),
                    value => choices.values.push((Some(type_of(value)), json!({"enum": [value]}))),
                }
            }
            return Ok(());
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            let Some(list) = map.get(key).and_then(Value::as_array) else { continue };
            if !has_text(root, schema, 0)? && (key == "allOf" || !self.needs_type()) {
                choices.values.push((None, schema.clone()));
                return Ok(());
            }
            if key == "allOf" && list.len() > 1 {
                return Err(root.unknown("allOf"));
            }
            root.members(schema, &[key])?;
            root.alternatives(map)?;
            return list.iter().try_for_each(|schema| self.choose(schema, choices, depth + 1));
        }
        for kind in types(map) {
            if kind == "string" {
                choices.texts.push(root.text(root.members(schema, &OF_TEXTS)?)?);
                continue;
            }
            let known = TYPES.iter().find(|known| **known == kind);
            let kind = *known.ok_or_else(|| root.refuse(&format!("there is no type `{kind}`")))?;
            let mut own = map.clone();
            own.retain(|key, _| !super::schema::is_remark(key) || key == "$defs" || key == "definitions");
            own.insert("type".into(), kind.into());
            choices.values.push((Some(kind), Value::Object(own)));
        }
        Ok(())
    }

    fn needs_type(&self) -> bool {
        self.writing.value.contains(&Part::Type)
    }
}

/// What may stand behind an argument.
fn behind(parts: &[Part]) -> String {
    match parts.last() {
        Some(Part::May(text)) => format!("({})?", literal(text)),
        _ => String::new(),
    }
}

/// Whether a value of `schema` may be a text.
fn has_text(root: Root, schema: &Value, depth: usize) -> Result<bool> {
    let Some(map) = schema.as_object().filter(|_| depth < 16) else { return Ok(true) };
    if map.contains_key("$ref") {
        return match root.schema.pointer(map["$ref"].as_str().unwrap_or_default().trim_start_matches('#')) {
            Some(target) => has_text(root, target, depth + 1),
            None => Ok(true),
        };
    }
    if let Some(list) = listed(map) {
        return Ok(list.iter().any(|value| value.is_string()));
    }
    if map.contains_key("type") {
        return Ok(types(map).contains(&"string"));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(list) = map.get(key).and_then(Value::as_array) {
            let found: Result<Vec<bool>> = list.iter().map(|schema| has_text(root, schema, depth + 1)).collect();
            return Ok(found?.contains(&true));
        }
    }
    if let Some(list) = map.get("allOf").and_then(Value::as_array) {
        let found: Result<Vec<bool>> = list.iter().map(|schema| has_text(root, schema, depth + 1)).collect();
        return Ok(!found?.contains(&false));
    }
    Ok(true)
}

/// What keeps a text from being read as a value of another type that the reader would take there.
fn not_json(types: Types) -> Vec<String> {
    if types.is_text() {
        return Vec::new();
    }
    let mut first = String::from("\\s");
    let mut words = Vec::new();
    for (json, characters) in [("1", "+\\-.0-9"), ("{", "{"), ("[", "\\[("), ("t", ""), ("n", "")] {
        if types.allow(json) {
            first.push_str(characters);
            match json {
                "t" => words.extend(["true", "false", "True", "False"]),
                "n" => words.extend(["null", "None"]),
                _ => {}
            }
        }
    }
    let mut all = vec![format!("/(?s:[^{first}].*)?/")];
    if !words.is_empty() {
        all.push(format!("~/({})\\s*/", words.join("|")));
    }
    all
}
