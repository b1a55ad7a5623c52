//! Small vocabularies made by `tests/golden/make_text.py` against the ids of public tokenizers, and the rules of files.

mod text;

use segno::error::Error;
use segno::format::Metadata;
use segno::text::Tokenizer;
use serde_json::Value;
use text::MetadataWriter;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

fn golden(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn ids(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect()
}

fn load(meta: &Metadata) -> Tokenizer {
    Tokenizer::from_metadata(meta).unwrap().unwrap()
}

fn refusal(meta: &MetadataWriter) -> Error {
    match Tokenizer::from_metadata(&meta.finish()) {
        Err(error) => error,
        Ok(_) => panic!("accepted"),
    }
}

/// The vocabulary of `byte_pair.json` under the pre-tokenizer `pre`.
fn byte_pair_file(golden: &Value, pre: &str) -> MetadataWriter {
    let mut tokens = strings(&golden["tokens"]);
    let mut kinds = vec![NORMAL; tokens.len()];
    for (key, kind) in [("special_tokens", CONTROL), ("user_defined", USER_DEFINED)] {
        let more = strings(&golden[key]);
        kinds.extend(vec![kind; more.len()]);
        tokens.extend(more);
    }
    MetadataWriter::default()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", &strings(&golden["merges"]))
}

#[test]
fn byte_pairs_equal_the_public_tokenizer_for_every_pre_tokenizer() {
    let mut golden = golden(include_str!("golden/text/byte_pair.json"));
    // The user-defined tokens are recognised in any text, so the texts without them come from a file without them.
    let user_defined = golden["user_defined"].take();
    golden["user_defined"] = Value::Array(Vec::new());
    for (pre, wanted) in golden["ids"].as_object().unwrap() {
        let tokenizer = load(&byte_pair_file(&golden, pre).finish());
        for (text, wanted) in strings(&golden["texts"]).iter().zip(wanted.as_array().unwrap()) {
            let tokens = tokenizer.encode(text.as_bytes(), false, false).unwrap();
            assert_eq!(tokens, ids(wanted), "{pre}: {text:?}");
            assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text.as_bytes(), "{pre}");
        }
    }
    golden["user_defined"] = user_defined;
    for (pre, wanted) in golden["ids_with_specials"].as_object().unwrap() {
        let tokenizer = load(&byte_pair_file(&golden, pre).finish());
        for (text, wanted) in strings(&golden["texts_with_specials"]).iter().zip(wanted.as_array().unwrap()) {
            let tokens = tokenizer.encode(text.as_bytes(), false, true).unwrap();
            assert_eq!(tokens, ids(wanted), "{pre}: {text:?}");
            assert_eq!(tokenizer.decode(&tokens, true).unwrap(), text.as_bytes(), "{pre}");
        }
    }
}

