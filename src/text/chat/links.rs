//! The filter `urlize`: addresses of the web and of mail become links.

use super::arguments::Arguments;
use super::budget::{Budget, failure};
use super::characters::{decimal, is_space, is_word};
use super::heap::{Buffer, Str, Text};
use super::markup::{escaped, marked};
use super::value::Value;
use crate::error::{Excerpt, Result};

/// Units of work for a byte of a word: it is searched for brackets and looked at by several rules.
const WORD_UNITS: usize = 48;
/// The top-level domains that make an address of a word without `www.` and scheme.
const TOP_LEVEL: [&str; 8] = ["com", "net", "int", "edu", "gov", "org", "info", "mil"];
/// Brackets of either side; what closes one that an address opens belongs to it.
const BRACKETS: [(&str, &str); 3] = [("(", ")"), ("<", ">"), ("&lt;", "&gt;")];

/// What links look like.
struct Links {
    limit: Option<i128>,
    attributes: Str,
    schemes: Buffer<Str>,
}

/// The filter.
pub(super) fn urlize(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value> {
    let text = escaped(budget, value)?;
    let links = Links::of(budget, arguments)?;
    let mut out = Text::new(budget);
    let mut rest = &*text;
    while !rest.is_empty() {
        let word = &rest[..rest.find(is_space).unwrap_or(rest.len())];
        let behind = &rest[word.len()..];
        let spaces = &behind[..behind.find(|c| !is_space(c)).unwrap_or(behind.len())];
        budget.work(word.len().saturating_mul(WORD_UNITS))?;
        links.push_word(&mut out, word)?;
        out.push(spaces)?;
        rest = &behind[spaces.len()..];
    }
    if arguments.escapes { marked(budget, out.value()) } else { Ok(out.value()) }
}

impl Links {
    fn of(budget: &Budget, arguments: &Arguments) -> Result<Links> {
        let mut relations = Buffer::of(budget, ["noopener"])?;
        let given = arguments.optional_text(3, "rel")?.unwrap_or("");
        given.split(is_space).filter(|word| !word.is_empty()).try_for_each(|word| relations.push(word))?;
        if arguments.flag(1, "nofollow") {
            relations.push("nofollow")?;
        }
        budget.work(given.len().saturating_mul(WORD_UNITS))?;
        relations.sort_unstable();
        let mut relation = Text::new(budget);
        for (index, word) in
            relations.iter().enumerate().filter(|&(index, word)| index == 0 || relations[index - 1] != *word)
        {
            relation.push(if index > 0 { " " } else { "" })?;
            relation.push(word)?;
        }
        let mut attributes = Text::new(budget);
        let target = arguments.optional_text(2, "target")?.filter(|target| !target.is_empty());
        let target = target.map(|target| Value::text(budget, target)).transpose()?;
        for (name, value) in [(" rel=\"", Some(relation.value())), (" target=\"", target)] {
            let Some(value) = value else { continue };
            attributes.push(name)?;
            attributes.push(&escaped(budget, &value)?)?;
            attributes.push("\"")?;
        }
        let mut schemes = Buffer::new(budget);
        if let Some(given) = arguments.get(4, "extra_schemes").filter(|given| !matches!(given, Value::None)) {
            for scheme in given.iterate(budget)?.iter() {
                match scheme {
                    Value::Text(scheme) if is_scheme(scheme) => schemes.push(scheme.clone())?,
                    Value::Text(other) => {
                        return failure(format!("'{}' is not a valid URI scheme prefix", Excerpt(other.as_bytes())));
                    }
                    other => return failure(format!("a scheme must be text, not {}", other.type_name())),
                }
            }
        }
        Ok(Links { limit: arguments.optional_int(0, "trim_url_limit")?, attributes: attributes.finish(), schemes })
    }

    fn push_word(&self, out: &mut Text, word: &str) -> Result<()> {
        let (head, middle, tail) = parts(word);
        out.push(head)?;
        let starts = |start: &str| middle.starts_with(start);
        if is_web(middle) {
            let scheme = if starts("https://") || starts("http://") { "" } else { "https://" };
            self.push_link(out, scheme, middle)?;
        } else if let Some(address) = middle.strip_prefix("mailto:").filter(|address| is_mail(address)) {
            push_plain_link(out, "", middle, address)?;
        } else if !starts("www.") && !starts("@") && !middle.contains(':') && is_mail(middle) {
            push_plain_link(out, "mailto:", middle, middle)?;
        } else if self.schemes.iter().any(|scheme| middle != &**scheme && starts(scheme)) {
            for part in ["<a href=\"", middle, "\"", &self.attributes, ">", middle, "</a>"] {
                out.push(part)?;
            }
        } else {
            out.push(middle)?;
        }
        out.push(tail)
    }

    fn push_link(&self, out: &mut Text, scheme: &str, address: &str) -> Result<()> {
        for part in ["<a href=\"", scheme, address, "\"", &self.attributes, ">"] {
            out.push(part)?;
        }
        let len = address.chars().count() as i128;
        match self.limit.filter(|&limit| len > limit) {
            None => out.push(address)?,
            Some(limit) => {
                let kept = if limit < 0 { (len + limit).max(0) } else { limit };
                let end = address.char_indices().nth(kept as usize).map_or(address.len(), |(at, _)| at);
                out.push(&address[..end])?;
                out.push("...")?;
            }
        }
        out.push("</a>")
    }
}

fn push_plain_link(out: &mut Text, scheme: &str, address: &str, text: &str) -> Result<()> {
    ["<a href=\"", scheme, address, "\">", text, "</a>"].into_iter().try_for_each(|part| out.push(part))
}

/// What stands before an address, the address, and what stands behind it.
fn parts(word: &str) -> (&str, &str, &str) {
    let mut middle = word;
    while let Some(rest) = ["(", "<", "&lt;"].iter().find_map(|open| middle.strip_prefix(open)) {
        middle = rest;
    }
    let head = &word[..word.len() - middle.len()];
    let mut end = middle;
    while let Some(rest) = [")", ">", ".", ",", "\n", "&gt;"].iter().find_map(|close| end.strip_suffix(close)) {
        end = rest;
    }
    let mut len = end.len();
    for (open, close) in BRACKETS {
        let opened = middle[..len].matches(open).count();
        if opened <= middle[..len].matches(close).count() {
            continue;
        }
        for _ in 0..opened.min(middle[len..].matches(close).count()) {
            len += middle[len..].find(close).map_or(0, |at| at + close.len());
        }
    }
    (head, &middle[..len], &middle[len..])
}

/// A label of a host's name.
fn is_label(label: &str) -> bool {
    !label.is_empty() && label.chars().all(|c| is_word(c) || matches!(c, '%' | '-'))
}

fn without_prefix<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Whether the text is an address of the web, with a scheme, `www.`, or a common domain.
fn is_web(text: &str) -> bool {
    let schemed = ["https://", "http://"].iter().find_map(|scheme| without_prefix(text, scheme));
    let named = |rest: &str| host(rest).is_some_and(|(host, behind)| has_top_level(host) && ends(behind));
    if schemed.is_some_and(|rest| named(rest) || is_number(rest)) || without_prefix(text, "www.").is_some_and(named) {
        return true;
    }
    let Some((labels, top)) = host(text).filter(|(_, behind)| ends(behind)).and_then(|(host, _)| host.rsplit_once('.'))
    else {
        return false;
    };
    let fits = |label: &str| is_label(label) && (2..=63).contains(&label.chars().count());
    labels.split('.').all(fits) && TOP_LEVEL.iter().any(|other| top.eq_ignore_ascii_case(other))
}

/// The characters that may be a host's name, and what is behind them.
fn host(text: &str) -> Option<(&str, &str)> {
    let len = text.find(|c| !(is_word(c) || matches!(c, '%' | '-' | '.'))).unwrap_or(text.len());
    (len > 0).then(|| text.split_at(len))
}

/// Whether the last part of a host's name may be that of a top-level domain, and all parts before it are labels.
fn has_top_level(host: &str) -> bool {
    let (labels, top) = host.rsplit_once('.').map_or((None, host), |(labels, top)| (Some(labels), top));
    let len = top.chars().count();
    let is_plain = (2..=63).contains(&len) && top.bytes().all(|byte| byte.is_ascii_alphabetic());
    let encoded = without_prefix(top, "xn--");
    let is_encoded = encoded
        .is_some_and(|rest| (2..=59).contains(&rest.chars().count()) && rest.chars().all(|c| is_word(c) || c == '%'));
    (is_plain || is_encoded) && labels.is_none_or(|labels| labels.split('.').all(is_label))
}

/// Whether a port, a path or nothing stands behind a host.
fn ends(text: &str) -> bool {
    let path = match text.strip_prefix(':') {
        Some(rest) => {
            let digits = rest.chars().take_while(|&c| decimal(c).is_some()).count();
            let behind = rest.trim_start_matches(|c| decimal(c).is_some());
            if !(1..=5).contains(&digits) {
                return false;
            }
            behind
        }
        None => text,
    };
    path.is_empty() || path.starts_with(['/', '?', '#'])
}

/// Whether an address by number, of either version, begins the text, and a port or path follows.
fn is_number(text: &str) -> bool {
    if let Some((inner, behind)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return is_version_six(inner) && ends(behind);
    }
    let Some((numbers, behind)) = host(text) else { return false };
    let mut parts = numbers.split('.');
    let fits = |part: &str| (1..=3).contains(&part.chars().count()) && part.chars().all(|c| decimal(c).is_some());
    parts.by_ref().take(4).filter(|part| fits(part)).count() == 4 && parts.next().is_none() && ends(behind)
}

/// Two groups of up to four digits with their colons, and up to six more, of which a colon may be missing.
fn is_version_six(text: &str) -> bool {
    let digits = |text: &str| text.bytes().take(4).take_while(u8::is_ascii_hexdigit).count();
    let mut rest = text;
    for _ in 0..2 {
        let Some(behind) = rest[digits(rest)..].strip_prefix(':') else { return false };
        rest = behind;
    }
    for _ in 0..6 {
        rest = &rest[digits(rest)..];
        rest = rest.strip_prefix(':').unwrap_or(rest);
    }
    rest.is_empty()
}

/// Whether the text is an address of mail.
fn is_mail(text: &str) -> bool {
    let Some((name, domain)) = text.rsplit_once('@') else { return false };
    let Some((labels, top)) = domain.rsplit_once('.') else { return false };
    let fits = |label: &str| label.chars().all(|c| is_word(c) || matches!(c, '.' | '-'));
    !name.is_empty() && labels.starts_with(is_word) && fits(labels) && !top.is_empty() && top.chars().all(is_word)
}

/// A scheme with its colon.
fn is_scheme(text: &str) -> bool {
    let Some((name, slashes)) = text.split_once(':') else { return false };
    let fits = name.chars().all(|c| is_word(c) || matches!(c, '.' | '+' | '-'));
    matches!(slashes, "" | "/" | "//") && name.chars().count() >= 2 && fits
}
