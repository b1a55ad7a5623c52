//! Memory that is refused while a folder is loaded, with its weights as they are and quantized, and while a model is saved: allocations of
//! all sizes fail one by one, then all from some on. Each call answers with a code and gives everything back, and of a file nothing half-written
//! stays.

use crate::allocator::{self, Rule, alone, share_of};
use crate::common::folders::{entries_of, write};
use crate::common::gguf::Shape;
use crate::common::predictors::{Guesses, predicting_folder};
use crate::common::tokenizers;
use crate::common::{Ctx, Failed, Folder, Model, Result, Watch, call, model_opts, root};
use segno::ffi::{model::*, status::*};
use segno::format::Gguf;
use serde_json::{Value, json};
use std::ffi::CString;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::time::{Duration, Instant};

/// How many allocations are refused alone, at most, and how many are the first of all that are; those of a save, which waits for the disk.
const MOST: [usize; 2] = [600, 80];
const SAMPLES: usize = 40;

/// Refuses allocations of `attempt` in turn, `most` of them, then all from some on. `check` looks at what is left after each.
fn refuse_each<T: PartialEq + Debug>(name: &str, most: usize, attempt: impl Fn() -> Result<T>, check: impl Fn(bool)) {
    let expected = attempt().unwrap();
    let (again, count) = allocator::counted(1, &attempt);
    let (most, samples) = (share_of(most), share_of(SAMPLES));
    assert!(again.as_ref() == Ok(&expected), "{name}: the same every time");
    let each = (0..count).step_by(count.div_ceil(most)).map(|number| Rule { least: 1, number, all: false });
    let rest = (0..samples).map(|i| Rule { least: 1, number: i * count / samples, all: true });
    let (mut errors, mut refusals) = (0, 0);
    for rule in each.chain(rest) {
        let before = allocator::live();
        let (result, refused) = allocator::refusing(rule, &attempt);
        match &result {
            Err(Failed { status: SEGNO_E_OUT_OF_MEMORY, message, .. }) => {
                assert!(message.contains("out of memory") || message.contains("allocate memory"), "{name}: {message}");
                errors += 1;
            }
            // Some can be done without.
            other => assert!(other.as_ref() == Ok(&expected), "{name}: {rule:?} gave {:?}", other.as_ref().err()),
        }
        check(result.is_ok());
        drop(result);
        if allocator::live() < before {
            // What is kept from call to call was given up; the next makes it anew.
            assert!(attempt().as_ref() == Ok(&expected), "{name}: after {rule:?}");
        }
        // A thread that has ended may still be giving back what its start took.
        let until = Instant::now() + Duration::from_secs(2);
        while allocator::live() > before && Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(allocator::live() <= before, "{name}: {} bytes kept after {rule:?}", allocator::live() - before);
        refusals += refused;
    }
    assert!(attempt().as_ref() == Ok(&expected), "{name}: works as before");
    assert!(allocator::reserve_is_whole(), "{name}");
    println!("{name}: {count} allocations, {refusals} refused, {errors} errors");
    assert!(refusals > count.min(most) / 2 && errors > samples / 2, "{name}: {refusals} of {count}, {errors} errors");
}

