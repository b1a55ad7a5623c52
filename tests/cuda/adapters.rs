//! Adapters on a GPU: the logits of merged weights and of the processor, the same bits in any company, what a session may change. What
//! is launched for them is checked in `adapter_launches`.

use crate::common;
use crate::common::adapters::{Adapter, Form, Lora, PROMPT, bits, farthest, logits};
use crate::common::distance::distance;
use crate::common::gguf::Shape;
use crate::common::mixture::mixture;
use crate::common::{Ctx, Folder, Model, greedy, root};
use segno::ffi::ctx::{SEGNO_CTX_FAST_BATCHES, SEGNO_PRECISION_PRECISE};
use segno::ffi::device::{SEGNO_DEVICE_CPU, SEGNO_DEVICE_CUDA};
use segno::ffi::session::segno_session_opts;
use segno::ffi::status::{SEGNO_E_UNSUPPORTED, SEGNO_PENDING};
use segno::quant::DType;
use std::path::PathBuf;

/// Largest difference of a logit between an adapter beside the weights and one merged into them, and least one that adapters make.
const NEAR: f32 = 1e-3;
const FAR: f32 = 3e-2;
/// The same from the processor's, whose sums have another order.
const NEAR_PROCESSOR: f32 = 2e-3;
/// Relative distance from the processor's precise mode of a model whose activations become 8-bit blocks.
const QUANTIZED: f64 = 4e-2;

fn golden(name: &str) -> PathBuf {
    root().join(format!("tests/golden/hf/{name}.gguf"))
}

fn context(device: i32) -> Ctx {
    Ctx::new(|opts| {
        (opts.device, opts.precision) = (device, if device == SEGNO_DEVICE_CPU { SEGNO_PRECISION_PRECISE } else { 0 })
    })
    .unwrap()
}

fn written(folder: &Folder, lora: &Lora) -> PathBuf {
    let path = folder.join("adapter.gguf");
    lora.file().write(&path);
    path
}

fn merged_logits(ctx: &Ctx, base: &[u8], adapters: &[(&Lora, f32)]) -> Vec<f32> {
    let mut bytes = base.to_vec();
    adapters.iter().for_each(|(lora, scale)| lora.merge_into(&mut bytes, *scale));
    logits(&ctx.load_buffer(&bytes).unwrap().session_f32(), &[])
}

/// The small models that the backend runs.
fn names() -> Vec<String> {
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    common::launches::cuda_goldens().map(name).collect()
}

#[test]
fn every_family_gives_the_logits_of_merged_weights_and_of_the_processor() {
    if !common::gpu() {
        return;
    }
    let (folder, device, processor) =
        (Folder::new("cuda-adapters-families"), context(SEGNO_DEVICE_CUDA), context(SEGNO_DEVICE_CPU));
    for name in names() {
        let base = std::fs::read(golden(&name)).unwrap();
        let lora = Lora::of_products(&base, Form::new(5, 6), |_| true);
        let path = written(&folder, &lora);
        let of = |ctx: &Ctx| {
            let model = ctx.load(&golden(&name)).unwrap();
            let (adapter, session) = (model.adapter(&path).unwrap(), model.session_f32());
            let (adapted, plain) = (logits(&session, &[(&adapter, 0.6)]), logits(&session, &[]));
            let seq = session.open(&greedy()).unwrap();
            session.adapt(seq, &[(&adapter, 0.6)]).unwrap();
            session.prefill(seq, &PROMPT).unwrap();
            (adapted, plain, session.generate(seq, 12).unwrap())
        };
        let ((found, plain, tokens), (expected, _, expected_tokens)) = (of(&device), of(&processor));
        let off = farthest(&found, &merged_logits(&device, &base, &[(&lora, 0.6)]));
        let (from_processor, change) = (farthest(&found, &expected), farthest(&found, &plain));
        println!("{name}: off by {off:.1e}, from the processor by {from_processor:.1e}, changed by {change:.1e}");
        assert!(
            off <= NEAR && from_processor <= NEAR_PROCESSOR && change >= FAR,
            "{name}: {off:e}, {from_processor:e}, {change:e}"
        );
        assert_eq!(tokens, expected_tokens, "{name}");
    }
}

