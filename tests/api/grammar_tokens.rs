//! Tokens of constrained sequences are those that the sampler draws with the grammar's mask, however few masks the engine works out: random schemas,
//! every kind of sampler, batches with free sequences, forks and cuts.

use crate::common::metadata::tokenizer;
use crate::common::{Ctx, Model, Session, bundled_model, sampler};
use segno::ffi::grammar::SEGNO_GRAMMAR_JSON_SCHEMA;
use segno::ffi::seq::{SEGNO_SAMPLER_IGNORE_EOG, segno_sampler_opts};
use segno::ffi::status::*;
use segno::grammar::{Constraint, Form, Grammar, Kind, Next, Vocabulary};
use segno::quant::synthetic::Random;
use segno::sample::{Mask, Options, Scratch, sample_masked};
use serde_json::{Value, json};
use std::sync::Arc;

fn below(random: &mut Random, end: usize) -> usize {
    (random.bits() >> 33) as usize % end
}

/// Some schema, the deeper the simpler.
fn schema(random: &mut Random, depth: usize) -> Value {
    let choice = below(random, 3);
    match below(random, if depth < 3 { 8 } else { 5 }) {
        0 => json!({"type": "integer", "minimum": 0, "maximum": ([9, 250, 70_000][choice])}),
        1 => json!({"type": "string", "maxLength": 1 + below(random, 12)}),
        2 => {
            json!({"enum": ([json!("the king"), json!("the queen"), json!("a fool"), json!(7), json!(null)][choice..])})
        }
        3 => {
            json!({"type": "string", "pattern": (["^[a-e]+-[0-9]{2}$", "^(to|be|or not)( to be)?$", "^.{1,4}$"][choice])})
        }
        4 => json!({"type": "boolean"}),
        5 => json!({"type": "array", "items": schema(random, depth + 1), "minItems": 1, "maxItems": 1 + choice}),
        6 => json!({"anyOf": [schema(random, depth + 1), schema(random, depth + 1)]}),
        _ => {
            let names = &["name", "age", "lines", "a", "house of"][..1 + below(random, 5)];
            let properties: serde_json::Map<String, Value> =
                names.iter().map(|name| (name.to_string(), schema(random, depth + 1))).collect();
            let required = &names[..below(random, names.len() + 1)];
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
    }
}

/// The options of sequence number `which`, as the C API and as the sampler takes them.
fn options(which: usize) -> (segno_sampler_opts, Options) {
    let mut opts = sampler();
    opts.seed = which as u64;
    match which % 6 {
        0 => opts.temperature = 0.0,
        1 => {}
        2 => (opts.temperature, opts.repeat_penalty) = (0.0, 1.4),
        3 => (opts.temperature, opts.top_k, opts.top_p, opts.min_p) = (1.0, 0, 1.0, 0.0),
        4 => (opts.temperature, opts.top_k, opts.top_p) = (1.5, 5, 0.7),
        _ => (opts.temperature, opts.typical_p, opts.frequency_penalty) = (1.0, 0.9, 0.2),
    }
    if which.is_multiple_of(4) {
        opts.flags = SEGNO_SAMPLER_IGNORE_EOG;
    }
    let options = Options {
        ignore_eog: opts.flags != 0,
        temperature: opts.temperature,
        top_p: opts.top_p,
        min_p: opts.min_p,
        typical_p: opts.typical_p,
        repeat_penalty: opts.repeat_penalty,
        frequency_penalty: opts.frequency_penalty,
        presence_penalty: opts.presence_penalty,
        top_k: opts.top_k,
        penalty_last_n: opts.penalty_last_n,
        seed: opts.seed,
        ..Options::defaults()
    };
    (opts, options)
}

/// What decides the next token of a sequence, apart from the session that is tested.
struct Oracle<'a> {
    session: &'a Session,
    grammar: &'a Arc<Grammar>,
    eog: &'a [i32],
    scratch: Scratch,
}

