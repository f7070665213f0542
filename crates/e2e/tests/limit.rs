//! `--resident-limit`: a program in a control group that is too small for it ends plainly by the kernel's hand, and folded as it
//! should.
//!
//! Where no memory cgroup can be made, that is said on standard error, past the test harness.

use memfold_e2e::command_line::{memfold, scratch};
use memfold_e2e::run::{confine, counters, finish, program, run_folded, run_plain};
use memfold_e2e::LIMIT;
use memfold_pagecache::cgroup::{Group, Hierarchy};
use memfold_pager::config::Setting;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::ptr::null_mut;

const MIB: u64 = 1 << 20;

/// 160 MiB that shrink well, each block read back.
const SHRINKS: &str = "
blocks = [b'%08d' % i * 512 for i in range(40000)]
print(sum(block == b'%08d' % i * 512 for i, block in enumerate(blocks)))
";

/// As many that do not shrink at all.
const DENSE: &str = "
import random
block = lambda i: random.Random(i).randbytes(1 << 20)
blocks = [block(i) for i in range(160)]
print(sum(block(i) == each for i, each in enumerate(blocks)))
";

/// All of 256 MiB in use, again and again: four fifths of the group below.
const IN_USE: &str = "
block = bytearray(256 << 20)
pages = range(0, len(block), 4096)
for round in range(40):
    for page in pages:
        block[page] = round
print(sum(block[page] for page in pages))
";

/// The script in a group.
fn in_group(group: &Group, script: &str) -> Command {
    let mut command = Command::new(program("python3", "python3"));
    command.arg("-c").arg(script);
    confine(&mut command, group);
    command
}

/// The files that python runs from, held in memory for as long as the tests run. Otherwise the kernel takes them from a group that is full,
/// page by page, and reads them again: what should be killed in a moment crawls on for minutes.
fn hold_python() {
    let mut maps = Command::new(program("python3", "python3"));
    maps.args(["-c", "print(open('/proc/self/maps').read())"]);
    let maps = run_plain(maps, LIMIT).expect_success("python3");
    let maps = String::from_utf8_lossy(&maps.stdout).into_owned();
    let mut files: BTreeSet<&str> = maps.lines().filter_map(|line| line.get(line.find('/')?..)).collect();
    let library = memfold_e2e::preload_library();
    files.insert(library.to_str().expect("a path in UTF-8"));
    for path in files {
        let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
        // SAFETY: a new mapping of a file that is only read, at a place of the kernel's choice; it stays until the process ends.
        let held = unsafe {
            let held = libc::mmap(null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            held != libc::MAP_FAILED && libc::mlock(held, length) == 0
        };
        assert!(held, "{path} cannot be held in memory: {}", std::io::Error::last_os_error());
    }
}

/// A group of so many MiB; none where no group can be made.
fn group_of(name: &str, mib: u64) -> Option<Group> {
    let hierarchy = match Hierarchy::find() {
        Ok(hierarchy) => hierarchy,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "NOT TESTED: a limit taken from a control group: {error:#}");
            return None;
        }
    };
    let group = Group::create(&hierarchy, name).unwrap();
    group.limit(mib * MIB).unwrap();
    group.never_swap().unwrap();
    hold_python();
    Some(group)
}

/// A group of 96 MiB, which kills the script; none where no group can be made.
fn small_group(name: &str, script: &str) -> Option<Group> {
    let group = group_of(name, 96)?;
    let plain = run_plain(in_group(&group, script), LIMIT);
    assert!(!plain.status.success(), "160 MiB fit into a group of 96: {}", plain.stderr);
    Some(group)
}

