//! The bindings know every field of every struct of `include/segno.h`: what a binding gives another shape names the fields one by one, so
//! that a field which is added to the header and forgotten in a language is found here.

use std::fs;
use std::path::Path;

/// A struct of the header, and the names of its fields.
struct Struct {
    name: String,
    fields: Vec<String>,
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The structs of the header, without what a host does not see: their own size, and what is reserved.
fn structs() -> Vec<Struct> {
    let header = read("include/segno.h");
    let mut found: Vec<Struct> = Vec::new();
    let mut inside = false;
    for line in header.lines() {
        let words = line.strip_prefix("typedef struct ").and_then(|rest| rest.strip_suffix(" {"));
        if let Some(name) = words {
            found.push(Struct { name: name.into(), fields: Vec::new() });
            inside = true;
        } else if line.starts_with('}') {
            inside = false;
        } else if let (true, Some(field)) =
            (inside, line.strip_suffix(';').filter(|line| !line.trim().starts_with('*')))
        {
            let name = field.split('[').next().unwrap().rsplit([' ', '*']).next().unwrap();
            if name != "struct_size" && !name.starts_with("reserved") {
                found.last_mut().unwrap().fields.push(name.into());
            }
        }
    }
    assert!(found.len() >= 12 && found.iter().all(|item| !item.fields.is_empty()), "the header is read wrongly");
    found
}

/// Whether `text` holds `word` behind one of `before`, as a whole word.
fn names(text: &str, before: &[&str], word: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    before.iter().any(|before| text.split(&format!("{before}{word}")).skip(1).any(ends))
}

/// The fields that no function of `code` names which names their struct too; `code` is cut into functions at `end`.
fn forgotten(code: &str, end: &str, item: &Struct) -> Vec<String> {
    let functions: Vec<&str> = code.split(end).filter(|function| names(function, &[""], &item.name)).collect();
    let known = |field: &&String| functions.iter().any(|function| names(function, &[".", "->", "{", ", "], field));
    item.fields.iter().filter(|field| !known(field)).map(|field| format!("{}.{field}", item.name)).collect()
}

#[test]
fn go_names_every_field() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bindings/go");
    let mut code = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".go") && !name.ends_with("_test.go") {
            code += &read(&format!("bindings/go/{name}"));
        }
    }
    let all = structs();
    // A bias has the same layout in Go, which a test of the module compares.
    let own = all.iter().filter(|item| item.name != "segno_logit_bias");
    let lost: Vec<String> = own.flat_map(|item| forgotten(&code, "\n}\n", item)).collect();
    assert!(lost.is_empty(), "bindings/go knows nothing of {lost:?}");
}

#[test]
fn cpp_names_every_field_or_hands_out_the_struct() {
    let code = read("bindings/cpp/segno.hpp");
    let handed = |item: &Struct| {
        let name = &item.name;
        [format!(": {name} {{"), format!("result<{name}>")].iter().any(|form| code.contains(form.as_str()))
    };
    let all = structs();
    let own = all.iter().filter(|item| !handed(item));
    // Pairs of a pointer and a length are written in braces; a bias is handed out within the options of a sampler.
    let own = own.filter(|item| !["segno_string", "segno_logit_bias"].contains(&item.name.as_str()));
    let lost: Vec<String> = own.flat_map(|item| forgotten(&code, "\n    }\n", item)).collect();
    assert!(lost.is_empty(), "segno.hpp knows nothing of {lost:?}");
}

#[test]
fn a_forgotten_field_is_found() {
    let item = Struct { name: "segno_plan".into(), fields: vec!["host_kv".into(), "device_kv".into()] };
    let code = "f() {\n segno_plan p; p.host_kv + p.device_kv_more\n}\ng() {\n q.device_kv\n}\n";
    assert_eq!(forgotten(code, "\n}\n", &item), ["segno_plan.device_kv"]);
}
