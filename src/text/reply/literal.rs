//! Values as models write them, turned into JSON character by character.
//!
//! One machine reads JSON, Python's literals and Gemma's notation, which differ in how strings and keys are written. What it gives out is
//! compact JSON (RFC 8259): strings escaped anew, words and numbers checked. Its memory is a bit more than one word or number.

use super::write;
use crate::error::{Error, Result, push};

/// What came of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The value goes on.
    More,
    /// It ended with the character.
    Done,
    /// It ended before the character, which belongs to what follows.
    Before,
    /// It is no value.
    Broken,
}

/// How keys without quotation marks end, where there are such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BareKeys {
    /// There are none.
    Never,
    /// With a colon, as Gemma writes them.
    Colon,
}

/// Deepest nesting of containers.
const MAX_DEPTH: usize = 128;

/// Bytes of the longest word, number or key without quotation marks.
const MAX_WORD: usize = 1024;

/// A value that is being read.
pub(super) struct Literal {
    keys: BareKeys,
    /// The containers around the place, outermost first.
    containers: Vec<Container>,
    state: State,
    /// A word, a number, or the digits of an escape.
    word: String,
    /// The first half of a character that is escaped in two.
    high: Option<u32>,
    /// Whether only an object will do.
    is_object: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    List,
    Tuple,
    Map,
    /// The arguments of a Python call: names, `=`, values.
    Call,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before a value; `first` of its container, `comma` when one must be written before it.
    Value {
        first: bool,
        comma: bool,
    },
    /// Before a key, likewise.
    Key {
        comma: bool,
    },
    BareKey,
    /// Behind a key.
    Colon,
    /// Behind a value of a container.
    Next,
    Word,
    Text(Quote, bool),
    Escape(Quote, bool),
    /// So many hexadecimal digits to come.
    Digits(Quote, bool, u8),
}

/// What ends a string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    Character(char),
    /// A marker of the format, between which all is text.
    Marker,
}

impl Literal {
    /// Any value.
    pub(super) fn new(keys: BareKeys) -> Literal {
        let state = State::Value { first: false, comma: false };
        Literal { keys, containers: Vec::new(), state, word: String::new(), high: None, is_object: false }
    }

    /// An object.
    pub(super) fn object(keys: BareKeys) -> Literal {
        Literal { is_object: true, ..Literal::new(keys) }
    }

    /// The arguments of a Python call, from behind its opening bracket, as a JSON object.
    pub(super) fn call(out: &mut String) -> Result<Literal> {
        let mut literal = Literal::new(BareKeys::Never);
        literal.open(Container::Call, out)?;
        Ok(literal)
    }