#[test]
fn what_the_kernel_kills_in_a_small_group_finishes_folded() {
    let Some(group) = small_group("limit", SHRINKS) else { return };
    for limit in ["group", "auto", "70%"] {
        let mut folding = memfold_bench::launch::Folding::new(&memfold_e2e::preload_library()).unwrap();
        // The first is what holds where nobody says anything.
        if limit != "group" {
            folding = folding.set(Setting::ResidentLimit, limit);
        }
        let folded = run_folded(in_group(&group, SHRINKS), &folding, LIMIT)
            .expect_success("python3 in a group of 96 MiB");
        assert_eq!(String::from_utf8_lossy(&folded.stdout), "40000\n", "{limit}");
        let all = counters(&folding);
        assert!(all.iter().all(|counters| counters.pages.lost == 0));
    }
    let unlimited = memfold_bench::launch::Folding::new(&memfold_e2e::preload_library())
        .unwrap()
        .set(Setting::ResidentLimit, "none");
    let killed = run_folded(in_group(&group, SHRINKS), &unlimited, LIMIT);
    assert!(!killed.status.success(), "a limit was kept that was not to be");
}

#[test]
fn a_program_that_uses_most_of_what_its_group_has_is_not_made_to_wait() {
    let Some(group) = group_of("limit-in-use", 320) else { return };
    let folding = memfold_bench::launch::Folding::new(&memfold_e2e::preload_library()).unwrap();
    let folded =
        run_folded(in_group(&group, IN_USE), &folding, LIMIT).expect_success("python3 in a group of 320 MiB");
    assert_eq!(String::from_utf8_lossy(&folded.stdout), format!("{}\n", 39 * 65_536));
    for counters in counters(&folding) {
        assert_eq!(counters.costs.limit_waits, 0, "{counters:?}");
        // As much as there is, once: what is in use is not folded round after round.
        assert!(counters.pages.evicted < 65_536, "{counters:?}");
    }
}

/// Runs a script so often at the same time in a group of 160 MiB, folded: after `before`, each takes so many pages that shrink well, waits until all have, and reads them back.
fn together_in_160_mib(name: &str, count: usize, before: &str, pages: u64, start_at: &str) {
    let Some(group) = group_of(name, 160) else { return };
    let filled = tempfile::tempdir().unwrap();
    let wait = format!(
        "
import os, time
filled = {:?}
open(filled + '/' + str(os.getpid()), 'w').close()
while len(os.listdir(filled)) < {count}:
    time.sleep(0.01)
print",
        filled.path()
    );
    let script =
        &(before.to_owned() + &SHRINKS.replace("40000", &pages.to_string()).replace("\nprint", &wait));
    let folding = memfold_bench::launch::Folding::new(&memfold_e2e::preload_library()).unwrap();
    let folding = folding.set(Setting::StartAt, start_at);
    let run = || run_folded(in_group(&group, script), &folding, LIMIT);
    let outcomes = std::thread::scope(|scope| {
        let running: Vec<_> = (0..count).map(|_| scope.spawn(run)).collect();
        running.into_iter().map(|each| each.join().unwrap()).collect::<Vec<_>>()
    });
    for folded in outcomes {
        let folded = folded.expect_success(&format!("one of {count} in a group of 160 MiB"));
        assert_eq!(String::from_utf8_lossy(&folded.stdout), format!("{pages}\n"));
    }
    assert!(counters(&folding).iter().all(|counters| counters.pages.lost == 0));
}

#[test]
fn processes_that_fill_a_group_at_once_all_finish() {
    together_in_160_mib("limit-four", 4, "", 20_000, "16M");
}

#[test]
fn processes_of_less_than_an_eighth_of_their_group_share_it() {
    together_in_160_mib("limit-ten", 10, "", 4_500, "2M");
}

#[test]
fn what_the_kernel_has_for_a_program_counts_beside_it() {
    let pipes = "
import os
full = []
for i in range(400):
    full.append(os.pipe())
    os.set_blocking(full[-1][1], False)
    os.write(full[-1][1], bytes(1 << 16))
";
    together_in_160_mib("limit-pipes", 1, pipes, 40_000, "16M");
}

