//! Tests of what calls meet beside a running call, and after one that panicked: a code, and a host that goes on.
//!
//! The panics are forced inside the bodies that the exported functions hand to the guard, so they take its whole way.

use super::adapter::segno_seq_adapters_set;
use super::chat_submit::*;
use super::conversation::*;
use super::ctx::*;
use super::decode::{segno_decode_batch, segno_decode_many, segno_decode_step};
use super::embed::segno_embed;
use super::error::*;
use super::grammar::segno_seq_grammar_set;
use super::model::*;
use super::reply::*;
use super::saved::*;
use super::seq::*;
use super::session::*;
use super::status::*;
use super::submit::{Step, segno_session_poll, segno_session_submit};
use super::text::*;
use super::turn::*;
use super::{
    guard::guard,
    handle::{Handle, borrow},
    version::SEGNO_ABI_VERSION,
};
use crate::engine::{Failure, Session};
use crate::error::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[path = "forced_panic_chats.rs"]
mod chats;

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

extern "C" fn on_log(_: *mut c_void, level: i32, message: *const c_char) {
    // SAFETY: the library passes a NUL-terminated line.
    let line = unsafe { CStr::from_ptr(message) }.to_str().unwrap();
    if level == SEGNO_LOG_ERROR {
        LOG.lock().unwrap().push(line.to_owned());
    }
}

fn load() -> (*mut segno_ctx, *mut segno_model) {
    // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_ctx_opts = unsafe { std::mem::zeroed() };
    segno_ctx_opts_init(&mut opts, size_of::<segno_ctx_opts>());
    opts.n_threads = 2;
    opts.log = Some(on_log);
    let (mut ctx, mut model) = (null_mut(), null_mut());
    assert_eq!(segno_ctx_create(SEGNO_ABI_VERSION, &opts, &mut ctx, null_mut()), SEGNO_OK);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models/shakespeare.gguf");
    let path = CString::new(path).unwrap();
    assert_eq!(segno_model_load(ctx, path.as_ptr(), null(), &mut model, null_mut()), SEGNO_OK);
    (ctx, model)
}

fn open(model: *const segno_model) -> (*mut segno_session, i32) {
    let (mut session, mut seq) = (null_mut(), -1);
    assert_eq!(segno_session_create(model, null(), &mut session, null_mut()), SEGNO_OK);
    assert_eq!(segno_seq_open(session, null(), &mut seq, null_mut()), SEGNO_OK);
    assert_eq!(segno_seq_prefill(session, seq, [1, 2, 3].as_ptr(), 3, null_mut()), SEGNO_OK);
    (session, seq)
}

fn step(session: *mut segno_session, seq: i32) -> segno_status {
    segno_decode_step(session, seq, &mut 0, null_mut())
}

/// Status and message of a call.
fn failure(call: impl FnOnce(*mut *mut segno_error) -> segno_status) -> (segno_status, String) {
    let mut err = null_mut();
    let status = call(&mut err);
    assert_eq!(segno_error_code(err), status);
    // SAFETY: the message is NUL-terminated and lives as long as the error.
    let message = unsafe { CStr::from_ptr(segno_error_message(err)) }.to_str().unwrap().to_owned();
    segno_error_free(err);
    (status, message)
}

