//! Embeddings through the C API: the vectors of transformers, the same bits in any company, and the rules of a session. Models and vectors
//! are made by `tests/golden/make_embeddings.py`.

use crate::common::embeddings::{Case, case, cases, embed_opts, of_tokens};
use crate::common::{Ctx, Folder, Model, Session, bundled_model, call, greedy, root};
use segno::ffi::ctx::{SEGNO_CTX_NO_AVX512, SEGNO_PRECISION_DEFAULT, SEGNO_PRECISION_PRECISE};
use segno::ffi::embed::*;
use segno::ffi::session::{SEGNO_KV_F32, SEGNO_SPECULATION_DRAFT, segno_session_cancel};
use segno::ffi::status::*;
use std::path::Path;
use std::ptr::{null, null_mut};

/// Largest difference of an element of a text's vector in precise mode with an F32 cache, and largest relative distance of a token's; both sides
/// compute in single precision.
const PRECISE: f32 = 2e-5;
/// Least cosine in default mode with F32 weights and an F16 cache.
const DEFAULT_COSINE: f64 = 0.9999;

fn load(path: &Path, precision: i32, flags: u32) -> Model {
    let ctx = Ctx::new(|opts| (opts.precision, opts.flags, opts.n_threads) = (precision, flags, 2)).unwrap();
    ctx.load(path).unwrap()
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|value| value.to_bits()).collect()).collect()
}

fn farthest(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected).flat_map(|(found, expected)| {
        assert_eq!(found.len(), expected.len());
        found.iter().zip(expected)
    });
    // A difference that is no number must fail.
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
}