#[test]
fn a_page_daemon_near_a_groups_limit_is_woken_as_often_as_below_any_other() {
    // Most of the group in use, and then nothing for a second: how often the background thread was woken in it.
    let script = "
import glob, time
block = bytes(range(256)) * (120 << 12)
names = [task for task in glob.glob('/proc/self/task/*') if open(task + '/comm').read() == 'memfold-bg\\n']
def woken():
    return int(open(names[0] + '/status').read().split('\\nvoluntary_ctxt_switches:')[1].split()[0])
time.sleep(1)
before = woken()
time.sleep(1)
print(woken() - before)
";
    let Some(group) = group_of("limit-daemon", 160) else { return };
    let woken = |limit: &str| {
        let home = scratch();
        let mut command = memfold(home.path());
        command.args(["run", "--policy", "clock", "--resident-limit", limit, "--"]);
        command.arg(program("python3", "python3")).args(["-c", script]);
        confine(&mut command, &group);
        let outcome = finish(command, LIMIT).expect_success("python3 under a page daemon");
        String::from_utf8_lossy(&outcome.stdout).trim().parse::<u64>().expect("a number")
    };
    let (by_group, by_part) = (woken("group"), woken("auto"));
    assert!(by_group <= 4 * by_part + 20, "{by_group} times, and {by_part} below a limit that is a part");
}

#[test]
fn what_does_not_shrink_finishes_in_a_small_group_with_a_tier() {
    let Some(group) = small_group("limit-tier", DENSE) else { return };
    let (home, directory) = (scratch(), tempfile::tempdir_in("/var/tmp").unwrap());
    let mut command = memfold(home.path());
    command.args(["run", "--tier", &format!("disk={}", directory.path().display()), "--"]);
    command.arg(program("python3", "python3")).args(["-c", DENSE]);
    confine(&mut command, &group);
    let folded = finish(command, LIMIT).expect_success("python3 with a tier in a group of 96 MiB");
    assert_eq!(String::from_utf8_lossy(&folded.stdout), "160\n");
}

#[test]
fn run_says_in_one_line_which_limit_of_the_groups_it_found() {
    let hierarchy = match Hierarchy::find() {
        Ok(hierarchy) => hierarchy,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "NOT TESTED: the line that tells a group's limit: {error:#}");
            return;
        }
    };
    // No number that anything else would have.
    let group = Group::create(&hierarchy, "limit-told").unwrap();
    group.limit(93 * MIB).unwrap();
    let said = |options: &[&str]| {
        let home = scratch();
        let mut command = memfold(home.path());
        command.arg("run").args(options).args(["--", "true"]);
        confine(&mut command, &group);
        let outcome = finish(command, LIMIT).expect_success("true in a group");
        let is_told = |line: &&str| line.contains("control groups limit memory");
        outcome.stderr.lines().filter(is_told).map(str::to_owned).collect::<Vec<_>>()
    };
    for options in [&[][..], &["--resident-limit", "group"]] {
        let lines = said(options);
        assert!(
            matches!(&lines[..], [line] if line.contains("limit memory to 93.0 MiB here")),
            "{options:?}: {lines:?}"
        );
    }
    // Where it is not what is kept to, it is not told.
    for options in [&["--no-pager"][..], &["--resident-limit", "none"], &["--resident-limit", "64M"]] {
        assert_eq!(said(options), Vec::<String>::new(), "{options:?}");
    }
}

#[test]
fn a_limit_that_no_group_sets_is_refused_with_the_remedy() {
    let run = |limit: &str| {
        let mut command = Command::new(memfold_e2e::command_line::executable());
        command.args(["run", "--resident-limit", limit, "--", "true"]);
        run_plain(command, LIMIT)
    };
    if memfold_sys::cgroup::memory_limit(None).is_ok() {
        let _ = writeln!(std::io::stderr(), "NOT TESTED: no group limits memory: one does here");
    } else {
        for limit in ["auto", "60%"] {
            let outcome = run(limit);
            assert_eq!(outcome.status.code(), Some(2), "{limit}");
            assert!(outcome.stderr.contains("a size such as 256M is needed"), "{}", outcome.stderr);
        }
    }
    let outcome = run("0%");
    assert_eq!(outcome.status.code(), Some(2));
    assert!(outcome.stderr.contains("0%") && outcome.stderr.contains("60%"), "{}", outcome.stderr);
}
