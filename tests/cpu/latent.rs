//! Latent attention: the same bits in any chunks and on any number of threads, whatever the projections of heads are stored as; sizes and
//! tensors that do not go together are refused by key or name. `tests/cpu/families.rs` compares with transformers, `tests/api/sequences.rs` has
//! company, forks and truncations.

use crate::common::distance::distance;
use crate::common::folders::joined_heads;
use crate::common::gguf::{Content, File, Tensor};
use crate::common::latent::{HEADS, PLAIN, RANK, ROTATED, VALUE, latent, latent_of};
use crate::common::{Ctx, Failed, Model, greedy};
use segno::ffi::ctx::{SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::status::*;
use segno::quant::DType;
use segno::quant::encode::encode;
use segno::quant::synthetic::Random;

/// Types of every kind of product: floats, pairs, with 8-bit activations, decoded.
const TYPES: [DType; 7] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::MXFP4, DType::Q5_1, DType::NVFP4];

fn load(file: &File, precision: i32, threads: u32) -> Model {
    let ctx = Ctx::new(|opts| (opts.precision, opts.n_threads) = (precision, threads)).unwrap();
    ctx.load_buffer(&file.bytes()).unwrap()
}

/// Logits after 90 tokens, in passes of at most `rows`.
fn in_chunks(model: &Model, rows: u32) -> Vec<f32> {
    let session = model.session(|opts| opts.max_prefill = rows).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, &(0..90).map(|at| (37 + at * at * 13 + at) % 101).collect::<Vec<i32>>()).unwrap();
    session.logits(seq).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(logits.iter().all(|logit| logit.is_finite()));
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn chunks_and_threads_change_no_bit() {
    // Blocks of 32 activations do not end with a head of 72.
    for (dtype, rotated) in TYPES.into_iter().map(|dtype| (dtype, ROTATED)).chain([(DType::Q8_0, 8), (DType::BF16, 8)])
    {
        let file = latent_of(dtype, rotated);
        let precise = in_chunks(&load(&file, SEGNO_PRECISION_PRECISE, 1), 512);
        for precision in [SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE] {
            let expected = in_chunks(&load(&file, precision, 1), 1);
            let apart = distance(&expected, &precise).relative_l2;
            assert!(apart < 4e-2, "{dtype}, {rotated} rotated: {apart:.1e} from the precise mode");
            for (threads, rows) in [(1, 7), (1, 64), (2, 1), (2, 64), (3, 512), (16, 1), (16, 90)] {
                let found = in_chunks(&load(&file, precision, threads), rows);
                assert!(bits(&found) == bits(&expected), "{dtype}: {threads} threads, chunks of {rows}");
            }
        }
    }
}

/// The file as converters wrote it before they parted the projection of keys and values, with that stored as `dtype`.
fn older(mut file: File, dtype: DType) -> File {
    for (key, size) in [("head_count_kv", HEADS), ("key_length", PLAIN + ROTATED), ("value_length", VALUE)] {
        set(&mut file, &format!("attention.{key}"), size as u32);
    }
    file.remove("deepseek2.attention.key_length_mla").remove("deepseek2.attention.value_length_mla");
    for layer in 0..2 {
        let mut singles = |part: &str| {
            let name = format!("blk.{layer}.attn_{part}.weight");
            let Content::Bytes(bytes) = file.tensor(&name).content.clone() else { panic!() };
            file.remove_tensor(&name);
            bytes.as_chunks::<4>().0.iter().map(|single| f32::from_le_bytes(*single)).collect::<Vec<f32>>()
        };
        let (keys, values) = (singles("k_b"), singles("v_b"));
        let joined = joined_heads(&keys, &values, PLAIN as usize, RANK as usize, HEADS as usize);
        let bytes = match dtype {
            DType::F32 => joined.iter().flat_map(|single| single.to_le_bytes()).collect(),
            _ => {
                let mut bytes = vec![0; dtype.row_bytes(joined.len() as u64).unwrap() as usize];
                encode(dtype, &joined, &mut bytes);
                bytes
            }
        };
        let (name, dims) = (format!("blk.{layer}.attn_kv_b.weight"), vec![RANK, HEADS * (PLAIN + VALUE)]);
        file.tensors.push(Tensor { name, dims, type_id: dtype.ggml_id(), content: Content::Bytes(bytes) });
    }
    file
}

