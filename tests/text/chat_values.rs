//! Values, loops and filters of chat templates where small mistakes hide: sizes that differ, ends of loops, both ways to round. Every result is
//! that of Jinja2 3.1.6.

use segno::text::chat::{ChatOptions, render};

fn rendered(template: &str) -> String {
    render(template, b"[]", &ChatOptions::default()).unwrap_or_else(|error| format!("error: {error}"))
}

fn assert_rendered(cases: &[(&str, &str)]) {
    for (expression, expected) in cases {
        assert_eq!(rendered(&format!("{{{{ {expression} }}}}")), *expected, "{expression}");
    }
}

#[test]
fn dictionaries_and_lists_of_other_sizes_are_not_equal() {
    assert_rendered(&[
        ("{'a': 1} == {'a': 1, 'b': 2}", "False"),
        ("{'a': 1, 'b': 2} == {'a': 1}", "False"),
        ("{'a': 1} != {'a': 1, 'b': 2}", "True"),
        ("{} == {'a': 1}", "False"),
        ("{'b': 2, 'a': 1} == {'a': 1, 'b': 2}", "True"),
        ("{'a': 1} == {'b': 1}", "False"),
        ("[1] == [1, 2]", "False"),
        ("[1, 2] == [1]", "False"),
    ]);
}

#[test]
fn a_list_that_begins_another_comes_first() {
    assert_rendered(&[
        ("[1] < [1, 2]", "True"),
        ("[1, 2] < [1]", "False"),
        ("[1, 2] <= [1, 2]", "True"),
        ("[2] > [1, 9]", "True"),
        ("[[1, 2], [1]]|sort", "[[1], [1, 2]]"),
    ]);
}

#[test]
fn a_loop_tells_its_place_from_both_ends() {
    let places = "{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }}";
    let ends = "{{ loop.depth }}{{ loop.depth0 }} {{ loop.first }} {{ loop.last }}";
    let others = "{{ loop.previtem }}<{{ loop.nextitem }}";
    let one = |fields: &str| rendered(&format!("{{% for x in 'abc' %}}{fields}|{{% endfor %}}"));
    assert_eq!(one(places), "10323|21213|32103|");
    assert_eq!(one(ends), "10 True False|10 False False|10 False True|");
    assert_eq!(one(others), "<b|a<c|b<|");
    let deep = "{% for x in [[[]]] recursive %}{{ loop.depth }}{{ loop.depth0 }}{{ loop(x) }}{% endfor %}";
    assert_eq!(rendered(deep), "1021");
}

#[test]
fn quotients_and_rests_are_rounded_down() {
    assert_rendered(&[
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 // -2", "-4"),
        ("-6 // 2", "-3"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("-7.5 // 2", "-4.0"),
    ]);
}

#[test]
fn filters_heed_case_direction_and_filling() {
    assert_rendered(&[
        ("['a', 'A', 'b']|unique|list", "['a', 'b']"),
        ("['a', 'A', 'b']|unique(true)|list", "['a', 'A', 'b']"),
        ("['b', 'A', 'c']|sort(true)", "['c', 'b', 'A']"),
        ("['b', 'a', 'C']|sort(false, true)", "['C', 'a', 'b']"),
        ("['a', 'B']|max", "B"),
        ("['a', 'B']|max(true)", "a"),
        ("{'b': 1, 'A': 2}|dictsort", "[('A', 2), ('b', 1)]"),
        ("{'b': 1, 'A': 2}|dictsort(reverse=true)", "[('b', 1), ('A', 2)]"),
        ("{'b': 1, 'A': 2}|dictsort(false, 'value')", "[('b', 1), ('A', 2)]"),
        ("{'b': 1, 'A': 2}|dictsort(false, 'value', true)", "[('A', 2), ('b', 1)]"),
        ("[1, 2, 3]|slice(2, 'x')|list", "[[1, 2], [3, 'x']]"),
        ("[1, 2, 3, 4]|slice(2, 'x')|list", "[[1, 2, 'x'], [3, 4, 'x']]"),
        ("[1, 2, 3]|slice(2, none)|list", "[[1, 2], [3]]"),
    ]);
}
