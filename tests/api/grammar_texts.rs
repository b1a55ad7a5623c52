//! Texts that grammars let through, drawn token by token at random, and checked by validators that are not ours: JSON by Python's package jsonschema,
//! texts of expressions by Python's own. With `make schemas` the schemas of the JSON Schema Test Suite and of services are among them.

use crate::common::metadata::tokenizer;
use crate::common::replies::Random;
use crate::common::{bundled_model, root, validator};
use segno::grammar::{Constraint, Form, Grammar, Kind, Next, Vocabulary};
use segno::text::Tokenizer;
use segno::text::tokenizer::Role;
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;

const SCHEMAS: [&str; 17] = [
    r#"{"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 5}, "b": {"type": "integer", "minimum": -7, "maximum": 12}},
        "required": ["a"], "additionalProperties": false}"#,
    r#"{"type": "array", "items": {"enum": ["red", "green", null, 4, [1, {"x": true}]]}, "minItems": 1, "maxItems": 4}"#,
    r#"{"type": "string", "pattern": "^[a-f]{2,4}(-[0-9]+)?$"}"#,
    r#"{"type": "string", "maxLength": 9}"#,
    r#"{"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}"#,
    r#"{"type": "integer", "multipleOf": 3, "minimum": -30, "maximum": 1000}"#,
    r#"{"anyOf": [{"type": "object", "required": ["k"], "properties": {"k": {"const": "\u00e9\"\\/"}}}, {"type": "array", "prefixItems":
        [{"type": "boolean"}, {"type": "null"}], "items": false}]}"#,
    r##"{"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer"}, "l": {"type": "array", "items":
        {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "required": ["v"], "additionalProperties": false}}}"##,
    r#"{"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3}"#,
    r#"{"type": "object", "patternProperties": {"^n_": {"type": "number"}, "^t_": {"type": "string"}}, "additionalProperties": false}"#,
    r#"{"type": "string", "format": "date"}"#,
    r#"{"type": "object", "properties": {"default": {"type": "string", "format": "date-time", "pattern": "-02-[1-3]"}}, "required": ["default"]}"#,
    r#"{"type": "string", "format": "ipv4"}"#,
    r#"{"type": "string", "format": "uuid"}"#,
    r#"{"type": "string", "format": "email"}"#,
    r#"{"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 40}]}"#,
    r#"{}"#,
];
const PATTERNS: [&str; 14] = [
    r"[a-z]{1,8}@[a-z]{1,8}\.(com|org)",
    r"(yes|no|perhaps), my (lord|lady)[.!]",
    r"[0-9]{4}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])",
    r"([A-Z][a-z]{0,5} ?){2,4}",
    r#"["'/\\]{3}é[α-ω]+?"#,
    r"(a|ab)(c|bcd)(d*)",
    r"[^abc]{2,6}",
    r".{0,7}",
    r"(?s:.){3}",
    r"(?i:king|QUEEN)s?",
    r"x*y+z?",
    r"((ab){2,3}|c){1,4}",
    r"[\u4e00-\u4eff]{1,3}[\x41-\x45]",
    r"\[[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?\]",
];
/// Texts of each grammar, and the most tokens of one.
const TEXTS: usize = 12;
const MOST: usize = 160;
/// Schemas of services that are taken.
const SERVICES: usize = 200;

/// Draws texts.
struct Writer {
    vocabulary: Arc<Vocabulary>,
    tokenizer: Arc<Tokenizer>,
    /// Tokens that end strings, lists and objects: with them texts come to an end.
    closing: Vec<i32>,
    random: Random,
}

impl Writer {
    fn new() -> Writer {
        let tokenizer = Arc::new(tokenizer(&bundled_model()));
        let vocabulary = Arc::new(Vocabulary::of(&tokenizer).unwrap());
        let is_closing = |&token: &i32| matches!(tokenizer.role(token), Ok(Role::Text(b"\"" | b"}" | b"]")));
        let closing = (0..tokenizer.vocab_size() as i32).filter(is_closing).collect();
        Writer { vocabulary, tokenizer, closing, random: Random(7) }
    }

