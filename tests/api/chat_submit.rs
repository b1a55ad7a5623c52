//! Steps of conversations that a host submits and polls: the events of blocking calls, what is busy meanwhile, cancelling, failing, and freeing
//! conversations and sessions amid a step.

use crate::common::conversation::*;
use crate::common::{Ctx, Model, Session, bundled_model, call, greedy, sampler};
use segno::ffi::chat_submit::{segno_chat_poll, segno_chat_submit};
use segno::ffi::conversation::segno_chat_create_opts;
use segno::ffi::reply::SEGNO_EVENT_END;
use segno::ffi::status::*;
use std::ptr::{null, null_mut};

const FOREVER: u64 = u64::MAX;
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

fn model() -> Model {
    Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&bundled_model()).unwrap()
}

fn session(model: &Model) -> Session {
    model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.max_prefill) = (5, 2048, 64)).unwrap()
}

/// A conversation that has been asked something, and draws by this seed.
fn asked(session: &Session, seed: u64, text: &str) -> Chat {
    let mut opts = if seed == 0 { greedy() } else { sampler() };
    opts.seed = seed;
    let change = |create: &mut segno_chat_create_opts| {
        (create.template_text, create.template_len) = parts(Some(TEMPLATE));
        (create.sampler, create.max_tokens) = (&opts, 20 + seed as u32);
    };
    let chat = Chat::new(session, change).unwrap();
    chat.say("user", text).unwrap();
    chat
}

/// Three conversations, one of which has a long prompt.
fn three(session: &Session) -> [Chat; 3] {
    let long = "What, all so soon asleep! I wish mine eyes would shut up my thoughts. ".repeat(4);
    [asked(session, 0, "ROMEO:"), asked(session, 1, &long), asked(session, 2, "Who is there?")]
}

/// All events of conversations that are stepped until their replies are over, by `step`, which advances those that it gets.
fn finish(chats: &[Chat; 3], step: impl Fn(&[&Chat]) -> Polled) -> [Vec<Event>; 3] {
    let (mut events, mut open): ([Vec<Event>; 3], Vec<usize>) = (Default::default(), vec![0, 1, 2]);
    while !open.is_empty() {
        let listed: Vec<&Chat> = open.iter().map(|&index| &chats[index]).collect();
        let (told, result) = step(&listed);
        assert_eq!(result, Ok(SEGNO_OK));
        let before = open.clone();
        for (index, (status, more)) in before.into_iter().zip(told) {
            assert!([SEGNO_OK, SEGNO_PENDING, SEGNO_DONE].contains(&status), "{status}");
            events[index].extend(more);
            open.retain(|&other| other != index || status != SEGNO_DONE);
        }
    }
    events
}

#[test]
fn events_are_those_of_blocking_calls_whatever_the_budget() {
    let model = model();
    let alone = session(&model);
    let blocking = three(&alone);
    let expected = finish(&blocking, |listed| next_batch(&alone, listed));
    assert!(expected.iter().all(|events| events.len() > 3 && events.last().unwrap().kind == SEGNO_EVENT_END));
    for budget_us in [0, 1, 3000] {
        let session = session(&model);
        let chats = three(&session);
        let found = finish(&chats, |listed| step_chats(&session, listed, budget_us));
        assert_eq!(found, expected, "a budget of {budget_us}");
        // Another turn, and blocking calls among the steps.
        for (chat, blocking) in chats.iter().zip(&blocking) {
            assert_eq!(chat.messages(), blocking.messages());
            assert_eq!(chat.say("user", "And then?"), Ok(SEGNO_OK));
        }
        assert_eq!(step_chats(&session, &[&chats[0]], budget_us).1, Ok(SEGNO_OK));
        let rest = chats[0].finish().unwrap();
        assert!(joined(&rest, rest[0].kind).len() > 3);
    }
}

#[test]
fn a_budget_bounds_the_slices_of_prompts() {
    let (model, steps) = (model(), |chat: &Chat, session: &Session, budget_us| {
        let is_pending = |_: &i32| step_chats(session, &[chat], budget_us).0[0].0 == SEGNO_PENDING;
        (1..1000).find(|round| !is_pending(round)).unwrap()
    });
    let text = "word ".repeat(40);
    let [one, whole] = [1, 0].map(|budget_us| {
        let session = session(&model);
        let chat = asked(&session, 0, &text);
        let steps = steps(&chat, &session, budget_us);
        (steps, chat.stats().prompt_tokens)
    });
    assert_eq!(one.0 as u64, one.1, "nothing ends within a microsecond, so a slice has one token");
    assert_eq!(whole.0 as u64, whole.1.div_ceil(64));
}

