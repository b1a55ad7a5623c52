//! The ways into memory for a model file: whole, split, from a buffer, mapped or read, with progress and cancel; and what is refused,
//! by name.

use crate::common;
use crate::common::gguf::{Content, File, Shape, Storage, write_parts};
use crate::common::log::{listen, texts};
use crate::common::{Ctx, Failed, Folder, Model, Watch, greedy, model_opts};
use segno::ffi::model::*;
use segno::ffi::status::*;
use segno::ffi::text::segno_text_create;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

fn ctx() -> Ctx {
    Ctx::new(|opts| opts.n_threads = 2).unwrap()
}

/// Bits of the logits after each of two prompts.
fn logits(model: &Model) -> Vec<u32> {
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&greedy()).unwrap();
    let rows = [&[3, 1, 4, 1, 5][..], &[92, 65, 35]].map(|tokens| {
        session.append(seq, tokens).unwrap();
        session.logits(seq).unwrap()
    });
    rows.concat().iter().map(|logit| logit.to_bits()).collect()
}

fn load(path: &Path, flags: u32) -> Model {
    let (status, model) = ctx().load_with(path, &model_opts(flags, &mut Watch::default())).unwrap();
    assert_eq!(status, SEGNO_OK);
    model
}

fn refusal(path: &Path) -> Failed {
    let failed = ctx().load(path).err().expect("the load must fail");
    assert!(!failed.message.contains('\n'), "{}", failed.message);
    failed
}

fn assert_says(failed: &Failed, status: segno_status, words: &[&str]) {
    assert_eq!(failed.status, status, "{}", failed.message);
    for word in words {
        assert!(failed.message.contains(word), "`{word}` is not in: {}", failed.message);
    }
}

fn path_of(model: &File, folder: &Folder) -> PathBuf {
    let path = folder.join("whole.gguf");
    model.write(&path);
    path
}

#[test]
fn parts_that_are_not_run_are_left_out_and_told() {
    let folder = Folder::new("idle");
    let mut model = Shape::small().file();
    let expected = logits(&load(&path_of(&model, &folder), 0));
    model.set("llama.block_count", 4u32).set("llama.nextn_predict_layers", 2u32);
    model.add_zeros("blk.2.nextn.eh_proj.weight", &[64, 64]).add_zeros("blk.3.attn_norm.weight", &[64]);
    model.add_zeros("v.blk.0.attn_q.weight", &[64, 64]).add_zeros("mm.0.weight", &[64]).add_zeros("a.x", &[1]);
    model.add_zeros("blk.1.attn_rot_embd", &[8]);
    let mut lines = None;
    let ctx = Ctx::new(|opts| lines = Some(listen(opts))).unwrap();
    let loaded = ctx.load(&path_of(&model, &folder)).unwrap();
    assert_eq!((logits(&loaded), loaded.info().layers), (expected, 2));
    let told = texts(lines.unwrap()).join("\n");
    for (count, what) in [("1 tensor", "rope frequencies"), ("2 tensors", "blocks"), ("3 tensors", "encoders")] {
        assert!(told.contains(&format!("{count} of the file not used: {what}")), "{told}");
    }
    model.add_zeros("blk.4.attn_norm.weight", &[64]);
    assert_says(&refusal(&path_of(&model, &folder)), SEGNO_E_UNSUPPORTED, &["`blk.4.attn_norm.weight`"]);
    for predicting in [4u32, 5, u32::MAX] {
        model.set("llama.nextn_predict_layers", predicting);
        let failed = refusal(&path_of(&model, &folder));
        assert_says(&failed, SEGNO_E_FORMAT, &["`llama.nextn_predict_layers`", &format!("{predicting} of 4 blocks")]);
    }
}

