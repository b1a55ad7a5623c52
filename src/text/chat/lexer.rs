//! Cuts the source of a template into tokens, by Jinja's rules for white space, comments and raw blocks.
//!
//! With `trim_blocks` the line end behind a block or comment goes, with `lstrip_blocks` the spaces before one that begins
//! a line. A `-` at a tag takes all white space on its side, a `+` keeps it. Line ends must be `\n` ([`with_plain_line_ends`]).

use super::budget::failure;
use super::characters::{continues_name, is_space};
use super::value::VALUES;
use crate::error::{Error, Excerpt, Result, copied_text, push};
use std::borrow::Cow;

/// A token with the line that it begins on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'s> {
    /// What it is.
    pub(super) kind: Kind<'s>,
    /// From 1.
    pub(super) line: u32,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'s> {
    /// Text outside of tags.
    Data(&'s str),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    /// A name or keyword.
    Name(&'s str),
    /// The inside of a text literal, escapes and all.
    Text(&'s str),
    /// The digits of an integer, prefix included.
    Integer(&'s str),
    /// The digits of a float.
    Float(&'s str),
    /// An operator or bracket.
    Sign(&'static str),
    /// The end of the template.
    End,
}

impl std::fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Kind::Data(_) => f.write_str("text"),
            Kind::PrintBegin => f.write_str("'{{'"),
            Kind::PrintEnd => f.write_str("'}}'"),
            Kind::BlockBegin => f.write_str("'{%'"),
            Kind::BlockEnd => f.write_str("'%}'"),
            Kind::Name(name) => write!(f, "'{}'", Excerpt(name.as_bytes())),
            Kind::Text(_) => f.write_str("a text"),
            Kind::Integer(digits) | Kind::Float(digits) => write!(f, "'{}'", Excerpt(digits.as_bytes())),
            Kind::Sign(sign) => write!(f, "'{sign}'"),
            Kind::End => f.write_str("the end of the template"),
        }
    }
}

/// The operators and brackets, longer ones first.
const SIGNS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

/// The source with `\n` for every line end, and without the last one.
pub(super) fn with_plain_line_ends(source: &str) -> Result<Cow<'_, str>> {
    let mut plain = Cow::Borrowed(source);
    if source.contains('\r') {
        let mut text = copied_text("", VALUES)?;
        crate::error::grow_text(&mut text, source.len(), VALUES)?;
        for (index, line) in source.split('\r').enumerate() {
            let rest = line.strip_prefix('\n').filter(|_| index > 0);
            text.push_str(if index > 0 { "\n" } else { "" });
            text.push_str(rest.unwrap_or(line));
        }
        plain = Cow::Owned(text);
    }
    if plain.ends_with('\n') {
        plain = match plain {
            Cow::Borrowed(text) => Cow::Borrowed(&text[..text.len() - 1]),
            Cow::Owned(mut text) => {
                text.pop();
                Cow::Owned(text)
            }
        };
    }
    Ok(plain)
}

/// Where the lexer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    Print,
    Block,
}

/// What a tag begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    Print,
    Block,
    Comment,
}

/// Goes through a source, one token at a time.
pub(super) struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    place: Place,
    /// Whether the tag before ended with a line end.
    line_begins: bool,
    /// The closing brackets that are awaited.
    brackets: Vec<&'static str>,
}

impl<'s> Lexer<'s> {
    /// A lexer at the beginning of `source`.
    pub(super) fn new(source: &'s str) -> Lexer<'s> {
        Lexer { source, at: 0, line: 1, place: Place::Outside, line_begins: true, brackets: Vec::new() }
    }

    /// The line that has been reached.
    pub(super) fn line(&self) -> u32 {
        self.line
    }

    /// The next token; at the end [`Kind::End`], again and again.
    pub(super) fn next(&mut self) -> Result<Token<'s>> {
        loop {
            let line = self.line;
            let kind = match self.place {
                Place::Outside => self.outside()?,
                Place::Print | Place::Block => self.inside()?,
            };
            if let Some(kind) = kind {
                return Ok(Token { kind, line });
            }
        }
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// Goes over `bytes` bytes, which it returns.
    fn take(&mut self, bytes: usize) -> &'s str {
        let taken = &self.source[self.at..self.at + bytes];
        self.at += bytes;
        self.line += taken.bytes().filter(|&byte| byte == b'\n').count() as u32;
        taken
    }

