//! Models whose every count and length asks for 64 KiB and more.

use crate::common::gguf::{File, Shape};
use segno::quant::synthetic::Random;

const LETTERS: std::ops::RangeInclusive<char> = 'a'..='z';

/// Texts of one, two and three letters.
fn words() -> Vec<String> {
    let mut words: Vec<String> = LETTERS.map(String::from).collect();
    for start in [0, 26] {
        let shorter = words[start..].to_vec();
        words.extend(shorter.iter().flat_map(|word| LETTERS.map(move |letter| format!("{word}{letter}"))));
    }
    words
}

/// Special tokens, long ones among them.
fn specials() -> Vec<String> {
    (0..7000).map(|index| format!("<|{index}{}|>", "-".repeat(if index < 300 { 500 } else { 3 }))).collect()
}

fn shape(vocab: usize) -> Shape {
    Shape {
        layers: 1,
        hidden: 16,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        feed_forward: 16,
        vocab,
        context: 300_000,
        ..Shape::small()
    }
}

fn with_vocabulary(kind: &str, normal: &[String], byte_kind: i32) -> File {
    let mut tokens = specials();
    let mut kinds = vec![3i32; tokens.len()];
    kinds.iter_mut().step_by(2).for_each(|kind| *kind = 4);
    tokens.extend_from_slice(normal);
    kinds.resize(tokens.len(), 1);
    // A piece of text that is longer than any buffer is from the start, and as long as it may be, and the line feed.
    tokens.extend(["z".repeat(segno::format::limits::TOKEN_BYTES), "<0x0A>".to_owned()]);
    kinds.extend([1, byte_kind]);
    let mut file = shape(tokens.len()).file();
    file.set("tokenizer.ggml.model", kind).set("tokenizer.ggml.token_type", kinds);
    file.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 3u32);
    file.set("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>());
    file.set("general.name", "n".repeat(200_000).as_str());
    file.set("tokenizer.chat_template", crate::calls::TEMPLATE);
    file
}

/// A SentencePiece vocabulary.
pub fn sentencepiece() -> File {
    let mut normal = words();
    normal.push("\u{2581}".into());
    let mut file = with_vocabulary("llama", &normal, 6);
    let count = specials().len() + normal.len() + 2;
    file.set("tokenizer.ggml.scores", (0..count).map(|index| -(index as f32)).collect::<Vec<_>>());
    file
}

/// A byte-pair vocabulary.
pub fn byte_pair() -> File {
    let words = words();
    let merges: Vec<String> = words
        .iter()
        .filter(|word| word.len() > 1)
        .map(|word| {
            let (left, right) = word.split_at(word.len() - 1);
            format!("{left} {right}")
        })
        .collect();
    let mut file = with_vocabulary("gpt2", &words, 1);
    file.set("tokenizer.ggml.pre", "qwen2");
    file.set("tokenizer.ggml.merges", merges.iter().map(String::as_str).collect::<Vec<_>>());
    file
}

/// More entries, arrays, layers and tensors than any model has.
pub fn wide() -> File {
    let shape = Shape { layers: 700, hidden: 2, heads: 1, kv_heads: 1, head_dim: 2, feed_forward: 2, ..Shape::small() };
    let mut file = shape.file();
    for index in 0..2500 {
        file.entries.push((format!("extra.{index}"), 1u32.into()));
    }
    file.set(&"k".repeat(65_535), 1u32);
    file.set("extra.strings", vec!["text"; 9000]);
    file.set("extra.numbers", vec![1.5f64; 9000]);
    file.set("extra.arrays", vec![[1u8, 2]; 9000]);
    file
}

/// Letters and spaces that look random.
pub fn text(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(5);
    (0..bytes).map(|_| b"abcdefghijklmnopqrstuvwxyz   \n"[(random.bits() % 30) as usize]).collect()
}

/// Characters of all scripts, which make the automata of patterns grow most.
pub fn scripts(characters: usize) -> Vec<u8> {
    let mut random = Random::new(6);
    let any = std::iter::repeat_with(|| char::from_u32((random.bits() % 0x30000) as u32)).flatten();
    any.take(characters).collect::<String>().into_bytes()
}
