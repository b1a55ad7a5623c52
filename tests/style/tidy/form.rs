//! Sizes, headers, names and words.

use super::source::{Block, Kind, Source, Token, blocks, is_word};

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 500;
const KERNEL_LINES: usize = 150;
/// Columns of a line of kernels, and of one of Rust: rustfmt has 120 for code and leaves comments alone.
const KERNEL_COLUMNS: usize = 120;
const RUST_COLUMNS: usize = 150;
/// A program that shows the API has fewer lines.
const EXAMPLE_LINES: usize = 210;

/// A file whose header has this line may be of any length, and has no functions.
const TABLES_MARK: &str = "//! Constant tables only.";

/// Written in halves, or this file would break its own rule.
const WORDS: [&str; 4] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
const MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
const PRINTING: [&str; 4] = ["print", "println", "eprint", "eprintln"];
const NAMES: [&str; 6] = ["util", "utils", "helper", "helpers", "manager", "common"];
/// A second version of something that the first should have become.
const VERSION_SUFFIX: &str = "_v2";

/// Rust files begin with a header that says what they are; kernels with a comment.
pub fn check_header(source: &Source) -> Vec<String> {
    let wrong = match () {
        () if source.has_extension(&["rs"]) => !source.text.starts_with("//! "),
        () if is_kernel(source) => !source.text.starts_with("//") && !source.text.starts_with("/*"),
        () => false,
    };
    if wrong { vec![source.finding(1, "does not begin with a header")] } else { Vec::new() }
}

/// Files and functions within their limits.
pub fn check_length(source: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    let lines = source.text.lines().count();
    let mut limit = |applies: bool, most: usize| {
        if applies && lines > most {
            findings.push(source.finding(lines, &format!("{lines} lines, at most {most} allowed")));
        }
    };
    let rust = source.has_extension(&["rs"]);
    let tables = rust && source.text.lines().take_while(|line| line.starts_with("//!")).any(|line| line == TABLES_MARK);
    limit((rust && !tables) || is_kernel(source), FILE_LINES);
    limit(source.path.starts_with("examples/c/") && source.has_extension(&["c"]), EXAMPLE_LINES - 1);
    let tokens = source.tokens();
    let blocks = blocks(&tokens);
    let most = if rust { FUNCTION_LINES } else { KERNEL_LINES };
    let functions = match () {
        () if rust => rust_functions(&tokens, &blocks),
        () if is_kernel(source) => kernel_functions(&tokens, &blocks),
        () => Vec::new(),
    };
    for (first, last) in functions {
        let lines = last - first + 1;
        if tables {
            findings.push(source.finding(first, "a file of constant tables has no functions"));
        } else if lines > most {
            findings.push(source.finding(first, &format!("function of {lines} lines, at most {most} allowed")));
        }
    }
    findings
}

/// Lines within their width, but for Rust's that a text makes longer.
pub fn check_width(source: &Source) -> Vec<String> {
    let kernel = is_kernel(source);
    if !kernel && !source.has_extension(&["rs"]) {
        return Vec::new();
    }
    let most = if kernel { KERNEL_COLUMNS } else { RUST_COLUMNS };
    let mut inside = false;
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let comment = line.trim_start().starts_with("//");
        // A text may go on over several lines, each of which but the last ends with a backslash or is inside of quotes.
        let text = !kernel && !comment && (inside || line.contains('"'));
        if !kernel && !comment {
            inside = text && (line.ends_with('\\') || (inside && !line.contains('"')));
        }
        let columns = line.chars().count();
        if columns > most && !text {
            findings.push(source.finding(index + 1, &format!("{columns} columns, at most {most} allowed")));
        }
    }
    findings
}

/// First and last line of every function with a body.
fn rust_functions(tokens: &[Token], blocks: &[Block]) -> Vec<(usize, usize)> {
    let functions = blocks.iter().filter(|block| matches!(block.kind, Kind::Function(_)));
    let first = |block: &Block| {
        let keyword = tokens[block.head..block.open].iter().find(|token| token.text == "fn");
        keyword.map_or(tokens[block.open].line, |token| token.line)
    };
    functions.map(|block| (first(block), tokens[block.close].line)).collect()
}

/// The same for C++: the outermost blocks after a list of parameters.
fn kernel_functions(tokens: &[Token], blocks: &[Block]) -> Vec<(usize, usize)> {
    let mut functions = Vec::new();
    let mut end = 0;
    for block in blocks.iter().filter(|block| tokens[block.head..block.open].iter().any(|token| token.text == "(")) {
        if block.open >= end {
            functions.push((tokens[block.head].line, tokens[block.close].line));
            end = block.close;
        }
    }
    functions
}

