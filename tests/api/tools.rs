//! Tools through the C API: what a sequence writes under a grammar of calls is read as calls that meet their schemas, whatever is forked and cut.

use crate::common::{Ctx, Failed, Grammar, Model, Session, bundled_model, call, sampler};
use segno::ffi::reply::*;
use segno::ffi::status::*;
use segno::ffi::tools::*;
use serde_json::Value;
use std::ffi::CString;
use std::ptr::null_mut;

const TOOLS: &str = r#"[
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
        "a": {"type": "integer", "minimum": -99, "maximum": 99}, "b": {"type": "integer", "minimum": -99, "maximum": 99}},
        "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "list", "parameters": {"type": "object", "properties": {
        "path": {"type": "string", "maxLength": 12}, "kind": {"enum": ["file", "folder"]}}, "required": ["path"]}}}]"#;

fn model() -> Model {
    Ctx::new(|opts| opts.n_threads = 1).unwrap().load(&bundled_model()).unwrap()
}

/// A grammar of calls and its start token; `name` is the tool that must be called.
pub fn grammar(
    model: &Model,
    format: &str,
    name: Option<&str>,
    change: impl FnOnce(&mut segno_tools_opts),
) -> Result<(Grammar, i32), Failed> {
    // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_tools_opts = unsafe { std::mem::zeroed() };
    segno_tools_opts_init(&mut opts, size_of::<segno_tools_opts>());
    let (format, name) = (CString::new(format).unwrap(), name.map(|name| CString::new(name).unwrap()));
    (opts.tools_json, opts.tools_len) = (TOOLS.as_ptr().cast(), TOOLS.len());
    (opts.format, opts.choice) = (format.as_ptr(), SEGNO_TOOLS_REQUIRED);
    if let Some(name) = &name {
        (opts.name, opts.choice) = (name.as_ptr(), SEGNO_TOOLS_NAMED);
    }
    change(&mut opts);
    let (mut grammar, mut start) = (null_mut(), -7);
    call(|err| segno_tools_grammar_create(model.0, &opts, &mut grammar, &mut start, err))?;
    Ok((Grammar(grammar), start))
}

/// The calls that tokens make, as the reader tells them: names and arguments.
fn calls(model: &Model, format: &str, tokens: &[i32]) -> Vec<(String, Value)> {
    // SAFETY: as above.
    let mut opts: segno_reply_opts = unsafe { std::mem::zeroed() };
    segno_reply_opts_init(&mut opts, size_of::<segno_reply_opts>());
    let format = CString::new(format).unwrap();
    (opts.format, opts.tools_json, opts.tools_len) = (format.as_ptr(), TOOLS.as_ptr().cast(), TOOLS.len());
    let mut reply = null_mut();
    call(|err| segno_reply_create(model.0, &opts, &mut reply, err)).unwrap();
    let (mut begun, mut whole) = (Vec::<(String, String)>::new(), 0);
    for token in tokens.iter().map(|token| Some(*token)).chain([None]) {
        // SAFETY: as above.
        let mut events: [segno_event; 16] = unsafe { std::mem::zeroed() };
        let (room, mut count) = (events.as_mut_ptr(), 0);
        call(|err| match token {
            Some(token) => segno_reply_push(reply, token, room, 16, &mut count, err),
            None => segno_reply_flush(reply, room, 16, &mut count, err),
        })
        .unwrap();
        for event in &events[..count] {
            // SAFETY: the text of an event is valid until the next call on the reply.
            let text = unsafe { std::slice::from_raw_parts(event.text.cast::<u8>(), event.len) };
            let text = std::str::from_utf8(text).unwrap();
            match event.kind {
                SEGNO_EVENT_TOOL_BEGIN => begun.push((text.into(), String::new())),
                SEGNO_EVENT_TOOL_ARGUMENTS => begun.last_mut().unwrap().1 += text,
                SEGNO_EVENT_TOOL_END => whole += 1,
                SEGNO_EVENT_CONTENT => assert_eq!(text, "", "beside calls"),
                _ => {}
            }
        }
    }
    segno_reply_free(reply);
    assert_eq!(whole, begun.len(), "calls that are not whole: {begun:?}");
    begun.into_iter().map(|(name, arguments)| (name, serde_json::from_str(&arguments).unwrap())).collect()
}

#[track_caller]
fn check(name: &str, arguments: &Value) {
    let within = |key: &str| arguments[key].as_i64().is_some_and(|number| (-99..=99).contains(&number));
    let path = arguments["path"].as_str().map(|path| path.chars().count());
    let kind = arguments.get("kind").is_none_or(|kind| kind == "file" || kind == "folder");
    let count = arguments.as_object().unwrap().len();
    let fits = match name {
        "add" => within("a") && within("b") && count == 2,
        _ => path.is_some_and(|length| length <= 12) && kind && count <= 2,
    };
    assert!(fits, "{name} {arguments}");
}

