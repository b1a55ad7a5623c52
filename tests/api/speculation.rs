//! Speculation through the C API: whatever is drafted, and whatever a host does between steps, tokens and outcomes are those of a session that drafts
//! nothing; and where drafts are right, passes are saved.

use crate::common::drafts::*;
use crate::common::mixture::mixture;
use crate::common::predictors::planned;
use crate::common::{Ctx, Model, bundled_model, call, greedy, sampler};
use segno::ffi::decode::segno_decode_many;
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::ffi::session::*;
use segno::ffi::status::*;
use segno::quant::DType;

fn one_thread() -> Ctx {
    Ctx::new(|opts| (opts.device, opts.n_threads) = (SEGNO_DEVICE_CPU, 1)).unwrap()
}

#[test]
fn tokens_are_those_without_drafts_from_repetitions() {
    let (drafted, accepted) = walks(&one_thread(), &MODELS, &WAYS);
    assert_mixed(drafted, accepted);
}

#[test]
fn tokens_are_those_without_drafts_of_a_model() {
    let (drafted, accepted) = walks(&one_thread(), &MODELS, &WAYS_OF_MODELS);
    assert_mixed(drafted, accepted);
}

#[test]
fn tokens_are_those_without_drafts_over_a_cache_of_8_bits() {
    let models = ["llama-llama3", "gemma3-listed", "gptoss-plain", "deepseekv3-plain"];
    let (drafted, accepted) = walks_in(&one_thread(), SEGNO_KV_Q8, &models, &[WAYS[0], WAYS_OF_MODELS[1]]);
    assert!(accepted > 100 && drafted > accepted, "of {drafted} drafts {accepted} were right");
}

#[test]
fn tokens_are_those_without_drafts_under_grammars() {
    let ctx = one_thread();
    let model = ctx.load(&bundled_model()).unwrap();
    for (speculation, draft) in [(REPETITIONS, None), (DRAFTED, Some(&model)), (SEGNO_SPECULATION_AUTO, Some(&model))] {
        let drafting = Drafting { speculation, most: 5, draft, ..PLAIN };
        let (drafted, accepted) = walk(&model, drafting, 512, 3, 4 * tokens());
        assert!(accepted > 100 && drafted > accepted, "of {drafted} drafts {accepted} were right");
    }
}

#[test]
fn a_text_that_repeats_takes_fewer_passes_than_tokens() {
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    for model in [ctx.load(&bundled_model()).unwrap(), ctx.load_buffer(&mixture(DType::Q8_0).bytes()).unwrap()] {
        let repeating = Drafting { speculation: REPETITIONS, most: 4, draft: None, ..PLAIN };
        // What was said is likelier with each time.
        let mut again = greedy();
        again.frequency_penalty = -2.0;
        let texts = [PLAIN, repeating].map(|drafting| {
            let session = session(&model, drafting, 512);
            let seq = session.open(&again).unwrap();
            session.append(seq, &[11, 12, 13, 14, 15].repeat(12)).unwrap();
            let text = session.generate(seq, 180).unwrap();
            (text, session.seq_stats(seq).unwrap(), session.stats().unwrap().passes)
        });
        let [(expected, none, most), (text, stats, passes)] = texts;
        assert_eq!(text, expected);
        assert_eq!((none.drafted, none.accepted, none.decoded_tokens), (0, 0, 180));
        assert!(stats.accepted > 50 && stats.drafted >= stats.accepted, "{} of {}", stats.accepted, stats.drafted);
        assert!(passes + stats.accepted >= most && passes < most - 40, "{passes} and {most} passes");
    }
}

#[test]
fn what_one_sequence_has_said_saves_another_passes() {
    let ctx = Ctx::new(|opts| opts.n_threads = 2).unwrap();
    let model = ctx.load(&bundled_model()).unwrap();
    let texts = [REPETITIONS, REPETITIONS + SEGNO_SPECULATION_SHARED].map(|speculation| {
        let session = session(&model, Drafting { speculation, most: 4, ..PLAIN }, 1024);
        let say = |prompt: &[i32]| {
            let seq = session.open(&greedy()).unwrap();
            session.append(seq, prompt).unwrap();
            let before = session.stats().unwrap().passes;
            let text = session.generate(seq, 120).unwrap();
            let (stats, passes) = (session.seq_stats(seq).unwrap(), session.stats().unwrap().passes - before);
            session.close(seq).unwrap();
            (text, stats.drafted, stats.accepted, passes)
        };
        // The first is gone when the second comes, which is asked the same.
        let first = say(&[40, 41, 42, 43, 44, 45]);
        (first, say(&[40, 41, 42, 43, 44, 45]))
    });
    let [(alone, again), (first, second)] = texts;
    assert!(alone.0 == again.0 && alone.0 == first.0 && alone.0 == second.0);
    assert_eq!(alone.3, again.3);
    assert!(second.2 >= 90 && second.1 < 130 && second.3 < 35, "{} of {}, {} passes", second.2, second.1, second.3);
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    let ctx = one_thread();
    for name in MODELS {
        let model = load(&ctx, name);
        let mut drawn = sampler();
        (drawn.flags, drawn.repeat_penalty) = (greedy().flags, 1.1);
        let drafting = Drafting { speculation: DRAFTED, most: 5, draft: Some(&model), ..PLAIN };
        for opts in [greedy(), drawn] {
            let session = session(&model, drafting, 1024);
            let (first, second) = (session.open(&opts).unwrap(), session.open(&opts).unwrap());
            session.append(first, &[3, 5, 7]).unwrap();
            session.append(second, &[11; 30]).unwrap();
            for _ in 0..150 {
                let (_, _, result) = session.batch(&[first, second]);
                result.unwrap();
            }
            let stats = session.stats().unwrap();
            assert_eq!((stats.drafted, stats.accepted), (stats.accepted, stats.drafted), "{name}");
            assert!(stats.passes < 90 && stats.drafted > 200, "{name}: {} passes", stats.passes);
        }
    }
}

