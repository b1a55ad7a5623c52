//! Tools in conversations through the C API: a model that says anything at random calls the tools that it may, with arguments that meet their
//! schemas, in every template, whatever is forked and cut.

use crate::common::conversation::*;
use crate::common::{Ctx, Session, sampler};
use segno::ffi::conversation::*;
use segno::ffi::grammar::*;
use segno::ffi::reply::*;
use segno::ffi::seq::segno_sampler_opts;
use segno::ffi::status::*;
use segno::ffi::tools::*;
use serde_json::{Value, json};

const TOOLS: &str = r#"[
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {
        "a": {"type": "integer", "minimum": -99, "maximum": 99}, "b": {"type": "integer", "minimum": -99, "maximum": 99}},
        "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "turn", "description": "Turns.", "parameters": {"type": "object", "properties": {
        "way": {"enum": ["left", "right"]}, "twice": {"type": "boolean"}}, "required": ["way"]}}}]"#;

/// Options that draw from all tokens.
fn drawn(seed: u64) -> segno_sampler_opts {
    let mut opts = sampler();
    (opts.seed, opts.temperature, opts.top_k, opts.top_p, opts.min_p) = (seed, 1.0, 0, 1.0, 0.0);
    opts
}

/// A conversation with tools, whose model says anything.
fn open(session: &Session, template: &str, format: Option<&std::ffi::CStr>, seed: u64) -> Chat {
    let sampler = drawn(seed);
    Chat::new(session, |opts| {
        (opts.template_text, opts.template_len) = parts(Some(template));
        (opts.tools_json, opts.tools_len) = parts(Some(TOOLS));
        opts.format = format.map_or(std::ptr::null(), |format| format.as_ptr());
        (opts.sampler, opts.max_tokens, opts.reasoning_tokens) = (&sampler, 500, 5);
    })
    .unwrap()
}

/// The calls that the last message makes: names and arguments.
fn calls(chat: &Chat) -> Vec<(String, Value)> {
    let messages = chat.messages();
    let list = messages.as_array().unwrap().last().unwrap()["tool_calls"].as_array().cloned().unwrap_or_default();
    let call =
        |call: &Value| (call["function"]["name"].as_str().unwrap().to_owned(), call["function"]["arguments"].clone());
    list.iter().map(call).collect()
}

#[track_caller]
fn check(what: &str, (name, arguments): &(String, Value)) {
    let members = arguments.as_object().unwrap_or_else(|| panic!("{what}: {arguments}"));
    // Minus zero is an integer too.
    let number =
        |key: &str| arguments[key].as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() <= 99.0);
    let fits = match &**name {
        "add" => members.len() == 2 && number("a") && number("b"),
        "turn" => {
            ["left", "right"].iter().any(|way| arguments["way"] == *way)
                && members.iter().all(|(key, value)| key == "way" || key == "twice" && value.is_boolean())
        }
        _ => false,
    };
    assert!(fits, "{what}: {name} {arguments}");
}

#[test]
fn required_calls_meet_their_schemas_in_every_template() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 1 << 14);
    let session = case.session(1 << 14);
    let (mut templates_with_calls, mut all_calls) = (0, 0);
    for (name, template) in templates() {
        let chat = open(&session, &template, None, 7);
        if let Err(refused) = chat.watch(SEGNO_TOOLS_REQUIRED, SEGNO_TOOLS_ONE_CALL, None) {
            let expected = [SEGNO_E_GRAMMAR, SEGNO_E_TEMPLATE].contains(&refused.status);
            assert!(expected, "{name}: {}", refused.message);
            continue;
        }
        let mut ended = 0;
        for turn in 0..4 {
            let named = (turn == 3).then_some("turn");
            if named.is_some() {
                chat.watch(SEGNO_TOOLS_NAMED, SEGNO_TOOLS_ONE_CALL, named).unwrap();
            }
            chat.say("user", "Do something.").unwrap();
            let Ok(events) = chat.finish() else { break };
            let whole = chat.stats().end != SEGNO_CHAT_END_LENGTH;
            let made = calls(&chat);
            let begun = events.iter().filter(|event| event.kind == SEGNO_EVENT_TOOL_BEGIN).count();
            assert!(begun == made.len() || !whole, "{name}: {events:?}");
            if whole {
                assert_eq!(made.len(), 1, "{name}, turn {turn}: {events:?}");
                check(&name, &made[0]);
                assert!(named.is_none_or(|named| made[0].0 == named), "{name}: {made:?}");
                ended += 1;
            }
            if chat.add(&json!({"role": "tool", "content": "3", "tool_call_id": "call00000"})).is_err() {
                break;
            }
        }
        println!("{name}: {ended} replies with a call");
        templates_with_calls += usize::from(ended > 0);
        all_calls += ended;
    }
    if !templates().is_empty() {
        assert!(templates_with_calls >= 16 && all_calls > 45, "{templates_with_calls} templates, {all_calls} calls");
    }
}

