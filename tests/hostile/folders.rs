//! Hostile folders: a tiny model of each kind whose files are changed in a way that matters ends in a model or an error. No panic, no crash,
//! at most 2 seconds and 1 GiB each.
//!
//! `SEGNO_HOSTILE_CASES` sets how many, `SEGNO_HOSTILE_FIRST` where to begin: a case is its number.

use crate::common::folders::{Entry, entries_of, safetensors, with_header};
use crate::common::gguf::{Shape, parsed};
use crate::common::patient::shortest;
use crate::common::predictors::{Guesses, predicting_folder};
use crate::common::tokenizers::of_kind;
use crate::common::{Ctx, Folder, root};
use crate::damage::damage;
use crate::dice::Dice;
use crate::host::{Reached, use_path};
use crate::memory;
use crate::words::{NAMES, TEXTS};
use segno::memory::draw_from;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

const CASES: usize = 4_000;
const LONGEST: Duration = Duration::from_secs(2);

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn context() -> Ctx {
    draw_from(&memory::CAPPED);
    Ctx::new(|opts| opts.n_threads = 1).unwrap()
}

/// The files of a folder by their names.
#[derive(Clone)]
struct Files(Vec<(String, Vec<u8>)>);

impl Files {
    fn file(&mut self, name: &str) -> Option<&mut Vec<u8>> {
        self.0.iter_mut().find(|(other, _)| other == name).map(|(_, bytes)| bytes)
    }

    fn write(&self, folder: &Path) {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).unwrap();
        self.0.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
    }
}

/// A model of two thousand parameters: its configuration and its tensors.
fn model(kind: &str) -> (Value, Vec<Entry>) {
    let vocab = if kind == "text" { 512 } else { 40 };
    let shape =
        Shape { layers: 2, hidden: 16, heads: 2, kv_heads: 1, head_dim: 8, feed_forward: 24, vocab, ..Shape::small() };
    let gguf = parsed(&shape.file().bytes());
    let mut config = json!({
        "model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": vocab, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    });
    let mut entries = entries_of(&gguf, &config);
    match kind {
        "yarn" => {
            config["rope_parameters"] = json!({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16})
        }
        "fp8" => {
            config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [8, 8]});
            let matrices: Vec<usize> = (0..entries.len()).filter(|&at| entries[at].name.contains("proj")).collect();
            for at in matrices {
                let entry = &mut entries[at];
                let (name, shape) = (format!("{}_scale_inv", entry.name), [entry.shape[0] / 8, entry.shape[1] / 8]);
                (entry.kind, entry.bytes) =
                    ("F8_E4M3".into(), entry.bytes.chunks(4).map(|raw| raw[2] & 0x3f).collect());
                entries.push(Entry::f32(&name, &shape, &vec![0.05; (shape[0] * shape[1]) as usize]));
            }
        }
        _ => {}
    }
    (config, entries)
}

/// A model of the tree with a block that predicts a further token, which is like its layer of that number.
fn predictor(of: (&str, usize)) -> Files {
    let (_, config, entries) = predicting_folder(of, Guesses::Random { own: false });
    let files = [("config.json", config.to_string().into_bytes()), ("model.safetensors", safetensors(&entries))];
    Files(files.map(|(name, bytes)| (name.to_owned(), bytes)).into())
}

/// A model of the tree.
fn golden_model(name: &str) -> Files {
    let golden = root().join("tests/golden/hf");
    let configs: Value = serde_json::from_slice(&std::fs::read(golden.join("configs.json")).unwrap()).unwrap();
    let entries = entries_of(&parsed(&std::fs::read(golden.join(format!("{name}.gguf"))).unwrap()), &configs[name]);
    let files = [("config.json", configs[name].to_string().into_bytes()), ("model.safetensors", safetensors(&entries))];
    Files(files.map(|(name, bytes)| (name.to_owned(), bytes)).into())
}