type Answers = Vec<(&'static str, segno_status)>;

/// Calls that run beside others.
const BESIDE: [&str; 3] = ["segno_seq_length", "segno_seq_stats_get", "segno_session_stats_get"];

/// What every function of a session answers but cancel.
fn session_calls(session: *mut segno_session, seq: i32) -> Answers {
    let (mut id, mut status, mut len, none) = (0, 0, 0, null_mut());
    // SAFETY: the struct holds numbers, for which zero is a value.
    let mut memory: segno_memory = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut stats: (segno_session_stats, segno_seq_stats) = unsafe { std::mem::zeroed() };
    let sizes = (size_of::<segno_session_stats>(), size_of::<segno_seq_stats>());
    let mut chat = null_mut();
    let batch = segno_chat_next_batch(session, null(), 0, null_mut(), 0, null_mut(), null_mut(), none);
    vec![
        ("segno_chat_create", segno_chat_create(session, null(), &mut chat, none)),
        ("segno_chat_next_batch", batch),
        ("segno_chat_poll", segno_chat_poll(session, 0, null_mut(), 0, null_mut(), null_mut(), none)),
        ("segno_chat_submit", segno_chat_submit(session, null(), 0, null(), none)),
        ("segno_decode_batch", segno_decode_batch(session, &seq, 1, &mut id, &mut status, none)),
        ("segno_decode_many", segno_decode_many(session, seq, &mut id, 1, &mut len, none)),
        ("segno_decode_step", segno_decode_step(session, seq, &mut id, none)),
        ("segno_embed", segno_embed(session, null(), null(), 0, null(), null_mut(), 0, &mut len, none)),
        ("segno_seq_adapters_set", segno_seq_adapters_set(session, seq, null(), null(), 0, none)),
        ("segno_seq_append", segno_seq_append(session, seq, [1].as_ptr(), 1, none)),
        ("segno_seq_close", segno_seq_close(session, seq, none)),
        ("segno_seq_fork", segno_seq_fork(session, seq, null(), &mut id, none)),
        ("segno_seq_grammar_set", segno_seq_grammar_set(session, seq, null(), -1, none)),
        ("segno_seq_length", segno_seq_length(session, seq, &mut len, none)),
        ("segno_seq_logits", segno_seq_logits(session, seq, null_mut(), 0, &mut len, none)),
        ("segno_seq_mark", segno_seq_mark(session, seq, none)),
        ("segno_seq_mark_nearest", segno_seq_mark_nearest(session, seq, 1, &mut 0, none)),
        ("segno_seq_open", segno_seq_open(session, null(), &mut id, none)),
        ("segno_seq_prefill", segno_seq_prefill(session, seq, [1].as_ptr(), 1, none)),
        ("segno_seq_remove", segno_seq_remove(session, seq, 0, 1, none)),
        ("segno_seq_restore", segno_seq_restore(session, None, null_mut(), null(), &mut id, none)),
        ("segno_seq_restore_file", segno_seq_restore_file(session, c"none".as_ptr(), null(), &mut id, none)),
        ("segno_seq_sampler_set", segno_seq_sampler_set(session, seq, null(), none)),
        ("segno_seq_save", segno_seq_save(session, seq, None, null_mut(), none)),
        ("segno_seq_save_file", segno_seq_save_file(session, seq, c"none".as_ptr(), none)),
        ("segno_seq_stats_get", segno_seq_stats_get(session, seq, &mut stats.1, sizes.1, none)),
        ("segno_seq_truncate", segno_seq_truncate(session, seq, 1, none)),
        ("segno_session_memory", segno_session_memory(session, &mut memory, size_of::<segno_memory>(), none)),
        ("segno_session_poll", segno_session_poll(session, 0, null_mut(), null_mut(), none)),
        ("segno_session_stats_get", segno_session_stats_get(session, &mut stats.0, sizes.0, none)),
        ("segno_session_submit", segno_session_submit(session, &seq, 1, null(), none)),
    ]
}

/// The same for a text.
fn text_calls(text: *mut segno_text) -> Answers {
    let (mut room, mut len, none) = ([0; 64], 0, null_mut());
    vec![
        ("segno_text_flush", segno_text_flush(text, room.as_mut_ptr(), 64, &mut len, none)),
        ("segno_text_push", segno_text_push(text, 40, room.as_mut_ptr(), 64, &mut len, none)),
    ]
}

/// The same for a reply.
fn reply_calls(reply: *mut segno_reply) -> Answers {
    let (mut len, none) = (0, null_mut());
    // SAFETY: the struct holds numbers and pointers, for which zero is a value.
    let mut events: [segno_event; 4] = unsafe { std::mem::zeroed() };
    let mut name = [0; 64];
    vec![
        ("segno_reply_flush", segno_reply_flush(reply, events.as_mut_ptr(), 4, &mut len, none)),
        ("segno_reply_format", segno_reply_format(reply, name.as_mut_ptr(), 64, &mut len, none)),
        ("segno_reply_push", segno_reply_push(reply, 40, events.as_mut_ptr(), 4, &mut len, none)),
    ]
}

/// The same for a conversation.
fn chat_calls(chat: *mut segno_chat) -> Answers {
    let (mut len, mut id, mut fork, none) = (0, 0, null_mut(), null_mut());
    // SAFETY: the structs hold numbers and pointers, for which zero is a value.
    let (mut events, mut stats): ([segno_event; 4], segno_chat_stats) = unsafe { std::mem::zeroed() };
    let json = c"[]".as_ptr();
    vec![
        ("segno_chat_add", segno_chat_add(chat, json, 2, none)),
        ("segno_chat_fork", segno_chat_fork(chat, null(), &mut fork, none)),
        ("segno_chat_messages", segno_chat_messages(chat, null_mut(), 0, &mut len, none)),
        ("segno_chat_next", segno_chat_next(chat, events.as_mut_ptr(), 4, &mut len, none)),
        ("segno_chat_say", segno_chat_say(chat, c"user".as_ptr(), json, 2, none)),
        ("segno_chat_seq", segno_chat_seq(chat, &mut id, none)),
        ("segno_chat_stats_get", segno_chat_stats_get(chat, &mut stats, size_of::<segno_chat_stats>(), none)),
        ("segno_chat_tools_set", segno_chat_tools_set(chat, 0, 0, null(), none)),
        ("segno_chat_truncate", segno_chat_truncate(chat, 0, none)),
    ]
}

/// Functions of the header whose first parameter is this object, but for cancel.
fn declared_for(object: &str) -> Vec<String> {
    let header = include_str!("../../include/segno.h");
    let functions =
        header.split(';').filter_map(|statement| statement.rsplit_once("\nsegno_status ")?.1.split_once('('));
    let first = format!("struct {object} *");
    let of_object = functions.filter(|(_, parameters)| parameters.trim_start_matches("const ").starts_with(&first));
    let mut names: Vec<String> = of_object.map(|(name, _)| name.to_owned()).collect();
    names.retain(|name| name != "segno_session_cancel");
    names.sort();
    names
}

/// Asserts that every function of an object has been called, and has answered `status`.
fn assert_all(answers: &Answers, object: &str, status: segno_status) {
    assert_eq!(answers.iter().map(|(name, _)| *name).collect::<Vec<_>>(), declared_for(object));
    let expected = |name| if status == SEGNO_E_BUSY && BESIDE.contains(&name) { SEGNO_OK } else { status };
    assert!(answers.iter().all(|&(name, answer)| answer == expected(name)), "{status} expected: {answers:?}");
}

#[test]
fn every_call_beside_a_running_one_is_busy() {
    let (ctx, model) = load();
    let (session, seq) = open(model);
    let mut text = null_mut();
    assert_eq!(segno_text_create(model, null(), &mut text, null_mut()), SEGNO_OK);
    let beside = |session: usize, text: usize| {
        let calls = move || (session_calls(session as *mut _, seq), text_calls(text as *mut _));
        std::thread::spawn(calls).join().unwrap()
    };
    let (session_address, text_address) = (session as usize, text as usize);
    let outer = with_session(session, null_mut(), |_, _| {
        with_text(text, null_mut(), 0, &mut 0, null_mut(), |stream| {
            let (of_session, of_text) = beside(session_address, text_address);
            assert_all(&of_session, "segno_session", SEGNO_E_BUSY);
            assert_all(&of_text, "segno_text", SEGNO_E_BUSY);
            assert_eq!(segno_session_cancel(session, 0), SEGNO_OK);
            Ok(stream.flush())
        });
        Ok(SEGNO_OK)
    });
    assert_eq!(outer, SEGNO_OK);
    assert!(step(session, seq) >= SEGNO_OK);
    assert_all(&text_calls(text), "segno_text", SEGNO_OK);
    segno_text_free(text);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
}

#[test]
fn a_panic_poisons_its_session_and_no_other() {
    let (ctx, model) = load();
    let ((broken, seq), (healthy, other)) = (open(model), open(model));
    let (status, message) = failure(|err| with_session(broken, err, |_, _| panic!("forced\nin a session")));
    assert_eq!((status, message.as_str()), (SEGNO_E_PANIC, "internal failure: forced in a session"));
    assert!(LOG.lock().unwrap().iter().any(|line| line.contains("forced in a session")));
    for _ in 0..2 {
        assert_all(&session_calls(broken, seq), "segno_session", SEGNO_E_POISONED);
        let (status, message) = failure(|err| segno_seq_open(broken, null(), &mut 0, err));
        assert!(status == SEGNO_E_POISONED && message.contains("free it"), "{message}");
        assert_eq!(segno_session_cancel(broken, 1), SEGNO_OK);
        assert!(step(healthy, other) >= SEGNO_OK);
    }
    segno_session_free(broken);
    let (fresh, seq) = open(model);
    assert!(step(fresh, seq) >= SEGNO_OK && step(healthy, other) >= SEGNO_OK);
    segno_session_free(fresh);
    segno_model_free(model);
    segno_ctx_free(ctx);
    assert!(step(healthy, other) >= SEGNO_OK);
    segno_session_free(healthy);
}

/// Whether the steps that are submitted below may end.
static MAY_END: AtomicBool = AtomicBool::new(false);

/// The same for conversations.
static MAY_END_CHATS: AtomicBool = AtomicBool::new(false);

/// A step that runs until it may end, or is cancelled.
fn wait(_: &mut Session, step: &mut Step, cancel: &AtomicBool) -> Result<(), Failure> {
    wait_for(&MAY_END, step, cancel)
}

fn wait_for_chats(_: &mut Session, step: &mut Step, cancel: &AtomicBool) -> Result<(), Failure> {
    wait_for(&MAY_END_CHATS, step, cancel)
}

fn wait_for(may_end: &AtomicBool, step: &mut Step, cancel: &AtomicBool) -> Result<(), Failure> {
    while !may_end.load(Ordering::SeqCst) {
        if cancel.load(Ordering::SeqCst) {
            return Err(Error::Cancelled.into());
        }
        std::thread::yield_now();
    }
    step.items.fill((77, SEGNO_OK));
    step.told.fill(Told::Status(SEGNO_PENDING));
    Ok(())
}

#[test]
fn a_step_that_was_submitted_is_a_running_call_to_all_but_one_poll() {
    let (ctx, model) = load();
    let (session, seq) = open(model);
    MAY_END.store(false, Ordering::SeqCst);
    borrow(session.cast_const()).unwrap().submit(&[], None, wait).unwrap();
    for (name, answer) in session_calls(session, seq) {
        let expected = match name {
            "segno_session_poll" => SEGNO_PENDING,
            // Conversations were not submitted.
            "segno_chat_poll" => SEGNO_E_INVALID_ARGUMENT,
            _ if BESIDE.contains(&name) => SEGNO_OK,
            _ => SEGNO_E_BUSY,
        };
        assert_eq!(answer, expected, "{name}");
    }
    let address = session as usize;
    let poll = |timeout| segno_session_poll(address as *mut _, timeout, null_mut(), null_mut(), null_mut());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| poll(u64::MAX));
        while poll(0) != SEGNO_E_BUSY {
            std::thread::yield_now();
        }
        MAY_END.store(true, Ordering::SeqCst);
        assert_eq!(waiting.join().unwrap(), SEGNO_OK);
    });
    assert_eq!(poll(0), SEGNO_E_INVALID_ARGUMENT);
    assert!(step(session, seq) >= SEGNO_OK);
    // Freeing cancels a step that would never end.
    MAY_END.store(false, Ordering::SeqCst);
    borrow(session.cast_const()).unwrap().submit(&[seq], None, wait).unwrap();
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
}

