//! Grammars that strangers wrote: huge, deep, exponential or nonsense, each ends in a grammar or an error, in time, and what comes of it can be
//! stepped.

use crate::common::patient::shortest;
use crate::common::{Ctx, Model, bundled_model, sampler};
use segno::ffi::grammar::*;
use segno::ffi::status::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a compilation may take, of a processor that it has for itself.
const LIMIT: Duration = Duration::from_secs(2);

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect()
}

fn numbered<T>(count: usize, item: impl Fn(usize) -> T) -> Vec<T> {
    (0..count).map(item).collect()
}

fn lark() -> Vec<String> {
    let most = 250_000;
    vec![
        format!("start: {}\"a\"", "(".repeat(most)),
        format!("start: {}\"a\"", "[".repeat(most)),
        format!("start: a0\n{}a7000: \"x\"\n", lines(7000, |i| format!("a{i}: a{}\n", i + 1))),
        format!("start: A0\n{}A7000: \"x\"\n", lines(7000, |i| format!("A{i}: A{}\n", i + 1))),
        format!("start: A0\n{}A60: \"x\"\n", lines(60, |i| format!("A{i}: A{0} A{0}\n", i + 1))),
        format!("start: a0\n{}a60: \"x\"\n", lines(60, |i| format!("a{i}: a{0} a{0}\n", i + 1))),
        format!("start: {}", numbered(20_000, |i| format!("\"w{i}x\"")).join(" | ")),
        "start: ((((\"a\"{0,1000}){0,1000}){0,1000}){0,1000}\n".into(),
        "start: s\ns: s s | s s s | \"a\" | \"\"\n".into(),
        format!("start: A\nA: {}\n", numbered(29, |i| format!("/(.*a.{{{}}})*/", i + 1)).join(" & ")),
        "start: A\nA: /(.*a.{20})*/ & /(.*b.{20})*/ & /(.*c.{20})*/\n".into(),
        "start: A\nA: ~(/(.*a.{18}b)+/ & ~/(.*c.{17})+/)\n".into(),
        format!("start: %json {}\n", "[".repeat(5000)),
        format!("start: /{}a{}/\n", "(".repeat(50_000), ")".repeat(50_000)),
        "\u{1}".repeat(most),
        format!("start: \"{}\"\n", "a".repeat(most)),
        "start: start\n".into(),
        "%import common.WORD\nstart: WORD{1000000}\n".into(),
    ]
}

fn regexes() -> Vec<String> {
    vec![
        format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000)),
        "((((a{1000}){1000}){1000}){1000}){1000}".into(),
        "(a{0,5000}b{0,5000}){0,5000}".into(),
        "(.*a.{20}|.*b.{21}|.*c.{22})*d".into(),
        format!("({})x", numbered(20, |i| format!(".*{}.{{{}}}", (b'a' + i as u8) as char, i + 8)).join("|")),
        numbered(25_000, |i| format!("word{i}")).join("|"),
        r"[\p{L}--[a-z]]".repeat(5000),
        r"(\p{L}|\p{N}|\p{S}){100}(\w\W){1000}".into(),
        "ab".repeat(120_000),
        "(a*)*".repeat(1000),
        "(a*)*".repeat(20_000),
        "a?".repeat(1900) + &"a".repeat(1900),
    ]
}

fn schemas() -> Vec<String> {
    let deep = |count: usize| format!("{}{{}}{}", "{\"items\":".repeat(count), "}".repeat(count));
    let chain = |count: usize, link: &dyn Fn(usize) -> Value, last: Value| {
        let mut all: serde_json::Map<String, Value> = (0..count).map(|i| (format!("d{i}"), link(i + 1))).collect();
        all.insert(format!("d{count}"), last);
        json!({"$ref": "#/$defs/d0", "$defs": all})
    };
    let reference = |i: usize| json!({"$ref": format!("#/$defs/d{i}")});
    let properties = |count: usize| -> serde_json::Map<String, Value> {
        (0..count).map(|i| (format!("{}{i}", "ab".repeat(40)), json!({}))).collect()
    };
    let primes = [999_983, 999_979, 999_961];
    let values = vec![
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "maxLength": 100_000, "pattern": "^(a|b)*c"}),
        json!({"type": "array", "minItems": 1_000_000, "maxItems": 1_000_000_000, "items": {"type": "integer"}}),
        json!({"enum": numbered(7900, |i| format!("value number {i}"))}),
        json!({"enum": numbered(1900, |i| json!({"a": i, "b": [i, {"c": i}]}))}),
        json!({"type": "object", "properties": properties(2500), "additionalProperties": {"type": "integer"}}),
        json!({"type": "object", "properties": properties(3900), "required": properties(3900).keys().collect::<Vec<_>>()}),
        json!({"allOf": numbered(12, |i| json!({"anyOf": numbered(4, |j| json!({"properties": {format!("p{i}_{j}"): {"const": j}},
            "required": [format!("p{i}_{j}")]}))}))}),
        json!({"oneOf": numbered(1300, |i| json!({"properties": {"k": {"const": i}, "x": {"maxLength": i}}, "required": ["k"]}))}),
        chain(3900, &reference, json!({})),
        chain(
            300,
            &|i| json!({"type": "array", "prefixItems": vec![reference(i); 10], "items": false}),
            json!({"type": "integer"}),
        ),
        chain(60, &|i| json!({"allOf": [reference(i), reference(i)]}), json!({"type": "object"})),
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
        json!({"type": "string", "pattern": "(.*a.{20}|.*b.{21})*d$"}),
        json!({"allOf": numbered(8, |i| json!({"pattern": format!("(.*a.{{{i}}})*")}))}),
        json!({"type": "object", "patternProperties": (0..900).map(|i| (format!("^(x.*{i}.*)y{i}"), json!({})))
            .collect::<serde_json::Map<_, _>>()}),
        json!({"type": "number", "multipleOf": 1e-300, "minimum": 1e300}),
        json!({"allOf": numbered(3, |i| json!({"type": "integer", "multipleOf": primes[i]}))}),
        json!({"type": "number", "minimum": -1.2345678912345e-200, "maximum": 1.2345e200}),
        json!({"type": "\u{e9}".repeat(200), "$ref": {"a": "\u{e9}".repeat(300)}}),
        json!({"const": 1e308, "type": "integer"}),
        json!({"x-guidance": {"whitespace_pattern": "(.*a.{20}|.*b.{21})*"}, "type": "object"}),
    ];
    let written = [deep(100), deep(20_000), "[".repeat(250_000), "{\"a\":".into(), "\"\u{0}\"".into()];
    values.iter().map(Value::to_string).chain(written).collect()
}

