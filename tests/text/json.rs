//! Tokenizers of `tokenizer.json` against the ids that the crate `tokenizers` gives: small ones of each kind that model families have
//! (`tests/golden/make_tokenizers.py`), public vocabularies, and files that are wrong.

use crate::common;
use crate::common::patient::shortest;
use crate::common::tokenizers::of_kind;
use segno::format::{Document, Gguf, Metadata};
use segno::text::Tokenizer;
use segno::text::tokenizer::json::Files;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn folder() -> PathBuf {
    common::root().join("tests/golden/text/json")
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The tokenizer of a file with this configuration beside it.
fn load(tokenizer: &Value, config: Option<Value>, ends: &[u32]) -> Result<Tokenizer, String> {
    let document = |value: &Value| Document::read(value.to_string().as_bytes(), "x.json").unwrap();
    let (tokenizer, config) = (document(tokenizer), config.as_ref().map(document));
    let files = Files { tokenizer: &tokenizer, config: config.as_ref(), ends };
    Tokenizer::from_json(&files, 0, &mut |_| Ok(())).map(|(tokenizer, _)| tokenizer).map_err(|error| error.to_string())
}

#[test]
fn every_kind_gives_the_ids_of_its_own_library() {
    let golden = read(&folder().join("ids.json"));
    let texts: Vec<&str> = golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let kinds = golden["ids"].as_object().unwrap();
    assert_eq!(kinds.len(), 23);
    for (name, ids) in kinds {
        let tokenizer = load(&of_kind(name, None), None, &[]).unwrap();
        for (number, text) in texts.iter().enumerate() {
            for (list, add_special) in [("plain", false), ("special", true)] {
                let expected: Vec<i32> = serde_json::from_value(ids[list][number].clone()).unwrap();
                let found = tokenizer.encode(text.as_bytes(), add_special, true).unwrap();
                assert_eq!(found, expected, "{name}: {text:?}");
            }
        }
    }
}

/// Beginnings of the names of kinds that change text, or have no token for some of it.
const LOSSY: [&str; 5] = ["unknown", "t5", "spm", "unigram", "wordpiece"];

#[test]
fn what_was_encoded_comes_back() {
    let golden = read(&folder().join("ids.json"));
    let loses = |name: &str| name != "unigram_bytes" && LOSSY.iter().any(|kind| name.starts_with(kind));
    for name in golden["ids"].as_object().unwrap().keys().filter(|name| !loses(name)) {
        let tokenizer = load(&of_kind(name, None), None, &[]).unwrap();
        for text in ["The ferry leaves at nine", "wörld \u{1F600} 123", "  spaces ahead", "漢字\n\n x"] {
            let tokens = tokenizer.encode(text.as_bytes(), true, false).unwrap();
            let back = String::from_utf8(tokenizer.decode(&tokens, false).unwrap()).unwrap();
            // A metaspace puts no space in front of one, so that one is lost.
            let lost = matches!(name.as_str(), "first" | "always") && text.starts_with(' ');
            assert_eq!(back, if lost { &text[1..] } else { text }, "{name}");
        }
    }
}

/// A byte-level vocabulary of a GGUF file as `tokenizer.json` has it.
fn json_of(meta: &Metadata, pattern: &str, ignore_merges: bool) -> Value {
    let texts = |key: &str| -> Vec<String> {
        let spans = meta.strings(key).unwrap().unwrap();
        spans.iter().map(|span| String::from_utf8(meta.bytes(span).to_vec()).unwrap()).collect()
    };
    let kinds: Vec<i64> = meta
        .scalars("tokenizer.ggml.token_type")
        .unwrap()
        .unwrap()
        .map(|kind| match kind {
            segno::format::Value::Signed(kind) => kind,
            other => panic!("{other:?}"),
        })
        .collect();
    let tokens = texts("tokenizer.ggml.tokens");
    let added = |id: &usize| kinds[*id] != 1;
    let added: Vec<Value> = (0..tokens.len()).filter(added).map(|id| {
        json!({"id": id, "content": tokens[id], "special": kinds[id] == 3, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false})
    }).collect();
    let vocab: serde_json::Map<_, _> = tokens.iter().enumerate().map(|(id, text)| (text.clone(), json!(id))).collect();
    json!({
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": texts("tokenizer.ggml.merges"), "ignore_merges": ignore_merges},
    })
}

#[test]
fn public_vocabularies_give_their_published_ids() {
    let Some(data) = common::shared_data() else { return };
    let qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let llama = qwen.replace(r"|\p{N}|", r"|\p{N}{1,3}|");
    let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    for (name, pattern, ignore_merges) in [("qwen2", qwen, false), ("llama-bpe", &llama, true), ("gpt-2", gpt2, false)]
    {
        let path = data.join(format!("vocab/ggml-vocab-{name}.gguf"));
        let gguf = Gguf::open(&path, true, &mut |_| Ok(())).unwrap();
        let tokenizer = load(&json_of(gguf.metadata(), pattern, ignore_merges), None, &[]).unwrap();
        let inputs = std::fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
        let outputs = std::fs::read_to_string(path.with_extension("gguf.out")).unwrap();
        let cases: Vec<&str> = inputs.split_terminator("\n__ggml_vocab_test__\n").collect();
        assert!(cases.len() > 40 && cases.len() == outputs.lines().count());
        for (text, line) in cases.iter().zip(outputs.lines()) {
            let expected: Vec<i32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text.as_bytes(), false, false).unwrap(), expected, "{name}: {text:?}");
        }
    }
}

