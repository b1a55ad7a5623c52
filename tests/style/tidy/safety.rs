//! Where `unsafe` may be, and that each use says why it is right.

use super::layers::{is_below, module_of};
use super::source::{Block, Kind, Source, Token, blocks, innermost, is_name};

/// The modules for which the library's denial of unsafe code may be lifted.
const UNSAFE_MODULES: [&[&str]; 8] = [
    &["ffi"],
    &["memory"],
    &["os"],
    &["sync", "threads"],
    &["quant", "blocks"],
    &["backend", "cpu", "pool"],
    &["backend", "cpu", "simd"],
    &["backend", "cuda"],
];

/// Attributes of the library that lift the denial elsewhere, and a root without the denial.
pub fn check_permission(source: &Source) -> Vec<String> {
    let Some(home) = module_of(&source.path) else { return Vec::new() };
    let tokens = source.tokens();
    let mut findings = Vec::new();
    let mut denied = false;
    for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.text == "unsafe_code") {
        let hash = tokens[..index].iter().rposition(|token| token.text == "#").unwrap_or(0);
        let attribute = &tokens[hash..index];
        let has = |text: &str| attribute.iter().any(|token| token.text == text);
        let inner = attribute.get(1).is_some_and(|token| token.text == "!");
        if has("deny") || has("forbid") {
            denied |= inner;
            continue;
        }
        let mut target = home.clone();
        if !inner {
            target.extend(module_declared_after(&tokens[index..]));
        }
        if !UNSAFE_MODULES.iter().any(|module| is_below(&target, module)) {
            findings.push(source.finding(token.line, "unsafe code is not allowed in this module"));
        }
    }
    if home.is_empty() && !denied {
        findings.push(source.finding(1, "the crate does not deny `unsafe_code`"));
    }
    findings
}

/// The name in `mod name;` or `mod name {` when that is what an attribute stands before.
fn module_declared_after(tokens: &[Token]) -> Option<String> {
    let start = tokens.iter().position(|token| token.text == "]")? + 1;
    let end = start + tokens[start..].iter().position(|token| matches!(token.text, ";" | "{"))?;
    match &tokens[start..end] {
        [.., keyword, name] if keyword.text == "mod" => Some(name.text.to_owned()),
        _ => None,
    }
}

/// Unsafe blocks, functions, traits and implementations without a safety sentence right above. Functions that implement a
/// trait are bound by the trait's.
pub fn check_notes(source: &Source) -> Vec<String> {
    if !source.has_extension(&["rs"]) {
        return Vec::new();
    }
    let tokens = source.tokens();
    let blocks = blocks(&tokens);
    let (text, code): (Vec<&str>, Vec<&str>) = (source.text.lines().collect(), source.code_lines());
    let unnoted =
        |&index: &usize| needs_note(&tokens, index, &blocks) && !has_note(&text, &code, tokens[index].line - 1);
    let uses = (0..tokens.len()).filter(|&index| tokens[index].text == "unsafe");
    uses.filter(unnoted)
        .map(|index| source.finding(tokens[index].line, "`unsafe` without a `SAFETY:` or `# Safety` sentence above"))
        .collect()
}

/// Not for attributes such as `#[unsafe(no_mangle)]` nor for types of function pointers.
fn needs_note(tokens: &[Token], at: usize, blocks: &[Block]) -> bool {
    let text = |offset: usize| tokens.get(at + offset).map_or("", |token| token.text);
    let function = if text(1) == "extern" { 2 } else { 1 };
    if text(function) == "fn" {
        let around = innermost(blocks, at, |kind| *kind != Kind::Other);
        return is_name(text(function + 1)) && around.is_none_or(|block| block.kind != Kind::TraitImpl);
    }
    text(1) != "("
}