/// Every tensor by itself, so that none counts on another.
#[test]
fn each_tensor_gives_the_logits_of_merged_weights_by_itself() {
    if !common::gpu() {
        return;
    }
    let (folder, device) = (Folder::new("cuda-adapters-tensors"), context(SEGNO_DEVICE_CUDA));
    let dense = ["phi3-short", "llama-ratio4", "lfm2-plain", "qwen35-plain"];
    // Tables of gate and up in one, biases and clamped units, factors of experts, a shared expert.
    let mixtures = ["qwen3moe-plain", "qwen3moe-fused", "gptoss-plain", "gemma4-experts", "qwen2moe-plain"];
    for name in dense.into_iter().chain(mixtures) {
        let base = std::fs::read(golden(name)).unwrap();
        let model = device.load(&golden(name)).unwrap();
        let plain = logits(&model.session_f32(), &[]);
        let all = Lora::of_products(&base, Form { alpha: 60.0, ..Form::new(9, 5) }, |_| true);
        for pair in &all.pairs {
            let lora = Lora { pairs: vec![pair.clone()], ..all.clone() };
            let adapter = model.adapter(&written(&folder, &lora)).unwrap();
            // A session of its own, so that it has launches for this tensor alone.
            let found = logits(&model.session_f32(), &[(&adapter, 1.0)]);
            let (off, change) =
                (farthest(&found, &merged_logits(&device, &base, &[(&lora, 1.0)])), farthest(&found, &plain));
            // Another choice of experts is no small change.
            let is_router = pair.name.contains("ffn_gate_inp");
            assert!(
                (off <= NEAR || is_router) && change >= NEAR,
                "{name} {}: off by {off:e}, changed by {change:e}",
                pair.name
            );
        }
    }
}

#[test]
fn types_ranks_alphas_and_scales_give_the_logits_of_merged_weights() {
    if !common::gpu() {
        return;
    }
    let (folder, device) = (Folder::new("cuda-adapters-types"), context(SEGNO_DEVICE_CUDA));
    let types = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
    for (name, dtype) in ["llama-wide", "mixtral-plain"].into_iter().flat_map(|name| types.map(|dtype| (name, dtype))) {
        let base = std::fs::read(golden(name)).unwrap();
        let model = device.load(&golden(name)).unwrap();
        let session = model.session_f32();
        let plain = logits(&session, &[]);
        for (rank, alpha, scale) in [(1, 1.0, 1.5), (3, 0.0, 1.0), (16, 32.0, -0.5), (33, 8.0, 2.0), (150, 90.0, 0.3)] {
            let lora = Lora::of_products(&base, Form { seed: rank as u64, rank, alpha, dtype }, |_| true);
            let adapter = model.adapter(&written(&folder, &lora)).unwrap();
            let found = logits(&session, &[(&adapter, scale)]);
            let off = farthest(&found, &merged_logits(&device, &base, &[(&lora, scale)]));
            assert!(off <= NEAR, "{name}, {dtype}, rank {rank}, alpha {alpha}, scale {scale}: off by {off:e}");
            assert!(farthest(&found, &plain) >= FAR);
        }
    }
}

/// Four adapters of a model: of all its tensors or some, of several ranks and types.
fn four(base: &[u8]) -> [Lora; 4] {
    let attention = |name: &str| name.contains("attn_q") || name.contains("attn_v");
    [
        Lora::of_products(base, Form::new(21, 4), |_| true),
        Lora::random(base, Form { dtype: DType::F16, ..Form::new(22, 16) }, attention),
        Lora::of_products(base, Form { dtype: DType::BF16, ..Form::new(23, 7) }, |name| name.contains("ffn")),
        Lora::of_products(base, Form::new(24, 32), |_| true),
    ]
}

