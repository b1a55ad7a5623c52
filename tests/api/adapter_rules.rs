//! The rules of adapters that a host relies on: what a change costs and keeps, who owns what, what is reserved, and which files are refused.

use crate::common::adapters::{Adapter, Form, Lora};
use crate::common::conversation::Chat;
use crate::common::gguf::{Content, File, Shape};
use crate::common::predictors::{Guesses, predicting_file};
use crate::common::{Ctx, Failed, Folder, Model, Result, Session, bundled_model, call, greedy, root};
use segno::ffi::adapter::*;
use segno::ffi::plan::{segno_plan, segno_plan_get};
use segno::ffi::session::*;
use segno::ffi::status::*;
use segno::quant::DType;
use std::ffi::CString;
use std::path::Path;
use std::ptr::{null, null_mut};

pub const PROMPT: [i32; 9] = [3, 17, 5, 29, 11, 8, 2, 40, 23];

/// A model of the family tests, and adapters of ranks 4, 8 and 16 for it.
pub struct World {
    folder: Folder,
    base: Vec<u8>,
    pub model: Model,
    pub adapters: Vec<Adapter>,
}

pub fn world(name: &str) -> World {
    let (folder, path) = (Folder::new("adapter-rules"), root().join(format!("tests/golden/hf/{name}.gguf")));
    let base = std::fs::read(&path).unwrap();
    let model = Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&path).unwrap();
    let load = |rank: usize| {
        let path = folder.join("adapter.gguf");
        Lora::random(&base, Form::new(rank as u64, rank), |_| true).file().write(&path);
        model.adapter(&path).unwrap()
    };
    let adapters = [4, 8, 16].map(load).into();
    World { folder, base, model, adapters }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The logits behind `tokens` of a sequence that had these adapters from the beginning.
fn fresh(session: &Session, set: &[(&Adapter, f32)], tokens: &[i32]) -> Vec<u32> {
    let seq = session.open(&greedy()).unwrap();
    session.adapt(seq, set).unwrap();
    session.prefill(seq, tokens).unwrap();
    let logits = session.logits(seq).unwrap();
    session.close(seq).unwrap();
    bits(&logits)
}

pub fn logits(session: &Session, seq: i32) -> Vec<u32> {
    bits(&session.logits(seq).unwrap())
}

#[test]
fn other_adapters_evaluate_a_sequence_anew_and_the_same_ones_do_not() {
    // Keys alone, a state and marks, and windows.
    for name in ["llama-ratio4", "lfm2-plain", "gemma3-plain"] {
        let World { model, adapters, .. } = &world(name);
        let (session, set) = (model.session_f32(), [(&adapters[0], 1.0), (&adapters[1], 0.5)]);
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &PROMPT).unwrap();
        session.mark(seq).unwrap();
        let plain = logits(&session, seq);
        let passes = |count: usize| {
            let before = session.stats().unwrap().prompt_tokens;
            assert_eq!(logits(&session, seq), fresh(&session, &set[..count], &PROMPT), "{name}: {count} adapters");
            // The fresh sequence has evaluated a prompt, too.
            session.stats().unwrap().prompt_tokens - before - PROMPT.len() as u64
        };
        for count in [1, 2, 0, 2] {
            session.adapt(seq, &set[..count]).unwrap();
            assert_eq!(session.length(seq).unwrap(), PROMPT.len());
            assert_eq!(session.nearest(seq, PROMPT.len()).unwrap(), 0, "{name}: a mark of other adapters");
            assert_eq!(passes(count), PROMPT.len() as u64);
            session.adapt(seq, &set[..count]).unwrap();
            assert_eq!(passes(count), 0, "{name}: the same adapters once more");
        }
        session.adapt(seq, &[(&adapters[0], 0.0)]).unwrap();
        assert_eq!(logits(&session, seq), plain, "{name}: a scale of 0 is none");
        session.adapt(seq, &[]).unwrap();
        assert_eq!(passes(0), 0);
        // Tokens that were sampled with others stay, too.
        let tokens = session.generate(seq, 5).unwrap();
        session.adapt(seq, &set).unwrap();
        assert_eq!(logits(&session, seq), fresh(&session, &set, &[&PROMPT[..], &tokens].concat()));
        session.truncate(seq, 4).unwrap();
        assert_eq!(logits(&session, seq), fresh(&session, &set, &PROMPT[..4]));
    }
}

