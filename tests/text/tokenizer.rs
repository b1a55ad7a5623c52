//! Small vocabularies made by `tests/golden/make_text.py` against the ids of public tokenizers, and the rules of files.

use crate::common::metadata::MetadataWriter;
use segno::error::Error;
use segno::format::Metadata;
use segno::text::Tokenizer;
use serde_json::Value;

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
fn byte_pair_file(golden: &Value, pre: Option<&str>) -> MetadataWriter {
    let mut tokens = strings(&golden["tokens"]);
    let mut kinds = vec![NORMAL; tokens.len()];
    for (key, kind) in [("special_tokens", CONTROL), ("user_defined", USER_DEFINED)] {
        let more = strings(&golden[key]);
        kinds.extend(vec![kind; more.len()]);
        tokens.extend(more);
    }
    let file = MetadataWriter::default()
        .text("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", &strings(&golden["merges"]));
    match pre {
        Some(pre) => file.text("tokenizer.ggml.pre", pre),
        None => file,
    }
}

#[test]
fn byte_pairs_equal_the_public_tokenizer_for_every_pre_tokenizer() {
    let mut golden = golden(include_str!("../golden/text/byte_pair.json"));
    // The user-defined tokens are recognised in any text, so the texts without them come from a file without them.
    let user_defined = golden["user_defined"].take();
    golden["user_defined"] = Value::Array(Vec::new());
    let composing = strings(&golden["composing"]);
    for (pre, wanted) in golden["ids"].as_object().unwrap() {
        let tokenizer = load(&byte_pair_file(&golden, Some(pre)).finish());
        let shown = strings(&golden[if composing.contains(pre) { "texts_composed" } else { "texts" }]);
        for ((text, shown), wanted) in strings(&golden["texts"]).iter().zip(shown).zip(wanted.as_array().unwrap()) {
            let tokens = tokenizer.encode(text.as_bytes(), false, false).unwrap();
            assert_eq!(tokens, ids(wanted), "{pre}: {text:?}");
            assert_eq!(tokenizer.decode(&tokens, false).unwrap(), shown.as_bytes(), "{pre}");
        }
    }
    golden["user_defined"] = user_defined;
    for (pre, wanted) in golden["ids_with_specials"].as_object().unwrap() {
        let tokenizer = load(&byte_pair_file(&golden, Some(pre)).finish());
        for (text, wanted) in strings(&golden["texts_with_specials"]).iter().zip(wanted.as_array().unwrap()) {
            let tokens = tokenizer.encode(text.as_bytes(), false, true).unwrap();
            assert_eq!(tokens, ids(wanted), "{pre}: {text:?}");
        }
    }
}

/// A model of `sentencepiece.json` or `unigram.json` as the kind `name`.
fn sentencepiece_file(model: &Value, name: &str) -> MetadataWriter {
    let scores: Vec<f32> =
        model["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap() as f32).collect();
    let flag = |key: &str| model[key].as_bool().unwrap();
    MetadataWriter::default()
        .text("tokenizer.ggml.model", name)
        .strings("tokenizer.ggml.tokens", &strings(&model["tokens"]))
        .floats("tokenizer.ggml.scores", &scores)
        .integers("tokenizer.ggml.token_type", &ids(&model["kinds"]))
        .bool("tokenizer.ggml.add_space_prefix", flag("add_space_prefix"))
        .bool("tokenizer.ggml.remove_extra_whitespaces", flag("remove_extra_whitespaces"))
}

#[test]
fn sentencepiece_models_equal_the_public_library_with_all_flags() {
    let golden = golden(include_str!("../golden/text/sentencepiece.json"));
    let texts = strings(&golden["texts"]);
    for (name, model) in golden["models"].as_object().unwrap() {
        let tokenizer = load(&sentencepiece_file(model, "llama").finish());
        for (text, wanted) in texts.iter().zip(model["ids"].as_array().unwrap()) {
            let tokens = tokenizer.encode(text.as_bytes(), false, false).unwrap();
            assert_eq!(tokens, ids(wanted), "{name}: {text:?}");
            if name != "no_bytes" && !name.starts_with("squeezing") {
                assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text.as_bytes(), "{name}: {text:?}");
            }
        }
    }
}

