//! Adapters through the C API: the logits of weights into which they are merged, the same bits in any company, and the rules of a session. Models
//! are those of `tests/golden/make_hf_models.py`; adapters are random, and merged here in double precision.

use crate::common::adapters::{Adapter, Form, Lora, PROMPT, Pair, bits, farthest, logits};
use crate::common::{Ctx, Folder, Model, greedy, root};
use segno::ffi::ctx::{SEGNO_CTX_NO_AVX512, SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::session::segno_session_opts;
use segno::ffi::status::*;
use segno::quant::DType;
use std::path::{Path, PathBuf};

/// Largest difference of a logit between an adapter beside the weights and one merged into them.
const NEAR: f32 = 1e-3;
/// Least difference of some logit that an adapter must make, so that leaving it out shows.
const FAR: f32 = 3e-2;

fn golden(name: &str) -> PathBuf {
    root().join(format!("tests/golden/hf/{name}.gguf"))
}

/// All models of families, whose weights are F32.
fn names() -> Vec<String> {
    let files = std::fs::read_dir(root().join("tests/golden/hf")).unwrap().map(|entry| entry.unwrap().path());
    let models = files.filter(|path| path.extension().is_some_and(|end| end == "gguf"));
    let mut names: Vec<String> = models.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert!(names.len() >= 60);
    names
}

fn load(path: &Path, precision: i32, flags: u32, threads: u32) -> Model {
    let ctx = Ctx::new(|opts| (opts.precision, opts.flags, opts.n_threads) = (precision, flags, threads)).unwrap();
    ctx.load(path).unwrap()
}

fn written(folder: &Folder, name: &str, lora: &Lora) -> PathBuf {
    let path = folder.join(name);
    lora.file().write(&path);
    path
}

/// The logits of a model into which adapters are merged.
fn merged_logits(folder: &Folder, base: &[u8], precision: i32, adapters: &[(&Lora, f32)]) -> Vec<f32> {
    let (mut bytes, path) = (base.to_vec(), folder.join("merged.gguf"));
    adapters.iter().for_each(|(lora, scale)| lora.merge_into(&mut bytes, *scale));
    std::fs::write(&path, bytes).unwrap();
    logits(&load(&path, precision, 0, 2).session_f32(), &[])
}

#[test]
fn every_family_gives_the_logits_of_merged_weights() {
    let folder = Folder::new("adapters-families");
    for name in names() {
        let base = std::fs::read(golden(&name)).unwrap();
        let lora = Lora::whole(&base, Form::new(5, 6), |_| true);
        let path = written(&folder, "adapter.gguf", &lora);
        for precision in [SEGNO_PRECISION_PRECISE, SEGNO_PRECISION_DEFAULT] {
            let model = load(&golden(&name), precision, 0, 2);
            let adapter = model.adapter(&path).unwrap();
            let session = model.session_f32();
            let found = logits(&session, &[(&adapter, 0.6)]);
            let merged = merged_logits(&folder, &base, precision, &[(&lora, 0.6)]);
            let (off, change) = (farthest(&found, &merged), farthest(&found, &logits(&session, &[])));
            println!("{name}: {} tensors, off by {off:.1e}, changed by {change:.1e}", lora.pairs.len());
            assert!(off <= NEAR && change >= FAR, "{name}: off by {off:e}, changed by {change:e}");
        }
    }
}

/// Every tensor by itself, so that none counts on another.
#[test]
fn each_tensor_gives_the_logits_of_merged_weights_by_itself() {
    let folder = Folder::new("adapters-tensors");
    let models = [
        "phi3-short",
        "llama-ratio4",
        "lfm2-plain",
        "qwen35-plain",
        "deepseekv2-lite",
        "gemma4-small",
        "mixtral-plain",
    ];
    for name in models {
        let base = std::fs::read(golden(name)).unwrap();
        let model = load(&golden(name), SEGNO_PRECISION_PRECISE, 0, 2);
        let (session, mut form) = (model.session_f32(), Form::new(9, 5));
        let plain = logits(&session, &[]);
        form.alpha = 60.0;
        let all = Lora::whole(&base, form, |_| true);
        // Layers that read the keys and values of another one have their own in the file, and do not run them.
        let is_idle = |pair: &&Pair| {
            name.starts_with("gemma4")
                && ["blk.4.attn_k", "blk.4.attn_v", "blk.5.attn_k", "blk.5.attn_v"]
                    .iter()
                    .any(|part| pair.name.starts_with(part))
        };
        for pair in all.pairs.iter().filter(|pair| !is_idle(pair)) {
            let lora = Lora { pairs: vec![pair.clone()], ..all.clone() };
            let adapter = model.adapter(&written(&folder, "adapter.gguf", &lora)).unwrap();
            let found = logits(&session, &[(&adapter, 1.0)]);
            let merged = merged_logits(&folder, &base, SEGNO_PRECISION_PRECISE, &[(&lora, 1.0)]);
            let (off, change) = (farthest(&found, &merged), farthest(&found, &plain));
            assert!(off <= NEAR && change >= NEAR, "{name} {}: off by {off:e}, changed by {change:e}", pair.name);
        }
    }
}

#[test]
fn types_ranks_alphas_and_scales_give_the_logits_of_merged_weights() {
    let folder = Folder::new("adapters-types");
    // Tables of experts too, and a head that is the embedding.
    let names = ["llama-wide", "mixtral-plain", "qwen3-tied"];
    let types = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0];
    for (name, dtype) in names.into_iter().flat_map(|name| types.map(|dtype| (name, dtype))) {
        let base = std::fs::read(golden(name)).unwrap();
        let model = load(&golden(name), SEGNO_PRECISION_PRECISE, 0, 2);
        let session = model.session_f32();
        for (rank, alpha, scale) in [(1, 1.0, 1.5), (3, 0.0, 1.0), (16, 32.0, -0.5), (33, 8.0, 2.0), (64, 90.0, 0.3)] {
            let lora = Lora::whole(&base, Form { seed: rank as u64, rank, alpha, dtype }, |_| true);
            let adapter = model.adapter(&written(&folder, "adapter.gguf", &lora)).unwrap();
            let found = logits(&session, &[(&adapter, scale)]);
            let merged = merged_logits(&folder, &base, SEGNO_PRECISION_PRECISE, &[(&lora, scale)]);
            let off = farthest(&found, &merged);
            assert!(off <= NEAR, "{name}, {dtype}, rank {rank}, alpha {alpha}, scale {scale}: off by {off:e}");
            assert!(farthest(&found, &logits(&session, &[])) >= FAR);
        }
    }
}