fn sentencepiece_file(model: &Value) -> MetadataWriter {
    let scores: Vec<f32> =
        model["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap() as f32).collect();
    let flag = |key: &str| model[key].as_bool().unwrap();
    MetadataWriter::default()
        .text("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &strings(&model["tokens"]))
        .floats("tokenizer.ggml.scores", &scores)
        .integers("tokenizer.ggml.token_type", &ids(&model["kinds"]))
        .bool("tokenizer.ggml.add_space_prefix", flag("add_space_prefix"))
        .bool("tokenizer.ggml.remove_extra_whitespaces", flag("remove_extra_whitespaces"))
}

#[test]
fn sentencepiece_models_equal_the_public_library_with_all_flags() {
    let golden = golden(include_str!("golden/text/sentencepiece.json"));
    let texts = strings(&golden["texts"]);
    for (name, model) in golden["models"].as_object().unwrap() {
        let tokenizer = load(&sentencepiece_file(model).finish());
        for (text, wanted) in texts.iter().zip(model["ids"].as_array().unwrap()) {
            let tokens = tokenizer.encode(text.as_bytes(), false, false).unwrap();
            assert_eq!(tokens, ids(wanted), "{name}: {text:?}");
            if name != "no_bytes" && !name.starts_with("squeezing") {
                assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text.as_bytes(), "{name}: {text:?}");
            }
        }
    }
}

/// A byte-level file with all bytes as tokens 0 to 255, two merges, and `more` tokens with their kinds.
fn small_file(pre: &str, more: &[(&str, i32)]) -> MetadataWriter {
    let golden = golden(include_str!("golden/text/byte_pair.json"));
    let alphabet: Vec<String> =
        strings(&golden["tokens"]).into_iter().filter(|token| token.chars().count() == 1).collect();
    assert_eq!(alphabet.len(), 256);
    let mut tokens = alphabet;
    tokens.extend(["ab", "abc"].map(String::from));
    let mut kinds = vec![NORMAL; tokens.len()];
    tokens.extend(more.iter().map(|(text, _)| (*text).to_owned()));
    kinds.extend(more.iter().map(|(_, kind)| kind));
    MetadataWriter::default()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", &["a b", "ab c"])
}

const FIRST_MORE: i32 = 258;

#[test]
fn begin_and_end_tokens_follow_the_file() {
    let bos = |file: MetadataWriter| file.u32("tokenizer.ggml.bos_token_id", FIRST_MORE as u32);
    let eos = |file: MetadataWriter| file.u32("tokenizer.ggml.eos_token_id", FIRST_MORE as u32 + 1);
    let more = [("<s>", CONTROL), ("</s>", CONTROL)];
    let encode = |file: MetadataWriter, add| load(&file.finish()).encode(b"abc", add, false).unwrap();
    let plain = vec![FIRST_MORE - 1];
    let begun = vec![FIRST_MORE, FIRST_MORE - 1];
    assert_eq!(encode(bos(small_file("gpt-2", &more)), true), plain, "gpt-2 adds none by itself");
    assert_eq!(encode(bos(small_file("llama-bpe", &more)), true), begun, "llama-bpe does");
    assert_eq!(encode(bos(small_file("llama-bpe", &more)), false), plain);
    assert_eq!(encode(small_file("llama-bpe", &more), true), plain, "without such a token there is none to add");
    let says = |pre: &str, add| bos(small_file(pre, &more)).bool("tokenizer.ggml.add_bos_token", add);
    assert_eq!(encode(says("gpt-2", true), true), begun);
    assert_eq!(encode(says("llama-bpe", false), true), plain);
    let both = eos(says("gpt-2", true)).bool("tokenizer.ggml.add_eos_token", true);
    assert_eq!(encode(both, true), vec![FIRST_MORE, FIRST_MORE - 1, FIRST_MORE + 1]);
    let impossible = small_file("gpt-2", &more).bool("tokenizer.ggml.add_bos_token", true);
    assert!(refusal(&impossible).to_string().contains("bos_token_id"));
}

#[test]
fn special_tokens_are_parsed_and_shown_by_flag() {
    let tokenizer = load(&small_file("gpt-2", &[("<|im_end|>", CONTROL), ("<tool>", USER_DEFINED)]).finish());
    let (control, user_defined) = (FIRST_MORE, FIRST_MORE + 1);
    let text = b"<|im_end|><tool>";
    assert_eq!(tokenizer.encode(text, false, true).unwrap(), [control, user_defined]);
    let unparsed = tokenizer.encode(text, false, false).unwrap();
    assert!(unparsed.len() == "<|im_end|>".len() + 1 && unparsed.last() == Some(&user_defined), "{unparsed:?}");
    assert_eq!(tokenizer.decode(&[control, user_defined], false).unwrap(), b"<tool>");
    assert_eq!(tokenizer.decode(&[control, user_defined], true).unwrap(), text);
    assert_eq!(tokenizer.piece(control, false).unwrap(), b"");
}

#[test]
fn generation_ends_at_the_files_tokens_and_at_known_names() {
    let ends = |file: MetadataWriter| load(&file.finish()).eog_tokens().to_vec();
    let names = [("<|im_end|>", NORMAL), ("</s>", NORMAL), ("<eos>", CONTROL), ("stop", NORMAL), ("pause", CONTROL)];
    let id = |index: i32| FIRST_MORE + index;
    assert_eq!(ends(small_file("gpt-2", &names)), [id(0), id(2)], "plain-looking names need a special kind");
    let told = small_file("gpt-2", &names)
        .u32("tokenizer.ggml.eos_token_id", id(3) as u32)
        .u32("tokenizer.ggml.eot_token_id", id(4) as u32)
        .u32("tokenizer.ggml.eom_token_id", u32::MAX);
    assert_eq!(ends(told), [id(0), id(2), id(3), id(4)]);
    let harmony = [("<|end|>", CONTROL), ("<|return|>", CONTROL), ("<|call|>", CONTROL)];
    assert_eq!(ends(small_file("gpt-4o", &harmony)), [id(1), id(2)], "a message's end is not the turn's");
    let tokenizer = load(&small_file("gpt-2", &names).finish());
    assert!(tokenizer.is_eog(id(0)) && !tokenizer.is_eog(id(1)) && !tokenizer.is_eog(-1));
}

#[test]
fn text_that_is_not_utf8_is_refused_with_the_offset() {
    let tokenizer = load(&small_file("gpt-2", &[]).finish());
    for (text, offset) in [(&b"ab\xff"[..], 2), (b"\x80", 0), (b"abcd\xe2\x82", 4), (b"x\xed\xa0\x80", 1)] {
        let error = tokenizer.encode(text, false, false).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)));
        assert!(error.to_string().ends_with(&format!("byte {offset}")), "{error}");
    }
}

#[test]
fn every_token_can_be_shown_and_no_other_number_is_a_token() {
    let tokenizer = load(&small_file("gpt-2", &[("hole", 5), ("", NORMAL), ("<0x0A>", 6)]).finish());
    let count = tokenizer.vocab_size() as i32;
    assert_eq!(count, FIRST_MORE + 3);
    assert_eq!(tokenizer.decode(&[FIRST_MORE, FIRST_MORE + 1, FIRST_MORE + 2], false).unwrap(), b"\n");
    for token in [-1, count, i32::MIN, i32::MAX] {
        assert!(matches!(tokenizer.piece(token, true), Err(Error::InvalidArgument(_))), "{token}");
        assert!(tokenizer.decode(&[0, token], true).is_err());
    }
    let lone_byte = tokenizer.encode("é".as_bytes(), false, false).unwrap()[0];
    assert_eq!(tokenizer.decode(&[lone_byte], false).unwrap(), "\u{fffd}".as_bytes());
}

#[test]
fn vocabularies_of_other_kinds_are_refused_by_name() {
    let model = |name: &str| MetadataWriter::default().text("tokenizer.ggml.model", name);
    for name in ["bert", "t5", "rwkv", "plamo2", "something-new"] {
        let error = refusal(&model(name));
        assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains(name), "{error}");
    }
    let error = refusal(&small_file("no-such-pre", &[]));
    assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains("no-such-pre"), "{error}");
    for absent in [MetadataWriter::default(), model("no_vocab"), model("none")] {
        assert!(Tokenizer::from_metadata(&absent.finish()).unwrap().is_none());
    }
}