/// The largest relative L2 distance of a vector.
fn relative(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let distances = found.iter().zip(expected).map(|(found, expected)| {
        assert_eq!(found.len(), expected.len());
        let difference = square(&mut found.iter().zip(expected).map(|(a, b)| a - b));
        (difference / square(&mut expected.iter().copied())).sqrt() as f32
    });
    distances.fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn sees_ahead(case: &Case) -> bool {
    !["qwen3", "llama"].iter().any(|decoder| case.name.starts_with(decoder))
}

#[test]
fn every_model_gives_the_vectors_of_transformers() {
    let mut wrong = Vec::new();
    for case in cases() {
        let session = load(&case.file, SEGNO_PRECISION_PRECISE, 0).session_f32();
        let tokens = relative(&session.vectors(&case.texts(), &of_tokens()), &case.tokens);
        let texts = farthest(&session.vectors(&case.texts(), &embed_opts()), &case.vectors);
        println!("{}: tokens differ by {tokens:.1e}, texts by {texts:.1e}", case.name);
        if tokens > PRECISE || texts > PRECISE {
            wrong.push(case.name.clone());
        }
        let session = load(&case.file, SEGNO_PRECISION_DEFAULT, 0).session(|_| ()).unwrap();
        for (found, expected) in session.vectors(&case.texts(), &embed_opts()).iter().zip(&case.vectors) {
            // Of scores there may be few, or one.
            assert!(
                case.ranks() || cosine(found, expected) >= DEFAULT_COSINE,
                "{}: {}",
                case.name,
                cosine(found, expected)
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:?} differ by more than {PRECISE:.0e}");
}

/// Vectors of each text alone, in a session whose passes take it whole.
fn one_by_one(session: &Session, case: &Case, opts: &segno_embed_opts) -> Vec<Vec<f32>> {
    case.texts().iter().flat_map(|text| session.vectors(&[text], opts)).collect()
}

#[test]
fn a_vector_does_not_depend_on_the_company_of_its_text() {
    for case in cases() {
        for (precision, opts) in [SEGNO_PRECISION_PRECISE, SEGNO_PRECISION_DEFAULT]
            .into_iter()
            .flat_map(|precision| [embed_opts(), of_tokens()].map(|opts| (precision, opts)))
        {
            let model = load(&case.file, precision, 0);
            let session = |max_seqs, max_prefill| {
                let change = |opts: &mut _| set(opts, max_seqs, max_prefill);
                model.session(change).unwrap()
            };
            let expected = bits(&one_by_one(&session(8, 512), &case, &opts));
            let check = |what: &str, found: Vec<Vec<f32>>| {
                assert!(bits(&found) == expected, "{}: {what}", case.name);
            };
            check("all in one pass", session(8, 512).vectors(&case.texts(), &opts));
            check("two places", session(2, 512).vectors(&case.texts(), &opts));
            check("one place", session(1, 512).vectors(&case.texts(), &opts));
            check("passes of 41", session(8, 41).vectors(&case.texts(), &opts));
            if !sees_ahead(&case) {
                check("passes of 7", session(8, 7).vectors(&case.texts(), &opts));
                check("passes of 1", session(3, 1).vectors(&case.texts(), &opts));
                let beside = session(4, 512);
                let seq = beside.open(&greedy()).unwrap();
                beside.prefill(seq, &case.texts[2]).unwrap();
                check("beside a sequence", beside.vectors(&case.texts(), &opts));
            }
            let narrow = load(&case.file, precision, SEGNO_CTX_NO_AVX512);
            let narrow = narrow.session(|opts| set(opts, 8, 512)).unwrap();
            check("other instructions", narrow.vectors(&case.texts(), &opts));
        }
    }
}

fn set(opts: &mut segno::ffi::session::segno_session_opts, max_seqs: u32, max_prefill: u32) {
    (opts.max_seqs, opts.max_prefill, opts.kv_type) = (max_seqs, max_prefill, SEGNO_KV_F32);
}

/// Layers that see a window, and layers with a state, the last one too: then all rows are computed to the end.
#[test]
fn long_texts_are_evaluated_in_several_passes() {
    for name in ["gemma3-plain", "lfm2-plain", "granitehybrid-plain", "qwen35-plain"] {
        let model = load(&root().join(format!("tests/golden/hf/{name}.gguf")), SEGNO_PRECISION_DEFAULT, 0);
        let texts: Vec<Vec<i32>> = (1..6).map(|text| (0..text * 17).map(|at| (at * 7 + text) % 97).collect()).collect();
        let texts: Vec<&[i32]> = texts.iter().map(Vec::as_slice).collect();
        let whole = model.session(|opts| set(opts, 8, 512)).unwrap();
        for opts in [of_tokens(), segno_embed_opts { pooling: SEGNO_POOLING_LAST, ..embed_opts() }, embed_opts()] {
            let expected = bits(&whole.vectors(&texts, &opts));
            for (max_seqs, max_prefill) in [(3, 1), (1, 7), (2, 30), (3, 100)] {
                let session = model.session(|opts| set(opts, max_seqs, max_prefill)).unwrap();
                for _ in 0..2 {
                    assert!(bits(&session.vectors(&texts, &opts)) == expected, "{name}, passes of {max_prefill}");
                }
            }
        }
    }
}

#[test]
fn options_do_what_they_say() {
    let case = case("qwen3-last");
    let session = load(&case.file, SEGNO_PRECISION_PRECISE, 0).session_f32();
    session.assert_pooled(&case.texts());
    assert_eq!(session.vectors(&[], &embed_opts()).len(), 0);
}

#[test]
fn rerankers_give_scores_and_other_models_none() {
    let case = case("qwen3-rank");
    let session = load(&case.file, SEGNO_PRECISION_DEFAULT, 0).session_f32();
    let scores = session.vectors(&case.texts(), &embed_opts());
    assert!(scores.iter().all(|scores| scores.len() == 2 && (scores[0] + scores[1] - 1.0).abs() < 1e-6));
    let rank = segno_embed_opts { pooling: SEGNO_POOLING_RANK, ..embed_opts() };
    assert_eq!(session.vectors(&case.texts(), &rank), scores);
    let first = session.vectors(&case.texts(), &segno_embed_opts { dims: 1, ..rank });
    assert!(first.iter().zip(&scores).all(|(first, scores)| first[..] == scores[..1]));
    let last = segno_embed_opts { pooling: SEGNO_POOLING_LAST, ..embed_opts() };
    assert_eq!(session.vectors(&case.texts(), &last)[0].len(), 32);
    for name in ["qwen3-last", "bert-mean", "modern-first"] {
        let model = load(&crate::common::embeddings::case(name).file, SEGNO_PRECISION_DEFAULT, 0);
        let failed = model.session_f32().embed(&[&[5]], &rank).unwrap_err();
        assert_eq!(failed.status, SEGNO_E_UNSUPPORTED);
        assert!(failed.message.contains("no classifier"), "{}", failed.message);
    }
}

/// A model that says nothing of pooling gives the mean.
#[test]
fn any_decoder_makes_embeddings() {
    let model = load(&bundled_model(), SEGNO_PRECISION_DEFAULT, 0);
    let session = model.session(|_| ()).unwrap();
    let texts = [&[5, 6, 7][..], &[9; 20], &[5, 6, 8]];
    let mean = segno_embed_opts { pooling: SEGNO_POOLING_MEAN, ..embed_opts() };
    let found = session.vectors(&texts, &embed_opts());
    assert_eq!(bits(&found), bits(&session.vectors(&texts, &mean)));
    assert!(cosine(&found[0], &found[2]) > cosine(&found[0], &found[1]));
}

#[test]
fn what_cannot_be_evaluated_is_refused_and_changes_nothing() {
    let model = load(&case("qwen3-last").file, SEGNO_PRECISION_DEFAULT, 0);
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.max_prefill) = (2, 64, 16)).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &[1, 2, 3]).unwrap();
    let before = session.stats().unwrap();
    let good = embed_opts();
    let long = vec![1; 97];
    let too_many = vec![1; 257];
    for (texts, opts, status, item, part) in [
        (vec![&[1][..], &[]], good, SEGNO_E_INVALID_ARGUMENT, 1, "no tokens"),
        (vec![&[1][..], &[2], &[3, 131]], good, SEGNO_E_INVALID_ARGUMENT, 2, "token 131"),
        (vec![&[1][..], &[-1]], good, SEGNO_E_INVALID_ARGUMENT, 1, "token -1"),
        (vec![&[1][..], &too_many], good, SEGNO_E_CONTEXT_FULL, 1, "256"),
        (vec![&[1][..], &long], good, SEGNO_E_KV_FULL, 1, "page"),
        (vec![&[1][..]], segno_embed_opts { dims: 33, ..good }, SEGNO_E_INVALID_ARGUMENT, -1, "dims is 33"),
        (vec![&[1][..]], segno_embed_opts { dims: u64::MAX, ..good }, SEGNO_E_INVALID_ARGUMENT, -1, "dims"),
        (vec![&[1][..]], segno_embed_opts { pooling: 6, ..good }, SEGNO_E_INVALID_ARGUMENT, -1, "pooling 6"),
        (vec![&[1][..]], segno_embed_opts { pooling: -1, ..good }, SEGNO_E_INVALID_ARGUMENT, -1, "pooling -1"),
        (vec![&[1][..]], segno_embed_opts { flags: 2, ..good }, SEGNO_E_INVALID_ARGUMENT, -1, "flags"),
        (vec![&[1][..]], segno_embed_opts { reserved: 1, ..good }, SEGNO_E_INVALID_ARGUMENT, -1, "reserved"),
    ] {
        let failed = session.embed(&texts, &opts).unwrap_err();
        assert_eq!((failed.status, failed.item), (status, item), "{}", failed.message);
        assert!(failed.message.contains(part), "{}", failed.message);
        let after = session.stats().unwrap();
        assert_eq!((after.pages_free, after.seqs, after.tokens), (before.pages_free, before.seqs, before.tokens));
    }
    let other = session.open(&greedy()).unwrap();
    assert_eq!(session.embed(&[&[1]], &good).unwrap_err().status, SEGNO_E_SEQ_FULL);
    session.close(other).unwrap();
    session.vectors(&[&[1]], &good);
    let fresh = model.session(|_| ()).unwrap();
    let again = fresh.open(&greedy()).unwrap();
    fresh.prefill(again, &[1, 2, 3]).unwrap();
    assert_eq!(session.generate(seq, 8).unwrap(), fresh.generate(again, 8).unwrap());
}

