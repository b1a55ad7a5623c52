//! How `tokenizer.json` has text normalized and cut into words.
//!
//! Patterns there are those of the regular expressions of Oniguruma; ours know no look-around and take linear time. Of the look-aheads that
//! public files have, `\s+(?!\S)` becomes a rule for spaces; what holds others is refused. Possessive repetitions become plain ones: the
//! patterns that have them repeat what nothing behind them can match.

use super::{bad, unsupported};
use crate::error::{Error, Excerpt, Result, copied_text, push, reserve};
use crate::format::Item;
use crate::text::tokenizer::parts::{Alphabet, Normalizer, PrefixScope, PrefixSpace};
use crate::text::tokenizer::{Rule, Spaces};

/// What memory is for.
const PATTERNS: &str = "a pre-tokenizer";
/// Longest pattern, and most of them.
const MAX_PATTERN_BYTES: usize = 8 << 10;
const MAX_PATTERNS: usize = 16;

/// GPT-2's words, for which `tokenizer.json` has a name.
const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The white space that does not stand before text.
const TRAILING_SPACES: &str = r"\s+(?!\S)";
/// What stands for a space.
const ESCAPED: &str = "\u{2581}";

/// How text is normalized and cut.
pub(super) struct Words {
    patterns: Vec<(String, Spaces)>,
    /// Spelling of the normal tokens.
    pub(super) alphabet: Alphabet,
    /// What is done to text first.
    pub(super) normalizer: Normalizer<'static>,
    /// Where a space is put in front of text.
    pub(super) prefix_space: PrefixSpace,
}

/// Whether spaces are turned into U+2581.
#[derive(Clone, Copy, PartialEq)]
enum Escapes {
    No,
    Yes,
}

impl Words {
    /// Reads `normalizer` and `pre_tokenizer`.
    pub(super) fn read(root: Item) -> Result<Words> {
        let mut words = Words {
            patterns: Vec::new(),
            alphabet: Alphabet::Escaped,
            normalizer: Normalizer::None,
            prefix_space: PrefixSpace::NEVER,
        };
        let mut escapes = Escapes::No;
        for step in steps(root.get("normalizer"), "normalizers")? {
            words.normalize(step, &mut escapes)?;
        }
        for step in steps(root.get("pre_tokenizer"), "pretokenizers")? {
            words.cut(step, &mut escapes)?;
        }
        if words.alphabet == Alphabet::Escaped && escapes == Escapes::No {
            return Err(Error::Unsupported(
                "tokenizer.json: tokens that spell spaces as such are not supported".into(),
            ));
        }
        if words.alphabet == Alphabet::ByteLevel && escapes == Escapes::Yes {
            return Err(Error::Unsupported(
                "tokenizer.json: bytes of text with U+2581 for spaces are not supported".into(),
            ));
        }
        Ok(words)
    }

