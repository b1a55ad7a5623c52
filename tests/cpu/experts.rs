//! Models with experts: the same bits in any chunks and on any number of threads, whatever their experts are stored as; hostile routers and tables
//! of experts end in a model or an error that names what is wrong. `tests/api/sequences.rs` has company, forks and truncations.

use crate::common::gguf::{Content, File, Shape};
use crate::common::mixture::{CHOSEN, EXPERTS, WIDTH, mixture, random_tensor};
use crate::common::{Ctx, Failed, Folder, Model, Session, Watch, call, greedy, model_opts};
use segno::ffi::ctx::{SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::status::*;
use segno::format::Gguf;
use segno::quant::DType;
use segno::quant::synthetic::Random;

/// Types of every kind of product: floats, pairs, with 8-bit activations, decoded.
const TYPES: [DType; 7] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::MXFP4, DType::Q5_1, DType::NVFP4];

fn load(file: &File, precision: i32, threads: u32) -> Model {
    let ctx = Ctx::new(|opts| (opts.precision, opts.n_threads) = (precision, threads)).unwrap();
    ctx.load_buffer(&file.bytes()).unwrap()
}

fn prompt(len: i32) -> Vec<i32> {
    (0..len).map(|at| (37 + at * at * 13 + at) % 101).collect()
}

fn bits(logits: Vec<f32>) -> Vec<u32> {
    assert!(logits.iter().all(|logit| logit.is_finite()));
    logits.into_iter().map(f32::to_bits).collect()
}

/// Logits after all of `tokens`, in passes of at most `rows`.
fn in_chunks(model: &Model, tokens: &[i32], rows: u32) -> Vec<u32> {
    let session = model.session(|opts| opts.max_prefill = rows).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.append(seq, tokens).unwrap();
    bits(session.logits(seq).unwrap())
}

/// The same, a token at a time.
fn one_by_one(session: &Session, tokens: &[i32]) -> Vec<u32> {
    let seq = session.open(&greedy()).unwrap();
    let mut last = Vec::new();
    for &token in tokens {
        session.append(seq, &[token]).unwrap();
        last = session.logits(seq).unwrap();
    }
    bits(last)
}

#[test]
fn chunks_and_threads_change_no_bit() {
    let tokens = prompt(90);
    for dtype in TYPES {
        let file = mixture(dtype);
        for precision in [SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE] {
            let expected = one_by_one(&load(&file, precision, 1).session(|_| ()).unwrap(), &tokens);
            for (threads, rows) in [(1, 7), (1, 64), (2, 1), (2, 64), (3, 512)] {
                let found = in_chunks(&load(&file, precision, threads), &tokens, rows);
                assert!(found == expected, "{dtype}: {threads} threads, chunks of {rows}");
            }
        }
    }
}

/// A factor for each expert of a projection is that on all of its weights.
#[test]
fn scales_of_experts_are_factors_on_their_weights() {
    let factors: Vec<f32> = (0..EXPERTS).map(|expert| [0.5, 2.0, 1.0][expert as usize % 3]).collect();
    let (mut scaled, mut folded) = (mixture(DType::F32), mixture(DType::F32));
    for name in ["blk.0.ffn_down_exps", "blk.1.ffn_up_exps"] {
        scaled.add_f32(&format!("{name}.scale"), &factors);
        let Content::Bytes(bytes) = &mut folded.tensor(&format!("{name}.weight")).content else { panic!() };
        let each = bytes.len() / factors.len();
        for (weights, factor) in bytes.chunks_exact_mut(each).zip(&factors) {
            for weight in weights.as_chunks_mut::<4>().0 {
                *weight = (f32::from_le_bytes(*weight) * factor).to_le_bytes();
            }
        }
    }
    let logits = |file: &File| in_chunks(&load(file, SEGNO_PRECISION_DEFAULT, 2), &prompt(20), 512);
    // Powers of two change no rounding.
    assert!(logits(&scaled) == logits(&folded) && logits(&scaled) != logits(&mixture(DType::F32)));
}