#[test]
fn a_split_model_equals_the_whole_file() {
    let folder = Folder::new("split");
    for storage in [Storage::F32, Storage::Q8_0] {
        let mut model = Shape { storage, ..Shape::small() }.file();
        model.set("general.name", "in parts");
        let whole = load(&path_of(&model, &folder), 0);
        let (expected, info) = (logits(&whole), whole.info());
        let count = model.tensors.len();
        for counts in [vec![7, 8, count - 15], vec![0, count], vec![count - 1, 1], vec![1; count], vec![count]] {
            let paths = write_parts(folder.path(), "model", &model.split(&counts));
            for flags in [0, SEGNO_MODEL_NO_MMAP] {
                let split = load(&paths[0], flags);
                assert_eq!(logits(&split), expected, "{counts:?} tensors a part, flags {flags}");
                let found = split.info();
                assert_eq!((found.parameters, found.weight_bytes), (info.parameters, info.weight_bytes));
                assert_eq!(split.meta("general.name").unwrap(), b"in parts");
            }
        }
    }
}

/// A small model in three parts.
fn three_parts() -> Vec<File> {
    let model = Shape::small().file();
    model.split(&[7, 8, model.tensors.len() - 15])
}

/// Writes a model in three parts, changed by `change`; what loading the first one says.
fn refusal_of_parts(name: &str, change: impl FnOnce(&mut Vec<File>)) -> Failed {
    let folder = Folder::new(name);
    let mut parts = three_parts();
    change(&mut parts);
    refusal(&write_parts(folder.path(), "model", &parts)[0])
}

#[test]
fn a_missing_part_is_named() {
    let folder = Folder::new("missing-part");
    let paths = write_parts(folder.path(), "model", &three_parts());
    std::fs::remove_file(&paths[1]).unwrap();
    assert_says(&refusal(&paths[0]), SEGNO_E_IO, &["model-00002-of-00003.gguf", "all 3 parts", "one folder"]);
}

#[test]
fn a_part_under_the_name_of_another_is_named() {
    let failed = refusal_of_parts("swapped", |parts| parts.swap(1, 2));
    assert_says(&failed, SEGNO_E_FORMAT, &["model-00002-of-00003.gguf", "part 3", "rename"]);
}

#[test]
fn a_part_of_a_model_with_another_number_of_parts_is_named() {
    let failed = refusal_of_parts("other-count", |parts| {
        parts[2].set("split.count", 4u16);
    });
    assert_says(&failed, SEGNO_E_FORMAT, &["model-00003-of-00003.gguf", "4 parts"]);
    let failed = refusal_of_parts("not-a-part", |parts| {
        parts[1].remove("split.no");
    });
    assert_says(&failed, SEGNO_E_FORMAT, &["model-00002-of-00003.gguf", "split.no"]);
}

#[test]
fn only_the_first_part_can_be_opened() {
    let folder = Folder::new("second-part");
    let paths = write_parts(folder.path(), "model", &three_parts());
    let words = ["part 2 of 3", "load the first part", "-00001-of-00003.gguf"];
    assert_says(&refusal(&paths[1]), SEGNO_E_INVALID_ARGUMENT, &words);
}

#[test]
fn the_name_of_a_first_part_must_lead_to_the_others() {
    let folder = Folder::new("renamed");
    let paths = write_parts(folder.path(), "model", &three_parts());
    for name in ["model.gguf", "model-00001-of-00002.gguf", "model-00002-of-00003.gguf", "model-1-of-3.gguf"] {
        let renamed = folder.join(name);
        std::fs::copy(&paths[0], &renamed).unwrap();
        let words = [name, "first of 3 parts", "must end in -00001-of-00003.gguf"];
        assert_says(&refusal(&renamed), SEGNO_E_INVALID_ARGUMENT, &words);
    }
}

#[test]
fn tensors_are_counted_over_all_parts() {
    let failed = refusal_of_parts("tensor-count", |parts| {
        parts[0].set("split.tensors.count", 99i32);
    });
    assert_says(&failed, SEGNO_E_FORMAT, &["split.tensors.count", "is 99", "the parts have 21"]);
    let failed = refusal_of_parts("tensor-gone", |parts| {
        parts[1].tensors.pop();
    });
    assert_says(&failed, SEGNO_E_FORMAT, &["is 21", "the parts have 20"]);
}

#[test]
fn a_tensor_in_two_parts_is_named_with_the_second() {
    let failed = refusal_of_parts("twice", |parts| {
        let tensor = parts[0].tensors[2].clone();
        parts[2].tensors.push(tensor);
    });
    assert_says(&failed, SEGNO_E_FORMAT, &["`blk.0.attn_q.weight`", "twice", "model-00003-of-00003.gguf"]);
}

