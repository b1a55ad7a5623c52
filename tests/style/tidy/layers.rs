//! The layering of the library: which module may name which other.
//!
//! Reads every path of a file's code that begins with `crate` or climbs with `super`, in imports and elsewhere, groups in
//! braces included, and resolves it to the modules it passes through. A name that a module re-exports from a module inside
//! it counts as a name of the inner one.

use std::collections::HashMap;

use super::source::{Block, Kind, Source, Token, blocks, is_name};

/// The layers, from top to bottom; a module may name those of every lower one.
const LAYERS: [&[&str]; 7] = [
    &["ffi"],
    &["engine"],
    &["text", "grammar", "sample", "speculate", "arch", "convert", "plan", "kv", "backend"],
    &["quant", "format"],
    &["error", "sync", "elementary"],
    &["memory"],
    &["os"],
];

/// What may be named beside that: the module that names, and the path below which it may.
const EXCEPTIONS: [(&str, &[&str]); 15] = [
    ("grammar", &["text"]),
    ("convert", &["arch"]),
    ("backend", &["plan", "adapter"]),
    ("backend", &["plan", "halves"]),
    ("backend", &["plan", "op"]),
    ("backend", &["plan", "memory"]),
    ("backend", &["plan", "validate"]),
    ("backend", &["kv", "layout"]),
    ("backend", &["kv", "pages"]),
    ("backend", &["kv", "q8"]),
    ("backend", &["kv", "state"]),
    ("backend", &["sample"]),
    ("plan", &["arch"]),
    ("plan", &["kv", "layout"]),
    ("plan", &["kv", "state"]),
];

/// Siblings inside one module that must not know each other.
const STRANGERS: [[&[&str]; 2]; 1] = [[&["backend", "cpu"], &["backend", "cuda"]]];

/// Where names that modules re-export are defined, both as paths from the crate's root.
pub struct Exports(HashMap<Vec<String>, Vec<String>>);

impl Exports {
    /// Reads the `pub use inner::...` of every module.
    pub fn of(tree: &[Source]) -> Exports {
        let mut exports = HashMap::new();
        for (source, home) in tree.iter().filter_map(|source| Some((source, module_of(&source.path)?))) {
            let tokens = source.tokens();
            for (index, pair) in tokens.windows(2).enumerate() {
                let relative = tokens.get(index + 2).is_some_and(|first| !matches!(first.text, "crate" | "super"));
                if pair[0].text == "pub" && pair[1].text == "use" && relative {
                    let mut paths = Vec::new();
                    read_tree(&tokens, index + 2, home.clone(), &mut paths);
                    exports.extend(
                        paths.into_iter().map(|path| (home.iter().chain(path.last()).cloned().collect(), path)),
                    );
                }
            }
        }
        Exports(exports)
    }

    /// The path with its first re-exported name replaced by where that is defined.
    fn resolve(&self, path: &[String]) -> Vec<String> {
        let origin = |length: usize| Some([self.0.get(&path[..length])?, &path[length..]].concat());
        (1..=path.len()).find_map(origin).unwrap_or_else(|| path.to_vec())
    }
}

/// Paths of a file of the library that point up or sideways.
pub fn check(source: &Source, exports: &Exports) -> Vec<String> {
    // The root is the map of all layers and belongs to none.
    let Some(home) = module_of(&source.path).filter(|home| !home.is_empty()) else { return Vec::new() };
    let tokens = source.tokens();
    let blocks = blocks(&tokens);
    let mut findings = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        for path in paths_from(&tokens, index, &blocks, &home) {
            let path = exports.resolve(&path);
            if !allowed(&home, &path) {
                let problem = format!("`{}` may not name `{}`", home.join("::"), path.join("::"));
                findings.push(source.finding(token.line, &problem));
            }
        }
    }
    findings
}

/// The module that a file of `src` is, from the crate's root, which `lib.rs` is itself.
pub fn module_of(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { Some(Vec::new()) } else { Some(path.split('/').map(str::to_owned).collect()) }
}

fn allowed(from: &[String], to: &[String]) -> bool {
    let Some(target) = to.first() else { return false };
    if STRANGERS.iter().any(|[a, b]| (is_below(from, a) && is_below(to, b)) || (is_below(from, b) && is_below(to, a))) {
        return false;
    }
    let layer = |module: &String| LAYERS.iter().position(|layer| layer.contains(&module.as_str()));
    let excepted = EXCEPTIONS.iter().any(|(module, below)| from[0] == *module && is_below(to, below));
    match (layer(&from[0]), layer(target)) {
        (Some(here), Some(there)) => from[0] == *target || here < there || excepted,
        _ => false,
    }
}

/// Whether `path` is `ancestor` or inside it.
pub fn is_below(path: &[String], ancestor: &[&str]) -> bool {
    path.len() >= ancestor.len() && path.iter().zip(ancestor).all(|(a, b)| a == b)
}

/// The paths that begin at a token, from the crate's root.
fn paths_from(tokens: &[Token], start: usize, blocks: &[Block], home: &[String]) -> Vec<Vec<String>> {
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    let begins = matches!(text(start), "crate" | "super") && text(start + 1) == "::";
    if !begins || (start > 0 && text(start - 1) == "::") {
        return Vec::new();
    }
    let mut base = Vec::new();
    let mut next = start + 2;
    if text(start) == "super" {
        base = home.to_vec();
        let around = blocks.iter().filter(|block| block.open < start && start < block.close);
        base.extend(around.filter_map(|block| match &block.kind {
            Kind::Module(name) => Some(name.clone()),
            _ => None,
        }));
        base.pop();
        while text(next) == "super" && text(next + 1) == "::" {
            base.pop();
            next += 2;
        }
    }
    let mut paths = Vec::new();
    read_tree(tokens, next, base, &mut paths);
    paths
}