#[test]
fn a_fork_has_its_parents_adapters_until_it_gets_others() {
    let World { model, adapters, .. } = &world("llama-ratio4");
    let (session, first, second) = (model.session_f32(), [(&adapters[0], 1.0)], [(&adapters[2], 1.0)]);
    let parent = session.open(&greedy()).unwrap();
    session.adapt(parent, &first).unwrap();
    session.prefill(parent, &PROMPT).unwrap();
    let before = session.stats().unwrap().prompt_tokens;
    let child = session.fork(parent, None).unwrap();
    assert_eq!(logits(&session, child), logits(&session, parent));
    assert_eq!(session.stats().unwrap().prompt_tokens, before, "a fork shares what is evaluated");
    session.adapt(parent, &second).unwrap();
    assert_eq!(logits(&session, parent), fresh(&session, &second, &PROMPT));
    assert_eq!(logits(&session, child), fresh(&session, &first, &PROMPT));
    // Pages that a sequence with other adapters has left to its fork are not written.
    let tokens = session.generate(child, 6).unwrap();
    assert_eq!(logits(&session, child), fresh(&session, &first, &[&PROMPT[..], &tokens].concat()));
    // A place that is used again has no adapters.
    session.close(parent).unwrap();
    session.close(child).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &PROMPT).unwrap();
    assert_eq!(logits(&session, seq), fresh(&session, &[], &PROMPT));
}

#[test]
fn a_fork_that_finds_no_room_leaves_its_place_without_adapters() {
    let World { model, adapters, .. } = &world("llama-ratio4");
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, 32)).unwrap();
    let expected = fresh(&session, &[], &PROMPT);
    let parent = session.open(&greedy()).unwrap();
    session.adapt(parent, &[(&adapters[0], 1.0)]).unwrap();
    session.prefill(parent, &[5; 90]).unwrap();
    let refused = session.fork(parent, None).unwrap_err();
    assert_eq!(refused.status, SEGNO_E_KV_FULL, "{}", refused.message);
    session.truncate(parent, 1).unwrap();
    let seq = session.open(&greedy()).unwrap();
    session.prefill(seq, &PROMPT).unwrap();
    assert_eq!(logits(&session, seq), expected);
}

#[test]
fn an_adapter_and_its_model_live_as_long_as_anybody_has_them() {
    let World { model, mut adapters, .. } = world("llama-ratio4");
    let (session, adapter) = (model.session_f32(), adapters.swap_remove(0));
    let expected = fresh(&session, &[(&adapter, 1.0)], &PROMPT);
    let seq = session.open(&greedy()).unwrap();
    session.adapt(seq, &[(&adapter, 1.0)]).unwrap();
    let other = model.session_f32();
    drop((adapter, adapters, model));
    session.prefill(seq, &PROMPT).unwrap();
    assert_eq!(logits(&session, seq), expected);
    drop(session);
    let World { adapters, model, .. } = world("llama-ratio4");
    drop(model);
    drop(adapters);
    assert_eq!(other.open(&greedy()).unwrap(), 1);
}

