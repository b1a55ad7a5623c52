//! The vocabulary of a file, which has the size that it should have, and made-up words.

use super::header::Header;

/// The 256 bytes, two special tokens, and words that are each another token and one letter more: every other word is a merge.
pub fn write(pretokenizer: &str, size: usize, header: &mut Header) {
    const SPECIAL: [&str; 2] = ["<|begin_of_text|>", "<|end_of_text|>"];
    const NORMAL: u32 = 1;
    const CONTROL: u32 = 3;
    const LETTERS: &[u8; 16] = b"etaoinshrdlucmfw";
    let mut words: Vec<String> = (0..=255).map(|byte| String::from(byte_letter(byte))).collect();
    let mut merges = Vec::new();
    for index in 0..size - words.len() - SPECIAL.len() {
        let (word, letter) = (&words[index / LETTERS.len()], LETTERS[index % LETTERS.len()] as char);
        merges.push(format!("{word} {letter}"));
        words.push(format!("{word}{letter}"));
    }
    let mut types = vec![NORMAL; words.len()];
    words.extend(SPECIAL.map(String::from));
    types.extend([CONTROL; SPECIAL.len()]);
    header.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pretokenizer);
    header.texts("tokenizer.ggml.tokens", &words).texts("tokenizer.ggml.merges", &merges);
    header.numbers("tokenizer.ggml.token_type", &types);
    header
        .number("tokenizer.ggml.bos_token_id", size as u32 - 2)
        .number("tokenizer.ggml.eos_token_id", size as u32 - 1);
}

/// The letter that stands for a byte in the vocabularies of GPT-2 and its successors: its own where that is visible.
fn byte_letter(byte: u8) -> char {
    let is_visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    if is_visible(byte) {
        return char::from(byte);
    }
    let invisible_before = (0..byte).filter(|&other| !is_visible(other)).count();
    char::from_u32(256 + invisible_before as u32).expect("a letter of the Latin alphabet")
}