#[test]
fn session_and_conversations_are_busy_until_the_poll() {
    let model = model();
    let session = session(&model);
    let (chat, other) = (asked(&session, 0, "ROMEO:"), asked(&session, 0, "JULIET:"));
    let nothing = poll_chats(&session, 1, 8, 0).1.unwrap_err();
    assert!(nothing.status == SEGNO_E_INVALID_ARGUMENT && nothing.message.contains("submitted"), "{nothing:?}");
    assert_eq!(submit_chats(&session, &[&chat], 0), Ok(SEGNO_OK));
    let busy = chat.say("user", "x").unwrap_err();
    assert!(busy.status == SEGNO_E_BUSY && busy.message.contains("segno_chat_poll"), "{busy:?}");
    assert_eq!(chat.next().unwrap_err().status, SEGNO_E_BUSY);
    assert_eq!(chat.json().unwrap_err().status, SEGNO_E_BUSY);
    assert_eq!(chat.fork().err().unwrap().status, SEGNO_E_BUSY);
    assert_eq!(other.next().unwrap_err().status, SEGNO_E_BUSY);
    assert_eq!(submit_chats(&session, &[&other], 0).unwrap_err().status, SEGNO_E_BUSY);
    assert_eq!(session.open(&greedy()).unwrap_err().status, SEGNO_E_BUSY);
    // What needs no session goes on for others.
    assert_eq!(other.say("user", "more"), Ok(SEGNO_OK));
    assert!(session.stats().is_ok());
    let wrong = session.poll(1, 0).2.unwrap_err();
    assert!(wrong.status == SEGNO_E_INVALID_ARGUMENT && wrong.message.contains("segno_chat_poll"), "{wrong:?}");
    // A poll without room leaves the step to be polled again.
    let poll = |counts, statuses| call(|err| segno_chat_poll(session.0, 0, null_mut(), 0, counts, statuses, err));
    assert_eq!(poll(null_mut(), &mut 0).unwrap_err().status, SEGNO_E_NULL_POINTER);
    assert_eq!(poll(&mut 0, null_mut()).unwrap_err().status, SEGNO_E_NULL_POINTER);
    let (told, result) = poll_chats(&session, 1, 8, FOREVER);
    assert!(result == Ok(SEGNO_OK) && told[0].0 == SEGNO_OK, "{told:?}");
    assert_eq!(poll_chats(&session, 1, 8, 0).1.unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    assert!(chat.next().is_ok() && other.next().is_ok());
    // The other way round.
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[40]).unwrap();
    assert_eq!(session.submit(&[seq], 0), Ok(SEGNO_OK));
    let wrong = poll_chats(&session, 1, 8, 0).1.unwrap_err();
    assert!(wrong.status == SEGNO_E_INVALID_ARGUMENT && wrong.message.contains("segno_session_poll"), "{wrong:?}");
    assert_eq!(chat.say("user", "x"), Ok(SEGNO_OK));
    assert_eq!(session.poll(1, FOREVER).2, Ok(SEGNO_OK));
}

#[test]
fn what_cannot_be_submitted_is_refused_and_nothing_is() {
    let model = model();
    let (session, elsewhere) = (session(&model), session(&model));
    let (chat, foreign) = (asked(&session, 0, "ROMEO:"), asked(&elsewhere, 0, "ROMEO:"));
    let refused = |chats: &[&Chat], status: segno_status, item: i64, part: &str| {
        let failed = submit_chats(&session, chats, 0).unwrap_err();
        assert_eq!((failed.status, failed.item), (status, item), "{failed:?}");
        assert!(failed.message.contains(part), "{failed:?}");
    };
    refused(&[&chat, &chat], SEGNO_E_BUSY, 1, "another call on this chat");
    refused(&[&chat, &foreign], SEGNO_E_INVALID_ARGUMENT, 1, "conversation 1 belongs to another session");
    let none = call(|err| segno_chat_submit(session.0, null(), 1, null(), err)).unwrap_err();
    assert_eq!(none.status, SEGNO_E_NULL_POINTER);
    let missing = call(|err| segno_chat_submit(session.0, [chat.0, null_mut()].as_ptr(), 2, null(), err)).unwrap_err();
    assert_eq!((missing.status, missing.item), (SEGNO_E_NULL_POINTER, 1));
    assert!(chat.next().is_ok() && foreign.next().is_ok(), "none is lent");
    // No conversations are a step too.
    assert_eq!(submit_chats(&session, &[], 0), Ok(SEGNO_OK));
    assert_eq!(poll_chats(&session, 0, 8, FOREVER), (Vec::new(), Ok(SEGNO_OK)));
}