fn small() -> Value {
    of_kind("llama2", None)
}

#[test]
fn configurations_name_tokens_and_say_what_goes_around_a_text() {
    let config = |begin: bool, end: bool| {
        json!({"tokenizer_class": "LlamaTokenizer", "add_bos_token": begin, "add_eos_token": end, "bos_token": {"content": "<s>"},
            "eos_token": "</s>"})
    };
    for (begin, end) in [(true, true), (true, false), (false, true), (false, false)] {
        let tokenizer = load(&small(), Some(config(begin, end)), &[]).unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
        let tokens = tokenizer.encode(b"a", true, false).unwrap();
        assert_eq!((tokens.first() == Some(&1), tokens.last() == Some(&2)), (begin, end));
    }
    // Other classes do as tokenizer.json says.
    let mut other = config(false, true);
    other["tokenizer_class"] = json!("PreTrainedTokenizerFast");
    let tokens = load(&small(), Some(other), &[]).unwrap().encode(b"a", true, false).unwrap();
    assert!(tokens.first() == Some(&1) && tokens.last() != Some(&2));
    let tokenizer = load(&small(), Some(config(true, false)), &[7, 9, 2]).unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.eog_tokens()), (Some(2), &[2, 7, 9][..]));
    let tokenizer = load(&small(), None, &[7, 9]).unwrap();
    assert_eq!((tokenizer.eos(), [7, 9].map(|token| tokenizer.is_eog(token))), (Some(7), [true; 2]));
    let message = load(&small(), None, &[7, 8, 9, 10]).err().unwrap();
    assert!(message.contains("4 tokens end generation, at most 3"), "{message}");
    assert!(load(&small(), None, &[1 << 20]).is_err());
}

/// Changes a file.
type Change = fn(&mut Value);

#[test]
fn wrong_files_are_refused_by_what_is_wrong() {
    let changes: [(Change, &str); 22] = [
        (|file| file["model"] = Value::Null, "`model` is missing"),
        (|file| file["model"]["type"] = json!("WordLevel"), "a model of type `WordLevel`"),
        (|file| file["model"]["vocab"] = json!([]), "`vocab` is no map"),
        (|file| file["model"]["vocab"]["x"] = json!(-1), "token `x` has the id -1"),
        (|file| file["model"]["vocab"]["x"] = json!(1u64 << 40), "token `x` has the id"),
        (|file| file["model"]["vocab"]["x"] = json!(5), "have the id 5"),
        (|file| file["model"]["merges"] = json!(["a"]), "merge 0 (`a`) is not two tokens"),
        (|file| file["model"]["merges"] = json!([["a", "b", "c"]]), "merge 0 (a list) is not two tokens"),
        (|file| file["model"]["merges"] = json!([["zz", "zz"]]), "the absent token `zz"),
        (|file| file["model"]["merges"] = json!({}), "`merges` is no list"),
        (|file| file["model"]["dropout"] = json!(0.1), "`dropout` 0.1 is not supported"),
        (|file| file["model"]["end_of_word_suffix"] = json!("</w>"), "`end_of_word_suffix` `</w>`"),
        (|file| file["added_tokens"] = json!(7), "`added_tokens` is no list"),
        (|file| file["added_tokens"][0]["single_word"] = json!(true), "`single_word` of token `<unk>`"),
        (|file| file["added_tokens"][0]["id"] = json!("x"), "no usable `content` or `id`"),
        (|file| file["added_tokens"][0]["id"] = json!(3), "have the id 3"),
        (|file| file["normalizer"] = json!({"type": "NFKC"}), "the normalizer `NFKC`"),
        (|file| file["pre_tokenizer"] = json!({"type": "UnicodeScripts"}), "the pre-tokenizer `UnicodeScripts`"),
        (|file| file["post_processor"] = json!({"type": "Strange"}), "the `post_processor` `Strange`"),
        (|file| file["post_processor"] = json!({"type": "TemplateProcessing", "single": []}), "leaves out the text"),
        (
            |file| file["post_processor"]["processors"][0]["single"][0]["SpecialToken"]["id"] = json!("<none>"),
            "names the token `<none>`",
        ),
        (
            |file| file["post_processor"]["processors"][0]["special_tokens"]["<s>"]["ids"] = json!([1 << 30]),
            "the vocabulary has",
        ),
    ];
    for (change, words) in changes {
        let mut file = small();
        change(&mut file);
        let message = load(&file, None, &[]).err().expect(words);
        assert!(message.contains(words), "`{words}` is not in: {message}");
    }
}

#[test]
fn strange_patterns_are_compiled_or_refused_in_time() {
    for pattern in [
        "(",
        "a{1000000}",
        "(a{1000}){1000}",
        r"((\p{L}{50}){50}){50}",
        "[z-a]",
        "(?P<n>a)(?P<n>b)",
        // These match nothing at all, too.
        "",
        "x*",
        r"[^\r\n]*|\s+(?!\S)|\s+",
        &"(".repeat(8000),
        &"x".repeat(8193),
    ] {
        let mut file = of_kind("llama3", None);
        file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(pattern);
        let (time, ()) = shortest(Duration::from_secs(2), || {
            let started = Instant::now();
            let _ = load(&file, None, &[]).map(|tokenizer| tokenizer.encode(b"aaa bbb", true, true));
            (started.elapsed(), ())
        });
        assert!(time.as_secs() < 2, "{pattern:.40}: {time:?}");
    }
}
