//! `tests/README.md` lists every test, script and program of `tests/`, so that each is found.

use std::collections::BTreeSet;
use std::path::Path;

const EXTENSIONS: [&str; 7] = ["rs", "sh", "c", "cpp", "h", "hpp", "py"];
/// Hosts of an earlier ABI, which never change.
const FROZEN: &str = "abi/v0/";

fn files_below(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            files_below(&entry.path(), &format!("{path}/"), found);
        } else if path.rsplit_once('.').is_some_and(|(_, end)| EXTENSIONS.contains(&end)) && !path.starts_with(FROZEN) {
            found.insert(path);
        }
    }
}

/// The paths that lines of a list begin with.
fn listed(page: &str) -> BTreeSet<String> {
    let paths = page.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("`: "));
    paths.filter(|(_, what)| !what.trim().is_empty()).map(|(path, _)| path.to_owned()).collect()
}

#[test]
fn every_file_of_the_tests_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut found = BTreeSet::new();
    files_below(&folder, "", &mut found);
    let listed = listed(&std::fs::read_to_string(folder.join("README.md")).unwrap());
    let missing: Vec<&String> = found.difference(&listed).collect();
    let gone: Vec<&String> = listed.difference(&found).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "tests/README.md lacks {missing:?} and lists {gone:?}, which are not there"
    );
}

#[test]
fn a_line_without_a_word_lists_nothing() {
    let page = "- `a.rs`: What it does.\n- `b.rs`: \n`c.rs`: Not a line of the list.";
    assert_eq!(listed(page), BTreeSet::from(["a.rs".to_owned()]));
}
