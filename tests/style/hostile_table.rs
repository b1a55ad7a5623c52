//! The table of `tests/capi/functions.h` names every function of the header, with a kind and a name for each of its parameters.

use std::collections::BTreeMap;
use std::path::Path;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names of the pointers that a function takes, and how many numbers.
type Parameters = (String, usize);

/// Functions of the header with their parameters, the place for the error apart.
fn declared() -> BTreeMap<String, Parameters> {
    let header = read("include/segno.h");
    let code: Vec<&str> = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/', '#'])).collect();
    let code = code.join(" ");
    let statements = code.split([';', '{', '}']).filter(|text| !text.contains("typedef") && text.contains('('));
    let count = |parameters: &str| {
        let parameters = parameters.trim_end_matches(')').split(',').filter(|p| !p.contains("**err") && *p != "void");
        let (pointers, numbers): (Vec<&str>, Vec<&str>) = parameters.partition(|p| p.contains('*'));
        let names: Vec<&str> = pointers.iter().filter_map(|pointer| pointer.rsplit([' ', '*']).next()).collect();
        (names.join(" "), numbers.len())
    };
    let function = |statement: &str| {
        let (head, parameters) = statement.split_once('(')?;
        let name = head.rsplit([' ', '*']).next()?;
        name.starts_with("segno_").then(|| (name.to_owned(), count(parameters)))
    };
    statements.filter_map(function).collect()
}

/// Functions of the table, with the names of the pointers and how many kinds of numbers each has.
fn tested() -> BTreeMap<String, Parameters> {
    let source = read("tests/capi/functions.h");
    let rows = source.split("{F(").skip(1);
    rows.map(|row| {
        let (name, rest) = row.split_once(')').unwrap();
        let kinds = |list: &str| {
            rest.split_once(list).map_or(0, |(_, kinds)| kinds.split('}').next().unwrap().split(',').count())
        };
        let names = rest.split_once(".names = \"").map_or("", |(_, names)| names.split('"').next().unwrap());
        assert_eq!(kinds(".kinds = {"), names.split_whitespace().count(), "{name}: a kind for each name");
        (name.to_owned(), (names.to_owned(), kinds(".numbers = {")))
    })
    .collect()
}

#[test]
fn every_function_and_every_parameter_is_in_the_table() {
    let declared = declared();
    assert!(
        declared.len() >= 45 && declared["segno_decode_batch"] == ("session seqs tokens statuses".into(), 1),
        "the header is read: {declared:?}"
    );
    assert_eq!(declared, tested());
}
