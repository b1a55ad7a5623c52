//! A JSON text as one flat list of values, for the files beside weights: headers, configurations, vocabularies.
//!
//! serde_json reads the text piece by piece. A value takes 16 bytes, names and texts stand in one block of memory, and everything grows in
//! the way that can fail, so that a text of a stranger's costs at most some times its size.

use crate::error::{Error, Result, backed, checked, extend, push};
use serde_core::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;

/// Deepest nesting of lists and maps; public files have up to 8.
const MAX_DEPTH: usize = 32;

/// What the memory of a text and its values is for.
const VALUES: &str = "a json file";

/// A whole JSON text.
#[derive(Debug)]
pub struct Document {
    texts: Vec<u8>,
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
enum Node {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text {
        start: u32,
        end: u32,
    },
    /// The elements follow; `end` is the node behind the last one.
    List {
        end: u32,
    },
    /// Names and values follow in turn.
    Map {
        end: u32,
    },
}

impl Document {
    /// Reads `json`, the content of the file that messages call `name`.
    pub fn read(json: &[u8], name: &str) -> Result<Document> {
        if u32::try_from(json.len()).is_err() {
            return Err(Error::Format(format!("{name}: {} bytes are too many for a json file", json.len())));
        }
        // The reader puts a text with escapes together in a buffer of its own, which doubles as it grows.
        let escaped = if json.contains(&b'\\') { json.len() } else { 0 };
        let _backing = backed(escaped.saturating_mul(3), VALUES)?;
        let (mut document, failed) = (Document { texts: Vec::new(), nodes: Vec::new() }, Cell::new(None));
        let mut reader = serde_json::Deserializer::from_slice(json);
        let read = Builder { document: &mut document, failed: &failed, depth: 0 }.deserialize(&mut reader);
        let read = read.and_then(|()| reader.end());
        checked(VALUES)?;
        match (read, failed.take()) {
            (Ok(()), _) => Ok(document),
            (Err(_), Some(error @ Error::OutOfMemory { .. })) => Err(error),
            (Err(_), Some(error)) => Err(Error::Format(format!("{name}: {error}"))),
            (Err(error), None) => Err(Error::Format(format!("{name}: it is not json: {error}"))),
        }
    }

    /// The value that the text is.
    pub fn root(&self) -> Item<'_> {
        Item { document: self, at: 0 }
    }
}

/// A value within a document.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    document: &'a Document,
    at: usize,
}

impl<'a> Item<'a> {
    /// The member called `name`, if this is a map that has one; the last one where several have the name, as most readers have it.
    pub fn member(self, name: &str) -> Option<Item<'a>> {
        let found = self.entries()?.filter(|(other, _)| *other == name).last();
        found.map(|(_, value)| value)
    }

    /// The same, if it is not null.
    pub fn get(self, name: &str) -> Option<Item<'a>> {
        self.member(name).filter(|value| !value.is_null())
    }

    /// The members of a map, in order.
    pub fn entries(self) -> Option<impl Iterator<Item = (&'a str, Item<'a>)>> {
        let Node::Map { end } = self.node() else { return None };
        let mut at = self.at + 1;
        Some(std::iter::from_fn(move || {
            (at < end as usize).then(|| {
                let (name, value) = (Item { at, ..self }, Item { at: at + 1, ..self });
                at = value.behind();
                (name.text().unwrap_or_default(), value)
            })
        }))
    }

    /// The elements of a list, in order.
    pub fn elements(self) -> Option<impl Iterator<Item = Item<'a>>> {
        let Node::List { end } = self.node() else { return None };
        let mut at = self.at + 1;
        Some(std::iter::from_fn(move || {
            (at < end as usize).then(|| {
                let value = Item { at, ..self };
                at = value.behind();
                value
            })
        }))
    }

    /// The text that this is.
    pub fn text(self) -> Option<&'a str> {
        let Node::Text { start, end } = self.node() else { return None };
        std::str::from_utf8(&self.document.texts[start as usize..end as usize]).ok()
    }

    /// The whole number from 0 that this is.
    pub fn unsigned(self) -> Option<u64> {
        match self.node() {
            Node::Unsigned(value) => Some(value),
            // Some writers put a point behind whole numbers; beyond 2^53 not every one is told from its neighbours.
            Node::Float(value) if value.fract() == 0.0 && (0.0..9e15).contains(&value) => Some(value as u64),
            _ => None,
        }
    }

    /// The number that this is.
    pub fn number(self) -> Option<f64> {
        match self.node() {
            Node::Unsigned(value) => Some(value as f64),
            Node::Signed(value) => Some(value as f64),
            Node::Float(value) => Some(value),
            _ => None,
        }
    }

    /// The truth value that this is.
    pub fn flag(self) -> Option<bool> {
        if let Node::Bool(value) = self.node() { Some(value) } else { None }
    }

    /// Whether this is null.
    pub fn is_null(self) -> bool {
        matches!(self.node(), Node::Null)
    }

    fn node(self) -> Node {
        self.document.nodes[self.at]
    }

    /// The node behind this value.
    fn behind(self) -> usize {
        match self.node() {
            Node::List { end } | Node::Map { end } => end as usize,
            _ => self.at + 1,
        }
    }
}

impl fmt::Display for Item<'_> {
    /// A scalar as JSON writes it, lists and maps by what they are.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.node() {
            Node::Null => f.write_str("null"),
            Node::Bool(value) => write!(f, "{value}"),
            Node::Unsigned(value) => write!(f, "{value}"),
            Node::Signed(value) => write!(f, "{value}"),
            Node::Float(value) => write!(f, "{value:?}"),
            Node::Text { start, end } => {
                let text = &self.document.texts[start as usize..end as usize];
                write!(f, "`{}`", crate::error::Excerpt(text))
            }
            Node::List { .. } => f.write_str("a list"),
            Node::Map { .. } => f.write_str("a map"),
        }
    }
}

