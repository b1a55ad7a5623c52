//! Trained models against what others computed for them in double precision (the shared test data), and the default mode against
//! the precise one.

use crate::common::distance::distance;
use crate::common::{Ctx, Model, bundled_model, greedy, shared_data};
use segno::ffi::session::SEGNO_KV_F16;
use serde_json::Value;
use std::path::Path;

fn ids(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect()
}

fn floats(path: &Path) -> Vec<f32> {
    std::fs::read(path).unwrap().chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect()
}

/// `expected` begins with the prompt of `prompt` tokens; the rest must be what greedy decoding in precise mode gives.
fn assert_greedy(path: &Path, expected: &[i32], prompt: usize) {
    let model = Ctx::precise().load(path).unwrap();
    let session = model.session_f32();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &expected[..prompt]).unwrap();
    assert_eq!(session.generate(seq, expected.len() - prompt).unwrap(), expected[prompt..], "{}", path.display());
}

#[test]
fn trained_models_continue_as_the_reference_does() {
    let Some(data) = shared_data() else { return };
    let models = data.join("models");
    let reference: Value = serde_json::from_slice(&std::fs::read(models.join("reference.json")).unwrap()).unwrap();
    let stories = ids(&reference["stories260K"]["greedy_ids_from_bos"]);
    assert_greedy(&models.join("stories260K.gguf"), &stories, 1);
    assert_greedy(&models.join("tinyllamas-stories-260k-f32.ggufv1.gguf"), &stories, 1);
    let prompts = reference["TinyStories-656K"]["prompts"].as_object().unwrap();
    assert_eq!(prompts.len(), 2);
    for prompt in prompts.values() {
        let expected = ids(&prompt["greedy_ids_q8_0"]);
        assert_greedy(&models.join("TinyStories-656K-Q8_0.gguf"), &expected, ids(&prompt["ids"]).len());
    }
}

#[test]
fn logits_are_within_a_thousandth_of_the_reference() {
    let Some(data) = shared_data() else { return };
    let models = data.join("models");
    let reference: Value = serde_json::from_slice(&std::fs::read(models.join("reference.json")).unwrap()).unwrap();
    let tokens = ids(&reference["stories260K"]["prompt_ids"]);
    let expected = floats(&models.join("stories260K.ref_logits_33x512.f32"));
    for file in ["stories260K.gguf", "tinyllamas-stories-260k-f32.ggufv1.gguf"] {
        let model = Ctx::precise().load(&models.join(file)).unwrap();
        let logits = logits_of(&model, &tokens, false);
        let worst = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{file}: largest difference {worst:.2e} over {} logits", expected.len());
        assert!(logits.len() == expected.len() && worst <= 1e-3);
    }
}

/// Logits after every prefix of `tokens`.
fn logits_of(model: &Model, tokens: &[i32], kv_f16: bool) -> Vec<f32> {
    let session = if kv_f16 { model.session(|opts| opts.kv_type = SEGNO_KV_F16).unwrap() } else { model.session_f32() };
    let seq = session.open(&greedy()).unwrap();
    let rows = tokens.iter().map(|&token| {
        session.append(seq, &[token]).unwrap();
        session.logits(seq).unwrap()
    });
    rows.flatten().collect()
}

#[test]
fn the_default_mode_stays_close_to_the_precise_one() {
    let mut files = vec![bundled_model()];
    if let Some(data) = shared_data() {
        files.push(data.join("models/TinyStories-656K-Q8_0.gguf"));
        files.push(data.join("models/stories260K.gguf"));
    }
    for file in files {
        let precise = Ctx::precise().load(&file).unwrap();
        let tokens = continuation(&precise, 40);
        let vocab = precise.info().vocab as usize;
        let expected = logits_of(&precise, &tokens, false);
        let logits = logits_of(&Ctx::new(|_| ()).unwrap().load(&file).unwrap(), &tokens, true);
        let rows: Vec<_> = logits.chunks(vocab).zip(expected.chunks(vocab)).map(|(a, b)| distance(a, b)).collect();
        let worst = rows.iter().map(|row| row.relative_l2).fold(0.0, f64::max);
        let divergence = rows.iter().map(|row| row.divergence).sum::<f64>() / rows.len() as f64;
        let lost = rows.iter().filter_map(|row| row.lost_margin).fold(0.0, f32::max);
        let name = file.file_name().unwrap().to_str().unwrap();
        println!(
            "{name}: relative L2 at most {worst:.2e}, mean divergence {divergence:.2e}, top-1 lost at margins up to {lost:.3}"
        );
        assert!(worst <= 3e-2 && divergence < 1e-3 && lost <= 0.2);
    }
}

/// `count` tokens that the model itself finds likely.
fn continuation(model: &Model, count: usize) -> Vec<i32> {
    let session = model.session_f32();
    let seq = session.open(&greedy()).unwrap();
    let start = model.info().bos.max(1);
    session.prefill(seq, &[start]).unwrap();
    let mut tokens = vec![start];
    tokens.extend(session.generate(seq, count - 1).unwrap());
    tokens
}
