//! The table of `tests/capi/hostile.c` names every function of the header, with a kind for each of its pointers.

use std::collections::BTreeMap;
use std::path::Path;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Functions of the header, and how many pointers each takes, the one to the error apart.
fn declared() -> BTreeMap<String, usize> {
    let header = read("include/segno.h");
    let code: Vec<&str> = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/', '#'])).collect();
    let code = code.join(" ");
    let statements = code.split([';', '{', '}']).filter(|text| !text.contains("typedef") && text.contains('('));
    let pointers = |parameters: &str| parameters.split(',').filter(|p| p.contains('*') && !p.contains("**err")).count();
    let function = |statement: &str| {
        let (head, parameters) = statement.split_once('(')?;
        let name = head.rsplit([' ', '*']).next()?;
        name.starts_with("segno_").then(|| (name.to_owned(), pointers(parameters)))
    };
    statements.filter_map(function).collect()
}

/// Functions of the table, and how many kinds each has.
fn tested() -> BTreeMap<String, usize> {
    let source = read("tests/capi/hostile.c");
    let rows = source.lines().filter_map(|line| line.trim().strip_prefix("{F("));
    rows.map(|row| {
        let (name, rest) = row.split_once(')').unwrap();
        let kinds =
            rest.split_once(".kinds = {").map_or(0, |(_, kinds)| kinds.split('}').next().unwrap().split(',').count());
        (name.to_owned(), kinds)
    })
    .collect()
}

#[test]
fn every_function_and_every_pointer_is_in_the_table() {
    let declared = declared();
    assert!(declared.len() >= 45 && declared["segno_decode_batch"] == 4, "the header is read: {declared:?}");
    assert_eq!(declared, tested());
}
