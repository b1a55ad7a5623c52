//! Memory that is refused: every allocation of 64 KiB or more that a call makes fails once, one after the other, and some of all sizes
//! from a byte on, in every call that a host has; then all from a number on. Each call answers with a code, gives everything back, and works
//! afterwards. `tests/capi/refused.c` refuses every allocation of smaller models, also those of the C library.

use crate::allocator::{self, Rule, alone, share_of};
use crate::common;
use crate::common::adapters::{Form, Lora};
use crate::common::conversation::Chat;
use crate::common::gguf::{self, File};
use crate::common::{Ctx, Failed, Folder, Model, Result, Watch, call, model_opts};
use crate::models;
use segno::ffi::{chat::*, model::*, plan::*, seq::*, status::*, text::*};
use segno::memory::reserve_peak;
use serde_json::{Value, json};
use std::ffi::CString;
use std::fmt::Debug;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, PoisonError};

/// Smallest allocation of which each is refused, and how many of all are.
const LEAST: usize = 64 << 10;
const SAMPLES: usize = 60;
pub const TEMPLATE: &str = "{% for m in messages %}<s>{{ m.role }}: {{ m.content | trim }}</s>{% endfor %}\
    {% if add_generation_prompt %}<s>assistant:{% endif %}";

/// Refuses the allocations of `attempt` in turn, each of the large ones and some of all, and as often all from there on. What it gives
/// without refusals it gives again after each of them.
fn refuse_each<T: PartialEq + Debug>(name: &str, attempt: impl Fn() -> Result<T>) {
    let expected = attempt();
    if let Err(failed) = &expected {
        assert_ne!(failed.status, SEGNO_E_OUT_OF_MEMORY, "{name}: {}", failed.message);
    }
    let ((again, large), (_, any)) = (allocator::counted(LEAST, &attempt), allocator::counted(1, &attempt));
    assert!(again == expected, "{name}: the same every time");
    let each = (0..large).map(|number| Rule { least: LEAST, number, all: false });
    let samples = share_of(SAMPLES).min(any);
    let some = |all| (0..samples).map(move |i| Rule { least: 1, number: i * any / samples, all });
    let all = (0..8).map(|power| Rule { least: LEAST << (2 * power), number: 0, all: true });
    let rules = each.chain(some(false)).chain(some(true)).chain(all);
    let refused: usize = rules.map(|rule| refuse(name, &expected, rule, &attempt)).sum();
    assert!(attempt() == expected, "{name}: works as before");
    println!("{name}: {any} allocations, {large} of them large, {refused} refused");
    assert!(refused >= large, "{name}: {refused} refusals");
    assert!(allocator::reserve_is_whole(), "{name}: {} bytes of the reserve", reserve_peak());
}

fn refuse<T: PartialEq>(name: &str, expected: &Result<T>, rule: Rule, attempt: &impl Fn() -> Result<T>) -> usize {
    let before = allocator::live();
    let (result, refused) = allocator::refusing(rule, attempt);
    match &result {
        Err(Failed { status: SEGNO_E_OUT_OF_MEMORY, message, .. }) if refused > 0 => {
            assert!(message.contains("out of memory") || message.contains("allocate memory"), "{name}: {message}");
        }
        // Only the text of another error may be lost.
        Err(Failed { status, message, .. }) if message.starts_with("out of memory: none is left for the details") => {
            assert_eq!(Some(*status), expected.as_ref().err().map(|failed| failed.status), "{name}: {rule:?}");
        }
        // Some can be done without.
        other => assert!(other == expected, "{name}: {rule:?} gave {:?}", result.as_ref().err()),
    }
    drop(result);
    if allocator::live() < before {
        // What is kept from call to call was given up; the next makes it anew.
        assert!(attempt() == *expected, "{name}: after {rule:?}");
    }
    assert!(allocator::live() <= before, "{name}: {} bytes kept after {rule:?}", allocator::live() - before);
    refused
}

fn context() -> Ctx {
    Ctx::new(|opts| opts.n_threads = 2).unwrap()
}

/// What tells one model from another.
fn describe(model: Model) -> (u32, u64, i32) {
    let info = model.info();
    (info.vocab, info.parameters, info.eos)
}

