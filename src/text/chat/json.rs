//! JSON of the host's as values, in memory that can be refused.
//!
//! The text is read once, from its beginning to its end. Numbers are Python's: an integer is one whatever its size, a float is
//! the nearest one, and infinite where it is beyond all others.

use super::budget::{Budget, VALUE_DEPTH};
use super::heap::{Buffer, Entries, Text};
use super::integer::{self, MAX_DIGITS};
use super::key::Key;
use super::stand_ins::StandIns;
use super::value::Value;
use crate::error::{Error, Result};

/// Reads `json`, which is `what` in messages.
pub(super) fn read(budget: &Budget, json: &[u8], what: &str) -> Result<Value> {
    read_with(budget, json, what, None)
}

/// Reads the messages of a conversation, their texts written with `stand_ins`.
pub(super) fn read_messages(budget: &Budget, json: &[u8], stand_ins: Option<&StandIns>) -> Result<Value> {
    read_with(budget, json, "messages", stand_ins)
}

/// Reads an array, or a value as an array of one: calls `visit` with the text and the value of each element.
pub(super) fn read_each(
    budget: &Budget,
    json: &[u8],
    what: &str,
    visit: &mut dyn FnMut(&str, &Value) -> Result<()>,
) -> Result<()> {
    let whole = read(budget, json, what)?;
    let text = std::str::from_utf8(json).unwrap_or_default().trim_matches([' ', '\t', '\n', '\r']);
    if !matches!(whole, Value::List(_)) {
        return visit(text, &whole);
    }
    let mut reader = Reader { budget, text, at: 1, what, depth: 1, stand_ins: None };
    reader.parts("]", |this| {
        let start = this.at;
        let value = this.value()?;
        visit(&this.text[start..this.at], &value)
    })
}

/// Members that are words of the host's, never texts of others, and how many containers are around them: the role of a message, the types
/// of its parts and calls.
const WORDS: [(&str, u32); 2] = [("role", 2), ("type", 4)];

fn read_with(budget: &Budget, json: &[u8], what: &str, stand_ins: Option<&StandIns>) -> Result<Value> {
    let (text, invalid) = match std::str::from_utf8(json) {
        Ok(text) => (text, None),
        Err(error) => {
            (std::str::from_utf8(&json[..error.valid_up_to()]).unwrap_or_default(), Some("a text that is no utf-8"))
        }
    };
    let mut reader = Reader { budget, text, at: 0, what, depth: 0, stand_ins };
    let value = reader.document();
    match (value, invalid) {
        (Ok(value), None) => Ok(value),
        (Err(error), None) => Err(error),
        // What was wrong before the end of the text is told, and what the end itself made wrong is not.
        (Err(error), Some(_)) if reader.at < text.len() => Err(error),
        (_, Some(invalid)) => reader.wrong(invalid),
    }
}

struct Reader<'j> {
    budget: &'j Budget,
    text: &'j str,
    at: usize,
    what: &'j str,
    depth: u32,
    stand_ins: Option<&'j StandIns>,
}

