//! Text through the C API on real vocabularies: the shared test data's tokenizers, each in a model file of its own whose weights are
//! holes.

use crate::common;
use crate::common::gguf::{File, Shape, Storage};
use crate::common::{Ctx, Folder, Model, call, shared_data};
use segno::ffi::ctx::SEGNO_LOG_WARN;
use segno::ffi::status::*;
use segno::ffi::text::*;
use segno::format::{Gguf, Metadata, Value};
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Mutex;

/// A model of this shape with the tokenizer of another file.
pub fn with_tokenizer(path: &Path, shape: Shape) -> File {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let meta = gguf.metadata();
    let vocab = meta.strings("tokenizer.ggml.tokens").unwrap().unwrap().len();
    let mut file = Shape { vocab, tied: true, ..shape }.file();
    file.remove("tokenizer.ggml.model");
    for key in ["model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id"] {
        copy(&mut file, meta, &format!("tokenizer.ggml.{key}"));
    }
    for key in ["unknown_token_id", "padding_token_id", "add_bos_token", "add_eos_token", "add_space_prefix"] {
        copy(&mut file, meta, &format!("tokenizer.ggml.{key}"));
    }
    copy(&mut file, meta, "tokenizer.chat_template");
    file
}

fn copy(file: &mut File, meta: &Metadata, key: &str) {
    match meta.get(key) {
        None => {}
        Some(Value::Unsigned(value)) => drop(file.set(key, *value as u32)),
        Some(Value::Bool(value)) => drop(file.set(key, *value)),
        Some(Value::String(span)) => drop(file.set(key, meta.bytes(span))),
        Some(Value::Array(_)) => copy_array(file, meta, key),
        Some(other) => panic!("{key} is {other:?}"),
    }
}

fn copy_array(file: &mut File, meta: &Metadata, key: &str) {
    if let Ok(Some(spans)) = meta.strings(key) {
        let texts: Vec<&[u8]> = spans.iter().map(|span| meta.bytes(span)).collect();
        file.set(key, texts);
        return;
    }
    let values: Vec<Value> = meta.scalars(key).unwrap().unwrap().collect();
    if matches!(values[0], Value::F32(_)) {
        let floats = values.iter().map(|value| if let Value::F32(v) = value { *v } else { panic!() });
        file.set(key, floats.collect::<Vec<f32>>());
    } else {
        let numbers = values.iter().map(|value| if let Value::Signed(v) = value { *v as i32 } else { panic!() });
        file.set(key, numbers.collect::<Vec<i32>>());
    }
}

fn load(ctx: &Ctx, path: &Path) -> Model {
    let folder = Folder::new("text-api");
    let file = folder.join("model.gguf");
    with_tokenizer(path, Shape { storage: Storage::Hole, ..Shape::small() }).write(&file);
    ctx.load(&file).unwrap()
}

/// The text of a token stream, pushed token by token into a buffer that is too small at first.
fn stream(model: &Model, tokens: &[i32]) -> Vec<u8> {
    let mut text = null_mut();
    call(|err| segno_text_create(model.0, std::ptr::null(), &mut text, err)).unwrap();
    let (mut out, mut len) = (Vec::new(), 0);
    for &token in tokens {
        let mut room = [0u8; 512];
        let tight = segno_text_push(text, token, room.as_mut_ptr().cast(), 0, &mut len, null_mut());
        if tight == SEGNO_E_BUFFER_TOO_SMALL {
            let start = room.as_mut_ptr().cast();
            call(|err| segno_text_push(text, token, start, len, &mut len, err)).unwrap();
        } else {
            assert_eq!((tight, len), (SEGNO_OK, 0), "a push without text fits into nothing");
        }
        assert!(std::str::from_utf8(&room[..len]).is_ok(), "whole characters only");
        out.extend(&room[..len]);
    }
    let mut room = [0u8; 512];
    let start = room.as_mut_ptr().cast();
    call(|err| segno_text_flush(text, start, 512, &mut len, err)).unwrap();
    out.extend(&room[..len]);
    segno_text_free(text);
    out
}