fn load_both_ways(name: &str, file: &File, folder: &Path) {
    let (ctx, bytes, path) = (context(), file.bytes(), folder.join(format!("{name}.gguf")));
    file.write(&path);
    for (way, flags) in [("mapped", 0), ("read", SEGNO_MODEL_NO_MMAP)] {
        let opts = model_opts(flags, &mut Watch::default());
        refuse_each(&format!("{name}, {way}"), || {
            let mut opts = opts;
            opts.progress = None;
            ctx.load_with(&path, &opts).map(|(_, model)| describe(model))
        });
    }
    let mut opts = model_opts(0, &mut Watch::default());
    opts.progress = None;
    refuse_each(&format!("{name}, from memory"), || {
        ctx.load_buffer_with(&bytes, &opts).map(|(_, model)| describe(model))
    });
}

#[test]
fn a_load_without_memory_is_an_error() {
    let (_alone, folder) = (alone(), Folder::new("faults-load"));
    load_both_ways("sentencepiece", &models::sentencepiece(), folder.path());
    load_both_ways("byte pair", &models::byte_pair(), folder.path());
    load_both_ways("wide", &models::wide(), folder.path());
}

#[test]
fn a_load_of_parts_without_memory_is_an_error() {
    let (_alone, folder, ctx) = (alone(), Folder::new("faults-parts"), context());
    let file = models::wide();
    let tensors = file.tensors.len();
    let paths = gguf::write_parts(folder.path(), "parts", &file.split(&[tensors - 3000, 2000, 1000]));
    refuse_each("parts", || ctx.load(&paths[0]).map(describe));
}

/// Puts a long text into a file.
type Change = fn(&mut File, &str);

#[test]
fn a_refused_file_is_refused_whatever_the_memory() {
    let (_alone, ctx) = (alone(), context());
    let long = "x".repeat(300_000);
    let changes: [(&str, Change); 6] = [
        ("architecture", |file, long| _ = file.set("general.architecture", long)),
        ("tokenizer", |file, long| _ = file.set("tokenizer.ggml.model", long)),
        ("pre-tokenizer", |file, long| _ = file.set("tokenizer.ggml.pre", long)),
        ("merge", |file, long| _ = file.set("tokenizer.ggml.merges", [format!("{long} {long}").as_str()])),
        ("scaling", |file, long| _ = file.set("llama.rope.scaling.type", long)),
        ("parts", |file, _| _ = file.set("split.count", 90_000u32)),
    ];
    for (name, change) in changes {
        let mut file = models::byte_pair();
        change(&mut file, &long);
        let bytes = file.bytes();
        refuse_each(name, || ctx.load_buffer(&bytes).map(describe));
    }
}

#[test]
fn a_plan_and_metadata_without_memory_are_errors() {
    let (_alone, folder, ctx) = (alone(), Folder::new("faults-plan"), context());
    let path = folder.join("wide.gguf");
    models::wide().write(&path);
    let name = CString::new(path.to_str().unwrap()).unwrap();
    refuse_each("plan", || {
        // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
        let mut plan: segno_plan = unsafe { std::mem::zeroed() };
        let size = size_of::<segno_plan>();
        call(|err| segno_plan_get(ctx.0, name.as_ptr(), null(), null(), &mut plan, size, err))?;
        Ok((plan.host_weights, plan.host_kv, plan.host_arena))
    });
    let model = ctx.load(&path).unwrap();
    for key in ["extra.strings", "extra.numbers", "extra.arrays"] {
        refuse_each(key, || model.meta(key));
    }
}

#[test]
fn a_session_without_memory_is_an_error() {
    let (_alone, folder, ctx) = (alone(), Folder::new("faults-session"), context());
    let path = folder.join("model.gguf");
    models::byte_pair().write(&path);
    let model = ctx.load(&path).unwrap();
    for (name, kv_type) in [("f16 session", 0), ("f32 session", 1), ("q8 session", 2)] {
        refuse_each(name, || {
            let session = model.session(|opts| {
                (opts.max_seqs, opts.kv_tokens, opts.max_prefill, opts.kv_type) = (200, 20_000, 16_000, kv_type);
            })?;
            let seq = session.open(&common::greedy())?;
            session.prefill(seq, &[5, 6, 7])?;
            session.generate(seq, 3)
        });
    }
}

