//! Models written as GGUF files: what is loaded from a saved file is, bit for bit, what was loaded from its source, and saving that again gives the
//! same file. Whatever fails leaves nothing behind.

use crate::common;
use crate::common::folders::{entries_of, tensors, write};
use crate::common::gguf::{Shape, write_parts};
use crate::common::tokenizers;
use crate::common::{Ctx, Folder, Model, Watch, call, greedy, model_opts, root, shared_data};
use segno::ffi::model::*;
use segno::ffi::status::*;
use segno::ffi::text::SEGNO_TOKENIZE_ADD_SPECIAL;
use segno::format::Gguf;
use serde_json::{Value, json};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

pub fn save(model: &Model, path: &Path) -> common::Result<segno_status> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    call(|err| segno_model_save(model.0, path.as_ptr(), null(), err))
}

/// Saves with progress that goes to `watch`.
fn save_watched(model: &Model, path: &Path, watch: &mut Watch) -> common::Result<segno_status> {
    let load = model_opts(0, watch);
    // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_save_opts = unsafe { std::mem::zeroed() };
    segno_save_opts_init(&mut opts, size_of::<segno_save_opts>());
    (opts.progress, opts.progress_user) = (load.progress, load.progress_user);
    let path = CString::new(path.to_str().unwrap()).unwrap();
    call(|err| segno_model_save(model.0, path.as_ptr(), &opts, err))
}

fn ctx() -> Ctx {
    Ctx::new(|opts| opts.n_threads = 2).unwrap()
}

fn load(ctx: &Ctx, path: &Path, flags: u32, quantize: i32) -> Model {
    let mut watch = Watch::default();
    let mut opts = model_opts(flags, &mut watch);
    opts.quantize = quantize;
    ctx.load_with(path, &opts).unwrap().1
}

/// The bits of the logits after a prompt.
fn bits(model: &Model) -> Vec<u32> {
    let vocab = model.info().vocab as i32;
    let session = model.session_f32();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &[1, 7, 42, 3].map(|token| token % vocab)).unwrap();
    session.logits(seq).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

