//! Chat templates through the C API: real ones against what Jinja2 made of them (the shared test data), the model's own, bad input.

use crate::common;
use crate::common::gguf::{File, Shape};
use crate::common::patient::shortest;
use crate::common::{Ctx, Model, Result, bundled_model, call, shared_data};
use segno::ffi::chat::*;
use segno::ffi::status::*;
use serde_json::{Map, Value, json};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

/// 2024-07-26 12:00:00 UTC
const NOON: i64 = 1_721_995_200;

/// What a test passes beside the messages.
#[derive(Default)]
struct Options<'a> {
    template: Option<&'a str>,
    tools: Option<String>,
    vars: Option<String>,
    add_generation_prompt: bool,
}

fn parts(text: Option<&str>) -> (*const std::ffi::c_char, usize) {
    text.map_or((null(), 0), |text| (text.as_ptr().cast(), text.len()))
}

fn render(model: &Model, messages: &str, options: &Options) -> Result<String> {
    // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_chat_opts = unsafe { std::mem::zeroed() };
    segno_chat_opts_init(&mut opts, size_of::<segno_chat_opts>());
    opts.now = NOON;
    opts.flags = if options.add_generation_prompt { SEGNO_CHAT_ADD_GENERATION_PROMPT } else { 0 };
    (opts.template_text, opts.template_len) = parts(options.template);
    (opts.tools_json, opts.tools_len) = parts(options.tools.as_deref());
    (opts.vars_json, opts.vars_len) = parts(options.vars.as_deref());
    let (json, json_len) = parts(Some(messages));
    let mut len = 0;
    call(|err| segno_chat_render(model.0, json, json_len, &opts, null_mut(), 0, &mut len, err))?;
    let mut text = vec![0u8; len];
    let room = text.as_mut_ptr().cast();
    call(|err| segno_chat_render(model.0, json, json_len, &opts, room, len, &mut len, err))?;
    Ok(String::from_utf8(text).unwrap())
}

fn bundled() -> Model {
    Ctx::new(|_| ()).unwrap().load(&bundled_model()).unwrap()
}

fn hello() -> String {
    json!([{"role": "user", "content": "hi"}]).to_string()
}

#[test]
fn real_templates_render_byte_for_byte_and_fail_where_jinja_fails() {
    let Some(data) = shared_data() else { return };
    let read = |path: &str| std::fs::read_to_string(data.join("chat").join(path)).unwrap();
    let contexts: Map<String, Value> = serde_json::from_str(&read("contexts.json")).unwrap();
    let expected: Map<String, Value> = serde_json::from_str(&read("expected.json")).unwrap();
    let model = bundled();
    let (mut rendered, mut failed) = (0, 0);
    for (name, outcomes) in &expected {
        let template = read(&format!("templates/{name}"));
        for (context, wanted) in outcomes.as_object().unwrap() {
            let mut vars = contexts[context].as_object().unwrap().clone();
            let messages = vars.remove("messages").unwrap().to_string();
            let options = Options {
                template: Some(&template),
                tools: vars.remove("tools").map(|tools| tools.to_string()),
                add_generation_prompt: vars.remove("add_generation_prompt").unwrap().as_bool().unwrap(),
                vars: Some(Value::Object(vars).to_string()),
            };
            let found = render(&model, &messages, &options);
            match wanted["output"].as_str() {
                Some(output) => assert_eq!(found.as_deref(), Ok(output), "{name} {context}"),
                None => assert_failure(found.unwrap_err(), wanted["error"].as_str().unwrap()),
            }
            *if wanted["output"].is_string() { &mut rendered } else { &mut failed } += 1;
        }
    }
    println!("{rendered} renderings are equal, {failed} fail as they should");
    assert!(rendered > 200 && failed > 10);
}

fn assert_failure(found: common::Failed, error: &str) {
    assert_eq!(found.status, SEGNO_E_TEMPLATE, "{}", found.message);
    if let Some(raised) = error.strip_prefix("TemplateError: ") {
        assert_eq!(found.message, raised);
    }
}

