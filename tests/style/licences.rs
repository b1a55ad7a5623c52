//! The licences of what the library is built from: each crate has one that deny.toml allows and comes from the registry, and
//! packaging/THIRD-PARTY-NOTICES.txt holds the notices of all that is linked (`make notices` rewrites it). The fuzz targets, which have a lock of
//! their own, are built of the same.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const NOTICES: &str = "packaging/THIRD-PARTY-NOTICES.txt";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What cargo knows of all packages that Cargo.lock names for the systems that the library is built for.
fn metadata() -> Value {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(["metadata", "--locked", "--format-version=1"]);
    command.args(["--filter-platform=x86_64-unknown-linux-gnu", "--filter-platform=x86_64-pc-windows-gnu"]);
    let output = command.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}

/// The licences that deny.toml allows.
fn allowed() -> BTreeSet<String> {
    let config = fs::read_to_string(root().join("deny.toml")).unwrap();
    let list = config.lines().find_map(|line| line.strip_prefix("allow = [")).unwrap();
    list.trim_end_matches(']').split(',').map(|name| name.trim().trim_matches('"').into()).collect()
}

/// The crates that may have another licence, and which.
fn exceptions() -> BTreeMap<String, String> {
    let config = fs::read_to_string(root().join("deny.toml")).unwrap();
    let entries = config.lines().filter_map(|line| line.trim().strip_prefix("{ crate = "));
    let names = |entry: &str| entry.split('"').skip(1).step_by(2).map(String::from).collect::<Vec<String>>();
    entries.map(names).map(|names| (names[0].clone(), names[1].clone())).collect()
}

/// Whether an SPDX expression of names, OR, AND and parentheses can be met with the licences that are allowed.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    any(&mut tokens.as_slice(), allowed)
}

fn any(tokens: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut met = all(tokens, allowed);
    while let ["OR", rest @ ..] = *tokens {
        *tokens = rest;
        met |= all(tokens, allowed);
    }
    met
}

fn all(tokens: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut met = one(tokens, allowed);
    while let ["AND", rest @ ..] = *tokens {
        *tokens = rest;
        met &= one(tokens, allowed);
    }
    met
}

fn one(tokens: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let Some((first, rest)) = tokens.split_first() else { return false };
    *tokens = rest;
    if *first != "(" {
        return allowed.contains(*first);
    }
    let met = any(tokens, allowed);
    *tokens = tokens.get(1..).unwrap_or_default();
    met
}

/// The crates that are linked into the library, by name and version: those that it names, and theirs, without what only compiles.
fn linked(metadata: &Value) -> BTreeMap<String, &Value> {
    let packages = metadata["packages"].as_array().unwrap();
    let package = |id: &str| packages.iter().find(|package| text(package, "id") == id).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let own = packages.iter().find(|package| text(package, "name") == "segno").unwrap();
    let mut found = BTreeMap::new();
    let mut open = vec![text(own, "id")];
    while let Some(id) = open.pop() {
        let node = nodes.iter().find(|node| text(node, "id") == id).unwrap();
        for dependency in node["deps"].as_array().unwrap() {
            let normal = dependency["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null());
            let next = package(text(dependency, "pkg"));
            let compiles_only = next["targets"].to_string().contains("\"proc-macro\"");
            let name = format!("{} {}", text(next, "name"), text(next, "version"));
            if normal && !compiles_only && found.insert(name, next).is_none() {
                open.push(text(next, "id"));
            }
        }
    }
    found
}

/// The licence files of a crate. Where there is a choice, the Apache licence is left out: the other is the shorter.
fn licence_texts(package: &Value) -> Vec<String> {
    let folder = Path::new(text(package, "manifest_path")).parent().unwrap();
    let mut files = Vec::new();
    find_licences(folder, 3, &mut files);
    files.sort();
    let chosen: Vec<&PathBuf> =
        files.iter().filter(|file| !file.to_string_lossy().to_uppercase().contains("APACHE")).collect();
    let chosen = if chosen.is_empty() { files.iter().collect() } else { chosen };
    assert!(!chosen.is_empty(), "{} has no licence file", folder.display());
    chosen.into_iter().map(|file| plain(&fs::read_to_string(file).unwrap())).collect()
}

fn find_licences(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.path().is_dir() && depth > 0 {
            find_licences(&entry.path(), depth - 1, files);
        } else if ["LICENSE", "LICENCE", "COPYING", "NOTICE"].iter().any(|begin| name.starts_with(begin)) {
            files.push(entry.path());
        }
    }
}