/// Folders that load.
fn folders() -> Vec<Files> {
    let mut folders = Vec::new();
    for kind in ["whole", "yarn", "fp8"] {
        let (config, entries) = model(kind);
        let files = [("config.json", config.to_string().into_bytes()), ("model.safetensors", safetensors(&entries))];
        folders.push(Files(files.map(|(name, bytes)| (name.to_owned(), bytes)).into()));
    }
    let (config, entries) = model("text");
    for tokenizer in ["always", "llama2", "llama3", "spm", "t5", "wordpiece"] {
        // The smaller of the character maps, since each case writes it.
        let text = of_kind(tokenizer, Some("rules")).to_string();
        let settings = json!({
            "bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": text.contains("<s>"), "tokenizer_class": "LlamaTokenizer",
            "chat_template": "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
        });
        let files = [
            ("config.json", config.to_string().into_bytes()),
            ("model.safetensors", safetensors(&entries)),
            ("tokenizer.json", text.into_bytes()),
            ("tokenizer_config.json", settings.to_string().into_bytes()),
            ("generation_config.json", json!({"eos_token_id": [2, 7]}).to_string().into_bytes()),
            ("chat_template.jinja", b"{{ messages[0].content }}".to_vec()),
        ];
        folders.push(Files(files.map(|(name, bytes)| (name.to_owned(), bytes)).into()));
    }
    for golden in ["hf/folders/gemma4-small", "assistant/folder", "mxfp4/folder", "eagle/plain", "eagle/own"] {
        let golden = root().join("tests/golden").join(golden);
        let read = |name: &str| (name.to_owned(), std::fs::read(golden.join(name)).unwrap());
        folders.push(Files(vec![read("config.json"), read("model.safetensors")]));
    }
    let predictors = [("glm4moe-plain", 2), ("qwen35-plain", 1), ("qwen3next-plain", 3)];
    folders.extend(predictors.map(predictor));
    folders.extend(["gptoss-plain", "qwen3vlmoe-text"].map(golden_model));
    let hybrids = [
        "lfm2-plain",
        "lfm2moe-plain",
        "granitehybrid-experts",
        "falconh1-plain",
        "nemotronh-plain",
        "nemotronhmoe-latent",
    ];
    folders.extend(hybrids.map(golden_model));
    let (config, entries) = model("whole");
    let (first, second) = entries.split_at(7);
    let map = |entries: &[Entry], file: &str| {
        entries.iter().map(|entry| (entry.name.clone(), json!(file))).collect::<Map<_, _>>()
    };
    let (mut places, second_places) = (map(first, "a.safetensors"), map(second, "b.safetensors"));
    places.extend(second_places);
    let index = json!({"metadata": {"total_size": 1}, "weight_map": places});
    let files = [
        ("config.json", config.to_string().into_bytes()),
        ("model.safetensors.index.json", index.to_string().into_bytes()),
        ("a.safetensors", safetensors(first)),
        ("b.safetensors", safetensors(second)),
    ];
    folders.push(Files(files.map(|(name, bytes)| (name.to_owned(), bytes)).into()));
    folders
}

fn any_value(dice: &mut Dice, depth: usize) -> Value {
    match dice.below(if depth > 3 { 6 } else { 9 }) {
        0..=2 => json!(dice.number()),
        3 => json!(f64::from(dice.float())),
        4 => dice
            .pick(
                &[json!(null), json!(true), json!(false), json!(-1), json!(0.5), json!(1e300)][..]
                    .iter()
                    .collect::<Vec<_>>(),
            )
            .clone(),
        5 => json!(dice.pick(&TEXTS)),
        6 => (0..dice.below(5)).map(|_| any_value(dice, depth + 1)).collect(),
        7 => (0..1 + dice.below(40)).map(|_| json!(dice.number())).collect(),
        _ => Value::Object(
            (0..dice.below(4)).map(|_| (dice.pick(&NAMES).to_owned(), any_value(dice, depth + 1))).collect(),
        ),
    }
}

