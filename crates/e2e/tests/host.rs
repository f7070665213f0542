//! The host program comes first: what it may rely on holds as if nobody managed its memory.

use memfold_e2e::run::{expect_evictions, harsh, program, run_folded, run_plain};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn built(dir: &Path) -> PathBuf {
    let host = dir.join("host");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/host.c");
    let mut compiler = Command::new(program("cc", "gcc"));
    compiler.args(["-O1", "-Wall", "-Wextra", "-pthread", "-o"]).arg(&host).arg(source);
    run_plain(compiler, LIMIT).expect_success("cc host.c");
    host
}

#[test]
fn a_program_finds_folded_what_it_finds_plain() {
    let dir = tempfile::tempdir().unwrap();
    let host = built(dir.path());
    let command = |wait: &str| {
        let mut command = Command::new(&host);
        command.arg(wait);
        command
    };
    let plain = run_plain(command("0"), LIMIT).expect_success("host, plain");
    let folding = harsh();
    let folded = run_folded(command("0.5"), &folding, LIMIT);
    assert_eq!(String::from_utf8_lossy(&folded.stdout), String::from_utf8_lossy(&plain.stdout));
    let folded = folded.expect_success("host, folded");
    assert_eq!(folded.stderr, "", "a program that can be folded is told nothing");
    expect_evictions(&folding, "host");
}