#[test]
fn the_first_that_fails_is_told_and_the_others_advance() {
    let model = model();
    let session = session(&model);
    let (chat, empty) = (asked(&session, 0, "ROMEO:"), Chat::with_template(&session, TEMPLATE).unwrap());
    let (told, result) = step_chats(&session, &[&empty, &chat], 0);
    let failed = result.unwrap_err();
    assert_eq!((failed.status, failed.item), (SEGNO_E_INVALID_ARGUMENT, 0));
    assert!(failed.message.contains("the conversation is empty"), "{failed:?}");
    assert_eq!((told[0].0, told[1].0), (SEGNO_E_INVALID_ARGUMENT, SEGNO_OK));
}

#[test]
fn events_without_room_come_with_the_next_step() {
    let model = model();
    let [found, expected] = [0, 64].map(|room| {
        let session = session(&model);
        let chat = asked(&session, 0, "ROMEO:");
        let mut all = Vec::new();
        for _ in 0..100 {
            assert_eq!(submit_chats(&session, &[&chat], 0), Ok(SEGNO_OK));
            let (mut told, result) = poll_chats(&session, 1, room, FOREVER);
            if told[0].0 == SEGNO_E_BUFFER_TOO_SMALL {
                assert_eq!(result.unwrap_err().status, SEGNO_E_BUFFER_TOO_SMALL);
                told = step_chats(&session, &[&chat], 0).0;
            }
            let (status, events) = told.remove(0);
            all.extend(events);
            if status == SEGNO_DONE {
                break;
            }
        }
        all
    });
    assert_eq!(found, expected);
}

#[test]
fn a_cancelled_step_changes_nothing() {
    let model = model();
    let plain = session(&model);
    let expected = asked(&plain, 1, "ROMEO:").finish().unwrap();
    let session = session(&model);
    let chat = asked(&session, 1, "ROMEO:");
    session.cancel(true);
    let (told, result) = step_chats(&session, &[&chat], 0);
    assert_eq!((result, told), (Ok(SEGNO_CANCELLED), vec![(SEGNO_CANCELLED, Vec::new())]));
    session.cancel(false);
    let mut events = Vec::new();
    for round in 0.. {
        // Now and then while it runs.
        assert_eq!(submit_chats(&session, &[&chat], 0), Ok(SEGNO_OK));
        session.cancel(round % 3 == 1);
        let (mut told, result) = poll_chats(&session, 1, 64, FOREVER);
        session.cancel(false);
        assert!([Ok(SEGNO_OK), Ok(SEGNO_CANCELLED)].contains(&result), "{result:?}");
        let (status, more) = told.remove(0);
        events.extend(more);
        if status == SEGNO_DONE {
            break;
        }
    }
    assert_eq!(events, expected);
}

#[test]
fn conversations_and_sessions_may_be_freed_amid_a_step() {
    let model = model();
    let session = session(&model);
    let (chat, freed) = (asked(&session, 0, "ROMEO:"), asked(&session, 1, "JULIET:"));
    for round in 0..3 {
        let fork = freed.fork().unwrap();
        assert_eq!(session.stats().unwrap().seqs, 3);
        assert_eq!(submit_chats(&session, &[&fork, &chat], 0), Ok(SEGNO_OK));
        drop(fork);
        let (told, result) = poll_chats(&session, 2, 64, FOREVER);
        assert_eq!((result, &told[0], told[1].0), (Ok(SEGNO_OK), &(SEGNO_CANCELLED, Vec::new()), SEGNO_OK), "{round}");
    }
    let seq = session.open(&greedy()).unwrap();
    assert_eq!(session.stats().unwrap().seqs, 3, "the sequences of those that were freed are closed");
    session.close(seq).unwrap();
    // Nobody polls.
    assert_eq!(submit_chats(&session, &[&chat, &freed], 0), Ok(SEGNO_OK));
    drop(freed);
    drop(session);
    assert!(chat.next().is_ok(), "a conversation keeps its session for itself");
    let session = self::session(&model);
    let chat = asked(&session, 0, &"word ".repeat(300));
    assert_eq!(submit_chats(&session, &[&chat], 0), Ok(SEGNO_OK));
    drop(chat);
    drop(session);
}