/// Tables of experts become another type as other matrices do; routers stay what they are. What is saved is the same model.
#[test]
fn tables_are_quantized_and_saved_while_routers_stay() {
    let folder = Folder::new("experts-quantized");
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    let mut watch = Watch::default();
    let mut opts = model_opts(0, &mut watch);
    opts.quantize = segno::ffi::model::SEGNO_TYPE_Q8_0;
    let (_, model) = ctx.load_buffer_with(&mixture(DType::F32).bytes(), &opts).unwrap();
    let path = folder.join("saved.gguf");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    call(|err| segno::ffi::model::segno_model_save(model.0, name.as_ptr(), std::ptr::null(), err)).unwrap();
    let saved = Gguf::open(&path, true, &mut |_| Ok(())).unwrap();
    let type_of = |name: &str| DType::from_ggml(saved.tensor(name).unwrap().type_id);
    assert_eq!(type_of("blk.1.ffn_down_exps.weight"), Some(DType::Q8_0));
    assert_eq!(type_of("blk.1.ffn_gate_inp.weight"), Some(DType::F32));
    let tokens = prompt(30);
    assert!(in_chunks(&ctx.load(&path).unwrap(), &tokens, 512) == in_chunks(&model, &tokens, 512));
}

fn refusal(file: &File) -> Failed {
    Ctx::new(|_| ()).unwrap().load_buffer(&file.bytes()).err().expect("the load must fail")
}

#[test]
fn what_is_wrong_with_experts_is_named() {
    type Change = fn(&mut File);
    let changes: [(&str, segno_status, Change); 15] = [
        ("`qwen2moe.expert_used_count` is 7 of 6 experts", SEGNO_E_FORMAT, |file| {
            set(file, "expert_used_count", EXPERTS as u32 + 1)
        }),
        ("`qwen2moe.expert_used_count` is 0", SEGNO_E_FORMAT, |file| set(file, "expert_used_count", 0)),
        ("`qwen2moe.expert_used_count` is missing", SEGNO_E_FORMAT, |file| {
            file.remove("qwen2moe.expert_used_count");
        }),
        ("`qwen2moe.expert_count` is 4000000000", SEGNO_E_FORMAT, |file| set(file, "expert_count", 4_000_000_000)),
        ("`blk.0.ffn_gate_inp.weight`", SEGNO_E_FORMAT, |file| set(file, "expert_count", 8)),
        ("`qwen2moe.expert_group_count` is 4, which does not divide 6 experts", SEGNO_E_FORMAT, |file| {
            set(file, "expert_group_count", 4);
        }),
        ("`qwen2moe.expert_group_used_count` is 1 of 6 groups", SEGNO_E_FORMAT, |file| {
            set(file, "expert_group_count", 6);
            set(file, "expert_group_used_count", 1);
        }),
        ("`qwen2moe.expert_gating_func` is 4", SEGNO_E_UNSUPPORTED, |file| set(file, "expert_gating_func", 4)),
        ("`qwen2moe.expert_weights_scale` is not finite", SEGNO_E_FORMAT, |file| {
            file.set("qwen2moe.expert_weights_scale", f32::INFINITY);
        }),
        ("`blk.1.ffn_up_exps.weight`", SEGNO_E_FORMAT, |file| file.tensor("blk.1.ffn_up_exps.weight").dims[2] += 1),
        ("`blk.0.ffn_down_exps.weight`", SEGNO_E_FORMAT, |file| {
            file.tensor("blk.0.ffn_down_exps.weight").dims.swap(0, 2)
        }),
        ("`blk.0.ffn_gate_exps.weight` is missing", SEGNO_E_FORMAT, |file| {
            file.remove_tensor("blk.0.ffn_gate_exps.weight");
        }),
        ("`blk.0.ffn_gate_shexp.weight`", SEGNO_E_UNSUPPORTED, |file| {
            file.remove("qwen2moe.expert_shared_feed_forward_length");
        }),
        ("`blk.0.exp_probs_b.bias`", SEGNO_E_UNSUPPORTED, |file| {
            file.add_zeros("blk.0.exp_probs_b.bias", &[EXPERTS]);
        }),
        ("`blk.1.ffn_up_exps.scale`", SEGNO_E_FORMAT, |file| {
            file.add_zeros("blk.1.ffn_up_exps.scale", &[EXPERTS - 1]);
        }),
    ];
    for (words, status, change) in changes {
        let mut file = mixture(DType::Q8_0);
        change(&mut file);
        let failed = refusal(&file);
        assert!(failed.status == status && failed.message.contains(words), "{words}: {failed:?}");
    }
    let mut file = Shape { arch: "qwen2", ..Shape::small() }.file();
    file.set("qwen2.expert_count", 8u32);
    let failed = refusal(&file);
    assert!(failed.status == SEGNO_E_UNSUPPORTED && failed.message.contains("8 experts"), "{failed:?}");
}