    /// The rules by which words are cut.
    pub(super) fn rules(&self) -> Result<Vec<Rule<'_>>> {
        let mut rules = reserve(self.patterns.len(), PATTERNS)?;
        rules.extend(self.patterns.iter().map(|(pattern, spaces)| Rule::Pattern(pattern, *spaces)));
        Ok(rules)
    }

    fn normalize(&mut self, step: Item, escapes: &mut Escapes) -> Result<()> {
        let is = |name: &str, value: &str| step.get(name).and_then(Item::text) == Some(value);
        match step.get("type").and_then(Item::text) {
            Some("NFC") if *escapes == Escapes::No => self.normalizer = Normalizer::Nfc,
            Some("Prepend") if is("prepend", ESCAPED) => {
                self.prefix_space = PrefixSpace { scope: PrefixScope::EveryText, unless_there: false };
            }
            Some("Replace") if is_space(step) && is("content", ESCAPED) => *escapes = Escapes::Yes,
            _ => return Err(unsupported("the normalizer", step.get("type").unwrap_or(step))),
        }
        Ok(())
    }

    fn cut(&mut self, step: Item, escapes: &mut Escapes) -> Result<()> {
        let flag = |name: &str, default: bool| step.get(name).and_then(Item::flag).unwrap_or(default);
        match step.get("type").and_then(Item::text) {
            Some("ByteLevel") if !flag("add_prefix_space", true) => {
                self.alphabet = Alphabet::ByteLevel;
                if flag("use_regex", true) { self.pattern(GPT2_WORDS) } else { Ok(()) }
            }
            Some("ByteLevel") => Err(unsupported("`add_prefix_space` of", step.get("type").unwrap_or(step))),
            Some("Digits") => self.pattern(if flag("individual_digits", false) { r"\p{N}" } else { r"\p{N}+" }),
            Some("Split") => self.split(step, *escapes),
            Some("Metaspace") if step.get("replacement").and_then(Item::text) == Some(ESCAPED) => {
                *escapes = Escapes::Yes;
                let scheme = step.get("prepend_scheme").and_then(Item::text);
                let scope = match scheme.unwrap_or(if flag("add_prefix_space", true) { "always" } else { "never" }) {
                    "always" => PrefixScope::EveryText,
                    "first" => PrefixScope::Beginning,
                    "never" => PrefixScope::Never,
                    _ => return Err(unsupported("a metaspace", step.get("prepend_scheme").unwrap_or(step))),
                };
                self.prefix_space = PrefixSpace { scope, unless_there: true };
                if flag("split", true) { self.pattern(" [^ ]*|[^ ]+") } else { Ok(()) }
            }
            _ => Err(unsupported("the pre-tokenizer", step.get("type").unwrap_or(step))),
        }
    }

    /// A cut at every match of a pattern.
    fn split(&mut self, step: Item, escapes: Escapes) -> Result<()> {
        // Where a space is something else by then, there is nothing to cut.
        if is_space(step) && escapes == Escapes::Yes {
            return Ok(());
        }
        let behaviour = step.get("behavior").and_then(Item::text);
        let inverts = step.get("invert").and_then(Item::flag) == Some(true);
        // Patterns that tell what to keep match all of a text, so that nothing is left to remove.
        if !matches!((behaviour, inverts), (Some("Isolated"), false) | (Some("Removed"), true)) {
            return Err(unsupported("a split whose behavior is", step.get("behavior").unwrap_or(step)));
        }
        let pattern = step.get("pattern");
        match pattern.and_then(|pattern| pattern.get("Regex")).and_then(Item::text) {
            Some(pattern) => self.pattern(pattern),
            None => {
                let text = pattern.and_then(|pattern| pattern.get("String")).and_then(Item::text);
                let text = text.filter(|text| !text.is_empty() && text.len() <= MAX_PATTERN_BYTES);
                let pattern = escaped(text.ok_or_else(|| bad("a split has no usable `pattern`"))?)?;
                self.keep(pattern, Spaces::Whole)
            }
        }
    }

    fn pattern(&mut self, pattern: &str) -> Result<()> {
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(bad(&format!("a pattern of {} bytes, at most {MAX_PATTERN_BYTES} are allowed", pattern.len())));
        }
        let plain = without_possessives(pattern)?;
        let (plain, spaces) = match plain.find(TRAILING_SPACES) {
            None => (plain, Spaces::Whole),
            Some(at) => without_trailing(&plain, at)?,
        };
        if ["(?!", "(?=", "(?<"].iter().any(|around| plain.contains(around)) {
            let pattern = Excerpt(pattern.as_bytes());
            return Err(Error::Unsupported(format!("tokenizer.json: the look-around of `{pattern}` is not supported")));
        }
        self.keep(plain, spaces)
    }

    fn keep(&mut self, pattern: String, spaces: Spaces) -> Result<()> {
        if self.patterns.len() == MAX_PATTERNS {
            return Err(bad(&format!("more than {MAX_PATTERNS} patterns")));
        }
        push(&mut self.patterns, (pattern, spaces), PATTERNS)
    }
}

/// The steps of a component, which may be a sequence.
fn steps<'a>(component: Option<Item<'a>>, list: &str) -> Result<Vec<Item<'a>>> {
    let mut steps = Vec::new();
    let Some(component) = component else { return Ok(steps) };
    if component.get("type").and_then(Item::text) != Some("Sequence") {
        push(&mut steps, component, PATTERNS)?;
        return Ok(steps);
    }
    for step in component.get(list).and_then(Item::elements).ok_or_else(|| bad("a sequence has no steps"))? {
        push(&mut steps, step, PATTERNS)?;
    }
    Ok(steps)
}

/// Whether the pattern of a step is a space.
fn is_space(step: Item) -> bool {
    step.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Item::text) == Some(" ")
}

