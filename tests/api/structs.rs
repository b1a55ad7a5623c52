//! Structs, flags and texts at the boundary: fields that this library does not know, fields that must be zero, and names that are cut.

use crate::common;
use crate::common::gguf::Shape;
use crate::common::{Ctx, Result, call, greedy};
use segno::ffi::{ctx::*, decode::*, seq::*, status::*, text::*, version::*};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

/// A struct of a later header: this library's, and fields behind it.
#[repr(C)]
struct Later<T> {
    known: T,
    more: [u64; 3],
}

fn context(change: impl FnOnce(&mut Later<segno_ctx_opts>)) -> Result<segno_status> {
    // SAFETY: numbers and nullable pointers, for which zero is a value.
    let mut opts: Later<segno_ctx_opts> = unsafe { std::mem::zeroed() };
    segno_ctx_opts_init(&raw mut opts.known, size_of::<Later<segno_ctx_opts>>());
    change(&mut opts);
    let mut ctx = null_mut();
    let made = call(|err| segno_ctx_create(SEGNO_ABI_VERSION, &raw const opts.known, &mut ctx, err));
    segno_ctx_free(ctx);
    made
}

#[test]
fn every_byte_of_a_field_that_is_not_known_is_looked_at() {
    assert_eq!(context(|_| ()), Ok(SEGNO_OK));
    let known = size_of::<segno_ctx_opts>();
    for byte in 0..24 {
        let failed = context(|opts| opts.more[byte / 8] = 1 << (byte % 8 * 8)).unwrap_err();
        assert_eq!(failed.status, SEGNO_E_UNSUPPORTED, "{}", failed.message);
        assert!(failed.message.contains(&format!("at byte {} ", known + byte)), "{}", failed.message);
    }
}

#[test]
fn options_that_end_within_a_field_are_refused_and_init_keeps_the_size_given() {
    let size = size_of::<segno_ctx_opts>() as u32;
    for wrong in [size - 4, size - 1, size + 1, 4, 0] {
        assert_eq!(
            context(|opts| opts.known.struct_size = wrong).unwrap_err().status,
            SEGNO_E_INVALID_ARGUMENT,
            "{wrong}"
        );
    }
    let mut opts = common::sampler();
    for given in [8usize, 16, 64] {
        segno_sampler_opts_init(&mut opts, given);
        assert_eq!(opts.struct_size as usize, given);
    }
}

#[test]
fn values_that_mean_nothing_are_refused() {
    let refused = |change: &dyn Fn(&mut segno_ctx_opts), word: &str| {
        let failed = context(|opts| change(&mut opts.known)).unwrap_err();
        assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT);
        assert!(failed.message.contains(word), "{}", failed.message);
    };
    refused(&|opts| opts.reserved = 1, "reserved is 1");
    refused(&|opts| opts.precision = 2, "precision 2");
    refused(&|opts| opts.precision = -1, "precision -1");
    refused(&|opts| opts.flags = 1 << 31, "0x80000000");
    refused(&|opts| opts.device_index = -1, "-1");
}

#[test]
fn stop_tokens_outside_the_vocabulary_are_refused() {
    let model = Ctx::precise().load_buffer(&Shape::small().file().bytes()).unwrap();
    let session = model.session(|_| ()).unwrap();
    for (token, status) in [(100, Ok(())), (101, Err(SEGNO_E_INVALID_ARGUMENT)), (-1, Err(SEGNO_E_INVALID_ARGUMENT))] {
        let stops = [5, token];
        let mut opts = greedy();
        (opts.stop_tokens, opts.stop_token_count) = (stops.as_ptr(), stops.len());
        assert_eq!(session.open(&opts).map(drop).map_err(|failed| failed.status), status, "{token}");
    }
}

#[test]
fn a_long_name_is_cut_at_a_character() {
    for shift in 0..4 {
        let mut file = Shape::small().file();
        file.set("general.name", &*("a".repeat(shift) + &"𝄞".repeat(200)));
        let info = Ctx::precise().load_buffer(&file.bytes()).unwrap().info();
        let name = info.name.map(|byte| byte as u8);
        let name = CStr::from_bytes_until_nul(&name).unwrap().to_str().expect("whole characters");
        assert!(name.ends_with('𝄞') && name.len() > info.name.len() - 5, "{} of {}", name.len(), info.name.len());
    }
}

#[test]
fn unknown_flags_of_text_calls_are_refused() {
    let model = Ctx::precise().load(&common::bundled_model()).unwrap();
    for flag in [2u32, 1 << 31] {
        assert_eq!(model.detokenize(&[5], flag).unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    }
    assert_eq!(model.tokenize(b"a", 4).unwrap_err().status, SEGNO_E_INVALID_ARGUMENT);
    // SAFETY: numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_text_opts = unsafe { std::mem::zeroed() };
    segno_text_opts_init(&mut opts, size_of::<segno_text_opts>());
    opts.flags = 2;
    let mut text = null_mut();
    let failed = call(|err| segno_text_create(model.0, &opts, &mut text, err)).unwrap_err();
    assert!(failed.status == SEGNO_E_INVALID_ARGUMENT && text.is_null());
}

#[test]
fn a_step_that_is_pending_writes_no_token_and_a_query_tells_the_number_of_logits() {
    let model = Ctx::precise().load_buffer(&Shape::small().file().bytes()).unwrap();
    let session = model.session(|opts| opts.max_prefill = 4).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[1; 10]).unwrap();
    let mut token = 77;
    let step = |token: &mut i32| call(|err| segno_decode_step(session.0, seq, token, err)).unwrap();
    assert_eq!((step(&mut token), token), (SEGNO_PENDING, 77));
    assert_eq!((step(&mut token), token), (SEGNO_PENDING, 77));
    assert!(step(&mut token) == SEGNO_OK && token != 77);
    let mut count = 0;
    assert_eq!(call(|err| segno_seq_logits(session.0, seq, null_mut(), 0, &mut count, err)), Ok(SEGNO_OK));
    assert_eq!(count, model.info().vocab as usize);
    let opts = null::<segno_sampler_opts>();
    assert_eq!(call(|err| segno_seq_sampler_set(session.0, seq, opts, err)), Ok(SEGNO_OK));
}