/// Four adapters of a model: of all its tensors or some, of several ranks.
fn four(base: &[u8]) -> [Lora; 4] {
    let attention = |name: &str| name.contains("attn_q") || name.contains("attn_v");
    [
        Lora::whole(base, Form::new(21, 4), |_| true),
        Lora::random(base, Form { dtype: DType::F16, ..Form::new(22, 16) }, attention),
        Lora::whole(base, Form { dtype: DType::BF16, ..Form::new(23, 7) }, |name| name.contains("ffn")),
        Lora::whole(base, Form::new(24, 32), |_| true),
    ]
}

fn loaded(model: &Model, folder: &Folder, base: &[u8]) -> Vec<Adapter> {
    let all = four(base);
    all.iter().map(|lora| model.adapter(&written(folder, "adapter.gguf", lora)).unwrap()).collect()
}

#[test]
fn several_adapters_of_a_sequence_give_the_logits_of_all_of_them_merged() {
    let folder = Folder::new("adapters-several");
    for name in ["phi3-short", "qwen3-tied", "olmoe-plain"] {
        let base = std::fs::read(golden(name)).unwrap();
        let model = load(&golden(name), SEGNO_PRECISION_PRECISE, 0, 2);
        let (loras, adapters, session) = (four(&base), loaded(&model, &folder, &base), model.session_f32());
        let scales = [0.5, -1.0, 0.8, 0.25];
        for count in 2..=4 {
            let set: Vec<_> = adapters.iter().zip(scales).take(count).collect();
            let merged: Vec<_> = loras.iter().zip(scales).take(count).collect();
            let found = logits(&session, &set);
            let off = farthest(&found, &merged_logits(&folder, &base, SEGNO_PRECISION_PRECISE, &merged));
            assert!(off <= NEAR, "{name}: {count} adapters are off by {off:e}");
            assert!(farthest(&found, &logits(&session, &set[1..])) >= FAR);
        }
        let twice = logits(&session, &[(&adapters[0], 0.25), (&adapters[0], 0.25)]);
        assert!(farthest(&twice, &logits(&session, &[(&adapters[0], 0.5)])) <= NEAR);
        let seq = session.open(&greedy()).unwrap();
        session.adapt_plainly(seq, &[&adapters[1]]).unwrap();
        session.prefill(seq, &PROMPT).unwrap();
        assert_eq!(bits(&session.logits(seq).unwrap()), bits(&logits(&session, &[(&adapters[1], 1.0)])));
    }
}