/// Reads what follows `::` and returns the index behind it.
fn read_tree(tokens: &[Token], mut at: usize, mut base: Vec<String>, paths: &mut Vec<Vec<String>>) -> usize {
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    while is_name(text(at)) {
        // `self` in a group is the path in front of it.
        if text(at) != "self" {
            base.push(text(at).to_owned());
        }
        at += 1;
        if text(at) != "::" {
            paths.push(base);
            return at;
        }
        at += 1;
    }
    if text(at) != "{" {
        paths.push(base);
        return at + 1;
    }
    at += 1;
    while !matches!(text(at), "}" | "") {
        at = read_tree(tokens, at, base.clone(), paths);
        while !matches!(text(at), "," | "}" | "") {
            at += 1;
        }
        at += usize::from(text(at) == ",");
    }
    at + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&Source::new(path, text), &Exports(HashMap::new())).len()
    }

    #[test]
    fn a_re_exported_name_belongs_where_it_is_defined() {
        let tree = [
            Source::new(
                "src/plan/mod.rs",
                "pub mod op; pub use op::{Op, value::Id}; pub use build::build; use memory::X;",
            ),
            Source::new("src/kv/mod.rs", "pub use layout::Layout;\npub use crate::error::Result;"),
        ];
        let exports = Exports::of(&tree);
        let found = |text: &str| check(&Source::new("src/backend/mod.rs", text), &exports).len();
        assert_eq!(found("use crate::plan::{Op, Id}; use crate::kv::Layout; fn f() { crate::plan::Op::Add; }"), 0);
        assert_eq!(found("use crate::plan::{Op, build, schedule}; use crate::{kv::Tables, kv::Result};"), 4);
    }

    #[test]
    fn names_of_lower_layers_are_allowed() {
        assert_eq!(findings("src/ffi/ctx.rs", "use crate::engine::Context; use crate::{error::Error, text};"), 0);
        assert_eq!(findings("src/engine/session.rs", "use crate::{backend, kv::{Pages, Tables}, sample as s};"), 0);
        assert_eq!(findings("src/text/mod.rs", "fn f() { crate::format::open(); crate::quant::DType::F32; }"), 0);
        assert_eq!(findings("src/format/mmap.rs", "use crate::error::Result;"), 0);
        assert_eq!(findings("src/lib.rs", "use crate::ffi::X;"), 0);
        assert_eq!(findings("tests/x.rs", "use crate::ffi::X;"), 0);
    }

    #[test]
    fn names_of_the_own_module_are_allowed() {
        assert_eq!(findings("src/backend/cpu/mod.rs", "use super::Backend; pub(in crate::backend) fn f() {}"), 0);
        assert_eq!(
            findings("src/sample/rng.rs", "use super::filters; mod tests { use super::super::filters; use super::*; }"),
            0
        );
    }

    #[test]
    fn names_of_higher_layers_are_found() {
        assert_eq!(findings("src/error.rs", "use crate::quant::DType;"), 1);
        assert_eq!(findings("src/engine/mod.rs", "use crate::ffi::guard;"), 1);
        assert_eq!(findings("src/quant/dtype.rs", "fn f() { crate::backend::x(); }"), 1);
        assert_eq!(findings("src/kv/pages.rs", "use crate::{error::Result, engine::{Model, Session}};"), 2);
    }

    #[test]
    fn names_of_siblings_are_found_but_for_the_exceptions() {
        assert_eq!(findings("src/sample/rng.rs", "use crate::text::stream;"), 1);
        assert_eq!(findings("src/format/gguf.rs", "use crate::quant::DType;"), 1);
        assert_eq!(
            findings("src/backend/cpu/lower.rs", "use crate::plan::op::Op; use crate::kv::layout::{self, Layout};"),
            0
        );
        assert_eq!(findings("src/backend/cpu/lower.rs", "use crate::{plan::{op, build::Builder}, kv};"), 2);
        assert_eq!(findings("src/plan/build.rs", "use crate::arch::Arch;"), 0);
        assert_eq!(findings("src/arch/spec.rs", "use crate::plan::op::Op;"), 1);
        assert_eq!(findings("src/backend/cuda/mod.rs", "use crate::backend::cpu::Pool; use super::cpu;"), 2);
    }

    #[test]
    fn climbing_out_with_super_is_found() {
        assert_eq!(findings("src/sample/rng.rs", "use super::super::text::stream;"), 1);
        assert_eq!(findings("src/sample/mod.rs", "use super::text;"), 1);
        assert_eq!(findings("src/sample/mod.rs", "use super::*;"), 1);
        assert_eq!(
            findings("src/sample/mod.rs", "mod tests { use super::*; fn f() { super::super::engine::f() } }"),
            1
        );
    }

    #[test]
    fn unknown_modules_are_found() {
        assert_eq!(findings("src/sample/mod.rs", "use crate::misc::f;"), 1);
        assert_eq!(findings("src/misc.rs", "use crate::error::Result;"), 1);
    }

    #[test]
    fn comments_and_strings_name_nothing() {
        assert_eq!(findings("src/error.rs", "//! [`crate::ffi`]\nconst X: &str = \"crate::ffi\";"), 0);
    }
}
