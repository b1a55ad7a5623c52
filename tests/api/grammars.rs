//! Grammars through the C API: what comes out of a sequence follows its grammar, whatever is forked, cut, cancelled or stepped beside it.

use crate::common::{Ctx, Grammar, Model, Session, bundled_model, greedy, sampler};
use regex_automata::meta::Regex;
use segno::ffi::grammar::*;
use segno::ffi::status::*;
use serde_json::Value;

const PERSON: &str = r#"{"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 12},
    "age": {"type": "integer", "minimum": 18, "maximum": 99},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}
}, "required": ["name", "age"], "additionalProperties": false}"#;

const SUMS: &str = r#"
root ::= (sum "=" sum "\n")+ # lines
sum  ::= term ([-+] term)*
term ::= [0-9]{1,3} | "(" sum ")"
"#;

fn model() -> Model {
    Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap()
}

/// Options that draw from all tokens.
fn drawn(seed: u64) -> segno::ffi::seq::segno_sampler_opts {
    let mut opts = sampler();
    (opts.seed, opts.temperature, opts.top_k, opts.top_p, opts.min_p) = (seed, 1.0, 0, 1.0, 0.0);
    opts
}

/// A sequence with a prompt and a grammar.
fn constrained(model: &Model, session: &Session, grammar: &Grammar, seed: u64) -> i32 {
    let seq = session.open(&drawn(seed)).unwrap();
    session.append(seq, &model.tokenize(b"ROMEO:", 0).unwrap()).unwrap();
    session.constrain(seq, Some(grammar), -1).unwrap();
    seq
}

/// The tokens of a sequence until it ends, at most `most`, and how it ended.
fn run(session: &Session, seq: i32, most: usize) -> (Vec<i32>, segno_status) {
    let mut tokens = Vec::new();
    while tokens.len() < most {
        match session.step(seq).unwrap() {
            (token, SEGNO_OK) => tokens.push(token),
            (_, SEGNO_PENDING) => {}
            (_, status) => return (tokens, status),
        }
    }
    (tokens, SEGNO_OK)
}

fn text(model: &Model, tokens: &[i32]) -> String {
    String::from_utf8(model.detokenize(tokens, 0).unwrap()).unwrap()
}

/// A grammar stays where it is when tokens before or between its own go, which the text that it makes cannot tell; its own stay.
#[test]
fn a_grammar_goes_on_behind_a_gap() {
    let model = model();
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_COMPACT, PERSON).unwrap();
    let session = model.session(|_| ()).unwrap();
    for steps in [0, 1, 6] {
        let seq = constrained(&model, &session, &grammar, 5);
        let length = session.length(seq).unwrap();
        let (mut tokens, _) = run(&session, seq, steps);
        session.remove(seq, 1, length - 2).unwrap();
        if steps > 0 {
            let failed = session.remove(seq, 1, 2).unwrap_err();
            assert!(failed.status == SEGNO_E_INVALID_ARGUMENT && failed.message.contains("has followed"), "{failed:?}");
        }
        session.append(seq, &model.tokenize(b" and", 0).unwrap()).unwrap();
        let (more, _) = run(&session, seq, 3);
        session.remove(seq, 2 + steps, 1).unwrap();
        // Back to the first token and forth again.
        let fork = session.fork(seq, None).unwrap();
        session.truncate(fork, 2).unwrap();
        check_person(&text(&model, &run(&session, fork, 400).0));
        let (rest, status) = run(&session, seq, 400);
        assert_eq!(status, SEGNO_DONE);
        tokens.extend([more, rest].concat());
        check_person(&text(&model, &tokens));
        session.close(seq).unwrap();
        session.close(fork).unwrap();
    }
}

#[track_caller]
fn check_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let name = value["name"].as_str().unwrap().chars().count();
    let age = value["age"].as_u64().unwrap();
    assert!((1..=12).contains(&name) && (18..=99).contains(&age), "{text}");
    let colours = |tag: &Value| ["red", "green", "blue"].iter().any(|colour| tag == colour);
    let tags = value.get("tags").is_none_or(|tags| tags.as_array().unwrap().iter().all(colours));
    assert!(tags && value.as_object().unwrap().keys().all(|key| ["name", "age", "tags"].contains(&&**key)), "{text}");
}