    fn take_spaces(&mut self) {
        let rest = self.rest();
        self.take(rest.len() - rest.trim_start_matches(is_space).len());
    }

    /// Text up to the next tag, or that tag; nothing for a comment or a raw block without text.
    fn outside(&mut self) -> Result<Option<Kind<'s>>> {
        let rest = self.rest();
        let Some((len, opening)) = next_opening(rest) else {
            return Ok(Some(if rest.is_empty() { Kind::End } else { Kind::Data(self.take(rest.len())) }));
        };
        if len > 0 {
            let kept = self.kept(&rest[..len], &rest[len + 2..], opening);
            self.take(len);
            self.line_begins = false;
            if !kept.is_empty() {
                return Ok(Some(Kind::Data(kept)));
            }
        }
        if opening == Opening::Block
            && let Some(begin) = raw_begin(self.rest())
        {
            return self.raw(begin);
        }
        let signed = self.rest()[2..].starts_with(['-', '+']);
        self.take(2 + usize::from(signed));
        match opening {
            Opening::Comment => self.comment().map(|()| None),
            Opening::Block => {
                self.place = Place::Block;
                Ok(Some(Kind::BlockBegin))
            }
            Opening::Print => {
                self.place = Place::Print;
                Ok(Some(Kind::PrintBegin))
            }
        }
    }

    /// What stays of `text` before a tag; `tag` is what follows the two characters that open it.
    fn kept(&self, text: &'s str, tag: &str, opening: Opening) -> &'s str {
        if tag.starts_with('-') {
            return text.trim_end_matches(is_space);
        }
        let line = text.rfind('\n').map_or(0, |end| end + 1);
        let strips = opening != Opening::Print && !tag.starts_with('+') && (line > 0 || self.line_begins);
        if strips && text[line..].chars().all(is_space) { &text[..line] } else { text }
    }

    fn comment(&mut self) -> Result<()> {
        if self.rest().is_empty() {
            return Ok(());
        }
        let Some(end) = self.rest().find("#}") else { return failure("a comment has no end, '#}' is missing") };
        let sign = self.rest()[..end].chars().next_back();
        self.take(end + 2);
        self.after_tag(sign);
        Ok(())
    }

    /// White space behind the end of a block or comment, which `sign` stands before.
    fn after_tag(&mut self, sign: Option<char>) {
        let before = self.at;
        match sign {
            Some('-') => self.take_spaces(),
            Some('+') => {}
            _ => drop(self.take(usize::from(self.rest().starts_with('\n')))),
        }
        self.line_begins = self.source[before..self.at].ends_with('\n');
    }

    /// The text of a raw block whose first tag has `begin` bytes.
    fn raw(&mut self, begin: usize) -> Result<Option<Kind<'s>>> {
        let tag = self.take(begin);
        self.line_begins = tag.ends_with('\n');
        let rest = self.rest();
        if rest.is_empty() {
            return Ok(None);
        }
        let mut from = 0;
        while let Some(at) = rest[from..].find("{%").map(|at| from + at) {
            let tag = &rest[at + 2..];
            if let Some((len, sign)) = tag_named(tag, "endraw") {
                let kept = self.kept(&rest[..at], tag, Opening::Block);
                self.take(at + 2 + len);
                self.after_tag(sign);
                return Ok((!kept.is_empty()).then_some(Kind::Data(kept)));
            }
            from = at + 2;
        }
        failure("a raw block has no end, '{% endraw %}' is missing")
    }

    /// A token of a tag, or its end; nothing for white space.
    fn inside(&mut self) -> Result<Option<Kind<'s>>> {
        let rest = self.rest();
        if rest.is_empty() {
            return Ok(Some(Kind::End));
        }
        if self.brackets.is_empty()
            && let Some(end) = self.tag_end()
        {
            self.place = Place::Outside;
            return Ok(Some(end));
        }
        if rest.starts_with(is_space) {
            self.take_spaces();
            return Ok(None);
        }
        let behind_dot = self.source[..self.at].ends_with('.');
        if let Some((len, is_float)) = number(rest, behind_dot) {
            let digits = self.take(len);
            return Ok(Some(if is_float { Kind::Float(digits) } else { Kind::Integer(digits) }));
        }
        let name = rest.find(|c: char| !continues_name(c)).unwrap_or(rest.len());
        if name > 0 {
            return Ok(Some(Kind::Name(self.take(name))));
        }
        if let Some(len) = quoted(rest) {
            return Ok(Some(Kind::Text(&self.take(len)[1..len - 1])));
        }
        self.sign().map(Some)
    }

    fn tag_end(&mut self) -> Option<Kind<'s>> {
        let rest = self.rest();
        let prints = self.place == Place::Print;
        let sign = rest.chars().next().filter(|&c| c == '-' || (c == '+' && !prints));
        let (end, kind) = if prints { ("}}", Kind::PrintEnd) } else { ("%}", Kind::BlockEnd) };
        if !rest[sign.map_or(0, char::len_utf8)..].starts_with(end) {
            return None;
        }
        self.take(2 + sign.map_or(0, char::len_utf8));
        if prints && sign.is_none() {
            self.line_begins = false;
        } else {
            self.after_tag(sign);
        }
        Some(kind)
    }

    fn sign(&mut self) -> Result<Kind<'s>> {
        let Some(&sign) = SIGNS.iter().find(|&&sign| self.rest().starts_with(sign)) else {
            let shown: String = self.rest().chars().take(1).collect();
            return failure(format!("unexpected character {shown:?}"));
        };
        match sign {
            "(" => push(&mut self.brackets, ")", VALUES)?,
            "[" => push(&mut self.brackets, "]", VALUES)?,
            "{" => push(&mut self.brackets, "}", VALUES)?,
            ")" | "]" | "}" => match self.brackets.pop() {
                Some(awaited) if awaited == sign => {}
                Some(awaited) => return failure(format!("unexpected '{sign}', expected '{awaited}'")),
                None => return failure(format!("unexpected '{sign}'")),
            },
            _ => {}
        }
        self.take(sign.len());
        Ok(Kind::Sign(sign))
    }
}