#[test]
fn a_model_without_a_template_says_so_and_takes_the_callers() {
    let model = bundled();
    assert_eq!(render(&model, &hello(), &Options::default()).unwrap_err().status, SEGNO_E_NOT_FOUND);
    let template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}[assistant]{% endif %}{{ eos_token }}";
    let plain = Options { template: Some(template), ..Options::default() };
    assert_eq!(render(&model, &hello(), &plain).unwrap(), "<|endoftext|>[user] hi<|endoftext|>");
    let asking = Options { add_generation_prompt: true, ..plain };
    assert_eq!(render(&model, &hello(), &asking).unwrap(), "<|endoftext|>[user] hi[assistant]<|endoftext|>");
    let vars = Some(json!({"bos_token": "<s>", "eos_token": ""}).to_string());
    assert_eq!(render(&model, &hello(), &Options { vars, ..asking }).unwrap(), "<s>[user] hi[assistant]");
}

#[test]
fn names_of_special_tokens_in_messages_are_text() {
    let model = bundled();
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content | trim }}{{ eos_token }}{% endfor %}";
    let messages = json!([{"role": "user", "content": " <|endoftext|>a<|endoftext|> "}]).to_string();
    // SAFETY: the struct holds numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_chat_opts = unsafe { std::mem::zeroed() };
    segno_chat_opts_init(&mut opts, size_of::<segno_chat_opts>());
    (opts.template_text, opts.template_len) = parts(Some(template));
    let (json, len) = parts(Some(&messages));
    let (mut tokens, mut count) = ([0; 64], 0);
    call(|err| segno_chat_tokenize(model.0, json, len, &opts, tokens.as_mut_ptr(), 64, &mut count, err)).unwrap();
    let end = model.info().eos;
    let ends = tokens[..count].iter().filter(|&&token| token == end).count();
    assert_eq!((ends, tokens[0], tokens[count - 1]), (2, end, end), "{:?}", &tokens[..count]);
    let asked = call(|err| segno_chat_tokenize(model.0, json, len, &opts, null_mut(), 0, &mut count, err));
    assert!(asked.is_ok() && count > 4);
}

#[test]
fn the_models_own_template_is_used_unless_another_is_given() {
    let mut file: File = Shape::small().file();
    file.set("tokenizer.chat_template", "own: {{ messages[0].content }}{{ bos_token }}");
    let path = std::env::temp_dir().join(format!("segno-chat-{}.gguf", std::process::id()));
    file.write(&path);
    let model = Ctx::new(|_| ()).unwrap().load(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(render(&model, &hello(), &Options::default()).unwrap(), "own: hi");
    let other = Options { template: Some("other"), ..Options::default() };
    assert_eq!(render(&model, &hello(), &other).unwrap(), "other");
}

#[test]
fn bad_json_and_bad_options_are_invalid_arguments() {
    let model = bundled();
    let template = Some("{{ messages | length }}");
    for messages in ["", "{", "{}", "[1,", "null", "[]]"] {
        let failed = render(&model, messages, &Options { template, ..Options::default() }).unwrap_err();
        assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT, "{messages:?}: {}", failed.message);
    }
    let bad = [(Some("["), None), (Some("{}"), None), (Some("null"), None), (None, Some("[]"))];
    for (tools, vars) in bad.map(|(tools, vars)| (tools.map(str::to_owned), vars.map(str::to_owned))) {
        let failed = render(&model, &hello(), &Options { template, tools, vars, ..Options::default() }).unwrap_err();
        assert_eq!(failed.status, SEGNO_E_INVALID_ARGUMENT, "{}", failed.message);
    }
}

/// Most that any template may take, of the time of a machine with other work.
const LONGEST: Duration = Duration::from_secs(4);

#[test]
fn every_limit_of_a_template_is_an_error_with_its_name() {
    let model = bundled();
    let cases = [
        ("x".repeat((128 << 10) + 1), "source"),
        ("{% set x = range(1000) %}{% for i in x %}{% for j in x %}{% for k in x %}{% endfor %}{% endfor %}{% endfor %}".into(), "fuel"),
        ("{% for i in range(5000) %}{{ 'x' * 1000 }}{% endfor %}".into(), "output"),
        ("{{ {'a': 1} | tojson(indent=100000) }}".into(), "indent"),
        (format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000)), ""),
        (
            "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".into(),
            "memory",
        ),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into(), ""),
    ];
    for (template, limit) in cases {
        let timed = || {
            let start = Instant::now();
            let options = Options { template: Some(&template), ..Options::default() };
            let failed = render(&model, &hello(), &options).unwrap_err();
            (start.elapsed(), failed)
        };
        let (time, failed) = shortest(LONGEST, timed);
        assert_eq!(failed.status, SEGNO_E_TEMPLATE, "{}", failed.message);
        assert!(failed.message.contains(limit), "{limit}: {}", failed.message);
        assert!(time <= LONGEST, "{limit}: {time:?}");
    }
}