#[test]
fn a_model_that_says_something_else_is_asked_no_more() {
    let ctx = one_thread();
    let other = load(&ctx, "llama-bias");
    for name in MODELS {
        let model = load(&ctx, name);
        let drafting = Drafting { speculation: SEGNO_SPECULATION_DRAFT, most: 0, draft: Some(&other), ..PLAIN };
        let stats = || {
            let session = session(&model, drafting, 1024);
            let seq = session.open(&greedy()).unwrap();
            session.append(seq, &[3, 5, 7]).unwrap();
            session.generate(seq, 240).unwrap();
            session.stats().unwrap()
        };
        // A draft costs as much as a token here, so even some that are right do not pay. What passes take is measured, and may mislead while other
        // programs keep the processors busy: so one of some.
        let is_quiet = |_| {
            let stats = stats();
            stats.drafted < 150 && stats.accepted < 50
        };
        assert!((0..5).any(is_quiet), "{name}: drafts go on that lose");
    }
}

#[test]
fn tokens_are_those_without_drafts_where_layers_have_a_state() {
    let ctx = one_thread();
    let (found, right) = walks(&ctx, &STATES, &WAYS);
    let (wrong, few) = (found - right, tokens() as u64 / 2);
    assert!(right > few && wrong > few, "of {found} drafts {right} were right");
    let (drafted, accepted) = walks(&ctx, &STATES, &[(DRAFTED, 5, Some("llama-bias"))]);
    assert!(drafted - accepted > few, "of {drafted} drafts {accepted} were right");
}

#[test]
fn states_go_back_to_where_drafts_were_right() {
    let ctx = one_thread();
    let model = load(&ctx, "qwen35-plain");
    let mut again = greedy();
    again.frequency_penalty = -2.0;
    let texts = [PLAIN, Drafting { speculation: REPETITIONS, most: 5, ..PLAIN }].map(|drafting| {
        let session = session(&model, drafting, 512);
        let seq = session.open(&again).unwrap();
        session.append(seq, &[11, 12, 13, 14, 15].repeat(8)).unwrap();
        let text = session.generate(seq, 120).unwrap();
        (text, session.stats().unwrap())
    });
    let [(expected, plain), (text, drafting)] = texts;
    assert_eq!(text, expected);
    // Rows that are evaluated again are no prompt.
    assert_eq!((drafting.prompt_tokens, drafting.decoded_tokens), (plain.prompt_tokens, 120));
    let stats = (drafting.drafted, drafting.accepted, drafting.passes, plain.passes);
    assert!(drafting.accepted > 30 && drafting.passes + 20 < plain.passes, "{stats:?}");
}

#[test]
fn a_stream_waits_for_no_prompt_where_states_go_back() {
    let ctx = one_thread();
    let (model, other) = (load(&ctx, "lfm2-plain"), load(&ctx, "llama-bias"));
    let session = model.session(|opts| {
        (opts.max_seqs, opts.max_prefill, opts.speculation, opts.max_drafts) = (2, 5, DRAFTED, 5);
        opts.draft = other.0;
    });
    let session = session.unwrap();
    let [stream, reader] = [(); 2].map(|()| session.open(&greedy()).unwrap());
    session.append(stream, &[3, 5, 7]).unwrap();
    while session.step(stream).unwrap().1 != SEGNO_OK {}
    session.append(reader, &[9; 160]).unwrap();
    for _ in 0..30 {
        let (tokens, statuses, result) = session.batch(&[stream, reader]);
        result.unwrap();
        assert!(tokens[0] >= 0 && statuses == [SEGNO_OK, SEGNO_PENDING], "{statuses:?}");
    }
    let stats = session.seq_stats(stream).unwrap();
    assert!(stats.drafted > stats.accepted + 20 && stats.prompt_tokens == 3, "{} of {}", stats.accepted, stats.drafted);
}