    /// Whether the place is inside a string, where markers are text.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.state, State::Text(..) | State::Escape(..) | State::Digits(..))
    }

    /// Takes the marker that opens and closes strings.
    pub(super) fn quote(&mut self, out: &mut String) -> Result<Progress> {
        match self.state {
            State::Text(Quote::Marker, key) => self.end_text(key, out),
            State::Value { .. } if self.is_outside() => Ok(Progress::Broken),
            State::Value { .. } => self.begin_text(Quote::Marker, out),
            State::Key { .. } => self.begin_text(Quote::Marker, out),
            _ => Ok(Progress::Broken),
        }
    }

    /// Takes one character; what is decided by it goes to `out`.
    pub(super) fn push(&mut self, c: char, out: &mut String) -> Result<Progress> {
        let is_space = c.is_ascii_whitespace();
        match self.state {
            State::Text(quote, key) => self.push_text(c, quote, key, out),
            State::Escape(quote, key) => self.push_escape(c, quote, key, out),
            State::Digits(quote, key, left) => self.push_digit(c, quote, key, left, out),
            State::Word => self.push_word(c, out),
            State::BareKey => self.push_bare_key(c, out),
            _ if is_space => Ok(Progress::More),
            State::Value { .. } if c != '{' && self.is_outside() => Ok(Progress::Broken),
            State::Value { first, comma } => match c {
                '"' | '\'' => self.begin_text(Quote::Character(c), out),
                '[' => self.open(Container::List, out),
                '{' => self.open(Container::Map, out),
                '(' => self.open(Container::Tuple, out),
                _ if self.closes(c) && (first || comma) => self.close(out),
                c if c.is_ascii_alphanumeric() || "+-.".contains(c) => self.begin_word(c, State::Word, out),
                _ => Ok(Progress::Broken),
            },
            State::Key { .. } => match c {
                '"' | '\'' if !self.is_call() => self.begin_text(Quote::Character(c), out),
                _ if self.closes(c) => self.close(out),
                c if self.has_bare_keys() && is_key(c) => self.begin_word(c, State::BareKey, out),
                _ => Ok(Progress::Broken),
            },
            State::Colon => self.push_colon(c, out),
            State::Next => match c {
                ',' => {
                    self.state = if self.is_map() {
                        State::Key { comma: true }
                    } else {
                        State::Value { first: false, comma: true }
                    };
                    Ok(Progress::More)
                }
                _ if self.closes(c) => self.close(out),
                _ => Ok(Progress::Broken),
            },
        }
    }

    /// Whether the object that alone will do has not begun.
    fn is_outside(&self) -> bool {
        self.is_object && self.containers.is_empty()
    }

    fn is_map(&self) -> bool {
        matches!(self.containers.last(), Some(Container::Map | Container::Call))
    }

    fn is_call(&self) -> bool {
        self.containers.last() == Some(&Container::Call)
    }

    fn has_bare_keys(&self) -> bool {
        self.is_call() || self.keys == BareKeys::Colon
    }

    fn closes(&self, c: char) -> bool {
        let closing = self.containers.last().map(|container| match container {
            Container::List => ']',
            Container::Map => '}',
            Container::Tuple | Container::Call => ')',
        });
        closing == Some(c)
    }

    /// Writes the comma that is due before a value or key.
    fn begin(&mut self, out: &mut String) -> Result<()> {
        match self.state {
            State::Value { comma: true, .. } | State::Key { comma: true } => write(out, ","),
            _ => Ok(()),
        }
    }

    fn open(&mut self, container: Container, out: &mut String) -> Result<Progress> {
        if self.containers.len() == MAX_DEPTH {
            return Ok(Progress::Broken);
        }
        self.begin(out)?;
        push(&mut self.containers, container, super::REPLY)?;
        self.state =
            if self.is_map() { State::Key { comma: false } } else { State::Value { first: true, comma: false } };
        write(out, if self.is_map() { "{" } else { "[" })?;
        Ok(Progress::More)
    }

    fn close(&mut self, out: &mut String) -> Result<Progress> {
        write(out, if self.is_map() { "}" } else { "]" })?;
        self.containers.pop();
        Ok(self.end_value())
    }

    fn end_value(&mut self) -> Progress {
        self.state = State::Next;
        if self.containers.is_empty() { Progress::Done } else { Progress::More }
    }

    fn begin_word(&mut self, c: char, state: State, out: &mut String) -> Result<Progress> {
        self.begin(out)?;
        self.state = state;
        self.word.clear();
        self.extend_word(c)
    }

    fn extend_word(&mut self, c: char) -> Result<Progress> {
        if self.word.len() >= MAX_WORD {
            return Ok(Progress::Broken);
        }
        write(&mut self.word, c.encode_utf8(&mut [0; 4]))?;
        Ok(Progress::More)
    }

    fn push_word(&mut self, c: char, out: &mut String) -> Result<Progress> {
        if c.is_ascii_alphanumeric() || "+-._".contains(c) {
            return self.extend_word(c);
        }
        let Some(word) = json_word(&self.word) else { return Ok(Progress::Broken) };
        write(out, word)?;
        match self.end_value() {
            Progress::Done => Ok(Progress::Before),
            _ => self.push(c, out),
        }
    }

    /// Ends a word at the end of all text.
    pub(super) fn finish(&mut self, out: &mut String) -> Result<Progress> {
        match self.push(' ', out)? {
            Progress::Before => Ok(Progress::Done),
            _ => Ok(Progress::Broken),
        }
    }

    fn push_bare_key(&mut self, c: char, out: &mut String) -> Result<Progress> {
        if is_key(c) {
            return self.extend_word(c);
        }
        write(out, "\"")?;
        escape_all(&self.word, out)?;
        write(out, "\"")?;
        self.state = State::Colon;
        self.push(c, out)
    }

    fn push_colon(&mut self, c: char, out: &mut String) -> Result<Progress> {
        if c != if self.is_call() { '=' } else { ':' } {
            return Ok(Progress::Broken);
        }
        self.state = State::Value { first: false, comma: false };
        write(out, ":")?;
        Ok(Progress::More)
    }

    fn begin_text(&mut self, quote: Quote, out: &mut String) -> Result<Progress> {
        self.begin(out)?;
        self.state = State::Text(quote, matches!(self.state, State::Key { .. }));
        write(out, "\"")?;
        Ok(Progress::More)
    }

    fn end_text(&mut self, key: bool, out: &mut String) -> Result<Progress> {
        self.end_half(out)?;
        write(out, "\"")?;
        if key {
            self.state = State::Colon;
            return Ok(Progress::More);
        }
        Ok(self.end_value())
    }

    fn push_text(&mut self, c: char, quote: Quote, key: bool, out: &mut String) -> Result<Progress> {
        if quote == Quote::Character(c) {
            return self.end_text(key, out);
        }
        if c == '\\' && quote != Quote::Marker {
            self.state = State::Escape(quote, key);
            return Ok(Progress::More);
        }
        self.end_half(out)?;
        escape(c, out)?;
        Ok(Progress::More)
    }

    fn push_escape(&mut self, c: char, quote: Quote, key: bool, out: &mut String) -> Result<Progress> {
        self.state = State::Text(quote, key);
        let digits = match c {
            'u' => 4,
            'x' => 2,
            'U' => 8,
            _ => 0,
        };
        if digits > 0 {
            self.word.clear();
            self.state = State::Digits(quote, key, digits);
            return Ok(Progress::More);
        }
        self.end_half(out)?;
        match c {
            'n' => escape('\n', out)?,
            't' => escape('\t', out)?,
            'r' => escape('\r', out)?,
            'b' => escape('\u{8}', out)?,
            'f' => escape('\u{c}', out)?,
            '"' | '\'' | '\\' | '/' => escape(c, out)?,
            // What is no escape is text, as in Python.
            _ => {
                escape('\\', out)?;
                escape(c, out)?;
            }
        }
        Ok(Progress::More)
    }

    fn push_digit(&mut self, c: char, quote: Quote, key: bool, left: u8, out: &mut String) -> Result<Progress> {
        if !c.is_ascii_hexdigit() {
            return Ok(Progress::Broken);
        }
        self.word.push(c);
        if left > 1 {
            self.state = State::Digits(quote, key, left - 1);
            return Ok(Progress::More);
        }
        self.state = State::Text(quote, key);
        let code = u32::from_str_radix(&self.word, 16).unwrap_or(0);
        match (self.high.take(), code) {
            (Some(high), 0xdc00..=0xdfff) => {
                let code = 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00);
                escape(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), out)?;
            }
            (high, _) => {
                self.high = high;
                self.end_half(out)?;
                match code {
                    0xd800..=0xdbff => self.high = Some(code),
                    code => escape(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), out)?,
                }
            }
        }
        Ok(Progress::More)
    }

    /// Replaces half a character whose other half has not come.
    fn end_half(&mut self, out: &mut String) -> Result<()> {
        if self.high.take().is_some() { escape(char::REPLACEMENT_CHARACTER, out) } else { Ok(()) }
    }
}

