//! Turns of a conversation through the C API: what is kept, forked, cut back, saved, cancelled and interrupted.

use crate::common::conversation::*;
use crate::common::{Ctx, call, greedy};
use segno::ffi::conversation::*;
use segno::ffi::grammar::*;
use segno::ffi::reply::*;
use segno::ffi::seq::segno_sampler_opts;
use segno::ffi::status::*;
use segno::ffi::text::segno_string;
use segno::ffi::turn::segno_chat_next;
use serde_json::json;
use std::ptr::null_mut;

#[test]
fn a_turn_keeps_what_is_there_and_tells_what_it_evaluates() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let (text, len) = parts(Some("Be short."));
    let chat = Chat::new(&session, |opts| (opts.system_text, opts.system_len) = (text, len)).unwrap();
    assert_eq!(chat.messages(), json!([{"role": "system", "content": "Be short."}]));
    talk(&case, &session, &chat, &["hi"]);
    let first = chat.stats();
    assert_eq!((first.kept_tokens, first.evaluated_tokens), (0, first.prompt_tokens));
    assert_eq!((first.messages, first.turns, first.last_turn, first.end), (3, 1, 1, SEGNO_CHAT_END_TOKEN));
    assert_eq!(first.reply_tokens, 3);
    talk(&case, &session, &chat, &["there"]);
    let second = chat.stats();
    assert_eq!(second.kept_tokens, first.prompt_tokens + first.reply_tokens);
    // The last sampled token has not been evaluated before.
    assert_eq!(second.evaluated_tokens, second.prompt_tokens - second.kept_tokens + 1);
    assert_eq!((second.messages, second.turns, second.last_turn), (5, 2, 3));
    let stats = session.seq_stats(chat.seq()).unwrap();
    assert_eq!(stats.prompt_tokens, first.evaluated_tokens + second.evaluated_tokens);
    assert_eq!(chat.next().unwrap_err().message, "the last message is the assistant's; add one to answer first");
}

#[test]
fn turns_are_undone_and_answered_anew() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let chat = Chat::new(&session, |_| ()).unwrap();
    assert_eq!(chat.next().unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    talk(&case, &session, &chat, &["one", "two"]);
    chat.truncate(3).unwrap();
    let length = session.length(chat.seq()).unwrap();
    answer(&case, &session, &chat, "another");
    assert_eq!(chat.messages()[3], json!({"role": "assistant", "content": "another"}));
    let stats = chat.stats();
    assert_eq!((stats.kept_tokens, stats.evaluated_tokens), (stats.prompt_tokens, 1), "of {length}");
    chat.truncate(chat.stats().last_turn as usize).unwrap();
    assert_eq!(chat.messages().as_array().unwrap().len(), 2);
    assert_eq!(chat.truncate(3).unwrap_err().message, "cannot keep 3 messages of a conversation of 2");
    // A reply that is being written goes too.
    chat.say("user", "x").unwrap();
    steer(&session, chat.seq(), 65);
    chat.next().unwrap();
    chat.truncate(2).unwrap();
    assert_eq!(chat.next().unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    chat.truncate(0).unwrap();
    talk(&case, &session, &chat, &["three"]);
    assert_eq!(chat.stats().messages, 2);
}

#[test]
fn forks_go_on_apart_in_the_middle_of_a_reply_too() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let chat = Chat::new(&session, |_| ()).unwrap();
    talk(&case, &session, &chat, &["one"]);
    chat.say("user", "two").unwrap();
    for byte in "Aé".bytes() {
        steer(&session, chat.seq(), byte.into());
        chat.next().unwrap();
    }
    let fork = chat.fork().unwrap();
    assert_eq!(answer(&case, &session, &fork, "B")[0].text, "B");
    answer(&case, &session, &chat, "C");
    assert_eq!(fork.messages()[3]["content"], "AéB");
    assert_eq!(chat.messages()[3]["content"], "AéC");
    let (a, b) = (chat.stats(), fork.stats());
    assert_eq!((a.prompt_tokens, a.reply_tokens, a.end), (b.prompt_tokens, b.reply_tokens, b.end));
    // Events that wait for room wait in the fork too.
    let end = case.vocabulary.tokens("<|im_end|>", || true)[0];
    chat.say("user", "three").unwrap();
    steer(&session, chat.seq(), 66);
    let mut count = 0;
    while segno_chat_next(chat.0, null_mut(), 0, &mut count, null_mut()) != SEGNO_E_BUFFER_TOO_SMALL {}
    assert_eq!(count, 1);
    let fork = chat.fork().unwrap();
    for chat in [&fork, &chat] {
        assert_eq!(joined(&chat.next().unwrap().1, SEGNO_EVENT_CONTENT), "B");
        steer(&session, chat.seq(), end);
        assert_eq!(chat.next().unwrap().0, SEGNO_DONE);
    }
}

