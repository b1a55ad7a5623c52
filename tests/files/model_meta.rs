//! What a loaded model tells of itself: its metadata as text, and its sizes.

use crate::common;
use crate::common::gguf::{File, Shape, Storage, Value};
use crate::common::{Ctx, Model};
use segno::ffi::model::*;
use segno::ffi::status::*;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

fn load(file: &File) -> Model {
    Ctx::new(|opts| opts.n_threads = 1).unwrap().load_buffer(&file.bytes()).unwrap()
}

/// The text of one entry.
fn text_of(value: impl Into<Value>) -> Vec<u8> {
    load(Shape::small().file().set("the.key", value)).meta("the.key").unwrap()
}

fn assert_text(value: impl Into<Value>, expected: &str) {
    assert_eq!(String::from_utf8(text_of(value)).unwrap(), expected);
}

#[test]
fn strings_come_as_they_are() {
    assert_text("", "");
    assert_text("plain", "plain");
    assert_text("two\nlines, \"quotes\", \\ and 日本", "two\nlines, \"quotes\", \\ and 日本");
    assert_eq!(text_of(&b"\xFFno\0text\xC3"[..]), b"\xFFno\0text\xC3", "bytes that are not UTF-8, and NUL");
}

#[test]
fn integers_come_in_decimal() {
    assert_text(u8::MAX, "255");
    assert_text(i8::MIN, "-128");
    assert_text(u16::MAX, "65535");
    assert_text(i16::MIN, "-32768");
    assert_text(u32::MAX, "4294967295");
    assert_text(i32::MIN, "-2147483648");
    assert_text(u64::MAX, "18446744073709551615");
    assert_text(i64::MIN, "-9223372036854775808");
}

#[test]
fn floats_come_in_decimal_with_the_digits_of_their_width() {
    assert_text(1e-5f32, "0.00001");
    assert_text(0.1f32, "0.1");
    assert_text(10_000f32, "10000");
    assert_text(-2.5f32, "-2.5");
    assert_text(f32::MIN_POSITIVE, "0.000000000000000000000000000000000000011754944");
    assert_text(1e-5f64, "0.00001");
    assert_text(0.1f64 + 0.2, "0.30000000000000004");
    assert_text(f32::NAN, "NaN");
    assert_text(f64::NEG_INFINITY, "-inf");
}

#[test]
fn booleans_come_as_words() {
    assert_text(true, "true");
    assert_text(false, "false");
}

