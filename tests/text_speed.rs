//! A megabyte of anything is tokenized in time: nothing grows with the square of the text.

mod text;

use segno::text::Tokenizer;
use std::time::{Duration, Instant};

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

fn check_speed(name: &str, tokenizer: &Tokenizer, what: &str, text: &str) {
    let start = Instant::now();
    let tokens = tokenizer.encode(text.as_bytes(), false, false).unwrap();
    let taken = start.elapsed();
    println!("{name}: {what}: {} tokens in {taken:.2?}", tokens.len());
    assert!(taken < LIMIT, "{name}: {what} took {taken:.2?}");
    // Falcon has no tokens for some control characters and for the private planes.
    if name != "falcon" || !what.starts_with("random") {
        assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text.as_bytes(), "{name}: {what}");
    }
}

#[test]
fn a_megabyte_of_anything_takes_less_than_two_seconds() {
    let Some(data) = text::shared_data() else { return };
    let texts = [
        ("spaces", repeated(" ")),
        ("one letter", repeated("a")),
        ("emoji", repeated("🦙")),
        ("random", random_characters(0x11_0000)),
        ("random letters", random_characters(0x3000)),
        ("digits", repeated("7")),
        ("line ends", repeated(" \r\n")),
        ("apostrophes", repeated("'")),
    ];
    for name in ["gpt-2", "falcon", "mpt", "phi-3", "qwen2", "llama-bpe"] {
        let tokenizer = text::tokenizer(&data.join(format!("vocab/ggml-vocab-{name}.gguf")));
        for (what, text) in &texts {
            check_speed(name, &tokenizer, what, text);
        }
    }
}
