//! What people pass in place of a model: each is named for what it is, and an error in a file names the file.

use crate::common::gguf::{File, Shape, write_parts};
use crate::common::{Ctx, Failed, Folder, call};
use segno::ffi::plan::{segno_plan, segno_plan_get};
use segno::ffi::status::*;
use std::ffi::CString;
use std::path::Path;
use std::ptr::null;

fn ctx() -> Ctx {
    Ctx::new(|opts| opts.n_threads = 1).unwrap()
}

/// Why a path is refused; a plan says the same as a load.
fn refusal(path: &Path) -> Failed {
    let ctx = ctx();
    let failed = ctx.load(path).err().expect("the load must fail");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the structs of the header hold numbers, for which zero is a value.
    let mut plan: segno_plan = unsafe { std::mem::zeroed() };
    let size = size_of::<segno_plan>();
    let planned = call(|err| segno_plan_get(ctx.0, name.as_ptr(), null(), null(), &mut plan, size, err));
    assert_eq!(planned.unwrap_err(), failed);
    failed
}

fn assert_says(failed: &Failed, status: segno_status, words: &[&str]) {
    assert_eq!(failed.status, status, "{}", failed.message);
    for word in words {
        assert!(failed.message.contains(word), "`{word}` is not in: {}", failed.message);
    }
}

/// A safetensors file of one float.
fn safetensors() -> Vec<u8> {
    let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat()
}

#[test]
fn files_of_other_formats_are_named_for_what_they_are() {
    let pickle = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
    let cases: [(&[u8], &str); 18] = [
        (b"", "it is empty"),
        (&safetensors(), "a safetensors file: load the folder"),
        (b"PK\x03\x04\x00\x00archive/data.pkl", "a zip archive, as pytorch writes"),
        (pickle, "an old pytorch file"),
        (b"lmgg\x00\x01\x02\x03", "an old ggml file: "),
        (b"fmgg\x01\x00\x00\x00", "an old ggml file (ggmf)"),
        (b"tjgg\x03\x00\x00\x00", "an old ggml file (ggjt)"),
        (b"algg\x01\x00\x00\x00", "an old ggml adapter"),
        (pointer, "a git-lfs pointer in place of the file: run `git lfs pull`"),
        (b"<!DOCTYPE html>\n<html><head>", "a web page: the download failed"),
        (b"\xef\xbb\xbf  <HTML lang=\"en\">", "a web page"),
        (b"Entry not found\nmore", "it is text, which begins with `Entry not found`"),
        (b"{\"error\": \"Repository not found\"}", "it is text, which begins with `{\"error\""),
        ("keine Datei für Sie".as_bytes(), "it is text"),
        (b"\x1f\x8b\x08\x00", "compressed with gzip"),
        (b"\x28\xb5\x2f\xfd\x04", "compressed with zstd"),
        (b"\x7fELF\x02\x01\x01\x00", "a program or library"),
        (&[0; 64], "it does not begin with the GGUF magic"),
    ];
    let folder = Folder::new("other-formats");
    let path = folder.join("other.bin");
    for (bytes, words) in cases {
        std::fs::write(&path, bytes).unwrap();
        assert_says(&refusal(&path), SEGNO_E_FORMAT, &["bad model file: other.bin: ", words]);
        let from_memory = ctx().load_buffer(bytes).err().unwrap();
        assert_says(&from_memory, SEGNO_E_FORMAT, &["bad model file: it ", words]);
    }
}

#[test]
fn a_folder_is_called_a_folder() {
    let folder = Folder::new("a-folder");
    assert_says(&refusal(folder.path()), SEGNO_E_INVALID_ARGUMENT, &["is a folder", ".gguf"]);
}