#[test]
fn messages_are_saved_and_loaded() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let template = templates().into_iter().find(|(name, _)| name == "Qwen-Qwen3-0.6B");
    let Some((_, template)) = template else { return };
    let tools = crate::common::replies::tools().to_string();
    let make = || {
        Chat::new(&session, |opts| {
            (opts.template_text, opts.template_len) = parts(Some(&template));
            (opts.tools_json, opts.tools_len) = parts(Some(&tools));
        })
        .unwrap()
    };
    let chat = make();
    chat.say("user", "Find \"ü\".").unwrap();
    let call = "<think>\nI must.\n</think>\n\nSo:\n<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"ü\"}}\n</tool_call>";
    answer(&case, &session, &chat, call);
    let wanted = json!({"role": "assistant", "reasoning_content": "I must.", "content": "So:", "tool_calls": [
        {"id": "call00000", "type": "function", "function": {"name": "search", "arguments": {"query": "ü"}}}]});
    assert_eq!(chat.messages()[1], wanted);
    chat.add(&json!({"role": "tool", "tool_call_id": "call00000", "content": "[]"})).unwrap();
    answer(&case, &session, &chat, "<think>\n\n</think>\n\nNothing.");
    let saved = chat.messages();
    let loaded = make();
    loaded.add(&saved).unwrap();
    assert_eq!(loaded.messages(), saved);
    for chat in [&chat, &loaded] {
        chat.say("user", "Again.").unwrap();
        answer(&case, &session, chat, call);
    }
    assert_eq!(chat.messages(), loaded.messages());
    assert_eq!(loaded.messages()[5]["tool_calls"][0]["id"], "call00001");
    assert_eq!(chat.stats().prompt_tokens, loaded.stats().prompt_tokens);
    assert!(chat.add(&json!([{"role": "user"}, 7])).unwrap_err().message.contains("message 1 is no object"));
    assert_eq!(chat.messages(), loaded.messages());
}

#[test]
fn several_in_one_pass_say_what_each_says_alone() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.model.session(|opts| (opts.kv_tokens, opts.max_seqs, opts.max_prefill) = (4096, 8, 16)).unwrap();
    let texts = ["hello", "what is this, and why does it take so long?", "x", ""];
    let make = || -> Vec<Chat> {
        let chats = texts.iter().enumerate().map(|(index, text)| {
            let chat = Chat::new(&session, |opts| opts.max_tokens = 5 + index as u32).unwrap();
            chat.say("user", text).unwrap();
            chat
        });
        chats.collect()
    };
    let alone: Vec<Vec<Event>> = make().iter().map(|chat| chat.finish().unwrap()).collect();
    let chats = make();
    let mut together = vec![Vec::new(); chats.len()];
    let mut running: Vec<usize> = (0..chats.len()).collect();
    let before = session.stats().unwrap().passes;
    let mut steps = 0;
    while !running.is_empty() {
        let list: Vec<&Chat> = running.iter().map(|&index| &chats[index]).collect();
        let (items, result) = next_batch(&session, &list);
        assert_eq!(result, Ok(SEGNO_OK));
        let mut left = Vec::new();
        for (&index, (status, events)) in running.iter().zip(items) {
            together[index].extend(events);
            assert!(matches!(status, SEGNO_OK | SEGNO_PENDING | SEGNO_DONE), "{status}");
            if status != SEGNO_DONE {
                left.push(index);
            }
        }
        (running, steps) = (left, steps + 1);
    }
    assert!(session.stats().unwrap().passes - before <= steps);
    let texts = |all: &[Vec<Event>]| all.iter().map(|events| joined(events, SEGNO_EVENT_CONTENT)).collect::<Vec<_>>();
    assert_eq!(texts(&together), texts(&alone));
    assert!(chats.iter().all(|chat| chat.stats().end == SEGNO_CHAT_END_LENGTH));
}

