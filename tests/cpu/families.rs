//! Small random models of every family and shape against the logits that Hugging Face transformers computes for them, over all
//! positions, however the prompt is evaluated. `tests/golden/make_hf_models.py` makes the models and the logits.

use crate::common::{Ctx, Model, Session, greedy};
use segno::ffi::ctx::{SEGNO_CTX_NO_AVX512, SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::session::SEGNO_KV_F32;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Largest relative L2 distance of a row in precise mode with an F32 cache; both sides compute in single precision.
const PRECISE: f64 = 2e-5;
/// The same in default mode with F32 weights: what an F16 cache costs.
const DEFAULT: f64 = 5e-3;

/// Tokens of a prompt that are evaluated in several ways.
const MANY_WAYS: usize = 40;

/// One model with its expected logits, a row after each token of the prompt.
struct Case {
    name: String,
    file: PathBuf,
    prompt: Vec<i32>,
    expected: Vec<Vec<f32>>,
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hf");
    let index: Value = serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let prompt: Vec<i32> = serde_json::from_value(index["prompt"].clone()).unwrap();
    let cases = index["cases"].as_array().unwrap().iter().map(|case| {
        let name = case["name"].as_str().unwrap().to_owned();
        let [vocab, tokens] = ["vocab", "tokens"].map(|name| case[name].as_u64().unwrap() as usize);
        let raw = std::fs::read(folder.join(format!("{name}.f32"))).unwrap();
        let floats: Vec<f32> = raw.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
        let expected: Vec<Vec<f32>> = floats.chunks_exact(vocab).map(Vec::from).collect();
        assert_eq!(expected.len(), tokens);
        Case { file: folder.join(format!("{name}.gguf")), name, prompt: prompt[..tokens].to_vec(), expected }
    });
    let cases: Vec<Case> = cases.collect();
    assert_eq!(cases.len(), 69);
    assert!(cases.iter().any(|case| case.prompt.len() == 256));
    cases
}

/// The same with no more tokens than are evaluated in several ways.
fn short_cases() -> Vec<Case> {
    let mut cases = cases();
    for case in &mut cases {
        case.prompt.truncate(MANY_WAYS);
        case.expected.truncate(MANY_WAYS);
    }
    cases
}

fn load(case: &Case, precision: i32, flags: u32) -> Model {
    let ctx = Ctx::new(|opts| (opts.precision, opts.flags, opts.n_threads) = (precision, flags, 2)).unwrap();
    ctx.load(&case.file).unwrap()
}

/// Logits after every token, each evaluated alone.
fn token_by_token(session: &Session, prompt: &[i32]) -> Vec<Vec<f32>> {
    let seq = session.open(&greedy()).unwrap();
    let rows = prompt.iter().map(|&token| {
        session.append(seq, &[token]).unwrap();
        session.logits(seq).unwrap()
    });
    rows.collect()
}

/// Logits after every token, each by evaluating all tokens so far from the beginning.
fn prefix_by_prefix(session: &Session, prompt: &[i32]) -> Vec<Vec<f32>> {
    let rows = (1..=prompt.len()).map(|length| {
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &prompt[..length]).unwrap();
        let row = session.logits(seq).unwrap();
        session.close(seq).unwrap();
        row
    });
    rows.collect()
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// The largest relative L2 distance of a row.
fn distance(rows: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    assert_eq!(rows.len(), expected.len());
    let distances = rows.iter().zip(expected).map(|(row, expected)| {
        assert_eq!(row.len(), expected.len());
        let difference = squares(&mut row.iter().zip(expected).map(|(a, b)| a - b));
        (difference / squares(&mut expected.iter().copied())).sqrt()
    });
    // A distance that is no number must fail, so the comparison may not pass over it.
    distances.fold(0.0, |worst: f64, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) })
}

#[test]
fn every_family_gives_the_logits_of_transformers() {
    let mut wrong = Vec::new();
    for case in cases() {
        let model = load(&case, SEGNO_PRECISION_PRECISE, 0);
        let rows = token_by_token(&model.session_f32(), &case.prompt);
        let worst = distance(&rows, &case.expected);
        println!("{}: relative distance {worst:.1e}", case.name);
        if worst > PRECISE {
            wrong.push(case.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?} differ by more than {PRECISE:.0e}");
}

#[test]
fn chunks_and_instruction_sets_give_the_same_bits() {
    for case in short_cases() {
        for precision in [SEGNO_PRECISION_PRECISE, SEGNO_PRECISION_DEFAULT] {
            let model = load(&case, precision, 0);
            let expected = bits(&token_by_token(&model.session_f32(), &case.prompt));
            let whole = prefix_by_prefix(&model.session_f32(), &case.prompt);
            assert!(bits(&whole) == expected, "{}: prompts in one chunk differ", case.name);
            let session = model.session(|opts| (opts.max_prefill, opts.kv_type) = (7, SEGNO_KV_F32)).unwrap();
            let chunks = prefix_by_prefix(&session, &case.prompt);
            assert!(bits(&chunks) == expected, "{}: prompts in chunks of 7 differ", case.name);
            let narrow = load(&case, precision, SEGNO_CTX_NO_AVX512);
            let rows = token_by_token(&narrow.session_f32(), &case.prompt);
            assert!(bits(&rows) == expected, "{}: other instructions differ", case.name);
        }
    }
}

#[test]
fn the_default_mode_costs_no_more_than_its_cache() {
    for case in short_cases() {
        let model = load(&case, SEGNO_PRECISION_DEFAULT, 0);
        let session = model.session(|_| ()).unwrap();
        let rows = token_by_token(&session, &case.prompt);
        let worst = distance(&rows, &case.expected);
        println!("{}: relative distance {worst:.1e}", case.name);
        assert!(worst <= DEFAULT, "{}: {worst:.1e}", case.name);
        assert!(bits(&prefix_by_prefix(&session, &case.prompt)) == bits(&rows), "{}: chunks differ", case.name);
    }
}