/// Appends what the reader finds next.
struct Builder<'d> {
    document: &'d mut Document,
    /// The error of ours that ended the reading.
    failed: &'d Cell<Option<Error>>,
    depth: usize,
}

impl Builder<'_> {
    /// A result of ours as one of the reader's.
    fn given<T, E: serde_core::de::Error>(&self, result: Result<T>) -> Result<T, E> {
        result.map_err(|error| {
            self.failed.set(Some(error));
            E::custom("stopped")
        })
    }

    fn node<E: serde_core::de::Error>(self, node: Node) -> Result<(), E> {
        let pushed = push(&mut self.document.nodes, node, VALUES);
        self.given(pushed)
    }

    fn inner(&mut self) -> Builder<'_> {
        Builder { document: self.document, failed: self.failed, depth: self.depth + 1 }
    }

    /// Appends a list or map whose end is not known yet; its number.
    fn begin<E: serde_core::de::Error>(&mut self, node: Node) -> Result<usize, E> {
        let at = self.document.nodes.len();
        let begun = if self.depth < MAX_DEPTH {
            push(&mut self.document.nodes, node, VALUES)
        } else {
            Err(Error::InvalidArgument(format!("lists and maps lie more than {MAX_DEPTH} deep")))
        };
        self.given(begun).map(|()| at)
    }

    /// The number of the node that comes next. A value takes a byte of the text at least, so it fits.
    fn end(&self) -> u32 {
        self.document.nodes.len() as u32
    }
}

impl<'de> DeserializeSeed<'de> for Builder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Builder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("json")
    }

    fn visit_unit<E: serde_core::de::Error>(self) -> Result<(), E> {
        self.node(Node::Null)
    }

    fn visit_bool<E: serde_core::de::Error>(self, value: bool) -> Result<(), E> {
        self.node(Node::Bool(value))
    }

    fn visit_i64<E: serde_core::de::Error>(self, value: i64) -> Result<(), E> {
        self.node(Node::Signed(value))
    }

    fn visit_u64<E: serde_core::de::Error>(self, value: u64) -> Result<(), E> {
        self.node(Node::Unsigned(value))
    }

    fn visit_f64<E: serde_core::de::Error>(self, value: f64) -> Result<(), E> {
        self.node(Node::Float(value))
    }

    fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<(), E> {
        let start = self.document.texts.len() as u32;
        let extended = extend(&mut self.document.texts, text.as_bytes(), VALUES);
        self.given(extended)?;
        let end = self.document.texts.len() as u32;
        self.node(Node::Text { start, end })
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        let at = self.begin(Node::List { end: 0 })?;
        while elements.next_element_seed(self.inner())?.is_some() {}
        self.document.nodes[at] = Node::List { end: self.end() };
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let at = self.begin(Node::Map { end: 0 })?;
        while entries.next_key_seed(self.inner())?.is_some() {
            entries.next_value_seed(self.inner())?;
        }
        self.document.nodes[at] = Node::Map { end: self.end() };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Document> {
        Document::read(json.as_bytes(), "x.json")
    }

    #[test]
    fn values_come_back_as_they_stand() {
        let document =
            read(r#"{"a": [1, -2, 2.5, 4.0, "t\u00e9\n", true, null, {}], "b": {"c": [[], 7]}, "n": null}"#).unwrap();
        let root = document.root();
        let a: Vec<Item> = root.get("a").unwrap().elements().unwrap().collect();
        assert_eq!((a[0].unsigned(), a[1].unsigned(), a[1].number()), (Some(1), None, Some(-2.0)));
        assert_eq!((a[2].unsigned(), a[2].number(), a[3].unsigned()), (None, Some(2.5), Some(4)));
        assert_eq!((a[4].text(), a[5].flag(), a[6].is_null()), (Some("té\n"), Some(true), true));
        assert_eq!(a.len(), 8);
        let c = root.get("b").and_then(|b| b.get("c")).unwrap();
        assert_eq!(c.elements().unwrap().map(|item| item.unsigned()).collect::<Vec<_>>(), [None, Some(7)]);
        assert!(
            root.get("n").is_none() && root.get("x").is_none() && c.get("a").is_none() && a[0].elements().is_none()
        );
        let names: Vec<&str> = root.entries().unwrap().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b", "n"]);
        assert_eq!(a.iter().map(|item| item.to_string()).collect::<Vec<_>>()[..3], ["1", "-2", "2.5"]);
    }

    #[test]
    fn the_last_of_equal_names_counts() {
        assert_eq!(read(r#"{"a": 1, "a": 2}"#).unwrap().root().get("a").unwrap().unsigned(), Some(2));
    }

    #[test]
    fn what_is_no_json_or_too_deep_is_refused_with_the_files_name() {
        for json in ["", "{", "{\"a\":}", "[1,]", "nul", "\"\\ud800\"", "{} x", "\u{0}"] {
            let message = read(json).unwrap_err().to_string();
            assert!(message.starts_with("bad model file: x.json: it is not json: "), "{message}");
        }
        assert!(read(&format!("{}{}", "[".repeat(32), "]".repeat(32))).is_ok());
        for deep in ["[".repeat(33), "[".repeat(1 << 20), "{\"a\":".repeat(1 << 20)] {
            let message = read(&deep).unwrap_err().to_string();
            assert!(message.ends_with("x.json: lists and maps lie more than 32 deep"), "{message}");
        }
    }
}