#[test]
fn a_failed_item_of_a_batch_is_named_and_the_others_advance() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let (session, other) = (case.session(4096), case.session(4096));
    let [good, empty] = [(); 2].map(|()| Chat::new(&session, |_| ()).unwrap());
    let stranger = Chat::new(&other, |_| ()).unwrap();
    good.say("user", "x").unwrap();
    stranger.say("user", "x").unwrap();
    steer(&session, good.seq(), 65);
    let (items, result) = next_batch(&session, &[&stranger, &good, &empty, &good]);
    let statuses: Vec<segno_status> = items.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [SEGNO_E_INVALID_ARGUMENT, SEGNO_OK, SEGNO_E_INVALID_ARGUMENT, SEGNO_E_BUSY]);
    let error = result.unwrap_err();
    assert_eq!((error.status, error.item), (SEGNO_E_INVALID_ARGUMENT, 0));
    assert!(error.message.contains("another session"), "{}", error.message);
    assert_eq!(joined(&items[1].1, SEGNO_EVENT_CONTENT), "A");
    let (items, result) = next_batch(&session, &[&good, &empty]);
    assert_eq!((items[0].0, result.unwrap_err().item), (SEGNO_OK, 1));
    // Cancelled, nobody advances.
    session.cancel(true);
    let (items, result) = next_batch(&session, &[&good, &empty]);
    assert_eq!(result, Ok(SEGNO_CANCELLED));
    assert!(items.iter().all(|(status, events)| *status == SEGNO_CANCELLED && events.is_empty()));
    session.cancel(false);
    assert_eq!(next_batch(&session, &[]).1, Ok(SEGNO_OK));
    assert_eq!(good.next().unwrap().0, SEGNO_OK);
}

#[test]
fn cancelled_replies_go_on() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.model.session(|opts| (opts.kv_tokens, opts.max_prefill) = (4096, 16)).unwrap();
    let whole = |cancels: bool| {
        let chat = Chat::new(&session, |opts| opts.max_tokens = 12).unwrap();
        chat.say("user", "Tell me a long story, please.").unwrap();
        let mut all = Vec::new();
        loop {
            if cancels {
                let (length, messages) = (session.length(chat.seq()), chat.messages());
                session.cancel(true);
                let (status, events) = chat.next().unwrap();
                session.cancel(false);
                assert!(status == SEGNO_CANCELLED && events.is_empty());
                assert!(session.length(chat.seq()) == length || length == Ok(0), "only the prompt may be there");
                assert_eq!(chat.messages(), messages);
            }
            let (status, events) = chat.next().unwrap();
            all.extend(events);
            if status == SEGNO_DONE {
                return (joined(&all, SEGNO_EVENT_CONTENT), chat.messages());
            }
        }
    };
    assert_eq!(whole(true), whole(false));
}

#[test]
fn events_wait_for_room_and_none_is_lost() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let chat = Chat::new(&session, |_| ()).unwrap();
    chat.say("user", "x").unwrap();
    let end = case.vocabulary.tokens("<|im_end|>", || true)[0];
    let mut all = Vec::new();
    for token in [65, 66, end] {
        steer(&session, chat.seq(), token);
        let mut count = 0;
        let status = segno_chat_next(chat.0, null_mut(), 0, &mut count, null_mut());
        assert_eq!((status, count), (SEGNO_E_BUFFER_TOO_SMALL, 1));
        let length = session.length(chat.seq());
        let (status, events) = chat.next().unwrap();
        assert_eq!(status, if token == end { SEGNO_DONE } else { SEGNO_OK });
        assert_eq!(session.length(chat.seq()), length, "no step is taken for events that wait");
        all.extend(events);
    }
    assert_eq!(joined(&all, SEGNO_EVENT_CONTENT), "AB");
    assert_eq!(all.last().unwrap().kind, SEGNO_EVENT_END);
    assert_eq!(chat.messages()[1]["content"], "AB");
}