/// Changes one value somewhere within `value`.
fn change(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(map) if !map.is_empty() && !dice.one_in(12) => {
            let name = map.keys().nth(dice.below(map.len())).unwrap().clone();
            match dice.below(8) {
                0 => _ = map.remove(&name),
                1 => {
                    let other = dice.pick(&NAMES).to_owned();
                    map.insert(other, any_value(dice, 0));
                }
                2 => {
                    let moved = map.remove(&name).unwrap();
                    map.insert(format!("{name}{}", dice.below(3)), moved);
                }
                _ => change(map.get_mut(&name).unwrap(), dice),
            }
        }
        Value::Array(list) if !list.is_empty() && !dice.one_in(6) => {
            let at = dice.below(list.len());
            match dice.below(5) {
                0 => _ = list.remove(at),
                1 => list.push(any_value(dice, 0)),
                _ => change(&mut list[at], dice),
            }
        }
        Value::Number(number) if dice.one_in(2) => {
            let near = number.as_u64().unwrap_or(1).wrapping_add(dice.below(9) as u64).wrapping_sub(4);
            *value = json!(near);
        }
        other => *other = any_value(dice, 0),
    }
}

/// Makes 1 to 3 changes.
fn mutate(files: &Files, dice: &mut Dice) -> Files {
    let mut files = files.clone();
    for _ in 0..1 + dice.below(2) * dice.below(3) {
        let number = dice.below(files.0.len());
        let (name, bytes) = &mut files.0[number];
        if dice.one_in(5) {
            damage(bytes, 1024, dice);
        } else if name.ends_with(".json") {
            if let Ok(mut value) = serde_json::from_slice::<Value>(bytes) {
                change(&mut value, dice);
                *bytes = value.to_string().into_bytes();
            }
        } else if let Some((header, data)) = header_of(bytes) {
            let (mut header, data) = (header, data.to_vec());
            change(&mut header, dice);
            *bytes = with_header(&header.to_string(), &data);
        }
    }
    if dice.one_in(40) {
        files.0.remove(dice.below(files.0.len()));
    }
    files
}

fn header_of(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|&length| length <= rest.len())?;
    Some((serde_json::from_slice(&rest[..length]).ok()?, &rest[length..]))
}

#[test]
fn unchanged_folders_decode() {
    let (ctx, folder) = (context(), Folder::new("hostile-unchanged"));
    for (index, files) in folders().iter().enumerate() {
        files.write(folder.path());
        assert_eq!(use_path(&ctx, folder.path(), &mut Dice::new(index as u64)), Reached::Tokens, "folder {index}");
    }
}

#[test]
fn changed_folders_load_or_are_refused() {
    let (ctx, folder, folders) = (context(), Folder::new("hostile-folder"), folders());
    let (first, cases) = (number("SEGNO_HOSTILE_FIRST", 0), number("SEGNO_HOSTILE_CASES", CASES));
    let (mut refused, mut decoded, mut slowest) = (0, 0, (Duration::ZERO, 0));
    for case in first..first + cases {
        let mut dice = Dice::new(case as u64);
        mutate(&folders[case % folders.len()], &mut dice).write(folder.path());
        let beyond = memory::refused();
        let (time, reached) = shortest(LONGEST, || {
            let started = Instant::now();
            let reached = use_path(&ctx, folder.path(), &mut dice.clone());
            (started.elapsed(), reached)
        });
        match reached {
            Reached::Refusal => refused += 1,
            Reached::Tokens => decoded += 1,
            Reached::Model => {}
        }
        slowest = slowest.max((time, case));
        assert_eq!(memory::refused(), beyond, "case {case} goes beyond its memory");
    }
    println!(
        "{cases} cases: {refused} refused, {decoded} decoded; slowest {slowest:?}; at most {} MiB",
        memory::peak() >> 20
    );
    assert!(slowest.0 <= LONGEST, "{slowest:?}");
    assert!(
        cases < 1000 || (decoded > cases / 20 && refused > cases / 4),
        "the cases prove little: {decoded}, {refused}"
    );
}

/// Other shapes of as many elements: dimensions in another order, joined, halved, or none.
fn reshaped(shape: &[u64]) -> Vec<Vec<u64>> {
    let mut shapes: Vec<Vec<u64>> = vec![vec![], shape.to_vec(), [shape, &[1]].concat(), [&[1], shape].concat()];
    for at in 1..shape.len() {
        let (before, after) = shape.split_at(at);
        shapes.push([after, before].concat());
        shapes.push([before, &after[1..], &after[..1]].concat());
        shapes.push([&before[..at - 1], &[before[at - 1] * after[0]], &after[1..]].concat());
        shapes.push([before, &[after[0] / 2, 2], &after[1..]].concat());
        shapes.push([&before[..at - 1], &[before[at - 1] * 2, after[0] / 2], &after[1..]].concat());
        shapes.push([&before[..at - 1], &[1, before[at - 1] * after[0]], &after[1..]].concat());
    }
    shapes
}

