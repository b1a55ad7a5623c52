//! A model and heads that draft for it by vectors between its layers, of `tests/golden/hf` and `tests/golden/eagle`.

use super::assistants::{Golden, golden_at};
use super::gguf::{Content, File};
use super::predictors::{file_at, fill};
use super::root;
use std::path::PathBuf;

/// Tokens of the golden model, and elements of its vectors.
pub const VOCAB: usize = 131;
pub const WIDTH: usize = 32;
/// Tokens that the head `plain` knows.
pub const KNOWN: usize = 50;

/// The model's file.
pub fn model_path() -> PathBuf {
    root().join("tests/golden/hf/mistral-plain.gguf")
}

/// The file of the head `name`.
pub fn path(name: &str) -> PathBuf {
    root().join(format!("tests/golden/eagle/{name}.gguf"))
}

/// What the head `name` gives, which has so many logits.
pub fn golden(name: &str, logits: usize) -> Golden {
    golden_at("eagle", name, &format!("/heads/{name}"), logits)
}

/// A model that thinks the same after every text, and a head that thinks as it does, of tokens in another order.
pub fn alike() -> [File; 2] {
    let (mut model, mut head) = (file_at(&model_path()), file_at(&path("plain")));
    for layer in 0..3 {
        [".attn_output.weight", ".ffn_down.weight"]
            .into_iter()
            .for_each(|end| fill(&mut model, &format!("blk.{layer}{end}"), |_| 0.0));
    }
    fill(&mut model, "token_embd.weight", |place| 1.0 + (place % WIDTH) as f32);
    ["blk.0.attn_output.weight", "blk.0.ffn_down.weight"].into_iter().for_each(|name| fill(&mut head, name, |_| 0.0));
    // The vector of the second of three layers.
    fill(&mut head, "fc.weight", |place| f32::from(place % (3 * WIDTH) == WIDTH + place / (3 * WIDTH)));
    head.tensor("output_norm.weight").content = model.tensor("output_norm.weight").content.clone();
    let Content::Bytes(rows) = model.tensor("output.weight").content.clone() else { panic!("its bytes") };
    let turned: Vec<u8> = rows.chunks(4 * WIDTH).rev().flatten().copied().collect();
    let output = head.tensor("output.weight");
    (output.dims, output.content) = (vec![WIDTH as u64, VOCAB as u64], Content::Bytes(turned));
    let tokens = (0..VOCAB as i64).rev().flat_map(i64::to_le_bytes).collect();
    let known = head.tensor("d2t");
    (known.dims, known.content) = (vec![VOCAB as u64], Content::Bytes(tokens));
    [model, head]
}