#[test]
fn json_follows_its_schema() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_COMPACT, PERSON).unwrap();
    for seed in 0..40 {
        let seq = constrained(&model, &session, &grammar, seed);
        let (tokens, status) = run(&session, seq, 200);
        assert_eq!(status, SEGNO_DONE);
        let text = text(&model, &tokens);
        check_person(&text);
        assert!(!text.contains(": ") && !text.contains(", "), "{text} is compact");
        session.close(seq).unwrap();
    }
}

#[test]
fn texts_match_their_expression() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    for pattern in [
        r"[a-z]{1,8}@[a-z]{1,8}\.(com|org)",
        r"^(yes|no|perhaps), my (lord|lady)[.!]$",
        r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])",
        r"([A-Z]\w{0,5} ?){2,4}",
        r#"["'/\\]{3}é[α-ω]+?"#,
    ] {
        let grammar = model.grammar(SEGNO_GRAMMAR_REGEX, 0, pattern).unwrap();
        let expected = Regex::new(&format!("^(?:{pattern})$")).unwrap();
        for seed in 0..20 {
            let seq = constrained(&model, &session, &grammar, seed);
            let (tokens, status) = run(&session, seq, 100);
            let text = text(&model, &tokens);
            assert!(status == SEGNO_OK || expected.is_match(&text), "{text:?} is not {pattern}");
            session.close(seq).unwrap();
        }
    }
}

#[test]
fn rules_hold_in_lark_and_gbnf() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let lark = "start: line+\nline: sum \"=\" sum \"\\n\"\nsum: TERM (/[-+]/ TERM)*\nTERM: /[0-9]{1,3}/\n";
    let sum = Regex::new(r"^([0-9()]+([-+][0-9()]+)*=[0-9()]+([-+][0-9()]+)*\n)+$").unwrap();
    let balanced = |text: &str| {
        let depth = |depth: i32, c| depth + i32::from(c == '(') - i32::from(c == ')');
        text.lines().flat_map(|line| line.split('=')).all(|side| side.chars().fold(0, depth) == 0)
    };
    for (kind, grammar) in [(SEGNO_GRAMMAR_LARK, lark), (SEGNO_GRAMMAR_GBNF, SUMS)] {
        let grammar = model.grammar(kind, 0, grammar).unwrap();
        for seed in 0..20 {
            let seq = constrained(&model, &session, &grammar, seed);
            let (tokens, status) = run(&session, seq, 150);
            let text = text(&model, &tokens);
            assert!(status == SEGNO_OK || (sum.is_match(&text) && balanced(&text)), "{text:?}");
            session.close(seq).unwrap();
        }
    }
}

#[test]
fn forks_cuts_cancels_and_company_change_no_token() {
    let model = model();
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, 0, PERSON).unwrap();
    let session = model.session(|_| ()).unwrap();
    let seq = constrained(&model, &session, &grammar, 3);
    let prompt = session.length(seq).unwrap();
    let free = session.open(&drawn(9)).unwrap();
    session.append(free, &[40, 41]).unwrap();
    let free_alone = run(&session, free, 60).0;
    let expected = run(&session, seq, 120);
    assert!(expected.0.len() > 20);
    for cut in (0..expected.0.len()).rev().step_by(3).chain([0]) {
        session.truncate(seq, prompt + cut).unwrap();
        let fork = session.fork(seq, None).unwrap();
        session.cancel(true);
        assert_eq!(session.step(seq).unwrap().1, SEGNO_CANCELLED);
        session.cancel(false);
        session.truncate(free, 2).unwrap();
        let (mut tokens, mut free_tokens) = (expected.0[..cut].to_vec(), Vec::new());
        let mut ended = SEGNO_OK;
        while ended == SEGNO_OK && tokens.len() < 120 {
            let (new, statuses, _) = session.batch(&[seq, free]);
            ended = statuses[0];
            tokens.extend(Some(new[0]).filter(|_| statuses[0] == SEGNO_OK));
            free_tokens.push(new[1]);
        }
        assert_eq!((&tokens, ended), (&expected.0, expected.1), "cut at {cut}");
        let common = free_tokens.len().min(free_alone.len());
        assert_eq!(free_tokens[..common], free_alone[..common]);
        let (rest, ended) = run(&session, fork, 120 - cut);
        assert_eq!((&rest[..], ended), (&expected.0[cut..], expected.1), "fork at {cut}");
        session.close(fork).unwrap();
    }
}