/// Older files give the bits of newer ones; of a quantized projection, the part for keys keeps its values as singles.
#[test]
fn files_with_one_projection_of_keys_and_values_are_parted() {
    let logits = |file: &File, precision| in_chunks(&load(file, precision, 2), 512);
    for precision in [SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE] {
        let expected = logits(&latent(DType::F32), precision);
        assert_eq!(bits(&logits(&older(latent(DType::F32), DType::F32), precision)), bits(&expected));
        for (dtype, bound) in [(DType::F16, 2e-2), (DType::BF16, 4e-2), (DType::Q8_0, 4e-2)] {
            let found = logits(&older(latent(DType::F32), dtype), precision);
            let apart = distance(&found, &expected).relative_l2;
            assert!(apart > 0.0 && apart < bound, "{dtype}: {apart:.1e}");
        }
    }
    let mut file = older(latent(DType::F32), DType::F32);
    file.tensor("blk.1.attn_kv_b.weight").dims[1] -= 1;
    let failed = Ctx::new(|_| ()).unwrap().load_buffer(&file.bytes()).err().unwrap();
    assert!(failed.status == SEGNO_E_FORMAT && failed.message.contains("`blk.1.attn_kv_b.weight`"), "{failed:?}");
    let mut file = older(latent(DType::F32), DType::F32);
    file.add_zeros("blk.1.attn_v_b.weight", &[RANK, VALUE, HEADS]);
    let failed = Ctx::new(|_| ()).unwrap().load_buffer(&file.bytes()).err().unwrap();
    assert!(failed.status == SEGNO_E_FORMAT && failed.message.contains("`blk.1.attn_v_b.weight`"), "{failed:?}");
}

fn set(file: &mut File, key: &str, value: u32) {
    file.set(&format!("deepseek2.{key}"), value);
}

#[test]
fn what_is_wrong_with_latent_attention_is_named() {
    type Change = fn(&mut File);
    let changes: [(&str, segno_status, Change); 18] = [
        ("`deepseek2.attention.kv_lora_rank` is 0", SEGNO_E_FORMAT, |file| set(file, "attention.kv_lora_rank", 0)),
        ("`deepseek2.attention.kv_lora_rank` is missing", SEGNO_E_FORMAT, |file| {
            file.remove("deepseek2.attention.kv_lora_rank");
        }),
        ("`deepseek2.attention.kv_lora_rank` is 4294967295", SEGNO_E_FORMAT, |file| {
            set(file, "attention.kv_lora_rank", u32::MAX);
        }),
        ("`deepseek2.attention.key_length` is 96", SEGNO_E_FORMAT, |file| set(file, "attention.kv_lora_rank", 96)),
        ("`deepseek2.attention.value_length` is 128", SEGNO_E_FORMAT, |file| set(file, "attention.value_length", 128)),
        ("`deepseek2.attention.value_length_mla` is missing", SEGNO_E_FORMAT, |file| {
            file.remove("deepseek2.attention.value_length_mla");
        }),
        ("`deepseek2.rope.dimension_count` is missing", SEGNO_E_FORMAT, |file| {
            file.remove("deepseek2.rope.dimension_count");
        }),
        ("`deepseek2.rope.dimension_count` is 32, heads of queries have 32", SEGNO_E_FORMAT, |file| {
            set(file, "attention.key_length_mla", 32);
        }),
        ("`deepseek2.attention.head_count_kv` is 2", SEGNO_E_FORMAT, |file| set(file, "attention.head_count_kv", 2)),
        ("heads of 640 elements", SEGNO_E_UNSUPPORTED, |file| {
            set(file, "attention.kv_lora_rank", 608);
            set(file, "attention.key_length", 640);
            set(file, "attention.value_length", 608);
        }),
        ("`blk.0.attn_q.weight` is missing", SEGNO_E_FORMAT, |file| set(file, "attention.q_lora_rank", 0)),
        ("`blk.0.attn_q_a.weight`", SEGNO_E_FORMAT, |file| set(file, "attention.q_lora_rank", 64)),
        ("`blk.1.attn_k_b.weight` is missing", SEGNO_E_FORMAT, |file| {
            file.remove_tensor("blk.1.attn_k_b.weight");
        }),
        ("`blk.0.attn_kv_a_norm.weight` is missing", SEGNO_E_FORMAT, |file| {
            file.remove_tensor("blk.0.attn_kv_a_norm.weight");
        }),
        ("`blk.0.attn_k_b.weight`", SEGNO_E_FORMAT, |file| file.tensor("blk.0.attn_k_b.weight").dims[2] = HEADS - 1),
        ("`blk.1.attn_v_b.weight`", SEGNO_E_FORMAT, |file| file.tensor("blk.1.attn_v_b.weight").dims.swap(0, 1)),
        ("`blk.0.attn_q_b.weight`", SEGNO_E_FORMAT, |file| set(file, "attention.head_count", 8)),
        ("`blk.0.attn_kv_a_mqa.weight`", SEGNO_E_FORMAT, |file| {
            file.tensor("blk.0.attn_kv_a_mqa.weight").dims[1] = RANK;
        }),
    ];
    for (words, status, change) in changes {
        let mut file = latent(DType::F32);
        change(&mut file);
        let failed = Ctx::new(|_| ()).unwrap().load_buffer(&file.bytes()).err().expect("the load must fail");
        assert!(failed.status == status && failed.message.contains(words), "{words}: {failed:?}");
    }
}

