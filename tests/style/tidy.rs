//! The style gate: layering, sizes, headers, safety notes, names and words of every file in the tree.
//!
//! Each rule lives in `tests/style/tidy/` beside tests that show it failing. A finding is printed as `path:line: problem`.

mod form;
mod layers;
mod safety;
mod source;
mod systems;

use std::fs;
use std::path::Path;

use source::Source;

const EXTENSIONS: [&str; 12] = ["rs", "c", "h", "cpp", "hpp", "cu", "cuh", "go", "py", "sh", "toml", "md"];
const GENERATED: [&str; 3] = ["target", "build", "__pycache__"];

#[test]
fn files_begin_with_a_header() {
    assert_clean(form::check_header);
}

#[test]
fn files_and_functions_are_short() {
    assert_clean(form::check_length);
}

#[test]
fn lines_keep_their_width() {
    assert_clean(form::check_width);
}

#[test]
fn modules_name_only_what_lies_below() {
    let exports = layers::Exports::of(&tree());
    assert_clean(|source| layers::check(source, &exports));
}

#[test]
fn systems_have_one_place() {
    assert_clean(systems::check);
}

#[test]
fn unsafe_code_is_allowed_only_where_it_is_needed() {
    assert_clean(safety::check_permission);
}

#[test]
fn unsafe_code_says_why_it_is_safe() {
    assert_clean(safety::check_notes);
}

#[test]
fn no_crate_switches_a_lint_off() {
    assert_clean(form::check_crate_lints);
}

#[test]
fn nothing_is_marked_unfinished() {
    assert_clean(form::check_words);
}

#[test]
fn skipped_tests_are_counted() {
    assert_clean(form::check_skips);
}

#[test]
fn tests_run_under_the_watchdog() {
    let limit = std::env::var("SEGNO_TEST_SECONDS");
    assert!(limit.is_ok(), "a runner of your own replaces tests/watchdog.sh, which .cargo/config.toml names");
}

#[test]
fn the_library_is_silent_and_reads_no_environment() {
    assert_clean(form::check_calls);
}

#[test]
fn names_say_what_is_inside() {
    assert_clean(form::check_name);
}

#[test]
fn the_whole_tree_is_read() {
    let paths: Vec<String> = tree().into_iter().map(|source| source.path).collect();
    for path in ["Cargo.toml", "src/lib.rs", "src/sample/rng.rs", "tests/style/tidy.rs", "tests/style/tidy/form.rs"] {
        assert!(paths.iter().any(|found| found == path), "{path} is not among {} files", paths.len());
    }
    assert!(!paths.iter().any(|path| path.starts_with("target/") || path.starts_with('.')));
}

fn assert_clean(rule: impl Fn(&Source) -> Vec<String>) {
    let findings: Vec<String> = tree().iter().flat_map(rule).collect();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// Every source and text file of the tree, in order of path.
fn tree() -> Vec<Source> {
    let mut sources = Vec::new();
    read_folder(Path::new(env!("CARGO_MANIFEST_DIR")), "", &mut sources);
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

fn read_folder(folder: &Path, prefix: &str, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().unwrap();
        // cargo marks the folder that it builds in, which may have any name.
        let built = kind.is_dir() && entry.path().join("CACHEDIR.TAG").exists();
        if name.starts_with('.') || built || (kind.is_dir() && GENERATED.contains(&name.as_str())) {
            continue;
        }
        if kind.is_dir() {
            read_folder(&entry.path(), &format!("{path}/"), sources);
        } else if name == "Makefile" || name.rsplit_once('.').is_some_and(|(_, end)| EXTENSIONS.contains(&end)) {
            sources.push(Source::new(&path, &fs::read_to_string(entry.path()).unwrap()));
        }
    }
}
