//! What a file may declare at most: more is refused where it is read, with the number, before memory is taken for it.

use crate::common;
use crate::common::gguf::{File, Shape, Storage, Writer};
use crate::common::{Ctx, Failed, Folder, Watch, call, model_opts};
use segno::ffi::{model::*, plan::*, status::*};
use segno::format::limits;
use segno::memory::{Source, draw_from};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::CString;
use std::path::Path;
use std::ptr::null;

thread_local! {
    /// Bytes that this thread has taken and not given back, and the most that these were.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every request is passed on unchanged to the system's allocator; counting in constant-initialised thread-local cells
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get() + layout.size() as isize);
        PEAK.set(PEAK.get().max(LIVE.get()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

static COUNTING: Source = Source(&Counting);

/// What `f` gives, and the most bytes that it held at a time.
fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    draw_from(&COUNTING);
    let before = LIVE.get();
    PEAK.set(before);
    let value = f();
    (value, (PEAK.get() - before) as usize)
}

fn ctx() -> Ctx {
    Ctx::new(|opts| opts.n_threads = 1).unwrap()
}

fn assert_says(failed: &Failed, status: segno_status, words: &[&str]) {
    assert_eq!(failed.status, status, "{}", failed.message);
    for word in words {
        assert!(failed.message.contains(word), "`{word}` is not in: {}", failed.message);
    }
}

fn plan(ctx: &Ctx, path: &Path) -> common::Result<segno_plan> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the structs of the header hold numbers, for which zero is a value.
    let mut plan = unsafe { std::mem::zeroed() };
    let size = size_of::<segno_plan>();
    call(|err| segno_plan_get(ctx.0, path.as_ptr(), null(), null(), &mut plan, size, err)).map(|_| plan)
}

#[test]
fn sizes_beyond_their_limits_are_refused_by_key_and_number() {
    for (key, most) in [
        ("block_count", limits::LAYERS),
        ("embedding_length", limits::HIDDEN),
        ("feed_forward_length", limits::FEED_FORWARD),
        ("attention.head_count", limits::HEADS),
        ("attention.head_count_kv", limits::HEADS),
        ("context_length", limits::CONTEXT),
    ] {
        let key = format!("llama.{key}");
        let mut file = Shape::small().file();
        let failed = ctx().load_buffer(&file.set(&key, most as u32 + 1).bytes()).err().unwrap();
        assert_says(&failed, SEGNO_E_FORMAT, &[&format!("`{key}` is {}, 1 to {most} are supported", most + 1)]);
        // At the limit it is refused for another reason, or not at all.
        let at_limit = ctx().load_buffer(&file.set(&key, most as u32).bytes()).err();
        assert!(at_limit.is_none_or(|failed| !failed.message.contains("are supported")), "{key}");
    }
}

#[test]
fn an_absurd_vocabulary_is_refused_by_plan_and_load() {
    let folder = Folder::new("absurd-vocabulary");
    let path = folder.join("sparse.gguf");
    for vocab in [limits::VOCAB + 1, 1 << 30] {
        let shape =
            Shape { vocab, hidden: 4, heads: 1, kv_heads: 1, head_dim: 4, storage: Storage::Hole, ..Shape::small() };
        shape.file().write(&path);
        let ctx = ctx();
        let (failed, bytes) = peak(|| [plan(&ctx, &path).err().unwrap(), ctx.load(&path).err().unwrap()]);
        for failed in failed {
            assert_says(&failed, SEGNO_E_FORMAT, &[&format!("{vocab} rows, at most {}", limits::VOCAB)]);
        }
        assert!(bytes < 8 << 20, "{bytes} bytes for a vocabulary of {vocab}");
    }
}

