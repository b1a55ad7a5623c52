//! `kernels/README.md` leads from a line of the timing table to a kernel's source and to the rule that chose it: every kernel file is in its table,
//! every rule in that is a function, and its example holds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The texts in backquotes of a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Rows of the table of kernels: the cells of each.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let table = page.split("\n| op | file |").nth(1).expect("the table of kernels").split("\n\n").next().unwrap();
    table.lines().skip(2).map(|line| line.split(" | ").collect()).collect()
}

/// The kernel files that ship, as the table names them.
fn kernel_files() -> BTreeSet<String> {
    let paths = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("lab")).collect()
    };
    let kernels = root().join("kernels");
    let files = paths(&kernels).into_iter().filter(|path| path.is_dir()).flat_map(|folder| paths(&folder));
    let sources = files.filter(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.map(|path| path.strip_prefix(&kernels).unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_kernel_file_is_in_the_table() {
    let page = read("kernels/README.md");
    let rows = rows(&page);
    let mut named = BTreeSet::new();
    for row in &rows {
        let mut folder = "";
        for name in quoted(row[1]).filter(|name| name.ends_with(".cu")) {
            // The second of two in a cell stands in the folder of the first.
            folder = name.split_once('/').map_or(folder, |(folder, _)| folder);
            named.insert(if name.contains('/') { name.to_owned() } else { format!("{folder}/{name}") });
        }
    }
    assert_eq!(named, kernel_files());
}

#[test]
fn every_rule_in_the_table_is_a_function() {
    let page = read("kernels/README.md");
    let mut rules = 0;
    for rule in rows(&page).iter().flat_map(|row| quoted(row[3])) {
        let (file, function) = rule.split_once(": ").unwrap_or((rule, ""));
        let source = read(&format!("src/backend/cuda/{file}"));
        assert!(function.is_empty() || source.contains(&format!("fn {function}(")), "there is no `{rule}`");
        rules += 1;
    }
    assert!(rules > 20);
}

#[test]
fn the_example_leads_from_a_name_to_its_source_and_its_rule() {
    let page = read("kernels/README.md");
    let example = page.split("## From a line of the timing table to the source").nth(1).expect("the example");
    let words: Vec<&str> = quoted(example).collect();
    let line = words.iter().find(|word| word.contains('%')).expect("a line of the timing table");
    let name = line.split('%').nth(1).unwrap().trim().split(':').next().unwrap();
    let source = words.iter().find(|word| word.ends_with(".cu")).expect("the source");
    let catalogue = read("kernels/kernels.def");
    let entry = catalogue.lines().find(|line| line.contains(&format!(", {name},"))).expect("a kernel of that name");
    let stem = source.strip_suffix(".cu").and_then(|path| path.split('/').next_back()).unwrap();
    assert!(kernel_files().contains(*source) && entry.contains(&format!(", {stem}, ")), "{entry}");
    let of_source = format!("`{source}`");
    let row = rows(&page).into_iter().find(|row| row[1].contains(&of_source)).expect("the source is in the table");
    let file = words.iter().find(|word| word.ends_with(".rs")).expect("the file of the rule");
    let is_function = |word: &&&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let function = words.iter().find(is_function).expect("the rule");
    assert!(
        row[3].contains(&format!("`{file}: {function}`")),
        "`{file}: {function}` is not what chooses it: {}",
        row[3]
    );
}