/// Looks upwards from a line: over attributes and the beginning of the same statement to a comment that has the sentence.
fn has_note(text: &[&str], code: &[&str], line: usize) -> bool {
    for above in (0..line).rev() {
        let comment = text[above].trim_start().starts_with("//");
        if comment {
            let block = text[..=above].iter().rev().take_while(|line| line.trim_start().starts_with("//"));
            return block.into_iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety"));
        }
        let code = code[above].trim();
        if !code.starts_with("#[") && (code.is_empty() || code.ends_with([';', '{', '}', ','])) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(path: &str, text: &str) -> usize {
        check_permission(&Source::new(path, text)).len()
    }

    fn notes(text: &str) -> usize {
        check_notes(&Source::new("src/x.rs", text)).len()
    }

    #[test]
    fn unsafe_code_is_allowed_in_its_modules_only() {
        assert_eq!(permission("src/lib.rs", "#![deny(unsafe_code)]\n#[allow(unsafe_code)]\npub mod ffi;"), 0);
        assert_eq!(permission("src/lib.rs", "#![deny(unsafe_code)]\n#[allow(unsafe_code)]\npub mod engine;"), 1);
        assert_eq!(permission("src/quant/blocks.rs", "#![allow(unsafe_code)]"), 0);
        assert_eq!(permission("src/quant/dtype.rs", "#![allow(missing_docs, unsafe_code)]"), 1);
        assert_eq!(
            permission("src/backend/cpu/mod.rs", "#[allow(unsafe_code)] // why\n#[doc(hidden)]\npub(crate) mod pool;"),
            0
        );
        assert_eq!(permission("src/backend/cpu/mod.rs", "#[expect(unsafe_code)]\nmod matmul;"), 1);
        assert_eq!(permission("src/backend/cpu/mod.rs", "#[cfg_attr(x, allow(unsafe_code))]\nfn pool() {}"), 1);
        assert_eq!(permission("src/os/linux.rs", "#[allow(unsafe_code)]\nfn map() {}"), 0);
    }

    #[test]
    fn the_root_must_deny_unsafe_code() {
        assert_eq!(permission("src/lib.rs", "pub mod ffi;"), 1);
        assert_eq!(permission("src/lib.rs", "#[deny(unsafe_code)]\npub mod ffi;"), 1);
        assert_eq!(permission("src/kv/mod.rs", "pub mod pages;"), 0);
    }

    #[test]
    fn a_safety_sentence_above_is_enough() {
        assert_eq!(notes("fn f() {\n    // SAFETY: because.\n    unsafe { g() }\n}"), 0);
        assert_eq!(
            notes("fn f() {\n    // SAFETY: because\n    // of this.\n    let x =\n        unsafe { g() };\n}"),
            0
        );
        assert_eq!(notes("/// Does.\n///\n/// # Safety\n/// Because.\n#[inline]\npub unsafe fn f() {}"), 0);
        assert_eq!(notes("// SAFETY: because.\nunsafe impl Send for S {}"), 0);
        assert_eq!(notes("/// # Safety\n/// Because.\npub unsafe trait T {}"), 0);
    }

    #[test]
    fn unsafe_without_a_sentence_is_found() {
        assert_eq!(notes("fn f() {\n    unsafe { g() }\n}"), 1);
        assert_eq!(notes("fn f() {\n    // Fast.\n    unsafe { g() }\n}"), 1);
        assert_eq!(notes("fn f() {\n    // SAFETY: because.\n    g();\n    unsafe { g() }\n}"), 1);
        assert_eq!(notes("// SAFETY: because.\n\nunsafe impl Send for S {}"), 1);
        assert_eq!(notes("// SAFETY: because.\nunsafe impl Send for S {}\nunsafe impl Sync for S {}"), 1);
        assert_eq!(notes("/// Does.\npub unsafe fn f() {}\nunsafe extern \"C\" fn g() {}"), 2);
        assert_eq!(notes("unsafe extern \"C\" {\n    fn g();\n}"), 1);
        assert_eq!(notes("impl S {\n    unsafe fn f() {}\n}"), 1);
    }

    #[test]
    fn attributes_types_and_trait_methods_need_no_sentence() {
        assert_eq!(notes("#[unsafe(no_mangle)]\nfn f() {}"), 0);
        assert_eq!(notes("type F = Option<unsafe extern \"C\" fn(u8)>; type G = unsafe fn();"), 0);
        assert_eq!(notes("impl T for S {\n    unsafe fn f() {}\n}"), 0);
        assert_eq!(notes("impl T for S {\n    fn f() {\n        unsafe { g() }\n    }\n}"), 1);
        assert!(check_notes(&Source::new("README.md", "only `unsafe` in")).is_empty());
        assert_eq!(notes("// unsafe { }\nconst X: &str = \"unsafe {\";"), 0);
    }
}