/// A folder with random weights, whose rows are whole blocks of every type, and the tokenizer of `kind`.
fn folder_with(folder: &Folder, kind: &str) -> PathBuf {
    let (file, source) = (folder.join("shape.gguf"), folder.join(kind));
    let shape = Shape {
        layers: 1,
        hidden: 256,
        feed_forward: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        vocab: 520,
        ..Shape::small()
    };
    shape.file().write(&file);
    let config = json!({
        "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "num_hidden_layers": 1, "intermediate_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5
    });
    write(&source, &config, &entries_of(&Gguf::open(&file, true, &mut |_| Ok(())).unwrap(), &config));
    // The smaller of the character maps, since each attempt reads it.
    let mut tokenizer = tokenizers::of_kind(kind, Some("rules"));
    for token in tokenizer["added_tokens"].as_array_mut().unwrap() {
        (token["lstrip"], token["rstrip"]) = (json!(false), json!(false));
    }
    std::fs::write(source.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let named =
        json!({"eos_token": "</s>", "cls_token": "[CLS]", "sep_token": "[SEP]", "chat_template": "{{ messages }}"});
    std::fs::write(source.join("tokenizer_config.json"), named.to_string()).unwrap();
    source
}

/// A model with a state in most layers, experts, and a block that predicts a further token.
const PREDICTING: &str = "qwen3next-plain";

fn predictor(folder: &Folder) -> PathBuf {
    let (_, config, entries) = predicting_folder((PREDICTING, 3), Guesses::Random { own: true });
    write(&folder.join(PREDICTING), &config, &entries);
    folder.join(PREDICTING)
}

/// A model whose experts have 4-bit floats in blocks, and one whose experts are tables with inputs as rows.
const BLOCKS: &str = "mxfp4/folder";
const TURNED: &str = "gptoss-plain";

fn turned(folder: &Folder) -> PathBuf {
    let golden = root().join("tests/golden/hf");
    let configs: Value = serde_json::from_slice(&std::fs::read(golden.join("configs.json")).unwrap()).unwrap();
    let file = Gguf::open(&golden.join(format!("{TURNED}.gguf")), true, &mut |_| Ok(())).unwrap();
    write(&folder.join(TURNED), &configs[TURNED], &entries_of(&file, &configs[TURNED]));
    folder.join(TURNED)
}

fn load(ctx: &Ctx, path: &Path, flags: u32, quantize: i32) -> Result<Model> {
    let mut opts = model_opts(flags, &mut Watch::default());
    (opts.progress, opts.quantize) = (None, quantize);
    ctx.load_with(path, &opts).map(|(_, model)| model)
}

#[test]
fn a_folder_without_memory_is_an_error() {
    let (_alone, folder) = (alone(), Folder::new("faults-folder"));
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    for (kind, flags, quantize) in [
        ("gpt2", 0, SEGNO_TYPE_KEEP),
        ("spm", SEGNO_MODEL_NO_MMAP, SEGNO_TYPE_KEEP),
        ("t5", 0, SEGNO_TYPE_Q8_0),
        ("wordpiece", 0, SEGNO_TYPE_Q4_K),
        (PREDICTING, 0, SEGNO_TYPE_BF16),
        (BLOCKS, SEGNO_MODEL_NO_MMAP, SEGNO_TYPE_KEEP),
        (TURNED, 0, SEGNO_TYPE_BF16),
    ] {
        let source = match kind {
            PREDICTING => predictor(&folder),
            BLOCKS => root().join("tests/golden").join(BLOCKS),
            TURNED => turned(&folder),
            _ => folder_with(&folder, kind),
        };
        let attempt = || {
            let model = load(&ctx, &source, flags, quantize)?;
            Ok((model.info().vocab, model.info().parameters, model.info().eos))
        };
        refuse_each(&format!("{kind} as {quantize}"), MOST[0], attempt, |_| {});
    }
}

#[test]
fn a_save_without_memory_leaves_the_file_that_was_there() {
    let (_alone, folder) = (alone(), Folder::new("faults-save"));
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    for (kind, quantize) in [("gpt2", SEGNO_TYPE_KEEP), ("spm", SEGNO_TYPE_Q8_0), ("wordpiece", SEGNO_TYPE_Q4_K)] {
        let model = load(&ctx, &folder_with(&folder, kind), 0, quantize).unwrap();
        let place = folder.join(&format!("out-{kind}"));
        std::fs::create_dir_all(&place).unwrap();
        let (target, old) = (place.join("model.gguf"), b"another file".as_slice());
        std::fs::write(&target, old).unwrap();
        let path = CString::new(target.to_str().unwrap()).unwrap();
        let attempt = || {
            call(|err| segno_model_save(model.0, path.as_ptr(), null(), err))?;
            Ok(std::fs::metadata(&target).unwrap().len())
        };
        refuse_each(&format!("{kind} saved as {quantize}"), MOST[1], attempt, |is_saved| {
            assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1, "{kind}: something is left of the attempt");
            assert!(is_saved || std::fs::read(&target).unwrap() == old, "{kind}: the file that was there");
            std::fs::write(&target, old).unwrap();
        });
        std::fs::remove_file(&target).unwrap();
        attempt().unwrap();
        let saved = ctx.load(&target).unwrap();
        assert_eq!(saved.info().parameters, model.info().parameters);
    }
}