#[test]
fn drafts_change_no_token() {
    let (folder, path) = (Folder::new("adapter-drafts"), bundled_model());
    let base = std::fs::read(&path).unwrap();
    // The block that predicts has the tensors of a layer that no adapter changes.
    let predicting = predicting_file(&path, 5, Guesses::Random { own: false }).bytes();
    let model = Ctx::new(|opts| opts.n_threads = 2).unwrap().load_buffer(&predicting).unwrap();
    let file = folder.join("adapter.gguf");
    Lora::random(&base, Form::new(7, 8), |name| name.contains("attn_q")).file().write(&file);
    let adapter = model.adapter(&file).unwrap();
    let text = |speculation: i32, draft: Option<&Model>| {
        let choose = |opts: &mut segno_session_opts| {
            opts.speculation = speculation;
            opts.draft = draft.map_or(null(), |draft| draft.0.cast_const());
        };
        let session = model.session(choose).unwrap();
        let seq = session.open(&greedy()).unwrap();
        session.prefill(seq, &[11, 12, 13].repeat(10)).unwrap();
        let mut text = session.generate(seq, 20).unwrap();
        // What was drawn ahead without it is drawn anew.
        session.adapt(seq, &[(&adapter, 1.5)]).unwrap();
        text.extend(session.generate(seq, 60).unwrap());
        (text, session.stats().unwrap().accepted)
    };
    let (expected, none) = text(SEGNO_SPECULATION_OFF, None);
    assert_eq!(none, 0);
    let always = SEGNO_SPECULATION_ALWAYS;
    for (speculation, draft) in
        [(SEGNO_SPECULATION_NGRAM, None), (SEGNO_SPECULATION_DRAFT, Some(&model)), (SEGNO_SPECULATION_MTP, None)]
    {
        let (found, accepted) = text(speculation | always, draft);
        assert_eq!(found, expected);
        assert!(accepted > 0 || speculation == SEGNO_SPECULATION_MTP);
    }
}

#[test]
fn a_conversation_has_the_adapters_of_its_sequence() {
    let (folder, path) = (Folder::new("adapter-chat"), bundled_model());
    let base = std::fs::read(&path).unwrap();
    let model = Ctx::new(|opts| opts.n_threads = 2).unwrap().load(&path).unwrap();
    let file = folder.join("adapter.gguf");
    Lora::random(&base, Form::new(9, 8), |_| true).file().write(&file);
    let adapter = model.adapter(&file).unwrap();
    let reply = |scale: f32| {
        let session = model.session(|_| ()).unwrap();
        let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
        let chat = Chat::new(&session, |opts| {
            (opts.template_text, opts.template_len) = (template.as_ptr().cast(), template.len());
            opts.max_tokens = 24;
        })
        .unwrap();
        session.set_sampler(chat.seq(), &greedy()).unwrap();
        session.adapt(chat.seq(), &[(&adapter, scale)]).unwrap();
        chat.say("user", "ROMEO:").unwrap();
        chat.finish().unwrap();
        chat.messages().to_string()
    };
    assert_eq!(reply(1.0), reply(1.0));
    assert_ne!(reply(1.0), reply(0.0));
}

#[test]
fn room_for_ranks_is_reserved_planned_and_told() {
    let World { model, adapters, .. } = &world("llama-ratio4");
    let plain = model.session(|_| ()).unwrap().memory().host_arena;
    let each = 3 * 4 * (512 + 8);
    let session = model.session(|opts| opts.adapter_ranks = 12).unwrap();
    assert_eq!(session.memory().host_arena, plain + 12 * each);
    let seq = session.open(&greedy()).unwrap();
    session.adapt(seq, &[(&adapters[0], 1.0), (&adapters[1], 1.0)]).unwrap();
    assert_eq!(session.memory().host_arena, plain + 12 * each, "there is room");
    session.adapt(seq, &[(&adapters[2], 1.0), (&adapters[1], 1.0)]).unwrap();
    assert_eq!(session.memory().host_arena, plain + 24 * each, "room is made");
    session.adapt(seq, &[]).unwrap();
    assert_eq!(session.memory().host_arena, plain + 24 * each);
    let refused = model.session(|opts| opts.adapter_ranks = 65537).err().unwrap();
    assert_eq!(
        (refused.status, &*refused.message),
        (SEGNO_E_INVALID_ARGUMENT, "adapter_ranks is 65537, 1 to 65536 are possible")
    );
    // SAFETY: the structs hold numbers and nullable pointers, for which zero is a value.
    let (mut opts, mut plan): (segno_session_opts, segno_plan) = unsafe { std::mem::zeroed() };
    segno_session_opts_init(&mut opts, size_of::<segno_session_opts>());
    opts.adapter_ranks = 12;
    let path = CString::new(root().join("tests/golden/hf/llama-ratio4.gguf").to_str().unwrap()).unwrap();
    let (ctx, size) = (Ctx::new(|opts| opts.n_threads = 2).unwrap(), size_of::<segno_plan>());
    call(|err| segno_plan_get(ctx.0, path.as_ptr(), null(), &opts, &mut plan, size, err)).unwrap();
    assert_eq!(plan.host_arena, plain + 12 * each);
}