/// Saves the model of `source` in `folder`, loads that and compares; then saves it again and compares the bytes. Returns the saved file.
fn assert_round_trip(folder: &Folder, source: &Path, flags: u32, quantize: i32) -> PathBuf {
    let ctx = ctx();
    let (first, second) = (folder.join("first.gguf"), folder.join("second.gguf"));
    let model = load(&ctx, source, flags, quantize);
    save(&model, &first).unwrap();
    let saved = ctx.load(&first).unwrap();
    let what = format!("{} (flags {flags}, quantize {quantize})", source.display());
    assert!(bits(&saved) == bits(&model), "{what} differs");
    let (info, expected) = (saved.info(), model.info());
    assert_eq!((info.bos, info.eos, info.parameters), (expected.bos, expected.eos, expected.parameters), "{what}");
    assert_eq!(
        (info.arch, info.name, info.weight_bytes),
        (expected.arch, expected.name, expected.weight_bytes),
        "{what}"
    );
    save(&saved, &second).unwrap();
    assert!(std::fs::read(&first).unwrap() == std::fs::read(&second).unwrap(), "{what}: saved again it differs");
    first
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn configs() -> serde_json::Map<String, Value> {
    let path = root().join("tests/golden/hf/configs.json");
    let Value::Object(configs) = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() else { panic!() };
    configs
}

#[test]
fn every_family_comes_back() {
    let folder = Folder::new("save-families");
    for (name, config) in configs() {
        let file = root().join(format!("tests/golden/hf/{name}.gguf"));
        let unpacked = folder.join(&name);
        write(&unpacked, &config, &entries_of(&Gguf::open(&file, true, &mut |_| Ok(())).unwrap(), &config));
        assert_round_trip(&folder, &file, 0, SEGNO_TYPE_KEEP);
        for flags in [0, SEGNO_MODEL_NO_MMAP] {
            assert_round_trip(&folder, &unpacked, flags, SEGNO_TYPE_KEEP);
        }
    }
}

/// What only drafts for another model, with integers beside its weights.
#[test]
fn a_head_comes_back() {
    let (ctx, folder) = (ctx(), Folder::new("save-head"));
    let (source, saved) = (root().join("tests/golden/eagle/plain.gguf"), folder.join("saved.gguf"));
    save(&ctx.load(&source).unwrap(), &saved).unwrap();
    ctx.load(&saved).unwrap();
    assert!(tensors(&saved) == tensors(&source));
}

#[test]
fn what_was_quantized_is_saved_so() {
    let folder = Folder::new("save-quantized");
    let shape =
        Shape { hidden: 256, feed_forward: 256, heads: 4, kv_heads: 2, head_dim: 64, vocab: 61, ..Shape::small() };
    let floats = folder.join("floats.gguf");
    shape.file().write(&floats);
    let config = json!({
        "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "num_hidden_layers": shape.layers, "intermediate_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5
    });
    let unpacked = folder.join("folder");
    write(&unpacked, &config, &entries_of(&Gguf::open(&floats, true, &mut |_| Ok(())).unwrap(), &config));
    let types = [
        (SEGNO_TYPE_Q8_0, 8, "7"),
        (SEGNO_TYPE_Q4_K, 12, "14"),
        (SEGNO_TYPE_Q6_K, 14, "18"),
        (SEGNO_TYPE_BF16, 30, "32"),
    ];
    for (quantize, type_id, number) in types {
        for (source, flags) in
            [(&floats, 0), (&floats, SEGNO_MODEL_NO_MMAP), (&unpacked, 0), (&unpacked, SEGNO_MODEL_NO_MMAP)]
        {
            let file = assert_round_trip(&folder, source, flags, quantize);
            let gguf = Gguf::open(&file, true, &mut |_| Ok(())).unwrap();
            let is_right = |(dims, id): (usize, u32)| id == if dims == 2 { type_id } else { 0 };
            assert!(gguf.tensors().iter().all(|tensor| is_right((tensor.dims.len(), tensor.type_id))));
            let model = ctx().load(&file).unwrap();
            assert_eq!(model.meta("general.file_type").unwrap(), number.as_bytes());
            assert_eq!(model.meta("general.quantization_version").unwrap(), b"2");
        }
    }
}

#[test]
fn metadata_stays_as_it_was() {
    let folder = Folder::new("save-metadata");
    let mut file = Shape::small().file();
    file.set("x.flag", true).set("x.text", "\u{e9}").set("x.small", -3i8);
    file.set("x.wide", 1u64 << 40).set("x.half", 0.5f64);
    let path = folder.join("model.gguf");
    file.write(&path);
    let saved = assert_round_trip(&folder, &path, 0, SEGNO_TYPE_KEEP);
    let header = |path: &Path| Gguf::open(path, true, &mut |_| Ok(())).unwrap();
    let (before, after) = (header(&path), header(&saved));
    let told = |gguf: &Gguf| {
        let entries = gguf
            .metadata()
            .entries()
            .map(|(key, entry)| (key.to_owned(), gguf.metadata().render(&entry.value).unwrap()));
        entries.collect::<Vec<_>>()
    };
    assert_eq!(told(&before), told(&after));
    let names = |gguf: &Gguf| gguf.tensors().iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after));
    // The widths of numbers too: the same bytes follow each name.
    let (first, second) = (std::fs::read(&path).unwrap(), std::fs::read(&saved).unwrap());
    for key in ["x.flag", "x.small", "x.wide", "x.half"] {
        let value = |bytes: &[u8]| {
            let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap();
            bytes[at..][..key.len() + 5].to_vec()
        };
        assert_eq!(value(&first), value(&second), "{key}");
    }
}

#[test]
fn parts_become_one_file() {
    let folder = Folder::new("save-parts");
    let file = Shape::small().file();
    let whole = folder.join("whole.gguf");
    file.write(&whole);
    let counts = [3, 2, file.tensors.len() - 5];
    let parts = write_parts(folder.path(), "split", &file.split(&counts));
    let saved = assert_round_trip(&folder, &parts[0], 0, SEGNO_TYPE_KEEP);
    let model = ctx().load(&saved).unwrap();
    assert!(bits(&model) == bits(&ctx().load(&whole).unwrap()));
    assert_eq!(model.meta("split.count").unwrap_err().status, SEGNO_E_NOT_FOUND);
}

#[test]
fn a_trained_folder_keeps_its_tokenizer() {
    let Some(data) = shared_data() else { return };
    let folder = Folder::new("save-trained");
    let source = data.join("models/TinyStories-656K");
    let saved = assert_round_trip(&folder, &source, 0, SEGNO_TYPE_KEEP);
    let ctx = ctx();
    let (before, after) = (ctx.load(&source).unwrap(), ctx.load(&saved).unwrap());
    for text in
        ["Once upon a time, there was a little girl.", " two  spaces\nand lines", "", "\u{1f600} 12345 caf\u{e9}"]
    {
        let tokens = |model: &Model| model.tokenize(text.as_bytes(), SEGNO_TOKENIZE_ADD_SPECIAL).unwrap();
        assert_eq!(tokens(&before), tokens(&after), "{text:?}");
        let shown = |model: &Model| model.detokenize(&tokens(model), 0).unwrap();
        assert_eq!(shown(&before), shown(&after));
    }
}