#[test]
fn an_adapter_without_memory_is_an_error_and_sequences_go_on() {
    let (_alone, folder, ctx) = (alone(), Folder::new("faults-adapters"), context());
    let (path, file) = (folder.join("adapter.gguf"), gguf::Shape { hidden: 256, ..gguf::Shape::small() }.file());
    let model = ctx.load_buffer(&file.bytes()).unwrap();
    Lora::random(&file.bytes(), Form::new(1, 128), |_| true).file().write(&path);
    let other = model.adapter(&path).unwrap();
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (3, 512)).unwrap();
    refuse_each("load, set, fork, step", || {
        let adapter = model.adapter(&path)?;
        let seq = session.open(&common::greedy())?;
        let result = (|| {
            session.adapt(seq, &[(&adapter, 1.0), (&other, -0.5)])?;
            session.prefill(seq, &[5, 6, 7])?;
            let child = session.fork(seq, None)?;
            let first = session.step(child);
            session.close(child)?;
            Ok((first?, session.generate(seq, 3)?))
        })();
        session.close(seq)?;
        result
    });
}

/// Sampler options with more of everything than anybody wants.
fn crowded(bias: &[segno_logit_bias], stops: &[i32]) -> segno_sampler_opts {
    let mut opts = common::greedy();
    (opts.bias, opts.bias_count) = (bias.as_ptr(), bias.len());
    (opts.stop_tokens, opts.stop_token_count) = (stops.as_ptr(), stops.len());
    opts
}

#[test]
fn sequences_without_memory_are_errors_and_the_others_go_on() {
    let (_alone, folder, ctx) = (alone(), Folder::new("faults-sequences"), context());
    let path = folder.join("model.gguf");
    models::byte_pair().write(&path);
    let model = ctx.load(&path).unwrap();
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (3, 40_000)).unwrap();
    let other = session.open(&common::greedy()).unwrap();
    session.prefill(other, &[9, 8, 7]).unwrap();
    let bias = vec![segno_logit_bias { token: 11, bias: -0.5 }; 20_000];
    let opts = crowded(&bias, &[12; 20_000]);
    refuse_each("open, prefill, set, step", || {
        let seq = session.open(&common::greedy())?;
        let result = (|| {
            session.prefill(seq, &[5, 6, 7])?;
            call(|err| segno_seq_sampler_set(session.0, seq, &opts, err))?;
            let child = session.fork(seq, None)?;
            let first = session.step(child);
            session.close(child)?;
            session.append(seq, &[3; 30_000])?;
            session.truncate(seq, 5)?;
            Ok((first?, session.step(seq)?, session.logits(seq)?.len()))
        })();
        session.close(seq)?;
        result
    });
    let expected = fresh_tokens(&model, 8);
    assert_eq!(session.generate(other, 8).unwrap(), expected, "a sequence beside the failures is as if alone");
}

fn fresh_tokens(model: &Model, count: usize) -> Vec<i32> {
    let session = model.session(|_| ()).unwrap();
    let seq = session.open(&common::greedy()).unwrap();
    session.prefill(seq, &[9, 8, 7]).unwrap();
    session.generate(seq, count).unwrap()
}

#[test]
fn text_without_memory_is_an_error() {
    let (_alone, ctx) = (alone(), context());
    let text = models::text(1_000_000);
    for (name, file) in [("sentencepiece", models::sentencepiece()), ("byte pair", models::byte_pair())] {
        let model = ctx.load_buffer(&file.bytes()).unwrap();
        let flags = SEGNO_TOKENIZE_ADD_SPECIAL | SEGNO_TOKENIZE_PARSE_SPECIAL;
        refuse_each(&format!("{name}, tokens"), || model.tokenize(&text, flags));
        let tokens = model.tokenize(&text, flags).unwrap();
        let scripts = models::scripts(3000);
        refuse_each(&format!("{name}, all scripts"), || model.tokenize(&scripts, flags));
        refuse_each(&format!("{name}, text"), || model.detokenize(&tokens, SEGNO_DETOKENIZE_SPECIAL));
        refuse_each(&format!("{name}, stream"), || stream(&model, &tokens[..20]));
    }
}

