//! Speculation by an assistant that reads the model's keys, through the C API: tokens and outcomes are those of a session that drafts nothing.

use crate::common::assistants::{loaded_alike, model_path, path, walks};
use crate::common::drafts::{Drafting, PLAIN, assert_mixed, assert_refused, assert_right, load, one_thread, session};
use crate::common::greedy;
use crate::common::predictors::{file_at, planned};
use segno::ffi::session::*;

#[test]
fn tokens_are_those_without_drafts() {
    let (drafted, accepted) = walks(&one_thread());
    assert_mixed(drafted, accepted);
}

#[test]
fn an_assistant_that_thinks_as_the_model_is_right() {
    let ctx = one_thread();
    let [model, assistant] = loaded_alike(&ctx);
    assert_right(&model, &assistant, &greedy());
}

#[test]
fn memory_and_plan_count_the_assistant() {
    let ctx = one_thread();
    let (model, assistant) = (ctx.load(&model_path()).unwrap(), ctx.load(&path()).unwrap());
    let drafting = |draft| Drafting { speculation: SEGNO_SPECULATION_AUTO, most: 0, draft, ..PLAIN };
    let [alone, both] = [None, Some(&assistant)].map(|draft| session(&model, drafting(draft), 512).memory());
    // It has no cache, and keeps 33 vectors of each of 4 sequences.
    assert_eq!(both.host_kv, alone.host_kv);
    assert!(both.host_arena >= alone.host_arena + 4 * 33 * 32 * 4, "{} beside {}", both.host_arena, alone.host_arena);
    let file = std::fs::metadata(path()).unwrap().len();
    assert!((file / 2..file).contains(&(both.host_weights - alone.host_weights)));
    let plan = planned(&ctx, &model_path(), |opts| {
        (opts.max_prefill, opts.speculation, opts.draft) = (24, SEGNO_SPECULATION_AUTO, assistant.0);
    });
    assert_eq!((plan.host_kv, plan.host_arena), (both.host_kv, both.host_arena));
    // The assistant is loaded already.
    assert_eq!(plan.host_weights, alone.host_weights);
}

#[test]
fn what_an_assistant_cannot_do_is_refused_by_name() {
    let ctx = one_thread();
    let assistant = ctx.load(&path()).unwrap();
    assert_refused(&assistant, None, "only drafts for another one");
    assert_refused(&assistant, Some(&assistant), "only drafts for another one");
    assert_refused(&load(&ctx, "gemma4-experts"), Some(&assistant), "no layer has the keys");
    assert_refused(&load(&ctx, "gemma3-plain"), Some(&assistant), "no layer has the keys");
    let mut short = file_at(&path());
    short.tensors.retain(|tensor| tensor.name != "nextn.post_projection.weight");
    assert!(ctx.load_buffer(&short.bytes()).err().unwrap().message.contains("nextn.post_projection"));
}
