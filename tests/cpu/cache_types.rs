//! Types of the cache: what a text's perplexity is over each.

use crate::common::perplexity::{loss, texts};
use crate::common::{Ctx, bundled_model};
use segno::backend::KvType;

/// Relative difference of perplexities, which is the difference of losses where it is small.
const MOST: f64 = 1e-3;

#[test]
fn a_cache_of_8_bits_has_the_perplexity_of_16_bits() {
    let path = bundled_model();
    let model = Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&path).unwrap();
    for (name, text) in texts(&model, 6) {
        let [exact, halves, blocks] = [KvType::F32, KvType::F16, KvType::Q8].map(|kv_type| loss(&path, kv_type, &text));
        println!(
            "{name}, {} tokens: perplexity {:.4} over f32, {:+.2e} over f16, {:+.2e} over q8",
            text.len(),
            exact.exp(),
            halves - exact,
            blocks - exact
        );
        assert!((0.5..6.0).contains(&exact), "the text says nothing of the model: {exact}");
        assert!(blocks != halves && (blocks - halves).abs() < MOST, "{name}: {blocks} for {halves}");
    }
}