/// The text of `tokens` and a long one, through a stream with long stop strings.
fn stream(model: &Model, tokens: &[i32]) -> Result<Vec<u8>> {
    let long = "q".repeat(200_000);
    let stop = segno_string { data: long.as_ptr().cast(), len: long.len() };
    // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_text_opts = unsafe { std::mem::zeroed() };
    segno_text_opts_init(&mut opts, size_of::<segno_text_opts>());
    (opts.stops, opts.stop_count) = (&stop, 1);
    let mut text = null_mut();
    call(|err| segno_text_create(model.0, &opts, &mut text, err))?;
    let longest = model.info().vocab as i32 - 2;
    let (mut all, mut room, mut len) = (Vec::new(), vec![0u8; 400_000], 0);
    let result = tokens.iter().chain([&longest]).try_for_each(|&token| {
        call(|err| segno_text_push(text, token, room.as_mut_ptr().cast(), room.len(), &mut len, err))?;
        all.extend(&room[..len]);
        Ok(())
    });
    segno_text_free(text);
    result.map(|()| all)
}

/// A conversation whose parts are longer than anything that passes.
fn conversation() -> String {
    let long = String::from_utf8(models::text(150_000)).unwrap().replace('\n', " ");
    let turn = |role: &str| format!("{{\"role\": \"{role}\", \"content\": \"{long}\"}}");
    let short = "{\"role\": \"user\", \"content\": \"x\"}";
    format!("[{}, {}, {}]", turn("user"), turn("assistant"), vec![short; 3000].join(", "))
}

#[test]
fn a_conversation_without_memory_is_an_error() {
    let (_alone, ctx) = (alone(), context());
    let mut file = models::byte_pair();
    file.set("tokenizer.chat_template", TEMPLATE);
    let model = ctx.load_buffer(&file.bytes()).unwrap();
    let messages = conversation();
    let templates = [
        ("its own", None),
        (
            "texts",
            Some("{% set t = messages[0].content %}{{ t ~ t[2:] ~ (t | trim | replace('a', 'bb')) ~ (t | reverse) }}"),
        ),
        (
            "json",
            Some("{{ messages | tojson }}{{ messages[0].content | truncate(100000) }}{{ '%s' % messages[0].content }}"),
        ),
        (
            "lists",
            Some(
                "{% set p = messages[0].content.split(' ') %}{{ p | join('-') }}{{ (p + p) | length }}{{ p | sort | first }}\
            {{ messages | map(attribute='role') | unique | list }}{{ messages | selectattr('role', 'eq', 'user') | list | length }}\
            {{ p | batch(9000) | list | length }}{{ range(9000) | list | length }}{{ messages[0].content | list | length }}",
            ),
        ),
        (
            "captures",
            Some(
                "{% macro m(t) %}{{ t }}{% endmacro %}{% set x %}{{ m(messages[1].content) }}{% endset %}{{ x }}{{ x.splitlines() }}",
            ),
        ),
    ];
    for (name, template) in templates {
        refuse_each(&format!("chat, {name}"), || render(&model, &messages, template));
    }
}

/// A conversation of large messages, which is begun, added to, forked and answered: as far as its size allows, which a short one fits.
#[test]
fn a_conversation_that_is_held_without_memory_is_an_error() {
    let (_alone, ctx) = (alone(), context());
    let mut file = models::byte_pair();
    file.set("tokenizer.chat_template", TEMPLATE);
    let model = ctx.load_buffer(&file.bytes()).unwrap();
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, 64)).unwrap();
    let long: Value = serde_json::from_str(&conversation()).unwrap();
    let short = json!([{"role": "user", "content": "x"}]);
    for (name, messages) in [("long", &long), ("short", &short)] {
        refuse_each(&format!("held, {name}"), || {
            let chat = Chat::new(&session, |opts| opts.max_tokens = 3)?;
            chat.add(messages)?;
            let (json, fork) = (chat.json()?, chat.fork()?);
            let replies: Vec<Result<_>> = [&chat, &fork].map(|chat| chat.finish()).into_iter().collect();
            let failed = |reply: &Result<_>| reply.as_ref().is_err_and(|failed| failed.status == SEGNO_E_OUT_OF_MEMORY);
            match replies.into_iter().find(failed) {
                Some(Err(failed)) => Err(failed),
                _ => Ok((json, chat.json()?, fork.json()?)),
            }
        });
    }
}

