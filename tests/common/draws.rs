//! Recorded cases of the sampler, which `tests/golden/make_sample.py` wrote.

use segno::sample::Options;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;

pub struct Golden {
    pub vectors: HashMap<String, Vec<f32>>,
    pub elementary: Vec<[u64; 3]>,
    pub cases: Vec<Value>,
}

impl Golden {
    pub fn load() -> Golden {
        let dir = super::root().join("tests/golden/sample");
        let bytes = fs::read(dir.join("logits.f32")).unwrap();
        let mut floats = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let mut index: Value = serde_json::from_slice(&fs::read(dir.join("cases.json")).unwrap()).unwrap();
        let vector = |entry: &Value| {
            let count = entry[1].as_u64().unwrap() as usize;
            (entry[0].as_str().unwrap().to_owned(), floats.by_ref().take(count).collect())
        };
        let vectors = index["logits"].as_array().unwrap().iter().map(vector).collect();
        let bits = |entry: &Value| [0, 1, 2].map(|at| entry[at].as_str().unwrap().parse().unwrap());
        let elementary = index["elementary"].as_array().unwrap().iter().map(bits).collect();
        let Value::Array(cases) = index["cases"].take() else { panic!("no cases") };
        Golden { vectors, elementary, cases }
    }

    pub fn logits(&self, case: &Value) -> &[f32] {
        &self.vectors[case["logits"].as_str().unwrap()]
    }
}

pub fn history(case: &Value) -> Vec<i32> {
    case["history"].as_array().into_iter().flatten().map(int).collect()
}

/// The case's options; what it does not name is off.
pub fn options(case: &Value) -> Options {
    let mut options = off();
    for (name, value) in case["options"].as_object().unwrap() {
        match name.as_str() {
            "temperature" => options.temperature = float(value),
            "top_p" => options.top_p = float(value),
            "min_p" => options.min_p = float(value),
            "typical_p" => options.typical_p = float(value),
            "repeat_penalty" => options.repeat_penalty = float(value),
            "frequency_penalty" => options.frequency_penalty = float(value),
            "presence_penalty" => options.presence_penalty = float(value),
            "top_k" => options.top_k = int(value),
            "penalty_last_n" => options.penalty_last_n = int(value),
            "bias" => {
                let entry = |entry: &Value| (int(&entry[0]), entry[1].as_f64().map_or(f32::NEG_INFINITY, |b| b as f32));
                options.bias = value.as_array().unwrap().iter().map(entry).collect();
            }
            other => panic!("unknown option {other}"),
        }
    }
    options.validate(50).unwrap();
    options
}

pub fn int(value: &Value) -> i32 {
    value.as_i64().unwrap() as i32
}

pub fn float(value: &Value) -> f32 {
    value.as_f64().unwrap() as f32
}

/// All filters and penalties off.
pub fn off() -> Options {
    Options { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, ..Options::defaults() }
}