/// Where the next tag begins, and of what kind it is.
fn next_opening(text: &str) -> Option<(usize, Opening)> {
    text.match_indices('{').find_map(|(at, _)| {
        let opening = match text.as_bytes().get(at + 1)? {
            b'{' => Opening::Print,
            b'%' => Opening::Block,
            b'#' => Opening::Comment,
            _ => return None,
        };
        Some((at, opening))
    })
}

/// Bytes of the `{% raw %}` that `text` begins with; no line end belongs to it, but the white space that a `-` takes.
fn raw_begin(text: &str) -> Option<usize> {
    let (len, sign) = tag_named(&text[2..], "raw")?;
    let end = 2 + len;
    match sign {
        Some('+') => None,
        Some(_) => Some(text.len() - text[end..].trim_start_matches(is_space).len()),
        None => Some(end),
    }
}

/// The length of the tag of nothing but `name` that `text`, behind `{%`, begins with, and the sign before its end.
fn tag_named(text: &str, name: &str) -> Option<(usize, Option<char>)> {
    let inner = text.strip_prefix(['-', '+']).unwrap_or(text).trim_start_matches(is_space);
    let inner = inner.strip_prefix(name)?.trim_start_matches(is_space);
    let sign = inner.chars().next().filter(|c| matches!(c, '-' | '+'));
    let rest = inner[sign.map_or(0, char::len_utf8)..].strip_prefix("%}")?;
    Some((text.len() - rest.len(), sign))
}

