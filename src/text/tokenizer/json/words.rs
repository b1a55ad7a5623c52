//! How `tokenizer.json` has text normalized and cut into words.
//!
//! A character map (`Precompiled`) is read as SentencePiece reads it; the crate `tokenizers` takes the shortest match within a grapheme of up to
//! five bytes, and leaves out the rest.
//!
//! Patterns there are those of the regular expressions of Oniguruma; ours know no look-around and take linear time. Of the look-aheads that
//! public files have, `\s+(?!\S)` becomes a rule for spaces; what holds others is refused. Possessive repetitions become plain ones: the
//! patterns that have them repeat what nothing behind them can match.

use super::models::Type;
use super::{bad, unsupported};
use crate::error::{Error, Excerpt, Result, copied_text, push, reserve};
use crate::format::Item;
use crate::text::tokenizer::parts::{Alphabet, BertRules, Normalizer, PrefixScope, PrefixSpace, Runs, SpaceSteps};
use crate::text::tokenizer::{Rule, Spaces};

/// What memory is for.
const PATTERNS: &str = "a pre-tokenizer";
/// Longest pattern, and most of them.
const MAX_PATTERN_BYTES: usize = 8 << 10;
const MAX_PATTERNS: usize = 16;

/// GPT-2's words, for which `tokenizer.json` has a name.
const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// A character of punctuation, and a run of them: of ASCII's symbols all are such.
const PUNCTUATION: &str = r"[\p{P}$+<=>^`|~]";
const PUNCTUATION_RUN: &str = r"[\p{P}$+<=>^`|~]+";
/// The white space that does not stand before text.
const TRAILING_SPACES: &str = r"\s+(?!\S)";
/// What stands for a space.
const ESCAPED: &str = "\u{2581}";

/// How text is normalized and cut.
pub(super) struct Words {
    patterns: Vec<(String, Spaces)>,
    /// Spelling of the normal tokens.
    pub(super) alphabet: Alphabet,
    /// What is done to characters first.
    characters: Characters,
    /// What is done to spaces then.
    pub(super) spaces: SpaceSteps,
    /// How far the steps have come.
    stage: Stage,
}

/// What is done to characters.
enum Characters {
    Nothing,
    Nfc,
    Charsmap(Vec<u8>),
    Bert(BertRules),
}

/// The steps that text takes, in the order in which they are understood.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Stage {
    /// Nothing is done yet.
    Raw,
    /// Characters are what they will be.
    Characters,
    /// No white space stands at the ends that lose it.
    Stripped,
    /// Runs of spaces are what they will be.
    Runs,
    /// Words are told apart as BERT does.
    Words,
    /// Spaces are U+2581.
    Escaped,
}

impl Words {
    /// Reads `normalizer` and `pre_tokenizer` for a model of type `model`.
    pub(super) fn read(root: Item, model: Type) -> Result<Words> {
        let mut words = Words {
            patterns: Vec::new(),
            alphabet: Alphabet::Escaped,
            characters: Characters::Nothing,
            spaces: SpaceSteps::NONE,
            stage: Stage::Raw,
        };
        for step in steps(root.get("normalizer"), "normalizers")? {
            words.normalize(step)?;
        }
        for step in steps(root.get("pre_tokenizer"), "pretokenizers")? {
            words.cut(step)?;
        }
        match words.problem(model) {
            None => Ok(words),
            Some(problem) => Err(Error::Unsupported(format!("tokenizer.json: {problem} are not supported"))),
        }
    }

