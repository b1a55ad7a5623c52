//! Saved sequences that follow a grammar: what is restored walks on as if it had never stopped, and a grammar that a stranger has put there is
//! held to the limits of any other.

use crate::common::saved::{restore, save};
use crate::common::{Ctx, Grammar, Model, Session, bundled_model, sampler};
use crate::saved::{CHECK, HEADER, held, refused};
use crate::tools;
use segno::ffi::grammar::*;
use segno::ffi::status::*;
use segno::quant::synthetic::Random;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_128;

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"},
    "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3}}, "required": ["name", "age"]}"#;
/// Where the texts of a grammar begin behind its head, and where in it their lengths are.
const TEXTS: usize = 56;
const LENGTHS: usize = 20;
const MOVES: usize = 16;

fn model() -> Model {
    Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap()
}

/// Every kind of grammar, each with the token behind which it begins or -1.
fn grammars(model: &Model) -> Vec<(Grammar, i32)> {
    let colon = model.tokenize(b":", 0).unwrap()[0];
    let texts = [
        (SEGNO_GRAMMAR_JSON_SCHEMA, SEGNO_GRAMMAR_COMPACT, SCHEMA, -1),
        (SEGNO_GRAMMAR_JSON_SCHEMA, 0, SCHEMA, -1),
        (SEGNO_GRAMMAR_REGEX, 0, "[A-Z][a-z ,]{3,30}[.!]", -1),
        (SEGNO_GRAMMAR_REGEX, 0, "( [a-z]{1,6}){5}", colon),
        (SEGNO_GRAMMAR_LARK, 0, "start: (WORD \" \")+ \"end\"\nWORD: /[a-z]{2,5}/\n", -1),
        (SEGNO_GRAMMAR_GBNF, 0, "root ::= [0-9]{1,4} (\"+\" root)? | \"(\" root \")\"", -1),
    ];
    let texts = texts.map(|(kind, flags, text, start)| (model.grammar(kind, flags, text).unwrap(), start));
    let calls = ["hermes", "glm4", "gemma4"].map(|format| tools::grammar(model, format, Some("list"), |_| ()).unwrap());
    texts.into_iter().chain(calls).collect()
}

/// A sequence that follows a grammar and has sampled `steps` tokens; `steps` of those that have a start token end behind it.
fn walked(model: &Model, session: &Session, grammar: &Grammar, start: i32, seed: u64, steps: usize) -> i32 {
    let mut opts = sampler();
    (opts.seed, opts.temperature, opts.top_k) = (seed, 1.0, 0);
    let seq = session.open(&opts).unwrap();
    session.append(seq, &model.tokenize(b"First Citizen", 0).unwrap()).unwrap();
    session.constrain(seq, Some(grammar), start).unwrap();
    run(session, seq, steps);
    seq
}

/// Tokens and outcomes of so many steps.
fn run(session: &Session, seq: i32, steps: usize) -> Vec<(i32, segno_status)> {
    (0..steps).map(|_| session.step(seq).unwrap()).collect()
}

#[test]
fn a_restored_walk_goes_on_in_any_session_and_model_object() {
    let (model, other) = (model(), model());
    let sessions = [&model, &model, &other].map(|model| model.session(|_| ()).unwrap());
    let session = &sessions[0];
    for (which, (grammar, start)) in grammars(&model).into_iter().enumerate() {
        for steps in [0, 1, 7, 25, 120] {
            let seq = walked(&model, session, &grammar, start, which as u64, steps);
            // Tokens of the host's own move no grammar.
            if steps == 7 {
                session.append(seq, &model.tokenize(b" and", 0).unwrap()).unwrap();
                run(session, seq, 1);
            }
            let bytes = save(session, seq);
            let length = session.length(seq).unwrap();
            let kept = length - (steps / 2).min(length - 1);
            let whole = run(session, seq, 40);
            session.truncate(seq, kept).unwrap();
            let cut = run(session, seq, 20);
            for place in &sessions {
                let again = restore(place, &bytes).unwrap();
                assert_eq!(save(place, again), bytes, "saved again");
                let fork = place.fork(again, None).unwrap();
                assert_eq!(run(place, again, 40), whole, "grammar {which}, {steps} steps");
                assert_eq!(run(place, fork, 40), whole, "grammar {which}, {steps} steps, a fork");
                place.truncate(again, kept).unwrap();
                assert_eq!(run(place, again, 20), cut, "grammar {which}, {steps} steps, cut");
                [again, fork].into_iter().for_each(|seq| _ = place.close(seq).unwrap());
            }
            session.close(seq).unwrap();
        }
    }
}

#[test]
fn a_sequence_that_was_set_free_is_saved_without_a_grammar() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let grammar = model.grammar(SEGNO_GRAMMAR_REGEX, 0, "[a-z]+").unwrap();
    let seq = walked(&model, &session, &grammar, -1, 1, 5);
    let with = save(&session, seq);
    session.constrain(seq, None, -1).unwrap();
    let without = save(&session, seq);
    assert_eq!(with.len() - without.len(), TEXTS + "[a-z]+".len() + 5 * 4);
    let again = restore(&session, &without).unwrap();
    assert_eq!(run(&session, again, 10), run(&session, seq, 10));
}

/// A saved sequence whose parts can be changed: what stands before its grammar, the grammar, and what stands behind.
struct Saved {
    before: Vec<u8>,
    head: Vec<u8>,
    text: Vec<u8>,
    moves: Vec<u8>,
    behind: Vec<u8>,
}

