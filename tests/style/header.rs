//! `include/segno.h` is what the pinned cbindgen makes of `src/ffi`, in the order in which a host uses it. `make header` rewrites it.

mod sections;

use sections::{SECTIONS, Section};
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn source(name: &str) -> PathBuf {
    root().join("src/ffi").join(name).with_extension("rs")
}

/// Everything of `src/ffi` in the generator's order: the text before the first declaration, and the rest.
fn generated() -> (String, String) {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let macros = config.after_includes.clone().unwrap().trim_end().to_owned();
    let mut names: Vec<_> = std::fs::read_dir(root().join("src/ffi")).unwrap().map(|e| e.unwrap().path()).collect();
    // The generator follows the `mod` lines of mod.rs by itself, and would then declare every function twice.
    names.retain(|name| !name.ends_with("mod.rs"));
    names.sort();
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = names.into_iter().fold(builder, |builder, name| builder.with_src(name));
    let mut header = Vec::new();
    builder.generate().expect("src/ffi is readable").write(&mut header);
    let mut header = String::from_utf8(header).unwrap();
    let declarations = header.split_off(header.find(&macros).unwrap() + macros.len());
    (header, declarations)
}

/// What a piece of the header declares.
fn name_of(piece: &str) -> Option<&str> {
    let code = piece.rsplit("*/\n").next().unwrap();
    let words = |text: &'static str| move |c: char| !(c.is_ascii_alphanumeric() || text.contains(c));
    if let Some(rest) = code.strip_prefix("#define ") {
        return rest.split(words("_")).next();
    }
    // The name of a function is before its parameters, that of a function type inside the first parentheses, that of any other type last.
    let before =
        if code.starts_with("typedef") && !code.contains("(*") { code } else { code.split_inclusive('(').next()? };
    let before = if before.ends_with('(') && code.contains("(*") { code.split(')').next()? } else { before };
    before.split(words("_")).rfind(|word| word.starts_with("segno_"))
}

/// Whether a file of `src/ffi` defines `name`.
fn defines(text: &str, name: &str) -> bool {
    ["const", "struct", "type", "fn"].iter().any(|kind| {
        text.match_indices(&format!("{kind} {name}"))
            .any(|(at, found)| !text[at + found.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    })
}

/// A comment of one line that the generator has spread over three.
fn shortened(piece: &str) -> String {
    let lines: Vec<_> = piece.lines().collect();
    let mut out = String::new();
    let mut at = 0;
    while at < lines.len() {
        let indent = &lines[at][..lines[at].len() - lines[at].trim_start().len()];
        let text = lines.get(at + 1).and_then(|line| line.trim_start().strip_prefix("* "));
        match text {
            Some(text)
                if lines[at].trim_start() == "/**"
                    && lines.get(at + 2).is_some_and(|line| line.trim_start() == "*/")
                    && indent.len() + text.len() + 7 <= 150 =>
            {
                out += &format!("{indent}/** {text} */\n");
                at += 3;
            }
            _ => {
                out += &format!("{}\n", lines[at]);
                at += 1;
            }
        }
    }
    out
}

/// The pieces that `section` declares, constants first, then types, then functions, as the generator has them.
fn body(section: &Section, pieces: &mut Vec<&str>) -> String {
    let texts: Vec<_> = section.files.iter().map(|file| std::fs::read_to_string(source(file)).unwrap()).collect();
    let mut out = String::new();
    let mut after_constant = false;
    pieces.retain(|piece| {
        let is_here = name_of(piece).is_some_and(|name| texts.iter().any(|text| defines(text, name)));
        if is_here {
            let is_constant = piece.contains("#define ");
            // Constants stand together.
            out += if after_constant && is_constant { "" } else { "\n" };
            out += &shortened(piece);
            after_constant = is_constant;
        }
        !is_here
    });
    out
}

fn ruler(section: &Section) -> String {
    let text: String = section.text.lines().map(|line| format!("\n * {line}").trim_end().to_owned()).collect();
    format!("/* ---- {} {}\n *{text}\n */\n", section.title, "-".repeat(110 - section.title.len()))
}

/// The header in the order of the sections.
fn arranged(before: &str, declarations: &str) -> String {
    let mut pieces: Vec<_> = declarations.split("\n\n").map(|piece| piece.trim_matches('\n')).collect();
    pieces.retain(|piece| !piece.is_empty() && !piece.starts_with("#ifdef") && !piece.starts_with("#endif"));
    let mut out = format!("{before}\n\n#ifdef __cplusplus\nextern \"C\" {{\n#endif\n");
    for section in &SECTIONS {
        out += &format!("\n{}{}", ruler(section), body(section, &mut pieces));
    }
    assert!(
        pieces.is_empty(),
        "no section declares {:?}",
        pieces.iter().map(|piece| name_of(piece)).collect::<Vec<_>>()
    );
    out + "\n#ifdef __cplusplus\n}\n#endif\n\n#endif /* SEGNO_H */\n"
}

#[test]
fn the_committed_header_is_current() {
    let (before, declarations) = generated();
    let header = arranged(&before, &declarations);
    let path = root().join("include/segno.h");
    if std::env::var_os("SEGNO_WRITE_HEADER").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let committed = std::fs::read_to_string(&path).expect("include/segno.h exists");
    assert!(committed == header, "include/segno.h differs from src/ffi: run `make header`");
}
