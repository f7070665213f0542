//! The host program comes first: what it may rely on holds as if nobody managed its memory.

use memfold_e2e::held::Held;
use memfold_e2e::run::{expect_evictions, harsh, program, run_folded, run_plain};
use memfold_e2e::{scratch, wait_until, LIMIT};
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// The anonymous mappings of a program that the kernel may give a huge page to by itself (`transparent_hugepage/enabled` at `always`): as long as one,
/// and not advised against (`nh` in smaps, proc_pid_smaps(5)).
fn may_be_huge(pid: u32) -> Vec<String> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("the program runs");
    let (mut found, mut mapping, mut bytes) = (Vec::new(), None, 0);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let advised = flags.split_whitespace().any(|flag| flag == "nh");
            found.extend(mapping.take().filter(|_| bytes >= HUGE && !advised).map(str::to_owned));
        } else if let Some(size) = line.strip_prefix("Size:") {
            let kib: usize = size.trim().trim_end_matches(" kB").parse().expect("a number");
            bytes = kib << 10;
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            mapping = (words.len() == 5 && words[1].starts_with("rw-p")).then_some(line);
        }
    }
    found
}

#[test]
fn no_memory_of_memfolds_own_can_become_a_huge_page() {
    let home = scratch();
    let held = Held::start(home.path(), "own", 1);
    // The program's own is less than that, in mappings of 2 MiB at the most.
    assert_eq!(may_be_huge(held.pid), Vec::<String>::new());
}

/// A line of `/proc/PID/status` that is a number.
fn status(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel says so");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn the_launcher_lets_go_of_what_it_needed_to_start_the_program() {
    let home = scratch();
    let held = Held::start(home.path(), "beside", 1);
    let launcher = status(held.pid, "PPid:") as u32;
    wait_until(LIMIT, "less than half of what it had is resident", || {
        2 * status(launcher, "VmRSS:") < status(launcher, "VmHWM:")
    });
    held.end();
}
