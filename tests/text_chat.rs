//! Chat templates against what Jinja2 renders, and against strangers who mean harm.

mod text;

use segno::error::Error;
use segno::text::chat::{ChatOptions, render};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Renders with a conversation in the layout of `contexts.json`: messages, flags, and variables.
fn render_context(template: &str, context: &Map<String, Value>, now: i64) -> Result<String, Error> {
    let mut variables = context.clone();
    let messages = variables.remove("messages").unwrap().to_string();
    let prompt = variables.remove("add_generation_prompt").and_then(|flag| flag.as_bool()).unwrap_or(false);
    let tools = variables.remove("tools").map(|tools| tools.to_string());
    let bos = variables.remove("bos_token").and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default();
    let variables = Value::Object(variables).to_string();
    let options = ChatOptions {
        add_generation_prompt: prompt,
        tools_json: tools.as_deref().map(str::as_bytes),
        vars_json: Some(variables.as_bytes()),
        now,
        bos: &bos,
        eos: "",
    };
    render(template, messages.as_bytes(), &options)
}

/// What is wrong with `found`, when it should be `wanted` as `expected.json` has it.
fn difference(found: Result<String, Error>, wanted: &Value) -> Option<String> {
    match (found, wanted["output"].as_str(), wanted["error"].as_str()) {
        (Ok(found), Some(output), _) if found == output => None,
        (Err(Error::Template(message)), None, Some(error)) => {
            let raised = error.strip_prefix("TemplateError: ");
            (raised.is_some_and(|raised| raised != message)).then(|| format!("{message:?} instead of {error:?}"))
        }
        (found, ..) => {
            let (found, wanted) =
                (format!("{found:?}"), format!("{:?}", wanted["output"].as_str().ok_or(&wanted["error"])));
            let same = found.chars().zip(wanted.chars()).take_while(|(a, b)| a == b).count();
            let from = |text: &str| text.chars().skip(same.saturating_sub(40)).take(120).collect::<String>();
            Some(format!("at {same}: {}\n   instead of: {}", from(&found), from(&wanted)))
        }
    }
}

/// 2024-07-26 12:00:00 UTC
const NOON: i64 = 1_721_995_200;

