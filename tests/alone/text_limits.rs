//! Time and memory of chat templates: every operation that the evaluator has, tried with large operands in a loop.

#[path = "../common/mod.rs"]
mod common;

use common::patient::shortest;
use segno::error::Error;
use segno::memory::{Source, draw_from};
use segno::text::chat::operations::{Kind, operations};
use segno::text::chat::{ChatOptions, Limits, render};
use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Counts what is allocated, and the most that ever was.
struct Counting;

/// Below zero when more was freed that was there before the counting.
static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn change(bytes: isize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        change(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        change(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        change(size as isize);
        change(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

static COUNTING: Source = Source(&Counting);

/// What rendering took.
struct Taken {
    outcome: Result<String, Error>,
    time: Duration,
    bytes: usize,
}

/// Processor time of this process, which does not depend on what else the machine does.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a value of the type that the call fills.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Time and memory are those of the whole process, so the tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    draw_from(&COUNTING);
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn measured(template: &str, messages: &[u8], options: &ChatOptions) -> Taken {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = processor_time();
    let outcome = render(template, messages, options);
    Taken { outcome, time: processor_time() - start, bytes: (PEAK.load(Ordering::Relaxed) - before) as usize }
}

/// The same, again where it takes longer than `limit`.
fn measured_within(limit: Duration, template: &str, messages: &[u8], options: &ChatOptions) -> Taken {
    let timed = || {
        let taken = measured(template, messages, options);
        (taken.time, taken)
    };
    shortest(limit, timed).1
}

/// Most that any template may take.
const TIME: Duration = Duration::from_secs(2);
const BYTES: usize = 256 << 20;

/// The generated templates get a part of the limits, and must keep to that part of the bounds.
const PART: u32 = 64;

/// Large operands by their names, made within a part of the limits.
const OPERANDS: &str = "{% set V = 'Ab \u{e9}\u{3a3}\n<' * 12000 %}{% set P = 'x' * 100000 %}{% set N = 170141183460469231731687303715884105727 %}
{%- set L = range(4000) | list %}{% set T = [P, P, V] * 40 %}{% set D = {P: V, V: P, 'k': L, 5: T} %}
{%- set F = -1.5e-300 %}{% set U = messages.y %}{% set X = {'k': V} %}
{%- set B = 7 ** 5000 %}{% set K = X.keys() %}{% set M = P | safe %}";
const VALUES: [&str; 9] = ["V", "P", "L", "T", "D", "N", "F", "X", "B"];
/// The values of kinds that have a few methods of their own, with these.
const RARE_VALUES: [(&str, &[&str]); 2] = [("K", &["isdisjoint"]), ("M", &["escape", "striptags", "unescape"])];
const ARGUMENTS: [&str; 11] = [
    "",
    "V",
    "L",
    "7",
    "X",
    "'k', P",
    "V, 'ab', 9999",
    "'map', 'upper'",
    "attribute=P",
    "width=9999",
    "'x', 'equalto', V",
];

/// Expressions that use an operation in every way.
fn expressions(kind: Kind, name: &str) -> Vec<String> {
    let all = |form: &dyn Fn(&str, &str) -> String| {
        VALUES.iter().flat_map(|value| ARGUMENTS.map(|arguments| form(value, arguments))).collect()
    };
    let rare = RARE_VALUES.iter().find(|(_, methods)| kind == Kind::Method && methods.contains(&name));
    if let Some((value, _)) = rare {
        return ARGUMENTS.map(|arguments| format!("{value}.{name}({arguments})")).into();
    }
    match kind {
        Kind::Filter => all(&|value, arguments| format!("{value} | {name}({arguments})")),
        Kind::Test => all(&|value, arguments| format!("{value} is {name}({arguments})")),
        Kind::Method => all(&|value, arguments| format!("{value}.{name}({arguments})")),
        Kind::Function => ARGUMENTS.iter().map(|arguments| format!("{name}({arguments})")).collect(),
        Kind::LoopMethod => ARGUMENTS.iter().map(|arguments| format!("loop.{name}({arguments})")).collect(),
        Kind::Operator => VALUES.iter().flat_map(|left| VALUES.map(|right| format!("{left} {name} {right}"))).collect(),
        Kind::Prefix => VALUES.iter().map(|value| format!("{name} {value}")).collect(),
    }
}

#[test]
fn every_operation_pays_for_time_and_memory() {
    let _turn = turn();
    let limits =
        Limits { steps: Limits::default().steps / u64::from(PART), bytes: Limits::default().bytes / PART as usize };
    let options = ChatOptions { limits, now: 1, ..ChatOptions::default() };
    measured(OPERANDS, b"[]", &options).outcome.unwrap();
    let (mut ran, mut wrong, mut cases) = (BTreeMap::new(), Vec::new(), 0);
    let mut worst = (Duration::ZERO, String::new());
    for (kind, name) in operations() {
        for expression in expressions(kind, name) {
            let template = format!("{OPERANDS}{{% for i in range(9999) %}}{{% set x = {expression} %}}{{% endfor %}}");
            let taken = measured_within(TIME / PART, &template, b"[]", &options);
            cases += 1;
            let uses = ran.entry((kind, name)).or_insert(0);
            match &taken.outcome {
                Ok(_) => *uses += 1,
                Err(Error::Template(message)) => *uses += usize::from(message.contains("exceeds its")),
                Err(other) => wrong.push(format!("{expression}: {other}")),
            }
            if taken.time > TIME / PART || taken.bytes > BYTES / PART as usize {
                wrong.push(format!("{expression}: {:.1?}, {} KB", taken.time, taken.bytes >> 10));
            }
            worst = worst.max((taken.time, expression));
        }
    }
    println!("{cases} cases of {} operations, the longest {:.1?}: {}", ran.len(), worst.0, worst.1);
    // What only raises has no way to go on.
    let raises = |name: &str| matches!(name, "raise_exception" | "lipsum");
    let unused: Vec<_> = ran.iter().filter(|&(&(_, name), &uses)| uses == 0 && !raises(name)).collect();
    assert!(unused.is_empty(), "never used but in error: {unused:?}");
    assert!(
        wrong.is_empty(),
        "{} of {cases} beyond {:.1?} or {} KB:\n{}",
        wrong.len(),
        TIME / PART,
        (BYTES / PART as usize) >> 10,
        wrong.join("\n")
    );
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

/// Templates that harm by one expression, and the name of the limit that stops them; none where they must render.
fn hostile_expressions() -> Vec<(String, &'static str)> {
    let many = |operands: &str, expression: &str| {
        format!("{operands}{{% for i in range(100000) %}}{{% set x = {expression} %}}{{% endfor %}}")
    };
    let text = "{% set V = 'ab' * 10000000 %}{% set L = 'ab' * 9999999 ~ 'ac' %}";
    let letters = "{% set V = 'a' * 90000000 %}";
    let half = "{% set V = 'é' * 10000000 %}{% set C = 'ü' * 10000000 ~ 'é' %}";
    let names = "a".repeat(100_000);
    let bounds = "{% set least = (-2)**127 %}{% set most = -(least + 1) %}";
    vec![
        (many(text, "V is lower"), "fuel"),
        (many(text, "V is upper"), "fuel"),
        (many(text, "V is sameas(L)"), "fuel"),
        (many(text, "V in {1: 1}"), "fuel"),
        (many(text, "V in V"), "fuel"),
        (many(text, "{V: 1}"), "fuel"),
        (many(&format!("{text}{{% set d = {{1: 1}} %}}"), "d[V]"), "fuel"),
        (many(text, "[V] | unique(true) | list"), "fuel"),
        (many(text, "V.startswith((L, L, L))"), "fuel"),
        (many("", "'%.4096f' % -1.5e-300"), "fuel"),
        (many("{% set f = '%c' * 2048 %}", "strftime_now(f)"), "fuel"),
        (many("{% set s = 'ΑΣ' * 100000 %}", "s.lower()"), "fuel"),
        (many("", &format!("messages.{names}")), "fuel"),
        (many("{% set l = [1e999 - 1e999] * 100000 %}", "l | unique"), "fuel"),
        (format!("{half}{{{{ V.strip(C) | length }}}}"), ""),
        (format!("{bounds}{{{{ range(most, least, -1) | length }}}}"), "range of 3402823669209384"),
        (format!("{bounds}{{{{ range(least, most) | length }}}}"), "range of 3402823669209384"),
        (format!("{bounds}{{{{ range(least, most, 2**126) | length }}}}"), ""),
        ("{{ ([] * 10**30) | length }}{{ ('' * 10**30) | length }}".into(), ""),
        ("{% set l = range(2**100, 2**100 + 90000) %}{{ l | unique | list | length }}".into(), ""),
        ("{{ 'a' | map(*(['map'] * 8000)) }}".into(), ""),
        ("{{ 'a' | map(*(['map'] * 900)) }}".into(), ""),
        (format!("{letters}{{{{ V.split('a') | length }}}}"), "memory"),
        ("{% set V = '\n' * 90000000 %}{{ V.splitlines() | length }}".to_owned(), "memory"),
        ("{% set V = ' a' * 45000000 %}{{ V.split() | length }}".into(), "memory"),
        ("{% set V = ' a' * 45000000 %}{{ V.rsplit(None, 40000000) | length }}".into(), "memory"),
        ("{% set V = '\n' * 90000000 %}{{ V | indent | length }}".into(), "memory"),
        (format!("{letters}{{{{ V | list | length }}}}"), "memory"),
        (format!("{letters}{{{{ V[::2] | length }}}}"), "memory"),
        (format!("{letters}{{{{ (V, V) | tojson | length }}}}"), "memory"),
        (many("{% set ns = namespace(l=[]) %}", "ns.l.append"), ""),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into(), "nesting"),
        (format!("{{% macro m() %}}{{{{ m(){} }}}}{{% endmacro %}}{{{{ m() }}}}", "|e".repeat(50_000)), ""),
        ("{{ raise_exception('x' * 90000000) }}".into(), "output"),
        (
            many("{% set ns = namespace(g=[1]) %}", "1")
                + "{% for i in range(90000) %}{% set ns.g = [1] | select('in', ns.g) %}{% endfor %}",
            "nesting",
        ),
        (
            "{% set ns = namespace(l=(1, 2)) %}".to_owned()
                + &"{% set ns.l = (ns.l, ns.l) %}".repeat(200)
                + "{{ {}[ns.l] }}",
            "fuel",
        ),
        (
            "{% set ns = namespace(l=([], 2)) %}".to_owned()
                + &"{% set ns.l = (1, ns.l) %}".repeat(200)
                + "{{ {}[ns.l] }}",
            "",
        ),
        (format!("{bounds}{{{{ least is divisibleby(-1) }}}}{{{{ least % -1 }}}}"), ""),
        (format!("{bounds}{{{{ least // -1 }}}}{{{{ least | abs }}}}{{{{ most | round(-38) }}}}"), ""),
    ]
}

/// The same with integers of many digits, and with filters that lay texts out.
fn hostile_numbers_and_layouts() -> Vec<(String, &'static str)> {
    let many = |operands: &str, expression: &str| {
        format!("{operands}{{% for i in range(100000) %}}{{% set x = {expression} %}}{{% endfor %}}")
    };
    vec![
        (many("{% set b = 7 ** 5000 %}", "b | string"), "fuel"),
        (many("{% set b, c = 7 ** 5000, 3 ** 4000 %}", "b // c"), "fuel"),
        (many("{% set b = 7 ** 2500 %}", "b * b"), "fuel"),
        (many("", "7 ** 5000"), "fuel"),
        (many("{% set b, c = 7 ** 5000, 3 ** 8500 %}", "b / c"), "fuel"),
        (many("{% set b = '9' * 4300 %}", "b | int"), "fuel"),
        ("{{ (range(90000) | map('string') | map('int', 0) | map('abs') | list)[5] }}".into(), ""),
        ("{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = [ns.l, 7 ** 5000] %}{% endfor %}".into(), "nesting"),
        ("{% set l = [7 ** 5000] * 90000 %}{{ l | map('abs') | list | length }}{{ l | map('round') | list | length }}".into(), "memory"),
        (many("{% set s = ('x' * 20000 ~ ' ') * 500 %}", "s | wordwrap(1)"), ""),
        (many("{% set s = 'a-' * 1000000 %}", "s | wordwrap(100)"), "fuel"),
        (many("{% set s = '-' * 1000000 %}", "s | wordwrap(100)"), "fuel"),
        (many("{% set s = 'http://a.b/' ~ '(' * 1000000 ~ ')' * 1000000 %}", "s | urlize"), "fuel"),
        (many("{% set s = 'a.' * 1000000 ~ '@' %}", "s | urlize"), "fuel"),
        (many("{% set l = ['x' * 60] * 100000 %}", "l | pprint"), "fuel"),
        ("{% set ns = namespace(l=['x' * 90]) %}".to_owned() + &"{% set ns.l = [ns.l, ns.l] %}".repeat(30) + "{{ ns.l | pprint }}", ""),
        (many("{% set s = 'words ' * 100000 %}", "s | pprint"), "fuel"),
        ("{% block a %}{{ self.a() }}{% endblock %}".into(), "nesting"),
    ]
}

#[test]
fn templates_that_harm_are_stopped_in_time_and_memory() {
    let _turn = turn();
    let mut wrong = Vec::new();
    let named = hostile_templates().into_iter().map(|(_, template, limit)| (template, limit));
    let messages = json!([{"role": "user", "content": "hi"}]).to_string();
    for (template, limit) in named.chain(hostile_expressions()).chain(hostile_numbers_and_layouts()) {
        let taken = measured_within(TIME, &template, messages.as_bytes(), &ChatOptions::default());
        let start: String = template.chars().take(100).collect();
        let shown = format!("{start}: {:.1?}, {} MB, {:.90?}", taken.time, taken.bytes >> 20, taken.outcome);
        println!("{shown}");
        let kept = taken.time < TIME && taken.bytes < BYTES;
        let expected = match &taken.outcome {
            Err(Error::Template(message)) => message.contains(limit) && !message.contains('\n'),
            other => limit.is_empty() && other.is_ok(),
        };
        if !kept || !expected {
            wrong.push(shown);
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn long_conversations_render_through_every_given_template() {
    let Some(data) = common::shared_data() else { return };
    let _turn = turn();
    let turns: Vec<Value> = (0..2_000)
        .map(|index| {
            let role = if index % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": format!("{index} {}", "word ".repeat(204))})
        })
        .collect();
    let messages = Value::from(turns).to_string();
    let options = ChatOptions {
        add_generation_prompt: true,
        now: 1,
        vars_json: Some(br#"{"functions": "f", "datetime": "now"}"#),
        ..ChatOptions::default()
    };
    let (mut rendered, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(data.join("chat/templates")).unwrap() {
        let path = entry.unwrap().path();
        let taken = measured(&std::fs::read_to_string(&path).unwrap(), messages.as_bytes(), &options);
        println!("{}: {:.1?}, {} MB", path.display(), taken.time, taken.bytes >> 20);
        match taken.outcome {
            Ok(text) if text.len() > 2_000_000 || text.contains("1999 word") => rendered += 1,
            other => wrong.push(format!("{}: {:.200?}", path.display(), other.map(|text| text.len()))),
        }
    }
    assert!(wrong.is_empty() && rendered > 30, "{rendered} rendered, these not:\n{}", wrong.join("\n"));
}
