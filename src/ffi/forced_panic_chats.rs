//! Forced panics in conversations, beside calls on them, and in steps of theirs that were submitted.

use super::*;

/// A conversation with a message.
fn converse(session: *mut segno_session) -> *mut segno_chat {
    // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_chat_create_opts = unsafe { std::mem::zeroed() };
    segno_chat_create_opts_init(&mut opts, size_of::<segno_chat_create_opts>());
    (opts.template_text, opts.template_len) = (c"{{ messages[-1].content }}".as_ptr(), 26);
    let mut chat = null_mut();
    assert_eq!(segno_chat_create(session, &opts, &mut chat, null_mut()), SEGNO_OK);
    assert_eq!(segno_chat_say(chat, c"user".as_ptr(), c"x".as_ptr(), 1, null_mut()), SEGNO_OK);
    chat
}

#[test]
fn conversations_that_were_submitted_are_busy_until_the_poll() {
    let (ctx, model) = load();
    let (session, seq) = open(model);
    let (listed, other, freed) = (converse(session), converse(session), converse(session));
    MAY_END_CHATS.store(false, Ordering::SeqCst);
    let shared = borrow(session.cast_const()).unwrap();
    shared.submit_chats(&[listed, freed], None, wait_for_chats).unwrap();
    assert_all(&chat_calls(listed), "segno_chat", SEGNO_E_BUSY);
    assert_eq!(segno_chat_say(other, c"user".as_ptr(), c"y".as_ptr(), 1, null_mut()), SEGNO_OK);
    segno_chat_free(freed);
    let (mut counts, mut statuses) = ([7; 2], [7; 2]);
    let mut poll =
        |us| segno_chat_poll(session, us, null_mut(), 0, counts.as_mut_ptr(), statuses.as_mut_ptr(), null_mut());
    assert_eq!(poll(1000), SEGNO_PENDING);
    assert_eq!(segno_session_poll(session, 0, null_mut(), null_mut(), null_mut()), SEGNO_E_INVALID_ARGUMENT);
    MAY_END_CHATS.store(true, Ordering::SeqCst);
    assert_eq!(poll(u64::MAX), SEGNO_OK);
    assert_eq!((counts, statuses), ([0; 2], [SEGNO_PENDING, SEGNO_CANCELLED]));
    // The next call closes the sequence of the conversation that was freed, and shows that at its end.
    assert_eq!(segno_seq_mark(session, seq, null_mut()), SEGNO_OK);
    let open = with_session(session, null_mut(), |session, _| Ok(session.shown().session().seqs as segno_status));
    assert_eq!(open, 3);
    // Freeing the session cancels a step that would never end, and the conversation is its own again.
    MAY_END_CHATS.store(false, Ordering::SeqCst);
    shared.submit_chats(&[listed], None, wait_for_chats).unwrap();
    segno_session_free(session);
    assert_eq!(segno_chat_truncate(listed, 0, null_mut()), SEGNO_OK);
    segno_chat_free(listed);
    segno_chat_free(other);
    segno_model_free(model);
    segno_ctx_free(ctx);
}

#[test]
fn a_panic_in_a_submitted_step_of_conversations_is_told_by_its_poll() {
    let (ctx, model) = load();
    let (session, seq) = open(model);
    let (broken, other) = (converse(session), converse(session));
    let shared = borrow(session.cast_const()).unwrap();
    let panics = |_: &mut Session, step: &mut Step, _: &AtomicBool| {
        let _inside = step.chats[0].conversation.enter_lent(segno_chat::NAME)?;
        panic!("forced in a step of conversations")
    };
    shared.submit_chats(&[broken], None, panics).unwrap();
    let (mut count, mut item) = (7, SEGNO_OK);
    let (status, message) =
        failure(|err| segno_chat_poll(session, u64::MAX, null_mut(), 0, &mut count, &mut item, err));
    assert_eq!((status, message.as_str()), (SEGNO_E_PANIC, "internal failure: forced in a step of conversations"));
    assert_eq!((count, item), (0, SEGNO_E_PANIC));
    assert_all(&chat_calls(broken), "segno_chat", SEGNO_E_POISONED);
    assert_all(&session_calls(session, seq), "segno_session", SEGNO_E_POISONED);
    assert_eq!(segno_chat_truncate(other, 0, null_mut()), SEGNO_OK);
    segno_chat_free(broken);
    segno_chat_free(other);
    segno_session_free(session);
    segno_model_free(model);
    segno_ctx_free(ctx);
}

#[test]
fn conversations_are_busy_beside_a_call_and_poisoned_by_a_panic() {
    let (ctx, model) = load();
    let (session, seq) = open(model);
    let (broken, healthy) = (converse(session), converse(session));
    let address = broken as usize;
    let outer = with_chat(broken, null_mut(), |_| {
        let beside = std::thread::spawn(move || chat_calls(address as *mut _)).join().unwrap();
        assert_all(&beside, "segno_chat", SEGNO_E_BUSY);
        Ok(SEGNO_OK)
    });
    assert_eq!(outer, SEGNO_OK);
    assert_eq!(failure(|err| with_chat(broken, err, |_| panic!("forced in a chat"))).0, SEGNO_E_PANIC);
    assert_all(&chat_calls(broken), "segno_chat", SEGNO_E_POISONED);
    // The session and its other conversations go on. One that is freed beside a call gives its sequence back with the next.
    let next = |chat| segno_chat_next(chat, null_mut(), 0, &mut 0, null_mut());
    let outer = with_session(session, null_mut(), |_, _| {
        assert_eq!(next(healthy), SEGNO_E_BUSY);
        segno_chat_free(broken);
        Ok(SEGNO_OK)
    });
    assert_eq!(outer, SEGNO_OK);
    assert!(next(healthy) >= SEGNO_OK || next(healthy) == SEGNO_E_BUFFER_TOO_SMALL);
    let open = with_session(session, null_mut(), |session, _| Ok(session.shown().session().seqs as segno_status));
    assert_eq!(open, 2, "{seq} and that of the conversation that is left");
    // A panic of the session's ends what needs it.
    assert_eq!(with_session(session, null_mut(), |_, _| panic!("forced in a session")), SEGNO_E_PANIC);
    assert_eq!(next(healthy), SEGNO_E_POISONED);
    segno_session_free(session);
    segno_chat_free(healthy);
    segno_model_free(model);
    segno_ctx_free(ctx);
}
