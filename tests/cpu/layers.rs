//! Layers that differ in their heads, the size of these and their feed-forward blocks, by lists in the file: logits against the definition in double
//! precision, the same bits in any chunks, as much cache as the layers need together; lists that do not fit are refused by their key.

use crate::common::distance::distance;
use crate::common::gguf::{File, Value, parsed};
use crate::common::layers::{LAYERS, Uneven};
use crate::common::passes::limits;
use crate::common::{Ctx, Failed, Model, greedy};
use segno::arch::{Arch, Hparams};
use segno::backend::{Backend, Limits, cpu};
use segno::ffi::ctx::{SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::status::*;
use segno::plan::build::build;

/// More than a page of the cache.
fn tokens() -> Vec<i32> {
    (0..45).map(|at| (37 + at * at * 13 + at) % 101).collect()
}

fn load(file: &File, precision: i32, threads: u32) -> Model {
    let ctx = Ctx::new(|opts| (opts.precision, opts.n_threads) = (precision, threads)).unwrap();
    ctx.load_buffer(&file.bytes()).unwrap()
}

#[test]
fn logits_are_those_of_the_definition() {
    let model = Uneven::new(&LAYERS);
    let expected = model.logits(&tokens());
    for (precision, bound) in [(SEGNO_PRECISION_PRECISE, 2e-6), (SEGNO_PRECISION_DEFAULT, 2e-6)] {
        let session = load(&model.file(), precision, 2).session_f32();
        let seq = session.open(&greedy()).unwrap();
        for (position, (token, expected)) in tokens().into_iter().zip(&expected).enumerate() {
            session.append(seq, &[token]).unwrap();
            let expected: Vec<f32> = expected.iter().map(|logit| *logit as f32).collect();
            let apart = distance(&session.logits(seq).unwrap(), &expected).relative_l2;
            assert!(apart < bound, "position {position}: {apart:.1e}");
        }
    }
}

#[test]
fn chunks_and_threads_change_no_bit() {
    let file = Uneven::new(&LAYERS).file();
    let in_chunks = |precision: i32, threads: u32, rows: u32| {
        let session = load(&file, precision, threads).session(|opts| opts.max_prefill = rows).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, &tokens()).unwrap();
        session.logits(seq).unwrap().into_iter().map(f32::to_bits).collect::<Vec<u32>>()
    };
    for precision in [SEGNO_PRECISION_PRECISE, SEGNO_PRECISION_DEFAULT] {
        let expected = in_chunks(precision, 1, 1);
        for (threads, rows) in [(1, 7), (2, 1), (3, 16), (2, 45)] {
            assert!(in_chunks(precision, threads, rows) == expected, "{threads} threads, chunks of {rows}");
        }
    }
}

#[test]
fn the_cache_takes_what_the_layers_need_together() {
    let gguf = parsed(&Uneven::new(&LAYERS).file().bytes());
    let arch = Arch::find("llama").unwrap();
    let program = std::sync::Arc::new(build(&gguf, &arch, &Hparams::read(gguf.metadata(), &arch).unwrap()).unwrap());
    let limits = Limits { rows: 8, context: 96, ..limits(&program, 96, 1) };
    let cpu =
        cpu::Cpu::new(&cpu::Options { threads: 1, precise: false, allow_avx512: true, gives_way: false }).unwrap();
    let elements: usize = LAYERS.iter().map(|layer| 2 * layer.kv_heads * layer.head_dim).sum();
    assert_eq!(cpu.memory(&program, &limits).unwrap().kv, (3 * 32 * elements * 2) as u64);
}

#[test]
fn a_model_tells_the_most_of_any_layer() {
    let info = load(&Uneven::new(&LAYERS).file(), SEGNO_PRECISION_DEFAULT, 1).info();
    assert_eq!((info.layers, info.heads, info.kv_heads, info.head_dim), (4, 6, 6, 128));
}

#[test]
fn lists_with_one_number_are_that_number() {
    let even = [LAYERS[0]; 3];
    let listed = Uneven::new(&even).file();
    let mut plain = Uneven::new(&even).file();
    for (key, size) in [
        ("attention.head_count", 4u32),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("feed_forward_length", 96),
    ] {
        plain.set(&format!("llama.{key}"), size);
    }
    let logits = |file: &File| {
        let session = load(file, SEGNO_PRECISION_DEFAULT, 1).session_f32();
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, &tokens()).unwrap();
        session.logits(seq).unwrap()
    };
    assert_eq!(logits(&listed), logits(&plain));
}

#[test]
fn lists_that_do_not_fit_are_refused_by_their_key() {
    let refused = |status, words: &[&str], key: &str, value: Value| {
        let mut file = Uneven::new(&LAYERS).file();
        file.set(&format!("llama.{key}"), value);
        let Failed { status: found, message, .. } =
            Ctx::precise().load_buffer(&file.bytes()).err().expect("the load must fail");
        assert_eq!(found, status, "{message}");
        words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is not in: {message}"));
    };
    for key in ["attention.head_count", "attention.head_count_kv", "attention.key_length", "feed_forward_length"] {
        let named = format!("`llama.{key}`");
        for length in [1, 3, 5] {
            let words = [named.as_str(), &format!("has {length} elements for 4 layers")];
            refused(SEGNO_E_FORMAT, &words, key, vec![4u32; length].into());
        }
        refused(SEGNO_E_FORMAT, &[&named, "is 0, 1 to"], key, vec![4u32, 2, 0, 1].into());
        refused(SEGNO_E_FORMAT, &[&named, "no size"], key, vec![4.0f32; 4].into());
        refused(SEGNO_E_FORMAT, &[&named, "no size"], key, vec![4i32, -4, 4, 4].into());
        refused(SEGNO_E_FORMAT, &[&named], key, vec!["four"; 4].into());
    }
    let words = ["`llama.attention.head_count_kv`", "is 2, which does not divide 3 heads"];
    refused(SEGNO_E_FORMAT, &words, "attention.head_count_kv", vec![2u32, 1, 6, 2].into());
    refused(
        SEGNO_E_UNSUPPORTED,
        &["value heads of 16 beside key heads of 20"],
        "attention.value_length",
        vec![16u32, 64, 16, 128].into(),
    );
    // What fits as sizes does not fit the tensors.
    refused(SEGNO_E_FORMAT, &["`blk.2.attn_k.weight`"], "attention.head_count_kv", vec![2u32, 1, 3, 1].into());
    refused(SEGNO_E_FORMAT, &["`blk.1.ffn_gate.weight`"], "feed_forward_length", 96u32.into());
    // Half of the widest heads have no pair.
    refused(
        SEGNO_E_FORMAT,
        &["`llama.rope.dimension_count`", "is 20, heads have 16"],
        "rope.dimension_count",
        20u32.into(),
    );
}

#[test]
fn heads_of_a_size_that_nobody_tells_are_refused_where_their_number_differs() {
    let mut file = Uneven::new(&LAYERS).file();
    file.remove("llama.attention.key_length").remove("llama.attention.value_length");
    let Failed { message, .. } = Ctx::precise().load_buffer(&file.bytes()).err().expect("the load must fail");
    let problem = "`llama.attention.key_length` is missing, and `attention.head_count` differs between layers";
    assert!(message.contains(problem), "{message}");
}