/// A text without spaces at the ends of its lines.
fn plain(text: &str) -> String {
    text.trim().lines().map(str::trim_end).collect::<Vec<&str>>().join("\n")
}

fn notices() -> String {
    let metadata = metadata();
    let own = plain(&fs::read_to_string(root().join("LICENSE-MIT")).unwrap());
    let grant = own.split_once("Permission").map(|(_, rest)| format!("Permission{rest}")).unwrap();
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let numbers = "the numbers of the i-quant grids (ggml)";
    users.insert(format!("MIT License\n\nCopyright (c) The ggml authors\n\n{grant}"), vec![numbers.into()]);
    users.insert(
        format!("The Rust Project contributors, under the MIT License\n\n{grant}"),
        vec!["the standard library of Rust".into()],
    );
    for (name, package) in linked(&metadata) {
        for licence in licence_texts(package) {
            users.entry(licence).or_default().push(name.clone());
        }
    }
    let mut sections: Vec<(String, String)> =
        users.into_iter().map(|(licence, names)| (names.join(", "), licence)).collect();
    sections.sort();
    let mut out =
        String::from("What the libraries of Segno contain of others, and under which terms. Made by `make notices`.\n");
    for (names, licence) in sections {
        out += &format!("\n{}\n{names}\n\n{licence}\n", "-".repeat(80));
    }
    out
}

#[test]
fn every_crate_has_a_licence_that_is_allowed_and_comes_from_the_registry() {
    let (metadata, allowed) = (metadata(), allowed());
    let packages = metadata["packages"].as_array().unwrap();
    for package in packages {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        let excepted = exceptions().get(name).is_some_and(|other| other == licence);
        assert!(
            excepted || is_met(licence, &allowed),
            "{name} has the licence `{licence}`, deny.toml allows {allowed:?}"
        );
        let source = text(package, "source");
        assert!(name.starts_with("segno") || source.starts_with("registry+"), "{name} comes from `{source}`");
    }
    assert!(packages.len() > 20);
    for name in linked(&metadata).into_values().map(|package| text(package, "name")) {
        assert!(!exceptions().contains_key(name), "{name} is linked, so its licence must be one of {allowed:?}");
    }
}

#[test]
fn the_notices_are_those_of_what_is_linked() {
    let (path, wanted) = (root().join(NOTICES), notices());
    for name in ["regex-syntax", "libc", "memmap2", "ggml", "standard library"] {
        assert!(wanted.contains(name), "{name} is missing");
    }
    assert!(!wanted.contains("cbindgen") && !wanted.contains("thiserror-impl"), "what only compiles is not linked");
    if std::env::var_os("SEGNO_WRITE_NOTICES").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == wanted, "{NOTICES} differs from what is linked: run `make notices`");
}

/// The crates that the library needs, by the `Cargo.lock` at `path`.
fn locked(path: &str) -> BTreeSet<String> {
    let lock = fs::read_to_string(root().join(path)).unwrap();
    let package = lock.split("[[package]]").find(|package| package.contains("\nname = \"segno\"\n")).unwrap();
    let names = package.lines().filter_map(|line| line.strip_prefix(" \"")?.split(['"', ' ']).next());
    names.map(String::from).collect()
}

#[test]
fn the_fuzz_targets_are_locked_with_the_crates_of_today() {
    // What only tests, which need the package itself, and the feature `cuda` need is not built there.
    let elsewhere = ["cbindgen", "criterion", "cudarc", "segno"].map(String::from).into();
    let wanted: BTreeSet<String> = locked("Cargo.lock").difference(&elsewhere).cloned().collect();
    assert!(wanted.contains("windows-sys") && wanted.len() > 8);
    assert_eq!(locked("fuzz/Cargo.lock"), wanted, "run `cargo metadata --manifest-path fuzz/Cargo.toml`");
}

#[test]
fn expressions_of_licences_are_understood() {
    let allowed: BTreeSet<String> = ["MIT", "Unicode-3.0"].map(String::from).into();
    for met in
        ["MIT", "GPL-3.0 OR MIT", "Apache-2.0/MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "GPL-2.0 AND X OR MIT"]
    {
        assert!(is_met(met, &allowed), "{met}");
    }
    for unmet in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR X) AND GPL-3.0", "MIT-0"] {
        assert!(!is_met(unmet, &allowed), "{unmet}");
    }
}