fn opened(model: &Model, session: &Session, grammar: &(Grammar, i32), seed: u64) -> i32 {
    let mut opts = sampler();
    (opts.seed, opts.temperature, opts.top_k, opts.top_p, opts.min_p) = (seed, 1.0, 0, 1.0, 0.0);
    let seq = session.open(&opts).unwrap();
    session.append(seq, &model.tokenize(b"ROMEO:", 0).unwrap()).unwrap();
    session.constrain(seq, Some(&grammar.0), grammar.1).unwrap();
    seq
}

/// Tokens until the end, and whether it came.
fn run(session: &Session, seq: i32) -> (Vec<i32>, bool) {
    let mut tokens = Vec::new();
    while tokens.len() < 400 {
        match session.step(seq).unwrap() {
            (token, SEGNO_OK) => tokens.push(token),
            (_, SEGNO_PENDING) => {}
            (_, status) => return (tokens, status == SEGNO_DONE),
        }
    }
    (tokens, false)
}

#[test]
fn sequences_write_calls_that_meet_their_schemas() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    for format in ["hermes", "mistral", "qwen3-coder", "glm4", "lfm2", "gemma4", "llama3", "functionary"] {
        let (mut seen, one) = (0, |opts: &mut segno_tools_opts| opts.flags = SEGNO_TOOLS_ONE_CALL);
        for (name, seeds) in [(None, 0..14), (Some("list"), 14..20)] {
            let made = grammar(&model, format, name, one).unwrap();
            assert_eq!(made.1, -1, "a call that must come begins at once");
            for seed in seeds {
                let seq = opened(&model, &session, &made, seed);
                let (tokens, ended) = run(&session, seq);
                session.close(seq).unwrap();
                if !ended {
                    continue;
                }
                let calls = calls(&model, format, &tokens);
                assert_eq!(calls.len(), 1, "{format}");
                assert!(name.is_none_or(|name| name == calls[0].0), "{format}: {}", calls[0].0);
                check(&calls[0].0, &calls[0].1);
                seen += 1;
            }
        }
        assert!(seen >= 4, "{format}: {seen} calls");
    }
}

#[test]
fn forks_and_cuts_within_a_call_change_no_token() {
    let model = model();
    let session = model.session(|_| ()).unwrap();
    let made = grammar(&model, "qwen3-coder", None, |_| ()).unwrap();
    let seq = opened(&model, &session, &made, 4);
    let prompt = session.length(seq).unwrap();
    let expected = run(&session, seq);
    assert!(expected.0.len() > 20);
    for cut in (0..expected.0.len()).step_by(5) {
        session.truncate(seq, prompt + cut).unwrap();
        let fork = session.fork(seq, None).unwrap();
        for seq in [seq, fork] {
            let (rest, ended) = run(&session, seq);
            let common = rest.len().min(expected.0.len() - cut);
            assert_eq!(rest[..common], expected.0[cut..cut + common], "cut at {cut}");
            assert!(ended == expected.1 || !ended);
        }
        session.close(fork).unwrap();
    }
}

#[test]
fn mistakes_are_told() {
    let model = model();
    let failed = |format, name, change: fn(&mut segno_tools_opts)| grammar(&model, format, name, change).err().unwrap();
    let none = failed("think", None, |_| ());
    assert_eq!(none.status, SEGNO_E_GRAMMAR);
    assert_eq!(none.message, "the format think has no calls of tools, so none can be watched");
    let other = failed("hermes", Some("subtract"), |_| ());
    assert_eq!((other.status, &*other.message), (SEGNO_E_NOT_FOUND, "tools_json has no tool `subtract`"));
    assert_eq!(failed("hermes", None, |opts| opts.choice = 9).message, "there is no choice 9 of tools");
    assert_eq!(failed("hermes", None, |opts| opts.choice = SEGNO_TOOLS_NAMED).status, SEGNO_E_NULL_POINTER);
    assert_eq!(failed("hermes", None, |opts| opts.flags = 2).message, "unknown tools flags 0x2");
    assert_eq!(failed("smoke", None, |_| ()).status, SEGNO_E_NOT_FOUND);
    fn with(opts: &mut segno_tools_opts, tools: &'static str) {
        (opts.tools_json, opts.tools_len) = (tools.as_ptr().cast(), tools.len());
    }
    let no_tool = failed("hermes", None, |opts| with(opts, "[]"));
    assert_eq!(no_tool.message, "a call is required, but tools_json has no tools");
    let twice = failed("hermes", None, |opts| with(opts, r#"[{"name": "a"}, {"name": "a"}]"#));
    assert_eq!(twice.message, "tools_json: there are two tools `a`");
    let unknown = |opts: &mut segno_tools_opts| {
        with(opts, r#"[{"name": "a", "parameters": {"properties": {"x": {"not": {"type": "string"}}}}}]"#);
    };
    assert_eq!(
        failed("hermes", None, unknown).message,
        "the parameters of the tool `a`: the schema at #/properties/x: the keyword `not` cannot be watched while a text is written"
    );
    let gemma = failed("gemma4", None, unknown);
    assert!(gemma.message.contains("tool `a`: the keyword `not` cannot be watched here"), "{}", gemma.message);
    let spaced = failed("glm4", None, |opts| with(opts, r#"[{"name": "a b"}]"#));
    assert_eq!(spaced.message, "the tool `a b` cannot be written in the format glm4");
}
