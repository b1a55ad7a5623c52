//! From `quant/types.def` and `kernels.def` to what the host knows of them: an enum of weight types, an enum of families of kernels, and the kernels
//! of each family. Runs in the build; `src/backend/cuda/catalogue.rs` includes what it writes.

use std::fmt::Write;

/// A line of a `.def` file: `NAME(argument, argument, ...)`.
struct Entry<'a> {
    name: &'a str,
    arguments: Vec<&'a str>,
}

/// The entries of a file, without comments and directives.
fn entries(text: &str) -> impl Iterator<Item = Entry<'_>> {
    text.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase())).map(|line| {
        let (name, rest) = line.split_once('(').unwrap_or_else(|| panic!("no entry: {line}"));
        let inside = rest.strip_suffix(')').unwrap_or_else(|| panic!("an entry ends with its line: {line}"));
        Entry { name, arguments: inside.split(", ").collect() }
    })
}

/// The source of the enums for the texts of both files.
pub fn source(types: &str, kernels: &str) -> String {
    let mut out = String::new();
    let names = weight_types(types, &mut out).expect("a text takes all");
    families(kernels, &names, &mut out).expect("a text takes all");
    out
}

/// Writes `DeviceType` and the bytes of each type; its names.
fn weight_types(types: &str, out: &mut String) -> Result<Vec<String>, std::fmt::Error> {
    let types: Vec<Entry> = entries(types).filter(|entry| entry.name == "WEIGHT_TYPE").collect();
    let names: Vec<String> = types.iter().map(|entry| entry.arguments[0].to_owned()).collect();
    writeln!(out, "/// A weight type of the device, with the number that kernels know it by.")?;
    writeln!(out, "#[allow(missing_docs, non_camel_case_types)] // Named as in `kernels/quant/types.def`.")?;
    writeln!(out, "#[allow(clippy::upper_case_acronyms)] // As those are.")?;
    writeln!(out, "#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]\n#[repr(u32)]")?;
    writeln!(out, "pub enum DeviceType {{ #[default] {} }}\n", names.join(", "))?;
    writeln!(out, "impl DeviceType {{\n    /// Every type, by its number.")?;
    writeln!(out, "    pub const ALL: [DeviceType; {}] = [{}];\n", names.len(), paths("DeviceType", &names))?;
    let strings: Vec<String> = names.iter().map(|name| format!("DeviceType::{name} => {name:?}")).collect();
    writeln!(
        out,
        "    /// Its name.\n    pub const fn name(self) -> &'static str {{\n        match self {{ {} }}\n    }}\n",
        strings.join(", ")
    )?;
    writeln!(out, "    /// Bytes of a group.\n    pub const fn group(self) -> GroupBytes {{\n        match self {{")?;
    for Entry { arguments, .. } in &types {
        let [name, codes, high, scales, floats, shared, _] = arguments[..] else {
            panic!("seven arguments: {arguments:?}")
        };
        writeln!(
            out,
            "            DeviceType::{name} => GroupBytes {{ codes: {codes}, high: {high}, scales: {scales}, floats: {floats}, shared: {shared} }},"
        )?;
    }
    writeln!(out, "        }}\n    }}\n}}\n")?;
    Ok(names)
}

/// Writes `Kernel` and the kernels of each family.
fn families(kernels: &str, types: &[String], out: &mut String) -> std::fmt::Result {
    let kernels: Vec<Entry> = entries(kernels).collect();
    let mut names: Vec<String> = Vec::new();
    for entry in &kernels {
        if !names.iter().any(|name| name == entry.arguments[0]) {
            names.push(entry.arguments[0].to_owned());
        }
    }
    writeln!(out, "/// A family of kernels.\n#[allow(missing_docs)] // Named as in `kernels/kernels.def`.")?;
    writeln!(out, "#[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub enum Kernel {{ {} }}\n", names.join(", "))?;
    writeln!(out, "impl Kernel {{\n    /// Every family, in the order of its discriminants.")?;
    writeln!(out, "    pub const ALL: [Kernel; {}] = [{}];\n", names.len(), paths("Kernel", &names))?;
    writeln!(
        out,
        "    /// Its kernels.\n    pub const fn variants(self) -> &'static [Variant] {{\n        match self {{"
    )?;
    for name in &names {
        writeln!(out, "            Kernel::{name} => &[")?;
        for entry in kernels.iter().filter(|entry| entry.arguments[0] == name) {
            writeln!(out, "                {},", variant(entry, types))?;
        }
        writeln!(out, "            ],")?;
    }
    writeln!(out, "        }}\n    }}\n}}")
}

/// One kernel: parameters that are types come apart from those that are numbers; `true` and `false` are for the kernel alone.
fn variant(entry: &Entry, types: &[String]) -> String {
    let (file, name, parameters) = (entry.arguments[1], entry.arguments[2], &entry.arguments[3..]);
    let mut own: Vec<String> =
        parameters.iter().filter(|word| types.iter().any(|t| t == *word)).map(|word| word.to_string()).collect();
    own.dedup();
    let numbers: Vec<&str> = parameters.iter().copied().filter(|word| word.parse::<u32>().is_ok()).collect();
    let types = paths("DeviceType", &own);
    format!("Variant {{ file: {file:?}, name: {name:?}, types: &[{types}], numbers: &[{}] }}", numbers.join(", "))
}

fn paths(of: &str, names: &[String]) -> String {
    names.iter().map(|name| format!("{of}::{name}")).collect::<Vec<_>>().join(", ")
}
