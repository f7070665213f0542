//! Runtimes with collectors and just-in-time compilers of their own are attached to and detached from while they work: CPython, node, a Java machine. Each looks
//! at all that it holds, all the time.
//!
//! `ROUNDS=100` does so a hundred times each (`make test-programs`).

use memfold_e2e::agent::{may_attach, rounds, Subject};
use memfold_e2e::run::program;
use std::path::Path;
use std::process::Command;

fn endures(name: &str, package: &str, options: &[&str], source: &str) {
    if !may_attach() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    let mut subject = Subject::start(Command::new(program(name, package)).args(options).arg(source));
    subject.endure(rounds(3));
    let (status, said) = subject.finish();
    assert_eq!((status, said.trim()), (Some(7), "fine"));
}

#[test]
fn python_endures_it() {
    endures("python3", "python3", &["-S", "-E"], "held.py");
}

#[test]
fn node_endures_it() {
    endures("node", "nodejs", &["--max-old-space-size=128"], "held.js");
}

#[test]
fn a_java_machine_endures_it() {
    endures("java", "default-jdk-headless", &["-Xms96m", "-Xmx96m"], "Held.java");
}
