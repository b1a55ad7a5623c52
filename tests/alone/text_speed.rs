//! A megabyte of anything is tokenized in time: nothing grows with the square of the text.

#[path = "../common/mod.rs"]
mod common;

use common::clock::ThreadClock;
use common::metadata as text;
use common::patient::shortest;

use segno::text::Tokenizer;
use std::borrow::Cow;
use std::time::Duration;
use unicode_normalization::UnicodeNormalization;

const MEGABYTE: usize = 1_000_000;
const LIMIT: Duration = Duration::from_secs(2);

fn repeated(unit: &str) -> String {
    unit.repeat(MEGABYTE / unit.len())
}

/// Characters that look random, of numbers below `bound`, but for the one that SentencePiece takes for a space.
fn random_characters(bound: u32) -> String {
    let mut text = String::new();
    let mut state = 1u64;
    while text.len() < MEGABYTE {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend(char::from_u32((state >> 33) as u32 % bound).filter(|&c| c != '\u{2581}'));
    }
    text
}

fn encoded_in_time(name: &str, tokenizer: &Tokenizer, what: &str, text: &str) -> Vec<i32> {
    let clock = ThreadClock::of_this_thread();
    let (taken, tokens) = shortest(LIMIT, || {
        let start = clock.now();
        let tokens = tokenizer.encode(text.as_bytes(), false, false).unwrap();
        (clock.now() - start, tokens)
    });
    println!("{name}: {what}: {} tokens in {taken:.2?}", tokens.len());
    assert!(taken < LIMIT, "{name}: {what} took {taken:.2?}");
    tokens
}

fn check_speed(name: &str, tokenizer: &Tokenizer, what: &str, text: &str) {
    let tokens = encoded_in_time(name, tokenizer, what, text);
    // Falcon has no tokens for some control characters and for the private planes.
    if name != "falcon" || !what.starts_with("random") {
        let composes = ["mpt", "qwen2"].contains(&name);
        let shown = if composes { Cow::Owned(text.nfc().collect()) } else { Cow::Borrowed(text) };
        assert_eq!(String::from_utf8(tokenizer.decode(&tokens, false).unwrap()).unwrap(), shown, "{name}: {what}");
    }
}

fn texts() -> [(&'static str, String); 11] {
    [
        ("spaces", repeated(" ")),
        ("one letter", repeated("a")),
        ("emoji", repeated("🦙")),
        ("random", random_characters(0x11_0000)),
        ("random letters", random_characters(0x3000)),
        ("digits", repeated("7")),
        ("line ends", repeated(" \r\n")),
        ("apostrophes", repeated("'")),
        ("marks", repeated("\u{301}\u{323}")),
        ("letters with marks", repeated("e\u{301}\u{323}ạ\u{302} 각")),
        ("words of four scripts", repeated("the ferry, 明天去北京, Быстрая лиса, café; ")),
    ]
}

#[test]
fn a_megabyte_of_anything_takes_less_than_two_seconds() {
    let Some(data) = common::shared_data() else { return };
    for name in ["gpt-2", "falcon", "mpt", "phi-3", "qwen2", "llama-bpe"] {
        let tokenizer = text::tokenizer(&data.join(format!("vocab/ggml-vocab-{name}.gguf")));
        for (what, text) in &texts() {
            check_speed(name, &tokenizer, what, text);
        }
    }
}

/// A vocabulary of pieces of all lengths, as the kind `model`.
fn pieces_of(model: &str) -> Tokenizer {
    let words = ["the", "ferry", "明", "天", "去", "Быстрая", "caf", "é", "a", "7", "'", "🦙", "\u{2581}"];
    let parts = words.iter().flat_map(|word| (1..=8).map(|count| word.repeat(count)));
    let tokens: Vec<String> =
        ["<unk>".to_owned()].into_iter().chain(parts.flat_map(|part| [format!("\u{2581}{part}"), part])).collect();
    let mut seen = std::collections::HashSet::new();
    let tokens: Vec<String> = tokens.into_iter().filter(|token| seen.insert(token.clone())).collect();
    let scores: Vec<f32> = tokens.iter().map(|token| -10.0 - token.len() as f32).collect();
    let file = text::MetadataWriter::default()
        .text("tokenizer.ggml.model", model)
        .strings("tokenizer.ggml.tokens", &tokens)
        .floats("tokenizer.ggml.scores", &scores)
        .u32("tokenizer.ggml.unknown_token_id", 0)
        .byte_array("tokenizer.ggml.precompiled_charsmap", include_bytes!("../golden/text/nmt_nfkc.charsmap"));
    Tokenizer::from_metadata(&file.finish()).unwrap().unwrap()
}

#[test]
fn a_megabyte_takes_unigram_and_wordpiece_models_less_than_two_seconds() {
    for model in ["t5", "bert"] {
        let tokenizer = pieces_of(model);
        for (what, text) in texts() {
            encoded_in_time(model, &tokenizer, what, &text);
        }
    }
}
