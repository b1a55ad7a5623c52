//! The JSON Schema Test Suite through the C API: a text is steered token by token into a constrained sequence by biases, so that it comes out whole
//! if the schema lets it through. No value that a schema forbids may; what is refused though it is allowed is counted, and listed by reason.
//! `make schemas` fetches the suite.

use crate::common::skip::{Lack, skip};
use crate::common::{Ctx, Grammar, Model, Session, bundled_model, root, sampler};
use segno::ffi::grammar::SEGNO_GRAMMAR_JSON_SCHEMA;
use segno::ffi::seq::{segno_logit_bias, segno_seq_sampler_set};
use segno::ffi::status::*;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ptr::null_mut;

const DRAFTS: [(&str, &str); 5] = [
    ("draft4", "http://json-schema.org/draft-04/schema#"),
    ("draft6", "http://json-schema.org/draft-06/schema#"),
    ("draft7", "http://json-schema.org/draft-07/schema#"),
    ("draft2019-09", "https://json-schema.org/draft/2019-09/schema"),
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
];

/// Least share of the tests that run, and of their allowed values that are let through.
const RUN: f64 = 0.4;
const LET_THROUGH: f64 = 0.9;

/// A model, and its tokens by their bytes.
struct Steering {
    model: Model,
    session: Session,
    tokens: HashMap<Vec<u8>, i32>,
}

impl Steering {
    fn new() -> Steering {
        let model = Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap();
        let session = model.session(|_| ()).unwrap();
        let bytes = |token| model.detokenize(&[token], 0).unwrap();
        let tokens = (0..model.info().vocab as i32).map(|token| (bytes(token), token));
        let tokens = tokens.filter(|(bytes, _)| !bytes.is_empty() && bytes.is_ascii()).collect();
        Steering { model, session, tokens }
    }

    /// Whether `text`, which is ASCII, comes out of a sequence with the grammar, and may end.
    fn lets_through(&self, grammar: &Grammar, text: &[u8]) -> bool {
        let seq = self.session.open(&sampler()).unwrap();
        self.session.append(seq, &[0]).unwrap();
        self.session.constrain(seq, Some(grammar), -1).unwrap();
        let through = self.steer(seq, text);
        self.session.close(seq).unwrap();
        through
    }

    fn steer(&self, seq: i32, text: &[u8]) -> bool {
        let mut rest = text;
        loop {
            // The longest beginning of what is left that is a token wins, and only then the end.
            let found = (1..=rest.len().min(20)).filter_map(|len| Some((len, *self.tokens.get(&rest[..len])?)));
            let found: Vec<(usize, i32)> = found.collect();
            let mut bias: Vec<segno_logit_bias> =
                found.iter().map(|&(len, token)| segno_logit_bias { token, bias: 1e6 + 1e4 * len as f32 }).collect();
            if rest.is_empty() {
                bias.push(segno_logit_bias { token: self.model.info().eos, bias: 1e6 });
            }
            let mut opts = sampler();
            (opts.temperature, opts.bias, opts.bias_count) = (0.0, bias.as_ptr(), bias.len());
            assert_eq!(segno_seq_sampler_set(self.session.0, seq, &opts, null_mut()), SEGNO_OK);
            let (token, status) = self.session.step(seq).unwrap();
            if status == SEGNO_DONE {
                return rest.is_empty();
            }
            match found.iter().find(|&&(_, wanted)| wanted == token) {
                Some(&(len, _)) => rest = &rest[len..],
                // A forced token has a beginning of its own.
                None => return false,
            }
        }
    }
}

/// `value` as text in ASCII alone.
fn ascii(value: &Value) -> Option<Vec<u8>> {
    let text = value.to_string();
    text.is_ascii().then(|| text.into_bytes())
}

#[derive(Default)]
struct Count {
    schemas: usize,
    refused: BTreeMap<String, usize>,
    right: usize,
    allowed: usize,
    wrongly_refused: Vec<String>,
}

/// Why a schema is refused, without what is special to one.
fn reason(message: &str) -> String {
    let keyword = message.split_once("the keyword ").map(|(_, rest)| rest);
    let reason = keyword.unwrap_or(message.trim_start_matches("the schema cannot be compiled: "));
    reason.split([';', '\'', '#', '/']).next().unwrap_or_default().chars().take(70).collect()
}

fn run_group(steering: &Steering, group: &Value, draft: &str, name: &str, count: &mut Count) {
    let mut schema = group["schema"].clone();
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("$schema").or_insert(draft.into());
    }
    count.schemas += 1;
    let grammar = match steering.model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, 0, &schema.to_string()) {
        Ok(grammar) => grammar,
        Err(failed) => {
            assert_eq!(failed.status, SEGNO_E_GRAMMAR, "{name}: {}", failed.message);
            *count.refused.entry(reason(&failed.message)).or_default() += 1;
            return;
        }
    };
    for test in group["tests"].as_array().unwrap() {
        let Some(text) = ascii(&test["data"]) else { continue };
        let (valid, what) = (test["valid"] == true, format!("{name}: {} {}", test["description"], group["schema"]));
        let through = steering.lets_through(&grammar, &text);
        assert!(valid || !through, "forbidden, but let through: {what}: {}", test["data"]);
        count.allowed += usize::from(valid);
        count.right += usize::from(through == valid);
        if valid && !through {
            count.wrongly_refused.push(what);
        }
    }
}

#[test]
fn nothing_that_a_schema_forbids_is_let_through() {
    let folder = root().join(".schemas/tests");
    if !folder.is_dir() {
        return skip(Lack::Data, "the JSON Schema Test Suite absent: make schemas");
    }
    let steering = Steering::new();
    for (draft, schema) in DRAFTS {
        let mut count = Count::default();
        let mut files: Vec<_> = fs::read_dir(folder.join(draft)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        for path in files {
            let name = format!("{draft}/{}", path.file_stem().unwrap().display());
            let groups: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            groups.as_array().unwrap().iter().for_each(|group| run_group(&steering, group, schema, &name, &mut count));
        }
        let Count { schemas, refused, right, allowed, wrongly_refused } = &count;
        let compiled = schemas - refused.values().sum::<usize>();
        let lost = wrongly_refused.len();
        println!(
            "{draft}: {compiled} of {schemas} schemas compiled, {right} values right, {lost} of {allowed} allowed ones refused"
        );
        refused.iter().for_each(|(reason, times)| println!("    {times} schemas refused: {reason}"));
        wrongly_refused.iter().for_each(|what| println!("    value refused: {what}"));
        assert!(compiled as f64 >= RUN * *schemas as f64 && lost as f64 <= (1.0 - LET_THROUGH) * *allowed as f64);
    }
}