pub fn loaded(model: &Model, folder: &Folder, base: &[u8]) -> Vec<Adapter> {
    four(base).iter().map(|lora| model.adapter(&written(folder, lora)).unwrap()).collect()
}

fn small() -> Shape {
    Shape { hidden: 512, heads: 8, kv_heads: 2, head_dim: 64, feed_forward: 768, vocab: 384, ..Shape::small() }
}

/// Quantized models of random weights, with heads whose attention may leave floats out.
pub fn quantized() -> Vec<(&'static str, Vec<u8>)> {
    let mixed = |name: &str| match name {
        name if name.contains("attn_v") || name.contains("output") => DType::Q6_K,
        name if name.contains("ffn_down") => DType::Q8_0,
        name if name.contains("attn_q") => DType::BF16,
        _ => DType::Q4_K,
    };
    vec![
        ("Q4_0", common::random::stored(&small(), |_| DType::Q4_0).bytes()),
        ("mixed", common::random::stored(&small(), mixed).bytes()),
        ("experts, Q8_0", mixture(DType::Q8_0).bytes()),
        ("experts, Q4_0", mixture(DType::Q4_0).bytes()),
    ]
}

/// One with matrices of the sizes that kernels of few rows and large matrices take.
fn large() -> (&'static str, Vec<u8>) {
    let shape = Shape { layers: 1, hidden: 4096, heads: 32, kv_heads: 8, head_dim: 128, feed_forward: 4096, ..small() };
    ("large, Q8_0", common::random::stored(&shape, |_| DType::Q8_0).bytes())
}

#[test]
fn quantized_models_with_adapters_are_near_the_precise_processor() {
    if !common::gpu() {
        return;
    }
    let (folder, device, processor) =
        (Folder::new("cuda-adapters-quantized"), context(SEGNO_DEVICE_CUDA), context(SEGNO_DEVICE_CPU));
    for (name, base) in quantized().into_iter().chain([large()]) {
        let of = |ctx: &Ctx| {
            let model = ctx.load_buffer(&base).unwrap();
            let (adapters, session) = (loaded(&model, &folder, &base), model.session(|_| ()).unwrap());
            let set = [(&adapters[0], 1.0), (&adapters[1], 0.5), (&adapters[2], -1.0)];
            (logits(&session, &set), logits(&session, &set[..1]), logits(&session, &[]))
        };
        let (found, expected) = (of(&device), of(&processor));
        for (found, expected) in [(&found.0, &expected.0), (&found.1, &expected.1)] {
            let off = distance(found, expected).relative_l2;
            println!("{name}: {off:.1e}");
            assert!(off <= QUANTIZED, "{name}: {off:e}");
        }
        let changes = [distance(&found.0, &found.1), distance(&found.1, &found.2)].map(|change| change.relative_l2);
        assert!(changes.iter().all(|&change| change > 2.0 * QUANTIZED), "{name}: {changes:?}");
    }
}

/// Which adapters each sequence has: none, one, several, the same as a neighbour, and none again.
pub const SETS: [&[(usize, f32)]; 7] =
    [&[], &[(0, 1.0)], &[(1, 0.5), (0, 1.0)], &[(3, -0.5)], &[(3, -0.5)], &[], &[(2, 1.0), (1, 1.0), (3, 0.2)]];

pub fn set_of<'a>(adapters: &'a [Adapter], set: &[(usize, f32)]) -> Vec<(&'a Adapter, f32)> {
    set.iter().map(|&(index, scale)| (&adapters[index], scale)).collect()
}