/// The length of the number that `text` begins with, and whether it is a float; `a.1.5` has none.
fn number(text: &str, behind_dot: bool) -> Option<(usize, bool)> {
    let whole = digits(text, 10);
    if whole == 0 {
        return None;
    }
    if !behind_dot {
        let fraction = text[whole..].strip_prefix('.').map_or(0, |rest| digits(rest, 10));
        let mut end = if fraction > 0 { whole + 1 + fraction } else { whole };
        if let Some(rest) = text[end..].strip_prefix(['e', 'E']) {
            let power = rest.strip_prefix(['+', '-']).unwrap_or(rest);
            let len = digits(power, 10);
            if len > 0 {
                end = text.len() - power.len() + len;
            }
        }
        if end > whole {
            return Some((end, true));
        }
    }
    let radix = match text.as_bytes().get(1) {
        Some(b'b' | b'B') => 2,
        Some(b'o' | b'O') => 8,
        Some(b'x' | b'X') => 16,
        _ => 10,
    };
    if text.starts_with('0') && radix != 10 {
        let rest = text[2..].strip_prefix('_').unwrap_or(&text[2..]);
        let len = digits(rest, radix);
        if len > 0 {
            return Some((text.len() - rest.len() + len, false));
        }
    }
    // A number of several digits does not begin with zero, but zero may be written with several.
    Some((if text.starts_with('0') { digits(text, 1) } else { whole }, false))
}

/// The length of digits with single `_` between them; of radix 1 are zeros alone.
fn digits(text: &str, radix: u32) -> usize {
    let is_digit = |byte: u8| if radix == 1 { byte == b'0' } else { char::from(byte).is_digit(radix) };
    let mut len = 0;
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        let joins = byte == b'_' && len > 0 && bytes.peek().is_some_and(|&(_, next)| is_digit(next));
        if !is_digit(byte) && !joins {
            break;
        }
        len = at + 1;
    }
    len
}

/// The length of the text literal that `text` begins with.
fn quoted(text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map(|(at, _)| at + 1)
}

/// What a literal says: its escapes are Python's.
pub(super) fn unescaped(literal: &str) -> Result<String> {
    let mut text = copied_text("", VALUES)?;
    text.try_reserve_exact(literal.len()).map_err(|_| Error::out_of_memory(VALUES, literal.len()))?;
    let mut rest = literal;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let mut characters = after.chars();
        let named = match characters.next() {
            Some('\n') => None,
            Some('a') => Some('\u{7}'),
            Some('b') => Some('\u{8}'),
            Some('f') => Some('\u{c}'),
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('v') => Some('\u{b}'),
            Some(c @ ('\\' | '\'' | '"')) => Some(c),
            Some(c @ ('x' | 'u' | 'U' | '0'..='7')) => {
                let (character, len) = by_number(c, after)?;
                text.push(character);
                rest = &after[len..];
                continue;
            }
            Some('N') => return failure("characters by name (\\N{...}) are not supported in texts, write \\uXXXX"),
            Some(other) => {
                text.push('\\');
                Some(other)
            }
            None => Some('\\'),
        };
        text.extend(named);
        rest = characters.as_str();
    }
    text.push_str(rest);
    Ok(text)
}

/// The character of an escape with a number, whose first character is `kind`, and the bytes of that escape.
fn by_number(kind: char, escape: &str) -> Result<(char, usize)> {
    let (from, most, radix) = match kind {
        'x' => (1, 2, 16),
        'u' => (1, 4, 16),
        'U' => (1, 8, 16),
        _ => (0, 3, 8),
    };
    let digits = escape[from..].bytes().take(most).take_while(|&byte| char::from(byte).is_digit(radix)).count();
    let number = u32::from_str_radix(&escape[from..from + digits], radix).ok();
    let enough = radix == 8 || digits == most;
    match number.and_then(char::from_u32).filter(|_| enough) {
        Some(character) => Ok((character, from + digits)),
        None => failure(format!("bad escape \\{} in a text", &escape[..from + digits])),
    }
}