#[test]
fn every_case_of_the_real_vocabularies_gives_its_ids_and_comes_back() {
    let Some(data) = shared_data() else { return };
    let ctx = Ctx::new(|_| ()).unwrap();
    for name in ["gpt-2", "falcon", "mpt", "phi-3", "qwen2", "llama-bpe"] {
        let path = data.join(format!("vocab/ggml-vocab-{name}.gguf"));
        let model = load(&ctx, &path);
        let inputs = std::fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
        let outputs = std::fs::read_to_string(path.with_extension("gguf.out")).unwrap();
        let cases: Vec<_> = inputs.split_terminator("\n__ggml_vocab_test__\n").zip(outputs.lines()).collect();
        assert!(cases.len() > 40);
        for (input, output) in &cases {
            let expected: Vec<i32> = output.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(model.tokenize(input.as_bytes(), 0).unwrap(), expected, "{name}: {input:?}");
            assert_eq!(model.detokenize(&expected, 0).unwrap(), input.as_bytes(), "{name}");
            let streamed = stream(&model, &expected);
            let added = streamed.len() - input.len();
            assert!(added <= 1 && streamed.ends_with(input.as_bytes()), "{name}: {input:?}");
        }
        println!("{name}: {} cases", cases.len());
    }
}

/// A model whose tokens are the 256 bytes and then `pieces`.
fn with_pieces(ctx: &Ctx, pieces: &[&str]) -> Model {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(pieces.iter().map(|&piece| piece.to_owned()));
    let mut kinds = vec![6; 256];
    kinds.resize(tokens.len(), 1);
    let mut file = Shape { vocab: tokens.len(), tied: true, storage: Storage::Hole, ..Shape::small() }.file();
    file.set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.scores", vec![0f32; tokens.len()])
        .set("tokenizer.ggml.token_type", kinds)
        .set("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>());
    ctx.load_buffer(&file.bytes()).unwrap()
}

/// Pushes `tokens` into a stream and ends it. Each call is tried without a buffer, with none of no size and with one that is a
/// byte too small before it gets room. Answers the text and the last statuses of pushing and of ending.
fn text_asked_for_sizes(model: &Model, stops: &[&str], tokens: &[i32]) -> (String, segno_status, segno_status) {
    let stops: Vec<segno_string> =
        stops.iter().map(|stop| segno_string { data: stop.as_ptr().cast(), len: stop.len() }).collect();
    // SAFETY: a struct of plain numbers and pointers, for which zeros are valid.
    let mut opts: segno_text_opts = unsafe { std::mem::zeroed() };
    segno_text_opts_init(&mut opts, size_of::<segno_text_opts>());
    (opts.stops, opts.stop_count) = (stops.as_ptr(), stops.len());
    let (mut text, mut out) = (null_mut(), Vec::new());
    call(|err| segno_text_create(model.0, &opts, &mut text, err)).unwrap();
    let mut last = [SEGNO_OK; 2];
    for token in tokens.iter().copied().map(Some).chain([None]) {
        let step = |buf: *mut u8, cap: usize, len: &mut usize| match token {
            Some(token) => segno_text_push(text, token, buf.cast(), cap, len, null_mut()),
            None => segno_text_flush(text, buf.cast(), cap, len, null_mut()),
        };
        let (mut room, mut len) = ([0u8; 64], 0);
        let mut status = step(null_mut(), 0, &mut len);
        if status == SEGNO_E_BUFFER_TOO_SMALL {
            let wanted = len;
            for cap in [0, wanted - 1] {
                assert_eq!((step(room.as_mut_ptr(), cap, &mut len), len), (SEGNO_E_BUFFER_TOO_SMALL, wanted));
            }
            assert_eq!(room, [0; 64], "a step that does not fit writes nothing");
            status = step(room.as_mut_ptr(), wanted, &mut len);
            assert_eq!(len, wanted);
        }
        out.extend_from_slice(&room[..len]);
        last[usize::from(token.is_none())] = status;
    }
    segno_text_free(text);
    (String::from_utf8(out).unwrap(), last[0], last[1])
}

#[test]
fn a_step_may_be_tried_again_after_its_buffer_was_too_small() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let model = with_pieces(&ctx, &["ab"]);
    let (a, b, ab, half) = (i32::from(b'a'), i32::from(b'b'), 256, 0xf0);
    let ended = |text: &str| (text.to_owned(), SEGNO_DONE, SEGNO_DONE);
    assert_eq!(text_asked_for_sizes(&model, &["aaaaaX", "aab"], &[a, a, a, a, a, b]), ended("aaa"));
    assert_eq!(text_asked_for_sizes(&model, &["aab"], &[a, a, ab]), ended("a"));
    let wanted = ("aaa".to_owned(), SEGNO_OK, SEGNO_DONE);
    assert_eq!(text_asked_for_sizes(&model, &["aaaaX", "a\u{fffd}"], &[a, a, a, a, half]), wanted);
}