#[test]
fn arrays_come_as_json() {
    assert_text([1u8, 255], "[1,255]");
    assert_text([-1i64, i64::MAX], "[-1,9223372036854775807]");
    assert_text([u64::MAX], "[18446744073709551615]");
    assert_text([1e-5f32, 0.1, 1.0, -3e38], "[1e-5,0.1,1.0,-3e38]");
    assert_text([f32::NAN, f32::INFINITY], "[null,null]");
    assert_text([1e300f64], "[1e300]");
    assert_text([true, false], "[true,false]");
    assert_text(Vec::<u8>::new(), "[]");
    assert_text(["a", ""], r#"["a",""]"#);
    assert_text([vec![1u16, 2], vec![3]], "[[1,2],[3]]");
    assert_text([vec!["x"], vec!["y", "z"]], r#"[["x"],["y","z"]]"#);
}

#[test]
fn strings_in_arrays_are_escaped_and_made_utf8() {
    let strings = ["\"quoted\"", "back\\slash", "tab\tnewline\n\u{1}", "日本 \u{7F}"];
    let json = String::from_utf8(text_of(strings)).unwrap();
    assert_eq!(json, "[\"\\\"quoted\\\"\",\"back\\\\slash\",\"tab\\u0009newline\\u000a\\u0001\",\"日本 \u{7F}\"]");
    let parsed: Vec<String> = serde_json::from_str(&json).unwrap();
    assert_eq!(parsed, strings);
    let broken = String::from_utf8(text_of([&b"a\xFFb"[..], b"\xE6\x97", b"\xC3\"\xC3"])).unwrap();
    let parsed: Vec<String> = serde_json::from_str(&broken).unwrap();
    assert_eq!(parsed, ["a\u{FFFD}b", "\u{FFFD}", "\u{FFFD}\"\u{FFFD}"]);
}

#[test]
fn numbers_of_arrays_survive_a_json_parser() {
    let floats = [1e-45f32, f32::MAX, 0.1, 16_777_217.0, -0.0];
    let parsed: Vec<f32> = serde_json::from_slice(&text_of(floats)).unwrap();
    assert_eq!(parsed.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), floats.map(f32::to_bits));
}

#[test]
fn sizes_are_told_and_nothing_partial_is_written() {
    let model = load(Shape::small().file().set("the.key", "eight 日"));
    let get = |key: &CStr, buf: *mut c_char, cap: usize, len: *mut usize| {
        common::call(|err| segno_model_meta(model.0, key.as_ptr(), buf, cap, len, err)).map_err(|failed| failed.status)
    };
    let (mut buf, mut len) = ([7 as c_char; 16], 0);
    assert_eq!((get(c"the.key", null_mut(), 0, &mut len), len), (Ok(SEGNO_OK), 9));
    len = 0;
    assert_eq!((get(c"the.key", buf.as_mut_ptr(), 8, &mut len), len), (Err(SEGNO_E_BUFFER_TOO_SMALL), 9));
    assert_eq!(buf, [7; 16]);
    assert_eq!((get(c"the.key", buf.as_mut_ptr(), 16, &mut len), len), (Ok(SEGNO_OK), 9));
    let written: Vec<u8> = buf[..9].iter().map(|&byte| byte as u8).collect();
    assert_eq!((&written[..], buf[9]), ("eight 日".as_bytes(), 7));
    assert_eq!(get(c"the.key", null_mut(), 1, &mut len), Err(SEGNO_E_NULL_POINTER));
    assert_eq!(get(c"the.key", null_mut(), 0, null_mut()), Err(SEGNO_E_NULL_POINTER));
    len = 77;
    assert_eq!((get(c"absent", null_mut(), 0, &mut len), len), (Err(SEGNO_E_NOT_FOUND), 77));
    assert_eq!(get(c"the.ke", null_mut(), 0, &mut len), Err(SEGNO_E_NOT_FOUND));
    assert_eq!(get(c"the.\xFF", null_mut(), 0, &mut len), Err(SEGNO_E_INVALID_ARGUMENT));
    assert!(model.meta("absent").unwrap_err().message.contains("`absent`"));
}

fn string(chars: &[c_char]) -> &str {
    // SAFETY: text in structs of the header is NUL-terminated.
    unsafe { CStr::from_ptr(chars.as_ptr()) }.to_str().unwrap()
}

#[test]
fn sizes_of_every_family_are_told() {
    for (arch, tied, storage) in
        [("llama", false, Storage::F32), ("qwen2", true, Storage::Q8_0), ("qwen3", true, Storage::F32)]
    {
        let shape = Shape { arch, tied, storage, head_dim: 32, kv_heads: 1, ..Shape::small() };
        let mut file = shape.file();
        let elements: u64 = file.tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum();
        let bytes: u64 = file.tensors.iter().map(|tensor| tensor.content.len()).sum();
        let info = load(file.set("general.name", "small one")).info();
        let sizes = [info.vocab, info.context, info.layers, info.hidden, info.heads, info.kv_heads, info.head_dim];
        assert_eq!(sizes, [101, 256, 2, 64, 4, 1, 32]);
        assert_eq!((info.parameters, info.weight_bytes), (elements, bytes), "{arch}");
        assert_eq!((string(&info.arch), string(&info.name)), (arch, "small one"));
        assert_eq!((info.bos, info.eos), (-1, -1));
    }
}

#[test]
fn a_name_is_cut_at_a_character_and_may_be_absent() {
    let name = "日".repeat(60);
    let info = load(Shape::small().file().set("general.name", &*name)).info();
    assert_eq!(string(&info.name), "日".repeat(42));
    assert_eq!(string(&load(&Shape::small().file()).info().name), "");
    let broken = load(Shape::small().file().set("general.name", &b"\xFF"[..])).info();
    assert_eq!(string(&broken.name), "");
}

#[test]
fn the_tokens_that_begin_and_end_a_text_are_told() {
    let pieces: Vec<String> = (b' '..).take(98).map(|letter| char::from(letter).into()).collect();
    let tokens = [vec!["<unk>", "<s>", "</s>"], pieces.iter().map(String::as_str).collect()].concat();
    let mut file = Shape::small().file();
    file.set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.scores", vec![0f32; 101])
        .set("tokenizer.ggml.token_type", [vec![2i32, 3, 3], vec![1; 98]].concat())
        .set("tokenizer.ggml.bos_token_id", 2u32)
        .set("tokenizer.ggml.eos_token_id", 1u32);
    let info = load(&file).info();
    assert_eq!((info.bos, info.eos), (2, 1));
    let failed = Ctx::precise().load_buffer(&file.set("tokenizer.ggml.eos_token_id", 101u32).bytes()).err().unwrap();
    assert_eq!(failed.status, SEGNO_E_FORMAT);
    assert!(failed.message.contains("`tokenizer.ggml.eos_token_id` is 101"), "{}", failed.message);
}

#[test]
fn a_smaller_struct_gets_its_part_and_a_larger_one_zeros() {
    let model = load(&Shape::small().file());
    let full = model.info();
    // SAFETY: the struct holds numbers, for which zero is a value.
    let mut part: segno_model_info = unsafe { std::mem::zeroed() };
    common::call(|err| segno_model_info_get(model.0, &mut part, 12, err)).unwrap();
    assert_eq!((part.struct_size, part.vocab, part.context, part.layers), (12, full.vocab, full.context, 0));
    let mut large = [0xAAu8; size_of::<segno_model_info>() + 16];
    let size = large.len();
    common::call(|err| segno_model_info_get(model.0, large.as_mut_ptr().cast(), size, err)).unwrap();
    assert_eq!(large[size - 16..], [0; 16]);
    let small = common::call(|err| segno_model_info_get(model.0, &mut part, 3, err)).unwrap_err();
    assert_eq!(small.status, SEGNO_E_INVALID_ARGUMENT);
    let none = common::call(|err| segno_model_info_get(model.0, null_mut(), 12, err)).unwrap_err();
    assert_eq!(none.status, SEGNO_E_NULL_POINTER);
}