/// Which adapters each sequence has: none, one, several, the same as a neighbour, and none again.
const SETS: [&[(usize, f32)]; 7] =
    [&[], &[(0, 1.0)], &[(1, 0.5), (0, 1.0)], &[(3, -0.5)], &[(3, -0.5)], &[], &[(2, 1.0), (1, 1.0), (3, 0.2)]];

fn set_of<'a>(adapters: &'a [Adapter], set: &[(usize, f32)]) -> Vec<(&'a Adapter, f32)> {
    set.iter().map(|&(index, scale)| (&adapters[index], scale)).collect()
}

/// Of a sequence of each set: the logits behind its prompt, tokens that follow, and the logits behind those; all in one batch, or each alone.
fn tale(
    model: &Model,
    adapters: &[Adapter],
    together: bool,
    change: impl Fn(&mut segno_session_opts),
) -> Vec<Vec<u32>> {
    let session = model.session(|opts| change(opts)).unwrap();
    let mut seqs = Vec::new();
    for (number, set) in SETS.iter().enumerate() {
        let seq = session.open(&greedy()).unwrap();
        session.adapt(seq, &set_of(adapters, set)).unwrap();
        session.append(seq, &PROMPT[number..]).unwrap();
        seqs.push(seq);
    }
    let mut tales: Vec<Vec<u32>> = vec![Vec::new(); seqs.len()];
    if together {
        while tales.iter().any(|tale| tale.len() < 9) {
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
    } else {
        for (tale, &seq) in tales.iter_mut().zip(&seqs) {
            tale.extend(session.generate(seq, 9).unwrap().into_iter().map(|token| token as u32));
        }
    }
    for (tale, &seq) in tales.iter_mut().zip(&seqs) {
        tale.extend(bits(&session.logits(seq).unwrap()));
    }
    tales
}

#[test]
fn a_sequence_gives_the_same_bits_alone_and_in_any_company() {
    let folder = Folder::new("adapters-company");
    for name in ["llama-ratio4", "phi3-short", "qwen35-plain", "gemma3-plain", "mixtral-plain"] {
        let base = std::fs::read(golden(name)).unwrap();
        for precision in [SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE] {
            let model = load(&golden(name), precision, 0, 2);
            let adapters = loaded(&model, &folder, &base);
            let wide = |opts: &mut segno_session_opts| opts.max_seqs = 8;
            let expected = tale(&model, &adapters, false, wide);
            assert_ne!(expected[0], expected[1]);
            assert!(tale(&model, &adapters, true, wide) == expected, "{name}: all together");
            for prefill in [1, 5, 11] {
                let narrow = |opts: &mut segno_session_opts| (opts.max_seqs, opts.max_prefill) = (8, prefill);
                assert!(tale(&model, &adapters, true, narrow) == expected, "{name}: passes of {prefill}");
            }
            for (flags, threads) in [(0, 1), (0, 3), (SEGNO_CTX_NO_AVX512, 2)] {
                let model = load(&golden(name), precision, flags, threads);
                let adapters = loaded(&model, &folder, &base);
                assert!(tale(&model, &adapters, true, wide) == expected, "{name}: {threads} threads, flags {flags}");
            }
            // Rows without adapters are those of a session that has never had any.
            let session = load(&golden(name), precision, 0, 2).session(|opts| wide(opts)).unwrap();
            for (number, set) in SETS.iter().enumerate().filter(|(_, set)| set.is_empty()) {
                let seq = session.open(&greedy()).unwrap();
                session.append(seq, &PROMPT[number..]).unwrap();
                let mut own: Vec<u32> = session.generate(seq, 9).unwrap().into_iter().map(|t| t as u32).collect();
                own.extend(bits(&session.logits(seq).unwrap()));
                assert!(own == expected[number], "{name}: {set:?}");
            }
        }
    }
}