impl Oracle<'_> {
    /// The token behind `tokens`, the first `prompt` of which no grammar saw, and the outcome of the step.
    fn next(&mut self, options: &Options, tokens: &[i32], prompt: usize) -> (i32, segno_status) {
        let mut walk = Constraint::new(self.grammar, None).unwrap();
        for (position, &token) in tokens.iter().enumerate().skip(prompt) {
            if walk.peek().unwrap() == Next::Choice {
                walk.prepare();
            }
            walk.advance(token, position, options.is_end(token, self.eog)).unwrap();
        }
        let next = walk.peek().unwrap();
        let ends = if options.ignore_eog { &[] } else { self.eog };
        let (bits, named) = match next {
            Next::Nothing => return (-1, SEGNO_GRAMMAR_END),
            Next::Forced(token) => return (token, SEGNO_OK),
            Next::End => (&[][..], ends),
            Next::Choice => {
                walk.prepare();
                let (bits, may_end) = walk.mask().unwrap();
                (bits, if may_end { ends } else { &[] })
            }
            Next::Free => unreachable!("the grammar begins at once"),
        };
        let mask = Mask { bits: Some(bits), named: [named, &[]] };
        if mask.is_empty() {
            return (-1, SEGNO_GRAMMAR_END);
        }
        let seq = self.session.open(&sampler()).unwrap();
        self.session.append(seq, tokens).unwrap();
        let logits = self.session.logits(seq).unwrap();
        self.session.close(seq).unwrap();
        let token = sample_masked(options, &logits, &mask, tokens, tokens.len() as u64, &mut self.scratch).unwrap();
        (token, if options.is_end(token, self.eog) { SEGNO_DONE } else { SEGNO_OK })
    }
}

/// One sequence and what it holds.
struct Speaker {
    seq: i32,
    which: usize,
    tokens: Vec<i32>,
    is_free: bool,
}

/// Runs sequences within one schema for some steps, and compares every token; how many were compared.
fn compare(model: &Model, session: &Session, text: &str, oracle: &mut Oracle, random: &mut Random) -> usize {
    let grammar = model.grammar(SEGNO_GRAMMAR_JSON_SCHEMA, 0, text).unwrap();
    let prompt = model.tokenize(b"ROMEO: ", 0).unwrap();
    let mut speakers = Vec::new();
    for which in (0..7).map(|which| which + below(random, 600)) {
        let seq = session.open(&options(which).0).unwrap();
        session.append(seq, &prompt).unwrap();
        let is_free = speakers.len() == 3;
        session.constrain(seq, Some(&grammar).filter(|_| !is_free), -1).unwrap();
        speakers.push(Speaker { seq, which, tokens: prompt.clone(), is_free });
    }
    let mut compared = 0;
    for step in 0..14 {
        if step % 5 == 4 {
            let whom = below(random, speakers.len());
            let kept = prompt.len() + below(random, speakers[whom].tokens.len() - prompt.len() + 1);
            let Speaker { seq, which, tokens, is_free } = &mut speakers[whom];
            let fork = session.fork(*seq, None).unwrap();
            let copy = Speaker { seq: fork, which: *which, tokens: tokens.clone(), is_free: *is_free };
            session.truncate(*seq, kept).unwrap();
            tokens.truncate(kept);
            speakers.push(copy);
        }
        let expected: Vec<Option<(i32, segno_status)>> = speakers
            .iter()
            .map(|one| (!one.is_free).then(|| oracle.next(&options(one.which).1, &one.tokens, prompt.len())))
            .collect();
        let (tokens, outcomes, result) = session.batch(&speakers.iter().map(|one| one.seq).collect::<Vec<_>>());
        result.unwrap();
        for (index, one) in speakers.iter_mut().enumerate() {
            if let Some(expected) = expected[index] {
                assert_eq!(
                    (tokens[index], outcomes[index]),
                    expected,
                    "{text}, sampler {}, {:?}",
                    one.which,
                    one.tokens
                );
                compared += 1;
            }
            one.tokens.extend(Some(tokens[index]).filter(|&token| token >= 0));
        }
    }
    speakers.iter().for_each(|one| _ = session.close(one.seq).unwrap());
    compared
}

#[test]
fn tokens_are_those_that_masks_let_through() {
    let model = Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap();
    let tokenizer = Arc::new(tokenizer(&bundled_model()));
    let vocabulary = Arc::new(Vocabulary::of(&tokenizer).unwrap());
    let session = model.session(|opts| opts.max_seqs = 12).unwrap();
    let reference = model.session(|_| ()).unwrap();
    let (mut random, mut compared) = (Random::new(11), 0);
    for _ in 0..12 {
        let text = schema(&mut random, 0).to_string();
        let form = Form { kind: Kind::JsonSchema, text: text.as_bytes(), compact: false };
        let grammar = Arc::new(Grammar::compile(&vocabulary, &form).unwrap());
        let scratch = Scratch::new(model.info().vocab as usize).unwrap();
        let mut oracle = Oracle { session: &reference, grammar: &grammar, eog: tokenizer.eog_tokens(), scratch };
        compared += compare(&model, &session, &text, &mut oracle, &mut random);
    }
    assert!(compared > 900, "{compared} tokens");
}