#[test]
fn real_templates_render_as_jinja_renders_them() {
    let Some(data) = text::shared_data() else { return };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let contexts: Map<String, Value> = serde_json::from_str(&read(&data.join("chat/contexts.json"))).unwrap();
    let expected: BTreeMap<String, Map<String, Value>> =
        serde_json::from_str(&read(&data.join("chat/expected.json"))).unwrap();
    let (mut cases, mut wrong) = (0, Vec::new());
    for (name, outcomes) in &expected {
        let template = read(&data.join("chat/templates").join(name));
        for (context, wanted) in outcomes {
            cases += 1;
            let found = render_context(&template, contexts[context].as_object().unwrap(), NOON);
            wrong.extend(difference(found, wanted).map(|difference| format!("{name} {context}: {difference}")));
        }
    }
    assert!(cases > 200, "{cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn plain(template: &str) -> Result<String, Error> {
    render(template, json!([{"role": "user", "content": "hi"}]).to_string().as_bytes(), &ChatOptions::default())
}

#[test]
fn own_templates_render_as_jinja_renders_them() {
    let golden: Value = serde_json::from_str(include_str!("golden/text/chat.json")).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/text/templates");
    let templates = golden["templates"].as_object().unwrap();
    assert!(templates.len() >= 12);
    let mut wrong = Vec::new();
    for (name, cases) in templates {
        let template = std::fs::read_to_string(folder.join(name)).unwrap();
        for (conversation, wanted) in cases.as_object().unwrap() {
            let mut context = golden["conversations"][conversation].as_object().unwrap().clone();
            context.entry("eos_token").or_insert(json!(""));
            let found = render_context(&template, &context, NOON);
            wrong.extend(difference(found, wanted).map(|difference| format!("{name} {conversation}: {difference}")));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn expressions_mean_what_python_means_by_them() {
    let golden: Value = serde_json::from_str(include_str!("golden/text/expressions.json")).unwrap();
    let mut wrong = Vec::new();
    for case in golden.as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        let found = plain(&format!("{{{{ ({source}) }}}}"));
        wrong.extend(difference(found, &case[1]).map(|difference| format!("{source}: {difference}")));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// A template that harms, and the name of the limit that stops it.
fn hostile_templates() -> Vec<(&'static str, String, &'static str)> {
    let ns = "{% set ns = namespace(s='x', l=[1]) %}";
    let in_loop = |body: &str| format!("{ns}{{% for i in range(100000) %}}{body}{{% endfor %}}");
    let operators = |operand: &str, operator: &str| format!("{{{{ {operand}{} }}}}", operator.repeat(50_000));
    let deep_list = format!("{}{}", "{% set ns = namespace(l=[]) %}", in_range("{% set ns.l = [ns.l] %}"));
    vec![
        ("doubling by ~", in_loop("{% set ns.s = ns.s ~ ns.s %}"), "memory"),
        ("doubling by +", in_loop("{% set ns.s = ns.s + ns.s %}"), "memory"),
        ("doubling a list", in_loop("{% set ns.l = ns.l + ns.l %}"), "memory"),
        ("doubling by format", in_loop("{% set ns.s = '%s%s' % (ns.s, ns.s) %}"), "memory"),
        ("doubling by join", in_loop("{% set ns.s = [ns.s, ns.s] | join %}"), "memory"),
        ("doubling by replace", in_loop("{% set ns.s = ('x' * 100000) | replace('x', ns.s ~ 'yy') %}"), "memory"),
        (
            "sharing doubled",
            format!("{}{{{{ ns.l | tojson }}}}", repeated(ns, "{% set ns.l = [ns.l, ns.l] %}", 60)),
            "fuel",
        ),
        (
            "comparing the shared",
            format!("{}{{{{ ns.l == ns.l[0:2] }}}}", repeated(ns, "{% set ns.l = [ns.l, ns.l] %}", 60)),
            "fuel",
        ),
        ("repeating a text", "{{ 'x' * 99999999999 }}".into(), "memory"),
        ("repeating a list", "{{ ([1] * 99999999999) | length }}".into(), "memory"),
        ("a wide field", "{{ 'x'.center(99999999999) }}".into(), "memory"),
        ("capturing", format!("{{% set x %}}{}{{% endset %}}", in_loop(&"y".repeat(60_000))), "memory"),
        (
            "endless loops",
            "{% set r = range(100000) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}".into(),
            "fuel",
        ),
        ("writing on and on", in_loop(&"z".repeat(1000)), "output"),
        ("an indent of json", "{{ {'a': [1]} | tojson(indent=1000000000) }}".into(), "indent"),
        ("an indent of text", "{{ 'a' | indent(1000000000) }}".into(), "indent"),
        ("a macro that calls itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(), "nesting"),
        (
            "two macros",
            "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}".into(),
            "nesting",
        ),
        (
            "a loop that calls itself",
            "{% set l = [1] %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}".into(),
            "nesting",
        ),
        ("50,000 additions", operators("1", "+1"), "nesting"),
        ("40,000 negations", format!("{{{{ {}1 }}}}", "- ".repeat(40_000)), ""),
        ("30,000 nots", format!("{{{{ {}1 }}}}", "not ".repeat(30_000)), ""),
        ("50,000 brackets", format!("{{{{ {}1{} }}}}", "[".repeat(50_000), "]".repeat(50_000)), ""),
        ("50,000 parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000)), ""),
        ("powers", format!("{{{{ 2{} }}}}", "**2".repeat(30_000)), ""),
        ("choices", format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(9_000)), ""),
        ("attributes", format!("{{{{ messages{} }}}}", ".a".repeat(50_000)), ""),
        ("6,000 nested blocks", format!("{}{}", "{% if 1 %}".repeat(6_000), "{% endif %}".repeat(5_000)), ""),
        ("elifs", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(9_000)), ""),
        ("a list in itself for ever", deep_list, "nesting"),
        ("too long a source", "x".repeat((128 << 10) + 1), "source"),
        ("a huge range", "{{ range(10 ** 30) | list }}".into(), ""),
        ("a huge power", "{{ 10 ** 10 ** 10 }}".into(), ""),
    ]
}

fn in_range(body: &str) -> String {
    format!("{{% for i in range(100000) %}}{body}{{% endfor %}}")
}

fn repeated(before: &str, body: &str, count: usize) -> String {
    format!("{before}{}", body.repeat(count))
}

/// Most memory that this process has had resident, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn hostile_templates_are_errors_in_time_and_the_process_lives() {
    for (what, template, limit) in hostile_templates() {
        let start = std::time::Instant::now();
        let outcome = plain(&template);
        let taken = start.elapsed();
        println!("{what}: {taken:.2?} {:?}", outcome.as_ref().map(String::len));
        assert!(taken.as_secs() < 2, "{what} took {taken:.2?}");
        match outcome {
            Err(Error::Template(message)) => {
                assert!(message.contains(limit) && !message.contains('\n'), "{what}: {message}");
            }
            other => assert!(limit.is_empty() && other.is_ok(), "{what}: {other:?}"),
        }
    }
    assert!(peak_memory() < 256 << 20, "{} MB", peak_memory() >> 20);
}

#[test]
fn circles_of_namespaces_are_freed() {
    let template =
        "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = [b, {'a': a}] %}{% set a.a = a %}ok";
    for _ in 0..50 {
        assert_eq!(plain(template).unwrap(), "ok");
    }
    let chain = "{% set ns = namespace(l=namespace()) %}{% for i in range(50000) %}{% set ns.l = namespace(l=ns.l) %}{% endfor %}ok";
    assert_eq!(plain(chain).unwrap(), "ok");
}

#[test]
fn bad_json_is_an_invalid_argument() {
    let options = ChatOptions::default();
    let deep = "[".repeat(100_000);
    for messages in ["", "{", "{}", "1", "[1,]", &deep] {
        let error = render("x", messages.as_bytes(), &options).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{messages:.20}: {error}");
    }
    assert!(matches!(render("x", b"[\"\xff\"]", &options), Err(Error::InvalidArgument(_))));
    let bad = [
        ChatOptions { tools_json: Some(b"nope"), ..options },
        ChatOptions { vars_json: Some(b"[]"), ..options },
        ChatOptions { vars_json: Some(b"{"), ..options },
    ];
    for options in bad {
        assert!(matches!(render("x", b"[]", &options), Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn variables_win_and_the_clock_runs_when_it_is_not_fixed() {
    let template = "{{ bos_token }}|{{ eos_token }}|{{ tools is defined }}|{{ strftime_now('%Y') }}";
    let options = ChatOptions { bos: "<s>", eos: "</s>", ..ChatOptions::default() };
    let year = |rendered: String| rendered.rsplit('|').next().unwrap().parse::<i32>().unwrap();
    assert!(year(render(template, b"[]", &options).unwrap()) >= 2025);
    let variables = ChatOptions { vars_json: Some(br#"{"bos_token": "B", "tools": [1]}"#), now: 1, ..options };
    assert_eq!(render(template, b"[]", &variables).unwrap(), "B|</s>|True|1970");
}

#[test]
fn broken_templates_are_template_errors_on_one_line() {
    for template in [
        "{{",
        "{% if %}",
        "{% nonsense %}",
        "{% for x in %}{% endfor %}",
        "{{ 'a }}",
        "{% endif %}",
        "{{ 1 +* 2 }}",
        "{% include 'x' %}",
    ] {
        let error = plain(template).unwrap_err();
        assert!(matches!(error, Error::Template(_)) && !error.to_string().contains('\n'), "{template}: {error}");
    }
}

#[test]
fn damaged_templates_never_panic_nor_hang() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/text/templates");
    let golden: Value = serde_json::from_str(include_str!("golden/text/chat.json")).unwrap();
    let context = golden["conversations"]["tools"].as_object().unwrap();
    let sources: Vec<Vec<char>> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap().chars().collect())
        .collect();
    let mut state = 5u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let pieces = [
        "{{", "}}", "{%", "%}", "|", "(", ")", "[", "]", " if ", " in ", "'", "~", "*", "-", "9", "loop", "🦙", "{#",
        ".", ":",
    ];
    let (mut rendered, mut refused) = (0, 0);
    for _ in 0..3_000 {
        let mut source = sources[random(sources.len())].clone();
        for _ in 0..=random(2) {
            let at = random(source.len());
            let to = (at + random(12)).min(source.len());
            source.splice(at..to, pieces[random(pieces.len())].chars());
        }
        let template: String = source.into_iter().collect();
        match render_context(&template, context, NOON) {
            Ok(_) => rendered += 1,
            Err(Error::Template(_)) => refused += 1,
            Err(other) => panic!("{other}: {template}"),
        }
    }
    assert!(rendered > 200 && refused > 300, "{rendered} rendered, {refused} refused: the cases prove little");
}