/// A model of `unigram.json`.
fn unigram_file(model: &Value) -> MetadataWriter {
    let file = sentencepiece_file(model, "t5").u32("tokenizer.ggml.unknown_token_id", 0);
    match model["charsmap"].as_str() {
        Some("rules") => file.byte_array(CHARSMAP, include_bytes!("../golden/text/rules.charsmap")),
        Some("nmt_nfkc") => file.byte_array(CHARSMAP, include_bytes!("../golden/text/nmt_nfkc.charsmap")),
        _ => file,
    }
}

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

#[test]
fn unigram_models_equal_the_public_library_with_all_flags_and_maps() {
    let golden = golden(include_str!("../golden/text/unigram.json"));
    let texts = strings(&golden["texts"]);
    let mut wrong = Vec::new();
    for (name, model) in golden["models"].as_object().unwrap() {
        let tokenizer = load(&unigram_file(model).finish());
        let keeps = ["plain", "no_prefix", "across_words", "user_defined"].contains(&name.as_str());
        for (text, wanted) in texts.iter().zip(model["ids"].as_array().unwrap()) {
            let tokens = tokenizer.encode(text.as_bytes(), false, false).unwrap();
            if tokens != ids(wanted) {
                wrong.push(format!("{name}: {text:?}: {tokens:?}, wanted {wanted}"));
            }
            let shown = tokenizer.decode(&tokens, false).unwrap();
            // U+2581 is a space to the library.
            assert!(!keeps || shown == text.replace('\u{2581}', " ").as_bytes(), "{name}: {text:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn t5_ends_a_text_with_the_tokens_that_its_files_leave_unsaid() {
    let file = MetadataWriter::default()
        .text("tokenizer.ggml.model", "t5")
        .strings("tokenizer.ggml.tokens", &["<pad>", "</s>", "<unk>", "\u{2581}a", "b"])
        .integers("tokenizer.ggml.token_type", &[CONTROL, CONTROL, 2, NORMAL, NORMAL])
        .floats("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -1.0, -2.0]);
    let without_prefix = file.clone();
    let tokenizer = load(&file.bool("tokenizer.ggml.add_space_prefix", true).finish());
    let encode = |text: &str, special| tokenizer.encode(text.as_bytes(), special, true).unwrap();
    assert_eq!(encode("ab", true), [3, 4, 1]);
    assert_eq!(encode("ab", false), [3, 4]);
    assert_eq!(encode("axyb</s>a", false), [3, 2, 4, 1, 3], "a run of unknown characters is one token");
    assert!(tokenizer.is_eog(1) && tokenizer.bos().is_none());
    let squeezing = |prefix: bool| {
        let file = without_prefix.clone().bool("tokenizer.ggml.add_space_prefix", prefix);
        load(&file.bool("tokenizer.ggml.remove_extra_whitespaces", true).finish())
    };
    for tokenizer in [true, false].map(squeezing) {
        assert_eq!(
            tokenizer.encode(b"  a  a", false, false).unwrap(),
            [3, 3],
            "the first word begins with a space too"
        );
    }
    assert_eq!(tokenizer.decode(&[3, 4, 1, 3], false).unwrap(), b"aba");
}

/// A vocabulary of `wordpiece.json`.
fn wordpiece_file(vocabulary: &Value) -> MetadataWriter {
    let tokens = strings(&vocabulary["tokens"]);
    let id = |name: &str| tokens.iter().position(|token| token == name).unwrap() as u32;
    let mut file = MetadataWriter::default()
        .text("tokenizer.ggml.model", "bert")
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &ids(&vocabulary["kinds"]))
        .u32("tokenizer.ggml.bos_token_id", id("[CLS]"))
        .u32("tokenizer.ggml.seperator_token_id", id("[SEP]"))
        .u32("tokenizer.ggml.unknown_token_id", id("[UNK]"));
    for (rule, value) in vocabulary["rules"].as_object().unwrap() {
        file = file.bool(&format!("tokenizer.ggml.normalizer.{rule}"), value.as_bool().unwrap());
    }
    file
}

#[test]
fn wordpiece_vocabularies_equal_the_public_library_under_all_rules() {
    let golden = golden(include_str!("../golden/text/wordpiece.json"));
    let texts = strings(&golden["texts"]);
    let mut wrong = Vec::new();
    for (name, vocabulary) in golden["vocabularies"].as_object().unwrap() {
        let tokenizer = load(&wordpiece_file(vocabulary).finish());
        let decoded = strings(&vocabulary["decoded"]);
        for ((text, shown), wanted) in texts.iter().zip(decoded).zip(vocabulary["ids"].as_array().unwrap()) {
            let tokens = tokenizer.encode(text.as_bytes(), true, true).unwrap();
            if tokens != ids(wanted) {
                wrong.push(format!("{name}: {text:?}: {tokens:?}, wanted {wanted}"));
            }
            // The vocabulary's U+2581 is shown as the space that it is in a file.
            assert_eq!(tokenizer.decode(&tokens, false).unwrap(), shown.replace('\u{2581}', " ").as_bytes(), "{name}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A byte-level file with all bytes as tokens 0 to 255, two merges, and `more` tokens with their kinds.
fn small_file(pre: &str, more: &[(&str, i32)]) -> MetadataWriter {
    let golden = golden(include_str!("../golden/text/byte_pair.json"));
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
fn special_tokens_of_phi_3_swallow_the_space_behind_them_but_for_three() {
    let names = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>", "▁", "▁a", "a"];
    let kinds = [2, CONTROL, USER_DEFINED, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL];
    let file = MetadataWriter::default()
        .text("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &names)
        .integers("tokenizer.ggml.token_type", &kinds)
        .floats("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, 0.0, 0.0, -2.0, -1.0, -3.0]);
    let encode = |file: &MetadataWriter, text: &str| load(&file.finish()).encode(text.as_bytes(), false, true).unwrap();
    let (space, word) = (5, 6);
    for (name, keeps) in [("Another Model", true), ("Phi-3 Mini 4k", false), ("phi3.5", false)] {
        let file = file.clone().text("general.name", name);
        for (token, text) in (0..).zip(&names[..5]) {
            let kept = keeps || ["<unk>", "<s>", "<|endoftext|>"].contains(text);
            let wanted = if kept { vec![token, space, word] } else { vec![token, word] };
            assert_eq!(encode(&file, &format!("{text} a")), wanted, "{name}: {text}");
            let wanted = if kept { vec![token] } else { vec![token, word] };
            assert!(encode(&file, &format!("{text}\n\u{b}\u{3000}a")).starts_with(&wanted), "{name}: {text}");
        }
    }
}

#[test]
fn a_file_that_names_no_pre_tokenizer_has_the_default_one() {
    let golden = golden(include_str!("../golden/text/byte_pair.json"));
    let [old, named] = [None, Some("default")].map(|pre| load(&byte_pair_file(&golden, pre).finish()));
    assert!(!old.names_words() && named.names_words());
    for text in strings(&golden["texts"]) {
        let encode = |tokenizer: &Tokenizer| tokenizer.encode(text.as_bytes(), false, false).unwrap();
        assert_eq!(encode(&old), encode(&named), "{text:?}");
    }
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
    for name in ["rwkv", "plamo2", "hybriddna", "whitespace", "something-new"] {
        let error = refusal(&model(name));
        assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains(name), "{error}");
    }
    let error = refusal(&small_file("no-such-pre", &[]));
    assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains("no-such-pre"), "{error}");
    for absent in [MetadataWriter::default(), model("no_vocab"), model("none")] {
        assert!(Tokenizer::from_metadata(&absent.finish()).unwrap().is_none());
    }
}