fn set(file: &mut File, key: &str, value: u32) {
    file.set(&format!("qwen2moe.{key}"), value);
}

/// Numbers that are none, or that leave nothing of others.
const ODD: [f32; 6] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45, 0.0];

/// Changes the router, the tables of experts, or what the header says of them.
fn spoil(file: &mut File, random: &mut Random) {
    let mut below = |end: usize| random.bits() as usize % end;
    let layer = below(2);
    match below(6) {
        0 => {
            let key =
                ["count", "used_count", "group_count", "group_used_count", "shared_count", "gating_func"][below(6)];
            let value = [0, 1, 2, 3, 5, 6, 7, 63, 64, 1024, 1025, u32::MAX][below(12)];
            set(file, &format!("expert_{key}"), value);
        }
        1 => {
            let key = [
                "expert_feed_forward_length",
                "expert_shared_feed_forward_length",
                "leading_dense_block_count",
                "interleave_moe_layer_step",
            ][below(4)];
            set(file, key, [0, 1, 2, 63, 65, 96, u32::MAX][below(7)]);
        }
        2 => {
            let name = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp"][below(4)];
            let dims = &mut file.tensor(&format!("blk.{layer}.{name}.weight")).dims;
            match below(4) {
                0 => dims.push(1),
                1 => _ = dims.pop(),
                2 => dims[0] = [1, 32, 63, 64, 128][below(5)],
                _ => *dims.last_mut().unwrap() = [1, 5, 6, 7, u64::MAX / 2][below(5)],
            }
        }
        3 => {
            let values: Vec<f32> = (0..EXPERTS).map(|_| ODD[below(6)]).collect();
            file.add_f32(&format!("blk.{layer}.ffn_{}_exps.scale", ["gate", "up", "down"][below(3)]), &values);
        }
        4 => {
            let name = format!("blk.{layer}.ffn_gate_inp.weight");
            file.remove_tensor(&name);
            let mut table = random_tensor(name, vec![WIDTH, EXPERTS], DType::F32, random);
            let Content::Bytes(bytes) = &mut table.content else { panic!() };
            for _ in 0..1 + random.bits() % 9 {
                let at = random.bits() as usize % (bytes.len() / 4);
                bytes[4 * at..4 * at + 4].copy_from_slice(&ODD[random.bits() as usize % 6].to_le_bytes());
            }
            file.tensors.push(table);
        }
        _ => {
            let name = format!("blk.{layer}.ffn_gate_inp.weight");
            let Content::Bytes(bytes) = &mut file.tensor(&name).content else { panic!() };
            bytes.fill([0, 0x7f, 0xff][below(3)]);
        }
    }
}

/// Ten thousand routers and tables of experts: each is refused in a line, or decodes some tokens, with logits that may be no numbers.
#[test]
fn hostile_routers_end_in_a_model_or_an_error() {
    let ctx = Ctx::new(|opts| opts.n_threads = 1).unwrap();
    let whole = mixture(DType::Q8_0);
    let (mut random, mut refused, mut decoded) = (Random::new(41), 0, 0);
    for case in 0..10_000 {
        let mut file = whole.clone();
        for _ in 0..1 + random.bits() % 3 {
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
        if let Err(failed) = session.step(seq) {
            assert_ne!(failed.status, SEGNO_E_PANIC, "case {case}: {}", failed.message);
        }
        decoded += 1;
    }
    println!("{refused} refused, {decoded} decoded");
    assert!(refused > 2000 && decoded > 1000 && CHOSEN == 2);
}