/// Texts that pre-tokenizers cut in different places.
const TEXTS: [&str; 4] = [
    "Hello world, it's 12345 o'clock!",
    "  two  spaces\n\n\tand tabs",
    "caf\u{e9} na\u{ef}ve \u{4f60}\u{597d}",
    "x_y = a[0];",
];

/// A folder with random weights and the tokenizer of `name`, changed by `change`.
fn with_tokenizer(folder: &Folder, name: &str, change: fn(&mut Value)) -> PathBuf {
    let mut tokenizer = tokenizers::of_kind(name, None);
    change(&mut tokenizer);
    // A file cannot tell of white space that tokens swallow.
    for token in tokenizer["added_tokens"].as_array_mut().into_iter().flatten() {
        (token["lstrip"], token["rstrip"]) = (json!(false), json!(false));
    }
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten().map(|token| &token["id"]);
    let vocab = &tokenizer["model"]["vocab"];
    let listed = vocab.as_array().map_or(0, Vec::len) as u64;
    let ids = vocab.as_object().into_iter().flat_map(|vocab| vocab.values()).chain(added);
    // Some rows have no token.
    let vocab = ids.map(|id| id.as_u64().unwrap() + 1).max().unwrap().max(listed) as usize + 3;
    let shape = Shape { vocab, ..Shape::small() };
    let file = folder.join("shape.gguf");
    shape.file().write(&file);
    let config = json!({
        "model_type": "llama", "hidden_size": shape.hidden, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "num_hidden_layers": shape.layers, "intermediate_size": shape.feed_forward,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5
    });
    let source = folder.join(name);
    write(&source, &config, &entries_of(&Gguf::open(&file, true, &mut |_| Ok(())).unwrap(), &config));
    std::fs::write(source.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let text = tokenizer.to_string();
    let names = [("bos_token", "<s>"), ("eos_token", "</s>"), ("cls_token", "[CLS]"), ("sep_token", "[SEP]")];
    let named = names.iter().filter(|(_, token)| text.contains(&format!("\"{token}\"")));
    let config: serde_json::Map<_, _> = named.map(|&(name, token)| (name.to_owned(), json!(token))).collect();
    std::fs::write(source.join("tokenizer_config.json"), Value::from(config).to_string()).unwrap();
    source
}

#[test]
fn tokenizers_of_folders_become_metadata() {
    let folder = Folder::new("save-tokenizers");
    let ctx = ctx();
    for (name, model, pre) in [
        ("gpt2", "gpt2", "gpt-2"),
        ("llama3", "gpt2", "llama3"),
        ("qwen", "gpt2", "qwen2"),
        ("harmony", "gpt2", "gpt-4o"),
        ("llama2", "llama", "default"),
        ("gemma", "llama", "default"),
        ("t5", "t5", "default"),
        ("spm", "t5", "default"),
        ("unigram_bytes", "t5", "default"),
        ("wordpiece", "bert", "default"),
        ("wordpiece_cased", "bert", "default"),
    ] {
        let source = with_tokenizer(&folder, name, |_| {});
        let saved = ctx.load(&assert_round_trip(&folder, &source, 0, SEGNO_TYPE_KEEP)).unwrap();
        let before = ctx.load(&source).unwrap();
        for text in TEXTS {
            let tokens = |model: &Model| model.tokenize(text.as_bytes(), SEGNO_TOKENIZE_ADD_SPECIAL).unwrap();
            assert_eq!(tokens(&before), tokens(&saved), "{name}: {text:?}");
        }
        let meta = |key: &str| String::from_utf8(saved.meta(key).unwrap()).unwrap();
        assert_eq!(
            (meta("tokenizer.ggml.model").as_str(), meta("tokenizer.ggml.pre").as_str()),
            (model, pre),
            "{name}"
        );
    }
    let source = with_tokenizer(&folder, "gpt2", |tokenizer| {
        tokenizer["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[aeiou]+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
        ]});
    });
    let refused = save(&ctx.load(&source).unwrap(), &folder.join("odd.gguf")).unwrap_err();
    assert_eq!(refused.status, SEGNO_E_UNSUPPORTED);
    assert!(
        refused.message.contains("a way to cut text into words that has no name, which a gguf file cannot tell"),
        "{}",
        refused.message
    );
}