#[test]
fn memory_and_plan_count_the_draft_model() {
    let ctx = one_thread();
    let (model, draft) = (ctx.load(&bundled_model()).unwrap(), ctx.load(&bundled_model()).unwrap());
    let drafting = |draft| Drafting { speculation: SEGNO_SPECULATION_AUTO, most: 0, draft, ..PLAIN };
    let [alone, both] = [None, Some(&draft)].map(|draft| session(&model, drafting(draft), 512).memory());
    assert_eq!((both.host_kv, both.host_weights), (2 * alone.host_kv, 2 * alone.host_weights));
    assert!(both.host_arena > alone.host_arena);
    let planned = plan(&ctx, Some(&draft));
    assert_eq!((planned.host_kv, planned.host_arena), (both.host_kv, both.host_arena));
    assert_eq!(planned.host_weights, alone.host_weights);
    assert_eq!(plan(&ctx, None).host_arena, alone.host_arena);
}

#[test]
fn memory_and_plan_count_what_sequences_share() {
    let ctx = one_thread();
    let model = ctx.load(&bundled_model()).unwrap();
    let shared = SEGNO_SPECULATION_AUTO + SEGNO_SPECULATION_SHARED;
    let [own, all] = [SEGNO_SPECULATION_AUTO, shared].map(|speculation| {
        let memory = session(&model, Drafting { speculation, most: 0, ..PLAIN }, 512).memory();
        let planned = plan_of(&ctx, speculation, None);
        assert_eq!((planned.host_kv, planned.host_arena), (memory.host_kv, memory.host_arena));
        memory
    });
    assert_eq!((all.host_kv, all.host_arena), (own.host_kv, own.host_arena + (4 << 20)));
}

fn plan(ctx: &Ctx, draft: Option<&Model>) -> segno::ffi::plan::segno_plan {
    plan_of(ctx, SEGNO_SPECULATION_AUTO, draft)
}

fn plan_of(ctx: &Ctx, speculation: i32, draft: Option<&Model>) -> segno::ffi::plan::segno_plan {
    planned(ctx, &bundled_model(), |opts| {
        (opts.max_prefill, opts.speculation) = (24, speculation);
        opts.draft = draft.map_or(std::ptr::null(), |draft| draft.0);
    })
}

#[test]
fn options_that_cannot_be_are_refused() {
    let ctx = one_thread();
    let model = load(&ctx, "llama-bias");
    let (wide, state) = (load(&ctx, "llama-wide"), load(&ctx, "lfm2-plain"));
    for (speculation, drafts, draft, status, text) in [
        (7, 0, None, SEGNO_E_INVALID_ARGUMENT, "speculation 7"),
        (SEGNO_SPECULATION_ALWAYS, 0, None, SEGNO_E_INVALID_ARGUMENT, "speculation 256"),
        (SEGNO_SPECULATION_SHARED, 0, None, SEGNO_E_INVALID_ARGUMENT, "speculation 512"),
        (
            SEGNO_SPECULATION_MTP + SEGNO_SPECULATION_SHARED,
            0,
            None,
            SEGNO_E_INVALID_ARGUMENT,
            "SEGNO_SPECULATION_SHARED",
        ),
        (SEGNO_SPECULATION_OFF, 3, None, SEGNO_E_INVALID_ARGUMENT, "speculation is off"),
        (SEGNO_SPECULATION_AUTO, 16, None, SEGNO_E_INVALID_ARGUMENT, "max_drafts is 16"),
        (SEGNO_SPECULATION_DRAFT, 0, None, SEGNO_E_INVALID_ARGUMENT, "`draft` is NULL"),
        (SEGNO_SPECULATION_NGRAM, 0, Some(&model), SEGNO_E_INVALID_ARGUMENT, "asks no draft model"),
        (SEGNO_SPECULATION_OFF, 0, Some(&model), SEGNO_E_INVALID_ARGUMENT, "asks no draft model"),
        (SEGNO_SPECULATION_AUTO, 0, Some(&wide), SEGNO_E_UNSUPPORTED, "another vocabulary: 97 tokens"),
        (SEGNO_SPECULATION_DRAFT, 0, Some(&state), SEGNO_E_UNSUPPORTED, "layers of the draft model have a state"),
    ] {
        let failed = model.session(|opts| {
            (opts.speculation, opts.max_drafts) = (speculation, drafts);
            opts.draft = draft.map_or(std::ptr::null(), |draft| draft.0);
        });
        let failed = failed.err().unwrap();
        assert!(failed.status == status && failed.message.contains(text), "{}", failed.message);
    }
    let session = session(&model, Drafting { speculation: SEGNO_SPECULATION_AUTO, ..PLAIN }, 256);
    let (seq, mut count) = (session.open(&greedy()).unwrap(), 5);
    session.append(seq, &[1, 2]).unwrap();
    let mut token = -7;
    let none = call(|err| segno_decode_many(session.0, seq, &mut token, 0, &mut count, err)).unwrap_err();
    assert_eq!((none.status, token, count), (SEGNO_E_INVALID_ARGUMENT, -7, 5));
}