/// Changes sizes and shapes, or puts numbers that are none into weights.
fn spoil(file: &mut File, random: &mut Random) {
    let mut below = |end: usize| random.bits() as usize % end;
    let layer = below(2);
    match below(3) {
        0 => {
            let key = [
                "attention.kv_lora_rank",
                "attention.q_lora_rank",
                "attention.key_length",
                "attention.value_length",
                "attention.key_length_mla",
                "attention.value_length_mla",
                "attention.head_count",
                "attention.head_count_kv",
                "rope.dimension_count",
            ][below(9)];
            set(file, key, [0, 1, 2, 4, 16, 31, 32, 33, 64, 96, 576, 577, 1 << 20, u32::MAX][below(14)]);
        }
        1 => {
            let name = ["q_a", "q_b", "kv_a_mqa", "k_b", "v_b", "output"][below(6)];
            let dims = &mut file.tensor(&format!("blk.{layer}.attn_{name}.weight")).dims;
            match below(4) {
                0 => dims.push(1),
                1 => _ = dims.pop(),
                2 => dims[0] = [1, 32, 63, 64, 128][below(5)],
                _ => *dims.last_mut().unwrap() = [1, 3, 4, 5, u64::MAX / 2][below(5)],
            }
        }
        _ => {
            let name = ["k_b", "v_b", "kv_a_norm", "q_b"][below(4)];
            let Content::Bytes(bytes) = &mut file.tensor(&format!("blk.{layer}.attn_{name}.weight")).content else {
                panic!()
            };
            let at = below(bytes.len() - 64);
            bytes[at..at + 64].fill([0, 0x7f, 0xff][below(3)]);
        }
    }
}

#[test]
fn hostile_sizes_end_in_a_model_or_an_error() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let whole = latent(DType::Q8_0);
    let (mut random, mut refused, mut decoded) = (Random::new(43), 0, 0);
    for case in 0..3000 {
        let mut file = whole.clone();
        for _ in 0..1 + random.bits() % 2 {
            spoil(&mut file, &mut random);
        }
        let model = match ctx.load_buffer(&file.bytes()) {
            Ok(model) => model,
            Err(Failed { status, message, .. }) => {
                let known = [SEGNO_E_FORMAT, SEGNO_E_UNSUPPORTED, SEGNO_E_OUT_OF_MEMORY].contains(&status);
                assert!(known && !message.contains('\n') && message.len() < 1024, "case {case}: {status} {message}");
                refused += 1;
                continue;
            }
        };
        let session = model.session(|opts| opts.kv_tokens = 64).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.append(seq, &[5, 6, 7, 8, 9]).unwrap();
        assert_eq!(session.logits(seq).unwrap().len(), 101, "case {case}");
        decoded += 1;
    }
    println!("{refused} refused, {decoded} decoded");
    assert!(refused > 1000 && decoded > 500);
}