#[test]
fn a_damaged_part_is_named() {
    let folder = Folder::new("damaged");
    let paths = write_parts(folder.path(), "model", &three_parts());
    let bytes = std::fs::read(&paths[2]).unwrap();
    std::fs::write(&paths[2], &bytes[..200]).unwrap();
    assert_says(&refusal(&paths[0]), SEGNO_E_FORMAT, &["model-00003-of-00003.gguf", "bytes left"]);
    std::fs::write(&paths[2], &bytes[..bytes.len() - 1]).unwrap();
    assert_says(&refusal(&paths[0]), SEGNO_E_FORMAT, &["`output.weight`"]);
}

#[test]
fn a_buffer_equals_the_file_and_is_copied() {
    let folder = Folder::new("buffer");
    // With an alignment of 1 the weights lie at odd addresses.
    for alignment in [None, Some(1), Some(256)] {
        for storage in [Storage::F32, Storage::Q8_0] {
            let mut model = Shape { storage, ..Shape::small() }.file();
            model.set("general.name", "copied").alignment = alignment;
            let expected = logits(&load(&path_of(&model, &folder), 0));
            let mut bytes = model.bytes();
            let copied = ctx().load_buffer(&bytes).unwrap();
            bytes.fill(0xAA);
            drop(bytes);
            assert_eq!(logits(&copied), expected, "alignment {alignment:?}");
            assert_eq!(copied.meta("general.name").unwrap(), b"copied");
        }
    }
}

#[test]
fn buffers_that_hold_no_model_are_refused() {
    let ctx = ctx();
    let load = |data: *const u8, len: usize| {
        let mut model = std::ptr::dangling_mut();
        let result =
            common::call(|err| segno_model_load_buffer(ctx.0, data.cast(), len, null(), &mut model, err)).unwrap_err();
        assert!(model.is_null());
        result
    };
    assert_eq!(load(null(), 64).status, SEGNO_E_NULL_POINTER);
    assert_eq!(load(null(), 0).status, SEGNO_E_FORMAT);
    assert_eq!(load(b"GGUF".as_ptr(), usize::MAX).status, SEGNO_E_INVALID_ARGUMENT);
    assert_eq!(load(b"GGUX....".as_ptr(), 8).status, SEGNO_E_FORMAT);
    let err = null_mut();
    let no_place = segno_model_load_buffer(ctx.0, b"GGUF".as_ptr().cast(), 4, null(), null_mut(), err);
    let mut model = null_mut();
    let no_ctx = segno_model_load_buffer(null(), b"GGUF".as_ptr().cast(), 4, null(), &mut model, err);
    assert_eq!((no_place, no_ctx), (SEGNO_E_NULL_POINTER, SEGNO_E_NULL_POINTER));
}

#[test]
fn a_truncated_buffer_is_refused_wherever_it_ends() {
    let bytes = Shape::small().file().bytes();
    let ctx = ctx();
    let header = 3000;
    for len in (0..header).step_by(7).chain((header..bytes.len()).step_by(997)).chain([bytes.len() - 1]) {
        let failed = ctx.load_buffer(&bytes[..len]).err().unwrap_or_else(|| panic!("{len} bytes make a model"));
        assert_says(&failed, SEGNO_E_FORMAT, &["bad model file"]);
    }
    assert!(ctx.load_buffer(&bytes).is_ok());
}

#[test]
fn a_split_model_cannot_come_from_a_buffer() {
    let model = Shape::small().file();
    for part in &three_parts() {
        let failed = ctx().load_buffer(&part.bytes()).err().unwrap();
        assert_says(&failed, SEGNO_E_UNSUPPORTED, &["3 parts", "from its files"]);
    }
    assert!(
        ctx().load_buffer(&model.split(&[model.tensors.len()])[0].bytes()).is_ok(),
        "the only part is a whole model"
    );
}