type Lines = Mutex<Vec<(i32, String)>>;

// SAFETY: called by a context with the list that came with it, and a line that ends with NUL.
unsafe extern "C" fn hear(user: *mut c_void, level: i32, line: *const c_char) {
    // SAFETY: as above; the list outlives the context.
    let (lines, line) = unsafe { (&*user.cast::<Lines>(), CStr::from_ptr(line)) };
    lines.lock().unwrap().push((level, line.to_str().unwrap().to_owned()));
}

#[test]
fn a_file_that_names_no_pre_tokenizer_loads_with_one_warning() {
    let lines = Lines::default();
    let ctx = Ctx::new(|opts| (opts.log, opts.log_user) = (Some(hear as _), (&raw const lines).cast_mut().cast()));
    let ctx = ctx.unwrap();
    let mut file = Shape { vocab: 3, tied: true, storage: Storage::Hole, ..Shape::small() }.file();
    file.set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", ["a", "b", "ab"])
        .set("tokenizer.ggml.merges", ["a b"]);
    let warnings = || {
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        lines.into_iter().filter(|(level, _)| *level == SEGNO_LOG_WARN).map(|(_, line)| line).collect::<Vec<_>>()
    };
    let model = ctx.load_buffer(&file.bytes()).unwrap();
    assert_eq!(model.tokenize(b"abb", 0).unwrap(), [2, 1]);
    let heard = warnings();
    assert!(heard.len() == 1 && heard[0].contains("tokenizer.ggml.pre") && heard[0].contains("`default`"), "{heard:?}");
    drop(ctx.load_buffer(&file.set("tokenizer.ggml.pre", "default").bytes()).unwrap());
    assert_eq!(warnings(), [""; 0]);
}

#[test]
fn bytes_that_are_not_utf8_are_refused_with_their_offset() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let model = ctx.load(&common::bundled_model()).unwrap();
    for (bytes, offset) in [(&b"\xff"[..], 0), (b"abc\xc3(", 3), ("ä€".as_bytes().split_last().unwrap().1, 2)] {
        let failed = model.tokenize(bytes, 0).unwrap_err();
        assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT);
        assert!(failed.message.contains(&format!("byte {offset}")), "{}", failed.message);
    }
}

#[test]
fn special_tokens_are_parsed_and_shown_on_request_only() {
    let ctx = Ctx::new(|_| ()).unwrap();
    let model = ctx.load(&common::bundled_model()).unwrap();
    let end = model.info().eos;
    let parsed = model.tokenize(b"a<|endoftext|>b", SEGNO_TOKENIZE_PARSE_SPECIAL).unwrap();
    assert!(parsed.contains(&end));
    assert!(!model.tokenize(b"a<|endoftext|>b", 0).unwrap().contains(&end));
    assert_eq!(model.detokenize(&parsed, SEGNO_DETOKENIZE_SPECIAL).unwrap(), b"a<|endoftext|>b");
    assert_eq!(model.detokenize(&parsed, 0).unwrap(), b"ab");
    let added = model.tokenize(b"a", SEGNO_TOKENIZE_ADD_SPECIAL).unwrap();
    assert_eq!(added[0], model.info().bos);
}