/// Of a sequence of each set that `takes` names: the logits behind its prompt and nine tokens, all in one batch or each alone.
pub fn tale(
    model: &Model,
    adapters: &[Adapter],
    takes: &[usize],
    together: bool,
    change: impl Fn(&mut segno_session_opts),
) -> Vec<Vec<u32>> {
    let session = model.session(|opts| (opts.max_seqs = 8, change(opts)).1).unwrap();
    let open = |&number: &usize| {
        let seq = session.open(&greedy()).unwrap();
        session.adapt(seq, &set_of(adapters, SETS[number])).unwrap();
        session.append(seq, &PROMPT[number..]).unwrap();
        seq
    };
    let seqs: Vec<i32> = takes.iter().map(open).collect();
    let mut tales: Vec<Vec<u32>> = vec![Vec::new(); seqs.len()];
    while together && tales.iter().any(|tale| tale.len() < 9) {
        let short: Vec<usize> = (0..seqs.len()).filter(|&index| tales[index].len() < 9).collect();
        let listed: Vec<i32> = short.iter().map(|&index| seqs[index]).collect();
        let (tokens, statuses, result) = session.batch(&listed);
        result.unwrap();
        for (index, (token, status)) in short.into_iter().zip(tokens.into_iter().zip(statuses)) {
            if status != SEGNO_PENDING {
                tales[index].push(token as u32);
            }
        }
    }
    for (tale, &seq) in tales.iter_mut().zip(&seqs) {
        if !together {
            tale.extend(session.generate(seq, 9).unwrap().into_iter().map(|token| token as u32));
        }
        tale.extend(bits(&session.logits(seq).unwrap()));
    }
    tales
}

#[test]
fn a_sequence_gives_the_same_bits_alone_and_in_any_company() {
    if !common::gpu() {
        return;
    }
    let (folder, device) = (Folder::new("cuda-adapters-company"), context(SEGNO_DEVICE_CUDA));
    let small = ["llama-ratio4", "phi3-short", "qwen35-plain", "gemma3-plain", "qwen3moe-plain"];
    let small = small.map(|name| (name, std::fs::read(golden(name)).unwrap()));
    for (name, base) in small.into_iter().chain(quantized()).chain([large()]) {
        let model = device.load_buffer(&base).unwrap();
        let adapters = loaded(&model, &folder, &base);
        let all: Vec<usize> = (0..SETS.len()).collect();
        let alone = tale(&model, &adapters, &all, false, |_| ());
        assert_ne!(alone[0], alone[1], "{name}");
        assert!(tale(&model, &adapters, &all, true, |_| ()) == alone, "{name}: all together");
        // So many that experts have their rows sorted.
        let (twice, crowd) = ([&all[..], &all].concat(), |opts: &mut segno_session_opts| opts.max_seqs = 16);
        assert!(tale(&model, &adapters, &twice, true, crowd) == [&alone[..], &alone].concat(), "{name}: a crowd");
        for few in [&[1, 3][..], &[0, 1, 2, 6], &[5, 0, 4, 3, 2]] {
            let expected: Vec<Vec<u32>> = few.iter().map(|&number| alone[number].clone()).collect();
            assert!(tale(&model, &adapters, few, true, |_| ()) == expected, "{name}: {few:?}");
        }
        for prefill in [1, 5, 11] {
            let narrow = |opts: &mut segno_session_opts| (opts.max_prefill, opts.max_prompt) = (prefill, prefill);
            assert!(tale(&model, &adapters, &all, true, narrow) == alone, "{name}: passes of {prefill}");
        }
        let reserved = |opts: &mut segno_session_opts| opts.adapter_ranks = 100;
        assert!(tale(&model, &adapters, &all, true, reserved) == alone, "{name}: reserved ranks");
        // Rows without adapters are those of a session that has never had any.
        let bare: Vec<usize> = (0..SETS.len()).filter(|&number| SETS[number].is_empty()).collect();
        let expected: Vec<Vec<u32>> = bare.iter().map(|&number| alone[number].clone()).collect();
        assert!(tale(&model, &adapters, &bare, true, |_| ()) == expected, "{name}: none");
    }
}