/// Loads once to hear everything, then once for each report with a cancel at it.
fn assert_progress(
    what: &str,
    least: usize,
    load: impl Fn(&segno_model_opts) -> common::Result<(segno_status, Model)>,
    flags: u32,
) {
    let mut watch = Watch::default();
    let (status, model) = load(&model_opts(flags, &mut watch)).unwrap();
    assert_eq!(status, SEGNO_OK);
    drop(model);
    let heard = watch.heard;
    println!("{what}: {heard:?}");
    assert!(heard.len() >= least, "{what}: {heard:?}");
    assert!(heard.is_sorted() && heard[0] >= 0.0 && heard.last() == Some(&1.0), "{what}: {heard:?}");
    for cancel_at in 0..heard.len() {
        let mut watch = Watch { cancel_at: Some(cancel_at), ..Watch::default() };
        let (status, _) = load(&model_opts(flags, &mut watch)).unwrap();
        assert_eq!(status, SEGNO_CANCELLED, "{what}, report {cancel_at}");
        assert_eq!(watch.heard, heard[..=cancel_at], "{what}: nothing is heard after a cancel");
    }
}

#[test]
fn progress_rises_to_one_and_every_report_can_cancel() {
    let folder = Folder::new("progress");
    let shape = Shape { vocab: 90_000, hidden: 128, head_dim: 32, storage: Storage::Hole, ..Shape::small() };
    let model = shape.file();
    let (bytes, path) = (model.bytes(), path_of(&model, &folder));
    let counts = [1, 9, model.tensors.len() - 10];
    let parts = write_parts(folder.path(), "model", &model.split(&counts));
    let mib = bytes.len() >> 20;
    assert!(mib > 40, "the file takes several steps, {mib} MiB");
    let ctx = ctx();
    assert_progress("mapped", 3, |opts| ctx.load_with(&path, opts), 0);
    assert_progress("read", 3, |opts| ctx.load_with(&path, opts), SEGNO_MODEL_NO_MMAP);
    assert_progress("buffer", 3, |opts| ctx.load_buffer_with(&bytes, opts), 0);
    assert_progress("split, mapped", 5, |opts| ctx.load_with(&parts[0], opts), 0);
    assert_progress("split, read", 5, |opts| ctx.load_with(&parts[0], opts), SEGNO_MODEL_NO_MMAP);
    assert!(ctx.load(&path).is_ok(), "the context takes no harm from cancelled loads");
}

#[test]
fn a_name_that_only_looks_split_changes_no_progress() {
    let folder = Folder::new("looks-split");
    let path = folder.join("model-00001-of-00004.gguf");
    Shape::small().file().write(&path);
    assert_progress("whole", 1, |opts| ctx().load_with(&path, opts), SEGNO_MODEL_NO_MMAP);
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    let folder = Folder::new("no-model");
    let path = folder.join("text.gguf");
    for content in ["", "GG", "not a model at all"] {
        std::fs::write(&path, content).unwrap();
        for flags in [0, SEGNO_MODEL_NO_MMAP] {
            let failed = ctx().load_with(&path, &model_opts(flags, &mut Watch::default())).err().unwrap();
            assert_eq!(failed.status, SEGNO_E_FORMAT, "{}", failed.message);
        }
    }
    assert_says(&refusal(&folder.join("absent.gguf")), SEGNO_E_IO, &["absent.gguf", "os error 2"]);
    assert_says(&refusal(folder.path()), SEGNO_E_INVALID_ARGUMENT, &["is a folder"]);
    let failed = ctx().load_with(&path, &model_opts(2, &mut Watch::default())).err().unwrap();
    assert_says(&failed, SEGNO_E_INVALID_ARGUMENT, &["flags 0x2"]);
}

#[test]
fn a_file_without_a_tokenizer_decodes_and_refuses_text() {
    let mut file = Shape::small().file();
    for changed in [file.clone(), file.remove("tokenizer.ggml.model").clone()] {
        let model = ctx().load_buffer(&changed.bytes()).unwrap();
        let session = model.session(|_| ()).unwrap();
        let seq = session.open(&common::sampler()).unwrap();
        session.prefill(seq, &[1, 2, 3]).unwrap();
        // Nothing in such a file says that a token ends generation.
        assert!((0..100).all(|_| matches!(session.step(seq), Ok((0..101, SEGNO_OK)))));
        let (info, mut text) = (model.info(), null_mut());
        assert_eq!((info.vocab, info.bos, info.eos), (101, -1, -1));
        let stream = common::call(|err| segno_text_create(model.0, null(), &mut text, err)).unwrap_err();
        assert!(text.is_null());
        for failed in [model.tokenize(b"text", 0).unwrap_err(), model.detokenize(&[1], 0).unwrap_err(), stream] {
            assert_says(&failed, SEGNO_E_UNSUPPORTED, &["no tokenizer"]);
        }
    }
}