/// A pattern for `text` itself.
fn escaped(text: &str) -> Result<String> {
    let mut pattern = copied_text("", PATTERNS)?;
    crate::error::grow_text(&mut pattern, 2 * text.len(), PATTERNS)?;
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    Ok(pattern)
}

/// `pattern` with `++`, `*+` and `?+` outside of classes as plain repetitions.
fn without_possessives(pattern: &str) -> Result<String> {
    let mut plain = copied_text("", PATTERNS)?;
    crate::error::grow_text(&mut plain, pattern.len(), PATTERNS)?;
    let (mut classes, mut last) = (0usize, None);
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        let repeats = classes == 0 && matches!(last, Some('+' | '*' | '?'));
        match c {
            '\\' => {
                plain.push(c);
                plain.extend(rest.next());
                last = None;
                continue;
            }
            '[' => classes += 1,
            ']' => classes = classes.saturating_sub(1),
            '+' if repeats => {
                last = None;
                continue;
            }
            _ => {}
        }
        plain.push(c);
        // A group's `(?` repeats nothing.
        last = Some(c).filter(|_| last != Some('('));
    }
    Ok(plain)
}

/// A pattern without its alternative for trailing spaces at byte `at`, and what becomes of spaces then.
fn without_trailing(pattern: &str, at: usize) -> Result<(String, Spaces)> {
    let (before, after) = (&pattern[..at], &pattern[at + TRAILING_SPACES.len()..]);
    let rest = after.strip_prefix('|').filter(|rest| rest.contains(r"\s+") && before.ends_with('|'));
    let rest = rest.ok_or_else(|| {
        let pattern = Excerpt(pattern.as_bytes());
        Error::Unsupported(format!("tokenizer.json: the look-around of `{pattern}` is not supported"))
    })?;
    let mut plain = copied_text(before, PATTERNS)?;
    crate::error::grow_text(&mut plain, rest.len(), PATTERNS)?;
    plain.push_str(rest);
    let ends_lines = before.contains(r"\s*[\r\n]") || rest.contains(r"\s*[\r\n]");
    Ok((plain, if ends_lines { Spaces::AheadInLine } else { Spaces::Ahead }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Document;

    fn words(json: &str) -> Result<Words> {
        Words::read(Document::read(json.as_bytes(), "tokenizer.json").unwrap().root())
    }

    #[test]
    fn patterns_lose_what_our_expressions_lack() {
        let plain = |pattern: &str| {
            let mut words =
                words(r#"{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}"#)
                    .unwrap();
            words.pattern(pattern).map(|()| words.patterns.remove(0))
        };
        assert_eq!(plain(GPT2_WORDS).unwrap(), (GPT2_WORDS.replace(r"\s+(?!\S)|", ""), Spaces::Ahead));
        let line = plain(r"[^\r\n\p{L}]?+\p{L}++|[+*+]++|\++|(?:a)?+|\s*[\r\n]+|\s+(?!\S)|\s+").unwrap();
        assert_eq!(line, (r"[^\r\n\p{L}]?\p{L}+|[+*+]+|\++|(?:a)?|\s*[\r\n]+|\s+".into(), Spaces::AheadInLine));
        for refused in [r"a(?=b)", r"(?<!a)b", r"\s+(?!\S)", r"x\s+(?!\S)|\s+", r"\s+(?!\s)|\s+"] {
            assert!(plain(refused).unwrap_err().to_string().contains("look-around"), "{refused}");
        }
        assert_eq!(escaped("a.b ").unwrap(), r"a\.b ");
    }

    #[test]
    fn steps_that_are_not_known_are_refused_by_name() {
        for (json, name) in [
            (r#"{"normalizer": {"type": "Lowercase"}}"#, "`Lowercase`"),
            (r#"{"normalizer": {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}}"#, "`Replace`"),
            (r#"{"pre_tokenizer": {"type": "Whitespace"}}"#, "`Whitespace`"),
            (r#"{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}}"#, "`add_prefix_space`"),
            (
                r#"{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext"}}"#,
                "`MergedWithNext`",
            ),
            (r#"{"pre_tokenizer": null}"#, "spell spaces as such"),
        ] {
            let message = words(json).err().unwrap().to_string();
            assert!(message.contains(name), "{json}: {message}");
        }
    }
}