impl Saved {
    /// `bytes` of a sequence of so many tokens, without lists of the sampler, with a grammar of one text.
    fn of(bytes: &[u8], tokens: usize) -> Saved {
        let (before, rest) = bytes.split_at(HEADER + tokens * 4);
        let (head, rest) = rest.split_at(TEXTS);
        let number = |at: usize| u32::from_le_bytes(head[at..][..4].try_into().unwrap()) as usize;
        let (text, rest) = rest.split_at(number(LENGTHS));
        let (moves, behind) = rest.split_at(number(MOVES) * 4);
        let behind = &behind[..behind.len() - CHECK];
        let [before, head, text, moves, behind] = [before, head, text, moves, behind].map(<[u8]>::to_vec);
        Saved { before, head, text, moves, behind }
    }

    /// With another text.
    fn with_text(&self, text: &[u8]) -> Vec<u8> {
        let mut head = self.head.clone();
        head[LENGTHS..][..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
        sealed(&[&self.before, &head, text, &self.moves, &self.behind])
    }

    /// With another number at a place of the head.
    fn with_number(&self, at: usize, number: &[u8]) -> Vec<u8> {
        let mut head = self.head.clone();
        head[at..][..number.len()].copy_from_slice(number);
        sealed(&[&self.before, &head, &self.text, &self.moves, &self.behind])
    }
}

/// All parts, with the checksum that belongs to them.
fn sealed(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = parts.concat();
    let check = XxHash3_128::oneshot(&bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

#[test]
fn a_strangers_grammar_is_refused_by_name_and_in_time() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let grammar = model.grammar(SEGNO_GRAMMAR_REGEX, 0, "[a-z ]{4,200}").unwrap();
    let seq = walked(&model, &session, &grammar, -1, 3, 9);
    let (bytes, tokens) = (save(&session, seq), session.length(seq).unwrap());
    session.close(seq).unwrap();
    let saved = Saved::of(&bytes, tokens);
    assert_eq!(saved.with_text(&saved.text), bytes);
    let before = held(&session);
    let deep = "(".repeat(100_000);
    let backwards: Vec<u8> = saved.moves.chunks(4).rev().flatten().copied().collect();
    let none = u32::MAX.to_le_bytes();
    let cases: [(Vec<u8>, &str); 18] = [
        (saved.with_text(b"((((a{1,99}){1,99}){1,99}){1,99}){1,99}"), "its grammar: "),
        (saved.with_text(b"[^a]{40000}"), "its grammar: "),
        (saved.with_text(deep.as_bytes()), "its grammar: "),
        (saved.with_text(&vec![b'a'; 300_000]), "its grammar: the grammar has 300000 bytes"),
        (saved.with_text(b"[0-9]+"), "its grammar: "),
        (saved.with_text(b""), "its grammar: the grammar is empty"),
        (saved.with_text(b"\xff\xfe"), "its grammar: the grammar is not valid utf-8"),
        (saved.with_number(0, &[9]), "unknown kind 9"),
        (saved.with_number(0, &[3]), "its grammar: "),
        (saved.with_number(0, &[4]), "its grammar: "),
        (saved.with_number(4, &[6]), "unknown flags 0x6"),
        (saved.with_number(12, &[0xff, 0xff, 0, 0]), "not in the vocabulary"),
        (saved.with_number(12, &[1, 0, 0, 0]), "not those of a walk"),
        (saved.with_number(MOVES, &none), "larger than any"),
        (saved.with_number(LENGTHS + 8, &none), "larger than any"),
        (saved.with_number(40, &[1; 8]), "not those of a walk"),
        (saved.with_number(48, &[2, 0, 0, 0, 0, 0, 0, 0]), "not those of a walk"),
        (sealed(&[&saved.before, &saved.head, &saved.text, &backwards, &saved.behind]), "not those of a walk"),
    ];
    for (number, (bytes, said)) in cases.iter().enumerate() {
        let start = Instant::now();
        let failed = refused(restore(&session, bytes));
        assert!(failed.message.contains(said), "case {number}: {failed:?}");
        assert_eq!(failed.status, SEGNO_E_FORMAT, "case {number}");
        assert!(start.elapsed() < Duration::from_secs(20), "case {number}: {:?}", start.elapsed());
    }
    assert_eq!(held(&session), before);
}

#[test]
fn whatever_changes_in_a_grammar_the_session_lives_on() {
    let model = model();
    let session = model.session(|opts| opts.kv_tokens = 96).unwrap();
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, 0, SCHEMA).unwrap();
    let seq = walked(&model, &session, &grammar, -1, 3, 20);
    let (bytes, tokens) = (save(&session, seq), session.length(seq).unwrap());
    session.close(seq).unwrap();
    let (first, last) = (HEADER + tokens * 4, HEADER + tokens * 4 + TEXTS + SCHEMA.len() + 20 * 4);
    let (before, mut random, mut taken) = (held(&session), Random::new(5), 0);
    for _ in 0..1_500 {
        let mut damaged = bytes[..bytes.len() - CHECK].to_vec();
        for _ in 0..1 + random.bits() % 2 {
            damaged[first + (random.bits() % (last - first) as u64) as usize] ^= 1 << (random.bits() % 8);
        }
        if let Ok(seq) = restore(&session, &sealed(&[&damaged])) {
            taken += 1;
            for _ in 0..3 {
                if session.step(seq).is_err() {
                    break;
                }
            }
            session.close(seq).unwrap();
        }
        assert_eq!(held(&session), before);
    }
    // Letters of names and numbers in the schema change what the grammar says behind the walk.
    assert!(taken > 10, "{taken} changed grammars lead to the same place");
}