/// What loading a small model says after `change`.
fn refusal_after(change: impl FnOnce(&mut File)) -> Failed {
    let mut file = Shape::small().file();
    change(&mut file);
    ctx().load_buffer(&file.bytes()).err().expect("the load must fail")
}

#[test]
fn what_the_library_lacks_is_refused_by_name() {
    let unsupported = |words: &[&str], change: &dyn Fn(&mut File)| {
        assert_says(&refusal_after(change), SEGNO_E_UNSUPPORTED, words);
    };
    unsupported(&["`mamba`", "llama, qwen2, qwen3"], &|file| {
        file.set("general.architecture", "mamba");
    });
    unsupported(&["`blk.1.ffn_up.weight`", "type 4711"], &|file| file.tensor("blk.1.ffn_up.weight").type_id = 4711);
    unsupported(&["`output_norm.weight`", "type 16384"], &|file| file.tensor("output_norm.weight").type_id = 1 << 14);
    unsupported(&["`blk.0.attn_sinks.weight`", "`llama`"], &|file| {
        file.add_zeros("blk.0.attn_sinks.weight", &[4]);
    });
    unsupported(&["`blk.2.attn_norm.weight`"], &|file| {
        file.add_zeros("blk.2.attn_norm.weight", &[64]);
    });
    unsupported(&["rope scaling `longrope`"], &|file| {
        file.set("llama.rope.scaling.type", "longrope");
    });
    unsupported(&["`llama.logit_scale` is 0.25"], &|file| {
        file.set("llama.logit_scale", 0.25f32);
    });
    unsupported(&["attention is not causal"], &|file| {
        file.set("llama.attention.causal", false);
    });
    unsupported(&["tokenizer model `wordpiece`"], &|file| {
        file.set("tokenizer.ggml.model", "wordpiece");
    });
}

#[test]
fn heads_have_a_longest_size_and_a_largest_group() {
    let small = Shape { hidden: 8, feed_forward: 8, ..Shape::small() };
    let of_heads = |heads, kv_heads, head_dim| Shape { heads, kv_heads, head_dim, ..small };
    for (shape, fits) in [
        (of_heads(2, 1, 576), true),
        (of_heads(1, 1, 578), false),
        (of_heads(2, 2, 1024), false),
        (of_heads(128, 1, 4), true),
        (of_heads(129, 1, 4), false),
        (of_heads(512, 2, 2), false),
    ] {
        let model = ctx().load_buffer(&shape.file().bytes());
        if fits {
            assert!(logits(&model.unwrap()).len() == 2 * shape.vocab);
            continue;
        }
        let words = [format!("{} elements", shape.head_dim), format!("{} a key", shape.heads / shape.kv_heads)];
        let words = [words[0].as_str(), &words[1], "limits 576 and 128"];
        assert_says(&model.err().expect("refused"), SEGNO_E_UNSUPPORTED, &words);
    }
}

#[test]
fn features_at_the_value_that_changes_nothing_are_accepted() {
    let mut file = Shape::small().file();
    file.set("llama.logit_scale", 0f32).set("llama.residual_scale", 1f32).set("llama.attention.scale", 0f32);
    file.set("llama.attention.causal", true).set("llama.expert_count", 0u32).set("llama.rope.scaling.factor", 0f32);
    let plain = ctx().load_buffer(&Shape::small().file().bytes()).unwrap();
    assert_eq!(logits(&ctx().load_buffer(&file.bytes()).unwrap()), logits(&plain));
}