#[test]
fn room_is_asked_for_and_checked_before_any_evaluation() {
    let model = load(&case("embeddinggemma-dense").file, SEGNO_PRECISION_DEFAULT, 0);
    let session = model.session(|_| ()).unwrap();
    let (tokens, lengths) = ([1, 2, 3, 4, 5], [2usize, 3]);
    let mut dims = 0;
    let mut out = [7.0; 48];
    let (tokens, lengths) = (tokens.as_ptr(), lengths.as_ptr());
    let mut ask = |out, cap| call(|err| segno_embed(session.0, tokens, lengths, 2, null(), out, cap, &mut dims, err));
    assert_eq!(ask(null_mut(), 0), Ok(SEGNO_OK));
    let failed = ask(out.as_mut_ptr(), 47).unwrap_err();
    assert_eq!((failed.status, dims), (SEGNO_E_BUFFER_TOO_SMALL, 24));
    assert!(failed.message.contains("48"), "{}", failed.message);
    assert_eq!((session.stats().unwrap().passes, out), (0, [7.0; 48]));
    let mut ask = |out, cap| call(|err| segno_embed(session.0, tokens, lengths, 2, null(), out, cap, &mut dims, err));
    assert_eq!(ask(out.as_mut_ptr(), 48), Ok(SEGNO_OK));
    let stats = session.stats().unwrap();
    assert_eq!((stats.passes, stats.prompt_tokens), (1, 5));
    assert!(out.iter().all(|value| value.abs() <= 1.0));
}