/// Words of Mistral's and NVIDIA's newer tokenizers.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The tokenizers of LFM 2, of Granite 4 and of Nemotron, by their patterns and by whether whole words skip merging, have the names that llama.cpp's
/// converter gives them, or that of another one that does the same.
#[test]
fn tokenizers_of_hybrid_families_have_names() {
    let folder = Folder::new("save-hybrid-tokenizers");
    let ctx = ctx();
    let granite: fn(&mut Value) = |tokenizer| tokenizer["model"]["ignore_merges"] = json!(false);
    let nemotron: fn(&mut Value) = |tokenizer| {
        tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(TEKKEN);
    };
    for (change, name) in [((|_| {}) as fn(&mut Value), "llama3"), (granite, "dbrx"), (nemotron, "tekken")] {
        let source = with_tokenizer(&folder, "llama3", change);
        let saved = ctx.load(&assert_round_trip(&folder, &source, 0, SEGNO_TYPE_KEEP)).unwrap();
        assert_eq!(saved.meta("tokenizer.ggml.pre").unwrap(), name.as_bytes());
    }
}

#[test]
fn a_cancelled_save_leaves_nothing() {
    let folder = Folder::new("save-cancelled");
    let ctx = ctx();
    let model = ctx.load(&root().join("tests/golden/hf/llama-llama3.gguf")).unwrap();
    let path = folder.join("model.gguf");
    let mut watch = Watch::default();
    save_watched(&model, &path, &mut watch).unwrap();
    let heard = watch.heard;
    assert!(
        heard.len() > 3 && heard.is_sorted() && heard.iter().filter(|&&done| done == 1.0).count() == 1,
        "{heard:?}"
    );
    for before in [None, Some(b"another file".as_slice())] {
        for cancel_at in 0..heard.len() {
            _ = std::fs::remove_file(&path);
            if let Some(bytes) = before {
                std::fs::write(&path, bytes).unwrap();
            }
            let mut watch = Watch { cancel_at: Some(cancel_at), ..Watch::default() };
            assert_eq!(save_watched(&model, &path, &mut watch), Ok(SEGNO_CANCELLED));
            assert_eq!(watch.heard.len(), cancel_at + 1);
            assert_eq!(std::fs::read(&path).ok().as_deref(), before);
            assert_eq!(names(folder.path()).len(), usize::from(before.is_some()));
        }
    }
}

#[test]
fn what_cannot_be_written_is_refused() {
    let folder = Folder::new("save-refused");
    let ctx = ctx();
    let model = ctx.load(&root().join("tests/golden/hf/llama-llama3.gguf")).unwrap();
    for (path, status, words) in [
        (folder.path().to_owned(), SEGNO_E_INVALID_ARGUMENT, "is a folder; name the file to write"),
        (folder.join("absent/model.gguf"), SEGNO_E_IO, "cannot write"),
        (PathBuf::from("/proc/model.gguf"), SEGNO_E_IO, "cannot write"),
        (folder.join("x".repeat(255).as_str()), SEGNO_E_IO, "cannot write"),
        (PathBuf::from(".."), SEGNO_E_INVALID_ARGUMENT, "is a folder"),
        (PathBuf::new(), SEGNO_E_INVALID_ARGUMENT, "`path` is empty"),
    ] {
        let failed = save(&model, &path).unwrap_err();
        assert!(failed.status == status && failed.message.contains(words), "{}: {}", path.display(), failed.message);
    }
    assert_eq!(call(|err| segno_model_save(model.0, null(), null(), err)).unwrap_err().status, SEGNO_E_NULL_POINTER);
    assert_eq!(
        call(|err| segno_model_save(null_mut(), c"x".as_ptr(), null(), err)).unwrap_err().status,
        SEGNO_E_NULL_POINTER
    );
    assert_eq!(names(folder.path()), Vec::<String>::new());
    // The file that the model is mapped from.
    let path = folder.join("own.gguf");
    std::fs::copy(root().join("tests/golden/hf/llama-llama3.gguf"), &path).unwrap();
    let own = ctx.load(&path).unwrap();
    let expected = bits(&own);
    save(&own, &path).unwrap();
    assert!(bits(&own) == expected && bits(&ctx.load(&path).unwrap()) == expected);
    assert_eq!(names(folder.path()), ["own.gguf"]);
}
