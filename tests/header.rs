//! `include/segno.h` is what the pinned cbindgen makes of `src/ffi`. `make header` rewrites it.

use std::path::Path;

#[test]
fn the_committed_header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let builder = cbindgen::Builder::new().with_config(config);
    let mut sources: Vec<_> = std::fs::read_dir(root.join("src/ffi")).unwrap().map(|e| e.unwrap().path()).collect();
    // The generator follows the `mod` lines of mod.rs by itself, and would then declare every function twice.
    sources.retain(|source| !source.ends_with("mod.rs"));
    sources.sort();
    let builder = sources.into_iter().fold(builder, |builder, source| builder.with_src(source));
    let mut header = Vec::new();
    builder.generate().expect("src/ffi is readable").write(&mut header);
    let header = String::from_utf8(header).unwrap();
    let path = root.join("include/segno.h");
    if std::env::var_os("SEGNO_WRITE_HEADER").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let committed = std::fs::read_to_string(&path).expect("include/segno.h exists");
    assert!(committed == header, "include/segno.h differs from src/ffi: run `make header`");
}