    fn compile(&self, kind: Kind, text: &str) -> Option<Arc<Grammar>> {
        let form = Form { kind, text: text.as_bytes(), compact: text.len().is_multiple_of(2) };
        Grammar::compile(&self.vocabulary, &form).ok().map(Arc::new)
    }

    /// A text of the grammar; none where it has not ended.
    fn write(&mut self, grammar: &Arc<Grammar>) -> Option<String> {
        let mut walk = Constraint::new(grammar, None).unwrap();
        let mut text = Vec::new();
        for position in 0..MOST {
            let token = match walk.peek().ok()? {
                Next::Forced(token) => token,
                Next::Choice => {
                    walk.prepare();
                    let (mask, may_end) = walk.mask().ok()?;
                    let is_over = mask.iter().all(|&word| word == 0);
                    if may_end && (is_over || self.random.below(2) == 0) {
                        return Some(String::from_utf8(text).unwrap());
                    }
                    self.pick(mask)
                }
                _ => return Some(String::from_utf8(text).unwrap()),
            };
            walk.advance(token, position, false).ok()?;
            let Ok(Role::Text(bytes)) = self.tokenizer.role(token) else { panic!("{token} is no text") };
            text.extend_from_slice(bytes);
        }
        None
    }

    fn pick(&mut self, mask: &[u32]) -> i32 {
        let allows = |token: i32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
        let closing: Vec<i32> = self.closing.iter().copied().filter(|&token| allows(token)).collect();
        if !closing.is_empty() && self.random.below(3) == 0 {
            return closing[self.random.below(closing.len())];
        }
        let all: Vec<i32> = (0..self.vocabulary.len() as i32).filter(|&token| allows(token)).collect();
        all[self.random.below(all.len())]
    }
}

/// The schemas of the suite's last draft, and of some services; none where they have not been fetched.
fn fetched() -> Vec<String> {
    let files = |folder: &str| {
        let mut paths: Vec<_> =
            fs::read_dir(root().join(folder)).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        paths.into_iter().rev().map(|path| fs::read_to_string(path).unwrap())
    };
    let suite = files(".schemas/tests/draft2020-12").flat_map(|file| {
        let groups: Vec<Value> = serde_json::from_str(&file).unwrap();
        groups.into_iter().map(|group| group["schema"].to_string())
    });
    suite.chain(files(".schemas/services").take(SERVICES)).collect()
}

#[test]
fn texts_pass_validators_of_others() {
    let mut writer = Writer::new();
    let (mut cases, mut compiled, mut ended) = (Vec::new(), 0, 0);
    let own = SCHEMAS.map(String::from).into_iter();
    let grammars = own.clone().chain(fetched()).map(|schema| (Kind::JsonSchema, schema));
    for (kind, text) in grammars.chain(PATTERNS.map(|pattern| (Kind::Regex, pattern.into()))) {
        let Some(grammar) = writer.compile(kind, &text) else {
            assert!(kind == Kind::JsonSchema && !SCHEMAS.contains(&text.as_str()), "{text} does not compile");
            continue;
        };
        compiled += 1;
        let before = cases.len();
        for _ in 0..TEXTS {
            let Some(written) = writer.write(&grammar) else { continue };
            // JSON as it was written, but for the ends of lines, which no string holds: numbers may be larger than ours.
            let case = match kind {
                Kind::Regex => json!({"pattern": text, "text": written}).to_string(),
                _ => format!(r#"{{"schema": {text}, "value": {written}}}"#).replace(['\n', '\r'], " "),
            };
            cases.push(case);
        }
        ended += usize::from(cases.len() > before);
    }
    println!("{} texts of {ended} grammars, {compiled} compiled", cases.len());
    assert!(ended > compiled * 2 / 3 && cases.len() > 4 * ended, "few texts come to an end");
    validator::check(&cases);
}
