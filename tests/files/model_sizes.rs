//! Sizes and shapes of a file that do not go together are refused with their key or name, and a sliding window ends the context.

use crate::common::gguf::{File, Shape};
use crate::common::{Ctx, Failed, Result};
use segno::ffi::status::*;

/// The small model after `change`: its context length, or why it is refused.
fn context_after(change: impl FnOnce(&mut File)) -> Result<u32> {
    let mut file = Shape::small().file();
    change(&mut file);
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    ctx.load_buffer(&file.bytes()).map(|model| model.info().context)
}

fn assert_refused(status: segno_status, words: &[&str], change: impl FnOnce(&mut File)) {
    assert_family_refused("llama", status, words, change);
}

/// The same of a file that says that it is of another family.
fn assert_family_refused(arch: &'static str, status: segno_status, words: &[&str], change: impl FnOnce(&mut File)) {
    let mut file = Shape { arch, ..Shape::small() }.file();
    change(&mut file);
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let loaded = ctx.load_buffer(&file.bytes());
    let Failed { status: found, message, .. } = loaded.err().expect("the load must fail");
    assert_eq!(found, status, "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn heads_that_do_not_share_the_width_are_refused() {
    for heads in [3u32, 5, 65] {
        let words = ["`llama.attention.head_count`", &format!("is {heads}"), "does not divide 64"];
        assert_refused(SEGNO_E_FORMAT, &words, |file| {
            file.remove("llama.attention.key_length");
            file.remove("llama.attention.value_length");
            file.set("llama.attention.head_count", heads);
        });
    }
}

#[test]
fn a_sliding_window_ends_the_context() {
    let window = |tokens: u32| {
        context_after(|file| {
            file.set("llama.attention.sliding_window", tokens);
        })
    };
    assert_eq!(context_after(|_| ()), Ok(256));
    assert_eq!([window(255), window(256), window(16), window(4096)], [Ok(255), Ok(256), Ok(16), Ok(256)]);
}

#[test]
fn an_epsilon_outside_its_range_is_refused() {
    for eps in [1.0f32, 2.5, -1e-6] {
        let words = ["`llama.attention.layer_norm_rms_epsilon`", &format!("is {eps}")];
        assert_refused(SEGNO_E_FORMAT, &words, |file| {
            file.set("llama.attention.layer_norm_rms_epsilon", eps);
        });
    }
}

#[test]
fn value_heads_of_another_length_are_refused() {
    for dim in [8u32, 15, 17] {
        assert_refused(SEGNO_E_UNSUPPORTED, &[&format!("value heads of {dim}"), "key heads of 16"], |file| {
            file.set("llama.attention.value_length", dim);
        });
    }
}

#[test]
fn what_only_other_families_have_is_refused() {
    for key in ["llama.attention.shared_kv_layers", "llama.embedding_length_per_layer_input"] {
        let words = [&format!("`{key}`")[..], "not supported for the family `llama`"];
        assert_refused(SEGNO_E_UNSUPPORTED, &words, |file| {
            file.set(key, 1u32);
        });
        // Converters write 0 for what a model does not have.
        let none = context_after(|file| {
            file.set(key, 0u32);
        });
        assert_eq!(none, Ok(256));
    }
}

/// Of two layers the first sees a window, so the second finds no keys that suit it; and there must be a layer before.
#[test]
fn keys_that_no_layer_has_are_refused() {
    for (sharing, layer) in [(1u32, 1), (2, 0), (9, 0)] {
        let words = [&format!("is {sharing}")[..], &format!("keys that suit layer {layer}")];
        assert_family_refused("gemma4", SEGNO_E_FORMAT, &words, |file| {
            file.set("gemma4.attention.sliding_window", 8u32).set("gemma4.attention.sliding_window_pattern", 2u32);
            file.set("gemma4.attention.shared_kv_layers", sharing);
        });
    }
    assert_family_refused("gemma4", SEGNO_E_FORMAT, &["is 577, 1 to 576"], |file| {
        file.set("gemma4.embedding_length_per_layer_input", 577u32);
    });
}

/// Layers that see everything turn but a part of their heads, which the file must tell.
#[test]
fn rotations_that_a_file_does_not_tell_are_refused() {
    assert_family_refused("gemma4", SEGNO_E_FORMAT, &["`rope_freqs.weight` is missing"], |_| ());
}

#[test]
fn a_layer_of_two_blocks_is_refused_where_layers_have_one() {
    let words = ["`nemotron_h.feed_forward_length`", "gives layer 1 a block beside its attention"];
    assert_family_refused("nemotron_h", SEGNO_E_FORMAT, &words, |file| {
        file.set("nemotron_h.attention.head_count_kv", vec![0u32, 2]);
        file.set("nemotron_h.feed_forward_length", vec![96u32, 96]);
    });
}

#[test]
fn tensors_of_the_right_number_of_elements_and_another_shape_are_refused() {
    assert_refused(SEGNO_E_FORMAT, &["`output_norm.weight`", "[32, 2]", "[64]"], |file| {
        file.tensor("output_norm.weight").dims = vec![32, 2];
    });
    assert_refused(SEGNO_E_FORMAT, &["`blk.1.ffn_down.weight`", "[64, 96]", "[96, 64]"], |file| {
        file.tensor("blk.1.ffn_down.weight").dims = vec![64, 96];
    });
    assert_refused(SEGNO_E_FORMAT, &["`blk.0.attn_k.weight`", "[32, 64]", "[64, 32]"], |file| {
        file.tensor("blk.0.attn_k.weight").dims = vec![32, 64];
    });
}