fn is_kernel(source: &Source) -> bool {
    source.path.starts_with("kernels/") && source.has_extension(&["cu", "cuh"])
}

/// No crate as a whole switches a lint off.
pub fn check_crate_lints(source: &Source) -> Vec<String> {
    let mut parts = source.path.split('/');
    let root = match (parts.next(), parts.next(), parts.next()) {
        (Some("build.rs"), None, None) | (Some("src"), Some("lib.rs" | "main.rs"), None) => true,
        (Some("benches" | "tools"), Some(file), None) => file.ends_with(".rs"),
        (Some("tests"), Some("alone"), Some(file)) => file.ends_with(".rs"),
        (Some("tests" | "tools"), Some(_), Some("main.rs")) => true,
        _ => false,
    };
    if !root {
        return Vec::new();
    }
    let tokens = source.tokens();
    let inner = |window: &&[Token]| window[0].text == "#" && window[1].text == "!" && window[2].text == "[";
    let attributes = tokens.windows(3).enumerate().filter(|(_, window)| inner(window));
    let switches_off = |start: usize| {
        let inside = tokens[start..].iter().take_while(|token| token.text != "]");
        inside.into_iter().any(|token| matches!(token.text, "allow" | "expect"))
    };
    attributes
        .filter(|(start, _)| switches_off(*start))
        .map(|(_, window)| source.finding(window[0].line, "a lint is switched off for the whole crate"))
        .collect()
}

/// Words of unfinished work, wherever they stand.
pub fn check_words(source: &Source) -> Vec<String> {
    let lines = source.text.lines().enumerate();
    let words = lines.flat_map(|(index, line)| line.split(|c| !is_word(c)).map(move |word| (index + 1, word)));
    words
        .filter(|(_, word)| WORDS.contains(word))
        .map(|(line, word)| source.finding(line, &format!("`{word}` marks unfinished work")))
        .collect()
}

/// Tests say in one way that they are skipped, so that all of them are counted.
pub fn check_skips(source: &Source) -> Vec<String> {
    let counted = ["tests/skip.sh", "tests/common/skip.rs", "tests/make/check.sh"].contains(&source.path.as_str());
    let test = source.path.starts_with("tests/") && source.has_extension(&["rs", "sh", "go", "c", "cpp"]);
    if !test || counted {
        return Vec::new();
    }
    let said = concat!("\"skip", "ped: ");
    let lines = source.text.lines().enumerate().filter(|(_, line)| line.contains(said));
    lines.map(|(index, _)| source.finding(index + 1, "a skip that nobody counts: see tests/common/skip.rs")).collect()
}

/// Code that no finished library has: placeholders, debug prints, and in `src` any print or look at the environment.
pub fn check_calls(source: &Source) -> Vec<String> {
    if !source.has_extension(&["rs"]) {
        return Vec::new();
    }
    let library = source.path.starts_with("src/");
    let tokens = source.tokens();
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    let mut findings = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let call = text(index + 1) == "!" && text(index + 2) != "=";
        if call && (MACROS.contains(&token.text) || (library && PRINTING.contains(&token.text))) {
            findings.push(source.finding(token.line, &format!("`{}!` has no place here", token.text)));
        }
        let environment = token.text == "env" && text(index + 1) == "::" && names_variable(&tokens[index + 2..]);
        if library && (environment || token.text == "getenv") {
            findings.push(source.finding(token.line, "the library reads no environment variable"));
        }
        if token.text.ends_with(VERSION_SUFFIX) && !is_driver_call(token.text) {
            findings.push(source.finding(token.line, &format!("`{}` is a second version", token.text)));
        }
    }
    findings
}

/// Whether `var`, `vars`, `var_os` or `vars_os` is named, alone or in a group.
fn names_variable(tokens: &[Token]) -> bool {
    let group = tokens.first().is_some_and(|token| token.text == "{");
    let named = if group { tokens.iter().position(|token| token.text == "}").unwrap_or(tokens.len()) } else { 1 };
    tokens.iter().take(named).any(|token| token.text.starts_with("var"))
}