#[test]
fn files_that_belong_to_models_are_named_for_what_they_are() {
    let folder = Folder::new("companions");
    let path = folder.join("companion.gguf");
    for (key, value, words) in [
        ("general.type", "adapter", "`adapter`): it is an adapter; load the model"),
        ("general.type", "imatrix", "an importance matrix"),
        ("general.type", "mmproj", "a projector of images or sound"),
        ("general.type", "vocab", "a vocabulary without weights"),
        ("general.type", "something new", "`general.type` is `something new`"),
        ("general.architecture", "clip", "a projector of images or sound"),
        ("general.architecture", "controlvector", "a control vector"),
    ] {
        Shape::small().file().set(key, value).write(&path);
        assert_says(&refusal(&path), SEGNO_E_UNSUPPORTED, &[words]);
    }
    let mut vocabulary = Shape::small().file();
    vocabulary.tensors.clear();
    vocabulary.set("tokenizer.ggml.tokens", ["a"]).write(&path);
    assert_says(&refusal(&path), SEGNO_E_UNSUPPORTED, &["a vocabulary without weights"]);
    vocabulary.remove("tokenizer.ggml.tokens").write(&path);
    assert_says(&refusal(&path), SEGNO_E_FORMAT, &["companion.gguf: it holds no tensors"]);
    Shape::small().file().set("general.type", "model").write(&path);
    assert!(ctx().load(&path).is_ok());
}

/// Spoils a model in one way.
type Change = fn(&mut File);

const CHANGES: [(Change, &str); 7] = [
    (|file| _ = file.remove("llama.block_count"), "metadata `llama.block_count` is missing"),
    (|file| _ = file.remove("general.architecture"), "metadata `general.architecture` is missing"),
    (|file| _ = file.set("llama.rope.dimension_count", 18u32), "metadata `llama.rope.dimension_count` is 18"),
    (|file| _ = file.set("tokenizer.ggml.model", "llama"), "metadata `tokenizer.ggml.tokens` is missing"),
    (|file| _ = file.remove_tensor("output_norm.weight"), "tensor `output_norm.weight` is missing"),
    (|file| file.tensor("output.weight").dims[1] = 100, "tensor `output.weight` has shape [64, 100]"),
    (|file| _ = file.set("general.alignment", 3u32), "metadata `general.alignment` is 3"),
];

#[test]
fn errors_in_a_file_name_the_file() {
    let folder = Folder::new("named");
    let path = folder.join("the model.gguf");
    for (change, words) in CHANGES {
        let mut file = Shape::small().file();
        change(&mut file);
        file.write(&path);
        let failed = ctx().load(&path).err().unwrap();
        assert_says(&failed, SEGNO_E_FORMAT, &[&format!("bad model file: the model.gguf: {words}")]);
        let failed = ctx().load_buffer(&file.bytes()).err().unwrap();
        assert_says(&failed, SEGNO_E_FORMAT, &[&format!("bad model file: {words}")]);
    }
    let bytes = Shape::small().file().bytes();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert_says(&refusal(&path), SEGNO_E_FORMAT, &["bad model file: the model.gguf: tensor `output.weight` needs"]);
}

#[test]
fn errors_in_a_part_name_the_part() {
    let folder = Folder::new("named-parts");
    let parts = |change: &dyn Fn(&mut Vec<File>)| {
        let model = Shape::small().file();
        let mut parts = model.split(&[7, 8, model.tensors.len() - 15]);
        change(&mut parts);
        write_parts(folder.path(), "model", &parts)
    };
    let says = |first: &Path, words: &str| {
        assert_says(&ctx().load(first).err().unwrap(), SEGNO_E_FORMAT, &[&format!("bad model file: {words}")]);
    };
    let paths = parts(&|parts| parts[2].tensor("output.weight").dims[1] = 100);
    says(&paths[0], "model-00003-of-00003.gguf: tensor `output.weight` has shape");
    let paths = parts(&|parts| _ = parts[0].remove("llama.context_length"));
    says(&paths[0], "model-00001-of-00003.gguf: metadata `llama.context_length` is missing");
    let paths = parts(&|_| ());
    let bytes = std::fs::read(&paths[1]).unwrap();
    std::fs::write(&paths[1], &bytes[..bytes.len() - 1]).unwrap();
    let failed = ctx().load(&paths[0]).err().unwrap();
    assert_says(&failed, SEGNO_E_FORMAT, &["bad model file: model-00002-of-00003.gguf: tensor `"]);
    assert_eq!(failed.message.matches(".gguf").count(), 1, "{}", failed.message);
    std::fs::write(&paths[1], "<html>").unwrap();
    says(&paths[0], "model-00002-of-00003.gguf: it does not begin with the GGUF magic: it is a web page");
}