    /// Steps that a model of type `model` does not take together.
    fn problem(&self, model: Type) -> Option<&'static str> {
        let spaces = SpaceSteps { prefix_space: self.spaces.prefix_space, ..SpaceSteps::NONE };
        match (model, self.alphabet) {
            (Type::BytePair, Alphabet::ByteLevel) => (self.spaces != SpaceSteps::NONE
                || self.stage > Stage::Characters)
                .then_some("bytes of text whose spaces are no longer as they were"),
            (Type::Unigram, Alphabet::ByteLevel) => Some("unigram models of bytes"),
            (Type::BytePair | Type::Unigram, Alphabet::Escaped) if self.stage < Stage::Escaped => {
                Some("tokens that spell spaces as such")
            }
            (Type::BytePair, Alphabet::Escaped) => {
                (self.spaces != spaces).then_some("merges of text that loses spaces")
            }
            (Type::Unigram, Alphabet::Escaped) => None,
            (Type::WordPiece, _) => {
                let is_bert = matches!(self.characters, Characters::Bert(_)) && self.stage == Stage::Words;
                let is_all = self.spaces == SpaceSteps::NONE && self.patterns.is_empty();
                (!is_bert || !is_all || self.alphabet != Alphabet::Escaped)
                    .then_some("WordPiece models of other words than BERT's")
            }
        }
    }

    /// The rules by which words are cut.
    pub(super) fn rules(&self) -> Result<Vec<Rule<'_>>> {
        let mut rules = reserve(self.patterns.len(), PATTERNS)?;
        rules.extend(self.patterns.iter().map(|(pattern, spaces)| Rule::Pattern(pattern, *spaces)));
        Ok(rules)
    }

    /// What is done to text before it is cut.
    pub(super) fn normalizer(&self) -> Normalizer<'_> {
        match &self.characters {
            Characters::Nothing => Normalizer::None,
            Characters::Nfc => Normalizer::Nfc,
            Characters::Charsmap(map) => Normalizer::Charsmap(map),
            Characters::Bert(rules) => Normalizer::Bert(*rules),
        }
    }

    fn normalize(&mut self, step: Item) -> Result<()> {
        let is = |name: &str, value: &str| step.get(name).and_then(Item::text) == Some(value);
        let flag = |name: &str| step.get(name).and_then(Item::flag);
        let stage = match step.get("type").and_then(Item::text) {
            Some("NFC") => {
                self.characters = Characters::Nfc;
                Stage::Characters
            }
            Some("Precompiled") => {
                let map = step.get("precompiled_charsmap").and_then(Item::text).map(base64).transpose()?.flatten();
                let map = map.ok_or_else(|| bad("`precompiled_charsmap` is not in base64"))?;
                self.characters = if map.is_empty() { Characters::Nothing } else { Characters::Charsmap(map) };
                Stage::Characters
            }
            Some("BertNormalizer")
                if flag("clean_text") != Some(false) && flag("handle_chinese_chars") != Some(false) =>
            {
                let lowercase = flag("lowercase").unwrap_or(true);
                let strip_accents = flag("strip_accents").unwrap_or(lowercase);
                self.characters = Characters::Bert(BertRules { lowercase, strip_accents });
                Stage::Characters
            }
            Some("Strip") => {
                self.spaces.strip_start = flag("strip_left").unwrap_or(true);
                self.spaces.strip_end = flag("strip_right").unwrap_or(true);
                Stage::Stripped
            }
            Some("Replace") if is_runs(step) && (is("content", ESCAPED) || is("content", " ")) => {
                self.spaces.runs = Runs::Joined;
                Stage::Runs
            }
            Some("Prepend") if is("prepend", ESCAPED) => {
                self.spaces.prefix_space = PrefixSpace { scope: PrefixScope::EveryText, unless_there: false };
                return Ok(());
            }
            Some("Replace") if is_space(step) && is("content", ESCAPED) => Stage::Escaped,
            _ => return Err(unsupported("the normalizer", step.get("type").unwrap_or(step))),
        };
        // In another order they would do something else, as they would behind a space that was put in front.
        let prefixes = self.spaces.prefix_space != PrefixSpace::NEVER;
        if stage <= self.stage || prefixes && stage != Stage::Escaped {
            return Err(unsupported("at its place the normalizer", step.get("type").unwrap_or(step)));
        }
        self.stage = stage;
        Ok(())
    }

    fn cut(&mut self, step: Item) -> Result<()> {
        let flag = |name: &str, default: bool| step.get(name).and_then(Item::flag).unwrap_or(default);
        match step.get("type").and_then(Item::text) {
            Some("ByteLevel") if !flag("add_prefix_space", true) => {
                self.alphabet = Alphabet::ByteLevel;
                if flag("use_regex", true) { self.pattern(GPT2_WORDS) } else { Ok(()) }
            }
            Some("ByteLevel") => Err(unsupported("`add_prefix_space` of", step.get("type").unwrap_or(step))),
            Some("Digits") => self.pattern(if flag("individual_digits", false) { r"\p{N}" } else { r"\p{N}+" }),
            Some("Punctuation") => match step.get("behavior").map(Item::text) {
                None | Some(Some("Isolated")) => self.pattern(PUNCTUATION),
                Some(Some("Contiguous")) => self.pattern(PUNCTUATION_RUN),
                Some(_) => Err(unsupported("punctuation whose behavior is", step.get("behavior").unwrap_or(step))),
            },
            Some("Split") => self.split(step),
            Some("BertPreTokenizer") if self.stage <= Stage::Characters => {
                self.stage = Stage::Words;
                Ok(())
            }
            Some("WhitespaceSplit") if self.stage < Stage::Words && self.patterns.is_empty() => {
                self.spaces.runs = Runs::BetweenWords;
                Ok(())
            }
            Some("Metaspace") if step.get("replacement").and_then(Item::text) == Some(ESCAPED) => self.metaspace(step),
            _ => Err(unsupported("the pre-tokenizer", step.get("type").unwrap_or(step))),
        }
    }

    fn metaspace(&mut self, step: Item) -> Result<()> {
        let flag = |name: &str, default: bool| step.get(name).and_then(Item::flag).unwrap_or(default);
        let scheme = step.get("prepend_scheme").and_then(Item::text);
        let scope = match scheme.unwrap_or(if flag("add_prefix_space", true) { "always" } else { "never" }) {
            "always" => PrefixScope::EveryText,
            "first" => PrefixScope::Beginning,
            "never" => PrefixScope::Never,
            _ => return Err(unsupported("a metaspace", step.get("prepend_scheme").unwrap_or(step))),
        };
        let splits = flag("split", true);
        let is_behind_words = self.spaces.runs == Runs::BetweenWords;
        let cuts_before = is_behind_words || !self.patterns.is_empty();
        // Every piece that was cut before gets a space of its own, or none does: only between words that is where one was.
        if cuts_before && scope == PrefixScope::EveryText && !(is_behind_words && splits)
            || is_behind_words && scope != PrefixScope::EveryText
            || self.spaces.prefix_space != PrefixSpace::NEVER
        {
            return Err(unsupported("at its place the pre-tokenizer", step.get("type").unwrap_or(step)));
        }
        self.stage = Stage::Escaped;
        self.spaces.prefix_space = PrefixSpace { scope, unless_there: true };
        if splits { self.pattern(" [^ ]*|[^ ]+") } else { Ok(()) }
    }

    /// A cut at every match of a pattern.
    fn split(&mut self, step: Item) -> Result<()> {
        // Where a space is something else by then, there is nothing to cut.
        if is_space(step) && self.stage == Stage::Escaped {
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

/// Whether the pattern of a step is a run of spaces.
fn is_runs(step: Item) -> bool {
    step.get("pattern").and_then(|pattern| pattern.get("Regex")).and_then(Item::text) == Some(" {2,}")
}

/// The bytes that `text` stands for; `None` if it is not in base64 (RFC 4648, with its padding).
fn base64(text: &str) -> Result<Option<Vec<u8>>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return Ok(None);
    }
    let mut bytes = reserve(text.len() / 4 * 3, "a character map")?;
    for group in digits.chunks(4) {
        let mut bits = 0;
        for &byte in group {
            let Some(digit) = digit(byte) else { return Ok(None) };
            bits = bits << 6 | u32::from(digit);
        }
        let [_, whole @ ..] = (bits << (6 * (4 - group.len()))).to_be_bytes();
        bytes.extend_from_slice(&whole[..group.len() - 1]);
    }
    Ok(Some(bytes))
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
        Words::read(Document::read(json.as_bytes(), "tokenizer.json").unwrap().root(), Type::BytePair)
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
            (
                r#"{"normalizer": {"type": "Strip"}, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581"}}"#,
                "that loses spaces",
            ),
            (
                r#"{"normalizer": {"type": "Strip"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}}"#,
                "whose spaces are no longer",
            ),
            (r#"{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAA"}}"#, "is not in base64"),
        ] {
            let message = words(json).err().unwrap().to_string();
            assert!(message.contains(name), "{json}: {message}");
        }
    }

    #[test]
    fn steps_that_would_do_something_else_elsewhere_are_refused() {
        let unigram = |normalizers: &str, cuts: &str| {
            let json = format!(
                r#"{{"normalizer": {{"type": "Sequence", "normalizers": [{normalizers}]}},
                    "pre_tokenizer": {{"type": "Sequence", "pretokenizers": [{cuts}]}}}}"#
            );
            Words::read(Document::read(json.as_bytes(), "tokenizer.json").unwrap().root(), Type::Unigram).map(|_| ())
        };
        let [strip, prepend, nfc] =
            ["Strip", "Prepend\", \"prepend\": \"\u{2581}", "NFC"].map(|kind| format!(r#"{{"type": "{kind}"}}"#));
        let runs = r#"{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}"#;
        let always = r#"{"type": "Metaspace", "replacement": "\u2581"}"#;
        let first = r#"{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}"#;
        let whole = r#"{"type": "Metaspace", "replacement": "\u2581", "split": false}"#;
        let [digits, spaces, bytes] =
            ["Digits", "WhitespaceSplit", "ByteLevel\", \"add_prefix_space\": false, \"type\": \"ByteLevel"]
                .map(|kind| format!(r#"{{"type": "{kind}"}}"#));
        for (normalizers, cuts) in [
            (format!("{nfc}, {strip}, {runs}"), always.to_owned()),
            (String::new(), format!("{spaces}, {always}")),
            (String::new(), format!("{always}, {digits}")),
            (String::new(), format!("{digits}, {first}")),
        ] {
            assert!(unigram(&normalizers, &cuts).is_ok(), "{normalizers}; {cuts}");
        }
        for (normalizers, cuts) in [
            (format!("{strip}, {nfc}"), always.to_owned()),
            (format!("{runs}, {strip}"), always.to_owned()),
            (format!("{prepend}, {strip}"), always.to_owned()),
            (prepend, always.to_owned()),
            (String::new(), format!("{digits}, {always}")),
            (String::new(), format!("{spaces}, {first}")),
            (String::new(), format!("{spaces}, {whole}")),
            (String::new(), format!("{always}, {spaces}")),
            (String::new(), bytes),
        ] {
            assert!(unigram(&normalizers, &cuts).is_err(), "{normalizers}; {cuts}");
        }
    }

    #[test]
    fn base64_is_read_with_its_padding_and_nothing_else() {
        let read = |text: &str| base64(text).unwrap();
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmE=", "fooba")] {
            assert_eq!(read(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(read("+/8A").unwrap(), [0xfb, 0xff, 0]);
        for wrong in ["Zg", "Zg=", "Z===", "====", "Zm9v\n", "Zm-v", "=Zg="] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