/// Calls of the CUDA driver, whose names are not ours: `cu`, a capital letter, and their own version.
fn is_driver_call(name: &str) -> bool {
    name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Names of files and folders that say nothing of what is inside.
pub fn check_name(source: &Source) -> Vec<String> {
    if source.path.starts_with("tests/") {
        return Vec::new();
    }
    let path = &source.path;
    let parts = path.split(|c: char| !c.is_alphanumeric());
    let empty = parts.map(str::to_lowercase).find(|part| NAMES.contains(&part.as_str()));
    let second = path.split(['/', '.']).any(|part| part.ends_with(VERSION_SUFFIX));
    match empty {
        Some(part) => vec![source.finding(1, &format!("`{part}` in a path says nothing"))],
        None if second => vec![source.finding(1, "the path names a second version")],
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rule = fn(&Source) -> Vec<String>;

    fn found(rule: Rule, path: &str, text: &str) -> usize {
        rule(&Source::new(path, text)).len()
    }

    fn function(lines: usize) -> String {
        format!(
            "//! A.\n\n#[inline]\npub fn f<const N: usize>() -> [u8; {{ 1 }}] {{\n{}}}\n",
            "    g();\n".repeat(lines - 2)
        )
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(found(check_header, "src/x.rs", "//! A file.\nfn f() {}"), 0);
        assert_eq!(found(check_header, "src/x.rs", "// A file.\nfn f() {}"), 1);
        assert_eq!(found(check_header, "tests/x.rs", "\n//! A file."), 1);
        assert_eq!(found(check_header, "build.rs", ""), 1);
        assert_eq!(found(check_header, "kernels/x.cu", "__global__ void f() {}"), 1);
        assert_eq!(found(check_header, "kernels/x.cu", "// What.\n__global__ void f() {}"), 0);
        assert_eq!(found(check_header, "README.md", "# Title"), 0);
    }

    #[test]
    fn a_skip_that_is_not_counted_is_found() {
        let said = concat!("println!(\"skip", "ped: no moon\");");
        assert_eq!(found(check_skips, "tests/x.rs", said), 1);
        assert_eq!(found(check_skips, "tests/common/skip.rs", said), 0);
        assert_eq!(found(check_skips, "tests/x.rs", "skip(Lack::Gpu, \"no moon\")"), 0);
    }

    #[test]
    fn a_function_over_the_limit_is_found() {
        assert_eq!(found(check_length, "src/x.rs", &function(70)), 0);
        assert_eq!(found(check_length, "src/x.rs", &function(71)), 1);
        let method = format!("//! A.\nimpl S {{\n{}}}\nmod tests {{\n{}}}", function(71), function(72));
        assert_eq!(found(check_length, "tests/x.rs", &method), 2);
        let hidden = "    let x = \"}\"; // }\n    let y = '}';\n".repeat(35);
        assert_eq!(found(check_length, "src/x.rs", &format!("fn f() {{\n{hidden}}}")), 1);
    }

    #[test]
    fn a_file_over_the_limit_is_found() {
        let lines = |count: usize| "//! A.\n".to_owned() + &"const X: u8 = 1;\n".repeat(count - 1);
        assert_eq!(found(check_length, "src/x.rs", &lines(500)), 0);
        assert_eq!(found(check_length, "src/x.rs", &lines(501)), 1);
        assert_eq!(found(check_length, "kernels/x.cu", &lines(501)), 1);
        assert_eq!(found(check_length, "README.md", &lines(501)), 0);
    }

    #[test]
    fn a_wide_line_is_found() {
        let wide = |start: &str, columns: usize| format!("//! A.\n{start}{}\n", "x".repeat(columns - start.len()));
        for (path, start, most) in
            [("src/x.rs", "/// ", 150), ("src/x.rs", "    f(", 150), ("kernels/x.cu", "// ", 120)]
        {
            assert_eq!(found(check_width, path, &wide(start, most)), 0);
            assert_eq!(found(check_width, path, &wide(start, most + 1)), 1);
        }
        assert_eq!(found(check_width, "src/x.rs", &wide("/// \"", 151)), 1);
        assert_eq!(found(check_width, "kernels/x.cu", &wide("f(\"", 121)), 1);
        assert_eq!(found(check_width, "src/x.rs", &wide("f(\"", 200)), 0);
        let long = "x".repeat(200);
        assert_eq!(found(check_width, "src/x.rs", &format!("f(\"a \\\n{long} \\\n{long}\");\n{long}\n")), 1);
        assert_eq!(found(check_width, "README.md", &wide("", 400)), 0);
    }

    #[test]
    fn files_of_tables_may_be_long_and_have_no_functions() {
        let tables = format!("//! Grids.\n//!\n{TABLES_MARK}\n{}", "const X: u8 = 1;\n".repeat(900));
        assert_eq!(found(check_length, "src/x.rs", &tables), 0);
        assert_eq!(found(check_length, "src/x.rs", &(tables + "fn f() {}")), 1);
        let late = format!("//! Grids.\nconst X: u8 = 1;\n{TABLES_MARK}\n{}", "\n".repeat(900));
        assert_eq!(found(check_length, "src/x.rs", &late), 1);
    }

    #[test]
    fn a_long_kernel_is_found() {
        let kernel = |lines: usize| {
            let body = "    if (x) { y(); }\n".repeat(lines - 2);
            format!("// What.\nnamespace a {{\n__global__ void f(float *x) {{\n{body}}}\n}}\n")
        };
        assert_eq!(found(check_length, "kernels/x.cu", &kernel(150)), 0);
        assert_eq!(found(check_length, "kernels/x.cu", &kernel(151)), 1);
    }

    #[test]
    fn a_long_example_is_found() {
        assert_eq!(found(check_length, "examples/c/generate.c", &"x;\n".repeat(209)), 0);
        assert_eq!(found(check_length, "examples/c/generate.c", &"x;\n".repeat(210)), 1);
    }

    #[test]
    fn a_lint_switched_off_for_a_crate_is_found() {
        assert_eq!(found(check_crate_lints, "src/lib.rs", "#![allow(dead_code)]"), 1);
        assert_eq!(found(check_crate_lints, "tests/x/main.rs", "#![deny(a)]\n#![cfg_attr(b, expect(c))]"), 1);
        assert_eq!(found(check_crate_lints, "src/lib.rs", "#![deny(unsafe_code)]\n#[allow(dead_code)]\nmod m;"), 0);
        assert_eq!(found(check_crate_lints, "tests/common/mod.rs", "#![allow(dead_code)]"), 0);
    }

    #[test]
    fn words_of_unfinished_work_are_found() {
        for word in WORDS {
            assert_eq!(found(check_words, "README.md", &format!("a {word}: b")), 1);
            assert_eq!(found(check_words, "src/x.rs", &format!("// {word}(me)\nlet x = \"{word}\";")), 2);
            assert_eq!(found(check_words, "src/x.rs", &format!("{word}S {} my{word}", word.to_lowercase())), 0);
        }
    }

    #[test]
    fn placeholders_and_prints_are_found() {
        for name in MACROS {
            assert_eq!(found(check_calls, "tests/x.rs", &format!("fn f() {{ {name}!() }}")), 1);
        }
        for name in PRINTING {
            assert_eq!(found(check_calls, "src/x.rs", &format!("fn f() {{ {name}!(\"a\") }}")), 1);
            assert_eq!(found(check_calls, "tests/x.rs", &format!("fn f() {{ {name}!(\"a\") }}")), 0);
        }
        assert_eq!(found(check_calls, "src/x.rs", "// println!()\nif print != todo { let s = \"dbg!\"; }"), 0);
    }

    #[test]
    fn a_look_at_the_environment_is_found() {
        for text in
            ["std::env::var(a)", "use std::env; env::var_os(a)", "use std::env::{args, vars};", "libc::getenv(a)"]
        {
            assert_eq!(found(check_calls, "src/x.rs", text), 1, "{text}");
            assert_eq!(found(check_calls, "tests/x.rs", text), 0, "{text}");
        }
        assert_eq!(found(check_calls, "src/x.rs", "env!(\"X\"); use std::env::{args}; let env = variable;"), 0);
    }

    #[test]
    fn names_that_say_nothing_are_found() {
        for path in [
            "src/util.rs",
            "src/text/string_utils.rs",
            "src/common/mod.rs",
            "bindings/cpp/Helper.hpp",
            "src/page_manager.rs",
        ] {
            assert_eq!(found(check_name, path, ""), 1, "{path}");
        }
        for path in ["tests/common/mod.rs", "kernels/quant/warp.cuh", "src/utility.rs", "src/kv/pages.rs"] {
            assert_eq!(found(check_name, path, ""), 0, "{path}");
        }
        assert_eq!(found(check_name, "src/gguf_v2.rs", ""), 1);
        assert_eq!(found(check_calls, "src/x.rs", &format!("fn load{VERSION_SUFFIX}() {{}}")), 1);
        assert_eq!(found(check_calls, "src/x.rs", &format!("cu::current{VERSION_SUFFIX}()")), 1);
        assert_eq!(found(check_calls, "src/x.rs", &format!("sys::cuCtxPopCurrent{VERSION_SUFFIX}(x)")), 0);
    }
}
