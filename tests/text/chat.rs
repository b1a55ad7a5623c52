//! Chat templates against what Jinja2 renders, and against strangers who mean harm.

use crate::common;
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
        ..ChatOptions::default()
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
    let Some(data) = common::shared_data() else { return };
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
    let options = ChatOptions { now: NOON, ..ChatOptions::default() };
    render(template, json!([{"role": "user", "content": "hi"}]).to_string().as_bytes(), &options)
}

#[test]
fn own_templates_render_as_jinja_renders_them() {
    let golden: Value = serde_json::from_str(include_str!("../golden/text/chat.json")).unwrap();
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
    let golden: Value = serde_json::from_str(include_str!("../golden/text/expressions.json")).unwrap();
    let mut wrong = Vec::new();
    for case in golden.as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        let found = plain(&format!("{{{{ ({source}) }}}}"));
        wrong.extend(difference(found, &case[1]).map(|difference| format!("{source}: {difference}")));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn small_templates_render_as_jinja_renders_them() {
    let golden: Value = serde_json::from_str(include_str!("../golden/text/small.json")).unwrap();
    let mut wrong = Vec::new();
    for case in golden.as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        wrong.extend(difference(plain(source), &case[1]).map(|difference| format!("{source:?}: {difference}")));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The cases of the golden file, or of another that `SEGNO_CHAT_CASES` names.
#[test]
fn random_templates_render_as_jinja_renders_them() {
    let golden = match std::env::var_os("SEGNO_CHAT_CASES") {
        Some(path) => std::fs::read_to_string(path).unwrap(),
        None => include_str!("../golden/text/random.json").to_owned(),
    };
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let golden = golden.as_array().unwrap();
    assert!(golden.len() >= 800);
    let mut wrong = Vec::new();
    for case in golden {
        let source = case[0].as_str().unwrap();
        wrong.extend(difference(plain(source), &case[1]).map(|difference| format!("{source:?}: {difference}")));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Attributes that values have in Python and not here, each of which needs a kind of value that no template has.
const WITHOUT: [(&str, &[&str]); 8] = [
    // Bytes.
    ("str", &["encode"]),
    ("Markup", &["encode"]),
    ("int", &["from_bytes", "to_bytes"]),
    ("bool", &["from_bytes", "to_bytes"]),
    // A class.
    ("float", &["fromhex"]),
    // A view of another kind.
    ("dict_keys", &["mapping"]),
    ("dict_items", &["mapping"]),
    ("dict_values", &["mapping"]),
];
/// The same of iterators, which are Python's own coroutines there.
const WITHOUT_ITERATORS: [&str; 6] = ["close", "gi_running", "gi_suspended", "gi_yieldfrom", "send", "throw"];

#[test]
fn all_that_jinja_has_by_name_is_here() {
    let golden: Value = serde_json::from_str(include_str!("../golden/text/names.json")).unwrap();
    let list = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let mut lacking = Vec::new();
    for (kind, suffix) in [("filters", "filter"), ("tests", "test")] {
        let names = list(&golden[kind]);
        assert!(names.len() > 30);
        lacking.extend(
            names.into_iter().filter(|name| plain(&format!("{{{{ '{name}' is {suffix} }}}}")).unwrap() != "True"),
        );
    }
    let functions = list(&golden["functions"]);
    lacking.extend(
        functions.into_iter().filter(|name| plain(&format!("{{{{ {name} is callable }}}}")).unwrap() != "True"),
    );
    let tags = list(&golden["tags"]).into_iter();
    lacking.extend(
        tags.filter(|tag| plain(&format!("{{% {tag} %}}")).is_err_and(|e| e.to_string().contains("unknown tag"))),
    );
    let prelude = golden["prelude"].as_str().unwrap();
    for (kind, attributes) in golden["attributes"].as_object().unwrap() {
        let value = attributes["value"].as_str().unwrap();
        let without = WITHOUT.iter().find(|(other, _)| other == kind).map_or(&[][..], |(_, names)| names);
        let without = if kind == "generator" { &WITHOUT_ITERATORS[..] } else { without };
        for name in list(&attributes["names"]) {
            let template = format!("{prelude}{{{{ {value}.{name} is defined }}}}{{% endfor %}}");
            let is_here = plain(&template).unwrap() == "True";
            if is_here == without.contains(&&*name) {
                lacking.push(format!("{kind}.{name}"));
            }
        }
    }
    assert!(lacking.is_empty(), "not here, or here and said not to be: {lacking:?}");
}

#[test]
fn letters_change_their_case_as_unicode_says() {
    let golden: Value = serde_json::from_str(include_str!("../golden/text/letters.json")).unwrap();
    let variables = golden["variables"].to_string();
    let options = ChatOptions { vars_json: Some(variables.as_bytes()), now: NOON, ..ChatOptions::default() };
    let found = render(golden["template"].as_str().unwrap(), b"[]", &options);
    let lines = found.as_ref().map_or(0, |text| text.lines().count());
    assert!(lines > 300, "{lines} lines");
    assert_eq!(difference(found, &golden["outcome"]), None);
}

#[test]
fn numbers_of_json_are_what_python_reads() {
    let golden: Value = serde_json::from_str(include_str!("../golden/text/numbers.json")).unwrap();
    let template = golden["template"].as_str().unwrap();
    let mut wrong = Vec::new();
    for case in golden["numbers"].as_array().unwrap() {
        let number = case[0].as_str().unwrap();
        let variables = format!("{{\"v\": {number}}}");
        let options = ChatOptions { vars_json: Some(variables.as_bytes()), now: NOON, ..ChatOptions::default() };
        let found = render(template, b"[]", &options);
        wrong.extend(difference(found, &case[1]).map(|difference| format!("{number}: {difference}")));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn integers_of_too_many_digits_are_refused() {
    let digits = "9".repeat(4301);
    for template in [
        "{{ 10 ** 4302 }}".to_owned(),
        format!("{{{{ {digits} }}}}"),
        format!("{{{{ 0x{digits} }}}}"),
        "{{ 10 ** 4000 * 10 ** 4000 }}".into(),
        "{{ (10 ** 4299 * 10 + 1) * 10 }}".into(),
    ] {
        let error = plain(&template).unwrap_err().to_string();
        assert!(error.contains("too large, integers have at most 4300 digits"), "{template:.40}: {error}");
    }
    let variables = format!("{{\"v\": {digits}}}");
    let options = ChatOptions { vars_json: Some(variables.as_bytes()), ..ChatOptions::default() };
    assert!(
        matches!(render("x", b"[]", &options), Err(Error::InvalidArgument(message)) if message.contains("4300 digits"))
    );
}

#[test]
fn a_loop_that_ends_early_leaves_the_rest_of_an_iterator() {
    let template = "{% set g = [1, 2, 3] | map('string') %}{% for x in g %}{{ x }}{% break %}{% endfor %}{{ g | list }}{{ g | list }}";
    assert_eq!(plain(template).unwrap(), "1['2', '3'][]");
}

#[test]
fn errors_say_the_line_and_the_message() {
    let messages = br#"[{"role": "user", "content": "hi"}, {"role": "user"}]"#;
    let cases = [
        ("a\n{{ x.y }}", "line 2: 'x' is undefined"),
        ("{% for m in messages %}\n{{ m.content + 'x' }}\n{% endfor %}", "line 2, at messages[1]: "),
        (
            "{% for m in messages[1:] %}{% for i in [1] %}\n\n{{ m.content.x }}{% endfor %}{% endfor %}",
            "line 3, at messages[1]: ",
        ),
        ("{% for m in messages %}{{ raise_exception('no\\n' ~ loop.index) }}{% endfor %}", "no\n1"),
        ("{{ 1 }}\n{# \n #}\n{% raw %}\n{% endraw %}{{ 1 +* 2 }}", "line 5: "),
        ("a\n{% if 1 %}\nb\n", "line 3: unexpected end of the template, 'elif' or 'else' or 'endif' is missing"),
        ("\n\n{# a", "line 3: a comment has no end"),
        ("\n{{ [1,\n2}} }}", "line 3: unexpected '}', expected ']'"),
        (
            "\n{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}",
            "line 2: chat template exceeds",
        ),
    ];
    for (template, wanted) in cases {
        let message = render(template, messages, &ChatOptions::default()).unwrap_err().to_string();
        assert!(message.starts_with(wanted), "{template:?}: {message:?}");
    }
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
    for (tools, found) in [("{}", "dict"), ("null", "NoneType"), ("\"[]\"", "str"), ("1", "int")] {
        let error = render("x", b"[]", &ChatOptions { tools_json: Some(tools.as_bytes()), ..options }).unwrap_err();
        let wanted = format!("tools_json must be a json array of tools, it is a {found}");
        assert!(matches!(&error, Error::InvalidArgument(message) if *message == wanted), "{tools}: {error}");
    }
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
    let golden: Value = serde_json::from_str(include_str!("../golden/text/chat.json")).unwrap();
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