#[test]
fn a_panic_in_a_submitted_step_is_told_by_its_poll() {
    let (ctx, model) = load();
    let ((broken, seq), (healthy, other)) = (open(model), open(model));
    borrow(broken.cast_const()).unwrap().submit(&[seq], None, |_, _, _| panic!("forced in a step")).unwrap();
    let (mut token, mut item) = (0, SEGNO_OK);
    let (status, message) = failure(|err| segno_session_poll(broken, u64::MAX, &mut token, &mut item, err));
    assert_eq!((status, message.as_str()), (SEGNO_E_PANIC, "internal failure: forced in a step"));
    assert_eq!((token, item), (-1, SEGNO_E_PANIC));
    assert!(LOG.lock().unwrap().iter().any(|line| line.contains("forced in a step")));
    for _ in 0..2 {
        assert_all(&session_calls(broken, seq), "segno_session", SEGNO_E_POISONED);
        assert!(step(healthy, other) >= SEGNO_OK);
    }
    segno_session_free(broken);
    segno_session_free(healthy);
    segno_model_free(model);
    segno_ctx_free(ctx);
}

#[test]
fn a_panic_poisons_its_text_and_no_other() {
    let (ctx, model) = load();
    let (mut broken, mut healthy) = (null_mut(), null_mut());
    for text in [&mut broken, &mut healthy] {
        assert_eq!(segno_text_create(model, null(), text, null_mut()), SEGNO_OK);
    }
    let forced = |err| with_text(broken, null_mut(), 0, &mut 0, err, |_| panic!("forced in a text"));
    assert_eq!(failure(forced).0, SEGNO_E_PANIC);
    for _ in 0..2 {
        assert_all(&text_calls(broken), "segno_text", SEGNO_E_POISONED);
        assert_all(&text_calls(healthy), "segno_text", SEGNO_OK);
    }
    segno_text_free(broken);
    segno_text_free(healthy);
    segno_model_free(model);
    segno_ctx_free(ctx);
}

