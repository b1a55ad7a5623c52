//! Tests of what a panic inside a call leaves behind: a code, a poisoned object, and a host that goes on.
//!
//! The panics are forced inside the bodies that the exported functions hand to the guard, so they take its whole way.

use super::ctx::*;
use super::error::*;
use super::model::*;
use super::seq::*;
use super::session::*;
use super::status::*;
use super::text::*;
use super::{decode::segno_decode_step, guard::guard, version::SEGNO_ABI_VERSION};
use std::ffi::{CStr, CString, c_char, c_void};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

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

#[test]
fn a_panic_poisons_its_session_and_no_other() {
    let (ctx, model) = load();
    let ((broken, seq), (healthy, other)) = (open(model), open(model));
    let (status, message) = failure(|err| with_session(broken, err, |_, _| panic!("forced\nin a session")));
    assert_eq!((status, message.as_str()), (SEGNO_E_PANIC, "internal failure: forced in a session"));
    assert!(LOG.lock().unwrap().iter().any(|line| line.contains("forced in a session")));
    for _ in 0..2 {
        assert_eq!(step(broken, seq), SEGNO_E_POISONED);
        assert_eq!(segno_seq_close(broken, seq, null_mut()), SEGNO_E_POISONED);
        assert_eq!(segno_seq_length(broken, seq, &mut 0, null_mut()), SEGNO_E_POISONED);
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

#[test]
fn a_panic_poisons_its_text_and_no_other() {
    let (ctx, model) = load();
    let (mut broken, mut healthy, mut len) = (null_mut(), null_mut(), 0);
    for text in [&mut broken, &mut healthy] {
        assert_eq!(segno_text_create(model, null(), text, null_mut()), SEGNO_OK);
    }
    let forced = |err| with_text(broken, null_mut(), 0, &mut 0, err, |_| panic!("forced in a text"));
    assert_eq!(failure(forced).0, SEGNO_E_PANIC);
    let mut push = |text| segno_text_push(text, 40, [0; 64].as_mut_ptr(), 64, &mut len, null_mut());
    assert_eq!((push(broken), push(broken), push(healthy)), (SEGNO_E_POISONED, SEGNO_E_POISONED, SEGNO_OK));
    assert_eq!(segno_text_flush(broken, null_mut(), 0, &mut 0, null_mut()), SEGNO_E_POISONED);
    segno_text_free(broken);
    segno_text_free(healthy);
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
