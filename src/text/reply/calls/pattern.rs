//! Regular expressions of schemas, which are found anywhere in a text, as expressions that a whole text matches.

use crate::error::{Error, Excerpt, Result};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look};

/// Deepest nesting of an expression.
const NESTING: u32 = 100;

/// What identifiers, addresses and the like look like; dates and times are expressions by then.
const FORMATS: [(&str, &str); 5] = [
    ("uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    (
        "email",
        "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+",
    ),
    ("ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"),
    ("uri", "[a-zA-Z][a-zA-Z0-9+.-]*:(//)?[A-Za-z0-9._~:/?#@!$&'()*+,;=-]+"),
    ("hostname", "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"),
];

/// The expression of a `format`.
pub(super) fn of_format(name: &str) -> Option<&'static str> {
    FORMATS.iter().find(|(known, _)| *known == name).map(|(_, pattern)| *pattern)
}

/// The expression that a whole text matches where `pattern` is found in it.
pub(super) fn whole(pattern: &str) -> Result<String> {
    let shown = Excerpt(pattern.as_bytes());
    let parsed = ParserBuilder::new().nest_limit(NESTING).build().parse(&ascii(pattern));
    let parsed = parsed.map_err(|_| Error::Grammar(format!("the pattern `{shown}` is no regular expression")))?;
    let text = anchored(&parsed);
    let is_plain = ParserBuilder::new().build().parse(&text).is_ok_and(|hir| hir.properties().look_set().is_empty());
    if !is_plain {
        return Err(Error::Grammar(format!(
            "the pattern `{shown}` has `^`, `$`, `\\b` or the like inside, which cannot be watched"
        )));
    }
    Ok(text)
}

/// `hir` with anything before and behind it, but at ends that it ties to those of the text.
fn anchored(hir: &Hir) -> String {
    match hir.kind() {
        HirKind::Alternation(branches) => {
            let branches: Vec<String> = branches.iter().map(anchored).collect();
            format!("({})", branches.join("|"))
        }
        HirKind::Capture(capture) => anchored(&capture.sub),
        _ => {
            let one = [hir.clone()];
            let items = if let HirKind::Concat(items) = hir.kind() { &items[..] } else { &one[..] };
            let is = |item: Option<&Hir>, look: Look| item.is_some_and(|item| *item.kind() == HirKind::Look(look));
            let (starts, ends) = (is(items.first(), Look::Start), is(items.last(), Look::End));
            let inner = items.get(usize::from(starts)..items.len() - usize::from(ends)).unwrap_or_default();
            let inner: String = inner.iter().map(|item| format!("({item})")).collect();
            let (before, behind) = (if starts { "" } else { "(?s:.*)" }, if ends { "" } else { "(?s:.*)" });
            format!("{before}{inner}{behind}")
        }
    }
}

/// `\d` and `\w` as JavaScript has them: of ASCII alone.
fn ascii(pattern: &str) -> String {
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let escaped = if c == '\\' { chars.next() } else { None };
        match escaped {
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            Some('/') => out.push('/'),
            Some(escaped) => out.extend([c, escaped]),
            None => out.push(c),
        }
    }
    out
}

/// An expression between slashes, as Lark has it.
pub(super) fn slashed(pattern: &str) -> String {
    let mut out = String::from("/");
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend([c, chars.next().unwrap_or('\\')]),
            '/' => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('/');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        let whole = format!("^(?:{})$", whole(pattern).unwrap());
        regex_automata::meta::Regex::new(&whole).unwrap().is_match(text)
    }

    #[test]
    fn patterns_are_found_anywhere_but_where_they_are_tied() {
        for (pattern, fits, not) in [
            ("b", "abc", "ac"),
            ("^b", "bc", "abc"),
            ("b$", "ab", "abc"),
            ("^b$", "b", "ab"),
            ("^a|b$", "xxb", "xa"),
            ("^(a|b)$", "a", "ab"),
            ("^(foo|bar)/\\d+$", "foo/12", "foo/x"),
            ("^[\\w-]+$", "a_b-1", "é"),
            ("^a\\/b$", "a/b", "ab"),
            ("^\\$[0-9]\\$$", "$1$", "1"),
        ] {
            assert!(matches(pattern, fits) && !matches(pattern, not), "{pattern}");
        }
        assert!(whole("a^b").is_err() && whole("(").is_err() && whole("\\bword\\b").is_err());
    }

    #[test]
    fn formats_are_what_they_say() {
        for (name, fits, not) in [
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
            ("email", "a.b@c.de", "a@"),
            ("ipv4", "255.1.20.0", "256.1.1.1"),
            ("uri", "https://a.b/c?d=e", "a b"),
            ("hostname", "a-b.c", "-a"),
        ] {
            let pattern = format!("^({})$", of_format(name).unwrap());
            assert!(matches(&pattern, fits) && !matches(&pattern, not), "{name}");
        }
        assert_eq!(of_format("iri"), None);
        assert_eq!(slashed("a/b\\/c"), "/a\\/b\\/c/");
    }
}