/// With experts a row has sums for each of its own.
#[test]
fn room_for_ranks_of_experts_is_reserved() {
    let model = world("mixtral-plain").model;
    let plain = model.session(|_| ()).unwrap().memory().host_arena;
    let session = model.session(|opts| opts.adapter_ranks = 12).unwrap();
    assert_eq!(session.memory().host_arena, plain + 12 * 4 * 4 * (512 + 8));
}

#[test]
fn a_refused_set_changes_nothing() {
    let World { model, adapters, .. } = &world("llama-ratio4");
    let (stranger, session) = (world("llama-ratio4"), model.session_f32());
    let seq = session.open(&greedy()).unwrap();
    session.adapt(seq, &[(&adapters[0], 1.0)]).unwrap();
    session.prefill(seq, &PROMPT).unwrap();
    let (expected, before) = (logits(&session, seq), session.stats().unwrap().prompt_tokens);
    let set = |seq: i32, handles: &[*const segno_adapter], scales: &[f32]| {
        call(|err| segno_seq_adapters_set(session.0, seq, handles.as_ptr(), scales.as_ptr(), handles.len(), err))
    };
    let own = adapters[1].0.cast_const();
    let refused = |result: Result<segno_status>, status: segno_status, item: i64, part: &str| {
        let Failed { status: found, message, item: place } = result.unwrap_err();
        assert_eq!((found, place), (status, item), "{message}");
        assert!(message.contains(part), "{message}");
    };
    let foreign = stranger.adapters[0].0.cast_const();
    refused(set(seq, &[own, foreign], &[1.0; 2]), SEGNO_E_INVALID_ARGUMENT, 1, "loaded for another model");
    for scale in [f32::NAN, f32::INFINITY] {
        refused(set(seq, &[own, own], &[1.0, scale]), SEGNO_E_INVALID_ARGUMENT, 1, "a finite number is needed");
    }
    refused(set(seq, &[own, null()], &[1.0; 2]), SEGNO_E_NULL_POINTER, 1, "`adapter` must not be NULL");
    refused(set(seq + 5, &[own], &[1.0]), SEGNO_E_NOT_FOUND, -1, "");
    refused(set(seq, &[own; 65], &[1.0; 65]), SEGNO_E_INVALID_ARGUMENT, -1, "at most 64");
    let none = call(|err| segno_seq_adapters_set(session.0, seq, null(), null(), 1, err));
    refused(none, SEGNO_E_NULL_POINTER, -1, "`adapters` must not be NULL");
    assert_eq!(logits(&session, seq), expected);
    assert_eq!(session.stats().unwrap().prompt_tokens, before);
    set(seq, &[own; 64], &[0.01; 64]).unwrap();
}

/// Why a file is refused that was changed so.
fn refusal(world: &World, change: impl FnOnce(&mut File)) -> (segno_status, String) {
    let mut file = Lora::random(&world.base, Form::new(3, 4), |name| name.contains("blk.0")).file();
    change(&mut file);
    let path = world.folder.join("wrong.gguf");
    file.write(&path);
    let failed = world.model.adapter(&path).err().expect("the file is refused");
    (failed.status, failed.message)
}

