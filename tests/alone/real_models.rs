//! Real models that `make models` fetches, against what llama.cpp makes of them (`tests/golden/make_real.py`): ids of texts, rendered
//! conversations, probabilities and greedy continuations.

#[path = "../common/mod.rs"]
mod common;

use common::skip::{Lack, skip};
use common::{Ctx, Model, call, greedy, root};
use segno::ffi::chat::{SEGNO_CHAT_ADD_GENERATION_PROMPT, segno_chat_opts, segno_chat_opts_init, segno_chat_render};
use segno::ffi::ctx::SEGNO_PRECISION_PRECISE;
use segno::ffi::text::SEGNO_TOKENIZE_ADD_SPECIAL;
use serde_json::Value;
use std::ptr::null_mut;

/// Difference of log probabilities from llama.cpp's, which rounds activations to 8 bits, weighted by the probabilities: in the mean of the
/// positions, and at most.
const MEAN: f64 = 0.08;
const LARGEST: f64 = 0.5;
/// By how much the logit of the token that llama.cpp chose may be below the highest one.
const TIE: f32 = 0.3;

/// One model and what is expected of it.
struct Case {
    golden: Value,
    model: Model,
}

impl Case {
    fn name(&self) -> &str {
        self.golden["name"].as_str().unwrap()
    }
}

fn ids(value: &Value) -> Vec<i32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Calls `check` for every model that is there, with the texts and prompts that all share.
fn for_each_model(check: impl Fn(&Case, &Value)) {
    let all: Value = serde_json::from_slice(&std::fs::read(root().join("tests/golden/real.json")).unwrap()).unwrap();
    for golden in all["cases"].as_array().unwrap() {
        let path = root().join(".models").join(format!("{}.gguf", golden["name"].as_str().unwrap()));
        if !path.exists() {
            skip(Lack::Data, "`make models` has not been run");
            continue;
        }
        let ctx = Ctx::new(|opts| (opts.precision, opts.n_threads) = (SEGNO_PRECISION_PRECISE, 2)).unwrap();
        check(&Case { golden: golden.clone(), model: ctx.load(&path).unwrap() }, &all);
    }
}

#[test]
fn texts_have_the_ids_of_llama_cpp() {
    for_each_model(|case, all| {
        let texts = all["texts"].as_array().unwrap();
        for (text, expected) in texts.iter().zip(case.golden["ids"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            assert_eq!(case.model.tokenize(text.as_bytes(), 0).unwrap(), ids(expected), "{}: {text:?}", case.name());
        }
        assert!(texts.len() >= 300);
    });
}

fn render(model: &Model, messages: &str) -> String {
    // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_chat_opts = unsafe { std::mem::zeroed() };
    segno_chat_opts_init(&mut opts, size_of::<segno_chat_opts>());
    opts.flags = SEGNO_CHAT_ADD_GENERATION_PROMPT;
    let (json, mut len) = (messages.as_ptr().cast(), 0);
    call(|err| segno_chat_render(model.0, json, messages.len(), &opts, null_mut(), 0, &mut len, err)).unwrap();
    let mut text = vec![0u8; len];
    let room = text.as_mut_ptr().cast();
    call(|err| segno_chat_render(model.0, json, messages.len(), &opts, room, len, &mut len, err)).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn conversations_render_as_jinja_renders_them() {
    for_each_model(|case, all| {
        let Some(expected) = case.golden["chats"].as_array() else { return };
        for (conversation, expected) in all["conversations"].as_array().unwrap().iter().zip(expected) {
            assert_eq!(render(&case.model, &conversation.to_string()), expected.as_str().unwrap(), "{}", case.name());
        }
    });
}

/// The natural logarithms of the probabilities of all tokens.
fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - top).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit - top) - sum.ln()).collect()
}

#[test]
fn probabilities_are_those_of_llama_cpp() {
    for_each_model(|case, _| {
        let session = case.model.session_f32();
        let seq = session.open(&greedy()).unwrap();
        let (tokens, mut differences) = (ids(&case.golden["tokens"]), Vec::new());
        for (token, likeliest) in tokens.iter().zip(case.golden["likeliest"].as_array().unwrap()) {
            session.append(seq, &[*token]).unwrap();
            let found = log_probabilities(&session.logits(seq).unwrap());
            let weighted = likeliest.as_array().unwrap().iter().map(|pair| {
                let (token, expected) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap());
                expected.exp() * (found[token] - expected).abs()
            });
            differences.push(weighted.sum::<f64>());
        }
        assert!(tokens.len() >= 200);
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        let largest = differences.iter().copied().fold(0.0, f64::max);
        println!("{}: log probabilities differ by {mean:.3} in the mean, at most {largest:.3}", case.name());
        assert!(mean <= MEAN && largest <= LARGEST, "{}: {mean:.3}, {largest:.3}", case.name());
    });
}

#[test]
fn greedy_continuations_are_those_of_llama_cpp_up_to_near_ties() {
    for_each_model(|case, all| {
        let session = case.model.session_f32();
        let mut ties = 0;
        for (prompt, made) in
            all["prompts"].as_array().unwrap().iter().zip(case.golden["continuations"].as_array().unwrap())
        {
            let prompt = prompt.as_str().unwrap();
            let tokens = case.model.tokenize(prompt.as_bytes(), SEGNO_TOKENIZE_ADD_SPECIAL).unwrap();
            let seq = session.open(&greedy()).unwrap();
            session.append(seq, &tokens).unwrap();
            for token in ids(made) {
                let logits = session.logits(seq).unwrap();
                let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let gap = highest - logits[token as usize];
                assert!(gap <= TIE, "{}: {prompt:?}: token {token} is {gap} below the highest", case.name());
                ties += usize::from(gap > 0.0);
                session.append(seq, &[token]).unwrap();
            }
            session.close(seq).unwrap();
        }
        println!("{}: {ties} near ties", case.name());
    });
}
