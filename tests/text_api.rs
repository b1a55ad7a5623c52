//! Text through the C API on real vocabularies: the shared test data's tokenizers, each in a model file of its own whose weights are
//! holes.

mod common;

use common::gguf::{File, Shape, Storage};
use common::{Ctx, Model, call, shared_data};
use segno::ffi::status::*;
use segno::ffi::text::*;
use segno::format::{Gguf, Metadata, Value};
use std::path::Path;
use std::ptr::null_mut;

/// A small model with the tokenizer of another file.
fn with_tokenizer(path: &Path) -> File {
    let gguf = Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let meta = gguf.metadata();
    let vocab = meta.strings("tokenizer.ggml.tokens").unwrap().unwrap().len();
    let mut file = Shape { vocab, tied: true, storage: Storage::Hole, ..Shape::small() }.file();
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
    let file = std::env::temp_dir().join(format!(
        "segno-{}-{}",
        std::process::id(),
        path.file_name().unwrap().to_str().unwrap()
    ));
    with_tokenizer(path).write(&file);
    let model = ctx.load(&file);
    std::fs::remove_file(&file).unwrap();
    model.unwrap()
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
