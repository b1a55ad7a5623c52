//! Room of a conversation: what is forgotten when the context or the cache is full, in a reply too, and what never is.

use crate::common::conversation::*;
use crate::common::{Ctx, greedy};
use segno::ffi::conversation::*;
use segno::ffi::grammar::*;
use segno::ffi::reply::*;
use segno::ffi::status::*;
use serde_json::{Value, json};

#[test]
fn the_oldest_turns_are_forgotten_but_never_the_system_nor_the_newest() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let (session, other) = (case.session(4096), case.session(4096));
    let (text, len) = parts(Some("Be short."));
    let make = |flags: u32| {
        Chat::new(&session, |opts| {
            (opts.system_text, opts.system_len, opts.flags) = (text, len, flags);
            (opts.context_tokens, opts.max_tokens) = (800, 16);
        })
        .unwrap()
    };
    let (chat, strict) = (make(SEGNO_CHAT_FORGET), make(0));
    let mut reference = Reference::new(&other);
    let (mut changes, mut last, mut full) = (0, 0, None);
    for turn in 0..40 {
        let word = format!("word number {turn}");
        chat.say("user", &word).unwrap();
        answer(&case, &session, &chat, "Fine.");
        let stats = chat.stats();
        let all = chat.messages();
        let all = all.as_array().unwrap();
        let forgotten = stats.forgotten as usize;
        assert_eq!((all.len(), forgotten % 2), (3 + 2 * turn, 0), "everything is there, whole turns are forgotten");
        let shown: Vec<Value> = all[..1].iter().chain(&all[1 + forgotten..all.len() - 1]).cloned().collect();
        let prompt = case.render(CHATML, &Value::Array(shown), true).unwrap();
        assert_eq!(stats.prompt_tokens as usize, prompt.len());
        let end = case.vocabulary.tokens("Fine.<|im_end|>", || false);
        assert!(prompt.len() + 16 <= 800);
        reference.set(&[prompt, end].concat());
        reference.assert_same(&session, &chat, &format!("turn {turn}"));
        assert!(forgotten >= last);
        changes += u32::from(forgotten > last);
        last = forgotten;
        if full.is_none() {
            strict.say("user", &word).unwrap();
            steer(&session, strict.seq(), case.end);
            full = strict.finish().err();
        }
    }
    assert!((2..12).contains(&changes), "{changes} times");
    let full = full.unwrap();
    assert_eq!(full.status, SEGNO_E_CONTEXT_FULL);
    assert!(full.message.contains("800 are there for it"), "{}", full.message);
    // Far enough back nothing is forgotten.
    chat.truncate(3).unwrap();
    assert_eq!(chat.stats().forgotten, 0);
    // A newest turn that does not fit is an error, and leaves everything as it was.
    let messages = chat.messages();
    chat.say("user", &"x".repeat(900)).unwrap();
    assert_eq!(chat.next().unwrap_err().status, SEGNO_E_CONTEXT_FULL);
    chat.truncate(3).unwrap();
    assert_eq!(chat.messages(), messages);
    talk(&case, &session, &chat, &["short"]);
}

#[test]
fn a_reply_that_fills_the_context_lets_turns_be_forgotten_meanwhile() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let (session, other) = (case.session(4096), case.session(4096));
    let grammar = case.model.grammar(SEGNO_GRAMMAR_REGEX, 0, "(ab)+").unwrap();
    let chat = Chat::new(&session, |opts| {
        (opts.flags, opts.context_tokens, opts.grammar) = (SEGNO_CHAT_FORGET, 256, grammar.0);
    })
    .unwrap();
    chat.add(&json!([{"role": "user", "content": "u".repeat(80)}, {"role": "assistant", "content": "a"}])).unwrap();
    chat.say("user", "go on").unwrap();
    // Without an end the reply goes on until nothing is left to forget.
    let mut text = String::new();
    let full = loop {
        match chat.next() {
            Ok((_, events)) => text += &joined(&events, SEGNO_EVENT_CONTENT),
            Err(error) => break error,
        }
    };
    assert_eq!(full.status, SEGNO_E_CONTEXT_FULL);
    assert_eq!(chat.stats().forgotten, 2);
    assert_eq!(text, "ab".repeat(text.len() / 2) + &"ab"[..text.len() % 2]);
    let prompt = case.render(CHATML, &json!([{"role": "user", "content": "go on"}]), true).unwrap();
    assert_eq!(prompt.len() + text.len(), 256);
    let mut reference = Reference::new(&other);
    reference.set(&[prompt, case.vocabulary.tokens(&text, || false)].concat());
    reference.assert_same(&session, &chat, "after forgetting");
    // What there is of it becomes a message with the next one.
    chat.truncate(3).unwrap();
    chat.say("user", "stop").unwrap();
    assert_eq!(chat.stats().messages, 4);
}

#[test]
fn a_full_cache_is_made_room_in_too() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(256);
    let chat = Chat::new(&session, |opts| (opts.flags, opts.max_tokens) = (SEGNO_CHAT_FORGET, 8)).unwrap();
    talk(&case, &session, &chat, &["one", "two", "three"]);
    assert_eq!(chat.stats().forgotten, 0);
    // Others take the pages.
    let total = session.stats().unwrap();
    let pages = total.pages_free as usize * total.page_tokens as usize;
    let other = session.open(&greedy()).unwrap();
    session.prefill(other, &vec![65; pages]).unwrap();
    chat.say("user", &"x".repeat(60)).unwrap();
    let events = answer(&case, &session, &chat, "ok");
    assert_eq!(joined(&events, SEGNO_EVENT_CONTENT), "ok");
    assert!(chat.stats().forgotten > 0);
    session.close(other).unwrap();
}