#[test]
fn a_call_begins_where_the_model_begins_one() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 1 << 13);
    let session = case.session(1 << 13);
    let chat = open(&session, CHATML, Some(c"hermes"), 3);
    chat.watch(SEGNO_TOOLS_AUTO, 0, None).unwrap();
    let begin = case.vocabulary.tokens("<tool_call>", || true);
    for turn in 0..6 {
        chat.say("user", "What now?").unwrap();
        let mut events = Vec::new();
        // What comes before a call is free.
        for &token in case.vocabulary.tokens("Let me see. ", || true).iter().chain(&begin) {
            steer(&session, chat.seq(), token);
            loop {
                let (status, more) = chat.next().unwrap();
                events.extend(more);
                if status != SEGNO_PENDING {
                    break;
                }
            }
        }
        let opts = drawn(turn);
        crate::common::call(|err| segno::ffi::seq::segno_seq_sampler_set(session.0, chat.seq(), &opts, err)).unwrap();
        let fork = chat.fork().unwrap();
        let (rest, other) = (chat.finish().unwrap(), fork.finish().unwrap());
        assert_eq!(rest, other, "a fork goes on alike");
        events.extend(rest);
        assert!(joined(&events, SEGNO_EVENT_CONTENT).starts_with("Let me see."), "{events:?}");
        let made = calls(&chat);
        assert!(!made.is_empty() || chat.stats().end == SEGNO_CHAT_END_LENGTH, "{events:?}");
        made.iter().for_each(|call| check("hermes", call));
        chat.truncate(chat.stats().last_turn as usize).unwrap();
    }
}

#[test]
fn choices_change_between_replies_and_end() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 1 << 13);
    let session = case.session(1 << 13);
    let chat = open(&session, CHATML, Some(c"hermes"), 3);
    let begin = case.vocabulary.tokens("<tool_call>", || true)[0];
    let first = |chat: &Chat| {
        chat.say("user", "Go.").unwrap();
        steer(&session, chat.seq(), begin);
        while chat.next().unwrap().0 == SEGNO_PENDING {}
        let length = session.length(chat.seq()).unwrap();
        // The token that was sampled comes back where nothing forbids it.
        let stats = chat.stats();
        chat.truncate(stats.messages as usize).unwrap();
        (length, stats.reply_tokens)
    };
    chat.watch(SEGNO_TOOLS_NONE, 0, None).unwrap();
    chat.say("user", "Go.").unwrap();
    let events = chat.finish().unwrap();
    assert!(calls(&chat).is_empty() && !events.iter().any(|event| event.kind == SEGNO_EVENT_TOOL_BEGIN), "{events:?}");
    // Set free, the model may write half a call; one that is watched is whole.
    chat.watch(SEGNO_TOOLS_FREE, 0, None).unwrap();
    assert_eq!(first(&chat).1, 1);
    chat.watch(SEGNO_TOOLS_REQUIRED, 0, None).unwrap();
    chat.say("user", "Go.").unwrap();
    chat.next().unwrap();
    // A reply that is being written goes on as it began.
    chat.watch(SEGNO_TOOLS_FREE, 0, None).unwrap();
    chat.finish().unwrap();
    assert!(!calls(&chat).is_empty() || chat.stats().end == SEGNO_CHAT_END_LENGTH);
    calls(&chat).iter().for_each(|call| check("hermes", call));
}

#[test]
fn what_cannot_be_watched_is_refused_and_changes_nothing() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let chat = open(&session, CHATML, Some(c"hermes"), 1);
    let refused = |choice, flags, name| chat.watch(choice, flags, name).unwrap_err();
    assert_eq!(refused(SEGNO_TOOLS_NAMED, 0, Some("fly")).status, SEGNO_E_NOT_FOUND);
    assert_eq!(refused(SEGNO_TOOLS_NAMED, 0, None).status, SEGNO_E_NULL_POINTER);
    assert_eq!(refused(4, 0, None).message, "there is no choice 4 of tools");
    assert_eq!(refused(SEGNO_TOOLS_AUTO, 2, None).status, SEGNO_E_INVALID_ARGUMENT);
    let plain = open(&session, CHATML, Some(c"think"), 1);
    assert_eq!(plain.watch(SEGNO_TOOLS_REQUIRED, 0, None).unwrap_err().status, SEGNO_E_GRAMMAR);
    let grammar = case.model.grammar(SEGNO_GRAMMAR_REGEX, 0, "[ab]{3}").unwrap();
    let ruled = Chat::new(&session, |opts| opts.grammar = grammar.0).unwrap();
    let failed = ruled.watch(SEGNO_TOOLS_AUTO, 0, None).unwrap_err();
    assert!(failed.message.contains("follow a grammar of the host's"), "{}", failed.message);
    chat.watch(SEGNO_TOOLS_REQUIRED, SEGNO_TOOLS_ONE_CALL, None).unwrap();
    refused(SEGNO_TOOLS_NAMED, 0, Some("fly"));
    chat.say("user", "Go.").unwrap();
    chat.finish().unwrap();
    assert_eq!(calls(&chat).len(), 1);
}
