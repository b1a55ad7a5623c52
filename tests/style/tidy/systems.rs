//! Operating systems have one place in the library: `src/os`. Elsewhere nothing names one, its C library or its files.

use super::layers::{is_below, module_of};
use super::source::{Source, Token};

/// Where systems may be named: beside `os`, the driver of GPUs has names that differ.
const PLACES: [&[&str]; 2] = [&["os"], &["backend", "cuda"]];
/// Conditions and crates that only one system has, or that tell systems apart.
const NAMES: [&str; 5] = ["target_os", "target_family", "target_env", "libc", "windows_sys"];
const FAMILIES: [&str; 2] = ["unix", "windows"];
const FOLDERS: [&str; 3] = ["\"/proc", "\"/sys/", "\"/dev/"];

/// Names of systems in a file of the library that is not about them.
pub fn check(source: &Source) -> Vec<String> {
    let Some(home) = module_of(&source.path) else { return Vec::new() };
    if PLACES.iter().any(|place| is_below(&home, place)) {
        return Vec::new();
    }
    let tokens = source.tokens();
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    let mut findings = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let family = FAMILIES.contains(&token.text) && is_condition(&tokens[..index]);
        let part = token.text == "std" && text(index + 1) == "::" && text(index + 2) == "os";
        if family || part || NAMES.contains(&token.text) {
            findings.push(source.finding(token.line, &format!("`{}` belongs into src/os", token.text)));
        }
    }
    let lines = source.text.lines().enumerate();
    let named = lines.filter(|(_, line)| FOLDERS.iter().any(|folder| line.contains(folder)));
    findings.extend(named.map(|(index, _)| source.finding(index + 1, "a file of a system's own belongs into src/os")));
    findings
}

/// Whether what follows these tokens belongs to a condition as `cfg(any(unix, not(windows)))` is one.
fn is_condition(tokens: &[Token]) -> bool {
    let inside = ["(", ")", ",", "!", "not", "any", "all", "unix", "windows"];
    let outside = tokens.iter().rev().find(|token| !inside.contains(&token.text));
    outside.is_some_and(|token| matches!(token.text, "cfg" | "cfg_attr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&Source::new(path, text)).len()
    }

    #[test]
    fn systems_are_found_outside_of_their_place() {
        let text = "#[cfg(target_os = \"linux\")]\nfn f() { unsafe { libc::getpid() }; }\nuse std::os::fd::AsFd;";
        assert_eq!(findings("src/format/mmap.rs", text), 3);
        assert_eq!(findings("src/os/linux.rs", text), 0);
        assert_eq!(findings("src/backend/cuda/driver.rs", text), 0);
        assert_eq!(findings("tests/cycles.rs", text), 0);
        assert_eq!(
            findings(
                "src/kv/mod.rs",
                "#[cfg(any(unix, windows))] fn f() {} #[cfg(not(windows))] fn g() { cfg!(unix); }"
            ),
            4
        );
        assert_eq!(findings("src/kv/mod.rs", "const PATH: &str = \"/proc/self/maps\";"), 1);
    }

    #[test]
    fn words_of_other_meaning_are_not() {
        assert_eq!(findings("src/kv/mod.rs", "use crate::os; fn f() { bytes.windows(2); os::open(path); }"), 0);
        assert_eq!(findings("src/kv/mod.rs", "fn f(windows: &[usize]) { let first = g(1, windows); }"), 0);
        assert_eq!(findings("src/kv/mod.rs", "//! As libc does on windows, unix.\n"), 0);
    }
}
