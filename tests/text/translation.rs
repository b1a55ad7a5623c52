//! Tokens of one vocabulary in another: those of text must be the same, special ones are found by their names.

use crate::common::metadata::MetadataWriter;
use segno::error::Error;
use segno::text::Tokenizer;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// A byte-pair vocabulary of letters, `<...>` names a special token, and nothing one that stands for nothing.
fn vocabulary(tokens: &[&str]) -> Tokenizer {
    let kind = |token: &&str| match token.as_bytes() {
        [b'<', _, ..] => CONTROL,
        [b'[', ..] => UNUSED,
        _ => NORMAL,
    };
    let kinds: Vec<i32> = tokens.iter().map(kind).collect();
    let file = MetadataWriter::default()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", &["a b"]);
    Tokenizer::from_metadata(&file.finish()).unwrap().unwrap()
}

#[test]
fn equal_vocabularies_need_no_translation() {
    let tokens = ["a", "b", "ab", "<s>", "[unused]"];
    assert_eq!(vocabulary(&tokens).translation(&vocabulary(&tokens)).unwrap(), None);
}

#[test]
fn special_tokens_are_found_by_their_names() {
    let model = vocabulary(&["a", "b", "ab", "<s>", "<eot>", "<think>", "[unused]"]);
    let draft = vocabulary(&["a", "b", "ab", "<eot>", "<s>", "[spare]"]);
    let way = model.translation(&draft).unwrap().expect("some differ");
    let there: Vec<_> = (-1..8).map(|token| way.there(token)).collect();
    assert_eq!(there, [None, Some(0), Some(1), Some(2), Some(4), Some(3), None, None, None]);
    let back: Vec<_> = (-1..7).map(|token| way.back(token)).collect();
    assert_eq!(back, [None, Some(0), Some(1), Some(2), Some(4), Some(3), None, None]);
}

#[test]
fn other_texts_are_refused_by_the_first_token_that_differs() {
    let model = vocabulary(&["a", "b", "ab", "<s>"]);
    for (tokens, text) in [
        (&["a", "b", "c", "ab", "<s>"][..], "its token 2 is 'c', that of the model is 'ab'"),
        (&["a", "b", "ab", "<s>", "c"][..], "its token 4 is 'c', that of the model is no token"),
        (&["a", "b", "ab"][..], ""),
        (&["a", "b", "<s>", "ab"][..], "its token 2 is '<s>', that of the model is 'ab'"),
    ] {
        match model.translation(&vocabulary(tokens)) {
            Err(Error::Unsupported(problem)) => assert!(!text.is_empty() && problem.contains(text), "{problem}"),
            Err(other) => panic!("{other}"),
            Ok(way) => assert!(text.is_empty() && way.is_some_and(|way| way.there(3).is_none())),
        }
    }
}