/// Multiplies a matrix of a small model by a power of two and gives the file the factor that undoes it.
fn halved(file: &mut File, name: &str) {
    let tensor = file.tensor(&format!("{name}.weight"));
    let Content::Bytes(bytes) = &mut tensor.content else { panic!("{name} has no values") };
    for raw in bytes.chunks_exact_mut(4) {
        let value = f32::from_le_bytes((&*raw).try_into().unwrap());
        raw.copy_from_slice(&(value * 4.0).to_le_bytes());
    }
    file.add_f32(&format!("{name}.scale"), &[0.25]).add_f32(&format!("{name}.input_scale"), &[0.01]);
}

#[test]
fn a_projection_may_have_one_scale_for_all_its_elements() {
    let plain = logits(&ctx().load_buffer(&Shape::small().file().bytes()).unwrap());
    let mut file = Shape::small().file();
    let parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    parts.iter().for_each(|part| halved(&mut file, &format!("blk.1.{part}")));
    assert_eq!(logits(&ctx().load_buffer(&file.bytes()).unwrap()), plain);
    let failed = refusal_after(|file| {
        file.add_f32("blk.0.attn_q.scale", &[f32::NAN]);
    });
    assert_says(&failed, SEGNO_E_FORMAT, &["`blk.0.attn_q.scale` holds NaN"]);
    let failed = refusal_after(|file| {
        file.add_f32("blk.0.attn_q.scale", &[1.0, 2.0]);
    });
    assert_says(&failed, SEGNO_E_FORMAT, &["`blk.0.attn_q.scale`", "[1]"]);
    let failed = refusal_after(|file| {
        file.add_f32("blk.0.ffn_up.scale", &[2.0])
            .add_zeros("blk.0.ffn_up.bias", &[Shape::small().feed_forward as u64]);
    });
    assert_says(&failed, SEGNO_E_UNSUPPORTED, &["`blk.0.ffn_up.scale` beside `blk.0.ffn_up.bias`"]);
}

#[test]
fn tensors_that_do_not_fit_the_sizes_are_refused_by_name() {
    let bad = |words: &[&str], change: &dyn Fn(&mut File)| {
        assert_says(&refusal_after(change), SEGNO_E_FORMAT, words);
    };
    for name in ["token_embd.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight", "output_norm.weight"] {
        bad(&[&format!("`{name}` is missing")], &|file| {
            file.remove_tensor(name);
        });
    }
    bad(&["`blk.0.attn_q.weight`", "[64, 60]", "[64, 64]"], &|file| file.tensor("blk.0.attn_q.weight").dims[1] = 60);
    bad(&["`output_norm.weight`", "[32]", "[64]"], &|file| file.tensor("output_norm.weight").dims[0] = 32);
    bad(&["`blk.1.attn_norm.weight`", "[64, 2]"], &|file| file.tensor("blk.1.attn_norm.weight").dims.push(2));
    bad(&["`token_embd.weight`", "[64, 101, 2]", "64 columns"], &|file| file.tensor("token_embd.weight").dims.push(2));
    bad(&["`output.weight`", "[64, 100]", "[64, 101]"], &|file| file.tensor("output.weight").dims[1] = 100);
    // 64 columns are no whole block of 256.
    bad(&["`output.weight`", "64 columns", "Q4_K", "256"], &|file| file.tensor("output.weight").type_id = 12);
}

#[test]
fn sizes_that_make_no_sense_are_refused_by_their_key() {
    for (key, value) in [
        ("llama.block_count", 0u32),
        ("llama.embedding_length", u32::MAX),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.rope.dimension_count", 17),
        ("llama.rope.dimension_count", 18),
    ] {
        let failed = refusal_after(|file| {
            file.set(key, value);
        });
        assert_says(&failed, SEGNO_E_FORMAT, &[&format!("`{key}`"), &format!("is {value}")]);
    }
    for key in ["general.architecture", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"] {
        let failed = refusal_after(|file| {
            file.remove(key);
        });
        assert_says(&failed, SEGNO_E_FORMAT, &[&format!("`{key}` is missing")]);
    }
    let failed = refusal_after(|file| {
        file.set("llama.block_count", "two");
    });
    assert_says(&failed, SEGNO_E_FORMAT, &["`llama.block_count` is not an integer"]);
}
