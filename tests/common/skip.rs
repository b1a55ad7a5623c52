//! Saying that a test is skipped, and why. `make test` counts what was said; `tests/skip.sh` does the same for scripts.

use std::io::Write;

/// What a skipped test lacks.
#[allow(dead_code)] // Every test binary lacks something else.
#[derive(Clone, Copy)]
pub enum Lack {
    /// A GPU that the library can use.
    Gpu,
    /// Test data that is not in the repository.
    Data,
    /// Something of this machine or build.
    Machine,
}

/// Says that the running test is skipped for the lack of `what`.
pub fn skip(lack: Lack, what: &str) {
    println!("skipped: {what}");
    let Some(list) = std::env::var_os("SEGNO_SKIPS") else { return };
    let kind = match lack {
        Lack::Gpu => "gpu",
        Lack::Data => "data",
        Lack::Machine => "machine",
    };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread");
    let binary = module_path!().split("::").next().unwrap_or_default();
    // Whole lines, as tests of several threads append.
    let line = format!("{kind}\t{binary} {test}: {what}\n");
    let mut list = std::fs::OpenOptions::new().create(true).append(true).open(list).unwrap();
    list.write_all(line.as_bytes()).unwrap();
}