#[test]
fn files_are_refused_by_name() {
    let world = world("llama-ratio4");
    let check = |status: segno_status, part: &str, change: &dyn Fn(&mut File)| {
        let (found, message) = refusal(&world, |file| change(file));
        assert!(found == status && message.contains(part), "{found}: {message}");
    };
    let (format, unsupported) = (SEGNO_E_FORMAT, SEGNO_E_UNSUPPORTED);
    let set = |key: &'static str, value: &'static str| {
        move |file: &mut File| {
            file.set(key, value);
        }
    };
    let lacks = |key: &'static str| {
        move |file: &mut File| {
            file.remove(key);
        }
    };
    let lacks_tensor = |name: &'static str| {
        move |file: &mut File| {
            file.remove_tensor(name);
        }
    };
    check(unsupported, "the file is no adapter: `general.type` is `model`", &set("general.type", "model"));
    check(unsupported, "`general.type` is missing", &lacks("general.type"));
    check(unsupported, "of a kind that is not supported: `adapter.type` is `ia3`", &set("adapter.type", "ia3"));
    check(unsupported, "another family: `general.architecture` is `qwen2`", &set("general.architecture", "qwen2"));
    check(format, "`adapter.lora.alpha` is not finite", &|file| {
        file.set("adapter.lora.alpha", f32::NAN);
    });
    check(unsupported, "`adapter.alora.invocation_tokens` is not supported", &|file| {
        file.set("adapter.alora.invocation_tokens", vec![1u32, 2]);
    });
    let (a, b) = ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b");
    let renamed = |from: &'static str, to: &'static str| move |file: &mut File| file.tensor(from).name = to.to_owned();
    check(format, "stands alone: `blk.0.attn_q.weight.lora_b` is missing", &lacks_tensor(b));
    check(format, "stands alone: `blk.0.attn_q.weight.lora_a` is missing", &lacks_tensor(a));
    check(unsupported, "`blk.0.attn_q.weight` is no part of a low-rank", &renamed(a, "blk.0.attn_q.weight"));
    let other = |name: &'static str| {
        move |file: &mut File| {
            file.tensor(a).name = format!("{name}.lora_a");
            file.tensor(b).name = format!("{name}.lora_b");
        }
    };
    check(format, "for a tensor that the model does not have", &other("blk.77.attn_q.weight"));
    check(format, "`token_embd.weight.lora_a`", &other("token_embd.weight"));
    check(unsupported, "it changes a tensor that is no matrix of a product", &other("blk.0.attn_norm.weight"));
    check(format, "appears twice", &|file| {
        let again = file.tensor(a).clone();
        file.tensors.push(again);
    });
    for (name, dims) in [(a, [5, 4]), (b, [5, 64]), (b, [4, 5])] {
        check(format, "expected", &|file| {
            let tensor = file.tensor(name);
            (tensor.dims, tensor.content) = (dims.to_vec(), Content::Hole(4 * dims[0] * dims[1]));
        });
    }
    check(format, "", &|file| file.tensor(a).dims = vec![64, 0]);
    check(unsupported, "has rank 5000, at most 4096", &|file| {
        file.tensor(a).dims = vec![64, 5000];
        file.tensor(a).content = Content::Hole(4 * 64 * 5000);
    });
    check(unsupported, "ggml type 77", &|file| file.tensor(a).type_id = 77);
    check(format, "cannot be stored as Q4_K", &|file| file.tensor(b).type_id = DType::Q4_K.ggml_id());
    check(format, "changes nothing", &|file| file.tensors.clear());
}

#[test]
fn what_is_no_adapter_for_the_model_is_refused_by_name() {
    let (world, unsupported) = (world("llama-ratio4"), SEGNO_E_UNSUPPORTED);
    let missing = world.model.adapter(Path::new("/no/such/adapter.gguf")).err().unwrap();
    assert_eq!(missing.status, SEGNO_E_IO);
    let folder = world.model.adapter(world.folder.path()).err().unwrap();
    assert!(folder.status == SEGNO_E_INVALID_ARGUMENT && folder.message.contains("is a folder"), "{}", folder.message);
    // Pairs of one matrix where each expert has its own, and a model in place of an adapter.
    let experts = self::world("mixtral-plain");
    let (status, message) = refusal(&experts, |file| {
        file.tensor("blk.0.attn_q.weight.lora_a").name = "blk.0.ffn_down_exps.weight.lora_a".into();
        file.tensor("blk.0.attn_q.weight.lora_b").name = "blk.0.ffn_down_exps.weight.lora_b".into();
    });
    assert!(status == SEGNO_E_FORMAT && message.contains("blk.0.ffn_down_exps.weight.lora_a"), "{message}");
    // Embeddings of other things than tokens.
    let (status, message) = refusal(&self::world("gemma4-small"), |file| {
        file.tensor("blk.0.attn_q.weight.lora_a").name = "per_layer_token_embd.weight.lora_a".into();
        file.tensor("blk.0.attn_q.weight.lora_b").name = "per_layer_token_embd.weight.lora_b".into();
    });
    assert!(status == unsupported && message.contains("another embedding than that of tokens"), "{message}");
    let model = world.model.adapter(&bundled_model()).err().unwrap();
    assert!(model.status == unsupported && model.message.contains("the file is no adapter"), "{}", model.message);
}

