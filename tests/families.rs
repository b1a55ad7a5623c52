//! Small random models of every family against the logits that Hugging Face transformers computes for them.
//! `tests/golden/make_hf_models.py` makes the models and the logits.

mod common;

use common::{Ctx, greedy};
use serde_json::Value;
use std::path::Path;

/// Relative to the largest logit of the case; both sides compute in single precision.
const TOLERANCE: f32 = 2e-5;

fn floats(path: &Path) -> Vec<f32> {
    std::fs::read(path).unwrap().chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect()
}

/// Logits after every token of `prompt`, each evaluated alone.
fn logits_one_by_one(file: &Path, prompt: &[i32]) -> Vec<f32> {
    let model = Ctx::precise().load(file).unwrap();
    let session = model.session_f32();
    let seq = session.open(&greedy()).unwrap();
    let rows = prompt.iter().map(|&token| {
        session.append(seq, &[token]).unwrap();
        session.logits(seq).unwrap()
    });
    rows.flatten().collect()
}

/// Logits after the whole of `prompt`, evaluated together.
fn logits_at_once(file: &Path, prompt: &[i32]) -> Vec<f32> {
    let model = Ctx::precise().load(file).unwrap();
    let session = model.session_f32();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, prompt).unwrap();
    session.logits(seq).unwrap()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |worst: f32, d| if d.is_nan() { d } else { worst.max(d) })
}

#[test]
fn every_family_gives_the_logits_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hf");
    let index: Value = serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let prompt: Vec<i32> = serde_json::from_value(index["prompt"].clone()).unwrap();
    let cases = index["cases"].as_array().unwrap();
    assert_eq!((prompt.len(), cases.len()), (40, 15));
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let vocab = case["vocab"].as_u64().unwrap() as usize;
        let file = folder.join(format!("{name}.gguf"));
        let expected = floats(&folder.join(format!("{name}.f32")));
        let scale = expected.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
        let alone = largest_difference(&logits_one_by_one(&file, &prompt), &expected) / scale;
        let together = largest_difference(&logits_at_once(&file, &prompt), &expected[39 * vocab..]) / scale;
        println!("{name}: {alone:.1e} token by token, {together:.1e} at once");
        assert!(alone <= TOLERANCE && together <= TOLERANCE, "{name}: {alone:.1e}, {together:.1e}");
    }
}