fn gbnf() -> Vec<String> {
    vec![
        format!("root ::= {}", "(".repeat(250_000)),
        format!("root ::= a0\n{}a60 ::= \"x\"\n", lines(60, |i| format!("a{i} ::= a{0} a{0}\n", i + 1))),
        "root ::= ((((\"a\"{0,10000}){0,10000}){0,10000}){0,10000}){0,10000}\n".into(),
        format!(
            "root ::= a0\n{}a9000 ::= \"x\" | \"(\" root \")\"\n",
            lines(9000, |i| format!("a{i} ::= a{}\n", i + 1))
        ),
        "root ::= root root | root root root | \"a\" | \"\"\n".into(),
        format!("root ::= \"a\"{}", "*".repeat(250_000)),
        format!("root ::= \"a\"\n{}", lines(4000, |i| format!("b{i} ::= \"c\" root d{i}\nd{i} ::= b{i} | \"x\"\n"))),
        "root ::= [\\x00-\\U0010FFFF]* [^\\x00-\\U0010FFFF]\n".into(),
        "root ::= <[99999999999]> <\n".into(),
    ]
}

/// Compiles a grammar and walks a little, in time and without a panic of the library.
fn attempt(model: &Model, kind: i32, text: &str) {
    let shown: String = text.chars().take(60).collect();
    let (time, grammar) = shortest(LIMIT, || {
        let start = Instant::now();
        let grammar = model.grammar(kind, 0, text);
        (start.elapsed(), grammar)
    });
    assert!(time <= LIMIT, "{shown}: {time:?}");
    let grammar = match grammar {
        Ok(grammar) => grammar,
        Err(failed) => {
            assert!([SEGNO_E_GRAMMAR, SEGNO_E_INVALID_ARGUMENT].contains(&failed.status), "{shown}: {failed:?}");
            assert!(failed.message.len() < 2000 && !failed.message.contains('\n'), "{shown}: {}", failed.message);
            return;
        }
    };
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, 64)).unwrap();
    let seq = session.open(&sampler()).unwrap();
    session.append(seq, &[40]).unwrap();
    session.constrain(seq, Some(&grammar), -1).unwrap();
    let start = Instant::now();
    for _ in 0..16 {
        match session.step(seq) {
            Ok((_, SEGNO_OK)) => {}
            Ok((_, SEGNO_DONE | SEGNO_GRAMMAR_END)) => break,
            Ok(other) => panic!("{shown}: {other:?}"),
            Err(failed) => {
                assert_eq!(failed.status, SEGNO_E_GRAMMAR, "{shown}: {}", failed.message);
                // Without its grammar the sequence goes on.
                session.constrain(seq, None, -1).unwrap();
                assert_eq!(session.step(seq).unwrap().1, SEGNO_OK);
                break;
            }
        }
    }
    assert!(start.elapsed() < 4 * LIMIT, "{shown}: steps took {:?}", start.elapsed());
}

fn model() -> Model {
    Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap()
}

#[test]
fn lark_of_strangers_ends_in_time() {
    let model = model();
    lark().iter().for_each(|text| attempt(&model, SEGNO_GRAMMAR_LARK, text));
}

#[test]
fn expressions_of_strangers_end_in_time() {
    let model = model();
    regexes().iter().for_each(|text| attempt(&model, SEGNO_GRAMMAR_REGEX, text));
}

#[test]
fn schemas_of_strangers_end_in_time() {
    let model = model();
    schemas().iter().for_each(|text| attempt(&model, SEGNO_GRAMMAR_JSON_SCHEMA, text));
}

#[test]
fn gbnf_of_strangers_ends_in_time() {
    let model = model();
    gbnf().iter().for_each(|text| attempt(&model, SEGNO_GRAMMAR_GBNF, text));
}