#[test]
fn a_cancelled_call_gives_everything_back() {
    let model = load(&case("qwen3-last").file, SEGNO_PRECISION_DEFAULT, 0);
    let session = model.session(|opts| opts.max_prefill = 8).unwrap();
    let free = session.stats().unwrap().pages_free;
    segno_session_cancel(session.0, 1);
    let (status, _) = session.embed(&[&[1, 2], &[3; 30]], &embed_opts()).unwrap();
    assert_eq!((status, session.stats().unwrap().pages_free), (SEGNO_CANCELLED, free));
    segno_session_cancel(session.0, 0);
    assert_eq!(session.vectors(&[&[1, 2], &[3; 30]], &embed_opts()).len(), 2);
}

#[test]
fn encoders_decode_nothing() {
    let target = load(&case("llama-mean").file, SEGNO_PRECISION_DEFAULT, 0);
    for case in cases().iter().filter(|case| sees_ahead(case)) {
        let model = load(&case.file, SEGNO_PRECISION_DEFAULT, 0);
        let arch = String::from_utf8(model.meta("general.architecture").unwrap()).unwrap();
        let session = model.session(|opts| opts.max_prefill = 16).unwrap();
        let failed = session.open(&greedy()).unwrap_err();
        assert_eq!(failed.status, SEGNO_E_UNSUPPORTED);
        assert!(failed.message.contains(&format!("`{arch}`")) && failed.message.contains("segno_embed"));
        let drafting = target.session(|opts| (opts.speculation, opts.draft) = (SEGNO_SPECULATION_DRAFT, model.0));
        let failed = drafting.err().unwrap();
        assert_eq!(failed.status, SEGNO_E_UNSUPPORTED);
        assert!(failed.message.contains("embeddings alone"), "{}", failed.message);
        let failed = session.embed(&[&[5], &[5; 17]], &embed_opts()).unwrap_err();
        assert_eq!((failed.status, failed.item), (SEGNO_E_INVALID_ARGUMENT, 1));
        assert!(failed.message.contains("17 tokens") && failed.message.contains("max_prefill"), "{}", failed.message);
        let rows = session.vectors(&[&[5; 16]], &of_tokens());
        assert_eq!(rows.len(), 16);
    }
}

#[test]
fn folders_give_the_bits_of_files() {
    for case in cases().iter().filter(|case| !case.ranks()) {
        let texts = case.texts();
        let of_file = load(&case.file, SEGNO_PRECISION_DEFAULT, 0).session(|_| ()).unwrap();
        let of_folder = load(&case.folder, SEGNO_PRECISION_DEFAULT, 0).session(|_| ()).unwrap();
        for opts in [of_tokens(), embed_opts()] {
            let (found, expected) = (of_folder.vectors(&texts, &opts), of_file.vectors(&texts, &opts));
            assert!(bits(&found) == bits(&expected), "{}", case.name);
        }
    }
}