#[test]
fn a_message_ends_the_reply_that_is_being_written() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let stop = segno_string { data: c"END".as_ptr(), len: 3 };
    let chat = Chat::new(&session, |opts| (opts.stops, opts.stop_count) = (&stop, 1)).unwrap();
    chat.say("user", "x").unwrap();
    for byte in "Well EN".bytes() {
        steer(&session, chat.seq(), byte.into());
        chat.next().unwrap();
    }
    chat.say("user", "stop").unwrap();
    let wanted = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well EN"}, {"role": "user", "content": "stop"}]);
    assert_eq!(chat.messages(), wanted);
    assert_eq!(chat.stats().end, SEGNO_CHAT_END_INTERRUPTED);
    // What has not begun to be said is no message.
    steer(&session, chat.seq(), 65);
    session.cancel(true);
    assert_eq!(chat.next().unwrap().0, SEGNO_CANCELLED);
    session.cancel(false);
    chat.say("user", "now").unwrap();
    assert_eq!(chat.messages().as_array().unwrap().len(), 4);
    for byte in "go END".bytes() {
        steer(&session, chat.seq(), byte.into());
        chat.next().unwrap();
    }
    assert_eq!(chat.messages()[4]["content"], "go ");
    assert_eq!(chat.stats().end, SEGNO_CHAT_END_STOP);
}

#[test]
fn reasoning_ends_when_its_budget_is_spent() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let opened = format!("{CHATML}{{% if add_generation_prompt %}}<think>\n{{% endif %}}{{# </think> #}}");
    let harmony = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant{# <|channel|> #}";
    for (template, begin, budget) in
        [(opened.as_str(), "", 3), (CHATML, "<think>", 3), (harmony, "<|channel|>analysis<|message|>", 0)]
    {
        let chat = Chat::new(&session, |opts| {
            (opts.template_text, opts.template_len) = parts(Some(template));
            (opts.reasoning_tokens, opts.format) =
                (budget, if template == CHATML { c"think".as_ptr() } else { std::ptr::null() });
        })
        .unwrap();
        chat.say("user", "x").unwrap();
        let mut all = Vec::new();
        let mut step = |token: i32| {
            steer(&session, chat.seq(), token);
            let (status, events) = chat.next().unwrap();
            all.extend(events);
            status
        };
        for token in case.vocabulary.tokens(begin, || true) {
            step(token);
        }
        // The model would go on for ever.
        for _ in 0..60 {
            step(i32::from(b'r'));
        }
        step(case.vocabulary.tokens("<|im_end|>", || true)[0]);
        assert_eq!(joined(&all, SEGNO_EVENT_REASONING), "r".repeat(budget as usize), "{template}");
        let content = joined(&all, SEGNO_EVENT_CONTENT);
        assert!(content.len() > 20 && content.bytes().all(|byte| byte == b'r'), "{content}");
        assert_eq!(chat.stats().reasoning_tokens, budget as u64 + 1, "with the marker");
        assert_eq!(chat.messages()[1]["content"], content);
    }
}

#[test]
fn replies_follow_their_grammar_behind_reasoning() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let grammar = case.model.grammar(SEGNO_GRAMMAR_REGEX, 0, "(yes|no), [0-9]{3}").unwrap();
    let think_end = case.vocabulary.tokens("</think>", || true)[0];
    let opened = format!("{CHATML}{{% if add_generation_prompt %}}<think>\n{{% endif %}}{{# </think> #}}");
    for (template, start) in [(CHATML, -1), (opened.as_str(), -1), (opened.as_str(), think_end)] {
        let chat = Chat::new(&session, |opts| {
            (opts.template_text, opts.template_len) = parts(Some(template));
            (opts.grammar, opts.grammar_start, opts.reasoning_tokens) = (grammar.0, start, 4);
        })
        .unwrap();
        for _ in 0..2 {
            chat.say("user", "x").unwrap();
            let events = chat.finish().unwrap();
            let content = joined(&events, SEGNO_EVENT_CONTENT);
            assert!(content.ends_with(|c: char| c.is_ascii_digit()), "{content}");
            let (word, number) = content.split_once(", ").unwrap();
            assert!(["yes", "no"].contains(&word) && number.len() == 3);
            assert_eq!(chat.stats().reasoning_tokens, if template == CHATML { 0 } else { 5 });
            assert_eq!(chat.stats().end, SEGNO_CHAT_END_GRAMMAR);
        }
        let fork = chat.fork().unwrap();
        fork.say("user", "y").unwrap();
        assert!(joined(&fork.finish().unwrap(), SEGNO_EVENT_CONTENT).contains(", "));
    }
    let other = Case::new(&ctx, 64).model.grammar(SEGNO_GRAMMAR_REGEX, 0, "a").unwrap();
    let before = session.stats().unwrap().seqs;
    let failed = Chat::new(&session, |opts| opts.grammar = other.0).err().unwrap();
    assert!(failed.message.contains("another model"), "{}", failed.message);
    assert_eq!(session.stats().unwrap().seqs, before, "no sequence is left behind");
}

