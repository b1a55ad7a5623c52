//! Embeddings through the C API, and the models and vectors of tests/golden/embeddings.

use super::{Result, Session, call, root};
use segno::ffi::adapter::segno_adapter;
use segno::ffi::embed::*;
use segno::ffi::status::segno_status;
use serde_json::Value;
use std::path::PathBuf;
use std::ptr::null_mut;

/// The default options.
pub fn embed_opts() -> segno_embed_opts {
    // SAFETY: the struct holds numbers, for which zero is a value.
    let mut opts = unsafe { std::mem::zeroed() };
    segno_embed_opts_init(&mut opts, size_of::<segno_embed_opts>());
    opts
}

/// Options that give the vector of every token as the model makes it.
pub fn of_tokens() -> segno_embed_opts {
    segno_embed_opts { pooling: SEGNO_POOLING_NONE, flags: SEGNO_EMBED_RAW, ..embed_opts() }
}

impl Session {
    /// Vectors of texts, and the outcome; none of them unless that is `SEGNO_OK`.
    pub fn embed(&self, texts: &[&[i32]], opts: &segno_embed_opts) -> Result<(segno_status, Vec<Vec<f32>>)> {
        let tokens = texts.concat();
        let lengths: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        let mut dims = 0;
        let ask = |out, cap, dims: &mut usize| {
            let (tokens, lengths) = (tokens.as_ptr(), lengths.as_ptr());
            call(|err| segno_embed(self.0, tokens, lengths, texts.len(), opts, out, cap, dims, err))
        };
        ask(null_mut(), 0, &mut dims)?;
        let count = if opts.pooling == SEGNO_POOLING_NONE { tokens.len() } else { texts.len() };
        let mut out = vec![f32::NAN; count * dims];
        match ask(out.as_mut_ptr(), out.len(), &mut dims) {
            Ok(0) => Ok((0, out.chunks_exact(dims.max(1)).map(Vec::from).collect())),
            other => {
                assert!(out.iter().all(|value| value.is_nan()), "something was written");
                other.map(|status| (status, Vec::new()))
            }
        }
    }

    /// The vectors of a call that must end well.
    pub fn vectors(&self, texts: &[&[i32]], opts: &segno_embed_opts) -> Vec<Vec<f32>> {
        let (status, vectors) = self.embed(texts, opts).unwrap();
        assert_eq!(status, 0);
        vectors
    }

    /// Checks poolings and leading elements of a model of 32 elements against the vectors of its tokens.
    pub fn assert_pooled(&self, texts: &[&[i32]]) {
        let tokens = self.vectors(texts, &of_tokens());
        let mut start = 0;
        for text in texts {
            let rows = &tokens[start..start + text.len()];
            start += text.len();
            let mean = |at: usize| rows.iter().map(|row| f64::from(row[at])).sum::<f64>() / rows.len() as f64;
            let mean: Vec<f32> = (0..rows[0].len()).map(|at| mean(at) as f32).collect();
            for (pooling, expected) in [
                (SEGNO_POOLING_MODEL, &rows[rows.len() - 1]),
                (SEGNO_POOLING_LAST, &rows[rows.len() - 1]),
                (SEGNO_POOLING_FIRST, &rows[0]),
                (SEGNO_POOLING_MEAN, &mean),
            ] {
                for dims in [0, 1, 9, 32] {
                    let kept = &expected[..if dims == 0 { 32 } else { dims as usize }];
                    let raw = segno_embed_opts { pooling, dims, flags: SEGNO_EMBED_RAW, ..embed_opts() };
                    assert_eq!(self.vectors(&[text], &raw), [kept], "pooling {pooling}, {dims} elements");
                    let length = kept.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                    let found = &self.vectors(&[text], &segno_embed_opts { pooling, dims, ..embed_opts() })[0];
                    assert_eq!(found.len(), kept.len());
                    let is_near =
                        |(found, kept): (&f32, &f32)| (found - (f64::from(*kept) / length) as f32).abs() < 1e-7;
                    assert!(found.iter().zip(kept).all(is_near), "pooling {pooling}, {dims} elements");
                }
            }
        }
    }
}

/// Options of embeddings with these adapters, which the lists hold.
pub fn with<'a>(handles: &'a [*const segno_adapter], scales: &'a [f32]) -> segno_embed_opts {
    let (adapters, adapter_count, scales) = (handles.as_ptr(), handles.len(), scales.as_ptr());
    segno_embed_opts { adapters, adapter_count, scales, ..embed_opts() }
}

/// A model, and what it makes of the texts.
pub struct Case {
    pub name: String,
    pub file: PathBuf,
    /// The same model; rerankers have none.
    pub folder: PathBuf,
    pub texts: Vec<Vec<i32>>,
    /// Vectors of all tokens, one text's behind the other's, and those of the texts.
    pub tokens: Vec<Vec<f32>>,
    pub vectors: Vec<Vec<f32>>,
}

impl Case {
    /// Whether it gives scores.
    pub fn ranks(&self) -> bool {
        self.name.ends_with("-rank")
    }

    pub fn texts(&self) -> Vec<&[i32]> {
        self.texts.iter().map(Vec::as_slice).collect()
    }
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let folder = root().join("tests/golden/embeddings");
    let index: Value = serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let texts: Vec<Vec<i32>> = serde_json::from_value(index["texts"].clone()).unwrap();
    let count = texts.iter().map(Vec::len).sum::<usize>();
    let cases = index["cases"].as_array().unwrap().iter().map(|case| {
        let name = case["name"].as_str().unwrap().to_owned();
        let [hidden, dims] = ["hidden", "dims"].map(|key| case[key].as_u64().unwrap() as usize);
        let raw = std::fs::read(folder.join(format!("{name}.f32"))).unwrap();
        let floats: Vec<f32> = raw.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
        let (tokens, vectors) = floats.split_at(count * hidden);
        let rows = |values: &[f32], width| values.chunks_exact(width).map(Vec::from).collect::<Vec<_>>();
        let (tokens, vectors) = (rows(tokens, hidden), rows(vectors, dims));
        assert_eq!((tokens.len(), vectors.len()), (count, texts.len()));
        let (file, folder) = (folder.join(format!("{name}.gguf")), folder.join("folders").join(&name));
        Case { name, file, folder, texts: texts.clone(), tokens, vectors }
    });
    let cases: Vec<Case> = cases.collect();
    assert_eq!(cases.len(), 9);
    cases
}

/// The one called `name`.
pub fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}