/// A copy of a folder, of which one file says something else.
fn changed(case: &Case, file: &str, from: &str, to: &str) -> Folder {
    let copy = Folder::new("modules");
    for path in ["", "1_Pooling", "2_Dense", "3_Dense"] {
        let Ok(entries) = std::fs::read_dir(case.folder.join(path)) else { continue };
        std::fs::create_dir_all(copy.join(path)).unwrap();
        for entry in entries.map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            std::fs::copy(entry.path(), copy.join(path).join(entry.file_name())).unwrap();
        }
    }
    let text = std::fs::read_to_string(copy.join(file)).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    std::fs::write(copy.join(file), text.replace(from, to)).unwrap();
    copy
}

#[test]
fn modules_that_are_not_known_are_refused_by_name() {
    let (bert, gemma) = (case("bert-mean"), case("embeddinggemma-dense"));
    let (modules, pooling, dense) = ("modules.json", "1_Pooling/config.json", "2_Dense/config.json");
    for (case, file, from, to, part) in [
        (&bert, modules, "models.Pooling", "models.CNN", "CNN` of modules.json"),
        (&bert, modules, "models.Normalize", "models.Dense", "2_Normalize"),
        (&bert, modules, "\"path\": \"1_Pooling\"", "\"path\": \"../1_Pooling\"", "path `../1_Pooling`"),
        (&bert, modules, "\"path\": \"1_Pooling\"", "\"path\": 7", "no list of modules"),
        (&bert, modules, "[", "{", "modules.json"),
        (&bert, pooling, "\"pooling_mode_max_tokens\": false", "\"pooling_mode_max_tokens\": true", "pooling"),
        (&bert, pooling, "\"pooling_mode_mean_tokens\": true", "\"pooling_mode_mean_tokens\": false", "pooling"),
        (&bert, "config.json", "\"hidden_act\": \"gelu\"", "\"hidden_act\": \"relu\"", "hidden_act"),
        (&bert, "config.json", "\"is_decoder\": false", "\"is_decoder\": true", "is_decoder"),
        (&gemma, dense, "linear.Identity", "activation.Tanh", "Tanh"),
        (&gemma, dense, "\"bias\": false", "\"bias\": true", "Dense"),
        (&gemma, modules, "3_Dense", "4_Dense", "4_Dense"),
    ] {
        let folder = changed(case, file, from, to);
        let failed = Ctx::precise().load(folder.path()).err().unwrap();
        assert!(failed.message.contains(part), "{part}: {}", failed.message);
    }
    let other =
        changed(&bert, pooling, "\"pooling_mode_mean_tokens\": true", "\"pooling_mode\": \"mean\", \"a\": true");
    let session = load(other.path(), SEGNO_PRECISION_PRECISE, 0).session_f32();
    assert!(farthest(&session.vectors(&bert.texts(), &embed_opts()), &bert.vectors) < PRECISE);
}

/// Nomic Embed's own files have names of GPT-2 for their settings.
#[test]
fn settings_have_other_names_in_other_files() {
    let case = case("nomic-mean");
    let config = std::fs::read_to_string(case.folder.join("config.json")).unwrap();
    let mut other: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&config).unwrap();
    for (from, to) in [
        ("hidden_size", "n_embd"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
        ("intermediate_size", "n_inner"),
        ("max_position_embeddings", "n_positions"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ] {
        let value = other.remove(from).unwrap();
        other.insert(to.into(), value);
    }
    ["head_dim", "hidden_act", "rope_parameters"].iter().for_each(|name| drop(other.remove(*name).unwrap()));
    for (name, value) in [("rotary_emb_base", 1000), ("rotary_emb_fraction", 1)] {
        other.insert(name.into(), value.into());
    }
    let folder = changed(&case, "config.json", &config, &serde_json::to_string(&other).unwrap());
    let found = load(folder.path(), SEGNO_PRECISION_PRECISE, 0).session_f32().vectors(&case.texts(), &embed_opts());
    assert!(farthest(&found, &case.vectors) < PRECISE);
    other.insert("rotary_emb_interleaved".into(), true.into());
    let folder = changed(&case, "config.json", &config, &serde_json::to_string(&other).unwrap());
    let failed = Ctx::precise().load(folder.path()).err().unwrap();
    assert!(failed.message.contains("rotary_emb_interleaved"), "{}", failed.message);
}