#[test]
fn replies_are_busy_beside_a_call_and_poisoned_by_a_panic() {
    let (ctx, model) = load();
    let mut reply = null_mut();
    assert_eq!(segno_reply_create(model, null(), &mut reply, null_mut()), SEGNO_OK);
    let address = reply as usize;
    let outer = with_reply(reply, null_mut(), |_| {
        let beside = std::thread::spawn(move || reply_calls(address as *mut _)).join().unwrap();
        assert_all(&beside, "segno_reply", SEGNO_E_BUSY);
        Ok(SEGNO_OK)
    });
    assert_eq!(outer, SEGNO_OK);
    assert_all(&reply_calls(reply), "segno_reply", SEGNO_OK);
    assert_eq!(failure(|err| with_reply(reply, err, |_| panic!("forced in a reply"))).0, SEGNO_E_PANIC);
    assert_all(&reply_calls(reply), "segno_reply", SEGNO_E_POISONED);
    segno_reply_free(reply);
    segno_model_free(model);
    segno_ctx_free(ctx);
}

#[test]
fn a_panic_in_a_shared_call_poisons_nothing() {
    let (ctx, model) = load();
    assert_eq!(failure(|err| guard(None, err, || panic!("forced beside a model"))).0, SEGNO_E_PANIC);
    let (session, seq) = open(model);
    assert!(step(session, seq) >= SEGNO_OK);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
}

const SILENT: &str = "ffi::forced_panic::panics_for_the_test_of_silence";

/// Run in a process of its own, whose standard error the next test reads.
#[test]
#[ignore = "the test of silence runs it"]
fn panics_for_the_test_of_silence() {
    let (ctx, model) = load();
    let (session, _) = open(model);
    assert_eq!(with_session(session, null_mut(), |_, _| panic!("of no concern")), SEGNO_E_PANIC);
    assert_eq!(guard(None, null_mut(), || panic!("of no concern {}", 2)), SEGNO_E_PANIC);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
    // The host's own panics are still heard.
    assert!(std::panic::catch_unwind(|| panic!("by the host")).is_err());
}

#[test]
fn a_panic_prints_nothing() {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["--exact", SILENT, "--ignored", "--nocapture"]).output().unwrap();
    let (out, printed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{printed}");
    assert!(printed.contains("by the host") && !printed.contains("of no concern"), "{printed}");
}