#[test]
fn conversations_keep_their_session_and_give_back_their_sequences() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 4096);
    let session = case.session(4096);
    let mut chats: Vec<Chat> = (0..4).map(|_| Chat::new(&session, |_| ()).unwrap()).collect();
    assert_eq!(Chat::new(&session, |_| ()).err().unwrap().status, SEGNO_E_SEQ_FULL);
    let id = chats[0].seq();
    drop(chats.remove(0));
    assert_eq!(session.stats().unwrap().seqs, 3);
    assert_eq!(session.length(id).unwrap_err().status, SEGNO_E_NOT_FOUND);
    chats[0].say("user", "x").unwrap();
    // A sequence that the host closes is an error of the conversation's, until that is freed.
    session.close(chats[1].seq()).unwrap();
    chats[1].say("user", "x").unwrap();
    assert_eq!(chats[1].next().unwrap_err().status, SEGNO_E_NOT_FOUND);
    drop(session);
    assert_eq!(chats[0].next().unwrap().0, SEGNO_OK);
}

#[test]
fn bad_options_are_refused_by_name() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let case = Case::new(&ctx, 256);
    let session = case.session(256);
    let refused = |change: &dyn Fn(&mut segno_chat_create_opts)| Chat::new(&session, change).err().unwrap();
    let format = refused(&|opts| opts.format = c"nonsense".as_ptr());
    assert!(format.status == SEGNO_E_NOT_FOUND && format.message.contains("choose one of"), "{}", format.message);
    assert_eq!(refused(&|opts| opts.flags = 2).status, SEGNO_E_INVALID_ARGUMENT);
    assert!(refused(&|opts| opts.reasoning_tokens = -2).message.contains("reasoning_tokens is -2"));
    assert_eq!(refused(&|opts| opts.grammar_start = -7).status, SEGNO_E_INVALID_ARGUMENT);
    assert!(refused(&|opts| (opts.tools_json, opts.tools_len) = parts(Some("{}"))).message.contains("tools"));
    assert_eq!(refused(&|opts| opts.stop_count = 1).status, SEGNO_E_NULL_POINTER);
    let sampler = segno_sampler_opts { top_p: 7.0, ..greedy() };
    assert_eq!(refused(&|opts| opts.sampler = &sampler).status, SEGNO_E_INVALID_ARGUMENT);
    assert_eq!(session.stats().unwrap().seqs, 0);
    let bare = model(&ctx, 256, None);
    let session = bare.session(|_| ()).unwrap();
    let failed = Chat::new(&session, |_| ()).err().unwrap();
    assert_eq!(failed.status, SEGNO_E_NOT_FOUND);
    assert!(failed.message.contains("template_text"), "{}", failed.message);
    let chat = Chat::with_template(&session, "{{ raise_exception('no ' + messages[0].content) }}").unwrap();
    chat.say("user", "way").unwrap();
    let failed = chat.next().unwrap_err();
    assert_eq!((failed.status, failed.message.as_str()), (SEGNO_E_TEMPLATE, "no way"));
    assert_eq!(chat.messages().as_array().unwrap().len(), 1);
    let bytes = b"\xff";
    let failed = call(|err| segno_chat_say(chat.0, c"user".as_ptr(), bytes.as_ptr().cast(), 1, err)).unwrap_err();
    assert!(failed.message.contains("utf-8"), "{}", failed.message);
}
