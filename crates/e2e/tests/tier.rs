//! A tier on disk below memory, under real programs: what went there comes back whole, to children too, and nothing of it stays behind.

use memfold_e2e::command_line::executable;
use memfold_e2e::run::{counters, expect_evictions, harsh, program, run_folded, run_plain};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// Objects whose every byte is known, read again and again by the program, by children that it forks and by their children, while they go
/// to disk and change.
const SCRIPT: &str = r#"
import os, sys, time, subprocess
def make(i, round): return {'number': i, 'text': ('%d,%d;' % (i, round)) * 40}
heap = [make(i, 0) for i in range(120000)]
def check(round, step=1):
    for i in range(0, len(heap), step):
        assert heap[i] == make(i, round), (i, round)
def waited(pid):
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
for round in range(4):
    # Nothing is touched while it goes to disk.
    time.sleep(1.5)
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            check(round, 7)
            os._exit(0)
        waited(grandchild)
        time.sleep(0.5)
        check(round)
        os._exit(0)
    assert subprocess.run(['/bin/echo', 'a program'], stdout=subprocess.PIPE).stdout == b'a program\n'
    check(round, 5)
    heap = [make(i, round + 1) for i in range(len(heap))]
    waited(child)
    check(round + 1)
print('kept')
"#;

#[test]
fn a_program_and_its_children_read_what_went_to_disk() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let tier = format!("disk={},size=2G,after=50ms", directory.path().display());
    let folding = harsh().variable("MEMFOLD_TIER", &tier);
    let mut python = Command::new(program("python3", "python3"));
    python.args(["-c", SCRIPT]);
    let outcome = run_folded(python, &folding, LIMIT).expect_success("python3 with a tier on disk");
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "kept\n");
    expect_evictions(&folding, "python3 with a tier on disk");
    let most = counters(&folding).into_iter().map(|counters| counters.sizes.tier_bytes_peak).max();
    assert!(most > Some(16 << 20), "hardly anything went to disk: {most:?} bytes");
    assert!(counters(&folding).iter().all(|counters| counters.costs.tier_errors == 0));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files were left behind");
}

#[test]
fn a_tier_that_cannot_be_is_refused_with_the_remedy() {
    for (tier, word) in [
        ("tape=/var/tmp", "disk=DIR"),
        ("disk=/nowhere-at-all", "/nowhere-at-all"),
        ("disk=/var/tmp,size=1K", "16M"),
        ("disk=/var/tmp,after=soon", "10m"),
    ] {
        let mut command = Command::new(executable());
        command.args(["run", "--tier", tier, "--", "true"]);
        let outcome = run_plain(command, LIMIT);
        assert_eq!(outcome.status.code(), Some(2), "{tier}");
        assert!(outcome.stderr.contains(word), "{tier}: {}", outcome.stderr);
    }
}

#[test]
fn a_tier_that_is_gone_when_the_program_starts_leaves_it_folded_in_memory() {
    let folding = harsh().variable("MEMFOLD_TIER", "disk=/nowhere-at-all,after=10ms");
    let mut python = Command::new(program("python3", "python3"));
    let script = "import time\nblocks = [b'%08d' % i * 512 for i in range(20000)]\ntime.sleep(2)\n\
                  print(sum(block == b'%08d' % i * 512 for i, block in enumerate(blocks)))";
    python.args(["-c", script]);
    let outcome = run_folded(python, &folding, LIMIT).expect_success("python3 without its tier");
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "20000\n");
    assert!(outcome.stderr.contains("/nowhere-at-all"), "{}", outcome.stderr);
    expect_evictions(&folding, "python3 without its tier");
}