#[test]
fn other_adapters_evaluate_a_sequence_anew() {
    if !common::gpu() {
        return;
    }
    let (folder, device) = (Folder::new("cuda-adapters-change"), context(SEGNO_DEVICE_CUDA));
    let base = std::fs::read(golden("llama-ratio4")).unwrap();
    let model = device.load(&golden("llama-ratio4")).unwrap();
    let mut adapters = loaded(&model, &folder, &base);
    let session = model.session(|_| ()).unwrap();
    let fresh = |set: &[(&Adapter, f32)], tokens: &[i32]| {
        let session = model.session(|_| ()).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.adapt(seq, set).unwrap();
        session.prefill(seq, tokens).unwrap();
        bits(&session.logits(seq).unwrap())
    };
    let (seq, other) = (session.open(&greedy()).unwrap(), session.open(&greedy()).unwrap());
    session.prefill(other, &PROMPT).unwrap();
    session.prefill(seq, &PROMPT).unwrap();
    let mut tokens = PROMPT.to_vec();
    // Each has matrices, or ranks, that those before had not.
    for set in [
        &[(1, 1.0)][..],
        &[(2, 0.5)],
        &[],
        &[(0, 1.0), (3, -0.5)],
        &[(1, 1.0)],
        &[(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)],
    ] {
        let set = set_of(&adapters, set);
        session.adapt(seq, &set).unwrap();
        assert_eq!(bits(&session.logits(seq).unwrap()), fresh(&set, &tokens));
        tokens.extend(session.generate(seq, 3).unwrap());
        assert_eq!(bits(&session.logits(seq).unwrap()), fresh(&set, &tokens));
        let child = session.fork(seq, None).unwrap();
        assert_eq!(bits(&session.logits(child).unwrap()), fresh(&set, &tokens), "a fork has its parent's");
        session.close(child).unwrap();
        assert_eq!(bits(&session.logits(other).unwrap()), fresh(&[], &PROMPT));
    }
    // What a sequence has outlives the handle.
    let expected = fresh(&[(&adapters[3], 1.0)], &tokens);
    session.adapt(seq, &[(&adapters[3], 1.0)]).unwrap();
    adapters.clear();
    assert_eq!(bits(&session.logits(seq).unwrap()), expected);
    session.close(seq).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &PROMPT).unwrap();
    assert_eq!(bits(&session.logits(seq).unwrap()), fresh(&[], &PROMPT), "a place that is used again has none");
}

#[test]
fn fast_batches_with_adapters_are_near_exact_ones() {
    if !common::gpu() {
        return;
    }
    let folder = Folder::new("cuda-adapters-fast");
    let fast = Ctx::new(|opts| (opts.device, opts.flags) = (SEGNO_DEVICE_CUDA, SEGNO_CTX_FAST_BATCHES)).unwrap();
    let (_, base) = large();
    let of = |ctx: &Ctx| {
        let model = ctx.load_buffer(&base).unwrap();
        let (adapters, session) = (loaded(&model, &folder, &base), model.session(|_| ()).unwrap());
        [&adapters[0], &adapters[1]].map(|adapter| logits(&session, &[(adapter, 1.0)]))
    };
    for (found, expected) in of(&fast).iter().zip(&of(&context(SEGNO_DEVICE_CUDA))) {
        let off = distance(found, expected).relative_l2;
        assert!(off <= QUANTIZED, "{off:e}");
    }
}

#[test]
fn adapters_of_the_embedding_are_refused_by_name() {
    if !common::gpu() {
        return;
    }
    let (folder, device) = (Folder::new("cuda-adapters-embedding"), context(SEGNO_DEVICE_CUDA));
    let base = std::fs::read(golden("llama-ratio4")).unwrap();
    let model = device.load(&golden("llama-ratio4")).unwrap();
    let lora = Lora::whole(&base, Form::new(3, 4), |name| name.contains("token_embd") || name.contains("attn_q"));
    let failed = model.adapter(&written(&folder, &lora)).err().expect("the adapter is refused");
    assert_eq!(failed.status, SEGNO_E_UNSUPPORTED);
    assert!(
        failed.message.contains("tensor `token_embd.weight.lora_a` cannot be applied on a gpu"),
        "{}",
        failed.message
    );
}