/// Texts, dictionaries, names and arguments that come from a template, each larger than what passes.
#[test]
fn what_a_template_makes_without_memory_is_an_error() {
    let (_alone, ctx) = (alone(), context());
    let model = ctx.load_buffer(&models::byte_pair().bytes()).unwrap();
    let messages = conversation();
    for case in ["upper", "lower", "title", "capitalize"] {
        refuse_each(&format!("filter {case}"), || render(&model, &messages, Some(&of_content(&format!("| {case}")))));
    }
    for case in ["upper", "lower", "title", "capitalize", "casefold", "swapcase"] {
        refuse_each(&format!("method {case}"), || render(&model, &messages, Some(&of_content(&format!(".{case}()")))));
    }
    let each = |template: &dyn Fn(usize) -> String| (0..1500).map(template).collect::<Vec<_>>().join(", ");
    let (pairs, named) = (each(&|index| format!("'k{index}': {index}")), each(&|index| format!("k{index}={index}")));
    let numbers = each(&|index| index.to_string());
    let name = "n".repeat(100_000);
    let templates = [
        ("map", format!("{{% set m = {{{pairs}}} %}}{{{{ m | length }}}}{{{{ m.k1499 }}}}")),
        ("dict", format!("{{{{ dict({named}) | length }}}}")),
        ("dict of a map", format!("{{% set m = {{{pairs}}} %}}{{{{ dict(m, x=1) | length }}}}")),
        ("namespace", format!("{{% set n = namespace({named}) %}}{{% set n.more = 1 %}}{{{{ n.k7 }}}}")),
        (
            "keyword arguments",
            format!("{{% macro f() %}}{{{{ kwargs | length }}}}{{% endmacro %}}{{{{ f({named}) }}}}"),
        ),
        (
            "spread arguments",
            format!("{{% macro f() %}}{{{{ kwargs | length }}}}{{% endmacro %}}{{{{ f(**{{{pairs}}}) }}}}"),
        ),
        ("arguments", format!("{{% macro f() %}}{{{{ varargs | length }}}}{{% endmacro %}}{{{{ f({numbers}) }}}}")),
        ("format", format!("{{{{ '%(k1)s' | format({named}) }}}}{{{{ [1] | map('default', {numbers}) | list }}}}")),
        ("name of an argument", format!("{{% set n = namespace({name}=2) %}}{{{{ n is mapping }}}}")),
        ("name of an attribute", format!("{{% set n = namespace() %}}{{% set n.{name} = 2 %}}")),
        ("no such name", format!("{{{{ [{name}] | length }}}}")),
        ("set names", (0..3000).map(|index| format!("{{% set v{index} = 1 %}}")).collect()),
        (
            "macros",
            "{% for i in range(4000) %}{% macro f() %}{% endmacro %}{% set n = namespace() %}{% endfor %}".into(),
        ),
        (
            "numbers",
            "{{ messages[0].content | int }}{{ messages[0].content | float }}{{ messages[0].content | indent }}".into(),
        ),
        ("changed", "{% for m in messages %}{{ loop.changed(m.content) }}{% endfor %}".into()),
    ];
    for (name, template) in &templates {
        assert!(render(&model, &messages, Some(template)).is_ok(), "{name}");
        refuse_each(name, || render(&model, &messages, Some(template)));
    }
}

fn of_content(change: &str) -> String {
    format!("{{{{ messages[0].content {change} }}}}")
}

fn render(model: &Model, messages: &str, template: Option<&str>) -> Result<Vec<u8>> {
    // SAFETY: the structs of the header hold numbers and nullable pointers, for which zero is a value.
    let mut opts: segno_chat_opts = unsafe { std::mem::zeroed() };
    segno_chat_opts_init(&mut opts, size_of::<segno_chat_opts>());
    if let Some(template) = template {
        (opts.template_text, opts.template_len) = (template.as_ptr().cast(), template.len());
    }
    // Made once: what is refused should be the library's.
    static ROOM: Mutex<[u8; 4 << 20]> = Mutex::new([0; 4 << 20]);
    let (mut room, mut len) = (ROOM.lock().unwrap_or_else(PoisonError::into_inner), 0);
    let (json, json_len, out) = (messages.as_ptr().cast(), messages.len(), room.as_mut_ptr().cast());
    call(|err| segno_chat_render(model.0, json, json_len, &opts, out, room.len(), &mut len, err))?;
    Ok(room[..len].to_vec())
}