impl<'j> Reader<'j> {
    /// The error that something else stands here.
    fn wrong<T>(&self, found: impl std::fmt::Display) -> Result<T> {
        let before = &self.text[..self.at];
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1) + 1;
        let what = self.what;
        Err(Error::InvalidArgument(format!("{what} are not json: {found} at line {line} column {column}")))
    }

    fn expected<T>(&self, what: &str) -> Result<T> {
        match self.rest().chars().next() {
            Some(found) => self.wrong(format_args!("expected {what}, found {found:?}")),
            None => self.wrong(format_args!("expected {what}, found the end")),
        }
    }

    fn rest(&self) -> &'j str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    /// Goes over `part`, if it is what stands here.
    fn skip(&mut self, part: &str) -> bool {
        let found = self.rest().starts_with(part);
        self.at += if found { part.len() } else { 0 };
        found
    }

    fn document(&mut self) -> Result<Value> {
        self.skip_space();
        let value = self.value()?;
        self.skip_space();
        if self.rest().is_empty() { Ok(value) } else { self.expected("the end") }
    }

    fn value(&mut self) -> Result<Value> {
        match self.rest().bytes().next() {
            Some(b'"') => self.string(self.stand_ins).map(Text::value),
            Some(b'[') => self.container(Self::list),
            Some(b'{') => self.container(Self::map),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.skip("null") => Ok(Value::None),
            _ if self.skip("true") => Ok(Value::Bool(true)),
            _ if self.skip("false") => Ok(Value::Bool(false)),
            _ => self.expected("a value"),
        }
    }

    fn container(&mut self, read: impl FnOnce(&mut Self) -> Result<Value>) -> Result<Value> {
        if self.depth == VALUE_DEPTH {
            return self.wrong(format_args!("more than {VALUE_DEPTH} containers in each other"));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// The parts of a container, with commas between them, up to the bracket that closes it.
    fn parts(&mut self, close: &str, mut part: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.skip_space();
        if self.skip(close) {
            return Ok(());
        }
        loop {
            part(self)?;
            self.skip_space();
            if self.skip(close) {
                return Ok(());
            }
            if !self.skip(",") {
                return self.expected(&format!("',' or '{close}'"));
            }
            self.skip_space();
        }
    }

    fn list(&mut self) -> Result<Value> {
        let mut values = Buffer::new(self.budget);
        self.parts("]", |this| values.push(this.value()?))?;
        Value::list(values)
    }

    fn map(&mut self) -> Result<Value> {
        let mut entries = Entries::new(self.budget);
        self.parts("}", |this| {
            if !this.rest().starts_with('"') {
                return this.expected("a name in double quotes");
            }
            let key = this.string(None)?.value();
            let is_word = key.as_str().is_some_and(|key| WORDS.contains(&(key, this.depth)));
            let key = Key::new(this.budget, key)?;
            this.skip_space();
            if !this.skip(":") {
                return this.expected("':'");
            }
            this.skip_space();
            let value =
                if is_word && this.rest().starts_with('"') { this.string(None)?.value() } else { this.value()? };
            entries.insert(key, value)
        })?;
        Value::map(entries)
    }

    fn string(&mut self, stand_ins: Option<&StandIns>) -> Result<Text> {
        self.at += 1;
        let mut out = Text::new(self.budget);
        loop {
            let rest = self.rest();
            let Some(end) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) else {
                self.at = self.text.len();
                return self.wrong("a text has no end");
            };
            match stand_ins {
                Some(stand_ins) => rest[..end].chars().try_for_each(|c| out.push_char(stand_ins.stand_in(c)))?,
                None => out.push(&rest[..end])?,
            }
            self.at += end;
            match rest.as_bytes()[end] {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => {
                    let c = self.escape()?;
                    out.push_char(stand_ins.map_or(c, |stand_ins| stand_ins.stand_in(c)))?;
                }
                _ => return self.expected("a character that is no control character"),
            }
        }
    }

    /// The character of an escape.
    fn escape(&mut self) -> Result<char> {
        let c = match self.rest().as_bytes().get(1) {
            Some(&c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.by_number(),
            _ => return self.wrong("an unknown escape in a text"),
        };
        self.at += 2;
        Ok(c)
    }

    /// `\u` and four digits, or two of these that are one character together.
    fn by_number(&mut self) -> Result<char> {
        let unit = |text: &str| -> Option<u32> {
            let digits = text.strip_prefix("\\u")?.get(..4)?;
            digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
        };
        let rest = self.rest();
        let Some(first) = unit(rest) else { return self.wrong("an escape without its four digits in a text") };
        let (code, len) = match first {
            0xd800..0xdc00 => match unit(&rest[6..]) {
                Some(second @ 0xdc00..0xe000) => (0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), 12),
                _ => (first, 6),
            },
            _ => (first, 6),
        };
        let Some(c) = char::from_u32(code) else { return self.wrong("half a surrogate pair in a text") };
        self.at += len;
        Ok(c)
    }

    fn number(&mut self) -> Result<Value> {
        let rest = self.rest();
        let negative = rest.starts_with('-');
        let digits = |from: usize| rest[from..].bytes().take_while(u8::is_ascii_digit).count();
        let start = usize::from(negative);
        let whole = start + digits(start);
        if whole == start || (rest[start..].starts_with('0') && whole > start + 1) {
            self.at += start;
            return self.wrong("a number without digits, or with a zero before them,");
        }
        let mut end = whole;
        if rest[end..].starts_with('.') {
            end += 1 + digits(end + 1);
        }
        let pointed = end;
        if rest[end..].starts_with(['e', 'E']) {
            let sign = usize::from(rest[end + 1..].starts_with(['+', '-']));
            end += 1 + sign + digits(end + 1 + sign);
        }
        if !rest[..end].ends_with(|c: char| c.is_ascii_digit()) || rest[..pointed].ends_with('.') {
            return self.wrong("a number with no digits behind its point or exponent");
        }
        let value = if end > whole {
            Value::Float(rest[..end].parse().or_else(|_| self.wrong("a number that is none"))?)
        } else {
            let number = integer::parsed(self.budget, &rest[start..whole], 10, negative)?;
            number.map_or_else(|| self.wrong(format_args!("an integer of more than {MAX_DIGITS} digits")), Ok)?
        };
        self.at += end;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value as Json;

    fn read(json: &[u8]) -> Result<Value> {
        super::read(&Budget::of_input(), json, "messages")
    }

    fn same(own: &Value, other: &Json) -> bool {
        let near = |a: f64, b: &serde_json::Number| b.as_f64().is_some_and(|b| (a - b).abs() <= b.abs() * 1e-15);
        match (own, other) {
            (Value::None, Json::Null) => true,
            (Value::Bool(a), Json::Bool(b)) => a == b,
            (Value::Int(a), Json::Number(b)) if b.is_f64() => near(*a as f64, b),
            (Value::Int(a), Json::Number(b)) => b.as_i64().map(i128::from).or(b.as_u64().map(i128::from)) == Some(*a),
            (Value::Float(a), Json::Number(b)) => near(*a, b),
            (Value::Large(_), Json::Number(b)) => b.is_f64(),
            (Value::Text(a), Json::String(b)) => **a == **b,
            (Value::List(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
            (Value::Map(a), Json::Object(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k.0.as_str() == Some(l) && same(a, b))
            }
            _ => false,
        }
    }

    /// Documents that are cut, joined and changed at random; another reader tells what is JSON.
    #[test]
    fn another_reader_agrees_about_damaged_documents() {
        let source = r#" {"a": [1, -2.5e3, 0, -0.0, 1E+2, 1e-7, true, false, null], "b\u00e9\ud83e\udd99\n\"\\\/\b\f\r\t": {"": {}},
            "c": "\u0041 é 🦙", "long": 12345678901234567890123, "d": [[], [[]], {"x": "y"}], "a": 7} "#;
        let pieces = [
            "", "\"", "\\", "0", "-", ".", "e", "[", "]", "{", "}", ",", ":", "\\u", "d800", "\n", "nul", "1", " ",
            "\x01",
        ];
        let mut state = 9u64;
        let mut random = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let (mut good, mut bad) = (0, 0);
        for _ in 0..60_000 {
            let mut json = source.as_bytes().to_vec();
            let (from, to) = (random(json.len()), random(json.len()));
            if random(2) == 0 && from < to {
                json = json[from..to].to_vec();
            }
            for _ in 0..random(3) {
                let at = random(json.len() + 1);
                let to = (at + random(4)).min(json.len());
                json.splice(at..to, pieces[random(pieces.len())].bytes());
            }
            match (read(&json), serde_json::from_slice::<Json>(&json)) {
                (Ok(own), Ok(other)) if same(&own, &other) => good += 1,
                (Err(Error::InvalidArgument(message)), Err(_)) if !message.contains('\n') => bad += 1,
                // Floats beyond all others, which this reader has no infinity for.
                (_, Err(error)) if error.to_string().contains("out of range") => {}
                (own, other) => {
                    panic!("{}: {:?}, {other:?}", String::from_utf8_lossy(&json), own.map(|own| own.type_name()))
                }
            }
        }
        assert!(good > 3_000 && bad > 10_000, "{good} read, {bad} refused: the cases prove little");
    }

    #[test]
    fn numbers_are_exact_or_the_nearest() {
        let float = |json: &str| match read(json.as_bytes()) {
            Ok(Value::Float(number)) => number,
            other => panic!("{json}: {:?}", other.map(|other| other.type_name())),
        };
        for text in [
            "0.1",
            "9007199254740993.0",
            "1.7976931348623157e308",
            "5e-324",
            "123456789.12345678901234567890",
            "-2.5E-3",
        ] {
            assert_eq!(float(text).to_bits(), text.parse::<f64>().unwrap().to_bits(), "{text}");
        }
        assert_eq!(float("1e400"), f64::INFINITY);
        assert!(matches!(read(b"-0"), Ok(Value::Int(0))));
        let digits = "9".repeat(MAX_DIGITS);
        for text in ["170141183460469231731687303715884105727", "-170141183460469231731687303715884105729", &digits] {
            let value = read(text.as_bytes()).unwrap();
            let (negative, digits) = integer::digits(&Budget::of_input(), &value, 10).unwrap();
            assert_eq!(format!("{}{digits}", if negative { "-" } else { "" }), text);
        }
        let error = read(format!("[\n {digits}1]").as_bytes()).err().unwrap().to_string();
        assert!(error.contains("an integer of more than 4300 digits at line 2 column 2"), "{error}");
    }

    #[test]
    fn errors_say_what_is_wrong_and_where() {
        for (json, message) in [
            (&b""[..], "expected a value, found the end at line 1 column 1"),
            (b"[1,\n 2,]", "expected a value, found ']' at line 2 column 4"),
            (b"{\"a\" 1}", "expected ':', found '1' at line 1 column 6"),
            (b"{a: 1}", "expected a name in double quotes, found 'a' at line 1 column 2"),
            (b"[\"x", "a text has no end at line 1 column 4"),
            (b"[01]", "a number without digits, or with a zero before them, at line 1 column 2"),
            (b"\"\\ud800\"", "half a surrogate pair in a text at line 1 column 2"),
            (b"[\"a\xff\"]", "a text that is no utf-8 at line 1 column 4"),
        ] {
            let error = read(json).map(|value| value.type_name()).unwrap_err().to_string();
            assert!(error.ends_with(&format!("messages are not json: {message}")), "{error} instead of {message}");
        }
        assert!(read("[".repeat(100_000).as_bytes()).is_err_and(|error| error.to_string().contains("256 containers")));
    }
}
