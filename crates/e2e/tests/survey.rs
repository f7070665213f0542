//! `memfold survey`: what it says of a program whose memory is known, and that the program is none the worse for it.

use memfold_e2e::{memfold, scratch};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

const MIB: u64 = 1 << 20;

/// A python with 64 MiB of text that it keeps and does not look at, and 16 MiB of noise that it walks through all the time.
const PROGRAM: &str = r#"
import mmap, random, sys, threading
cold = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for n in range(64 << 8):
    cold[n << 12:(n + 1) << 12] = (b"record %8d of the year, kept; " % n * 200)[:4096]
hot = bytearray(random.Random(1).randbytes(16 << 20))
def walk():
    total = 0
    while True:
        total += sum(hot[::4096])
threading.Thread(target=walk, daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
ok = all(cold[n << 12:(n + 1) << 12] == (b"record %8d of the year, kept; " % n * 200)[:4096] for n in range(64 << 8))
print("whole" if ok else "changed", flush=True)
"#;

struct Program(Child, BufReader<std::process::ChildStdout>);

impl Program {
    fn start() -> Program {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 can be executed");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        assert_eq!(line(&mut out), "ready");
        Program(child, out)
    }
}

fn line(out: &mut impl BufRead) -> String {
    let mut text = String::new();
    out.read_line(&mut text).expect("the program speaks");
    text.trim().to_owned()
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn survey(args: &[&str]) -> std::process::Output {
    let runtime = scratch();
    memfold(runtime.path()).arg("survey").args(args).output().expect("memfold can be executed")
}

#[test]
fn a_program_is_seen_as_it_is_and_not_changed() {
    let mut program = Program::start();
    let pid = program.0.id().to_string();
    // However busy the machine, the walk comes by within the time.
    let output = survey(&[&pid, "--for", "5s", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let row = &found["processes"][0];
    assert_eq!(row["pid"].as_u64(), Some(program.0.id().into()), "{found}");
    let bytes = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("no {name} in {row}"));
    assert!(
        bytes("foldable_bytes") >= 80 * MIB && bytes("foldable_bytes") <= bytes("resident_bytes"),
        "{row}"
    );
    // The noise is in use, and the text is not.
    let cold = bytes("cold_bytes");
    assert!(cold >= 64 * MIB && cold + 15 * MIB <= bytes("foldable_bytes"), "{row}");
    assert!((48 * MIB..cold).contains(&bytes("saves_bytes")), "{row}");
    assert!(row["shrinking"]["into"].as_f64().is_some_and(|into| into < 0.2), "{row}");
    program.0.stdin.take().expect("piped").write_all(b"\n").expect("the program reads");
    assert_eq!(line(&mut program.1), "whole");
}

#[test]
fn people_are_shown_a_table_and_what_is_not_there_is_named() {
    let program = Program::start();
    let output = survey(&[&program.0.id().to_string(), "--for", "100ms"]);
    let text = String::from_utf8(output.stdout).expect("it is text");
    for part in ["SAVES", "python3", "would be saved", "█", "foldable"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let missing = survey(&["4194304"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("there is no process 4194304"), "{missing:?}");
    let bad = survey(&["--for", "never"]);
    assert_eq!(bad.status.code(), Some(2));
}