/// What loads has its own dimensions, perhaps in another order.
#[test]
fn tensors_of_all_experts_of_any_shape_load_or_are_refused() {
    let (ctx, folder) = (context(), Folder::new("hostile-reshaped"));
    let golden = root().join("tests/golden/mxfp4/folder");
    let read = |name: &str| (name.to_owned(), std::fs::read(golden.join(name)).unwrap());
    let blocks = Files(vec![read("config.json"), read("model.safetensors")]);
    let is_meant = |name: &str| name.contains("layers.0.mlp.") || name.contains("layers.0.self_attn.sinks");
    let sizes = |shape: &[u64]| {
        let mut sizes: Vec<u64> = shape.iter().copied().filter(|&size| size > 1).collect();
        sizes.sort_unstable();
        sizes
    };
    let mut refused = 0;
    for mut files in [blocks, golden_model("gptoss-plain"), golden_model("qwen3vlmoe-text")] {
        let bytes = files.file("model.safetensors").unwrap().clone();
        let (header, data) = header_of(&bytes).unwrap();
        for (name, entry) in header.as_object().unwrap().iter().filter(|(name, _)| is_meant(name)) {
            let own: Vec<u64> = serde_json::from_value(entry["shape"].clone()).unwrap();
            for shape in reshaped(&own) {
                let mut header = header.clone();
                header[name]["shape"] = json!(shape);
                *files.file("model.safetensors").unwrap() = with_header(&header.to_string(), data);
                files.write(folder.path());
                match use_path(&ctx, folder.path(), &mut Dice::new(0)) {
                    Reached::Refusal if shape != own => refused += 1,
                    Reached::Tokens if sizes(&shape) == sizes(&own) => {}
                    other => panic!("{name} of shape {shape:?}: {other:?}"),
                }
            }
        }
    }
    assert!(refused > 150, "{refused}");
}

#[test]
fn truncated_files_are_refused() {
    let (ctx, folder) = (context(), Folder::new("hostile-truncated"));
    for files in folders() {
        // A template is text, of which any beginning may be one.
        for number in (0..files.0.len()).filter(|&number| !files.0[number].0.ends_with(".jinja")) {
            let len = files.0[number].1.len();
            for cut in (0..len).step_by(331.max(len / 200)) {
                let mut files = files.clone();
                files.0[number].1.truncate(cut);
                files.write(folder.path());
                assert_eq!(
                    use_path(&ctx, folder.path(), &mut Dice::new(0)),
                    Reached::Refusal,
                    "{} at {cut}",
                    files.0[number].0
                );
            }
        }
    }
}

#[test]
fn metadata_that_takes_the_most_memory_is_bounded() {
    let (ctx, folder) = (context(), Folder::new("hostile-dense"));
    let dense = |count: usize, item: &str| format!("[{}0]", item.repeat(count));
    for (name, json) in [
        ("config.json", format!("{{\"model_type\": {}}}", dense(1 << 21, "0,"))),
        ("config.json", dense(1 << 20, "{},")),
        ("model.safetensors.index.json", format!("{{\"weight_map\": {}}}", dense(2 << 20, "0,"))),
    ] {
        let mut files = folders().pop().unwrap();
        *files.file(name).unwrap() = json.into_bytes();
        files.write(folder.path());
        let beyond = memory::refused();
        let (time, reached) = shortest(LONGEST, || {
            let started = Instant::now();
            let reached = use_path(&ctx, folder.path(), &mut Dice::new(0));
            (started.elapsed(), reached)
        });
        assert_eq!(reached, Reached::Refusal, "{name}");
        assert!(time <= LONGEST && memory::refused() == beyond, "{name}: {time:?}");
    }
}
