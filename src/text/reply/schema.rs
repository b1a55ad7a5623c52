//! What the host's tools say of the values of their arguments.

use crate::error::{Error, Result};
use crate::format::{Document, Item};

/// The types that a value may have, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

const NAMES: [&str; 7] = ["string", "number", "integer", "boolean", "null", "object", "array"];

impl Types {
    /// Any at all.
    pub(super) const ANY: Types = Types(0x7f);
    /// A text.
    pub(super) const TEXT: Types = Types(1);
    /// What is no text.
    pub(super) const NO_TEXT: Types = Types(0x7e);

    fn named(name: &str) -> Types {
        let at = NAMES.iter().position(|&other| other == name);
        match (name, at) {
            // Names of Python, which some templates and tools use.
            ("str", _) => Types::TEXT,
            (_, Some(at)) => Types(1 << at),
            _ => Types::ANY,
        }
    }

    fn and(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    /// Whether nothing but text is possible.
    pub(super) fn is_text(self) -> bool {
        self == Types::TEXT
    }

    /// Whether text is possible.
    pub(super) fn has_text(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether a value can be this `json`.
    pub(super) fn allow(self, json: &str) -> bool {
        let bits = match json.as_bytes().first() {
            Some(b'"') => 1,
            Some(b't' | b'f') => 1 << 3,
            Some(b'n') => 1 << 4,
            Some(b'{') => 1 << 5,
            Some(b'[') => 1 << 6,
            _ => 1 << 1 | 1 << 2,
        };
        self.0 & bits != 0
    }
}

/// Tools that were given with a conversation.
pub(super) struct Tools(Option<Document>);

impl Tools {
    /// Reads an array of tools; `None` for none.
    pub(super) fn read(json: Option<&[u8]>) -> Result<Tools> {
        let Some(json) = json else { return Ok(Tools(None)) };
        let document = Document::read(json, "tools_json").map_err(|error| match error {
            Error::Format(problem) => Error::InvalidArgument(problem),
            other => other,
        })?;
        if document.root().elements().is_none() {
            return Err(Error::InvalidArgument("tools_json must be a json array of tools".into()));
        }
        Ok(Tools(Some(document)))
    }

    /// Whether there are any.
    pub(super) fn is_empty(&self) -> bool {
        self.functions().next().is_none()
    }

    fn functions(&self) -> impl Iterator<Item = Item<'_>> {
        let tools = self.0.as_ref().and_then(|document| document.root().elements());
        tools.into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool))
    }

    fn find(&self, name: &str) -> Option<Item<'_>> {
        self.functions().find(|function| function.get("name").and_then(Item::text) == Some(name))
    }

    /// Whether there is a function called `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// What the value of an argument may be; anything where that is not known.
    pub(super) fn types(&self, function: &str, argument: &str) -> Types {
        let schema = self.find(function).and_then(|function| {
            let schema = function.get("parameters").or_else(|| function.get("input_schema"))?;
            schema.get("properties")?.get(argument)
        });
        schema.map_or(Types::ANY, |schema| types_of(schema, 4))
    }
}

/// The types of a schema, alternatives within `depth` others included.
fn types_of(schema: Item, depth: usize) -> Types {
    let joined = |types: &mut dyn Iterator<Item = Types>| types.reduce(Types::and);
    if let Some(kind) = schema.get("type") {
        let named = |item: Item| item.text().map_or(Types::ANY, Types::named);
        return match kind.elements() {
            Some(kinds) => joined(&mut kinds.map(named)).unwrap_or(Types::ANY),
            None => named(kind),
        };
    }
    let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf")).filter(|_| depth > 0);
    if let Some(alternatives) = alternatives.and_then(Item::elements) {
        return joined(&mut alternatives.map(|schema| types_of(schema, depth - 1))).unwrap_or(Types::ANY);
    }
    let values = schema.get("enum").and_then(Item::elements);
    let is_text = values.is_some_and(|mut values| values.all(|value| value.text().is_some()));
    if is_text { Types::TEXT } else { Types::ANY }
}
