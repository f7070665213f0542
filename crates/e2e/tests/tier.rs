//! A tier on disk below memory, under real programs: what went there comes back whole, to children too, and nothing of it stays behind.

use memfold_e2e::command_line::{executable, memfold, output, scratch};
use memfold_e2e::cores;
use memfold_e2e::daemon::Daemon;
use memfold_e2e::dialogue::Dialogue;
use memfold_e2e::run::{counters, expect_evictions, harsh, program, run_folded, run_plain};
use memfold_e2e::{wait_until, LIMIT};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

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
    read_what_went_to_disk("yes");
}

#[test]
fn a_program_and_its_children_read_what_went_to_disk_unsealed() {
    read_what_went_to_disk("no");
}

fn read_what_went_to_disk(seal: &str) {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let tier = format!("disk={},size=2G,after=50ms,seal={seal}", directory.path().display());
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
        ("disk=/var/tmp,seal=maybe", "yes or no"),
        ("redis://localhost:1,seal=no", "leave seal=no out"),
        ("redis://localhost:1,disk=/var/tmp,seal=no", "leave seal=no out"),
    ] {
        let mut command = Command::new(executable());
        command.args(["run", "--tier", tier, "--", "true"]);
        let outcome = run_plain(command, LIMIT);
        assert_eq!(outcome.status.code(), Some(2), "{tier}");
        assert!(outcome.stderr.contains(word), "{tier}: {}", outcome.stderr);
    }
}