#[test]
fn a_grammar_begins_behind_its_start_token() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let grammar = model.grammar(SEGNO_GRAMMAR_REGEX, 0, "[xyz]{5}").unwrap();
    let colon = model.tokenize(b":", 0).unwrap()[0];
    let seq = session.open(&drawn(1)).unwrap();
    let prompt = model.tokenize(b"First Citizen", 0).unwrap();
    session.append(seq, &prompt).unwrap();
    session.constrain(seq, Some(&grammar), colon).unwrap();
    let (tokens, status) = run(&session, seq, 400);
    let at = tokens.iter().position(|&token| token == colon).expect("a play has colons");
    assert_eq!(status, SEGNO_DONE);
    let behind = text(&model, &tokens[at + 1..]);
    assert!(behind.len() == 5 && behind.bytes().all(|byte| b"xyz".contains(&byte)), "{behind}");
    // A host's own token does not begin it, and a cut behind the token sets the sequence free again.
    session.truncate(seq, prompt.len()).unwrap();
    session.append(seq, &[colon]).unwrap();
    let (tokens, _) = run(&session, seq, 3);
    assert!(!text(&model, &tokens).bytes().all(|byte| b"xyz".contains(&byte)));
}

#[test]
fn forced_tokens_cost_no_pass() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let said = "Now is the winter of our discontent made glorious summer";
    let grammar = model.grammar(SEGNO_GRAMMAR_REGEX, 0, &format!("{said}[.!]")).unwrap();
    let seq = constrained(&model, &session, &grammar, 5);
    session.prefill(seq, &[]).unwrap();
    let before = session.stats().unwrap();
    let (tokens, status) = run(&session, seq, 100);
    let after = session.stats().unwrap();
    assert_eq!((status, text(&model, &tokens).strip_suffix(['.', '!'])), (SEGNO_DONE, Some(said)));
    let passes = after.passes - before.passes;
    assert!(tokens.len() > 15 && passes <= 4, "{passes} passes for {} tokens", tokens.len());
    assert_eq!(after.decoded_tokens - before.decoded_tokens, tokens.len() as u64 + 1);
}

#[test]
fn forced_tokens_are_evaluated_in_the_passes_of_others() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let said = "Now is the winter of our discontent made glorious summer";
    let grammar = model.grammar(SEGNO_GRAMMAR_REGEX, 0, &format!("{said}[a-z ]{{20,40}}!")).unwrap();
    let expected = run(&session, constrained(&model, &session, &grammar, 5), 30).0;
    let seqs = [constrained(&model, &session, &grammar, 5), session.open(&drawn(9)).unwrap()];
    session.prefill(seqs[0], &[]).unwrap();
    session.prefill(seqs[1], &[40, 41]).unwrap();
    let before = session.stats().unwrap();
    let mut tokens = Vec::new();
    while tokens.len() < expected.len() {
        let (new, statuses, _) = session.batch(&seqs);
        assert_eq!(statuses, [SEGNO_OK; 2]);
        tokens.push(new[0]);
    }
    let after = session.stats().unwrap();
    assert_eq!(tokens, expected);
    // A row of each sequence in every pass but the first, for which logits are kept, and never more.
    let passes = after.passes - before.passes;
    assert_eq!((after.prompt_tokens - before.prompt_tokens, passes), (0, tokens.len() as u64 - 1));
}