#[test]
fn a_file_that_ends_early_is_refused() {
    let world = world("llama-ratio4");
    let whole = Lora::random(&world.base, Form::new(3, 4), |_| true).file().bytes();
    let path = world.folder.join("cut.gguf");
    for len in (0..whole.len()).step_by(509).chain([whole.len() - 1]) {
        std::fs::write(&path, &whole[..len]).unwrap();
        let failed = world.model.adapter(&path).err().expect("a part is no adapter");
        assert_eq!(failed.status, SEGNO_E_FORMAT, "{len} bytes: {}", failed.message);
    }
    std::fs::write(&path, &whole).unwrap();
    world.model.adapter(&path).unwrap();
}

#[test]
fn a_file_in_parts_is_one_adapter() {
    let world = world("llama-ratio4");
    let file = Lora::random(&world.base, Form::new(4, 4), |_| true).file();
    let half = file.tensors.len() / 2;
    let parts = file.split(&[half, file.tensors.len() - half]);
    let paths = crate::common::gguf::write_parts(world.folder.path(), "adapter", &parts);
    let (session, adapter) = (world.model.session_f32(), world.model.adapter(&paths[0]).unwrap());
    assert_eq!(fresh(&session, &[(&adapter, 1.0)], &PROMPT), fresh(&session, &[(&world.adapters[0], 1.0)], &PROMPT));
}

#[test]
fn a_head_of_its_own_can_be_changed() {
    let folder = Folder::new("adapter-head");
    let base = Shape::small().file().bytes();
    let model = Ctx::precise().load_buffer(&base).unwrap();
    let lora = Lora::random(&base, Form::new(3, 4), |name| name == "output.weight");
    lora.file().write(&folder.join("adapter.gguf"));
    let adapter = model.adapter(&folder.join("adapter.gguf")).unwrap();
    let mut merged = base.clone();
    lora.merge_into(&mut merged, 1.0);
    let merged = Ctx::precise().load_buffer(&merged).unwrap();
    let found = fresh(&model.session_f32(), &[(&adapter, 1.0)], &PROMPT);
    let expected = fresh(&merged.session_f32(), &[], &PROMPT);
    let off = found.iter().zip(&expected).map(|(a, b)| (f32::from_bits(*a) - f32::from_bits(*b)).abs());
    assert!(off.fold(0.0, f32::max) <= 1e-3);
    assert_ne!(found, fresh(&model.session_f32(), &[], &PROMPT));
}

#[test]
fn options_of_an_adapter_are_checked() {
    let world = world("llama-ratio4");
    let path = CString::new(world.folder.join("adapter.gguf").to_str().unwrap()).unwrap();
    let mut opts = segno_adapter_opts { struct_size: 0, flags: 0, reserved: 0 };
    segno_adapter_opts_init(&mut opts, size_of::<segno_adapter_opts>());
    assert_eq!((opts.struct_size, opts.flags), (16, 0));
    let mut adapter = null_mut();
    call(|err| segno_adapter_load(world.model.0, path.as_ptr(), &opts, &mut adapter, err)).unwrap();
    drop(Adapter(adapter));
    opts.flags = 1;
    let refused = call(|err| segno_adapter_load(world.model.0, path.as_ptr(), &opts, &mut adapter, err)).unwrap_err();
    assert_eq!((refused.status, &*refused.message), (SEGNO_E_INVALID_ARGUMENT, "unknown adapter flags 0x1"));
    assert!(adapter.is_null());
}
