//! Real vocabularies against the token ids that llama.cpp's own tests expect.

use crate::common;
use crate::common::metadata as text;
use segno::text::Tokenizer;
use std::fs::read_to_string;
use std::path::Path;

fn check_vocabulary(folder: &Path, name: &str) {
    let path = folder.join(format!("ggml-vocab-{name}.gguf"));
    let tokenizer = text::tokenizer(&path);
    let inputs = read_to_string(path.with_extension("gguf.inp")).unwrap();
    let outputs = read_to_string(path.with_extension("gguf.out")).unwrap();
    let inputs: Vec<&str> = inputs.split_terminator("\n__ggml_vocab_test__\n").collect();
    let outputs: Vec<&str> = outputs.lines().collect();
    assert!(inputs.len() > 40 && inputs.len() == outputs.len(), "{} cases, {} answers", inputs.len(), outputs.len());
    for (input, output) in inputs.iter().zip(outputs) {
        let wanted: Vec<i32> = output.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let tokens = tokenizer.encode(input.as_bytes(), false, false).unwrap();
        assert_eq!(tokens, wanted, "{name}: {input:?}");
        check_round_trip(&tokenizer, name, input);
    }
}

fn check_round_trip(tokenizer: &Tokenizer, name: &str, text: &str) {
    for add_special in [false, true] {
        let tokens = tokenizer.encode(text.as_bytes(), add_special, false).unwrap();
        let back = tokenizer.decode(&tokens, false).unwrap();
        assert_eq!(String::from_utf8(back).unwrap(), text, "{name}");
    }
}

#[test]
fn every_case_of_the_real_vocabularies_gives_its_ids_and_comes_back() {
    let Some(data) = common::shared_data() else { return };
    for name in ["gpt-2", "falcon", "mpt", "phi-3", "qwen2", "llama-bpe"] {
        check_vocabulary(&data.join("vocab"), name);
    }
}

#[test]
fn phi_3_keeps_the_space_behind_its_begin_token() {
    let Some(data) = common::shared_data() else { return };
    let tokenizer = text::tokenizer(&data.join("vocab/ggml-vocab-phi-3.gguf"));
    let encode = |text: &str| tokenizer.encode(text.as_bytes(), false, true).unwrap();
    assert_eq!(encode("<s> a"), [1, 29871, 263]);
    assert_eq!(encode("<unk> a"), [0, 29871, 263]);
    assert_eq!(encode("<|endoftext|> a"), [32000, 29871, 263]);
    assert_eq!(encode("</s> a"), [2, 263]);
    assert_eq!(encode("<|user|>\n a<|end|>\n"), [32010, 263, 32007]);
}