#[test]
fn what_is_not_sealed_is_said_at_the_start_and_refused_where_it_may_not_be() {
    let home = scratch();
    let run = |words: &[&str]| {
        let output = memfold(home.path()).args(words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let tier = "disk=/var/tmp,seal=no";
    let (code, said) = run(&["run", "--tier", tier, "--", "true"]);
    let lines = said.lines().filter(|line| line.contains("is not sealed")).count();
    assert!(code == Some(0) && lines == 1 && said.contains("reads the program's memory"), "{said}");
    let (code, said) = run(&["run", "--tier", "disk=/var/tmp", "--", "true"]);
    assert!(code == Some(0) && !said.contains("sealed"), "{said}");
    for refused in [
        &["run", "--wipe", "--tier", tier, "--", "true"][..],
        &["run", "--profile", "secure", "--tier", tier, "--", "true"],
        &["daemon", "--tier", tier],
    ] {
        let (code, said) = run(refused);
        assert!(code == Some(2) && said.contains("leave seal=no out"), "{refused:?}: {said}");
    }
    let wiped =
        memfold(home.path()).env("MEMFOLD_WIPE", "1").args(["run", "--tier", tier, "--", "true"]).status();
    assert_eq!(wiped.unwrap().code(), Some(2));
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

/// Blocks whose every byte is known and which shrink to half. It looks at them, and so does a child, for each line that it is told.
const BLOCKS: &str = r#"
import os, random, sys
def make(i): return random.Random(i).randbytes(1000).hex()
blocks = [make(i) for i in range(int(sys.argv[1]))]
print(os.getpid(), flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(0 if all(blocks[i] == make(i) for i in range(0, len(blocks), 7)) else 1)
    assert os.waitpid(child, 0)[1] == 0, 'the child lost something'
    assert all(block == make(i) for i, block in enumerate(blocks)), 'changed'
    print(line, end='', flush=True)
"#;

/// A folded program with so many blocks of 2 KB, and its process id.
fn blocks(home: &Path, options: &[&str], count: usize) -> (Dialogue, String) {
    let mut dialogue = Dialogue::start(&mut command_for_blocks(home, options, count));
    let pid = dialogue.hear();
    (dialogue, pid)
}

fn command_for_blocks(home: &Path, options: &[&str], count: usize) -> Command {
    let mut command = memfold(home);
    command.args(["run", "--cold-age", "100ms", "--max-stall", "100%", "--max-cpu", "100%"]).args(options);
    command.arg("--").arg(program("python3", "python3")).args(["-c", BLOCKS, &count.to_string()]);
    command
}

/// What `memfold stat` says of a process.
fn stat(home: &Path, pid: &str) -> serde_json::Value {
    let mut command = memfold(home);
    command.args(["stat", "--json", pid]);
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output(command).stdout).unwrap_or_default();
    rows.into_iter().next().unwrap_or_default()
}

/// Has `memfold ctl` do something to a process; its exit code, and all that it said.
fn ctl(home: &Path, pid: &str, words: &[&str]) -> (Option<i32>, String) {
    let mut command = memfold(home);
    command.args(["ctl", pid]).args(words);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_program_that_runs_is_given_a_tier_whose_size_and_age_change() {
    let (home, directory) = (scratch(), tempfile::tempdir_in("/var/tmp").unwrap());
    let (mut program, pid) = blocks(home.path(), &[], 20000);
    let ctl = |words: &[&str]| ctl(home.path(), &pid, words);
    wait_until(LIMIT, "it is folded", || stat(home.path(), &pid)["evicted_bytes"].as_u64() > Some(16 << 20));
    let (code, said) = ctl(&["set", "tier", "after=1m"]);
    assert!(code == Some(1) && said.contains("set tier disk=/var/tmp,after=1m"), "{said}");
    let (code, said) = ctl(&["set", "tier", "redis://localhost:1"]);
    assert!(code == Some(1) && said.contains("memfold run --tier redis://localhost:1"), "{said}");
    let (code, said) = ctl(&["set", "tier", "disk=/nowhere-at-all"]);
    assert!(code == Some(2) && said.contains("/nowhere-at-all"), "{said}");
    let tier = format!("disk={},after=50ms", directory.path().display());
    assert_eq!(ctl(&["set", "tier", &tier]), (Some(0), String::new()));
    wait_until(LIMIT, "it goes to disk", || stat(home.path(), &pid)["tier_bytes"].as_u64() > Some(16 << 20));
    program.tell("look");
    let (code, said) = ctl(&["set", "tier", "disk=/var/tmp"]);
    assert!(code == Some(1) && said.contains("only its size and age change"), "{said}");
    assert_eq!(ctl(&["set", "tier", "size=1G,after=1d"]), (Some(0), String::new()));
    let seen = stat(home.path(), &pid);
    assert!(seen["tier"].as_str().unwrap().ends_with(",size=1G,after=1d"), "{seen}");
    assert!(seen["tier_read_amplification"].as_f64() > Some(0.0), "{seen}");
    assert!(ctl(&["get"]).1.contains(",size=1G,after=1d"));
    program.tell("look");
    assert!(program.end().success());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files were left behind");
}

#[test]
fn a_program_that_runs_is_given_a_tier_that_is_not_sealed_and_its_children_read_it_too() {
    let (home, directory) = (scratch(), tempfile::tempdir_in("/var/tmp").unwrap());
    let (mut program, pid) = blocks(home.path(), &[], 20000);
    let ctl = |words: &[&str]| ctl(home.path(), &pid, words);
    wait_until(LIMIT, "it is folded", || stat(home.path(), &pid)["evicted_bytes"].as_u64() > Some(16 << 20));
    let tier = format!("disk={},after=50ms", directory.path().display());
    let (code, said) = ctl(&["set", "tier", &format!("{tier},seal=no")]);
    assert!(code == Some(0) && said.lines().count() == 1 && said.contains("is not sealed"), "{said}");
    wait_until(LIMIT, "it goes to disk", || stat(home.path(), &pid)["tier_bytes"].as_u64() > Some(16 << 20));
    assert_eq!(stat(home.path(), &pid)["tier_sealed"], false);
    let mut command = memfold(home.path());
    command.args(["stat", &pid]);
    let shown = String::from_utf8_lossy(&output(command).stdout).into_owned();
    assert!(shown.contains("seal=no") && shown.contains("is not sealed"), "{shown}");
    program.tell("look");
    // What lies there was written one way.
    let (code, said) = ctl(&["set", "tier", &tier]);
    assert!(code == Some(1) && said.contains("which is not sealed, and stays so"), "{said}");
    assert_eq!(ctl(&["set", "tier", "size=1G,after=50ms"]), (Some(0), String::new()));
    assert!(stat(home.path(), &pid)["tier"].as_str().unwrap().contains("seal=no"));
    program.tell("look");
    assert!(program.end().success());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files were left behind");
}

/// The files in the directory that the process has open, in any thread's table.
fn open_files(pid: &str, directory: &Path) -> Vec<File> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let links =
        tasks.flat_map(|task| std::fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten());
    links
        .map(|link| link.path())
        .filter(|link| std::fs::read_link(link).is_ok_and(|path| path.starts_with(directory)))
        .flat_map(|link| File::options().read(true).write(true).open(link))
        .collect()
}

#[test]
fn who_wants_what_was_changed_on_disk_ends_with_the_directory_and_the_byte_sealed_or_not() {
    for seal in ["yes", "no"] {
        let (home, directory) = (scratch(), tempfile::tempdir_in("/var/tmp").unwrap());
        let tier = format!("disk={},after=50ms,seal={seal}", directory.path().display());
        let mut command = command_for_blocks(home.path(), &["--tier", &tier], 20000);
        command.stderr(std::process::Stdio::piped());
        let mut program = Dialogue::start(&mut command);
        let mut stderr = program.process().stderr.take().unwrap();
        let pid = program.hear();
        wait_until(LIMIT, "it goes to disk", || {
            stat(home.path(), &pid)["tier_bytes"].as_u64() > Some(16 << 20)
        });
        assert!(memfold(home.path()).args(["ctl", &pid, "pause"]).status().unwrap().success());
        wait_until(LIMIT, "no thread is at work", || all_are_asleep(&pid) && all_are_asleep(&pid));
        let file = open_files(&pid, directory.path()).pop().expect("it has a file");
        let len = file.metadata().unwrap().len() as usize;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0).unwrap();
        // One bit of each block.
        bytes.iter_mut().skip(100).step_by(4096).for_each(|byte| *byte ^= 8);
        file.write_all_at(&bytes, 0).unwrap();
        let (status, said) = program.finish("look");
        assert!(!status.success() && said.is_empty(), "it went on with other bytes: {said}");
        let mut errors = String::new();
        stderr.read_to_string(&mut errors).unwrap();
        let place = format!("in the tier's file in {} at byte ", directory.path().display());
        let line = errors.lines().find(|line| line.contains(&place)).unwrap_or_else(|| panic!("{errors}"));
        assert!(line.contains("is not what was written there (EBADMSG)"), "{line}");
        let byte: usize = line.split(&place).nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(byte.is_multiple_of(4096) && byte < len, "{line}");
    }
}

#[test]
fn programs_of_a_daemon_share_its_tier_by_what_each_has_cold_and_lose_nothing_without_it() {
    const SIZE: u64 = 20 << 20;
    let (home, directory) = (scratch(), tempfile::tempdir_in("/var/tmp").unwrap());
    let tier = format!("disk={},size=20M,after=50ms", directory.path().display());
    let start = || Daemon::start(home.path(), &["--tier", &tier]);
    let daemon = start();
    let option = format!("--daemon={}", daemon.at());
    let own = tempfile::tempdir_in("/var/tmp").unwrap();
    let (mut large, large_pid) = blocks(home.path(), &[&option], 30000);
    let (mut small, small_pid) = blocks(home.path(), &[&option], 10000);
    let own_tier = format!("disk={},after=50ms", own.path().display());
    let (mut other, other_pid) = blocks(home.path(), &[&option, "--tier", &own_tier], 10000);
    let of = |pid: &str, what: &str| stat(home.path(), pid)[what].as_u64().unwrap_or(0);
    // What the larger one gives up the smaller one takes: together that is never more than there was at the second look.
    let held = || [&small_pid, &large_pid].map(|pid| of(pid, "tier_file_bytes"));
    let within = || {
        let [small, large] = held();
        // What moves is a segment of each beyond it.
        assert!(large + small <= SIZE + (2 << 20), "{large} and {small}");
        large > small && small > 2 << 20 && large + small > SIZE * 3 / 4
    };
    wait_until(LIMIT, "the larger one has more of it", within);
    wait_until(LIMIT, "one has a tier of its own", || of(&other_pid, "tier_file_bytes") > 4 << 20);
    assert_eq!(of(&other_pid, "tier_share_bytes"), 0);
    assert!(daemon.counter("tier_size_bytes", None) == Some(SIZE));
    large.tell("look");
    small.tell("look");
    // Killed, it takes nothing with it, and the one that comes goes on from there.
    daemon.running.signal(libc::SIGKILL);
    drop(daemon);
    large.tell("look");
    small.tell("look");
    other.tell("look");
    let daemon = start();
    wait_until(LIMIT, "it is shared as before", within);
    assert!(small.end().success());
    wait_until(LIMIT, "the larger one gets what the other had", || {
        of(&large_pid, "tier_file_bytes") > SIZE * 4 / 5
    });
    large.tell("look");
    assert!(large.end().success() && other.end().success());
    drop(daemon);
}

/// What may be keys: the first bytes of pages of a process that are locked, in no core dump, and otherwise empty.
fn keys_of(pid: &str) -> Vec<[u8; 32]> {
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let (mut range, mut keys) = (0..0, Vec::new());
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        let number = |text: &str| u64::from_str_radix(text, 16);
        let bounds = line.split_whitespace().next().and_then(|word| word.split_once('-'));
        if let Some((Ok(begin), Ok(end))) = bounds.map(|(begin, end)| (number(begin), number(end))) {
            range = begin..end;
        }
        let is = |flag: &str| line.split_whitespace().any(|word| word == flag);
        if line.starts_with("VmFlags:") && is("lo") && is("dd") {
            for page in range.clone().step_by(4096) {
                let mut bytes = [0; 4096];
                memory.read_exact_at(&mut bytes, page).unwrap();
                let (key, rest) = bytes.split_first_chunk::<32>().unwrap();
                if rest.iter().all(|&byte| byte == 0) {
                    keys.push(*key);
                }
            }
        }
    }
    keys.retain(|key| key.iter().filter(|&&byte| byte != 0).count() > 16);
    keys
}

/// Where a file has these bytes.
fn find(file: &File, bytes: &[u8]) -> Option<u64> {
    let (mut piece, mut at) = (vec![0; 4 << 20], 0);
    loop {
        let len = file.read_at(&mut piece, at).unwrap();
        // SAFETY: both are as long as is said.
        let found = unsafe { libc::memmem(piece.as_ptr().cast(), len, bytes.as_ptr().cast(), bytes.len()) };
        if !found.is_null() {
            return Some(at + (found as usize - piece.as_ptr() as usize) as u64);
        }
        if len < bytes.len() {
            return None;
        }
        at += (len - bytes.len() + 1) as u64;
    }
}

/// Whether every thread of the process sleeps.
fn all_are_asleep(pid: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    threads.flat_map(|thread| std::fs::read_to_string(thread.path().join("stat"))).all(|stat| {
        let (_, state) = stat.rsplit_once(") ").expect("the name stands in parentheses");
        state.starts_with('S')
    })
}

#[test]
fn the_key_is_in_no_core_dump() {
    if !cores::are_left_behind() {
        return;
    }
    let (home, directory) = (scratch(), tempfile::tempdir_in("/var/tmp").unwrap());
    let tier = format!("disk={},after=50ms", directory.path().display());
    let folding = command_for_blocks(home.path(), &["--quiet", "--tier", &tier], 5000);
    let mut command = cores::leaving_one(folding.get_program());
    command.args(folding.get_args()).current_dir(home.path());
    for (name, value) in folding.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut program = Dialogue::start(&mut command);
    let pid = program.hear();
    wait_until(LIMIT, "it goes to disk", || stat(home.path(), &pid)["tier_bytes"].as_u64() > Some(4 << 20));
    // The registers of a thread that is sealing have what it seals with.
    let paused = memfold(home.path()).args(["ctl", &pid, "pause"]).status().unwrap();
    assert!(paused.success());
    wait_until(LIMIT, "no thread is at work", || all_are_asleep(&pid) && all_are_asleep(&pid));
    let keys = keys_of(&pid);
    assert!(!keys.is_empty(), "no page can be a key's");
    // SAFETY: a process that our own child started and waits for.
    unsafe { libc::kill(pid.parse().unwrap(), libc::SIGABRT) };
    assert!(!program.end().success());
    let core = File::open(cores::one_in(home.path())).unwrap();
    assert!(find(&core, b"libmemfold").is_some(), "the core dump has the program's memory");
    let leaks = keys.iter().flat_map(|key| [&key[..16], &key[16..]]).filter_map(|half| find(&core, half));
    let leaks: Vec<u64> = leaks.collect();
    assert!(leaks.is_empty(), "half a key is in the core dump at {leaks:x?}");
}
