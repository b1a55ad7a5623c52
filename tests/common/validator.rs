//! Validators that are not ours: Python's expressions and its package jsonschema.

use super::skip::{Lack, skip};
use std::io::Write;
use std::process::{Command, Stdio};

/// Has `validate.py` check lines of a schema and a value, or of a pattern and a text.
pub fn check(cases: &[String]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/validate.py");
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let started = Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = started else { return skip(Lack::Machine, "there is no Python") };
    let mut input = child.stdin.take().unwrap();
    let lines = cases.join("\n");
    std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(lines.as_bytes()));
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match said.trim() {
            "no jsonschema" => skip(Lack::Machine, "Python has no jsonschema"),
            said => assert_eq!(said, "checked"),
        }
    });
}