fn is_key(c: char) -> bool {
    c.is_alphanumeric() || "_-.$@".contains(c)
}

/// The JSON of a word or number without quotation marks, Python's words included.
pub(super) fn json_word(word: &str) -> Option<&str> {
    match word {
        "true" | "True" => Some("true"),
        "false" | "False" => Some("false"),
        "null" | "None" => Some("null"),
        number if is_number(number) => Some(number),
        _ => None,
    }
}

/// Whether `text` is a number of JSON.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(a, b)| (a, Some(b)));
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(a, b)| (a, Some(b)));
    let exponent = exponent.map(|exponent| exponent.strip_prefix(['+', '-']).unwrap_or(exponent));
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(digits)
}

/// Writes a character of a JSON string.
pub(super) fn escape(c: char, out: &mut String) -> Result<()> {
    match c {
        '"' => write(out, "\\\""),
        '\\' => write(out, "\\\\"),
        '\n' => write(out, "\\n"),
        '\r' => write(out, "\\r"),
        '\t' => write(out, "\\t"),
        c if c < ' ' => {
            let digit = |value: u32| char::from_digit(value, 16).unwrap_or('0');
            write(out, "\\u00")?;
            [c as u32 >> 4, c as u32 & 15]
                .into_iter()
                .try_for_each(|value| write(out, digit(value).encode_utf8(&mut [0; 4])))
        }
        c => write(out, c.encode_utf8(&mut [0; 4])),
    }
}

/// Writes the inside of a JSON string.
pub(in super::super) fn escape_all(text: &str, out: &mut String) -> Result<()> {
    text.chars().try_for_each(|c| escape(c, out))
}

/// The text of a JSON string that this module has written.
pub(super) fn unescaped(json: &str) -> Result<String> {
    let _backing = crate::error::backed(2 * json.len(), super::REPLY)?;
    serde_json::from_str(json).map_err(|_| Error::InvalidArgument("a name of a call is no text".into()))
}