#[test]
fn an_end_that_is_ignored_ends_the_sequence_all_the_same() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let grammar = model.grammar(SEGNO_GRAMMAR_REGEX, 0, "[ab]{3}").unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[40]).unwrap();
    session.constrain(seq, Some(&grammar), -1).unwrap();
    let (tokens, status) = run(&session, seq, 10);
    assert_eq!((text(&model, &tokens).len(), status), (3, SEGNO_GRAMMAR_END));
    let length = session.length(seq).unwrap();
    assert_eq!(session.step(seq).unwrap(), (-1, SEGNO_GRAMMAR_END));
    assert_eq!(session.batch(&[seq]), (vec![-1], vec![SEGNO_GRAMMAR_END], Ok(SEGNO_OK)));
    assert_eq!(session.length(seq).unwrap(), length);
    session.constrain(seq, None, -1).unwrap();
    assert_eq!(session.step(seq).unwrap().1, SEGNO_OK);
    // Behind a token that ended it nothing follows either.
    let ending = constrained(&model, &session, &grammar, 1);
    assert_eq!(run(&session, ending, 10).1, SEGNO_DONE);
    assert_eq!(session.step(ending).unwrap(), (-1, SEGNO_GRAMMAR_END));
}

#[test]
fn mistakes_are_told_with_their_place() {
    let model = model();
    for (kind, text, said) in [
        (SEGNO_GRAMMAR_JSON_SCHEMA, "{\"type\":\n \"object\",}", "the schema, line 2, column 11: "),
        (
            SEGNO_GRAMMAR_JSON_SCHEMA,
            "{\"properties\": {\"a\": {\"not\": {}}}}",
            "the schema at #/properties/a: the keyword `not` ",
        ),
        (SEGNO_GRAMMAR_JSON_SCHEMA, "{\"pattern\": \"(a\"}", "the pattern \"(a\", line 1, column 1: unclosed group"),
        (SEGNO_GRAMMAR_JSON_SCHEMA, "false", "the schema cannot be compiled: "),
        (SEGNO_GRAMMAR_REGEX, "a\n(b", "the regular expression, line 2, column 1: unclosed group"),
        (SEGNO_GRAMMAR_REGEX, "a\\b", "the regular expression has `^`, `$`, `\\b` or the like inside"),
        (SEGNO_GRAMMAR_LARK, "start: \"a\"\n  | \"b\" )", "the grammar, line 2"),
        (SEGNO_GRAMMAR_LARK, "start: unknown\n", "the grammar"),
        (SEGNO_GRAMMAR_LARK, "start: a\na[max_tokens=3]: /x+/\n", "rollback not supported"),
        (
            SEGNO_GRAMMAR_GBNF,
            "root ::= \"a\"\n\nroot ::= [b\n",
            "the grammar, line 3: characters in brackets are not closed",
        ),
        (SEGNO_GRAMMAR_GBNF, "root ::= word\n", "the grammar, line 1: there is no rule `word`"),
        (SEGNO_GRAMMAR_GBNF, "word ::= \"a\"\n", "no rule `root`"),
        (SEGNO_GRAMMAR_GBNF, " \n", "the grammar is empty"),
    ] {
        let failed = model.grammar(kind, 0, text).err().unwrap_or_else(|| panic!("{text:?} is accepted"));
        assert!(failed.status == SEGNO_E_GRAMMAR && failed.message.contains(said), "{text:?}: {}", failed.message);
        assert!(!failed.message.contains('\n'));
    }
    let failed = model.grammar(9, 0, "a").err().unwrap();
    assert_eq!((failed.status, &*failed.message), (SEGNO_E_INVALID_ARGUMENT, "there is no kind 9 of grammar"));
    assert_eq!(model.grammar(0, 2, "{}").err().unwrap().message, "unknown grammar flags 0x2");
}

#[test]
fn a_grammar_belongs_to_its_model() {
    let (model, other) = (model(), model());
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, 0, "{}").unwrap();
    let session = other.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    let failed = session.constrain(seq, Some(&grammar), -1).unwrap_err();
    assert_eq!(failed.message, "`grammar` was compiled for another model");
    let own = other.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, 0, "{}").unwrap();
    assert_eq!(session.constrain(seq, Some(&own), 5000).unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    assert_eq!(session.constrain(99, Some(&own), -1).unwrap_err().status, SEGNO_E_NOT_FOUND);
    session.constrain(seq, Some(&own), -1).unwrap();
}

#[test]
fn threads_share_a_grammar() {
    let model = model();
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_COMPACT, PERSON).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (model, grammar) = (&model, &grammar);
            scope.spawn(move || {
                let session = model.session(|_| ()).unwrap();
                let seq = constrained(model, &session, grammar, seed);
                check_person(&text(model, &run(&session, seq, 200).0));
            });
        }
    });
}