/// A vocabulary of `count` pieces of text, two letters and more each, with a merge for every one.
fn byte_pair(file: &mut File, count: usize) -> &mut File {
    let letters: Vec<char> = ('a'..='z').collect();
    let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    for left in 0.. {
        if tokens.len() >= count {
            break;
        }
        for letter in &letters {
            merges.push(format!("{} {letter}", tokens[left]));
            tokens.push(format!("{}{letter}", tokens[left]));
        }
    }
    tokens.truncate(count);
    merges.truncate(count - letters.len());
    file.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "qwen2");
    file.set("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>());
    file.set("tokenizer.ggml.merges", merges.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_token_has_a_longest_text() {
    for (len, fits) in [(limits::TOKEN_BYTES, true), (limits::TOKEN_BYTES + 1, false)] {
        let mut file = Shape::small().file();
        byte_pair(&mut file, 100).set("tokenizer.ggml.tokens", [vec!["a"; 100], vec![&"z".repeat(len)]].concat());
        file.set("tokenizer.ggml.merges", ["a a"; 0]);
        let result = ctx().load_buffer(&file.bytes());
        assert_eq!(result.is_ok(), fits, "{:?}", result.err());
        if let Err(failed) = result {
            assert_says(&failed, SEGNO_E_FORMAT, &["`tokenizer.ggml.tokens`", "4097 bytes, at most 4096"]);
        }
    }
}

/// The place of the offset of tensor `name` in the bytes of a file.
fn offset_place(bytes: &[u8], name: &str) -> usize {
    let at = bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap() + name.len();
    let dims = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    at + 4 + 8 * dims + 4
}

#[test]
fn tensors_that_overlap_are_refused() {
    let folder = Folder::new("overlap");
    let path = folder.join("model.gguf");
    let whole = Shape::small().file().bytes();
    let place = |name: &str| offset_place(&whole, name);
    let (first, second) = ("blk.0.attn_q.weight", "blk.0.attn_k.weight");
    let offset = u64::from_le_bytes(whole[place(first)..place(first) + 8].try_into().unwrap());
    // The same place, and one that lies within.
    for begin in [offset, offset + 32, offset + 64 * 64 * 4 - 32] {
        let mut bytes = whole.clone();
        bytes[place(second)..place(second) + 8].copy_from_slice(&begin.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        for failed in [ctx().load(&path).err(), plan(&ctx(), &path).err(), ctx().load_buffer(&bytes).err()] {
            assert_says(&failed.expect("an error"), SEGNO_E_FORMAT, &["overlap", first, second, "ends at byte"]);
        }
    }
    std::fs::write(&path, &whole).unwrap();
    assert!(ctx().load(&path).is_ok() && plan(&ctx(), &path).is_ok());
}

/// Entries of next to nothing, in the shortest version.
fn entries(count: usize) -> Vec<u8> {
    let mut writer = Writer::new(1, 0, count as u64);
    (0..count).for_each(|index| _ = writer.entry(&format!("{index:x}"), 0, &[0]));
    writer.bytes
}

/// An entry with texts or arrays of next to nothing.
fn items(type_id: u32, item_bytes: usize, count: usize) -> Vec<u8> {
    let mut writer = Writer::new(1, 0, 1);
    writer.string(b"items").u32(9).u32(type_id).count(count as u64);
    writer.bytes.resize(writer.bytes.len() + item_bytes * count, 0);
    writer.bytes
}

/// Metadata that takes the most memory for its bytes: as many entries and arrays as there may be, and more, and texts.
fn dense_metadata() -> [(&'static str, Vec<u8>); 5] {
    let most = limits::METADATA_VALUES;
    [
        ("entries", entries(most)),
        ("more entries", entries(1 << 20)),
        ("texts", items(8, 4, 4 << 20)),
        ("arrays", items(9, 8, most - 1)),
        ("more arrays", items(9, 8, 1 << 20)),
    ]
}

#[test]
fn metadata_takes_no_more_than_some_times_its_bytes() {
    let folder = Folder::new("dense");
    let path = folder.join("dense.gguf");
    for (what, bytes) in dense_metadata() {
        std::fs::write(&path, &bytes).unwrap();
        let ctx = ctx();
        let (failed, most) = peak(|| ctx.load(&path).err().unwrap());
        println!("{what}: {} bytes of file, {most} of memory; {}", bytes.len(), failed.message);
        assert!(most <= 6 * bytes.len() + (16 << 20), "{what}: {most} bytes for {}", bytes.len());
    }
}

#[test]
fn metadata_has_a_limit_in_bytes_and_in_number() {
    let folder = Folder::new("long-metadata");
    let path = folder.join("sparse.gguf");
    let mut writer = Writer::new(3, 0, 1);
    writer.string(b"general.name").u32(8).u64(3 << 30);
    std::fs::write(&path, &writer.bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4 << 30).unwrap();
    let ctx = ctx();
    let (failed, bytes) = peak(|| ctx.load(&path).err().unwrap());
    assert_says(&failed, SEGNO_E_FORMAT, &["sparse.gguf", &format!("more than {} bytes", limits::HEADER_BYTES)]);
    assert!(bytes < 4 << 20, "{bytes} bytes");
    for (tensors, entries, words) in [
        (0, limits::METADATA_VALUES + 1, "65537 metadata entries, at most 65536"),
        (limits::TENSORS + 1, 0, "65537 tensors, at most 65536"),
    ] {
        let mut writer = Writer::new(3, tensors as u64, entries as u64);
        writer.bytes.resize(64 << 20, 0);
        let (failed, bytes) = peak(|| writer.parse().err().unwrap());
        assert!(failed.to_string().contains(words), "{failed}");
        assert!(bytes < 70 << 20, "{bytes} bytes");
    }
}

#[test]
fn what_was_read_of_a_mapped_file_stays_as_it_was() {
    let folder = Folder::new("overwritten");
    let path = folder.join("model.gguf");
    let mut file = Shape::small().file();
    byte_pair(&mut file, 101).set("general.name", "first name").set("list", ["one", "two"]);
    file.set("tokenizer.chat_template", "{{ messages[0].content }}");
    file.write(&path);
    let model = ctx().load(&path).unwrap();
    let told =
        || ["general.name", "list", "tokenizer.ggml.tokens", "tokenizer.chat_template"].map(|key| model.meta(key));
    let before = told();
    let header = file.bytes().len() - file.tensors.iter().map(|tensor| tensor.content.len() as usize).sum::<usize>();
    // Somebody writes bytes into the file that no UTF-8 text has.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..header / 2].fill(0xFF);
    std::io::Write::write_all(&mut std::fs::File::options().write(true).open(&path).unwrap(), &bytes).unwrap();
    assert_eq!(told(), before);
    assert_eq!(model.detokenize(&model.tokenize(b"abc", 0).unwrap(), 0).unwrap(), b"abc");
}

#[test]
fn a_load_reports_while_it_reads_the_vocabulary_and_can_be_cancelled_there() {
    let folder = Folder::new("cancel-vocabulary");
    let path = folder.join("model.gguf");
    let mut file =
        Shape { vocab: 120_000, hidden: 4, heads: 1, kv_heads: 1, head_dim: 4, tied: true, ..Shape::small() }.file();
    byte_pair(&mut file, 120_000).write(&path);
    let ctx = ctx();
    for flags in [0, SEGNO_MODEL_NO_MMAP] {
        let mut watch = Watch::default();
        ctx.load_with(&path, &model_opts(flags, &mut watch)).unwrap();
        let heard = watch.heard;
        // Fifteen steps of reading the metadata, eight of the tokens, eight of the merges.
        assert!(heard.len() >= 30 && heard.is_sorted(), "{heard:?}");
        assert_eq!(heard.iter().filter(|&&done| done == 1.0).count(), 1, "{heard:?}");
        for cancel_at in (0..heard.len()).step_by(4) {
            let mut watch = Watch { cancel_at: Some(cancel_at), ..Watch::default() };
            let (status, _) = ctx.load_with(&path, &model_opts(flags, &mut watch)).unwrap();
            assert_eq!((status, watch.heard.len()), (SEGNO_CANCELLED, cancel_at + 1));
        }
    }
}
