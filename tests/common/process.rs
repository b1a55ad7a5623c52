//! A test in a process of its own: this test program once more.

use std::process::Command;

/// This program with the ignored test `name` alone; the name has the modules of the test in front.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs a program of [`program`], whose test must pass.
pub fn assert_passes(command: &mut Command) {
    let output = command.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{text}");
    assert!(output.status.success() && text.contains("test result: ok. 1 passed"), "{text}\n{errors}");
}
